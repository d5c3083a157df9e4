/* trainer_test.c - trainer.c, train.c, sync.c: a run that is stopped behind every stage has the same bits as a trainer that never ends, and the
 * policy that sync writes is what that trainer computes with.
 */
#include "tests/stages/trainlab.h"

#include "ckpt/verify.h"
#include "model/io.h"
#include "stages/common/publish.h"
#include "stages/train/sft.h"
#include "stages/train/train.h"

/* The stage in this process (so that the guard, and a sanitizer, see it). */
static int stage(struct rig *g, enum cairn_stage which, int step)
{
    const struct cairn_stage_def train = {.stage = CAIRN_STAGE_TRAIN, .doc = "", .wants_device = 1, .work = cairn_train_work};
    const struct cairn_stage_def sync = {.stage = CAIRN_STAGE_SYNC, .doc = "", .work = cairn_publish_work, .after = cairn_publish_after};
    char number[20], name[] = "stage", flag[] = "--step", quiet[] = "--quiet", *argv[] = {name, g->run->dir, flag, number, quiet, NULL};

    snprintf(number, sizeof number, "%d", step);
    return cairn_stage_main(5, argv, which == CAIRN_STAGE_TRAIN ? &train : &sync);
}

static struct cairn_reader *artefact(struct rig *g, enum cairn_stage which, int64_t step)
{
    const struct cairn_link link = {step, which, NULL};
    char *dir = cairn_link_path(g->run, &link);
    struct cairn_reader *r = NULL;

    OK(cairn_reader_open(&r, dir, NULL, err));
    free(dir);
    return r;
}

/* The trainer state of a step is what our trainer holds, bit for bit. */
static void state_same(struct rig *g, int64_t step)
{
    const struct cairn_store *const store[] = {&g->t.optimizer.master, &g->t.optimizer.m, &g->t.optimizer.v};
    static const char *const prefix[] = {"master:", "m:", "v:"};
    struct cairn_reader *r = artefact(g, CAIRN_STAGE_TRAIN, step);

    assert_string_equal(cairn_reader_manifest(r)->kind, "trainer");
    assert_int_equal(json_integer_value(json_object_get(cairn_reader_manifest(r)->content, "updates")), g->t.optimizer.updates);
    for (int s = 0; s < 3; s++)
        for (int i = 0; i < g->t.table->count; i++) {
            char name[300];
            float *ours;
            void *theirs;
            int64_t n;

            if (!store[s]->tensor[i].buf)
                continue;
            snprintf(name, sizeof name, "%s%s", prefix[s], g->t.table->param[i].name);
            OK(cairn_reader_array(r, name, CAIRN_F32, &theirs, &n, err));
            ours = rig_flat(g, &store[s]->tensor[i]);
            if (n != cairn_tensor_count(&store[s]->tensor[i]) || memcmp(ours, theirs, (size_t)n * sizeof *ours))
                fail_msg("step %lld: %s differs", (long long)step, name);
            free(ours);
            free(theirs);
        }
    cairn_reader_close(r);
}

/* The policy, as a sampler opens it, holds what our trainer computes with, frozen weights too. */
static void policy_same(struct rig *g, int64_t step, const char *dtype)
{
    const struct cairn_link link = {step, CAIRN_STAGE_SYNC, NULL};
    char *dir = cairn_link_path(g->run, &link);
    struct cairn_reader *r = artefact(g, CAIRN_STAGE_SYNC, step);
    struct cairn_policy p = {0};
    const struct cairn_tensor_entry *e;

    OK(cairn_policy_open(&p, dir, &(struct cairn_policy_opts){.quiet = 1}, &g->k, err));
    assert_int_equal(p.lora, g->t.policy.lora);
    for (int k = 0; k < (p.lora ? 2 : 1); k++) {
        const struct cairn_store *mine = k ? &g->t.policy.adapter_weights : &g->t.policy.weights, *its = k ? &p.adapter_weights : &p.weights;

        assert_int_equal(mine->table->count, its->table->count);
        for (int i = 0; i < mine->table->count; i++) {
            float *x = rig_flat(g, &mine->tensor[i]), *y = rig_flat(g, &its->tensor[i]);

            if (memcmp(x, y, (size_t)cairn_tensor_count(&mine->tensor[i]) * sizeof *x))
                fail_msg("step %lld: %s differs between policy and trainer", (long long)step, mine->table->param[i].name);
            free(x);
            free(y);
        }
    }
    OK(cairn_reader_find(r, p.lora ? g->t.table->param[0].name : "model.norm.weight", &e, err));
    assert_string_equal(cairn_dtype_name(e->dtype), dtype);
    cairn_policy_close(&p);
    cairn_reader_close(r);
    free(dir);
}

