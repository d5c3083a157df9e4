/* train_resume_test.c - point.c, known.c, inside.c: a step, or a warm start, that was stopped or killed at a given moment and taken
 * up again has an undisturbed one's bits and statistics; what is damaged, foreign or cannot be written costs time and nothing else.
 */
#include "tests/stages/resumelab.h"

#include "base/clock.h"
#include "stages/train/point.h"

#define UPDATES        "train.updates_per_step=4", "train.pack=12"
#define OTHER_NUMERICS "another machine"

/* A run whose step 1 (or 0, with warm) waits to be trained, and the same one trained without disturbance. */
struct pair {
    struct rig g;
    char whole[300], run[300];
    int step;
};

static void pair_open(struct pair *p, const char *const *override, const char *numerics, int warm)
{
    rig_open(&p->g, "cpu", override);
    p->step = warm ? 0 : 1;
    if (!warm) {
        rig_trainer(&p->g, NULL);
        rig_data(&p->g, 5, 3, 1, 8, 50);
        for (int64_t i = 0; i < p->g.r.n; i += 4)
            p->g.s.mask[i] = 0;
        rig_commit(&p->g, 1, numerics);
        rig_trainer_close(&p->g);
    }
    snprintf(p->whole, sizeof p->whole, "%s/whole", p->g.lab.dir);
    snprintf(p->run, sizeof p->run, "%s/again", p->g.lab.dir);
    run_copy(p->g.run->dir, p->whole);
    resume_ok(p->whole, p->step, 0);
    inside_gone(p->whole, p->step);
}

static void fresh(struct pair *p)
{
    run_copy(p->g.run->dir, p->run);
}

static void same(struct pair *p, const char *what)
{
    train_same(p->whole, p->run, p->step, what);
    inside_gone(p->run, p->step);
}

struct how {
    const char *override[6], *numerics;
    int warm;
    struct {
        struct strike s;
        int rc, inside; /* what is committed then; -1: depends on the moment */
    } blow[6];
};

static void test_blows(void **state)
{
    const struct how *h = *state;
    struct pair p;

    pair_open(&p, h->override, h->numerics, h->warm);
    for (size_t i = 0; i < COUNT(h->blow) && h->blow[i].s.op; i++) {
        char said[2000], what[100];
        int rc, u;

        snprintf(what, sizeof what, "signal %d at %s %d", h->blow[i].s.signo, h->blow[i].s.op, h->blow[i].s.n);
        fresh(&p);
        rc = resume_run(p.run, p.step, 0, h->blow[i].s, said);
        if (rc != h->blow[i].rc)
            fail_msg("%s: %d, not %d: %s", what, rc, h->blow[i].rc, said);
        u = inside(p.run, p.step);
        if (h->blow[i].inside >= 0 && u != h->blow[i].inside)
            fail_msg("%s: update %d is there, not %d: %s", what, u, h->blow[i].inside, said);
        OK(cairn_verify_tree(p.run, &(struct cairn_verify_opts){.deep = 1}, &(struct cairn_verify_counts){0}, err));
        resume_ok(p.run, p.step, 0);
        same(&p, what);
        if (rc == 75) {
            struct cairn_reader *r = train_open(p.run, p.step);

            assert_true(metric(r, "updates/resumed") == u);
            cairn_reader_close(r);
        }
    }
    rig_close(&p.g);
}

/* Stopped in every update: one goes on from the other. */
static void test_one_at_a_time(void **state)
{
    struct pair p;

    (void)state;
    pair_open(&p, LAB_OVERRIDES(UPDATES, "train.kl.coef=0.1"), NULL, 0);
    fresh(&p);
    for (int u = 1; u < 4; u++) {
        assert_int_equal(resume_run(p.run, 1, 0, (struct strike){"adamw", 1, SIGTERM, -1}, NULL), 75);
        assert_int_equal(inside(p.run, 1), u);
    }
    resume_ok(p.run, 1, 0);
    same(&p, "one update at a time");
    rig_close(&p.g);
}

/* A bit in every 64 bytes: a small file is mostly padding. */
static void damage(const char *run, int step, const char *name, const char *file)
{
    char path[700];
    FILE *f;
    int c;

    snprintf(path, sizeof path, "%s/step/%06d/train/%s/a1/%s", run, step, name, file);
    f = fopen(path, "r+b");
    if (!f)
        fail_msg("%s is not there", path);
    for (long at = 0; !fseek(f, at, SEEK_SET) && (c = fgetc(f)) != EOF; at += 64) {
        fseek(f, at, SEEK_SET);
        fputc(c ^ 16, f);
    }
    fclose(f);
}

