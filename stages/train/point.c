/* point.c - saves beside the training, and their pick-up (point.h).
 *
 * A save with ranks: rank 0 takes an epoch and tells it; each rank's thread writes its shards; when all say that they are through,
 * rank 0 gets the entries and its thread commits. Alone one thread does all of it.
 */
#include "stages/train/point.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/retention.h"
#include "model/io.h"
#include "stages/common/inside.h"
#include "world/group.h"

enum phase { IDLE, WRITING, PUBLISHING };

/* What a rank says of the save at hand. */
struct say {
    int32_t state; /* 0 at work, 1 through */
    int32_t status;
    int64_t epoch;
};

struct cairn_points {
    struct cairn_stage_ctx *ctx;
    struct cairn_trainer *t;
    int numbers;
    int64_t every;
    int64_t newest; /* update of the last committed one; 0: none */
    float *h[3];    /* copies of masters, m, v */
    double *h_numbers;
    /* the save under way */
    enum phase phase;
    int64_t update;
    char *dir;
    struct cairn_attempt *attempt;
    struct cairn_manifest *manifest;
    pthread_t thread;
    int started;     /* the thread is to be joined */
    atomic_int done; /* it has ended; with: */
    enum cairn_status st;
    struct cairn_error err;
    int there;         /* another attempt has committed it */
    struct say *heard; /* (ranks) */
    double began_s;
    struct cairn_points_times times;
};

/* ---- what the ranks say to one another ------------------------------------------------------------------------------------ */

__attribute__((noreturn)) static void apart(struct cairn_points *p, enum cairn_status st, const struct cairn_error *err)
{
    cairn_warn("%s", err->text);
    cairn_world_abort(p->ctx->world, st);
}

/* Into p->heard, without an agreement: a failed save is no failure of the stage. Returns the first bad status; that somebody is
 * outranked comes before all others. */
static enum cairn_status say(struct cairn_points *p, const char *what, const struct say *own)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;

    if (p->t->ranks == 1)
        p->heard[0] = *own;
    else if ((st = cairn_group_allgather(p->t->group, what, own, sizeof *own, p->heard, &err)) != CAIRN_OK)
        apart(p, st, &err);
    for (int r = 0; r < p->t->ranks; r++)
        if (p->heard[r].status != CAIRN_OK && (st == CAIRN_OK || p->heard[r].status == CAIRN_EFENCED))
            st = (enum cairn_status)p->heard[r].status;
    return st;
}

/* ---- open and close -----------------------------------------------------------------------------------------------------------
 */

enum cairn_status cairn_points_open(struct cairn_points **out, struct cairn_stage_ctx *ctx, struct cairn_trainer *t, int numbers,
                                    struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_points *p;

    *out = NULL;
    if (!ctx->attempt)
        return CAIRN_OK;
    p = calloc(1, sizeof *p);
    if (!p)
        return cairn_trainer_agree(t, "points", CAIRN_NOMEM(err), err);
    *p = (struct cairn_points){.ctx = ctx, .t = t, .numbers = numbers, .every = cairn_recipe_i64(t->recipe, "checkpoint.updates")};
    p->h_numbers = calloc((size_t)numbers + 1, sizeof *p->h_numbers);
    p->heard = calloc((size_t)t->ranks, sizeof *p->heard);
    st = cairn_trainer_agree(t, "points", p->h_numbers && p->heard ? CAIRN_OK : CAIRN_NOMEM(err), err);
    if (st != CAIRN_OK) {
        free(p->heard);
        free(p->h_numbers);
        free(p);
        return st;
    }
    *out = p;
    return CAIRN_OK;
}

/* Room for the copies. */
static enum cairn_status room(struct cairn_points *p, struct cairn_error *err)
{
    size_t n = (size_t)(p->t->optimizer.end - p->t->optimizer.begin);

    for (int i = 0; i < 3; i++)
        if (!p->h[i] && !(p->h[i] = malloc((n + 1) * sizeof *p->h[i])))
            return CAIRN_NOMEM(err);
    return CAIRN_OK;
}

static void save_end(struct cairn_points *p)
{
    cairn_attempt_end(p->attempt);
    cairn_manifest_destroy(p->manifest);
    free(p->dir);
    p->attempt = NULL;
    p->manifest = NULL;
    p->dir = NULL;
    p->phase = IDLE;
}

