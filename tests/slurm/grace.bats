# How a job is told to end, and what it makes of it in the middle of long work: grace and none, the time limit, an end inside of the grace. All phases of
# all stages: phases.bats.
load ../lib
load lib

recipe=tests/faults/micro.yaml
long=(run.steps=1 run.eval_every=0 warm_start.updates=2500)

setup_file() {
    load lib
    # No grace: SIGTERM to all, KillWait (5 s), SIGKILL. `gentle` has one of 5 s.
    [ -n "$(cluster_lacks)" ] || cluster_up --grace 0
}
teardown_file() {
    load lib
    cluster_down
}
setup() {
    cluster_or_skip
}
# No job of ours ended as FAILED or TIMEOUT (Slurm's own record).
none_failed() {
    ! grep -E "Name=$1-[0-9a-f]{8}\..* JobState=(FAILED|TIMEOUT|NODE_FAIL)" "$CAIRN_DEVCLUSTER/log/jobs.txt" || false
}
reference() { # NAME key=value...: made once
    local name=$1
    shift
    [ -d "$BATS_FILE_TMPDIR/$name" ] || "$cairn" run "$root/$recipe" --run "$BATS_FILE_TMPDIR/$name" --quiet "$@"
}
preempt() {
    sbatch -Q -p high -N4 --exclusive -o /dev/null --wrap "sleep 0.3"
}

@test "no grace: what is whole when SIGTERM comes is kept" {
    dir=$BATS_TEST_TMPDIR/nograce
    "$cairn" submit "$root/$recipe" --run "$dir" "${long[@]}" >/dev/null
    until_at_work "$dir" train
    preempt
    for _ in $(seq 600); do [ -n "$(running_of "$dir")" ] || break; sleep 0.1; done
    until_queue_empty "$dir" 240
    reference long "${long[@]}"
    same_digest "$BATS_FILE_TMPDIR/long" "$dir"
    grep -h "going on after update" "$dir"/log/000000.*.out
    none_failed nograce
    nobody_left "$dir"
}

@test "grace: the job is handed back before it is over" {
    dir=$BATS_TEST_TMPDIR/grace
    scontrol update PartitionName=low GraceTime=20
    "$cairn" submit "$root/$recipe" --run "$dir" "${long[@]}" >/dev/null
    until_at_work "$dir" train
    t0=$(date +%s%N)
    id=$(sbatch --parsable -p high -N4 --exclusive -o /dev/null --wrap "sleep 0.3")
    for _ in $(seq 400); do [ "$(squeue -h -j "$id" -o %T 2>/dev/null)" = PENDING ] || break; sleep 0.05; done
    took=$((($(date +%s%N) - t0) / 1000000))
    echo "# the nodes were free $took ms after the preemption began" >&3
    [ "$took" -lt 20000 ]
    scontrol update PartitionName=low GraceTime=0
    until_queue_empty "$dir" 240
    reference long "${long[@]}"
    same_digest "$BATS_FILE_TMPDIR/long" "$dir"
    grep -q '"action":"requeue","code":75' "$dir/log/slurm.jsonl"
    none_failed grace
}

@test "a stage that ends inside of the grace has ended well" {
    dir=$BATS_TEST_TMPDIR/inside
    scontrol update PartitionName=low GraceTime=20
    for delay in 0 0.3 0.6 0.9; do
        rm -rf "$dir"
        "$cairn" submit "$root/$recipe" --run "$dir" run.steps=1 run.eval_every=0 warm_start.updates=60 >/dev/null
        until_running "$dir" 60
        sleep $delay
        preempt
        until_queue_empty "$dir" 180
        [ "$(links_left "$dir")" = 0 ]
    done
    scontrol update PartitionName=low GraceTime=0
    none_failed inside
}

@test "the time limit: stops in time for a commit, goes on with a new one" {
    dir=$BATS_TEST_TMPDIR/limit
    huge=(run.steps=0 run.eval_every=0 warm_start.updates=1000000)
    "$cairn" submit "$root/$recipe" --run "$dir" "${huge[@]}" slurm.time=0:01:00 slurm.signal_lead=30 >/dev/null
    for _ in $(seq 400); do grep -q '"ev":"end"' "$dir/log/slurm.jsonl" && break; sleep 0.5; done
    grep '"ev":"end"' "$dir/log/slurm.jsonl" | head -1
    grep '"ev":"end"' "$dir/log/slurm.jsonl" | head -1 | grep -q 'requeue.*its time is nearly over'
    for _ in $(seq 600); do grep -qh "going on after update" "$dir"/log/000000.*.out && break; sleep 0.2; done
    grep -h "going on after update" "$dir"/log/000000.*.out
    "$cairn" stop "$dir" --wait
    none_failed limit
}
