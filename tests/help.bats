# Every verb explains itself, and what is no verb is refused with the nearest one.
load lib

wanted="run init status amend verify gc digest inspect import export logprobs generate tokenize detokenize grade eval replay check bench doctor"

setup() {
    verbs=$("$cairn" help | awk '/^  [a-z]/ && $1 != "cairn" && $1 != "help" { print $1 }')
}

@test "every verb has a page that fits a screen and ends with two examples of itself" {
    for v in $verbs; do
        is 0 "$cairn" "$v" --help
        says "Examples:"
        [ "$(printf '%s\n' "$output" | awk 'length > 79' | wc -l)" = 0 ] || { echo "$v: too wide"; echo "$output"; return 1; }
        [ "${#lines[@]}" -le 50 ]
        tail=$(printf '%s\n' "$output" | sed -n '/^Examples:/,$p')
        # Two lines with two blanks in front; further ones are the continuation of a long command.
        [ "$(printf '%s\n' "$tail" | grep '^  [^ ]' | grep -c "cairn $v")" = 2 ] || { echo "$v:"; echo "$tail"; return 1; }
        [ "$(printf '%s\n' "$tail" | grep -c '^  [^ ]')" = 2 ] || { echo "$v:"; echo "$tail"; return 1; }
        [ "$(printf '%s\n' "$tail" | grep -c '^[^ ]')" = 1 ] || { echo "$v: a wrapped example"; echo "$tail"; return 1; }
        [ "$(printf '%s\n' "$tail" | grep -c .)" -le 5 ] || { echo "$v:"; echo "$tail"; return 1; }
    done
}

@test "cairn help lists every verb, cairn help VERB is its page" {
    is 0 "$cairn" help
    for v in $wanted; do
        printf '%s\n' "$output" | grep -q "^  $v " || { echo "$v is not listed"; return 1; }
    done
    page=$("$cairn" run --help)
    is 0 "$cairn" help run
    [ "$output" = "$page" ]
    is 0 "$cairn" --help
    is 0 "$cairn" help --help
}

@test "an unknown verb is 64 and names the nearest" {
    is 64 "$cairn" statsu
    says 'did you mean "status"'
    is 64 "$cairn" verfiy
    says 'did you mean "verify"'
    for other in foo nothing-like-it x; do # what is not near is not guessed at
        is 64 "$cairn" "$other"
        is 64 "$cairn" help "$other"
        says "no verb \"$other\"; cairn help lists them"
    done
    is 64 "$cairn"
}

@test "an unknown option and missing words are 64" {
    for v in run init status amend verify gc digest inspect import export logprobs generate tokenize detokenize grade eval replay; do
        is 64 "$cairn" "$v" --no-such-option
        is 64 "$cairn" "$v"
    done
}

@test "a value that an option cannot have is 64, with a sentence that says what it can" {
    local words
    for words in "amend x k=v --from-step x" "gc x --older-than x" "job x --group rollout --step x" "export x --step x" \
        "export x --file-bytes 0" "export x --adapter-layout x" "import x --shard-bytes x" "generate x --top-p 2" "eval x --limit x"; do
        # shellcheck disable=SC2086
        is 64 "$cairn" $words
        says "cairn ${words%% *}: --" ": expected "
        case $output in *PROGRAM*) echo "$output"; return 1 ;; esac
    done
    for v in run init submit replay; do
        is 64 "$cairn" "$v" "$micro" --run "$BATS_TEST_TMPDIR/none" run.steps
        says '"run.steps": expected key=value'
    done
    [ ! -e "$BATS_TEST_TMPDIR/none" ]
    is 0 "$cairn" amend --usage
    says "Usage: cairn amend"
}

@test "a checkpoint is no run, and no place for one" {
    is 0 "$cairn" import tests/fixtures/models/glm52-tiny --out "$BATS_TEST_TMPDIR/base"
    is 64 "$cairn" init "$micro" --run "$BATS_TEST_TMPDIR/base"
    says "is a checkpoint, no place for a run"
    [ ! -e "$BATS_TEST_TMPDIR/base/recipe.yaml" ]
    is 69 "$cairn" digest "$BATS_TEST_TMPDIR/base"
    says "is a checkpoint, not a run"
}

