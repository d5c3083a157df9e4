# Stored rollouts used again.
load lib

setup_file() {
    load lib
    micro_run "$BATS_FILE_TMPDIR/whole"
}

@test "--train with unchanged settings has the original's digest, and names its origin" {
    new=$BATS_TEST_TMPDIR/new
    is 0 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --train --run "$new" --quiet
    diff <("$cairn" digest "$BATS_FILE_TMPDIR/whole") <("$cairn" digest "$new")
    grep -q "origin: .*run $(grep -o '"uuid": *"[0-9a-f]*"' "$BATS_FILE_TMPDIR/whole/run.json" | grep -o '[0-9a-f]\{32\}')" "$new/recipe.yaml"
    is 0 "$cairn" verify --deep "$new"
    # Nobody samples where rollouts are to be replayed.
    is 78 "$cairn" run "$new/recipe.yaml" --run "$new"
    says "cairn replay"
    is 78 "$cairn" submit "$new" --dry-run
    says "cairn replay"
    # Called again: done.
    is 0 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --train --run "$new" --quiet
}

@test "--train with other settings: refused as stale, or trained on with a correction" {
    whole=$BATS_FILE_TMPDIR/whole
    is 78 "$cairn" replay "$whole" --train --run "$BATS_TEST_TMPDIR/a" --quiet train.learning_rate=0.01 train.updates_per_step=3
    says "with another train." "than $whole had, the rollouts of step 2 on are another policy's" \
        "; add train.on_policy=correct train.correction=tis"
    is 78 "$cairn" replay "$whole" --train --run "$BATS_TEST_TMPDIR/a" --quiet train.learning_rate=0.01 train.correction=icepop
    says "; add train.on_policy=correct"
    [[ $output != *"train.correction=tis"* ]]
    is 78 "$cairn" replay "$whole" --train --run "$BATS_TEST_TMPDIR/a" --quiet sync.dtype=f32
    says "with another sync.dtype"
    [ ! -e "$BATS_TEST_TMPDIR/a" ]
    # What makes the same policies, and what is trained no further.
    is 0 "$cairn" replay "$whole" --train --run "$BATS_TEST_TMPDIR/same" --quiet train.learning_rate=1.0e-3 train.skip_nonfinite=true
    is 0 "$cairn" replay "$whole" --train --run "$BATS_TEST_TMPDIR/one" --quiet train.learning_rate=0.01 run.steps=1
    # What cannot be told beforehand the trainer finds: what a slice comes to.
    is 78 "$cairn" replay "$whole" --train --run "$BATS_TEST_TMPDIR/late" --quiet --only sample=0-1
    says "step/000002/rollout was sampled from policy" "train.on_policy=correct train.correction=tis"
    is 0 "$cairn" status "$BATS_TEST_TMPDIR/late"
    says "was sampled from policy"
    [[ $output != *--repair* ]] # nothing is damaged
    is 0 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --train --run "$BATS_TEST_TMPDIR/b" --quiet train.learning_rate=0.01 \
        train.updates_per_step=3 train.on_policy=correct train.correction=tis
    ! diff -q <("$cairn" digest "$BATS_FILE_TMPDIR/whole") <("$cairn" digest "$BATS_TEST_TMPDIR/b") || false
}

amended() { # NAME [amendment...]: a run of four steps, amended from step 3 on
    dir=$BATS_TEST_TMPDIR/$1
    shift
    cp -r "$BATS_FILE_TMPDIR/whole" "$dir"
    "$cairn" amend "$dir" "$@" --from-step 3
    "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet run.steps=4
}

