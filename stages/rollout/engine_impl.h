/* engine_impl.h - the sampler in the making: what engine.c and engine_create.c share. Nobody else includes it. */
#ifndef CAIRN_STAGES_ROLLOUT_ENGINE_IMPL_H
#define CAIRN_STAGES_ROLLOUT_ENGINE_IMPL_H

#include "stages/rollout/engine.h"

#define CAIRN_ENGINE_DRAWN                                                                                                         \
    3 /* lines that a draw takes: prompt, sample, position; then come those that it gives: token, logprob, sampled */
#define CAIRN_ENGINE_LINES 6

struct cairn_engine_group {
    struct cairn_request r;
    int slot;     /* of the kept prompt, -1: none */
    int64_t run;  /* prompt tokens whose keys are there */
    int promised; /* pages */
    int forked;   /* 1: a sample shares the open page, or did */
    int started, living;
    int32_t *experts; /* (length - 1, choices) of its prompt's tokens, or NULL */
    struct cairn_engine_group *next;
};

struct cairn_engine_living {
    struct cairn_engine_group *g;
    int sample, slot;
    int promised;
    int32_t token;   /* not run yet */
    int64_t n, room; /* response so far */
    int32_t *tokens;
    float *logprobs, *sampled;
    int32_t *experts; /* (room, choices) of the tokens that were run, or NULL */
};

struct cairn_engine {
    struct cairn_engine_opts o;
    struct cairn_model m;
    int32_t *stop;
    struct cairn_cache *cache;
    struct cairn_pass *pass;
    struct cairn_buffer *buf, *bars;                                       /* bars: NULL, or `barred` */
    struct cairn_tensor barred;                                            /* (V) */
    struct cairn_tensor prompt, sample, position, token, logprob, sampled; /* (batch), LINES lines of buf in this order */
    int slots, pages, ahead;                                               /* ahead: prompts kept at once whatever waits */
    int kept, promised;
    int waiting;                              /* samples of kept prompts that are not started */
    struct cairn_engine_group *first, **last; /* not all samples of them started */
    struct cairn_engine_living *living;       /* [batch], the first nliving */
    int nliving;
    int64_t rows;                                        /* at most, of a call */
    int32_t *id, *pos, *seq, *want;                      /* [rows] */
    int64_t choices;                                     /* of experts, a token that is run; 0: they are not wanted */
    int32_t *h_choices;                                  /* [layers that route][rows][of each] */
    struct cairn_engine_group **of;                      /* [rows] whose prompt's token a row is */
    int64_t line;                                        /* elements of a line of buf, and of what mirrors it here */
    int32_t *h_prompt, *h_sample, *h_position, *h_token; /* [batch] */
    float *h_logprob, *h_sampled;
    struct cairn_engine_stats stats;
};

void cairn_engine_group_drop(struct cairn_engine_group *g);

#endif
