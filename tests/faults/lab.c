/* lab.c - see lab.h: states of the run, checks, trials on several processes. Everything lives below one scratch directory: in $TMPDIR, else
 * on /dev/shm where there is one (fsync costs nothing there), else in /tmp. */
#include "tests/faults/lab.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/verify.h"

static pid_t main_pid; /* that of the process which owns the scratch directories, not of its workers */

void lab_die(const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "faults: ");
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n");
    exit(70);
}

double lab_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t lab_random(uint64_t *s) /* splitmix64 */
{
    uint64_t z = *s += 0x9E3779B97F4A7C15ull;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

char *lab_text(const char *fmt, ...)
{
    char *p = NULL;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&p, fmt, ap);
    va_end(ap);
    if (n < 0)
        lab_die("out of memory");
    return p;
}

/* ---- trees ---------------------------------------------------------------------------------------------------------- */

static void copy_file(const char *from, const char *to, mode_t mode)
{
    static char block[1 << 16];
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode & 0777);
    ssize_t n;

    if (in < 0 || out < 0)
        lab_die("copy %s to %s: %s", from, to, strerror(errno));
    while ((n = read(in, block, sizeof block)) > 0)
        if (write(out, block, (size_t)n) != n)
            lab_die("write %s: %s", to, strerror(errno));
    if (n < 0)
        lab_die("read %s: %s", from, strerror(errno));
    close(in);
    close(out);
}

void lab_copy(const char *from, const char *to)
{
    DIR *d = opendir(from);

    if (!d || mkdir(to, 0777))
        lab_die("copy %s to %s: %s", from, to, strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        char *a = lab_text("%s/%s", from, e->d_name), *b = lab_text("%s/%s", to, e->d_name), target[PATH_MAX];
        struct stat sb;
        ssize_t n;

        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) {
            if (lstat(a, &sb))
                lab_die("stat %s: %s", a, strerror(errno));
            if (S_ISDIR(sb.st_mode)) {
                lab_copy(a, b);
            } else if (S_ISLNK(sb.st_mode)) {
                if ((n = readlink(a, target, sizeof target - 1)) < 0)
                    lab_die("readlink %s: %s", a, strerror(errno));
                target[n] = 0;
                if (symlink(target, b))
                    lab_die("symlink %s: %s", b, strerror(errno));
            } else {
                copy_file(a, b, sb.st_mode);
            }
        }
        free(a);
        free(b);
    }
    closedir(d);
}

void lab_remove(const char *path)
{
    struct cairn_error err = {0};

    if (cairn_tree_remove(path, &err) != CAIRN_OK)
        lab_die("%s", err.text);
}

struct list {
    char **p;
    size_t n;
};