static void moments_reset(struct rig *g)
{
    OK(cairn_tensor_zero(&g->k.stream, &g->t.optimizer.m.flat, err));
    OK(cairn_tensor_zero(&g->k.stream, &g->t.optimizer.v.flat, err));
    g->t.optimizer.updates = 0;
}

struct how {
    const char *override[7], *backend, *dtype;
    int warm;
};

static void warm_start(struct rig *g, const struct how *h, const char *const *override)
{
    struct cairn_examples e;
    char data[300], tokenizer[300];
    struct cairn_sft_stats stats;

    snprintf(data, sizeof data, "%s/worked.jsonl", g->lab.dir);
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.json", g->lab.dir);
    OK(lab_recipe_load(&g->recipe, &g->lab, override, err));
    OK(cairn_trainer_open(&g->t, &g->k, g->recipe,
                          &(struct cairn_trainer_start){.dir = g->base, .fresh_adapter = cairn_recipe_has(g->recipe, "model.adapter")}, err));
    OK(cairn_trainer_reserve(&g->t, 96, 1 << 20, 1, err));
    OK(cairn_examples_load(&e, data, g->recipe, tokenizer, &g->t.policy.config, err));
    OK(cairn_sft_run(&g->ctx, &g->t, &e, &stats, err));
    cairn_examples_free(&e);
    assert_int_equal(stage(g, CAIRN_STAGE_TRAIN, 0), 0);
    state_same(g, 0);
    assert_int_equal(stage(g, CAIRN_STAGE_SYNC, 0), 0);
    policy_same(g, 0, h->dtype);
    moments_reset(g); /* what step 1 begins with */
}

static void test_never_stopped(void **state)
{
    const struct how *h = *state;
    const char *override[9] = {NULL};
    struct rig g;
    int n = 0;

    for (; h->override[n]; n++)
        override[n] = h->override[n];
    override[n] = !strcmp(h->backend, "guard") ? "kernels.backend=guard" : "kernels.backend=cpu";
    rig_open(&g, h->backend, override);
    if (h->warm)
        warm_start(&g, h, override);
    else
        rig_trainer(&g, override);
    for (int step = 1; step <= 3; step++) {
        struct cairn_grpo_stats stats;

        rig_data(&g, 5, 3, 1, 8, (uint32_t)step * 50); /* log-probabilities of the trainer that never ended */
        for (int64_t i = 0; i < g.r.n; i += 4)
            g.s.mask[i] = 0;
        rig_commit(&g, step, NULL);
        OK(cairn_grpo_run(&g.ctx, &g.t, &g.r, &g.s, &(struct cairn_grpo_opts){.same_policy = 1, .same_numerics = 1, .step = step}, &stats, err));
        assert_int_equal(stage(&g, CAIRN_STAGE_TRAIN, step), 0);
        state_same(&g, step);
        assert_int_equal(stage(&g, CAIRN_STAGE_SYNC, step), 0);
        policy_same(&g, step, h->dtype);
    }
    assert_int_equal(g.t.optimizer.updates, 6);
    OK(cairn_verify_tree(g.run->dir, &(struct cairn_verify_opts){.deep = 1}, &(struct cairn_verify_counts){0}, err));
    rig_trainer_close(&g);
    rig_close(&g);
}

/* Rollouts that say to be of other numerics: refused, or taken within a band, and old is recomputed. */
static void test_other_numerics(void **state)
{
    static const struct {
        const char *override;
        float off;
        int rc;
    } row[] = {{"numerics.require=same", 0, CAIRN_EDEVICE},
               {"numerics.require=compatible", 0.01f, 0},
               {"numerics.require=compatible", 0.3f, CAIRN_ENUMERIC}};

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++) {
        const char *const *o = LAB_OVERRIDES(row[i].override);
        struct rig g;

        rig_open(&g, "cpu", o);
        rig_trainer(&g, o);
        rig_data(&g, 5, 3, 1, 8, 4);
        for (int64_t k = 0; k < g.r.response[g.r.n]; k++)
            g.r.logprobs[k] += row[i].off;
        rig_commit(&g, 1, "cpu of another make");
        assert_int_equal(stage(&g, CAIRN_STAGE_TRAIN, 1), row[i].rc);
        if (!row[i].rc) {
            struct cairn_reader *r = artefact(&g, CAIRN_STAGE_TRAIN, 1);
            const json_t *m = json_object_get(cairn_reader_manifest(r)->info, "metrics");

            assert_true(json_number_value(json_object_get(m, "ratio/min")) <= 1);
            assert_true(fabs(json_number_value(json_object_get(m, "mismatch/mean")) - 0.01) < 1e-4);
            assert_true(json_number_value(json_object_get(m, "mismatch/tokens")) == (double)g.r.response[g.r.n]);
            cairn_reader_close(r);
        }
        rig_trainer_close(&g);
        rig_close(&g);
    }
}

