# cairn check: the verb, its report and exit codes; the gate as the first link of a chain. What it finds: tests/planted.
load lib
bats_require_minimum_version 1.5.0

# Nothing of what is trained can be seen in the log-probabilities: a finding of leg 2 that needs no mistake in the code.
blind=(warm_start=null run.eval_every=0 'model.adapter={rank: 2, alpha: 1.0e-12}')

json() { jq -e "$1" <<<"$output" >/dev/null || { echo "not so: $1"; echo "$output"; return 1; }; }

@test "a recipe that is one policy: 0, all legs, one screen" {
    is 0 "$cairn" check "$micro" --quiet
    says "right " "blocks as the plain model has them" "agree " "disagree " "sync " "repeat " "whole " "one policy"
}

@test "--json: every leg's numbers, seconds, holds" {
    run --separate-stderr "$cairn" check "$micro" --json
    [ "$status" = 0 ]
    json '.holds and .band == 0 and .agree.equal == .agree.tokens and .sync.equal == .sync.tokens and .repeat.equal == .repeat.tokens'
    json '.disagree.mean > .disagree.bar and .right.calls > 0 and .blocks.held > 0 and .whole.drawn > 0'
    json '.step | not' # a recipe has gone no step
    json '[.seconds | .open, .right, .agree, .disagree, .sync, .repeat, .whole] | all(. >= 0)'
}

@test "a run of bf16: leg 0 is held to f32's bounds in f32 first, and both are told" {
    run --separate-stderr "$cairn" check "$micro" --legs 0 --json kernels.precision=bf16
    [ "$status" = 0 ]
    json '.f32.right.calls > 100 and .f32.blocks.held == .blocks.held and .f32.right.values > 0 and .seconds.right_f32 >= 0'
    is 0 "$cairn" check "$micro" --legs 0 --quiet kernels.precision=bf16
    says "in f32 " "right "
    run --separate-stderr "$cairn" check "$micro" --legs 0 --json
    json '(.f32 | not) and (.seconds.right_f32 | not)'
    micro_run "$BATS_TEST_TMPDIR/run" run.steps=1 run.eval_every=0 kernels.precision=bf16
    run --separate-stderr "$cairn" check "$BATS_TEST_TMPDIR/run" --legs 0 --json # what it costs in a run: both
    json '.step.check * .step.seconds >= .seconds.right + .seconds.right_f32'
}

@test "sync: by files and by what else the recipe may use; what is left out is named" {
    run --separate-stderr "$cairn" check "$micro" --legs 3 --json
    [ "$status" = 0 ]
    json '.paths == ["file", "shm"] and (.paths_left_out | not) and .memory.equal == .memory.tokens and (.weights | length == 32)'
    run --separate-stderr "$cairn" check "$micro" --legs 3 --json sync.path=file
    json '.paths == ["file"] and (.memory | not) and (.paths_left_out | not)'
    run --separate-stderr "$cairn" check "$micro" --legs 3 --json sync.path=nccl run.mode=resident
    json '.paths == ["file"] and (.paths_left_out | test("nccl"))'
}

@test "leg 0 of a model whose long sequence the reference cannot afford: its choice of keys and attention, in the last rows" {
    run --separate-stderr "$cairn" check "$micro" --legs 0 --json model.init.index_topk=4200 model.init.max_position_embeddings=5000 model.init.vocab_size=40000
    [ "$status" = 0 ]
    json '.holds and .right.sequences < 9 and .late.sequence == "long" and .late.tokens == 4237 and .late.rows == 24 and .late.calls == 4'
    run --separate-stderr "$cairn" check "$micro" --legs 0 --json
    json '.right.sequences == 9 and (.late | not)'
}

