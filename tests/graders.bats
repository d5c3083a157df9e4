# Graders that a recipe defines: the examples that are shipped, and a run that is scored by a program with moods.
load lib

graders=recipes/graders/graders.yaml

grade() { # grader, then one {"gold","response"} line
    printf '%s\n' "$2" | "$cairn" grade --recipe "$BATS_TEST_DIRNAME/../$graders" --grader "$1" --jsonl /dev/stdin 2>"$BATS_TEST_TMPDIR/err"
}

# A program that reads and writes by the rules, in sed: right is what holds the gold answer; "slow" in its own name makes it sleep.
program() {
    cat >"$BATS_TEST_TMPDIR/$1" <<'P'
#!/bin/sh
while IFS= read -r line; do
    case $0 in *slow*) sleep 60 ;; esac
    printf '%s\n' "$line" | sed 's/^{"id":\([0-9]*\),"gold":"\([^"]*\)","response":"\(.*\)"}$/\1 \2 \3/' | {
        read -r id gold rest
        case $rest in *"$gold"*) score=1 ;; *) score=0.25 ;; esac
        printf '{"id":%s,"score":%s}\n' "$id" "$score"
    }
done
P
    chmod +x "$BATS_TEST_TMPDIR/$1"
}

recipe() { # program, time
    cat >"$BATS_TEST_TMPDIR/recipe.yaml" <<R
inherit: $BATS_TEST_DIRNAME/fixtures/micro.yaml
run: {steps: 1, eval_every: 0}
warm_start: null
score: {grader: mine, graders: {mine: {kind: command, program: $1, time: $2, retries: 0}}}
rollout: {prompts: 2, samples: 2}
train: {updates_per_step: 1}
R
}

@test "the shipped examples of graders do what they say" {
    is 0 grade last_line '{"gold":"42","response":"#### 7\n#### 42"}'
    says '"match":true'
    is 0 grade whole '{"gold":"Yes","response":" yes\n"}'
    says '"match":true'
    ${CC:-cc} -shared -fPIC -iquote "$BATS_TEST_DIRNAME/../runtime/grade" "$BATS_TEST_DIRNAME/../recipes/graders/words.c" -o "$BATS_TEST_TMPDIR/words.so"
    sed "s|words.so}|$BATS_TEST_TMPDIR/words.so}|" "$BATS_TEST_DIRNAME/../$graders" >"$BATS_TEST_TMPDIR/graders.yaml"
    is 0 "$cairn" grade --recipe "$BATS_TEST_TMPDIR/graders.yaml" --grader words --jsonl /dev/stdin <<<'{"gold":"red green","response":"a green one"}'
    says '"score":0.5'
    says '1 of 2 words'
    command -v python3 >/dev/null || skip "no python3 here for the example code.py"
    is 0 grade code '{"gold":"assert f(3) == 9","response":"So:\n```python\ndef f(x):\n    return x * x\n```"}'
    says '"match":true'
    is 0 grade code '{"gold":"assert f(3) == 9","response":"```\nimport os\nos._exit(3)\n```"}'
    says '"status":"crashed"'
    says 'ended with code 3'
}

@test "a recipe's own graders are checked before anything begins" {
    program moody
    recipe "$BATS_TEST_TMPDIR/moody" 10
    for wrong in "score.graders.mine.kind=poem" "score.graders.mine.kind=regex" "score.graders.mine.program=$BATS_TEST_TMPDIR/nobody" "score.grader=yours" \
        "score.graders.mine.tme=3"; do
        is 78 "$cairn" init "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/r" "$wrong"
    done
    [ ! -e "$BATS_TEST_TMPDIR/r/recipe.yaml" ]
    chmod -x "$BATS_TEST_TMPDIR/moody"
    is 78 "$cairn" init "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/r"
    says "cannot be executed"
}

