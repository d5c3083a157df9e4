/* sides.c - opens both sides, scores, changes one, syncs. See sides.h. */
#include "tools/check/sides.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/signals.h"
#include "ckpt/retention.h"
#include "model/io.h"
#include "stages/common/setup.h"

#define DRAWN_MOST 80   /* tokens of a sequence that leg 5 makes */
#define LEAST_SIZE 0.02 /* a tensor of zeros (a LoRA's B) has no size of its own */

/* ---- open ------------------------------------------------------------------------------------------------------------ */

/* The newest policy of the run, else its base. */
static enum cairn_status start_find(struct cairn_sides *x, struct cairn_error *err)
{
    struct cairn_link *chain = NULL;
    enum cairn_status st = CAIRN_OK;
    int n = 0;

    TRY(cairn_run_chain(x->run, &chain, &n, err));
    for (int i = n - 1; i >= 0 && !x->start; i--)
        if (chain[i].stage == CAIRN_STAGE_SYNC && cairn_link_done(x->run, &chain[i]) && !(x->start = cairn_link_path(x->run, &chain[i])))
            TRY(CAIRN_NOMEM(err));
    if (!x->start) {
        const struct cairn_link first = {0, CAIRN_STAGE_SYNC, NULL};

        if (cairn_link_done(x->run, &first) ? !(x->start = cairn_link_path(x->run, &first)) : !(x->start = strdup(x->base)))
            TRY(CAIRN_NOMEM(err));
    }
out:
    free(chain);
    return st;
}

static enum cairn_status sampler_open(struct cairn_sides *x, struct cairn_error *err)
{
    struct cairn_cache_opts o = {.slots = x->q.n, .page = x->page, .max_length = x->q.longest};
    enum cairn_status st = CAIRN_OK;

    x->model = (struct cairn_model){.k = &x->k,
                                    .config = &x->policy.config,
                                    .weights = &x->policy.weights,
                                    .adapter = x->policy.lora ? &x->policy.adapter : NULL,
                                    .adapter_weights = x->policy.lora ? &x->policy.adapter_weights : NULL,
                                    .segments = (int)cairn_recipe_i64(x->run->recipe, "numerics.segments")};
    for (int i = 0; i < x->q.n; i++)
        o.pages += (int)(x->q.s[i].length / x->page + 2);
    TRY(cairn_cache_create(&x->cache, &x->policy.config, &x->k, &o, err));
    TRY(cairn_pass_create(&x->pass, &x->model, &(struct cairn_pass_opts){.max_rows = x->q.longest > 64 ? x->q.longest : 64, .max_seqs = x->q.n},
                          err));
out:
    return st;
}

/* The scratch folder, empty, for this check alone: of two checks of one run the second waits for the first. The lock is on RUN/log, so that it
 * leaves no file; where there are no such locks, none is held. */
static enum cairn_status scratch_make(struct cairn_sides *x, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *log = cairn_path_dirname(x->scratch);

    if (!log)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_dir_make(log, err));
    x->lock = open(log, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; x->lock >= 0 && flock(x->lock, LOCK_EX | LOCK_NB) && (errno == EWOULDBLOCK || errno == EINTR); i++) {
        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped while another check of this run is at work"));
        if (!i)
            cairn_info("another check of this run is at work; waiting for it");
        cairn_sleep_s(0.1);
    }
    TRY(cairn_tree_remove(x->scratch, err));
    TRY(cairn_dir_make(x->scratch, err));
    x->mine = 1;
out:
    free(log);
    return st;
}

enum cairn_status cairn_sides_open(struct cairn_sides *x, const struct cairn_check_opts *o, struct cairn_error *err)
{
    const struct cairn_recipe *r;
    enum cairn_status st = CAIRN_OK;
    int fresh;

