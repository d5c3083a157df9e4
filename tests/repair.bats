# cairn verify --repair and cairn gc: what leaves a run, and that it is whole again afterwards with the same bits.
load lib

setup_file() {
    load lib
    micro_run "$BATS_FILE_TMPDIR/whole" run.steps=3 checkpoint.keep=2
    "$cairn" digest "$BATS_FILE_TMPDIR/whole" >"$BATS_FILE_TMPDIR/digest"
}

copy() {
    dir=$BATS_TEST_TMPDIR/run
    rm -rf "$dir"
    cp -r "$BATS_FILE_TMPDIR/whole" "$dir"
}

shard() { # ARTEFACT [DIR]: a damaged byte in the middle of its first shard
    local file
    file=$(find "${2:-$dir}/$1" -name '*.h5' | sort | head -1)
    flip "$file" $(($(wc -c <"$file") / 2))
}

whole() { # goes on and is as if nothing had been, and can go further
    is 0 "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet
    "$cairn" digest "$dir" | diff "$BATS_FILE_TMPDIR/digest" -
    is 0 "$cairn" verify --deep "$dir"
    is 0 "$cairn" verify --deep "$dir/policy/000002" # a part: its inputs stand elsewhere in the run
    is 0 "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet run.steps=4
}

# looks FILE TEXT: a watch that begins now prints TEXT.
looks() {
    local n
    n=$(wc -c <"$1")
    for _ in {1..100}; do
        sleep 0.1
        ! tail -c +$((n + 1)) "$1" | grep -qF "$2" || return 0
    done
    cat "$1"
    return 1
}

@test "a run that lies in another is its own: neither verify --repair nor digest of the outer one goes there; quarantines are no damage" {
    copy
    cp -r "$BATS_FILE_TMPDIR/whole" "$dir/inner"
    shard policy/000003 "$dir/inner"
    is 0 "$cairn" verify --deep "$dir"
    "$cairn" digest "$dir" | diff "$BATS_FILE_TMPDIR/digest" -
    is 0 "$cairn" verify --repair "$dir"
    [ ! -e "$dir/quarantine" ]
    is 65 "$cairn" verify --deep "$dir/inner"
    is 0 "$cairn" verify --repair "$dir/inner"
    [ -e "$dir/inner/quarantine/0001" ]
    is 0 "$cairn" verify --deep "$dir/inner"
    mkdir "$BATS_TEST_TMPDIR/all"
    mv "$dir/inner" "$BATS_TEST_TMPDIR/all/one"
    is 0 "$cairn" verify --deep "$BATS_TEST_TMPDIR/all" # a folder of runs
    shard policy/000001 "$BATS_TEST_TMPDIR/all/one"
    is 65 "$cairn" verify --deep "$BATS_TEST_TMPDIR/all"
    says "policy/000001"
}

@test "status --watch does not read again what it has seen whole, but sees what a repair takes away and what is made" {
    copy
    is 0 "$cairn" init "$dir/recipe.yaml" --run "$dir" run.steps=4
    : >"$BATS_TEST_TMPDIR/watch"
    "$cairn" status --watch "$dir" >>"$BATS_TEST_TMPDIR/watch" 3>&- &
    watch=$!
    looks "$BATS_TEST_TMPDIR/watch" "step/000004/rollout"
    flip "$dir/step/000003/train/MANIFEST.json" 300
    is 0 "$cairn" status "$dir"
    says "failed" "cairn verify --repair"
    looks "$BATS_TEST_TMPDIR/watch" "3 of 4 steps"
    looks "$BATS_TEST_TMPDIR/watch" "3 of 4 steps"
    [ "$(grep -c "failed" "$BATS_TEST_TMPDIR/watch")" = 0 ]
    is 0 "$cairn" verify --repair "$dir"
    looks "$BATS_TEST_TMPDIR/watch" "2 of 4 steps"
    looks "$BATS_TEST_TMPDIR/watch" "quarantine/0001"
    is 0 "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet run.steps=4
    wait "$watch"
    tail -n 20 "$BATS_TEST_TMPDIR/watch" | grep -F "4 of 4 steps"
}

