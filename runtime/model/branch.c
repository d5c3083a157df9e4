/* branch.c - fork and join by two events; see branch.h. */
#include "model/branch.h"

#include <stdlib.h>

#include "model/call.h"

enum cairn_status cairn_branch_create(struct cairn_branch **out, const struct cairn_compute *k, struct cairn_error *err)
{
    struct cairn_branch *b = calloc(1, sizeof *b);
    enum cairn_status st = CAIRN_OK;

    *out = b;
    if (!b)
        return CAIRN_NOMEM(err);
    b->k = *k;
    b->k.stream = (struct cairn_stream){0};
    TRY(cairn_stream_create(k->dev, &b->k.stream, err));
    TRY(cairn_event_create(k->dev, &b->forked, err));
    TRY(cairn_event_create(k->dev, &b->joined, err));
out:
    if (st != CAIRN_OK) {
        cairn_branch_destroy(b);
        *out = NULL;
    }
    return st;
}

void cairn_branch_destroy(struct cairn_branch *b)
{
    if (!b)
        return;
    if (b->forked.impl)
        cairn_event_destroy(&b->forked);
    if (b->joined.impl)
        cairn_event_destroy(&b->joined);
    if (b->k.stream.impl)
        cairn_stream_destroy(&b->k.stream);
    free(b);
}

enum cairn_status cairn_branch_fork(const struct cairn_call *c, struct cairn_call *side, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    *side = *c;
    if (!c->branch)
        return CAIRN_OK;
    side->k = &c->branch->k;
    side->branch = NULL;
    side->k->ops = c->k->ops; /* ops may have been exchanged since */
    TRY(cairn_event_record(&c->branch->forked, &c->k->stream, err));
    TRY(cairn_event_wait(&c->branch->forked, &side->k->stream, err));
out:
    return st;
}

enum cairn_status cairn_branch_join(const struct cairn_call *c, const struct cairn_call *side, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (!c->branch)
        return CAIRN_OK;
    TRY(cairn_event_record(&c->branch->joined, &side->k->stream, err));
    TRY(cairn_event_wait(&c->branch->joined, &c->k->stream, err));
out:
    return st;
}