/* ---- the thread
 * ------------------------------------------------------------------------------------------------------------------ */

static enum cairn_status begin(struct cairn_points *p, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_reader *r = NULL;

    TRY(cairn_attempt_check(p->ctx->attempt, err));
    st = cairn_attempt_begin(&p->attempt, p->dir, &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(p->manifest)},
                             err);
    if (st == CAIRN_EFENCED && cairn_inside_open(&r, p->dir, p->ctx->manifest, "update", NULL) == CAIRN_OK) {
        p->there = 1;
        st = CAIRN_OK;
    }
    cairn_reader_close(r);
out:
    return st;
}

static enum cairn_status write_shards(struct cairn_points *p, struct cairn_error *err)
{
    const float *const h[3] = {p->h[0], p->h[1], p->h[2]};
    const int64_t n = p->numbers;
    const struct cairn_slice slice = cairn_slice_whole("numbers", CAIRN_F64, 1, &n);
    struct cairn_shard_entry *entry = NULL;
    struct cairn_shard *w = NULL;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_trainer_save(&p->t->optimizer, p->attempt, p->manifest,
                           &(struct cairn_trainer_save_opts){.through = 1, .h_values = h}, err));
    if (p->t->rank)
        goto out;
    TRY(cairn_attempt_shard(p->attempt, &w, "numbers", &slice, 1, NULL, err));
    TRY(cairn_shard_write(w, 0, 0, p->h_numbers, (size_t)n * sizeof *p->h_numbers, err));
    TRY(cairn_attempt_shard_done(p->attempt, &w, &entry, err));
    TRY(cairn_manifest_add_shard(p->manifest, entry, err));
out:
    cairn_shard_destroy(w);
    return st;
}

static enum cairn_status publish(struct cairn_points *p, struct cairn_error *err)
{
    enum cairn_status st = cairn_attempt_commit(p->attempt, p->manifest, err);

    if (st == CAIRN_OK) /* what stays of older ones goes with the step */
        cairn_inside_drop_updates(p->ctx->run, p->ctx->link.step, p->update, NULL);
    return st;
}

static void *writer(void *arg)
{
    struct cairn_points *p = arg;
    enum cairn_status st = CAIRN_OK;
    struct cairn_error *err = &p->err;
    int alone = p->t->ranks == 1;

    if (alone)
        TRY(begin(p, err));
    if (p->there)
        goto out;
    if (p->phase == WRITING)
        TRY(write_shards(p, err));
    if (alone || p->phase == PUBLISHING)
        TRY(publish(p, err));
out:
    p->st = st;
    atomic_store(&p->done, 1);
    return NULL;
}

/* The thread hears no signals: those are for who polls the flag. */
static void start(struct cairn_points *p)
{
    sigset_t all, before;
    int rc;

    p->st = CAIRN_OK;
    atomic_store(&p->done, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&p->thread, NULL, writer, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    p->started = !rc;
    if (rc)
        writer(p); /* then we wait for it */
}

static void join(struct cairn_points *p)
{
    if (p->started)
        pthread_join(p->thread, NULL);
    p->started = 0;
}

/* ---- a save
 * ----------------------------------------------------------------------------------------------------------------------- */

static void failed(struct cairn_points *p, enum cairn_status st, enum cairn_status own, const char *text)
{
    p->times.failed++;
    if (own != CAIRN_OK)
        cairn_warn("update %lld was not saved: %s", (long long)p->update, text);
    if (p->ctx->events)
        cairn_event(
            p->ctx->events, "save-failed", cairn_stage_name(CAIRN_STAGE_TRAIN), p->ctx->link.step,
            json_pack("{s:I, s:i, s:s?}", "update", (json_int_t)p->update, "code", (int)st, "text", own != CAIRN_OK ? text : NULL));
    save_end(p);
}

static enum cairn_status outranked(struct cairn_points *p, enum cairn_status own, const struct cairn_error *why,
                                   struct cairn_error *err)
{
    struct cairn_error text = *why; /* it may be p's */

    save_end(p);
    return cairn_fail(err, CAIRN_EFENCED, "%s", own == CAIRN_EFENCED ? text.text : "another attempt outranks this one");
}

static enum cairn_status prepare(struct cairn_points *p, const double *h, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(room(p, err));
    TRY(cairn_trainer_snapshot(&p->t->optimizer, p->h, err));
    memcpy(p->h_numbers, h, (size_t)p->numbers * sizeof *h);
    p->dir = cairn_inside_update_path(p->ctx->run, p->ctx->link.step, p->update);
    if (!p->dir)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_inside_manifest(&p->manifest, p->ctx->manifest, "update", err));
    if (json_object_set_new(p->manifest->content, "update", json_integer((json_int_t)p->update)) ||
        json_object_set_new(p->manifest->content, "updates", json_integer((json_int_t)p->t->optimizer.updates)))
        TRY(CAIRN_NOMEM(err));
out:
    return st;
}

