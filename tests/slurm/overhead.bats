# What the chain costs: from one stage's commit to the next stage's attempt, beside what Slurm itself needs from the end of a job to the start of one
# that depends on it.
load ../lib
load lib

recipe=tests/faults/micro.yaml

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
median() {
    sort -n | awk '{ a[NR] = $1 } END { print NR % 2 ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2 }'
}

@test "between a commit and the next stage's work: Slurm's own delay and no more than 0.3 s" {
    # Slurm alone: twelve links of a chain of jobs that do nothing but one empty step.
    marks=$BATS_TEST_TMPDIR/marks after=
    for i in $(seq 12); do
        id=$(sbatch --parsable -o /dev/null ${after:+--dependency=$after,singleton} -J "empty" \
            --wrap "echo start \$(date +%s.%N) >>$marks; srun -n1 --mpi=none sh -c 'echo work \$(date +%s.%N) >>$marks'; echo end \$(date +%s.%N) >>$marks")
        after=afterany:$id
    done
    for _ in $(seq 900); do [ "$(grep -c end "$marks" 2>/dev/null)" = 12 ] && break; sleep 0.2; done
    own=$(awk '$1 == "work" && e { print $2 - e } $1 == "end" { e = $2 }' "$marks" | median)

    dir=$BATS_TEST_TMPDIR/run
    "$cairn" submit "$root/$recipe" --run "$dir" run.steps=8 run.eval_every=0 >/dev/null
    until_queue_empty "$dir" 300
    [ "$(links_left "$dir")" = 0 ]
    # In the order of time: a commit, then the start of the next attempt. Between jobs, and within one.
    line() { sed -n 's/.*"t":\([0-9.]*\).*"step":\([0-9]*\).*"ev":"\(start\|committed\)".*/\1 '"$1"' \3/p' "$dir/log/$1.jsonl"; }
    { line rollout; line score; line train; line sync; } | sort -n >"$BATS_TEST_TMPDIR/trail"
    between=$(awk '$3 == "committed" { t = $1; s = $2 } $3 == "start" && ((s == "sync" && $2 == "rollout") || (s == "rollout" && $2 == "score")) { print $1 - t }' "$BATS_TEST_TMPDIR/trail" | median)
    within=$(awk '$3 == "committed" { t = $1; s = $2 } $3 == "start" && ((s == "score" && $2 == "train") || (s == "train" && $2 == "sync")) { print $1 - t }' "$BATS_TEST_TMPDIR/trail" | median)
    echo "# Slurm alone $own s from job to job; cairn $between s from commit to the next job's work, $within s within a job (medians)" >&3
    awk -v a="$between" -v b="$own" 'BEGIN { exit !(a <= b + 0.3) }'
}