static void test_damaged(void **state)
{
    static const struct {
        const char *name, *file;
        int resumed;
        const char *says;
    } cases[] = {
        {"u0002", "master-00000.h5", 0, "u0002 is left out"},
        {"u0002", "v-00000.h5", 0, "u0002 is left out"},
        {"u0002", "numbers.h5", 0, "u0002 is left out"},
        {"old", "old.h5", 0, "old is left out"}, /* nobody can compute it any more: the updates go too */
        {"ref", "ref.h5", 2, "ref is left out"},
    };
    struct pair p;

    (void)state;
    pair_open(&p, LAB_OVERRIDES(UPDATES, "train.kl.coef=0.1", "numerics.require=compatible"), OTHER_NUMERICS, 0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct cairn_reader *r;
        char said[2000];
        int rc;

        fresh(&p);
        assert_int_equal(resume_run(p.run, 1, 0, (struct strike){"adamw", 3, SIGTERM, -1}, NULL), 75);
        damage(p.run, 1, cases[i].name, cases[i].file);
        rc = resume_run(p.run, 1, 0, NO_STRIKE, said);
        if (rc || !strstr(said, cases[i].says))
            fail_msg("%s/%s: %d: %s", cases[i].name, cases[i].file, rc, said);
        same(&p, cases[i].file);
        r = train_open(p.run, 1);
        assert_true(metric(r, "updates/resumed") == cases[i].resumed);
        cairn_reader_close(r);
    }
    rig_close(&p.g);
}

/* An update of another run is none of ours; a reference is kept with the step and used by nobody else. */
static void test_foreign(void **state)
{
    struct pair p, q;
    char command[1400], said[2000];
    int rc;

    (void)state;
    pair_open(&p, LAB_OVERRIDES(UPDATES), NULL, 0);
    pair_open(&q, LAB_OVERRIDES(UPDATES, "train.learning_rate=0.02"), NULL, 0);
    fresh(&p);
    fresh(&q);
    assert_int_equal(resume_run(q.run, 1, 0, (struct strike){"adamw", 3, SIGTERM, -1}, NULL), 75);
    snprintf(command, sizeof command,
             "mkdir -p '%s/step/000001/train' && cp -a '%s/step/000001/train/u0002' '%s/step/000001/train/'", p.run, q.run, p.run);
    assert_int_equal(system(command), 0);
    rc = resume_run(p.run, 1, 0, NO_STRIKE, said);
    if (rc || !strstr(said, "u0002 is left out"))
        fail_msg("%d: %s", rc, said);
    same(&p, "another run's update");
    rig_close(&p.g);
    rig_close(&q.g);
}

/* Another machine's numbers: refused, unless the recipe takes them. */
static void test_other_numerics(void **state)
{
    static const char *const require[] = {"numerics.require=same", "numerics.require=compatible"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char command[1400], said[2000];
        struct pair p;
        int rc;

        pair_open(&p, LAB_OVERRIDES(LAB_WARM, require[i]), NULL, 1);
        fresh(&p);
        assert_int_equal(resume_run(p.run, 0, 0, (struct strike){"adamw", 3, SIGTERM, -1}, NULL), 75);
        assert_int_equal(inside(p.run, 0), 2);
        { /* the manifest once more, from elsewhere */
            struct cairn_reader *r = NULL;
            struct cairn_manifest *m = NULL;
            char dir[600], *text;
            size_t n;

            snprintf(dir, sizeof dir, "%s/step/000000/train/u0002", p.run);
            OK(cairn_reader_open(&r, dir, NULL, err));
            OK(cairn_manifest_load(&m, dir, err));
            OK(cairn_manifest_set_fingerprint(m, OTHER_NUMERICS, m->layout, err));
            OK(cairn_manifest_text(m, &text, &n, err));
            cairn_reader_close(r);
            cairn_manifest_destroy(m);
            snprintf(command, sizeof command, "%s/MANIFEST.json", dir);
            unlink(command);
            lab_write(command, text, n);
            free(text);
        }
        rc = resume_run(p.run, 0, 0, NO_STRIKE, said);
        if (rc != (i ? 0 : 72) || !strstr(said, OTHER_NUMERICS))
            fail_msg("%s: %d: %s", require[i], rc, said);
        if (i)
            same(&p, "compatible");
        rig_close(&p.g);
    }
}

