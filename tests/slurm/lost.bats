# Ranks, nodes and outputs that get lost: a rank killed in a collective, a node that is cut off and comes back, an unfit node, an artefact that is
# gone, a failure that comes again and again.
load ../lib
load lib

recipe=tests/faults/micro.yaml

setup_file() {
    load lib
    [ -n "$(cluster_lacks)" ] || cluster_up --lost 5
}
teardown_file() {
    load lib
    cluster_down
}
setup() {
    cluster_or_skip
}
reference() { # NAME key=value...: made once
    local name=$1
    shift
    [ -d "$BATS_FILE_TMPDIR/$name" ] || "$cairn" run "$root/$recipe" --run "$BATS_FILE_TMPDIR/$name" --quiet "$@"
}
# pid of rank R of a stage at work on DIR.
rank_pid() { # DIR STAGE R
    local pid
    for pid in $(pgrep -x "cairn-$2"); do
        tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF "$1" || continue
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "SLURM_PROCID=$3" && echo "$pid" && return 0
    done
    return 1
}
in_node() { # NODE COMMAND...: in its namespaces
    local pid
    pid=$(cat "$CAIRN_DEVCLUSTER/$1.pid")
    pid=$(awk '{ print $1 }' "/proc/$pid/task/$pid/children")
    shift
    nsenter -t "$pid" -m -p "$@"
}

@test "one rank of two is killed in the middle: all are gone, the job is started again, same digest" {
    dir=$BATS_TEST_TMPDIR/rank
    wide=(run.steps=1 run.eval_every=0 warm_start.updates=1000 train.parallel.dp=2)
    "$cairn" submit "$root/$recipe" --run "$dir" "${wide[@]}" slurm.train.nodes=2 'slurm.jobs=[[rollout],[score],[train,sync]]' >/dev/null
    until_at_work "$dir" train
    victim=$(rank_pid "$dir" train 1)
    kill -9 "$victim"
    t0=$(date +%s%N)
    for _ in $(seq 300); do rank_pid "$dir" train 0 >/dev/null || break; sleep 0.1; done
    took=$((($(date +%s%N) - t0) / 1000000))
    echo "# the other rank was gone after $took ms" >&3
    [ "$took" -lt 30000 ]
    until_queue_empty "$dir" 300
    grep -v queued "$dir/log/slurm.jsonl"; cat "$dir"/log/000000*.out
    grep -qE '"action":"(retry|requeue)"' "$dir/log/slurm.jsonl"
    reference wide "${wide[@]}"
    same_digest "$BATS_FILE_TMPDIR/wide" "$dir"
    nobody_left "$dir"
}

@test "a node that was cut off and comes back publishes nothing over its successor" {
    dir=$BATS_TEST_TMPDIR/cut
    long=(run.steps=0 run.eval_every=0 warm_start.updates=4000)
    attempts() { find "$dir/step/000000/train/epoch" -type f 2>/dev/null | wc -l; }
    "$cairn" submit "$root/$recipe" --run "$dir" "${long[@]}" >/dev/null
    for _ in $(seq 2400); do old=$(rank_pid "$dir" train 0) && [ "$(attempts)" = 1 ] && break; sleep 0.05; done
    node=$(squeue -h -t R -o %N | head -1)
    "$root/tools/devcluster" cut "$node"
    # It is held up until Slurm has given it up and started the job elsewhere, then works on beside its successor.
    kill -STOP "$old"
    for _ in $(seq 1800); do [ "$(attempts)" -ge 2 ] && break; sleep 0.1; done
    kill -CONT "$old"
    for _ in $(seq 1800); do kill -0 "$old" 2>/dev/null || break; sleep 0.1; done
    ! kill -0 "$old" 2>/dev/null || false
    "$root/tools/devcluster" join "$node"
    until_queue_empty "$dir" 300
    for _ in $(seq 200); do [ "$(links_left "$dir")" = 0 ] && break; sleep 0.1; done
    [ "$(links_left "$dir")" = 0 ]
    epoch=$(grep -o '"epoch": *[0-9]*' "$dir/step/000000/train/MANIFEST.json" | grep -o '[0-9]*$')
    echo "# committed by attempt $epoch; the old one: $(grep -h '"ev":"failed"' "$dir/log/train.jsonl" | grep -o '"text":.*' | head -1)" >&3
    [ "$epoch" = 2 ]
    grep '"attempt":1' "$dir/log/train.jsonl" | grep -q '"ev":"failed"'
    reference cut "${long[@]}"
    same_digest "$BATS_FILE_TMPDIR/cut" "$dir"
    for _ in $(seq 900); do [ "$(sinfo -h -N -p low -t idle -o %N | wc -l)" = 4 ] && break; sleep 0.1; done
    nobody_left "$dir"
}

