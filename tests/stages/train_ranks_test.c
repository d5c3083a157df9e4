/* train_ranks_test.c - data parallel training under mpirun: the single rank's loss and gradients to 1e-5, the same layout twice the
 * same bits, a step that goes on after a stop or a death of one rank with an undisturbed one's bits, and a state that any number of
 * ranks reads. Skipped where there is no mpirun or no cairn-mpi.so.
 */
#include "tests/stages/resumelab.h"

#include "stages/common/amend.h"

#define PACK "train.pack=12"

/* A run of `dp` ranks whose step 1 waits; groups of 3. */
static void waiting(struct rig *g, int dp, const char *const *override, const char *numerics)
{
    const char *all[10] = {NULL};
    char ranks[40];
    int n = 0;

    snprintf(ranks, sizeof ranks, "train.parallel.dp=%d", dp);
    all[n++] = ranks;
    for (int i = 0; override && override[i]; i++)
        all[n++] = override[i];
    rig_open(g, "cpu", all);
    rig_trainer(g, NULL);
    rig_data(g, 6, 3, 1, 8, 70);
    for (int64_t i = 0; i < g->r.n; i += 4)
        g->s.mask[i] = 0;
    rig_commit(g, 1, numerics);
    rig_trainer_close(g);
}

/* Largest difference of a set of tensors, each relative to its own largest element. */
static double set_error(const char *a, const char *b, int64_t step, const char *prefix, char where[300])
{
    struct cairn_reader *x = train_open(a, step), *y = train_open(b, step);
    const struct cairn_manifest *m = cairn_reader_manifest(x);
    double worst = 0;
    int any = 0;

    for (int i = 0; i < m->ntensors; i++) {
        double most = 1e-12, diff = 0;
        void *p, *q;
        int64_t n, k;

        if (!cairn_starts_with(m->tensors[i].name, prefix))
            continue;
        OK(cairn_reader_array(x, m->tensors[i].name, CAIRN_F32, &p, &n, err));
        OK(cairn_reader_array(y, m->tensors[i].name, CAIRN_F32, &q, &k, err));
        assert_int_equal(n, k);
        for (int64_t e = 0; e < n; e++) {
            diff = fmax(diff, fabs((double)((float *)p)[e] - (double)((float *)q)[e]));
            most = fmax(most, fabs((double)((float *)p)[e]));
            any |= ((float *)p)[e] != 0;
        }
        if (diff / most > worst) {
            worst = diff / most;
            snprintf(where, 300, "%s", m->tensors[i].name);
        }
        free(p);
        free(q);
    }
    assert_true(any);
    cairn_reader_close(x);
    cairn_reader_close(y);
    return worst;
}

static void metrics_near(const char *a, const char *b, int64_t step, double within)
{
    static const char *const exact[] = {"tokens/loss",  "mismatch/tokens", "mismatch/bitwise_equal_share",
                                        "mismatch/max", "updates/skipped", "lr"};
    static const char *const near[] = {"loss/policy", "loss/kl",   "entropy",       "ratio/mean",   "ratio/min",
                                       "ratio/max",   "grad_norm", "grad_norm_max", "mismatch/mean"};
    struct cairn_reader *x = train_open(a, step), *y = train_open(b, step);

    for (size_t i = 0; i < COUNT(exact); i++)
        if (metric(x, exact[i]) != metric(y, exact[i]))
            fail_msg("%s: %.17g and %.17g", exact[i], metric(x, exact[i]), metric(y, exact[i]));
    for (size_t i = 0; i < COUNT(near); i++) {
        double p = metric(x, near[i]), q = metric(y, near[i]);

        if (!(fabs(p - q) <= within * fmax(1, fabs(p))))
            fail_msg("%s: %.9g and %.9g", near[i], p, q);
    }
    assert_true(metric(x, "tokens/loss") > 0);
    cairn_reader_close(x);
    cairn_reader_close(y);
}

