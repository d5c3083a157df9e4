/* router_choose.c - group-limited top-k of the DeepSeek-V3 router (arXiv:2412.19437, section 2.1.2; "noaux_tc"); see router.h. */
#include <math.h>
#include <string.h>

#include "base/planted.h"
#include "router.h"

#pragma GCC visibility push(hidden)

const char *router_groups_check(const struct router_groups *g)
{
    if (g->K < 1 || g->K > g->E)
        return "more experts a token than there are";
    if (g->E % g->n_group)
        return "experts do not divide into the groups";
    if (g->topk_group < 1 || g->topk_group > g->n_group)
        return "topk_group is not between 1 and n_group";
    if (g->K > (int64_t)g->topk_group * (g->E / g->n_group))
        return "the best groups hold fewer experts than a token takes";
    return NULL;
}

/* Sum of the two largest of n; -inf without a number. */
static float two_largest(const float *x, int64_t n)
{
    float first = -INFINITY, second = -INFINITY;

    for (int64_t i = 0; i < n; i++)
        if (x[i] > first) {
            second = first;
            first = x[i];
        } else if (x[i] > second) {
            second = x[i];
        }
    return n > 1 && !cairn_planted("router-group-by-its-best") ? first + second : first;
}

/* First index of the largest free one. */
static int64_t best_free(const float *x, const char *taken, int64_t n)
{
    int64_t best = -1;

    for (int64_t i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || x[i] > x[best] || (cairn_planted("router-tie-order") && x[i] == x[best])))
            best = i;
    return best;
}

void router_choose(const struct router_groups *g, float *sel, int32_t *id, char *taken)
{
    int64_t size = g->E / g->n_group, kept = 0;

    for (int64_t e = 0; e < g->E; e++)
        if (!(sel[e] == sel[e]))
            sel[e] = -INFINITY;
    memset(taken, 0, (size_t)g->E);
    if (g->topk_group < g->n_group) {
        /* a group is out when topk_group others come before it */
        for (int i = 0; i < g->n_group; i++) {
            float mine = two_largest(sel + i * size, size);
            int before = 0;

            for (int j = 0; j < g->n_group; j++) {
                float other = two_largest(sel + j * size, size);

                before += other > mine || (other == mine && j < i);
            }
            if (before >= g->topk_group + cairn_planted("router-group-too-many"))
                memset(taken + i * size, 2, (size_t)size);
        }
    }
    for (int64_t k = 0; k < g->K; k++)
        taken[best_free(sel, taken, g->E)] = 1;
    for (int64_t e = 0; e < g->E; e++)
        if (taken[e] == 1)
            id[kept++] = (int32_t)e;
}
#pragma GCC visibility pop
