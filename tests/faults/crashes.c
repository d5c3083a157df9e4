/* crashes.c - what a disk may hold after the power went (F4, F7): images from a journal of every change that a stage made.
 *
 * The shim records creations, writes, truncations, links, renames, removals and fsyncs below the run (journal.h). For prefixes of that
 * journal images are built: whatever an fsync had made durable is there; each other change is there or not: all of them not; all names but no
 * bytes; all bytes but no names; or drawn. (Stricter than any one file system: it may keep a later change and lose an earlier one.)
 * In every image verify --deep finds nothing bad, everything that was committed before is there, `cairn run` goes on to the same bits; and
 * in images of the whole journal what the stage has told to be committed is there. At last the check checks itself: with a
 * disk that lies about fsync it must find violations.
 *
 * Idea: ALICE (OSDI'14), CrashMonkey (OSDI'18).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/verify.h"
#include "tests/faults/faults.h"
#include "tests/faults/journal.h"

enum variant { SYNCED_ONLY, NAMES_ONLY, BYTES_ONLY, DRAWN, DRAWN_AGAIN, VARIANTS };
static const char *const variant_name[VARIANTS] = {"only what was synced", "names without bytes", "bytes without names", "drawn", "drawn"};

struct change {
    enum journal_op op;
    char *path, *path2;
    unsigned char *data;
    size_t n;
    int64_t offset;
    int inode;   /* that is written, cut, synced, linked or made */
    long synced; /* index of the record that made it durable; -1: none */
};

/* A name in an image or in the volatile tree. */
struct name {
    char *path;
    int inode; /* DIRECTORY: -1 */
    char *target; /* of a symbolic link */
};

struct tree {
    struct name *name;
    int n;
};

struct crash {
    const struct lab *lab;
    const char *what;
    char *base;             /* the run before; NULL: nothing */
    char *journal;
    struct change *change;
    long n;
    char **content;         /* (inodes) path in base whose bytes an inode begins with; NULL: empty */
    int inodes;
    struct tree before;     /* base */
    char *digest_before, *digest_after;
    long every, prefixes;   /* prefix i * every ... */
    uint64_t seed;
};

#define DIRECTORY (-1)
#define SYMLINK (-2)

/* ---- trees of names ------------------------------------------------------------------------------------------------------ */

static struct name *tree_find(struct tree *t, const char *path)
{
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->name[i].path, path))
            return &t->name[i];
    return NULL;
}

static void tree_remove(struct tree *t, const char *path)
{
    struct name *x = tree_find(t, path);

    if (!x)
        return;
    free(x->path);
    free(x->target);
    *x = t->name[--t->n];
}

static void tree_add(struct tree *t, const char *path, int inode, const char *target)
{
    tree_remove(t, path);
    t->name = realloc(t->name, (size_t)(t->n + 1) * sizeof *t->name);
    if (!t->name)
        lab_die("out of memory");
    t->name[t->n++] = (struct name){strdup(path), inode, target ? strdup(target) : NULL};
}

static void tree_free(struct tree *t)
{
    for (int i = 0; i < t->n; i++) {
        free(t->name[i].path);
        free(t->name[i].target);
    }
    free(t->name);
}

static void tree_copy(struct tree *to, const struct tree *from)
{
    *to = (struct tree){0};
    for (int i = 0; i < from->n; i++)
        tree_add(to, from->name[i].path, from->name[i].inode, from->name[i].target);
}

static int inode_new(struct crash *c, const char *content)
{
    c->content = realloc(c->content, (size_t)(c->inodes + 1) * sizeof *c->content);
    if (!c->content)
        lab_die("out of memory");
    c->content[c->inodes] = content ? strdup(content) : NULL;
    return c->inodes++;
}

