/* right_impl.h - op by op against the reference: what the parts of leg 0 share (right.h). right.c runs the model and watches; right_copy.c copies
 * what an op is given to the reference's device; right_hold.c holds what both have made against each other, right_terms.c says how large
 * sums are that cancel.
 */
#ifndef CAIRN_TOOLS_CHECK_RIGHT_IMPL_H
#define CAIRN_TOOLS_CHECK_RIGHT_IMPL_H

#include <stddef.h>

#include "tools/check/sides.h"
#include "tools/check/trace.h"

#define REGIONS 20

/* What one op call touches: regions of memory, one copy of each on the reference's device. */
struct region {
    struct cairn_buffer *buf;
    size_t begin, end;        /* bytes in buf */
    struct cairn_buffer *own; /* the copy */
};

struct right {
    struct cairn_sides *x;
    struct cairn_compute ref;
    struct cairn_ops own; /* the run's, behind the trace */
    struct region region[REGIONS];
    int regions;
    union {
        max_align_t align;
        char bytes[sizeof(struct cairn_tensor) * CAIRN_OP_MEMBERS + 256];
    } args; /* the call's, over the copies */
    double tolerance, tolerance_sums; /* tolerance_wide: of what is summed in fp32, whatever it is rounded to afterwards */
    double tolerance_wide;
    int64_t calls, values;
    int64_t late; /* above 0: of ops that look at keys the last rows alone, nothing of others */
    double worst; /* share of the tolerance that was used up at most */
    char worst_at[200];
    struct cairn_error *err;
};

/* Bytes from a tensor's first element to behind its last one; of absent and empty ones 0. */
size_t cairn_right_extent(const struct cairn_tensor *t);
/* Before the op runs: everything it may read, as it is now, and its arguments over the copies. */
enum cairn_status cairn_right_copy(struct right *r, const struct cairn_trace_call *c, struct cairn_error *err);
void cairn_right_copies_free(struct right *r);
/* n bytes of a device's buffer. */
enum cairn_status cairn_right_bytes(struct cairn_compute *k, struct cairn_buffer *buf, size_t at, size_t n, void *h, struct cairn_error *err);

int cairn_right_is_float(enum cairn_dtype t);
/* Choices of experts and keys: may differ where two scores all but tie. */
int cairn_right_is_choice(enum cairn_op_number op);
/* Of one member, what the run made against what the reference made. *choices_differ: set where choices do; then floats are not looked at. */
enum cairn_status cairn_right_hold(struct right *r, const struct cairn_trace_call *c, const struct cairn_op_member *m, int choices_may_differ,
                                   int *choices_differ, struct cairn_error *err);
/* Of an output whose lines are sums that may all but cancel how large each line is by its terms: (lines), caller frees. NULL: it has no such lines,
 * and is as exact as it is large. After the reference has run. */
enum cairn_status cairn_right_terms(struct right *r, const struct cairn_trace_call *c, const struct cairn_op_member *m, double **size,
                                    struct cairn_error *err);
/* The same of one line of a product, asked for when it is not as exact as it is large: what an adapter of low rank adds, or the gradient of one, has
 * lines of few values, which may be small all at once. 0: the op is no product. */
enum cairn_status cairn_right_line_terms(struct right *r, const struct cairn_trace_call *c, int64_t line, double *size, struct cairn_error *err);
/* CAIRN_ENUMERIC: "right: rope at ... (layer 0 attention): its y <what>". */
enum cairn_status cairn_right_finding(const struct cairn_trace_call *c, const char *member, struct cairn_error *err, const char *what);

#endif
