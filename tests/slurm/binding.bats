# Where ranks sit and what they see: cores of their own, neighbours side by side, all GPUs of their node, what else --gres asked for. Nodes with two cores
# and device files without a device: that Slurm gives and binds is tested, not what a GPU does.
load ../lib
load lib

recipe=tests/faults/micro.yaml

setup_file() {
    load lib
    [ -n "$(cluster_lacks)" ] || cluster_up --cpus 2 --gres gpu:2,nic:1 --set TaskPlugin=task/affinity
}
teardown_file() {
    load lib
    cluster_down
}
setup() {
    cluster_or_skip
    [ "$(nproc)" -ge 2 ] || skip "one core: nothing to bind"
}

# facts DIR: of each rank of training at work, "rank node cores devices", in the order of ranks.
facts() {
    local pid rank
    for pid in $(pgrep -x cairn-train); do
        tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF "$1" || continue
        rank() { tr '\0' '\n' <"/proc/$pid/environ" | sed -n "s/^$1=//p"; }
        echo "$(rank SLURM_PROCID) $(rank SLURMD_NODENAME) $(sed -n 's/^Cpus_allowed_list:[ \t]*//p' "/proc/$pid/status") $(rank CUDA_VISIBLE_DEVICES)"
    done | sort -n
}

@test "four ranks on two nodes: a core each, neighbours on one node, every GPU of it" {
    dir=$BATS_TEST_TMPDIR/run
    mkdir "$dir.hold"
    echo work 1 >"$dir.hold/train.1" # two updates are made, one is to come: all four are at work
    wide=(run.steps=1 run.eval_every=0 train.parallel.dp=4 rollout.prompts=16 rollout.samples=4 train.updates_per_step=2 checkpoint.updates=1)
    "$cairn" submit "$root/$recipe" --run "$dir" "${wide[@]}" slurm.train.nodes=2 slurm.train.tasks_per_node=2 slurm.train.cpus_per_task=1 \
        'slurm.train.gres="gpu:2,nic:1"' 'slurm.jobs=[[rollout],[score],[train,sync]]' \
        "slurm.setup=[\"export LD_PRELOAD=$build/lib/hold.so CAIRN_HOLD=$dir.hold\"]" >/dev/null
    for _ in $(seq 900); do [ -e "$dir.hold/train.1.at" ] && break; sleep 0.1; done
    facts "$dir" >"$BATS_TEST_TMPDIR/facts"
    job=$(running_of "$dir" | head -1)
    given=$(scontrol show job -d "$job" | grep -oE '(Nodes=|JOB_)?[^ ]* ?.*GRES=[^ ]*')
    scancel -s TERM "$job" # it was held for this; goes on after a requeue
    sed 's/^/# rank, node, cores, GPUs: /' "$BATS_TEST_TMPDIR/facts" >&3
    echo "$given"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/facts")" = 4 ]
    mapfile -t node < <(awk '{ print $2 }' "$BATS_TEST_TMPDIR/facts")
    [ "${node[0]}" = "${node[1]}" ] && [ "${node[2]}" = "${node[3]}" ] && [ "${node[0]}" != "${node[2]}" ]
    # On each node the two cores, once each; and both GPUs for everybody.
    [ "$(awk '{ print $2, $3 }' "$BATS_TEST_TMPDIR/facts" | sort -u | wc -l)" = 4 ]
    [ "$(awk '{ print $3 }' "$BATS_TEST_TMPDIR/facts" | sort | paste -sd' ')" = "0 0 1 1" ]
    [ "$(awk '{ print $4 }' "$BATS_TEST_TMPDIR/facts" | sort -u)" = "0,1" ]
    grep -qE 'Nodes=n\[1-2\] .*GRES=gpu:2\(IDX:0-1\),nic:1\(IDX:0\)' <<<"$given"
    until_queue_empty "$dir" 120
    "$cairn" run "$root/$recipe" --run "$BATS_TEST_TMPDIR/local" --quiet "${wide[@]}"
    same_digest "$BATS_TEST_TMPDIR/local" "$dir"
}

@test "more than the nodes have is refused before anything is queued" {
    dir=$BATS_TEST_TMPDIR/more
    is 78 "$cairn" submit "$root/$recipe" --run "$dir" 'slurm.gres="gpu:3"'
    says "no node fits"
    is 78 "$cairn" submit "$dir" 'slurm.gres="tape:1"'
    says "gres" "sinfo"
    [ -z "$(jobs_of "$dir")" ]
}
