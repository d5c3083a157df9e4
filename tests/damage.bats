# What is broken is named, with the right exit code and a hint: recipes, prompt files, checkpoints, HuggingFace files.
load lib

setup_file() {
    load lib
    micro_run "$BATS_FILE_TMPDIR/whole" run.steps=1
}

copy() {
    dir=$BATS_TEST_TMPDIR/run
    cp -r "$BATS_FILE_TMPDIR/whole" "$dir"
}

hf() { # DIR: a HuggingFace directory to spoil
    cp -r "$root/tests/fixtures/models/glm52-tiny" "$1"
    chmod -R u+w "$1"
}

# ---- recipes

@test "a misspelt key: 78, file, line, the nearest key" {
    printf 'inherit: %s\ntrain:\n  lerning_rate: 1.0\n' "$micro" >"$BATS_TEST_TMPDIR/r.yaml"
    is 78 "$cairn" run "$BATS_TEST_TMPDIR/r.yaml" --run "$BATS_TEST_TMPDIR/run"
    says "r.yaml:3" "train.lerning_rate" "train.learning_rate"
    [ ! -e "$BATS_TEST_TMPDIR/run" ]
    is 78 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/run" rollout.sampels=3
    says "rollout.samples"
}

@test "a wrong type, an impossible value, a layout that this build cannot do: 78" {
    is 78 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/run" rollout.samples=many
    says "rollout.samples" "integer"
    is 78 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/run" rollout.temperature=0
    says "rollout.temperature"
    is 78 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/run" train.parallel.tp=2
    says "train.parallel.tp"
    is 78 "$cairn" run "$BATS_TEST_TMPDIR/absent.yaml" --run "$BATS_TEST_TMPDIR/run"
    says "absent.yaml"
}

@test "a file that does not exist, a model that makes no sense: 78 before anything runs" {
    is 78 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/a" data.prompts.0.path=nowhere.jsonl
    says "nowhere.jsonl"
    is 78 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/b" model.init.model_type=llama
    says "llama"
    is 78 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/c" model.init.vocab_size=2310
    says "2331" "2310"
}

# ---- prompts and lines

@test "a prompt file with a broken line: 65 and its number" {
    head -3 "$root/recipes/data/tiny/train.jsonl" >"$BATS_TEST_TMPDIR/p.jsonl"
    echo '{"id": "x", "prompt": 7, "answer": "1"}' >>"$BATS_TEST_TMPDIR/p.jsonl"
    is 65 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/run" --quiet data.prompts.0.path="$BATS_TEST_TMPDIR/p.jsonl"
    says ":4:" "prompt"
}

@test "broken lines of the verbs that read them: 65 and the number" {
    printf '{"text":"a"}\n{"text":\n' >"$BATS_TEST_TMPDIR/t.jsonl"
    is 65 "$cairn" tokenize "$root/recipes/data/tokenizers/mini-glm" --jsonl "$BATS_TEST_TMPDIR/t.jsonl"
    says "t.jsonl:2"
    printf '{"ids":[1,99999999]}\n' >"$BATS_TEST_TMPDIR/d.jsonl"
    is 65 "$cairn" detokenize "$root/recipes/data/tokenizers/mini-glm" --jsonl "$BATS_TEST_TMPDIR/d.jsonl"
    says "d.jsonl:1" "99999999"
    printf '{"gold":"1","response":"Answer: 1"}\n{"gold":"1"}\n' >"$BATS_TEST_TMPDIR/g.jsonl"
    is 65 "$cairn" grade --jsonl "$BATS_TEST_TMPDIR/g.jsonl"
    says "g.jsonl:2"
}

@test "ids outside the vocabulary, empty and broken lines in logprobs: 65 and the number" {
    for bad in '{"ids":[1,999999]}' '{"ids":[]}' '{"ids":[-1]}' '{"ids":'; do
        printf '{"ids":[1,2]}\n%s\n' "$bad" >"$BATS_TEST_TMPDIR/l.jsonl"
        is 65 "$cairn" logprobs "$root/tests/fixtures/models/glm52-tiny" --tokens "$BATS_TEST_TMPDIR/l.jsonl"
        says "l.jsonl:2"
    done
}

# ---- committed artefacts

