# cairn submit, stop and status against commands that only look like Slurm's: scripts, limits, silence. No cluster is needed.
load lib

setup() {
    fake=$BATS_TEST_TMPDIR/bin
    dir=$BATS_TEST_TMPDIR/run
    mkdir -p "$fake"
    export FAKE=$BATS_TEST_TMPDIR
    # A queue that is what was submitted: one line a job, as squeue's format asks for it.
    cat >"$fake/sbatch" <<'SH'
#!/bin/bash
script=$(cat)
case "$*" in *--test-only*) exit 0 ;; esac
if [ -f "$FAKE/full" ] && [ "$(wc -l <"$FAKE/queue")" -ge "$(cat "$FAKE/full")" ]; then
    echo "sbatch: error: AssocMaxSubmitJobLimit" >&2
    echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)" >&2
    exit 1
fi
if [ -f "$FAKE/forgets" ] && [[ "$*" == *afterany* ]]; then
    echo "sbatch: error: Batch job submission failed: Job dependency problem" >&2
    exit 1
fi
id=$(($(wc -l <"$FAKE/queue") + 100))
name=$(sed -n 's/^#SBATCH --job-name=//p' <<<"$script")
echo "$id|$id|N/A|PENDING|||Dependency||$name" >>"$FAKE/queue"
printf '%s\n' "$*" >>"$FAKE/asked"
echo $id
SH
    cat >"$fake/squeue" <<'SH'
#!/bin/bash
if [ -f "$FAKE/silent" ]; then
    echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2
    exit 1
fi
cat "$FAKE/queue"
SH
    cat >"$fake/scontrol" <<'SH'
#!/bin/bash
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
SH
    cat >"$fake/sacct" <<'SH'
#!/bin/bash
echo "NODE_FAIL|0:0|n7|gpu"
echo "OUT_OF_MEMORY|0:125|n8|gpu"
SH
    cat >"$fake/scancel" <<'SH'
