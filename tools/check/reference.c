/* reference.c - see reference.h. */
#include "tools/check/reference.h"

#include <math.h>
#include <stdlib.h>

#include "base/json.h"
#include "model/model.h"
#include "stages/common/setup.h"

struct scorer {
    struct cairn_sides *x;
    struct cairn_policy policy;
    struct cairn_model model;
    struct cairn_pass *pass;
    int64_t room;
    int32_t *id, *pos, *seq, *target; /* (room) */
    double *theirs;                   /* (room) */
    float *ours;                      /* (room) */
    int64_t lines, tokens;
    double mean, max;
};

static void scorer_free(struct scorer *s)
{
    cairn_pass_destroy(s->pass);
    free(s->id);
    free(s->pos);
    free(s->seq);
    free(s->target);
    free(s->theirs);
    free(s->ours);
}

static enum cairn_status ready(struct scorer *s, int64_t n, struct cairn_error *err)
{
    if (n <= s->room)
        return CAIRN_OK;
    scorer_free(s);
    s->pass = NULL;
    s->room = n;
    s->id = malloc((size_t)n * sizeof *s->id);
    s->pos = malloc((size_t)n * sizeof *s->pos);
    s->seq = malloc((size_t)n * sizeof *s->seq);
    s->target = malloc((size_t)n * sizeof *s->target);
    s->theirs = malloc((size_t)n * sizeof *s->theirs);
    s->ours = malloc((size_t)n * sizeof *s->ours);
    if (!s->id || !s->pos || !s->seq || !s->target || !s->theirs || !s->ours)
        return CAIRN_NOMEM(err);
    return cairn_pass_create(&s->pass, &s->model, &(struct cairn_pass_opts){.max_rows = n, .max_seqs = 1}, err);
}

/* A line's ids and numbers; *n: ids but for the last, whose next one nobody knows. */
static enum cairn_status line_read(struct scorer *s, const json_t *v, const char *where, int64_t *n, struct cairn_error *err)
{
    const json_t *ids = json_object_get(v, "ids"), *logprobs = json_object_get(v, "logprobs");
    const struct cairn_model_config *c = &s->policy.config;
    int64_t length = (int64_t)json_array_size(ids);
    enum cairn_status st = CAIRN_OK;

    if (length < 2 || (int64_t)json_array_size(logprobs) != length - 1)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: expected {\"ids\": [at least two], \"logprobs\": [one fewer]}", where));
    if (length - 1 > c->max_positions)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %lld ids are more than the model has positions, %lld", where, (long long)length,
                       (long long)c->max_positions));
    TRY(ready(s, length - 1, err));
    for (int64_t i = 0; i < length; i++) {
        const json_t *id = json_array_get(ids, (size_t)i), *p = i ? json_array_get(logprobs, (size_t)i - 1) : NULL;
        json_int_t value = json_integer_value(id);

        if (!json_is_integer(id) || value < 0 || value >= c->vocab)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: ids[%lld] is no id of this model's vocabulary", where, (long long)i));
        if (i && !json_is_number(p))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: logprobs[%lld] is no number", where, (long long)(i - 1)));
        if (i + 1 < length)
            s->id[i] = (int32_t)value;
        if (i) {
            s->target[i - 1] = (int32_t)value;
            s->theirs[i - 1] = json_number_value(p);
        }
    }
    *n = length - 1;
out:
    return st;
}

static enum cairn_status score(struct scorer *s, int64_t n, struct cairn_error *err)
{
    int32_t start = 0;
    struct cairn_batch b = {.n = n, .id = s->id, .pos = s->pos, .seq = s->seq, .nseq = 1, .start = &start};
    struct cairn_scores scores;
    struct cairn_tensor logprob;
    enum cairn_status st = CAIRN_OK;

    for (int64_t i = 0; i < n; i++) {
        s->pos[i] = (int32_t)i;
        s->seq[i] = 0;
    }
    TRY(cairn_forward(s->pass, &b, s->target, 1.0f, &scores, err));
    logprob = cairn_tensor_slice(&scores.logprob, 0, 0, n);
    TRY(cairn_tensor_get(&s->x->k.stream, &logprob, s->ours, (size_t)n * sizeof *s->ours, err));
out:
    return st;
}

static enum cairn_status compare(struct scorer *s, int64_t n, const char *where, struct cairn_error *err)
{
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)s->ours[i] - s->theirs[i]);

        s->mean += d;
        s->max = fmax(s->max, d);
        if (!(d <= CAIRN_NUMERICS_BAND))
            return cairn_fail(err, CAIRN_ENUMERIC,
                              "right: the reference (%s) gives token %lld log-probability %.6g, this system %.6g; %.3g apart would do", where,
                              (long long)(i + 1), s->theirs[i], (double)s->ours[i], CAIRN_NUMERICS_BAND);
    }
    s->tokens += n;
    s->lines++;
    return CAIRN_OK;
}

enum cairn_status cairn_reference_check(struct cairn_sides *x, const char *against, const char *file, json_t *report, struct cairn_error *err)
{
    struct scorer s = {.x = x};
    struct cairn_jsonl *lines = NULL;
    enum cairn_status st = CAIRN_OK;
    const json_t *v = NULL;
    int64_t n;

    TRY(cairn_policy_open(&s.policy, against ? against : x->base, &(struct cairn_policy_opts){.quiet = 1}, &x->k, err));
    s.model = (struct cairn_model){.k = &x->k, .config = &s.policy.config, .weights = &s.policy.weights, .segments = x->model.segments};
    TRY(cairn_jsonl_open(&lines, file, err));
    for (;;) {
        TRY(cairn_stage_stopping(err));
        TRY(cairn_jsonl_next(lines, &v, err));
        if (!v)
            break;
        TRY(line_read(&s, v, cairn_jsonl_where(lines), &n, err));
        TRY(score(&s, n, err));
        TRY(compare(&s, n, cairn_jsonl_where(lines), err));
    }
    if (!s.lines)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: there is no line in it", file));
    if (json_object_set_new(report, "reference",
                            json_pack("{s:I, s:I, s:f, s:f, s:f}", "lines", (json_int_t)s.lines, "tokens", (json_int_t)s.tokens, "mean",
                                      s.mean / (double)s.tokens, "max", s.max, "band", CAIRN_NUMERICS_BAND)))
        TRY(CAIRN_NOMEM(err));
out:
    cairn_jsonl_close(lines);
    scorer_free(&s);
    cairn_policy_close(&s.policy);
    return st;
}
