/* decode_test.c - the trainer and the sampler are one policy: a token's log-probability has the same bits from the packed forward
 * and through the paged cache, whatever the batch mix, packing, prompt split, page size, forks, threads; before and after the
 * adapter changes. 10^5 tokens and more, drawn at random (Philox, so the same every time).
 */
#include "flash.h"

#ifndef MAX_SEQ /* decode_small_test.c has less */
#define MAX_SEQ 24
#define MAX_LEN 72
#endif
#ifndef OPEN /* decode_flash_test.c has another model */
#define OPEN(t, backend, adapter) tiny_open(t, backend, 2, TINY_SPARSE, adapter)
#endif

struct sequence {
    int32_t id[MAX_LEN];
    int64_t len, at; /* at: next position to run through the cache */
    int64_t written; /* positions whose keys are there: those of earlier calls */
    int slot, group; /* sequences of one group share their first `shared` tokens */
    int64_t shared;
    float *packed; /* [len] log-probabilities of the packed forward, row i: of token i + 1 */
};

struct world {
    struct tiny t;
    struct cairn_pass *train, *sample;
    struct sequence s[MAX_SEQ];
    int n;
    int64_t rows; /* of the sampler's pass; few on the guard, which pays for each page at each op */
    uint64_t rng;
    int64_t tokens, unequal;
};

static void draw_sequences(struct world *w)
{
    w->n = 0;
    while (w->n < MAX_SEQ) {
        int group = w->n, members = 1 + (int)tiny_draw(&w->rng, 6);
        int64_t shared = 1 + tiny_draw(&w->rng, MAX_LEN / 2);

        for (int i = 0; i < members && w->n < MAX_SEQ; i++, w->n++) {
            struct sequence *s = &w->s[w->n];

            *s = (struct sequence){.len = shared + tiny_draw(&w->rng, MAX_LEN / 2), .group = group, .shared = shared, .slot = -1};
            for (int64_t p = 0; p < s->len; p++)
                s->id[p] = p < shared && i ? w->s[group].id[p] : (int32_t)tiny_draw(&w->rng, 120);
        }
    }
}

/* All sequences in a random order, cut into packs of a random size. */
static void run_packed(struct world *w)
{
    int order[MAX_SEQ], done = 0;

    for (int i = 0; i < w->n; i++) {
        int j = (int)tiny_draw(&w->rng, (uint32_t)i + 1);

        order[i] = order[j];
        order[j] = i;
    }
    while (done < w->n) {
        int n = 1 + (int)tiny_draw(&w->rng, 8);
        const int32_t *ids[8];
        int64_t len[8];
        struct tiny_batch b;
        struct cairn_scores scores;
        float *h;

        n = n < w->n - done ? n : w->n - done;
        for (int i = 0; i < n; i++) {
            ids[i] = w->s[order[done + i]].id;
            len[i] = w->s[order[done + i]].len;
        }
        b = tiny_batch(n, len, ids);
        OK(cairn_forward(w->train, &b.b, b.target, 0.8f, &scores, err));
        h = tiny_get(&w->t.k, &scores.logprob);
        for (int i = 0; i < n; i++) {
            struct sequence *s = &w->s[order[done + i]];

            free(s->packed);
            s->packed = malloc((size_t)s->len * sizeof(float));
            assert_non_null(s->packed);
            memcpy(s->packed, h + b.start[i], (size_t)s->len * sizeof(float));
        }
        free(h);
        tiny_batch_free(&b);
        done += n;
    }
}