#!/bin/bash
sed -i "/^$1|/d" "$FAKE/queue"
SH
    chmod +x "$fake"/*
    : >"$FAKE/queue"
}
with_fake() { PATH=$fake:$PATH "$@"; }

@test "--dry-run makes no weights, of a model of hundreds of gigabytes neither; what follows makes them" {
    big=$BATS_TEST_TMPDIR/big
    is 0 "$cairn" submit recipes/glm5.3-flash.yaml --run "$big" --dry-run
    says "1.rollout" "#SBATCH"
    [ ! -e "$big/base" ] && [ ! -e "$big/policy" ]
    is 0 "$cairn" submit "$micro" --run "$dir" --dry-run
    [ ! -e "$dir/base" ]
    is 0 "$cairn" status "$dir"
    PATH=/usr/bin:/bin run "$cairn" submit "$dir" # with Slurm or without: the run is begun
    [ -e "$dir/base/MANIFEST.json" ]
}

@test "--dry-run needs no Slurm: plan and scripts, made of what the recipe asks for" {
    is 0 env PATH=/usr/bin:/bin "$cairn" submit "$micro" --run "$dir" --dry-run 'slurm.partition=my part' slurm.train.nodes=2 slurm.train.tasks_per_node=4 \
        rollout.tasks=3 slurm.time=02:00:00 'slurm.gres=gpu:8' 'slurm.extra=["--exclusive"]' 'slurm.setup=["module load openmpi"]' 'slurm.exclude="n1,n2"' \
        'slurm.rollout.extra=["--nice=5"]' slurm.account=team slurm.train.memory=64G
    says '--partition="my part"' '--nodes=2' '--ntasks-per-node=4' '--array=0-2' '--time=02:00:00' '--gres=gpu:8' '#SBATCH --exclusive' 'module load openmpi' \
        '--exclude=n1,n2' '--nice=5' '--account=team' '--mem=64G' '--open-mode=append' '--requeue' '--signal=USR1@120' "exec '$cairn' job '$(realpath "$dir")' --step 1"
    says "  planned " "  after "
    ! grep -qE '^ +queued' <<<"$output" || false
    ! grep -q . "$FAKE/queue" || false
    is 0 "$cairn" submit "$dir" --dry-run slurm.time=00:03:00
    ! grep -q -- --signal <<<"$output" || false
    is 0 "$cairn" submit "$dir" --dry-run --json
    says '"jobs":' '"scripts":'
    bash -n <("$cairn" submit "$dir" --dry-run | sed -n '/^#!/,$p')
}

@test "a folder with blanks, quotes and percent signs" {
    odd="$BATS_TEST_TMPDIR/it's 100% odd"
    is 0 "$cairn" submit "$micro" --run "$odd" --dry-run
    says "100%% odd/log" "job-name=it-s-100--odd-"
    bash -n <("$cairn" submit "$odd" --dry-run | sed -n '/^#!/,$p')
    is 78 "$cairn" submit "$odd" --dry-run 'slurm.partition="a\"b"'
}

@test "nodes that cannot hold the layout are refused" {
    is 78 "$cairn" submit "$micro" --run "$dir" --dry-run train.parallel.dp=2 slurm.train.nodes=1 slurm.train.tasks_per_node=1
    says "2 ranks" "1 nodes"
}

@test "submitted twice: queued once" {
    is 0 with_fake "$cairn" submit "$micro" --run "$dir"
    n=$(wc -l <"$FAKE/queue")
    [ "$n" -gt 5 ]
    grep -q 'afterany:100,singleton' "$FAKE/asked"
    is 0 with_fake "$cairn" submit "$dir"
    says kept
    [ "$(wc -l <"$FAKE/queue")" = "$n" ]
    is 0 with_fake "$cairn" stop "$dir"
    says "$n jobs cancelled"
    [ ! -s "$FAKE/queue" ]
}

@test "a job that another job queues learns nothing of that one" {
    cat >>"$fake/sbatch" <<'SH'
env | grep -E '^SLURM_' >"$FAKE/environment"
SH
    is 0 env PATH="$fake:$PATH" SLURM_CONF=/nowhere/slurm.conf SLURM_JOB_ID=7 SLURM_RESTART_COUNT=3 SLURM_ARRAY_JOB_ID=5 SLURM_ARRAY_TASK_ID=2 \
        SLURM_ARRAY_TASK_MAX=3 SLURM_NTASKS=8 "$cairn" submit "$micro" --run "$dir"
    [ "$(cat "$FAKE/environment")" = "SLURM_CONF=/nowhere/slurm.conf" ]
}

@test "what Slurm holds for good is taken away, done or not; what waits for it stays" {
    is 0 with_fake "$cairn" submit "$micro" --run "$dir"
    n=$(wc -l <"$FAKE/queue")
    # The first job has done its work, then a node failed to start it again.
    is 0 "$build/bin/cairn-train" "$dir" --step 0 --quiet
    is 0 "$build/bin/cairn-sync" "$dir" --step 0 --quiet
    sed -i 's/^100|100|N\/A|PENDING|||Dependency/100|100|N\/A|PENDING|||launch failed requeued held/' "$FAKE/queue"
    is 0 with_fake "$cairn" submit "$dir"
    says "(100) would wait for ever (launch failed requeued held): cancelled"
    ! grep -q '^100|' "$FAKE/queue" || false
    [ "$(wc -l <"$FAKE/queue")" = $((n - 1)) ]
    # Another one that has not: it is queued anew.
    sed -i 's/^101|101|N\/A|PENDING|||Dependency/101|101|N\/A|PENDING|||launch failed requeued held/' "$FAKE/queue"
    is 0 with_fake "$cairn" submit "$dir"
    says "(101) would wait for ever" queued
    ! grep -q '^101|.*launch failed' "$FAKE/queue" || false
    [ "$(wc -l <"$FAKE/queue")" = $((n - 1)) ]
}

@test "a full queue: what fits is queued; nothing fits: 75 with the limit named" {
    echo 3 >"$FAKE/full"
    is 0 with_fake "$cairn" submit "$micro" --run "$dir"
    says queued full "no more jobs"
    [ "$(wc -l <"$FAKE/queue")" = 3 ]
    echo 0 >"$FAKE/full"
    : >"$FAKE/queue"
    is 75 with_fake "$cairn" submit "$dir"
    says "limit on submitted jobs" "submit again later"
}

@test "a parent that Slurm has forgotten is no obstacle" {
    : >"$FAKE/forgets"
    is 0 with_fake "$cairn" submit "$micro" --run "$dir"
    [ "$(grep -c -- '--dependency=singleton' "$FAKE/asked")" = "$(wc -l <"$FAKE/queue")" ]
}

@test "no Slurm: 72; one that does not answer: 75; status goes on without it" {
    is 72 env PATH=/usr/bin-without "$cairn" submit "$micro" --run "$dir"
    says "no Slurm on this machine"
    is 0 with_fake "$cairn" submit "$dir"
    : >"$FAKE/silent"
    is 75 with_fake "$cairn" stop "$dir"
    says "Slurm does not answer"
    is 0 with_fake "$cairn" status "$dir"
    says "Slurm does not answer"
}

@test "stop of a run that was never queued: nothing to do, with Slurm or without; one at work here is named" {
    micro_run "$dir" run.steps=1 run.eval_every=0
    is 0 env PATH=/usr/bin-without "$cairn" stop "$dir"
    [ ! -e "$dir/log/slurm.jsonl" ]
    says "0 jobs cancelled, none was ever queued"
    is 0 with_fake "$cairn" stop "$dir" --json
    says '"cancelled":0'
    exec {lock}>"$dir/.lock"
    echo "host here pid 4711" >&"$lock"
    flock "$lock"
    is 64 with_fake "$cairn" stop "$dir"
    says "host here pid 4711" "SIGTERM stops it"
    exec {lock}>&-
    is 0 with_fake "$cairn" submit "$dir" run.steps=2
    is 72 env PATH=/usr/bin-without "$cairn" stop "$dir"
}

@test "doctor asks Slurm, and does not take its commands for a cluster" {
    is 0 with_fake "$cairn" doctor
    printf '%s\n' "$output" | grep -q "^  ok  *Slurm  *it answers: 0 jobs of yours"
    is 0 with_fake "$cairn" submit "$micro" --run "$dir"
    is 0 with_fake "$cairn" doctor
    printf '%s\n' "$output" | grep -qE "^  ok  *Slurm  *it answers: [1-9][0-9]* jobs of yours"
    : >"$FAKE/silent"
    is 0 with_fake "$cairn" doctor
    printf '%s\n' "$output" | grep -q "^  note  *Slurm  *Slurm does not answer"
    says "scontrol ping"
    is 0 env PATH=/usr/bin-without "$cairn" doctor
    says "squeue is not in the PATH"
}

@test "what became of a job that scontrol has forgotten is asked of the accounting" {
    is 0 with_fake "$cairn" submit "$micro" --run "$dir"
    : >"$FAKE/queue"
    is 0 with_fake "$cairn" status "$dir"
    says "OUT_OF_MEMORY on n8" "slurm.memory" "cairn submit $dir"
}

@test "while cairn run is at work nothing is queued" {
    "$cairn" run "$micro" --run "$dir" --quiet warm_start.updates=4000 2>/dev/null &
    pid=$!
    for _ in $(seq 100); do [ -f "$dir/run.json" ] && [ -d "$dir/step" ] && break; sleep 0.05; done
    is 75 with_fake "$cairn" submit "$dir"
    says "cairn run is at work"
    kill "$pid"
    wait "$pid" || true
}

@test "jobs that change their minds: slurm.jobs and run.steps after queueing" {
    is 0 with_fake "$cairn" submit "$micro" --run "$dir"
    is 0 env SLURM_JOB_ID=100 "$cairn" job "$dir" --step 1 --group no-such-group
    says "has no job no-such-group any more"
    is 64 "$cairn" job "$dir" --step 1 --group rollout
    says "SLURM_JOB_ID"
}

@test "a job goes past a link that is passed by, and makes what is behind it" {
    cat >"$fake/srun" <<'SH'
#!/bin/bash
while [[ $1 == -* ]]; do shift; done
exec "$@"
SH
    chmod +x "$fake/srun"
    is 0 "$cairn" run tests/faults/micro.yaml --run "$dir" --quiet run.steps=4 run.eval_every=0 checkpoint.keep=100 checkpoint.keep_policies=1
    "$cairn" digest "$dir" | grep -v '^2 [rs]' >"$BATS_TEST_TMPDIR/digest"
    policy=$("$cairn" digest "$dir" | grep '^2 sync')
    rm -r "$dir/step/000002/rollout" "$dir/step/000002/score" "$dir/policy/000002"
    is 0 env PATH="$fake:$PATH" SLURM_JOB_ID=100 "$cairn" job "$dir" --step 2 --group score-train-sync
    says "step/000002/score is missing and what it was made from was collected; nothing that is still to be made reads it"
    [ ! -s "$FAKE/queue" ]
    "$cairn" digest "$dir" | grep -v '^2 sync' | diff "$BATS_TEST_TMPDIR/digest" -
    [ "$("$cairn" digest "$dir" | grep '^2 sync')" = "$policy" ]
}

@test "a site's recipe beside a run's; evaluations ask for what rollouts do" {
    printf 'inherit: [%s, %s]\n' "$micro" "$root/recipes/site/example.yaml" >"$BATS_TEST_TMPDIR/mine.yaml"
    is 0 "$cairn" submit "$BATS_TEST_TMPDIR/mine.yaml" --run "$dir" --dry-run
    of() { sed -n "/job-name=.*\.2\.$1\$/,/^exec/p" <<<"$output"; }
    of eval | grep -q -- '--partition=gpu'
    of eval | grep -q -- '--gres=gpu:8'
    of score | grep -q -- '--partition=cpu'
    of train-sync | grep -q -- '--partition=gpu'
    of train-sync | grep -q 'module load openmpi/4.1 cuda/12'
    is 0 "$cairn" submit "$BATS_TEST_TMPDIR/mine.yaml" --run "$dir" --dry-run slurm.partition=other # ops keys may change
}
