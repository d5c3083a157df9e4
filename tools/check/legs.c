/* legs.c - see legs.h. What each leg proves stands in check.h. */
#include "tools/check/legs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tools/check/locate.h"
#include "tools/check/whole.h"

#define SEEN        1e-4 /* least difference that a changed trainer must show, mean over the tokens */
#define TRIES       14   /* doublings of the change until it does */
#define FIRST_SCALE 1e-3
#define FINER       4.0 /* steps of the search for the smallest change that is seen, */
#define FINEST      16  /* and how many of them at most */

/* The ways in which the sampler cuts its work: all must give one answer. Legs 1 and 4 take all of them, each sync one of its own. */
static const struct cairn_sides_cut cuts[] = {{.rows = 64, .chunk = 64, .share = 1}, {.rows = 13, .chunk = 7, .share = 1, .reverse = 1},
                                              {.rows = 9, .chunk = 1, .share = 0}, {.rows = 64, .chunk = 33, .share = 0, .reverse = 1}};
#define CUTS ((int)(sizeof cuts / sizeof *cuts))
#define ALL  -1

enum cairn_status cairn_legs_open(struct cairn_legs *g, struct cairn_sides *x, json_t *report, int locate, struct cairn_error *err)
{
    size_t bytes;

    *g = (struct cairn_legs){.x = x, .report = report, .locate = locate, .n = x->q.at[x->q.n]};
    bytes = (size_t)g->n * sizeof *g->trainer;
    g->trainer = malloc(bytes);
    g->sampler = malloc(bytes);
    g->first = malloc(bytes);
    if (!g->trainer || !g->sampler || !g->first)
        return CAIRN_NOMEM(err);
    return cairn_sides_masters_save(x, err);
}

void cairn_legs_close(struct cairn_legs *g)
{
    cairn_check_memory_close(g->memory);
    free(g->trainer);
    free(g->sampler);
    free(g->first);
    memset(g, 0, sizeof *g);
}

/* ---- comparing --------------------------------------------------------------------------------------------------------- */

struct difference {
    double mean, max, k3;
    int64_t equal, at; /* numbers with equal bits; where the largest difference is */
};

static struct difference compare(const float *a, const float *b, int64_t n)
{
    struct difference d = {0};

    for (int64_t i = 0; i < n; i++) {
        double x = (double)b[i] - (double)a[i], size = fabs(x);

        d.equal += memcmp(&a[i], &b[i], sizeof *a) == 0;
        if (!(size <= d.max)) { /* no number is the largest of all */
            d.max = isnan(size) ? INFINITY : size;
            d.at = i;
        }
        d.mean += size / (double)n;
        d.k3 += (exp(-x) - 1 + x) / (double)n;
    }
    return d;
}

static json_t *difference_json(const struct difference *d, int64_t n)
{
    return json_pack("{s:f, s:f, s:f, s:I, s:I}", "mean", isfinite(d->mean) ? d->mean : -1.0, "max", isfinite(d->max) ? d->max : -1.0, "k3",
                     isfinite(d->k3) ? d->k3 : -1.0, "equal", (json_int_t)d->equal, "tokens", (json_int_t)n);
}

/* "token 12 of sequence long" for number i. */
static void place(const struct cairn_sides *x, int64_t i, char *out, size_t n)
{
    int s = 0;

    while (s + 1 < x->q.n && x->q.at[s + 1] <= i)
        s++;
    snprintf(out, n, "token %lld of sequence %s", (long long)(x->q.s[s].prompt + i - x->q.at[s]), x->q.name[s]);
}

static enum cairn_status keep(struct cairn_legs *g, const char *name, json_t *v, struct cairn_error *err)
{
    return v && json_object_set_new(g->report, name, v) == 0 ? CAIRN_OK : CAIRN_NOMEM(err);
}

