/* main.c - writes the data of recipes/tiny.yaml: arithmetic word problems, one JSON object a line.
 *
 *     wordproblems train N | heldout N | worked N
 *
 * train, heldout: {"id","prompt","answer","source"}. worked: {"id","prompt","response"}, answers worked out in one line; about half
 * of them ramble first, long enough that a sampler with a small length cap never sees their end. That is on purpose: the
 * model that learns from them has a habit for reinforcement learning to break.
 * A problem (its text) belongs to exactly one of the three sets: which one is decided by a digest of the text, so the sets are apart
 * whatever their sizes are. Everything is Philox with fixed keys: the same call writes the same bytes everywhere.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/json.h"
#include "base/philox.h"
#include "base/str.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

struct dice {
    struct cairn_philox_key key;
    uint32_t problem, throws;
};

static int dice_throw(struct dice *d, int sides)
{
    uint32_t w[4];

    cairn_philox(&d->key, d->problem, d->throws++, 0, w);
    return (int)(((uint64_t)w[0] * (uint64_t)sides) >> 32);
}

static const char *const names[] = {"Ann", "Ben", "Sam", "Max", "Jo", "Al", "Pat", "Ken"};
static const char *const things[] = {"books", "cards", "keys", "games", "pens", "tests", "pages", "lists", "boxes", "maps"};

/* One or two steps; every number lies in 0..18. */
struct problem {
    int steps, start, by[2], sign[2];
    char text[200], short_work[120];
    int answer;
};

static void problem_make(struct problem *p, struct dice *d)
{
    static const char *const more[] = {"gets %d more", "finds %d more", "is given %d more"};
    static const char *const less[] = {"loses %d", "gives %d away", "sells %d"};
    const char *name = names[dice_throw(d, COUNT(names))], *thing = things[dice_throw(d, COUNT(things))];
    int total, n;

    p->steps = 1 + (dice_throw(d, 3) == 0);
    p->start = 1 + dice_throw(d, 9);
    total = p->start;
    n = snprintf(p->text, sizeof p->text, "%s has %d %s", name, p->start, thing);
    p->short_work[0] = 0;
    for (int i = 0; i < p->steps; i++) {
        const char *form;
        int before = total, room;

        p->sign[i] = total == 0 || (total < 10 && dice_throw(d, 2)) ? 1 : -1;
        room = p->sign[i] > 0 || total > 9 ? 9 : total;
        p->by[i] = 1 + dice_throw(d, room);
        form = p->sign[i] > 0 ? more[dice_throw(d, COUNT(more))] : less[dice_throw(d, COUNT(less))];
        n += snprintf(p->text + n, sizeof p->text - (size_t)n, i ? ", then " : " and ");
        n += snprintf(p->text + n, sizeof p->text - (size_t)n, form, p->by[i]);
        total += p->sign[i] * p->by[i];
        snprintf(p->short_work + strlen(p->short_work), sizeof p->short_work - strlen(p->short_work), "%d %c %d = %d. ", before,
                 p->sign[i] > 0 ? '+' : '-', p->by[i], total);
    }
    snprintf(p->text + n, sizeof p->text - (size_t)n, ". How many %s?", thing);
    p->answer = total;
}

static void ramble(struct cairn_str *s, const struct problem *p, struct dice *d)
{
    static const char *const thoughts[] = {"Let me think about this.",      "Wait, let me check that again.", "So there is a number here.",
                                           "I should look at it again.",    "But what if it is not so?",      "Let me read it one more time.",
                                           "That could be right, or not.", "Now let me start over."};
    int n = 5 + dice_throw(d, 3);

    cairn_str_puts(s, thoughts[dice_throw(d, 2) ? 0 : 7]);
    for (int i = 0; i < n; i++)
        if (dice_throw(d, 4) == 0)
            cairn_str_printf(s, " We have %d at first.", p->start);
        else
            cairn_str_printf(s, " %s", thoughts[dice_throw(d, COUNT(thoughts))]);
    cairn_str_putc(s, ' ');
}

/* 0 train, 1 heldout, 2 worked: 45 %, 10 %, 45 % of all texts. */
static int set_of(struct cairn_digest text)
{
    int x = (int)(text.lo % 100);

    return x < 45 ? 0 : x < 55 ? 1 : 2;
}

int main(int argc, char **argv)
{
    static const char *const sets[] = {"train", "heldout", "worked"};
    struct cairn_str out = {0};
    struct dice d = {.key = {.seed = 20, .purpose = CAIRN_PURPOSE_DATA}};
    struct cairn_digest *seen = NULL; /* (want) digests of the texts written so far */
    int64_t want = 0, got = 0;
    int set = -1;

    for (int i = 0; argc == 3 && i < 3; i++)
        if (!strcmp(argv[1], sets[i]))
            set = i;
    if (set < 0 || !cairn_parse_i64(argv[2], &want) || want < 1 || want > 1000000) {
        fputs("usage: wordproblems train|heldout|worked N\nExample: wordproblems heldout 200 > heldout.jsonl\n", stderr);
        return CAIRN_EUSAGE;
    }
    seen = calloc((size_t)want, sizeof *seen);
    if (!seen)
        return CAIRN_ENOSPACE;
    d.key.step = (uint32_t)set;
    for (; got < want; d.problem++) {
        struct cairn_digest text;
        struct problem p;
        int64_t same = 0;

        d.throws = 0;
        problem_make(&p, &d);
        text = cairn_digest_bytes(p.text, strlen(p.text));
        while (same < got && !cairn_digest_equal(seen[same], text))
            same++;
        if (same < got || set_of(text) != set)
            continue;
        seen[got] = text;
        cairn_str_clear(&out);
        cairn_str_printf(&out, "{\"id\":\"%s-%lld\",\"prompt\":", sets[set], (long long)got);
        cairn_json_put_string(&out, p.text, strlen(p.text));
        if (set == 2) {
            struct cairn_str r = {0};

            if (dice_throw(&d, 100) < 55)
                ramble(&r, &p, &d);
            cairn_str_printf(&r, "%sAnswer: %d", p.short_work, p.answer);
            cairn_str_puts(&out, ",\"response\":");
            cairn_json_put_string(&out, r.p, r.len);
            cairn_str_puts(&out, "}\n");
            cairn_str_free(&r);
        } else {
            cairn_str_printf(&out, ",\"answer\":\"%d\",\"source\":\"wordproblems\"}\n", p.answer);
        }
        if (out.oom || fwrite(out.p, 1, out.len, stdout) != out.len)
            return CAIRN_EIO;
        got++;
    }
    cairn_str_free(&out);
    free(seen);
    return fclose(stdout) ? CAIRN_EIO : CAIRN_OK;
}
