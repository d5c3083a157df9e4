/* engine.c - admission, prompts in chunks, one row a living sample, draws (engine.h).
 *
 * Pages are counted before they are taken. `promised` is what living samples and kept prompts may still take; the cache's free pages
 * never fall below it:
 *   total    pages of a request at its longest        have   pages of the prompt's rows that are shared (all but the last token)
 *   full     of those, pages that are full (never written again)
 *   admission of a prompt    needs total; takes have, promises total - have
 *   a fork                   promises total - full (it may have to copy the open page); the first one promises the kept prompt its copy, too
 *   the last sample          takes over the kept prompt's slot and promise
 */
#include "stages/rollout/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/signals.h"

#define PREFILL 512
#define DRAWN 3 /* lines that a draw takes: prompt, sample, position; then come those that it gives: token, logprob, sampled */
#define LINES 6

struct group {
    struct cairn_request r;
    int slot;         /* of the kept prompt, -1: none */
    int64_t run;      /* prompt tokens whose keys are there */
    int promised;     /* pages */
    int forked;       /* 1: a sample shares the open page, or did */
    int started, living;
    struct group *next;
};

struct living {
    struct group *g;
    int sample, slot;
    int promised;
    int32_t token;    /* not run yet */
    int64_t n, room;  /* response so far */
    int32_t *tokens;
    float *logprobs, *sampled;
};

struct cairn_engine {
    struct cairn_engine_opts o;
    struct cairn_model m;
    int32_t *stop;
    struct cairn_cache *cache;
    struct cairn_pass *pass;
    struct cairn_buffer *buf, *bars; /* bars: NULL, or `barred` */
    struct cairn_tensor barred;      /* (V) */
    struct cairn_tensor prompt, sample, position, token, logprob, sampled; /* (batch), LINES lines of buf in this order */
    int slots, pages, ahead; /* ahead: prompts kept at once whatever waits */
    int kept, promised;
    int waiting;             /* samples of kept prompts that are not started */
    struct group *first, **last; /* not all samples of them started */
    struct living *living;   /* [batch], the first nliving */
    int nliving;
    int64_t rows;            /* at most, of a call */
    int32_t *id, *pos, *seq, *want;                       /* [rows] */
    int64_t line;                                         /* elements of a line of buf, and of what mirrors it here */
    int32_t *h_prompt, *h_sample, *h_position, *h_token;  /* [batch] */
    float *h_logprob, *h_sampled;
    struct cairn_engine_stats stats;
};

/* ---- creation ------------------------------------------------------------------------------------------------------ */

static enum cairn_status device_rows(struct cairn_engine *e, struct cairn_error *err)
{
    struct cairn_tensor *const i32[] = {&e->prompt, &e->sample, &e->position, &e->token}, *const f32[] = {&e->logprob, &e->sampled};
    const int64_t n = e->o.batch;
    size_t line = (size_t)e->line * 4, at = 0;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_buffer_create(e->m.k->dev, line * LINES, &e->buf, err));
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
    e->h_prompt = calloc((size_t)e->line * DRAWN, sizeof *e->h_prompt);
    e->h_token = calloc((size_t)e->line * (LINES - DRAWN), sizeof *e->h_token);
    e->stop = calloc((size_t)e->o.stops + 1, sizeof *e->stop);
    if (!e->living || !e->id || !e->h_prompt || !e->h_token || !e->stop)
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
    if (o->batch < 1 || o->batch > 1 << 20 || o->page < 1 || o->pages < 0 || o->max_length < 1 || o->prefill < 0 || !(o->temperature > 0) ||
        o->stops < 0)
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
    return CAIRN_OK;
}

static struct cairn_cache_opts cache_opts(const struct cairn_engine *e)
{
    return (struct cairn_cache_opts){.slots = e->slots, .pages = e->pages, .page = e->o.page, .max_length = e->o.max_length};
}

static struct cairn_pass_opts pass_opts(const struct cairn_engine *e)
{
    return (struct cairn_pass_opts){.max_rows = e->rows, .max_seqs = e->slots, .graphs = e->o.graphs};
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
        (o->prefill ? o->prefill : PREFILL) != was.prefill || o->no_sharing != was.no_sharing || o->graphs != was.graphs || !(o->temperature > 0))
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

static void group_drop(struct group *g)
{
    free(g);
}

