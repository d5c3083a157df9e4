/* bench_model.c - a whole model with random weights on one device: how fast it trains and samples, and whether its bits hold.
 *
 *     bench_model CONFIG.json [--backend B] [--act f32|bf16] [--lora RANK] COMMAND... | -
 *
 * COMMAND is one word of arguments joined by commas; "-" reads one a line from stdin and answers each before the next is read, so
 * that somebody else may run something in between (interleave.py). One JSON object a command on stdout, notes on lines with '#'.
 *
 *     train,B,T[,REPEATS[,1]]   forward and backward of B sequences of T tokens, without optimiser: tokens a second (median); 1: gradients
 *                               are cleared and added to, as in the later micro-batches of an update, not written
 *     latent,1|2                from then on: backward of attention in latent form for all sequences, or (2) as the model takes it
 *     ceiling[,N]               a product of N x N matrices and a copy: what `train` compares itself with from then on
 *     step[,REPEATS]            one optimiser update
 *     profile,B,T               the same, op by op
 *     rollout,N,PROMPT,NEW      N prompts in one engine: new tokens a second, the prompts' time included
 *     graphs,N,PROMPT,NEW       the same prompts with and without graphs: equal tokens and bits, and the time of either
 *     decode,N,PROMPT,NEW       N sequences, op by op, of the calls that decode only
 *     timeline,N,PROMPT         one call that decodes N sequences behind prompts: what each kind of op costs in its graph
 *     bits,TOKENS[,SECONDS]     sampled log-probabilities against the trainer's, bit by bit, over mixes of batch, pages and chunks
 *     repeat,N,B,T              N times forward and backward: equal bits of log-probabilities and of every gradient
 *     memory-train,B,T          memory at its peak, against what a stage says before it starts; first of all, one a process
 *     memory-rollout,N,PROMPT,NEW
 *
 * Exit 0, 64 usage, 76 when bits differ, else the status of the first command that failed; those after it are run all the same.
 */
#include "flops.h"
#include "sampling.h"

static double ceiling_tflop_s; /* of a product, once measured */

/* ---- training ------------------------------------------------------------------------------------------------------- */

static enum cairn_status train(struct subject *s, const int64_t *v, int n, struct cairn_error *err)
{
    int repeats = n > 2 ? (int)v[2] : 5;
    struct turn t = {0};
    struct cairn_scores scores;
    double took[100], forward;
    enum cairn_status st = CAIRN_OK;

    repeats = repeats < 1 ? 1 : repeats > 100 ? 100 : repeats;
    TRY(turn_make(&t, s, (int)v[0], v[1], err));
    t.add = n > 3 && v[3];
    for (int i = -2; i < repeats; i++) {
        double begin = cairn_now_s();

        TRY(turn_run(&t, s, &scores, NULL, err));
        if (i >= 0)
            took[i] = cairn_now_s() - begin;
    }
    TRY(turn_run(&t, s, &scores, &forward, err));
    {
        double m = median(took, repeats), tokens = (double)(v[0] * v[1]);
        struct flops f = flops_of(&s->config, v[0], v[1], s->has_adapter ? s->adapter.lora[0].rank : 0);
        double rate = (f.forward + f.backward) / m * 1e-12;

        printf("{\"what\":\"train,%lld,%lld\",\"tok_s\":%.1f,\"ms\":%.3f,\"forward_ms\":%.3f,\"least_ms\":%.3f,\"most_ms\":%.3f,"
               "\"pass_gb\":%.3f,\"model_tflop\":%.3f,\"tflop_s\":%.1f,\"of_product\":%.3f}\n",
               (long long)v[0], (long long)v[1], tokens / m, 1e3 * m, 1e3 * forward, 1e3 * took[0], 1e3 * took[repeats - 1],
               (double)cairn_pass_bytes(s->pass) * 1e-9, (f.forward + f.backward) * 1e-12, rate,
               ceiling_tflop_s > 0 ? rate / ceiling_tflop_s : 0);
    }
out:
    turn_free(&t);
    return st;
}

