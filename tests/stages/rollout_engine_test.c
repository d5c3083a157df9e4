/* rollout_engine_test.c - the sampler against one sequence at a time through the packed forward, which knows no cache, no batch and
 * no fork: tokens and log-probabilities must be the same bits whatever slots, pages, budgets, order and threads are. */
#include "../runtime/model/tiny.h"

#include "base/signals.h"
#include "stages/rollout/engine.h"

#define GROUPS  7
#define MAX_NEW 22
#define CHOICES 8 /* at most, of experts a token */

struct result {
    int32_t tokens[MAX_NEW];
    float logprobs[MAX_NEW], sampled[MAX_NEW];
    int64_t n;
    enum cairn_finish finish;
    int told;
    int32_t experts[64 * CHOICES]; /* of all tokens but the last */
};

struct work {
    int64_t choices; /* of experts a token; 0: they are not looked at */
    int groups, samples[GROUPS];
    int64_t length[GROUPS], max_new[GROUPS];
    int32_t *prompt[GROUPS];
    struct result *r[GROUPS];
};

static const int32_t stop[] = {3, 17, 44, 90};

static struct cairn_engine_opts options(void)
{
    return (struct cairn_engine_opts){
        .batch = 8, .page = 4, .max_length = 80, .seed = 11, .step = 3, .temperature = 0.9f, .top_p = 1, .stop = stop, .stops = 4};
}

static void work_make(struct work *w, uint64_t salt)
{
    static const int64_t lengths[GROUPS] = {9,  1, 13, 5,
                                            30, 2, 8}; /* 13 and 5: the shared part ends a page of 4; 1: nothing is shared */
    static const int samples[GROUPS] = {4, 3, 2, 5, 1, 4, 6};
    uint64_t counter = salt * 1000;

    memset(w, 0, sizeof *w);
    w->groups = GROUPS;
    for (int g = 0; g < GROUPS; g++) {
        w->length[g] = lengths[g];
        w->samples[g] = samples[g];
        w->max_new[g] = g == 5 ? 1 : MAX_NEW - g;
        w->prompt[g] = calloc((size_t)lengths[g], sizeof **w->prompt);
        w->r[g] = calloc((size_t)samples[g], sizeof **w->r);
        for (int64_t i = 0; i < lengths[g]; i++)
            w->prompt[g][i] = (int32_t)tiny_draw(&counter, 120);
    }
}

static void work_free(struct work *w)
{
    for (int g = 0; g < GROUPS; g++) {
        free(w->prompt[g]);
        free(w->r[g]);
    }
}

static void work_clear(struct work *w)
{
    for (int g = 0; g < GROUPS; g++)
        memset(w->r[g], 0, (size_t)w->samples[g] * sizeof **w->r);
}

static enum cairn_status tell(void *arg, const struct cairn_response *r, struct cairn_error *err)
{
    struct work *w = arg;
    struct result *to = &w->r[r->tag][r->sample];

    (void)err;
    assert_true(r->tag >= 0 && r->tag < w->groups && r->sample >= 0 && r->sample < w->samples[r->tag] && r->n <= MAX_NEW);
    to->told++;
    to->n = r->n;
    to->finish = r->finish;
    memcpy(to->tokens, r->tokens, (size_t)r->n * sizeof *r->tokens);
    memcpy(to->logprobs, r->logprobs, (size_t)r->n * sizeof *r->logprobs);
    if (r->logprobs_sampled)
        memcpy(to->sampled, r->logprobs_sampled, (size_t)r->n * sizeof *r->logprobs_sampled);
    assert_true((r->experts != NULL) == (w->choices > 0));
    if (w->choices) {
        int64_t prompt = (w->length[r->tag] - 1) * w->choices;

        memcpy(to->experts, r->experts_prompt, (size_t)prompt * sizeof *to->experts);
        memcpy(to->experts + prompt, r->experts, (size_t)(r->n * w->choices) * sizeof *to->experts);
    }
    return CAIRN_OK;
}

static struct cairn_request request(const struct work *w, int g)
{
    return (struct cairn_request){.prompt = w->prompt[g],
                                  .length = w->length[g],
                                  .max_new = w->max_new[g],
                                  .samples = w->samples[g],
                                  .key = 100 + g,
                                  .first_sample = g == 3 ? 40 : 0,
                                  .tag = g};
}

