#!/bin/sh
# conformance.t - the GPU back-end's kernels on an emulated GPU (emu.h), through the conformance programs, with f32 and with bf16
# activations; and a small model that samples with recorded calls (decode_small).
build=${CAIRN_BUILD:-build}
export CAIRN_TEST_BACKEND=cuda CAIRN_CUDA_OBJECT=cairn-emu.so
programs="handover handover_model norm rope rows experts loss attention matmul head kda kda_gate hyper pooled decode_small"
n=0
for p in $programs; do
    n=$((n + 1))
    if out=$("$build/tests/${p}_test" 2>&1) && ! echo "$out" | grep -q '^1\.\.0'; then
        echo "ok $n - $p"
    else
        echo "$out" | sed 's/^/# /'
        echo "not ok $n - $p"
        failed=1
    fi
done
echo "1..$n"
exit "${failed:-0}"