void cairn_engine_destroy(struct cairn_engine *e)
{
    if (!e)
        return;
    for (int i = 0; i < e->nliving; i++) { /* groups of which every sample was started stand in no list */
        struct group *g = e->living[i].g;

        if (--g->living == 0 && g->started == g->r.samples)
            group_drop(g);
    }
    for (struct group *g = e->first, *next; g; g = next) {
        next = g->next;
        group_drop(g);
    }
    for (int i = 0; e->living && i < e->o.batch; i++) {
        free(e->living[i].tokens);
        free(e->living[i].logprobs);
        free(e->living[i].sampled);
    }
    cairn_buffer_destroy(e->buf);
    cairn_buffer_destroy(e->bars);
    cairn_pass_destroy(e->pass);
    cairn_cache_destroy(e->cache);
    free(e->living);
    free(e->id);
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

/* ---- requests ------------------------------------------------------------------------------------------------------- */

static int pages_total(const struct cairn_engine *e, const struct group *g)
{
    return cairn_cache_pages_for(e->cache, cairn_engine_positions(g->r.length, g->r.max_new));
}

enum cairn_status cairn_engine_submit(struct cairn_engine *e, const struct cairn_request *r, struct cairn_error *err)
{
    const struct cairn_model_config *c = e->m.config;
    struct group *g;
    int64_t positions;

    if (r->length < 1 || r->samples < 1 || r->max_new < 1)
        return CAIRN_BUG(err, "a request without prompt, samples or room for a token");
    if (__builtin_add_overflow(r->length, r->max_new - 1, &positions) || positions > c->max_positions)
        return cairn_fail(err, CAIRN_EDATA, "a prompt of %lld tokens and %lld new ones do not fit the model's %lld positions",
                          (long long)r->length, (long long)r->max_new, (long long)c->max_positions);
    for (int64_t i = 0; i < r->length; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= c->vocab)
            return cairn_fail(err, CAIRN_EDATA, "token %d (number %lld of the prompt) is outside the vocabulary of %lld", r->prompt[i],
                              (long long)i, (long long)c->vocab);
    if (positions > e->o.max_length || cairn_cache_pages_for(e->cache, positions) > e->pages)
        return cairn_fail(err, CAIRN_EUSAGE, "a prompt of %lld tokens and %lld new ones need %d pages of %d positions; the cache has %d, for at most %lld",
                          (long long)r->length, (long long)r->max_new, cairn_cache_pages_for(e->cache, positions), e->o.page, e->pages,
                          (long long)e->o.max_length);
    g = calloc(1, sizeof *g);
    if (!g)
        return CAIRN_NOMEM(err);
    g->r = *r;
    g->slot = -1;
    *e->last = g;
    e->last = &g->next;
    return CAIRN_OK;
}

int cairn_engine_idle(const struct cairn_engine *e)
{
    return !e->first && !e->nliving;
}

/* ---- admission ------------------------------------------------------------------------------------------------------ */

static int pages_left(const struct cairn_engine *e)
{
    return cairn_cache_free_pages(e->cache) - e->promised;
}

/* Takes n more positions for a slot out of what was promised to it. */
static enum cairn_status positions_take(struct cairn_engine *e, int slot, int64_t n, int *promised, struct cairn_error *err)
{
    int before = cairn_cache_free_pages(e->cache), taken, fits;
    enum cairn_status st = cairn_cache_extend(e->cache, slot, n, &fits, err);

    if (st != CAIRN_OK)
        return st;
    taken = before - cairn_cache_free_pages(e->cache);
    if (!fits || taken > *promised)
        return CAIRN_BUG(err, "the sampler's cache is short of pages it promised");
    *promised -= taken;
    e->promised -= taken;
    if (e->pages - cairn_cache_free_pages(e->cache) > e->stats.most_pages)
        e->stats.most_pages = e->pages - cairn_cache_free_pages(e->cache);
    return CAIRN_OK;
}

/* A slot for the group's prompt, and pages for one sample's whole life. *in = 0: no room now. */
static enum cairn_status prompt_admit(struct cairn_engine *e, struct group *g, int *in, struct cairn_error *err)
{
    int total = pages_total(e, g);

    *in = 0;
    if (pages_left(e) < total || e->kept >= e->slots - e->o.batch || (e->kept >= e->ahead && e->waiting >= e->o.batch - e->nliving))
        return CAIRN_OK;
    g->slot = cairn_cache_slot(e->cache);
    if (g->slot < 0)
        return CAIRN_BUG(err, "the sampler's cache is short of slots");
    *in = 1;
    e->kept++;
    e->waiting += g->r.samples - g->started;
    g->run = 0;
    g->forked = 0;
    g->promised = total;
    e->promised += total;
    return positions_take(e, g->slot, g->r.length - 1, &g->promised, err);
}

static void sample_begin(struct cairn_engine *e, struct group *g, int slot, int promised)
{
    struct living *l = &e->living[e->nliving++];

    l->g = g;
    l->sample = g->started++;
    l->slot = slot;
    l->promised = promised;
    l->token = g->r.prompt[g->r.length - 1];
    l->n = 0;
    g->living++;
    if (e->nliving > e->stats.most_living)
        e->stats.most_living = e->nliving;
}

/* Starts the next sample in the slot of the kept prompt, which is gone then. */
static void sample_take_over(struct cairn_engine *e, struct group *g)
{
    int slot = g->slot, promised = g->promised;

    e->waiting -= g->r.samples - g->started;
    g->slot = -1;
    g->promised = 0;
    e->kept--;
    sample_begin(e, g, slot, promised);
}

/* Starts the group's next sample if there is room; its prompt is ready. *in = 0: not now. */
static enum cairn_status sample_start(struct cairn_engine *e, struct group *g, int *in, struct cairn_error *err)
{
    int64_t shared = g->r.length - 1;
    int grow = pages_total(e, g) - (int)(shared / e->o.page), copy = !g->forked && shared % e->o.page;
    int slot;

    *in = 1;
    if (g->started == g->r.samples - 1 || e->o.no_sharing) {
        sample_take_over(e, g);
        return CAIRN_OK;
    }
    if (pages_left(e) < grow + copy) {
        if (e->nliving) /* somebody will leave */
            *in = 0;
        else            /* nobody will: this prompt is run again for the next sample */
            sample_take_over(e, g);
        return CAIRN_OK;
    }
    slot = cairn_cache_fork(e->cache, g->slot);
    if (slot < 0)
        return CAIRN_BUG(err, "the sampler's cache is short of slots");
    g->forked = 1;
    g->promised += copy;
    e->promised += grow + copy;
    e->waiting--;
    sample_begin(e, g, slot, grow);
    return CAIRN_OK;
}

/* In the order of submission: prompts get room, as many as it takes to fill all places with samples and a few ahead; ready ones start
 * samples. When one has to wait no later one is admitted, but those that
 * have their room go on: what they hold comes back only that way. */
static enum cairn_status admit(struct cairn_engine *e, struct cairn_error *err)
{
    struct group **at = &e->first, *g;
    int closed = 0, kept = e->kept, in;
    enum cairn_status st = CAIRN_OK;

    while ((g = *at) && !(closed && !kept)) {
        kept -= g->slot >= 0;
        if (g->slot < 0 && !closed) {
            TRY(prompt_admit(e, g, &in, err));
            closed = !in;
        }
        in = 1;
        while (in && g->slot >= 0 && g->run == g->r.length - 1 && e->nliving < e->o.batch)
            TRY(sample_start(e, g, &in, err));
        closed |= !in;
        if (g->started == g->r.samples) { /* from now on only its samples know it */
            *at = g->next;
            if (!*at)
                e->last = at;
            continue;
        }
        if (g->slot < 0 && !closed) { /* its prompt has to be run again */
            TRY(prompt_admit(e, g, &in, err));
            closed = !in;
        }
        at = &g->next;
    }
out:
    return st;
}

/* ---- one call ------------------------------------------------------------------------------------------------------- */

static void row_put(struct cairn_engine *e, int64_t *n, int32_t id, int64_t pos, int slot)
{
    e->id[*n] = id;
    e->pos[*n] = (int32_t)pos;
    e->seq[*n] = slot;
    ++*n;
}

/* One row of each living sample, then prompt rows up to the budget. */
static enum cairn_status rows_gather(struct cairn_engine *e, int64_t *n, struct cairn_error *err)
{
    int64_t budget = e->o.prefill;
    int kept = e->kept;
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < e->nliving; i++) {
        struct living *l = &e->living[i];
        int64_t pos = l->g->r.length - 1 + l->n;

        TRY(positions_take(e, l->slot, 1, &l->promised, err));
        row_put(e, n, l->token, pos, l->slot);
    }
    for (struct group *g = e->first; g && kept && budget; g = g->next) {
        if (g->slot < 0)
            continue;
        kept--;
        for (; budget && g->run < g->r.length - 1; budget--) {
            row_put(e, n, g->r.prompt[g->run], g->run, g->slot);
            g->run++; /* true once the call returned; nobody asks before */
        }
    }
out:
    return st;
}

