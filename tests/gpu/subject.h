/* subject.h - the model under test of tests/gpu: a configuration with random weights on one device, batches of random tokens, and
 * the ops' times by shape. Included by the programs of tests/gpu.
 */
#ifndef TESTS_GPU_SUBJECT_H
#define TESTS_GPU_SUBJECT_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/philox.h"
#include "model/model.h"
#include "model/normal.h"
#include "model/optimizer.h"
#include "model/values.h"

struct subject {
    struct cairn_compute k;
    struct cairn_model_config config;
    struct cairn_param_table table;
    struct cairn_adapter adapter;
    int has_adapter; /* 1: the base is frozen; grads and optimizer are the adapter's */
    struct cairn_store weights, adapter_weights, grads;
    struct cairn_model m;
    struct cairn_pass *pass; /* for training, of rows and seqs */
    int64_t rows;
    int seqs;
    struct cairn_optimizer optimizer;
    int has_optimizer, has_grads;
    uint32_t draws;
    size_t left; /* bytes free on the device before anything of this was there */
};

/* Numbers below `below`, the same every time. */
static inline uint32_t draw(struct subject *s, uint32_t below)
{
    const struct cairn_philox_key key = {.seed = 2024, .purpose = CAIRN_PURPOSE_PROBE};
    uint32_t w[4];

    cairn_philox(&key, s->draws++, 0, 3, w);
    return w[0] % below;
}

/* Random weights as the training code initialises them in kind, not in bits: one block of normal numbers, copied on the device again
 * and again from where the last copy ended, since ten billion numbers by themselves take a minute. */
#define SUBJECT_BLOCK 16777213 /* elements, a prime: no two rows of a matrix are the same */

static inline enum cairn_status subject_fill(struct cairn_store *s, float scale, struct cairn_compute *k, struct cairn_error *err)
{
    const struct cairn_philox_key key = {.seed = 7, .purpose = CAIRN_PURPOSE_PROBE};
    const int64_t block = SUBJECT_BLOCK;
    float *h = malloc((size_t)block * sizeof *h), one[2] = {0, 1};
    struct cairn_buffer *buf[2] = {NULL, NULL}; /* for the indexer's matrices and for others */
    struct cairn_tensor from[2];
    int64_t at = 0;
    enum cairn_status st = CAIRN_OK;

    if (!h)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < 2; i++) {
        TRY(cairn_buffer_create(k->dev, (size_t)block * cairn_dtype_size(k->act), &buf[i], err));
        TRY(cairn_tensor_view(&from[i], buf[i], 0, k->act, 1, &block, err));
        cairn_normal_fill(h, block, &key, i ? (double)scale : 0.1);
        TRY(cairn_values_set(k, &from[i], h, block, err));
    }
    for (int i = 0; i < s->table->count; i++) {
        const struct cairn_param *p = &s->table->param[i];
        int64_t n = cairn_param_count(p), done = 0;
        struct cairn_tensor flat = cairn_tensor_reshape(&s->tensor[i], 1, &n);

        if (p->ndim < 2) {
            float v = one[!strstr(p->name, "bias")];

            for (int64_t j = 0; j < n && j < block; j++)
                h[j] = v;
            TRY(cairn_values_set(k, &s->tensor[i], h, n, err));
            continue;
        }
        while (done < n) {
            int64_t m = block - at < n - done ? block - at : n - done;
            struct cairn_tensor to = cairn_tensor_slice(&flat, 0, done, m),
                                piece = cairn_tensor_slice(&from[!strstr(p->name, ".indexer.")], 0, at, m);

            TRY(cairn_tensor_copy(&k->stream, &to, &piece, err));
            done += m;
            at = (at + m) % block;
        }
    }
    TRY(cairn_stream_wait(&k->stream, err));
out:
    cairn_buffer_destroy(buf[0]);
    cairn_buffer_destroy(buf[1]);
    free(h);
    return st;
}

/* lora: rank of an adapter on every linear layer; 0: none, all weights are trained. */
static inline enum cairn_status subject_open(struct subject *s, const char *config, const struct cairn_compute_opts *o, int lora,
                                             struct cairn_error *err)
{
    static const char *const all[] = {"all-linear", NULL};
    const struct cairn_adapter_spec spec = {.rank = lora, .alpha = lora, .targets = all};
    enum cairn_status st = CAIRN_OK;
    json_t *json = NULL;
    size_t total;

    memset(s, 0, sizeof *s);
    TRY(cairn_json_load(&json, config, 1 << 20, err));
    TRY(cairn_config_parse(&s->config, json, config, err));
    TRY(cairn_compute_open(&s->k, o, err));
    TRY(cairn_device_memory(s->k.dev, &s->left, &total, err));
    TRY(cairn_param_table_create(&s->table, &s->config, err));
    TRY(cairn_weights_create(&s->weights, &s->table, &s->k, err));
    TRY(subject_fill(&s->weights, s->config.init_range, &s->k, err));
    s->m = (struct cairn_model){.k = &s->k, .config = &s->config, .weights = &s->weights, .segments = 1};
    if (lora) {
        TRY(cairn_adapter_create(&s->adapter, &s->table, &s->config, &spec, err));
        s->has_adapter = 1;
        TRY(cairn_weights_create(&s->adapter_weights, &s->adapter.table, &s->k, err));
        TRY(subject_fill(&s->adapter_weights, s->config.init_range, &s->k, err));
        s->m.adapter = &s->adapter;
        s->m.adapter_weights = &s->adapter_weights;
    }
out:
    json_decref(json);
    return st;
}