/* Copies and sets the writing off. Not CAIRN_OK: this attempt is outranked. */
static enum cairn_status save_begin(struct cairn_points *p, int64_t update, const double *h, struct cairn_error *err)
{
    struct say own = {.state = 1};
    struct cairn_error why = {0};
    enum cairn_status st, bad, mine;

    p->began_s = cairn_now_s();
    p->update = update;
    p->there = 0;
    mine = prepare(p, h, &why);
    if (mine == CAIRN_OK && p->t->ranks > 1 && !p->t->rank) {
        mine = begin(p, &why);
        own.epoch = mine == CAIRN_OK && !p->there ? cairn_attempt_epoch(p->attempt) : 0;
    }
    own.status = (int32_t)mine;
    bad = say(p, "saving an update", &own);
    st = bad == CAIRN_EFENCED ? outranked(p, mine, &why, err) : CAIRN_OK;
    if (bad != CAIRN_OK) {
        if (st == CAIRN_OK)
            failed(p, bad, mine, why.text);
        goto out;
    }
    p->phase = WRITING;
    if (p->t->ranks > 1) {
        p->there = !p->heard[0].epoch;
        if (p->t->rank && !p->there)
            mine = cairn_attempt_join(&p->attempt, p->dir, p->heard[0].epoch,
                                      &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(p->manifest)}, &why);
    }
    if (mine == CAIRN_OK) {
        start(p);
    } else { /* heard of at the next look */
        p->st = mine;
        p->err = why;
        atomic_store(&p->done, 1);
    }
out:
    p->times.stall_s += cairn_now_s() - p->began_s;
    return st;
}

/* Everybody's shard entries to rank 0's manifest. */
static enum cairn_status entries_together(struct cairn_points *p, struct cairn_error *err)
{
    struct cairn_group *g = p->t->group;
    enum cairn_status st = CAIRN_OK;
    struct cairn_error talk = {0};
    struct cairn_str own = {0};
    size_t *at = NULL;
    char *all = NULL;

    for (int i = 0; g->rank && i < p->manifest->nshards && st == CAIRN_OK; i++) {
        char *text = NULL;
        uint64_t length;
        size_t n;

        st = cairn_shard_entry_text(p->manifest->shards[i], &text, &n, err);
        if (st != CAIRN_OK)
            break;
        length = n;
        cairn_str_add(&own, &length, sizeof length);
        cairn_str_add(&own, text, n);
        free(text);
    }
    if (st == CAIRN_OK && own.oom)
        st = CAIRN_NOMEM(err);
    if (cairn_group_collect(g, "shards of an update", 0, own.p, st == CAIRN_OK ? own.len : 0, &all, &at, &talk) != CAIRN_OK)
        apart(p, talk.code, &talk);
    for (size_t q = 0; !g->rank && q < at[g->size];) {
        struct cairn_shard_entry *e = NULL;
        uint64_t length = 0;

        if (at[g->size] - q >= sizeof length)
            memcpy(&length, all + q, sizeof length);
        if (at[g->size] - q < sizeof length || length > at[g->size] - q - sizeof length)
            TRY(CAIRN_BUG(err, "a list of shards that ends early"));
        TRY(cairn_shard_entry_parse(&e, all + q + sizeof length, (size_t)length, "a rank's shard", err));
        TRY(cairn_manifest_add_shard(p->manifest, e, err));
        q += sizeof length + (size_t)length;
    }
out:
    cairn_str_free(&own);
    free(all);
    free(at);
    return st;
}