/* Lines first .. first + n of what a draw takes and gives, as they lie one behind the other. */
static enum cairn_status lines(const struct cairn_engine *e, int first, int n, struct cairn_tensor *t, struct cairn_error *err)
{
    const int64_t count = e->line * n;

    return cairn_tensor_view(t, e->buf, (size_t)(e->line * first) * 4, CAIRN_I32, 1, &count, err);
}

/* Draws the next token of the n living samples from their rows of logits. */
static enum cairn_status draw(struct cairn_engine *e, const struct cairn_tensor *logits, int n, struct cairn_error *err)
{
    struct cairn_sample a = {.logits = *logits,
                             .prompt = cairn_tensor_slice(&e->prompt, 0, 0, n),
                             .sample = cairn_tensor_slice(&e->sample, 0, 0, n),
                             .position = cairn_tensor_slice(&e->position, 0, 0, n),
                             .token = cairn_tensor_slice(&e->token, 0, 0, n),
                             .logprob = cairn_tensor_slice(&e->logprob, 0, 0, n),
                             .seed = e->o.seed,
                             .step = e->o.step,
                             .inv_temperature = 1 / e->o.temperature,
                             .top_p = e->o.top_p,
                             .min_p = e->o.min_p,
                             .top_k = e->o.top_k,
                             .greedy = e->o.greedy,
                             .segments = e->m.segments};
    const int given = e->o.sampled ? 3 : 2;
    struct cairn_tensor in, out;
    enum cairn_status st = CAIRN_OK;

