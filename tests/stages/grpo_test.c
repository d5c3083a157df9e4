/* grpo_test.c - grpo.c: loss and gradient of an update against the objective computed naively, and what must be noticed, left out
 * or refused. */
#include "tests/stages/trainlab.h"

static struct cairn_grpo_stats stats;

static enum cairn_status step_run(struct rig *g, int same_policy, int same_numerics, struct cairn_error *err)
{
    const struct cairn_grpo_opts o = {.same_policy = same_policy, .same_numerics = same_numerics, .step = 1};

    return cairn_grpo_run(&g->ctx, &g->t, &g->r, &g->s, &o, &stats, err);
}

static void near(const char *what, double got, double want, double tolerance, const char *why)
{
    if (!(fabs(got - want) <= tolerance * fmax(fabs(want), 1e-3)))
        fail_msg("%s: %s is %.9g, expected %.9g", why, what, got, want);
}

/* log-probabilities under the base, by a model of its own. */
static float *reference(struct rig *g)
{
    float *out = calloc((size_t)g->r.response[g->r.n] + 1, sizeof *out);
    struct cairn_policy base = {0};
    struct cairn_pass *pass = NULL;
    struct cairn_model m;

    OK(cairn_policy_open(&base, g->base, &(struct cairn_policy_opts){.quiet = 1}, &g->k, err));
    m = (struct cairn_model){.k = &g->k, .config = &base.config, .weights = &base.weights, .segments = 1};
    OK(cairn_pass_create(&pass, &m, &(struct cairn_pass_opts){.max_rows = 96, .max_seqs = 1}, err));
    for (int64_t i = 0; i < g->r.n; i++) {
        const struct cairn_sequence q = rig_sequence(g, i);
        struct cairn_scores s;
        struct cairn_batch b;
        float row[96];
        int64_t next = 0;

        if (!cairn_micro_fill(&g->t.micro, &q, 1, &next, 1000))
            continue;
        b = (struct cairn_batch){.n = q.length - 1,
                                 .id = g->t.micro.id,
                                 .pos = g->t.micro.pos,
                                 .seq = g->t.micro.seq,
                                 .nseq = 1,
                                 .start = g->t.micro.start};
        OK(cairn_forward(pass, &b, g->t.micro.target, rig_temperature(g), &s, err));
        OK(cairn_tensor_get(&g->k.stream, &s.logprob, row, (size_t)b.n * sizeof *row, err));
        memcpy(out + g->r.response[i], row + q.prompt - 1, (size_t)(q.length - q.prompt) * sizeof *row);
    }
    cairn_pass_destroy(pass);
    cairn_policy_close(&base);
    return out;
}

#define ONE "train.updates_per_step=1"

static const struct variant {
    const char *override[6];
    float off; /* the sampler's log-probabilities differ from ours by up to this (old := the sampler's) */
    int stale; /* they are of another policy: old is recomputed */
    int masks; /* some rollouts masked, some unused, some empty */
    const char *why;
} variants[] = {
    {{ONE}, 0, 0, 0, "first update: ratio 1"},
    {{ONE, "mismatch.max=9"}, 0.6f, 0, 0, "token ratios on both sides of the clip"},
    {{ONE, "mismatch.max=9"}, 0.6f, 0, 1, "masked, unused, empty"},
    {{ONE, "mismatch.max=9", "train.clip.dual=1.2"}, 0.6f, 0, 1, "dual clip"},
    {{ONE, "mismatch.max=9", "train.clip.low=0.05", "train.clip.high=0.5"}, 0.6f, 0, 0, "other clip"},
    {{ONE, "mismatch.max=9", "train.ratio=sequence"}, 0.6f, 0, 1, "sequence ratio"},
    {{ONE, "mismatch.max=9", "train.ratio=cispo"}, 0.6f, 0, 1, "cispo"},
    {{ONE, "mismatch.max=9", "train.reduction=sequence_mean"}, 0.6f, 0, 1, "mean of sequences"},
    {{ONE, "mismatch.max=9", "train.reduction=prompt_mean"}, 0.6f, 0, 1, "mean of prompts"},
    {{ONE, "mismatch.max=9", "train.reduction=sum_over_max"}, 0.6f, 0, 1, "sum over the cap"},
    {{ONE, "train.on_policy=correct", "train.correction=tis"}, 0.9f, 1, 1, "truncated importance sampling"},
    {{ONE, "train.on_policy=correct", "train.correction={kind: icepop, low: 0.7, high: 1.4}"}, 0.9f, 1, 1, "icepop"},
    {{ONE, "train.on_policy=correct", "train.correction={kind: sequence, low: 0.9, high: 1.1}", "train.reduction=sum_over_max"},
     0.9f,
     1,
     0,
     "sequences outside a band are dropped"},
    {{ONE, "rollout.top_p=0.9", "train.truncation=correct", "train.correction={kind: tis, cap: 0.8}"},
     0,
     0,
     1,
     "weights of what was drawn from"},
    {{ONE, "rollout.top_k=9", "train.truncation=correct", "train.correction={kind: icepop, low: 0.6, high: 1.1}"},
     0,
     0,
     1,
     "drawn from fewer: a band of weights"},
    {{ONE, "train.kl={coef: 0.3, kind: k1}"}, 0, 0, 1, "kl k1"},
    {{ONE, "train.kl={coef: 0.3, kind: k2}"}, 0, 0, 0, "kl k2"},
    {{ONE, "train.kl={coef: 0.3, kind: k3}", "mismatch.max=9"}, 0.6f, 0, 1, "kl k3"},
    {{ONE, "train.entropy=0.02", "mismatch.max=9"}, 0.6f, 0, 1, "entropy bonus"},
    {{ONE, "rollout.temperature=0.7", "mismatch.max=9"}, 0.6f, 0, 0, "temperature"},
    {{ONE, "train.loss=sft"}, 0, 0, 1, "cross-entropy of the stored responses"},
    {{ONE, "train.recompute=true", "mismatch.max=9"}, 0.6f, 0, 1, "layers run again in the backward"},
};