/* One update: m is (1 - beta1) times the gradient, so the gradients are compared. old and the reference are computed by the ranks,
 * too. */
static void test_gradients(void **state)
{
    static const char *const how[][5] = {
        {PACK, "train.updates_per_step=1", NULL},
        {PACK, "train.updates_per_step=1", "train.kl.coef=0.2", "numerics.require=compatible", NULL},
        {PACK, "train.updates_per_step=1", "train.reduction=prompt_mean", LAB_ADAPTER, NULL},
        {PACK, "train.updates_per_step=1", "train.loss=sft", NULL},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(how); i++) {
        const char *numerics = i == 1 ? "another machine" : NULL;
        struct rig one;

        waiting(&one, 1, how[i], numerics);
        resume_ok(one.run->dir, 1, 0);
        for (int dp = 2; dp <= (i ? 2 : 4); dp += 2) {
            char where[300] = "";
            struct rig g;
            double e;

            waiting(&g, dp, how[i], numerics);
            resume_ok(g.run->dir, 1, dp);
            inside_gone(g.run->dir, 1);
            e = set_error(one.run->dir, g.run->dir, 1, "m:", where);
            if (e > 1e-5)
                fail_msg("case %zu: dp %d: the gradient of %s is off by %g", i, dp, where, e);
            if (i < 3)
                metrics_near(one.run->dir, g.run->dir, 1, 1e-5);
            OK(cairn_verify_tree(g.run->dir, &(struct cairn_verify_opts){.deep = 1}, &(struct cairn_verify_counts){0}, err));
            rig_close(&g);
        }
        rig_close(&one);
    }
}

/* The same layout: the same bits, twice, stopped, killed, in one rank or in all, saving beside the training or only at a stop. */
static void test_same_bits(void **state)
{
    static const struct {
        int k; /* with this of every[] */
        struct strike s;
        int rc, inside; /* -1: depends on the moment, or on what mpirun makes of it */
    } blow[] = {
        {0, {"none", 0, 0, -1}, 0, 0},
        {0, {"adamw", 4, SIGTERM, 1}, 75, 2}, /* one rank hears it, all stop */
        {0, {"policy_loss", 3, SIGUSR1, 0}, 75, -1},
        {0, {"logprob", 3, SIGKILL, 0}, -1, 0},
        {1, {"adamw", 3, SIGTERM, -1}, 75, 2},
        {1, {"adamw", 5, SIGKILL, 1}, -1, -1},
    };
    static const char *const every[] = {"checkpoint.updates=0", "checkpoint.updates=1"};

    (void)state;
    for (int k = 0; k < 2; k++) {
        char whole[300], again[300], said[2000];
        struct rig g;

        waiting(&g, 2,
                LAB_OVERRIDES(PACK, "train.updates_per_step=3", "train.kl.coef=0.1", "numerics.require=compatible", every[k]),
                "another machine");
        snprintf(whole, sizeof whole, "%s/whole", g.lab.dir);
        snprintf(again, sizeof again, "%s/again", g.lab.dir);
        run_copy(g.run->dir, whole);
        resume_ok(whole, 1, 2);
        for (size_t i = 0; i < COUNT(blow); i++) {
            int rc, tries = 0;

            if (blow[i].k != k)
                continue;
            run_copy(g.run->dir, again);
            rc = resume_run(again, 1, 2, blow[i].s, said);
            if (blow[i].rc >= 0 ? rc != blow[i].rc : rc == 0)
                fail_msg("signal %d at %s %d: %d: %s", blow[i].s.signo, blow[i].s.op, blow[i].s.n, rc, said);
            if (blow[i].inside >= 0 && inside(again, 1) != blow[i].inside)
                fail_msg("signal %d at %s %d: update %d is there: %s", blow[i].s.signo, blow[i].s.op, blow[i].s.n, inside(again, 1),
                         said);
            for (; rc && tries < 3; tries++)
                rc = resume_run(again, 1, 2, NO_STRIKE, said);
            if (rc)
                fail_msg("signal %d at %s %d: %d: %s", blow[i].s.signo, blow[i].s.op, blow[i].s.n, rc, said);
            train_same(whole, again, 1, blow[i].s.op);
            inside_gone(again, 1);
        }
        rig_close(&g);
    }
}