@test "a run is scored by a program; its values are rewards; a changed program is refused, and one that comes in later" {
    program moody
    recipe "$BATS_TEST_TMPDIR/moody" 20
    is 0 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/r"
    is 0 "$cairn" inspect "$BATS_TEST_TMPDIR/r/step/000001/rollout" --rollout 0
    says "reward 0.25"
    is 0 "$cairn" digest "$BATS_TEST_TMPDIR/r"
    ! grep -q nondeterministic <<<"$output" || false
    echo "# moods" >>"$BATS_TEST_TMPDIR/moody"
    is 78 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/r" run.steps=2
    says "score.graders.mine.program" "is not the file that the run"
    program moody
    program other
    cd "$BATS_TEST_TMPDIR"
    # which programs there are is frozen, how they are used is not; a relative path would be read from the run's folder
    for set in score.graders.mine.program="$PWD/other" "score.graders={two: {kind: command, program: $PWD/other}}"; do
        is 78 "$cairn" amend r "$set" --from-step 2
        says "program: $PWD/other: cannot change from step 2 on: which programs there are was frozen with their digests"
    done
    is 78 "$cairn" amend r score.graders.mine.program=moody --from-step 2
    says "program: $PWD/r/moody: cannot change"
    is 78 "$cairn" amend r score.grader=yours --from-step 2
    says 'score.grader' '"yours"'
    [ ! -e r/recipe.amend-0001.json ]
    cp -r r moved
    is 0 "$cairn" amend r score.graders.mine.program="$PWD/moody" score.graders.mine.time=3 --from-step 2
    is 0 "$cairn" run r/recipe.yaml --run r --quiet run.steps=2
    [ -e r/step/000002/score/MANIFEST.json ]
    # what runs is the file whose digest was recorded, whatever became of the path in the run's recipe
    mkdir other.d
    printf '#!/bin/sh\nexit 3\n' >other.d/moody
    chmod +x other.d/moody
    sed -i "s|program: .*/moody|program: $PWD/other.d/moody|; s/steps: 1/steps: 2/" moved/recipe.yaml
    grep -q other.d moved/recipe.yaml
    is 0 "$build/bin/cairn-rollout" moved --step 2 --quiet
    is 0 "$build/bin/cairn-score" moved --step 2 --quiet
    [[ $output != *"no verdict"* ]]
}

@test "rows of one prompt file name graders of their own; one that nobody knows is refused by line" {
    program moody
    recipe "$BATS_TEST_TMPDIR/moody" 20
    cat >"$BATS_TEST_TMPDIR/rows.jsonl" <<R
{"prompt": "1 + 1 =", "answer": "2", "grader": "math"}
{"prompt": "2 + 1 =", "answer": "3"}
{"prompt": "3 + 1 =", "answer": "4", "grader": "exact"}
R
    is 0 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/r" "data.prompts=[{path: $BATS_TEST_TMPDIR/rows.jsonl}]" \
        data.shuffle=false rollout.prompts=3 data.eval=[]
    # the program gives 0.25 to what is wrong, the others 0
    is 0 "$cairn" inspect "$BATS_TEST_TMPDIR/r/step/000001/rollout" --rollout 2
    says "reward 0.25"
    is 0 "$cairn" inspect "$BATS_TEST_TMPDIR/r/step/000001/rollout" --rollout 0
    says "reward 0,"
    # eval knows them all, of a run and of a policy in it
    is 0 "$cairn" eval "$BATS_TEST_TMPDIR/r" --set "$BATS_TEST_TMPDIR/rows.jsonl"
    is 0 "$cairn" eval "$BATS_TEST_TMPDIR/r/policy/000001" --set "$BATS_TEST_TMPDIR/rows.jsonl"
    is 0 "$cairn" eval "$BATS_TEST_TMPDIR/r/policy/000001" --set "$BATS_TEST_TMPDIR/rows.jsonl" --grader mine
    sed -i '3s/exact/exakt/' "$BATS_TEST_TMPDIR/rows.jsonl"
    is 65 "$cairn" eval "$BATS_TEST_TMPDIR/r" --set "$BATS_TEST_TMPDIR/rows.jsonl"
    [[ $output == *"rows.jsonl:3: no grader is named \"exakt\""* && $output != *"mean@k"* ]]
    is 0 "$cairn" eval "$BATS_TEST_TMPDIR/r" --set "$BATS_TEST_TMPDIR/rows.jsonl" --grader math
    is 65 "$cairn" init "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/r2" "data.prompts=[{path: $BATS_TEST_TMPDIR/rows.jsonl}]" data.eval=[]
    says "rows.jsonl:3" 'no grader is named "exakt"'
}

