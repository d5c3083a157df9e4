/* world.c - finds out who started us, opens the wire, makes the first groups, and tells who is late. */
#include "world/world.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/build.h"
#include "base/file.h"
#include "base/str.h"
#include "world/board.h"
#include "world/private.h"
#include "world/watchdog.h"
#include "world/wire.h"

#define DEADLINE_S 600.0
#define WIRE_FILE "cairn-mpi.so"

/* --- who started us --- */

static int env_int(const char *name)
{
    const char *s = getenv(name);
    int64_t v;

    return s && cairn_parse_i64(s, &v) && v >= 0 && v < INT32_MAX ? (int)v : -1;
}

/* Name of the launcher, or "alone"; *tasks: how many it started, 0 if it does not say. The order matters: mpirun within
 * a Slurm job starts its daemons by srun, so its ranks carry both sets of variables. A step of one task is alone. */
static const char *detect(int *tasks)
{
    const char *forced = getenv("CAIRN_WORLD");

    *tasks = 1;
    if (forced && !strcmp(forced, "alone"))
        return "alone";
    if ((*tasks = env_int("OMPI_COMM_WORLD_SIZE")) > 0)
        return "mpirun";
    if (getenv("SLURM_STEP_ID") && env_int("SLURM_PROCID") >= 0 && (*tasks = env_int("SLURM_STEP_NUM_TASKS")) > 0)
        return *tasks > 1 ? "srun" : "alone";
    if ((*tasks = env_int("PMI_SIZE")) > 0)
        return "mpirun"; /* MPICH's mpiexec */
    *tasks = 0;
    if (env_int("PMIX_RANK") >= 0)
        return "pmix";
    *tasks = 1;
    return "alone";
}

int cairn_world_launched(void)
{
    int tasks;

    return strcmp(detect(&tasks), "alone") != 0;
}

static enum cairn_status wire_load(struct cairn_wire **out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_lib_path(WIRE_FILE);
    struct cairn_wire *wire;
    void *so;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_path_exists(path))
        TRY(cairn_fail(err, CAIRN_EDEVICE, "a launcher started this process, but %s is missing: build with MPI (or set CAIRN_WORLD=alone)",
                       path));
    /* Global: the plug-ins of an MPI library look for its symbols. Never closed: MPI leaves handlers behind. */
    if (!(so = dlopen(path, RTLD_NOW | RTLD_GLOBAL)))
        TRY(cairn_fail_dl(err, CAIRN_EDEVICE, dlerror(), "cannot open MPI"));
    if (!(wire = dlsym(so, CAIRN_WIRE_SYMBOL)) || wire->abi != CAIRN_WIRE_ABI)
        TRY(cairn_fail(err, CAIRN_EDEVICE, "%s: not the wire of this build", path));
    *out = wire;
out:
    free(path);
    return st;
}

/* --- what the watchdog says and does --- */

static void describe_wait(void *arg, const struct cairn_wait *wait, char *text, size_t size)
{
    struct cairn_world *w = arg;
    const struct cairn_group *g = wait->group;
    size_t n = (size_t)snprintf(text, size, "cairn: rank %d of %d (%s):", w->rank, w->size, w->host);
    int unseen = 0, named = 0;

    if (!g || n >= size)
        return;
    w = g->world; /* of a role: whose numbers the members have */
    n += (size_t)snprintf(text + n, size - n, " %s #%llu of %s:", wait->op, (unsigned long long)wait->seq, g->name);
    for (int i = 0; i < g->size && n + 200 < size; i++) {
        char phrase[192];
        int r = g->members[i];

        if (r == w->rank || (wait->exchange && i != wait->to && i != wait->from))
            continue;
        if (!w->board || w->node_of[r] != w->node)
            unseen++;
        else if (!cairn_board_inside(w->board, w->local_of[r], wait->exchange ? NULL : g->name, wait->seq, phrase, sizeof phrase))
            n += (size_t)snprintf(text + n, size - n, "%s rank %d %s", named++ ? "," : wait->exchange ? "" : " not there:", r, phrase);
    }
    if (unseen && n + 200 < size)
        n += (size_t)snprintf(text + n, size - n, "%s %d ranks cannot be seen from this node", named ? "," : "", unseen);
    else if (!named && n + 200 < size)
        n += (size_t)snprintf(text + n, size - n, " all of this node are there");
    if (n < size)
        snprintf(text + n, size - n, ";");
}

static void abort_all(void *arg, int code)
{
    struct cairn_world *w = cairn_world_whole(arg);

    for (struct cairn_channel *c = w->channels; c; c = c->next)
        if (c->transport->abort)
            c->transport->abort(c->state);
    if (w->wire)
        w->wire->abort(code);
}

struct cairn_world *cairn_world_whole(struct cairn_world *w)
{
    return w->whole ? w->whole : w;
}

