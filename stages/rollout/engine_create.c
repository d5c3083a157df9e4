/* engine_create.c - the sampler's memory: what it takes, how it is made, what it serves again (engine.h). */
#include <stdlib.h>
#include <string.h>

#include "stages/rollout/engine_impl.h"

#define PREFILL 512

/* ---- creation ------------------------------------------------------------------------------------------------------ */

static enum cairn_status device_rows(struct cairn_engine *e, struct cairn_error *err)
{
    struct cairn_tensor *const i32[] = {&e->prompt, &e->sample, &e->position, &e->token}, *const f32[] = {&e->logprob, &e->sampled};
    const int64_t n = e->o.batch;
    size_t line = (size_t)e->line * 4, at = 0;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_buffer_create(e->m.k->dev, line * CAIRN_ENGINE_LINES, &e->buf, err));
    for (int i = 0; i < 4; i++, at += line)
        TRY(cairn_tensor_view(i32[i], e->buf, at, CAIRN_I32, 1, &n, err));
    for (int i = 0; i < 2; i++, at += line)
        TRY(cairn_tensor_view(f32[i], e->buf, at, CAIRN_F32, 1, &n, err));
out:
    return st;
}

static enum cairn_status bars_make(struct cairn_engine *e, struct cairn_error *err)
{
    const int64_t V = e->m.config->vocab;
    enum cairn_status st = CAIRN_OK;

    if (!e->o.barred)
        return CAIRN_OK;
    TRY(cairn_buffer_create(e->m.k->dev, (size_t)V, &e->bars, err));
    TRY(cairn_tensor_view(&e->barred, e->bars, 0, CAIRN_U8, 1, &V, err));
    TRY(cairn_tensor_set(&e->m.k->stream, &e->barred, e->o.barred, (size_t)V, err));
out:
    return st;
}

static enum cairn_status host_rows(struct cairn_engine *e, struct cairn_error *err)
{
    size_t rows = (size_t)e->rows, batch = (size_t)e->o.batch;

    e->living = calloc(batch, sizeof *e->living);
    e->id = calloc(rows * 4, sizeof *e->id);
    e->line = ((int64_t)batch + 15) & ~(int64_t)15;
    e->h_prompt = calloc((size_t)e->line * CAIRN_ENGINE_DRAWN, sizeof *e->h_prompt);
    e->h_token = calloc((size_t)e->line * (CAIRN_ENGINE_LINES - CAIRN_ENGINE_DRAWN), sizeof *e->h_token);
    e->stop = calloc((size_t)e->o.stops + 1, sizeof *e->stop);
    e->of = calloc(rows, sizeof *e->of);
    e->h_choices = calloc(rows * (size_t)e->choices + 1, sizeof *e->h_choices);
    if (!e->living || !e->id || !e->h_prompt || !e->h_token || !e->stop || !e->of || !e->h_choices)
        return CAIRN_NOMEM(err);
    e->pos = e->id + rows;
    e->seq = e->pos + rows;
    e->want = e->seq + rows;
    e->h_sample = e->h_prompt + e->line;
    e->h_position = e->h_sample + e->line;
    e->h_logprob = (float *)(e->h_token + e->line);
    e->h_sampled = e->h_logprob + e->line;
    if (e->o.stops)
        memcpy(e->stop, e->o.stop, (size_t)e->o.stops * sizeof *e->stop);
    for (size_t i = 0; i < rows; i++)
        e->want[i] = (int32_t)i;
    return CAIRN_OK;
}

/* Pages for `batch` samples at their longest, as far as an int and the cache's numbering go. */
static int pages_enough(const struct cairn_engine_opts *o)
{
    int64_t each = (o->max_length - 1) / o->page + 1, most = INT32_MAX / o->page, pages;

    if (__builtin_mul_overflow(each, (int64_t)o->batch + 1, &pages) || pages > most)
        pages = most;
    return (int)pages;
}

/* What follows from options and model: nothing is allocated. CAIRN_EBUG where the options are impossible. */
static enum cairn_status settle(struct cairn_engine *e, const struct cairn_model *m, const struct cairn_engine_opts *o,
                                struct cairn_error *err)
{
    if (o->batch < 1 || o->batch > 1 << 20 || o->page < 1 || o->pages < 0 || o->max_length < 1 || o->prefill < 0 ||
        !(o->temperature > 0) || o->stops < 0)
        return CAIRN_BUG(err, "a sampler with impossible options");
    e->o = *o;
    e->m = *m;
    e->last = &e->first;
    if (!e->o.prefill)
        e->o.prefill = PREFILL;
    if (!(e->o.top_p > 0))
        e->o.top_p = 1;
    if (!e->m.segments)
        e->m.segments = 1;
    if (e->o.max_length > m->config->max_positions)
        e->o.max_length = m->config->max_positions;
    e->ahead = o->batch < 8 ? 1 : o->batch < 128 ? o->batch / 8 : 16;
    e->slots = o->batch + (e->ahead > o->batch ? e->ahead : o->batch);
    e->pages = o->pages ? o->pages : pages_enough(&e->o);
    e->rows = (int64_t)e->o.batch + e->o.prefill;
    e->choices = o->experts ? cairn_engine_choices(m->config) : 0;
    return CAIRN_OK;
}