/* Sampler's log-probabilities off by up to `off`; NaN where nobody may look. */
static void spoil(struct rig *g, const struct variant *v)
{
    for (int64_t i = 0; i < g->r.n; i++) {
        if (v->masks && i % 5 == 1)
            g->s.mask[i] = 0;
        if (v->masks && i % 7 == 3)
            g->r.used[i] = 0;
        for (int64_t k = g->r.response[i]; k < g->r.response[i + 1]; k++) {
            g->r.logprobs[k] += v->off * ((float)lab_draw(77, (uint32_t)k, 2001) / 1000 - 1);
            if (!naive_live(g, i))
                g->r.logprobs[k] = NAN;
        }
        if (!naive_live(g, i))
            g->s.advantage[i] = NAN;
    }
    if (v->masks) /* a whole group out */
        for (int64_t i = 0; i < g->r.n; i++)
            g->s.mask[i] = g->r.group[i] == 2 ? 0 : g->s.mask[i];
}

static void variant_run(struct rig *g, const struct variant *v)
{
    int sft = strstr(v->why, "cross-entropy") != NULL, kl = strstr(v->why, "kl") != NULL;
    float *old, *ref = NULL, *got, *sampled = NULL, *full = NULL;
    const char *where = "";
    struct naive want;
    double error;

    rig_trainer(g, v->override);
    rig_data(g, 5, 4, v->masks ? 0 : 1, 9, 20);
    if (kl) { /* leave the base first */
        OK(step_run(g, 1, 1, err));
        rig_sample(g);
        ref = reference(g);
    }
    old = malloc((size_t)(g->r.response[g->r.n] + 1) * sizeof *old);
    memcpy(old, g->r.logprobs, (size_t)g->r.response[g->r.n] * sizeof *old);
    spoil(g, v);
    if (!v->stale)
        memcpy(old, g->r.logprobs, (size_t)g->r.response[g->r.n] * sizeof *old);
    if (strstr(v->why, "drawn from")) { /* the sampler's own probabilities are larger: it left ids out */
        FAILS(CAIRN_EDATA, "drawn from", step_run(g, 1, 1, err));
        sampled = malloc((size_t)(g->r.response[g->r.n] + 1) * sizeof *sampled);
        for (int64_t k = 0; k < g->r.response[g->r.n]; k++)
            sampled[k] = g->r.logprobs[k] + (float)lab_draw(78, (uint32_t)k, 1000) / 1500;
        full = g->r.logprobs;
        g->r.logprobs = sampled; /* what the formula calls smp */
    }
    naive_update(g, old, ref, &want);
    if (sampled) {
        g->r.logprobs = full;
        g->r.logprobs_sampled = sampled; /* the rig's from now on */
    }
    OK(step_run(g, !v->stale, !v->stale, err));
    got = rig_flat(g, &g->t.grads.flat);
    error = rig_grad_error(g, got, want.grad, &where);
    if (!(error < 1e-5))
        fail_msg("%s: the gradient of %s is off by %.3g of its largest entry", v->why, where, error);
    near("loss", sft ? stats.sft_loss : stats.loss[CAIRN_LS_POLICY], want.policy, 1e-6, v->why);
    near("kl", stats.loss[CAIRN_LS_KL], want.kl, 1e-6, v->why);
    assert_int_equal(stats.updates, 1);
    if (!sft) {
        assert_true(stats.loss[CAIRN_LS_TOKENS] == (double)want.tokens);
        near("ratio/min", stats.loss[CAIRN_LS_RATIO_MIN], want.ratio_min, 1e-6, v->why);
        near("ratio/max", stats.loss[CAIRN_LS_RATIO_MAX], want.ratio_max, 1e-6, v->why);
        assert_true(stats.loss[CAIRN_LS_CLIP_LOW] == (double)want.clip_low &&
                    stats.loss[CAIRN_LS_CLIP_HIGH] == (double)want.clip_high);
    }
    if (v->off > 0 && strstr(v->why, "both sides"))
        assert_true(want.clip_low > 3 && want.clip_high > 3 && want.ratio_max > 1.4); /* the case is what it says */
    if (ref)
        assert_true(fabs(want.kl) > 1e-6);
    free(want.grad);
    free(old);
    free(ref);
    free(got);
    rig_trainer_close(g);
}

