/* failure.c - see failure.h. */
#include "tools/failure.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "tools/quarantine.h"
#include "tools/replay.h"

#define TAIL_BYTES (256 << 10)

json_t *cairn_link_event(const struct cairn_run *run, const struct cairn_link *l)
{
    char *relative = cairn_format("log/%s.jsonl", cairn_stage_name(l->stage)), *path = relative ? cairn_run_path(run, relative) : NULL;
    char *text = malloc(TAIL_BYTES + 1), *line, *save = NULL;
    json_t *found = NULL;
    int64_t size = path ? cairn_file_size(path) : -1;
    int fd = size > 0 && text ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    size_t n = size > TAIL_BYTES ? TAIL_BYTES : (size_t)(size > 0 ? size : 0);
    ssize_t got = fd >= 0 ? pread(fd, text, n, size - (int64_t)n) : 0;

    if (fd >= 0)
        close(fd);
    if (got > 0) {
        text[got] = 0;
        for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            json_t *v = json_loads(line, 0, NULL); /* a torn line (the first, or one being written) is passed over */
            const char *eval = json_string_value(json_object_get(v, "eval"));

            if (v && json_integer_value(json_object_get(v, "step")) == l->step && json_is_string(json_object_get(v, "ev")) &&
                !strcmp(eval ? eval : "", l->eval ? l->eval : "")) {
                /* how far it was stands in progress events only; what came last stays the event */
                if (found && !json_object_get(v, "total") && json_object_get(found, "total")) {
                    json_object_set(v, "done", json_object_get(found, "done"));
                    json_object_set(v, "total", json_object_get(found, "total"));
                }
                if (!strcmp(json_string_value(json_object_get(v, "ev")), "start")) {
                    json_object_del(v, "done");
                    json_object_del(v, "total");
                }
                json_decref(found);
                found = v;
            } else {
                json_decref(v);
            }
        }
    }
    free(relative);
    free(path);
    free(text);
    return found;
}

/* Does the sentence name something in or of that path below the run? By the run's own name: above it, "base" and the like may stand, too. */
static int names(const struct cairn_run *run, const char *relative, const char *text)
{
    char *path = cairn_format("/%s/%s", cairn_path_basename(run->dir), relative);
    int named = 0;

    for (const char *p = text, *end; path && !named && (p = strstr(p, path)); p = end) {
        end = p + strlen(path);
        named = !*end || strchr("/: ", *end);
    }
    free(path);
    return named;
}

static int names_artefact(const struct cairn_run *run, const struct cairn_link *l, const char *text)
{
    char **input = NULL;
    int n = 0, named = 0;

    if (cairn_link_inputs(run, l, &input, &n, NULL) != CAIRN_OK)
        return 0;
    for (int i = 0; i < n && !named; i++)
        named = names(run, input[i], text);
    cairn_strings_free(input, n);
    return named;
}

/* "data.prompts.0: ...": as cairn_run_outside begins, a rank's name before it or not. */
static int names_given(const struct cairn_run *run, const char *text)
{
    const char *key;
    json_t *o;

    json_object_foreach(json_object_get(run->info, "outside"), key, o)
    {
        const char *p = strstr(text, key);

        if (p && (p == text || p[-1] == ' ') && cairn_starts_with(p + strlen(key), ": "))
            return 1;
    }
    return 0;
}

enum cairn_failure cairn_failure_of(const struct cairn_run *run, const struct cairn_link *l, const json_t *event)
{
    const char *ev = json_string_value(json_object_get(event, "ev")), *text = json_string_value(json_object_get(event, "text"));
    const json_int_t code = json_integer_value(json_object_get(event, "code"));

    if (!ev || strcmp(ev, "failed") || !text)
        return CAIRN_FAILURE_OTHER;
    if (code == CAIRN_ENOINPUT && strstr(text, "was collected") && names_artefact(run, l, text))
        return CAIRN_FAILURE_GONE;
    if (code != CAIRN_EDATA)
        return CAIRN_FAILURE_OTHER;
    if (names(run, "base", text) && cairn_run_base_given(run))
        return CAIRN_FAILURE_GIVEN;
    if (names_artefact(run, l, text))
        return CAIRN_FAILURE_ARTEFACT;
    return names_given(run, text) ? CAIRN_FAILURE_GIVEN : CAIRN_FAILURE_OTHER;
}

