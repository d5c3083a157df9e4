# Evaluations: several sets and their total, and that they hold nobody up.
load lib

setup_file() {
    load lib
    sed -n 1,6p "$root/recipes/data/tiny/heldout.jsonl" >"$BATS_FILE_TMPDIR/a.jsonl"
    sed -n 7,9p "$root/recipes/data/tiny/heldout.jsonl" >"$BATS_FILE_TMPDIR/b.jsonl"
    micro_run "$BATS_FILE_TMPDIR/run" run.steps=1 run.eval_every=1 \
        "data.eval=[{name: a, path: $BATS_FILE_TMPDIR/a.jsonl, k: 4}, {name: b, path: $BATS_FILE_TMPDIR/b.jsonl, k: 2}]"
}

# figure NAME LINE: a number of a JSON object.
figure() {
    printf '%s\n' "$2" | grep -o "\"$1\":[-0-9.e+]*" | head -1 | cut -d: -f2
}

@test "several sets: each, and all together" {
    is 0 "$cairn" eval "$BATS_FILE_TMPDIR/run" --set "$BATS_FILE_TMPDIR/a.jsonl" --set "$BATS_FILE_TMPDIR/b.jsonl"
    says "mean@k" "a " "b " "all sets" 9
    mapfile -t out < <("$cairn" eval "$BATS_FILE_TMPDIR/run" --set "$BATS_FILE_TMPDIR/a.jsonl" --set "$BATS_FILE_TMPDIR/b.jsonl" --json 2>/dev/null)
    [ "${#out[@]}" = 3 ]
    [ "$(figure problems "${out[0]}") $(figure responses "${out[0]}") $(figure k "${out[0]}")" = "6 24 4" ]
    [ "$(figure problems "${out[1]}") $(figure responses "${out[1]}") $(figure k "${out[1]}")" = "3 6 2" ]
    [ "$(figure problems "${out[2]}") $(figure responses "${out[2]}")" = "9 30" ]
    [ "$(figure right "${out[2]}")" = $(($(figure right "${out[0]}") + $(figure right "${out[1]}"))) ]
    # Means of the total are by problems, whatever k is.
    awk -v a="$(figure mean_at_k "${out[0]}")" -v b="$(figure mean_at_k "${out[1]}")" -v all="$(figure mean_at_k "${out[2]}")" \
        'BEGIN { d = (6 * a + 3 * b) / 9 - all; exit !(d < 1e-12 && d > -1e-12) }'
    # What the chain has written of these sets is the same.
    grep '"eval":"a"' "$BATS_FILE_TMPDIR/run/log/metrics.jsonl" | grep '"step":1' >"$BATS_TEST_TMPDIR/line"
    for name in mean_at_k pass_at/2 pass_at_k length_mean capped_share accuracy; do
        [ "$(figure "eval/a/$name" "$(cat "$BATS_TEST_TMPDIR/line")")" = "$(figure "$name" "${out[0]}")" ]
    done
    is 0 "$cairn" inspect "$BATS_FILE_TMPDIR/run"
    says "a: 6 problems, 24 answers" "b: 3 problems, 6 answers" "all sets: 9 problems, 30 answers"
}

@test "a number of samples that none can be: said with what can" {
    for k in 0 -1 1000001 two; do
        is 64 "$cairn" eval "$BATS_FILE_TMPDIR/run" --set "$BATS_FILE_TMPDIR/a.jsonl" -k "$k"
        says "cairn eval: -k $k: expected 1 to 1000000 samples"
    done
}

@test "a set can be given another name, and another name draws otherwise" {
    is 0 "$cairn" eval "$BATS_FILE_TMPDIR/run" --set "other=$BATS_FILE_TMPDIR/a.jsonl" -k 2 --json
    says '"set":"other"' '"responses":12'
    is 65 "$cairn" eval "$BATS_FILE_TMPDIR/run" --set "other=$BATS_TEST_TMPDIR/none.jsonl"
    says "none.jsonl"
}

@test "an evaluation that cannot be made holds no training up, and is made up for" {
    dir=$BATS_TEST_TMPDIR/run
    cp "$BATS_FILE_TMPDIR/a.jsonl" "$BATS_TEST_TMPDIR/set.jsonl"
    is 0 "$cairn" init "$micro" --run "$dir" "data.eval=[{name: set, path: $BATS_TEST_TMPDIR/set.jsonl}]"
    rm "$BATS_TEST_TMPDIR/set.jsonl"
    printf 'x\n' >>"$dir/files/data.eval.0"
    is 65 "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet
    says "eval/000000/set/rollout" "training goes on"
    [ -e "$dir/policy/000002/MANIFEST.json" ]
    [ ! -e "$dir/eval/000000/set/rollout/MANIFEST.json" ]
    cp "$BATS_FILE_TMPDIR/a.jsonl" "$dir/files/data.eval.0"
    is 0 "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet
    [ -e "$dir/eval/000000/set/score/MANIFEST.json" ]
    [ -e "$dir/eval/000002/set/score/MANIFEST.json" ]
    # Evaluated once: called again nothing is done.
    touch "$BATS_TEST_TMPDIR/before"
    is 0 "$cairn" run "$dir/recipe.yaml" --run "$dir" --quiet
    [ -z "$(find "$dir/eval" -name '*.h5' -newer "$BATS_TEST_TMPDIR/before")" ]
}
