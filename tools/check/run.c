/* run.c - the legs in their order, their times, the report. See check.h. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "tools/check/legs.h"
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
    return cairn_leg_right(&c->x, c->o, c->report, err);
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
        cairn_info("check: leg %d %s: %s, %.2f s", i, legs[i].name, st == CAIRN_OK ? "holds" : st == CAIRN_ENUMERIC ? "does not hold" : "not brought to its end",
                   cairn_now_s() - t0);
        TRY(st);
    }
out:
    return st;
}

enum cairn_status cairn_check_run(const struct cairn_check_opts *o, json_t **report, struct cairn_error *err)
{
    struct checking c = {.o = o, .report = json_object()};
    json_t *times = json_object(), *parts = json_object();
    enum cairn_status st = CAIRN_OK;
    struct cairn_error why;
    double t0 = cairn_now_s(), opened;

    if (!c.report || !times || !parts)
        TRY(CAIRN_NOMEM(err));
    if (!err)
        err = &why;
    TRY(cairn_sides_open(&c.x, o, err));
    opened = cairn_now_s();
    TRY(cairn_legs_open(&c.g, &c.x, c.report, o->locate, err));
    if (json_object_set_new(times, "open", json_real(cairn_now_s() - t0)) || json_object_set_new(c.report, "numerics", json_string(c.x.k.numerics)) ||
        json_object_set_new(c.report, "band", json_real(c.g.band)) || json_object_set(c.report, "seconds", times))
        TRY(CAIRN_NOMEM(err));
    st = legs_run(&c, times, err);
    if (json_object_set_new(c.report, "holds", json_boolean(st == CAIRN_OK)) ||
        (st == CAIRN_ENUMERIC && json_object_set_new(c.report, "finding", json_string(err->text))))
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < CAIRN_SIDES_PARTS; i++)
        if (json_object_set_new(parts, cairn_sides_part_name[i], json_real(c.x.spent[i])))
            TRY(CAIRN_NOMEM(err));
    if (json_object_set(times, "parts", parts))
        TRY(CAIRN_NOMEM(err));
    if (st == CAIRN_OK)
        TRY(cairn_check_share(c.x.run, cairn_now_s() - opened, c.report, err));
out:
    cairn_legs_close(&c.g);
    cairn_sides_close(&c.x);
    json_decref(times);
    json_decref(parts);
    *report = c.report;
    return st;
}
