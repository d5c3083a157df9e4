/* whole.c - see whole.h. */
#include "tools/check/whole.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "stages/common/setup.h"
#include "stages/rollout/engine.h"

#define DRAWN   12 /* tokens of a response */
#define SAMPLES 2
#define PROMPTS 3
#define ROOM    (PROMPTS * SAMPLES)

/* ---- logits ------------------------------------------------------------------------------------------------------------- */

/* Of sequence i, all positions by the sampler: prompt and rest in uneven chunks. */
static enum cairn_status sampler_logits(struct cairn_sides *x, int i, float *h, struct cairn_error *err)
{
    const struct cairn_sequence *q = &x->q.s[i];
    int64_t vocab = x->policy.config.vocab;
    int32_t pos[11], seq[11], want[11];
    enum cairn_status st = CAIRN_OK;
    int slot, fits;

    cairn_cache_reset(x->cache);
    slot = cairn_cache_slot(x->cache);
    for (int64_t at = 0; at < q->length;) {
        int64_t n = q->length - at < 11 ? q->length - at : 11;
        struct cairn_batch b = {.n = n, .id = q->tokens + at, .pos = pos, .seq = seq};
        struct cairn_tensor logits;

        TRY(cairn_cache_extend(x->cache, slot, n, &fits, err));
        for (int r = 0; r < (int)n; r++) {
            pos[r] = (int32_t)(at + r);
            seq[r] = slot;
            want[r] = r;
        }
        TRY(cairn_forward_cached(x->pass, x->cache, &b, want, (int)n, &logits, err));
        TRY(cairn_tensor_get(&x->k.stream, &logits, h + at * vocab, (size_t)(n * vocab) * sizeof *h, err));
        at += n;
    }
out:
    return st;
}

static enum cairn_status trainer_logits(struct cairn_sides *x, int i, float *h, struct cairn_error *err)
{
    const struct cairn_sequence *q = &x->q.s[i];
    int64_t vocab = x->policy.config.vocab;
    int32_t *rows = malloc((size_t)q->length * 2 * sizeof *rows), start = 0;
    struct cairn_batch b = {.n = q->length, .id = q->tokens, .pos = rows, .nseq = 1, .start = &start};
    struct cairn_tensor logits;
    enum cairn_status st = CAIRN_OK;
    struct cairn_pass *pass = NULL;

    if (!rows)
        return CAIRN_NOMEM(err);
    for (int64_t r = 0; r < q->length; r++) {
        rows[r] = (int32_t)r;
        rows[q->length + r] = 0;
    }
    b.seq = rows + q->length;
    TRY(cairn_pass_create(&pass, &x->trainer.model, &(struct cairn_pass_opts){.max_rows = q->length, .max_seqs = 1}, err));
    TRY(cairn_forward_logits(pass, &b, &logits, err));
    TRY(cairn_tensor_get(&x->k.stream, &logits, h, (size_t)(q->length * vocab) * sizeof *h, err));
out:
    cairn_pass_destroy(pass);
    free(rows);
    return st;
}

static enum cairn_status logits_agree(struct cairn_sides *x, int i, double band, struct cairn_error *err)
{
    int64_t n = x->q.s[i].length * x->policy.config.vocab;
    float *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b);
    enum cairn_status st = CAIRN_OK;

    if (!a || !b)
        TRY(CAIRN_NOMEM(err));
    TRY(trainer_logits(x, i, a, err));
    TRY(sampler_logits(x, i, b, err));
    for (int64_t k = 0; k < n; k++)
        if (memcmp(&a[k], &b[k], sizeof *a) != 0 && !(fabs((double)a[k] - (double)b[k]) <= band))
            TRY(cairn_fail(
                err, CAIRN_ENUMERIC, "whole: the logit of id %lld behind token %lld of sequence %s is %.9g for the trainer, %.9g for the sampler",
                (long long)(k % x->policy.config.vocab), (long long)(k / x->policy.config.vocab), x->q.name[i], (double)a[k], (double)b[k]));
out:
    free(a);
    free(b);
    return st;
}

/* ---- drawn tokens --------------------------------------------------------------------------------------------------------- */

struct drawn {
    struct cairn_sides *x;
    struct cairn_sequence s[ROOM];
    int64_t at[ROOM + 1];
    int32_t *tokens; /* (ROOM, room each) */
    int64_t room;
    float *logprobs; /* (ROOM, DRAWN) */
};

static enum cairn_status tell(void *arg, const struct cairn_response *r, struct cairn_error *err)
{
    struct drawn *d = arg;
    int i = (int)r->tag * SAMPLES + r->sample;
    struct cairn_sequence *s = &d->s[i];