@test "an unfit node is named and excluded" {
    dir=$BATS_TEST_TMPDIR/unfit
    for _ in $(seq 900); do [ "$(sinfo -h -N -p low -t idle -o %N | wc -l)" = 4 ] && break; sleep 0.1; done
    in_node n1 fallocate -l 1015M /dev/shm/hog
    "$cairn" submit "$root/$recipe" --run "$dir" run.steps=1 train.parallel.dp=2 slurm.train.nodes=2 'slurm.jobs=[[rollout],[score],[train,sync]]' >/dev/null
    until_queue_empty "$dir" 300
    in_node n1 rm /dev/shm/hog
    grep -h "node n1 is unfit: only .* in /dev/shm (--exclude=n1)" "$dir"/log/*.out
    grep -q '"ev":"unfit".*"node":"n1"' "$dir/log/slurm.jsonl"
    [ "$(links_left "$dir")" = 0 ]
}

@test "an artefact that is gone: whoever needs it queues who makes it, and comes behind" {
    dir=$BATS_TEST_TMPDIR/gone
    "$cairn" submit "$root/$recipe" --run "$dir" run.steps=1 run.eval_every=0 'slurm.jobs=[[rollout],[score],[train,sync]]' 'slurm.train.extra=["--hold"]' >/dev/null
    # Warm start by hand, so that the held jobs are the last ones.
    scontrol release "$(jobs_of "$dir" | sort -n | head -1)"
    for _ in $(seq 1200); do [ -f "$dir/step/000001/score/MANIFEST.json" ] && break; sleep 0.1; done
    for _ in $(seq 600); do [ -n "$(squeue -h -t R,CG)" ] || break; sleep 0.1; done # its job has ended as well
    rm -r "$dir/step/000001/score"
    scontrol release "$(jobs_of "$dir" | sort -n | tail -1)"
    for _ in $(seq 600); do grep -q '"by":"repair"' "$dir/log/slurm.jsonl" && break; sleep 0.1; done
    grep '"by":"repair"' "$dir/log/slurm.jsonl"
    grep '"by":"repair"' "$dir/log/slurm.jsonl" | grep -q 'step/000001/score is not committed'
    for _ in $(seq 50); do squeue -h -o "%i %r" | awk '/JobHeld/ { print $1 }' | xargs -r -n1 scontrol release; sleep 0.2; done
    until_queue_empty "$dir" 300
    [ "$(links_left "$dir")" = 0 ]
    reference one run.steps=1 run.eval_every=0
    same_digest "$BATS_FILE_TMPDIR/one" "$dir"
}

@test "bad data stops the chain at once, with advice; the same crash stops it the third time" {
    dir=$BATS_TEST_TMPDIR/bad
    "$cairn" init "$root/$recipe" --run "$dir" run.steps=1 run.eval_every=0 >/dev/null
    printf 'broken\n' >"$dir/files/data.prompts.0"
    "$cairn" submit "$dir" >/dev/null
    until_queue_empty "$dir" 300
    grep '"action":"stop","code":65' "$dir/log/slurm.jsonl"
    is 0 "$cairn" status "$dir"
    says failed "cairn submit $dir" data.prompts.0

    dir=$BATS_TEST_TMPDIR/crash
    "$cairn" init "$root/$recipe" --run "$dir" run.steps=1 run.eval_every=0 train.parallel.dp=2 'slurm.setup=["export CAIRN_SRUN_MPI=nonesuch"]' >/dev/null
    "$cairn" submit "$dir" >/dev/null
    until_queue_empty "$dir" 300
    tail -3 "$dir/log/slurm.jsonl"
    [ "$(grep -c '"ev":"end"' "$dir/log/slurm.jsonl")" = 3 ]
    grep -q 'the same 3 times in a row: stopped' "$dir/log/slurm.jsonl"
    is 0 "$cairn" status "$dir"
    says failed "cairn submit $dir"
}
