#!/usr/bin/env python3
"""bf16_errors.py - our bf16 ops against torch's, by their error against the same formulas in fp64 on the same inputs.

    bf16_errors.py DIR [LIMIT]

DIR: what bf16_errors wrote. One line a result: our error (norm of the difference over norm), torch's in bf16 as published model code
computes it (on the GPU if torch sees one), the ratio. Ends with 1 where a ratio is above LIMIT (1.1)."""
import os
import sys

import numpy
import torch
import torch.nn.functional as F

here, limit = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.1
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
types = {"f32": (numpy.float32, torch.float32), "bf16": (numpy.int16, torch.bfloat16), "i32": (numpy.int32, torch.int32)}
ops = {}
for name in sorted(os.listdir(here)):
    op, tensor, kind, shape = name.split(".")
    raw = torch.from_numpy(numpy.fromfile(os.path.join(here, name), types[kind][0]))
    if kind == "bf16":
        raw = raw.view(torch.bfloat16)
    ops.setdefault(op, {})[tensor] = raw.reshape([int(d) for d in shape.split("x")]).to(device)


def rmsnorm(t, x, g):
    h = x.float() if t == torch.bfloat16 else x
    h = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-5)
    return g * h.to(t)


def layernorm(t, x, g, b):
    return F.layer_norm(x, x.shape[-1:], g, b, 1e-6)


def swiglu(t, a, u):
    return F.silu(a) * u


def rope(t, x, pos):  # the angles are fp32 in the models and here; what follows is t
    half = x.shape[-1] // 2
    inv = 1.0 / 1e6 ** (torch.arange(half, device=device, dtype=torch.float32) * 2 / x.shape[-1])
    angle = (pos.float()[:, None] * inv[None]).to(torch.float64 if t == torch.float64 else torch.float32)
    c, s = angle.cos().to(t)[:, None], angle.sin().to(t)[:, None]
    p, q = x[..., 0::2], x[..., 1::2]
    return torch.stack([p * c - q * s, q * c + p * s], -1).flatten(-2)


def combine(t, x, gate, where):
    y = torch.zeros(gate.shape[0], x.shape[1], device=device, dtype=t)
    for j in range(gate.shape[1]):
        y = y + x[where[:, j].long()] * gate[:, j : j + 1].to(t)
    return y


def attention(t, q, k, width):
    see = torch.ones(q.shape[0], q.shape[0], device=device, dtype=torch.bool).tril()
    s = (torch.einsum("nhw,sw->hns", q, k) * 0.0625).masked_fill(~see, -torch.inf)
    p = s.softmax(-1, dtype=torch.float32 if t == torch.bfloat16 else t).to(t)
    return torch.einsum("hns,sc->nhc", p, k[:, :width])


def logprob(t, z, w, target):
    l = F.linear(z, w)
    l = l.float() if t == torch.bfloat16 else l
    return l.log_softmax(-1).gather(-1, target.long()[:, None])[:, 0]


# op: function of (type, tensors), its inputs, its result, the gradient's name, which inputs have a gradient and how it is called
table = [
    ("rmsnorm", rmsnorm, ["x", "g"], "y_", "dy", {"x": "dx_", "g": "dg_"}),
    ("layernorm", layernorm, ["x", "g", "b"], "y_", None, {}),
    ("swiglu", swiglu, ["a", "u"], "h_", "dh", {"a": "da_", "u": "du_"}),
    ("rope", rope, ["x", "pos"], "y_", None, {}),
    ("combine", combine, ["x", "gate", "where"], "y_", None, {}),
    ("matmul", lambda t, x, w: F.linear(x, w), ["x", "w"], "y_", "y_", {"x": "dx_", "w": "dw_"}),
    ("attention", None, ["q", "k"], "o_", "do", {"q": "dq_", "k": "dk_"}),
    ("logprob", logprob, ["z", "w", "target"], "logprob_", "dlogprob", {"z": "dz_", "w": "dw_"}),
]


def run(f, names, t, have, slope, wanted):
    """The result and the gradients of `wanted`, computed in t."""
    given = [have[n].to(t) if have[n].is_floating_point() else have[n] for n in names]
    given = [x.detach().requires_grad_(n in wanted) for x, n in zip(given, names)]
    y = f(t, *given)
    if wanted:
        y.backward(have[slope].to(y.dtype))
    return [y.detach()] + [x.grad for x, n in zip(given, names) if n in wanted]


def error(x, true):
    return float((x.double() - true).norm() / true.norm())


bad = 0
print(f"torch {torch.__version__} on {device}; error = norm of the difference over norm, against fp64")
for op, f, names, result, slope, wanted in table:
    if op not in ops:
        print(f"{op:12} not there")
        continue
    have = ops[op]
    if op == "attention":
        width = have["o_"].shape[-1]
        f = lambda t, q, k: attention(t, q, k, width)
    true, theirs = (run(f, names, t, have, slope, wanted) for t in (torch.float64, torch.bfloat16))
    for label, a, b in zip([result] + list(wanted.values()), true, theirs):
        ours, other = error(have[label], a), error(b, a)
        over = ours > limit * other
        bad += over
        print(f"{op:12} {label[:-1]:10} ours {ours:.3e}  torch {other:.3e}  ratio {ours / other:6.3f}{'  ABOVE' if over else ''}")
sys.exit(1 if bad else 0)