@test "--reference: another system's numbers, held within the declared band" {
    hf=$root/tests/fixtures/models/glm52-tiny
    printf '{"ids": [5, 6, 7, 8]}\n{"ids": [9, 2]}\n' >"$BATS_TEST_TMPDIR/ids"
    "$cairn" logprobs "$hf" --tokens "$BATS_TEST_TMPDIR/ids" | paste -d' ' "$BATS_TEST_TMPDIR/ids" - | jq -c -s '[range(0; length; 2) as $i | {ids: .[$i].ids, logprobs: .[$i + 1].logprobs}][]' \
        >"$BATS_TEST_TMPDIR/ref"
    run --separate-stderr "$cairn" check "$micro" --legs 0 --json --against "$hf" --reference "$BATS_TEST_TMPDIR/ref"
    [ "$status" = 0 ]
    json '.reference.lines == 2 and .reference.tokens == 4 and .reference.max < 1e-4 and .reference.band == 0.05'
    jq -c '.logprobs[0] -= 0.06' "$BATS_TEST_TMPDIR/ref" >"$BATS_TEST_TMPDIR/bad"
    is 76 "$cairn" check "$micro" --legs 0 --quiet --against "$hf" --reference "$BATS_TEST_TMPDIR/bad"
    says "bad:1" "gives token 1"
    is 76 "$cairn" check "$micro" --legs 0 --quiet --reference "$BATS_TEST_TMPDIR/ref" # of other weights
    echo '{"ids": [1, 2, 3], "logprobs": [-1]}' >"$BATS_TEST_TMPDIR/bad"
    is 65 "$cairn" check "$micro" --legs 0 --quiet --reference "$BATS_TEST_TMPDIR/bad"
    says "bad:1"
    is 64 "$cairn" check "$micro" --against "$hf"
    is 64 "$cairn" check "$micro" --legs 1-5 --reference "$BATS_TEST_TMPDIR/ref"
    is 69 "$cairn" check "$micro" --reference "$BATS_TEST_TMPDIR/nowhere"
    [ "$output" = "cairn check: $BATS_TEST_TMPDIR/nowhere: No such file or directory" ] # before anything is made
}

@test "--layers: the first layers of the base alone, of a recipe and of a run" {
    run --separate-stderr "$cairn" check "$micro" --layers 1 --json
    [ "$status" = 0 ]
    json '.holds and .blocks.held > 0'
    one=$(jq .right.calls <<<"$output")
    run --separate-stderr "$cairn" check "$micro" --layers 2 --json
    two=$(jq .right.calls <<<"$output")
    [ "$one" -lt "$two" ]
    micro_run "$BATS_TEST_TMPDIR/run" run.steps=1
    is 0 "$cairn" check "$BATS_TEST_TMPDIR/run" --layers 1 --quiet
    says "one policy"
    is 64 "$cairn" check "$micro" --layers 3
    says "--layers 3: the model has 2"
    [ -z "$(find "${TMPDIR:-/tmp}" -maxdepth 1 -name 'cairn-check.*' -newer "$BATS_TEST_TMPDIR/run/run.json")" ]
}

@test "--legs: only those that are asked for, and what they begin with" {
    run --separate-stderr "$cairn" check "$micro" --legs 0 --json
    [ "$status" = 0 ]
    json '.right and (.agree | not)'
    run --separate-stderr "$cairn" check "$micro" --legs 1-2 --json
    [ "$status" = 0 ]
    json '.agree and .disagree and (.right | not) and (.sync | not)'
    is 64 "$cairn" check "$micro" --legs 3-9
    says "--legs 3-9"
    is 64 "$cairn" check
    is 78 "$cairn" check "$BATS_TEST_TMPDIR/none.yaml"
}

@test "what is trained and cannot be seen makes the gate blind: 76, the finding in one sentence and in the report" {
    run --separate-stderr "$cairn" check "$micro" "${blind[@]}" --json
    [ "$status" = 76 ]
    json '(.holds | not) and (.finding | test("^disagree: .*blind"))'
    [[ "$stderr" == *"cairn check: disagree: "*"blind"* ]]
    [ "$(wc -l <<<"$stderr")" = 1 ]
}

@test "a run that has gone is checked where it stands, and stays as it was" {
    micro_run "$BATS_TEST_TMPDIR/run" run.steps=1
    find "$BATS_TEST_TMPDIR/run" -type f | sort >"$BATS_TEST_TMPDIR/before"
    is 0 "$cairn" check "$BATS_TEST_TMPDIR/run" --legs 1-5 --quiet
    says "of a step of this run" "the comparison takes"
    find "$BATS_TEST_TMPDIR/run" -type f | sort | diff "$BATS_TEST_TMPDIR/before" -
    run --separate-stderr "$cairn" check "$BATS_TEST_TMPDIR/run" --legs 1 --json
    json '.step.steps == 1 and .step.seconds > 0 and .step.check > 0 and .step.compare > 0 and .step.compare_share < 1 and (.seconds.parts.sampler > 0)'
    is 64 "$cairn" check "$BATS_TEST_TMPDIR/run" run.steps=3
}

@test "two checks of one run at once: the second waits, and both hold" {
    micro_run "$BATS_TEST_TMPDIR/run" run.steps=0
    "$cairn" check "$BATS_TEST_TMPDIR/run" 2>"$BATS_TEST_TMPDIR/first" &
    first=$!
    is 0 "$cairn" check "$BATS_TEST_TMPDIR/run"
    wait "$first"
    cat "$BATS_TEST_TMPDIR/first" <(printf '%s\n' "$output") | grep -q "another check of this run is at work" || skip "they did not meet"
    [ ! -e "$BATS_TEST_TMPDIR/run/log/check.scratch" ]
}

