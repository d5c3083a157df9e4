/* quarantine.c - numbered directories, renames, fsyncs (quarantine.h). */
#include "tools/quarantine.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "ckpt/leftovers.h"
#include "ckpt/manifest.h"

#define WHY "WHY.json"
#define WHY_BYTES (64 << 20)

static int number_of(const char *name)
{
    int64_t v;

    return strlen(name) >= 4 && strspn(name, "0123456789") == strlen(name) && cairn_parse_i64(name, &v) && v > 0 && v < INT32_MAX ? (int)v : 0;
}

enum cairn_status cairn_quarantine_open(char **dir, const char *run, const json_t *dropped, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *root = cairn_path_join(run, CAIRN_QUARANTINE_NAME), *path = NULL, *why = NULL, *text = NULL;
    json_t *o = json_pack("{s:s, s:i, s:f, s:O}", "format", "cairn quarantine", "version", 1, "wall", cairn_wall_s(), "dropped", dropped);
    struct cairn_names names = {0};
    int highest = 0;
    size_t n;

    if (!root || !o)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_dir_make(root, err));
    TRY(cairn_dir_names(&names, root, NULL, err));
    for (size_t i = 0; i < names.n; i++)
        highest = number_of(names.name[i]) > highest ? number_of(names.name[i]) : highest;
    do {
        free(path);
        if (!(path = cairn_format("%s/%04d", root, ++highest)))
            TRY(CAIRN_NOMEM(err));
        errno = 0;
    } while (mkdir(path, 0777) && errno == EEXIST);
    if (errno)
        TRY(cairn_fail_errno(err, errno, "mkdir %s", path));
    TRY(cairn_dir_sync(root, err));
    TRY(cairn_checked_text(o, &text, &n, err));
    if (!(why = cairn_path_join(path, WHY)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_file_create(why, text, n, err));
    TRY(cairn_dir_sync(path, err));
    *dir = path;
    path = NULL;
out:
    cairn_names_free(&names);
    json_decref(o);
    free(text);
    free(why);
    free(path);
    free(root);
    return st;
}

/* The highest numbered file of FROM/epoch gets a second name in TO/epoch. */
static enum cairn_status epoch_leave(const char *from, const char *to, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *old = cairn_path_join(from, "epoch"), *new = cairn_path_join(to, "epoch"), *src = NULL, *dst = NULL, *text = NULL;
    int64_t highest = -1, v;
    DIR *d = old ? opendir(old) : NULL;
    size_t n;

    if (!old || !new)
        TRY(CAIRN_NOMEM(err));
    if (!d)
        goto out; /* no artefact, or one without attempts */
    for (struct dirent *e; (e = readdir(d));)
        if (cairn_parse_i64(e->d_name, &v) && v > highest)
            highest = v;
    if (highest < 0)
        goto out;
    src = cairn_format("%s/%lld", old, (long long)highest);
    dst = cairn_format("%s/%lld", new, (long long)highest);
    if (!src || !dst)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_dir_make(new, err));
    TRY(cairn_file_read(src, 1 << 20, &text, &n, err));
    st = cairn_file_create(dst, text, n, err);
    if (st != CAIRN_OK && cairn_path_exists(dst))
        st = CAIRN_OK;
    TRY(st);
    TRY(cairn_dir_sync(new, err));
out:
    if (d)
        closedir(d);
    free(old);
    free(new);
    free(src);
    free(dst);
    free(text);
    return st;
}

enum cairn_status cairn_quarantine_move(const char *dir, const char *run, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *from = cairn_path_join(run, path), *to = cairn_path_join(dir, path), *from_dir = from ? cairn_path_dirname(from) : NULL,
         *to_dir = to ? cairn_path_dirname(to) : NULL;

    if (!from_dir || !to_dir)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_dir_make(to_dir, err));
    if (rename(from, to)) {
        if (errno == ENOENT && !cairn_path_exists(from))
            goto out;
        TRY(cairn_fail_errno(err, errno, "rename %s to %s", from, to));
    }
    TRY(cairn_dir_sync(to_dir, err));
    TRY(cairn_dir_sync(from_dir, err));
    TRY(epoch_leave(to, from, err));
out:
    free(from);
    free(to);
    free(from_dir);
    free(to_dir);
    return st;
}

/* When it was made: by its own record; where that cannot be read, by the directory's time. */
static double made_at(const char *dir)
{
    char *path = cairn_path_join(dir, WHY), *text = NULL;
    json_t *o = NULL;
    double wall = -1;
    struct stat sb;
    size_t n;

    if (path && cairn_file_read(path, WHY_BYTES, &text, &n, NULL) == CAIRN_OK && cairn_checked_parse(&o, text, n, path, NULL) == CAIRN_OK)
        cairn_json_f64(o, "wall", &wall, path, NULL);
    if (wall < 0 && !stat(dir, &sb))
        wall = (double)sb.st_mtime;
    json_decref(o);
    free(text);
    free(path);
    return wall;
}

/* Everything in it, WHY.json last: what a kill leaves is still told from a number in the making. */
static enum cairn_status number_remove(const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_names names = {0};
    char *path = NULL;

    TRY(cairn_dir_names(&names, dir, NULL, err));
    for (size_t i = 0; i < names.n; i++) {
        if (!strcmp(names.name[i], WHY))
            continue;
        free(path);
        if (!(path = cairn_path_join(dir, names.name[i])))
            TRY(CAIRN_NOMEM(err));
        TRY(cairn_tree_remove(path, err));
    }
    TRY(cairn_tree_remove(dir, err));
out:
    cairn_names_free(&names);
    free(path);
    return st;
}

enum cairn_status cairn_quarantine_expire(const char *run, double age_s, int dry, void (*fn)(void *arg, const char *dir, int64_t bytes), void *arg,
                                          struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *root = cairn_path_join(run, CAIRN_QUARANTINE_NAME), *path = NULL;
    struct cairn_names names = {0};
    int there;

    if (!root)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_dir_names(&names, root, &there, err));
    for (size_t i = 0; i < names.n; i++) {
        int64_t files = 0, bytes = 0;

        if (!number_of(names.name[i]))
            continue;
        free(path);
        if (!(path = cairn_path_join(root, names.name[i])))
            TRY(CAIRN_NOMEM(err));
        if (cairn_wall_s() - made_at(path) < age_s)
            continue;
        TRY(cairn_tree_count(path, &files, &bytes, err));
        if (!dry)
            TRY(number_remove(path, err));
        fn(arg, path, bytes);
    }
out:
    cairn_names_free(&names);
    free(path);
    free(root);
    return st;
}