/* The tree of base: every file an inode of its own. */
static void base_read(struct crash *c)
{
    char *listing, path[PATH_MAX], target[PATH_MAX];
    struct stat sb;
    char *cmd, *line = NULL;
    size_t cap = 0;
    FILE *p;

    if (!c->base)
        return;
    cmd = cairn_format("cd '%s' && find . -mindepth 1 | LC_ALL=C sort", c->base);
    if (!(p = popen(cmd, "r")))
        lab_die("%s: %s", cmd, strerror(errno));
    while (getline(&line, &cap, p) > 0) {
        line[strcspn(line, "\n")] = 0;
        listing = line + 2;
        snprintf(path, sizeof path, "%s/%s", c->base, listing);
        if (lstat(path, &sb))
            lab_die("%s: %s", path, strerror(errno));
        if (S_ISDIR(sb.st_mode)) {
            tree_add(&c->before, listing, DIRECTORY, NULL);
        } else if (S_ISLNK(sb.st_mode)) {
            ssize_t n = readlink(path, target, sizeof target - 1);

            target[n > 0 ? n : 0] = 0;
            tree_add(&c->before, listing, SYMLINK, target);
        } else {
            tree_add(&c->before, listing, inode_new(c, path), NULL);
        }
    }
    pclose(p);
    free(line);
    free(cmd);
}

/* ---- the journal ------------------------------------------------------------------------------------------------------------ */

static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? cairn_format("%.*s", (int)(slash - path), path) : strdup("");
}

static void journal_read(struct crash *c)
{
    struct cairn_error err = {0};
    char *bytes = NULL;
    struct tree now;
    size_t n, at = 0;

    if (cairn_file_read(c->journal, (size_t)1 << 30, &bytes, &n, &err) != CAIRN_OK)
        lab_die("%s", err.text);
    tree_copy(&now, &c->before);
    while (at + sizeof(struct journal_head) <= n) {
        struct journal_head h;
        struct change *x;
        struct name *name;

        memcpy(&h, bytes + at, sizeof h);
        at += sizeof h;
        if (h.magic != JOURNAL_MAGIC || at + h.path_n + h.path2_n + h.data_n > n)
            lab_die("%s: torn", c->journal);
        c->change = realloc(c->change, (size_t)(c->n + 1) * sizeof *c->change);
        if (!c->change)
            lab_die("out of memory");
        if (h.path_n == 1 && bytes[at] == '/') { /* root itself is made: it is there in every image */
            at += h.path_n + h.path2_n + h.data_n;
            continue;
        }
        x = &c->change[c->n++];
        *x = (struct change){.op = (enum journal_op)h.op, .n = h.data_n, .offset = h.offset, .inode = -3, .synced = -1};
        x->path = strndup(bytes + at, h.path_n);
        at += h.path_n;
        x->path2 = strndup(bytes + at, h.path2_n);
        at += h.path2_n;
        x->data = malloc(h.data_n + 1);
        if (!x->path || !x->path2 || !x->data)
            lab_die("out of memory");
        memcpy(x->data, bytes + at, h.data_n);
        at += h.data_n;
        name = tree_find(&now, x->path);
        switch (x->op) {
        case J_CREATE:
            x->inode = inode_new(c, NULL);
            tree_add(&now, x->path, x->inode, NULL);
            break;
        case J_MKDIR:
            tree_add(&now, x->path, DIRECTORY, NULL);
            break;
        case J_LINK:
        case J_RENAME:
            if (!name)
                lab_die("%s: %s is renamed or linked and is not there", c->journal, x->path);
            x->inode = name->inode;
            tree_add(&now, x->path2, x->inode, NULL);
            if (x->op == J_RENAME)
                tree_remove(&now, x->path);
            break;
        case J_SYMLINK:
            tree_add(&now, x->path2, SYMLINK, x->path);
            break;
        case J_UNLINK:
        case J_RMDIR:
            tree_remove(&now, x->path);
            break;
        default: /* of an open descriptor, by the name it was opened with; that name may be gone */
            x->inode = name ? name->inode : -3;
            for (long k = c->n - 2; k >= 0 && x->inode == -3; k--)
                if (c->change[k].op == J_CREATE && !strcmp(c->change[k].path, x->path))
                    x->inode = c->change[k].inode;
        }
    }
    tree_free(&now);
    free(bytes);
    for (long i = 0; i < c->n; i++) { /* which fsync makes each change durable */
        struct change *x = &c->change[i];
        char *dir = NULL;

        if (x->op != J_WRITE && x->op != J_TRUNC)
            dir = parent_of(x->op == J_LINK || x->op == J_RENAME || x->op == J_SYMLINK ? x->path2 : x->path);
        for (long k = i + 1; k < c->n && x->synced < 0; k++)
            if (dir ? c->change[k].op == J_SYNC_DIR && !strcmp(c->change[k].path, dir) : c->change[k].op == J_SYNC && c->change[k].inode == x->inode)
                x->synced = k;
        free(dir);
    }
}

