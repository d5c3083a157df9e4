/* rollouts.c - columns of rollouts.h to shards and back, every offset checked before use. */
#include "stages/common/rollouts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

const char *cairn_finish_name(int finish)
{
    return finish == CAIRN_FINISH_STOP      ? "stop"
           : finish == CAIRN_FINISH_LENGTH  ? "length"
           : finish == CAIRN_FINISH_ABORTED ? "aborted"
                                            : "unknown";
}

void cairn_rollouts_free(struct cairn_rollouts *r)
{
    free(r->offsets);
    free(r->tokens);
    free(r->response);
    free(r->logprobs);
    free(r->logprobs_sampled);
    free(r->prompt_length);
    free(r->prompt_id);
    free(r->group);
    free(r->sample);
    free(r->finish);
    free(r->used);
    free(r->verdict);
    free(r->value);
    free(r->status);
    free(r->carried);
    free(r->text);
    free(r->text_offsets);
    free(r->experts);
    memset(r, 0, sizeof *r);
}

enum cairn_status cairn_rollouts_finish(struct cairn_rollouts *r, const char *where, struct cairn_error *err)
{
    free(r->response);
    r->response = malloc((size_t)(r->n + 1) * sizeof *r->response);
    if (!r->response)
        return CAIRN_NOMEM(err);
    r->response[0] = 0;
    if (r->offsets[0] != 0)
        return cairn_fail(err, CAIRN_EDATA, "%s: offsets begin at %lld, not at 0", where, (long long)r->offsets[0]);
    for (int64_t i = 0; i < r->n; i++) {
        int64_t length;

        if (r->offsets[i + 1] < r->offsets[i])
            return cairn_fail(err, CAIRN_EDATA, "%s: rollout %lld: offsets descend", where, (long long)i);
        length = r->offsets[i + 1] - r->offsets[i] - r->prompt_length[i];
        if (r->prompt_length[i] < 1 || length < 0)
            return cairn_fail(err, CAIRN_EDATA, "%s: rollout %lld: %d prompt tokens of %lld", where, (long long)i,
                              r->prompt_length[i], (long long)(r->offsets[i + 1] - r->offsets[i]));
        if (i && r->group[i] < r->group[i - 1])
            return cairn_fail(err, CAIRN_EDATA, "%s: rollout %lld: its group stands before the one before it", where, (long long)i);
        r->response[i + 1] = r->response[i] + length;
    }
    return CAIRN_OK;
}

/* Grows *p by `more` elements of `size` behind the first n and appends src. */
static int append(void **p, int64_t n, const void *src, int64_t more, size_t size)
{
    size_t total;
    char *q;

    if (!cairn_mul_size((size_t)(n + more), size, &total))
        return 0;
    q = realloc(*p, total ? total : 1);
    if (!q)
        return 0;
    memcpy(q + (size_t)n * size, src, (size_t)more * size);
    *p = q;
    return 1;
}

/* One column of a unit behind what is there; its count must be `want` (-1: any). */
static enum cairn_status column_add(struct cairn_reader *from, int unit, const char *name, enum cairn_dtype t, void **p, int64_t n,
                                    int64_t want, int64_t *count, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    void *h = NULL;
    int64_t got;

    TRY(cairn_unit_read(from, unit, name, t, &h, &got, err));
    if (want >= 0 && got != want)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: unit %d: %s has %lld elements, expected %lld", cairn_reader_path(from), unit, name,
                       (long long)got, (long long)want));
    if (!append(p, n, h, got, cairn_dtype_size(t)))
        TRY(CAIRN_NOMEM(err));
    if (count)
        *count = got;
out:
    free(h);
    return st;
}

/* Columns that are there for all units or for none, as unit 0 has them. */
enum { LOGPROBS, SAMPLED, VALUE, STATUS, CARRIED, TEXT, EXPERTS, OPTIONAL };
static const char *const optional[OPTIONAL] = {"logprobs", "logprobs_sampled", "value", "status", "carried", "text", "experts"};

struct totals {
    int64_t tokens, responses, text;
    int has[OPTIONAL];
};

/* The texts of a unit: offsets ascend from 0 to the number of bytes. */
static enum cairn_status text_add(struct cairn_rollouts *r, struct cairn_reader *from, int unit, int64_t n, struct totals *t,
                                  struct cairn_error *err)
{
    int64_t *offsets = NULL, bytes;
    enum cairn_status st = CAIRN_OK;