static void test_against_naive(void **state)
{
    struct rig g;

    rig_open(&g, *state, NULL);
    for (size_t i = 0; i < COUNT(variants); i++)
        variant_run(&g, &variants[i]);
    rig_close(&g);
}

/* The same with an adapter: gradients of A and B; the reference is the model with the adapter off; the base never changes. */
static void test_adapter(void **state)
{
    struct rig g;

    rig_open(&g, *state, LAB_OVERRIDES(LAB_ADAPTER));
    for (size_t i = 0; i < COUNT(variants); i++) {
        struct variant v = variants[i];
        int n = 0;

        if (!strstr("kl k3, dual clip, first update: ratio 1", v.why))
            continue;
        while (v.override[n])
            n++;
        v.override[n] = LAB_ADAPTER;
        variant_run(&g, &v);
    }
    rig_close(&g);
}

static void test_adapter_alone(void **state)
{
    float *weights, *after, *adapter, *trained;
    struct rig g;
    int64_t n;

    rig_open(&g, *state, LAB_OVERRIDES(LAB_ADAPTER));
    rig_trainer(&g, LAB_OVERRIDES(LAB_ADAPTER));
    assert_int_equal(g.t.policy.lora, 1);
    rig_data(&g, 6, 3, 1, 8, 1);
    weights = rig_flat(&g, &g.t.policy.weights.flat);
    adapter = rig_flat(&g, &g.t.published->flat);
    OK(step_run(&g, 1, 1, err));
    after = rig_flat(&g, &g.t.policy.weights.flat);
    trained = rig_flat(&g, &g.t.published->flat);
    assert_memory_equal(weights, after, (size_t)cairn_tensor_count(&g.t.policy.weights.flat) * sizeof *weights);
    for (int i = 0; i < g.t.table->count; i++) { /* every matrix has moved: B at once, A as soon as B is not zero */
        const struct cairn_param *p = &g.t.table->param[i];
        int64_t at = (int64_t)((p->offset - g.t.table->trainable_begin) / 4), moved = 0;

        n = cairn_param_count(p);
        for (int64_t e = at; e < at + n; e++)
            moved += adapter[e] != trained[e];
        if (!moved)
            fail_msg("%s did not move", p->name);
    }
    free(weights);
    free(after);
    free(adapter);
    free(trained);
    rig_trainer_close(&g);
    rig_close(&g);
}

/* ---- packing ------------------------------------------------------------------------------------------------------------- */

