# A cluster with accounting (slurmdbd and a database): limits on submitted jobs, what became of jobs that the controller has forgotten, names that the
# accounting does not know, parents that are gone, keys that may not change, two submits at once.
load ../lib
load lib

recipe=tests/faults/micro.yaml

lacks() {
    cluster_lacks
    command -v slurmdbd >/dev/null && command -v mariadbd >/dev/null || echo "slurmdbd or mariadbd is missing (tools/bootstrap --cluster installs them)"
}
setup_file() {
    load lib
    # The controller forgets jobs after two seconds.
    [ -n "$(lacks)" ] || cluster_up --accounting --set MinJobAge=2
}
teardown_file() {
    load lib
    cluster_down
}
setup() {
    local why
    why=$(lacks)
    [ -z "$why" ] || skip "no cluster with accounting: $why"
    export SLURM_CONF=$CAIRN_DEVCLUSTER/slurm.conf
}
teardown() {
    [ -z "${dir:-}" ] || [ ! -f "$dir/run.json" ] || "$cairn" stop "$dir" --wait >/dev/null
    sacctmgr -i modify user root set MaxSubmitJobs=-1 >/dev/null || true
}
# One sentence, beside those that say which ops keys are taken over.
one_line() { [ "$(grep -v ": from now on " <<<"$output" | grep -c .)" = 1 ] || { echo "more than a sentence: $output"; false; }; }
forgotten() { ! scontrol show job "$1" >/dev/null 2>&1; }

@test "a limit on submitted jobs: what fits is queued, the rest follows; nothing fits: one sentence" {
    dir=$BATS_TEST_TMPDIR/full
    sacctmgr -i modify user root set MaxSubmitJobs=3 >/dev/null
    is 0 "$cairn" submit "$root/$recipe" --run "$dir" run.eval_every=0 'slurm.jobs=[[rollout],[score],[train,sync]]'
    says "Slurm takes no more jobs of yours just now"
    [ "$(jobs_of "$dir" | wc -l)" -le 3 ]
    # The chain extends itself as its jobs end.
    until_queue_empty "$dir" 120
    [ "$(links_left "$dir")" = 0 ]
    "$cairn" run "$root/$recipe" --run "$BATS_TEST_TMPDIR/local" --quiet run.eval_every=0
    same_digest "$BATS_TEST_TMPDIR/local" "$dir"

    dir=$BATS_TEST_TMPDIR/none
    for _ in 1 2 3; do sbatch -Q --hold -o /dev/null --wrap true; done
    is 75 "$cairn" submit "$root/$recipe" --run "$dir" run.eval_every=0
    grep -q 'a limit on submitted jobs; squeue --me lists them); submit again later$' <<<"$output"
    [ -z "$(jobs_of "$dir")" ]
    scancel -u root
}

@test "an account, a qos and a partition that do not exist: refused in one sentence, nothing is queued" {
    dir=$BATS_TEST_TMPDIR/names
    is 78 "$cairn" submit "$root/$recipe" --run "$dir" slurm.account=nobody
    says "account" "nobody" "sacctmgr"
    one_line
    is 78 "$cairn" submit "$dir" slurm.account=null slurm.qos=nosuch
    says "qos" "nosuch" "sacctmgr"
    one_line
    is 78 "$cairn" submit "$dir" slurm.qos=null slurm.partition=nowhere
    says "partition" "nowhere" "sinfo"
    one_line
    is 78 "$cairn" submit "$dir" slurm.partition=null slurm.train.nodes=9
    says "nodes" "9"
    one_line
    [ -z "$(jobs_of "$dir")" ]
}

