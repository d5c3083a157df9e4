/* image.c - see image.h. */
#include "tests/faults/image.h"

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

const char *const variant_name[VARIANTS] = {"only what was synced", "names without bytes", "bytes without names", "drawn", "drawn"};

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

static int inode_new(struct record *c, const char *content)
{
    c->content = realloc(c->content, (size_t)(c->inodes + 1) * sizeof *c->content);
    if (!c->content)
        lab_die("out of memory");
    c->content[c->inodes] = content ? strdup(content) : NULL;
    return c->inodes++;
}

/* The tree of base: every file an inode of its own. */
static void base_read(struct record *c)
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

static void journal_read(struct record *c, const char *journal)
{
    struct cairn_error err = {0};
    char *bytes = NULL;
    struct tree now;
    size_t n, at = 0;

    if (cairn_file_read(journal, (size_t)1 << 30, &bytes, &n, &err) != CAIRN_OK)
        lab_die("%s", err.text);
    tree_copy(&now, &c->before);
    while (at + sizeof(struct journal_head) <= n) {
        struct journal_head h;
        struct change *x;
        struct name *name;

        memcpy(&h, bytes + at, sizeof h);
        at += sizeof h;
        if (h.magic != JOURNAL_MAGIC || at + h.path_n + h.path2_n + h.data_n > n)
            lab_die("%s: torn", journal);
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
                lab_die("%s: %s is renamed or linked and is not there", journal, x->path);
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

static void blob_load(const struct record *c, int inode, struct blob *b)
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

void image_make(const struct record *c, long prefix, enum variant v, uint64_t seed, const char *dir)
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

/* ---- all ------------------------------------------------------------------------------------------------------------------------ */

void record_read(struct record *c, char *base, const char *journal)
{
    *c = (struct record){.base = base};
    base_read(c);
    journal_read(c, journal);
}

void record_free(struct record *c)
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
}