@test "run.check first: the gate is committed before the first rollout, and digest has no line of it" {
    is 0 micro_run "$BATS_TEST_TMPDIR/gated" run.check=first run.steps=1
    [ -f "$BATS_TEST_TMPDIR/gated/check/MANIFEST.json" ]
    jq -e '.info.report.holds' "$BATS_TEST_TMPDIR/gated/check/MANIFEST.json"
    is 0 "$cairn" status "$BATS_TEST_TMPDIR/gated" --all
    says "check                    done"
    is 0 "$cairn" verify "$BATS_TEST_TMPDIR/gated"
    is 0 micro_run "$BATS_TEST_TMPDIR/ungated" run.steps=1
    diff <("$cairn" digest "$BATS_TEST_TMPDIR/gated") <("$cairn" digest "$BATS_TEST_TMPDIR/ungated")
}

@test "a finding stops the chain before the first rollout with 76; status says why; run.check off goes on" {
    dir=$BATS_TEST_TMPDIR/run
    is 76 micro_run "$dir" run.check=first run.steps=1 "${blind[@]}"
    says "disagree: " "blind"
    [ ! -e "$dir/step" ]
    [ ! -e "$dir/check/MANIFEST.json" ]
    jq -e '.finding | test("blind")' "$dir/check/finding.json"
    is 0 "$cairn" status "$dir"
    says "check                    failed" "blind" "waits for check"
    is 76 micro_run "$dir" run.check=first run.steps=1 "${blind[@]}"
    is 0 micro_run "$dir" run.check=off run.steps=1 "${blind[@]}"
    [ -f "$dir/policy/000001/MANIFEST.json" ]
}

@test "submit: the gate is a job of its own that the others wait for" {
    is 0 "$cairn" submit "$micro" --run "$BATS_TEST_TMPDIR/run" --dry-run run.check=first warm_start=null slurm.rollout.gres=gpu:1 slurm.rollout.nodes=4
    says ".0.check" "1.rollout  after run-" "--step 0 --group check"
    awk '/^# cairn: step 0, check/ { on = 1 } /^exec/ { on = 0 } on' <<<"$output" | grep -q gres=gpu:1
    ! awk '/^# cairn: step 0, check/ { on = 1 } /^exec/ { on = 0 } on' <<<"$output" | grep -q nodes= || false
    is 0 "$cairn" submit "$micro" --run "$BATS_TEST_TMPDIR/resident" --dry-run run.check=first run.mode=resident
    says ".0.resident  after resident-"
}

@test "small models of many shapes: no false alarm" {
    is 0 tests/planted/clean "$build" 4 100 2
    says "4 runs, 0 false alarms"
}

@test "GLM-5.3-Flash: all legs, its blocks among them, also where gates, norms and streams have values of their own" {
    run --separate-stderr "$cairn" check "$root/tests/fixtures/micro-flash.yaml" --json 'model.adapter={rank: 2, alpha: 4}'
    [ "$status" = 0 ]
    json '.holds and .blocks.held == 9 * (3 * 2 * 4) and .blocks.worst < 0.5' # of each site its weights, input, block, output
    cd "$BATS_TEST_TMPDIR"
    "$cairn" init "$root/tests/fixtures/micro-flash.yaml" --run new warm_start=null
    "$cairn" export new --out hf
    perl "$root/tests/planted/values.pl" hf/model.safetensors
    "$cairn" import hf --out base
    run --separate-stderr "$cairn" check "$root/tests/fixtures/micro-flash.yaml" --json model.init=null model.from="$PWD/base"
    [ "$status" = 0 ]
    json '.holds and .blocks.held == 9 * (3 * 2 * 4) and .blocks.worst < 0.5'
}

# Weights that the device keeps in bf16, some of them in f32: a policy of f32 went by memory as if all were alike.
@test "GLM-5.3-Flash in bf16: full weights go through files, whatever the policy's type" {
    run --separate-stderr "$cairn" check "$root/tests/planted/flash.yaml" --json kernels.precision=bf16 sync.dtype=f32
    [ "$status" = 0 ]
    json '.holds and .paths == ["file"]'
    run --separate-stderr "$cairn" check "$root/tests/planted/flash.yaml" --legs 1-5 --json kernels.precision=bf16 sync.dtype=f32 'model.adapter={rank: 2, alpha: 4}'
    [ "$status" = 0 ]
    json '.holds and .paths == ["file", "shm"]'
}
