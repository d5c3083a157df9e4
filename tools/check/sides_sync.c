/* sides_sync.c - the trainer's weights for the sampler, by way of committed artefacts, and those taken away again; whether they are the same. See
 * sides.h. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/file.h"
#include "ckpt/retention.h"
#include "model/io.h"
#include "stages/common/setup.h"
#include "tools/check/sides.h"

#define TILE 4096 /* bytes of a digest's tile */

/* The masters of the trainer's state, which are all that a sync reads, as an artefact of its own below the scratch folder. */
static enum cairn_status state_write(struct cairn_sides *x, const char *dir, struct cairn_error *err)
{
    const struct cairn_save_opts o = {.stem = "master", .prefix = "master:", .trainable_only = 1, .dtype = CAIRN_F32, .through = 1};
    struct cairn_store_source from = {&x->trainer.optimizer.master, &x->k};
    struct cairn_source src = cairn_source_store(&from);
    struct cairn_manifest *m = cairn_manifest_create("trainer", x->generation, x->run->uuid);
    struct cairn_attempt *a = NULL;
    enum cairn_status st = CAIRN_OK;

    if (!m)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_attempt_begin(&a, dir, &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(m), .scratch = 1}, err));
    TRY(cairn_save(&src, a, m, &o, err));
    TRY(cairn_attempt_commit(a, m, err));
out:
    cairn_attempt_end(a);
    cairn_manifest_destroy(m);
    return st;
}

/* What cairn-sync makes of it. */
static enum cairn_status policy_write(struct cairn_sides *x, const char *from, const char *dir, struct cairn_error *err)
{
    const struct cairn_policy *p = &x->trainer.policy;
    struct cairn_manifest *m = cairn_manifest_create("policy", x->generation, x->run->uuid);
    enum cairn_dtype dtype = cairn_setup_dtype(x->run->recipe);
    struct cairn_reader *state = NULL, *base = NULL;
    struct cairn_attempt *a = NULL;
    enum cairn_status st = CAIRN_OK;
    json_t *content = NULL;

    if (!m)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_reader_open(&state, from, NULL, err));
    TRY(cairn_reader_open(&base, x->base, NULL, err));
    TRY(cairn_manifest_add_input(m, "log/check.scratch/train", cairn_reader_manifest(state)->digest, err));
    TRY(cairn_attempt_begin(&a, dir, &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(m), .scratch = 1}, err));
    TRY(cairn_policy_save(x->trainer.table, state, p->lora ? NULL : base, dtype, a, m, "", err));
    content = cairn_setup_policy_content(&p->config, &p->table, p->lora ? &p->adapter : NULL, cairn_reader_manifest(base)->digest, dtype);
    if (!content || json_object_update(m->content, content))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_attempt_commit(a, m, err));
out:
    json_decref(content);
    cairn_attempt_end(a);
    cairn_reader_close(state);
    cairn_reader_close(base);
    cairn_manifest_destroy(m);
    return st;
}

/* ---- taking them away, which takes seconds where they are gigabytes ------------------------------------------------------------- */

static void *take_away(void *arg)
{
    struct cairn_sides *x = arg;

    for (int i = 0; i < 2; i++)
        cairn_tree_remove(x->gone[i], NULL);
    return NULL;
}

/* Takes both over. */
static void away(struct cairn_sides *x, char *train, char *policy)
{
    sigset_t all, old;

    x->gone[0] = train;
    x->gone[1] = policy;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    x->removing = !pthread_create(&x->remover, NULL, take_away, x);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!x->removing)
        take_away(x);
}

void cairn_sides_sync_settle(struct cairn_sides *x)
{
    double t0 = cairn_now_s();

    if (x->removing)
        pthread_join(x->remover, NULL);
    x->removing = 0;
    for (int i = 0; i < 2; i++) {
        free(x->gone[i]);
        x->gone[i] = NULL;
    }
    x->spent[CAIRN_SIDES_REMOVE] += cairn_now_s() - t0;
}

/* ---- a sync ----------------------------------------------------------------------------------------------------------------------- */

enum cairn_status cairn_sides_sync(struct cairn_sides *x, struct cairn_error *err)
{
    char *train = cairn_format("%s/train-%lld", x->scratch, (long long)(x->generation + 1)),
         *policy = cairn_format("%s/policy-%lld", x->scratch, (long long)(x->generation + 1));
    enum cairn_status st = CAIRN_OK;
    double t[4];