static void list_add(struct list *l, char *s)
{
    l->p = realloc(l->p, (l->n + 1) * sizeof *l->p);
    if (!l->p)
        lab_die("out of memory");
    l->p[l->n++] = s;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The name as the listing shows it: a7 -> a#, 7 in epoch -> #. */
static const char *plain_name(const char *dir, const char *name)
{
    size_t n = strlen(dir);
    int numbers = !name[strspn(name, "0123456789")];

    if (name[0] == 'a' && name[1] && !name[1 + strspn(name + 1, "0123456789")])
        return "a#";
    return numbers && n >= 5 && !strcmp(dir + n - 5, "epoch") ? "#" : name;
}

static void list_tree(struct list *l, const char *dir, const char *rel)
{
    DIR *d = opendir(dir);

    if (!d)
        lab_die("list %s: %s", dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        char *sub, *name;

        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        sub = lab_text("%s/%s", dir, e->d_name);
        name = lab_text("%s%s%s", rel, *rel ? "/" : "", plain_name(rel, e->d_name));
        if (e->d_type == DT_DIR || (e->d_type == DT_UNKNOWN && cairn_path_is_dir(sub)))
            list_tree(l, sub, name);
        list_add(l, name);
        free(sub);
    }
    closedir(d);
}

char *lab_listing(const char *dir, int tasks)
{
    struct list l = {0};
    struct cairn_str s = {0};

    list_tree(&l, dir, "");
    qsort(l.p, l.n, l.n ? sizeof *l.p : 1, by_text);
    for (size_t i = 0; i < l.n; i++)
        if (!tasks || !i || strcmp(l.p[i - 1], l.p[i]))
            cairn_str_printf(&s, "%s\n", l.p[i]);
    for (size_t i = 0; i < l.n; i++)
        free(l.p[i]);
    free(l.p);
    if (s.oom)
        lab_die("out of memory");
    return s.p ? s.p : lab_text("%s", "");
}

/* ---- checks --------------------------------------------------------------------------------------------------------- */

static enum cairn_status add_digest(void *arg, const char *path, const struct cairn_manifest_head *head, struct cairn_error *err)
{
    char hex[33];

    (void)err;
    cairn_digest_hex(head->digest, hex);
    if (strcmp(path, "base")) /* has no line in `cairn digest`, but must be the same, too */
        list_add(arg, lab_text("%s %s", path, hex));
    else
        list_add(arg, lab_text("base %s", hex));
    return CAIRN_OK;
}

char *lab_digest(const char *dir, char *why)
{
    struct cairn_error err = {0};
    struct list l = {0};
    struct cairn_str s = {0};
    enum cairn_status st = cairn_digest_walk(dir, add_digest, &l, &err);

    qsort(l.p, l.n, l.n ? sizeof *l.p : 1, by_text);
    for (size_t i = 0; i < l.n; i++) {
        cairn_str_printf(&s, "%s\n", l.p[i]);
        free(l.p[i]);
    }
    free(l.p);
    if (st != CAIRN_OK) {
        snprintf(why, WHY_BYTES, "digest: %s", err.text);
        cairn_str_free(&s);
        return NULL;
    }
    return s.p ? s.p : lab_text("%s", "");
}

/* The first line in which two sorted texts differ. */
static void difference(const char *want, const char *have, const char *what, char *why)
{
    while (*want || *have) {
        size_t n = strcspn(want, "\n"), m = strcspn(have, "\n");
        int c = n == m && !strncmp(want, have, n) ? 0 : strncmp(want, have, n < m ? n : m);

        if (n != m || c) {
            if (!c)
                c = n < m ? -1 : 1;
            if (*want && (c < 0 || !*have))
                snprintf(why, WHY_BYTES, "%s: missing \"%.*s\"", what, (int)n, want);
            else
                snprintf(why, WHY_BYTES, "%s: there is \"%.*s\"", what, (int)m, have);
            return;
        }
        want += n + (want[n] == '\n');
        have += m + (have[m] == '\n');
    }
}

static void bad(void *arg, const char *path, const char *sentence)
{
    char *why = arg;

    (void)path;
    if (!*why)
        snprintf(why, WHY_BYTES, "verify: %s", sentence);
}

/* metrics.jsonl: every (step, eval) once. Other logs: every line parses, unless one was torn. Returns the number of metrics lines, -1: bad. */
static int logs_check(const char *dir, int torn, char *why)
{
    static const char *const names[] = {"metrics", "rollout", "score", "train", "sync"};
    int metrics = 0;

    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char *path = lab_text("%s/log/%s.jsonl", dir, names[k]), *bytes = NULL;
        struct list seen = {0};
        struct cairn_error err = {0};
        size_t n = 0;
        int broken = 0;

        if (cairn_path_exists(path) && cairn_file_read(path, 1 << 26, &bytes, &n, &err) != CAIRN_OK)
            lab_die("%s", err.text);
        for (char *p = bytes; p && p < bytes + n;) {
            char *nl = memchr(p, '\n', (size_t)(bytes + n - p)), *end = nl ? nl : bytes + n;
            json_t *v = end > p ? json_loadb(p, (size_t)(end - p), 0, NULL) : NULL;

            if (!v || !nl)
                broken++;
            else if (!k)
                list_add(&seen, lab_text("%lld %s", (long long)json_integer_value(json_object_get(v, "step")),
                                     json_string_value(json_object_get(v, "eval")) ? json_string_value(json_object_get(v, "eval")) : ""));
            json_decref(v);
            p = end + 1;
        }
        qsort(seen.p, seen.n, seen.n ? sizeof *seen.p : 1, by_text);
        for (size_t i = 0; i < seen.n; i++) {
            if (i && !strcmp(seen.p[i - 1], seen.p[i]))
                snprintf(why, WHY_BYTES, "%s: two lines for step %s", path, seen.p[i]), metrics = -1;
            metrics += metrics >= 0;
        }
        if (broken > torn) {
            snprintf(why, WHY_BYTES, "%s: %d lines are no JSON", path, broken);
            metrics = -1;
        }
        for (size_t i = 0; i < seen.n; i++)
            free(seen.p[i]);
        free(seen.p);
        free(bytes);
        free(path);
        if (metrics < 0)
            break;
    }
    return metrics;
}