@test "a directory that is not there is 69, whoever wants it" {
    none=$BATS_TEST_TMPDIR/none
    printf '{"ids":[1]}\n' >"$BATS_TEST_TMPDIR/ids"
    for verb in "status $none" "verify $none" "digest $none" "inspect $none" "import $none --out $none" "import $none --dry-run" \
        "export $none --out $none" "logprobs $none --tokens $BATS_TEST_TMPDIR/ids" "generate $none --ids $BATS_TEST_TMPDIR/ids" \
        "eval $none --set $BATS_TEST_TMPDIR/ids" "replay $none --score $micro" "replay $none --train --run $none" \
        "amend $none run.steps=3 --from-step 2" "stop $none" "gc $none" "doctor $none"; do
        # shellcheck disable=SC2086
        is 69 "$cairn" $verb
        says "$none"
        [ ! -e "$none" ]
    done
}

@test "a file in the place of a run is called one" {
    : >"$BATS_TEST_TMPDIR/file"
    is 69 "$cairn" status "$BATS_TEST_TMPDIR/file"
    says "file is a file; a run is a directory"
    is 74 "$cairn" init "$micro" --run "$BATS_TEST_TMPDIR/file"
    says "there is a file of that name"
}

@test "a file that is not there is 65, whoever reads it; a recipe 78" {
    none=$BATS_TEST_TMPDIR/none
    micro_run "$BATS_TEST_TMPDIR/run" run.steps=1 run.eval_every=0
    for words in "eval $BATS_TEST_TMPDIR/run --set $none" "grade --jsonl $none" "logprobs $BATS_TEST_TMPDIR/run --tokens $none" \
        "generate $BATS_TEST_TMPDIR/run --ids $none" "tokenize $root/recipes/data/tokenizers/mini-glm --jsonl $none" "tokenize $none --jsonl $micro" \
        "detokenize $root/recipes/data/tokenizers/mini-glm --jsonl $none" "replay $BATS_TEST_TMPDIR/run --from $none --run $none.run"; do
        # shellcheck disable=SC2086
        is 65 "$cairn" $words
        says "$none"
    done
    for words in "run $none --run $none.run" "init $none --run $none.run" "submit $none --run $none.run" "check $none"; do
        # shellcheck disable=SC2086
        is 78 "$cairn" $words
        says "$none"
    done
    [ ! -e "$none" ] && [ ! -e "$none.run" ]
}

