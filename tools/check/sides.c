/* sides.c - opens both sides, and what each scores. See sides.h. */
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
#include "base/signals.h"
#include "stages/common/setup.h"

#define DRAWN_MOST 80  /* tokens of a sequence that leg 5 makes */
#define EDGE       64  /* tokens at both ends of a long sequence that are cut as they are to be; those between, */
#define MIDDLE     256 /* of which there may be thousands, so many at once: one by one they would take half of the gate's time */

const char *const cairn_sides_part_name[CAIRN_SIDES_PARTS] = {"trainer", "sampler", "change", "state", "policy",
                                                              "load",    "remove",  "memory", "digest"};

/* ---- open ------------------------------------------------------------------------------------------------------------ */

/* The newest policy of the run, else its base. */
static enum cairn_status start_find(struct cairn_sides *x, struct cairn_error *err)
{
    const struct cairn_reach reach = cairn_run_reach(x->run);
    struct cairn_link *chain = NULL;
    enum cairn_status st = CAIRN_OK;
    int n = 0;

    TRY(cairn_run_chain(x->run, &chain, &n, err));
    for (int i = n - 1; i >= 0 && !x->start; i--)
        if (chain[i].stage == CAIRN_STAGE_SYNC && !cairn_link_beyond(&reach, &chain[i]) && cairn_link_done(x->run, &chain[i]) &&
            !(x->start = cairn_link_path(x->run, &chain[i])))
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
    TRY(cairn_pass_create(&x->pass, &x->model,
                          &(struct cairn_pass_opts){.max_rows = x->q.longest > 64 + MIDDLE ? x->q.longest : 64 + MIDDLE, .max_seqs = x->q.n}, err));
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

/* A GPU loads the code of a kernel when that is first wanted, which takes seconds in all: as each side scores for the first time. */
static enum cairn_status code_load(struct cairn_sides *x, struct cairn_error *err)
{
    const struct cairn_sides_cut cut = {.rows = 64, .chunk = 64, .share = 1};
    enum cairn_status st = CAIRN_OK;
    float *unused = NULL;

    if (!strcmp(x->k.dev->name, "cpu") || !strcmp(x->k.dev->name, "guard"))
        return CAIRN_OK;
    if (!(unused = malloc((size_t)x->q.at[x->q.n] * sizeof *unused)))
        return CAIRN_NOMEM(err);
    TRY(cairn_sides_trainer_scores(x, unused, err));
    TRY(cairn_sides_sampler_scores(x, &cut, unused, err));
    memset(x->spent, 0, sizeof x->spent);
out:
    free(unused);
    return st;
}

/* The run, and what it starts from. */
static enum cairn_status run_open(struct cairn_sides *x, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    memset(x, 0, sizeof *x);
    x->lock = -1;
    TRY(cairn_run_open(&x->run, dir, err));
    x->temperature = (float)cairn_recipe_f64(x->run->recipe, "rollout.temperature");
    x->page = (int)cairn_recipe_i64(x->run->recipe, "rollout.page");
    if (!(x->base = cairn_run_path(x->run, "base")) || !(x->scratch = cairn_run_path(x->run, "log/check.scratch")))
        TRY(CAIRN_NOMEM(err));
    TRY(start_find(x, err));
out:
    return st;
}

/* On a device that is open: the trainer, and what it is to score. *fresh: its adapter is new, and no policy has it yet. */
static enum cairn_status trainer_open(struct cairn_sides *x, int *fresh, struct cairn_error *err)
{
    const struct cairn_recipe *r = x->run->recipe;
    enum cairn_status st = CAIRN_OK;

    *fresh = !strcmp(x->start, x->base) && cairn_recipe_has(r, "model.adapter");
    TRY(cairn_trainer_open(&x->trainer, &x->k, r, &(struct cairn_trainer_start){.dir = x->start, .base = x->base, .fresh_adapter = *fresh}, err));
    TRY(cairn_check_sequences_make(&x->q, &x->trainer.policy.config, x->page, 0, (uint64_t)cairn_recipe_i64(r, "run.seed"), err));
    TRY(cairn_trainer_reserve(&x->trainer, x->q.longest > DRAWN_MOST ? x->q.longest : DRAWN_MOST, x->q.tokens + 6 * DRAWN_MOST, 0, err));
out:
    return st;
}

enum cairn_status cairn_sides_open(struct cairn_sides *x, const struct cairn_check_opts *o, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int fresh;

    TRY(run_open(x, o->dir, err));
    TRY(scratch_make(x, err));
    TRY(cairn_setup_compute(&x->k, x->run, o->threads, 0, err));
    TRY(trainer_open(x, &fresh, err));
    if (fresh) /* a run whose first policy comes out of its warm start: the sampler begins with what sync makes of the fresh adapter */
        TRY(cairn_sides_sync(x, err));
    else
        TRY(cairn_policy_open(&x->policy, x->start, &(struct cairn_policy_opts){.base = x->base, .quiet = 1}, &x->k, err));
    TRY(sampler_open(x, err));
    TRY(code_load(x, err));
out:
    return st;
}

enum cairn_status cairn_sides_open_wide(struct cairn_sides *x, const struct cairn_check_opts *o, int *narrow, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int fresh;

    TRY(run_open(x, o->dir, err));
    TRY(cairn_setup_compute_wide(&x->k, x->run, o->threads, narrow, err));
    if (*narrow)
        TRY(trainer_open(x, &fresh, err));
out:
    return st;
}

void cairn_sides_close(struct cairn_sides *x)
{
    cairn_pass_destroy(x->pass);
    cairn_cache_destroy(x->cache);
    cairn_policy_close(&x->policy);
    cairn_buffer_destroy(x->noise);
    cairn_trainer_close(&x->trainer);
    cairn_compute_close(&x->k);
    cairn_check_sequences_free(&x->q);
    cairn_sides_sync_settle(x);
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
    double t0 = cairn_now_s();
    enum cairn_status st = cairn_trainer_logprobs(&x->trainer, NULL, x->q.s, x->q.n, x->q.at, x->temperature, out, err);

    x->spent[CAIRN_SIDES_TRAINER] += cairn_now_s() - t0;
    return st;
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

/* Tokens of sequence i that the next call takes, which has room for `room` and for one chunk of a middle. */
static int64_t wanted(const struct scoring *s, int i, int64_t room)
{
    const struct cairn_sequence *q = &s->x->q.s[i];
    int64_t end = q->length - 1, n = end - s->done[i], chunk = s->cut->chunk;

    if (s->slot[i] < 0 || waits(s, i))
        return 0;
    if (end > 2 * EDGE + MIDDLE && s->done[i] >= EDGE && n > EDGE) {
        n -= EDGE;
        chunk = MIDDLE;
        room += MIDDLE;
    }
    if (s->done[i] < q->prompt - 1 && q->prompt - 1 - s->done[i] < n) /* what is shared ends a chunk */
        n = q->prompt - 1 - s->done[i];
    n = n < chunk ? n : chunk;
    n = n < room ? n : room;
    return n > 0 ? n : 0;
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
    size_t rows = (size_t)cut->rows + MIDDLE;
    double t0 = cairn_now_s();
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
    x->spent[CAIRN_SIDES_SAMPLER] += cairn_now_s() - t0;
    free(s.id);
    free(s.pos);
    free(s.seq);
    free(s.target);
    free(s.which);
    free(s.to);
    free(s.h);
    return st;
}