@test "the newest trainer state is damaged: it and what was made from it go, and are made again" {
    copy
    shard step/000003/train
    is 65 "$cairn" verify --repair --dry-run "$dir"
    says "would be dropped: step/000003/train: damaged" "would be dropped: policy/000003: made from step/000003/train" "newest good policy is 2"
    [ ! -e "$dir/quarantine" ]
    is 0 "$cairn" verify --repair "$dir"
    says "dropped: eval/000003/heldout/score" "dropped: policy/000003" "dropped: step/000003/train: damaged" "newest good policy is 2"
    [ -e "$dir/quarantine/0001/step/000003/train/MANIFEST.json" ] && [ ! -e "$dir/policy/000003/MANIFEST.json" ]
    [ -e "$dir/step/000003/rollout/MANIFEST.json" ] && [ -e "$dir/policy/000002/MANIFEST.json" ]
    is 0 "$cairn" verify --deep "$dir"
    [ "$(ls "$dir/step/000003/train/epoch")" = 1 ] # the next attempt is the second one
    whole
    [ -e "$dir/step/000003/train/a2" ]
}

@test "what a repair that was killed has taken away already is made again, from what was kept last before it" {
    copy
    cp -r "$dir" "$dir-older"
    shard step/000003/train
    rm -r "$dir/step/000002/train" # it reads step/000001/train, which was collected: the warm start's state is there
    is 0 "$cairn" verify --repair "$dir"
    says "dropped: step/000003/train"
    [[ $output != *"step/000001/train"* ]] || { echo "$output"; return 1; }
    whole
    dir=$dir-older
    shard step/000003/train
    rm -r "$dir/step/000002/train"
    rm "$dir/step/000000/train"/a*/*.h5
    echo collected >"$dir/step/000000/train/COLLECTED"
    is 0 "$cairn" verify --repair "$dir"
    says "dropped: step/000001/train: its data were collected" "dropped: step/000003/train"
    whole
}

@test "the newest policy is damaged: it goes with its evaluation" {
    copy
    shard policy/000003
    is 0 "$cairn" verify --repair "$dir"
    says "dropped: policy/000003: damaged"
    [ -e "$dir/step/000003/train/MANIFEST.json" ]
    whole
}

@test "an old record is damaged: made again alone, nothing that is good goes; or, if asked, everything behind it" {
    copy
    shard step/000002/rollout
    is 0 "$cairn" verify --repair "$dir"
    says "dropped: step/000002/rollout" "newest good policy is 3"
    [ "$(find "$dir/quarantine" -name MANIFEST.json | wc -l)" = 1 ]
    whole
    copy
    shard step/000002/rollout
    is 0 "$cairn" verify --repair --dependents "$dir"
    says "dropped: step/000002/train: made from" "dropped: step/000003/rollout: made from"
    whole
}

@test "an old trainer state that cannot be made again: collected, the run goes on from the newer one" {
    copy
    shard step/000002/train
    is 0 "$cairn" verify --repair "$dir"
    says "collected: step/000002/train: damaged"
    [ -e "$dir/step/000002/train/COLLECTED" ] && [ -d "$dir/quarantine/0001/step/000002/train/a1" ]
    whole
}

@test "going back over what was collected: to the newest state that is there, here the warm start's" {
    copy
    shard step/000003/train
    shard step/000002/train # the last but one is needed to make the last again, and its own inputs are collected
    is 0 "$cairn" verify --repair "$dir"
    says "dropped: step/000001/train: its data were collected" "newest good policy is 0"
    whole
}

@test "manifests, the base, small files, markers" {
    copy
    flip "$dir/step/000003/score/MANIFEST.json" 200
    is 0 "$cairn" verify --repair "$dir"
    whole
    copy
    shard base
    is 0 "$cairn" verify --repair "$dir"
    says "dropped: base: damaged"
    whole
    copy
    flip "$dir/step/000003/rollout/epoch/1" 40
    flip "$(find "$dir/policy/000002/a1" -name '*.json' | head -1)" 100
    flip "$dir/step/000001/train/COLLECTED" 20
    is 0 "$cairn" verify --repair "$dir"
    says "mended: " "written anew" "taken away"
    [ -z "$(find "$dir/quarantine" -name MANIFEST.json)" ]
    whole
}

@test "what repair cannot mend is told, and nothing else is touched" {
    copy
    flip "$dir/step/000001/train/MANIFEST.json" 100 # its data are collected
    is 65 "$cairn" verify --repair "$dir"
    says "left: " "were collected"
    [ ! -e "$dir/quarantine" ]
    copy
    flip "$dir/files/data.prompts.0" 5
    is 65 "$cairn" verify --repair "$dir"
    says "data.prompts.0" "could not be repaired"
    is 69 "$cairn" verify --repair "$dir/policy/000003"
    says "no run here"
}

@test "what is damaged, or missing and cannot be made, and is read by nothing that is still to be made, is told and holds nobody up" {
    copy
    is 0 "$cairn" init "$dir/recipe.yaml" --run "$dir" run.steps=4
    echo >>"$dir/policy/000001/MANIFEST.json" # step/000001/train was collected
    is 65 "$cairn" verify --repair "$dir"
    says "left: policy/000001"
    is 0 "$cairn" status "$dir"
    says "policy/000001/MANIFEST.json: damaged" "nothing that is still to be made reads it" "to go on: cairn run"
    [[ $output != *"verify --repair"* ]]
    is 0 "$cairn" run "$dir/recipe.yaml" --run "$dir" run.steps=4
    [ "$(grep -c "policy/000001/MANIFEST.json: damaged: .*; nothing that is still to be made reads it" <<<"$output")" = 1 ]
    is 0 "$cairn" status "$dir"
    says "4 of 4 steps"
    rm -r "$dir/policy/000001"
    is 0 "$cairn" status "$dir"
    says "4 of 4 steps" "is missing and what it was made from was collected; nothing that is still to be made reads it"
    [[ $output != *"to go on"* ]]
    for mode in chained resident; do
        cp -r "$dir" "$dir-$mode"
        is 0 "$cairn" run "$dir/recipe.yaml" --run "$dir-$mode" run.steps=5 run.mode=$mode
        [ "$(grep -c "policy/000001 is missing and what it was made from was collected; nothing that is still to be made reads it" <<<"$output")" = 1 ]
        [ -e "$dir-$mode/policy/000005/MANIFEST.json" ] && [ ! -e "$dir-$mode/policy/000001/MANIFEST.json" ]
    done
    diff <("$cairn" digest "$dir-chained") <("$cairn" digest "$dir-resident")
}

@test "what can be made again is made again, and what is needed but damaged or gone stops the run with the way out" {
    copy
    rm "$dir/step/000002/rollout/MANIFEST.json"
    is 0 "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet
    "$cairn" digest "$dir" | diff "$BATS_FILE_TMPDIR/digest" -
    dir=$BATS_TEST_TMPDIR/lag
    micro_run "$dir" run.steps=3 run.lag=1 'train.correction={kind: tis, cap: 2.0}' checkpoint.keep=1
    cp -r "$dir" "$dir-bad"
    rm -r "$dir/policy/000002" # step 4 will sample from it, and step/000002/train was collected
    is 0 "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet
    is 69 "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet run.steps=4
    says "step/000002/train: step 2 (trainer) was collected" "before it is run again: cairn verify --deep --repair $dir"
    is 0 "$cairn" status "$dir"
    says "to go on: cairn verify --deep --repair $dir"
    is 0 "$cairn" verify --deep --repair "$dir"
    is 0 "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet run.steps=4
    echo >>"$dir-bad/policy/000002/MANIFEST.json"
    is 0 "$cairn" run "$dir-bad/recipe.yaml" --run "$dir-bad" --quiet
    is 65 "$cairn" run "$dir-bad/recipe.yaml" --run "$dir-bad" --quiet run.steps=4
    says "policy/000002/MANIFEST.json: damaged" "cairn verify --repair $dir-bad takes it out"
    is 0 "$cairn" verify --repair "$dir-bad"
    is 0 "$cairn" run "$dir-bad/recipe.yaml" --run "$dir-bad" --quiet run.steps=4
    diff <("$cairn" digest "$dir") <("$cairn" digest "$dir-bad")
}

@test "an artefact that is merely missing: verify says what makes it again, and repair takes nothing away for its sake" {
    copy
    rm "$dir/step/000002/rollout/MANIFEST.json"
    is 65 "$cairn" verify --deep "$dir"
    says "its input step/000002/rollout is not there" "3 bad; cairn run $dir makes again what is missing"
    [[ $output != *"--repair"* ]] || { echo "$output"; return 1; }
    is 0 "$cairn" verify --deep --repair "$dir"
    says "missing: step/000002/rollout: is not there; cairn run makes it again" "to go on: cairn run $dir"
    [ ! -e "$dir/quarantine" ]
    shard policy/000003 # a repair of something else leaves what hangs on it alone, too
    is 65 "$cairn" verify --deep "$dir"
    says "4 bad; to fall back to what is good: cairn verify --deep --repair $dir"
    is 0 "$cairn" verify --deep --repair "$dir"
    says "dropped: policy/000003: damaged" "missing: step/000002/rollout"
    [ -e "$dir/step/000003/train/MANIFEST.json" ] && [ -e "$dir/step/000002/score/MANIFEST.json" ]
    whole
    copy
    rm -r "$dir/policy/000001" # cannot be made again: step/000001/train was collected
    is 65 "$cairn" verify --deep "$dir"
    says "its input policy/000001 is not there" "--repair would leave it: " "--dependents goes back far enough"
    is 65 "$cairn" verify --deep --repair "$dir"
    says "left: step/000002/train: one of its inputs is not there"
    [ ! -e "$dir/quarantine" ]
    is 0 "$cairn" verify --deep --repair --dependents "$dir"
    says "dropped: step/000002/train: " "newest good policy is 0"
    whole
}

@test "a base that is missing: the run makes its own again; one from elsewhere is put back; nothing else goes" {
    copy
    rm -r "$dir/base"
    is 65 "$cairn" verify --deep "$dir"
    says "its input base is not there" "cairn run $dir makes again what is missing"
    is 0 "$cairn" verify --deep --repair "$dir"
    says "missing: base: is not there; cairn run makes it again"
    [ ! -e "$dir/quarantine" ]
    whole
    dir=$BATS_TEST_TMPDIR/given
    cp -r "$BATS_FILE_TMPDIR/whole/base" "$BATS_TEST_TMPDIR/imported"
    micro_run "$dir" model.init=null model.from="$BATS_TEST_TMPDIR/imported" run.steps=2
    mv "$BATS_TEST_TMPDIR/imported" "$BATS_TEST_TMPDIR/away"
    is 65 "$cairn" verify --deep "$dir"
    says "leads to $BATS_TEST_TMPDIR/imported, which is not there" "first put back what the run was given"
    [[ $output != *"--repair"* ]] || { echo "$output"; return 1; }
    "$cairn" verify --deep --repair "$dir" || true
    [ ! -e "$dir/quarantine" ]
    mv "$BATS_TEST_TMPDIR/away" "$BATS_TEST_TMPDIR/imported"
    is 0 "$cairn" verify --deep "$dir"
}

@test "many generations that are missing are looked at once each" {
    dir=$BATS_TEST_TMPDIR/long
    is 0 "$cairn" run tests/faults/micro.yaml --run "$dir" --quiet run.steps=14 run.eval_every=0 checkpoint.keep=20 checkpoint.keep_policies=all
    for s in 0{1..9} 1{0..2}; do rm -r "$dir/step/0000$s" "$dir/policy/0000$s"; done
    is 65 timeout 60 "$cairn" verify --deep "$dir"
    says "cairn run $dir makes again what is missing"
    is 0 timeout 60 "$cairn" verify --deep --repair "$dir"
    [ ! -e "$dir/quarantine" ]
}

@test "missing behind something damaged that nobody can make again: passed by, too; an evaluation costs no training" {
    dir=$BATS_TEST_TMPDIR/run
    is 0 "$cairn" run tests/faults/micro.yaml --run "$dir" --quiet run.steps=4
    cp -r "$dir" "$dir-2"
    rm -r "$dir/eval/000002/held/score"
    shard eval/000002/held/rollout
    is 65 "$cairn" run "$dir" --quiet
    says "before it is run again: cairn verify --repair $dir"
    is 0 "$cairn" verify --repair "$dir"
    says "collected: eval/000002/held/rollout: damaged"
    [[ $output != *"dropped"* ]] || { echo "$output"; return 1; }
    is 0 "$cairn" run "$dir" --quiet
    dir=$dir-2
    echo >>"$dir/step/000002/rollout/MANIFEST.json"
    rm -r "$dir/step/000002/score"
    is 0 "$cairn" run "$dir" --quiet
    is 65 "$cairn" verify --repair "$dir"
    says "left: step/000002/rollout" "nothing that is still to be made reads it"
    [[ $output != *"dropped"* ]] || { echo "$output"; return 1; }
}

@test "nothing is bad, and what is needed next was collected: the run says it, repair falls back, the run goes on with the same bits" {
    dir=$BATS_TEST_TMPDIR/run
    is 0 "$cairn" run tests/faults/micro.yaml --run "$dir" --quiet run.steps=3
    cp -r "$dir" "$dir-as-it-was"
    is 0 "$cairn" run "$dir-as-it-was" --quiet run.steps=4
    is 0 "$cairn" init "$dir/recipe.yaml" --run "$dir" run.steps=4
    rm -r "$dir/step/000003/train" "$dir/policy/000003" "$dir/eval/000003" # step/000002/train was collected
    is 69 "$cairn" run "$dir" --quiet
    says "before it is run again: cairn verify --deep --repair $dir"
    is 0 "$cairn" verify --deep "$dir"
    is 0 "$cairn" verify --deep --repair "$dir"
    says "the run begins anew"
    is 0 "$cairn" run "$dir" --quiet
    diff <("$cairn" digest "$dir-as-it-was" | grep -v '^3 eval') <("$cairn" digest "$dir")
}

@test "what is as it should be stays, whatever a run is kept as" {
    stays() { # DIR [also LEFT...]: verify says nothing of it, repair moves nothing
        is 0 "$cairn" verify --deep "$1"
        is 0 "$cairn" verify --deep --repair "$1"
        is 0 "$cairn" verify --repair --dependents "$1"
        [ ! -e "$1/quarantine" ]
    }
    # States that were only told, the last one saved a while ago: a resident run that was stopped.
    dir=$BATS_TEST_TMPDIR/told
    is 0 "$cairn" run tests/faults/micro.yaml --run "$dir" --quiet run.steps=7 run.mode=resident run.eval_every=4 checkpoint.every=20 \
        checkpoint.keep=3 checkpoint.keep_policies=all
    is 0 "$cairn" init "$dir/recipe.yaml" --run "$dir" run.steps=12
    rm -r "$dir/step/000007/train" "$dir/policy/000007" # the end of a run is saved
    is 65 "$cairn" verify --deep "$dir"
    says "its input policy/000007 is not there" "cairn run $dir makes again what is missing"
    rm -r "$dir/eval/000007"
    cp -r "$dir" "$dir-hole"
    cp -r "$dir" "$dir-damaged"
    stays "$dir"
    is 0 "$cairn" run "$dir" --quiet
    "$cairn" digest "$dir" >"$dir.digest"
    # What training again from there needs is not passed by. Damage elsewhere does not take it away.
    shard eval/000004/held/score "$dir-damaged"
    is 0 "$cairn" verify --repair "$dir-damaged"
    [ "$(printf '%s\n' "$output" | grep -c '^dropped')" = 1 ] || { echo "$output"; return 1; }
    is 0 "$cairn" run "$dir-damaged" --quiet
    "$cairn" digest "$dir-damaged" | diff "$dir.digest" -
    rm -r "$dir-hole/step/000003/rollout"
    is 0 "$cairn" run "$dir-hole" --quiet
    "$cairn" digest "$dir-hole" | diff "$dir.digest" -
    # A gate whose policy was collected; a record that only its marker is left of; steps lowered, with an evaluation behind which policies are.
    dir=$BATS_TEST_TMPDIR/gate
    is 0 "$cairn" run tests/faults/micro.yaml --run "$dir" --quiet run.steps=4 run.eval_every=0 warm_start=null run.check=first
    rm -r "$dir/check"
    stays "$dir"
    is 0 "$cairn" run "$dir" --quiet run.steps=5
    dir=$BATS_TEST_TMPDIR/whole
    is 0 "$cairn" run tests/faults/micro.yaml --run "$dir" --quiet run.steps=4
    is 0 "$cairn" run "$dir" --quiet run.steps=1
    stays "$dir"
    is 0 "$cairn" run "$dir" --quiet run.steps=4
    rm "$dir/step/000002/train/MANIFEST.json"
    is 65 "$cairn" verify --repair "$dir"
    [[ $output != *"dropped"* ]] || { echo "$output"; return 1; }
    is 0 "$cairn" run "$dir" --quiet
}

@test "damage behind the run's last step, and of an evaluation that is no link any more, costs nothing before it" {
    dir=$BATS_TEST_TMPDIR/run
    is 0 "$cairn" run tests/faults/micro.yaml --run "$dir" --quiet run.steps=4 checkpoint.keep_policies=all
    cp -r "$dir" "$dir-longer"
    is 0 "$cairn" run "$dir" --quiet run.steps=3
    shard step/000004/rollout
    is 0 "$cairn" verify --repair "$dir"
    [[ $output != *"step/000003"* && $output != *"step/000002"* ]] || { echo "$output"; return 1; }
    is 0 "$cairn" run "$dir" --quiet
    is 0 "$cairn" verify --deep "$dir"
    dir=$dir-longer
    is 0 "$cairn" run "$dir" --quiet run.steps=5 # of every second step: that of step 3 was its last one's once
    is 0 "$cairn" run "$dir" --quiet run.steps=3
    is 0 "$cairn" run "$dir" --quiet run.steps=5
    shard eval/000003/held/rollout
    is 0 "$cairn" verify --repair "$dir"
    says "collected: eval/000003/held/rollout: damaged"
    is 0 "$cairn" run "$dir" --quiet
    is 0 "$cairn" verify --deep "$dir"
}

@test "of a run that replays another one's rollouts they are copied again" {
    dir=$BATS_TEST_TMPDIR/new
    is 0 "$cairn" run tests/faults/micro.yaml --run "$dir-old" --quiet run.steps=3 run.eval_every=0 checkpoint.keep_policies=all
    is 0 "$cairn" replay "$dir-old" --train --run "$dir" --quiet checkpoint.keep_policies=1
    "$cairn" digest "$dir" >"$dir.digest"
    rm -r "$dir/step/000002/rollout"
    is 65 "$cairn" verify --deep "$dir"
    says "cairn replay OLD --train --run $dir makes again what is missing"
    is 0 "$cairn" verify --deep --repair "$dir"
    says "missing: step/000002/rollout: is not there; cairn replay OLD --train makes it again" "to go on: cairn replay OLD --train --run $dir"
    [ ! -e "$dir/quarantine" ]
    is 0 "$cairn" replay "$dir-old" --train --run "$dir" --quiet checkpoint.keep_policies=1
    shard step/000003/rollout
    is 0 "$cairn" verify --repair "$dir"
    [ "$(printf '%s\n' "$output" | grep -c '^dropped')" = 1 ] || { echo "$output"; return 1; }
    is 0 "$cairn" replay "$dir-old" --train --run "$dir" --quiet checkpoint.keep_policies=1
    "$cairn" digest "$dir" | diff "$dir.digest" -
}

@test "what lies behind the run's last step is left alone" {
    copy
    is 0 "$cairn" init "$dir/recipe.yaml" --run "$dir" run.steps=1
    rm -r "$dir/policy/000002"
    is 65 "$cairn" verify --deep "$dir"
    says "--repair would leave it: " "the run ends before it (run.steps)"
    is 65 "$cairn" verify --deep --repair "$dir"
    says "left: step/000003/rollout"
    [ ! -e "$dir/quarantine" ]
}

@test "a damaged record of the gate is made again alone" {
    dir=$BATS_TEST_TMPDIR/run
    is 0 "$cairn" run tests/faults/micro.yaml --run "$dir" --quiet run.steps=4 run.eval_every=0 warm_start=null run.check=first
    "$cairn" digest "$dir" >"$dir.digest"
    echo >>"$dir/check/MANIFEST.json"
    is 65 "$cairn" run "$dir" --quiet
    says "cairn verify --repair $dir takes it out"
    is 0 "$cairn" verify --repair "$dir"
    says "dropped: check: damaged"
    is 0 "$cairn" run "$dir" --quiet
    "$cairn" digest "$dir" | diff "$dir.digest" -
}

@test "killed while it repairs: the same call goes on" {
    copy
    shard step/000003/train
    for t in 0.005 0.01 0.015 0.02 0.025 0.03 0.035 0.04; do
        timeout -s KILL "$t" "$cairn" verify --repair "$dir" >/dev/null 2>&1 || true
    done
    is 0 "$cairn" verify --repair "$dir"
    whole
}

@test "nobody may be at work" {
    copy
    exec 9>>"$dir/.lock"
    flock 9
    is 75 "$cairn" verify --repair "$dir"
    says "somebody else is at work"
    is 75 "$cairn" gc "$dir"
    is 75 "$cairn" amend "$dir" train.learning_rate=0.02 --from-step 4
    is 0 "$cairn" verify "$dir"
    exec 9>&-
    is 0 "$cairn" gc "$dir"
}

# ---- gc

@test "gc applies the retention of the recipe as it is now" {
    copy
    is 0 "$cairn" gc "$dir"
    says "freed 0.0 MB in 0 places"
    is 0 "$cairn" init "$dir/recipe.yaml" --run "$dir" checkpoint.keep=1 checkpoint.keep_policies=2
    is 0 "$cairn" gc "$dir" --dry-run
    says "would free a trainer state: step/000002/train" "would free a policy: policy/000001"
    [ ! -e "$dir/step/000002/train/COLLECTED" ]
    is 0 "$cairn" gc "$dir" --json
    says '"what":"a trainer state"' '"path":"step/000002/train"'
    [ -e "$dir/step/000002/train/COLLECTED" ] && [ ! -e "$dir/step/000003/train/COLLECTED" ] && [ ! -e "$dir/policy/000002/COLLECTED" ]
    whole
}

@test "gc removes what dead attempts left, and keeps what the next one adopts" {
    copy
    a=$dir/step/000003/score
    mkdir -p "$BATS_TEST_TMPDIR/was" && cp -r "$a/." "$BATS_TEST_TMPDIR/was"
    mv "$a/MANIFEST.json" "$a/.MANIFEST.1" # as if killed before the publication; its holder is long dead
    rm "$dir"/policy/000003/MANIFEST.json "$dir"/step/000003/train/MANIFEST.json
    for f in "$dir"/step/000003/train/a1/*.json; do rm "$f" && break; done # one shard was never finished
    is 0 "$cairn" gc "$dir"
    says "leftovers of dead attempts: step/000003/score" "leftovers of dead attempts: step/000003/train" "the next attempt adopts"
    [ ! -e "$a/.MANIFEST.1" ]
    [ "$(ls "$a"/a1/*.h5)" ] && [ "$(ls "$dir"/step/000003/train/a1/*.h5 | wc -l)" -ge 1 ]
    whole
    # attempts of somebody of whom nothing is known stay
    copy
    a=$dir/step/000003/score
    rm "$a/MANIFEST.json" && rm -r "$a/epoch"
    is 0 "$cairn" gc "$dir"
    [ -d "$a/a1" ]
}

@test "gc removes quarantine when it is old enough" {
    copy
    shard policy/000003
    "$cairn" verify --repair "$dir" >/dev/null
    is 0 "$cairn" gc "$dir"
    [ -d "$dir/quarantine/0001" ]
    is 0 "$cairn" gc "$dir" --older-than 0
    says "freed quarantine: quarantine/0001"
    [ ! -e "$dir/quarantine/0001" ]
    whole
}

@test "gc removes shared memory of processes that are gone, and no other" {
    [ -w /dev/shm ] || skip "no /dev/shm"
    copy
    ns=$(readlink /proc/self/ns/pid | tr -dc 0-9)
    sleep 60 &
    alive=$!
    started=$(awk '{print $22}' "/proc/$alive/stat")
    dead="cairn-$ns-$alive-$((started - 1))-test$$" living="cairn-$ns-$alive-$started-test$$"
    other="cairn-1-$alive-$((started - 1))-test$$" plain="cairn-test$$"
    for f in "$dead" "$living" "$other" "$plain"; do echo x >"/dev/shm/$f"; done
    is 0 "$cairn" gc "$dir" --dry-run
    says "/dev/shm/$dead"
    is 0 "$cairn" gc "$dir"
    there=$(cd /dev/shm && ls -d "cairn-"*"test$$")
    for f in "$living" "$other" "$plain"; do rm "/dev/shm/$f"; done
    kill "$alive"
    [ "$there" = "$(printf '%s\n' "$living" "$other" "$plain" | sort)" ]
}