static enum cairn_status watch(struct cairn_world *w, struct cairn_error *err)
{
    return w->dog ? CAIRN_OK : cairn_watchdog_create(&w->dog, describe_wait, abort_all, w, err);
}

enum cairn_status cairn_world_watch_begin(struct cairn_world *w, const char *what, double deadline_s, struct cairn_error *err)
{
    struct cairn_wait wait = {.op = "wait", .what = what, .deadline_s = deadline_s == 0 ? w->deadline_s : deadline_s};
    enum cairn_status st = watch(w, err); /* alone there is no thread until somebody asks */

    if (st == CAIRN_OK)
        cairn_watchdog_begin(w->dog, &wait);
    return st;
}

void cairn_world_watch_end(struct cairn_world *w)
{
    cairn_watchdog_end(w->dog);
}

void cairn_world_abort(struct cairn_world *w, enum cairn_status code)
{
    if (w) {
        struct cairn_wait wait = {.op = "abort", .what = cairn_status_name(code), .deadline_s = 5};

        if (w->dog)
            cairn_watchdog_begin(w->dog, &wait); /* an abort may hang, too */
        abort_all(w, (int)code);
    }
    _exit((int)code);
}

/* --- groups --- */

static struct cairn_group *group_new(struct cairn_world *w, const char *name, int rank, int size, double deadline_s)
{
    struct cairn_group *g = calloc(1, sizeof *g);

    if (!g)
        return NULL;
    if (!(g->members = calloc((size_t)size, sizeof *g->members))) {
        free(g);
        return NULL;
    }
    g->world = w;
    snprintf(g->name, sizeof g->name, "%s", name);
    g->rank = rank;
    g->size = size;
    g->deadline_s = deadline_s;
    return g;
}

/* Not through the parent's allgather: the new group finds its members itself, on its own communicator. */
static enum cairn_status split(struct cairn_world *w, struct cairn_group *parent, int color, int key, const char *name,
                               struct cairn_group **out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_group *g = NULL;
    void *comm = NULL;
    int rank = 0, size = 1;

    if (parent->comm)
        TRY(w->wire->split(parent->comm, color, key, &comm, &rank, &size, err));
    if (color < 0 || (parent->comm && !comm)) {
        *out = NULL;
        goto out;
    }
    if (!(g = group_new(w, name, rank, size, parent->deadline_s)))
        TRY(CAIRN_NOMEM(err));
    g->members[rank] = w->rank;
    if (size > 1)
        TRY(w->wire->allgather(comm, &w->rank, sizeof w->rank, g->members, err));
    if (size > 1) {
        g->comm = comm;
        comm = NULL;
    }
    *out = g;
    g = NULL;
out:
    if (comm)
        w->wire->release(comm);
    cairn_group_destroy(g);
    return st;
}

enum cairn_status cairn_world_split(struct cairn_world *w, struct cairn_group *parent, int color, int key, const char *name,
                                    struct cairn_group **out, struct cairn_error *err)
{
    struct cairn_group *from = parent ? parent : w->all;
    enum cairn_status st = cairn_op_begin(from, "split", name, 0, err);

    return st != CAIRN_OK ? st : cairn_op_end(from, "split", name, split(w, from, color, key, name, out, err), err);
}

/* --- nodes --- */

/* A host is its name and its boot: names repeat in containers, and boots are shared by them. */
struct host {
    char name[200], boot[56];
};

static void host_find(struct host *h)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    memset(h, 0, sizeof *h);
    if (gethostname(h->name, sizeof h->name - 1))
        snprintf(h->name, sizeof h->name, "unknown");
    if (fd >= 0) {
        if (read(fd, h->boot, sizeof h->boot - 1) < 0)
            h->boot[0] = 0;
        close(fd);
    }
}

static enum cairn_status nodes_find(struct cairn_world *w, const struct host *own, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct host *all = calloc((size_t)w->size, sizeof *all);
    int *first = calloc((size_t)w->size, sizeof *first); /* lowest rank of each node */

    w->node_of = calloc((size_t)w->size, sizeof *w->node_of);
    w->local_of = calloc((size_t)w->size, sizeof *w->local_of);
    if (!all || !first || !w->node_of || !w->local_of)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_group_allgather(w->all, "hosts", own, sizeof *own, all, err));
    w->nodes = 0;
    for (int r = 0; r < w->size; r++) {
        int n = 0;

        while (n < w->nodes && memcmp(&all[first[n]], &all[r], sizeof *all))
            n++;
        if (n == w->nodes)
            first[w->nodes++] = r;
        w->node_of[r] = n;
        for (int q = first[n]; q < r; q++)
            w->local_of[r] += w->node_of[q] == n;
    }
    w->node = w->node_of[w->rank];
    w->local_rank = w->local_of[w->rank];
    w->local_size = 0;
    for (int r = 0; r < w->size; r++)
        w->local_size += w->node_of[r] == w->node;
