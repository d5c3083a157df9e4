/* sides_change.c - changes the trainer alone, on its device, and takes the change back. See sides.h.
 *
 * The masters as they were lie in the place of the first moments, which nothing here uses: no memory beside the trainer's own, and no byte of
 * them passes the host.
 */
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/philox.h"
#include "tools/check/sides.h"

#define LEAST_SIZE 0.02             /* a tensor of zeros (a LoRA's B) has no size of its own */
#define NOISE_MOST ((int64_t)1 << 22) /* different numbers of the noise; a larger tensor gets them again */
#define GRAIN      64               /* numbers: where in the noise a tensor begins is a multiple of it */

enum cairn_status cairn_sides_masters_save(struct cairn_sides *x, struct cairn_error *err)
{
    const struct cairn_optimizer *o = &x->trainer.optimizer;

    return cairn_tensor_copy(&x->k.stream, &o->m.flat, &o->master.flat, err);
}

enum cairn_status cairn_sides_masters_load(struct cairn_sides *x, struct cairn_error *err)
{
    const struct cairn_optimizer *o = &x->trainer.optimizer;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_tensor_copy(&x->k.stream, &o->master.flat, &o->m.flat, err));
    TRY(cairn_trainer_publish(&x->trainer, err));
out:
    return st;
}

struct piece {
    int64_t begin, n; /* in the flat run of the masters */
    int param;
};

static int by_begin(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;

    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Sums of squares of n pieces of the masters, ascending: out (n). */
static enum cairn_status squares(struct cairn_sides *x, const struct piece *piece, int64_t n, double *out, struct cairn_error *err)
{
    struct cairn_sumsq a = {.x = x->trainer.optimizer.master.flat};
    int64_t *pieces = malloc((size_t)n * 2 * sizeof *pieces);
    struct cairn_buffer *d_pieces = NULL, *d_sums = NULL;
    const int64_t shape[2] = {n, 2};
    enum cairn_status st = CAIRN_OK;

    if (!pieces)
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i < n; i++) {
        pieces[2 * i] = piece[i].begin;
        pieces[2 * i + 1] = piece[i].n;
    }
    TRY(cairn_buffer_create(x->k.dev, (size_t)n * 2 * sizeof *pieces, &d_pieces, err));
    TRY(cairn_buffer_create(x->k.dev, (size_t)n * sizeof *out, &d_sums, err));
    TRY(cairn_tensor_view(&a.pieces, d_pieces, 0, CAIRN_I64, 2, shape, err));
    TRY(cairn_tensor_view(&a.out, d_sums, 0, CAIRN_F64, 1, shape, err));
    TRY(cairn_tensor_set(&x->k.stream, &a.pieces, pieces, cairn_tensor_bytes(&a.pieces), err));
    TRY(x->k.ops.sumsq(&x->k.stream, &a, err));
    TRY(cairn_tensor_get(&x->k.stream, &a.out, out, cairn_tensor_bytes(&a.out), err));
out:
    cairn_buffer_destroy(d_pieces);
    cairn_buffer_destroy(d_sums);
    free(pieces);
    return st;
}

/* The root mean square of each tensor of the masters, LEAST_SIZE at the least; out (count). Absent ones: 0. */
static enum cairn_status sizes(struct cairn_sides *x, double *out, struct cairn_error *err)
{
    const struct cairn_store *m = &x->trainer.optimizer.master;
    struct piece *piece = malloc((size_t)(m->table->count + 1) * sizeof *piece);
    double *sums = malloc((size_t)(m->table->count + 1) * sizeof *sums);
    enum cairn_status st = CAIRN_OK;
    int64_t n = 0;

    if (!piece || !sums)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < m->table->count; i++) {
        out[i] = 0;
        if (m->tensor[i].buf && cairn_tensor_count(&m->tensor[i]))
            piece[n++] = (struct piece){(int64_t)((m->tensor[i].offset - m->flat.offset) / sizeof(float)), cairn_tensor_count(&m->tensor[i]), i};
    }
    qsort(piece, (size_t)n, sizeof *piece, by_begin);
    TRY(squares(x, piece, n, sums, err));
    for (int64_t i = 0; i < n; i++)
        out[piece[i].param] = fmax(sqrt(sums[i] / (double)piece[i].n), LEAST_SIZE);
