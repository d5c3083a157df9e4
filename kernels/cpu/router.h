/* router.h - the rule by which experts are chosen from scores; one copy, for the fast op and the reference. */
#ifndef CAIRN_KERNELS_CPU_ROUTER_H
#define CAIRN_KERNELS_CPU_ROUTER_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

struct router_groups {
    int64_t E, K;
    int n_group, topk_group;
};

/* NULL, or what is wrong with the numbers. */
const char *router_groups_check(const struct router_groups *g);

/* id (K), ascending: the K largest of sel (E) inside the topk_group best groups, ties to the lower index. A group's score is the
 * sum of its two largest. A NaN counts as less than every number. taken: E bytes of room. sel is spoilt. */
void router_choose(const struct router_groups *g, float *sel, int32_t *id, char *taken);

#pragma GCC visibility pop
#endif
