/* tape.h - the ops of one call of a model, written down with their arguments, and what each kind costs where it stands.
 *
 * The tape is played into a graph, as it is, and again with each op of one name done twice in a row: what that takes more is what the
 * name costs once more in the step, launches and gaps included. Numbers stay those of the call (leaving ops out instead would change
 * which experts are chosen, and with them what everything else takes), but for ops that add to what they find. The second time
 * finds weights of up to the L2's size in it: where bytes count, the cost is a lower bound. Floors: operations at 770 TFLOP/s or bytes
 * at 4.1 TB/s.
 */
#ifndef TESTS_GPU_TAPE_H
#define TESTS_GPU_TAPE_H

#include "subject.h"

#define TAPE_MOST 4096

enum tape_op {
#define TAPE_ID(op) TAPE_##op,
    CAIRN_OPS(TAPE_ID)
#undef TAPE_ID
};

struct tape_entry {
    enum tape_op which;
    char name[96];
    double flop, bytes;
    union {
#define TAPE_FIELD(op) struct cairn_##op op;
        CAIRN_OPS(TAPE_FIELD)
#undef TAPE_FIELD
    } a;
};

static struct {
    struct cairn_ops real;
    struct tape_entry *entry;
    int n;
    double positions; /* that a row sees, for what attention reads */
} tape;

static inline double tape_bytes(const struct cairn_tensor *t)
{
    return (double)cairn_tensor_count(t) * (double)cairn_dtype_size(t->dtype);
}

/* Name, operations and least bytes of ops that a decoding call has; what is missing counts none. */
static inline void tape_describe(struct tape_entry *e)
{
#define B(op, field) tape_bytes(&e->a.op.field)
    double rows, used;

    switch (e->which) {
    case TAPE_matmul:
        e->flop = describe_matmul(&e->a.matmul, e->name, sizeof e->name);
        e->bytes = B(matmul, x) + B(matmul, w) + B(matmul, y) * (e->a.matmul.accumulate ? 2 : 1);
        break;
    case TAPE_matmul_grouped:
        e->flop = describe_matmul_grouped(&e->a.matmul_grouped, e->name, sizeof e->name);
        rows = (double)e->a.matmul_grouped.x.dim[0];
        used = (double)e->a.matmul_grouped.w.dim[0];
        used = used * (1 - pow(1 - 1 / used, rows)); /* groups that have a row, on average */
        e->bytes = B(matmul_grouped, x) + B(matmul_grouped, y) + B(matmul_grouped, w) * used / (double)e->a.matmul_grouped.w.dim[0];
        break;
    case TAPE_rmsnorm:
        describe_rmsnorm(&e->a.rmsnorm, e->name, sizeof e->name);
        e->bytes = B(rmsnorm, x) + B(rmsnorm, y);
        break;
    case TAPE_layernorm: e->bytes = B(layernorm, x) + B(layernorm, y); break;
    case TAPE_rope: e->bytes = B(rope, x) + B(rope, y); break;
    case TAPE_swiglu: e->bytes = B(swiglu, a) + B(swiglu, u) + B(swiglu, h); break;
    case TAPE_combine: e->bytes = B(combine, x) + B(combine, y) * 2; break;
    case TAPE_router: e->bytes = B(router, r); break;
    case TAPE_dispatch: e->bytes = B(dispatch, token) + B(dispatch, where); break;
    case TAPE_rows: /* as many as dst has, or as there are indexes */
        rows = (double)(e->a.rows.src_index.buf   ? e->a.rows.src_index.dim[0]
                        : e->a.rows.dst_index.buf ? e->a.rows.dst_index.dim[0]
                                                  : e->a.rows.src.dim[0]);
        e->bytes = 2 * rows * (double)e->a.rows.dst.dim[1] * (double)cairn_dtype_size(e->a.rows.dst.dtype);
        break;
    case TAPE_attention:
        rows = (double)e->a.attention.q.dim[0] * tape.positions;
        e->flop = 2 * rows * (double)e->a.attention.q.dim[1] * (double)(e->a.attention.q.dim[2] + e->a.attention.o.dim[2]);
        e->bytes = B(attention, q) + B(attention, o) + rows * (double)e->a.attention.q.dim[2] * (double)cairn_dtype_size(e->a.attention.q.dtype);
        break;
    case TAPE_sample: e->bytes = B(sample, logits); break;
    default: break;
    }
#undef B
}

