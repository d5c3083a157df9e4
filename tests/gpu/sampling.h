/* sampling.h - what bench_model.c does with an engine: rollouts, recorded calls, decoding op by op, and bits against the trainer's. Included by that
 * program alone.
 */
#ifndef TESTS_GPU_SAMPLING_H
#define TESTS_GPU_SAMPLING_H

#include "turns.h"

#include "stages/rollout/engine.h"

static int unequal; /* commands whose bits did not hold */

struct sampled { /* prompt and response of one sample */
    int32_t *id;
    float *logprob; /* of the response */
    int64_t prompt, n, tag;
};

struct samples {
    struct sampled *s;
    int n, room;
    const struct rows *prompts; /* sequence `tag` is the prompt */
};

static enum cairn_status keep(void *arg, const struct cairn_response *r, struct cairn_error *err)
{
    struct samples *l = arg;
    const struct rows *p = l->prompts;
    int64_t begin = p->start[r->tag], prompt = (r->tag + 1 < p->b.nseq ? p->start[r->tag + 1] : p->b.n) - begin;
    struct sampled *s;

    if (l->n == l->room)
        return CAIRN_BUG(err, "more samples than were asked for");
    s = &l->s[l->n];
    s->id = malloc((size_t)(prompt + r->n) * sizeof *s->id);
    s->logprob = malloc((size_t)r->n * sizeof *s->logprob);
    if (!s->id || !s->logprob)
        return CAIRN_NOMEM(err);
    memcpy(s->id, p->id + begin, (size_t)prompt * sizeof *s->id);
    memcpy(s->id + prompt, r->tokens, (size_t)r->n * sizeof *s->id);
    memcpy(s->logprob, r->logprobs, (size_t)r->n * sizeof *s->logprob);
    s->prompt = prompt;
    s->n = r->n;
    s->tag = r->tag;
    l->n++;
    return CAIRN_OK;
}

static enum cairn_status forget(void *arg, const struct cairn_response *r, struct cairn_error *err)
{
    (void)err;
    *(int64_t *)arg += r->n;
    return CAIRN_OK;
}

static void samples_free(struct samples *l)
{
    for (int i = 0; i < l->room; i++) {
        free(l->s[i].id);
        free(l->s[i].logprob);
    }
    free(l->s);
}

static struct cairn_engine_opts engine_opts(int batch, int page, int prefill, int64_t longest, int graphs)
{
    return (struct cairn_engine_opts){
        .batch = batch, .page = page, .prefill = prefill, .max_length = longest, .seed = 11, .step = 1, .temperature = 1, .graphs = graphs};
}

static enum cairn_status engine_make(struct cairn_engine **e, struct subject *s, int batch, int page, int prefill, int64_t longest, int graphs,
                                     struct cairn_error *err)
{
    const struct cairn_engine_opts o = engine_opts(batch, page, prefill, longest, graphs);

    return cairn_engine_create(e, &s->m, &o, err);
}

static enum cairn_status submit(struct cairn_engine *e, const struct rows *p, int i, int64_t max_new, int samples,
                                struct cairn_error *err)
{
    int64_t end = i + 1 < p->b.nseq ? p->start[i + 1] : p->b.n;

    return cairn_engine_submit(
        e,
        &(struct cairn_request){
            .prompt = p->id + p->start[i], .length = end - p->start[i], .max_new = max_new, .samples = samples, .key = i, .tag = i},
        err);
}

static enum cairn_status rollout(struct subject *s, const int64_t *v, int n, struct cairn_error *err)
{
    struct cairn_engine *e = NULL;
    struct rows p = {0};
    int64_t tokens = 0, steps = 0;
    double begin = 0, first = 0, end;
    enum cairn_status st = CAIRN_OK;

    (void)n;
    TRY(rows_random(&p, s, (int)v[0], v[1], err));
    TRY(engine_make(&e, s, (int)v[0], 64, 8192, v[1] + v[2], 1, err));
    for (int turn = 0; turn < 2; turn++) { /* the first one warms up */
        tokens = steps = 0;
        for (int i = 0; i < v[0]; i++)
            TRY(submit(e, &p, i, turn ? v[2] : v[2] < 8 ? v[2] : 8, 1, err));
        TRY(cairn_stream_wait(&s->k.stream, err));
        begin = cairn_now_s();
        while (!cairn_engine_idle(e)) {
            TRY(cairn_engine_step(e, forget, &tokens, err));
            if (!steps++)
                first = cairn_now_s();
        }
    }
    end = cairn_now_s();
    printf("{\"what\":\"rollout,%lld,%lld,%lld\",\"tok_s\":%.1f,\"ms_a_call\":%.4f,\"first_ms\":%.3f,\"calls\":%lld,\"replayed\":%lld,\"engine_gb\":%"
           ".3f}\n",
           (long long)v[0], (long long)v[1], (long long)v[2], (double)tokens / (end - begin),
           1e3 * (end - first) / (double)(steps - 1), 1e3 * (first - begin), (long long)steps,
           (long long)cairn_engine_stats(e).replayed, (double)cairn_engine_bytes(e) * 1e-9);
out:
    cairn_engine_destroy(e);
    rows_free(&p);
    return st;
}