/* The definition: run the whole sequence, draw from its last row, again. */
static void reference(struct tiny *t, const struct cairn_engine_opts *o, struct work *w)
{
    struct cairn_buffer *buf = NULL;
    struct cairn_tensor one[6];
    struct cairn_pass *pass = NULL;
    const int64_t n1 = 1;

    OK(cairn_pass_create(&pass, &t->m, &(struct cairn_pass_opts){.max_rows = 64, .max_seqs = 1, .experts = o->experts}, err));
    OK(cairn_buffer_create(t->k.dev, 6 * 64, &buf, err));
    for (int i = 0; i < 6; i++)
        OK(cairn_tensor_view(&one[i], buf, (size_t)i * 64, i < 4 ? CAIRN_I32 : CAIRN_F32, 1, &n1, err));
    for (int g = 0; g < w->groups; g++)
        for (int s = 0; s < w->samples[g]; s++) {
            struct cairn_request q = request(w, g);
            struct result *r = &w->r[g][s];
            int32_t ids[64];

            memcpy(ids, q.prompt, (size_t)q.length * sizeof *ids);
            for (int done = 0; !done;) {
                int64_t n = q.length + r->n, len[1] = {n};
                const int32_t *p[1] = {ids};
                struct tiny_batch b = tiny_batch(1, len, p);
                struct cairn_tensor logits;
                int32_t word[3] = {q.key, q.first_sample + s, (int32_t)n}, token;
                struct cairn_sample a = {.prompt = one[0],
                                         .sample = one[1],
                                         .position = one[2],
                                         .token = one[3],
                                         .logprob = one[4],
                                         .logprob_sampled = one[5],
                                         .seed = o->seed,
                                         .step = o->step,
                                         .inv_temperature = 1 / o->temperature,
                                         .top_p = o->top_p,
                                         .min_p = o->min_p,
                                         .top_k = o->top_k,
                                         .greedy = o->greedy,
                                         .segments = 1};

                OK(cairn_forward_logits(pass, &b.b, &logits, err));
                a.logits = cairn_tensor_slice(&logits, 0, n - 1, 1);
                for (int i = 0; i < 3; i++)
                    OK(cairn_tensor_set(&t->k.stream, &one[i], &word[i], 4, err));
                OK(t->k.ops.sample(&t->k.stream, &a, err));
                OK(cairn_tensor_get(&t->k.stream, &one[3], &token, 4, err));
                OK(cairn_tensor_get(&t->k.stream, &one[4], &r->logprobs[r->n], 4, err));
                OK(cairn_tensor_get(&t->k.stream, &one[5], &r->sampled[r->n], 4, err));
                ids[n] = r->tokens[r->n++] = token;
                for (size_t i = 0; i < sizeof stop / sizeof *stop; i++)
                    if (token == stop[i])
                        done = 1;
                r->finish = done ? CAIRN_FINISH_STOP : CAIRN_FINISH_LENGTH;
                done |= r->n == q.max_new;
                if (done && o->experts) { /* as the packed forward has them: by layer, then by row */
                    const struct cairn_tensor c = cairn_pass_choices(pass);
                    int32_t h[64 * CHOICES];

                    assert_true(c.dim[1] == n && c.dim[0] * c.dim[2] == w->choices && w->choices <= CHOICES);
                    OK(cairn_tensor_get(&t->k.stream, &c, h, cairn_tensor_bytes(&c), err));
                    for (int64_t row = 0; row < n; row++)
                        for (int64_t k = 0; k < w->choices; k++)
                            r->experts[row * w->choices + k] = h[(k / c.dim[2] * n + row) * c.dim[2] + k % c.dim[2]];
                }
                tiny_batch_free(&b);
            }
            r->told = 1;
        }
    cairn_buffer_destroy(buf);
    cairn_pass_destroy(pass);
}