    TRY(column_add(from, unit, "text", CAIRN_U8, (void **)&r->text, t->text, -1, &bytes, err));
    TRY(column_add(from, unit, "text_offsets", CAIRN_I64, (void **)&offsets, 0, n + 1, NULL, err));
    for (int64_t i = 0; i <= n; i++) {
        if (offsets[i] < (i ? offsets[i - 1] - t->text : 0) || (!i && offsets[i]) || offsets[i] > bytes ||
            (i == n && offsets[i] != bytes))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: unit %d: text %lld has impossible offsets", cairn_reader_path(from), unit,
                           (long long)i));
        offsets[i] += t->text;
    }
    if (!append((void **)&r->text_offsets, r->n, offsets, n + 1, sizeof *offsets))
        TRY(CAIRN_NOMEM(err));
    t->text += bytes;
out:
    free(offsets);
    return st;
}

/* The routers' choices of a unit of `rows` tokens that were run. */
static enum cairn_status experts_add(struct cairn_rollouts *r, struct cairn_reader *from, int unit, int64_t before, int64_t rows,
                                     struct cairn_error *err)
{
    const struct cairn_manifest *m = cairn_reader_manifest(from);
    char name[64];
    const struct cairn_tensor_entry *e;
    enum cairn_status st = CAIRN_OK;
    int64_t got;

    snprintf(name, sizeof name, "experts.%06d", unit);
    e = cairn_manifest_find(m, name);
    if (!e || (e->dtype != CAIRN_U8 && e->dtype != CAIRN_I32) ||
        (r->expert_bytes && r->expert_bytes != (int)cairn_dtype_size(e->dtype)))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: unit %d: experts are of another type", cairn_reader_path(from), unit));
    r->expert_bytes = (int)cairn_dtype_size(e->dtype);
    TRY(column_add(from, unit, "experts", e->dtype, &r->experts, before * r->expert_row, -1, &got, err));
    if (!rows || got % rows || got / rows < 1 || (r->expert_row && r->expert_row != got / rows))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: unit %d: %lld choices of experts for %lld tokens", cairn_reader_path(from), unit,
                       (long long)got, (long long)rows));
    r->expert_row = got / rows;
out:
    return st;
}

static enum cairn_status unit_add(struct cairn_rollouts *r, struct cairn_reader *from, int unit, struct totals *sum,
                                  struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t n, t, mine = 0, *offsets = NULL;

    TRY(column_add(from, unit, "prompt_length", CAIRN_I32, (void **)&r->prompt_length, r->n, -1, &n, err));
    TRY(column_add(from, unit, "tokens", CAIRN_I32, (void **)&r->tokens, sum->tokens, -1, &t, err));
    TRY(column_add(from, unit, "prompt_id", CAIRN_I64, (void **)&r->prompt_id, r->n, n, NULL, err));
    TRY(column_add(from, unit, "group", CAIRN_I32, (void **)&r->group, r->n, n, NULL, err));
    TRY(column_add(from, unit, "sample", CAIRN_I32, (void **)&r->sample, r->n, n, NULL, err));
    TRY(column_add(from, unit, "finish", CAIRN_U8, (void **)&r->finish, r->n, n, NULL, err));
    TRY(column_add(from, unit, "used", CAIRN_U8, (void **)&r->used, r->n, n, NULL, err));
    TRY(column_add(from, unit, "verdict", CAIRN_U8, (void **)&r->verdict, r->n, n, NULL, err));
    TRY(column_add(from, unit, "offsets", CAIRN_I64, (void **)&offsets, 0, n + 1, NULL, err));
    if (offsets[0] != 0 || offsets[n] != t)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: unit %d: offsets run from %lld to %lld, tokens from 0 to %lld",
                       cairn_reader_path(from), unit, (long long)offsets[0], (long long)offsets[n], (long long)t));
    for (int64_t i = 0; i < n; i++) {
        int64_t prompt = r->prompt_length[r->n + i];

        if (offsets[i + 1] < offsets[i] || offsets[i + 1] > t || prompt < 1 || prompt > offsets[i + 1] - offsets[i])
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: unit %d: rollout %lld has impossible offsets", cairn_reader_path(from), unit,
                           (long long)i));
        mine += offsets[i + 1] - offsets[i] - prompt;
    }
    for (int k = 0; k < OPTIONAL; k++)
        if (cairn_unit_has(from, unit, optional[k]) != sum->has[k])
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: unit %d has other columns than unit 0: %s are of all rollouts or of none",
                           cairn_reader_path(from), unit, k <= SAMPLED ? "log-probabilities" : optional[k]));
    for (int64_t i = 0; i <= n; i++)
        offsets[i] += sum->tokens;
    if (!append((void **)&r->offsets, r->n, offsets, n + 1, sizeof *offsets))
        TRY(CAIRN_NOMEM(err));
    if (sum->has[LOGPROBS])
        TRY(column_add(from, unit, "logprobs", CAIRN_F32, (void **)&r->logprobs, sum->responses, mine, NULL, err));
    if (sum->has[SAMPLED])
        TRY(column_add(from, unit, "logprobs_sampled", CAIRN_F32, (void **)&r->logprobs_sampled, sum->responses, mine, NULL, err));
    if (sum->has[VALUE])
        TRY(column_add(from, unit, "value", CAIRN_F32, (void **)&r->value, r->n, n, NULL, err));
    if (sum->has[STATUS])
        TRY(column_add(from, unit, "status", CAIRN_U8, (void **)&r->status, r->n, n, NULL, err));
    if (sum->has[CARRIED])
        TRY(column_add(from, unit, "carried", CAIRN_I32, (void **)&r->carried, r->n, n, NULL, err));
    if (sum->has[TEXT])
        TRY(text_add(r, from, unit, n, sum, err));
    if (sum->has[EXPERTS])
        TRY(experts_add(r, from, unit, sum->tokens - r->n, t - n, err));
    r->n += n;
    sum->tokens += t;
    sum->responses += mine;
