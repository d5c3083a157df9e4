#!/bin/sh
# generic.t - GPUs without wgmma: on emulated ones of compute capabilities 8.0 and 10.0 every op that has kernels of its own for 9.0 takes
# those for all (wgmma there ends the program, emu_wgmma.h), with the contract's numbers; on 9.0 it takes its own; older than 8.0 is refused.
build=${CAIRN_BUILD:-build}
export CAIRN_TEST_BACKEND=cuda CAIRN_CUDA_OBJECT=cairn-emu.so CAIRN_TEST_ACT=bf16
n=0
verdict() { # 0: ok
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "$out" | tail -n 20 | sed 's/^/# /'
        echo "not ok $n - $2"
        failed=1
    fi
}
passes() { # capability, program, pattern of tests
    out=$(CAIRN_EMU_SM=$1 LAB_SMALL=2 LAB_ONLY=$3 "$build/tests/$2_test" 2>&1) && ! echo "$out" | grep -q '^1\.\.0'
    verdict $? "$2 $3 on $1"
}
passes 80 index 'index_is*'
passes 80 attention 'backward_is_right*'
passes 100 index 'index_is*'
passes 100 attention 'attention_is*'
passes 100 matmul 'against*'

out=$(CAIRN_EMU_SM=90 LAB_SMALL=2 LAB_ONLY='index_is*' CAIRN_EMU_WGMMA=count "$build/tests/index_test" 2>&1)
echo "$out" | grep -qE '^emulated GPU: [1-9][0-9]* wgmma'
verdict $? "index on 90 takes wgmma"
out=$(CAIRN_EMU_SM=75 "$build/tests/attention_test" 2>&1)
echo "$out" | grep -q 'need 8.0 or newer'
verdict $? "7.5 is refused"
echo "1..$n"
exit "${failed:-0}"
