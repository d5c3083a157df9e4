/* engine.c - admission, prompts in chunks, one row a living sample, draws (engine.h).
 *
 * Pages are counted before they are taken. `promised` is what living samples and kept prompts may still take; the cache's free
 * pages never fall below it:
 *
 *   - total: pages of a request at its longest; have: pages of the prompt's rows that are shared (all but the last token); full: of
 *     those, pages that are full (never written again)
 *   - admission of a prompt needs total; takes have, promises total - have
 *   - a fork promises total - full (it may have to copy the open page); the first one promises the kept prompt its copy, too
 *   - the last sample takes over the kept prompt's slot and promise
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/signals.h"
#include "stages/rollout/engine_impl.h"

/* ---- requests ------------------------------------------------------------------------------------------------------- */

static int pages_total(const struct cairn_engine *e, const struct cairn_engine_group *g)
{
    return cairn_cache_pages_for(e->cache, cairn_engine_positions(g->r.length, g->r.max_new));
}

enum cairn_status cairn_engine_submit(struct cairn_engine *e, const struct cairn_request *r, struct cairn_error *err)
{
    const struct cairn_model_config *c = e->m.config;
    struct cairn_engine_group *g;
    int64_t positions;

    if (r->length < 1 || r->samples < 1 || r->max_new < 1)
        return CAIRN_BUG(err, "a request without prompt, samples or room for a token");
    if (__builtin_add_overflow(r->length, r->max_new - 1, &positions) || positions > c->max_positions)
        return cairn_fail(err, CAIRN_EDATA, "a prompt of %lld tokens and %lld new ones do not fit the model's %lld positions",
                          (long long)r->length, (long long)r->max_new, (long long)c->max_positions);
    for (int64_t i = 0; i < r->length; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= c->vocab)
            return cairn_fail(err, CAIRN_EDATA, "token %d (number %lld of the prompt) is outside the vocabulary of %lld",
                              r->prompt[i], (long long)i, (long long)c->vocab);
    if (positions > e->o.max_length || cairn_cache_pages_for(e->cache, positions) > e->pages)
        return cairn_fail(
            err, CAIRN_EUSAGE,
            "a prompt of %lld tokens and %lld new ones need %d pages of %d positions; the cache has %d, for at most %lld",
            (long long)r->length, (long long)r->max_new, cairn_cache_pages_for(e->cache, positions), e->o.page, e->pages,
            (long long)e->o.max_length);
    g = calloc(1, sizeof *g);
    if (!g)
        return CAIRN_NOMEM(err);
    g->r = *r;
    g->slot = -1;
    if (e->choices && !(g->experts = calloc((size_t)(r->length * e->choices), sizeof *g->experts))) {
        cairn_engine_group_drop(g);
        return CAIRN_NOMEM(err);
    }
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
static enum cairn_status prompt_admit(struct cairn_engine *e, struct cairn_engine_group *g, int *in, struct cairn_error *err)
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

static void sample_begin(struct cairn_engine *e, struct cairn_engine_group *g, int slot, int promised)
{
    struct cairn_engine_living *l = &e->living[e->nliving++];

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
static void sample_take_over(struct cairn_engine *e, struct cairn_engine_group *g)
{
    int slot = g->slot, promised = g->promised;

    e->waiting -= g->r.samples - g->started;
    g->slot = -1;
    g->promised = 0;
    e->kept--;
    sample_begin(e, g, slot, promised);
}

/* Starts the group's next sample if there is room; its prompt is ready. *in = 0: not now. */
static enum cairn_status sample_start(struct cairn_engine *e, struct cairn_engine_group *g, int *in, struct cairn_error *err)
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
        else /* nobody will: this prompt is run again for the next sample */
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

/* In the order of submission: prompts get room, as many as it takes to fill all places with samples and a few ahead; ready ones
 * start samples. When one has to wait no later one is admitted, but those that have their room go on: what they hold comes back
 * only that way. */
static enum cairn_status admit(struct cairn_engine *e, struct cairn_error *err)
{
    struct cairn_engine_group **at = &e->first, *g;
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
        struct cairn_engine_living *l = &e->living[i];
        int64_t pos = l->g->r.length - 1 + l->n;

        TRY(positions_take(e, l->slot, 1, &l->promised, err));
        row_put(e, n, l->token, pos, l->slot);
    }
    for (struct cairn_engine_group *g = e->first; g && kept && budget; g = g->next) {
        if (g->slot < 0)
            continue;
        kept--;
        for (; budget && g->run < g->r.length - 1; budget--) {
            e->of[*n] = g;
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
        const struct cairn_engine_living *l = &e->living[i];

        e->h_prompt[i] = l->g->r.key;
        e->h_sample[i] = l->g->r.first_sample + l->sample;
        e->h_position[i] = (int32_t)(l->g->r.length + l->n);
    }
    TRY(lines(e, 0, CAIRN_ENGINE_DRAWN, &in, err));
    TRY(lines(e, CAIRN_ENGINE_DRAWN, given, &out, err));
    TRY(cairn_tensor_set(&e->m.k->stream, &in, e->h_prompt, cairn_tensor_bytes(&in), err));
    TRY(e->m.k->ops.sample(&e->m.k->stream, &a, err));
    TRY(cairn_tensor_get(&e->m.k->stream, &out, e->h_token, cairn_tensor_bytes(&out), err));
out:
    return st;
}

/* Room for more tokens of a response. */
static enum cairn_status response_room(const struct cairn_engine *e, struct cairn_engine_living *l, struct cairn_error *err)
{
    int64_t room = l->room ? 2 * l->room : 64;
    int32_t *tokens = realloc(l->tokens, (size_t)room * sizeof *tokens), *experts;
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
    experts = e->choices ? realloc(l->experts, (size_t)(room * e->choices) * sizeof *experts) : NULL;
    if (e->choices && !experts)
        return CAIRN_NOMEM(err);
    l->experts = experts;
    l->room = room;
    return CAIRN_OK;
}

/* What the routers chose for the n rows of a call, of which the first `drawn` are those of living samples: each to whom it belongs.
 */
static enum cairn_status choices_take(struct cairn_engine *e, int64_t n, int drawn, struct cairn_error *err)
{
    const struct cairn_tensor t = cairn_pass_choices(e->pass);
    int64_t layers = t.dim[0], each = t.dim[2];
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_tensor_get(&e->m.k->stream, &t, e->h_choices, cairn_tensor_bytes(&t), err));
    for (int64_t i = 0; i < n; i++) {
        int32_t *to;

        if (i < drawn) {
            struct cairn_engine_living *l = &e->living[i];

            if (l->n == l->room)
                TRY(response_room(e, l, err));
            to = l->experts + l->n * e->choices;
        } else {
            to = e->of[i]->experts + e->pos[i] * e->choices;
        }
        for (int64_t k = 0; k < layers; k++)
            memcpy(to + k * each, e->h_choices + (k * n + i) * each, (size_t)each * sizeof *to);
    }
out:
    return st;
}

static enum cairn_status response_add(struct cairn_engine *e, struct cairn_engine_living *l, int32_t token, float logprob,
                                      float sampled, struct cairn_error *err)
{
    if (token < 0 || token >= e->m.config->vocab || !isfinite(logprob))
        return cairn_fail(err, CAIRN_ENUMERIC, "token %d at position %lld of prompt %d, sample %d has log-probability %g", token,
                          (long long)(l->g->r.length + l->n), l->g->r.key, l->g->r.first_sample + l->sample, (double)logprob);
    if (l->n == l->room) {
        enum cairn_status st = response_room(e, l, err);

        if (st != CAIRN_OK)
            return st;
    }
    l->tokens[l->n] = l->token = token;
    l->logprobs[l->n] = logprob;
    l->sampled[l->n] = sampled;
    l->n++;
    return CAIRN_OK;
}

static int stops(const struct cairn_engine *e, const struct cairn_engine_living *l)
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
    struct cairn_engine_living l = e->living[i];
    const struct cairn_response r = {.tag = l.g->r.tag,
                                     .sample = l.sample,
                                     .n = l.n,
                                     .tokens = l.tokens,
                                     .logprobs = l.logprobs,
                                     .logprobs_sampled = e->o.sampled ? l.sampled : NULL,
                                     .experts_prompt = l.g->experts,
                                     .experts = l.experts,
                                     .finish = finish};
    enum cairn_status st;