    memset(x, 0, sizeof *x);
    x->lock = -1;
    TRY(cairn_run_open(&x->run, o->dir, err));
    r = x->run->recipe;
    x->temperature = (float)cairn_recipe_f64(r, "rollout.temperature");
    x->page = (int)cairn_recipe_i64(r, "rollout.page");
    if (!(x->base = cairn_run_path(x->run, "base")) || !(x->scratch = cairn_run_path(x->run, "log/check.scratch")))
        TRY(CAIRN_NOMEM(err));
    TRY(start_find(x, err));
    TRY(scratch_make(x, err));
    TRY(cairn_setup_compute(&x->k, r, o->threads, 0, err));
    fresh = !strcmp(x->start, x->base) && cairn_recipe_has(r, "model.adapter");
    TRY(cairn_trainer_open(&x->trainer, &x->k, r, &(struct cairn_trainer_start){.dir = x->start, .base = x->base, .fresh_adapter = fresh}, err));
    TRY(cairn_check_sequences_make(&x->q, &x->trainer.policy.config, x->page, 0, (uint64_t)cairn_recipe_i64(r, "run.seed"), err));
    TRY(cairn_trainer_reserve(&x->trainer, x->q.longest > DRAWN_MOST ? x->q.longest : DRAWN_MOST, x->q.tokens + 6 * DRAWN_MOST, 0, err));
    if (fresh) /* a run whose first policy comes out of its warm start: the sampler begins with what sync makes of the fresh adapter */
        TRY(cairn_sides_sync(x, err));
    else
        TRY(cairn_policy_open(&x->policy, x->start, &(struct cairn_policy_opts){.base = x->base, .quiet = 1}, &x->k, err));
    TRY(sampler_open(x, err));
out:
    return st;
}

void cairn_sides_close(struct cairn_sides *x)
{
    cairn_pass_destroy(x->pass);
    cairn_cache_destroy(x->cache);
    cairn_policy_close(&x->policy);
    cairn_trainer_close(&x->trainer);
    cairn_compute_close(&x->k);
    cairn_check_sequences_free(&x->q);
    if (x->mine)
        cairn_tree_remove(x->scratch, NULL);
    if (x->lock > 0)
        close(x->lock);
    free(x->scratch);
    free(x->start);
    free(x->base);
    cairn_run_close(x->run);
    memset(x, 0, sizeof *x);
}

/* ---- scores ---------------------------------------------------------------------------------------------------------- */

enum cairn_status cairn_sides_trainer_scores(struct cairn_sides *x, float *out, struct cairn_error *err)
{
    return cairn_trainer_logprobs(&x->trainer, NULL, x->q.s, x->q.n, x->q.at, x->temperature, out, err);
}

/* One scoring by the sampler. */
struct scoring {
    struct cairn_sides *x;
    const struct cairn_sides_cut *cut;
    int slot[CAIRN_CHECK_SEQUENCES], leader[CAIRN_CHECK_SEQUENCES]; /* leader: of its group; itself where it shares with nobody */
    int64_t done[CAIRN_CHECK_SEQUENCES], ran[CAIRN_CHECK_SEQUENCES]; /* tokens: given to a call; run before the call at hand */
    int32_t *id, *pos, *seq, *target, *which; /* (rows) of a call */
    int64_t *to;                      /* (rows) where a row's number belongs; -1: nowhere */
    float *h;
};

/* Those whose prompt another one runs begin where that is done: before its last token, whose row gives each of them a number of its own. */
static enum cairn_status begin(struct scoring *s, int i, struct cairn_error *err)
{
    int lead = s->leader[i];

    if (s->slot[i] >= 0)
        return CAIRN_OK;
    if (lead == i)
        s->slot[i] = cairn_cache_slot(s->x->cache);
    else if (s->slot[lead] >= 0 && s->ran[lead] == s->x->q.s[lead].prompt - 1)
        s->slot[i] = cairn_cache_fork(s->x->cache, s->slot[lead]);
    else
        return CAIRN_OK;
    if (s->slot[i] < 0)
        return CAIRN_BUG(err, "the cache is short of slots");
    s->done[i] = lead == i ? 0 : s->done[lead];
    return CAIRN_OK;
}

/* A leader waits at the end of the shared prompt until all of its group have begun. */
static int waits(const struct scoring *s, int i)
{
    if (s->leader[i] != i || s->done[i] != s->x->q.s[i].prompt - 1)
        return 0;
    for (int k = 0; k < s->x->q.n; k++)
        if (s->leader[k] == i && s->slot[k] < 0)
            return 1;
    return 0;
}

