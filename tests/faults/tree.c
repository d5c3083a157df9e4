/* tree.c - see lab.h: directory trees (copies, listings), and the check that every trial ends with. */
#include "tests/faults/lab.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/verify.h"

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
int lab_logs_check(const char *dir, int torn, char *why)
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
    steps = torn < 0 ? lab->steps : lab_logs_check(dir, torn, why);
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
