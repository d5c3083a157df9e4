# The chain on a model of GLM-5.3-Flash's kind: the same bits whatever happens on the way; adapters; what is refused.
load lib
export micro=$root/tests/fixtures/micro-flash.yaml

setup_file() {
    micro_run "$BATS_FILE_TMPDIR/whole"
    "$cairn" digest "$BATS_FILE_TMPDIR/whole" >"$BATS_FILE_TMPDIR/digest"
}

same() { # DIR: its digest is that of the undisturbed run
    "$cairn" digest "$1" | diff "$BATS_FILE_TMPDIR/digest" -
}

@test "glm5_next: the chain runs, trainer and sampler have equal bits, all is in order" {
    [ "$(wc -l <"$BATS_FILE_TMPDIR/digest")" = 14 ]
    [ "$(grep -c '"mismatch/bitwise_equal_share":1,' "$BATS_FILE_TMPDIR/whole/log/metrics.jsonl")" = 2 ]
    is 0 "$cairn" verify "$BATS_FILE_TMPDIR/whole" --deep
}

@test "glm5_next: threads and the guard back-end change no bit" {
    micro_run "$BATS_TEST_TMPDIR/one" kernels.threads=1
    same "$BATS_TEST_TMPDIR/one"
    micro_run "$BATS_TEST_TMPDIR/guard" kernels.backend=guard run.steps=1 run.eval_every=0
    for stage in rollout score train sync; do
        grep -qF "$("$cairn" digest "$BATS_TEST_TMPDIR/guard" | grep "^1 $stage ")" "$BATS_FILE_TMPDIR/digest"
    done
}

@test "glm5_next: kill -9, again and again: same bits" {
    dir=$BATS_TEST_TMPDIR/run
    for i in 1 2 3 4; do
        setsid "$cairn" run "$micro" --run "$dir" --quiet &
        sleep "0.$i"
        kill -9 -- -$! 2>/dev/null || true
        wait $! 2>/dev/null || true
    done
    micro_run "$dir"
    same "$dir"
    is 0 "$cairn" verify "$dir"
}

@test "glm5_next: an adapter on every kind of layer trains, and comes out and in" {
    dir=$BATS_TEST_TMPDIR/run
    micro_run "$dir" run.steps=1 'model.adapter={rank: 2, targets: [all-linear], alias_gate_up: true}'
    [ "$(grep -c '"mismatch/bitwise_equal_share":1,' "$dir/log/metrics.jsonl")" = 1 ]
    is 0 "$cairn" export "$dir" --out "$BATS_TEST_TMPDIR/peft"
    is 0 "$cairn" import "$BATS_TEST_TMPDIR/peft" --base "$dir/base" --out "$BATS_TEST_TMPDIR/again"
    is 0 "$cairn" export "$BATS_TEST_TMPDIR/again" --out "$BATS_TEST_TMPDIR/peft2"
    cmp "$BATS_TEST_TMPDIR/peft/adapter_model.safetensors" "$BATS_TEST_TMPDIR/peft2/adapter_model.safetensors"
    is 0 "$cairn" export "$dir" --merged --out "$BATS_TEST_TMPDIR/merged"
    echo '{"ids": [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]}' >"$BATS_TEST_TMPDIR/ids"
    "$cairn" logprobs "$BATS_TEST_TMPDIR/merged" --tokens "$BATS_TEST_TMPDIR/ids" | sed 's/.*bits/bits/' >"$BATS_TEST_TMPDIR/train"
    "$cairn" logprobs "$BATS_TEST_TMPDIR/merged" --tokens "$BATS_TEST_TMPDIR/ids" --path decode | sed 's/.*bits/bits/' |
        cmp - "$BATS_TEST_TMPDIR/train"
}

@test "glm5_next: an image in a prompt, and pages that cut pools, are refused by name" {
    echo '{"ids": [5, 2329]}' >"$BATS_TEST_TMPDIR/ids"
    is 65 "$cairn" generate "$BATS_FILE_TMPDIR/whole" --ids "$BATS_TEST_TMPDIR/ids" --max-new 2
    says "ids:1" "2329 stands for an image"
    echo '{"prompt": "What is on <|image|>?", "answer": "1"}' >"$BATS_TEST_TMPDIR/p.jsonl"
    is 65 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/run" warm_start=null data.eval=[] data.added_in_prompt=true \
        "data.prompts=[{path: $BATS_TEST_TMPDIR/p.jsonl}]"
    says "p.jsonl:1" "stands for an image"
    is 78 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/pages" rollout.page=6
    says "rollout.page"
    is 78 "$cairn" run "$micro" --run "$BATS_TEST_TMPDIR/key" model.init.text_config.hc_multi=2
    says "model.init.text_config.hc_multi" "hc_mult"
}

@test "recipes/glm5.3-flash.yaml is a whole recipe of the published shape" {
    is 0 "$cairn" init "$root/recipes/glm5.3-flash.yaml" --print
    says "num_hidden_layers: 45" "f_a_proj"
}

@test "glm5_next in bf16: decay and mixing constants are trained, and published in fp32" {
    dir=$BATS_TEST_TMPDIR/run
    micro_run "$dir" kernels.precision=bf16 run.steps=1 run.eval_every=0
    [ "$(grep -c '"mismatch/bitwise_equal_share":1,' "$dir/log/metrics.jsonl")" = 1 ]
    for name in self_attn.A_log self_attn.dt_bias hc_ffn_base hc_attn_scale; do
        is 0 "$cairn" inspect "$dir/policy/000001" --tensor "model.language_model.layers.0.$name"
        says "dtype       f32"
        [ "$(sed -n 's/ *digest *//p' <<<"$output")" != \
            "$("$cairn" inspect "$dir/policy/000000" --tensor "model.language_model.layers.0.$name" | sed -n 's/ *digest *//p')" ]
    done
    is 0 "$cairn" inspect "$dir/policy/000001" --tensor model.language_model.layers.0.self_attn.q_proj.weight
    says "dtype       bf16"
}