/* Tokens of sequence i that the next call takes. */
static int64_t wanted(const struct scoring *s, int i, int64_t room)
{
    const struct cairn_sequence *q = &s->x->q.s[i];
    int64_t end = q->length - 1, n = end - s->done[i], chunk = s->cut->chunk;

    if (s->slot[i] < 0 || waits(s, i))
        return 0;
    if (s->done[i] < q->prompt - 1 && q->prompt - 1 - s->done[i] < n) /* what is shared ends a chunk */
        n = q->prompt - 1 - s->done[i];
    n = n < chunk ? n : chunk;
    return n < room ? n : room;
}

static enum cairn_status call(struct scoring *s, int64_t *rows, struct cairn_error *err)
{
    struct cairn_sides *x = s->x;
    enum cairn_status st = CAIRN_OK;
    int64_t n = 0;

    memcpy(s->ran, s->done, sizeof s->ran);
    for (int k = 0; k < x->q.n; k++) {
        int i = s->cut->reverse ? x->q.n - 1 - k : k, fits = 1;
        const struct cairn_sequence *q = &x->q.s[i];
        int64_t want;

        TRY(begin(s, i, err));
        if (!(want = wanted(s, i, s->cut->rows - n)))
            continue;
        TRY(cairn_cache_extend(x->cache, s->slot[i], want, &fits, err));
        if (!fits)
            TRY(CAIRN_BUG(err, "the cache is short of pages"));
        for (; want; want--, n++) {
            int64_t t = s->done[i]++;

            s->id[n] = q->tokens[t];
            s->pos[n] = (int32_t)t;
            s->seq[n] = s->slot[i];
            s->which[n] = i;
            s->target[n] = q->tokens[t + 1];
            s->to[n] = t + 1 >= q->prompt ? x->q.at[i] + t + 1 - q->prompt : -1;
        }
    }
    *rows = n;
out:
    return st;
}

static enum cairn_status scoring_run(struct scoring *s, float *out, struct cairn_error *err)
{
    struct cairn_sides *x = s->x;
    enum cairn_status st = CAIRN_OK;
    int64_t n;

    for (;;) {
        struct cairn_batch b = {.id = s->id, .pos = s->pos, .seq = s->seq};
        struct cairn_scores scores;
        struct cairn_tensor logprob;

        TRY(cairn_stage_stopping(err));
        TRY(call(s, &n, err));
        if (!n)
            break;
        b.n = n;
        x->now = (struct cairn_sides_rows){n, s->pos, s->which};
        TRY(cairn_forward_cached_scores(x->pass, x->cache, &b, s->target, x->temperature, &scores, err));
        logprob = cairn_tensor_slice(&scores.logprob, 0, 0, n);
        TRY(cairn_tensor_get(&x->k.stream, &logprob, s->h, (size_t)n * sizeof *s->h, err));
        for (int64_t r = 0; r < n; r++)
            if (s->to[r] >= 0)
                out[s->to[r]] = s->h[r];
    }
out:
    return st;
}

enum cairn_status cairn_sides_sampler_scores(struct cairn_sides *x, const struct cairn_sides_cut *cut, float *out, struct cairn_error *err)
{
    struct scoring s = {.x = x, .cut = cut};
    size_t rows = (size_t)cut->rows;
    enum cairn_status st = CAIRN_OK;

    s.id = malloc(rows * sizeof *s.id);
    s.pos = malloc(rows * sizeof *s.pos);
    s.seq = malloc(rows * sizeof *s.seq);
    s.target = malloc(rows * sizeof *s.target);
    s.which = malloc(rows * sizeof *s.which);
    s.to = malloc(rows * sizeof *s.to);
    s.h = malloc(rows * sizeof *s.h);
    if (!s.id || !s.pos || !s.seq || !s.target || !s.which || !s.to || !s.h)
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i < x->q.at[x->q.n]; i++)
        out[i] = NAN; /* what nobody writes is found */
    cairn_cache_reset(x->cache);
    for (int i = 0; i < x->q.n; i++) {
        s.slot[i] = -1;
        s.leader[i] = i;
        for (int k = 0; cut->share && x->q.group[i] && k < i && s.leader[i] == i; k++)
            if (x->q.group[k] == x->q.group[i])
                s.leader[i] = k;
    }
    TRY(scoring_run(&s, out, err));
