# The gate under Slurm: a job that the others wait for; one that finds something stops the chain; what comes in the midst of a run stops it at that
# step, with the layer in the sentence (a build with planted mistakes, make test-planted's, is needed for that).
load ../lib
load lib

recipe=$root/tests/fixtures/micro.yaml

setup_file() {
    load lib
    [ -n "$(cluster_lacks)" ] || cluster_up
}
teardown_file() {
    load lib
    cluster_down
}
setup() {
    cluster_or_skip
}

@test "the gate holds: the chain behind it has the digest of one without" {
    dir=$BATS_TEST_TMPDIR/run
    is 0 "$cairn" submit "$recipe" --run "$dir" run.check=first run.steps=1
    says "check"
    until_queue_empty "$dir" 300
    jq -e '.info.report.holds' "$dir/check/MANIFEST.json"
    is 0 "$cairn" run "$recipe" --run "$BATS_TEST_TMPDIR/local" --quiet run.steps=1
    same_digest "$BATS_TEST_TMPDIR/local" "$dir"
    nobody_left "$dir"
}

@test "a finding stops the chain before the first rollout: 76, those behind are cancelled, status says why" {
    dir=$BATS_TEST_TMPDIR/run
    is 0 "$cairn" submit "$recipe" --run "$dir" run.check=first run.steps=1 warm_start=null run.eval_every=0 'model.adapter={rank: 2, alpha: 1.0e-12}'
    until_queue_empty "$dir" 300
    [ ! -e "$dir/step/000001/rollout/MANIFEST.json" ]
    jq -e '.finding | test("blind")' "$dir/check/finding.json"
    grep '"action":"stop"' "$dir/log/slurm.jsonl" | grep -q '"code":76'
    is 0 "$cairn" status "$dir"
    says "blind"
    nobody_left "$dir"
}

@test "a mismatch in the midst of a run: 76 at that step, layer and block in the sentence, nothing of it is committed" {
    planted=$root/build-planted/bin/cairn
    [ -x "$planted" ] || skip "there is no build-planted (make test-planted makes it)"
    dir=$BATS_TEST_TMPDIR/run
    is 0 "$planted" run "$recipe" --run "$dir" --quiet run.steps=1 run.eval_every=0
    export CAIRN_PLANT=cache-layer-not-written
    is 0 "$planted" submit "$recipe" --run "$dir" run.steps=2 run.eval_every=0
    until_queue_empty "$dir" 300
    unset CAIRN_PLANT
    [ -e "$dir/step/000002/rollout/MANIFEST.json" ]
    [ ! -e "$dir/step/000002/train/MANIFEST.json" ]
    grep '"action":"stop"' "$dir/log/slurm.jsonl" | grep '"code":76' | grep -q "the gate: agree: .*layer 1 attention"
    is 0 "$cairn" status "$dir"
    says "layer 1 attention"
    nobody_left "$dir"
}