/* Trainer and sampler, both as they are now, in cut `only` of the sampler's work, or in all. */
static enum cairn_status both_agree(struct cairn_legs *g, const char *leg, int only, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct difference d, worst = {0};
    char where[100], why[300];

    TRY(cairn_sides_trainer_scores(g->x, g->trainer, err));
    for (int c = only == ALL ? 0 : only; c < (only == ALL ? CUTS : only + 1); c++) {
        TRY(cairn_sides_sampler_scores(g->x, &cuts[c], g->sampler, err));
        d = compare(g->trainer, g->sampler, g->n);
        if (!c || c == only || d.max > worst.max)
            worst = d;
        if (d.max <= g->band)
            continue;
        TRY(keep(g, leg, difference_json(&d, g->n), err));
        place(g->x, d.at, where, sizeof where);
        TRY(cairn_locate(g->x, &cuts[c], g->report, why, sizeof why, err));
        TRY(cairn_fail(err, CAIRN_ENUMERIC,
                       "%s: trainer and sampler differ by %.3g (%lld of %lld tokens have equal bits; chunks of %d, prompts %s), most at %s; %s", leg,
                       d.max, (long long)d.equal, (long long)g->n, cuts[c].chunk, cuts[c].share ? "shared" : "apart", where, why));
    }
    TRY(keep(g, leg, difference_json(&worst, g->n), err));
out:
    return st;
}

/* ---- the legs ------------------------------------------------------------------------------------------------------------ */

enum cairn_status cairn_leg_agree(struct cairn_legs *g, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(both_agree(g, "agree", ALL, err));
    memcpy(g->first, g->sampler, (size_t)g->n * sizeof *g->first);
out:
    return st;
}

/* The trainer anew, its first weights changed by `scale`. */
static enum cairn_status changed(struct cairn_legs *g, double scale, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_sides_masters_load(g->x, err));
    TRY(cairn_sides_perturb(g->x, scale, 1, err));
    TRY(cairn_sides_trainer_scores(g->x, g->trainer, err));
out:
    return st;
}

/* The smallest change of the weights of which some log-probability shows a bit: what is smaller, only their digest tells. */
static enum cairn_status sensitivity(struct cairn_legs *g, const float *before, json_t *report, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct difference d = {0}, seen = {0};
    double least = 0;

    for (int i = 0; i < FINEST; i++) {
        double scale = g->scale / pow(FINER, i);

        TRY(cairn_stage_stopping(err));
        TRY(changed(g, scale, err));
        d = compare(before, g->trainer, g->n);
        if (d.equal == g->n)
            break;
        seen = d;
        least = scale;
    }
    if (json_object_set_new(report, "sensitivity",
                            json_pack("{s:f, s:I, s:f}", "scale", least, "tokens", (json_int_t)(g->n - seen.equal), "max", seen.max)))
        TRY(CAIRN_NOMEM(err));
    TRY(changed(g, g->scale, err));
out:
    return st;
}

enum cairn_status cairn_leg_disagree(struct cairn_legs *g, struct cairn_error *err)
{
    double bar = fmax(10 * g->band, SEEN);
    enum cairn_status st = CAIRN_OK;
    float *before = malloc((size_t)g->n * sizeof *before);
    struct difference moved = {0}, d = {0};

    if (!before)
        return CAIRN_NOMEM(err);
    memcpy(before, g->trainer, (size_t)g->n * sizeof *before);
    g->scale = FIRST_SCALE;
    for (int i = 0;; i++, g->scale *= 2) { /* until the trainer itself sees twice what the sampler will have to */
        TRY(changed(g, g->scale, err));
        moved = compare(before, g->trainer, g->n);
        if (moved.mean > 2 * bar)
            break;
        if (i == TRIES)
            TRY(cairn_fail(
                err, CAIRN_ENUMERIC,
                "disagree: the trainer's weights were changed by %.3g of their size and its log-probabilities moved by %.3g on average: this "
                "check is blind (are the trained weights used at all?)",
                g->scale, moved.mean));
    }
    TRY(sensitivity(g, before, g->report, err));
    TRY(cairn_sides_sampler_scores(g->x, &cuts[0], g->sampler, err));
    d = compare(g->trainer, g->sampler, g->n);
    TRY(keep(g, "disagree", json_pack("{s:f, s:f, s:f, s:f}", "scale", g->scale, "moved", moved.mean, "mean", d.mean, "bar", bar), err));
    if (!(d.mean > bar))
        TRY(cairn_fail(err, CAIRN_ENUMERIC,
                       "disagree: the trainer's weights were changed and its log-probabilities moved by %.3g on average, but the sampler, which has "
                       "not been synced, differs from it by %.3g only: it reads the trainer's weights",
                       moved.mean, d.mean));
    d = compare(g->first, g->sampler, g->n);
    if (d.equal != g->n)
        TRY(cairn_fail(err, CAIRN_ENUMERIC,
                       "disagree: the trainer's weights were changed and the sampler's log-probabilities moved with them (by %.3g)", d.max));
out:
    free(before);
    return st;
}