/* How many tokens were compared. */
static int64_t same(const struct work *a, const struct work *b, int sampled, const char *why)
{
    int64_t tokens = 0;

    for (int g = 0; g < a->groups; g++)
        for (int s = 0; s < a->samples[g]; s++) {
            const struct result *x = &a->r[g][s], *y = &b->r[g][s];

            if (x->told != 1 || y->told != 1)
                fail_msg("%s: group %d sample %d was told %d times", why, g, s, y->told);
            if (x->n != y->n || x->finish != y->finish || memcmp(x->tokens, y->tokens, (size_t)x->n * 4))
                fail_msg("%s: group %d sample %d has other tokens", why, g, s);
            if (memcmp(x->logprobs, y->logprobs, (size_t)x->n * 4) || (sampled && memcmp(x->sampled, y->sampled, (size_t)x->n * 4)))
                fail_msg("%s: group %d sample %d has other log-probabilities", why, g, s);
            if (memcmp(x->experts, y->experts, (size_t)((a->length[g] + x->n - 1) * a->choices) * sizeof *x->experts))
                fail_msg("%s: group %d sample %d has other experts", why, g, s);
            tokens += x->n;
        }
    return tokens;
}

static void sample_all(struct tiny *t, const struct cairn_engine_opts *o, struct work *w, int backwards,
                       struct cairn_engine_stats *stats)
{
    struct cairn_engine *e = NULL;

    work_clear(w);
    OK(cairn_engine_create(&e, &t->m, o, err));
    for (int i = 0; i < w->groups; i++) {
        struct cairn_request q = request(w, backwards ? w->groups - 1 - i : i);

        OK(cairn_engine_submit(e, &q, err));
    }
    OK(cairn_engine_run(e, tell, w, err));
    assert_true(cairn_engine_idle(e));
    if (stats)
        *stats = cairn_engine_stats(e);
    cairn_engine_destroy(e);
}

static void test_independent(void **state)
{
    static const struct {
        int batch, page, pages, prefill, no_sharing, backwards, threads;
        const char *why;
    } table[] = {
        {8, 4, 0, 0, 0, 0, 1, "plain"},
        {1, 4, 0, 0, 0, 0, 1, "one at a time"},
        {25, 4, 0, 0, 0, 0, 2, "all at once, two threads"},
        {8, 4, 0, 1, 0, 0, 1, "prompts a token a call"},
        {8, 4, 0, 3, 0, 1, 2, "prompts in threes, last group first"},
        {8, 1, 0, 0, 0, 0, 1, "pages of one"},
        {8, 64, 0, 0, 0, 1, 1, "pages of 64"},
        {8, 4, 0, 0, 1, 0, 1, "nothing shared"},
        {1, 4, 12, 7, 0, 0, 1, "the smallest cache, one slot"}, /* 30 + 18 - 1 = 47 positions: 12 pages */
        {8, 4, 12, 7, 0, 0, 1, "the smallest cache, more slots"},
        {64, 4, 12, 500, 0, 1, 1, "the smallest cache, many slots, backwards"},
        {8, 4, 13, 0, 0, 0, 1, "one page more"},
        {8, 4, 17, 2, 0, 1, 1, "five pages more"},
        {8, 1, 47, 5, 1, 0, 1, "the smallest cache of single positions, nothing shared"},
        {16, 16, 3, 9, 0, 0, 2, "three pages of 16"},
    };
    struct cairn_engine_opts o = options();
    struct work want, got;
    struct tiny t;
    int64_t tokens = 0;

    (void)state;
    tiny_open(&t, "cpu", 1, TINY_SPARSE, 1);
    work_make(&want, 1);
    work_make(&got, 1);
    want.choices = got.choices = cairn_engine_choices(t.m.config);
    assert_true(want.choices > 0);
    o.experts = 1;
    reference(&t, &o, &want);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        o = options();
        o.batch = table[i].batch;
        o.page = table[i].page;
        o.pages = table[i].pages;
        o.prefill = table[i].prefill;
        o.no_sharing = table[i].no_sharing;
        o.experts = 1;
        t.k.backend->set_threads(t.k.dev, table[i].threads);
        sample_all(&t, &o, &got, table[i].backwards, NULL);
        tokens += same(&want, &got, 0, table[i].why);
    }
    print_message("%lld tokens compared\n", (long long)tokens);
    assert_true(tokens > 2000);
    work_free(&want);
    work_free(&got);
    tiny_close(&t);
}

