/* fixture_draws.h - how far bf16 is off, as a statistic: over copies of the model, and against torch's own bf16 on the same copies. Included by
 * fixture_check.c alone.
 *
 * What rounding does to a gradient of a model this small is chance: of the same tensor, root mean squares in two copies whose weights differ by a
 * thousandth are apart by a factor of 1.3, in torch as here, and a largest element by 2.5; in a chain of KDA layers, where what is rounded first is
 * made larger by each, a copy may be off by three times what the next one is, in all gradients at once. One run against the worst of nine says little
 * either way: of 33 copies, torch itself is over 1.1 times the worst of nine others in 0.6 to 0.7 of all draws (45 classes of tensors, one or two of
 * them over). So a thing and its measure are:
 *   items          a gradient, or the logits of a sequence; an error is over the largest entry of the tensor that should be
 *   class          items whose names differ in numbers alone (layers, sequences), together; all that is said is said of a class
 *   size           root mean square of the errors of a class in a copy, over torch's in the same copy: the mean over the copies, of logarithms, is at
 *                  most 1.1, or what chance alone may make of 1: SIGMAS standard errors of the mean, as the copies tell them. Where these come to
 *                  more than a factor of 1.5 nothing would be said, and that is a failure, too.
 *                  Chance that all copies share is not in that: a thousandth turns few roundings near the embedding. Torch itself, with norms and
 *                  sums of streams rounded once as here, is at 0.71 to 1.36 times torch in the classes of glm53flash-clamp-tiny; ours goes with it
 *                  (correlation of logarithms 0.83, means 1.05 and 1.12; 7 copies).
 *   one element    what is wrong in one place is wrong in every copy, chance is not: of an element's error over the root mean square of its item in
 *                  that copy the median over the copies; the largest of a class is at most ONE times torch's. (Of two halves of the same copies these
 *                  are apart by 0.15 to 0.24 in logarithms, at most 1.9 times in any of 168 classes; of all copies that is 0.10 to 0.17.)
 * A loss is one number a copy, too few to be compared so: it must be what the logits say, to within fp32.
 * Exact numbers of a copy are those of the cpu back-end in fp32 (fixture_replay.h), whose selections are forced; for the model as it is they are held
 * against the reference's files in the same run.
 */
#ifndef TESTS_FIXTURE_DRAWS_H
#define TESTS_FIXTURE_DRAWS_H

#include "fixture_replay.h"
#include "fixture_variant.h"

#define MAX_ITEMS 1024
#define MAX_DRAWS 64
#define LIMIT     1.1
#define SIGMAS    3.0
#define VAGUE     1.5
#define ONE       2.0

enum item_kind { ITEM_LOGITS, ITEM_GRADIENT };

static struct {
    struct tally {
        char label[192];
        enum item_kind kind;
        int seq, param[3], params; /* of logits; of a gradient: the parameters that it consists of */
        int64_t n;                 /* elements */
        float *off;                /* (draws, n) */
        int judged;
    } item[MAX_ITEMS];
    int count, noted[3], notes;
} tallies;

static void tallies_free(void)
{
    for (int i = 0; i < tallies.count; i++)
        free(tallies.item[i].off);
    memset(&tallies, 0, sizeof tallies);
}

/* The gradient that is being compared has that of parameter i in it. */
static void tally_note(int i)
{
    if (tallies.notes < 3)
        tallies.noted[tallies.notes++] = i;
}

static int draws_of(const struct reference *r)
{
    return (int)json_integer_value(json_object_get(r->torch, "draws"));
}

/* A new item. */
static enum cairn_status tally_add(const struct reference *r, const struct variant *v, enum item_kind kind, const char *label, int seq,
                                   struct cairn_error *err)
{
    struct tally *t = &tallies.item[tallies.count];

    if (tallies.count == MAX_ITEMS || (kind == ITEM_GRADIENT && !tallies.notes))
        return CAIRN_BUG(err, "more items than the test has room for, or one of nothing");
    *t = (struct tally){.kind = kind, .seq = seq, .params = tallies.notes};
    snprintf(t->label, sizeof t->label, "%s", label);
    memcpy(t->param, tallies.noted, sizeof t->param);
    t->n = kind == ITEM_LOGITS ? r->len[seq] * r->hf->config.vocab : 0;
    for (int i = 0; i < t->params; i++)
        t->n += cairn_param_count(&v->grads.table->param[t->param[i]]);
    t->off = malloc((size_t)(draws_of(r) * t->n) * sizeof *t->off);
    if (!t->off)
        return CAIRN_NOMEM(err);
    tallies.notes = 0;
    tallies.count++;
    return CAIRN_OK;
}

/* n elements of item t from its element `at` on. */
static void tally_part(const struct tally *t, int draw, int64_t at, const float *mine, const float *exact, int64_t n, float *largest)
{
    float *off = t->off + draw * t->n + at;

    for (int64_t i = 0; i < n; i++) {
        off[i] = fabsf(mine[i] - exact[i]);
        *largest = fmaxf(*largest, fabsf(exact[i]));
    }
}