    if (e->bars)
        a.barred = e->barred;
    if (e->o.sampled)
        a.logprob_sampled = cairn_tensor_slice(&e->sampled, 0, 0, n);
    for (int i = 0; i < n; i++) {
        const struct living *l = &e->living[i];

        e->h_prompt[i] = l->g->r.key;
        e->h_sample[i] = l->g->r.first_sample + l->sample;
        e->h_position[i] = (int32_t)(l->g->r.length + l->n);
    }
    TRY(lines(e, 0, DRAWN, &in, err));
    TRY(lines(e, DRAWN, given, &out, err));
    TRY(cairn_tensor_set(&e->m.k->stream, &in, e->h_prompt, cairn_tensor_bytes(&in), err));
    TRY(e->m.k->ops.sample(&e->m.k->stream, &a, err));
    TRY(cairn_tensor_get(&e->m.k->stream, &out, e->h_token, cairn_tensor_bytes(&out), err));
out:
    return st;
}

static enum cairn_status response_add(struct cairn_engine *e, struct living *l, int32_t token, float logprob, float sampled,
                                      struct cairn_error *err)
{
    if (token < 0 || token >= e->m.config->vocab || !isfinite(logprob))
        return cairn_fail(err, CAIRN_ENUMERIC, "token %d at position %lld of prompt %d, sample %d has log-probability %g", token,
                          (long long)(l->g->r.length + l->n), l->g->r.key, l->g->r.first_sample + l->sample, (double)logprob);
    if (l->n == l->room) {
        int64_t room = l->room ? 2 * l->room : 64;
        int32_t *tokens = realloc(l->tokens, (size_t)room * sizeof *tokens);
        float *logprobs, *s;

        if (!tokens)
            return CAIRN_NOMEM(err);
        l->tokens = tokens;
        logprobs = realloc(l->logprobs, (size_t)room * sizeof *logprobs);
        if (!logprobs)
            return CAIRN_NOMEM(err);
        l->logprobs = logprobs;
        s = realloc(l->sampled, (size_t)room * sizeof *s);
        if (!s)
            return CAIRN_NOMEM(err);
        l->sampled = s;
        l->room = room;
    }
    l->tokens[l->n] = l->token = token;
    l->logprobs[l->n] = logprob;
    l->sampled[l->n] = sampled;
    l->n++;
    return CAIRN_OK;
}