static void test_ways_to_draw(void **state)
{
    static const struct {
        float temperature, top_p, min_p;
        int top_k, greedy;
        const char *backend, *why;
    } table[] = {
        {0.5f, 1, 0, 0, 0, "cpu", "cold"},
        {2, 0.8f, 0, 0, 0, "cpu", "top-p"},
        {1, 1, 0.05f, 0, 0, "cpu", "min-p"},
        {1, 1, 0, 5, 0, "cpu", "top-k"},
        {1, 0.9f, 0.02f, 30, 0, "cpu", "all"},
        {0.7f, 1, 0, 0, 1, "cpu", "greedy"},
        {0.8f, 0.9f, 0, 0, 0, "guard", "guarded memory"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct cairn_engine_opts o = options();
        struct work want, got;
        struct tiny t;

        o.temperature = table[i].temperature;
        o.top_p = table[i].top_p;
        o.min_p = table[i].min_p;
        o.top_k = table[i].top_k;
        o.greedy = table[i].greedy;
        o.sampled = 1;
        tiny_open(&t, table[i].backend, 1, TINY_SPARSE, 0);
        work_make(&want, 2);
        work_make(&got, 2);
        want.groups = got.groups = 4;
        reference(&t, &o, &want);
        sample_all(&t, &o, &got, 0, NULL);
        same(&want, &got, 1, table[i].why);
        if (o.greedy) /* no draw: all samples of a group are one */
            assert_memory_equal(got.r[0][0].tokens, got.r[0][3].tokens, (size_t)got.r[0][0].n * 4);
        else /* and else they are not */
            assert_true(got.r[0][0].n != got.r[0][3].n ||
                        memcmp(got.r[0][0].tokens, got.r[0][3].tokens, (size_t)got.r[0][0].n * 4));
        work_free(&want);
        work_free(&got);
        tiny_close(&t);
    }
}

/* The trainer's packed forward on prompt and response gives the sampler's log-probabilities. */
static void test_trainer_agrees(void **state)
{
    struct cairn_engine_opts o = options();
    struct cairn_pass *pass = NULL;
    struct cairn_scores scores;
    struct tiny_batch b;
    int64_t len[32], rows = 0, at = 0;
    int32_t *ids[32];
    struct work w;
    struct tiny t;
    float *lp;
    int n = 0;

    (void)state;
    tiny_open(&t, "cpu", 2, TINY_SPARSE, 1);
    work_make(&w, 3);
    sample_all(&t, &o, &w, 0, NULL);
    for (int g = 0; g < GROUPS; g++)
        for (int s = 0; s < w.samples[g]; s++, n++) {
            len[n] = w.length[g] + w.r[g][s].n;
            rows += len[n];
            ids[n] = calloc((size_t)len[n], sizeof **ids);
            memcpy(ids[n], w.prompt[g], (size_t)w.length[g] * 4);
            memcpy(ids[n] + w.length[g], w.r[g][s].tokens, (size_t)w.r[g][s].n * 4);
        }
    b = tiny_batch(n, len, (const int32_t *const *)ids);
    OK(cairn_pass_create(&pass, &t.m, &(struct cairn_pass_opts){.max_rows = rows, .max_seqs = n, .train = 1}, err));
    OK(cairn_forward(pass, &b.b, b.target, o.temperature, &scores, err));
    lp = tiny_get(&t.k, &scores.logprob);
    n = 0;
    for (int g = 0; g < GROUPS; g++)
        for (int s = 0; s < w.samples[g]; at += len[n++], s++)
            assert_memory_equal(lp + at + w.length[g] - 1, w.r[g][s].logprobs, (size_t)w.r[g][s].n * 4);
    free(lp);
    for (int i = 0; i < n; i++)
        free(ids[i]);
    tiny_batch_free(&b);
    cairn_pass_destroy(pass);
    work_free(&w);
    tiny_close(&t);
}

static void test_sharing_saves(void **state)
{
    struct cairn_engine_stats shared, alone;
    struct cairn_engine_opts o = options();
    struct work w;
    struct tiny t;
    int64_t prompts = 0, each = 0;

    (void)state;
    tiny_open(&t, "cpu", 1, TINY_SPARSE, 0);
    work_make(&w, 4);
    for (int g = 0; g < GROUPS; g++) {
        prompts += w.length[g] - 1;
        each += (w.length[g] - 1) * w.samples[g];
    }
    o.batch = 25;
    sample_all(&t, &o, &w, 0, &shared);
    o.no_sharing = 1;
    sample_all(&t, &o, &w, 0, &alone);
    assert_int_equal(shared.prompt_tokens, prompts); /* one prefill a group */
    assert_int_equal(alone.prompt_tokens, each);
    assert_true(shared.most_pages < alone.most_pages);
    assert_int_equal(shared.response_tokens, alone.response_tokens);
    work_free(&w);
    tiny_close(&t);
}

static void test_refused(void **state)
{
    static int32_t prompt[5000] = {5}, odd[] = {5, 120};
    static const struct {
        const int32_t *prompt;
        int64_t length, max_new;
        enum cairn_status expected;
        const char *why;
    } table[] = {
        {prompt, 20, 13, CAIRN_OK, "32 positions, exactly the cache"},
        {prompt, 20, 14, CAIRN_EUSAGE, "one more"},
        {prompt, 4096, 1, CAIRN_EUSAGE, "all of the model's positions"},
        {prompt, 4096, 2, CAIRN_EDATA, "more than the model's positions"},
        {prompt, 4097, 1, CAIRN_EDATA, "prompt longer than the model's positions"},
        {prompt, 5, INT64_MAX, CAIRN_EDATA, "overflow"},
        {odd, 2, 3, CAIRN_EDATA, "id outside the vocabulary"},
        {prompt, 0, 3, CAIRN_EBUG, "no prompt"},
    };
    struct cairn_engine_opts o = options();
    struct cairn_engine *e = NULL;
    struct tiny t;

    (void)state;
    o.pages = 8;
    o.max_length = 4000;
    tiny_open(&t, "cpu", 1, TINY_SPARSE, 0);
    OK(cairn_engine_create(&e, &t.m, &o, err));
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct cairn_error err = {0};
        struct cairn_request q = {.prompt = table[i].prompt, .length = table[i].length, .max_new = table[i].max_new, .samples = 2};

        if (cairn_engine_submit(e, &q, &err) != table[i].expected)
            fail_msg("%s: %s", table[i].why, err.text);
    }
    cairn_engine_destroy(e); /* with one request waiting */
    tiny_close(&t);
}

