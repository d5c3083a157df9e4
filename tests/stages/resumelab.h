/* resumelab.h - cairn-train as a program that stops, or dies, at the n-th call of an op: the test executes itself (alone, or under
 * mpirun) with that op replaced by one that counts, so that the moment is the same each time.
 */
#ifndef TESTS_STAGES_RESUMELAB_H
#define TESTS_STAGES_RESUMELAB_H

#include "tests/stages/trainlab.h"

#include "base/signals.h"
#include "ckpt/attempt.h"
#include "ckpt/verify.h"
#include "stages/common/inside.h"
#include "stages/train/train.h"

/* ---- the program: argv = self --train RUN STEP OP N SIGNAL RANK ------------------------------------------------------------ */

static struct {
    const char *op;
    int left, signo, rank;
    struct cairn_ops ops;
} strike;

static void struck(void)
{
    if (--strike.left == 0)
        raise(strike.signo);
}

static enum cairn_status strike_adamw(struct cairn_stream *s, const struct cairn_adamw *a, struct cairn_error *err)
{
    struck();
    return strike.ops.adamw(s, a, err);
}

static enum cairn_status strike_policy_loss(struct cairn_stream *s, const struct cairn_policy_loss *a, struct cairn_error *err)
{
    struck();
    return strike.ops.policy_loss(s, a, err);
}

static enum cairn_status strike_logprob(struct cairn_stream *s, const struct cairn_logprob *a, struct cairn_error *err)
{
    struck();
    return strike.ops.logprob(s, a, err);
}

static enum cairn_status strike_work(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    strike.ops = ctx->compute->ops;
    if (strike.rank < 0 || strike.rank == ctx->world->rank) {
        if (!strcmp(strike.op, "adamw"))
            ctx->compute->ops.adamw = strike_adamw;
        else if (!strcmp(strike.op, "policy_loss"))
            ctx->compute->ops.policy_loss = strike_policy_loss;
        else if (!strcmp(strike.op, "logprob"))
            ctx->compute->ops.logprob = strike_logprob;
    }
    return cairn_train_work(ctx, err);
}

/* In main, before any test: the program's exit code, or -1. */
static inline int resume_program(int argc, char **argv)
{
    const struct cairn_stage_def def = {
        .stage = CAIRN_STAGE_TRAIN, .doc = "", .wants_device = 1, .ranks = 1, .work = strike_work, .after = cairn_train_after};
    char name[] = "cairn-train", flag[] = "--step", quiet[] = "--quiet", *args[] = {name, NULL, flag, NULL, quiet, NULL};

    if (argc != 8 || strcmp(argv[1], "--train"))
        return -1;
    args[1] = argv[2];
    args[3] = argv[3];
    strike.op = argv[4];
    strike.left = atoi(argv[5]);
    strike.signo = atoi(argv[6]);
    strike.rank = atoi(argv[7]);
    return cairn_stage_main(5, args, &def);
}

struct strike {
    const char *op; /* "none" */
    int n, signo;   /* its n-th call on `rank` (-1: on each) raises this */
    int rank;
};

#define NO_STRIKE                                                                                                                  \
    (struct strike)                                                                                                                \
    {                                                                                                                              \
        "none", 0, 0, -1                                                                                                           \
    }

/* Starts it; ranks 0: without a launcher. */
static inline void resume_start(struct lab_program *p, const char *run, int step, int ranks, struct strike s)
{
    char self[600], np[20], number[20], n[20], signo[20], rank[20];
    const char *argv[12];
    int fd[2], at = 0;
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);

    assert_true(len > 0);
    self[len] = 0;
    snprintf(np, sizeof np, "%d", ranks);
    snprintf(number, sizeof number, "%d", step);
    snprintf(n, sizeof n, "%d", s.n);
    snprintf(signo, sizeof signo, "%d", s.signo);
    snprintf(rank, sizeof rank, "%d", s.rank);
    if (ranks) {
        argv[at++] = "mpirun";
        argv[at++] = "-np";
        argv[at++] = np;
    }
    argv[at++] = self;
    argv[at++] = "--train";
    argv[at++] = run;
    argv[at++] = number;
    argv[at++] = s.op;
    argv[at++] = n;
    argv[at++] = signo;
    argv[at++] = rank;
    argv[at] = NULL;
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
    memset(p, 0, sizeof *p);
    fflush(NULL);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (!p->pid) {
        setpgid(0, 0);
        dup2(fd[1], 2);
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
        setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
        setenv("CMOCKA_MESSAGE_OUTPUT", "STDOUT", 1);
        execvp(argv[0], (char **)argv);
        _exit(101);
    }
    setpgid(p->pid, p->pid);
    close(fd[1]);
    p->pipe = fd[0];
}