/* Any cut into micro-batches gives the same loss and, to 1e-5, the same gradient; the same cut gives the same bits. */
static void test_packing(void **state)
{
    static const char *const pack[] = {"train.pack=4096", "train.pack=4096", "train.pack=64", "train.pack=17", "train.pack=1"};
    struct rig g;
    double *first = NULL, loss = 0;
    float *bits = NULL;

    rig_open(&g, *state, NULL);
    for (size_t i = 0; i < COUNT(pack); i++) {
        const char *where = "";
        float *got;
        double error;

        rig_trainer(&g, LAB_OVERRIDES(ONE, "mismatch.max=9", pack[i]));
        rig_data(&g, 6, 5, 0, 12, 3);
        spoil(&g, &variants[2]);
        OK(step_run(&g, 1, 1, err));
        got = rig_flat(&g, &g.t.grads.flat);
        if (!first) {
            first = calloc((size_t)rig_count(&g), sizeof *first);
            for (int64_t e = 0; e < rig_count(&g); e++)
                first[e] = (double)got[e];
            loss = stats.loss[CAIRN_LS_POLICY];
            bits = got;
            got = rig_flat(&g, &g.t.grads.flat);
        }
        near("loss", stats.loss[CAIRN_LS_POLICY], loss, 1e-9, pack[i]);
        error = rig_grad_error(&g, got, first, &where);
        if (!(error < 1e-5))
            fail_msg("%s: the gradient of %s is off by %.3g", pack[i], where, error);
        if (i == 1)
            assert_memory_equal(got, bits, (size_t)rig_count(&g) * sizeof *got);
        free(got);
        rig_trainer_close(&g);
    }
    free(first);
    free(bits);
    rig_close(&g);
}

/* 100 tokens at 0.5 and 900 at 0.3 are 0.32, however they are cut (here 5 and 45 responses of 20 tokens). */
static void test_token_mean(void **state)
{
    static const char *const pack[] = {"train.pack=8192", "train.pack=100", "train.pack=1"};
    struct rig g;

    rig_open(&g, *state, NULL);
    for (size_t i = 0; i < COUNT(pack); i++) {
        rig_trainer(&g, LAB_OVERRIDES(ONE, pack[i]));
        rig_data(&g, 10, 5, 20, 0, 9);
        for (int64_t k = 0; k < g.r.n; k++)
            g.s.advantage[k] = k % 10 == 3 ? -0.5f : -0.3f; /* ratio 1: the loss of a token is -A */
        OK(step_run(&g, 1, 1, err));
        assert_true(stats.loss[CAIRN_LS_TOKENS] == 1000);
        near("loss", stats.loss[CAIRN_LS_POLICY], 0.32, 1e-6, pack[i]);
        rig_trainer_close(&g);
    }
    rig_close(&g);
}

/* ---- updates of a step ------------------------------------------------------------------------------------------------------ */

static void test_first_update(void **state)
{
    double mean = 0;
    struct rig g;

    rig_open(&g, *state, NULL);
    rig_trainer(&g, LAB_OVERRIDES(ONE));
    rig_data(&g, 7, 3, 1, 9, 4);
    for (int64_t i = 0; i < g.r.n; i++)
        mean += (double)g.s.advantage[i] * (double)cairn_rollout_length(&g.r, i) / (double)g.r.response[g.r.n];
    OK(step_run(&g, 1, 1, err));
    assert_true(stats.loss[CAIRN_LS_RATIO_MIN] == 1 && stats.loss[CAIRN_LS_RATIO_MAX] == 1);
    near("loss", stats.loss[CAIRN_LS_POLICY], -mean, 1e-6, "minus the token mean of A");
    assert_int_equal(stats.mismatch.compared, g.r.response[g.r.n]); /* its whole mini-batch, for free */
    assert_int_equal(stats.mismatch.equal, stats.mismatch.compared);
    assert_true(stats.mismatch.max == 0);
    rig_trainer_close(&g);
    rig_close(&g);
}

/* Every group is in exactly one update, rest spread, and ratios leave 1 behind the first. */
static void test_updates(void **state)
{
    static const struct {
        const char *updates;
        int groups, want;
    } row[] = {{"train.updates_per_step=3", 7, 3}, {"train.updates_per_step=4", 4, 4}, {"train.updates_per_step=4", 2, 2}};
    struct rig g;

    rig_open(&g, *state, NULL);
    for (size_t i = 0; i < COUNT(row); i++) {
        rig_trainer(&g, LAB_OVERRIDES(row[i].updates, "mismatch.sample=0"));
        rig_data(&g, row[i].groups, 2, 1, 9, 5);
        OK(step_run(&g, 1, 1, err));
        assert_int_equal(stats.updates, row[i].want);
        assert_int_equal(g.t.optimizer.updates, row[i].want);
        assert_int_equal(stats.loss_tokens, g.r.response[g.r.n]);
        assert_true(stats.loss[CAIRN_LS_TOKENS] == (double)g.r.response[g.r.n]);
        assert_int_equal(stats.groups, row[i].groups);
        assert_int_equal(stats.rollouts, g.r.n);
        assert_true(stats.loss[CAIRN_LS_RATIO_MIN] < 1 && stats.loss[CAIRN_LS_RATIO_MAX] > 1);
        assert_true(stats.mismatch.compared > 0 && stats.mismatch.compared < g.r.response[g.r.n]); /* the first mini-batch alone */
        rig_trainer_close(&g);
    }
    rig_close(&g);
}

