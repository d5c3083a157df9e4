/* plugin.c - see plugin.h. */
#include "grade/plugin.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "grade/grader_plugin.h"

struct plugin {
    struct cairn_grader g;
    struct cairn_sandbox box;
    char *name, *path, **argument; /* NULL-terminated */
    /* in the child: */
    void *handle, *state;
    const struct cairn_grader_plugin *its;
};

static void destroy(struct cairn_grader *g)
{
    struct plugin *x = (struct plugin *)g;

    for (char **a = x->argument; a && *a; a++)
        free(*a);
    free(x->argument);
    free(x->name);
    free(x->path);
    free(x);
}

enum cairn_status cairn_plugin_load(const struct cairn_grader *g, struct cairn_error *err)
{
    struct plugin *x = (struct plugin *)g; /* made by cairn_plugin_create: never const memory */
    const struct cairn_grader_plugin *(*get)(void);
    enum cairn_status st = CAIRN_OK;
    char why[160] = "";
    void *f;

    if (x->its)
        return CAIRN_OK;
    cairn_sandbox_limit(&x->box, 0);
    if (!x->handle && !(x->handle = dlopen(x->path, RTLD_NOW | RTLD_LOCAL)))
        TRY(cairn_fail_dl(err, CAIRN_ERECIPE, dlerror(), "score.graders.%s.program", x->name));
    if (!(f = dlsym(x->handle, "cairn_grader_plugin")))
        TRY(cairn_fail(err, CAIRN_ERECIPE, "score.graders.%s.program: %s exports no cairn_grader_plugin", x->name, x->path));
    memcpy(&get, &f, sizeof get);
    x->its = get();
    if (!x->its || x->its->abi != CAIRN_GRADER_PLUGIN_ABI || !x->its->grade) {
        unsigned abi = x->its ? x->its->abi : 0;

        x->its = NULL;
        TRY(cairn_fail(err, CAIRN_ERECIPE, "score.graders.%s.program: %s is a plugin of interface %u, this is %u", x->name, x->path,
                       abi, CAIRN_GRADER_PLUGIN_ABI));
    }
    if (x->its->open && x->its->open((const char *const *)x->argument, &x->state, why, sizeof why) != 0) {
        x->its = NULL;
        why[sizeof why - 1] = 0;
        TRY(cairn_fail(err, CAIRN_ERECIPE, "score.graders.%s: the plugin refuses: %s", x->name,
                       why[0] ? why : "it does not say why"));
    }
out:
    return st;
}

static void invalid(struct cairn_verdict *v, const char *why)
{
    v->status = CAIRN_VERDICT_INVALID;
    snprintf(v->why, sizeof v->why, "%s", why);
}

static enum cairn_status grade(const struct cairn_grader *self, const struct cairn_grade_opts *opts, const char *gold,
                               size_t gold_bytes, const char *response, size_t response_bytes, struct cairn_verdict *out,
                               struct cairn_error *err)
{
    const struct plugin *x = (const struct plugin *)self;
    const struct cairn_plugin_request q = {
        .bytes = sizeof q, .gold = gold, .gold_bytes = gold_bytes, .response = response, .response_bytes = response_bytes};
    struct cairn_plugin_result r = {.bytes = sizeof r};
    enum cairn_status st = CAIRN_OK;
    int rc;

    (void)opts;
    TRY(cairn_plugin_load(self, err));
    rc = x->its->grade(x->state, &q, &r);
    r.extracted[sizeof r.extracted - 1] = r.why[sizeof r.why - 1] = 0;
    cairn_verdict_text(out->extracted, sizeof out->extracted, r.extracted, strlen(r.extracted));
    cairn_verdict_text(out->why, sizeof out->why, r.why, strlen(r.why));
    if (rc != 0)
        invalid(out, r.why[0] ? r.why : "the plugin could not do its work");
    else if (!r.answered)
        out->status = CAIRN_VERDICT_NO_ANSWER;
    else if (!isfinite(r.score) || r.score < 0 || r.score > 1)
        invalid(out, "the plugin's score is not from 0 to 1");
    else {
        out->value = r.score;
        out->match = r.score == 1;
    }
out:
    return st;
}

enum cairn_status cairn_plugin_create(struct cairn_grader **out, const struct cairn_grader_def *def, struct cairn_error *err)
{
    struct plugin *x = NULL;
    enum cairn_status st = CAIRN_OK;

    if (!def->program)
        return cairn_fail(err, CAIRN_ERECIPE, "program: a grader of kind plugin needs the shared object");
    if (!(x = calloc(1, sizeof *x)) || !(x->name = strdup(def->name)) || !(x->path = strdup(def->program)) ||
        !(x->argument = calloc((size_t)def->arguments + 1, sizeof *x->argument)))
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < def->arguments; i++)
        if (!(x->argument[i] = strdup(def->argument[i])))
            TRY(CAIRN_NOMEM(err));
    x->box = (struct cairn_sandbox){.name = x->name, .program = x->path, .memory_bytes = def->memory_bytes};
    x->g = (struct cairn_grader){
        .name = x->name, .grade = grade, .sandbox = &x->box, .gold_unused = 1, .time_s = def->time_s, .destroy = destroy};
    *out = &x->g;
    x = NULL;
out:
    if (x)
        destroy(&x->g);
    return st;
}