@test "--train of an amended run: the amendments come along, with the original's digest" {
    amended old train.learning_rate=0.02 rollout.samples=4
    "$cairn" amend "$dir" train.learning_rate=0.05 --from-step 9
    new=$BATS_TEST_TMPDIR/new
    is 0 "$cairn" replay "$dir" --train --run "$new"
    says "$new: amendment 1, from step 3 on, as $dir has it: train.learning_rate=0.02 rollout.samples=4"
    diff <("$cairn" digest "$dir") <("$cairn" digest "$new")
    [ ! -e "$new/recipe.amend-0002.json" ] # no replayed step sees it
    grep -q "\"origin\": {\"number\":1,\"run\":\"$(sed -n 's/.*"uuid": *"\([0-9a-f]*\)".*/\1/p' "$dir/run.json")\"}" "$new/recipe.amend-0001.json"
    is 0 "$cairn" verify --deep "$new"
    is 0 "$cairn" status "$new" --json
    says '"amendments":[{"from_step":3,"number":1,"origin":{"number":1,"run":'
    is 0 "$cairn" replay "$dir" --train --run "$new" --quiet # called again: done
    [ ! -e "$new/recipe.amend-0002.json" ]
    # The old run goes on, is amended again, and so does the new one.
    "$cairn" amend "$dir" train.learning_rate=0.03 --from-step 5
    "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet run.steps=5
    is 0 "$cairn" replay "$dir" --train --run "$new" --quiet
    diff <("$cairn" digest "$dir") <("$cairn" digest "$new")
    is 0 "$cairn" verify "$new"
    # Now it reaches the one that was left out, which has an earlier number than one that was not.
    "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet run.steps=9
    is 78 "$cairn" replay "$dir" --train --run "$new" --quiet
    says "but not number 2, from step 9 on: train.learning_rate=0.05" "name a new run"
    is 0 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/newer" --quiet
    diff <("$cairn" digest "$dir" | grep -v '^5 eval') <("$cairn" digest "$BATS_TEST_TMPDIR/newer") # step 5 was its last one once
}

@test "--train of an amended run, killed before its amendments are written: the same call goes on" {
    amended old train.learning_rate=0.02
    "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/new" --quiet
    for t in 0.02 0.04 0.06 0.1 0.2 0.4; do
        timeout -s KILL "$t" "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/killed" --quiet >/dev/null 2>&1 || true
    done
    is 0 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/killed" --quiet
    diff <("$cairn" digest "$dir") <("$cairn" digest "$BATS_TEST_TMPDIR/killed")
    is 0 "$cairn" verify "$BATS_TEST_TMPDIR/killed"
}

@test "--train of an amended run with key=value: the command line goes before an amendment, and it is told" {
    amended old train.learning_rate=0.02 'train.clip={low: 0.1, high: 0.3}'
    # The first settings throughout: as a run that was never amended, up to the rollouts that are another policy's.
    new=$BATS_TEST_TMPDIR/new
    is 0 "$cairn" replay "$dir" --train --run "$new" train.learning_rate=0.001 train.clip.low=0.15 train.on_policy=correct train.correction=tis
    says "amendment 1, from step 3 on: train.clip={low: 0.1, high: 0.3} train.learning_rate=0.001 train.clip.low=0.15;" \
        "$dir has train.learning_rate=0.02 train.clip={low: 0.1, high: 0.3} there, and the command line goes before it"
    "$cairn" amend "$new" train.learning_rate=0.001 train.clip.low=0.15 train.clip.high=0.3 --from-step 9 | grep -q 'nothing to amend'
    is 0 "$cairn" verify "$new"
    # The words belong to the new run: without them another one would come out.
    is 78 "$cairn" replay "$dir" --train --run "$new" --quiet train.clip.low=0.15 train.on_policy=correct train.correction=tis
    says "took amendment 1 of $dir along as, from step 3 on:"
    is 0 "$cairn" replay "$dir" --train --run "$new" --quiet train.learning_rate=0.001 train.clip.low=0.15 train.on_policy=correct \
        train.correction=tis
}

@test "--train of an amended run: what cannot come along is refused before anything is made" {
    amended old train.correction=tis train.on_policy=correct
    is 78 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/new" --quiet train.correction=none
    says "amendment 1 of $dir" "train.on_policy" "train.correction"
    [ ! -e "$BATS_TEST_TMPDIR/new" ]
    rm -rf "$dir"
    amended old kernels.backend=cpu
    export CAIRN_CUDA_OBJECT=cairn-nothing.so
    is 72 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/new" --quiet kernels.backend=cuda
    [ ! -e "$BATS_TEST_TMPDIR/new" ]
}

