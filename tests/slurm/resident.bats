# Resident runs as Slurm jobs: all roles in one allocation of two nodes; preempted, a rank killed, a rank held up: the chain's digest.
load ../lib
load lib

recipe=tests/faults/micro.yaml

setup_file() {
    load lib
    [ -n "$(cluster_lacks)" ] || cluster_up
    "$cairn" run "$root/$recipe" --run "$BATS_FILE_TMPDIR/chained" --quiet run.steps=4 run.eval_every=2
}
teardown_file() {
    load lib
    cluster_down
}
setup() {
    cluster_or_skip
    dir=$BATS_TEST_TMPDIR/run
    # Rollout and score on one node, the trainer on the other.
    how=(run.steps=4 run.eval_every=2 run.mode=resident slurm.rollout.nodes=2 rollout.parallel.dp=2)
}
# pid of a rank of a role at work on DIR.
role_pid() { # DIR STAGE
    local pid
    pid=$(pgrep -f "cairn-$2 $1 --resident") || return 1
    echo "${pid%%$'\n'*}"
}
until_role() { # DIR STAGE
    local i
    for i in $(seq 1200); do
        role_pid "$1" "$2" >/dev/null && return 0
        sleep 0.05
    done
    return 1
}

@test "one job runs it to the end on two nodes, with the digest of the chain" {
    "$cairn" submit "$root/$recipe" --run "$dir" "${how[@]}" >/dev/null
    until_running "$dir" 60
    is 0 "$cairn" status "$dir"
    says running
    until_queue_empty "$dir" 300
    same_digest "$BATS_FILE_TMPDIR/chained" "$dir"
    grep -h '"hosts"\|"nodes":' "$dir/log/slurm.jsonl" | grep -q 'n\[\?[1-4]'
    nobody_left "$dir"
    is 0 "$cairn" submit "$dir"
    [ -z "$(jobs_of "$dir")" ]
}

@test "preempted in the middle: requeued, goes on, same digest" {
    "$cairn" submit "$root/$recipe" --run "$dir" "${how[@]}" warm_start.updates=600 >/dev/null
    until_at_work "$dir" train
    id=$(running_of "$dir")
    scontrol requeue "$id"
    until_queue_empty "$dir" 300
    [ "$(links_left "$dir")" = 0 ] || { explain "$dir"; false; }
    "$cairn" run "$root/$recipe" --run "$BATS_FILE_TMPDIR/longer" --quiet run.steps=4 run.eval_every=2 warm_start.updates=600
    same_digest "$BATS_FILE_TMPDIR/longer" "$dir"
    nobody_left "$dir"
}

@test "a rank of each role is killed: all are gone in seconds, queued again, same digest" {
    long=(run.steps=10 run.eval_every=0 warm_start.updates=300)
    "$cairn" run "$root/$recipe" --run "$BATS_FILE_TMPDIR/killed" --quiet "${long[@]}"
    "$cairn" submit "$root/$recipe" --run "$dir" "${how[@]}" "${long[@]}" >/dev/null
    for stage in train rollout score; do
        until_role "$dir" "$stage" || break
        sleep 0.7
        victim=$(role_pid "$dir" "$stage") || break
        t0=$(date +%s%N)
        kill -9 "$victim"
        for _ in $(seq 300); do
            kill -0 "$victim" 2>/dev/null || pgrep -f -- "$dir --resident" >/dev/null || break
            sleep 0.1
        done
        took=$((($(date +%s%N) - t0) / 1000000))
        echo "# after the kill of $stage all were gone in $took ms" >&3
        [ "$took" -lt 30000 ]
    done
    until_queue_empty "$dir" 300
    [ "$(links_left "$dir")" = 0 ] || { explain "$dir"; false; }
    same_digest "$BATS_FILE_TMPDIR/killed" "$dir"
    nobody_left "$dir"
}

@test "a sampler that is held up: its peers end the job at run.deadline, queued again, same digest" {
    "$cairn" submit "$root/$recipe" --run "$dir" "${how[@]}" run.deadline=8 >/dev/null
    until_role "$dir" rollout
    sleep 1
    victim=$(role_pid "$dir" rollout)
    kill -STOP "$victim"
    for _ in $(seq 600); do kill -0 "$victim" 2>/dev/null || break; sleep 0.1; done
    ! kill -0 "$victim" 2>/dev/null || false
    until_queue_empty "$dir" 300
    [ "$(links_left "$dir")" = 0 ] || { explain "$dir"; false; }
    same_digest "$BATS_FILE_TMPDIR/chained" "$dir"
    nobody_left "$dir"
}