/* ---- images -------------------------------------------------------------------------------------------------------------------- */

static int survives(const struct change *x, long prefix, enum variant v, uint64_t *r)
{
    int bytes = x->op == J_WRITE || x->op == J_TRUNC;

    if (x->synced >= 0 && x->synced < prefix)
        return 1;
    switch (v) {
    case SYNCED_ONLY:
        return 0;
    case NAMES_ONLY:
        return !bytes;
    case BYTES_ONLY:
        return bytes;
    default:
        return lab_random(r) % 2;
    }
}

struct blob {
    unsigned char *p;
    size_t n;
    int loaded;
    char *at; /* where it was put first */
};

static void blob_load(const struct crash *c, int inode, struct blob *b)
{
    struct cairn_error err = {0};

    if (b->loaded)
        return;
    b->loaded = 1;
    if (c->content[inode] && cairn_file_read(c->content[inode], (size_t)1 << 28, (char **)&b->p, &b->n, &err) != CAIRN_OK)
        lab_die("%s", err.text);
}

static void blob_resize(struct blob *b, size_t n)
{
    b->p = realloc(b->p, n + 1);
    if (!b->p)
        lab_die("out of memory");
    if (n > b->n)
        memset(b->p + b->n, 0, n - b->n);
    b->n = n;
}

static int has_parent(struct tree *t, const char *path)
{
    char *dir = parent_of(path);
    struct name *x = *dir ? tree_find(t, dir) : NULL;
    int ok = !*dir || (x && x->inode == DIRECTORY && has_parent(t, dir));

    free(dir);
    return ok;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct name *)a)->path, ((const struct name *)b)->path);
}

/* Builds the image in dir, which must not exist. */
static void image(const struct crash *c, long prefix, enum variant v, uint64_t seed, const char *dir)
{
    struct blob *blob = calloc((size_t)c->inodes + 1, sizeof *blob);
    uint64_t r = seed;
    struct tree t;
    char path[PATH_MAX];

    if (!blob)
        lab_die("out of memory");
    tree_copy(&t, &c->before);
    for (long i = 0; i < prefix; i++) {
        const struct change *x = &c->change[i];

        if (x->op == J_SYNC || x->op == J_SYNC_DIR || x->op == J_END || !survives(x, prefix, v, &r))
            continue;
        switch (x->op) {
        case J_CREATE:
            tree_add(&t, x->path, x->inode, NULL);
            break;
        case J_MKDIR:
            tree_add(&t, x->path, DIRECTORY, NULL);
            break;
        case J_LINK:
            tree_add(&t, x->path2, x->inode, NULL);
            break;
        case J_RENAME:
            tree_remove(&t, x->path);
            tree_add(&t, x->path2, x->inode, NULL);
            break;
        case J_SYMLINK:
            tree_add(&t, x->path2, SYMLINK, x->path);
            break;
        case J_UNLINK:
        case J_RMDIR:
            tree_remove(&t, x->path);
            break;
        case J_WRITE:
            if (x->inode < 0)
                break;
            blob_load(c, x->inode, &blob[x->inode]);
            if ((size_t)x->offset + x->n > blob[x->inode].n)
                blob_resize(&blob[x->inode], (size_t)x->offset + x->n);
            memcpy(blob[x->inode].p + x->offset, x->data, x->n);
            break;
        case J_TRUNC:
            if (x->inode < 0)
                break;
            blob_load(c, x->inode, &blob[x->inode]);
            blob_resize(&blob[x->inode], (size_t)x->offset);
            break;
        default:
            break;
        }
    }
    if (mkdir(dir, 0777))
        lab_die("mkdir %s: %s", dir, strerror(errno));
    qsort(t.name, (size_t)t.n, t.n ? sizeof *t.name : 1, by_path);
    for (int i = 0; i < t.n; i++) {
        const struct name *x = &t.name[i];

        if (!has_parent(&t, x->path)) /* a directory that was lost takes what is in it along */
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, x->path);
        if (x->inode == DIRECTORY ? mkdir(path, 0777) : x->inode == SYMLINK ? symlink(x->target, path) : 0)
            lab_die("%s: %s", path, strerror(errno));
        if (x->inode >= 0) {
            struct blob *b = &blob[x->inode];
            struct cairn_error err = {0};
            int fd;

            if (b->at) {
                if (link(b->at, path))
                    lab_die("link %s: %s", path, strerror(errno));
                continue;
            }
            blob_load(c, x->inode, b);
            fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
            if (fd < 0 || cairn_fd_write_all(fd, b->p ? b->p : (unsigned char *)"", b->n, path, &err) != CAIRN_OK)
                lab_die("%s: %s", path, strerror(errno));
            close(fd);
            b->at = strdup(path);
        }
    }
    for (int i = 0; i < c->inodes; i++) {
        free(blob[i].p);
        free(blob[i].at);
    }
    free(blob);
    tree_free(&t);
}

