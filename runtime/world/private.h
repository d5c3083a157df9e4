/* private.h - between the files of this room; nobody else includes it. */
#ifndef CAIRN_WORLD_PRIVATE_H
#define CAIRN_WORLD_PRIVATE_H

#include "base/status.h"
#include "world/group.h"
#include "world/transport.h"
#include "world/world.h"

struct cairn_channel {
    struct cairn_channel *next; /* in world->channels */
    struct cairn_group *group;
    struct cairn_device *dev;
    const struct cairn_transport *transport;
    void *state;
    int busy; /* something was enqueued since the last settle */
};

/* The world that a role is a face of; w itself, if it is none. */
struct cairn_world *cairn_world_whole(struct cairn_world *w);

/* Every collective of a group is between these: next sequence number, board, watchdog. begin settles all channels
 * first, unless `device` says that the operation is one of a channel itself. */
enum cairn_status cairn_op_begin(struct cairn_group *g, const char *op, const char *what, int device, struct cairn_error *err);
/* Passes st on; a failure gets "rank r: op #seq of group (what)" in front. */
enum cairn_status cairn_op_end(struct cairn_group *g, const char *op, const char *what, enum cairn_status st, struct cairn_error *err);

#endif
