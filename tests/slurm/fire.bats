# recipes/tiny.yaml as jobs: rollouts as an array over nodes, training on two of them. In peace it ends with the digest of `cairn run` under mpirun.
# Then under fire: preempted, its nodes killed, requeued, cancelled, controller and cluster restarted, spread over the whole run: it ends with the
# same digest, by itself or after `cairn submit`. FIRE="preemptions nodes requeues cancels controllers clusters" and SEED change the fire.
load ../lib
load lib

read -r -a fire <<<"${FIRE:-20 5 3 2 1 1}"
seed=${SEED:-1}
recipe=recipes/tiny.yaml
layout=(run.steps=8 run.eval_every=0 rollout.tasks=4 train.parallel.dp=2 warm_start.updates=200 checkpoint.updates=25)
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

# seconds DIR: sum over its jobs. Ended ones tell; one that was killed has worked until its stage's last sign of life.
busy_seconds() {
    sort -t: -k2,2n "$1"/log/*.jsonl | awk '
        function num(k) { return match($0, "\"" k "\":[-0-9.e]+") ? substr($0, RSTART + length(k) + 3, RLENGTH - length(k) - 3) + 0 : 0 }
        function txt(k) { return match($0, "\"" k "\":\"[^\"]*\"") ? substr($0, RSTART + length(k) + 4, RLENGTH - length(k) - 5) : "" }
        { t = num("t"); id = txt("job") }
        /"ev":"start"/ && id { if (id in open && last > open[id]) total += last - open[id]; open[id] = t }
        /"ev":"end"/ { total += num("seconds"); delete open[id] }
        !id { last = t }
        END { printf "%.1f", total }'
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
# Only a user goes on from here: nothing is queued, or Slurm holds a job because it could not be launched while it was taken down.
stuck() {
    local queue
    queue=$(squeue -h -o %r) && { [ -z "$queue" ] || grep -q "launch failed requeued held" <<<"$queue"; }
}
strike() { # DIR WHAT
    case $2 in
    preempt) preempt ;;
    node) node_kill "$1" ;;
    requeue)
        for _ in $(seq 100); do
            scontrol requeue "$(running_of "$1" | head -1)" 2>/dev/null && break
            sleep 0.1
        done
        ;;
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

# links DIR: how many artefacts are committed.
links_done() { "$cairn" status "$1" --json | grep -o '"state":"done"' | wc -l; }

@test "in peace: an array over nodes, training on two of them; the digest of cairn run under mpirun" {
    local=$BATS_FILE_TMPDIR/local dir=$BATS_FILE_TMPDIR/calm
    t0=$(date +%s)
    "$cairn" run "$root/$recipe" --run "$local" --quiet "${layout[@]}"
    t1=$(date +%s)
    "$cairn" submit "$root/$recipe" --run "$dir" "${layout[@]}" "${jobs[@]}" >/dev/null
    until_queue_empty "$dir" 1800
    t2=$(date +%s)
    echo "$((t2 - t1))" >"$BATS_FILE_TMPDIR/calm.seconds"
    same_digest "$local" "$dir"
    is 0 "$cairn" verify --deep "$dir"
    # Four tasks on four nodes at once, two nodes for training.
    grep -q '"ranks": *2' "$dir/step/000008/train/MANIFEST.json"
    nodes=$(sed -n 's/.*"stage":"rollout".*"ev":"start".*"nodes":"\(n[0-9]\)".*/\1/p' "$dir/log/slurm.jsonl" | sort -u | wc -l)
    [ "$nodes" -ge 2 ]
    [ "$(sed -n 's/.*"stage":"train-sync".*"ev":"start".*"nodes":"\([^"]*\)".*/\1/p' "$dir/log/slurm.jsonl" | grep -cE '^n(\[|[0-9],)')" = 9 ]
    echo "# cairn run under mpirun: $((t1 - t0)) s; as Slurm jobs: $((t2 - t1)) s, rollouts on $nodes nodes; $("$cairn" digest "$dir" | wc -l) equal digests" >&3
    nobody_left "$dir"
}

@test "under fire: the same digest, nothing lost, nobody left" {
    calm=$BATS_FILE_TMPDIR/calm dir=$BATS_TEST_TMPDIR/fire
    [ -f "$BATS_FILE_TMPDIR/calm.seconds" ]
    RANDOM=$seed submits=0 most=0 steps=8
    names=(preempt node requeue cancel controller cluster)
    strikes=()
    for i in "${!names[@]}"; do for _ in $(seq "${fire[i]:-0}"); do strikes+=("${names[i]}"); done; done
    mapfile -t strikes < <(printf '%s\n' "${strikes[@]}" | shuf --random-source=<(yes "$seed"))
    links=$(links_done "$calm")

    "$cairn" submit "$root/$recipe" --run "$dir" "${layout[@]}" "${jobs[@]}" >/dev/null
    t0=$(date +%s)
    for k in "${!strikes[@]}"; do
        # Due when its share of the run is done, and somebody is at work.
        due=$((k * (links - 3) / ${#strikes[@]}))
        for i in $(seq 1500); do
            done=$(links_done "$dir")
            [ "$done" -ge "$most" ] || { echo "$done artefacts, there were $most"; false; }
            most=$done
            [ "$done" -ge "$due" ] && [ -n "$(running_of "$dir" 2>/dev/null)" ] && break
            if [ $((i % 10)) = 0 ]; then
                admin
                if [ "$(links_left "$dir")" = 0 ]; then # the strikes are not through: it gets further steps
                    steps=$((steps + 2))
                    "$cairn" submit "$dir" run.steps=$steps >/dev/null
                elif stuck; then
                    submits=$((submits + 1))
                    explain "$dir" | tail -15 | sed 's/^/# /' >&3
                    "$cairn" submit "$dir" >/dev/null
                fi
            fi
            sleep 0.2
        done
        sleep "$(awk -v r=$RANDOM 'BEGIN { print r / 32768 * 2.5 }')"
        for _ in $(seq 300); do # it may be between two jobs just now, or done
            at=$(running_of "$dir" | head -1)
            [ -n "$at" ] || [ "$(links_left "$dir")" = 0 ] && break
            sleep 0.1
        done
        echo "# $(($(date +%s) - t0)) s, $done of $links links: ${strikes[k]}, at work: $(squeue -h -j "${at:-0}" -o %j 2>/dev/null | sed 's/^[^.]*\.//')" >&3
        strike "$dir" "${strikes[k]}"
    done
    for _ in $(seq 600); do
        [ "$(links_left "$dir")" = 0 ] && break
        admin
        if stuck; then
            explain "$dir" | tail -30
            submits=$((submits + 1))
            "$cairn" submit "$dir" >/dev/null
        fi
        sleep 1
    done
    until_queue_empty "$dir" 120
    wall=$(($(date +%s) - t0))
    [ "$(links_left "$dir")" = 0 ] || { explain "$dir"; false; }
    if [ $steps -gt 8 ]; then # the same ones in peace
        t0=$(date +%s)
        "$cairn" submit "$calm" run.steps=$steps >/dev/null
        until_queue_empty "$calm" 600
        echo $(($(cat "$BATS_FILE_TMPDIR/calm.seconds") + $(date +%s) - t0)) >"$BATS_FILE_TMPDIR/calm.seconds"
    fi
    same_digest "$calm" "$dir"
    is 0 "$cairn" verify --deep "$dir"
    [ -z "$(squeue -h)" ]
    nobody_left "$dir"
    b=$(busy_seconds "$dir") c=$(busy_seconds "$calm") still=$(cat "$BATS_FILE_TMPDIR/calm.seconds")
    echo "# $steps steps, ${#strikes[@]} strikes (${fire[*]}), $submits further submits: $wall s under fire, $still s in peace; jobs worked $b s and $c s:" \
        "$(awk -v b="$b" -v c="$c" -v n="${#strikes[@]}" 'BEGIN { printf "%.1f s lost (%.2f s a strike), goodput %.0f%%", b - c, n ? (b - c) / n : 0, 100 * c / b }')" >&3
}