static void committed(struct cairn_points *p)
{
    p->newest = p->update;
    p->times.saves++;
    p->times.save_s += cairn_now_s() - p->began_s;
    cairn_event(p->ctx->events, "update", cairn_stage_name(CAIRN_STAGE_TRAIN), p->ctx->link.step,
                json_pack("{s:I, s:f}", "update", (json_int_t)p->update, "seconds", cairn_now_s() - p->began_s));
    save_end(p);
}

/* Looks after the save under way; with `wait`, until it is over. Not CAIRN_OK: this attempt is outranked. */
static enum cairn_status look(struct cairn_points *p, int wait, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK, bad;

    while (p->phase != IDLE && st == CAIRN_OK) {
        struct say own = {0};
        int at_work = 0;

        if (wait)
            join(p);
        own.state = atomic_load(&p->done);
        if (own.state)
            own.status = (int32_t)p->st;
        bad = say(p, "the save under way", &own);
        for (int r = 0; r < p->t->ranks; r++)
            at_work |= !p->heard[r].state;
        if (at_work)
            break;
        join(p);
        if (bad == CAIRN_EFENCED) {
            st = outranked(p, p->st, &p->err, err);
        } else if (bad != CAIRN_OK) {
            failed(p, bad, p->st, p->err.text);
        } else if (p->phase == WRITING && p->t->ranks > 1 && !p->there) {
            p->phase = PUBLISHING;
            p->st = entries_together(p, &p->err);
            if (p->st == CAIRN_OK && !p->t->rank)
                start(p);
            if (!wait)
                break;
        } else {
            committed(p);
        }
    }
    return st;
}

enum cairn_status cairn_points_reached(struct cairn_points *p, int64_t update, int64_t of, const double *h, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (!p)
        return CAIRN_OK;
    if (p->phase != IDLE) {
        double t0 = cairn_now_s();

        TRY(look(p, 0, err));
        p->times.stall_s += cairn_now_s() - t0;
    }
    if (p->every <= 0 || update % p->every || update >= of) /* the whole step is about to be saved */
        goto out;
    if (p->phase != IDLE)
        p->times.left_out++;
    else
        st = save_begin(p, update, h, err);
out:
    return st;
}

void cairn_points_stop(struct cairn_points *p, int64_t update, const double *h)
{
    struct cairn_error err;

    if (!p)
        return;
    if (look(p, 1, &err) != CAIRN_OK || update <= 0 || p->newest == update)
        return;
    if (save_begin(p, update, h, &err) != CAIRN_OK || look(p, 1, &err) != CAIRN_OK)
        cairn_warn("update %lld was not saved: %s", (long long)update, err.text);
}

void cairn_points_close(struct cairn_points *p)
{
    if (!p)
        return;
    (void)look(p, 1, NULL); /* outranked or not: nothing is under way any more */
    for (int i = 0; i < 3; i++)
        free(p->h[i]);
    free(p->h_numbers);
    free(p->heard);
    free(p);
}

struct cairn_points_times cairn_points_times(const struct cairn_points *p)
{
    return p ? p->times : (struct cairn_points_times){0};
}

/* ---- taking it up again
 * --------------------------------------------------------------------------------------------------------------- */

/* Masters, moments and numbers of one point; the values before are in p->h, should it fail. */
static enum cairn_status load(struct cairn_points *p, const char *dir, double *h, struct cairn_error *err)
{
    const struct cairn_manifest *whole = p->ctx->manifest, *m;
    enum cairn_status st = CAIRN_OK;
    struct cairn_reader *r = NULL;

