/* plain_mlp_test.c - what leg 0 of the gate makes of a choice of experts that is not the plain model's own, where experts are in groups: by how much
 * scores would have to be off for it, and of what it cannot be made by one exchange.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#include "tools/check/plain_mlp.c"

enum { E = 8, D = 2 };

/* Four groups of two experts, of which two groups are taken, and of those three experts: 0, 1 and 2. */
static const struct cairn_model_config config = {.experts = E, .n_group = 4, .topk_group = 2, .experts_per_token = 3};
static const double by[E] = {0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2};

static void test_judged(void **state)
{
    static const struct {
        uint8_t given[E];
        double gap;
        const char *why;
    } t[] = {
        {{1, 1, 1}, 0, "its own choice"},
        {{1, 1, 0, 1}, 0.1, "one expert for another of its group"},
        {{1, 0, 1, 1}, 0.2, "the same, further apart"},
        {{1, 1, 0, 0, 1}, 0.2, "another group: 0.4 between their scores, which are sums of two"},
        {{1, 1, 0, 0, 0, 1}, 0.2, "another group, and of it not the best expert: the larger of 0.2 and 0.1"},
        {{1, 1, 0, 0, 0, 0, 1}, 0.4, "the last group"},
        {{1, 0, 1, 0, 1}, INFINITY, "of more groups than are taken"},
        {{1, 1}, INFINITY, "an expert too few"},
        {{1, 1, 1, 1}, INFINITY, "an expert too many"},
    };
    double w[E * D], x[D] = {3, 4}, score[E], gap, terms, noise = 0;
    const struct cairn_plain_matrix gate = {.w = w, .experts = 1, .rows = E, .cols = D};
    const struct cairn_plain_choice choice = {.score = score, .gap = &gap, .terms = &terms, .noise = &noise, .width = E};
    const struct cairn_plain p = {.c = &config, .to = CAIRN_PLAIN_EXACT};
    uint8_t mine[E];

    (void)state;
    for (int i = 0; i < E * D; i++)
        w[i] = 1;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        gap = terms = -1;
        router_judge(&p, &gate, 0, x, by, mine, t[i].given, &choice);
        if (!(gap == t[i].gap || fabs(gap - t[i].gap) < 1e-12))
            fail_msg("%s: a gap of %g, not %g", t[i].why, gap, t[i].gap);
        if (terms != (gap > 0 ? 0.25 * 5 : 0))
            fail_msg("%s: terms of %g", t[i].why, terms);
        assert_memory_equal(score, by, sizeof by);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_judged)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