/* The sampler takes the trainer's weights, through memory or (NULL) through files, and is held against it. */
static enum cairn_status take(struct cairn_legs *g, const char *leg, struct cairn_check_memory *memory, int cut, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_digest weights;
    const char *tensor;
    char hex[33];
    double t0 = cairn_now_s();

    TRY(memory ? cairn_check_memory_sync(memory, err) : cairn_sides_sync(g->x, err));
    g->x->spent[CAIRN_SIDES_MEMORY] += memory ? cairn_now_s() - t0 : 0;
    TRY(cairn_sides_weights_differ(g->x, &tensor, &weights, err));
    if (tensor)
        TRY(cairn_fail(err, CAIRN_ENUMERIC, "%s: after a sync by %s the sampler's %s is not what the trainer publishes", leg,
                       memory ? cairn_check_memory_path(memory) : "file", tensor));
    cairn_digest_hex(weights, hex);
    if (!strcmp(leg, "sync") && json_object_set_new(g->report, "weights", json_string(hex)))
        TRY(CAIRN_NOMEM(err));
    TRY(both_agree(g, leg, cut, err));
out:
    return st;
}

/* Through memory, where the recipe has a way: other weights than those that lie there now. What follows goes that way, too: it is the faster. */
static enum cairn_status memory_sync(struct cairn_legs *g, struct cairn_error *err)
{
    json_t *paths = json_pack("[s]", "file");
    enum cairn_status st = CAIRN_OK;
    char why[300];
    double t0;

    TRY(keep(g, "paths", paths, err));
    t0 = cairn_now_s();
    TRY(cairn_check_memory_open(&g->memory, g->x, why, sizeof why, err));
    g->x->spent[CAIRN_SIDES_MEMORY] += cairn_now_s() - t0;
    if (!g->memory) {
        if (why[0])
            TRY(keep(g, "paths_left_out", json_string(why), err));
        goto out;
    }
    TRY(cairn_sides_perturb(g->x, g->scale, 3, err));
    TRY(take(g, "memory", g->memory, 1, err));
    if (json_array_append_new(paths, json_string(cairn_check_memory_path(g->memory))))
        TRY(CAIRN_NOMEM(err));
out:
    return st;
}

enum cairn_status cairn_leg_sync(struct cairn_legs *g, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct difference d;

    TRY(take(g, "sync", NULL, 0, err));
    d = compare(g->first, g->sampler, g->n);
    if (d.equal == g->n)
        TRY(cairn_fail(err, CAIRN_ENUMERIC, "sync: the sampler was given new weights and its log-probabilities are the old ones"));
    TRY(memory_sync(g, err));
out:
    return st;
}

enum cairn_status cairn_leg_repeat(struct cairn_legs *g, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    float *again = malloc((size_t)g->n * sizeof *again);
    struct difference d;

    if (!again)
        return CAIRN_NOMEM(err);
    for (int c = CUTS - 1; c >= 0; c--) {
        TRY(cairn_sides_sampler_scores(g->x, &cuts[c], again, err));
        d = compare(g->sampler, again, g->n);
        if (d.equal != g->n)
            TRY(cairn_fail(err, CAIRN_ENUMERIC, "repeat: the sampler scored the same tokens twice and differs from itself by %.3g", d.max));
    }
    TRY(cairn_sides_perturb(g->x, g->scale, 2, err));
    TRY(take(g, "second", g->memory, 2, err));
    TRY(cairn_sides_masters_load(g->x, err));
    TRY(take(g, "back", g->memory, CUTS - 1, err));
    d = compare(g->first, g->sampler, g->n);
    TRY(keep(g, "repeat", json_pack("{s:I, s:I}", "equal", (json_int_t)d.equal, "tokens", (json_int_t)g->n), err));
    if (d.equal != g->n)
        TRY(cairn_fail(err, CAIRN_ENUMERIC, "repeat: with its first weights again the sampler differs from its first scores by %.3g", d.max));
out:
    free(again);
    return st;
}

enum cairn_status cairn_leg_whole(struct cairn_legs *g, struct cairn_error *err)
{
    return cairn_whole_check(g->x, g->band, g->report, err);
}