static enum cairn_status latent(struct subject *s, const int64_t *v, int n, struct cairn_error *err)
{
    (void)n;
    (void)err;
    s->k.ops.attention_heads_bwd = v[0] == 1 ? NULL : s->k.backend->ops->attention_heads_bwd;
    return CAIRN_OK;
}

/* What the device can do: a product of three square matrices, and a copy inside its memory. */
static enum cairn_status ceiling(struct subject *s, const int64_t *v, int n, struct cairn_error *err)
{
    const int64_t dim[2] = {n > 0 ? v[0] : 8192, n > 0 ? v[0] : 8192}, count = dim[0] * dim[0];
    struct cairn_buffer *buf[3] = {NULL, NULL, NULL};
    struct cairn_tensor t[3];
    float *h = malloc((size_t)count * sizeof *h);
    double best = 0, moved = 0;
    enum cairn_status st = CAIRN_OK;

    if (!h)
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i < count; i++)
        h[i] = (float)draw(s, 1 << 16) * 0x1p-15f - 1;
    for (int i = 0; i < 3; i++) {
        TRY(cairn_buffer_create(s->k.dev, (size_t)count * cairn_dtype_size(s->k.act), &buf[i], err));
        TRY(cairn_tensor_view(&t[i], buf[i], 0, s->k.act, 2, dim, err));
        TRY(cairn_values_set(&s->k, &t[i], h, count, err));
    }
    for (int turn = 0; turn < 6; turn++) {
        double begin;

        TRY(cairn_stream_wait(&s->k.stream, err));
        begin = cairn_now_s();
        for (int i = 0; i < 4; i++)
            TRY(s->k.ops.matmul(&s->k.stream, &(struct cairn_matmul){.form = CAIRN_NT, .x = t[0], .w = t[1], .y = t[2], .alpha = 1, .segments = 1},
                                err));
        TRY(cairn_stream_wait(&s->k.stream, err));
        best = fmax(best, 4 * 2 * (double)count * (double)dim[0] / (cairn_now_s() - begin) * 1e-12);
        begin = cairn_now_s();
        for (int i = 0; i < 16; i++)
            TRY(cairn_tensor_copy(&s->k.stream, &t[2 - i % 2], &t[i % 2], err));
        TRY(cairn_stream_wait(&s->k.stream, err));
        moved = fmax(moved, 16 * 2 * (double)count * (double)cairn_dtype_size(s->k.act) / (cairn_now_s() - begin) * 1e-9);
    }
    ceiling_tflop_s = best;
    printf("{\"what\":\"ceiling\",\"tflop_s\":%.1f,\"copy_gb_s\":%.1f}\n", best, moved);
out:
    for (int i = 0; i < 3; i++)
        cairn_buffer_destroy(buf[i]);
    free(h);
    return st;
}

static enum cairn_status profile(struct subject *s, const int64_t *v, int n, struct cairn_error *err)
{
    struct turn t = {0};
    struct cairn_scores scores;
    enum cairn_status st = CAIRN_OK;
    char what[64];

    (void)n;
    snprintf(what, sizeof what, "training %lld x %lld", (long long)v[0], (long long)v[1]);
    TRY(turn_make(&t, s, (int)v[0], v[1], err));
    TRY(turn_run(&t, s, &scores, NULL, err));
    cairn_pass_destroy(s->pass);
    s->pass = NULL;
    watch_begin(&s->k);
    st = subject_train_room(s, v[0] * v[1], (int)v[0], err);
    for (int i = 0; st == CAIRN_OK && i < 2; i++)
        st = turn_run(&t, s, &scores, NULL, err);
    watch_end(&s->k, what, 2);
out:
    turn_free(&t);
    return st;
}

static struct cairn_store *trained_weights(struct subject *s)
{
    return s->has_adapter ? &s->adapter_weights : &s->weights;
}

static enum cairn_status step(struct subject *s, const int64_t *v, int n, struct cairn_error *err)
{
    const struct cairn_optimizer_opts o = {.learning_rate = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .publish = CAIRN_BF16};
    int repeats = n > 0 ? (int)v[0] : 3;
    double took[100], norm, lr;
    enum cairn_status st = CAIRN_OK;

