/* sides.h - one model, as the trainer has it and as the sampler has it, in one process on one device.
 *
 * The trainer is stages/train's own: masters, published weights, packed forward. The sampler is a policy directory, opened as rollout opens
 * it, and the paged cache. A sync goes the way of the stages: the trainer's state becomes an artefact, cairn_policy_save makes a policy of
 * it, the sampler takes that. Nothing here adds two numbers.
 */
#ifndef CAIRN_TOOLS_CHECK_SIDES_H
#define CAIRN_TOOLS_CHECK_SIDES_H

#include <pthread.h>

#include "stages/train/trainer.h"
#include "tools/check/check.h"
#include "tools/check/sequences.h"

/* Rows of the sampler's call at hand: whose they are, by number of the sequence. */
struct cairn_sides_rows {
    int64_t n;
    const int32_t *pos, *which;
};

/* What a check's seconds go to: both sides' scores, changing the trainer, a file sync's three parts and waiting for its files to be gone, syncs
 * without files and what they want made first, digests of the weights. */
enum cairn_sides_part {
    CAIRN_SIDES_TRAINER,
    CAIRN_SIDES_SAMPLER,
    CAIRN_SIDES_CHANGE,
    CAIRN_SIDES_STATE,
    CAIRN_SIDES_POLICY,
    CAIRN_SIDES_LOAD,
    CAIRN_SIDES_REMOVE,
    CAIRN_SIDES_MEMORY,
    CAIRN_SIDES_DIGEST,
    CAIRN_SIDES_PARTS
};
extern const char *const cairn_sides_part_name[CAIRN_SIDES_PARTS];

struct cairn_sides {
    struct cairn_run *run; /* owned */
    struct cairn_compute k;
    struct cairn_trainer trainer;
    struct cairn_policy policy; /* the sampler's */
    struct cairn_model model;   /* of it */
    struct cairn_pass *pass;
    struct cairn_cache *cache;
    struct cairn_check_sequences q;
    char *base, *start;         /* directories: what both stand on, and the policy they begin with */
    char *scratch;              /* for artefacts of this check; removed at the end */
    int mine, lock;             /* scratch was made; what keeps other checks out of it, or -1 */
    int64_t generation;         /* of what was synced */
    double spent[CAIRN_SIDES_PARTS]; /* seconds, for the report */
    char *gone[2];              /* of the scratch folder, being taken away; NULL: nothing is */
    int removing;               /* by this thread */
    pthread_t remover;
    struct cairn_sides_rows now;
    struct cairn_buffer *noise; /* of perturb: (noise_n) floats on the device, by noise_seed; or NULL */
    int64_t noise_n;
    uint64_t noise_seed;
    float temperature;
    int page;
};

enum cairn_status cairn_sides_open(struct cairn_sides *x, const struct cairn_check_opts *o, struct cairn_error *err);
/* The trainer alone, on the run's back-end but with activations and weights of f32, for leg 0 of a run that computes in bf16. *narrow: whether
 * this run does; 0: there is no such side, and x holds no model. To be closed either way. CAIRN_ENOSPACE: there is no memory for it. */
enum cairn_status cairn_sides_open_wide(struct cairn_sides *x, const struct cairn_check_opts *o, int *narrow, struct cairn_error *err);
void cairn_sides_close(struct cairn_sides *x);

/* Log-probabilities of the sequences' tokens (q.at). */
enum cairn_status cairn_sides_trainer_scores(struct cairn_sides *x, float *out, struct cairn_error *err);
/* How the sampler cuts its work. */
struct cairn_sides_cut {
    int rows;    /* of a call, at most */
    int chunk;   /* tokens of a prompt at once; 1: one by one from the first */
    int share;   /* 1: the prompt of a group is run once and forked */
    int reverse; /* 1: the last sequence first */
};
enum cairn_status cairn_sides_sampler_scores(struct cairn_sides *x, const struct cairn_sides_cut *cut, float *out, struct cairn_error *err);

/* The trainer's masters as they are, kept on its device; and back, published. One set is kept. */
enum cairn_status cairn_sides_masters_save(struct cairn_sides *x, struct cairn_error *err);
enum cairn_status cairn_sides_masters_load(struct cairn_sides *x, struct cairn_error *err);
/* Adds noise to the trainer's masters, `scale` times each tensor's own size, by `seed`, and publishes. */
enum cairn_status cairn_sides_perturb(struct cairn_sides *x, double scale, uint64_t seed, struct cairn_error *err);

/* Gives the trainer's published weights to the sampler by way of committed artefacts; memory.h: without. */
enum cairn_status cairn_sides_sync(struct cairn_sides *x, struct cairn_error *err);
/* Until the files of the last sync are taken away, which goes on meanwhile. */
void cairn_sides_sync_settle(struct cairn_sides *x);
/* The first trained tensor that the sampler holds other bytes of than the trainer publishes, by their digests; NULL: none. Borrowed name. *all:
 * the digest of what the trainer publishes, over all tensors; may be NULL. */
enum cairn_status cairn_sides_weights_differ(struct cairn_sides *x, const char **name, struct cairn_digest *all, struct cairn_error *err);

#endif
