/* replay.c - a table of recorded work, the least recently used one goes when it is full; see replay.h. */
#include "model/replay.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define ENTRIES 128 /* a graph of some hundred launches takes about a megabyte */
#define EAGER   2   /* times that work runs as it is before it is recorded: what comes once or twice is not worth it */

struct entry {
    struct cairn_replay_key key;
    struct cairn_graph graph; /* impl NULL: not recorded yet */
    int64_t runs;             /* 0: a free place */
    int64_t last;             /* by the clock */
};

struct cairn_replay {
    struct cairn_stream *s;
    int off; /* the device refused once */
    int recording;
    int64_t clock;
    struct cairn_replay_stats stats;
    struct entry entry[ENTRIES];
};

enum cairn_status cairn_replay_create(struct cairn_replay **out, struct cairn_stream *s, struct cairn_error *err)
{
    *out = NULL;
    if (!cairn_graphs_there(s->dev))
        return CAIRN_OK;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return CAIRN_NOMEM(err);
    (*out)->s = s;
    return CAIRN_OK;
}

void cairn_replay_forget(struct cairn_replay *r)
{
    for (int i = 0; r && i < ENTRIES; i++) {
        cairn_graph_destroy(&r->entry[i].graph);
        r->entry[i] = (struct entry){.runs = 0};
    }
}

void cairn_replay_destroy(struct cairn_replay *r)
{
    cairn_replay_forget(r);
    free(r);
}

static struct entry *find(struct cairn_replay *r, const struct cairn_replay_key *key)
{
    struct entry *oldest = &r->entry[0];

    for (struct entry *e = r->entry; e < r->entry + ENTRIES; e++) {
        if (e->runs && !memcmp(&e->key, key, sizeof *key))
            return e;
        if (e->last < oldest->last)
            oldest = e;
    }
    cairn_graph_destroy(&oldest->graph);
    *oldest = (struct entry){.key = *key};
    return oldest;
}

/* The work into the entry's graph. Nothing of it has run then, whatever comes out. */
static enum cairn_status record(struct cairn_replay *r, struct entry *e, cairn_replay_fn *fn, void *arg, struct cairn_error *err)
{
    enum cairn_status st = cairn_capture_begin(r->s, err), end;

    if (st != CAIRN_OK)
        return st;
    r->recording = 1;
    st = fn(arg, err);
    r->recording = 0;
    end = cairn_capture_end(r->s, st == CAIRN_OK ? &e->graph : NULL, st == CAIRN_OK ? err : NULL);
    return st == CAIRN_OK ? end : st;
}

enum cairn_status cairn_replay_run(struct cairn_replay *r, const struct cairn_replay_key *key, cairn_replay_fn *fn, void *arg,
                                   struct cairn_error *err)
{
    struct cairn_error why = {0};
    struct entry *e;

    if (!r)
        return fn(arg, err);
    if (r->off) {
        r->stats.run++;
        return fn(arg, err);
    }
    e = find(r, key);
    e->last = ++r->clock;
    if (!e->graph.impl && e->runs++ >= EAGER) {
        if (record(r, e, fn, arg, &why) == CAIRN_OK) {
            r->stats.recorded++;
        } else {
            cairn_warn("graphs: %s; each call is enqueued by itself", why.text);
            cairn_replay_forget(r);
            r->off = 1;
            r->stats.run++;
            return fn(arg, err);
        }
    }
    if (e->graph.impl) {
        r->stats.launched++;
        return cairn_graph_launch(&e->graph, r->s, err);
    }
    r->stats.run++;
    return fn(arg, err);
}

int cairn_replay_recording(const struct cairn_replay *r)
{
    return r && r->recording;
}

struct cairn_replay_stats cairn_replay_stats(const struct cairn_replay *r)
{
    return r ? r->stats : (struct cairn_replay_stats){0};
}