    repeats = repeats < 1 ? 1 : repeats > 100 ? 100 : repeats;
    if (!s->pass)
        TRY(subject_train_room(s, 256, 1, err));
    if (!s->has_optimizer) {
        TRY(cairn_optimizer_create(&s->optimizer, subject_trained(s), &s->k, err));
        s->has_optimizer = 1;
        TRY(cairn_optimizer_start(&s->optimizer, trained_weights(s), err));
    }
    for (int i = -1; i < repeats; i++) {
        double begin = cairn_now_s();

        TRY(cairn_optimizer_step(&s->optimizer, &o, &s->grads, trained_weights(s), &norm, &lr, err));
        TRY(cairn_stream_wait(&s->k.stream, err));
        if (i >= 0)
            took[i] = cairn_now_s() - begin;
    }
    printf("{\"what\":\"step\",\"ms\":%.3f,\"elements\":%lld}\n", 1e3 * median(took, repeats), (long long)subject_trained(s)->elements);
out:
    return st;
}

/* a - b == 0 everywhere, on the device: sums of squares of the differences, which NaN makes no number. b is spoiled. */
static enum cairn_status same(struct subject *s, const struct cairn_tensor *a, const struct cairn_tensor *b,
                              const struct cairn_tensor *sum, double *square, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(s->k.ops.axpby(&s->k.stream, &(struct cairn_axpby){.x = *a, .y = *b, .a = 1, .b = -1}, err));
    TRY(s->k.ops.sumsq(&s->k.stream, &(struct cairn_sumsq){.x = *b, .out = *sum}, err));
    TRY(cairn_tensor_get(&s->k.stream, sum, square, sizeof *square, err));
out:
    return st;
}

static enum cairn_status repeat(struct subject *s, const int64_t *v, int n, struct cairn_error *err)
{
    struct turn t = {0};
    struct cairn_scores scores;
    struct cairn_store first = {0};
    struct cairn_buffer *buf = NULL;
    struct cairn_tensor sum;
    const int64_t one = 1;
    int64_t rows = v[1] * v[2], bad_rows = 0, bad_runs = 0;
    float *want = malloc((size_t)rows * sizeof *want + 1), *got = malloc((size_t)rows * sizeof *got + 1);
    double square = 0, norm = 0;
    enum cairn_status st = CAIRN_OK;

    (void)n;
    if (!want || !got)
        TRY(CAIRN_NOMEM(err));
    TRY(turn_make(&t, s, (int)v[1], v[2], err));
    TRY(cairn_store_create(&first, subject_trained(s), s->k.dev, 1, err));
    TRY(cairn_buffer_create(s->k.dev, sizeof(double), &buf, err));
    TRY(cairn_tensor_view(&sum, buf, 0, CAIRN_F64, 1, &one, err));
    for (int64_t i = 0; i < v[0]; i++) {
        TRY(turn_run(&t, s, &scores, NULL, err));
        TRY(cairn_tensor_get(&s->k.stream, &scores.logprob, i ? got : want, (size_t)rows * sizeof *got, err));
        if (!i) {
            TRY(cairn_tensor_copy(&s->k.stream, &first.flat, &s->grads.flat, err));
            TRY(s->k.ops.sumsq(&s->k.stream, &(struct cairn_sumsq){.x = s->grads.flat, .out = sum}, err));
            TRY(cairn_tensor_get(&s->k.stream, &sum, &norm, sizeof norm, err));
            continue;
        }
        for (int64_t r = 0; r < rows; r++)
            bad_rows += memcmp(&want[r], &got[r], sizeof *got) != 0;
        TRY(same(s, &first.flat, &s->grads.flat, &sum, &square, err));
        bad_runs += !(square == 0);
    }
    unequal += bad_rows || bad_runs || !(norm > 0) || !isfinite(norm);
    printf("{\"what\":\"repeat\",\"runs\":%lld,\"rows\":%lld,\"grad_norm\":%.9g,\"unequal_logprobs\":%lld,\"runs_with_other_"
           "gradients\":%lld}\n",
           (long long)v[0], (long long)rows, sqrt(norm), (long long)bad_rows, (long long)bad_runs);
out:
    cairn_store_free(&first);
    cairn_buffer_destroy(buf);
    turn_free(&t);
    free(want);
    free(got);
    return st;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

/* What was said against what the device has less free since it was opened. `said` counts no scratch of ops, no graphs and nothing of
 * the driver's; the last column shows all of that. */
static enum cairn_status memory_line(struct subject *s, const char *what, const struct cairn_footprint *f, size_t asked, struct cairn_error *err)
{
    size_t left, total;
    char text[256];
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_stream_wait(&s->k.stream, err));
    TRY(cairn_device_memory(s->k.dev, &left, &total, err));
    cairn_footprint_text(f, text, sizeof text);
    printf("# %s: %s\n", what, text);
    printf("{\"what\":\"memory, %s\",\"said_gb\":%.4f,\"buffers_gb\":%.4f,\"device_gb\":%.4f,\"said_of_buffers\":%.4f,\"said_of_device\":%.4f}\n",
           what, (double)f->total * 1e-9, (double)asked * 1e-9, (double)(s->left - left) * 1e-9, (double)f->total / (double)asked,
           s->left > left ? (double)f->total / (double)(s->left - left) : 0);
out:
    return st;
}

