/* role.c - faces of a world (role.h). The arrays by rank are made anew in the role's numbering; all that is shared is borrowed. */
#include "world/role.h"

#include <stdlib.h>
#include <string.h>

#include "world/private.h"
#include "world/wire.h"

/* Node and place on the board of each of the role's ranks; nodes are numbered anew. */
static enum cairn_status places(struct cairn_world *role, const struct cairn_world *w, const struct cairn_group *members,
                                struct cairn_error *err)
{
    role->node_of = calloc((size_t)role->size, sizeof *role->node_of);
    role->local_of = calloc((size_t)role->size, sizeof *role->local_of);
    if (!role->node_of || !role->local_of)
        return CAIRN_NOMEM(err);
    role->nodes = 0;
    for (int i = 0; i < role->size; i++) {
        int node = w->node_of[members->members[i]], first = 0;

        while (first < i && w->node_of[members->members[first]] != node)
            first++;
        role->node_of[i] = first < i ? role->node_of[first] : role->nodes++;
        role->local_of[i] = w->local_of[members->members[i]];
    }
    role->node = role->node_of[role->rank];
    role->local_rank = role->local_size = 0;
    for (int i = 0; i < role->size; i++) {
        role->local_rank += i < role->rank && role->node_of[i] == role->node;
        role->local_size += role->node_of[i] == role->node;
    }
    return CAIRN_OK;
}

enum cairn_status cairn_role_open(struct cairn_world **out, struct cairn_world *w, int number, const char *name,
                                  struct cairn_error *err)
{
    struct cairn_world *role = calloc(1, sizeof *role);
    struct cairn_group *all = NULL;
    enum cairn_status st = CAIRN_OK;

    if (!role)
        return CAIRN_NOMEM(err);
    *role = *w;
    role->whole = w;
    role->board_slot = w->board_slot;
    role->all = role->commit = role->node_group = NULL;
    role->node_of = role->local_of = NULL;
    role->wire_name = w->wire_name;
    TRY(cairn_world_split(w, w->all, number, w->rank, name, &all, err));
    role->rank = all->rank;
    role->size = all->size;
    TRY(places(role, w, all, err));
    for (int i = 0; i < role->size; i++) /* from now on in the role's own numbering */
        all->members[i] = i;
    all->world = role;
    role->all = all;
    all = NULL;
    TRY(cairn_world_split(role, role->all, 0, role->rank, "commit", &role->commit, err));
    TRY(cairn_world_split(role, role->all, role->node, role->rank, "node", &role->node_group, err));
    *out = role;
    role = NULL;
out:
    cairn_group_destroy(all);
    cairn_role_close(role);
    return st;
}

void cairn_role_close(struct cairn_world *role)
{
    if (!role)
        return;
    cairn_group_destroy(role->node_group);
    cairn_group_destroy(role->commit);
    cairn_group_destroy(role->all);
    free(role->node_of);
    free(role->local_of);
    free(role);
}

enum cairn_status cairn_notice_post(struct cairn_world *w, int to, const void *p, size_t n, struct cairn_error *err)
{
    if (!w->wire || to < 0 || to >= w->size || to == w->rank)
        return CAIRN_BUG(err, "a notice to nobody");
    return w->wire->post(w->comm, to, p, n, err);
}

enum cairn_status cairn_notice_poll(struct cairn_world *w, void *p, size_t n, int *from, struct cairn_error *err)
{
    *from = -1;
    return w->wire ? w->wire->poll(w->comm, p, n, from, err) : CAIRN_OK;
}