/* A damaged point on ranks: all leave it out. A save that fails: told once, costs nothing else. */
static void test_ranks_damage(void **state)
{
    char whole[300], again[300], path[700], command[1500], said[2000];
    struct rig g;
    int rc;

    (void)state;
    waiting(&g, 2, LAB_OVERRIDES(PACK, "train.updates_per_step=3", "checkpoint.updates=1"), NULL);
    snprintf(whole, sizeof whole, "%s/whole", g.lab.dir);
    snprintf(again, sizeof again, "%s/again", g.lab.dir);
    run_copy(g.run->dir, whole);
    resume_ok(whole, 1, 2);
    run_copy(g.run->dir, again);
    assert_int_equal(resume_run(again, 1, 2, (struct strike){"adamw", 3, SIGTERM, -1}, said), 75);
    assert_int_equal(inside(again, 1), 2);
    snprintf(path, sizeof path, "%s/step/000001/train/u0002/a1/m-r0001-00000.h5", again); /* of rank 1 alone */
    if (truncate(path, 1000))
        fail_msg("%s: %s", path, strerror(errno));
    rc = resume_run(again, 1, 2, NO_STRIKE, said);
    if (rc || !strstr(said, "u0002 is left out"))
        fail_msg("%d: %s", rc, said);
    train_same(whole, again, 1, "a truncated share");
    run_copy(g.run->dir, again);
    snprintf(command, sizeof command, "mkdir -p '%s/step/000001/train' && touch '%s/step/000001/train/u0001'", again, again);
    assert_int_equal(system(command), 0);
    rc = resume_run(again, 1, 2, NO_STRIKE, said);
    if (rc || !strstr(said, "update 1 was not saved"))
        fail_msg("%d: %s", rc, said);
    train_same(whole, again, 1, "a failed save");
    rig_close(&g);
}

/* A state of two ranks is read by one and by three, which train on to the same numbers. */
static void test_other_counts(void **state)
{
    static const char *const to[] = {"train.parallel.dp=1", "train.parallel.dp=3"};
    char path[2][300], where[300] = "";
    struct rig g;
    double e;

    (void)state;
    waiting(&g, 2, LAB_OVERRIDES(PACK, "train.updates_per_step=1"), NULL);
    resume_ok(g.run->dir, 1, 2);
    lab_stage_ok("sync", g.run->dir, 1, NULL);
    OK(lab_recipe_load(&g.recipe, &g.lab, NULL, err)); /* log-probabilities of policy 1 */
    {
        char *policy = cairn_run_path(g.run, "policy/000001");

        OK(cairn_trainer_open(&g.t, &g.k, g.recipe, &(struct cairn_trainer_start){.dir = policy, .base = g.base}, err));
        OK(cairn_trainer_reserve(&g.t, 96, 1 << 20, 1, err));
        free(policy);
    }
    rig_data(&g, 5, 3, 1, 8, 90);
    rig_trainer_close(&g);
    for (int i = 0; i < 2; i++) {
        struct cairn_run *own = g.run;
        struct cairn_str diff = {0};
        char said[2000];
        int number, rc;

        snprintf(path[i], sizeof path[i], "%s/to%d", g.lab.dir, i);
        run_copy(own->dir, path[i]);
        OK(cairn_run_open(&g.run, path[i], err));
        OK(cairn_run_amend(g.run, 2, 1, &to[i], 0, &number, &diff, err));
        assert_int_equal(number, 1);
        cairn_run_close(g.run);
        OK(cairn_run_open(&g.run, path[i], err));
        cairn_run_at(g.run, 2);
        rig_commit(&g, 2, NULL);
        cairn_run_close(g.run);
        cairn_str_free(&diff);
        g.run = own;
        rc = resume_run(path[i], 2, 2, NO_STRIKE, said); /* not what the recipe says */
        if (rc != 64 || !strstr(said, "started with 2 ranks, train.parallel.dp is"))
            fail_msg("%s: %d: %s", to[i], rc, said);
        resume_ok(path[i], 2, i ? 3 : 0);
    }
    e = set_error(path[0], path[1], 2, "m:", where);
    if (e > 1e-5)
        fail_msg("%s is off by %g", where, e);
    e = set_error(path[0], path[1], 2, "v:", where);
    if (e > 1e-5)
        fail_msg("%s is off by %g", where, e);
    metrics_near(path[0], path[1], 2, 1e-5);
    rig_close(&g);
}