/* What is trained. */
static inline const struct cairn_param_table *subject_trained(const struct subject *s)
{
    return s->has_adapter ? &s->adapter.table : &s->table;
}

static inline void subject_close(struct subject *s)
{
    cairn_pass_destroy(s->pass);
    if (s->has_optimizer)
        cairn_optimizer_free(&s->optimizer);
    cairn_store_free(&s->grads);
    cairn_store_free(&s->adapter_weights);
    if (s->has_adapter)
        cairn_adapter_free(&s->adapter);
    cairn_store_free(&s->weights);
    cairn_param_table_free(&s->table);
    cairn_config_free(&s->config);
    if (s->k.dev)
        cairn_compute_close(&s->k);
}

static inline enum cairn_status subject_train_room(struct subject *s, int64_t rows, int seqs, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (!s->has_grads) {
        TRY(cairn_store_create(&s->grads, subject_trained(s), s->k.dev, 1, err));
        s->has_grads = 1;
    }
    if (s->pass && s->rows >= rows && s->seqs >= seqs)
        return CAIRN_OK;
    cairn_pass_destroy(s->pass);
    s->pass = NULL;
    TRY(cairn_pass_create(&s->pass, &s->m, &(struct cairn_pass_opts){.max_rows = rows, .max_seqs = seqs, .train = 1}, err));
    s->rows = rows;
    s->seqs = seqs;
out:
    return st;
}

/* B sequences of T random tokens one behind the other, or whatever add_sequence puts there; freed by batch_free. */
struct rows {
    struct cairn_batch b;
    int32_t *id, *pos, *seq, *target, *start;
    int64_t room;
};

static inline enum cairn_status rows_make(struct rows *r, int64_t rows, int seqs, struct cairn_error *err)
{
    *r = (struct rows){.room = rows, .id = calloc((size_t)rows * 4 + 1, sizeof(int32_t)), .start = calloc((size_t)seqs + 1, 4)};
    if (!r->id || !r->start)
        return CAIRN_NOMEM(err);
    r->pos = r->id + rows;
    r->seq = r->pos + rows;
    r->target = r->seq + rows;
    r->b = (struct cairn_batch){.id = r->id, .pos = r->pos, .seq = r->seq, .start = r->start};
    return CAIRN_OK;
}

static inline void rows_free(struct rows *r)
{
    free(r->id);
    free(r->start);
}

static inline void rows_reset(struct rows *r)
{
    r->b.n = 0;
    r->b.nseq = 0;
}

/* One more sequence; each row's target is the next token. */
static inline void rows_add(struct rows *r, const int32_t *id, int64_t n)
{
    r->start[r->b.nseq] = (int32_t)r->b.n;
    for (int64_t i = 0; i < n; i++, r->b.n++) {
        r->id[r->b.n] = id[i];
        r->pos[r->b.n] = (int32_t)i;
        r->seq[r->b.n] = r->b.nseq;
        r->target[r->b.n] = i + 1 < n ? id[i + 1] : -1;
    }
    r->b.nseq++;
}

static inline enum cairn_status rows_random(struct rows *r, struct subject *s, int seqs, int64_t each, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int32_t *id = malloc((size_t)each * sizeof *id + 1);

    if (!id)
        TRY(CAIRN_NOMEM(err));
    TRY(rows_make(r, seqs * each, seqs, err));
    for (int b = 0; b < seqs; b++) {
        for (int64_t i = 0; i < each; i++)
            id[i] = 3 + (int32_t)draw(s, (uint32_t)s->config.vocab - 3);
        rows_add(r, id, each);
    }
out:
    free(id);
    return st;
}

/* ---- ops by shape ------------------------------------------------------------------------------------------------- */

/* Every op of a device in turn, alone: the stream is waited for before and after it, so the sum is more than the step. */
#define OP_LINES 256
static struct {
    struct cairn_ops real;
    struct {
        char name[96];
        double s, flop;
        int64_t calls;
    } line[OP_LINES];
    int lines;
} watch;

static inline void watch_note(const char *name, double s, double flop)
{
    int i = 0;

    while (i < watch.lines && strcmp(watch.line[i].name, name))
        i++;
    if (i == OP_LINES)
        return;
    if (i == watch.lines)
        snprintf(watch.line[watch.lines++].name, sizeof watch.line[0].name, "%s", name);
    watch.line[i].s += s;
    watch.line[i].flop += flop;
    watch.line[i].calls++;
}