@test "--train of a slice of an amended run: an amendment sets in with the first step that saw it" {
    amended old train.learning_rate=0.02
    new=$BATS_TEST_TMPDIR/new
    is 0 "$cairn" replay "$dir" --train --run "$new" --quiet --only step=2,4 train.on_policy=correct train.correction=tis
    is 0 "$cairn" status "$new"
    says "amended from step 2 on: train.learning_rate=0.02"
    is 0 "$cairn" verify "$new"
    is 0 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/first" --quiet --only step=1-2
    [ ! -e "$BATS_TEST_TMPDIR/first/recipe.amend-0001.json" ]
}

@test "--score: beside the run's own, what changed, no line in digest" {
    dir=$BATS_TEST_TMPDIR/run
    cp -r "$BATS_FILE_TMPDIR/whole" "$dir"
    "$cairn" digest "$dir" >"$BATS_TEST_TMPDIR/before"
    printf 'score: {reward: {wrong: -1.0}}\n' >"$BATS_TEST_TMPDIR/harsh.yaml"
    is 0 "$cairn" replay "$dir" --score "$BATS_TEST_TMPDIR/harsh.yaml"
    says "replay/harsh step/000002/score" "replay/harsh eval/000000/heldout/score" "36 rewards"
    [ -e "$dir/replay/harsh/1/MANIFEST.json" ]
    is 0 "$cairn" inspect "$dir/replay/harsh/1" --json
    says '"name":"step/000002/score"' '"name":"eval/000000/heldout/score"' '"units":4'
    "$cairn" digest "$dir" | diff "$BATS_TEST_TMPDIR/before" -
    is 0 "$cairn" verify --deep "$dir"
    # Called again: nothing new. Part by part: what is there already is left, the rest is added, the figures are those of all.
    is 0 "$cairn" replay "$dir" --score "$BATS_TEST_TMPDIR/harsh.yaml"
    [ ! -e "$dir/replay/harsh/2" ]
    # Killed right behind its commit, a call has not tidied up: the next one does.
    ln "$dir/replay/harsh/1/MANIFEST.json" "$dir/replay/harsh/1/.MANIFEST.1"
    is 0 "$cairn" replay "$dir" --score "$BATS_TEST_TMPDIR/harsh.yaml"
    [ ! -e "$dir/replay/harsh/1/.MANIFEST.1" ] && [ -e "$dir/replay/harsh/1/MANIFEST.json" ]
    is 0 "$cairn" replay "$dir" --score "$BATS_TEST_TMPDIR/harsh.yaml" --name parts --only step=1
    is 0 "$cairn" replay "$dir" --score "$BATS_TEST_TMPDIR/harsh.yaml" --name parts
    says "replay/parts step/000001/score" "replay/parts step/000002/score"
    is 0 "$cairn" inspect "$dir/replay/parts/2" --json
    says '"name":"step/000002/score"' '"units":3'
    # The run's own recipe changes nothing.
    is 0 "$cairn" replay "$dir" --score "$micro" --name own
    says "0 verdicts, 0 rewards, 0 advantages of 36"
    # A name is one recipe's.
    is 64 "$cairn" replay "$dir" --score "$micro" --name harsh
    says "--name"
}

recorded() {
    cat <<'LINES'
{"id":"a","prompt":"Ann has 2 pens and finds 3 more. How many pens?","answer":"5","responses":[{"text":"2 + 3 = 5. Answer: 5","by":"me"},{"text":"Answer: 6"}]}
{"id":"b","prompt":"Ben has 7 keys and loses 4. How many keys?","answer":"3","responses":[{"text":"Answer: 3"},{"text":"Answer: 4","finish":"length"},{"text":""}]}
LINES
}

