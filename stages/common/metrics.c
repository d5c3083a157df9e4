/* metrics.c - collects metrics of committed manifests into lines (metrics.h). */
#include "stages/common/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

#define LOCK_TRIES 100
#define LOCK_PAUSE_S 0.05

/* Adds content.metrics and info.metrics of a link, and time/<stage>, to o under prefix. A link that is not there adds nothing. */
static enum cairn_status link_add(const struct cairn_run *run, const struct cairn_link *l, const char *prefix, json_t *o, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest *m = NULL;
    char *path = cairn_link_path(run, l), key[400];
    const json_t *seconds;

    if (!path)
        return CAIRN_NOMEM(err);
    if (!cairn_link_done(run, l))
        goto out;
    TRY(cairn_manifest_load(&m, path, err));
    for (int i = 0; i < 2; i++) {
        json_t *metrics = json_object_get(i ? m->info : m->content, "metrics"), *v;
        const char *name;

        json_object_foreach(metrics, name, v)
        {
            snprintf(key, sizeof key, "%s%s", prefix, *prefix && !strcmp(name, "length/mean") ? "length_mean" : name);
            json_object_set(o, key, v);
        }
    }
    seconds = json_object_get(m->info, "seconds");
    if (seconds) {
        snprintf(key, sizeof key, "%stime/%s", prefix, cairn_stage_name(l->stage));
        json_object_set(o, key, (json_t *)seconds);
    }
out:
    cairn_manifest_destroy(m);
    free(path);
    return st;
}

/* 1: the line is one of this step (and eval name, or none). A torn one is none. */
static int line_is(const struct cairn_str *line, int64_t step, const char *eval)
{
    char key[32];
    json_t *v;
    const char *name;
    int same;

    snprintf(key, sizeof key, "\"step\":%lld", (long long)step); /* as line_append writes it: of thousands of lines only some are parsed */
    if (!strstr(cairn_str_z(line), key))
        return 0;
    v = json_loadb(cairn_str_z(line), line->len, 0, NULL);
    name = json_string_value(json_object_get(v, "eval"));
    same = v && json_integer_value(json_object_get(v, "step")) == step && !strcmp(name ? name : "", eval ? eval : "");

    json_decref(v);
    return same;
}

/* Is the line there, and does the last one lack its end? A block and a line at a time: the file grows with the run, what we hold must not. */
static enum cairn_status lines_look(int fd, const char *path, int64_t step, const char *eval, int *there, int *torn, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_str line = {0};
    char block[16384];
    ssize_t got;

    *there = 0;
    while (!*there && (got = cairn_fd_read_some(fd, block, sizeof block)) != 0) { /* just opened: from its beginning */
        if (got < 0)
            TRY(cairn_fail_errno(err, errno, "read %s", path));
        for (const char *p = block, *end = block + got; p < end && !*there;) {
            const char *nl = memchr(p, '\n', (size_t)(end - p));

            cairn_str_add(&line, p, (size_t)((nl ? nl : end) - p));
            if (line.oom)
                TRY(CAIRN_NOMEM(err));
            if (!nl)
                break;
            *there = line_is(&line, step, eval);
            cairn_str_clear(&line);
            p = nl + 1;
        }
    }
    *torn = line.len > 0;
    if (!*there && *torn)
        *there = line_is(&line, step, eval); /* all but its end */
out:
    cairn_str_free(&line);
    return st;
}

/* Appends o unless its line is there. A torn last line (a kill) is closed first. */
static enum cairn_status line_append(const struct cairn_run *run, int64_t step, const char *eval, json_t *o, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *dir = cairn_run_path(run, "log"), *path = dir ? cairn_path_join(dir, "metrics.jsonl") : NULL;
    struct cairn_str line = {0};
    int fd = -1, there, torn;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_dir_make(dir, err));
    fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        TRY(cairn_fail_errno(err, errno, "open %s", path));
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) && errno != ENOLCK && errno != ENOTSUP; i++) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            TRY(cairn_fail_errno(err, errno, "lock %s", path));
        if (i == LOCK_TRIES) { /* a stopped process may hold it for ever; what is for people only is not worth waiting so long */
            cairn_warn("%s: somebody else is writing it; the line of step %lld is left to the next call", path, (long long)step);
            goto out;
        }
        cairn_sleep_s(LOCK_PAUSE_S);
    }
    TRY(lines_look(fd, path, step, eval, &there, &torn, err));
    if (there)
        goto out;
    if (torn)
        cairn_str_putc(&line, '\n');
    cairn_json_canonical(&line, o);
    cairn_str_putc(&line, '\n');
    if (line.oom)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_fd_write_all(fd, line.p, line.len, path, err));
out:
    if (fd >= 0)
        close(fd);
    cairn_str_free(&line);
    free(dir);
    free(path);
    return st;
}

enum cairn_status cairn_metrics_step(const struct cairn_run *run, int64_t step, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *o = json_pack("{s:I}", "step", (json_int_t)step);

    if (!o)
        return CAIRN_NOMEM(err);
    for (int s = CAIRN_STAGE_ROLLOUT; s <= CAIRN_STAGE_SYNC; s++)
        TRY(link_add(run, &(struct cairn_link){step, (enum cairn_stage)s, NULL}, "", o, err));
    TRY(line_append(run, step, NULL, o, err));
out:
    json_decref(o);
    return st;
}

enum cairn_status cairn_metrics_eval(const struct cairn_run *run, int64_t step, const char *name, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *o = json_pack("{s:I, s:s}", "step", (json_int_t)step, "eval", name);
    char prefix[300];

    if (!o)
        return CAIRN_NOMEM(err);
    snprintf(prefix, sizeof prefix, "eval/%s/", name);
    TRY(link_add(run, &(struct cairn_link){step, CAIRN_STAGE_ROLLOUT, name}, prefix, o, err));
    TRY(link_add(run, &(struct cairn_link){step, CAIRN_STAGE_SCORE, name}, prefix, o, err));
    TRY(line_append(run, step, name, o, err));
out:
    json_decref(o);
    return st;
}
