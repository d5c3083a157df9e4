/* fixture_draws.h - how far bf16 is off, as a statistic: over copies of the model, and against torch's own bf16 on the same copies. Included by
 * fixture_check.c alone.
 *
 * What rounding does to a gradient of a model this small is chance: of the same tensor, root mean squares in two copies whose weights differ by a
 * thousandth are apart by a factor of 1.3, in torch as here, and a largest element by 2.5. One run against the worst of nine says little either way:
 * of 33 copies, torch itself is over 1.1 times the worst of nine others in 0.6 to 0.7 of all draws (45 classes of tensors, one or two of them over).
 * So a thing and its measure are:
 *   items          a gradient, or the logits of a sequence; an error is over the largest entry of the tensor that should be
 *   root mean square of an item's error over its elements and over `draws` copies of the model, the same copies that torch was run on; items whose names
 *                  differ in numbers alone (layers, sequences) are a class, together: 1.1 times torch's at most. On the same copies the two go up and
 *                  down together, so that this is known to a few hundredths.
 *   one element    what is wrong in one place is wrong in every copy, chance is not: the median over the copies of an element's error is at most 1.1 times
 *                  the largest error that torch has in any element of any copy, of all gradients of the model, or of an adapter, or of the logits.
 *                  (Two such largest errors cannot be compared: of two halves of torch's own copies they are apart by a factor of 1.3.)
 * A loss is one number a copy, too few to be compared so: it must be what the logits say, to within fp32.
 * Exact numbers of a copy are those of the cpu back-end in fp32 (fixture_replay.h), whose selections are forced; for the model as it is they are held
 * against the reference's files in the same run.
 */
#ifndef TESTS_FIXTURE_DRAWS_H
#define TESTS_FIXTURE_DRAWS_H

#include "fixture_replay.h"
#include "fixture_variant.h"

#define MAX_ITEMS 1024
#define LIMIT     1.1

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
        TRY(replay_record(r, o, err));
        TRY(numbers_make(&exact, r, &o->m, o->pass, &o->grads, err));
        replay_begin(&r->k, 0);
        st = numbers_make(&mine, r, &v->m, v->pass, &v->grads, err);
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

/* All gradients of a variant. */
static int same_kind(const char *a, const char *b)
{
    const char *x = strstr(a, "grad"), *y = strstr(b, "grad");

    return x && y ? x - a == y - b && !strncmp(a, b, (size_t)(x - a)) : same_class(a, b);
}

/* Of torch's items that are like label: how many, their root mean square, their largest. */
static int torch_of(const struct reference *r, int (*like)(const char *, const char *), const char *label, double *rms, double *largest)
{
    const char *name;
    json_t *e;
    int n = 0;

    *rms = *largest = 0;
    json_object_foreach(json_object_get(r->torch, r->model), name, e)
        if (like(name, label)) {
            double square = json_number_value(json_array_get(e, 1));

            *rms += square * square;
            *largest = fmax(*largest, json_number_value(json_array_get(e, 0)));
            n++;
        }
    *rms = sqrt(*rms / (n ? n : 1));
    return n;
}

static int rising(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return isnan(x) ? !isnan(y) : isnan(y) ? -1 : x < y ? -1 : x > y; /* NaN last */
}

/* Mean square over elements and draws; the largest of all elements' medians. NaN where there is one. */
static void tally_sum(const struct tally *t, int draws, double *square, double *largest)
{
    float *column = malloc((size_t)draws * sizeof *column);

    *square = *largest = column ? 0 : NAN;
    for (int64_t i = 0; column && i < t->n; i++) {
        double median;

        for (int d = 0; d < draws; d++) {
            column[d] = t->off[d * t->n + i];
            *square += (double)column[d] * column[d] / ((double)draws * (double)t->n);
        }
        qsort(column, (size_t)draws, sizeof *column, rising);
        median = draws % 2 ? column[draws / 2] : ((double)column[draws / 2 - 1] + column[draws / 2]) / 2;
        *largest = isnan(median) || median > *largest ? median : *largest;
    }
    free(column);
}

/* The class, or (of largest) the kind, of item i; a line. */
static void judge(const struct reference *r, int i, int of_largest)
{
    int (*like)(const char *, const char *) = of_largest ? same_kind : same_class;
    double rms, most, sum = 0, far = 0, ours, theirs;
    int n = 0, there = torch_of(r, like, tallies.item[i].label, &rms, &most);

    for (int j = i; j < tallies.count; j++)
        if (like(tallies.item[j].label, tallies.item[i].label)) {
            double square, largest;

            tally_sum(&tallies.item[j], draws_of(r), &square, &largest);
            sum += square;
            far = isnan(largest) || largest > far ? largest : far;
            tallies.item[j].judged |= 1 << of_largest;
            n++;
        }
    ours = of_largest ? far : sqrt(sum / n), theirs = of_largest ? most : rms;
    item(there == n && ours <= LIMIT * theirs, tallies.item[i].label, "%s of %d items %.3g, torch's of %d %.3g: %.3f times",
         of_largest ? "largest" : "rms", n, ours, there, theirs, ours / theirs);
}

static void draws_judge(const struct reference *r)
{
    for (int of_largest = 0; of_largest < 2; of_largest++)
        for (int i = 0; i < tallies.count; i++)
            if (!(tallies.item[i].judged >> of_largest & 1))
                judge(r, i, of_largest);
}

#endif