/* Random pieces of random sequences, until all are through. The first of a group runs the shared tokens, the others fork. */
static void run_cached(struct world *w, struct cairn_cache *cache, int max_piece)
{
    int32_t id[512], pos[512], seq[512], target[512];
    struct {
        struct sequence *s;
        int64_t at;
    } row[512];
    int left = w->n;

    while (left) {
        int64_t n = 0;
        struct cairn_scores scores;
        float *h;

        for (int i = 0; i < w->n; i++) {
            struct sequence *s = &w->s[i], *head = &w->s[s->group];
            int64_t piece = 1 + tiny_draw(&w->rng, (uint32_t)max_piece);
            int fits;

            if (s->at == s->len || tiny_draw(&w->rng, 4) == 0)
                continue;
            if (s->slot < 0) {
                if (s == head)
                    s->slot = cairn_cache_slot(cache);
                else if (head->written == s->shared && head->slot >= 0) { /* while the head stands at the end of the prompt */
                    s->slot = cairn_cache_fork(cache, head->slot);
                    s->at = s->shared;
                }
                if (s->slot < 0 || s->at == s->len) {
                    left -= s->at == s->len;
                    continue;
                }
            }
            if (s == head && s->at < s->shared) /* stop at the end of the prompt, so that the others may fork */
                piece = piece < s->shared - s->at ? piece : s->shared - s->at;
            else if (s == head && s->at == s->shared) {
                int waiting = 0;

                for (int j = 0; j < w->n; j++)
                    waiting |= w->s[j].group == s->group && w->s[j].slot == -1;
                if (waiting)
                    continue;
            }
            piece = piece < s->len - s->at ? piece : s->len - s->at;
            piece = piece < w->rows - n ? piece : w->rows - n;
            if (!piece)
                continue;
            OK(cairn_cache_extend(cache, s->slot, piece, &fits, err));
            if (!fits)
                continue;
            for (int64_t p = 0; p < piece; p++, n++) {
                row[n].s = s;
                row[n].at = s->at;
                id[n] = s->id[s->at];
                pos[n] = (int32_t)s->at;
                seq[n] = s->slot;
                target[n] = ++s->at < s->len ? s->id[s->at] : -1;
            }
            left -= s->at == s->len;
        }
        OK(cairn_forward_cached_scores(w->sample, cache,
                                       &(struct cairn_batch){.n = n, .id = id, .pos = pos, .seq = seq, .nseq = w->n}, target, 0.8f,
                                       &scores, err));
        h = tiny_get(&w->t.k, &scores.logprob);
        for (int64_t i = 0; i < n; i++)
            w->unequal += memcmp(&h[i], &row[i].s->packed[row[i].at], sizeof(float)) != 0;
        w->tokens += n;
        free(h);
        for (int i = 0; i < w->n; i++)
            w->s[i].written = w->s[i].at;
        for (int i = 0; i < w->n; i++) /* slots of finished sequences go at random times; pages are used again */
            if (w->s[i].at == w->s[i].len && w->s[i].slot >= 0 && tiny_draw(&w->rng, 2)) {
                int needed = 0;

                for (int j = 0; j < w->n; j++)
                    needed |= w->s[j].group == i && w->s[j].slot == -1;
                if (!needed) {
                    cairn_cache_free(cache, w->s[i].slot);
                    w->s[i].slot = -2;
                }
            }
    }
    for (int i = 0; i < w->n; i++)
        if (w->s[i].slot >= 0)
            cairn_cache_free(cache, w->s[i].slot);
}

static void open_world(struct world *w, const char *backend, int adapter)
{
    memset(w, 0, sizeof *w);
    OPEN(&w->t, backend, adapter);
    w->rows = strncmp(backend, "guard", 5) ? 512 : 48;
    OK(cairn_pass_create(&w->train, &w->t.m, &(struct cairn_pass_opts){.max_rows = 8 * MAX_LEN, .max_seqs = 8, .train = 1}, err));
    OK(cairn_pass_create(&w->sample, &w->t.m, &(struct cairn_pass_opts){.max_rows = w->rows, .max_seqs = MAX_SEQ, .graphs = 1}, err));
}

static void close_world(struct world *w)
{
    for (int i = 0; i < MAX_SEQ; i++)
        free(w->s[i].packed);
    cairn_pass_destroy(w->train);
    cairn_pass_destroy(w->sample);
    tiny_close(&w->t);
}

