/* run.h - a run directory as every stage sees it: the frozen recipe, the paths of artefacts, what is committed.
 *
 *     RUN/recipe.yaml   the resolved recipe      RUN/run.json   uuid, format, outside files by size and digest
 *     RUN/recipe.amend-0001.json, ...   what changed in it, and from which step on (amend.h)
 *     RUN/quarantine/0001/...           what `cairn verify --repair` has taken out of the run
 *     RUN/base          the imported base model (a link, or made here from model.init)
 *     RUN/check         the gate, which all other links wait for (run.check: first); nothing reads it
 *     RUN/policy/SSSSSS   RUN/step/SSSSSS/{rollout,score,train}   RUN/eval/SSSSSS/NAME/{rollout,score}   RUN/log
 *
 * There is no other state: what is done is what has a manifest (ckpt/). Step s reads policy s-1, train s-1 and rollout s-1 and
 * yields policy s. With run.lag 1 its rollout reads policy s-2 instead, and need not wait for step s-1 to be trained. Step 0 has a train artefact
 * only with a warm start; its sync gives policy 0, else `cairn init` does.
 */
#ifndef CAIRN_STAGES_COMMON_RUN_H
#define CAIRN_STAGES_COMMON_RUN_H

#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "ckpt/manifest.h"
#include "recipe/recipe.h"

enum cairn_stage { CAIRN_STAGE_ROLLOUT, CAIRN_STAGE_SCORE, CAIRN_STAGE_TRAIN, CAIRN_STAGE_SYNC, CAIRN_STAGE_CHECK };

/* One link of the chain; eval is the name of an evaluation set, or NULL. For sync, step is the policy it yields. */
struct cairn_link {
    int64_t step;
    enum cairn_stage stage;
    const char *eval;
};

struct cairn_run {
    char *dir;                   /* absolute */
    char uuid[33];
    struct cairn_recipe *recipe; /* as the step of cairn_run_at sees it; before any such call as frozen. Borrowed from below */
    struct cairn_digest hash;    /* of recipe's science and layout keys; what artefacts carry */
    json_t *info;                /* run.json; owned */
    struct cairn_recipe *frozen; /* recipe.yaml; owned */
    struct cairn_digest frozen_hash;
    struct cairn_amendments *amendments; /* NULL: none (amend.h); owned */
};

/* 1: DIR is a run (its run.json is there), or it cannot be told without memory. */
int cairn_run_there(const char *dir);
/* CAIRN_ENOINPUT if DIR is no run, CAIRN_ERECIPE / CAIRN_EDATA if its files are damaged. */
enum cairn_status cairn_run_open(struct cairn_run **out, const char *dir, struct cairn_error *err);
/* By run.json alone, for who looks at a run whose other files are damaged: no recipe, no amendments, no hash; cairn_run_outside works. */
enum cairn_status cairn_run_open_bare(struct cairn_run **out, const char *dir, struct cairn_error *err);
void cairn_run_close(struct cairn_run *r);
/* Returns st, of reading the recipe at `path`. Where that file is wrong and is a run's own, err says so, and what to do. */
enum cairn_status cairn_run_recipe_wrong(const char *path, enum cairn_status st, struct cairn_error *err);

/* Makes DIR a run (takes recipe over on success): resolves outside files (prompts, tokenizer, eval sets, base) by size and digest, copies small ones
 * below RUN/files, writes recipe.yaml and run.json durably (run.json last), links or makes RUN/base, and policy 0 when there is no
 * warm start. Idempotent: a half-made run is finished. A science or layout key that differs from the frozen recipe: CAIRN_ERECIPE with
 * the difference; ops keys are taken over. */
enum cairn_status cairn_run_init(struct cairn_run **out, const char *dir, struct cairn_recipe *recipe, struct cairn_error *err);
/* The same without a weight, base and policy 0 being made by the init that follows: for plans. */
enum cairn_status cairn_run_draft(struct cairn_run **out, const char *dir, struct cairn_recipe *recipe, struct cairn_error *err);

/* The policy that a rollout samples from: run.lag steps older than the one that the step trains, policy 0 at the least. Of an evaluation: its
 * step's. */
struct cairn_link cairn_link_sampled(const struct cairn_run *r, const struct cairn_link *l);
int cairn_run_resident(const struct cairn_run *r); /* run.mode: resident */
/* RUN/base is a link: to an import (model.from), whose weights no run makes. */
int cairn_run_base_given(const struct cairn_run *r);