/* What tells two calls of one op apart, and how many operations the call has. */
static inline double describe_matmul(const struct cairn_matmul *a, char *out, size_t n)
{
    static const char *const form[] = {"NT", "NN", "TN"};
    int d = a->x.ndim;
    int64_t heads = d == 3 ? a->x.dim[0] : 1, rows = a->x.dim[d - 2], k = a->x.dim[d - 1], o = a->y.dim[d - 1];

    snprintf(out, n, "matmul %s %lldx %lld %lld -> %lld %s", form[a->form], (long long)heads, (long long)rows, (long long)k,
             (long long)o, cairn_dtype_name(a->y.dtype));
    return 2.0 * (double)heads * (double)rows * (double)k * (double)o;
}

static inline double describe_matmul_grouped(const struct cairn_matmul_grouped *a, char *out, size_t n)
{
    static const char *const form[] = {"NT", "NN", "TN"};
    int64_t rows = a->x.dim[0], k = a->x.dim[1], o = a->form == CAIRN_TN ? a->y.dim[2] : a->y.dim[1];

    snprintf(out, n, "matmul_grouped %s %lld %lld -> %lld", form[a->form], (long long)rows, (long long)k, (long long)o);
    return 2.0 * (double)rows * (double)k * (double)o;
}

static inline double describe_rmsnorm(const struct cairn_rmsnorm *a, char *out, size_t n)
{
    snprintf(out, n, "rmsnorm %lld %lld", (long long)a->x.dim[0], (long long)a->x.dim[1]);
    return 0;
}

static inline double describe_logprob(const struct cairn_logprob *a, char *out, size_t n)
{
    snprintf(out, n, "logprob %lld %lld -> %lld", (long long)a->z.dim[0], (long long)a->z.dim[1], (long long)a->w.dim[0]);
    return 2.0 * (double)a->z.dim[0] * (double)a->z.dim[1] * (double)a->w.dim[0];
}

static inline double describe_logprob_bwd(const struct cairn_logprob_bwd *a, char *out, size_t n)
{
    snprintf(out, n, "logprob_bwd %lld %lld -> %lld", (long long)a->z.dim[0], (long long)a->z.dim[1], (long long)a->w.dim[0]);
    return (a->dw.buf ? 6.0 : 4.0) * (double)a->z.dim[0] * (double)a->z.dim[1] * (double)a->w.dim[0];
}

static inline double describe_none(const void *a, char *out, size_t n)
{
    (void)a, (void)out, (void)n;
    return 0;
}

#define DESCRIBED(X) X(matmul) X(matmul_grouped) X(rmsnorm) X(logprob) X(logprob_bwd)
#define BY_TYPE(op)  const struct cairn_##op *: describe_##op,
#define DESCRIBE(a)  _Generic((a), DESCRIBED(BY_TYPE) default: describe_none)

#define WATCH(op)                                                                                                                  \
    static enum cairn_status watch_##op(struct cairn_stream *s, const struct cairn_##op *a, struct cairn_error *err)               \
    {                                                                                                                              \
        enum cairn_status st = cairn_stream_wait(s, err);                                                                          \
        double begin = cairn_now_s(), flop = 0;                                                                                    \
        char name[96] = #op;                                                                                                       \
                                                                                                                                   \
        if (st == CAIRN_OK)                                                                                                        \
            st = watch.real.op(s, a, err);                                                                                         \
        if (st == CAIRN_OK)                                                                                                        \
            st = cairn_stream_wait(s, err);                                                                                        \
        flop = DESCRIBE(a)(a, name, sizeof name);                                                                                  \
        watch_note(name, cairn_now_s() - begin, flop);                                                                             \
        return st;                                                                                                                 \
    }
CAIRN_OPS(WATCH)

static inline void watch_begin(struct cairn_compute *k)
{
    memset(&watch, 0, sizeof watch);
    watch.real = k->ops;
#define PUT(op) k->ops.op = watch_##op;
    CAIRN_OPS(PUT)
#undef PUT
}

static inline int by_seconds(const void *a, const void *b)
{
    double x = *(const double *)((const char *)a + sizeof watch.line[0].name),
           y = *(const double *)((const char *)b + sizeof watch.line[0].name);

    return x < y ? 1 : x > y ? -1 : 0;
}

/* Ops again as they were; prints what each cost, `turns` the steps watched. */
static inline void watch_end(struct cairn_compute *k, const char *what, int turns)
{
    double all = 0;

    k->ops = watch.real;
    qsort(watch.line, (size_t)watch.lines, sizeof watch.line[0], by_seconds);
    for (int i = 0; i < watch.lines; i++)
        all += watch.line[i].s;
    printf("# %s: ops alone %.3f ms a step\n#   %8s %6s %6s %9s  op (what is below 0.5 %% left out)\n", what, 1e3 * all / turns, "ms", "share",
           "calls", "TFLOP/s");
    for (int i = 0; i < watch.lines && (i < 12 || watch.line[i].s > 0.005 * all); i++)
        printf("#   %8.3f %5.1f%% %6.1f %9.1f  %s\n", 1e3 * watch.line[i].s / turns, 100 * watch.line[i].s / all,
               (double)watch.line[i].calls / turns, watch.line[i].flop / watch.line[i].s * 1e-12, watch.line[i].name);
    fflush(stdout);
}

#endif
