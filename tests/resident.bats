# run.mode: resident: all roles alive in one MPI world; the same bits as the chain, whatever happens to it.
load lib

setup_file() {
    load lib
    command -v mpirun >/dev/null || skip "no mpirun"
    micro_run "$BATS_FILE_TMPDIR/chained" run.steps=4
    "$cairn" digest "$BATS_FILE_TMPDIR/chained" >"$BATS_FILE_TMPDIR/digest"
}

setup() {
    dir=$BATS_TEST_TMPDIR/run
}

resident() { # DIR [key=value...]
    local dir=$1
    shift
    micro_run "$dir" run.steps=4 run.mode=resident "$@"
}

same() { # DIR
    "$cairn" digest "$1" | diff "$BATS_FILE_TMPDIR/digest" -
}

# ranks DIR [STAGE]: pids of the roles at work on DIR
ranks() {
    pgrep -f "cairn-${2:-[a-z]*} $1 --resident" || true
}

gone() { # DIR: nobody is at work on it, within seconds
    local i
    for i in $(seq 100); do
        [ -n "$(ranks "$1")" ] || return 0
        sleep 0.1
    done
    return 1
}

@test "resident is chained, bit for bit, and tells the same" {
    is 0 "$cairn" run "$micro" --run "$dir" run.steps=4 run.mode=resident
    says "step/000004/train" "policy/000004" "eval/000004/heldout/score"
    same "$dir"
    is 0 "$cairn" run "$micro" --run "$dir" run.steps=4 run.mode=resident
    says "were done before"
    [ "$(ls /dev/shm | grep -c "^cairn-" || true)" = 0 ] || "$cairn" gc "$dir"
    is 0 "$cairn" verify --deep "$dir"
}

@test "several ranks of each role" {
    resident "$dir" rollout.parallel.dp=2 score.tasks=2 train.parallel.dp=2
    # The order of sums differs with the trainer's ranks, and by that the trainer's bits: compared with a chain of the same layout.
    micro_run "$dir-chained" run.steps=4 train.parallel.dp=2
    diff <("$cairn" digest "$dir-chained") <("$cairn" digest "$dir")
}

@test "a chain goes on resident, a resident run goes on as a chain" {
    micro_run "$dir" run.steps=2
    resident "$dir"
    micro_run "$dir-2" run.steps=2 run.mode=resident
    micro_run "$dir-2" run.steps=4 run.mode=chained
    diff <(grep -v ' eval' "$BATS_FILE_TMPDIR/digest") <("$cairn" digest "$dir" | grep -v ' eval')
    diff <(grep -v ' eval' "$BATS_FILE_TMPDIR/digest") <("$cairn" digest "$dir-2" | grep -v ' eval')
}

@test "an adapter, on base weights of the node" {
    micro_run "$dir" 'model.adapter={rank: 4}' run.steps=3
    micro_run "$dir-2" 'model.adapter={rank: 4}' run.steps=3 run.mode=resident "sync.node_store={path: $BATS_TEST_TMPDIR/store}"
    diff <("$cairn" digest "$dir") <("$cairn" digest "$dir-2")
    [ "$(ls "$BATS_TEST_TMPDIR/store"/cairn-* | wc -l)" = 1 ]
}

@test "run.lag: the sampler is a policy behind, in a chain and resident alike; training corrects for it" {
    lag=(run.steps=4 run.lag=1 'train.correction={kind: tis, cap: 2.0}' run.eval_every=0)
    micro_run "$dir" "${lag[@]}"
    micro_run "$dir-2" run.mode=resident "${lag[@]}"
    diff <("$cairn" digest "$dir") <("$cairn" digest "$dir-2")
    # What step 3 was sampled from is policy 1; step 1 is as without lag.
    policy=$("$cairn" inspect "$dir/policy/000001" --json | jq -r .digest)
    [ "$("$cairn" inspect "$dir/step/000003/rollout" --json | jq -r .content.policy)" = "$policy" ]
    diff <("$cairn" digest "$dir" | grep "^1 rollout") <(grep "^1 rollout" "$BATS_FILE_TMPDIR/digest")
    diff <("$cairn" digest "$dir" | grep "^2 rollout") <(grep "^2 rollout" "$BATS_FILE_TMPDIR/digest") && false
    grep -h '"step":3' "$dir/log/metrics.jsonl" | jq -e '."policy/lag" == 1 and ."mismatch/mean" > 0'
    is 78 "$cairn" init "$micro" --run "$dir-3" run.lag=1
    says "need a train.correction other than none"
}