/* ---- trials ---------------------------------------------------------------------------------------------------------------------- */

/* 1: every line of a is a line of b. */
static int lines_within(const char *a, const char *b, char *why)
{
    for (const char *p = a; *p;) {
        size_t n = strcspn(p, "\n");
        int found = 0;

        for (const char *q = b; *q && !found; q += strcspn(q, "\n"), q += *q == '\n')
            found = strcspn(q, "\n") == n && !strncmp(p, q, n);
        if (!found) {
            snprintf(why, WHY_BYTES, "lost: %.*s", (int)n, p);
            return 0;
        }
        p += n + (p[n] == '\n');
    }
    return 1;
}

static void bad(void *arg, const char *path, const char *text)
{
    char *why = arg;

    (void)path;
    if (!*why)
        snprintf(why, WHY_BYTES, "verify: %.500s", text);
}

/* Image i is of this prefix: one in each stretch of `every` changes, drawn; beyond the last: the whole journal. */
static long prefix_of(const struct crash *c, long i)
{
    uint64_t r = c->seed * 977u + (uint64_t)i;
    long p = i / VARIANTS * c->every + (long)(lab_random(&r) % (uint64_t)c->every);

    return p < c->n ? p + 1 : c->n;
}

static int look(const struct crash *c, const char *dir, long prefix, char *why)
{
    struct cairn_verify_counts counts = {0};
    struct cairn_verify_opts o = {.deep = 1, .bad = bad, .arg = why};
    struct cairn_error err = {0};
    char *digest;
    int ok;

    *why = 0;
    if (cairn_verify_tree(dir, &o, &counts, &err) != CAIRN_OK) {
        if (!*why)
            snprintf(why, WHY_BYTES, "verify: %.500s", err.text);
        return 0;
    }
    if (!(digest = lab_digest(dir, why)))
        return 0;
    ok = lines_within(prefix == c->n ? c->digest_after : c->digest_before, digest, why);
    free(digest);
    return ok;
}

static int trial(void *arg, long i, const char *box, char *why)
{
    const struct crash *c = arg;
    long prefix = prefix_of(c, i);
    enum variant v = (enum variant)(i % VARIANTS);
    char dir[600];

    snprintf(dir, sizeof dir, "%s/run", box);
    image(c, prefix, v, c->seed * 131u + (uint64_t)i, dir);
    if (look(c, dir, prefix, why) && lab_go_on(c->lab, box, dir, -1, why) && lab_box_clean(box, why))
        return 0;
    {
        size_t n = strlen(why);
        const struct change *x = &c->change[prefix - 1];

        snprintf(why + n, WHY_BYTES - n, " (after %ld of %ld changes, the last %d %.150s %.150s)", prefix, c->n, (int)x->op, x->path, x->path2);
    }
    return 1;
}

