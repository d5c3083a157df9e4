/* handover_wire.c - path nccl: chunks through a channel, along chains of places.
 *
 * A lane's chunk goes from its holder to the first of its places, from there to the second, and so on, while the next chunk follows
 * behind: each byte leaves the holder once and crosses each link once. All ranks walk the same list of moves in the same order, so a
 * transport that must meet in order does. What a move needs on either side is in the plan.
 */
#include <stdlib.h>
#include <string.h>

#include "model/handover_impl.h"

enum cairn_status cairn_hand_wire_open(struct cairn_handover *h, struct cairn_error *err)
{
    (void)h;
    return cairn_fail(err, CAIRN_EDEVICE, "sync.path nccl: this build has no NCCL transport");
}

void cairn_hand_wire_close(struct cairn_handover *h)
{
    (void)h;
}

enum cairn_status cairn_hand_wire_give(struct cairn_handover *h, uint64_t generation, const struct cairn_ring_tag *tag, struct cairn_error *err)
{
    (void)h;
    (void)generation;
    (void)tag;
    return CAIRN_BUG(err, "not open");
}

enum cairn_status cairn_hand_wire_take(struct cairn_handover *h, uint64_t generation, uint64_t *got, struct cairn_ring_tag *tag, struct cairn_error *err)
{
    (void)h;
    (void)generation;
    (void)got;
    (void)tag;
    return CAIRN_BUG(err, "not open");
}