out:
    free(piece);
    free(sums);
    return st;
}

/* Uniform between -1 and 1 (no need of a bell), by seed, as many as the largest tensor has, up to NOISE_MOST. */
static enum cairn_status noise_make(struct cairn_sides *x, uint64_t seed, struct cairn_error *err)
{
    const struct cairn_store *m = &x->trainer.optimizer.master;
    const struct cairn_philox_key key = {.seed = seed, .purpose = CAIRN_PURPOSE_PROBE};
    enum cairn_status st = CAIRN_OK;
    struct cairn_tensor all;
    float *h = NULL;

    if (x->noise && x->noise_seed == seed)
        return CAIRN_OK;
    if (!x->noise) {
        for (int i = 0; i < m->table->count; i++)
            if (m->tensor[i].buf && cairn_tensor_count(&m->tensor[i]) > x->noise_n)
                x->noise_n = cairn_tensor_count(&m->tensor[i]);
        x->noise_n = x->noise_n < NOISE_MOST ? (x->noise_n + GRAIN - 1) / GRAIN * GRAIN : NOISE_MOST;
        TRY(cairn_buffer_create(x->k.dev, (size_t)x->noise_n * sizeof *h, &x->noise, err));
    }
    if (!(h = malloc((size_t)x->noise_n * sizeof *h)))
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i < x->noise_n; i += 4) {
        uint32_t r[4];

        cairn_philox(&key, 0, (uint32_t)i, (uint32_t)(i >> 32), r);
        for (int k = 0; k < 4; k++)
            h[i + k] = (float)((double)r[k] / 0x1p31 - 1);
    }
    TRY(cairn_tensor_view(&all, x->noise, 0, CAIRN_F32, 1, &x->noise_n, err));
    TRY(cairn_tensor_set(&x->k.stream, &all, h, cairn_tensor_bytes(&all), err));
    TRY(cairn_stream_wait(&x->k.stream, err));
    x->noise_seed = seed;
out:
    free(h);
    return st;
}

/* t += size * noise, from a place in the noise that is the tensor's own. */
static enum cairn_status shake(struct cairn_sides *x, const struct cairn_tensor *t, int which, double size, struct cairn_error *err)
{
    int64_t n = cairn_tensor_count(t), at = (int64_t)which * 1000003 % (x->noise_n / GRAIN) * GRAIN;
    struct cairn_tensor flat = cairn_tensor_reshape(t, 1, &n), noise;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_tensor_view(&noise, x->noise, 0, CAIRN_F32, 1, &x->noise_n, err));
    for (int64_t done = 0; done < n; at = 0) {
        int64_t some = n - done < x->noise_n - at ? n - done : x->noise_n - at;
        const struct cairn_axpby a = {
            .x = cairn_tensor_slice(&noise, 0, at, some), .y = cairn_tensor_slice(&flat, 0, done, some), .a = (float)size, .b = 1};

        TRY(x->k.ops.axpby(&x->k.stream, &a, err));
        done += some;
    }
out:
    return st;
}

enum cairn_status cairn_sides_perturb(struct cairn_sides *x, double scale, uint64_t seed, struct cairn_error *err)
{
    const struct cairn_store *m = &x->trainer.optimizer.master;
    double *size = malloc((size_t)m->table->count * sizeof *size), t0 = cairn_now_s();
    enum cairn_status st = CAIRN_OK;

    if (!size)
        return CAIRN_NOMEM(err);
    TRY(sizes(x, size, err));
    TRY(noise_make(x, seed, err));
    for (int i = 0; i < m->table->count; i++)
        if (m->tensor[i].buf)
            TRY(shake(x, &m->tensor[i], i, scale * size[i], err));
    TRY(cairn_trainer_publish(&x->trainer, err));
    TRY(cairn_stream_wait(&x->k.stream, err));
out:
    x->spent[CAIRN_SIDES_CHANGE] += cairn_now_s() - t0;
    free(size);
    return st;
}