@test "one flipped bit in a shard: found and named by verify, and by the stage that needs it" {
    copy
    shard=$(ls "$dir"/policy/000001/a*/*.h5 | head -1)
    flip "$shard" $(($(stat -c %s "$shard") / 2))
    is 65 "$cairn" verify "$dir"
    says "policy/000001" "1 bad; to fall back to what is good: cairn verify --repair $dir"
    [ "$(printf '%s\n' "$output" | grep -c "$(basename "$shard")")" = 1 ] || { echo "not said once: $output"; return 1; }
    is 65 "$cairn" run "$micro" --run "$dir" --quiet
    says "$(basename "$shard")" "before it is run again: cairn verify --repair $dir"
    is 0 "$cairn" status "$dir"
    says "failed" "$(basename "$shard")" "to go on: cairn verify --repair $dir"
    cp -r "$dir" "$dir.mended"
    is 0 "$cairn" verify --repair "$dir.mended"
    is 0 "$cairn" status "$dir.mended"
    says "cairn verify --repair took it to quarantine/0001; to be made again" "to go on: cairn run $dir.mended"
    [[ $output != *killed* ]]
    is 0 "$cairn" run "$micro" --run "$dir.mended" --quiet
    # Found before HDF5 opens the file: the format's own first bytes, too.
    flip "$shard" 0
    is 65 "$cairn" verify --deep "$dir"
}

@test "one flipped bit in a manifest, a truncated shard, a longer one: 65" {
    copy
    flip "$dir/policy/000001/MANIFEST.json" 40
    is 65 "$cairn" verify "$dir"
    says "policy/000001/MANIFEST.json"
    is 65 "$cairn" run "$micro" --run "$dir" --quiet
    says "cairn verify --repair $dir takes it out"
    is 0 "$cairn" status "$dir"
    says "to go on: cairn verify --repair $dir"
    [[ $output != *"cairn run"* ]]
    rm -rf "$dir"
    copy
    shard=$(ls "$dir"/step/000001/train/a*/*.h5 | head -1)
    truncate -s -1 "$shard"
    is 65 "$cairn" verify "$dir"
    says "$(basename "$shard")"
    truncate -s +2 "$shard"
    is 65 "$cairn" verify "$dir"
}

@test "an imported base is verified with the run that links to it; repair cannot mend it" {
    base=$BATS_TEST_TMPDIR/imported
    dir=$BATS_TEST_TMPDIR/on
    cp -r "$BATS_FILE_TMPDIR/whole/base" "$base"
    is 0 "$cairn" init "$micro" --run "$dir" model.init=null "model.from=$base"
    [ -L "$dir/base" ]
    is 0 "$cairn" verify --deep "$dir"
    says "1 artefacts"
    shard=$(ls "$base"/a*/*.h5 | head -1)
    flip "$shard" $(($(stat -c %s "$shard") / 2))
    is 65 "$cairn" verify "$dir"
    says "bad: " "$dir/base/" "$(basename "$shard")" "1 bad"
    is 65 "$cairn" verify --repair "$dir"
    says "left: " "$(basename "$shard")"
    is 65 "$cairn" verify "$dir"
    says "--repair cannot make it again"
    [ -L "$dir/base" ]
    flip "$shard" $(($(stat -c %s "$shard") / 2))
    is 0 "$cairn" verify "$dir"
    # what is damaged is told by its place in the run: this run lies below a directory of that name, and its policy can be made again
    mkdir "$BATS_TEST_TMPDIR/base"
    is 0 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/base/r" --quiet model.init=null "model.from=$base" run.steps=1
    shard=$(ls "$BATS_TEST_TMPDIR"/base/r/policy/000001/a*/*.h5 | head -1)
    flip "$shard" $(($(stat -c %s "$shard") / 2))
    is 65 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/base/r" --quiet model.init=null "model.from=$base" run.steps=2
    says "before it is run again: cairn verify --repair $BATS_TEST_TMPDIR/base/r"
    mv "$base" "$base.away"
    is 65 "$cairn" verify "$dir"
    says "leads to $base, which is not there"
}

@test "a missing shard: 65 naming it" {
    copy
    shard=$(ls "$dir"/policy/000001/a*/*.h5 | head -1)
    rm "$shard"
    is 65 "$cairn" verify "$dir"
    says "$(basename "$shard")"
    is 65 "$cairn" run "$micro" --run "$dir" --quiet
    says "$(basename "$shard")"
}

@test "a stage whose input is not committed: 69 naming it" {
    copy
    is 69 "$build/bin/cairn-score" "$dir" --step 2
    says "step/000002/rollout"
    is 64 "$build/bin/cairn-score" "$dir" --step 1 --eval nobody
}

@test "what retention takes away while verify reads it is collected, not bad" {
    local shim=$build/lib/faultshim.so pid
    [[ -e $shim && $build != *san* ]] || skip "the shim that stops a program at a call is not here: NOT TRIED"
    copy
    stopped() { # ARTEFACT BAD: verify stands before its first shard, which then goes; it says BAD
        local dir=$dir/$1
        LD_PRELOAD=$shim CAIRN_FAULT_ROOT=$dir CAIRN_FAULT_PROGRAM=cairn CAIRN_FAULT="n=1 kind=stop ops=1 classes=1" \
            "$cairn" verify "$dir" >"$BATS_TEST_TMPDIR/out" 2>&1 3>&- &
        pid=$!
        while kill -0 "$pid" && [ "$(awk '{ print $3 }' "/proc/$pid/stat")" != T ]; do sleep 0.05; done
        rm "$dir"/a*/*.h5
        [ "$2" != 0 ] || echo >"$dir/COLLECTED"
        kill -CONT "$pid"
        wait "$pid" || [ "$2" != 0 ]
        grep -q ": $2 bad" "$BATS_TEST_TMPDIR/out" || { cat "$BATS_TEST_TMPDIR/out"; return 1; }
    }
    stopped policy/000001 0
    stopped step/000001/rollout 2 # and without a marker it is
}

