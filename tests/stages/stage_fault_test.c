/* stage_fault_test.c - kill -9 and full disks, at any moment of any stage: the next call ends with the same artefact.
 *
 * Two kinds of kill: the whole process group at random moments, and the stage at its n-th system call that changes files, for n over all of
 * them (by ptrace; where that is not allowed, only the first kind). Full disks are tmpfs of a few MiB in a mount namespace of our own;
 * where that is not allowed, a limit of file sizes stands in.
 * CAIRN_KILLS: kills of each kind and stage (default 10).
 */
#include "tests/stages/lab.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#include "base/clock.h"
#include "ckpt/verify.h"

static int kills_wanted(void)
{
    const char *s = getenv("CAIRN_KILLS");

    return s && atoi(s) > 0 ? atoi(s) : 10;
}

/* ---- what a run is --------------------------------------------------------------------------------------------------------- */

static enum cairn_status digest_line(void *arg, const char *path, const struct cairn_manifest_head *head, struct cairn_error *err)
{
    char hex[33];

    (void)err;
    cairn_digest_hex(head->digest, hex);
    cairn_str_printf(arg, "%s %s\n", path, hex);
    return CAIRN_OK;
}

/* Digests of all artefacts; everything must verify. */
static void look(struct cairn_str *s, const char *run)
{
    cairn_str_clear(s);
    OK(cairn_digest_walk(run, digest_line, s, err));
    OK(cairn_verify_tree(run, &(struct cairn_verify_opts){.deep = 1}, &(struct cairn_verify_counts){0}, err));
}