/* Only what can be seen at once: for the disk that lies. */
static int glance(void *arg, long i, const char *box, char *why)
{
    const struct crash *c = arg;
    char dir[600];

    snprintf(dir, sizeof dir, "%s/run", box);
    image(c, c->n, (enum variant)(i % VARIANTS), c->seed + (uint64_t)i, dir);
    return look(c, dir, c->n, why) ? 0 : 2; /* not told as a violation: it is what is expected */
}

static void name_of(void *arg, long i, char *out, size_t n)
{
    const struct crash *c = arg;

    snprintf(out, n, "crashes --subject %s --seed %llu, image %ld: %s", c->what, (unsigned long long)c->seed, i, variant_name[i % VARIANTS]);
}

/* ---- recording --------------------------------------------------------------------------------------------------------------------- */

static const struct subject {
    const char *name;
    int init;
    enum cairn_stage stage;
    int64_t step;
    enum lab_kind kind;
    const char *killed; /* a first attempt is killed right after this operation on this class ("link manifest"), then a second one runs */
} subjects[] = {
    {"init", 1, CAIRN_STAGE_SYNC, 0, LAB_PLAIN, NULL},
    {"warm-start", 0, CAIRN_STAGE_TRAIN, 0, LAB_PLAIN, NULL},
    {"rollout", 0, CAIRN_STAGE_ROLLOUT, 2, LAB_PLAIN, NULL},
    {"score", 0, CAIRN_STAGE_SCORE, 2, LAB_PLAIN, NULL},
    {"train", 0, CAIRN_STAGE_TRAIN, 2, LAB_PLAIN, NULL},
    {"sync", 0, CAIRN_STAGE_SYNC, 2, LAB_PLAIN, NULL},
    {"train-settle", 0, CAIRN_STAGE_TRAIN, 2, LAB_PLAIN, "link manifest"},
    {"sync-settle", 0, CAIRN_STAGE_SYNC, 2, LAB_PLAIN, "link manifest"},
    {"sync-marker", 0, CAIRN_STAGE_SYNC, 2, LAB_PLAIN, "rename marker"},
    {"rollout-adopt", 0, CAIRN_STAGE_ROLLOUT, 2, LAB_PLAIN, "create manifest"},
    {"train-updates", 0, CAIRN_STAGE_TRAIN, 1, LAB_UPDATES, NULL},
};
#define SUBJECTS ((int)(sizeof subjects / sizeof *subjects))

static void start(const struct lab *lab, const struct subject *s, const char *box, const char *dir, const char *plan, const char *journal,
                  struct lab_end *e)
{
    char scratch[2][600];
    struct lab_exec x = {.box = box, .root = dir, .plan = plan, .journal = journal};

    if (s->init) {
        lab_argv_run(lab, "init", dir, &x, scratch);
    } else {
        lab_argv(lab, lab_link(lab, s->stage, s->step, NULL), dir, &x, scratch);
    }
    lab_run(lab, &x, e);
}

/* Number of the call after the first "op class" of a traced run. */
static long call_after(const struct lab *lab, const struct subject *s, const char *base)
{
    char *box = cairn_format("%s/crash-trace", lab->work), *dir = cairn_format("%s/run", box), *report = cairn_format("%s/report", box), *line = NULL;
    char want[40], op[16], cls[16];
    size_t cap = 0;
    long k, found = 0;
    struct lab_end e;
    FILE *f;

    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    lab_copy(base, dir);
    start(lab, s, box, dir, "trace=1", NULL, &e);
    if (!(f = fopen(report, "re")))
        lab_die("%s: %s", report, strerror(errno));
    while (getline(&line, &cap, f) > 0)
        if (sscanf(line, "call %ld %15s %15s", &k, op, cls) == 3) {
            snprintf(want, sizeof want, "%s %s", op, cls);
            if (!found && !strcmp(want, s->killed))
                found = k + 1;
        }
    fclose(f);
    free(line);
    lab_remove(box);
    free(box);
    free(dir);
    free(report);
    if (!found)
        lab_die("%s: no call \"%s\"", s->name, s->killed);
    return found;
}