@test "--from: recorded responses are scored and trained on" {
    new=$BATS_TEST_TMPDIR/new
    recorded >"$BATS_TEST_TMPDIR/r.jsonl"
    is 0 "$cairn" replay "$micro" --from "$BATS_TEST_TMPDIR/r.jsonl" --run "$new" rollout.prompts=2 rollout.samples=2
    says "5 responses to 2 problems"
    diff "$BATS_TEST_TMPDIR/r.jsonl" "$new/files/data.prompts.0"
    is 0 "$cairn" inspect "$new/step/000001/rollout" --rollout 0
    says "2 + 3 = 5. Answer: 5<|endoftext|>" "ended by stop"
    is 0 "$cairn" inspect "$new/step/000001/rollout" --rollout 3
    says "ended by length"
    is 0 "$cairn" replay "$new" --score "$micro" --json
    says '"accuracy":0.4'
    is 0 "$cairn" run "$new/recipe.yaml" --run "$new" --quiet
    [ "$("$cairn" digest "$new" | grep -c '^1 ')" = 6 ]
    is 0 "$cairn" verify --deep "$new"
    # A call that was killed before it wrote the rollouts: the next one makes them of the run's own files.
    "$cairn" digest "$new" | grep '^1 rollout' >"$BATS_TEST_TMPDIR/was"
    rm -r "$new/step/000001/rollout"
    is 0 "$cairn" replay "$micro" --from "$BATS_TEST_TMPDIR/r.jsonl" --run "$new" rollout.prompts=2 rollout.samples=2
    "$cairn" digest "$new" | grep '^1 rollout' | diff "$BATS_TEST_TMPDIR/was" -
    # From a pipe the same run comes out.
    recorded | "$cairn" replay "$micro" --from /dev/stdin --run "$BATS_TEST_TMPDIR/piped" rollout.prompts=2 rollout.samples=2
    diff <("$cairn" digest "$new" | grep '^1 rollout') <("$cairn" digest "$BATS_TEST_TMPDIR/piped")
    # What it brought belongs to that run: again it is taken, something else is not.
    recorded | is 0 "$cairn" replay "$micro" --from /dev/stdin --run "$BATS_TEST_TMPDIR/piped" rollout.prompts=2 rollout.samples=2
    recorded | sed 's/pens/pears/g' | is 78 "$cairn" replay "$micro" --from /dev/stdin --run "$BATS_TEST_TMPDIR/piped" rollout.prompts=2 rollout.samples=2
    recorded | diff - "$BATS_TEST_TMPDIR/piped/recorded.jsonl"
}

@test "--from: broken rows are 65 with their line" {
    check() { # LINE EXPECTED...
        { recorded; printf '%s\n' "$1"; } >"$BATS_TEST_TMPDIR/r.jsonl"
        shift
        rm -rf "$BATS_TEST_TMPDIR/bad"
        is 65 "$cairn" replay "$micro" --from "$BATS_TEST_TMPDIR/r.jsonl" --run "$BATS_TEST_TMPDIR/bad" rollout.prompts=2 rollout.samples=2
        says "$BATS_TEST_TMPDIR/r.jsonl:3: " "$@"
        [ ! -e "$BATS_TEST_TMPDIR/bad" ] # nothing that stands in the way of the next call
    }
    check '{"prompt":"p","answer":"1"}' responses
    recorded >"$BATS_TEST_TMPDIR/r.jsonl" # mended: the same call goes on
    is 0 "$cairn" replay "$micro" --from "$BATS_TEST_TMPDIR/r.jsonl" --run "$BATS_TEST_TMPDIR/bad" rollout.prompts=2 rollout.samples=2
    check '{"prompt":"p","answer":"1","responses":[{"text":1}]}' "response 0" text
    check '{"prompt":"p","answer":"1","responses":[{"ids":[5,6],"logprobs":[-1,1]}]}' logprobs
    check '{"prompt":"p","answer":"1","responses":[{"ids":[99999]}]}' vocabulary
    check '{"prompt":"p","answer":"1","responses":[{"ids":[5,6],"logprobs":[-1,-2]}]}' logprobs
    check '{"prompt":"p","answer":"1","responses":[{"text":"x","finish":"why"}]}' finish
    check '{"prompt":' ''
    printf '%s\n' '{"prompt":"p","answer":"1","responses":[{"ids":[5,6],"logprobs":[-1,1]}]}' >"$BATS_TEST_TMPDIR/r.jsonl"
    is 65 "$cairn" replay "$micro" --from "$BATS_TEST_TMPDIR/r.jsonl" --run "$BATS_TEST_TMPDIR/none"
    says "$BATS_TEST_TMPDIR/r.jsonl:1: response 0: \"logprobs\": element 1 is no log-probability"
    [ ! -e "$BATS_TEST_TMPDIR/none" ]
    printf '%s\n' '{"prompt":"p","answer":"1","responses":[]}' >"$BATS_TEST_TMPDIR/r.jsonl"
    rm -rf "$BATS_TEST_TMPDIR/bad"
    is 65 "$cairn" replay "$micro" --from "$BATS_TEST_TMPDIR/r.jsonl" --run "$BATS_TEST_TMPDIR/bad"
    says "$BATS_TEST_TMPDIR/r.jsonl: no response in it: "
    [ ! -e "$BATS_TEST_TMPDIR/bad" ]
    is 65 "$cairn" replay "$micro" --from <(cat "$BATS_TEST_TMPDIR/r.jsonl") --run "$BATS_TEST_TMPDIR/bad"
    [ ! -e "$BATS_TEST_TMPDIR/bad" ]
}