static int by_prompt(const void *a, const void *b)
{
    const struct sampled *x = a, *y = b;

    return x->tag < y->tag ? -1 : x->tag > y->tag;
}

static enum cairn_status graphs(struct subject *s, const int64_t *v, int n, struct cairn_error *err)
{
    struct samples got[2] = {{.s = calloc((size_t)v[0], sizeof(struct sampled)), .room = (int)v[0]},
                             {.s = calloc((size_t)v[0], sizeof(struct sampled)), .room = (int)v[0]}};
    struct cairn_engine *e = NULL;
    struct rows p = {0};
    double took[2] = {0, 0};
    int64_t tokens = 0, bad = 0, replayed[2];
    enum cairn_status st = CAIRN_OK;

    (void)n;
    if (!got[0].s || !got[1].s)
        TRY(CAIRN_NOMEM(err));
    TRY(rows_random(&p, s, (int)v[0], v[1], err));
    for (int on = 0; on < 2; on++) {
        got[on].prompts = &p;
        TRY(engine_make(&e, s, (int)v[0], 64, 8192, v[1] + v[2], on, err));
        for (int i = 0; i < v[0]; i++) /* of several lengths: sequences leave one after the other, the number of rows changes */
            TRY(submit(e, &p, i, v[2] - i % 4 * (v[2] / 8), 1, err));
        TRY(cairn_stream_wait(&s->k.stream, err));
        took[on] = cairn_now_s();
        TRY(cairn_engine_run(e, keep, &got[on], err));
        took[on] = cairn_now_s() - took[on];
        replayed[on] = cairn_engine_stats(e).replayed;
        cairn_engine_destroy(e);
        e = NULL;
        qsort(got[on].s, (size_t)got[on].n, sizeof *got[on].s, by_prompt);
    }
    bad += got[0].n != v[0] || got[1].n != v[0] || replayed[0] || (cairn_graphs_there(s->k.dev) && !replayed[1]);
    for (int i = 0; i < got[0].n && i < got[1].n; i++) {
        const struct sampled *a = &got[0].s[i], *b = &got[1].s[i];

        tokens += a->n;
        if (a->n != b->n || memcmp(a->id, b->id, (size_t)(a->prompt + a->n) * sizeof *a->id) ||
            memcmp(a->logprob, b->logprob, (size_t)a->n * sizeof *a->logprob))
            bad++;
    }
    unequal += bad != 0;
    printf("{\"what\":\"graphs,%lld,%lld,%lld\",\"tokens\":%lld,\"unequal_samples\":%lld,\"replayed\":%lld,\"off_s\":%.4f,\"on_s\":%.4f}\n",
           (long long)v[0], (long long)v[1], (long long)v[2], (long long)tokens, (long long)bad, (long long)replayed[1], took[0], took[1]);
out:
    cairn_engine_destroy(e);
    samples_free(&got[0]);
    samples_free(&got[1]);
    rows_free(&p);
    return st;
}

static enum cairn_status decode(struct subject *s, const int64_t *v, int n, struct cairn_error *err)
{
    struct cairn_engine *e = NULL;
    struct rows p = {0};
    int64_t tokens = 0, calls = 0;
    int watching = 0;
    char what[64];
    enum cairn_status st = CAIRN_OK;

    (void)n;
    snprintf(what, sizeof what, "decoding %lld sequences", (long long)v[0]);
    TRY(rows_random(&p, s, (int)v[0], v[1], err));
    TRY(engine_make(&e, s, (int)v[0], 64, 8192, v[1] + v[2], 0, err));
    for (int i = 0; i < v[0]; i++)
        TRY(submit(e, &p, i, v[2], 1, err));
    while (!cairn_engine_idle(e)) {
        struct cairn_engine_stats before = cairn_engine_stats(e);

        if (!watching && before.response_tokens > 2 * v[0]) {
            watch_begin(&s->k);
            watching = 1;
        }
        TRY(cairn_engine_step(e, forget, &tokens, err));
        calls += watching;
    }
out:
    if (watching)
        watch_end(&s->k, what, calls ? (int)calls : 1);
    cairn_engine_destroy(e);
    rows_free(&p);
    return st;
}

static enum cairn_status timeline(struct subject *s, const int64_t *v, int n, struct cairn_error *err)
{
    struct cairn_engine *e = NULL;
    struct rows p = {0};
    int64_t tokens = 0;
    char what[64];
    enum cairn_status st = CAIRN_OK;

