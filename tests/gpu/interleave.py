"""Runs bench_model and its peer turn by turn on one GPU and says how they compare.

    python3 tests/gpu/interleave.py "BENCH_MODEL" CONFIG.json [PAIRS] [COMMAND ...]

Both keep their model; each command is answered by one, then by the other, PAIRS times, and a line gives the medians, the median of
the ratios of neighbours and their spread. One peer with sdpa, one with eager attention; the better one counts. Behind each figure
stands its share of what the device gives: of training the operations that the model needs over the rate of a product of 8192^3, of
rollouts the bytes of the weights that a call must read (once a call, the experts' by how many rows there are) over the rate of a
copy, both measured by the peer's torch before the first command.
"""
import json, subprocess, sys


def start(argv):
    p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return p


def ask(p, command):
    if command:
        p.stdin.write(command + "\n")
        p.stdin.flush()
    while True:
        line = p.stdout.readline()
        if not line:
            return None
        if line.startswith("{"):
            return json.loads(line)
        print(line.rstrip(), flush=True)
        if not command:
            return None


def median(x):
    x = sorted(x)
    return x[len(x) // 2] if len(x) % 2 else (x[len(x) // 2 - 1] + x[len(x) // 2]) / 2


def elements(c, rows):
    """Elements of weights: that one token multiplies with, and that a call of so many rows has to read."""
    c = c.get("text_config", c)
    d, h, layers = c["hidden_size"], c["num_attention_heads"], c["num_hidden_layers"]
    sparse = d * c["q_lora_rank"] + c["q_lora_rank"] * h * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]) \
        + d * (c["kv_lora_rank"] + c["qk_rope_head_dim"]) + h * (c["qk_nope_head_dim"] + c["v_head_dim"]) * c["kv_lora_rank"] \
        + h * c["v_head_dim"] * d
    kinds = c.get("layer_types", [""] * layers)
    attention = kinds.count("linear_attention") and kinds.count("linear_attention") * linear(c) + layers * hyper(c)
    attention += (layers - kinds.count("linear_attention")) * sparse
    expert, dense = 3 * d * c["moe_intermediate_size"], 3 * d * c["intermediate_size"]
    first = c["mlp_layer_types"].count("dense") if "mlp_layer_types" in c else c["first_k_dense_replace"]
    e, k = c["n_routed_experts"], c["num_experts_per_tok"]
    shared = c["n_shared_experts"] * expert + d * e
    used = e * (1 - (1 - k / e) ** rows)
    both = attention + first * dense + (layers - first) * shared + c["vocab_size"] * d
    return both + (layers - first) * k * expert, both + (layers - first) * used * expert


def linear(c):
    """A KDA layer: q, k, v, o, the pairs f and g, and b."""
    d, p, head = c["hidden_size"], c["linear_num_heads"] * c["linear_head_dim"], c["linear_head_dim"]
    return 4 * d * p + 2 * (d * head + head * p) + d * c["linear_num_heads"]


def hyper(c):
    """Both sites of a layer."""
    j = c["hc_mult"]
    return 2 * j * (j + 2) * j * c["hidden_size"]


def share(config, ceiling, command, tok_s):
    """Of the ceiling; None for a model whose operations are not counted here."""
    if config.get("model_type") != "glm_moe_dsa":
        return None
    name, n = command.split(",")[0], int(command.split(",")[1])
    if name == "train":
        return 6 * elements(config, n)[0] * tok_s / (ceiling["tflop_s"] * 1e12)
    return 2 * elements(config, n)[1] * tok_s / n / (ceiling["copy_gb_s"] * 1e9)


def told(x):
    return "" if x is None else " (%.3f of the ceiling)" % x


def main():
    bench, path = sys.argv[1:3]
    config = json.load(open(path))
    pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    commands = sys.argv[4:] or ["train,4,1024", "rollout,64,128,64", "rollout,1,128,64"]
    ours = start(bench.split() + [path, "-"])
    peers = {a: start([sys.executable, __file__.replace("interleave", "peer"), path, a]) for a in ("sdpa", "eager")}
    ask(ours, None)
    for name, p in list(peers.items()):
        ask(p, None)
        if p.poll() is not None:
            del peers[name]
    if not peers:
        print("no peer came up")
        return 1
    ceiling = ask(next(iter(peers.values())), "ceiling")
    print("ceilings by torch: product of 8192^3 %.1f TFLOP/s, copy %.1f GB/s" % (ceiling["tflop_s"], ceiling["copy_gb_s"]), flush=True)
    failed = 0
    for command in commands:
        speed, ratios = {"ours": []}, {}
        for _ in range(pairs):
            mine = ask(ours, command)
            if mine is None:
                print("%-20s ours failed" % command)
                return 1
            speed["ours"].append(mine["tok_s"])
            for name, p in list(peers.items()):
                theirs = ask(p, command)
                if theirs is None:
                    print("%-20s peer %s failed" % (command, name), flush=True)
                    failed = 1
                    del peers[name]
                    continue
                speed.setdefault(name, []).append(theirs["tok_s"])
                ratios.setdefault(name, []).append(mine["tok_s"] / theirs["tok_s"])
        best = max((k for k in speed if k != "ours"), key=lambda k: median(speed[k]), default=None)
        print("%-20s" % command +
              "".join("  %s %9.1f tok/s%s" % (k, median(v), told(share(config, ceiling, command, median(v)))) for k, v in speed.items()) +
              ("  ratio to %s %.2f (%.2f to %.2f)" % (best, median(ratios[best]), min(ratios[best]), max(ratios[best])) if best else ""),
              flush=True)
    for p in [ours, *peers.values()]:
        p.stdin.close()
        p.wait()
    return failed


sys.exit(main())