#define TAPE_WRITE(op)                                                                                                             \
    static enum cairn_status tape_write_##op(struct cairn_stream *s, const struct cairn_##op *a, struct cairn_error *err)          \
    {                                                                                                                              \
        if (tape.n < TAPE_MOST) {                                                                                                  \
            struct tape_entry *e = &tape.entry[tape.n++];                                                                          \
                                                                                                                                   \
            *e = (struct tape_entry){.which = TAPE_##op, .name = #op};                                                                \
            e->a.op = *a;                                                                                                          \
            tape_describe(e);                                                                                                      \
        }                                                                                                                          \
        return tape.real.op(s, a, err);                                                                                            \
    }
CAIRN_OPS(TAPE_WRITE)

static inline enum cairn_status tape_begin(struct cairn_compute *k, double positions, struct cairn_error *err)
{
    tape.entry = calloc(TAPE_MOST, sizeof *tape.entry);
    if (!tape.entry)
        return CAIRN_NOMEM(err);
    tape.n = 0;
    tape.positions = positions;
    tape.real = k->ops;
#define PUT(op) k->ops.op = tape_write_##op;
    CAIRN_OPS(PUT)
#undef PUT
    return CAIRN_OK;
}

static inline void tape_end(struct cairn_compute *k)
{
    k->ops = tape.real;
}

static inline enum cairn_status tape_play(struct cairn_stream *s, const char *twice, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0, again = 0; i < tape.n && st == CAIRN_OK; i += !again) {
        const struct tape_entry *e = &tape.entry[i];

        again = !again && twice && !strcmp(e->name, twice);
        switch (e->which) {
#define PLAY(op)                                                                                                                   \
    case TAPE_##op:                                                                                                                \
        st = tape.real.op(s, &e->a.op, err);                                                                                       \
        break;
            CAIRN_OPS(PLAY)
#undef PLAY
        }
    }
    return st;
}

/* Milliseconds of the tape as a graph, launched one behind the other; the least of a few runs. */
static inline enum cairn_status tape_time(struct cairn_stream *s, const char *twice, double *ms, struct cairn_error *err)
{
    struct cairn_graph g = {0};
    const int turns = 10;
    enum cairn_status st, end;

    TRY(tape_play(s, twice, err)); /* who has to choose or to grow does it here */
    TRY(cairn_capture_begin(s, err));
    st = tape_play(s, twice, err);
    end = cairn_capture_end(s, st == CAIRN_OK ? &g : NULL, st == CAIRN_OK ? err : NULL);
    if (st != CAIRN_OK || end != CAIRN_OK)
        return st != CAIRN_OK ? st : end;
    *ms = -1;
    for (int run = -1; run < 3; run++) {
        double begin;

        TRY(cairn_stream_wait(s, err));
        begin = cairn_now_s();
        for (int i = 0; i < turns; i++)
            TRY(cairn_graph_launch(&g, s, err));
        TRY(cairn_stream_wait(s, err));
        begin = 1e3 * (cairn_now_s() - begin) / turns;
        if (run >= 0 && (*ms < 0 || begin < *ms))
            *ms = begin;
    }
out:
    cairn_graph_destroy(&g);
    return st;
}

/* The table: each name, its calls, what it costs, its floor. Frees the tape. */
static inline enum cairn_status tape_table(struct cairn_stream *s, const char *what, struct cairn_error *err)
{
    double whole, floor_all = 0, cost_all = 0;
    enum cairn_status st = CAIRN_OK;

    TRY(tape_time(s, NULL, &whole, err));
    printf("# %s: %.4f ms as a graph, %d ops\n#   %8s %6s %8s %8s %8s  op\n", what, whole, tape.n, "us", "calls", "us/call", "floor", "loses");
    for (int i = 0; i < tape.n; i++) {
        const char *name = tape.entry[i].name;
        double ms, floor = 0;
        int calls = 0, seen = 0;

        for (int j = 0; j < i && !seen; j++)
            seen = !strcmp(tape.entry[j].name, name);
        if (seen)
            continue;
        for (int j = i; j < tape.n; j++)
            if (!strcmp(tape.entry[j].name, name)) {
                calls++;
                floor += fmax(tape.entry[j].flop / 770e6, tape.entry[j].bytes / 4.1e6);
            }
        TRY(tape_time(s, name, &ms, err));
        printf("#   %8.1f %6d %8.2f %8.1f %8.1f  %s\n", 1e3 * (ms - whole), calls, 1e3 * (ms - whole) / calls, floor, 1e3 * (ms - whole) - floor,
               name);
        fflush(stdout);
        floor_all += floor;
        cost_all += ms - whole;
    }
    printf("{\"what\":\"%s\",\"graph_ms\":%.4f,\"ops\":%d,\"floor_ms\":%.4f,\"sum_of_costs_ms\":%.4f}\n", what, whole, tape.n, 1e-3 * floor_all,
           cost_all);
out:
    free(tape.entry);
    tape.entry = NULL;
    return st;
}

#endif
