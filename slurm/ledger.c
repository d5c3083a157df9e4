/* ledger.c - appends and reads RUN/log/slurm.jsonl (ledger.h). */
#include "slurm/ledger.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

#define MOST  (256 << 20)
#define DAY_S 86400.0

void cairn_ledger_tell(const struct cairn_run *run, const char *ev, const struct cairn_job *job, json_t *members)
{
    char *dir = cairn_run_path(run, "log"), *path = dir ? cairn_path_join(dir, "slurm.jsonl") : NULL;
    struct cairn_events *e = NULL;
    struct cairn_error err = {0};

    if (!path || cairn_dir_make(dir, &err) != CAIRN_OK || cairn_events_open(&e, path, &err) != CAIRN_OK) {
        cairn_warn("%s is not told: %s", ev, err.text);
        json_decref(members);
    } else {
        cairn_event(e, ev, job ? job->group : "", job ? job->step : 0, members);
    }
    cairn_events_close(e);
    free(dir);
    free(path);
}

enum cairn_status cairn_ledger_read(const struct cairn_run *run, json_t **out, struct cairn_error *err)
{
    char *path = cairn_run_path(run, "log/slurm.jsonl"), *text = NULL, *save = NULL;
    enum cairn_status st = CAIRN_OK;
    json_t *events = json_array();
    size_t n;

    if (!path || !events)
        TRY(CAIRN_NOMEM(err));
    if (cairn_path_exists(path)) {
        TRY(cairn_file_read(path, MOST, &text, &n, err));
        for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            json_t *v = json_loads(line, 0, NULL);

            if (json_is_object(v))
                json_array_append(events, v);
            json_decref(v);
        }
    }
    *out = events;
    events = NULL;
out:
    json_decref(events);
    free(path);
    free(text);
    return st;
}

static const char *text_of(const json_t *e, const char *key)
{
    const char *s = json_string_value(json_object_get(e, key));

    return s ? s : "";
}

static int about(const json_t *e, int64_t step, const char *group)
{
    return json_integer_value(json_object_get(e, "step")) == step && !strcmp(text_of(e, "stage"), group);
}

void cairn_ledger_failures(struct cairn_failures *out, const json_t *events, int64_t step, const char *group)
{
    int64_t done;
    size_t i;
    json_t *e;

    *out = (struct cairn_failures){.text = ""};
    json_array_foreach(events, i, e)
    {
        const char *ev = text_of(e, "ev"), *action = text_of(e, "action");
        int code = (int)json_integer_value(json_object_get(e, "code"));

        if (!strcmp(ev, "go") || (!strcmp(ev, "end") && about(e, step, group) && !strcmp(action, CAIRN_ENDED_DONE)))
            *out = (struct cairn_failures){.text = ""};
        if (strcmp(ev, "end") || !about(e, step, group) || (strcmp(action, CAIRN_ENDED_RETRY) && strcmp(action, CAIRN_ENDED_STOP)))
            continue;
        done = json_integer_value(json_object_get(e, "links_done"));
        out->same = code == out->code && done <= out->done ? out->same + 1 : 1; /* it had come further: not in a row */
        out->done = done;
        out->code = code;
        out->for_good = !strcmp(action, CAIRN_ENDED_STOP);
        out->text = text_of(e, "text");
    }
}

const char *cairn_ledger_job(const json_t *events, int64_t step, const char *group)
{
    for (size_t i = json_array_size(events); i-- > 0;) {
        const json_t *e = json_array_get(events, i);

        if (!strcmp(text_of(e, "ev"), "queued") && about(e, step, group))
            return text_of(e, "job");
    }
    return NULL;
}

char *cairn_ledger_unfit(const json_t *events, double now_wall_s)
{
    struct cairn_str s = {0};
    size_t i;
    json_t *e;

    json_array_foreach(events, i, e)
    {
        const char *node = text_of(e, "node");
        size_t n = strlen(node);
        const char *at;

        if (!strcmp(text_of(e, "ev"), "go"))
            cairn_str_clear(&s); /* a user may have had it mended */
        if (strcmp(text_of(e, "ev"), "unfit") || !cairn_name_ok(node) ||
            now_wall_s - json_number_value(json_object_get(e, "t")) > DAY_S)
            continue;
        at = strstr(cairn_str_z(&s), node);
        if (!at || (at[n] && at[n] != ','))
            cairn_str_printf(&s, "%s%s", s.len ? "," : "", node);
    }
    return s.p ? cairn_str_take(&s) : strdup("");
}