@test "SIGTERM: all roles stop at the next unit, and the run goes on with the same bits" {
    for after in 0.6 1.2 1.9; do
        "$cairn" run "$micro" --run "$dir" run.steps=4 run.mode=resident --quiet 2>"$BATS_TEST_TMPDIR/err" &
        pid=$!
        sleep "$after"
        kill -TERM "$pid" 2>/dev/null || true
        code=0
        wait "$pid" || code=$?
        [ "$code" = 75 ] || [ "$code" = 0 ] || { cat "$BATS_TEST_TMPDIR/err"; false; }
        gone "$dir"
    done
    resident "$dir"
    same "$dir"
}

@test "kill -9 of one rank of each role: all are gone, the next call goes on, same bits" {
    for stage in rollout score train; do
        for after in 0.9 1.6; do
            "$cairn" run "$micro" --run "$dir" run.steps=4 run.mode=resident --quiet 2>"$BATS_TEST_TMPDIR/err" &
            pid=$!
            sleep "$after"
            victim=$(ranks "$dir" "$stage" | head -n 1)
            if [ -n "$victim" ]; then
                kill -KILL "$victim"
                code=0
                wait "$pid" || code=$?
                [ "$code" = 75 ] || [ "$code" = 0 ] || { cat "$BATS_TEST_TMPDIR/err"; false; }
                gone "$dir"
            else
                wait "$pid" || true
            fi
        done
    done
    resident "$dir"
    same "$dir"
    is 0 "$cairn" verify "$dir"
}

@test "a role that fails takes the others along, with its sentence and code" {
    micro_run "$dir" run.steps=2
    rm "$dir"/step/000002/train/a*/master*.h5 # what the trainer begins step 3 with
    is 65 "$cairn" run "$micro" --run "$dir" run.steps=4 run.mode=resident
    says "cairn-train:" "master" "the sentence stands above"
    gone "$dir"
}

@test "a stage alone is no resident run" {
    micro_run "$dir" run.steps=0
    is 64 "$build/bin/cairn-train" "$dir" --resident
    says "cairn run and cairn submit start it"
    is 64 "$build/bin/cairn-train" "$dir" --resident --step 3
}

in_memory() { # DIR: steps whose rollouts had their policy from memory
    grep -l '"handover/in_memory": *1' "$1"/step/*/rollout/MANIFEST.json | wc -l
}

@test "policies come from memory, by file where that is said, with the same bits" {
    micro_run "$dir" 'model.adapter={rank: 4}' run.steps=4
    micro_run "$dir-shm" 'model.adapter={rank: 4}' run.steps=4 run.mode=resident sync.path=shm rollout.parallel.dp=2
    micro_run "$dir-file" 'model.adapter={rank: 4}' run.steps=4 run.mode=resident sync.path=file
    diff <("$cairn" digest "$dir") <("$cairn" digest "$dir-shm")
    diff <("$cairn" digest "$dir") <("$cairn" digest "$dir-file")
    [ "$(in_memory "$dir-shm")" = 3 ] # the first policy is read
    [ "$(in_memory "$dir-file")" = 0 ]
}

@test "on an emulated GPU that sampler and trainer share, and on one for each" {
    [ -e "$build/lib/cairn-emu.so" ] || skip "no emulated GPU in this build"
    export CAIRN_CUDA_OBJECT=cairn-emu.so
    small=(kernels.backend=cuda run.steps=2 run.eval_every=0 warm_start=null rollout.prompts=1 rollout.samples=2 rollout.max_new_tokens=2 score.overlong=null
        train.updates_per_step=1)
    CAIRN_EMU_GPUS=1 micro_run "$dir" "${small[@]}"
    for gpus in 1 2; do
        CAIRN_EMU_GPUS=$gpus is 0 "$cairn" run "$micro" --run "$dir-$gpus" "${small[@]}" run.mode=resident
        says "handover through files: " # processes share nothing of an emulated GPU's memory
        diff <("$cairn" digest "$dir") <("$cairn" digest "$dir-$gpus")
    done
}
