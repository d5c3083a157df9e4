/* fixture_sampler.h - the sampler's path of a model under test: equal bits between it and the trainer, greedy tokens. Included by fixture_check.c
 * alone.
 */
#ifndef TESTS_FIXTURE_SAMPLER_H
#define TESTS_FIXTURE_SAMPLER_H

#include "fixture_variant.h"

/* How a sequence is cut into calls. */
struct split {
    const char *name;
    int64_t prompt; /* first piece; 0: half of the sequence, -1: all of it */
    int64_t piece;  /* later pieces; 0: 1, 2, 3, 1, 2, 3, ... */
    int page;
};

/* Runs all sequences through the cache, cut as said, and counts the rows whose log-probability has other bits than `want`. */
static enum cairn_status decode_bits(struct reference *r, struct variant *v, struct cairn_pass *pass, const struct split *how,
                                     const float *want, int64_t *unequal, struct cairn_error *err)
{
    int pool = r->hf->config.index_pool;
    struct cairn_cache_opts o = {.slots = r->nseq, .page = (how->page + pool - 1) / pool * pool, .max_length = r->rows};
    struct cairn_cache *cache = NULL;
    struct cairn_scores scores;
    int32_t *id = calloc((size_t)r->rows * 4, sizeof *id), *pos, *seq, *target;
    int64_t *row = calloc((size_t)r->rows, sizeof *row), at[MAX_SEQS] = {0};
    float *got = NULL;
    int slot[MAX_SEQS], fits, turn = 0;
    enum cairn_status st = CAIRN_OK;

    *unequal = 0;
    if (!id || !row)
        TRY(CAIRN_NOMEM(err));
    pos = id + r->rows;
    seq = pos + r->rows;
    target = seq + r->rows;
    for (int s = 0; s < r->nseq; s++)
        o.pages += (int)((r->len[s] - 1) / o.page + 1);
    TRY(cairn_cache_create(&cache, &r->hf->config, &r->k, &o, err));
    for (int s = 0; s < r->nseq; s++)
        slot[s] = cairn_cache_slot(cache);
    for (int64_t n = 1; n; turn++) {
        n = 0;
        for (int s = 0; s < r->nseq; s++) {
            int64_t piece = turn              ? how->piece ? how->piece : 1 + turn % 3
                            : how->prompt > 0 ? how->prompt
                                              : r->len[s] / (how->prompt ? 1 : 2);

            piece = piece < 1 ? 1 : piece;
            piece = piece < r->len[s] - at[s] ? piece : r->len[s] - at[s];
            TRY(cairn_cache_extend(cache, slot[s], piece, &fits, err));
            if (!fits)
                TRY(CAIRN_BUG(err, "the cache is too small"));
            for (int64_t i = 0; i < piece; i++, n++, at[s]++) {
                row[n] = r->start[s] + at[s];
                id[n] = r->id[row[n]];
                pos[n] = (int32_t)at[s];
                seq[n] = slot[s];
                target[n] = r->target[row[n]];
            }
        }
        TRY(cairn_forward_cached_scores(pass, cache,
                                        &(struct cairn_batch){.n = n, .id = id, .pos = pos, .seq = seq, .nseq = r->nseq}, target, 1,
                                        &scores, err));
        free(got);
        got = NULL;
        TRY(fetch(&got, &r->k, &scores.logprob, err));
        for (int64_t i = 0; i < n; i++)
            *unequal += memcmp(&got[i], &want[row[i]], sizeof(float)) != 0;
    }
    (void)v;
out:
    cairn_cache_destroy(cache);
    free(id);
    free(row);
    free(got);
    return st;
}

static enum cairn_status check_bits(struct reference *r, struct variant *v, struct cairn_pass *pass, struct cairn_error *err)
{
    static const struct split how[] = {
        {"prompt of 1, then one by one", 1, 1, 16},   {"the whole as prompt", -1, 1, 16},
        {"half as prompt, then one by one", 0, 1, 5}, {"pieces of 1, 2, 3", 3, 0, 8},
        {"pieces of 17, page of 1", 17, 17, 1},
    };
    struct cairn_batch b = whole_batch(r);
    struct cairn_scores scores;
    float *want = NULL;
    int64_t unequal;
    char name[256];
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_forward(v->pass, &b, r->target, 1, &scores, err));
    TRY(fetch(&want, &r->k, &scores.logprob, err));
    for (size_t i = 0; i < sizeof how / sizeof how[0]; i++) {
        TRY(decode_bits(r, v, pass, &how[i], want, &unequal, err));
        snprintf(name, sizeof name, "%strain = decode: %s", v->name, how[i].name);
        item(!unequal, name, "%lld of %lld rows differ in bits", (long long)unequal, (long long)r->rows);
    }
