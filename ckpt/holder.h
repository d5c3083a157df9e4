/* holder.h - who holds an epoch or a pin, and whether that process still lives.
 *
 * Decides nothing about ownership: epochs do. It only tells what certainly nobody uses any more.
 */
#ifndef CAIRN_CKPT_HOLDER_H
#define CAIRN_CKPT_HOLDER_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

struct cairn_holder {
    char job[64];  /* scheduler's job id and restart count, "" without one */
    char host[256];
    char boot[64]; /* boot id of the host */
    int64_t pid;
    int64_t started; /* start time of the process in clock ticks since boot: a reused pid differs */
};
void cairn_holder_self(struct cairn_holder *h);
/* 1: alive; 0: certainly dead (same host, and another boot id, no such pid, or another start time); -1: cannot tell. */
int cairn_holder_alive(const struct cairn_holder *h);

/* As members job, host, boot, pid, started of a new object (NULL without memory), and back. */
json_t *cairn_holder_json(const struct cairn_holder *h);
enum cairn_status cairn_holder_parse(struct cairn_holder *h, const json_t *obj, const char *where, struct cairn_error *err);

#endif
