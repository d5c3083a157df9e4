# The chain on this machine: the same bits whatever happens on the way, and what is said about it.
load lib

setup_file() {
    load lib
    micro_run "$BATS_FILE_TMPDIR/whole"
    "$cairn" digest "$BATS_FILE_TMPDIR/whole" >"$BATS_FILE_TMPDIR/digest"
}

same() { # DIR: its digest is that of the undisturbed run
    "$cairn" digest "$1" | diff "$BATS_FILE_TMPDIR/digest" -
}

@test "the chain runs to its end and says what it did" {
    dir=$BATS_TEST_TMPDIR/run
    is 0 "$cairn" run "$micro" --run "$dir"
    says "step/000002/train" "grad norm" "eval/000002/heldout/score" "accuracy" "tokens/s"
    same "$dir"
}

@test "digest has one line a link, sorted by step and place in the chain" {
    cut -d' ' -f1,2 "$BATS_FILE_TMPDIR/digest" >"$BATS_TEST_TMPDIR/names"
    diff "$BATS_TEST_TMPDIR/names" - <<'LINES'
0 train
0 sync
0 eval/heldout/rollout
0 eval/heldout/score
1 rollout
1 score
1 train
1 sync
2 rollout
2 score
2 train
2 sync
2 eval/heldout/rollout
2 eval/heldout/score
LINES
    ! grep -qvE '^[0-9]+ [a-z/]+ [0-9a-f]{32}$' "$BATS_FILE_TMPDIR/digest" || false
}

@test "--json: one object a link on stdout" {
    "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/run" --json >"$BATS_TEST_TMPDIR/out" 2>/dev/null
    [ "$(grep -c '^{.*"stage".*}$' "$BATS_TEST_TMPDIR/out")" = 14 ]
}

@test "another seed is another run" {
    micro_run "$BATS_TEST_TMPDIR/run" run.seed=4 run.steps=1
    ! "$cairn" digest "$BATS_TEST_TMPDIR/run" | grep ' train ' | grep -qFf <(grep ' train ' "$BATS_FILE_TMPDIR/digest" | cut -d' ' -f3) || false
}

@test "threads and the guard back-end change no bit" {
    micro_run "$BATS_TEST_TMPDIR/one" kernels.threads=1
    same "$BATS_TEST_TMPDIR/one"
    micro_run "$BATS_TEST_TMPDIR/guard" kernels.backend=guard
    same "$BATS_TEST_TMPDIR/guard"
}

@test "from another folder, with relative paths" {
    cd "$BATS_TEST_TMPDIR"
    is 0 "$cairn" run "$(realpath --relative-to=. "$micro")" --run here --quiet
    same here
}

@test "a finished run is done again at once, and goes further with more steps" {
    dir=$BATS_TEST_TMPDIR/run
    micro_run "$dir" run.steps=1
    [ "$("$cairn" digest "$dir" | grep -c ' sync ')" = 2 ]
    micro_run "$dir"
    # Step 1 was the last once and has an evaluation for it; all else is the same.
    diff <(grep -v '^1 eval' "$BATS_FILE_TMPDIR/digest") <("$cairn" digest "$dir" | grep -v '^1 eval')
    is 0 "$cairn" run "$micro" --run "$dir"
    says "were done before"
    is 0 "$cairn" run "$micro" --run "$dir" run.steps=2
    ! echo "$output" | grep -q "from now on" || false
    is 0 "$cairn" run "$micro" --run "$dir" run.steps=1 # as when the key is forgotten
    says "from now on run.steps: 2 -> 1"
}