@test "a file of the run's own that is gone: status says it before anything is called, with how it is put back" {
    dir=$BATS_TEST_TMPDIR/run
    is 0 "$cairn" init "$micro" --run "$dir"
    rm "$dir/files/model.tokenizer"
    is 0 "$cairn" status "$dir"
    says "model.tokenizer: $dir/files/model.tokenizer is missing; put it back: cp " "to go on: cairn verify --deep $dir"
    is 65 "$cairn" run "$dir" --quiet
    says "model.tokenizer: $dir/files/model.tokenizer is missing; put it back: cp "
}

@test "a prompt file that changed behind a run's back: 65 naming it, and how it is put back" {
    copy
    echo '{"id":"new","prompt":"1?","answer":"1"}' >>"$dir/files/data.prompts.0"
    is 65 "$cairn" run "$micro" --run "$dir" --quiet
    says "data.prompts.0" "put it back: cp $root/recipes/data/tiny/train.jsonl $dir/files/data.prompts.0" \
        "how to put back what the run was given: cairn verify $dir"
    is 0 "$cairn" status "$dir"
    says "to go on: cairn verify $dir"
    is 65 "$cairn" verify "$dir"
    says "put it back: cp " "1 bad; --repair cannot make it again: put back what the run was given"
    is 65 "$cairn" verify --repair "$dir"
    says "left: $dir/files/data.prompts.0" "put it back: cp "
    cp "$root/recipes/data/tiny/train.jsonl" "$dir/files/data.prompts.0"
    is 0 "$cairn" verify "$dir"
    # where the file that was taken is another one by now, or gone: its digest and where it was
    cp "$root/recipes/data/tiny/train.jsonl" "$BATS_TEST_TMPDIR/p.jsonl"
    is 0 "$cairn" init "$micro" --run "$BATS_TEST_TMPDIR/own" "data.prompts.0.path=$BATS_TEST_TMPDIR/p.jsonl"
    rm "$BATS_TEST_TMPDIR/p.jsonl" "$BATS_TEST_TMPDIR/own/files/data.prompts.0"
    digest=$(sed -n 's/.*"data.prompts.0":{[^}]*"digest":"\([0-9a-f]*\)".*/\1/p' "$BATS_TEST_TMPDIR/own/run.json")
    is 65 "$cairn" verify "$BATS_TEST_TMPDIR/own"
    says "data.prompts.0 is missing; put back the file with digest $digest, which was at $BATS_TEST_TMPDIR/p.jsonl"
}