out:
    x->now = (struct cairn_sides_rows){0};
    free(s.id);
    free(s.pos);
    free(s.seq);
    free(s.target);
    free(s.which);
    free(s.to);
    free(s.h);
    return st;
}

/* ---- changing the trainer -------------------------------------------------------------------------------------------- */

enum cairn_status cairn_sides_masters_save(struct cairn_sides *x, float **h, struct cairn_error *err)
{
    const struct cairn_tensor *flat = &x->trainer.optimizer.master.flat;
    enum cairn_status st = CAIRN_OK;

    if (!(*h = malloc(cairn_tensor_bytes(flat))))
        return CAIRN_NOMEM(err);
    st = cairn_tensor_get(&x->k.stream, flat, *h, cairn_tensor_bytes(flat), err);
    if (st != CAIRN_OK) {
        free(*h);
        *h = NULL;
    }
    return st;
}

enum cairn_status cairn_sides_masters_load(struct cairn_sides *x, const float *h, struct cairn_error *err)
{
    const struct cairn_tensor *flat = &x->trainer.optimizer.master.flat;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_tensor_set(&x->k.stream, flat, h, cairn_tensor_bytes(flat), err));
    TRY(cairn_trainer_publish(&x->trainer, err));
out:
    return st;
}

static double size_of(const float *v, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)v[i] * (double)v[i];
    return fmax(sqrt(sum / (double)(n ? n : 1)), LEAST_SIZE);
}

/* Uniform in +- scale * size: no need of a bell. */
static void shake(float *v, int64_t n, double scale, uint64_t seed, uint32_t which)
{
    const struct cairn_philox_key key = {.seed = seed, .purpose = CAIRN_PURPOSE_PROBE};
    double size = scale * size_of(v, n);

    for (int64_t i = 0; i < n; i += 4) {
        uint32_t r[4];

        cairn_philox(&key, which, (uint32_t)i, (uint32_t)(i >> 32), r);
        for (int64_t k = i; k < n && k < i + 4; k++)
            v[k] += (float)(size * ((double)r[k - i] / 0x1p31 - 1));
    }
}

enum cairn_status cairn_sides_perturb(struct cairn_sides *x, double scale, uint64_t seed, struct cairn_error *err)
{
    const struct cairn_store *m = &x->trainer.optimizer.master;
    enum cairn_status st = CAIRN_OK;
    float *h = NULL;

    for (int i = 0; i < m->table->count; i++) {
        const struct cairn_tensor *t = &m->tensor[i];
        size_t bytes = cairn_tensor_bytes(t);

        if (!t->buf)
            continue;
        free(h);
        if (!(h = malloc(bytes)))
            TRY(CAIRN_NOMEM(err));
        TRY(cairn_tensor_get(&x->k.stream, t, h, bytes, err));
        shake(h, cairn_tensor_count(t), scale, seed, (uint32_t)i);
        TRY(cairn_tensor_set(&x->k.stream, t, h, bytes, err));
    }
    TRY(cairn_trainer_publish(&x->trainer, err));
out:
    free(h);
    return st;
}

/* ---- sync ------------------------------------------------------------------------------------------------------------- */

/* The trainer's state as an artefact of its own below the scratch folder. */
static enum cairn_status state_write(struct cairn_sides *x, const char *dir, struct cairn_error *err)
{
    struct cairn_manifest *m = cairn_manifest_create("trainer", x->generation, x->run->uuid);
    struct cairn_attempt *a = NULL;
    enum cairn_status st = CAIRN_OK;

    if (!m)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_attempt_begin(&a, dir, &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(m)}, err));
    TRY(cairn_trainer_save(&x->trainer.optimizer, a, m, &(struct cairn_trainer_save_opts){.through = 1}, err));
    TRY(cairn_attempt_commit(a, m, err));
