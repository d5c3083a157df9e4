"""The usual way of handing an adapter over, for comparison: safetensors in /dev/shm, saved from one GPU and loaded onto another.

usage: safetensors_route.py GPU_FROM GPU_TO [DIVIDE]; prints one JSON line. 18,040 bf16 matrices, A (32, 2048) and B (1428, 32) in turn.
"""
import json, os, sys, time
import torch
from safetensors.torch import load_file, save_file

src, dst, divide = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1
dev = lambda i: "cpu" if i < 0 else f"cuda:{i}"
path = "/dev/shm/handover-route.safetensors"
shape = [(32, 2048 // divide), (1428 // divide, 32)]
w = {f"model.layers.{i // 392}.mlp.experts.{i % 392 // 2}.gate_proj.lora_{'AB'[i % 2]}.weight":
     torch.randn(shape[i % 2], device=dev(src), dtype=torch.bfloat16) for i in range(18040)}
sync = lambda: [torch.cuda.synchronize(i) for i in (src, dst) if i >= 0]
times = []
try:
    for _ in range(3):
        sync()
        a = time.monotonic()
        save_file(w, path)
        b = time.monotonic()
        x = load_file(path, device=dev(dst))
        sync()
        times.append((time.monotonic() - a, b - a))
        assert all(torch.equal(x[k].cpu(), w[k].cpu()) for k in list(w)[::997])
        del x
finally:
    os.path.exists(path) and os.unlink(path)
t, s = sorted(times)[1]
print(json.dumps({"bench": "safetensors route", "tensors": len(w), "bytes": sum(v.nbytes for v in w.values()), "ms": 1e3 * t, "save_ms": 1e3 * s,
                  "torch": torch.__version__}))