@test "kill -9 of the whole process group, again and again: same bits, nothing damaged" {
    dir=$BATS_TEST_TMPDIR/run
    for i in $(seq 1 200); do
        setsid "$cairn" run "$micro" --run "$dir" --quiet >/dev/null 2>&1 &
        pid=$!
        # From the very start to deep inside: 0.02 s, 0.05 s, ... longer each round, so that it ends.
        sleep "$(awk -v i="$i" 'BEGIN { print 0.02 + 0.03 * i }')"
        kill -9 -- "-$pid" 2>/dev/null || { wait "$pid" && break; }
        wait "$pid" || true
    done
    [ "$i" -gt 2 ]
    micro_run "$dir"
    same "$dir"
    is 0 "$cairn" verify --deep "$dir"
    # Each step has one line of metrics.
    [ "$(grep -c . "$dir/log/metrics.jsonl")" = "$(grep -o '"eval":"[^"]*"\|"step":[0-9]*' "$dir/log/metrics.jsonl" | grep -c step)" ]
    [ "$(grep -c '"reward/raw_mean"' "$dir/log/metrics.jsonl")" = 2 ]
}

@test "kill -9 of cairn run alone leaves no stage at work" {
    dir=$BATS_TEST_TMPDIR/run
    "$cairn" run "$micro" --run "$dir" --quiet warm_start.updates=4000 2>/dev/null &
    pid=$!
    for _ in $(seq 100); do
        stage=$(pgrep -P "$pid" -f cairn-train) && break
        sleep 0.05
    done
    [ -n "$stage" ]
    kill -9 "$pid"
    wait "$pid" || true
    for _ in $(seq 100); do
        kill -0 "$stage" 2>/dev/null || break
        sleep 0.05
    done
    ! kill -0 "$stage" 2>/dev/null || false
}

@test "SIGTERM to cairn run alone stops it with 75; the next call goes on" {
    dir=$BATS_TEST_TMPDIR/run
    "$cairn" run "$micro" --run "$dir" --quiet warm_start.updates=4000 2>"$BATS_TEST_TMPDIR/err" &
    pid=$!
    for _ in $(seq 100); do
        pgrep -P "$pid" -f cairn-train >/dev/null && break
        sleep 0.05
    done
    kill -TERM "$pid"
    code=0
    wait "$pid" || code=$?
    cat "$BATS_TEST_TMPDIR/err"
    [ "$code" = 75 ]
    grep -q "run again" "$BATS_TEST_TMPDIR/err"
    is 0 "$cairn" status "$dir"
    says "stopped"
}

@test "two at once on one directory: exactly one works, the other is 75 and names it" {
    dir=$BATS_TEST_TMPDIR/run
    micro_run "$dir" warm_start.updates=400 run.steps=0 2>"$BATS_TEST_TMPDIR/a" &
    a=$!
    micro_run "$dir" warm_start.updates=400 run.steps=0 2>"$BATS_TEST_TMPDIR/b" &
    b=$!
    ra=0 rb=0
    wait $a || ra=$?
    wait $b || rb=$?
    cat "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b"
    [ $((ra + rb)) = 75 ]
    cat "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b" | grep -q "somebody else is at work here (host .* pid [0-9]*)"
    is 0 "$cairn" verify "$dir"
}

@test "old trainer states go after each step, however rarely states are saved; what a kill left of a collection goes at the end at the latest" {
    small=(run.eval_every=0 warm_start=null rollout.prompts=2 rollout.samples=2 train.updates_per_step=1 checkpoint.keep=1 checkpoint.keep_every=0)
    dir=$BATS_TEST_TMPDIR/r
    "$cairn" init "$micro" --run "$dir" "${small[@]}" run.steps=4 checkpoint.every=3000000000
    for s in 1 2 3; do
        for stage in rollout score train sync; do "$build/bin/cairn-$stage" "$dir" --step $s --quiet; done
    done
    [ ! -e "$dir/step/000001/train/a1" ] && [ ! -e "$dir/step/000002/train/a1" ] && [ -e "$dir/step/000003/train/a1" ]
    micro_run "$dir" "${small[@]}" run.steps=12
    mkdir "$dir/step/000001/train/a1"
    micro_run "$dir" "${small[@]}" run.steps=13
    [ ! -e "$dir/step/000001/train/a1" ]
    is 0 "$cairn" verify "$dir"
}

@test "another recipe on the same directory is 78 with the difference" {
    dir=$BATS_TEST_TMPDIR/run
    micro_run "$dir" run.steps=0 run.eval_every=0
    is 78 "$cairn" run "$micro" --run "$dir" run.steps=0 run.eval_every=0 train.learning_rate=0.5
    says "train.learning_rate" "0.5"
}

@test "a run goes on by its directory alone, and with ops keys; not beside another --run" {
    dir=$BATS_TEST_TMPDIR/run
    is 0 "$cairn" init "$micro" --run "$dir"
    is 0 "$cairn" status "$dir"
    says "to go on: cairn run $dir"
    is 0 "$cairn" run "$dir" --quiet checkpoint.keep=3
    same "$dir"
    is 78 "$cairn" run "$dir" --quiet train.learning_rate=0.5
    says "train.learning_rate" "0.5"
    is 64 "$cairn" run "$dir" --run "$dir.other"
    says "$dir is a run: leave --run out"
    is 64 "$cairn" run "$micro"
    says "--run DIR is missing"
    is 69 "$cairn" run "$BATS_TEST_TMPDIR"
    says "$BATS_TEST_TMPDIR: no run here" "cairn run RECIPE --run $BATS_TEST_TMPDIR"
    is 69 "$cairn" submit "$dir.typo"
    says "$dir.typo: neither a recipe nor a run is there"
}

@test "status: a table and an object, for runs that are done, under way, and begun" {
    is 0 "$cairn" status "$BATS_FILE_TMPDIR/whole"
    says "2 of 2 steps"
    is 0 "$cairn" status "$BATS_FILE_TMPDIR/whole" --json
    says '"steps_done":2' '"steps_total":2' '"stage":"eval/heldout/rollout"' '"state":"done"' '"progress":1'
    is 0 "$cairn" init "$micro" --run "$BATS_TEST_TMPDIR/begun"
    is 0 "$cairn" status "$BATS_TEST_TMPDIR/begun" --json
    says '"steps_done":0' '"state":"waiting"' '"next":"cairn run '
    is 69 "$cairn" status "$BATS_TEST_TMPDIR"
    says "no run here"
}

@test "status changes nothing and stands in nobody's way" {
    dir=$BATS_TEST_TMPDIR/run
    cp -r "$BATS_FILE_TMPDIR/whole" "$dir"
    before=$(cd "$dir" && find . -type f -exec md5sum {} + | sort)
    "$cairn" status "$dir" >/dev/null
    [ "$before" = "$(cd "$dir" && find . -type f -exec md5sum {} + | sort)" ]
}

@test "init --print shows the resolved recipe, which is itself a recipe" {
    is 0 "$cairn" init "$micro" --print train.learning_rate=0.25
    says "learning_rate: 0.25"
    printf '%s\n' "$output" >"$BATS_TEST_TMPDIR/resolved.yaml"
    is 0 "$cairn" init "$BATS_TEST_TMPDIR/resolved.yaml" --print
    [ "$output" = "$(cat "$BATS_TEST_TMPDIR/resolved.yaml")" ]
}

@test "inspect: the run, an artefact, a tensor, a rollout with its text" {
    dir=$BATS_FILE_TMPDIR/whole
    is 0 "$cairn" inspect "$dir"
    says "2 of 2 steps" "parameters" "heldout: 8 problems" "accuracy" "step 0" "step 2" "$dir"
    is 0 "$cairn" inspect "$dir" "$dir"
    says "means over the runs"
    is 0 "$cairn" inspect "$dir/policy/000002"
    says "step/000002/train" "model.embed_tokens.weight" "bf16" "[2331, 32]" "ok"
    is 0 "$cairn" inspect "$dir/policy/000002" --tensor model.norm.weight
    says "[32]" "range"
    is 65 "$cairn" inspect "$dir/policy/000002" --tensor model.norm.weigth
    says "nearest one is model.norm.weight"
    is 0 "$cairn" inspect "$dir/step/000001/rollout" --rollout 4
    says "group 1, sample 1" "How many" "reward"
    is 0 "$cairn" inspect "$dir/step/000001/rollout" --rollout 4 --json
    says '"logprobs"' '"response"'
    is 64 "$cairn" inspect "$dir/step/000001/rollout" --rollout 36
    is 0 "$cairn" inspect "$dir/step"
    says "000002/train"
    is 69 "$cairn" inspect "$BATS_TEST_TMPDIR"
}
