/* trail.h - what Slurm has to do with each link of a run, for `cairn status`: job, state, why it waits, what to do about it.
 * Changes nothing. */
#ifndef CAIRN_SLURM_TRAIL_H
#define CAIRN_SLURM_TRAIL_H

#include "slurm/plan.h"

struct cairn_trail;

struct cairn_trail_row {
    const char *state; /* "running", "queued", "waiting", "stopped", "failed"; NULL: Slurm has nothing to do with it */
    char job[64];      /* "" : none is queued */
    char reason[500], next[4300];
};

/* Reads queue and ledger. done: as in cairn_plan_make; borrowed until the trail is closed. Where this machine has no Slurm, or it does not answer,
 * rows say what the ledger knows, and cairn_trail_note why. */
enum cairn_status cairn_trail_open(struct cairn_trail **out, const struct cairn_run *run, const char *done, struct cairn_error *err);
void cairn_trail_close(struct cairn_trail *t); /* NULL is fine */
/* Of a link that is not committed. */
void cairn_trail_row(struct cairn_trail *t, const struct cairn_link *l, struct cairn_trail_row *row);
/* One sentence about Slurm as a whole, "" if there is nothing to say. Borrowed. */
const char *cairn_trail_note(const struct cairn_trail *t);
/* 1: this run was given to Slurm. */
int cairn_trail_used(const struct cairn_trail *t);

#endif