/* A save that fails is told and costs nothing else. */
static void test_failed_save(void **state)
{
    char command[1400], said[2000];
    struct pair p;
    int rc;

    (void)state;
    pair_open(&p, LAB_OVERRIDES(UPDATES, "checkpoint.updates=1"), NULL, 0);
    fresh(&p);
    snprintf(command, sizeof command, "mkdir -p '%s/step/000001/train' && touch '%s/step/000001/train/u0001'", p.run, p.run);
    assert_int_equal(system(command), 0);
    rc = resume_run(p.run, 1, 0, NO_STRIKE, said);
    if (rc || !strstr(said, "update 1 was not saved"))
        fail_msg("%d: %s", rc, said);
    same(&p, "a failed save");
    fresh(&p); /* the last one at a stop: the same, and 75 as without it */
    snprintf(command, sizeof command, "mkdir -p '%s/step/000001/train' && touch '%s/step/000001/train/u0003'", p.run, p.run);
    assert_int_equal(system(command), 0);
    rc = resume_run(p.run, 1, 0, (struct strike){"adamw", 5, SIGTERM, -1}, said);
    if (rc != 75 || !strstr(said, "update 3 was not saved"))
        fail_msg("%d: %s", rc, said);
    resume_ok(p.run, 1, 0);
    same(&p, "a failed save at a stop");
    rig_close(&p.g);
}

/* kill -9 at moments that nobody chose, saves under way included, until it is through. */
static void test_kill_anywhere(void **state)
{
    struct pair p;

    (void)state;
    pair_open(&p, LAB_OVERRIDES(UPDATES, "checkpoint.updates=1", "train.kl.coef=0.1", "numerics.require=compatible"),
              OTHER_NUMERICS, 0);
    for (uint32_t i = 0; i < 6; i++) {
        int rc = -1, tries = 0;

        fresh(&p);
        for (; rc && tries < 12; tries++) {
            struct lab_program a;

            resume_start(&a, p.run, 1, 0, NO_STRIKE);
            usleep(10000 + lab_draw(i, (uint32_t)tries, 60000) * (tries + 1) / 2);
            kill(a.pid, i % 2 && tries % 2 ? SIGTERM : SIGKILL);
            rc = lab_wait(&a);
            if (rc && rc != 137 && rc != 75 && rc != 143) /* 143: before main had handlers */
                fail_msg("round %u: %d: %s", i, rc, a.said);
        }
        resume_ok(p.run, 1, 0);
        same(&p, "killed anywhere");
    }
    rig_close(&p.g);
}

/* ---- what saving costs
 * ----------------------------------------------------------------------------------------------------------- */

/* 72 MB of state on a disc: how long training stands still for a save beside it, and for one that it waits for. Told, not judged:
 * discs differ. */
static void test_stall(void **state)
{
    struct cairn_param_table table = {0};
    struct cairn_trainer t = {.ranks = 1};
    struct cairn_stage_ctx ctx = {.link = {1, CAIRN_STAGE_TRAIN, NULL}};
    struct cairn_points *points;
    struct cairn_recipe *frozen;
    struct rig g;
    double h = 1.5, sync_s = 0, async_s = 0, t0, got = 0;
    int64_t u = 0;
    char dir[] = "/tmp/cairn-stall-XXXXXX", run[100];

    (void)state;
    rig_open(&g, "cpu", LAB_OVERRIDES("checkpoint.updates=1"));
    assert_non_null(mkdtemp(dir)); /* a disc, where /dev/shm is not one */
    snprintf(run, sizeof run, "%s/run", dir);
    run_copy(g.run->dir, run);
    OK(cairn_run_open(&ctx.run, run, err));
    OK(cairn_param_table_begin(&table, err));
    for (int i = 0; i < 6; i++) {
        char name[30];
        const struct cairn_param p = {.name = name, .ndim = 2, .dim = {1024, 1024}, .decay = 1, .layer = -1};

        snprintf(name, sizeof name, "w%d", i);
        OK(cairn_param_table_add(&table, &p, err));
    }
    OK(cairn_param_table_finish(&table, err));
    OK(lab_recipe_load(&frozen, &g.lab, LAB_OVERRIDES("checkpoint.updates=1"), err));
    t.k = &g.k;
    t.recipe = frozen;
    OK(cairn_optimizer_create(&t.optimizer, &table, &g.k, err));
    ctx.manifest = cairn_manifest_create("trainer", 1, ctx.run->uuid);
    {
        const struct cairn_link l = {1, CAIRN_STAGE_TRAIN, NULL};

        ctx.dir = cairn_link_path(ctx.run, &l);
        OK(cairn_attempt_begin(&ctx.attempt, ctx.dir,
                               &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(ctx.manifest)}, err));
    }
    OK(cairn_points_open(&points, &ctx, &t, 1, err));
    for (int round = 0; round < 4; round++) { /* the first one pays for the memory of the copies */
        double before = cairn_points_times(points).stall_s;

        t0 = cairn_now_s();
        if (round % 2 == 0) {
            OK(cairn_points_reached(points, ++u, 100, &h, err));
            async_s = cairn_points_times(points).stall_s - before;
            cairn_points_stop(points, u, &h); /* waits for it */
        } else {
            cairn_points_stop(points, ++u, &h);
            sync_s = cairn_now_s() - t0;
        }
    }
    assert_int_equal(cairn_points_times(points).saves, 4);
    assert_int_equal(cairn_points_times(points).failed, 0);
    cairn_points_close(points);
    OK(cairn_points_open(&points, &ctx, &t, 1, err));
    {
        struct cairn_reader *r = NULL;
        char *path = cairn_inside_update_path(ctx.run, 1, u);

        OK(cairn_reader_open(&r, path, NULL, err));
        OK(cairn_reader_rows(r, "numbers", 0, 1, &got, sizeof got, err));
        assert_true(got == h);
        cairn_reader_close(r);
        free(path);
    }
    print_message(
        "# 72 MB of state: training stands still %.1f ms for a save beside it, %.1f ms for one that it waits for: %.1f %%\n",
        async_s * 1e3, sync_s * 1e3, 100 * async_s / sync_s);
    cairn_points_close(points);
    cairn_attempt_end(ctx.attempt);
    cairn_manifest_destroy(ctx.manifest);
    cairn_optimizer_free(&t.optimizer);
    cairn_param_table_free(&table);
    cairn_recipe_free(frozen);
    cairn_run_close(ctx.run);
    free(ctx.dir);
    OK(cairn_tree_remove(dir, err));
    rig_close(&g);
}