static int ended_by_tens(void *arg, const int32_t *r, int64_t n)
{
    (void)arg;
    return n > 2 && r[n - 1] % 10 == 0;
}

static void test_ended(void **state)
{
    struct cairn_engine_opts o = options();
    struct work w;
    struct tiny t;
    int stopped = 0;

    (void)state;
    o.stops = 0;
    o.ended = ended_by_tens;
    tiny_open(&t, "cpu", 1, TINY_SPARSE, 0);
    work_make(&w, 5);
    sample_all(&t, &o, &w, 0, NULL);
    for (int g = 0; g < GROUPS; g++)
        for (int s = 0; s < w.samples[g]; s++) {
            const struct result *r = &w.r[g][s];

            for (int64_t i = 2; i < r->n; i++)
                if (r->tokens[i] % 10 == 0)
                    assert_true(i == r->n - 1 && r->finish == CAIRN_FINISH_STOP);
            if (r->finish == CAIRN_FINISH_LENGTH)
                assert_int_equal(r->n, w.max_new[g]);
            stopped += r->finish == CAIRN_FINISH_STOP;
        }
    assert_true(stopped > 3);
    work_free(&w);
    tiny_close(&t);
}

static void test_abort(void **state)
{
    struct cairn_engine_opts o = options();
    struct cairn_engine *e = NULL;
    struct work w;
    struct tiny t;
    int aborted = 0, whole = 0, never = 0;

    (void)state;
    o.batch = 4;
    tiny_open(&t, "cpu", 1, TINY_SPARSE, 0);
    work_make(&w, 6);
    OK(cairn_engine_create(&e, &t.m, &o, err));
    for (int g = 0; g < GROUPS; g++) {
        struct cairn_request q = request(&w, g);

        OK(cairn_engine_submit(e, &q, err));
    }
    for (int i = 0; i < 30; i++)
        OK(cairn_engine_step(e, tell, &w, err));
    OK(cairn_engine_abort(e, tell, &w, err));
    assert_true(cairn_engine_idle(e));
    for (int g = 0; g < GROUPS; g++)
        for (int s = 0; s < w.samples[g]; s++) {
            assert_true(w.r[g][s].told <= 1);
            if (!w.r[g][s].told)
                never++;
            else if (w.r[g][s].finish == CAIRN_FINISH_ABORTED)
                aborted++;
            else
                whole++;
        }
    assert_true(aborted > 0 && aborted <= 4 && whole > 0 && never > 0);
    work_clear(&w); /* and it goes on as if new */
    for (int g = 0; g < GROUPS; g++) {
        struct cairn_request q = request(&w, g);

        OK(cairn_engine_submit(e, &q, err));
    }
    OK(cairn_engine_run(e, tell, &w, err));
    for (int g = 0; g < GROUPS; g++)
        for (int s = 0; s < w.samples[g]; s++)
            assert_int_equal(w.r[g][s].told, 1);
    cairn_engine_destroy(e);
    work_free(&w);
    tiny_close(&t);
}

