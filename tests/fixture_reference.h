/* fixture_reference.h - a reference directory in memory for fixture_check.c: its sequences and numbers, small tensors on the
 * device, and the lines that say how far two numbers are apart. Included by that one file.
 */
#ifndef TESTS_FIXTURE_REFERENCE_H
#define TESTS_FIXTURE_REFERENCE_H

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "ckpt/safetensors.h"
#include "model/hf.h"
#include "model/model.h"

#define MAX_SEQS 64
#define GREEDY   16

/* Of fp32. With bf16 what torch's bf16 is off by (struct reference, torch) takes its place. */
struct tolerance {
    double logit_abs, logit_rms, loss; /* losses relative above 1 */
    double grad;                       /* of the tensor's largest entry */
};

struct reference {
    const char *dir;
    const struct tolerance *tol;
    json_t *torch; /* bf16_errors.json, of all models; NULL with fp32: fixture_draws.h */
    char model[64]; /* its name there */
    struct cairn_compute k;
    struct cairn_hf *hf;
    struct cairn_store weights;
    struct cairn_st *st; /* reference.safetensors */

    int nseq;
    int64_t len[MAX_SEQS], rows; /* rows of all sequences together */
    int64_t losses;              /* tokens with a target */
    int32_t *id, *pos, *seq, *target, start[MAX_SEQS];
    float *old, *adv; /* (rows) */
};

static int failures;

__attribute__((format(printf, 3, 4))) static void item(int ok, const char *name, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    printf("%-4s %-72s ", ok ? "ok" : "FAIL", name);
    vprintf(fmt, ap);
    printf("\n");
    fflush(stdout);
    va_end(ap);
    failures += !ok;
}

/* ---- reading references ------------------------------------------------------------------------------------------ */

static enum cairn_status read_f32(float **out, int64_t *n, struct cairn_st *st_file, const char *name, struct cairn_error *err)
{
    const struct cairn_st_tensor *t = cairn_st_find(st_file, name);
    enum cairn_status st;

    if (!t)
        return cairn_fail(err, CAIRN_EDATA, "%s: no tensor %s", cairn_st_file(st_file, 0), name);
    *out = malloc((size_t)t->count * sizeof **out + 1);
    if (!*out)
        return CAIRN_NOMEM(err);
    *n = t->count;
    st = cairn_st_read_as(st_file, t, 0, t->count, CAIRN_F32, *out, err);
    if (st != CAIRN_OK) {
        free(*out);
        *out = NULL;
    }
    return st;
}

static enum cairn_status read_i32(int32_t **out, int64_t *n, struct cairn_st *st_file, const char *name, struct cairn_error *err)
{
    const struct cairn_st_tensor *t = cairn_st_find(st_file, name);

    if (!t || t->dtype != CAIRN_I32)
        return cairn_fail(err, CAIRN_EDATA, "%s: no int32 tensor %s", cairn_st_file(st_file, 0), name);
    *out = malloc((size_t)t->bytes + 1);
    if (!*out)
        return CAIRN_NOMEM(err);
    *n = t->count;
    return cairn_st_read(st_file, t, 0, *out, (size_t)t->bytes, err);
}

static enum cairn_status open_st(struct cairn_st **out, const char *dir, const char *name, struct cairn_error *err)
{
    char *path = cairn_path_join(dir, name);
    enum cairn_status st = path ? cairn_st_open(out, path, err) : CAIRN_NOMEM(err);

    free(path);
    return st;
}

