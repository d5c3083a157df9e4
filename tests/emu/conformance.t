#!/bin/sh
# conformance.t - the GPU back-end's kernels on an emulated GPU (emu.h), through the conformance programs, with f32 and with bf16
# activations; and a small model that samples with recorded calls (decode_small). Last, whether ops still answer with the bits of
# bits.pins, the calls of those programs that were pinned: bits that change want a higher OPS_VERSION (kernels/cuda/cuda.c).
#
#     tests/emu/conformance.t         the test
#     tests/emu/conformance.t pin     pins anew: of each op, type and size the calls with the smallest keys. Refused while pinned calls
#                                     answer with other bits under the same OPS_VERSION.
build=${CAIRN_BUILD:-build}
pins=$(dirname "$0")/bits.pins
bits=$(mktemp) || exit 74
trap 'rm -f "$bits" "$bits.new"' EXIT
export CAIRN_TEST_BACKEND=cuda CAIRN_CUDA_OBJECT=cairn-emu.so LAB_BITS="$bits"
programs="handover upload keep product_ahead handover_model norm rope rows experts loss index attention matmul head kda kda_gate hyper pooled attention_heads decode_small heads_small"
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

# What is wrong, in sentences; nothing if all is well. A key with several results (calls that differ in scalars) pins nothing.
compare() {
    awk '
    FILENAME == ARGV[1] && $1 == "numerics" { want = $2; next }
    FILENAME == ARGV[1] { pin[$1 " " $2 " " $4] = $5; of[$1 " " $2]++; next }
    $1 == "numerics" { now = $NF; next }
    ($1 " " $2 " " $4) in pin && !(($1 " " $2 " " $4) in seen) { seen[$1 " " $2 " " $4] = 1; found[$1 " " $2]++
        if (pin[$1 " " $2 " " $4] != $5) changed[$1 " " $2]++ }
    END {
        if (!want) print "there are no pins: tests/emu/conformance.t pin"
        else if (want != now) print "pins are of " want ", the back-end says " now ": tests/emu/conformance.t pin"
        else for (i in changed) print i ": " changed[i] " of " of[i] " pinned calls answer with other bits: raise OPS_VERSION in kernels/cuda/cuda.c"
        for (i in of) if (2 * found[i] < of[i]) print i ": " of[i] - found[i] " of " of[i] " pinned calls are not made any more: tests/emu/conformance.t pin"
    }' "$pins" "$bits"
}

pin() {
    awk '$1 == "numerics" { now = $NF; next }
    { k = $1 " " $2 " " $3 " " $4; if (k in r && r[k] != $5) several[k] = 1; r[k] = $5 }
    END { print "numerics " now; for (k in r) if (!(k in several)) print k, r[k] }' "$bits" | sort -k1,1 -k2,2 -k3,3n -k4,4 |
        awk '$1 == "numerics" { first = $0; next } { c = $1 $2 $3; if (c != last) n = 0; last = c; if (n++ < 3) line[++m] = $0 }
        END { print first; for (i = 1; i <= m; i++) print line[i] }' >"$bits.new" && cp "$bits.new" "$pins"
}

[ -e "$pins" ] || : >"$pins"
if [ "${1:-}" = pin ]; then
    if compare | grep OPS_VERSION; then exit 1; fi
    pin && wc -l "$pins"
    exit "${failed:-0}"
fi
n=$((n + 1))
wrong=$(compare)
[ -z "$wrong" ] || {
    echo "$wrong" | sed 's/^/# /'
    printf 'not '
    failed=1
}
echo "ok $n - the bits of the ops"
echo "1..$n"
exit "${failed:-0}"