static void tally_compare(const struct tally *t, const struct reference *r, const struct variant *v, int draw, const struct numbers *mine,
                          const struct numbers *exact)
{
    const struct cairn_param_table *table = v->grads.table;
    int64_t vocab = r->hf->config.vocab, at = 0;
    float largest = 0;

    if (t->kind == ITEM_LOGITS)
        tally_part(t, draw, 0, mine->logits + r->start[t->seq] * vocab, exact->logits + r->start[t->seq] * vocab, t->n, &largest);
    for (int p = 0; p < t->params; p++) {
        int64_t n = cairn_param_count(&table->param[t->param[p]]);

        tally_part(t, draw, at, numbers_grad(mine->ce_grad ? mine->ce_grad : mine->grad, table, t->param[p]),
                   numbers_grad(exact->ce_grad ? exact->ce_grad : exact->grad, table, t->param[p]), n, &largest);
        at += n;
    }
    for (int64_t i = 0; i < t->n; i++)
        t->off[draw * t->n + i] /= largest > 0 ? largest : 1;
}

/* All copies, for the items of the variant, which begin with `first`; then the weights are as they were. */
static enum cairn_status draws_run(struct reference *r, struct variant *v, struct oracle *o, int first, struct cairn_error *err)
{
    struct numbers mine = {0}, exact = {0};
    enum cairn_status st = CAIRN_OK;

    for (int draw = 0; draw < draws_of(r); draw++) {
        TRY(oracle_draw(o, &v->m, draw, err));
        numbers_free(&exact);
        numbers_free(&mine);
        TRY(replay_record(&exact, r, o, err));
        TRY(numbers_gradient(&exact, r, &o->m, o->pass, &o->grads, err));
        replay_begin(&r->k, 0);
        st = numbers_logits(&mine, r, &v->m, v->pass, err);
        if (st == CAIRN_OK)
            st = numbers_gradient(&mine, r, &v->m, v->pass, &v->grads, err);
        replay_end(&r->k);
        TRY(st);
        for (int i = first; i < tallies.count; i++)
            tally_compare(&tallies.item[i], r, v, draw, &mine, &exact);
    }
    TRY(oracle_draw(o, &v->m, 0, err));
out:
    numbers_free(&mine);
    numbers_free(&exact);
    return st;
}

/* ---- the verdict --------------------------------------------------------------------------------------------------------- */

/* Items of one class: their names differ in numbers alone. */
static int same_class(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++, b++;
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            a += strspn(a, "0123456789");
            b += strspn(b, "0123456789");
        }
    }
    return !*a && !*b;
}

/* What torch has of the class that label belongs to, or NULL. */
static const json_t *torch_of(const struct reference *r, const char *label)
{
    const char *name;
    json_t *e;

    json_object_foreach(json_object_get(r->torch, r->model), name, e)
        if (same_class(name, label))
            return e;
    return NULL;
}

static int rising(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return isnan(x) ? !isnan(y) : isnan(y) ? -1 : x < y ? -1 : x > y; /* NaN last */
}

/* Adds to square[draw] the mean square over the elements; of these, over its root, the largest of all elements' medians. NaN where there is one. */
static void tally_sum(const struct tally *t, int draws, double *square, double *largest)
{
    float column[MAX_DRAWS];
    double own[MAX_DRAWS] = {0};

    *largest = 0;
    for (int d = 0; d < draws; d++) {
        for (int64_t i = 0; i < t->n; i++)
            own[d] += (double)t->off[d * t->n + i] * t->off[d * t->n + i] / (double)t->n;
        square[d] += own[d];
    }
    for (int64_t i = 0; i < t->n; i++) {
        double median;

        for (int d = 0; d < draws; d++)
            column[d] = (float)(t->off[d * t->n + i] / sqrt(own[d]));
        qsort(column, (size_t)draws, sizeof *column, rising);
        median = draws % 2 ? column[draws / 2] : ((double)column[draws / 2 - 1] + column[draws / 2]) / 2;
        *largest = isnan(median) || median > *largest ? median : *largest;
    }
}

/* The class of item i, two lines: its size, its elements. */
static void judge(const struct reference *r, int i)
{
    const char *label = tallies.item[i].label;
    const json_t *torch = torch_of(r, label), *sizes = json_object_get(torch, "rms");
    int n = 0, draws = draws_of(r), there = (int)json_integer_value(json_object_get(torch, "items"));
    double square[MAX_DRAWS] = {0}, most = 0, mean = 0, spread = 0, known, theirs = json_number_value(json_object_get(torch, "median"));

    for (int j = i; j < tallies.count; j++)
        if (same_class(tallies.item[j].label, label)) {
            double largest;

            tally_sum(&tallies.item[j], draws, square, &largest);
            most = isnan(largest) || largest > most ? largest : most;
            tallies.item[j].judged = 1;
            n++;
        }
    for (int d = 0; d < draws; d++) {
        double ratio = log(sqrt(square[d] / n) / json_number_value(json_array_get(sizes, (size_t)d)));

        mean += ratio / draws;
        spread += ratio * ratio / draws;
    }
    known = SIGMAS * sqrt((spread - mean * mean) / (draws - 1));
    item(there == n && mean <= fmax(log(LIMIT), known) && known <= log(VAGUE), label,
         "size, of %d items (torch %d): %.3f times torch's, known to %.3f", n, there, exp(mean), exp(known));
    item(there == n && most <= ONE * theirs, label, "one element: %.3g, torch's %.3g: %.3f times", most, theirs, most / theirs);
}

static void draws_judge(const struct reference *r)
{
    for (int i = 0; i < tallies.count; i++)
        if (!tallies.item[i].judged)
            judge(r, i);
}

#endif