int lab_finished(const struct lab *lab, const char *dir, int torn, char *why)
{
    struct cairn_verify_counts c = {0};
    struct cairn_verify_opts o = {.deep = 1, .bad = bad, .arg = why};
    struct cairn_error err = {0};
    char *digest, *listing;
    int steps, held = 0;

    *why = 0;
    if (cairn_verify_tree(dir, &o, &c, &err) != CAIRN_OK) {
        if (!*why)
            snprintf(why, WHY_BYTES, "verify: %s", err.text);
        return 0;
    }
    if (!(digest = lab_digest(dir, why)))
        return 0;
    listing = lab_listing(dir, lab->ranks > 1);
    steps = torn < 0 ? lab->steps : logs_check(dir, torn, why);
    if (steps >= 0) {
        if (strcmp(digest, lab->digest))
            difference(lab->digest, digest, "digest", why);
        else if (strcmp(listing, lab->listing))
            difference(lab->listing, listing, "files", why);
        else if (steps != lab->steps)
            snprintf(why, WHY_BYTES, "metrics.jsonl: %d lines, not %d", steps, lab->steps);
        else
            held = 1;
    }
    free(digest);
    free(listing);
    return held;
}

int lab_committed(const struct lab *lab, int i, const char *dir)
{
    char *relative = cairn_link_relative(&lab->link[i]), *path = relative ? lab_text("%s/%s", dir, relative) : NULL;
    int there = path && cairn_artefact_committed(path);

    free(relative);
    free(path);
    return there;
}

int lab_go_on(const struct lab *lab, const char *box, const char *dir, int torn, char *why)
{
    struct lab_exec x = {.box = box};
    char scratch[2][600];
    struct lab_end end;

    lab_argv_run(lab, "run", dir, &x, scratch);
    lab_run(lab, &x, &end);
    if (end.code) {
        snprintf(why, WHY_BYTES, "going on without a fault ended with %d: %.500s", end.code, end.last);
        return 0;
    }
    return lab_finished(lab, dir, torn, why);
}

int lab_box_clean(const char *box, char *why)
{
    DIR *d = opendir(box);
    char *tmp = lab_text("%s/tmp", box), *inside = lab_listing(tmp, 0);
    int clean = !*inside;

    if (!clean)
        snprintf(why, WHY_BYTES, "left in TMPDIR: %.*s", (int)strcspn(inside, "\n"), inside);
    if (!d)
        lab_die("list %s: %s", box, strerror(errno));
    for (struct dirent *e; (e = readdir(d)) && clean;)
        if (e->d_name[0] != '.' && strcmp(e->d_name, "run") && strcmp(e->d_name, "tmp") && strcmp(e->d_name, "err") &&
            strcmp(e->d_name, "report") && strcmp(e->d_name, "journal")) {
            snprintf(why, WHY_BYTES, "left beside the run: %s", e->d_name);
            clean = 0;
        }
    closedir(d);
    free(tmp);
    free(inside);
    return clean;
}

