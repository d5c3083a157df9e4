# Told to end in every phase of every stage (hold.c keeps it there), in every way in which Slurm tells: a table. The digest is that of a run that
# nobody told anything, nothing has FAILED, nobody is left. Four runs at once, a node for each: one per stage.
load ../lib
load lib

recipe=tests/faults/micro.yaml
stages=(rollout score train sync)
phases=(exec start-up load work commit shutdown)
# no grace: SIGTERM to all, KillWait (5 s), SIGKILL.  deaf: the same, and it goes on to its SIGKILL.  grace 5: SIGTERM to the stage, 5 s before.
# twice: two SIGTERMs to the stage alone.  limit: the job's time is over.
ways=("no grace" deaf "grace 5" twice limit)

setup_file() {
    load lib
    [ -n "$(cluster_lacks)" ] || cluster_up --grace 0
}
teardown_file() {
    load lib
    cluster_down
}
setup() {
    cluster_or_skip
}

# await SECONDS COMMAND...: until it succeeds.
await() {
    local i n=$((10 * $1))
    shift
    for i in $(seq "$n"); do
        "$@" && return 0
        sleep 0.1
    done
    return 1
}
heard() { [ -s "$1.told" ]; }

strike() { # NODE STAGE JOB HELD WAY PHASE
    case $5 in
    "no grace" | deaf | "grace 5")
        sbatch -Q -p high -w "$1" --exclusive -o /dev/null --wrap "sleep 0.1"
        ;;
    twice)
        scancel -s TERM "$3"
        # Nobody listens before the first instruction: there the first one ends it.
        if [ "$6" != exec ]; then
            await 60 heard "$4" || return 1
            scancel -s TERM "$3"
        fi
        ;;
    limit)
        # Not now: it must lie after the job's start. Slurm looks at limits twice a minute.
        scontrol update JobId="$3" EndTime=now+2
        ;;
    esac
}

# One stage through all phases and ways, a step for each.
lane() { # STAGE NODE DIR
    local stage=$1 node=$2 dir=$3 step=0 way phase job t0
    local hold=$dir.hold
    for way in "${ways[@]}"; do
        scontrol update PartitionName="$stage" GraceTime=$([ "$way" = "grace 5" ] && echo 5 || echo 0)
        for phase in "${phases[@]}"; do
            step=$((step + 1))
            if ! await 240 test -e "$hold/$stage.$step.at"; then
                echo "$stage, $phase, $way: not reached"
                return 1
            fi
            job=$(running_of "$dir" | head -1)
            t0=$(date +%s%N)
            strike "$node" "$stage" "$job" "$hold/$stage.$step" "$way" "$phase" || echo "$stage, $phase, $way: does not hear"
            if ! await 150 step_over "$dir" "$stage" "$step" "$job"; then
                echo "$stage, $phase, $way: does not go on"
                return 1
            fi
            echo "$step $((($(date +%s%N) - t0) / 1000000))" >>"$dir.took"
        done
    done
    until_queue_empty "$dir" 60
}
# The step's artefact is there, and the job that was told has gone or been started anew.
step_over() { # DIR STAGE STEP JOB
    local name=step/$(printf %06d "$3")/$2
    [ "$2" = sync ] && name=policy/$(printf %06d "$3")
    [ -f "$1/$name/MANIFEST.json" ] && [ "$(squeue -h -j "$4" -o '%T %r' 2>/dev/null)" != "RUNNING None" ]
}
# What the jobs' own record says of a step: how each start ended, in order; "killed (9)": nobody could tell.
ends_of() { # DIR GROUP STEP
    awk -v g="\"stage\":\"$2\"" -v s="\"step\":$3," '
        function txt(k) { return match($0, "\"" k "\":\"[^\"]*\"") ? substr($0, RSTART + length(k) + 4, RLENGTH - length(k) - 5) : "" }
        function num(k) { return match($0, "\"" k "\":[0-9]+") ? substr($0, RSTART + length(k) + 3, RLENGTH - length(k) - 3) + 0 : 0 }
        function put(t) { all = all (all ? ", " : "") t }
        index($0, g) && index($0, s) && /"ev":"start"/ { if (open) put("killed (9)"); open = 1 }
        index($0, g) && index($0, s) && /"ev":"end"/ { put(txt("action") (num("code") ? " " num("code") : "")); open = 0 }
        END { if (open) put("killed (9)"); print all }' "$1/log/slurm.jsonl"
}

@test "told to end in each phase of each stage, in each way: goes on by itself with the same bits" {
    n=$((${#phases[@]} * ${#ways[@]}))
    opts=(run.steps=$n run.eval_every=0 rollout.prompts=20 rollout.samples=4 rollout.batch=16 train.updates_per_step=2 checkpoint.updates=1
        train.parallel.dp=2 checkpoint.keep=2)
    k=0
    for stage in "${stages[@]}"; do
        dir=$BATS_TEST_TMPDIR/$stage k=$((k + 1)) step=0
        mkdir "$dir.hold"
        for way in "${ways[@]}"; do
            for phase in "${phases[@]}"; do
                step=$((step + 1)) signals=1
                [ "$way" = twice ] && signals=2
                [ "$way" = deaf ] && signals=0
                echo "$phase $signals" >"$dir.hold/$stage.$step"
            done
        done
        scontrol create PartitionName="$stage" Nodes=n$k PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 State=UP
        "$cairn" submit "$root/$recipe" --run "$dir" "${opts[@]}" slurm.partition="$stage" slurm.window=2 slurm.attempts=5 \
            "slurm.setup=[\"export LD_PRELOAD=$build/lib/hold.so CAIRN_HOLD=$dir.hold\"]" >/dev/null
        lane "$stage" "n$k" "$dir" >"$dir.says" 2>&1 &
    done
    "$cairn" run "$root/$recipe" --run "$BATS_TEST_TMPDIR/calm" --quiet "${opts[@]}"
    wait
    bad=0
    for stage in "${stages[@]}"; do
        dir=$BATS_TEST_TMPDIR/$stage group=score-train-sync
        [ "$stage" = rollout ] && group=rollout
        printf '# %-9s %-9s %-26s %s\n' stage phase way "how its jobs ended; until committed and handed on" >&3
        step=0
        for way in "${ways[@]}"; do
            for phase in "${phases[@]}"; do
                step=$((step + 1))
                took=$(awk -v s=$step '$1 == s { printf "%.1f s", $2 / 1000 }' "$dir.took")
                printf '# %-9s %-9s %-26s %s; %s\n' "$stage" "$phase" "$way" "$(ends_of "$dir" $group $step)" "${took:-never}" >&3
                [ ! -e "$dir.hold/$stage.$step.late" ] || { echo "$stage, $phase, $way: held too long"; bad=1; }
            done
        done
        [ ! -s "$dir.says" ] || { cat "$dir.says"; bad=1; }
        [ "$(wc -l <"$dir.took")" = $n ] && [ "$(ls "$dir.hold"/*.at | wc -l)" = $n ] || bad=1
        same_digest "$BATS_TEST_TMPDIR/calm" "$dir" || bad=1
        "$cairn" verify "$dir" >/dev/null || bad=1
        nobody_left "$dir" || bad=1
        ! grep -E "Name=$stage-[0-9a-f]{8}\..* JobState=(FAILED|NODE_FAIL)" "$CAIRN_DEVCLUSTER/log/jobs.txt" || bad=1
    done
    [ $bad = 0 ]
}