out:
    free(want);
    return st;
}

/* GREEDY tokens after the whole of sequence s; then the trainer's log-probabilities of these must be the sampler's, bit for bit. */
static enum cairn_status check_greedy(struct reference *r, struct variant *v, struct cairn_pass *pass, int s,
                                      struct cairn_error *err)
{
    int64_t len = r->len[s], all = len + GREEDY, n;
    struct cairn_cache_opts o = {.slots = 1, .pages = (int)(all / 16 + 1), .page = 16, .max_length = all};
    struct cairn_cache *cache = NULL;
    struct cairn_scores scores;
    struct cairn_tensor logits;
    struct value token = {0}, logprob = {0}, zero = {0};
    int32_t *id = calloc((size_t)all * 4, sizeof *id), *pos = id + all, *seq = pos + all, *target = seq + all, *ref = NULL,
            start = 0, want;
    float *train = NULL, sampled[GREEDY];
    int fits, equal = 0, bits = 0;
    char name[128];
    enum cairn_status st = CAIRN_OK;

    if (!id)
        TRY(CAIRN_NOMEM(err));
    snprintf(name, sizeof name, "greedy.%d", s);
    TRY(read_i32(&ref, &n, v->st, name, err));
    if (n != GREEDY)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s has %lld tokens", cairn_st_file(v->st, 0), name, (long long)n));
    TRY(value_make(&token, &r->k, CAIRN_I32, 1, NULL, err));
    TRY(value_make(&logprob, &r->k, CAIRN_F32, 1, NULL, err));
    TRY(value_make(&zero, &r->k, CAIRN_I32, 1, NULL, err));
    TRY(cairn_cache_create(&cache, &r->hf->config, &r->k, &o, err));
    cairn_cache_slot(cache);
    for (int64_t i = 0; i < all; i++) {
        id[i] = i < len ? r->id[r->start[s] + i] : 0;
        pos[i] = (int32_t)i;
        target[i] = -1;
    }
    for (int64_t at = 0, i = 0; i < GREEDY; i++) {
        int64_t rows = len + i - at;
        struct cairn_sample draw = {
            .token = token.t, .logprob = logprob.t, .greedy = 1, .inv_temperature = 1, .top_p = 1, .segments = 1};

        TRY(cairn_cache_extend(cache, 0, rows, &fits, err));
        want = (int32_t)rows - 1;
        TRY(cairn_forward_cached(pass, cache,
                                 &(struct cairn_batch){.n = rows, .id = id + at, .pos = pos + at, .seq = seq, .nseq = 1}, &want, 1,
                                 &logits, err));
        draw.logits = logits;
        draw.prompt = draw.sample = draw.position = zero.t; /* not looked at when greedy */
        TRY(r->k.ops.sample(&r->k.stream, &draw, err));
        TRY(cairn_tensor_get(&r->k.stream, &token.t, &id[len + i], sizeof *id, err));
        TRY(cairn_tensor_get(&r->k.stream, &logprob.t, &sampled[i], sizeof *sampled, err));
        target[len + i - 1] = id[len + i];
        equal += id[len + i] == ref[i];
        at = len + i;
    }
    item(equal == GREEDY || r->torch, name, "%d of %d tokens equal", equal, GREEDY);
    TRY(cairn_forward(v->pass, &(struct cairn_batch){.n = all, .id = id, .pos = pos, .seq = seq, .nseq = 1, .start = &start},
                      target, 1, &scores, err));
    TRY(fetch(&train, &r->k, &scores.logprob, err));
    for (int i = 0; i < GREEDY; i++)
        bits += memcmp(&train[len + i - 1], &sampled[i], sizeof(float)) == 0;
    snprintf(name, sizeof name, "greedy.%d: trainer's log-probability = sampler's", s);
    item(bits == GREEDY, name, "%d of %d equal bits", bits, GREEDY);
out:
    cairn_cache_destroy(cache);
    cairn_buffer_destroy(token.buf);
    cairn_buffer_destroy(logprob.buf);
    cairn_buffer_destroy(zero.buf);
    free(id);
    free(ref);
    free(train);
    return st;
}

#endif
