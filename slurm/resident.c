/* resident.c - the job of a resident run: all roles in one step (srun --multi-prog), until the chain is done. */
#include "slurm/work.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

/* srun's --multi-prog file: which ranks run what. In the run's log folder, made anew by each start; *path malloc'ed. */
static enum cairn_status programs_write(const struct cairn_work *w, char **path, struct cairn_error *err)
{
    static const enum cairn_stage roles[] = {CAIRN_STAGE_ROLLOUT, CAIRN_STAGE_SCORE, CAIRN_STAGE_TRAIN};
    const char *install = cairn_install_dir();
    const struct cairn_job *j = w->job;
    char *done = malloc((size_t)j->links + 1);
    struct cairn_str text = {0};
    enum cairn_status st = CAIRN_OK;
    int64_t rank = 0;

    *path = cairn_format("%s/log/resident.%s.conf", w->run->dir, w->id);
    if (!*path || !install || !done)
        TRY(CAIRN_NOMEM(err));
    cairn_links_done(w->run, j->link, j->links, done);
    for (int i = 0; i < 2; i++) { /* srun has no quoting that all its versions know */
        const char *dir = i ? install : w->run->dir;

        if (strpbrk(dir, " \t\"'\\%"))
            TRY(cairn_fail(err, CAIRN_EUSAGE,
                           "%s: srun --multi-prog takes no blanks, quotes, backslashes and percent signs in a path", dir));
    }
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++) {
        int64_t n = cairn_job_ranks(w->run, j, &(struct cairn_link){cairn_links_next_step(j->link, done, j->links, roles[k]), roles[k], NULL});

        cairn_str_printf(&text, "%lld-%lld %s/bin/cairn-%s %s --resident\n", (long long)rank, (long long)(rank + n - 1), install,
                         cairn_stage_name(roles[k]), w->run->dir);
        rank += n;
    }
    if (text.oom)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_file_replace(*path, text.p, text.len, err));
out:
    free(done);
    cairn_str_free(&text);
    return st;
}

/* The first failure that a role has told since then; 1: one has told something, so it was at work. */
static int roles_sentence(const struct cairn_work *w, double since_wall_s, char *text, size_t n)
{
    static const enum cairn_stage stages[] = {CAIRN_STAGE_TRAIN, CAIRN_STAGE_ROLLOUT, CAIRN_STAGE_SCORE, CAIRN_STAGE_SYNC};
    int told = 0;

    text[0] = 0;
    for (size_t k = 0; k < sizeof stages / sizeof *stages && !text[0]; k++)
        for (int i = 0; i < w->job->links && !text[0]; i++)
            if (w->job->link[i].stage == stages[k] && !cairn_link_done(w->run, &w->job->link[i])) {
                told |= cairn_work_sentence(w, &w->job->link[i], since_wall_s, text, n);
                break; /* a role stands at its first open link */
            }
    return told;
}

int cairn_work_resident(struct cairn_work *w)
{
    struct cairn_srun_end end = {0};
    struct cairn_error err = {0};
    const struct cairn_reach reach = cairn_run_reach(w->run);
    double since = cairn_wall_s();
    char *conf = NULL, said[300];
    int code = 0, told, last = -1;

    for (int i = w->job->links - 1; i >= 0 && last < 0; i--)
        if (!cairn_link_beyond(&reach, &w->job->link[i]) && cairn_link_done(w->run, &w->job->link[i]))
            last = i;
    if (last >= 0)
        cairn_work_settle(w, &w->job->link[last]);
    if (!cairn_work_done(w) && cairn_link_gated(w->run, w->job->link)) {
        code = cairn_work_repair(w, cairn_stage_name(CAIRN_STAGE_CHECK));
        goto out;
    }
    for (int launch = 0; !cairn_work_done(w); launch++) {
        const char *argv[] = {"--multi-prog", NULL, NULL};
        struct cairn_srun s = {.argv = argv, .ranks = w->job->ranks, .nodes = w->nodes, .stop_at_s = w->stop_at_s};
        enum cairn_status st = conf ? CAIRN_OK : programs_write(w, &conf, &err);

        argv[1] = conf;
        if (st == CAIRN_OK)
            st = cairn_srun(&end, &s, &err);
        if (st != CAIRN_OK) {
            cairn_work_say(w, CAIRN_ENDED_RETRY, (int)err.code, "resident run: %s", err.text);
            code = cairn_work_failed(w);
            goto out;
        }
        told = roles_sentence(w, since, said, sizeof said);
        if (cairn_work_lived(&end, launch, told))
            break;
        cairn_warn("the step was not launched (srun ended with %d); another try", end.code);
    }
    if (cairn_work_done(w)) {
        cairn_work_say(w, CAIRN_ENDED_DONE, 0, "%s", "");
        cairn_work_end_tell(w);
    } else if (end.terminated) {
        code = cairn_work_killed(w, "resident run");
    } else {
        code = cairn_work_step_failed(w, "resident run", "a role", &end, said);
    }
out:
    if (conf)
        unlink(conf);
    free(conf);
    return code;
}