@test "--from: the other system's ids and log-probabilities are kept to the bit" {
    new=$BATS_TEST_TMPDIR/new
    echo '{"prompt":"p","answer":"1","responses":[{"ids":[10,20,2295],"logprobs":[-0.100000001,-2.5,0]},{"ids":[11,21],"logprobs":[-1,-2]}]}' \
        >"$BATS_TEST_TMPDIR/r.jsonl"
    is 0 "$cairn" replay "$micro" --from "$BATS_TEST_TMPDIR/r.jsonl" --run "$new" rollout.prompts=1 train.updates_per_step=1
    is 0 "$cairn" inspect "$new/step/000001/rollout" --rollout 0 --json
    says '"logprobs":[-0.10000000149011612,-2.5,0]' '10,20,2295]' '"finish":"stop"'
    is 0 "$cairn" inspect "$new/step/000001/rollout" --rollout 1 --json
    says '"finish":"length"'
}

@test "--from: the command that it ends with trains on them, whatever they bring and the recipe says" {
    printed() { # FILE [key=value...]: runs what replay --from prints
        local command new=$BATS_TEST_TMPDIR/new$((++count))
        is 0 "$cairn" replay "$micro" --from "$1" --run "$new" rollout.prompts=1 train.updates_per_step=1 "${@:2}"
        command=$(sed -n 's/^to train on them:   //p' <<<"$output")
        PATH=$build/bin:$PATH is 0 bash -c "$command"
        new=$(sed 's/.*run \([^ ]*\).*/\1/' <<<"$command")
        [ -e "$new/step/000001/train/MANIFEST.json" ]
        is 0 "$cairn" verify "$new"
    }
    count=0
    echo '{"prompt":"p","answer":"1","responses":[{"ids":[10,20,2295],"logprobs":[-0.1,-2.5,0]},{"ids":[11,21],"logprobs":[-1,-2]}]}' \
        >"$BATS_TEST_TMPDIR/with.jsonl"
    echo '{"prompt":"p","answer":"1","responses":[{"ids":[10,20,2295]},{"text":"Answer: 1"}]}' >"$BATS_TEST_TMPDIR/without.jsonl"
    printed "$BATS_TEST_TMPDIR/without.jsonl"
    printed "$BATS_TEST_TMPDIR/with.jsonl" train.loss=sft
    printed "$BATS_TEST_TMPDIR/with.jsonl" train.on_policy=correct train.correction=tis
    printed "$BATS_TEST_TMPDIR/with.jsonl"
    printed "$BATS_TEST_TMPDIR/with.jsonl" train.correction=icepop rollout.top_p=0.9 train.truncation=correct
    printed "$BATS_TEST_TMPDIR/without.jsonl" train.on_policy=correct train.correction=tis
    printed "$BATS_TEST_TMPDIR/without.jsonl" train.correction=tis run.lag=1 rollout.top_p=0.9 train.truncation=correct
}

