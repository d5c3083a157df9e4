# cairn amend: science and layout keys that change from a step on, on the record.
load lib

setup_file() {
    load lib
    micro_run "$BATS_FILE_TMPDIR/whole" run.steps=2
}

copy() {
    dir=$BATS_TEST_TMPDIR/run
    cp -r "$BATS_FILE_TMPDIR/whole" "$dir"
}

hashes() { # DIR STEP: the recipe hashes that the artefacts of a step carry
    sed -n 's/.*"identity": {"recipe": "\([0-9a-f]*\)".*/\1/p' "$1/step/$2/rollout/MANIFEST.json" "$1/step/$2/score/MANIFEST.json" \
        "$1/step/$2/train/MANIFEST.json" "$1/policy/$2/MANIFEST.json" | sort -u
}

@test "an amended step is made by the amended recipe, earlier ones stay; both recipes go on" {
    copy
    "$cairn" digest "$dir" >"$BATS_TEST_TMPDIR/before"
    is 0 "$cairn" amend "$dir" train.learning_rate=0.02 --from-step 3
    says "amendment 1, from step 3 on" "train.learning_rate" "-> 0.02 (science)"
    cp -r "$dir" "$BATS_TEST_TMPDIR/other"
    micro_run "$dir" run.steps=3
    micro_run "$BATS_TEST_TMPDIR/other" run.steps=3 train.learning_rate=0.02
    diff <("$cairn" digest "$dir") <("$cairn" digest "$BATS_TEST_TMPDIR/other")
    "$cairn" digest "$dir" | head -"$(wc -l <"$BATS_TEST_TMPDIR/before")" | diff "$BATS_TEST_TMPDIR/before" -
    [ "$(hashes "$dir" 000002)" = "$(hashes "$dir" 000001)" ]
    [ "$(hashes "$dir" 000003)" != "$(hashes "$dir" 000002)" ]
    [ "$(hashes "$dir" 000003 | wc -l)" = 1 ]
    [ "$(hashes "$dir" 000003)" = "$("$cairn" amend "$dir" train.learning_rate=0.02 --from-step 3 --json | sed 's/.*"recipe":"\([0-9a-f]*\)".*/\1/')" ]
    # the step itself: as in a run whose recipe said so from the start, where only training looks at the key
    cp -r "$BATS_FILE_TMPDIR/whole" "$BATS_TEST_TMPDIR/plain"
    micro_run "$BATS_TEST_TMPDIR/plain" run.steps=3
    diff <("$cairn" digest "$dir" | grep '^3 rollout') <("$cairn" digest "$BATS_TEST_TMPDIR/plain" | grep '^3 rollout')
    ! diff <("$cairn" digest "$dir" | grep '^3 train') <("$cairn" digest "$BATS_TEST_TMPDIR/plain" | grep '^3 train') || false
    is 0 "$cairn" verify --deep "$dir"
    # neither of them
    is 78 micro_run "$dir" train.learning_rate=0.03
    says "holds a run of another recipe" "cairn run $dir;" "cairn amend $dir key=value"
    # the frozen keys are what they were, ops keys follow the call
    is 0 "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet checkpoint.keep=7
    grep -q 'keep: 7' "$dir/recipe.yaml"
    ! grep -q 'learning_rate: 0.02' "$dir/recipe.yaml" || false
}

@test "the same call again changes nothing; a later word overrules an earlier one from its step on" {
    copy
    is 0 "$cairn" amend "$dir" train.learning_rate=0.02 rollout.samples=5 --from-step 3
    is 0 "$cairn" amend "$dir" rollout.samples=5 train.learning_rate=2.0e-2 --from-step 3
    says "nothing to amend"
    [ ! -e "$dir/recipe.amend-0002.json" ]
    is 0 "$cairn" amend "$dir" train.learning_rate=0.04 --from-step 5
    is 0 "$cairn" amend "$dir" train.learning_rate=0.03 --from-step 4 --json
    says '"number":3' '"from_step":4'
    is 0 "$cairn" amend "$dir" train.learning_rate=0.03 --from-step 6 # number 3 rules here, too
    says "nothing to amend"
    is 0 "$cairn" status "$dir"
    says "amended from step 3 on: train.learning_rate=0.02 rollout.samples=5" "amended from step 4 on: train.learning_rate=0.03"
    is 0 "$cairn" status "$dir" --json
    says '"amendments":[{"from_step":3,"number":1,'
    is 0 "$cairn" inspect "$dir"
    says "from step 5 on: train.learning_rate=0.04"
}

@test "inspect tells amendments of one step apart, and which recipe each step is made by" {
    copy
    is 0 "$cairn" amend "$dir" train.learning_rate=0.02 --from-step 3
    is 0 "$cairn" amend "$dir" score.overlong.factor=0.25 --from-step 3
    is 0 "$cairn" amend "$dir" train.learning_rate=0.04 --from-step 4
    is 0 "$cairn" inspect "$dir"
    says "amendment 1  from step 3 on: train.learning_rate=0.02" "amendment 2  from step 3 on: score.overlong.factor=0.25" \
        "amendment 3  from step 4 on: train.learning_rate=0.04"
    third=$(sed -n 's/^ *\([0-9a-f]\{32\}\) from step 3 on$/\1/p' <<<"$output") fourth=$(sed -n 's/^ *\([0-9a-f]\{32\}\) from step 4 on$/\1/p' <<<"$output")
    [ -n "$third" ] && [ -n "$fourth" ] && [ "$third" != "$fourth" ]
    is 0 "$cairn" inspect "$dir" --json
    says "\"amended_recipes\":[{\"from_step\":3,\"recipe\":\"$third\"},{\"from_step\":4,\"recipe\":\"$fourth\"}]"
    is 0 "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet run.steps=4
    for s in 3 4; do # what the artefacts of the step carry
        is 0 "$cairn" inspect "$dir/step/00000$s/train"
        [ $s = 3 ] && says "recipe          $third" || says "recipe          $fourth"
    done
}