out:
    free(all);
    free(first);
    return st;
}

static enum cairn_status board_open(struct cairn_world *w, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_board_place place = {.fd = -1};
    struct cairn_board *b = NULL;

    if (w->local_size == 1)
        return CAIRN_OK;
    if (w->local_rank == 0)
        b = cairn_board_create(w->local_size, &place);
    TRY(cairn_group_bcast(w->node_group, "board", 0, &place, sizeof place, err));
    if (w->local_rank > 0)
        b = cairn_board_attach(&place);
    TRY(cairn_group_barrier(w->node_group, "board", err)); /* it is open everywhere before anybody may go */
    w->board = b;
    b = NULL;
out:
    cairn_board_destroy(b);
    return st;
}

/* --- begin and end --- */

static void release(struct cairn_world *w)
{
    if (!w)
        return;
    cairn_watchdog_destroy(w->dog);
    cairn_board_destroy(w->board);
    if (w->all)
        free(w->all->members);
    free(w->all);
    free((char *)(uintptr_t)w->wire_name);
    free(w->node_of);
    free(w->local_of);
    free(w);
}

static enum cairn_status wire_start(struct cairn_world *w, size_t max_message, int tasks, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_wait wait = {.op = "start", .what = "all ranks", .deadline_s = w->deadline_s};

    TRY(wire_load(&w->wire, err));
    TRY(watch(w, err));
    if (max_message)
        w->wire->max_message = max_message;
    cairn_watchdog_begin(w->dog, &wait); /* a rank that dies before its MPI_Init leaves the others in theirs */
    st = w->wire->start(&w->comm, &w->rank, &w->size, err);
    cairn_watchdog_end(w->dog);
    TRY(st);
    if (tasks && tasks != w->size)
        TRY(cairn_fail(err, CAIRN_EUSAGE, "%s started %d tasks, but MPI sees %d: start them with %s", w->launcher, tasks, w->size,
                       !strcmp(w->launcher, "srun") ? "srun --mpi=pmix (srun --mpi=list shows what there is)"
                                                    : "the launcher of the MPI library that cairn was built with"));
    free((char *)(uintptr_t)w->wire_name);
    if (!(w->wire_name = cairn_format("%s: %s", w->wire->name, w->wire->library())))
        TRY(CAIRN_NOMEM(err));
out:
    return st;
}

enum cairn_status cairn_world_open(struct cairn_world **out, const struct cairn_world_opts *opts, struct cairn_error *err)
{
    static const struct cairn_world_opts none;
    enum cairn_status st = CAIRN_OK;
    struct cairn_world *w = calloc(1, sizeof *w);
    struct host host;
    int tasks = 1;

    if (!w)
        return CAIRN_NOMEM(err);
    if (!opts)
        opts = &none;
    w->size = w->local_size = w->nodes = 1;
    w->deadline_s = opts->deadline_s == 0 ? DEADLINE_S : opts->deadline_s;
    w->launcher = opts->alone ? "alone" : detect(&tasks);
    host_find(&host);
    snprintf(w->host, sizeof w->host, "%s", host.name);
    if (!(w->wire_name = cairn_format("none")))
        TRY(CAIRN_NOMEM(err));
    if (strcmp(w->launcher, "alone"))
        TRY(wire_start(w, opts->max_message, tasks, err));
    if (!(w->all = group_new(w, "all", w->rank, w->size, w->deadline_s)))
        TRY(CAIRN_NOMEM(err));
    for (int r = 0; r < w->size; r++)
        w->all->members[r] = r;
    w->all->comm = w->size > 1 ? w->comm : NULL;
    TRY(nodes_find(w, &host, err));
    w->board_slot = w->local_rank;
    TRY(cairn_world_split(w, w->all, 0, w->rank, "commit", &w->commit, err));
    TRY(cairn_world_split(w, w->all, w->node, w->rank, "node", &w->node_group, err));
    TRY(board_open(w, err));
    *out = w;
    w = NULL;
out:
    if (w) { /* the wire stays as it is: to finish it would wait for the others */
        free(w->commit ? w->commit->members : NULL);
        free(w->commit);
        free(w->node_group ? w->node_group->members : NULL);
        free(w->node_group);
    }
    release(w);
    return st;
}

enum cairn_status cairn_world_close(struct cairn_world *w, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (!w)
        return CAIRN_OK;
    if (w->wire) {
        TRY(cairn_op_begin(w->all, "close", "all ranks", 0, err));
        cairn_group_destroy(w->node_group);
        cairn_group_destroy(w->commit);
        st = cairn_op_end(w->all, "close", "all ranks", w->wire->finish(err), err);
    } else {
        cairn_group_destroy(w->node_group);
        cairn_group_destroy(w->commit);
    }
out:
    release(w);
    return st;
}