static void crash_record(struct crash *c, const struct lab *lab, const struct subject *s, const char *plan)
{
    char *box = cairn_format("%s/crash-%s", lab->work, s->name), *dir = cairn_format("%s/run", box), why[WHY_BYTES];
    struct lab_end e;

    *c = (struct crash){.lab = lab, .what = s->name, .journal = cairn_format("%s/journal", box)};
    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    if (!s->init) {
        c->base = lab->before[lab_link(lab, s->stage, s->step, NULL)];
        lab_copy(c->base, dir);
    }
    if (s->killed) {
        char *kill = cairn_format("n=%ld kind=kill", call_after(lab, s, c->base));

        start(lab, s, box, dir, kill, c->journal, &e);
        if (e.code != -9)
            lab_die("%s: was to be killed, ended with %d", s->name, e.code);
        free(kill);
    }
    start(lab, s, box, dir, plan, c->journal, &e);
    if (e.code)
        lab_die("%s ended with %d: %s", s->name, e.code, e.last);
    c->digest_before = c->base ? lab_digest(c->base, why) : strdup("");
    c->digest_after = lab_digest(dir, why);
    if (!c->digest_before || !c->digest_after)
        lab_die("%s: %s", s->name, why);
    base_read(c);
    journal_read(c);
    lab_remove(dir);
    free(dir);
    free(box);
}

static void crash_free(struct crash *c)
{
    for (long i = 0; i < c->n; i++) {
        free(c->change[i].path);
        free(c->change[i].path2);
        free(c->change[i].data);
    }
    free(c->change);
    for (int i = 0; i < c->inodes; i++)
        free(c->content[i]);
    free(c->content);
    tree_free(&c->before);
    free(c->journal);
    free(c->digest_before);
    free(c->digest_after);
}

long faults_crashes(const struct faults_opts *o)
{
    long violated = 0, images = 0, changes = 0, seen = 0;

    lab_part_pools(SUBJECTS + 1);
    for (int i = 0; i < SUBJECTS; i++) {
        const struct subject *s = &subjects[i];
        const struct lab *lab = lab_get(s->kind);
        struct crash c;
        struct lab_counts r;
        double t0 = lab_now();
        char key[60];

        if (o->subject && strcmp(o->subject, s->name))
            continue;
        snprintf(key, sizeof key, "crashes/%s", s->name);
        crash_record(&c, lab, s, "");
        c.every = o->every;
        c.seed = o->seed;
        r = lab_pool_run(lab, &(struct lab_pool){o->jobs, (c.n / c.every + 1) * VARIANTS, trial, name_of, &c}, key);
        tap(!r.violated, "crashes, %s: %ld changes, %ld images of a disk, %ld violations, %.0f s", s->name, c.n, r.held + r.violated, r.violated,
            lab_now() - t0);
        violated += r.violated;
        images += r.held + r.violated;
        changes += c.n;
        crash_free(&c);
    }
    if (!o->subject) {
        const struct subject *s = &subjects[4];
        const struct lab *lab = lab_get(s->kind);
        char plan[60];
        struct crash c;
        struct lab_counts r;

        snprintf(plan, sizeof plan, "n=1 on=1 ops=%u kind=lie", 1u << OP_SYNC);
        crash_record(&c, lab, &(struct subject){"liar", 0, s->stage, s->step, s->kind, NULL}, plan);
        c.seed = o->seed;
        r = lab_pool_run(lab, &(struct lab_pool){o->jobs, 20, glance, name_of, &c}, "crashes/liar");
        seen = r.idle;
        tap(seen > 0, "crashes: with a disk that lies about fsync, %ld of 20 images show it", seen);
        violated += !seen;
        crash_free(&c);
    }
    sum("%ld images of a disk after a power cut, of %ld changes by %d stages, %ld violations (a disk that lies is seen in %ld of 20)", images, changes,
        SUBJECTS, violated, seen);
    return violated;
}