    TRY(cairn_inside_open(&r, dir, whole, "update", err));
    m = cairn_reader_manifest(r);
    if (strcmp(m->numerics, whole->numerics) || strcmp(m->layout, whole->layout)) {
        if (!strcmp(cairn_recipe_str(p->t->recipe, "numerics.require"), "same"))
            TRY(cairn_fail(err, CAIRN_EDEVICE,
                           "%s was computed as \"%s, %s\", this process computes as \"%s, %s\": go on there, or set "
                           "numerics.require=compatible",
                           dir, m->numerics, m->layout, whole->numerics, whole->layout));
        cairn_warn("%s was computed as \"%s, %s\", this process computes as \"%s, %s\"", dir, m->numerics, m->layout,
                   whole->numerics, whole->layout);
    }
    TRY(cairn_trainer_load(&p->t->optimizer, r, err));
    TRY(cairn_reader_rows(r, "numbers", 0, p->numbers, h, (size_t)p->numbers * sizeof *h, err));
out:
    cairn_reader_close(r);
    return st;
}

/* The values before. */
static enum cairn_status put_back(struct cairn_points *p, int64_t updates, struct cairn_error *err)
{
    struct cairn_optimizer *o = &p->t->optimizer;
    const struct cairn_tensor *flat[] = {&o->master.flat, &o->m.flat, &o->v.flat};
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < 3 && o->end > o->begin; i++)
        TRY(cairn_tensor_set(&o->k->stream, flat[i], p->h[i], cairn_tensor_bytes(flat[i]), err));
    o->updates = updates;
out:
    return st;
}

/* Newest committed one, or 0; on rank 0. */
static enum cairn_status newest(struct cairn_points *p, int64_t *update, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t *list = NULL;
    int n = 0;

    *update = 0;
    TRY(cairn_inside_updates(p->ctx->run, p->ctx->link.step, &list, &n, err));
    for (int i = n; i-- > 0 && !*update;) {
        char *dir = cairn_inside_update_path(p->ctx->run, p->ctx->link.step, list[i]);

        if (!dir)
            TRY(CAIRN_NOMEM(err));
        if (cairn_artefact_committed(dir))
            *update = list[i];
        free(dir);
    }
out:
    free(list);
    return st;
}

enum cairn_status cairn_points_resume(struct cairn_points *p, int64_t *update, double *h, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *dir = NULL;
    int64_t updates;

    *update = 0;
    if (!p)
        return CAIRN_OK;
    updates = p->t->optimizer.updates;
    for (;;) {
        struct say own = {.state = 1};
        struct cairn_error why = {0};
        enum cairn_status bad;
        int64_t u = 0;

        if (!p->t->rank)
            st = newest(p, &u, err);
        TRY(cairn_trainer_agree(p->t, "the last update", st, err));
        own.epoch = u;
        say(p, "the last update", &own);
        u = p->heard[0].epoch;
        if (!u)
            break;
        free(dir);
        dir = cairn_inside_update_path(p->ctx->run, p->ctx->link.step, u);
        st = dir ? room(p, &why) : CAIRN_NOMEM(&why);
        if (st == CAIRN_OK)
            st = cairn_trainer_snapshot(&p->t->optimizer, p->h, &why);
        if (st == CAIRN_OK)
            st = load(p, dir, h, &why);
        own.status = (int32_t)st;
        bad = say(p, "loading an update", &own);
        if (bad == CAIRN_OK) {
            *update = p->newest = u;
            cairn_info("going on after update %lld", (long long)u);
            break;
        }
        if (bad != CAIRN_EDATA && bad != CAIRN_ENOINPUT) { /* a stop, no memory, another machine: not the point's fault */
            if (st != CAIRN_OK && err)
                *err = why;
            TRY(cairn_trainer_agree(p->t, "loading an update", st, err));
        }
        if (st != CAIRN_OK)
            cairn_warn("%s is left out: %s", dir, why.text);
        st = put_back(p, updates, err);
        if (st == CAIRN_OK && !p->t->rank)
            st = cairn_artefact_drop(dir, err);
        TRY(cairn_trainer_agree(p->t, "leaving an update out", st, err));
    }
    if (*update)
        TRY(cairn_trainer_publish(p->t, err));
out:
    free(dir);
    return st;
}

enum cairn_status cairn_points_forget(struct cairn_points *p, struct cairn_error *err)
{
    if (!p)
        return CAIRN_OK;
    return cairn_trainer_agree(p->t, "forgetting updates",
                               p->t->rank ? CAIRN_OK : cairn_inside_drop_updates(p->ctx->run, p->ctx->link.step, INT64_MAX, err),
                               err);
}
