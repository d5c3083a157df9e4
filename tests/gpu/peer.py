"""The same model in transformers, answering the commands of bench_model: one a line on stdin, one JSON object a line on stdout.

    python3 tests/gpu/peer.py CONFIG.json sdpa|eager

train,B,T[,REPEATS]      forward and backward with the library's own loss, without optimiser
rollout,N,PROMPT,NEW     generate() of N prompts, cache on, sampling
ceiling                  a product of 8192^3 in bf16 and a copy of 2 GB, by torch
"""
import json, sys, time
import torch
import transformers


def median(x):
    x = sorted(x)
    return x[len(x) // 2] if len(x) % 2 else (x[len(x) // 2 - 1] + x[len(x) // 2]) / 2


VISION = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "projection_intermediate_size": 32}


def classes(fields):
    """Configuration and class; what this library has under other names, or not at all, is taken out of fields."""
    flash = fields["model_type"] == "glm5_next"
    for k in ("architectures", "model_type", "dtype", "rope_interleave", "indexer_rope_interleave", "qk_head_dim", "scoring_func",
              "topk_method"):
        fields.pop(k, None)
    if not flash:
        return transformers.GlmMoeDsaConfig(**fields), transformers.GlmMoeDsaForCausalLM
    text = {k: v for k, v in fields.pop("text_config").items() if k not in ("dtype", "head_dim", "qk_head_dim")}
    vision = dict(VISION, out_hidden_size=text["hidden_size"])
    return transformers.Glm5NextConfig(text_config=text, vision_config=vision, **fields), transformers.Glm5NextForConditionalGeneration


def build(path, attention, device="cuda"):
    config, kind = classes(json.load(open(path)))
    config._attn_implementation = attention
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = kind(config)
    torch.set_default_dtype(torch.float32)
    return model.to(device), config.get_text_config()


def train(model, config, b, t, repeats=5):
    model.train()
    ids = torch.randint(3, config.vocab_size, (b, t), device="cuda")
    took = []
    for i in range(repeats + 2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.cuda.synchronize()
        if i >= 2:
            took.append(time.perf_counter() - begin)
        model.zero_grad(set_to_none=True)
    m = median(took)
    return {"tok_s": b * t / m, "ms": 1e3 * m, "least_ms": 1e3 * min(took), "most_ms": 1e3 * max(took),
            "peak_gb": torch.cuda.max_memory_allocated() / 1e9}


def rollout(model, config, n, prompt, new):
    model.eval()
    ids = torch.randint(3, config.vocab_size, (n, prompt), device="cuda")
    with torch.no_grad():
        for tokens in (8, new):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                           do_sample=True, use_cache=True)
            torch.cuda.synchronize()
            took = time.perf_counter() - begin
    return {"tok_s": n * new / took, "ms_a_call": 1e3 * took / new}


def ceiling(model, config):
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x, y = (torch.randn(1 << 29, device="cuda") for _ in range(2))
    best = {"tflop_s": 0, "copy_gb_s": 0}
    for _ in range(6):
        for key, work, run in (("tflop_s", 2 * n ** 3 * 4 / 1e12, lambda: a @ b), ("copy_gb_s", 2 * 4 * x.numel() * 4 / 1e9, lambda: y.copy_(x))):
            torch.cuda.synchronize()
            t = time.perf_counter()
            for _ in range(4):
                run()
            torch.cuda.synchronize()
            best[key] = max(best[key], work / (time.perf_counter() - t))
    return best


def main():
    begin = time.perf_counter()
    model, config = build(sys.argv[1], sys.argv[2])
    print("# transformers %s, torch %s, attention %s, experts %s, %d parameters, there after %.1f s" % (
        transformers.__version__, torch.__version__, sys.argv[2], getattr(config, "_experts_implementation", None), sum(p.numel() for p in model.parameters()), time.perf_counter() - begin), flush=True)
    for line in sys.stdin:
        name, *numbers = line.strip().split(",")
        answer = {"what": line.strip()}
        answer.update({"train": train, "rollout": rollout, "ceiling": ceiling}[name](model, config, *map(int, numbers)))
        print(json.dumps(answer), flush=True)


main()
