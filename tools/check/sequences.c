/* sequences.c - see sequences.h. */
#include "tools/check/sequences.h"

#include <stdlib.h>
#include <string.h>

#include "base/philox.h"

static void draw(int32_t *out, int64_t n, int64_t vocab, uint64_t seed, uint32_t which)
{
    const struct cairn_philox_key key = {.seed = seed, .purpose = CAIRN_PURPOSE_PROBE};

    for (int64_t i = 0; i < n; i++) {
        uint32_t r[4];

        cairn_philox(&key, which, (uint32_t)i, 0, r);
        out[i] = (int32_t)(r[0] % (uint64_t)vocab);
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

enum cairn_status cairn_check_sequences_make(struct cairn_check_sequences *q, const struct cairn_model_config *c, int page, int64_t longest,
                                             uint64_t seed, struct cairn_error *err)
{
    int64_t most = least(longest ? longest : c->index_topk + 37, c->max_positions), share = least(page + page / 2 + 3, most - 8);
    const struct {
        const char *name;
        int64_t length, prompt; /* prompt: of a group what is shared */
        int group;
    } plan[CAIRN_CHECK_SEQUENCES] = {{"short", 17, 1, 0},
                                     {"long", most, 1, 0},
                                     {"one", 2, 1, 0},
                                     {"group a", share + 7, share, 1},
                                     {"group b", share + 1, share, 1},
                                     {"edge", page + 1, 1, 0},
                                     {"group c", share + 5, share, 1},
                                     {"twin", 17, 1, 0},
                                     {"middle", 40, 9, 0}};
    int64_t total = 0;
    int32_t *at;

    memset(q, 0, sizeof *q);
    for (int i = 0; i < CAIRN_CHECK_SEQUENCES; i++)
        total += plan[i].length;
    if (!(q->memory = malloc((size_t)total * sizeof *q->memory)))
        return CAIRN_NOMEM(err);
    at = q->memory;
    for (int i = 0; i < CAIRN_CHECK_SEQUENCES; i++) {
        int64_t length = least(plan[i].length, most), prompt = least(plan[i].prompt, length - 1);
        struct cairn_sequence *s = &q->s[q->n];

        if (length < 2 || (plan[i].group && share < 2))
            continue;
        *s = (struct cairn_sequence){.tokens = at, .length = length, .prompt = prompt, .index = q->n};
        draw(at, length, c->vocab, seed, strcmp(plan[i].name, "twin") ? (uint32_t)i : 0);
        if (plan[i].group)
            draw(at, prompt, c->vocab, seed, 100);
        q->name[q->n] = plan[i].name;
        q->group[q->n] = plan[i].group;
        q->at[q->n + 1] = q->at[q->n] + length - prompt;
        q->longest = length > q->longest ? length : q->longest;
        q->tokens += length;
        q->n++;
        at += length;
    }
    return CAIRN_OK;
}

void cairn_check_sequences_free(struct cairn_check_sequences *q)
{
    free(q->memory);
    memset(q, 0, sizeof *q);
}