/* Random requests in random small caches: everything is told once; now and then every token is held against the reference. */
static void test_never_stalls(void **state)
{
    struct work want, got;
    struct tiny t;
    uint64_t counter = 424242;

    (void)state;
    tiny_open(&t, "cpu", 1, TINY_SPARSE, 0);
    for (int round = 0; round < 60; round++) {
        struct cairn_engine_opts o = options();
        int smallest = 0;

        work_make(&want, 10 + (uint64_t)round % 3);
        work_make(&got, 10 + (uint64_t)round % 3);
        o.page = 1 << tiny_draw(&counter, 5);
        for (int g = 0; g < GROUPS; g++) {
            int pages = (int)((cairn_engine_positions(got.length[g], got.max_new[g]) - 1) / o.page + 1);

            smallest = pages > smallest ? pages : smallest;
        }
        o.pages = smallest + (int)tiny_draw(&counter, (uint32_t)smallest * 2);
        o.batch = 1 + (int)tiny_draw(&counter, 70);
        o.prefill = 1 + (int)tiny_draw(&counter, 12);
        o.no_sharing = tiny_draw(&counter, 5) == 0;
        sample_all(&t, &o, &got, (int)tiny_draw(&counter, 2), NULL);
        if (round % 20 == 0) { /* the reference is slow */
            reference(&t, &o, &want);
            same(&want, &got, 0, "random cache");
        }
        for (int g = 0; g < GROUPS; g++)
            for (int s = 0; s < got.samples[g]; s++)
                assert_int_equal(got.r[g][s].told, 1);
        work_free(&want);
        work_free(&got);
    }
    tiny_close(&t);
}

static void test_stop_requested(void **state) /* last: the flag stays */
{
    struct cairn_engine_opts o = options();
    struct cairn_engine *e = NULL;
    struct cairn_error err = {0};
    struct work w;
    struct tiny t;

    (void)state;
    tiny_open(&t, "cpu", 1, TINY_SPARSE, 0);
    work_make(&w, 7);
    assert_int_equal(cairn_engine_create(&e, &t.m, &o, &err), CAIRN_OK);
    for (int g = 0; g < GROUPS; g++) {
        struct cairn_request q = request(&w, g);

        assert_int_equal(cairn_engine_submit(e, &q, &err), CAIRN_OK);
    }
    for (int i = 0; i < 5; i++)
        assert_int_equal(cairn_engine_step(e, tell, &w, &err), CAIRN_OK);
    cairn_stop_request(15);
    assert_int_equal(cairn_engine_step(e, tell, &w, &err), CAIRN_EAGAIN);
    assert_int_equal(cairn_engine_run(e, tell, &w, &err), CAIRN_EAGAIN);
    cairn_engine_destroy(e); /* with samples living, prompts kept and requests waiting */
    work_free(&w);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_independent),   cmocka_unit_test(test_ways_to_draw), cmocka_unit_test(test_trainer_agrees),
        cmocka_unit_test(test_sharing_saves), cmocka_unit_test(test_refused),      cmocka_unit_test(test_ended),
        cmocka_unit_test(test_abort),         cmocka_unit_test(test_never_stalls), cmocka_unit_test(test_stop_requested),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