/* The warm start, in shares, stopped and taken up; more ranks than there are micro-batches. */
static void test_warm(void **state)
{
    char whole[300], again[300], where[300] = "", said[2000];
    struct rig one, g;
    double e;

    (void)state;
    rig_open(&one, "cpu", LAB_OVERRIDES(LAB_WARM, "warm_start.updates=1", PACK));
    resume_ok(one.run->dir, 0, 0);
    rig_open(&g, "cpu", LAB_OVERRIDES(LAB_WARM, "warm_start.updates=1", PACK, "train.parallel.dp=3"));
    resume_ok(g.run->dir, 0, 3);
    e = set_error(one.run->dir, g.run->dir, 0, "m:", where);
    if (e > 1e-5)
        fail_msg("the gradient of %s is off by %g", where, e);
    rig_close(&g);
    rig_close(&one);
    rig_open(&g, "cpu", LAB_OVERRIDES(LAB_WARM, "train.pack=500", "train.parallel.dp=2", "checkpoint.updates=2"));
    snprintf(whole, sizeof whole, "%s/whole", g.lab.dir);
    snprintf(again, sizeof again, "%s/again", g.lab.dir);
    run_copy(g.run->dir, whole);
    run_copy(g.run->dir, again);
    resume_ok(whole, 0, 2);
    assert_int_equal(resume_run(again, 0, 2, (struct strike){"adamw", 5, SIGTERM, 1}, said),
                     75); /* twice an update: with decay, and without */
    assert_int_equal(inside(again, 0), 3);
    resume_ok(again, 0, 2);
    train_same(whole, again, 0, "the warm start");
    rig_close(&g);
}

/* What one rank finds out ends all of them, with its sentence. */
static void test_mismatch(void **state)
{
    char said[2000];
    struct rig g;
    int rc;

    (void)state;
    rig_open(&g, "cpu", LAB_OVERRIDES(PACK, "train.parallel.dp=2", "train.updates_per_step=1"));
    rig_trainer(&g, NULL);
    rig_data(&g, 6, 3, 4, 4, 70);
    g.r.logprobs[g.r.response[g.r.n - 1] + 1] += 0x1p-20f;
    rig_commit(&g, 1, NULL);
    rig_trainer_close(&g);
    rc = resume_run(g.run->dir, 1, 2, NO_STRIKE, said);
    if (rc != 76 || !strstr(said, "sampler and trainer disagree: rollout 17"))
        fail_msg("%d: %s", rc, said);
    rig_close(&g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients),    cmocka_unit_test(test_same_bits),
                                       cmocka_unit_test(test_ranks_damage), cmocka_unit_test(test_other_counts),
                                       cmocka_unit_test(test_warm),         cmocka_unit_test(test_mismatch)};
    int rc = resume_program(argc, argv);
    char *so;

    if (rc >= 0)
        return rc;
    so = cairn_lib_path("cairn-mpi.so");
    if (system("command -v mpirun >/dev/null 2>&1") || !cairn_path_exists(so)) {
        printf("1..0 # SKIP no mpirun, or no %s\n", so);
        free(so);
        return 0;
    }
    free(so);
    return cmocka_run_group_tests_name("train_ranks", tests, NULL, NULL);
}
