/* digest.c - `cairn digest DIR`: one line per committed artefact of a run, "<step> <stage> <hash of its logical content>".
 *
 * Two runs are the same run if these lines are equal: the hashes know nothing of times, hosts, attempts, shards or layouts.
 * " nondeterministic" follows where a time-out or a crash of a grader decided a score, or which groups were kept: such a line may
 * differ next time. Sub-artefacts (committed updates inside a step), the base, the gate's report and replays have no line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "ckpt/verify.h"
#include "stages/common/run.h"
#include "tools/cli.h"
#include "tools/verbs.h"

struct line {
    int64_t step;
    int order; /* place in the chain of a step */
    char *stage;
    char hash[33];
    int by_time; /* a grader's time-out or crash is part of it */
};

struct digest {
    const struct cairn_run *run;
    struct line *line;
    size_t n, cap;
};

static int stage_parse(const char *name)
{
    for (int s = CAIRN_STAGE_ROLLOUT; s <= CAIRN_STAGE_SYNC; s++)
        if (!strcmp(name, cairn_stage_name((enum cairn_stage)s)))
            return s;
    return -1;
}

static int eval_order(const struct cairn_run *run, const char *name)
{
    const json_t *sets = cairn_recipe_get(run->recipe, "data.eval");

    for (size_t i = 0; i < json_array_size(sets); i++)
        if (!strcmp(name, json_string_value(json_object_get(json_array_get(sets, i), "name"))))
            return (int)i;
    return (int)json_array_size(sets);
}

/* Reads step, stage and order off a path like "step/000003/train"; 0: no line for this one. */
static int path_parse(const struct cairn_run *run, const char *path, struct line *l)
{
    char copy[600], *part[5], *save = NULL;
    int n = 0;

    if (strlen(path) >= sizeof copy)
        return 0;
    strcpy(copy, path);
    for (char *p = strtok_r(copy, "/", &save); p; p = strtok_r(NULL, "/", &save)) {
        if (n == 5)
            return 0;
        part[n++] = p;
    }
    if (n < 2 || strlen(part[1]) < 6 || !cairn_parse_i64(part[1], &l->step))
        return 0;
    if (n == 2 && !strcmp(part[0], "policy")) {
        l->order = CAIRN_STAGE_SYNC;
        l->stage = strdup("sync");
    } else if (n == 3 && !strcmp(part[0], "step") && stage_parse(part[2]) >= 0) {
        l->order = stage_parse(part[2]);
        l->stage = strdup(part[2]);
    } else if (n == 4 && !strcmp(part[0], "eval") && stage_parse(part[3]) >= 0) {
        l->order = 4 + 2 * eval_order(run, part[2]) + stage_parse(part[3]);
        l->stage = cairn_format("eval/%s/%s", part[2], part[3]);
    } else {
        return 0;
    }
    return 1;
}

static enum cairn_status by_time(const struct cairn_run *run, const char *path, int *out, struct cairn_error *err)
{
    struct cairn_manifest *m = NULL;
    char *dir = cairn_run_path(run, path);
    enum cairn_status st = dir ? cairn_manifest_load(&m, dir, err) : CAIRN_NOMEM(err);

    if (st == CAIRN_OK)
        *out = json_object_get(m->content, "nondeterministic") != NULL;
    cairn_manifest_destroy(m);
    free(dir);
    return st;
}

static enum cairn_status artefact(void *arg, const char *path, const struct cairn_manifest_head *head, struct cairn_error *err)
{
    struct digest *d = arg;
    struct line l = {0};
    enum cairn_status st = CAIRN_OK;

    if (!path_parse(d->run, path, &l))
        return CAIRN_OK;
    if (strcmp(head->run, d->run->uuid)) {
        cairn_warn("%s/%s was made for run %s and is left out", d->run->dir, path, head->run[0] ? head->run : "of nobody");
        free(l.stage);
        return CAIRN_OK;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 64;
        struct line *p = realloc(d->line, cap * sizeof *p);

        if (!p)
            TRY(CAIRN_NOMEM(err));
        d->line = p;
        d->cap = cap;
    }
    cairn_digest_hex(head->digest, l.hash);
    if (!strcmp(head->kind, "score") || !strcmp(head->kind, "rollout"))
        TRY(by_time(d->run, path, &l.by_time, err));
    if (!l.stage)
        TRY(CAIRN_NOMEM(err));
    d->line[d->n++] = l;
    l.stage = NULL;
out:
    free(l.stage);
    return st;
}

static int line_compare(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->order != y->order ? x->order - y->order : strcmp(x->stage, y->stage);
}

struct args {
    const char *dir;
    int json;
};

static const struct argp_option options[] = {{"json", 'j', NULL, 0, "one JSON object a line", 0}, {0}};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    CAIRN_CLI_TEXT_AT(ARGP_KEY_ARG, struct args, dir),
    {0},
};

static const struct argp argp = {
    options,
    NULL,
    "DIR",
    "Prints one line per committed artefact of a run: step, stage, hash of its logical content. Two runs with "
    "equal lines are the same run.\v"
    "Examples:\n  cairn digest /tmp/tiny\n  cairn digest /tmp/tiny | grep ' sync '",
    NULL,
    NULL,
    NULL};

int cairn_verb_digest(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    struct cairn_run *run = NULL;
    struct digest d = {0};
    int done, usage = cairn_cli_read(&argp, slots, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    if (!a.dir)
        return cairn_cli_usage("digest", "DIR is missing");
    TRY(cairn_run_open(&run, a.dir, &err));
    d.run = run;
    TRY(cairn_digest_walk(run->dir, artefact, &d, &err));
    qsort(d.line, d.n, sizeof *d.line, line_compare);
    for (size_t i = 0; i < d.n; i++)
        if (a.json)
            TRY(cairn_cli_json(d.line[i].by_time ? json_pack("{s:I, s:s, s:s, s:b}", "step", (json_int_t)d.line[i].step, "stage",
                                                             d.line[i].stage, "hash", d.line[i].hash, "nondeterministic", 1)
                                                 : json_pack("{s:I, s:s, s:s}", "step", (json_int_t)d.line[i].step, "stage",
                                                             d.line[i].stage, "hash", d.line[i].hash),
                               &err));
        else
            printf("%lld %s %s%s\n", (long long)d.line[i].step, d.line[i].stage, d.line[i].hash,
                   d.line[i].by_time ? " nondeterministic" : "");
    TRY(cairn_cli_flush(&err));
out:
    for (size_t i = 0; i < d.n; i++)
        free(d.line[i].stage);
    free(d.line);
    cairn_run_close(run);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("digest", &err);
}