    cairn_sides_sync_settle(x); /* so that there is never more than one sync's */
    x->generation++;
    if (!train || !policy)
        TRY(CAIRN_NOMEM(err));
    t[0] = cairn_now_s();
    TRY(state_write(x, train, err));
    t[1] = cairn_now_s();
    TRY(policy_write(x, train, policy, err));
    t[2] = cairn_now_s();
    if (x->policy.weights.buf)
        TRY(cairn_policy_next(&x->policy, policy, &x->k, err));
    else
        TRY(cairn_policy_open(&x->policy, policy, &(struct cairn_policy_opts){.base = x->base, .quiet = 1}, &x->k, err));
    t[3] = cairn_now_s();
    for (int i = 0; i < 3; i++)
        x->spent[CAIRN_SIDES_STATE + i] += t[i + 1] - t[i];
out:
    if (train && policy) {
        away(x, train, policy);
    } else {
        free(train);
        free(policy);
    }
    return st;
}

/* ---- the same bytes? -------------------------------------------------------------------------------------------------------- */

/* Sums of digest tiles of each tensor of a store, made where they lie: out (count), malloc'ed. */
static enum cairn_status digests(struct cairn_sides *x, const struct cairn_store *s, struct cairn_digest **out, struct cairn_error *err)
{
    int64_t n = s->table->count, *runs = calloc((size_t)(n * CAIRN_TILES_RUN), sizeof *runs), units = 0;
    const int64_t shape[2] = {n, CAIRN_TILES_RUN}, sums[2] = {n, 2}, all = (int64_t)s->buf->bytes;
    struct cairn_buffer *d_runs = NULL, *d_sums = NULL;
    enum cairn_status st = CAIRN_OK;
    struct cairn_tiles a = {0};

    *out = calloc((size_t)n, sizeof **out);
    if (!runs || !*out)
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i < n; i++) {
        const struct cairn_tensor *t = &s->tensor[i];
        int64_t bytes = (int64_t)cairn_tensor_bytes(t), tiles = (bytes + TILE - 1) / TILE;
        const int64_t run[CAIRN_TILES_RUN] = {
            (int64_t)t->offset, 1, bytes, bytes, TILE, (int64_t)cairn_tile_seed(s->table->param[i].name), 0, 0, units};

        if (t->buf != s->buf || !bytes)
            TRY(CAIRN_BUG(err, "a tensor that lies outside of its store"));
        memcpy(runs + i * CAIRN_TILES_RUN, run, sizeof run);
        units += (tiles + CAIRN_TILES_UNIT(TILE) - 1) / CAIRN_TILES_UNIT(TILE);
    }
    TRY(cairn_buffer_create(x->k.dev, (size_t)(n * CAIRN_TILES_RUN) * sizeof *runs, &d_runs, err));
    TRY(cairn_buffer_create(x->k.dev, (size_t)n * sizeof **out, &d_sums, err));
    TRY(cairn_tensor_view(&a.runs, d_runs, 0, CAIRN_I64, 2, shape, err));
    TRY(cairn_tensor_view(&a.out, d_sums, 0, CAIRN_I64, 2, sums, err));
    TRY(cairn_tensor_view(&a.x, s->buf, 0, CAIRN_U8, 1, &all, err));
    a.units = units;
    TRY(cairn_tensor_set(&x->k.stream, &a.runs, runs, cairn_tensor_bytes(&a.runs), err));
    TRY(x->k.ops.tiles(&x->k.stream, &a, err));
    TRY(cairn_tensor_get(&x->k.stream, &a.out, *out, cairn_tensor_bytes(&a.out), err));
out:
    if (st != CAIRN_OK) {
        free(*out);
        *out = NULL;
    }
    cairn_buffer_destroy(d_runs);
    cairn_buffer_destroy(d_sums);
    free(runs);
    return st;
}

enum cairn_status cairn_sides_weights_differ(struct cairn_sides *x, const char **name, struct cairn_digest *all, struct cairn_error *err)
{
    const struct cairn_store *mine = x->trainer.published, *theirs = x->policy.lora ? &x->policy.adapter_weights : &x->policy.weights;
    struct cairn_digest sum = {0, 0}, *a = NULL, *b = NULL;
    enum cairn_status st = CAIRN_OK;
    double t0 = cairn_now_s();

    *name = NULL;
    if (theirs->table->count != mine->table->count)
        TRY(CAIRN_BUG(err, "trainer and sampler hold other tensors"));
    for (int i = 0; i < mine->table->count; i++)
        if (cairn_tensor_bytes(&theirs->tensor[i]) != cairn_tensor_bytes(&mine->tensor[i]))
            TRY(CAIRN_BUG(err, "trainer and sampler hold tensors of other sizes"));
    TRY(digests(x, mine, &a, err));
    TRY(digests(x, theirs, &b, err));
    for (int i = mine->table->count - 1; i >= 0; i--) {
        if (!cairn_digest_equal(a[i], b[i]))
            *name = mine->table->param[i].name;
        sum = cairn_digest_add(sum, a[i]);
    }
    if (all)
        *all = sum;
out:
    x->spent[CAIRN_SIDES_DIGEST] += cairn_now_s() - t0;
    free(a);
    free(b);
    return st;
}