static size_t weights_bytes(const struct subject *s)
{
    return s->weights.buf->bytes + (s->has_adapter ? s->adapter_weights.buf->bytes : 0);
}

/* The peak of training and of sampling against the arithmetic that stages go by (model/footprint.h). One of the two a process: what
 * ops keep as scratch stays. */
static enum cairn_status memory_train(struct subject *s, const int64_t *v, int n, struct cairn_error *err)
{
    struct cairn_footprint_opts o = {.config = &s->config,
                                     .table = &s->table,
                                     .adapter = s->has_adapter ? &s->adapter : NULL,
                                     .act = s->k.act,
                                     .segments = 1,
                                     .pass = {.max_rows = v[0] * v[1], .max_seqs = (int)v[0], .train = 1}};
    struct cairn_footprint f;
    struct cairn_scores scores;
    struct turn t = {0};
    enum cairn_status st = CAIRN_OK;

    (void)n;
    TRY(cairn_footprint(&o, &f, err));
    TRY(turn_make(&t, s, (int)v[0], v[1], err));
    TRY(step(s, (const int64_t[]){1}, 1, err));
    TRY(turn_run(&t, s, &scores, NULL, err));
    TRY(memory_line(s, "training", &f, weights_bytes(s) + s->grads.buf->bytes + 3 * s->optimizer.master.buf->bytes + cairn_pass_bytes(s->pass), err));
out:
    turn_free(&t);
    return st;
}

static enum cairn_status memory_rollout(struct subject *s, const int64_t *v, int n, struct cairn_error *err)
{
    const struct cairn_engine_opts o = engine_opts((int)v[0], 64, 8192, v[1] + v[2], 1);
    struct cairn_engine *e = NULL;
    struct cairn_footprint f;
    struct rows p = {0};
    int64_t tokens = 0;
    enum cairn_status st = CAIRN_OK;

    (void)n;
    TRY(cairn_engine_footprint(&s->m, &o, &f, err));
    TRY(rows_random(&p, s, (int)v[0], v[1], err));
    TRY(cairn_engine_create(&e, &s->m, &o, err));
    for (int i = 0; i < v[0]; i++)
        TRY(submit(e, &p, i, v[2], 1, err));
    TRY(cairn_engine_run(e, forget, &tokens, err));
    TRY(memory_line(s, "sampling", &f, weights_bytes(s) + cairn_engine_bytes(e), err));
out:
    cairn_engine_destroy(e);
    rows_free(&p);
    return st;
}

