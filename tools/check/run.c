/* run.c - the legs in their order, their times, the report. See check.h. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "tools/check/legs.h"
#include "tools/check/reference.h"
#include "tools/check/right.h"
#include "tools/check/share.h"

struct checking {
    const struct cairn_check_opts *o;
    struct cairn_sides x;
    struct cairn_legs g;
    json_t *report;
};

static enum cairn_status right(struct checking *c, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_leg_right(&c->x, c->o->threads, c->report, err));
    if (c->o->reference)
        TRY(cairn_reference_check(&c->x, c->o->against, c->o->reference, c->report, err));
out:
    return st;
}
static enum cairn_status agree(struct checking *c, struct cairn_error *err)
{
    return cairn_leg_agree(&c->g, err);
}
static enum cairn_status disagree(struct checking *c, struct cairn_error *err)
{
    return cairn_leg_disagree(&c->g, err);
}
static enum cairn_status sync_paths(struct checking *c, struct cairn_error *err)
{
    return cairn_leg_sync(&c->g, err);
}
static enum cairn_status repeat(struct checking *c, struct cairn_error *err)
{
    return cairn_leg_repeat(&c->g, err);
}
static enum cairn_status whole(struct checking *c, struct cairn_error *err)
{
    return cairn_leg_whole(&c->g, err);
}

static const struct {
    const char *name;
    enum cairn_status (*run)(struct checking *c, struct cairn_error *err);
} legs[] = {{"right", right}, {"agree", agree}, {"disagree", disagree}, {"sync", sync_paths}, {"repeat", repeat}, {"whole", whole}};

/* Leg 0 of a run that computes in bf16, first in f32. What bf16 rounds off is larger than what many a mistake changes: a rotation by other
 * frequencies, another eps, an adapter's scale. The code of the model is the same in both types, and most code of the kernels; in f32 it is held to
 * what f32 rounds off, and then bf16 to what that does. The trainer in f32 is closed before the two sides are opened, so that it has their room. */
static enum cairn_status right_wide(struct checking *c, int *narrow, json_t *report, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_sides x;

    TRY(cairn_sides_open_wide(&x, c->o, narrow, err));
    if (*narrow) {
        TRY(cairn_sides_masters_save(&x, err));
        TRY(cairn_leg_right(&x, c->o->threads, report, err));
    }
out:
    if (st == CAIRN_ENUMERIC)
        strncat(err->text, " (in f32)", sizeof err->text - strlen(err->text) - 1);
    cairn_sides_close(&x);
    return st;
}

static const char *said(enum cairn_status st)
{
    return st == CAIRN_OK ? "holds" : st == CAIRN_ENUMERIC ? "does not hold" : "not brought to its end";
}

/* The same, told. Where there is no room for it the gate goes on without, and says so. */
static enum cairn_status wide(struct checking *c, json_t *times, struct cairn_error *err)
{
    double t0 = cairn_now_s();
    json_t *report = json_object();
    int narrow = 0;
    enum cairn_status st = report ? right_wide(c, &narrow, report, err) : CAIRN_NOMEM(err);

    if (!narrow)
        goto out;
    if (st == CAIRN_ENOSPACE) {
        cairn_warn("check: leg 0 is done in bf16 alone, which hides small mistakes: for f32 there is no room (%s)", err->text);
        st = json_object_set_new(report, "left_out", json_string(err->text)) ? CAIRN_NOMEM(err) : CAIRN_OK;
    } else {
        cairn_info("check: leg 0 right, in f32: %s, %.2f s", said(st), cairn_now_s() - t0);
    }
    if (json_object_set(c->report, "f32", report) || json_object_set_new(times, "right_f32", json_real(cairn_now_s() - t0)))
        st = CAIRN_NOMEM(err);
out:
    json_decref(report);
    return st;
}

static enum cairn_status legs_run(struct checking *c, json_t *times, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    /* what leg 2 begins with leg 1 has scored, and so on: a leg that is asked for takes those before it along, but for leg 0 */
    for (int i = c->o->first ? 1 : 0; i <= c->o->last; i++) {
        double t0 = cairn_now_s();

        TRY(cairn_stage_stopping(err));
        st = legs[i].run(c, err);
        if (json_object_set_new(times, legs[i].name, json_real(cairn_now_s() - t0)))
            TRY(CAIRN_NOMEM(err));
        cairn_info("check: leg %d %s: %s, %.2f s", i, legs[i].name, said(st), cairn_now_s() - t0);
        TRY(st);
    }
out:
    return st;
}

/* Both sides opened, and the legs. */
static enum cairn_status sides_run(struct checking *c, json_t *times, struct cairn_error *err)
{
    json_t *parts = json_object();
    enum cairn_status st = CAIRN_OK;
    double t0 = cairn_now_s(), opened;

    if (!parts)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_sides_open(&c->x, c->o, err));
    opened = cairn_now_s();
    TRY(cairn_legs_open(&c->g, &c->x, c->report, c->o->locate, err));
    if (json_object_set_new(times, "open", json_real(cairn_now_s() - t0)) ||
        json_object_set_new(c->report, "numerics", json_string(c->x.k.numerics)) || json_object_set_new(c->report, "band", json_real(c->g.band)))
        TRY(CAIRN_NOMEM(err));
    st = legs_run(c, times, err);
    for (int i = 0; i < CAIRN_SIDES_PARTS; i++)
        if (json_object_set_new(parts, cairn_sides_part_name[i], json_real(c->x.spent[i])))
            TRY(CAIRN_NOMEM(err));
    if (json_object_set(times, "parts", parts))
        TRY(CAIRN_NOMEM(err));
    if (st == CAIRN_OK) /* with leg 0 in f32, if there was any */
        TRY(cairn_check_share(c->x.run, cairn_now_s() - opened + json_number_value(json_object_get(times, "right_f32")), c->report, err));
out:
    json_decref(parts);
    return st;
}

enum cairn_status cairn_check_run(const struct cairn_check_opts *o, json_t **report, struct cairn_error *err)
{
    struct checking c = {.o = o, .report = json_object()};
    json_t *times = json_object();
    enum cairn_status st = CAIRN_OK;
    struct cairn_error why;

    if (!err)
        err = &why;
    if (!c.report || !times || json_object_set(c.report, "seconds", times))
        TRY(CAIRN_NOMEM(err));
    if (!o->first)
        st = wide(&c, times, err);
    if (st == CAIRN_OK)
        st = sides_run(&c, times, err);
    if (json_object_set_new(c.report, "holds", json_boolean(st == CAIRN_OK)) ||
        (st == CAIRN_ENUMERIC && json_object_set_new(c.report, "finding", json_string(err->text))))
        TRY(CAIRN_NOMEM(err));
out:
    cairn_legs_close(&c.g);
    cairn_sides_close(&c.x);
    json_decref(times);
    *report = c.report;
    return st;
}