static const struct how
    full = {{UPDATES, NULL},
            NULL,
            0,
            {{{"policy_loss", 1, SIGTERM, -1}, 75, 0}, /* nothing whole yet */
             {{"policy_loss", 4, SIGUSR1, -1}, 75, -1},
             {{"adamw", 3, SIGTERM, -1}, 75, 2},
             {{"adamw", 7, SIGTERM, -1}, 0, 0}, /* in the last one: the step is finished */
             {{"adamw", 5, SIGKILL, -1}, 137, 0}}},
    often = {{UPDATES, "checkpoint.updates=1", NULL},
             NULL,
             0,
             {{{"adamw", 5, SIGTERM, -1}, 75, 3},
              {{"adamw", 7, SIGKILL, -1}, 137, -1},
              {{"policy_loss", 3, SIGKILL, -1}, 137, -1}}},
    guard = {{UPDATES, "kernels.backend=guard", "checkpoint.updates=2", NULL}, NULL, 0, {{{"adamw", 5, SIGTERM, -1}, 75, 3}}},
    lora = {{UPDATES, LAB_ADAPTER, "checkpoint.updates=1", NULL},
            NULL,
            0,
            {{{"adamw", 3, SIGTERM, -1}, 75, 3}, {{"adamw", 4, SIGKILL, -1}, 137, -1}}},
    known = {{UPDATES, "train.kl.coef=0.1", "numerics.require=compatible", NULL},
             OTHER_NUMERICS,
             0,
             {{{"logprob", 2, SIGTERM, -1}, 75, 0},  /* in old */
              {{"logprob", 18, SIGTERM, -1}, 75, 0}, /* in ref */
              {{"logprob", 18, SIGKILL, -1}, 137, 0},
              {{"adamw", 3, SIGTERM, -1}, 75, 2},
              {{"adamw", 3, SIGKILL, -1}, 137, 0}}},
    warm = {{LAB_WARM, NULL},
            NULL,
            1,
            {{{"adamw", 5, SIGTERM, -1}, 75, 3}, {{"adamw", 11, SIGTERM, -1}, 0, 0}, {{"adamw", 9, SIGKILL, -1}, 137, 0}}},
    warm_often = {{LAB_WARM, "checkpoint.updates=2", NULL},
                  NULL,
                  1,
                  {{{"adamw", 9, SIGKILL, -1}, 137, -1}, {{"adamw", 9, SIGTERM, -1}, 75, 5}}},
    sft = {{UPDATES, "train.loss=sft", NULL}, NULL, 0, {{{"adamw", 3, SIGTERM, -1}, 75, 2}}};

#define HOW(name)                                                                                                                  \
    {                                                                                                                              \
        "test_blows: " #name, test_blows, NULL, NULL, (void *)&name                                                                \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {HOW(full),
                                       HOW(often),
                                       HOW(guard),
                                       HOW(lora),
                                       HOW(known),
                                       HOW(warm),
                                       HOW(warm_often),
                                       HOW(sft),
                                       cmocka_unit_test(test_one_at_a_time),
                                       cmocka_unit_test(test_damaged),
                                       cmocka_unit_test(test_foreign),
                                       cmocka_unit_test(test_other_numerics),
                                       cmocka_unit_test(test_failed_save),
                                       cmocka_unit_test(test_kill_anywhere),
                                       cmocka_unit_test(test_stall)};
    int rc = resume_program(argc, argv);

    return rc >= 0 ? rc : cmocka_run_group_tests_name("train_resume", tests, NULL, NULL);
}