@test "what is refused leaves no trace, and takes nothing away" {
    printf '{"prompt": "1", "answer": 1}\n' >"$BATS_TEST_TMPDIR/ids"
    for verb in init run submit; do
        for why in 'data.prompts=[{path: nowhere.jsonl}]' 'model.tokenizer=nowhere.json'; do
            is 78 "$cairn" $verb "$micro" --run "$BATS_TEST_TMPDIR/a/b/run" "$why"
            [ ! -e "$BATS_TEST_TMPDIR/a" ]
            mkdir -p "$BATS_TEST_TMPDIR/there/mine"
            is 78 "$cairn" $verb "$micro" --run "$BATS_TEST_TMPDIR/there/run" "$why"
            [ "$(ls -A "$BATS_TEST_TMPDIR/there")" = mine ]
            mkdir "$BATS_TEST_TMPDIR/there/empty"
            is 78 "$cairn" $verb "$micro" --run "$BATS_TEST_TMPDIR/there/empty" "$why"
            [ -d "$BATS_TEST_TMPDIR/there/empty" ]
            rm -r "$BATS_TEST_TMPDIR/there/empty"
        done
    done
    # Run here: what this machine lacks cannot be put right in a run that is frozen.
    export CAIRN_CUDA_OBJECT=cairn-nothing.so
    is 72 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/a/b/run" kernels.backend=cuda
    says "kernels.backend: cuda" "cairn-nothing.so was not built"
    mkdir "$BATS_TEST_TMPDIR/bin"
    is 72 env PATH="$BATS_TEST_TMPDIR/bin" "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/a/b/run" train.parallel.dp=2
    says "mpirun is not in the PATH"
    # Jobs run this build.
    is 72 "$cairn" submit "$micro" --run "$BATS_TEST_TMPDIR/a/b/run" kernels.backend=cuda
    says "kernels.backend: cuda" "cairn-nothing.so was not built"
    [ ! -e "$BATS_TEST_TMPDIR/a" ]
    # Frozen here, run elsewhere: such a recipe is none of init's business.
    is 0 "$cairn" init "$micro" --run "$BATS_TEST_TMPDIR/elsewhere" kernels.backend=cuda
    is 0 "$cairn" init "$micro" --run "$BATS_TEST_TMPDIR/here" kernels.backend=cpu
    for dir in elsewhere here; do
        "$cairn" inspect "$BATS_TEST_TMPDIR/$dir/base" --json | grep -o '"digest":"[0-9a-f]*"' | head -1 >"$BATS_TEST_TMPDIR/$dir.digest"
    done
    [ -s "$BATS_TEST_TMPDIR/here.digest" ]
    diff "$BATS_TEST_TMPDIR/elsewhere.digest" "$BATS_TEST_TMPDIR/here.digest"
    is 0 "$cairn" init "$micro" --run "$BATS_TEST_TMPDIR/run"
    is 78 "$cairn" init "$micro" --run "$BATS_TEST_TMPDIR/run" train.learning_rate=7e-3
    is 0 "$cairn" status "$BATS_TEST_TMPDIR/run"
}

@test "the version is printed" {
    is 0 "$cairn" --version
    says "cairn "
}

@test "a build knows its version after another commit, too, and is not made anew without one" {
    b=$BATS_TEST_TMPDIR/b
    for v in one two; do
        is 0 env -u MAKEFLAGS -u MFLAGS make -C "$root" "B=$b" VERSION=$v "$b/obj/runtime/base/build.o"
        says "build.c"
        grep -q "$v" "$b/obj/runtime/base/build.o"
        is 0 env -u MAKEFLAGS -u MFLAGS make -C "$root" "B=$b" VERSION=$v "$b/obj/runtime/base/build.o"
        case $output in *build.c*) false ;; esac
    done
}

@test "the stages have pages, too, and want a run and a step" {
    for s in rollout score train sync; do
        is 0 "$build/bin/cairn-$s" --help
        says "Examples:"
        is 64 "$build/bin/cairn-$s"
        is 69 "$build/bin/cairn-$s" "$BATS_TEST_TMPDIR/none" --step 1
    done
}

@test "make help lists the goals" {
    is 0 make -s -C "$root" help
    says "make demo" "make test" "make bench" "Example:"
}

@test "results that cannot be written are an error" {
    [ -e /dev/full ] || skip "no /dev/full"
    for v in doctor "init $micro --print"; do
        # shellcheck disable=SC2086
        run sh -c "exec '$cairn' $v >/dev/full"
        [ "$status" = 73 ] || [ "$status" = 74 ] || { echo "$v: $status"; return 1; }
    done
}

@test "cairn doctor finds this build fit, in words and as JSON" {
    is 0 "$cairn" doctor "$BATS_TEST_TMPDIR"
    says "CPU back-end" "hard links"
    is 0 "$cairn" doctor --json
    says '"fit":true'
    [ -z "$(ls -A "$BATS_TEST_TMPDIR")" ]
}

