/* fixture_variant.h - a model to hold against numbers: the base, or the base with an adapter. Included by fixture_check.c alone. */
#ifndef TESTS_FIXTURE_VARIANT_H
#define TESTS_FIXTURE_VARIANT_H

#include "model/peft.h"

#include "fixture_numbers.h"

struct variant {
    const char *name;
    struct cairn_model m;
    struct cairn_peft *peft; /* of the adapter */
    struct cairn_st *st;
    struct cairn_pass *pass; /* packed, training */
    struct cairn_store grads;
    struct numbers now;    /* what is held against the reference: its own in fp32, the oracle's in bf16 */
    struct numbers narrow; /* in bf16 its own */
};

#endif