@test "optional sections and evaluation: amended, and a recipe that has them goes on" {
    copy
    is 0 "$cairn" amend "$dir" 'score.overlong={buffer: 4, factor: 0.25}' run.eval_every=3 --from-step 3
    is 0 "$cairn" run "$micro" --run "$dir" --quiet run.steps=4 'score.overlong={buffer: 4, factor: 0.25}' run.eval_every=3
    [ -e "$dir/eval/000003/heldout/score/MANIFEST.json" ]
    is 0 micro_run "$dir" run.steps=4
    says ""
}

@test "what is refused, by name: reached steps, ops keys, the beginning of a run, nonsense" {
    copy
    is 78 "$cairn" amend "$dir" train.learning_rate=0.02 --from-step 2
    says "000002" "is committed" "from step 3 on"
    is 78 "$cairn" amend "$dir" train.learning_rate=0.02 --from-step 0
    is 78 "$cairn" amend "$dir" checkpoint.keep=3 --from-step 3
    says "checkpoint.keep" "may change at any: cairn run $dir key=value"
    is 78 "$cairn" amend "$dir" train.lerning_rate=0.02 --from-step 3
    says "nearest valid key: train.learning_rate"
    is 78 "$cairn" amend "$dir" train.learning_rate=fast --from-step 3
    is 78 "$cairn" amend "$dir" rollout.temperature=0 --from-step 3
    for set in run.seed=4 model.init.hidden_size=64 warm_start.updates=3 data.prompts.0.path=/elsewhere.jsonl data.eval.0.name=other \
        'data.eval=[]' sync.dtype=f32; do
        is 78 "$cairn" amend "$dir" "$set" --from-step 3
        says "cannot change from step 3 on"
    done
    is 64 "$cairn" amend "$dir" train.learning_rate=0.02
    is 64 "$cairn" amend "$dir" --from-step 3
    is 69 "$cairn" amend "$BATS_TEST_TMPDIR/nowhere" train.learning_rate=0.02 --from-step 3
    is 0 "$cairn" amend "$dir" train.learning_rate=0.02 --from-step 3 --dry-run
    says "not written"
    [ -z "$(find "$dir" -name 'recipe.amend*')" ]
}

@test "a damaged, missing or foreign amendment, a recipe changed by hand: named" {
    copy
    "$cairn" amend "$dir" train.learning_rate=0.02 --from-step 3
    "$cairn" amend "$dir" train.learning_rate=0.03 --from-step 4
    cp -r "$dir" "$BATS_TEST_TMPDIR/keep"
    size=$(wc -c <"$dir/recipe.amend-0001.json")
    for at in 5 $((size / 2)) $((size - 40)); do
        flip "$dir/recipe.amend-0001.json" "$at"
        is 65 "$cairn" status "$dir"
        says "recipe.amend-0001.json"
        is 65 "$cairn" verify "$dir"
        says "recipe.amend-0001.json"
        cp "$BATS_TEST_TMPDIR/keep/recipe.amend-0001.json" "$dir"
    done
    rm "$dir/recipe.amend-0002.json"
    is 65 "$cairn" status "$dir"
    says "recipe.amend-0002.json is missing"
    cp "$BATS_TEST_TMPDIR/keep/recipe.amend-0002.json" "$dir"
    rm "$dir/recipe.amend-0001.json"
    is 65 "$cairn" run "$micro" --run "$dir" --quiet run.steps=3
    says "recipe.amend-0001.json is missing"
    cp "$dir/recipe.amend-0002.json" "$dir/recipe.amend-0001.json"
    is 65 "$cairn" status "$dir"
    says "does not belong here"
    cp "$BATS_TEST_TMPDIR/keep/recipe.amend-0001.json" "$dir"
    is 0 "$cairn" status "$dir"
    sed -i 's/temperature: 1.0/temperature: 0.9/' "$dir/recipe.yaml"
    is 78 "$cairn" status "$dir"
    says "recipe.yaml" "cairn amend"
}

@test "killed while it amends: there whole, or not at all" {
    copy
    for t in 0.001 0.003 0.005 0.008 0.012 0.02; do
        timeout -s KILL "$t" "$cairn" amend "$dir" train.learning_rate=0.02 --from-step 3 >/dev/null 2>&1 || true
        is 0 "$cairn" status "$dir"
    done
    is 0 "$cairn" amend "$dir" train.learning_rate=0.02 --from-step 3
    [ ! -e "$dir/recipe.amend-0002.json" ]
    is 0 micro_run "$dir" run.steps=3
    [ -z "$(find "$dir" -name '*.tmp.*')" ]
}