@test "--from: a run that can never train on what it was brought says so before its warm start" {
    new=$BATS_TEST_TMPDIR/new
    echo '{"prompt":"p","answer":"1","responses":[{"ids":[10,20,2295],"logprobs":[-0.1,-2.5,0]}]}' >"$BATS_TEST_TMPDIR/r.jsonl"
    is 0 "$cairn" replay "$micro" --from "$BATS_TEST_TMPDIR/r.jsonl" --run "$new" rollout.prompts=1 train.updates_per_step=1
    is 78 "$cairn" run "$new/recipe.yaml" --run "$new"
    says "train.on_policy: require" "cairn replay $new --train --run $new-train train.on_policy=correct train.correction=tis"
    is 78 "$cairn" submit "$new" --dry-run
    says "train.on_policy: require"
    [ ! -e "$new/step/000000" ]
    is 0 "$cairn" status "$new"
    says "cairn replay $new --train --run $new-train train.on_policy=correct train.correction=tis"
    [[ $output != *"to go on:"* ]]
    is 78 "$cairn" replay "$new" --train --run "$new-train"
    says "train.on_policy: require"
    [ ! -e "$new-train" ]
}

@test "--regenerate: equal bits, a share of them, a flipped bit is 65" {
    is 0 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --regenerate
    says "step/000001/rollout" "36 of 36 rollouts made again" "eval/000002/heldout/rollout" "equal bits"
    is 0 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --regenerate --sample 0.05 --json
    says '"different":0,"regenerated":2,"rollouts":"step/000002/rollout","stored":36'
    dir=$BATS_TEST_TMPDIR/run
    cp -r "$BATS_FILE_TMPDIR/whole" "$dir"
    flip "$(ls "$dir"/step/000001/rollout/a*/unit-000000.h5)" 3000
    is 65 "$cairn" replay "$dir" --regenerate --sample 0.01
    says "unit-000000.h5"
}

@test "carried groups: trained again with the original's digest, made again, handed out" {
    dir=$BATS_TEST_TMPDIR/run
    is 0 "$cairn" run tests/faults/least.yaml --run "$dir" --quiet run.eval_every=0 'rollout.dynamic={max_rounds: 8}' rollout.carry=true \
        train.correction=tis 'rollout.store=[text, experts]' score.grader=some checkpoint.keep_policies=all \
        "score.graders={some: {kind: regex, pattern: '(?s)\\A[ -_]'}}"
    is 0 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/new" --quiet
    diff <("$cairn" digest "$dir") <("$cairn" digest "$BATS_TEST_TMPDIR/new")
    is 0 "$cairn" replay "$dir" --regenerate
    says "2 carried ones held against the step before: equal bits"
    is 0 "$cairn" replay "$dir" --score "$dir/recipe.yaml" --name own
    says "0 verdicts, 0 rewards, 0 advantages"
    is 0 "$cairn" inspect "$dir/step/000002/rollout" --rollout 0
    says "carried: the step before sampled it" "gold answer"
    is 0 "$cairn" replay "$dir" --export "$BATS_TEST_TMPDIR/x.jsonl" --only step=2
    grep -q '"carried":{"step":1,"group":22}' "$BATS_TEST_TMPDIR/x.jsonl"
    is 0 "$cairn" verify --deep "$dir"
    # Without a correction there is nothing to do about their age.
    is 78 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/bare" --quiet train.correction=none
    says "rollout.carry"
}

@test "--export and back: the same tokens and log-probabilities; slices of it" {
    out=$BATS_TEST_TMPDIR/out.jsonl
    is 0 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --export "$out" --only step=1
    says "36 rollouts of 12 groups"
    is 0 "$cairn" replay "$micro" --from "$out" --run "$BATS_TEST_TMPDIR/back"
    for k in 0 17 35; do
        "$cairn" inspect "$BATS_FILE_TMPDIR/whole/step/000001/rollout" --rollout $k --json >"$BATS_TEST_TMPDIR/a"
        "$cairn" inspect "$BATS_TEST_TMPDIR/back/step/000001/rollout" --rollout $k --json >"$BATS_TEST_TMPDIR/b"
        diff <(grep -o '"ids":\[[^]]*\]' "$BATS_TEST_TMPDIR/a") <(grep -o '"ids":\[[^]]*\]' "$BATS_TEST_TMPDIR/b")
        diff <(grep -o '"logprobs":\[[^]]*\]' "$BATS_TEST_TMPDIR/a") <(grep -o '"logprobs":\[[^]]*\]' "$BATS_TEST_TMPDIR/b")
    done
    # Recorded responses were made by nobody here.
    is 69 "$cairn" replay "$BATS_TEST_TMPDIR/back" --regenerate
    says "recorded responses"
    # Slices: of what goes out, and of what comes in.
    [ "$("$cairn" replay "$BATS_FILE_TMPDIR/whole" --export /dev/stdout --only sample=1 --only finish=length | grep -o '"sample":1,' | wc -l)" \
        -gt 0 ]
    is 0 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --export /dev/stdout --only eval=heldout --only step=2
    [ "${#lines[@]}" = 8 ]
    is 0 "$cairn" replay "$micro" --from "$out" --run "$BATS_TEST_TMPDIR/some" --only sample=0
    says "12 responses to 12 problems"
    grep -q "origin: .*sample=0" "$BATS_TEST_TMPDIR/some/recipe.yaml"
    # The slice belongs to the run.
    is 78 "$cairn" replay "$micro" --from "$out" --run "$BATS_TEST_TMPDIR/some" --only sample=1
}

