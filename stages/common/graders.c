/* graders.c - see graders.h. */
#include "stages/common/graders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grade/define.h"

static enum cairn_status define_one(const struct cairn_recipe *r, const char *name, const json_t *v, const char *program, struct cairn_error *err)
{
    const json_t *arguments = json_object_get(v, "arguments");
    const char **argument = calloc(json_array_size(arguments) + 1, sizeof *argument);
    struct cairn_grader_def d = {.name = name,
                                 .kind = json_string_value(json_object_get(v, "kind")),
                                 .take = json_string_value(json_object_get(v, "take")),
                                 .any_case = json_is_true(json_object_get(v, "any_case")),
                                 .pattern = json_string_value(json_object_get(v, "pattern")),
                                 .program = program,
                                 .interpreter = json_string_value(json_object_get(v, "interpreter")),
                                 .argument = argument,
                                 .arguments = (int)json_array_size(arguments),
                                 .time_s = json_number_value(json_object_get(v, "time")),
                                 .retry_timeout = json_is_true(json_object_get(v, "retry_timeout")),
                                 .retries = (int)json_integer_value(json_object_get(v, "retries")),
                                 .memory_bytes = (int64_t)(json_number_value(json_object_get(v, "memory")) * (double)(1 << 30)),
                                 .processes = (int)json_integer_value(json_object_get(v, "processes"))};
    struct cairn_error mine;
    enum cairn_status st = CAIRN_OK;

    if (!argument)
        return CAIRN_NOMEM(err);
    for (int i = 0; i < d.arguments; i++)
        argument[i] = json_string_value(json_array_get(arguments, (size_t)i));
    if (cairn_grader_define(&d, &mine) != CAIRN_OK) {
        char path[300];

        snprintf(path, sizeof path, "score.graders.%.250s", name);
        st = mine.code == CAIRN_ERECIPE ? cairn_recipe_fail(r, path, err, "%s", mine.text)
                                        : cairn_fail(err, mine.code, "%s", mine.text);
    }
    free(argument);
    return st;
}

/* run: whose outside files the programs are; NULL: they are where r says. */
static enum cairn_status define_all(const struct cairn_recipe *r, const struct cairn_run *run, struct cairn_error *err)
{
    json_t *all = (json_t *)cairn_recipe_get(r, "score.graders"); /* jansson walks objects through pointers that are not const */
    enum cairn_status st = CAIRN_OK;
    char *recorded = NULL;
    const char *name;
    json_t *v;

    cairn_graders_forget();
    json_object_foreach(all, name, v)
    {
        const char *program = json_string_value(json_object_get(v, "program"));

        if (run && program) {
            char key[300];

            snprintf(key, sizeof key, "score.graders.%.250s.program", name);
            free(recorded);
            recorded = NULL;
            TRY(cairn_run_outside(run, key, &recorded, err));
            program = recorded; /* that one runs whose digest was looked at */
        }
        TRY(define_one(r, name, v, program, err));
    }
out:
    free(recorded);
    return st;
}

enum cairn_status cairn_graders_define(const struct cairn_recipe *r, struct cairn_error *err)
{
    return define_all(r, NULL, err);
}

enum cairn_status cairn_graders_start(struct cairn_grader_process **out, const struct cairn_run *run, struct cairn_error *err)
{
    enum cairn_status st;

    TRY(define_all(run->recipe, run, err));
    TRY(cairn_grader_process_start(out, NULL, err));
out:
    return st;
}

static int blank(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n", p[i]) || !p[i])
            return 0;
    return 1;
}

enum cairn_status cairn_graders_row(const struct cairn_prompts *p, int64_t i, const char *named, struct cairn_error *err)
{
    const struct cairn_prompt *row = &p->row[i];
    const char *name = row->grader ? row->grader : named;
    const struct cairn_grader *g = cairn_grader_find(name);
    struct cairn_error why;

    if (!g) {
        cairn_grader_unknown(name, &why);
        return cairn_fail(err, CAIRN_EDATA, "%s:%lld: %s", p->path, (long long)i + 1, why.text);
    }
    if (!g->gold_unused && blank(row->answer, row->answer_bytes))
        return cairn_fail(err, CAIRN_EDATA,
                          "%s:%lld: the gold answer is empty, and grader %s compares with it: nothing would be right; take the row out, or "
                          "name a grader that needs none", p->path, (long long)i + 1, name);
    return CAIRN_OK;
}

void cairn_grade_failure_merge(struct cairn_grade_failure *f, const struct cairn_grade_failure *other)
{
    if (other->why[0] && (!f->why[0] || other->rollout < f->rollout))
        *f = *other;
}

static void keep(struct cairn_grade_failure *f, int64_t rollout, const struct cairn_verdict *v)
{
    struct cairn_grade_failure one = {.rollout = rollout};

    memcpy(one.why, v->why, sizeof one.why);
    cairn_grade_failure_merge(f, &one);
}

void cairn_grade_failure_note(struct cairn_grade_failure *f, int64_t rollout, const struct cairn_verdict *v)
{
    if (v->status == CAIRN_VERDICT_CRASHED || v->status == CAIRN_VERDICT_TIMEOUT)
        keep(f, rollout, v);
}

void cairn_grade_invalid_note(struct cairn_grade_failure *f, int64_t rollout, const struct cairn_verdict *v)
{
    if (v->status == CAIRN_VERDICT_INVALID)
        keep(f, rollout, v);
}
