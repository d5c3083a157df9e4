/* compare_impl.h - what the parts of compare.h share. compare.c and compare_matrix.c alone include it. */
#ifndef CAIRN_GRADE_COMPARE_IMPL_H
#define CAIRN_GRADE_COMPARE_IMPL_H

#include "grade/compare.h"

/* A node, which side it came from, and what \pm in it stands for (0: both). */
struct item {
    struct cairn_node *x;
    int sign;
    int gold;
};

static inline int differ(struct cairn_compare *c, const char *why)
{
    c->why = why;
    return 0;
}

static inline struct item item(struct cairn_node *x, int sign, int gold)
{
    struct item it = {x, sign, gold};

    return it;
}

static inline struct item kid_of(struct item a, int i)
{
    return item(a.x->kid[i], a.sign, a.gold);
}

/* NULL: it has none, c->alg says why. Borrowed. */
const struct cairn_value *cairn_compare_value(struct cairn_compare *c, struct item a);
/* 1: equal. NULLs are not. */
int cairn_compare_same_value(struct cairn_compare *c, const struct cairn_value *x, const struct cairn_value *y);

int cairn_compare_holds_matrix(const struct cairn_node *x);
int cairn_compare_matrix(struct cairn_compare *c, struct item a, struct item b);

#endif