@test "a grader that crashes is told with its exit status or signal and the last line that it complained" {
    cat >"$BATS_TEST_TMPDIR/sick" <<'P'
#!/bin/sh
read -r line
printf 'loading\nno model at \033[31m/data/judge\033[0m\n' >&2
exit 3
P
    printf '#!/bin/sh\nread -r line\nkill -SEGV $$\n' >"$BATS_TEST_TMPDIR/dying"
    chmod +x "$BATS_TEST_TMPDIR/sick" "$BATS_TEST_TMPDIR/dying"
    recipe "$BATS_TEST_TMPDIR/sick" 20
    is 0 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/r"
    why='the program ended with code 3: no model at ?[31m/data/judge?[0m'
    says "4 rollouts have no verdict because their grader crashed or took too long (rollout 0: $why)"
    is 0 "$cairn" inspect "$BATS_TEST_TMPDIR/r/step/000001/score"
    says "grader_failure" "$why"
    is 0 "$cairn" inspect "$BATS_TEST_TMPDIR/r/step/000001/rollout" --rollout 0
    says "wrong (crashed)" "its grader: $why"
    is 0 "$cairn" inspect "$BATS_TEST_TMPDIR/r/step/000001/rollout" --rollout 1 # only the first one's is on the record
    says "wrong (crashed)" "the first that a grader failed at is rollout 0: $why"
    # the same bits whichever way it was graded: info is no part of them
    is 0 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/tasks" score.tasks=2
    says "$why"
    [ "$("$cairn" digest "$BATS_TEST_TMPDIR/r")" = "$("$cairn" digest "$BATS_TEST_TMPDIR/tasks")" ]
    # where it decides which groups there are
    is 65 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/d" 'rollout.dynamic={max_rounds: 1}'
    says "grader mine has no verdict on a response to prompt " "nothing to learn from (8 groups hang on a grader that failed: $why)"
    recipe "$BATS_TEST_TMPDIR/dying" 20
    is 0 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/s"
    says "(rollout 0: the program died of signal 11 (Segmentation fault)): this step"
}