out:
    cairn_attempt_end(a);
    cairn_manifest_destroy(m);
    return st;
}

/* What cairn-sync makes of it. */
static enum cairn_status policy_write(struct cairn_sides *x, const char *from, const char *dir, struct cairn_error *err)
{
    const struct cairn_policy *p = &x->trainer.policy;
    struct cairn_manifest *m = cairn_manifest_create("policy", x->generation, x->run->uuid);
    enum cairn_dtype dtype = cairn_setup_dtype(x->run->recipe);
    struct cairn_reader *state = NULL, *base = NULL;
    struct cairn_attempt *a = NULL;
    enum cairn_status st = CAIRN_OK;
    json_t *content = NULL;

    if (!m)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_reader_open(&state, from, NULL, err));
    TRY(cairn_reader_open(&base, x->base, NULL, err));
    TRY(cairn_manifest_add_input(m, "log/check.scratch/train", cairn_reader_manifest(state)->digest, err));
    TRY(cairn_attempt_begin(&a, dir, &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(m)}, err));
    TRY(cairn_policy_save(x->trainer.table, state, p->lora ? NULL : base, dtype, a, m, "", err));
    content = cairn_setup_policy_content(&p->config, &p->table, p->lora ? &p->adapter : NULL, cairn_reader_manifest(base)->digest, dtype);
    if (!content || json_object_update(m->content, content))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_attempt_commit(a, m, err));
out:
    json_decref(content);
    cairn_attempt_end(a);
    cairn_reader_close(state);
    cairn_reader_close(base);
    cairn_manifest_destroy(m);
    return st;
}

enum cairn_status cairn_sides_sync(struct cairn_sides *x, struct cairn_error *err)
{
    char *train = cairn_format("%s/train-%lld", x->scratch, (long long)(x->generation + 1)),
         *policy = cairn_format("%s/policy-%lld", x->scratch, (long long)(x->generation + 1));
    enum cairn_status st = CAIRN_OK;

    x->generation++;
    if (!train || !policy)
        TRY(CAIRN_NOMEM(err));
    TRY(state_write(x, train, err));
    TRY(policy_write(x, train, policy, err));
    if (x->policy.weights.buf)
        TRY(cairn_policy_next(&x->policy, policy, &x->k, err));
    else
        TRY(cairn_policy_open(&x->policy, policy, &(struct cairn_policy_opts){.base = x->base, .quiet = 1}, &x->k, err));
out:
    if (train)
        cairn_tree_remove(train, NULL);
    if (policy)
        cairn_tree_remove(policy, NULL);
    free(train);
    free(policy);
    return st;
}

enum cairn_status cairn_sides_weights_differ(struct cairn_sides *x, const char **name, struct cairn_digest *all, struct cairn_error *err)
{
    const struct cairn_store *mine = x->trainer.published, *theirs = x->policy.lora ? &x->policy.adapter_weights : &x->policy.weights;
    struct cairn_digest sum = {0, 0}, a, b;
    enum cairn_status st = CAIRN_OK;
    char *h = NULL;

    *name = NULL;
    for (int i = 0; i < mine->table->count && !*name; i++) {
        size_t bytes = cairn_tensor_bytes(&mine->tensor[i]);
        char *p = realloc(h, bytes ? bytes : 1);

        if (!p)
            TRY(CAIRN_NOMEM(err));
        h = p;
        if (cairn_tensor_bytes(&theirs->tensor[i]) != bytes)
            TRY(CAIRN_BUG(err, "trainer and sampler hold tensors of other sizes"));
        TRY(cairn_tensor_get(&x->k.stream, &mine->tensor[i], h, bytes, err));
        a = cairn_digest_bytes(h, bytes);
        TRY(cairn_tensor_get(&x->k.stream, &theirs->tensor[i], h, bytes, err));
        b = cairn_digest_bytes(h, bytes);
        if (!cairn_digest_equal(a, b))
            *name = mine->table->param[i].name;
        sum = cairn_digest_add(sum, a);
    }
    if (all)
        *all = sum;
out:
    free(h);
    return st;
}