@test "--score and --train of a slice" {
    dir=$BATS_TEST_TMPDIR/run
    cp -r "$BATS_FILE_TMPDIR/whole" "$dir"
    is 0 "$cairn" replay "$dir" --score "$micro" --only step=1 --only sample=0-1 --changes score.overlong.factor=2 --name two
    says "of 24" "penalty -0.5 -> -2"
    case $output in *"step/000002"*) false ;; esac
    is 0 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/new" --quiet --only step=2 --only sample=0-1 train.on_policy=correct \
        train.correction=tis
    [ "$("$cairn" digest "$BATS_TEST_TMPDIR/new" | tail -1 | cut -c1)" = 1 ]
    is 78 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/stale" --quiet --only step=2
    says "the rollouts of step 2 of $dir are another policy's" "add train.on_policy=correct train.correction=tis"
    [ ! -e "$BATS_TEST_TMPDIR/stale" ]
    is 0 "$cairn" inspect "$BATS_TEST_TMPDIR/new/step/000001/rollout" --rollout 2
    says "unused"
    is 0 "$cairn" verify --deep "$BATS_TEST_TMPDIR/new"
    is 69 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/none" --quiet --only prompt=nobody
    says "prompt=nobody"
}

@test "a step whose rollouts are not there: --train refuses, --score and --export say what they leave out" {
    dir=$BATS_TEST_TMPDIR/run
    cp -r "$BATS_FILE_TMPDIR/whole" "$dir"
    "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet run.steps=3
    for hole in 2 3; do
        mv "$dir/step/00000$hole/rollout" "$BATS_TEST_TMPDIR/rollout"
        is 69 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/new" --quiet --only step=1,$hole
        says "step/00000$hole/rollout is not there" "cairn run $dir;" "--only step=1"
        [ $hole = 3 ] || is 69 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/new" --quiet
        says "--only step=1$([ $hole = 3 ] || echo ,3)"
        [ ! -e "$BATS_TEST_TMPDIR/new" ]
        is 0 "$cairn" replay "$dir" --score "$micro" --name "at$hole"
        says "$dir: the rollouts of step $hole are not there and are left out"
        is 0 "$cairn" replay "$dir" --export "$BATS_TEST_TMPDIR/out$hole.jsonl"
        says "the rollouts of step $hole are not there and are left out"
        mv "$BATS_TEST_TMPDIR/rollout" "$dir/step/00000$hole/rollout"
    done
    is 78 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/new" --quiet run.steps=4
    says "rollouts of 3 steps"
    # Where the policy that sampled them was collected, nothing makes them again.
    is 0 "$cairn" run tests/faults/micro.yaml --run "$dir-short" --quiet run.steps=4 run.eval_every=0 checkpoint.keep=9 checkpoint.keep_policies=1
    rm -r "$dir-short/step/000002/rollout"
    is 69 "$cairn" replay "$dir-short" --train --run "$BATS_TEST_TMPDIR/new" --quiet
    says "nothing makes it any more; to leave it out: --only step=1,3-4 train.on_policy=correct train.correction=tis"
    is 78 "$cairn" replay "$dir-short" --train --run "$BATS_TEST_TMPDIR/new" --quiet --only step=1,3-4
    [ ! -e "$BATS_TEST_TMPDIR/new" ]
    is 0 "$cairn" replay "$dir-short" --train --run "$BATS_TEST_TMPDIR/short" --quiet --only step=1,3-4 train.on_policy=correct train.correction=tis
    # A run that is not at its end is no run with a hole.
    rm -r "$dir/step/000003"
    is 0 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/new" --quiet
    says "the rollouts from step 3 on are not there; it is trained again up to there"
    "$cairn" digest "$BATS_TEST_TMPDIR/new" | grep -q "^2 train"
    # left out deliberately, either way
    is 0 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/new2" --quiet --only step=1-2
    is 0 "$cairn" replay "$dir" --train --run "$BATS_TEST_TMPDIR/newer" --quiet run.steps=2
    is 0 "$cairn" replay "$dir" --export "$BATS_TEST_TMPDIR/out.jsonl" --only step=1-2
    [[ $output != *"left out"* ]]
}