/* ---- sampler and trainer -------------------------------------------------------------------------------------------------------
 */

static void flip(float *x)
{
    uint32_t w;

    memcpy(&w, x, sizeof w);
    w ^= 1;
    memcpy(x, &w, sizeof w);
}

/* One bit of one stored log-probability: found if it is looked at, and named. */
static void test_mismatch(void **state)
{
    static const struct {
        const char *override[3];
        int same_numerics;
        double by; /* 0: the lowest bit */
        int found; /* of the flips: 1 all, 0 none, -1 only those of the first mini-batch */
        const char *why;
    } row[] = {
        {{"mismatch.sample=1"}, 1, 0, 1, "everything is recomputed"},
        {{"mismatch.sample=0"}, 1, 0, -1, "the first mini-batch is compared for free"},
        {{"mismatch.sample=1", "mismatch.max=0.001"}, 1, 0, 0, "within what the recipe allows"},
        {{"mismatch.sample=0"}, 0, 0.03, 0, "other numerics: within the band"},
        {{"mismatch.sample=0"}, 0, 0.07, 1, "other numerics: beyond the band"},
    };
    struct rig g;

    rig_open(&g, *state, NULL);
    for (size_t i = 0; i < COUNT(row); i++) {
        int found = 0, n = 0;

        for (int64_t at = 1; at < 12; at += 5, n++) {
            struct cairn_error e = {0};
            enum cairn_status st;
            int64_t token, id;
            char word[120];
            float *masters, *after;

            rig_trainer(&g, row[i].override);
            rig_data(&g, 6, 2, 4, 9, 6);
            token = g.r.response[at] + 2;
            id = g.r.tokens[g.r.offsets[at] + g.r.prompt_length[at] + 2];
            if (row[i].by > 0)
                g.r.logprobs[token] += (float)row[i].by;
            else
                flip(&g.r.logprobs[token]);
            masters = rig_flat(&g, &g.t.optimizer.master.flat);
            st = step_run(&g, 1, row[i].same_numerics, &e);
            after = rig_flat(&g, &g.t.optimizer.master.flat);
            snprintf(word, sizeof word, "rollout %lld (group %d, sample %d), response token 2 (id %lld)", (long long)at,
                     g.r.group[at], g.r.sample[at], (long long)id);
            if (st == CAIRN_ENUMERIC) {
                found++;
                if (!strstr(e.text, word))
                    fail_msg("%s: no \"%s\" in: %s", row[i].why, word, e.text);
                assert_memory_equal(masters, after, (size_t)rig_count(&g) * sizeof *masters); /* before any weight changes */
            } else if (st != CAIRN_OK) {
                fail_msg("%s: %s", row[i].why, e.text);
            }
            free(masters);
            free(after);
            rig_trainer_close(&g);
        }
        if (row[i].found == 1 ? found != n : row[i].found == 0 ? found : found == 0 || found == n)
            fail_msg("%s: found %d of %d", row[i].why, found, n);
    }
    /* NaN is no agreement */
    rig_trainer(&g, LAB_OVERRIDES("mismatch.max=1000", "mismatch.sample=1"));
    rig_data(&g, 6, 2, 4, 9, 6);
    g.r.logprobs[g.r.response[7]] = NAN;
    FAILS(CAIRN_ENUMERIC, "rollout 7", step_run(&g, 1, 1, err));
    rig_trainer_close(&g);
    rig_close(&g);
}

