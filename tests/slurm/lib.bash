# lib.bash - what tests with a Slurm of their own share. Load tests/lib.bash first.
root=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)
case ${CAIRN_BUILD:-build} in
/*) build=$CAIRN_BUILD ;;
*) build=$root/${CAIRN_BUILD:-build} ;;
esac
cairn=$build/bin/cairn
export root build cairn

# Why there can be no cluster here, or nothing.
cluster_lacks() {
    local p
    [ "$(id -u)" = 0 ] || { echo "needs root for namespaces"; return; }
    for p in slurmctld slurmd sbatch munged ip nsenter unshare; do
        command -v $p >/dev/null || { echo "$p is missing (tools/bootstrap --cluster installs it)"; return; }
    done
    unshare --net --mount --uts --ipc --pid --fork true 2>/dev/null || echo "this machine makes no namespaces"
}

# cluster_up [devcluster options]: one cluster for the whole file; ends with this process, however it ends.
cluster_up() {
    export CAIRN_DEVCLUSTER=/tmp/cairn-test-$$-$RANDOM
    "$root/tools/devcluster" up 4 --with $$ "$@" || return 1
    export SLURM_CONF=$CAIRN_DEVCLUSTER/slurm.conf
}
cluster_down() {
    [ -z "${CAIRN_DEVCLUSTER:-}" ] || "$root/tools/devcluster" down
}

# In setup of each test: skips aloud where there is no cluster.
cluster_or_skip() {
    local lacks
    lacks=$(cluster_lacks)
    [ -z "$lacks" ] || skip "no Slurm cluster: $lacks"
    export SLURM_CONF=$CAIRN_DEVCLUSTER/slurm.conf
}

# jobs DIR: ids of that run's jobs.
jobs_of() {
    local uuid
    uuid=$(sed -n 's/.*"uuid": *"\([0-9a-f]\{8\}\).*/\1/p' "$1/run.json")
    squeue -h -o "%i %j" | awk -v u="-$uuid." 'index($2, u) { print $1 }'
}
# running DIR: ids of its running jobs.
running_of() {
    local uuid
    uuid=$(sed -n 's/.*"uuid": *"\([0-9a-f]\{8\}\).*/\1/p' "$1/run.json")
    squeue -h -t R -o "%A %j" | awk -v u="-$uuid." 'index($2, u) { print $1 }'
}
links_left() { "$cairn" status "$1" --json | grep -o '"state":"[a-z]*"' | grep -vc '"done"' || true; }

# until_queue_empty DIR SECONDS
until_queue_empty() {
    local i
    for i in $(seq $((5 * $2))); do
        [ -z "$(jobs_of "$1")" ] && return 0
        sleep 0.2
    done
    echo "jobs are left after $2 s:"
    squeue
    return 1
}
# until_running DIR SECONDS: a job of it runs.
until_running() {
    local i
    for i in $(seq $((20 * $2))); do
        [ -n "$(running_of "$1")" ] && return 0
        sleep 0.05
    done
    return 1
}
# until_at_work DIR STAGE: its attempt has begun and has finished something (an update, a unit).
until_at_work() {
    local i
    for i in $(seq 2400); do
        grep -q '"ev":"progress".*"done":[1-9]' "$1/log/$2.jsonl" 2>/dev/null && return 0
        sleep 0.05
    done
    echo "$2 of $1 is not at work after two minutes"
    return 1
}
# explain DIR: what its jobs said, for a test that failed.
explain() {
    "$cairn" status "$1" || true
    grep -v queued "$1/log/slurm.jsonl" | tail -40 || true
    tail -n 5 "$1"/log/*.out | tail -60 || true
}
same_digest() { # DIR DIR
    diff <("$cairn" digest "$1") <("$cairn" digest "$2") || { explain "$2"; return 1; }
}
# nobody_left: no stage, no shared memory, no temporary file of ours on any node.
nobody_left() {
    local bad=0 n pid
    for pid in $(pgrep -f 'bin/cairn-(rollout|score|train|sync) ' || true); do
        case $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null) in
        *"$1"*) echo "still at work: $pid"; bad=1 ;;
        esac
    done
    for n in n1 n2 n3 n4; do
        pid=$(cat "$CAIRN_DEVCLUSTER/$n.pid" 2>/dev/null) || continue
        pid=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null | awk '{print $1}')
        [ -n "$pid" ] || continue
        if [ -n "$(ls -A "/proc/$pid/root/dev/shm" 2>/dev/null)" ]; then
            echo "$n has shared memory left: $(ls -A "/proc/$pid/root/dev/shm")"
            bad=1
        fi
    done
    if find "$1" -name '.MANIFEST.*' -o -name '*.tmp*' -o -name '.preflight*' | grep -q .; then
        find "$1" -name '.MANIFEST.*' -o -name '*.tmp*' -o -name '.preflight*'
        bad=1
    fi
    return $bad
}