    cairn_cache_free(e->cache, l.slot);
    e->promised -= l.promised;
    e->living[i] = e->living[--e->nliving];
    e->living[e->nliving] = l; /* keeps its memory */
    e->living[e->nliving].n = 0;
    st = r.n ? tell(arg, &r, err) : CAIRN_OK;
    if (--l.g->living == 0 && l.g->started == l.g->r.samples)
        cairn_engine_group_drop(l.g);
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
        return cairn_fail(err, CAIRN_EAGAIN, "stopped on request; run again to go on");
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
    if (e->choices)
        TRY(choices_take(e, n, drawn, err));
    if (drawn)
        TRY(draw(e, &logits, drawn, err));
    for (int i = drawn - 1; i >= 0; i--) { /* downwards: whoever leaves is replaced by one that was looked at */
        struct cairn_engine_living *l = &e->living[i];

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

    for (struct cairn_engine_group *g = e->first, *next; g; g = next) { /* whoever waits is as if it had been started */
        next = g->next;
        if (g->slot >= 0) {
            cairn_cache_free(e->cache, g->slot);
            e->promised -= g->promised;
            e->kept--;
            e->waiting -= g->r.samples - g->started;
        }
        g->started = g->r.samples;
        if (!g->living)
            cairn_engine_group_drop(g);
    }
    e->first = NULL;
    e->last = &e->first;
    while (st == CAIRN_OK && e->nliving)
        st = leave(e, e->nliving - 1, CAIRN_FINISH_ABORTED, tell, arg, err);
    return st;
}