@test "cairn doctor names each GPU, and what keeps it from being used" {
    [ -e "$build/lib/cairn-emu.so" ] || skip "no emulated GPU in this build"
    export CAIRN_CUDA_OBJECT=cairn-emu.so CAIRN_EMU_GPUS=3 CUDA_VISIBLE_DEVICES=2,0
    is 0 "$cairn" doctor
    says "GPU 0" "emulated GPU, 1.0 GiB, compute capability 9.0, driver for CUDA" "GPU 1" "sm_90 bf16"
    ! printf '%s\n' "$output" | grep -q "GPU 2" || false
    export CUDA_VISIBLE_DEVICES=
    is 0 "$cairn" doctor
    says "built, but no GPU is here" "not needed on the CPU"
    export CAIRN_CUDA_OBJECT=cairn-nothing.so
    is 0 "$cairn" doctor
    says "cairn-nothing.so was not built"
}

@test "a stage says in one sentence what a value of its command line should be" {
    local stage words
    for stage in rollout score train sync check; do
        for words in "--step x" "--step -1" "--step 1000000000" "--shard 9/2" "--shard x" "--shard -1/2" "--threads x" "--threads -1"; do
            is 64 "$build/bin/cairn-$stage" x $words
            says "cairn-$stage: $words: expected "
            [ "${#lines[@]}" = 1 ] || { echo "$output"; return 1; }
        done
        is 64 "$build/bin/cairn-$stage" x y --step 1
        says "cairn-$stage: y: one RUN at a time"
        [ "${#lines[@]}" = 1 ] || { echo "$output"; return 1; }
        is 64 "$build/bin/cairn-$stage" x --no-such-option
        says "unrecognized option '--no-such-option'"
        [ "$(grep -c -e --help <<<"$output")" = 1 ] || { echo "$output"; return 1; }
    done
    is 64 "$build/bin/cairn-score" x --step
    says "requires an argument"
}

@test "a run is no place for an export or an import, and an export says which policy it is" {
    local hf=tests/fixtures/models/glm52-tiny run=$BATS_TEST_TMPDIR/run out
    is 0 "$cairn" init "$micro" --run "$run" warm_start=null
    find "$run" | sort >"$BATS_TEST_TMPDIR/before"
    ln -s run "$BATS_TEST_TMPDIR/link"
    for out in run run/ link run/policy/000009 run/base run/step run/files/hf link/log/a/b; do
        is 64 "$cairn" export "$run" --out "$BATS_TEST_TMPDIR/$out"
        says "cairn export: --out $BATS_TEST_TMPDIR/$out " " run" "name a directory of its own"
        is 64 "$cairn" import "$hf" --out "$BATS_TEST_TMPDIR/$out"
        says "cairn import: --out $BATS_TEST_TMPDIR/$out " " run" "name a directory of its own"
    done
    (cd "$run" && is 64 "$cairn" export . --out . && is 64 "$cairn" export . --out step/hf)
    find "$run" | sort | diff "$BATS_TEST_TMPDIR/before" -
    mkdir "$BATS_TEST_TMPDIR/import"
    is 0 "$cairn" import "$hf" --out "$BATS_TEST_TMPDIR/import/m"
    is 64 "$cairn" export "$run" --out "$BATS_TEST_TMPDIR/import/m"
    says "is a checkpoint of cairn's own form"
    mv "$run/base" "$run/base-was" && ln -s "$BATS_TEST_TMPDIR/import/m" "$run/base" # as a run of model.from has it
    is 64 "$cairn" export "$run" --out "$run/base"
    says "lies in base of the run"
    rm "$run/base" && mv "$run/base-was" "$run/base"
    is 64 "$cairn" export "$run" --out "$BATS_TEST_TMPDIR/nowhere/../run/policy/x"
    says "leads up from a directory that is not there"
    for out in hf run/export/000000; do # also one beside what cairn keeps in the run
        is 0 "$cairn" export "$run" --out "$BATS_TEST_TMPDIR/$out"
        says "$BATS_TEST_TMPDIR/$out: $run/policy/000000, "
    done
    is 0 "$cairn" export "$run" --out "$BATS_TEST_TMPDIR/hf" --merged --json
    says "\"from\":\"$run/policy/000000\""
}