/* ---- the lab itself --------------------------------------------------------------------------------------------------- */

static char *absolute(const char *path)
{
    char *p = realpath(path, NULL);

    if (!p)
        lab_die("%s: %s", path, strerror(errno));
    return p;
}

static void links_read(struct lab *lab, const char *dir)
{
    struct cairn_error err = {0};
    struct cairn_run *run;
    struct cairn_link *chain;
    int n;

    if (cairn_run_open(&run, dir, &err) != CAIRN_OK || cairn_run_chain(run, &chain, &n, &err) != CAIRN_OK)
        lab_die("%s", err.text);
    if (n > LAB_LINKS)
        lab_die("%s: more than %d links", dir, LAB_LINKS);
    for (int i = 0; i < n; i++) {
        lab->link[i] = chain[i];
        if (chain[i].eval)
            lab->link[i].eval = lab_text("%s", chain[i].eval);
    }
    lab->nlinks = n;
    free(chain);
    cairn_run_close(run);
}

/* What killed labs left: cairn-faults-PID-* of processes that are gone. */
static void sweep(const char *tmp)
{
    DIR *d = opendir(tmp);
    struct dirent *e;
    char path[PATH_MAX];
    int pid;

    while (d && (e = readdir(d)))
        if (sscanf(e->d_name, "cairn-faults-%d-", &pid) == 1 && kill(pid, 0) && errno == ESRCH) {
            snprintf(path, sizeof path, "%s/%s", tmp, e->d_name);
            cairn_tree_remove(path, NULL);
        }
    if (d)
        closedir(d);
}

/* ---- the shapes ---------------------------------------------------------------------------------------------------------- */

#define UPDATES "run.eval_every=0", "run.steps=1", "train.updates_per_step=3", "checkpoint.updates=1", "train.kl.coef=0.1"

static const struct shape {
    const char *override[LAB_OVERRIDES];
    int ranks;
} shapes[LAB_KINDS] = {
    [LAB_WHOLE] = {{NULL}, 1},
    [LAB_PLAIN] = {{"run.eval_every=0"}, 1},
    [LAB_UPDATES] = {{UPDATES}, 1},
    [LAB_RANKS_2] = {{UPDATES, "rollout.parallel.dp=2", "train.parallel.dp=2", "score.tasks=2"}, 2},
    [LAB_RANKS_4] = {{UPDATES, "rollout.parallel.dp=4", "train.parallel.dp=4", "score.tasks=3"}, 4},
};
static struct lab shape_lab[LAB_KINDS];
static char *build_dir;

int lab_has_mpirun(void)
{
    const char *path = getenv("PATH");

    while (path && *path) {
        size_t n = strcspn(path, ":");
        char *full = lab_text("%.*s/mpirun", (int)n, path);
        int there = !access(full, X_OK);

        free(full);
        if (there)
            return 1;
        path += n + (path[n] == ':');
    }
    return 0;
}

/* The undisturbed run, `cairn run` from nothing to the end: what it looks like, how long it takes. */
static void whole_run(struct lab *lab, const char *box, const char *dir)
{
    struct lab_exec x = {.box = box, .limit_s = 300};
    char scratch[2][600], why[WHY_BYTES] = "";
    struct lab_end end;

    lab_argv_run(lab, "run", dir, &x, scratch);
    lab->whole_s = lab_now();
    lab_run(lab, &x, &end);
    lab->whole_s = lab_now() - lab->whole_s;
    if (end.code)
        lab_die("run ended with %d: %s", end.code, end.last);
    if (!lab->digest && !(lab->digest = lab_digest(dir, why)))
        lab_die("%s", why);
    if (!lab->listing)
        lab->listing = lab_listing(dir, lab->ranks > 1);
    if (!lab->steps)
        lab->steps = logs_check(dir, 0, why);
    if (!lab_finished(lab, dir, 0, why))
        lab_die("the undisturbed run: %s", why);
}

