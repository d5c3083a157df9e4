/* trainlab.h - a trainer in a lab's run, rollouts whose log-probabilities are its own, and the objective written once more, naively: a rollout at a
 * time, in double, from the formulas of the objective (sections 4 and 5) and not from our ops.
 */
#ifndef TESTS_STAGES_TRAINLAB_H
#define TESTS_STAGES_TRAINLAB_H

#include "tests/stages/lab.h"

#include <math.h>

#include "stages/common/setup.h"
#include "stages/train/grpo.h"
#include "stages/train/trainer.h"

struct rig {
    struct lab lab;
    struct cairn_run *run;       /* policy 0 and the base */
    struct cairn_recipe *recipe; /* of the trainer: may differ from the run's */
    struct cairn_compute k;
    struct cairn_trainer t;
    struct cairn_stage_ctx ctx;
    struct cairn_rollouts r;
    struct cairn_scores_table s;
    char *policy, *base;
    const char *claim; /* which policy the rollouts say to come from: NULL the right one, "" none */
};

static inline void rig_open(struct rig *g, const char *backend, const char *const *run_override)
{
    memset(g, 0, sizeof *g);
    lab_open(&g->lab);
    g->run = lab_init(&g->lab, run_override);
    OK(cairn_compute_open(&g->k, &(struct cairn_compute_opts){.backend = backend, .threads = 1}, err));
    g->ctx = (struct cairn_stage_ctx){.run = g->run, .link = {1, CAIRN_STAGE_TRAIN, NULL}, .compute = &g->k, .interval_s = 1e9};
    g->policy = cairn_run_path(g->run, "policy/000000");
    g->base = cairn_run_path(g->run, "base");
}

/* A trainer of policy 0 by the lab's recipe with these overrides, for sequences of at most 96 tokens. */
static inline void rig_trainer(struct rig *g, const char *const *override)
{
    OK(lab_recipe_load(&g->recipe, &g->lab, override, err));
    OK(cairn_trainer_open(&g->t, &g->k, g->recipe, &(struct cairn_trainer_start){.dir = g->policy, .base = g->base}, err));
    OK(cairn_trainer_reserve(&g->t, 96, 1 << 20, 1, err));
}

static inline void rig_trainer_close(struct rig *g)
{
    cairn_progress_end(g->ctx.bar);
    g->ctx.bar = NULL;
    cairn_trainer_close(&g->t);
    cairn_recipe_free(g->recipe);
    g->recipe = NULL;
}

static inline void rig_data_free(struct rig *g)
{
    cairn_rollouts_free(&g->r);
    cairn_scores_free(&g->s);
}

static inline void rig_close(struct rig *g)
{
    rig_data_free(g);
    cairn_compute_close(&g->k);
    cairn_run_close(g->run);
    free(g->policy);
    free(g->base);
    lab_close(&g->lab);
}

static inline struct cairn_sequence rig_sequence(const struct rig *g, int64_t i)
{
    const struct cairn_rollouts *r = &g->r;

    return (struct cairn_sequence){r->tokens + r->offsets[i], r->offsets[i + 1] - r->offsets[i], r->prompt_length[i], i};
}

static inline float rig_temperature(const struct rig *g)
{
    return (float)cairn_recipe_f64(g->recipe, "rollout.temperature");
}

/* What the sampler would have written: log-probabilities under the trainer's published weights. */
static inline void rig_sample(struct rig *g)
{
    struct cairn_sequence q[512];

    assert_true(g->r.n <= (int64_t)COUNT(q));
    for (int64_t i = 0; i < g->r.n; i++)
        q[i] = rig_sequence(g, i);
    OK(cairn_trainer_logprobs(&g->t, NULL, q, g->r.n, g->r.response, rig_temperature(g), g->r.logprobs, err));
}

/* Random rollouts and advantages of both signs; every rollout in the loss. */
static inline void rig_data(struct rig *g, int groups, int samples, int least, int spread, uint32_t salt)
{
    rig_data_free(g);
    lab_rollouts(&g->r, groups, samples, least, spread, salt);
    OK(cairn_scores_create(&g->s, g->r.n, err));
    for (int64_t i = 0; i < g->r.n; i++) {
        g->s.mask[i] = 1;
        g->s.group[i] = g->r.group[i];
        g->s.advantage[i] = (float)((double)lab_draw(salt + 5, (uint32_t)i, 2001) / 500 - 2);
    }
    rig_sample(g);
}