static inline int resume_run(const char *run, int step, int ranks, struct strike s, char said[2000])
{
    struct lab_program p;
    int rc;

    resume_start(&p, run, step, ranks, s);
    rc = lab_wait(&p);
    if (said)
        memcpy(said, p.said, sizeof p.said);
    return rc;
}

static inline void resume_ok(const char *run, int step, int ranks)
{
    char said[2000];
    int rc = resume_run(run, step, ranks, NO_STRIKE, said);

    if (rc)
        fail_msg("step %d on %d ranks: %d: %s", step, ranks, rc, said);
}

/* ---- what came out ---------------------------------------------------------------------------------------------------------- */

/* A copy of a run directory, beside it. */
static inline void run_copy(const char *from, const char *to)
{
    char command[1400];

    snprintf(command, sizeof command, "rm -rf '%s' && cp -a '%s' '%s'", to, from, to);
    assert_int_equal(system(command), 0);
}

static inline struct cairn_reader *train_open(const char *run, int64_t step)
{
    struct cairn_reader *r = NULL;
    char dir[600];

    snprintf(dir, sizeof dir, "%s/step/%06lld/train", run, (long long)step);
    OK(cairn_reader_open(&r, dir, NULL, err));
    return r;
}

static inline double metric(const struct cairn_reader *r, const char *key)
{
    return json_number_value(json_object_get(json_object_get(cairn_reader_manifest(r)->info, "metrics"), key));
}

/* Equal digests, and equal bits in all metrics but those that tell of time and of the interruption itself. */
static inline void train_same(const char *a, const char *b, int64_t step, const char *what)
{
    struct cairn_reader *x = train_open(a, step), *y = train_open(b, step);
    const json_t *mx = json_object_get(cairn_reader_manifest(x)->info, "metrics"),
                 *my = json_object_get(cairn_reader_manifest(y)->info, "metrics");
    const char *key;
    json_t *v;

    if (!cairn_digest_equal(cairn_reader_manifest(x)->digest, cairn_reader_manifest(y)->digest))
        fail_msg("%s: other bits", what);
    assert_int_equal(json_object_size(mx), json_object_size(my));
    json_object_foreach((json_t *)mx, key, v)
    {
        double p = json_number_value(v), q = json_number_value(json_object_get(my, key));

        if (cairn_starts_with(key, "time/") || !strcmp(key, "updates/resumed"))
            continue;
        if (memcmp(&p, &q, sizeof p))
            fail_msg("%s: %s is %.17g and %.17g", what, key, p, q);
    }
    cairn_reader_close(x);
    cairn_reader_close(y);
}

/* The update that is committed inside the step; 0: none. */
static inline int inside(const char *run, int64_t step)
{
    int found = 0;

    for (int u = 1; u <= 40; u++) {
        char dir[600];

        snprintf(dir, sizeof dir, "%s/step/%06lld/train/u%04d", run, (long long)step, u);
        if (cairn_artefact_committed(dir))
            found = u;
    }
    return found;
}

/* Nothing of it is left. */
static inline void inside_gone(const char *run, int64_t step)
{
    char command[800];

    snprintf(command, sizeof command, "ls '%s/step/%06lld/train' | grep -qE '^(u[0-9]|old)'", run, (long long)step);
    if (!system(command))
        fail_msg("%s: something inside of step %lld has stayed", run, (long long)step);
}

#endif
