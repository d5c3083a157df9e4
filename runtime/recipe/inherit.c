/* inherit.c - depth first, later parents over earlier ones, the file over all; a file inside itself is told by device and inode. */
#include "recipe/inherit.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "recipe/yaml.h"

struct family {
    struct cairn_arena *arena;
    struct cairn_error *err;
    int files, depth, parents;
    struct {
        dev_t dev;
        ino_t ino;
    } open[CAIRN_INHERIT_DEPTH_MAX]; /* the files that are being read, outermost first */
};

/* Absolute folder of a file, or the current one where path is NULL; links resolved; in the arena. */
static enum cairn_status folder(struct cairn_arena *a, const char *path, const char **out, struct cairn_error *err)
{
    char *dir = path ? cairn_path_dirname(path) : NULL, *real = NULL;
    enum cairn_status st = CAIRN_OK;

    if (path && !dir)
        TRY(CAIRN_NOMEM(err));
    real = path ? realpath(dir, NULL) : getcwd(NULL, 0);
    if (!real && errno != ENOMEM)
        TRY(cairn_fail_errno(err, errno, "%s: the folder from which paths count", path ? path : "command line"));
    if (!real || !(*out = cairn_arena_strdup(a, real)))
        TRY(CAIRN_NOMEM(err));
out:
    free(dir);
    free(real);
    return st;
}

static enum cairn_status read_file(struct family *f, const char *path, const struct cairn_yaml_place *named,
                                   const struct cairn_yaml_node **out);

static enum cairn_status read_parent(struct family *f, const struct cairn_yaml_node *name, const struct cairn_yaml_node **under)
{
    char *dir = NULL, *path = NULL;
    const struct cairn_yaml_node *parent;
    enum cairn_status st;

    if (name->kind != CAIRN_YAML_NODE_SCALAR || !*name->text || cairn_yaml_node_is_null(name))
        TRY(cairn_yaml_place_fail(f->err, name->at, "inherit: expected a file name or a list of them"));
    dir = cairn_path_dirname(name->at.src->label);
    path = dir ? cairn_path_join(strcmp(dir, ".") == 0 ? "" : dir, name->text) : NULL;
    if (!path)
        TRY(CAIRN_NOMEM(f->err));
    TRY(read_file(f, path, &name->at, &parent));
    *under = *under ? cairn_yaml_node_merge(f->arena, *under, parent) : parent;
    if (!*under)
        TRY(CAIRN_NOMEM(f->err));
out:
    free(dir);
    free(path);
    return st;
}

/* named: where an `inherit` names the file, NULL for the first one. */
static enum cairn_status read_file(struct family *f, const char *path, const struct cairn_yaml_place *named,
                                   const struct cairn_yaml_node **out)
{
    struct cairn_yaml_source *src = cairn_arena_calloc(f->arena, 1, sizeof *src);
    struct cairn_yaml_place at = {src, 1, 1}, whole = {src, 0, 0};
    const struct cairn_yaml_node *mine = NULL, *inherit, *under = NULL;
    enum cairn_status st = CAIRN_OK;
    struct stat info;
    char *text = NULL;
    int missing;
    size_t n;

    if (!src || !(src->label = cairn_arena_strdup(f->arena, path)))
        return CAIRN_NOMEM(f->err);
    missing = stat(path, &info) != 0;
    if (missing && (errno == EIO || errno == ESTALE || errno == ENOMEM)) /* no fault of the recipe */
        return cairn_fail_errno(f->err, errno, "stat %s", path);
    if (missing || S_ISDIR(info.st_mode)) {
        const char *why = missing ? strerror(errno) : "it is a folder";

        if (named)
            return cairn_yaml_place_fail(f->err, *named, "inherit: cannot read %s: %s", path, why);
        return cairn_yaml_place_fail(f->err, whole, "cannot read this recipe: %s", why);
    }
    for (int i = 0; i < f->depth; i++)
        if (f->open[i].dev == info.st_dev && f->open[i].ino == info.st_ino)
            return cairn_yaml_place_fail(f->err, *named, "inherit: %s inherits itself", path);
    if (f->depth == CAIRN_INHERIT_DEPTH_MAX || ++f->files > CAIRN_INHERIT_FILES_MAX)
        return cairn_yaml_place_fail(f->err, named ? *named : whole, "inherit: more than %d levels or %d files",
                                     CAIRN_INHERIT_DEPTH_MAX, CAIRN_INHERIT_FILES_MAX);
    if (S_ISREG(info.st_mode) && info.st_size > CAIRN_YAML_TEXT_MAX)
        return cairn_yaml_place_fail(f->err, at, "%lld bytes; a recipe has at most %d", (long long)info.st_size,
                                     CAIRN_YAML_TEXT_MAX);
    st = folder(f->arena, path, &src->dir, f->err);
    if (st != CAIRN_OK)
        return st;

    f->open[f->depth].dev = info.st_dev;
    f->open[f->depth++].ino = info.st_ino;
    st = cairn_file_read(path, CAIRN_YAML_TEXT_MAX, &text, &n, f->err);
    if (st == CAIRN_EDATA && f->err) /* a pipe beyond the limit: wrong as a recipe, not as data */
        f->err->code = CAIRN_ERECIPE;
    TRY(st == CAIRN_EDATA ? CAIRN_ERECIPE : st);
    TRY(cairn_yaml_parse(f->arena, text, n, at, 1, &mine, f->err));
    inherit = cairn_yaml_node_member(mine, "inherit", NULL);
    if (inherit) {
        if (!f->parents)
            TRY(cairn_yaml_place_fail(f->err, inherit->at, "inherit: a resolved recipe holds everything itself"));
        if (inherit->kind == CAIRN_YAML_NODE_LIST) {
            for (int i = 0; i < inherit->n; i++)
                TRY(read_parent(f, inherit->item[i], &under));
        } else {
            TRY(read_parent(f, inherit, &under));
        }
        mine = cairn_yaml_node_without(f->arena, mine, "inherit");
        if (mine && under)
            mine = cairn_yaml_node_merge(f->arena, under, mine);
        if (!mine)
            TRY(CAIRN_NOMEM(f->err));
    }
    *out = mine;
out:
    f->depth--;
    free(text);
    return st;
}