static void copy_tree(const char *from, const char *to)
{
    char command[900];

    OK(cairn_tree_remove(to, err));
    snprintf(command, sizeof command, "cp -a '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
}

/* Nothing of dead attempts is left beside a committed artefact: one a<N>, no unpublished manifest. */
static void tidy(const char *run, const char *artefact)
{
    char command[900];

    snprintf(command, sizeof command, "test $(ls -A '%s/%s' | grep -c '^a[0-9]') = 1 && test -z \"$(ls -A '%s/%s' | grep '^.MANIFEST')\"", run,
             artefact, run, artefact);
    if (system(command))
        fail_msg("%s/%s holds more than it should", run, artefact);
}

/* ---- stages and where they are tried -------------------------------------------------------------------------------------------- */

static const struct place {
    const char *stage;
    int step;
    const char *eval, *artefact;
} places[] = {
    {"train", 0, NULL, "step/000000/train"},       {"sync", 0, NULL, "policy/000000"},      {"rollout", 0, "held", "eval/000000/held/rollout"},
    {"score", 0, "held", "eval/000000/held/score"}, {"rollout", 1, NULL, "step/000001/rollout"}, {"score", 1, NULL, "step/000001/score"},
    {"train", 1, NULL, "step/000001/train"},       {"sync", 1, NULL, "policy/000001"},
};

/* Runs the chain once; before each stage, the run is as snapshot i has it. */
struct ground {
    struct lab lab;
    struct cairn_str want;       /* of the undisturbed run */
    char before[COUNT(places)][300];
    double seconds[COUNT(places)];
};

static struct ground ground;

static int ground_make(void **state)
{
    (void)state;
    lab_open(&ground.lab);
    cairn_run_close(lab_init(&ground.lab, LAB_OVERRIDES(LAB_WARM, LAB_EVAL, "run.steps=1", "run.eval_every=9", "mismatch.sample=0.5")));
    for (size_t i = 0; i < COUNT(places); i++) {
        double t0;

        snprintf(ground.before[i], sizeof ground.before[i], "%s/before%zu", ground.lab.dir, i);
        copy_tree(ground.lab.run, ground.before[i]);
        t0 = cairn_now_s();
        lab_stage_ok(places[i].stage, ground.lab.run, places[i].step, places[i].eval);
        ground.seconds[i] = cairn_now_s() - t0;
    }
    look(&ground.want, ground.lab.run);
    return 0;
}

static int ground_drop(void **state)
{
    (void)state;
    cairn_str_free(&ground.want);
    lab_close(&ground.lab);
    return 0;
}

/* From stage i on, undisturbed; must end as the undisturbed run did. */
static void go_on(const char *run, size_t i, const char *why)
{
    struct cairn_str got = {0};

    lab_stage_ok(places[i].stage, run, places[i].step, places[i].eval);
    tidy(run, places[i].artefact);
    look(&got, run);
    /* what is there so far must be the beginning of what there is to be */
    for (char *save = NULL, *p = got.p ? got.p : (char *)"", *line; (line = strtok_r(p, "\n", &save)); p = NULL)
        if (!strstr(cairn_str_z(&ground.want), line))
            fail_msg("%s: %s, the undisturbed run has\n%s", why, line, cairn_str_z(&ground.want));
    cairn_str_free(&got);
}

/* ---- kill -9 at random moments ------------------------------------------------------------------------------------------------------ */

static void test_killed(void **state)
{
    size_t i = (size_t)(uintptr_t)*state;
    char run[300];
    int hits = 0;

    snprintf(run, sizeof run, "%s/tried", ground.lab.dir);
    copy_tree(ground.before[i], run);
    srand48((long)i + 1);
    for (int k = 0; hits < kills_wanted() && k < 8 * kills_wanted(); k++) {
        struct lab_program p;
        int rc;

        lab_start(&p, places[i].stage, run, places[i].step, places[i].eval, NULL, NULL);
        cairn_sleep_s(drand48() * ground.seconds[i]);
        kill(-p.pid, SIGKILL);
        rc = lab_wait(&p);
        if (rc != 0 && rc != 128 + SIGKILL)
            fail_msg("a killed cairn-%s said %d: %s", places[i].stage, rc, p.said);
        hits += rc != 0;
        if (!rc) { /* done: begin again */
            go_on(run, i, "killed");
            copy_tree(ground.before[i], run);
        }
    }
    go_on(run, i, "killed");
    assert_true(hits > 0);
}

/* ---- kill -9 at a chosen system call -------------------------------------------------------------------------------------------------- */

/* LeakSanitizer looks at a process by ptrace, so not at one that is traced already; the same programs are looked at untraced. */
static int traced(void *arg)
{
    const char *options = getenv("ASAN_OPTIONS");
    char more[1000];

    (void)arg;
    snprintf(more, sizeof more, "%s:detect_leaks=0", options ? options : "");
    if (options && setenv("ASAN_OPTIONS", more, 1))
        return 1;
    return ptrace(PTRACE_TRACEME, 0, NULL, NULL) || raise(SIGSTOP);
}

static int changes_files(const struct __ptrace_syscall_info *s)
{
    switch (s->entry.nr) {
    case SYS_pwrite64:
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_ftruncate:
    case SYS_linkat:
    case SYS_unlinkat:
    case SYS_renameat2:
    case SYS_mkdirat:
#ifdef SYS_link
    case SYS_link:
    case SYS_unlink:
    case SYS_rename:
    case SYS_mkdir:
    case SYS_rmdir:
#endif
    case SYS_write:
    case SYS_close:
        return 1;
    case SYS_openat:
        return (s->entry.args[2] & O_CREAT) != 0;
    }
    return 0;
}

/* Runs the stage and kills it where it would do its n-th change (from 0). Returns the number of changes seen; *rc the exit code, 137 if killed.
 * -1: no tracing here. */
static int64_t killed_at(const char *run, size_t i, int64_t n, int *rc)
{
    struct lab_program p;
    int64_t seen = 0;
    int status, entry = 0;

    lab_start(&p, places[i].stage, run, places[i].step, places[i].eval, traced, NULL);
    if (waitpid(p.pid, &status, 0) != p.pid || !WIFSTOPPED(status)) {
        close(p.pipe);
        return -1;
    }
    ptrace(PTRACE_SETOPTIONS, p.pid, NULL, (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
    for (int signo = 0;;) {
        if ((ptrace(PTRACE_SYSCALL, p.pid, NULL, (void *)(intptr_t)signo) && errno != ESRCH) || waitpid(p.pid, &status, __WALL) != p.pid)
            fail_msg("ptrace: %s", strerror(errno)); /* (ESRCH: our SIGKILL was faster) */
        if (WIFEXITED(status) || WIFSIGNALED(status))
            break;
        signo = 0;
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            struct __ptrace_syscall_info s;

            entry = ptrace(PTRACE_GET_SYSCALL_INFO, p.pid, (void *)sizeof s, &s) > 0 && s.op == PTRACE_SYSCALL_INFO_ENTRY;
            if (entry && changes_files(&s) && seen++ == n)
                kill(p.pid, SIGKILL);
        } else if (WSTOPSIG(status) != SIGTRAP) {
            signo = WSTOPSIG(status);
        }
    }
    close(p.pipe);
    *rc = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return seen;
}

static void test_killed_at_calls(void **state)
{
    size_t i = (size_t)(uintptr_t)*state;
    char run[300], why[80];
    int64_t all;
    int rc;

    snprintf(run, sizeof run, "%s/tried", ground.lab.dir);
    copy_tree(ground.before[i], run);
    all = killed_at(run, i, -1, &rc);
    if (all < 0) {
        print_message("# no tracing here\n");
        return;
    }
    assert_int_equal(rc, 0);
    assert_true(all > 20);
    for (int k = 0, want = kills_wanted(); k < want; k++) { /* spread over all calls; closer where it commits, at the end */
        double x = (double)k / want;
        int64_t n = (int64_t)((1 - (1 - x) * (1 - x)) * (double)all);

        copy_tree(ground.before[i], run);
        killed_at(run, i, n, &rc);
        snprintf(why, sizeof why, "killed at change %lld of %lld", (long long)n, (long long)all);
        if (rc != 128 + SIGKILL)
            fail_msg("%s: %d", why, rc);
        if (k % 3 == 0) { /* and once more, on top */
            killed_at(run, i, n / 2, &rc);
            if (rc && rc != 128 + SIGKILL)
                fail_msg("%s, then at %lld: %d", why, (long long)n / 2, rc);
        }
        go_on(run, i, why);
    }
}

/* ---- full disks ----------------------------------------------------------------------------------------------------------------------- */

/* A child in a mount namespace of its own with a tmpfs of `bytes` at `dir` runs fn(arg); its exit code, or -1 if that is not allowed here. */
static int on_small_disk(const char *dir, int64_t bytes, int (*fn)(void *arg), void *arg)
{
    int status;
    pid_t pid;

    OK(cairn_dir_make(dir, err));
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        char opts[64];

        snprintf(opts, sizeof opts, "size=%lld", (long long)bytes);
        if ((unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS)) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
            mount("cairn-test", dir, "tmpfs", 0, opts))
            _exit(99);
        _exit(fn(arg));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 99)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#define SMALL ((int64_t)24 << 20)

struct full {
    size_t i;
    char dir[300];
};

static int fill(const char *path, int64_t leave)
{
    struct statvfs v;
    int64_t bytes;
    int fd;

    if (statvfs(path, &v))
        return 0;
    bytes = (int64_t)v.f_bavail * (int64_t)v.f_frsize - leave;
    {
        char name[400];

        snprintf(name, sizeof name, "%s/filler", path);
        fd = open(name, O_WRONLY | O_CREAT, 0644);
    }
    if (fd < 0 || (bytes > 0 && posix_fallocate(fd, 0, bytes)))
        return 0;
    close(fd);
    return 1;
}

/* The last line says why; before it there may be the warning that the log could not be written either. */
static int one_sentence(char *said)
{
    size_t n = strlen(said);
    char *last;

    if (!n || said[n - 1] != '\n')
        return 0;
    said[n - 1] = 0;
    last = strrchr(said, '\n');
    last = last ? last + 1 : said;
    return strstr(last, "No space left on device") && !strstr(last, "warning") &&
           (last == said || (strstr(said, "warning") && strchr(said, '\n') == last - 1));
}

/* In the child: asserts do not work here, so it tells and returns. */
static int full_try(void *arg)
{
    const struct full *f = arg;
    char run[400], filler[400], command[900], said[2000];
    int hits = 0;

    snprintf(run, sizeof run, "%s/run", f->dir);
    snprintf(filler, sizeof filler, "%s/filler", f->dir);
    snprintf(command, sizeof command, "rm -rf '%s' && cp -a '%s' '%s'", run, ground.before[f->i], run);
    for (int64_t leave = 0; leave < (int64_t)500 << 10; leave += leave < 40 << 10 ? 8 << 10 : 92 << 10) {
        struct cairn_str got = {0};
        struct cairn_error e;
        int rc;

        if (system(command) || !fill(f->dir, leave))
            return 98;
        rc = lab_stage(places[f->i].stage, run, places[f->i].step, places[f->i].eval, said);
        if (rc && (rc != 73 || !one_sentence(said))) {
            fprintf(stderr, "cairn-%s with %lld bytes left: %d: %s\n", places[f->i].stage, (long long)leave, rc, said);
            return 1;
        }
        hits += rc == 73;
        unlink(filler);
        rc = lab_stage(places[f->i].stage, run, places[f->i].step, places[f->i].eval, said);
        if (rc || cairn_digest_walk(run, digest_line, &got, &e) != CAIRN_OK ||
            cairn_verify_tree(run, &(struct cairn_verify_opts){.deep = 1}, &(struct cairn_verify_counts){0}, &e) != CAIRN_OK) {
            fprintf(stderr, "cairn-%s after a full disk: %d: %s%s\n", places[f->i].stage, rc, said, rc ? "" : e.text);
            return 2;
        }
        for (char *save = NULL, *p = got.p, *line; (line = strtok_r(p, "\n", &save)); p = NULL)
            if (!strstr(cairn_str_z(&ground.want), line)) {
                fprintf(stderr, "cairn-%s after a full disk: %s, want\n%s", places[f->i].stage, line, cairn_str_z(&ground.want));
                return 3;
            }
        cairn_str_free(&got);
    }
    return hits ? 0 : 4;
}

static void test_full_disk(void **state)
{
    struct full f = {.i = (size_t)(uintptr_t)*state};
    int rc;

    snprintf(f.dir, sizeof f.dir, "%s/small", ground.lab.dir);
    rc = on_small_disk(f.dir, SMALL, full_try, &f);
    if (rc < 0) {
        print_message("# no mounting here\n");
        return;
    }
    assert_int_equal(rc, 0);
}

/* Making a run on a full disk: 73; with room again, the same run. */
static int init_try(void *arg)
{
    const struct full *f = arg;
    char run[400], filler[400];
    int hits = 0;

    snprintf(run, sizeof run, "%s/run", f->dir);
    snprintf(filler, sizeof filler, "%s/filler", f->dir);
    for (int64_t leave = 0; leave < 400 << 10; leave += 40 << 10) {
        const char *const *o = LAB_OVERRIDES(LAB_WARM, LAB_EVAL, "run.steps=1", "run.eval_every=9", "mismatch.sample=0.5");
        struct cairn_manifest_head a, b;
        struct cairn_run *r = NULL;
        struct cairn_error e = {0};
        char path[500];
        enum cairn_status st;

        if (cairn_tree_remove(run, NULL) != CAIRN_OK || !fill(f->dir, leave))
            return 98;
        st = lab_init_at(&r, &ground.lab, run, o, &e);
        cairn_run_close(r);
        if (st != CAIRN_OK && st != CAIRN_ENOSPACE) {
            fprintf(stderr, "init with %lld bytes left: %d: %s\n", (long long)leave, (int)st, e.text);
            return 1;
        }
        hits += st == CAIRN_ENOSPACE;
        unlink(filler);
        st = lab_init_at(&r, &ground.lab, run, o, &e);
        cairn_run_close(r);
        snprintf(path, sizeof path, "%s/base", run);
        if (st != CAIRN_OK || cairn_manifest_head(&a, path, &e) != CAIRN_OK) {
            fprintf(stderr, "init after a full disk: %d: %s\n", (int)st, e.text);
            return 2;
        }
        snprintf(path, sizeof path, "%s/base", ground.lab.run);
        if (cairn_manifest_head(&b, path, &e) != CAIRN_OK || !cairn_digest_equal(a.digest, b.digest))
            return 3;
    }
    return hits > 2 ? 0 : 4;
}

static void test_full_init(void **state)
{
    struct full f = {.i = 0};
    int rc;

    (void)state;
    snprintf(f.dir, sizeof f.dir, "%s/small", ground.lab.dir);
    rc = on_small_disk(f.dir, SMALL, init_try, &f);
    if (rc < 0) {
        print_message("# no mounting here\n");
        return;
    }
    assert_int_equal(rc, 0);
}

/* Where no file may be larger than so much: told like a full disk, and no core dump. */
static int limited(void *arg)
{
    const struct rlimit lim = {(rlim_t)(intptr_t)arg, (rlim_t)(intptr_t)arg};

    return setrlimit(RLIMIT_FSIZE, &lim);
}

static void test_size_limit(void **state)
{
    static const size_t at[] = {0, 1, 4, 7};

    (void)state;
    for (size_t k = 0; k < COUNT(at); k++) {
        size_t i = at[k];
        struct lab_program p;
        char run[300];
        int rc;

        snprintf(run, sizeof run, "%s/tried", ground.lab.dir);
        copy_tree(ground.before[i], run);
        lab_start(&p, places[i].stage, run, places[i].step, places[i].eval, limited, (void *)(intptr_t)2000);
        rc = lab_wait(&p);
        if (rc != 73)
            fail_msg("cairn-%s under a limit of file sizes: %d: %s", places[i].stage, rc, p.said);
        go_on(run, i, "after a limit");
    }
}

#define AT(test, i) {#test " " #i, test, NULL, NULL, (void *)(uintptr_t)i}
#define EACH(test) AT(test, 0), AT(test, 1), AT(test, 2), AT(test, 3), AT(test, 4), AT(test, 5), AT(test, 6), AT(test, 7)

int main(void)
{
    const struct CMUnitTest tests[] = {EACH(test_killed), EACH(test_killed_at_calls), AT(test_full_disk, 0), AT(test_full_disk, 1),
                                       AT(test_full_disk, 4), AT(test_full_disk, 5), AT(test_full_disk, 6), AT(test_full_disk, 7),
                                       cmocka_unit_test(test_full_init), cmocka_unit_test(test_size_limit)};

    return cmocka_run_group_tests_name("stage faults", tests, ground_make, ground_drop);
}