@test "--train and --from: a back-end that is not here leaves no frozen run" {
    export CAIRN_CUDA_OBJECT=cairn-nothing.so
    is 72 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --train --run "$BATS_TEST_TMPDIR/a/b/run" --quiet kernels.backend=cuda
    says "kernels.backend: cuda" "cairn-nothing.so was not built"
    mkdir "$BATS_TEST_TMPDIR/bin"
    is 72 env PATH="$BATS_TEST_TMPDIR/bin" "$cairn" replay "$BATS_FILE_TMPDIR/whole" --train --run "$BATS_TEST_TMPDIR/a/b/run" --quiet train.parallel.dp=2
    says "mpirun is not in the PATH"
    recorded >"$BATS_TEST_TMPDIR/r.jsonl"
    is 72 "$cairn" replay "$micro" --from "$BATS_TEST_TMPDIR/r.jsonl" --run "$BATS_TEST_TMPDIR/a/b/run" kernels.backend=cuda
    says "kernels.backend: cuda" "cairn-nothing.so was not built"
    recorded | is 72 "$cairn" replay "$micro" --from /dev/stdin --run "$BATS_TEST_TMPDIR/a/b/run" kernels.backend=cuda
    [ ! -e "$BATS_TEST_TMPDIR/a" ]
}

@test "--from a pipe: a recorded.jsonl that lay there is neither replaced nor removed" {
    new=$BATS_TEST_TMPDIR/new
    mkdir "$new"
    recorded >"$new/recorded.jsonl" # as a call that was killed leaves it
    recorded | CAIRN_CUDA_OBJECT=cairn-nothing.so is 72 "$cairn" replay "$micro" --from /dev/stdin --run "$new" kernels.backend=cuda
    recorded | diff - "$new/recorded.jsonl"
    recorded | sed 's/pens/pears/g' | is 78 "$cairn" replay "$micro" --from /dev/stdin --run "$new" rollout.prompts=2 rollout.samples=2
    is 78 "$cairn" replay "$micro" --from <(recorded | sed 's/pens/pears/g') --run "$new" rollout.prompts=2 rollout.samples=2
    says "recorded.jsonl lies there and is not what" "remove it, or name a new run (--run)"
    recorded | diff - "$new/recorded.jsonl"
    recorded | is 0 "$cairn" replay "$micro" --from /dev/stdin --run "$new" rollout.prompts=2 rollout.samples=2
    is 0 "$cairn" verify "$new"
}

@test "usage: one action at a time, with what it needs" {
    is 64 "$cairn" replay "$BATS_FILE_TMPDIR/whole"
    is 64 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --train
    is 64 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --train --score "$micro" --run x
    is 64 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --regenerate --sample 1.5
    is 64 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --regenerate train.clip.low=0.1
    is 64 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --score "$micro" --sample 0.5
    is 64 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --regenerate --only colour=red
    is 64 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --train --run x --only eval=heldout
    is 64 "$cairn" replay "$micro" --from x --run y --only verdict=right
    is 64 "$cairn" replay "$BATS_FILE_TMPDIR/whole" --train --run "$BATS_FILE_TMPDIR/whole"
    is 69 "$cairn" replay "$BATS_TEST_TMPDIR" --train --run "$BATS_TEST_TMPDIR/x"
}
