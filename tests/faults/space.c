/* space.c - a disk that is really full (F5): a small tmpfs, in bytes or in files, mounted where the run is (needs root and unshare).
 *
 * For many sizes `cairn run` must end with 73 and one sentence, or get through; then the same file system is made larger and the run
 * goes on to the same bits.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/faults/faults.h"

struct space {
    const struct lab *lab;
    long bytes;  /* of the finished run, about */
    long files;
    long n;      /* sizes */
    int inodes;  /* files instead of bytes */
};

static void usage_of(const char *listing, long *files)
{
    for (*files = 0; *listing; listing++)
        *files += *listing == '\n';
}

static int in_full_disk(const struct space *s, long i, const char *box, char *why)
{
    char dir[600], scratch[2][600], opts[100], large[100];
    struct lab_exec x = {.box = box};
    struct lab_end e;
    int bad = 0, most;

    snprintf(dir, sizeof dir, "%s/run", box);
    lab_argv_run(s->lab, "run", dir, &x, scratch);
    if (s->inodes)
        snprintf(opts, sizeof opts, "size=64m,nr_inodes=%ld", 2 + (i + 1) * (s->files + 10) / s->n);
    else
        snprintf(opts, sizeof opts, "size=%ldk", 4 + (i + 1) * (s->bytes / 1024 + 200) / s->n);
    snprintf(large, sizeof large, "size=64m,nr_inodes=100000");
    if (mkdir(dir, 0777) || mount("faults", dir, "tmpfs", 0, opts))
        lab_die("mount tmpfs on %s: %s", dir, strerror(errno));
    lab_run(s->lab, &x, &e);
    /* two sentences: the stage's and the run's; before them the one of each evaluation that found no room, which stops no training: the run
     * says so in a warning, and the sentence may be of its log */
    most = 2 + (e.code ? e.goes_on : 0);
    if (e.late || e.orphans || (e.code && e.code != 73) || (e.code && (e.lines < 1 || e.lines > most || !strstr(e.last, box)))) {
        snprintf(why, WHY_BYTES, "%s: ended with %d, %d lines: %.500s", opts, e.code, e.lines, e.last);
        bad = 1;
    }
    if (!bad && mount("faults", dir, "tmpfs", MS_REMOUNT, large))
        lab_die("mount -o remount,%s %s: %s", large, dir, strerror(errno));
    if (!bad && !lab_go_on(s->lab, box, dir, 1, why))
        bad = 1;
    if (!bad && !lab_box_clean(box, why))
        bad = 1;
    if (umount2(dir, MNT_DETACH))
        lab_die("umount %s: %s", dir, strerror(errno));
    return bad;
}

static int trial(void *arg, long i, const char *box, char *why)
{
    static int apart; /* of this worker */

    if (!apart) {
        if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
            lab_die("unshare: %s", strerror(errno));
        apart = 1;
    }
    return in_full_disk(arg, i, box, why);
}

static void name_of(void *arg, long i, char *out, size_t n)
{
    const struct space *s = arg;

    snprintf(out, n, "space, %s, trial %ld of %ld", s->inodes ? "files" : "bytes", i, s->n);
}

/* 1: this process may mount. */
static int may_mount(void)
{
    pid_t pid = fork();
    int status = 1;

    if (!pid)
        _exit(unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("faults", "/mnt", "tmpfs", 0, "size=64k"));
    return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

long faults_space(const struct faults_opts *o)
{
    const struct lab *lab = lab_get(LAB_WHOLE);
    struct space s = {.lab = lab, .bytes = 1 << 20};
    long violated = 0, sizes = 0;

    if (!may_mount()) {
        tap(1, "space # SKIP cannot mount a tmpfs here");
        sum("not tried: no tmpfs can be mounted here");
        return 0;
    }
    lab_part_pools(2);
    usage_of(lab->listing, &s.files);
    for (s.inodes = 0; s.inodes < 2; s.inodes++) {
        struct lab_counts c;
        double t0 = lab_now();

        s.n = 100 / o->every > 3 ? 100 / o->every : 3;
        c = lab_pool_run(lab, &(struct lab_pool){o->jobs, s.n, trial, name_of, &s}, s.inodes ? "space/files" : "space/bytes");
        tap(!c.violated, "space: %ld sizes of a file system in %s, %ld violations, %.0f s", s.n, s.inodes ? "files" : "bytes", c.violated,
            lab_now() - t0);
        violated += c.violated;
        sizes += s.n;
    }
    sum("%ld sizes of a file system that is too small, %ld violations", sizes, violated);
    return violated;
}