static int stops(const struct cairn_engine *e, const struct living *l)
{
    for (int i = 0; i < e->o.stops; i++)
        if (l->token == e->stop[i])
            return 1;
    return e->o.ended && e->o.ended(e->o.ended_arg, l->tokens, l->n);
}

/* Sample i leaves: its pages are free before anybody is told. The last living one takes its place. */
static enum cairn_status leave(struct cairn_engine *e, int i, enum cairn_finish finish, cairn_engine_tell_fn *tell, void *arg,
                               struct cairn_error *err)
{
    struct living l = e->living[i];
    const struct cairn_response r = {.tag = l.g->r.tag, .sample = l.sample, .n = l.n, .tokens = l.tokens, .logprobs = l.logprobs,
                                     .logprobs_sampled = e->o.sampled ? l.sampled : NULL, .finish = finish};
    enum cairn_status st;

    cairn_cache_free(e->cache, l.slot);
    e->promised -= l.promised;
    e->living[i] = e->living[--e->nliving];
    e->living[e->nliving] = l; /* keeps its memory */
    e->living[e->nliving].n = 0;
    if (--l.g->living == 0 && l.g->started == l.g->r.samples)
        group_drop(l.g);
    st = r.n ? tell(arg, &r, err) : CAIRN_OK;
    return st;
}

enum cairn_status cairn_engine_step(struct cairn_engine *e, cairn_engine_tell_fn *tell, void *arg, struct cairn_error *err)
{
    struct cairn_tensor logits;
    struct cairn_batch b;
    int64_t n = 0;
    int drawn;
    enum cairn_status st = CAIRN_OK;

    if (cairn_stop_requested())
        return cairn_fail(err, CAIRN_EAGAIN, "stopped by signal %d; run again to go on", cairn_stop_requested());
    TRY(admit(e, err));
    drawn = e->nliving;
    TRY(rows_gather(e, &n, err));
    if (!n) {
        return cairn_engine_idle(e) ? CAIRN_OK : CAIRN_BUG(err, "the sampler stands still");
    }
    b = (struct cairn_batch){.n = n, .id = e->id, .pos = e->pos, .seq = e->seq};
    TRY(cairn_forward_cached(e->pass, e->cache, &b, e->want, drawn, &logits, err));
    e->stats.calls++;
    e->stats.replayed = cairn_pass_replayed(e->pass);
    e->stats.prompt_tokens += n - drawn;
    e->stats.response_tokens += drawn;
    if (drawn)
        TRY(draw(e, &logits, drawn, err));
    for (int i = drawn - 1; i >= 0; i--) { /* downwards: whoever leaves is replaced by one that was looked at */
        struct living *l = &e->living[i];

        TRY(response_add(e, l, e->h_token[i], e->h_logprob[i], e->o.sampled ? e->h_sampled[i] : 0, err));
        if (stops(e, l))
            TRY(leave(e, i, CAIRN_FINISH_STOP, tell, arg, err));
        else if (l->n == l->g->r.max_new)
            TRY(leave(e, i, CAIRN_FINISH_LENGTH, tell, arg, err));
    }
out:
    return st;
}

enum cairn_status cairn_engine_run(struct cairn_engine *e, cairn_engine_tell_fn *tell, void *arg, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    while (st == CAIRN_OK && !cairn_engine_idle(e))
        st = cairn_engine_step(e, tell, arg, err);
    return st;
}

enum cairn_status cairn_engine_abort(struct cairn_engine *e, cairn_engine_tell_fn *tell, void *arg, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (struct group *g = e->first, *next; g; g = next) { /* whoever waits is as if it had been started */
        next = g->next;
        if (g->slot >= 0) {
            cairn_cache_free(e->cache, g->slot);
            e->promised -= g->promised;
            e->kept--;
            e->waiting -= g->r.samples - g->started;
        }
        g->started = g->r.samples;
        if (!g->living)
            group_drop(g);
    }
    e->first = NULL;
    e->last = &e->first;
    while (st == CAIRN_OK && e->nliving)
        st = leave(e, e->nliving - 1, CAIRN_FINISH_ABORTED, tell, arg, err);
    return st;
}