int cairn_failure_next(enum cairn_failure f, const struct cairn_run *run, char *next, size_t size)
{
    static const char *const how[] = {[CAIRN_FAILURE_ARTEFACT] = "--repair ", [CAIRN_FAILURE_GONE] = "--deep --repair ", [CAIRN_FAILURE_GIVEN] = ""};

    if (f != CAIRN_FAILURE_OTHER)
        snprintf(next, size, "cairn verify %s%s", how[f], run->dir);
    return f != CAIRN_FAILURE_OTHER;
}

void cairn_go_on(const struct cairn_run *run, char *command, size_t size)
{
    if (cairn_replay_origin(run->recipe, "run"))
        snprintf(command, size, "cairn replay OLD --train --run %s", run->dir);
    else
        snprintf(command, size, "cairn run %s", run->dir);
}

/* The outside file of that key is not where the run looks for it: cairn_run_outside says so, and how it is put back. */
static int given_gone(const struct cairn_run *run, const char *key, struct cairn_error *why)
{
    const json_t *o = json_object_get(json_object_get(run->info, "outside"), key);
    const char *copy = json_string_value(json_object_get(o, "copy")), *original = json_string_value(json_object_get(o, "path"));
    char *path = copy ? cairn_run_path(run, copy) : original ? strdup(original) : NULL, *found = NULL;
    int gone = path && !cairn_path_exists(path) && cairn_run_outside(run, key, &found, why) == CAIRN_EDATA;

    free(path);
    free(found);
    return gone;
}

/* RUN/base leads to an import that is not there. */
static int base_gone(const struct cairn_run *run, struct cairn_error *why)
{
    char *path = cairn_run_path(run, "base"), to[1024] = "";
    int gone = path && cairn_run_base_given(run) && !cairn_path_is_dir(path);

    if (gone && readlink(path, to, sizeof to - 1) >= 0)
        cairn_fail(why, CAIRN_EDATA, "%s leads to %s, which is not there; put it back", path, to);
    free(path);
    return gone;
}

int cairn_failure_ahead(const struct cairn_run *run, const struct cairn_link *l, char *reason, size_t size, char *next, size_t next_size)
{
    struct cairn_error why = {0};
    char **key = NULL;
    int n = 0, held = 0;

    if (cairn_replay_origin_check(run, &why) != CAIRN_OK) {
        snprintf(reason, size, "%s", why.text);
        next[0] = 0; /* the sentence has it */
        return 1;
    }
    held = base_gone(run, &why);
    if (!held && cairn_link_outside(run, l, &key, &n, NULL) != CAIRN_OK)
        return 0;
    for (int i = 0; i < n && !held; i++)
        held = given_gone(run, key[i], &why);
    if (held) {
        snprintf(reason, size, "%s", why.text);
        snprintf(next, next_size, "cairn verify --deep %s", run->dir); /* looks at files that the run has no copy of, too */
    }
    cairn_strings_free(key, n);
    return held;
}

int cairn_link_quarantined(const struct cairn_run *run, const struct cairn_link *l, char *name, size_t size)
{
    char *relative = cairn_link_relative(l), *root = cairn_run_path(run, CAIRN_QUARANTINE_NAME);
    struct cairn_names names = {0};
    int there, newest = 0;

    if (relative && root && cairn_dir_names(&names, root, &there, NULL) == CAIRN_OK)
        for (size_t i = 0; i < names.n; i++) {
            char *path = cairn_format("%s/%s/%s/MANIFEST.json", root, names.name[i], relative);

            if (atoi(names.name[i]) > newest && path && cairn_path_exists(path)) {
                newest = atoi(names.name[i]);
                snprintf(name, size, "%s/%s", CAIRN_QUARANTINE_NAME, names.name[i]);
            }
            free(path);
        }
    cairn_names_free(&names);
    free(relative);
    free(root);
    return newest > 0;
}