static void rounds(struct world *w, int64_t tokens, int change_adapter)
{
    static const int pages[] = {1, 3, 8, 16, 64}, pieces[] = {1, 1, 2, 5, 40};
    struct cairn_cache *cache = NULL;
    int round = 0, all = 0;

    for (int64_t until = w->tokens + tokens; w->tokens < until; round++) {
        int pool = w->t.config.index_pool, page = (pages[tiny_draw(&w->rng, 5)] + pool - 1) / pool * pool;
        struct cairn_cache_opts o = {
            .slots = MAX_SEQ, .pages = (int)(MAX_SEQ * (MAX_LEN / page + 2)), .page = page, .max_length = MAX_LEN};

        if (round % 4 == 0) {
            cairn_cache_destroy(cache);
            cache = NULL;
            OK(cairn_cache_create(&cache, &w->t.config, &w->t.k, &o, err));
            all = o.pages;
        }
        if (change_adapter && round % 3 == 0)
            for (int i = 0; i < w->t.adapter.table.count; i++)
                tiny_random(&w->t.k, &w->t.adapter_weights.tensor[i], 100 + (uint64_t)round, (uint32_t)i, 0.1);
        for (int i = 0; i < MAX_SEQ; i++)
            free(w->s[i].packed);
        draw_sequences(w);
        w->t.k.backend->set_threads(w->t.k.dev, 1 + (int)tiny_draw(&w->rng, 2));
        run_packed(w);
        w->t.k.backend->set_threads(w->t.k.dev, 1 + (int)tiny_draw(&w->rng, 2));
        run_cached(w, cache, pieces[tiny_draw(&w->rng, 5)]);
        assert_int_equal(cairn_cache_free_pages(cache), all);
    }
    cairn_cache_destroy(cache);
}

#ifndef TOKENS
#define TOKENS(backend) tokens_of(backend)
static int64_t tokens_of(const char *backend)
{
    return !strncmp(backend, "guard", 5) ? 1000 : strchr(backend, '/') && !strncmp(backend, "cpu", 3) ? 20000 : 60000;
}
#endif

static void test_base(void **state)
{
    struct world w;

    open_world(&w, *state, 0);
    rounds(&w, TOKENS((const char *)*state), 0);
    assert_int_equal(w.unequal, 0);
    close_world(&w);
}

static void test_adapter(void **state)
{
    struct world w;

    open_world(&w, *state, 1);
    rounds(&w, TOKENS((const char *)*state), 1);
    assert_int_equal(w.unequal, 0);
    close_world(&w);
}