static enum cairn_status read_sequences(struct reference *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    float *adv = NULL, *old = NULL;
    int32_t *id[MAX_SEQS] = {0};
    int64_t n = 0, row = 0;
    char name[64];

    for (; r->nseq < MAX_SEQS; r->nseq++) {
        snprintf(name, sizeof name, "ids.%d", r->nseq);
        if (!cairn_st_find(r->st, name))
            break;
        TRY(read_i32(&id[r->nseq], &r->len[r->nseq], r->st, name, err));
        r->rows += r->len[r->nseq];
    }
    if (!r->rows)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: no sequences ids.0, ids.1, ...", cairn_st_file(r->st, 0)));
    r->id = calloc((size_t)r->rows, sizeof *r->id);
    r->pos = calloc((size_t)r->rows, sizeof *r->pos);
    r->seq = calloc((size_t)r->rows, sizeof *r->seq);
    r->target = calloc((size_t)r->rows, sizeof *r->target);
    r->old = calloc((size_t)r->rows, sizeof *r->old);
    r->adv = calloc((size_t)r->rows, sizeof *r->adv);
    if (!r->id || !r->pos || !r->seq || !r->target || !r->old || !r->adv)
        TRY(CAIRN_NOMEM(err));
    TRY(read_f32(&adv, &n, r->st, "advantages", err));
    if (n != r->nseq)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %lld advantages for %d sequences", cairn_st_file(r->st, 0), (long long)n, r->nseq));
    for (int s = 0; s < r->nseq; s++) {
        snprintf(name, sizeof name, "old_logprobs.%d", s);
        TRY(read_f32(&old, &n, r->st, name, err));
        if (n != r->len[s] - 1)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s has %lld entries for %lld tokens", cairn_st_file(r->st, 0), name, (long long)n,
                           (long long)r->len[s]));
        r->start[s] = (int32_t)row;
        for (int64_t i = 0; i < r->len[s]; i++, row++) {
            int last = i + 1 == r->len[s];

            r->id[row] = id[s][i];
            r->pos[row] = (int32_t)i;
            r->seq[row] = s;
            r->target[row] = last ? -1 : id[s][i + 1];
            r->old[row] = last ? 0 : old[i];
            r->adv[row] = adv[s];
            r->losses += !last;
        }
        free(old);
        old = NULL;
    }
out:
    for (int s = 0; s < MAX_SEQS; s++)
        free(id[s]);
    free(adv);
    free(old);
    return st;
}

static struct cairn_batch whole_batch(const struct reference *r)
{
    return (struct cairn_batch){.n = r->rows, .id = r->id, .pos = r->pos, .seq = r->seq, .nseq = r->nseq, .start = r->start};
}

/* ---- device values ----------------------------------------------------------------------------------------------- */

struct value { /* a tensor with a buffer of its own */
    struct cairn_buffer *buf;
    struct cairn_tensor t;
};

static enum cairn_status value_make(struct value *v, struct cairn_compute *k, enum cairn_dtype type, int64_t n, const void *h,
                                    struct cairn_error *err)
{
    size_t bytes = (size_t)n * cairn_dtype_size(type);
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_buffer_create(k->dev, bytes + 1, &v->buf, err));
    TRY(cairn_tensor_view(&v->t, v->buf, 0, type, 1, &n, err));
    if (h)
        TRY(cairn_tensor_set(&k->stream, &v->t, h, bytes, err));
    else
        TRY(cairn_tensor_zero(&k->stream, &v->t, err));
out:
    return st;
}

static enum cairn_status fetch(float **out, struct cairn_compute *k, const struct cairn_tensor *t, struct cairn_error *err)
{
    size_t n = (size_t)cairn_tensor_count(t) * sizeof **out;

    *out = malloc(n + 1);
    if (!*out)
        return CAIRN_NOMEM(err);
    return cairn_tensor_get(&k->stream, t, *out, n, err);
}

/* ---- comparing ---------------------------------------------------------------------------------------------------- */

struct errors {
    double max, largest, sum2; /* of |difference|; largest |reference| */
    int64_t n;
};

static void differ(struct errors *e, float mine, float ref)
{
    double d = fabs((double)mine - (double)ref);

    if (!(d <= e->max)) /* NaN stays */
        e->max = d;
    if (fabs((double)ref) > e->largest)
        e->largest = fabs((double)ref);
    e->sum2 += d * d;
    e->n++;
}

#endif
