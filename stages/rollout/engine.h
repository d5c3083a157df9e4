/* engine.h - the sampler: prompts in, responses out, with continuous batching over the paged cache. A library: no files, no recipe.
 *
 * A request is a group: one prompt and n samples of it. Its prompt but for the last token is run once, in chunks, and its keys are
 * shared by all samples (forks of one cache slot, copied on write). From then on each sample has one token that the model has not
 * seen yet (at first the prompt's last), and every call of the model takes one row of each living sample plus some rows of waiting
 * prompts.
 *
 * A response depends on the model, the prompt, the options here and the key (seed, step, request.key, sample, position) alone: not
 * on batch, pages, order, neighbours or restarts. That rests on row-invariant ops (kernels.h) and on draws by counter.
 *
 * Room: a prompt is admitted when its first sample can run to its cap whatever the others do, a further sample when the same holds
 * for it. So a living sample always gets its next page and nothing is ever taken back. Where a cache is too small to keep a prompt
 * for its samples, it is run again for each. What can never fit is refused by cairn_engine_submit.
 *
 * Idea: iteration-level scheduling of Orca (OSDI'22), pages and sharing of vLLM (arXiv:2309.06180).
 */
#ifndef CAIRN_STAGES_ROLLOUT_ENGINE_H
#define CAIRN_STAGES_ROLLOUT_ENGINE_H

#include <stdint.h>

#include "model/footprint.h"
#include "model/model.h"
#include "stages/common/rollouts.h"

struct cairn_engine;

struct cairn_engine_opts {
    int batch;          /* samples decoded at once */
    int page;           /* positions a page of the cache */
    int pages;          /* pages of the cache; 0: enough for `batch` samples of max_length */
    int64_t max_length; /* positions that the longest request needs: see cairn_engine_positions */
    int prefill;        /* prompt tokens a call; 0: 512 */
    int no_sharing;     /* 1: each sample runs its prompt by itself (for tests: equal bits) */
    uint64_t seed;
    uint32_t step;
    float temperature, top_p, min_p; /* temperature > 0 (also with greedy: log-probabilities are taken at it); top_p 0 means 1 */
    int top_k, greedy;
    int graphs;            /* 1: calls of sizes that come again are enqueued as one thing, where the device can; equal bits */
    int sampled;           /* 1: also the log-probabilities over what truncation left */
    int experts;           /* 1: also what the routers chose; of a model that has none: nothing */
    const uint8_t *barred; /* (vocabulary) 1: never sampled; NULL: none. Copied to the device */
    const int32_t *stop;   /* (stops) ids that end a response; copied */
    int stops;
    /* Further ways to end: 1 if the response of n tokens is complete with its last one. May be NULL. */
    int (*ended)(void *arg, const int32_t *response, int64_t n);
    void *ended_arg;
};

struct cairn_request {
    const int32_t *prompt; /* (length) borrowed until its last response was told; length >= 1 */
    int64_t length;
    int64_t max_new; /* cap of the response, >= 1 */
    int samples;
    int32_t key;          /* Philox: which prompt */
    int32_t first_sample; /* Philox: number of the first sample; the others follow */
    int64_t tag;          /* the caller's */
};

struct cairn_response {
    int64_t tag;
    int sample;                    /* from 0 */
    int64_t n;                     /* tokens, >= 1; a stop token is one of them */
    const int32_t *tokens;         /* (n) borrowed for the call, like the next two */
    const float *logprobs;         /* (n) log-softmax(logits / temperature) over the full vocabulary */
    const float *logprobs_sampled; /* (n) or NULL */
    const int32_t *experts_prompt; /* (prompt - 1, choices) what the routers chose for the prompt's tokens but the last; or NULL */
    const int32_t *experts;        /* (n, choices) for the prompt's last token and the response's but the last; or NULL */
    enum cairn_finish finish;
};

struct cairn_engine_stats {
    int64_t calls, prompt_tokens, response_tokens; /* of the model; prompt tokens count each time they are run */
    int64_t replayed;                              /* calls that were enqueued as a graph */
    int most_living, most_pages;
};

/* Told once for each sample, in no particular order. May submit further requests. Anything but CAIRN_OK stops the engine. */
typedef enum cairn_status cairn_engine_tell_fn(void *arg, const struct cairn_response *r, struct cairn_error *err);

/* Positions of the cache that a request can reach: its last token is never run. */
static inline int64_t cairn_engine_positions(int64_t prompt, int64_t max_new)
{
    return prompt + max_new - 1;
}

/* Model and compute handle are borrowed. */
enum cairn_status cairn_engine_create(struct cairn_engine **out, const struct cairn_model *m, const struct cairn_engine_opts *o,
                                      struct cairn_error *err);
void cairn_engine_destroy(struct cairn_engine *e); /* NULL is fine */
/* An idle engine takes other options: 1 where its memory serves them (as many samples and positions or fewer, the same pages), else
 * 0 and nothing has changed. Weights may have other values by now. Equal bits to a new engine's; what the device has recorded
 * stays. */
int cairn_engine_again(struct cairn_engine *e, const struct cairn_engine_opts *o);

/* Queues a request. CAIRN_EDATA: ids outside the vocabulary, longer than the model's positions. CAIRN_EUSAGE: more than this cache
 * can ever hold. */
enum cairn_status cairn_engine_submit(struct cairn_engine *e, const struct cairn_request *r, struct cairn_error *err);
/* One call of the model, or nothing if all is done. CAIRN_EAGAIN when a stop was requested; CAIRN_ENUMERIC when a log-probability
 * is no number. */
enum cairn_status cairn_engine_step(struct cairn_engine *e, cairn_engine_tell_fn *tell, void *arg, struct cairn_error *err);
/* Steps until everything submitted was told. */
enum cairn_status cairn_engine_run(struct cairn_engine *e, cairn_engine_tell_fn *tell, void *arg, struct cairn_error *err);
int cairn_engine_idle(const struct cairn_engine *e);
/* Choices of experts a token, over all layers that route; 0: none. */
static inline int64_t cairn_engine_choices(const struct cairn_model_config *c)
{
    int64_t n = 0;

    for (int i = 0; i < c->layers; i++)
        n += c->dense[i] ? 0 : c->experts_per_token;
    return n;
}
/* Everything unfinished is told as aborted, with what it has (nothing: not told). */
enum cairn_status cairn_engine_abort(struct cairn_engine *e, cairn_engine_tell_fn *tell, void *arg, struct cairn_error *err);
struct cairn_engine_stats cairn_engine_stats(const struct cairn_engine *e);
/* What a sampler with these options takes on its device, its model's weights included; the stores of the model may be shapes only.
 */
enum cairn_status cairn_engine_footprint(const struct cairn_model *m, const struct cairn_engine_opts *o, struct cairn_footprint *f,
                                         struct cairn_error *err);
size_t cairn_engine_bytes(const struct cairn_engine *e); /* cache and activations */

#endif