/* ---- commands ------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int least, most; /* numbers */
    enum cairn_status (*run)(struct subject *s, const int64_t *v, int n, struct cairn_error *err);
} commands[] = {
    {"train", 2, 4, train},   {"step", 0, 1, step}, {"profile", 2, 2, profile}, {"rollout", 3, 3, rollout},
    {"decode", 3, 3, decode}, {"bits", 1, 2, bits}, {"repeat", 3, 3, repeat},   {"memory-train", 2, 2, memory_train},
    {"memory-rollout", 3, 3, memory_rollout},
    {"graphs", 3, 3, graphs}, {"timeline", 2, 2, timeline}, {"ceiling", 0, 1, ceiling},
    {"latent", 1, 1, latent},
};

static enum cairn_status command(struct subject *s, char *text, struct cairn_error *err)
{
    char *save, *name = strtok_r(text, ", \n", &save), *word;
    int64_t v[4];
    int n = 0;

    while (n < 4 && (word = strtok_r(NULL, ", \n", &save)))
        v[n++] = strtoll(word, NULL, 10);
    for (size_t i = 0; name && i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(name, commands[i].name) && n >= commands[i].least && n <= commands[i].most) {
            for (int j = 0; j < n; j++)
                if (v[j] < 1)
                    return cairn_fail(err, CAIRN_EUSAGE, "%s: number %d is below 1", name, j + 1);
            return commands[i].run(s, v, n, err);
        }
    return cairn_fail(err, CAIRN_EUSAGE, "%s: no such command, or not with %d numbers", name ? name : "(nothing)", n);
}

int main(int argc, char **argv)
{
    struct subject s = {0};
    struct cairn_compute_opts o = {.backend = "cuda"};
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    const char *config = NULL;
    char line[256];
    double begin = cairn_now_s();
    int i = 1, lora = 0;

    for (; i < argc && (!config || argv[i][0] == '-') && strcmp(argv[i], "-"); i++) {
        if (!strcmp(argv[i], "--backend") && i + 1 < argc)
            o.backend = argv[++i];
        else if (!strcmp(argv[i], "--act") && i + 1 < argc)
            o.act = argv[++i];
        else if (!strcmp(argv[i], "--lora") && i + 1 < argc)
            lora = atoi(argv[++i]);
        else if (argv[i][0] != '-' && !config)
            config = argv[i];
        else
            break;
    }
    if (!config || i == argc) {
        fprintf(stderr, "usage: bench_model CONFIG.json [--backend B] [--act f32|bf16] [--lora RANK] COMMAND... | -\n"
                        "  bench_model tests/gpu/glm52_2b.json train,4,1024 rollout,64,128,64\n"
                        "  bench_model tests/gpu/glm52_small.json --backend cpu --act bf16 bits,2000 repeat,3,2,64\n");
        return CAIRN_EUSAGE;
    }
    TRY(subject_open(&s, config, &o, lora, &err));
    printf("# %s on %s: %s, %lld parameters, %lld of an adapter, there after %.1f s\n", config, s.k.dev->name, s.k.numerics,
           (long long)s.table.elements, (long long)(lora ? s.adapter.table.elements : 0), cairn_now_s() - begin);
    fflush(stdout);
    for (int lines = !strcmp(argv[i], "-"); lines ? fgets(line, sizeof line, stdin) != NULL : i < argc; i += !lines) {
        enum cairn_status each;

        if (!lines)
            snprintf(line, sizeof line, "%s", argv[i]);
        each = command(&s, line, &err);
        if (each != CAIRN_OK)
            fprintf(stderr, "bench_model: %s: %s\n", line, err.text); /* the next may still work */
        st = st == CAIRN_OK ? each : st;
        fflush(stdout);
    }
    if (unequal)
        fprintf(stderr, "bench_model: bits that should be equal are not\n");
    if (st == CAIRN_OK && unequal)
        st = CAIRN_ENUMERIC;
out:
    if (!s.m.k)
        fprintf(stderr, "bench_model: %s\n", err.text);
    subject_close(&s);
    return st;
}