static void lab_open(struct lab *lab, enum lab_kind kind)
{
    const char *tmp = getenv("TMPDIR");
    char *top = absolute(build_dir), *box, *dir, scratch[2][600];
    struct lab_exec x = {.limit_s = 300};
    struct lab_end end;
    struct stat sb;

    memset(lab, 0, sizeof *lab);
    lab->bin = lab_text("%s/bin", top);
    lab->shim = lab_text("%s/lib/faultshim.so", top);
    lab->recipe = absolute("tests/faults/least.yaml");
    memcpy(lab->override, shapes[kind].override, sizeof shapes[kind].override);
    lab->ranks = shapes[kind].ranks;
    if (access(lab->shim, R_OK))
        lab_die("%s: %s", lab->shim, strerror(errno));
    if (!tmp && !stat("/dev/shm", &sb) && !access("/dev/shm", W_OK))
        tmp = "/dev/shm";
    sweep(tmp ? tmp : "/tmp");
    lab->work = lab_text("%s/cairn-faults-%d-XXXXXX", tmp ? tmp : "/tmp", (int)getpid());
    if (!mkdtemp(lab->work))
        lab_die("mkdtemp %s: %s", lab->work, strerror(errno));
    box = lab_text("%s/box", lab->work);
    dir = lab_text("%s/run", box);
    x.box = box;
    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    lab_argv_run(lab, "init", dir, &x, scratch);
    lab_run(lab, &x, &end);
    if (end.code)
        lab_die("init ended with %d: %s", end.code, end.last);
    links_read(lab, dir);
    for (int i = 0; i <= lab->nlinks; i++) {
        lab->before[i] = lab_text("%s/before-%02d", lab->work, i);
        lab_copy(dir, lab->before[i]);
        if (i == lab->nlinks)
            break;
        lab_argv(lab, i, dir, &x, scratch);
        lab_run(lab, &x, &end);
        if (end.code)
            lab_die("%s --step %s ended with %d: %s", scratch[0], scratch[1], end.code, end.last);
    }
    whole_run(lab, box, dir); /* nothing is left to do but what `cairn run` adds: its lock file */
    lab_remove(dir);
    whole_run(lab, box, dir); /* in one go it is the same */
    lab_remove(box);
    free(box);
    free(dir);
    free(top);
}

static void lab_close(struct lab *lab)
{
    if (!lab->work)
        return;
    lab_remove(lab->work);
    for (int i = 0; i < lab->nlinks; i++)
        free((char *)(uintptr_t)lab->link[i].eval);
    for (int i = 0; i <= lab->nlinks; i++)
        free(lab->before[i]);
    free(lab->bin);
    free(lab->shim);
    free(lab->recipe);
    free(lab->work);
    free(lab->digest);
    free(lab->listing);
    memset(lab, 0, sizeof *lab);
}

static void clean_up(void)
{
    for (int k = 0; getpid() == main_pid && k < LAB_KINDS; k++)
        if (shape_lab[k].work)
            cairn_tree_remove(shape_lab[k].work, NULL);
}

void lab_begin(const char *build)
{
    build_dir = lab_text("%s", build);
    main_pid = getpid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    atexit(clean_up);
}

const struct lab *lab_get(enum lab_kind kind)
{
    if (shapes[kind].ranks > 1 && !lab_has_mpirun())
        return NULL;
    if (!shape_lab[kind].work)
        lab_open(&shape_lab[kind], kind);
    return &shape_lab[kind];
}

void lab_end_all(void)
{
    for (int k = 0; k < LAB_KINDS; k++)
        lab_close(&shape_lab[k]);
    free(build_dir);
}

int lab_link(const struct lab *lab, enum cairn_stage stage, int64_t step, const char *eval)
{
    for (int i = 0; i < lab->nlinks; i++)
        if (lab->link[i].stage == stage && lab->link[i].step == step && !strcmp(lab->link[i].eval ? lab->link[i].eval : "", eval ? eval : ""))
            return i;
    lab_die("the run has no %s of step %lld", cairn_stage_name(stage), (long long)step);
}