/* Rollouts of an older policy differ, and that is no error; rollouts from outside have nothing to compare with. */
static void test_foreign(void **state)
{
    struct rig g;

    rig_open(&g, *state, NULL);
    rig_trainer(&g, LAB_OVERRIDES("train.on_policy=correct", "train.correction=tis"));
    rig_data(&g, 4, 3, 2, 9, 7);
    for (int64_t k = 0; k < g.r.response[g.r.n]; k++)
        g.r.logprobs[k] -= 0.8f;
    OK(step_run(&g, 0, 1, err));
    assert_int_equal(stats.mismatch.compared, g.r.response[g.r.n]);
    near("mismatch", stats.mismatch.max, 0.8, 1e-3, "told all the same");
    rig_trainer_close(&g);
    rig_trainer(&g, NULL);
    rig_data(&g, 4, 3, 2, 9, 7);
    free(g.r.logprobs);
    g.r.logprobs = NULL;
    OK(step_run(&g, 0, 0, err));
    assert_int_equal(stats.updates, 2);
    assert_int_equal(stats.mismatch.compared, 0);
    rig_trainer_close(&g);
    rig_close(&g);
}

/* ---- what is left out -----------------------------------------------------------------------------------------------------------
 */

static void test_nothing_to_learn(void **state)
{
    float *before, *after;
    struct rig g;

    rig_open(&g, *state, NULL);
    rig_trainer(&g, NULL);
    rig_data(&g, 4, 3, 2, 9, 8);
    before = rig_flat(&g, &g.t.optimizer.master.flat);
    memset(g.s.mask, 0, (size_t)g.r.n);
    OK(step_run(&g, 1, 1, err)); /* no loss token: loss 0, no change, a warning */
    assert_int_equal(stats.updates, 0);
    assert_int_equal(stats.loss_tokens, 0);
    assert_true(stats.loss[CAIRN_LS_POLICY] == 0);
    after = rig_flat(&g, &g.t.optimizer.master.flat);
    assert_memory_equal(before, after, (size_t)rig_count(&g) * sizeof *before);
    free(after);
    memset(g.r.used, 0, (size_t)g.r.n);
    FAILS(CAIRN_EDATA, "no rollout to train on", step_run(&g, 1, 1, err));
    free(before);
    rig_trainer_close(&g);
    rig_close(&g);
}

/* A group without a loss token leaves its update out and the others as they are. */
static void test_one_update_empty(void **state)
{
    struct rig g;

    rig_open(&g, *state, NULL);
    rig_trainer(&g, LAB_OVERRIDES("train.updates_per_step=4"));
    rig_data(&g, 4, 3, 2, 9, 8);
    for (int64_t i = 0; i < g.r.n; i++)
        g.s.mask[i] = g.r.group[i] != 1;
    OK(step_run(&g, 1, 1, err));
    assert_int_equal(stats.updates, 3);
    rig_trainer_close(&g);
    rig_close(&g);
}

static void test_nonfinite(void **state)
{
    float *before, *after;
    struct rig g;

    rig_open(&g, *state, NULL);
    rig_trainer(&g, LAB_OVERRIDES(ONE));
    rig_data(&g, 4, 3, 2, 9, 8);
    before = rig_flat(&g, &g.t.optimizer.master.flat);
    g.s.advantage[5] = INFINITY;
    FAILS(CAIRN_ENUMERIC, "the gradient of model.embed_tokens.weight is not finite", step_run(&g, 1, 1, err));
    after = rig_flat(&g, &g.t.optimizer.master.flat);
    assert_memory_equal(before, after, (size_t)rig_count(&g) * sizeof *before);
    free(before);
    free(after);
    rig_trainer_close(&g);

    rig_trainer(&g, LAB_OVERRIDES("train.updates_per_step=4", "train.skip_nonfinite=true"));
    rig_data(&g, 4, 3, 2, 9, 8);
    g.s.advantage[5] = INFINITY;
    OK(step_run(&g, 1, 1, err));
    assert_int_equal(stats.skipped, 1);
    assert_int_equal(stats.updates, 3);
    after = rig_flat(&g, &g.t.optimizer.master.flat);
    for (int64_t e = 0; e < rig_count(&g); e++)
        assert_true(isfinite(after[e]));
    free(after);
    rig_trainer_close(&g);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON("cpu", test_against_naive), ON("cpu", test_adapter),          ON("guard", test_adapter),
        ON("cpu", test_adapter_alone), ON("cpu", test_packing),          ON("guard", test_packing),
        ON("cpu", test_token_mean),    ON("cpu", test_first_update),     ON("guard", test_first_update),
        ON("cpu", test_updates),       ON("cpu", test_mismatch),         ON("cpu", test_foreign),
        ON("guard", test_foreign),     ON("cpu", test_nothing_to_learn), ON("cpu", test_one_update_empty),
        ON("cpu", test_nonfinite),
    };

    return cmocka_run_group_tests_name("grpo", tests, NULL, NULL);
}