    if (r->n > DRAWN || s->prompt + r->n > d->room)
        return CAIRN_BUG(err, "a response longer than its cap");
    memcpy(d->tokens + i * d->room + s->prompt, r->tokens, (size_t)r->n * sizeof *r->tokens);
    memcpy(d->logprobs + i * DRAWN, r->logprobs, (size_t)r->n * sizeof *r->logprobs);
    s->length = s->prompt + r->n;
    return CAIRN_OK;
}

/* Prompts: beginnings of the first three long enough sequences. */
static enum cairn_status draw(struct drawn *d, struct cairn_error *err)
{
    struct cairn_sides *x = d->x;
    struct cairn_engine_opts o = {.batch = 3, .page = x->page, .max_length = d->room, .prefill = 5, .seed = 7, .step = 1,
                                  .temperature = x->temperature, .graphs = cairn_setup_graphs(x->run->recipe)};
    struct cairn_engine *e = NULL;
    enum cairn_status st = CAIRN_OK;
    int found = 0;

    TRY(cairn_engine_create(&e, &x->model, &o, err));
    for (int i = 0; i < x->q.n && found < PROMPTS; i++) {
        int64_t length = x->q.s[i].length < d->room - DRAWN ? x->q.s[i].length : d->room - DRAWN;

        for (int k = 0; k < SAMPLES; k++) {
            int32_t *to = d->tokens + (found * SAMPLES + k) * d->room;

            memcpy(to, x->q.s[i].tokens, (size_t)length * sizeof *to);
            d->s[found * SAMPLES + k] = (struct cairn_sequence){.tokens = to, .length = length, .prompt = length, .index = found * SAMPLES + k};
        }
        TRY(cairn_engine_submit(e, &(struct cairn_request){.prompt = x->q.s[i].tokens, .length = length, .max_new = DRAWN, .samples = SAMPLES,
                                                           .key = i, .tag = found++}, err));
    }
    TRY(cairn_engine_run(e, tell, d, err));
out:
    cairn_engine_destroy(e);
    return st;
}

static enum cairn_status drawn_agree(struct cairn_sides *x, double band, int64_t *count, struct cairn_error *err)
{
    struct drawn d = {.x = x, .room = x->q.longest < 80 ? x->q.longest : 80};
    float *out = malloc(ROOM * DRAWN * sizeof *out);
    enum cairn_status st = CAIRN_OK;

    if (d.room < DRAWN + 2)
        d.room = DRAWN + 2;
    d.tokens = calloc((size_t)(ROOM * d.room), sizeof *d.tokens);
    d.logprobs = calloc(ROOM * DRAWN, sizeof *d.logprobs);
    if (!out || !d.tokens || !d.logprobs)
        TRY(CAIRN_NOMEM(err));
    TRY(draw(&d, err));
    for (int i = 0; i < ROOM; i++)
        d.at[i + 1] = d.at[i] + d.s[i].length - d.s[i].prompt;
    TRY(cairn_trainer_logprobs(&x->trainer, NULL, d.s, ROOM, d.at, x->temperature, out, err));
    *count = d.at[ROOM];
    for (int i = 0; i < ROOM; i++)
        for (int64_t k = d.at[i]; k < d.at[i + 1]; k++) {
            float theirs = d.logprobs[i * DRAWN + k - d.at[i]];

            if (memcmp(&theirs, &out[k], sizeof theirs) != 0 && !(fabs((double)theirs - (double)out[k]) <= band))
                TRY(cairn_fail(err, CAIRN_ENUMERIC,
                               "whole: the sampler drew token %lld of a response with log-probability %.9g; the trainer gives it %.9g",
                               (long long)(k - d.at[i]), (double)theirs, (double)out[k]));
        }
out:
    free(out);
    free(d.tokens);
    free(d.logprobs);
    return st;
}

enum cairn_status cairn_whole_check(struct cairn_sides *x, double band, json_t *report, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t drawn = 0;
    int looked = 0;

    for (int i = 0; i < x->q.n && looked < 2; i++)
        if (x->q.s[i].length <= 64) {
            TRY(logits_agree(x, i, band, err));
            looked++;
        }
    TRY(drawn_agree(x, band, &drawn, err));
    if (json_object_set_new(report, "whole", json_pack("{s:i, s:I}", "sequences", looked, "drawn", (json_int_t)drawn)))
        TRY(CAIRN_NOMEM(err));
out:
    return st;
}
