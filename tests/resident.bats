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

# begun DIR ARTEFACT STAGE: starts a resident run of DIR that does not end by itself; $pid and the ranks of STAGE are at work, and ARTEFACT is committed
begun() {
    "$cairn" run "$micro" --run "$1" run.steps=2000 run.mode=resident --quiet 2>"$BATS_TEST_TMPDIR/err" &
    pid=$!
    until [ -e "$1/$2/MANIFEST.json" ] && [ -n "$(ranks "$1" "$3")" ]; do
        kill -0 "$pid" 2>/dev/null || { cat "$BATS_TEST_TMPDIR/err"; return 1; }
        sleep 0.01
    done
}

# ends DIR CODE: the run that was begun ends with CODE, and nobody of it is left
ends() {
    local code=0
    wait "$pid" || code=$?
    [ "$code" = "$2" ] || { echo "exit code $code"; cat "$BATS_TEST_TMPDIR/err"; return 1; }
    gone "$1"
}

# finished DIR: what was begun and stopped goes on for one step more, and has the bits of a run that nobody stopped
finished() {
    local last
    last=$(basename "$(dirname "$(dirname "$(ls -d "$1"/step/*/train/MANIFEST.json | tail -n 1)")")")
    last=$((10#$last + 1))
    micro_run "$1" run.steps=$last run.mode=resident
    micro_run "$1-whole" run.steps=$last run.mode=resident
    diff <("$cairn" digest "$1-whole") <("$cairn" digest "$1")
}

@test "SIGTERM: all roles stop at the next unit, and the run goes on with the same bits" {
    for at in base step/000000/train step/000002/rollout; do
        begun "$dir" "$at" rollout
        kill -TERM "$pid"
        ends "$dir" 75
    done
    finished "$dir"
}

@test "kill -9 of one rank of each role: all are gone, the next call goes on, same bits" {
    for kill in rollout:step/000000/train rollout:step/000001/rollout score:step/000001/train score:step/000002/rollout \
        train:step/000002/train train:step/000003/rollout; do
        begun "$dir" "${kill#*:}" "${kill%%:*}"
        kill -KILL "$(ranks "$dir" "${kill%%:*}" | head -n 1)"
        ends "$dir" 75
    done
    finished "$dir"
    is 0 "$cairn" verify "$dir"
}

@test "kill -9 of cairn run alone: its lock is held until the last rank is gone, and whoever wants it waits" {
    begun "$dir" step/000001/train train
    kill -KILL "$pid"
    is 0 "$cairn" gc "$dir"
    [ -z "$(ranks "$dir")" ]
    says "its ranks are on their way out: waiting for them"
    wait "$pid" || true
    finished "$dir"
}

saved() { # DIR: steps whose trainer state has its shards, in one line
    ls -d "$1"/step/*/train/a* 2>/dev/null | sed -E 's|.*/step/0*([0-9]+)/train/.*|\1|' | tr '\n' ' '
}

@test "checkpoint.every: states in between are told, not kept; what a kill costs is trained again, to the same bits" {
    six=(run.steps=6 run.eval_every=0 checkpoint.keep=9)
    micro_run "$dir" "${six[@]}"
    "$cairn" digest "$dir" >"$BATS_TEST_TMPDIR/six"
    micro_run "$dir-4" "${six[@]}" run.mode=resident checkpoint.every=4
    diff "$BATS_TEST_TMPDIR/six" <("$cairn" digest "$dir-4")
    [ "$(saved "$dir")" = "0 1 2 3 4 5 6 " ]
    [ "$(saved "$dir-4")" = "0 4 6 " ]
    is 0 "$cairn" verify --deep "$dir-4"
    is 0 "$cairn" gc "$dir-4"
    [ "$(saved "$dir-4")" = "0 4 6 " ]

    # A step takes some 20 ms: the run is long enough that a kill behind step 3 finds it at work.
    long=(run.steps=30 run.eval_every=0 checkpoint.keep=9)
    micro_run "$dir-long" "${long[@]}" run.mode=resident
    "$cairn" digest "$dir-long" >"$BATS_TEST_TMPDIR/long"
    for mode in resident chained; do # killed behind step 3, and gone on in either way
        for _ in $(seq 20); do # until it was killed before its end
            rm -rf "$dir-$mode"
            "$cairn" run "$micro" --run "$dir-$mode" "${long[@]}" run.mode=resident checkpoint.every=30 checkpoint.keep_policies=1 --quiet 2>"$BATS_TEST_TMPDIR/err" &
            pid=$!
            victim=
            until [ -n "$victim" ]; do
                victim=$(ranks "$dir-$mode" train | head -n 1)
            done
            until [ -e "$dir-$mode/step/000003/train/MANIFEST.json" ]; do :; done
            kill -KILL "$victim" 2>/dev/null || true
            wait "$pid" || true
            gone "$dir-$mode"
            [ -e "$dir-$mode/step/000030/train/MANIFEST.json" ] || break
        done
        is 0 "$cairn" run "$micro" --run "$dir-$mode" "${long[@]}" run.mode="$mode" checkpoint.every=30
        says "until checkpoint.every saves it: training again from step 1 on"
        grep -q '"hollow": "checkpoint.every"' "$dir-$mode/step/000003/train/MANIFEST.json"
        diff "$BATS_TEST_TMPDIR/long" <("$cairn" digest "$dir-$mode")
    done
}

@test "checkpoint.every: a told state whose policy is missing is trained again, by a chain as well" {
    two=(run.steps=3 run.eval_every=0)
    micro_run "$dir" "${two[@]}"
    micro_run "$dir-2" "${two[@]}" run.mode=resident checkpoint.every=3
    # As a kill between the state of step 2 and its policy leaves it.
    rm -rf "$dir-2"/policy/00000[23] "$dir-2"/step/000003
    for mode in chained resident; do
        cp -r "$dir-2" "$dir-$mode"
        is 0 "$cairn" run "$micro" --run "$dir-$mode" "${two[@]}" run.mode="$mode" checkpoint.every=3
        says "when its policy was not made yet: the step is trained again"
        diff <("$cairn" digest "$dir") <("$cairn" digest "$dir-$mode")
    done
    # The number of ranks cannot change right behind a state that is only told; one step later it can, and the state before it is saved.
    cp -r "$dir-2" "$dir-ranks"
    is 78 "$cairn" amend "$dir-ranks" train.parallel.dp=2 --from-step 3
    says "step/000002/train is in memory only (checkpoint.every)" "amend from step 4 on"
    is 0 "$cairn" amend "$dir-ranks" train.parallel.dp=2 --from-step 4
    is 64 "$cairn" run "$micro" --run "$dir-ranks" run.steps=5 run.eval_every=0 run.mode=resident checkpoint.every=9 checkpoint.keep=9
    says "started with 1 rank, train.parallel.dp is 2"
    [ -d "$dir-ranks/step/000003/train/a1" ]
    is 0 "$cairn" run "$micro" --run "$dir-ranks" run.steps=5 run.eval_every=0 run.mode=resident checkpoint.every=9 checkpoint.keep=9
    saved "$dir-ranks" | grep -q "3 5 $"
    "$cairn-sync" "$dir-2" --step 2 2>&1 || [ $? = 75 ] # under Slurm: again, and then the step before it
    [ ! -e "$dir-2/step/000002/train/MANIFEST.json" ]
}

@test "checkpoint.every: a state that is not made again as its manifest tells is refused, whichever step's, policies there or not" {
    four=(run.steps=4 run.eval_every=0 run.mode=resident checkpoint.every=9)
    micro_run "$dir" "${four[@]}"
    rm -rf "$dir/step/000004" "$dir/policy/000004"
    cp -r "$dir" "$dir-other" # the same run, of which steps 2 and 3 came out another way
    rm -rf "$dir-other"/step/00000[23] "$dir-other"/policy/00000[23]
    is 0 "$cairn" amend "$dir-other" train.learning_rate=0.003 --from-step 2
    is 0 "$cairn" run "$dir-other/recipe.yaml" --run "$dir-other"
    four+=(checkpoint.keep_policies=1)
    is 0 "$cairn" init "$dir/recipe.yaml" --run "$dir" checkpoint.keep_policies=1
    is 0 "$cairn" gc "$dir" --dry-run
    says "policy/000001" "policy/000002"
    is 0 "$cairn" gc "$dir" # that of step 0 is what training again begins with
    [ "$(ls -d "$dir"/policy/*/a1 | tr -dc '0-9 \n' | sed 's/.*00000\([0-9]\)1$/\1/' | tr '\n' ' ')" = "0 3 " ]
    for step in 2 3; do
        rm -rf "$dir-forged"
        cp -r "$dir" "$dir-forged"
        cp "$dir-other/step/00000$step/train/MANIFEST.json" "$dir-forged/step/00000$step/train/"
        is 76 "$cairn" run "$micro" --run "$dir-forged" "${four[@]}"
        says "the state of step $step, which checkpoint.every left unsaved, comes out another when it is trained again: master:"
        [ ! -e "$dir-forged/step/000004/train/MANIFEST.json" ]
    done
    is 76 "$cairn" run "$micro" --run "$dir-forged" "${four[@]}" run.mode=chained
    is 0 "$cairn" run "$micro" --run "$dir" "${four[@]}"
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

@test "sync.path: nccl wants GPUs, shm a node; it is told at the start" {
    is 72 "$cairn" run "$micro" --run "$dir" run.steps=2 run.mode=resident sync.path=nccl
    says "sync.path nccl: some ranks compute on the CPU; take auto, file or shm"
    gone "$dir"
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