@test "verify names all that is bad of a run's own files, not the first alone" {
    copy
    is 0 "$cairn" amend "$dir" train.learning_rate=0.002 --from-step 2
    is 0 "$cairn" amend "$dir" score.overlong.factor=0.25 --from-step 3
    sed -i 's/learning_rate: 0.001/learning_rate: 0.005/' "$dir/recipe.yaml"
    flip "$dir/recipe.amend-0002.json" 20
    echo >>"$dir/files/data.prompts.0"
    rm "$dir/files/model.tokenizer"
    shard=$(ls "$dir"/policy/000001/a*/*.h5 | head -1)
    flip "$shard" $(($(stat -c %s "$shard") / 2))
    is 65 "$cairn" verify "$dir"
    says "bad: $dir/recipe.yaml: " "bad: $dir/recipe.amend-0002.json: " "bad: $dir/files/data.prompts.0: " "bad: $dir/files/model.tokenizer: " \
        "bad: $shard: " ": 5 bad; first put back what the run was given"
    is 65 "$cairn" verify --repair "$dir"
    says "put them back as said above"
    [ ! -e "$dir/quarantine" ]
}

@test "a file of a run that is missing: 65 with every verb; a run that is missing: 69" {
    for file in recipe.yaml files/model.tokenizer; do
        copy
        rm "$dir/$file"
        is 65 "$cairn" run "$micro" --run "$dir" --quiet run.steps=2
        says "$file is missing; put"
        is 65 "$cairn" verify "$dir"
        says "bad: $dir/$file" "is missing; put"
        rm -rf "$dir"
    done
    copy
    rm "$dir/recipe.yaml"
    for verb in status digest inspect gc; do
        is 65 "$cairn" $verb "$dir"
        says "recipe.yaml is missing; put back the recipe that the run was made with"
    done
    cp "$BATS_FILE_TMPDIR/whole/recipe.yaml" "$dir/"
    rm "$dir/run.json"
    is 65 "$cairn" verify "$dir"
    says "bad: $dir/run.json: missing"
    for verb in status digest gc; do
        is 69 "$cairn" $verb "$dir"
        is 69 "$cairn" $verb "$BATS_TEST_TMPDIR/nowhere"
    done
}

@test "a damaged run.json: every verb says that nothing makes it again, and what was trained can still leave" {
    copy
    sed -i s/uuid/uuix/ "$dir/run.json"
    for verb in verify "verify --repair" status digest "run $dir/recipe.yaml --run"; do
        # shellcheck disable=SC2086
        is 65 "$cairn" $verb "$dir"
        says "run.json: damaged: " "nothing can make it again: put back a copy of it" "cairn export RUN/policy/NNNNNN --out HF_DIR"
    done
    is 0 "$cairn" export "$dir/policy/000001" --out "$BATS_TEST_TMPDIR/hf"
    cp "$BATS_FILE_TMPDIR/whole/run.json" "$dir/"
    is 0 "$cairn" verify "$dir"
}

@test "an unknown key in a run's recipe: every verb says whose recipe it is" {
    copy
    sed -i 's/^  seed:/  sead:/' "$dir/recipe.yaml"
    is 65 "$cairn" verify "$dir"
    says "unknown key \"run.sead\"" "this is the recipe that the run was made with: put back what was changed by hand"
    for verb in status digest "run $dir/recipe.yaml --run" "init $dir/recipe.yaml --run"; do
        # shellcheck disable=SC2086
        is 78 "$cairn" $verb "$dir"
        says "unknown key \"run.sead\"" "this is the recipe that the run was made with: put back what was changed by hand" "cairn amend RUN "
    done
    cp "$dir/recipe.yaml" "$BATS_TEST_TMPDIR/mine.yaml"
    is 78 "$cairn" init "$BATS_TEST_TMPDIR/mine.yaml" --run "$BATS_TEST_TMPDIR/none"
    says 'unknown key "run.sead"'
    [[ $output != *"made with"* ]]
}

# ---- HuggingFace

@test "a truncated safetensors file, a header that promises 2^62 bytes: 65" {
    hf "$BATS_TEST_TMPDIR/hf"
    file=$BATS_TEST_TMPDIR/hf/model.safetensors
    truncate -s -7 "$file"
    is 65 "$cairn" import "$BATS_TEST_TMPDIR/hf" --out "$BATS_TEST_TMPDIR/a"
    says "model.safetensors"
    printf '\0\0\0\0\0\0\0\100' | dd of="$file" conv=notrunc status=none
    is 65 "$cairn" import "$BATS_TEST_TMPDIR/hf" --out "$BATS_TEST_TMPDIR/b"
    says "model.safetensors"
    [ ! -e "$BATS_TEST_TMPDIR/b/MANIFEST.json" ]
}

@test "a config.json of another architecture, and none: 65" {
    hf "$BATS_TEST_TMPDIR/hf"
    sed -i 's/glm_moe_dsa/llama/; s/GlmMoeDsaForCausalLM/LlamaForCausalLM/' "$BATS_TEST_TMPDIR/hf/config.json"
    is 65 "$cairn" import "$BATS_TEST_TMPDIR/hf" --out "$BATS_TEST_TMPDIR/a"
    says "config.json" "llama"
    rm "$BATS_TEST_TMPDIR/hf/config.json"
    is 65 "$cairn" import "$BATS_TEST_TMPDIR/hf" --out "$BATS_TEST_TMPDIR/a"
}

@test "a tokenizer larger than the embedding: 65 in import" {
    hf "$BATS_TEST_TMPDIR/hf"
    cp "$root/recipes/data/tokenizers/mini-glm/tokenizer.json" "$BATS_TEST_TMPDIR/hf/"
    is 65 "$cairn" import "$BATS_TEST_TMPDIR/hf" --out "$BATS_TEST_TMPDIR/a"
    says "2331"
}
