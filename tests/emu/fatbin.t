#!/bin/sh
# fatbin.t - the GPU back-end has code for every GPU from compute capability 8.0 on: of each module machine code of 9.0 with wgmma, and PTX of 8.0
# for all others. (`make archs` builds machine code of 8.0, 9.0 and 10.0, and looks for it.)
so=${CAIRN_BUILD:-build}/lib/cairn-cuda.so
if [ ! -e "$so" ]; then
    echo "1..0 # SKIP no nvcc here"
    exit 0
fi
failed=0
if ! out=$(tools/fatbin-archs "$so" sm_90a compute_80); then
    echo "# $out"
    printf 'not '
    failed=1
fi
echo "ok 1 - sm_90a and PTX of 8.0 in every module"
if ! tools/fatbin-archs "$so" sm_61 | grep -q 'lacking: sm_61'; then
    printf 'not '
    failed=1
fi
echo "ok 2 - what is not there is missed"
if ! tools/fatbin-archs "${CAIRN_BUILD:-build}/bin/cairn" compute_80 | grep -q lacking; then
    printf 'not '
    failed=1
fi
echo "ok 3 - a file without code for GPUs has none"
echo "1..3"
exit "$failed"