/* Values of a store's flat run: gradients, masters, published weights. malloc'ed. */
static inline float *rig_flat(struct rig *g, const struct cairn_tensor *flat)
{
    size_t bytes = cairn_tensor_bytes(flat);
    float *h = malloc(bytes + 1);

    OK(cairn_tensor_get(&g->k.stream, flat, h, bytes, err));
    return h;
}

static inline int64_t rig_count(const struct rig *g)
{
    return cairn_tensor_count(&g->t.grads.flat);
}

/* ---- artefacts --------------------------------------------------------------------------------------------------------- */

/* The lab's rollouts as step/STEP/rollout of the run, sampled from policy STEP-1 by this back-end (or what claims to be
 * another), in units of two groups; and its scores. */
static inline void rig_commit(struct rig *g, int64_t step, const char *numerics)
{
    for (int stage = CAIRN_STAGE_ROLLOUT; stage <= CAIRN_STAGE_SCORE; stage++) {
        const struct cairn_link link = {step, (enum cairn_stage)stage, NULL}, from = {step - 1, CAIRN_STAGE_SYNC, NULL};
        char *dir = cairn_link_path(g->run, &link), *policy = cairn_link_path(g->run, &from), hex[33];
        struct cairn_manifest *m = NULL;
        struct cairn_manifest_head head;
        struct cairn_attempt *a = NULL;
        int units = 0;

        OK(cairn_link_manifest(g->run, &link, &m, err));
        OK(cairn_attempt_begin(&a, dir, &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(m)}, err));
        for (int64_t begin = 0, end; begin < g->r.n; begin = end, units++) {
            struct cairn_shard_entry *e = NULL;

            for (end = begin; end < g->r.n && g->r.group[end] < g->r.group[begin] + 2; end++)
                ;
            if (stage == CAIRN_STAGE_ROLLOUT)
                OK(cairn_rollouts_write(&g->r, begin, end, a, units, "", &e, err));
            else
                OK(cairn_scores_write(&g->s, begin, end, a, units, "", &e, err));
            OK(cairn_manifest_add_shard(m, e, err));
        }
        json_object_set_new(m->content, "units", json_integer(units));
        if (stage == CAIRN_STAGE_ROLLOUT) {
            OK(cairn_manifest_head(&head, policy, err));
            cairn_digest_hex(head.digest, hex);
            if (!g->claim || *g->claim)
                json_object_set_new(m->content, "policy", json_string(g->claim ? g->claim : hex));
            OK(cairn_manifest_set_fingerprint(m, numerics ? numerics : g->k.numerics, "", err));
        }
        OK(cairn_attempt_commit(a, m, err));
        cairn_attempt_end(a);
        cairn_manifest_destroy(m);
        free(dir);
        free(policy);
    }
}

/* ---- the objective, naively -------------------------------------------------------------------------------------------- */

struct naive {
    double policy, kl;   /* loss terms, without kl.coef */
    double *grad;        /* (flat run) */
    int64_t tokens;
    double ratio_min, ratio_max;
    int64_t clip_low, clip_high;
};

static inline int naive_live(const struct rig *g, int64_t i)
{
    return g->r.used[i] && g->s.mask[i] && cairn_rollout_length(&g->r, i) > 0;
}

