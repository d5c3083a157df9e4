/* replay_stored.c - opens stored rollouts (replay_stored.h). */
#include "tools/replay_stored.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "ckpt/attempt.h"
#include "ckpt/retention.h"

/* One line of what is meant, belongs to the run and is not there: the steps (n), and how many evaluations. */
static void missing_tell(const struct cairn_run *run, const int64_t *step, int64_t n, int evals)
{
    struct cairn_str s = {0};

    if (n) {
        cairn_str_puts(&s, n > 1 ? "steps " : "step ");
        cairn_only_numbers_put(step, n, &s);
    }
    if (evals)
        cairn_str_printf(&s, "%s%d evaluation%s", n ? " and of " : "", evals, evals > 1 ? "s" : "");
    if (s.len)
        cairn_warn("%s: the rollouts of %s are not there and are left out", run->dir, cairn_str_z(&s));
    cairn_str_free(&s);
}

enum cairn_status cairn_stored_links(const struct cairn_run *run, const struct cairn_only *only, int sets, struct cairn_link **link, int *n,
                                     struct cairn_error *err)
{
    const struct cairn_reach reach = cairn_run_reach(run);
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *chain = NULL;
    int64_t *missing = NULL, steps = 0;
    int links = 0, found = 0, evals = 0;

    TRY(cairn_run_chain(run, &chain, &links, err));
    missing = calloc((size_t)links + 1, sizeof *missing);
    if (!missing)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < links; i++) {
        char *dir;
        int collected;

        if (chain[i].stage != CAIRN_STAGE_ROLLOUT || !cairn_only_link(only, &chain[i]) || (chain[i].eval && !sets && !only->evals))
            continue;
        if (cairn_link_beyond(&reach, &chain[i]) || !cairn_link_done(run, &chain[i])) {
            if (chain[i].eval)
                evals++;
            else
                missing[steps++] = chain[i].step;
            continue;
        }
        dir = cairn_link_path(run, &chain[i]);
        collected = dir && cairn_artefact_collected(dir);
        if (collected)
            cairn_warn("%s was collected and is left out", dir);
        free(dir);
        if (!collected)
            chain[found++] = chain[i];
    }
    if (!found)
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: no stored rollouts%s", run->dir, only->step.n || only->evals ? " of these steps and sets" : ""));
    missing_tell(run, missing, steps, evals);
    *link = chain;
    *n = found;
    chain = NULL;
out:
    free(missing);
    free(chain);
    return st;
}

static enum cairn_status units_find(struct cairn_stored *w, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    void *h = NULL;

    TRY(cairn_unit_count(w->reader, &w->units, err));
    w->unit = calloc((size_t)w->units + 1, sizeof *w->unit);
    if (!w->unit)
        TRY(CAIRN_NOMEM(err));
    for (int u = 0; u < w->units; u++) {
        int64_t n;

        TRY(cairn_unit_read(w->reader, u, "prompt_length", CAIRN_I32, &h, &n, err));
        free(h);
        h = NULL;
        w->unit[u + 1] = w->unit[u] + n;
    }
out:
    free(h);
    return st;
}

/* The run's scores, where they are committed, still there and of these rollouts. */
static enum cairn_status scores_read(struct cairn_stored *w, const struct cairn_run *run, int extracted, struct cairn_error *err)
{
    const struct cairn_link score = {w->link.step, CAIRN_STAGE_SCORE, w->link.eval};
    char *dir = cairn_link_path(run, &score);
    struct cairn_reader *from = NULL;
    enum cairn_status st = CAIRN_OK;
    const struct cairn_manifest *m;
    int ours = 0;

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_artefact_committed(dir) || cairn_artefact_collected(dir))
        goto out;
    TRY(cairn_reader_open(&from, dir, NULL, err));
    m = cairn_reader_manifest(from);
    for (int i = 0; i < m->ninputs; i++)
        ours |= cairn_digest_equal(m->inputs[i].digest, cairn_reader_manifest(w->reader)->digest);
    if (!ours)
        goto out;
    TRY(cairn_scores_load(&w->s, from, extracted, err));
    w->scored = w->s.n == w->r.n;
out:
    cairn_reader_close(from);
    free(dir);
    return st;
}

void cairn_stored_prompts_free(struct cairn_stored_prompts *p)
{
    cairn_prompts_list_free(p->files, p->n);
    *p = (struct cairn_stored_prompts){0};
}

static enum cairn_status prompts_open(struct cairn_stored *w, const struct cairn_run *run, struct cairn_stored_prompts *kept, struct cairn_error *err)
{
    const char *eval = w->link.eval;
    enum cairn_status st = CAIRN_OK;

    if (!kept)
        return cairn_prompts_of(run, &w->link, &w->files, &w->nfiles, err);
    if (!kept->files || (kept->eval == NULL) != (eval == NULL) || (eval && strcmp(kept->eval, eval))) {
        cairn_stored_prompts_free(kept);
        TRY(cairn_prompts_of(run, &w->link, &kept->files, &kept->n, err));
        kept->eval = eval;
    }
    w->files = kept->files;
    w->nfiles = kept->n;
    w->borrowed = 1;
out:
    return st;
}

enum cairn_status cairn_stored_open(struct cairn_stored *w, const struct cairn_run *run, const struct cairn_link *l, int extracted,
                                    struct cairn_stored_prompts *prompts, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *dir = cairn_link_path(run, l);

    *w = (struct cairn_stored){.link = *l, .name = cairn_link_relative(l)};
    if (!dir || !w->name)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_reader_open(&w->reader, dir, NULL, err));
    TRY(cairn_rollouts_load(&w->r, w->reader, err));
    TRY(units_find(w, err));
    TRY(prompts_open(w, run, prompts, err));
    TRY(scores_read(w, run, extracted, err));
out:
    free(dir);
    if (st != CAIRN_OK)
        cairn_stored_close(w);
    return st;
}

void cairn_stored_close(struct cairn_stored *w)
{
    cairn_reader_close(w->reader);
    cairn_rollouts_free(&w->r);
    cairn_scores_free(&w->s);
    if (!w->borrowed)
        cairn_prompts_list_free(w->files, w->nfiles);
    free(w->unit);
    free(w->name);
    memset(w, 0, sizeof *w);
}

const json_t *cairn_stored_entry(const struct cairn_run *run, const struct cairn_link *l, size_t k)
{
    const json_t *list = cairn_recipe_get(run->recipe, l->eval ? "data.eval" : "data.prompts");

    for (size_t i = 0; l->eval && i < json_array_size(list); i++)
        if (!strcmp(l->eval, json_string_value(json_object_get(json_array_get(list, i), "name"))))
            return json_array_get(list, i);
    return l->eval ? NULL : json_array_get(list, k);
}

const struct cairn_prompt *cairn_stored_prompt(const struct cairn_stored *w, int64_t i)
{
    return cairn_prompts_find(w->files, w->nfiles, w->r.prompt_id[i]);
}

int cairn_stored_takes(const struct cairn_stored *w, const struct cairn_only *only, int64_t i)
{
    const struct cairn_prompt *p = only->prompts ? cairn_stored_prompt(w, i) : NULL;

    return cairn_only_takes(only, &w->r, i, p ? p->id : NULL, w->scored ? &w->s : NULL);
}

enum cairn_status cairn_stored_fits(const struct cairn_stored *w, const struct cairn_only *only, struct cairn_error *err)
{
    if (!only->verdict || w->scored)
        return CAIRN_OK;
    return cairn_fail(err, CAIRN_ENOINPUT, "%s was not scored, so --only verdict= says nothing about it", w->name);
}
