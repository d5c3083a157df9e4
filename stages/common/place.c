/* place.c - see place.h. The lock's file goes last, while it is held: who waits for it notices (lock.c) and begins anew. */
#include "stages/common/place.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/signals.h"
#include "stages/common/lock.h"
#include "stages/common/run.h"

/* The uppermost directory of path that is not there; NULL: all are. */
static enum cairn_status missing(const char *path, char **out, struct cairn_error *err)
{
    char *at = strdup(path), *up;

    *out = NULL;
    while (at && !cairn_path_exists(at)) {
        up = cairn_path_dirname(at);
        free(*out);
        *out = at;
        at = up;
    }
    if (!at)
        return CAIRN_NOMEM(err); /* *out goes with the place */
    free(at);
    return CAIRN_OK;
}

enum cairn_status cairn_place_take(struct cairn_place *p, const char *dir, int tries, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    memset(p, 0, sizeof *p);
    if (!(p->dir = strdup(dir)))
        return CAIRN_NOMEM(err);
    TRY(missing(dir, &p->top, err));
    do { /* a loser of a race for a new directory may find it gone again */
        TRY(cairn_dir_make(dir, err));
        st = cairn_lock_take(&p->lock, dir, err);
    } while (st == CAIRN_EAGAIN && --tries > 0 && !cairn_stop_requested());
out:
    return st;
}

static void remove_below(const char *dir, const char *name)
{
    char *path = cairn_path_join(dir, name);

    if (path)
        cairn_tree_remove(path, NULL);
    free(path);
}

void cairn_place_leave(struct cairn_place *p)
{
    if (p->top && p->lock && !cairn_run_there(p->dir)) {
        char *at = strdup(p->dir), *up;

        remove_below(p->dir, "recipe.yaml");
        remove_below(p->dir, "files");
        remove_below(p->dir, ".lock");
        while (at && strlen(at) >= strlen(p->top) && !rmdir(at)) { /* only what is empty goes */
            up = cairn_path_dirname(at);
            free(at);
            at = up;
        }
        free(at);
    }
    cairn_lock_drop(p->lock);
    free(p->dir);
    free(p->top);
    memset(p, 0, sizeof *p);
}