@test "a grader whose replies are no verdicts is told with how the first one begins" {
    printf '#!/bin/sh\nwhile read -r line; do printf '"'"'loading \\033[31mthe judge of all answers, which takes its time and more\\n'"'"'; done\n' \
        >"$BATS_TEST_TMPDIR/rubbish"
    printf '#!/bin/sh\nwhile read -r line; do echo "{\\"id\\":0,\\"match\\":true}"; done\n' >"$BATS_TEST_TMPDIR/astray"
    printf '#!/bin/sh\nwhile read -r line; do printf "yes\\nno\\n"; done\n' >"$BATS_TEST_TMPDIR/two"
    chmod +x "$BATS_TEST_TMPDIR/rubbish" "$BATS_TEST_TMPDIR/astray" "$BATS_TEST_TMPDIR/two"
    recipe "$BATS_TEST_TMPDIR/rubbish" 20
    is 0 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/r"
    why='the program'"'"'s reply "loading ?[31mthe judge of all answers, which tak..." is no JSON object: '
    says "4 rollouts count as wrong because what their grader replied is no verdict (rollout 0: $why"
    is 0 "$cairn" inspect "$BATS_TEST_TMPDIR/r/step/000001/score"
    says "grader_invalid"
    is 0 "$cairn" inspect "$BATS_TEST_TMPDIR/r/step/000001/rollout" --rollout 0
    says "wrong (invalid)" "its grader: $why"
    is 0 "$cairn" inspect "$BATS_TEST_TMPDIR/r/step/000001/rollout" --rollout 0 --json
    says '"grader_failed":{"rollout":0,"why":"the program'
    is 0 "$cairn" digest "$BATS_TEST_TMPDIR/r"
    [[ $output != *nondeterministic* ]] # it says the same the next time
    is 0 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/tasks" score.tasks=2
    says "$why"
    [ "$("$cairn" digest "$BATS_TEST_TMPDIR/r")" = "$("$cairn" digest "$BATS_TEST_TMPDIR/tasks")" ]
    # where it decides which groups there are
    is 65 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/d" 'rollout.dynamic={max_rounds: 1}'
    says "grader mine has no verdict on a response to prompt " "nothing to learn from (8 groups hang on a grader that failed: $why"
    recipe "$BATS_TEST_TMPDIR/astray" 20
    is 0 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/s"
    says '(rollout 0: the program'"'"'s reply "{"id":0,"match":true}" is not for id '
    recipe "$BATS_TEST_TMPDIR/two" 20
    is 0 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/t"
    says '(rollout 0: the program'"'"'s reply "yes" is not one line for one response)'
}

@test "what a time-out decided is on the record, and the run goes on" {
    program slow
    recipe "$BATS_TEST_TMPDIR/slow" 0.2
    is 0 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/r"
    says "because their grader crashed or took too long"
    is 0 "$cairn" digest "$BATS_TEST_TMPDIR/r"
    grep -q "^1 score [0-9a-f]* nondeterministic$" <<<"$output"
    grep -q '"grades/timeout":4' "$BATS_TEST_TMPDIR"/r/log/*.jsonl
    ! pgrep -f "$BATS_TEST_TMPDIR/slow" || false
}

@test "a time-out that decides which groups are kept is told, counted and on the record" {
    # Each second response is never graded, the others are all right: every group hangs on that.
    cat >"$BATS_TEST_TMPDIR/drowsy" <<'P'
#!/bin/sh
n=0
while IFS= read -r line; do
    id=${line#*:}
    n=$((n + 1))
    [ $n = 2 ] && sleep 60
    printf '{"id":%s,"match":true}\n' "${id%%,*}"
done
P
    chmod +x "$BATS_TEST_TMPDIR/drowsy"
    recipe "$BATS_TEST_TMPDIR/drowsy" 0.5
    is 0 "$cairn" run "$BATS_TEST_TMPDIR/recipe.yaml" --run "$BATS_TEST_TMPDIR/r" 'rollout.dynamic={max_rounds: 3}'
    says "responses count as wrong because their grader crashed or took too long: which groups step 1 keeps may come out otherwise"
    is 0 "$cairn" digest "$BATS_TEST_TMPDIR/r"
    grep -q "^1 rollout [0-9a-f]* nondeterministic$" <<<"$output"
    is 0 "$cairn" inspect "$BATS_TEST_TMPDIR/r/step/000001/rollout" --json
    says '"undecided":2' '"timeout":2'
    is 0 "$cairn" inspect "$BATS_TEST_TMPDIR/r/step/000001/rollout" --rollout 1
    says "when it was chosen: wrong, no verdict (timeout)"
}

@test "where nobody may make namespaces a grader runs all the same, with a warning" {
    unshare -Ur true 2>/dev/null || skip "no user namespaces here, so it is the other tests that show this"
    run unshare -Ur sh -c 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"' sh "$build/tests/foreign_test"
    [ "$status" = 0 ] || { echo "$output"; return 1; }
    says "WARNING: grader unruly: namespaces cannot be had here"
}
