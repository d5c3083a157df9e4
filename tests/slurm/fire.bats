# A run under fire: preempted, its nodes killed, requeued, cancelled, controller and cluster restarted, in random phases. Ends with the digest of
# an undisturbed run, by itself or after `cairn submit`. FIRE="preemptions nodes requeues cancels controllers clusters" and SEED change the fire.
load ../lib
load lib

read -r -a fire <<<"${FIRE:-20 5 3 2 1 1}"
seed=${SEED:-1}
recipe=tests/faults/micro.yaml
layout=(run.eval_every=0 rollout.tasks=4 score.tasks=2 train.parallel.dp=2 rollout.prompts=160 rollout.samples=4 rollout.batch=64
    train.updates_per_step=16 checkpoint.updates=4 warm_start.updates=200)
jobs=('slurm.jobs=[[rollout],[score],[train,sync]]' slurm.train.nodes=2 'slurm.rollout.extra=["--exclusive"]' slurm.attempts=5)

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

# seconds DIR: sum over its jobs, from the ledger: ended ones tell; one that was killed has worked until its node or it was started anew.
busy_seconds() {
    awk '
        function num(k) { return match($0, "\"" k "\":[-0-9.e]+") ? substr($0, RSTART + length(k) + 3, RLENGTH - length(k) - 3) + 0 : 0 }
        function txt(k) { return match($0, "\"" k "\":\"[^\"]*\"") ? substr($0, RSTART + length(k) + 4, RLENGTH - length(k) - 5) : "" }
        { t = num("t"); id = txt("job") }
        /"ev":"start"/ { if (id in open) total += (t - open[id] < 10 ? t - open[id] : 10); open[id] = t }
        /"ev":"end"/ { total += num("seconds"); delete open[id] }
        END { printf "%.1f", total }' "$1/log/slurm.jsonl"
}

preempt() {
    local id
    id=$(sbatch --parsable -p high -N4 --exclusive -o /dev/null --wrap "sleep 0.3") || return 0
    for _ in $(seq 300); do
        squeue -h -j "$id" 2>/dev/null | grep -q . || return 0
        sleep 0.1
    done
    scancel "$id"
}
node_kill() {
    local id node
    id=$(running_of "$1" | shuf -n 1 --random-source=<(yes $RANDOM))
    node=$(squeue -h -j "$id" -o %N | sed 's/\[\([0-9]*\).*/\1/; s/,.*//')
    [ -n "$node" ] || node=n2
    "$root/tools/devcluster" kill "$node"
    sleep $((RANDOM % 4))
    "$root/tools/devcluster" start "$node"
}
# What whoever runs the cluster would do: nodes that Slurm drains after a crash ("Duplicate jobid") come back.
admin() {
    sinfo -h -N -p low -t drain,down -o %N | sort -u | while read -r n; do scontrol update NodeName="$n" State=RESUME || true; done 2>/dev/null
}
strike() { # DIR WHAT
    case $2 in
    preempt) preempt ;;
    node) node_kill "$1" ;;
    requeue) scontrol requeue "$(running_of "$1" | head -1)" 2>/dev/null || true ;;
    cancel)
        scancel $(running_of "$1") || true
        sleep 1
        "$cairn" submit "$1" >/dev/null
        ;;
    controller)
        "$root/tools/devcluster" kill ctld
        sleep 2
        "$root/tools/devcluster" start ctld
        ;;
    cluster)
        "$root/tools/devcluster" kill all
        sleep 1
        "$root/tools/devcluster" start all
        ;;
    esac
}

@test "under fire: the same digest, nothing lost, nobody left" {
    calm=$BATS_TEST_TMPDIR/calm dir=$BATS_TEST_TMPDIR/fire
    steps=8 RANDOM=$seed submits=0
    names=(preempt node requeue cancel controller cluster)
    strikes=()
    for i in "${!names[@]}"; do for _ in $(seq "${fire[i]:-0}"); do strikes+=("${names[i]}"); done; done
    mapfile -t strikes < <(printf '%s\n' "${strikes[@]}" | shuf --random-source=<(yes "$seed"))

    "$cairn" submit "$root/$recipe" --run "$dir" "${layout[@]}" "${jobs[@]}" run.steps=$steps >/dev/null
    t0=$(date +%s)
    for what in "${strikes[@]}"; do
        # Struck while it works: a run that came to its end gets further steps.
        for _ in $(seq 150); do
            [ -n "$(running_of "$dir" 2>/dev/null)" ] && break
            if queue=$(squeue -h) && [ -z "$queue" ]; then
                if [ "$(links_left "$dir")" = 0 ]; then
                    steps=$((steps + 2))
                else
                    submits=$((submits + 1))
                    explain "$dir" | tail -15 | sed 's/^/# /' >&3
                fi
                "$cairn" submit "$root/$recipe" --run "$dir" "${layout[@]}" "${jobs[@]}" run.steps=$steps >/dev/null
            fi
            sleep 0.2
        done
        admin
        if [ -z "$(running_of "$dir")" ]; then # held by Slurm after a failed launch, say
            submits=$((submits + 1))
            squeue -h -o "%j %T %r" | head -1 | sed 's/^/# nothing runs: /' >&3
            "$cairn" submit "$dir" >/dev/null
            until_running "$dir" 30 || true
        fi
        sleep "$(awk -v r=$RANDOM 'BEGIN { print r / 32768 * 2.5 }')"
        echo "# $(($(date +%s) - t0)) s: $what" >&3
        strike "$dir" "$what"
    done
    for _ in 1 2 3; do
        admin
        until_queue_empty "$dir" 150 || true
        [ "$(links_left "$dir")" = 0 ] && break
        explain "$dir" | tail -30
        submits=$((submits + 1))
        "$cairn" submit "$dir" >/dev/null
    done
    wall=$(($(date +%s) - t0))
    [ "$(links_left "$dir")" = 0 ] || { explain "$dir"; false; }

    t0=$(date +%s)
    "$cairn" submit "$root/$recipe" --run "$calm" "${layout[@]}" "${jobs[@]}" run.steps=$steps >/dev/null
    until_queue_empty "$calm" 300
    still=$(($(date +%s) - t0))
    same_digest "$calm" "$dir"
    is 0 "$cairn" verify --deep "$dir"
    [ -z "$(squeue -h)" ]
    nobody_left "$dir"
    b=$(busy_seconds "$dir") c=$(busy_seconds "$calm")
    echo "# $steps steps, ${#strikes[@]} strikes, $submits further submits: $wall s under fire, $still s in peace; jobs worked $b s and $c s:" \
        "$(awk -v b="$b" -v c="$c" -v n="${#strikes[@]}" 'BEGIN { printf "%.1f s lost (%.2f s a strike), goodput %.0f%%", b - c, n ? (b - c) / n : 0, 100 * c / b }')" >&3
}