    (void)n;
    if (!cairn_graphs_there(s->k.dev))
        return cairn_fail(err, CAIRN_EDEVICE, "timeline: this back-end records no graphs");
    snprintf(what, sizeof what, "timeline,%lld,%lld", (long long)v[0], (long long)v[1]);
    TRY(rows_random(&p, s, (int)v[0], v[1], err));
    TRY(engine_make(&e, s, (int)v[0], 64, 8192, v[1] + 64, 0, err));
    for (int i = 0; i < v[0]; i++)
        TRY(submit(e, &p, i, 64, 1, err));
    while (cairn_engine_stats(e).response_tokens < 8 * v[0])
        TRY(cairn_engine_step(e, forget, &tokens, err));
    TRY(tape_begin(&s->k, (double)v[1] + 8, err));
    st = cairn_engine_step(e, forget, &tokens, err);
    tape_end(&s->k);
    TRY(st);
    TRY(tape_table(&s->k.stream, what, err));
out:
    cairn_engine_destroy(e);
    rows_free(&p);
    return st;
}

/* One mix: prompts of several lengths, 1 to 4 samples each, through an engine; then the samples packed through the trainer. */
static enum cairn_status bits_mix(struct subject *s, int mix, int64_t rows, int64_t *tokens, int64_t *bad, double *worst,
                                  struct cairn_error *err)
{
    static const int batch[] = {192, 64, 7, 256, 1, 33}, page[] = {64, 16, 1, 128, 64, 8}, chunk[] = {512, 96, 17, 2048, 1, 300};
    int m = mix % 6, prompts = batch[m] < 16 ? 4 * batch[m] : batch[m];
    int64_t longest = batch[m] < 16 ? 200 : 900, at = 0;
    struct samples got = {.s = calloc((size_t)prompts * 4, sizeof(struct sampled)), .room = prompts * 4};
    struct rows p = {0}, pack = {0};
    struct cairn_scores scores;
    struct cairn_engine *e = NULL;
    int32_t *id = malloc((size_t)longest * sizeof *id);
    float *h = malloc((size_t)rows * sizeof *h);
    enum cairn_status st = CAIRN_OK;

    if (!got.s || !id || !h)
        TRY(CAIRN_NOMEM(err));
    got.prompts = &p;
    TRY(rows_make(&p, prompts * longest, prompts, err));
    TRY(rows_make(&pack, rows, 512, err));
    TRY(engine_make(&e, s, batch[m], page[m] * s->config.index_pool, chunk[m], 2 * longest, mix % 2 == 0, err)); /* whole pools a page */
    for (int i = 0; i < prompts; i++) {
        int64_t n = 1 + draw(s, (uint32_t)longest / 2);

        for (int64_t j = 0; j < n; j++)
            id[j] = 3 + (int32_t)draw(s, (uint32_t)s->config.vocab - 3);
        rows_add(&p, id, n);
        TRY(submit(e, &p, i, 1 + draw(s, (uint32_t)longest / 2), 1 + (int)draw(s, 4), err));
    }
    TRY(cairn_engine_run(e, keep, &got, err));
    cairn_engine_destroy(e); /* its cache makes room */
    e = NULL;
    for (int i = 0; i < got.n; i = (int)at) {
        rows_reset(&pack);
        for (at = i; at < got.n && pack.b.nseq < 512 && pack.b.n + got.s[at].prompt + got.s[at].n <= rows; at++)
            rows_add(&pack, got.s[at].id, got.s[at].prompt + got.s[at].n);
        TRY(cairn_forward(s->pass, &pack.b, pack.target, 1, &scores, err));
        TRY(cairn_tensor_get(&s->k.stream, &scores.logprob, h, (size_t)pack.b.n * sizeof *h, err));
        for (int64_t j = i; j < at; j++)
            for (int64_t r = 0; r < got.s[j].n; r++) {
                float a = h[pack.start[j - i] + got.s[j].prompt - 1 + r], b = got.s[j].logprob[r];

                *bad += memcmp(&a, &b, sizeof a) != 0;
                if (!(fabs((double)a - b) <= *worst))
                    *worst = fabs((double)a - b);
                ++*tokens;
            }
    }
out:
    cairn_engine_destroy(e);
    samples_free(&got);
    rows_free(&p);
    rows_free(&pack);
    free(id);
    free(h);
    return st;
}

static enum cairn_status bits(struct subject *s, const int64_t *v, int n, struct cairn_error *err)
{
    double until = cairn_now_s() + (n > 1 ? (double)v[1] : 1e9), worst = 0;
    int64_t tokens = 0, bad = 0, rows = 4096;
    int mix = 0;
    enum cairn_status st = CAIRN_OK;

    TRY(subject_train_room(s, rows, 512, err));
    while (tokens < v[0] && cairn_now_s() < until) {
        int64_t t = 0, b = 0;
        double begin = cairn_now_s();

        TRY(bits_mix(s, mix++, rows, &t, &b, &worst, err));
        printf("# mix %d: %lld tokens, %lld with other bits, %.1f s\n", mix - 1, (long long)t, (long long)b, cairn_now_s() - begin);
        fflush(stdout);
        tokens += t;
        bad += b;
    }
    unequal += bad != 0 || !tokens;
    printf("{\"what\":\"bits\",\"tokens\":%lld,\"unequal\":%lld,\"largest\":%.9g,\"mixes\":%d}\n", (long long)tokens,
           (long long)bad, worst, mix);
out:
    return st;
}

#endif