out:
    free(offsets);
    return st;
}

enum cairn_status cairn_rollouts_load(struct cairn_rollouts *r, struct cairn_reader *from, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct totals sum = {0};
    int units;

    memset(r, 0, sizeof *r);
    TRY(cairn_unit_count(from, &units, err));
    for (int k = 0; units && k < OPTIONAL; k++)
        sum.has[k] = cairn_unit_has(from, 0, optional[k]);
    for (int u = 0; u < units; u++)
        TRY(unit_add(r, from, u, &sum, err));
    if (!units && !(r->offsets = calloc(1, sizeof *r->offsets)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_rollouts_finish(r, cairn_reader_path(from), err));
out:
    if (st != CAIRN_OK)
        cairn_rollouts_free(r);
    return st;
}

enum cairn_status cairn_rollouts_write(const struct cairn_rollouts *r, int64_t begin, int64_t end, struct cairn_attempt *a,
                                       int unit, const char *identity, struct cairn_shard_entry **entry, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t n = end - begin, t0 = r->offsets[begin], t1 = r->offsets[end], r0 = r->response[begin], r1 = r->response[end];
    int64_t *offsets = malloc((size_t)(n + 1) * sizeof *offsets), *texts = malloc((size_t)(n + 1) * sizeof *texts);
    int columns = 9;

    if (!offsets || !texts)
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i <= n; i++)
        offsets[i] = r->offsets[begin + i] - t0;
    struct cairn_column c[9 + OPTIONAL + 1] = {
        {"tokens", CAIRN_I32, r->tokens + t0, t1 - t0},
        {"offsets", CAIRN_I64, offsets, n + 1},
        {"prompt_length", CAIRN_I32, r->prompt_length + begin, n},
        {"prompt_id", CAIRN_I64, r->prompt_id + begin, n},
        {"group", CAIRN_I32, r->group + begin, n},
        {"sample", CAIRN_I32, r->sample + begin, n},
        {"finish", CAIRN_U8, r->finish + begin, n},
        {"used", CAIRN_U8, r->used + begin, n},
        {"verdict", CAIRN_U8, r->verdict + begin, n},
    };
    if (r->value)
        c[columns++] = (struct cairn_column){"value", CAIRN_F32, r->value + begin, n};
    if (r->logprobs)
        c[columns++] = (struct cairn_column){"logprobs", CAIRN_F32, r->logprobs + r0, r1 - r0};
    if (r->logprobs_sampled)
        c[columns++] = (struct cairn_column){"logprobs_sampled", CAIRN_F32, r->logprobs_sampled + r0, r1 - r0};
    if (r->status)
        c[columns++] = (struct cairn_column){"status", CAIRN_U8, r->status + begin, n};
    if (r->carried)
        c[columns++] = (struct cairn_column){"carried", CAIRN_I32, r->carried + begin, n};
    if (r->text) {
        for (int64_t i = 0; i <= n; i++)
            texts[i] = r->text_offsets[begin + i] - r->text_offsets[begin];
        c[columns++] = (struct cairn_column){"text", CAIRN_U8, r->text + r->text_offsets[begin], texts[n]};
        c[columns++] = (struct cairn_column){"text_offsets", CAIRN_I64, texts, n + 1};
    }
    if (r->experts)
        c[columns++] =
            (struct cairn_column){"experts", r->expert_bytes == 1 ? CAIRN_U8 : CAIRN_I32,
                                  (const char *)r->experts + (size_t)((t0 - begin) * r->expert_row) * (size_t)r->expert_bytes,
                                  (t1 - t0 - n) * r->expert_row};
    TRY(cairn_unit_write(a, unit, identity, c, columns, entry, err));
out:
    free(offsets);
    free(texts);
    return st;
}