static inline double naive_clamp(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* The factor of each token of rollout i: the reduction. */
static inline double naive_weight(const struct rig *g, int64_t i, const char *reduction)
{
    int64_t tokens = 0, rollouts = 0, live = 0, groups = 0, mine = 0;

    for (int64_t j = 0; j < g->r.n; j++) {
        int first = 1;

        rollouts += g->r.used[j];
        if (!naive_live(g, j))
            continue;
        for (int64_t m = 0; m < j; m++)
            first &= !(naive_live(g, m) && g->r.group[m] == g->r.group[j]);
        groups += first;
        live++;
        tokens += cairn_rollout_length(&g->r, j);
        mine += g->r.group[j] == g->r.group[i] ? cairn_rollout_length(&g->r, j) : 0;
    }
    if (!strcmp(reduction, "token_mean"))
        return 1.0 / (double)tokens;
    if (!strcmp(reduction, "sequence_mean"))
        return 1.0 / (double)live / (double)cairn_rollout_length(&g->r, i);
    if (!strcmp(reduction, "prompt_mean"))
        return 1.0 / (double)groups / (double)mine;
    return 1.0 / (double)rollouts / (double)cairn_recipe_i64(g->recipe, "rollout.max_new_tokens");
}

static inline double naive_number(const struct rig *g, const char *path, double none)
{
    return cairn_recipe_has(g->recipe, path) ? cairn_recipe_f64(g->recipe, path) : none;
}

/* Log-probabilities of rollout i under `model` (NULL: the trainer), a sequence alone; entropy too if asked for. */
static inline void naive_forward(struct rig *g, int64_t i, float *logprob, float *entropy)
{
    const struct cairn_sequence q = rig_sequence(g, i);
    struct cairn_scores scores;
    int64_t next = 0, n = q.length - q.prompt;
    float *row = malloc((size_t)q.length * sizeof *row);

    assert_int_equal(cairn_micro_fill(&g->t.micro, &q, 1, &next, 1 << 20), 1);
    OK(cairn_trainer_forward(&g->t, rig_temperature(g), &scores, err));
    OK(cairn_tensor_get(&g->k.stream, &scores.logprob, row, (size_t)g->t.micro.rows * sizeof *row, err));
    memcpy(logprob, row + q.prompt - 1, (size_t)n * sizeof *row);
    OK(cairn_tensor_get(&g->k.stream, &scores.entropy, row, (size_t)g->t.micro.rows * sizeof *row, err));
    memcpy(entropy, row + q.prompt - 1, (size_t)n * sizeof *row);
    free(row);
}

/* One update on all rollouts. old, ref: by response offsets; ref may be NULL. */
static inline void naive_update(struct rig *g, const float *old, const float *ref, struct naive *out)
{
    const struct cairn_recipe *recipe = g->recipe;
    const char *ratio = cairn_recipe_str(recipe, "train.ratio"), *kind = cairn_recipe_str(recipe, "train.kl.kind");
    const char *correction = cairn_recipe_str(recipe, "train.correction.kind"), *reduction = cairn_recipe_str(recipe, "train.reduction");
    double low = 1 - cairn_recipe_f64(recipe, "train.clip.low"), high = 1 + cairn_recipe_f64(recipe, "train.clip.high");
    double dual = naive_number(g, "train.clip.dual", 0), coef = cairn_recipe_f64(recipe, "train.kl.coef");
    double bonus = cairn_recipe_f64(recipe, "train.entropy");
    int sft = !strcmp(cairn_recipe_str(recipe, "train.loss"), "sft");
    int64_t count = rig_count(g);

    *out = (struct naive){.grad = calloc((size_t)count, sizeof(double)), .ratio_min = INFINITY, .ratio_max = -INFINITY};
    for (int64_t i = 0; i < g->r.n; i++) {
        int64_t n = cairn_rollout_length(&g->r, i), at = g->r.response[i];
        float cur[96], entropy[96], dcur[96] = {0}, dentropy[96] = {0}, row[96] = {0}, *grad;
        double A = (double)g->s.advantage[i], w = naive_weight(g, i, reduction), mean = 0, all = 0;
        int drop = 0;

        if (!naive_live(g, i))
            continue;
        naive_forward(g, i, cur, entropy);
        for (int64_t k = 0; k < n; k++) {
            mean += naive_clamp((double)cur[k] - (double)old[at + k], -20, 20) / (double)n;
            all += ((double)old[at + k] - (double)g->r.logprobs[at + k]) / (double)n;
        }
        if (!strcmp(correction, "sequence")) /* such a response is no part of the loss nor of its means: the tests do not mix this with masks */
            drop = exp(all) < cairn_recipe_f64(recipe, "train.correction.low") || exp(all) > cairn_recipe_f64(recipe, "train.correction.high");
        for (int64_t k = 0; k < n && !drop; k++) {
            double d = naive_clamp((double)cur[k] - (double)old[at + k], -20, 20), rho, clipped, L, slope, c = 1;

            out->tokens++;
            if (sft) {
                out->policy -= w * (double)cur[k];
                dcur[k] = (float)-w;
                continue;
            }
            rho = exp(!strcmp(ratio, "sequence") ? mean : d);
            clipped = naive_clamp(rho, low, high);
            out->ratio_min = fmin(out->ratio_min, rho);
            out->ratio_max = fmax(out->ratio_max, rho);
            if (!strcmp(ratio, "cispo")) {
                L = -A * clipped * (double)cur[k];
                slope = -A * clipped;
                out->clip_low += rho < low;
                out->clip_high += rho > high;
            } else {
                L = fmax(-A * rho, -A * clipped);
                slope = -A * clipped > -A * rho ? 0 : -A * rho;
                out->clip_low += -A * clipped > -A * rho && rho < low;
                out->clip_high += -A * clipped > -A * rho && rho > high;
                if (A < 0 && dual > 1 && L > -dual * A) {
                    L = -dual * A;
                    slope = 0;
                }
            }
            if (!strcmp(correction, "tis"))
                c = fmin(exp(naive_clamp((double)old[at + k] - (double)g->r.logprobs[at + k], -20, 20)),
                         cairn_recipe_f64(recipe, "train.correction.cap"));
            if (!strcmp(correction, "icepop")) {
                c = exp(naive_clamp((double)old[at + k] - (double)g->r.logprobs[at + k], -20, 20));
                if (c < cairn_recipe_f64(recipe, "train.correction.low") || c > cairn_recipe_f64(recipe, "train.correction.high"))
                    c = 0;
            }
            out->policy += w * c * L;
            if (!strcmp(ratio, "sequence")) /* one ratio of n log-probabilities */
                for (int64_t m = 0; m < n; m++)
                    dcur[m] += (float)(w * c * slope / (double)n);
            else
                dcur[k] += (float)(w * c * slope);
            if (ref) {
                double x = naive_clamp((double)ref[at + k] - (double)cur[k], -20, 20);

                out->kl += w * (!strcmp(kind, "k1") ? -x : !strcmp(kind, "k2") ? x * x / 2 : exp(x) - 1 - x);
                dcur[k] += (float)(w * coef * (!strcmp(kind, "k1") ? 1 : !strcmp(kind, "k2") ? -x : 1 - exp(x)));
            }
            dentropy[k] = (float)(-bonus * w);
        }
        cairn_trainer_renew(&g->t);
        memcpy(row + g->r.prompt_length[i] - 1, dcur, (size_t)n * sizeof *row);
        OK(cairn_trainer_rows_set(&g->t, &g->t.dcur, row, err));
        memcpy(row + g->r.prompt_length[i] - 1, dentropy, (size_t)n * sizeof *row);
        OK(cairn_trainer_rows_set(&g->t, &g->t.dentropy, row, err));
        OK(cairn_trainer_backward(&g->t, bonus != 0, err));
        grad = rig_flat(g, &g->t.grads.flat);
        for (int64_t e = 0; e < count; e++)
            out->grad[e] += (double)grad[e];
        free(grad);
    }
}

/* Largest difference of a parameter's gradient, relative to its largest entry. */
static inline double rig_grad_error(const struct rig *g, const float *got, const double *want, const char **where)
{
    const struct cairn_param_table *t = g->t.table;
    double worst = 0;

    for (int i = 0; i < t->count; i++) {
        int64_t at = (int64_t)((t->param[i].offset - t->trainable_begin) / 4), n = cairn_param_count(&t->param[i]);
        double diff = 0, most = 1e-12;

        if (t->param[i].frozen)
            continue;
        for (int64_t e = at; e < at + n; e++) {
            diff = fmax(diff, fabs((double)got[e] - want[e]));
            most = fmax(most, fabs(want[e]));
            if (!isfinite(got[e]))
                diff = INFINITY;
        }
        if (diff / most > worst) {
            worst = diff / most;
            *where = t->param[i].name;
        }
    }
    return worst;
}

#endif
