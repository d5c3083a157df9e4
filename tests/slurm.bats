# A run as Slurm jobs, on four nodes that are made for it (tools/devcluster): the part that takes less than a minute. The rest: make test-slurm.
load lib
load slurm/lib

layout=(rollout.tasks=4 score.tasks=2 train.parallel.dp=2 run.steps=1)
jobs=('slurm.jobs=[[rollout],[score],[train,sync]]' slurm.train.nodes=2 'slurm.rollout.extra=["--exclusive"]')
tiny_recipe=tests/faults/micro.yaml

setup_file() {
    load lib
    load slurm/lib
    [ -n "$(cluster_lacks)" ] || cluster_up
}
teardown_file() {
    load lib
    load slurm/lib
    cluster_down
}
setup() {
    cluster_or_skip
}

@test "arrays over nodes and training on two of them: the digest of cairn run under mpirun" {
    dir=$BATS_TEST_TMPDIR/run
    is 0 "$cairn" submit "$root/$tiny_recipe" --run "$dir" "${layout[@]}" "${jobs[@]}"
    says "rollout [0-3]" "after" "eval"
    # Again, and twice at once: nothing is queued twice.
    "$cairn" submit "$dir" >"$BATS_TEST_TMPDIR/a" &
    is 0 "$cairn" submit "$dir"
    wait
    ! grep -q '^ *queued' <(echo "$output") "$BATS_TEST_TMPDIR/a" || false
    [ "$(jobs_of "$dir" | wc -l)" = "$(jobs_of "$dir" | sort -u | wc -l)" ]
    is 0 "$cairn" status "$dir" --json
    says '"job":"' '"state":"queued"'
    until_queue_empty "$dir" 400
    is 0 "$cairn" run "$root/$tiny_recipe" --run "$BATS_TEST_TMPDIR/local" --quiet "${layout[@]}"
    same_digest "$BATS_TEST_TMPDIR/local" "$dir"
    is 0 "$cairn" verify "$dir"
    grep -q '"ranks": *2' "$dir/step/000001/train/MANIFEST.json"
    nobody_left "$dir"
    is 0 "$cairn" submit "$dir"
    says "nothing is left to queue"
}

@test "preempted, requeued and cancelled: goes on with the same bits" {
    dir=$BATS_TEST_TMPDIR/run
    long=(run.steps=1 run.eval_every=0 warm_start.updates=3000 checkpoint.updates=50)
    is 0 "$cairn" submit "$root/$tiny_recipe" --run "$dir" "${long[@]}"
    until_at_work "$dir" train
    sbatch -Q -p high -N4 --exclusive -o /dev/null --wrap "sleep 0.1"
    for _ in $(seq 600); do grep -q '"action":"requeue"' "$dir/log/slurm.jsonl" && break; sleep 0.1; done
    grep '"action":"requeue"' "$dir/log/slurm.jsonl" | grep -q '"code":75'
    until_running "$dir" 60
    is 0 scancel $(running_of "$dir")
    # Those that wait find out that somebody wanted it so, and do not revive it.
    until_queue_empty "$dir" 60
    is 0 "$cairn" status "$dir"
    says "cairn submit"
    is 0 "$cairn" submit "$dir"
    until_queue_empty "$dir" 240
    is 0 "$cairn" run "$root/$tiny_recipe" --run "$BATS_TEST_TMPDIR/local" --quiet "${long[@]}"
    same_digest "$BATS_TEST_TMPDIR/local" "$dir"
    nobody_left "$dir"
}

@test "what cannot be is told in one sentence, and nothing is queued" {
    dir=$BATS_TEST_TMPDIR/run
    is 78 "$cairn" submit "$root/$tiny_recipe" --run "$dir" slurm.partition=nowhere
    says "nowhere" "sinfo"
    is 78 "$cairn" submit "$dir" slurm.partition=null 'slurm.gres="gpu:8"'
    says "gres"
    [ -z "$(jobs_of "$dir")" ]
    is 0 "$cairn" submit "$dir" slurm.gres=null 'slurm.extra=["--hold"]'
    is 78 "$cairn" submit "$dir" train.learning_rate=0.5
    says "train.learning_rate" "cairn amend"
    is 0 "$cairn" submit "$dir" slurm.window=5 # ops keys are taken over
    is 0 "$cairn" status "$dir"
    says "held" "scontrol release"
    is 0 "$cairn" stop "$dir" --wait
    [ -z "$(jobs_of "$dir")" ]
}

@test "without MPI: rank, size and texts through PMIx and PMI2 on two nodes" {
    for kind in pmix pmi2; do
        is 0 srun -N2 -n4 --ntasks-per-node=2 --mpi=$kind "$build/tests/pmi_hello"
        [ "$(echo "$output" | grep -cE "^$kind [0-3] of 4: (n[1-4]) \1 (n[1-4]) \2$")" = 4 ]
    done
    is 72 srun -n1 --mpi=none "$build/tests/pmi_hello"
    says "no process manager here"
}