/* Rollouts of another policy: refused by name, unless the recipe corrects for them; recorded responses need no policy. */
static void test_off_policy(void **state)
{
    static const struct {
        const char *override[3];
        int policy, logprobs, rc; /* policy: 1 another one, 0 none */
    } row[] = {
        {{NULL}, 1, 1, CAIRN_EDATA},
        {{"train.on_policy=correct", "train.correction=tis"}, 1, 1, 0},
        {{NULL}, 0, 0, 0},
        {{NULL}, 0, 1, CAIRN_EDATA},
        {{"train.on_policy=correct", "train.correction=icepop"}, 0, 0, CAIRN_ERECIPE},
        {{"train.loss=sft"}, 1, 1, 0},
        {{"train.loss=sft"}, 0, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++) {
        struct rig g;
        int rc;

        rig_open(&g, "cpu", row[i].override);
        rig_trainer(&g, row[i].override);
        rig_data(&g, 5, 3, 1, 8, 4);
        if (!row[i].logprobs) {
            free(g.r.logprobs);
            g.r.logprobs = NULL;
        }
        g.claim = row[i].policy ? "00112233445566778899aabbccddeeff" : "";
        rig_commit(&g, 1, NULL);
        rc = stage(&g, CAIRN_STAGE_TRAIN, 1);
        if (rc != row[i].rc)
            fail_msg("row %zu: %d, expected %d", i, rc, row[i].rc);
        rig_trainer_close(&g);
        rig_close(&g);
    }
}

/* The trainer of a base in fp32 with a policy in bf16: what is frozen is rounded as sync rounds it. */
static void test_frozen_rounded(void **state)
{
    struct rig g;
    int frozen = 0;

    (void)state;
    rig_open(&g, "cpu", LAB_OVERRIDES("sync.dtype=f32"));
    OK(lab_recipe_load(&g.recipe, &g.lab, LAB_OVERRIDES("sync.dtype=bf16"), err));
    OK(cairn_trainer_open(&g.t, &g.k, g.recipe, &(struct cairn_trainer_start){.dir = g.base}, err));
    for (int i = 0; i < g.t.table->count; i++) {
        float *x = rig_flat(&g, &g.t.published->tensor[i]);
        int64_t fine = 0;

        for (int64_t e = 0; e < cairn_tensor_count(&g.t.published->tensor[i]); e++) {
            uint32_t w;

            memcpy(&w, &x[e], sizeof w);
            fine += (w & 0xffff) != 0;
        }
        if (g.t.table->param[i].keep_f32 ? 0 : fine != 0)
            fail_msg("%s is not rounded", g.t.table->param[i].name);
        frozen += g.t.table->param[i].frozen;
        free(x);
    }
    assert_true(frozen > 4);
    cairn_trainer_close(&g.t);
    cairn_recipe_free(g.recipe);
    rig_close(&g);
}

static const struct how full = {{NULL}, "cpu", "bf16", 0}, full_guard = {{NULL}, "guard", "bf16", 0}, f32 = {{"sync.dtype=f32"}, "cpu", "f32", 0},
                        lora = {{LAB_ADAPTER}, "cpu", "bf16", 0}, lora_guard = {{LAB_ADAPTER, "sync.dtype=f32"}, "guard", "f32", 0},
                        warm = {{LAB_WARM}, "cpu", "bf16", 1}, warm_lora = {{LAB_WARM, LAB_ADAPTER}, "cpu", "bf16", 1},
                        keep = {{"checkpoint.keep=1", "checkpoint.keep_every=0", "checkpoint.keep_policies=1"}, "cpu", "bf16", 0};

#define HOW(name) {"test_never_stopped: " #name, test_never_stopped, NULL, NULL, (void *)&name}

int main(void)
{
    const struct CMUnitTest tests[] = {HOW(full), HOW(full_guard), HOW(f32),       HOW(lora), HOW(lora_guard),
                                       HOW(warm), HOW(warm_lora),  HOW(keep), cmocka_unit_test(test_frozen_rounded),
                                       cmocka_unit_test(test_other_numerics), cmocka_unit_test(test_off_policy)};

    return cmocka_run_group_tests_name("trainer", tests, NULL, NULL);
}