/* The recipe that step s sees, amendments included, and its hash. Borrowed. */
const struct cairn_recipe *cairn_run_recipe(const struct cairn_run *r, int64_t step);
struct cairn_digest cairn_run_hash(const struct cairn_run *r, int64_t step);
/* From now on r->recipe and r->hash are those of that step: for whoever works on one. */
void cairn_run_at(struct cairn_run *r, int64_t step);

/* Writes r->info to run.json, durable. The caller holds the run's lock. */
enum cairn_status cairn_run_save_info(struct cairn_run *r, struct cairn_error *err);

const char *cairn_stage_name(enum cairn_stage s); /* "rollout", ... */
char *cairn_run_path(const struct cairn_run *r, const char *relative);     /* malloc'ed RUN/relative */
char *cairn_link_relative(const struct cairn_link *l);                     /* malloc'ed "step/000003/train", "policy/000003" for sync, ... */
char *cairn_link_path(const struct cairn_run *r, const struct cairn_link *l);
int cairn_link_done(const struct cairn_run *r, const struct cairn_link *l); /* committed (collected counts): the file itself is asked */

/* An outside file (key as in run.json, for example "data.prompts.0"): malloc'ed path of the copy or the original, after its size
 * and digest were checked; CAIRN_EDATA naming it if it changed. */
enum cairn_status cairn_run_outside(const struct cairn_run *r, const char *key, char **path, struct cairn_error *err);

/* The chain in order, evaluations included (before step 1, every eval_every, after the last). malloc'ed array; names borrowed from
 * the recipe. */
enum cairn_status cairn_run_chain(const struct cairn_run *r, struct cairn_link **out, int *n, struct cairn_error *err);

/* How far a run's directories reach: the highest step in RUN/step, RUN/policy and RUN/eval. -1: none; INT64_MAX: it could not be told. A run may
 * be told to make a hundred thousand steps, and each question to a parallel file system costs its time. */
struct cairn_reach {
    int64_t step, policy, eval;
};
struct cairn_reach cairn_run_reach(const struct cairn_run *r); /* three listings */
/* 1: l had no directory when they were listed, so nobody had begun it. */
int cairn_link_beyond(const struct cairn_reach *reach, const struct cairn_link *l);
/* What is committed of the n links of a chain, or of a part of it, into done (n) as 1 or 0; what is passed by (gap.h) counts as done. One look at the
 * file of each that is not beyond reach. */
void cairn_links_done(const struct cairn_run *r, const struct cairn_link *link, int n, char *done);
/* The step of the first of these links of that stage, evaluations aside, that is not done: by its recipe a resident role is started. The last one's
 * where all are; 1 where there is none. */
int64_t cairn_links_next_step(const struct cairn_link *link, const char *done, int n, enum cairn_stage stage);
/* *done as cairn_link_done, for who wants to know as well that the manifest is whole: CAIRN_EDATA if it is there but damaged. One read, no look
 * before. */
enum cairn_status cairn_link_whole(const struct cairn_run *r, const struct cairn_link *l, int *done, struct cairn_error *err);
/* 1: the chain has a gate, which is not committed, and l is another link: it must wait. */
int cairn_link_gated(const struct cairn_run *r, const struct cairn_link *l);
/* The artefacts that link l reads, relative to RUN ("policy/000002", "base"), in a fixed order: malloc'ed array of malloc'ed
 * strings, freed with cairn_strings_free. None for rollouts that `replay --train` copies. */
enum cairn_status cairn_link_inputs(const struct cairn_run *r, const struct cairn_link *l, char ***out, int *n, struct cairn_error *err);
/* The keys of outside files that link l reads ("model.tokenizer", "data.prompts.0"), likewise. */
enum cairn_status cairn_link_outside(const struct cairn_run *r, const struct cairn_link *l, char ***out, int *n, struct cairn_error *err);
void cairn_strings_free(char **s, int n);

/* The empty manifest of link l with identity (recipe hash, digests of all inputs and outside files): ready for an attempt.
 * CAIRN_ENOINPUT naming the first input that is not committed. Caller destroys. */
enum cairn_status cairn_link_manifest(const struct cairn_run *r, const struct cairn_link *l, struct cairn_manifest **out,
                                      struct cairn_error *err);

#endif