enum cairn_status cairn_inherit_read(struct cairn_arena *a, const char *path, int parents, const struct cairn_yaml_node **out,
                                     struct cairn_error *err)
{
    struct family f = {.arena = a, .err = err, .parents = parents};

    return read_file(&f, path, NULL, out);
}

/* Names of a dotted path: what a file could hold too, and what a terminal can show. *n: how many. */
static int path_ok(const char *path, int *n)
{
    size_t len = 0;

    *n = 1;
    for (; *path; path++) {
        if (*path == '.') {
            len = 0;
            ++*n;
        } else if (*path < '!' || *path > '~' || ++len > CAIRN_YAML_KEY_BYTES_MAX) {
            return 0;
        }
    }
    return *n <= CAIRN_YAML_DEPTH_MAX;
}

enum cairn_status cairn_inherit_override(struct cairn_arena *a, const struct cairn_yaml_node **root, const char *text, int line,
                                         const char *from, struct cairn_error *err)
{
    struct cairn_yaml_source *src = cairn_arena_calloc(a, 1, sizeof *src);
    struct cairn_yaml_place at = {src, line, 1}, value_at;
    const struct cairn_yaml_node *value = NULL;
    const char *equals = strchr(text, '=');
    char *path;
    enum cairn_status st = CAIRN_OK;
    int names;

    if (!src)
        return CAIRN_NOMEM(err);
    src->label = from ? cairn_arena_strdup(a, from) : "command line";
    if (!src->label)
        return CAIRN_NOMEM(err);
    TRY(folder(a, from, &src->dir, err));
    if (!equals || equals == text)
        TRY(cairn_yaml_place_fail(err, at, "expected key=value (as in train.learning_rate=1e-5), found \"%.80s\"", text));
    path = cairn_arena_printf(a, "%.*s", (int)(equals - text), text);
    if (!path)
        TRY(CAIRN_NOMEM(err));
    if (!path_ok(path, &names))
        TRY(cairn_yaml_place_fail(err, at, "\"%.80s\": a key has at most %d names of 1 to %d printable ASCII characters", path,
                                  CAIRN_YAML_DEPTH_MAX, CAIRN_YAML_KEY_BYTES_MAX));
    if (strcmp(path, "inherit") == 0)
        TRY(cairn_yaml_place_fail(err, at, "inherit belongs into a file"));
    value_at = at;
    value_at.col = (int)(equals + 1 - text) + 1;
    TRY(cairn_yaml_parse(a, equals + 1, strlen(equals + 1), value_at, 0, &value, err));
    if (names + value->depth > CAIRN_YAML_DEPTH_MAX)
        TRY(cairn_yaml_place_fail(err, value_at, "more than %d levels", CAIRN_YAML_DEPTH_MAX));
    TRY(cairn_yaml_node_set(a, root, path, at, value, err));
out:
    return st;
}