/* Sampling's own log-probability: logits, then op sample, greedy and drawn, against the packed forward of what was drawn. */
static void test_sampled(void **state)
{
    struct world w;
    struct cairn_cache *cache = NULL;
    struct cairn_buffer *buf = NULL;
    struct cairn_tensor token, logprob, prompt, sample, position, logits;
    const int64_t one = MAX_SEQ;
    int32_t id[MAX_SEQ], pos[MAX_SEQ], seq[MAX_SEQ], want[MAX_SEQ];
    float drawn[MAX_SEQ][MAX_LEN], *h;
    int fits, unequal = 0;

    open_world(&w, *state, 1);
    OK(cairn_buffer_create(w.t.k.dev, 5 * sizeof id, &buf, err));
    OK(cairn_tensor_view(&token, buf, 0, CAIRN_I32, 1, &one, err));
    OK(cairn_tensor_view(&logprob, buf, sizeof id, CAIRN_F32, 1, &one, err));
    OK(cairn_tensor_view(&prompt, buf, 2 * sizeof id, CAIRN_I32, 1, &one, err));
    OK(cairn_tensor_view(&sample, buf, 3 * sizeof id, CAIRN_I32, 1, &one, err));
    OK(cairn_tensor_view(&position, buf, 4 * sizeof id, CAIRN_I32, 1, &one, err));
    OK(cairn_cache_create(&cache, &w.t.config, &w.t.k, &(struct cairn_cache_opts){MAX_SEQ, MAX_SEQ * 10, 8, MAX_LEN}, err));
    for (int i = 0; i < MAX_SEQ; i++) {
        w.s[i] = (struct sequence){.len = MAX_LEN, .id = {(int32_t)tiny_draw(&w.rng, 120)}, .slot = cairn_cache_slot(cache)};
        want[i] = i;
    }
    OK(cairn_tensor_set(&w.t.k.stream, &prompt, want, sizeof want, err));
    OK(cairn_tensor_zero(&w.t.k.stream, &sample, err));
    for (int p = 0; p + 1 < MAX_LEN; p++) {
        struct cairn_sample draw = {.prompt = prompt,
                                    .sample = sample,
                                    .position = position,
                                    .token = token,
                                    .logprob = logprob,
                                    .seed = 3,
                                    .step = 1,
                                    .inv_temperature = 1 / 0.8f,
                                    .top_p = p % 3 == 1 ? 0.9f : 1,
                                    .top_k = p % 3 == 2 ? 5 : 0,
                                    .greedy = p % 5 == 0,
                                    .segments = 1};

        for (int i = 0; i < MAX_SEQ; i++) {
            id[i] = w.s[i].id[p];
            pos[i] = p;
            seq[i] = w.s[i].slot;
            OK(cairn_cache_extend(cache, w.s[i].slot, 1, &fits, err));
        }
        OK(cairn_forward_cached(w.sample, cache,
                                &(struct cairn_batch){.n = MAX_SEQ, .id = id, .pos = pos, .seq = seq, .nseq = MAX_SEQ}, want,
                                MAX_SEQ, &logits, err));
        OK(cairn_tensor_set(&w.t.k.stream, &position, pos, sizeof pos, err));
        draw.logits = logits;
        OK(w.t.k.ops.sample(&w.t.k.stream, &draw, err));
        OK(cairn_tensor_get(&w.t.k.stream, &token, id, sizeof id, err));
        h = tiny_get(&w.t.k, &logprob);
        for (int i = 0; i < MAX_SEQ; i++) {
            w.s[i].id[p + 1] = id[i];
            drawn[i][p] = h[i];
        }
        free(h);
    }
    w.n = MAX_SEQ;
    run_packed(&w);
    for (int i = 0; i < MAX_SEQ; i++)
        for (int p = 0; p + 1 < MAX_LEN; p++)
            unequal += memcmp(&drawn[i][p], &w.s[i].packed[p], sizeof(float)) != 0;
    assert_int_equal(unequal, 0);
    /* After two calls that are what they are the third one's recording serves for all: once below index_topk positions, where an indexer
     * has nothing to score, and once from there on. */
    assert_int_equal(cairn_pass_replayed(w.sample), cairn_graphs_there(w.t.k.dev) ? MAX_LEN - 1 - 2 * 2 : 0);
    cairn_cache_destroy(cache);
    cairn_buffer_destroy(buf);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON("cpu", test_base),         ON("cpu", test_adapter),        ON("cpu", test_sampled),   ON("guard", test_base),
        ON("guard", test_adapter),    ON("guard", test_sampled),      ON("cpu/bf16", test_base), ON("cpu/bf16", test_adapter),
        ON("cpu/bf16", test_sampled), ON("guard/bf16", test_adapter),
    };
    const char *name = getenv("CAIRN_TEST_BACKEND"); /* as the conformance tests have it */
    char f32[64], bf16[64];
    const struct CMUnitTest there[] = {
        {"test_base f32", test_base, NULL, NULL, f32},         {"test_adapter f32", test_adapter, NULL, NULL, f32},
        {"test_sampled f32", test_sampled, NULL, NULL, f32},   {"test_base bf16", test_base, NULL, NULL, bf16},
        {"test_adapter bf16", test_adapter, NULL, NULL, bf16}, {"test_sampled bf16", test_sampled, NULL, NULL, bf16},
    };

#ifdef ONLY
    cmocka_set_test_filter(ONLY);
#endif
    if (name && *name) {
        snprintf(f32, sizeof f32, "%s/f32", name);
        snprintf(bf16, sizeof bf16, "%s/bf16", name);
        return cmocka_run_group_tests(there, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
