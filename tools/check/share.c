/* share.c - see share.h. */
#include "tools/check/share.h"

#include <stdlib.h>

#include "ckpt/manifest.h"

#define STEPS 5 /* averaged over, at most */

static const enum cairn_stage stages[] = {CAIRN_STAGE_ROLLOUT, CAIRN_STAGE_SCORE, CAIRN_STAGE_TRAIN, CAIRN_STAGE_SYNC};

/* Adds what a link says of its time; *done = 0 if it is not committed. */
static enum cairn_status link_add(const struct cairn_run *run, const struct cairn_link *l, double *seconds, double *compare, int *done,
                                  struct cairn_error *err)
{
    struct cairn_manifest *m = NULL;
    char *path = NULL;
    enum cairn_status st = CAIRN_OK;

    if (!cairn_link_done(run, l)) {
        *done = 0;
        return CAIRN_OK;
    }
    if (!(path = cairn_link_path(run, l)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_manifest_load(&m, path, err));
    *seconds += json_number_value(json_object_get(m->info, "seconds"));
    *compare += json_number_value(json_object_get(json_object_get(m->info, "metrics"), "time/compare"));
out:
    cairn_manifest_destroy(m);
    free(path);
    return st;
}

enum cairn_status cairn_check_share(const struct cairn_run *run, double seconds, json_t *report, struct cairn_error *err)
{
    const struct cairn_reach reach = cairn_run_reach(run);
    struct cairn_link *chain = NULL;
    double all = 0, compare = 0;
    enum cairn_status st = CAIRN_OK;
    int n = 0, steps = 0;

    TRY(cairn_run_chain(run, &chain, &n, err));
    for (int i = n - 1; i >= 0 && steps < STEPS; i--) { /* a step is done when its sync is */
        double its = 0, compared = 0;
        int done = 1;

        if (chain[i].stage != CAIRN_STAGE_SYNC || chain[i].step < 1 || cairn_link_beyond(&reach, &chain[i]))
            continue;
        for (size_t k = 0; k < sizeof stages / sizeof *stages && done; k++)
            TRY(link_add(run, &(struct cairn_link){chain[i].step, stages[k], NULL}, &its, &compared, &done, err));
        if (!done)
            continue;
        all += its;
        compare += compared;
        steps++;
    }
    if (steps && all > 0 &&
        json_object_set_new(report, "step",
                            json_pack("{s:i, s:f, s:f, s:f, s:f}", "steps", steps, "seconds", all / steps, "check", seconds * steps / all, "compare",
                                      compare / steps, "compare_share", compare / all)))
        TRY(CAIRN_NOMEM(err));
out:
    free(chain);
    return st;
}