static struct cairn_cache_opts cache_opts(const struct cairn_engine *e)
{
    return (struct cairn_cache_opts){.slots = e->slots, .pages = e->pages, .page = e->o.page, .max_length = e->o.max_length};
}

static struct cairn_pass_opts pass_opts(const struct cairn_engine *e)
{
    return (struct cairn_pass_opts){.max_rows = e->rows, .max_seqs = e->slots, .experts = e->choices > 0, .graphs = e->o.graphs};
}

enum cairn_status cairn_engine_footprint(const struct cairn_model *m, const struct cairn_engine_opts *o, struct cairn_footprint *f,
                                         struct cairn_error *err)
{
    struct cairn_engine e = {0};
    enum cairn_status st = settle(&e, m, o, err);

    if (st != CAIRN_OK)
        return st;
    return cairn_footprint(&(struct cairn_footprint_opts){.config = m->config,
                                                          .table = m->weights->table,
                                                          .adapter = m->adapter,
                                                          .act = m->k->act,
                                                          .segments = e.m.segments,
                                                          .pass = pass_opts(&e),
                                                          .cache = cache_opts(&e),
                                                          .logits = o->batch},
                           f, err);
}

enum cairn_status cairn_engine_create(struct cairn_engine **out, const struct cairn_model *m, const struct cairn_engine_opts *o,
                                      struct cairn_error *err)
{
    struct cairn_engine *e = calloc(1, sizeof *e);
    struct cairn_cache_opts cache;
    struct cairn_pass_opts pass;
    enum cairn_status st = CAIRN_OK;

    if (!e)
        return CAIRN_NOMEM(err);
    TRY(settle(e, m, o, err));
    cache = cache_opts(e);
    pass = pass_opts(e);
    TRY(host_rows(e, err));
    TRY(cairn_cache_create(&e->cache, m->config, m->k, &cache, err));
    TRY(cairn_pass_create(&e->pass, &e->m, &pass, err));
    TRY(device_rows(e, err));
    TRY(bars_make(e, err));
    *out = e;
    e = NULL;
out:
    cairn_engine_destroy(e);
    return st;
}

int cairn_engine_again(struct cairn_engine *e, const struct cairn_engine_opts *o)
{
    const int64_t most = o->max_length < e->m.config->max_positions ? o->max_length : e->m.config->max_positions;
    struct cairn_engine_opts was = e->o;
    int32_t *stop;

    if (!cairn_engine_idle(e) || o->batch < 1 || o->batch > was.batch || most > was.max_length || o->page != was.page || o->pages ||
        (o->prefill ? o->prefill : PREFILL) != was.prefill || o->no_sharing != was.no_sharing || o->graphs != was.graphs ||
        o->experts != was.experts || !(o->temperature > 0))
        return 0;
    stop = calloc((size_t)o->stops + 1, sizeof *stop);
    if (!stop)
        return 0;
    if (o->stops)
        memcpy(stop, o->stop, (size_t)o->stops * sizeof *stop);
    free(e->stop);
    e->stop = stop;
    e->o = *o;
    e->o.batch = was.batch;
    e->o.pages = was.pages;
    e->o.max_length = was.max_length;
    e->o.prefill = was.prefill;
    if (!(e->o.top_p > 0))
        e->o.top_p = 1;
    return 1;
}

void cairn_engine_group_drop(struct cairn_engine_group *g)
{
    free(g->experts);
    free(g);
}

void cairn_engine_destroy(struct cairn_engine *e)
{
    if (!e)
        return;
    for (int i = 0; i < e->nliving; i++) { /* groups of which every sample was started stand in no list */
        struct cairn_engine_group *g = e->living[i].g;

        if (--g->living == 0 && g->started == g->r.samples)
            cairn_engine_group_drop(g);
    }
    for (struct cairn_engine_group *g = e->first, *next; g; g = next) {
        next = g->next;
        cairn_engine_group_drop(g);
    }
    for (int i = 0; e->living && i < e->o.batch; i++) {
        free(e->living[i].tokens);
        free(e->living[i].logprobs);
        free(e->living[i].sampled);
        free(e->living[i].experts);
    }
    cairn_buffer_destroy(e->buf);
    cairn_buffer_destroy(e->bars);
    cairn_pass_destroy(e->pass);
    cairn_cache_destroy(e->cache);
    free(e->living);
    free(e->id);
    free(e->of);
    free(e->h_choices);
    free(e->h_prompt);
    free(e->h_token);
    free(e->stop);
    free(e);
}

size_t cairn_engine_bytes(const struct cairn_engine *e)
{
    return cairn_cache_bytes(e->cache) + cairn_pass_bytes(e->pass);
}

struct cairn_engine_stats cairn_engine_stats(const struct cairn_engine *e)
{
    return e->stats;
}