@test "jobs that the controller has forgotten: the accounting tells status what became of them" {
    dir=$BATS_TEST_TMPDIR/forgotten
    "$cairn" submit "$root/$recipe" --run "$dir" run.steps=1 run.eval_every=0 warm_start.updates=20000 >/dev/null
    until_running "$dir" 20
    job=$(running_of "$dir")
    "$cairn" stop "$dir" --wait >/dev/null
    for _ in $(seq 300); do forgotten "$job" && break; sleep 0.2; done
    forgotten "$job"
    for _ in $(seq 100); do sacct -n -X -j "$job" -o state | grep -q CANCELLED && break; sleep 0.2; done
    is 0 "$cairn" status "$dir"
    says "job $job ended as CANCELLED" "cairn submit $dir"
}

@test "a parent that is gone: the job is queued without it, the manifests tell" {
    dir=$BATS_TEST_TMPDIR/gone
    "$cairn" submit "$root/$recipe" --run "$dir" run.steps=1 run.eval_every=0 'slurm.jobs=[[rollout],[score],[train,sync]]' 'slurm.score.extra=["--hold"]' >/dev/null
    for _ in $(seq 300); do [ -f "$dir/step/000001/rollout/MANIFEST.json" ] && break; sleep 0.2; done
    # The rollout's job is forgotten, its children are cancelled; then the rollout is lost as well.
    gone=$(sed -n 's/.*"stage":"rollout".*"ev":"queued","job":"\([0-9]*\)".*/\1/p' "$dir/log/slurm.jsonl")
    for _ in $(seq 300); do forgotten "$gone" && break; sleep 0.2; done
    forgotten "$gone"
    scancel $(jobs_of "$dir")
    for _ in $(seq 100); do [ -z "$(jobs_of "$dir")" ] && break; sleep 0.1; done
    rm -r "$dir/step/000001/rollout"
    is 0 "$cairn" submit "$dir" 'slurm.score.extra=[]'
    until_queue_empty "$dir" 60
    [ "$(links_left "$dir")" = 0 ]
    "$cairn" run "$root/$recipe" --run "$BATS_TEST_TMPDIR/local" --quiet run.steps=1 run.eval_every=0
    same_digest "$BATS_TEST_TMPDIR/local" "$dir"
}

@test "changed keys: science and layout are refused with difference and command, ops are taken over" {
    dir=$BATS_TEST_TMPDIR/keys
    "$cairn" submit "$root/$recipe" --run "$dir" 'slurm.extra=["--hold"]' >/dev/null
    before=$(jobs_of "$dir" | sort)
    for change in train.learning_rate=0.5 train.parallel.dp=2 rollout.temperature=0.5; do
        is 78 "$cairn" submit "$dir" "$change"
        says "${change%%=*}" "${change##*=}" "cairn amend"
    done
    is 0 "$cairn" submit "$dir" slurm.window=7 log.interval=3
    grep -q 'window: 7' "$dir/recipe.yaml"
    [ "$(jobs_of "$dir" | sort)" = "$before" ]
}

@test "four submits at once, and more while it runs: each job is queued once" {
    dir=$BATS_TEST_TMPDIR/once
    "$cairn" init "$root/$recipe" --run "$dir" run.steps=3 rollout.tasks=3 >/dev/null
    for k in 1 2 3 4; do "$cairn" submit "$dir" >"$dir.$k" 2>&1 & done
    wait
    [ "$(cat "$dir".[1-4] | grep -cE '^ +queued')" = "$(sed -n 's/.*"ev":"queued","job":"\([0-9]*\)".*/\1/p' "$dir/log/slurm.jsonl" | sort -u | wc -l)" ]
    while [ -n "$(jobs_of "$dir")" ]; do
        is 0 "$cairn" submit "$dir"
        sleep 0.3
    done
    [ "$(links_left "$dir")" = 0 ]
    # Of each link one attempt (of an array: one a task), so nobody worked twice.
    ! find "$dir/step" "$dir/policy" "$dir/eval" -path '*/epoch/*' -type f | grep -vE '/rollout/epoch/' | grep -vE '/epoch/1$' || false
    "$cairn" run "$root/$recipe" --run "$BATS_TEST_TMPDIR/local" --quiet run.steps=3
    same_digest "$BATS_TEST_TMPDIR/local" "$dir"
}
