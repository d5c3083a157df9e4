/* call.h - what the back-ends' calls of ops have in common: tensors are checked against the contract, opened, and closed at the
 * end; the first thing that is wrong is the call's status. Each back-end's internal.h has its own bracket around it; nobody else
 * includes this.
 *
 * The dimension letters of the contract are unified: a letter starts as -1, the first tensor that has it binds it, the others must
 * agree.
 */
#ifndef CAIRN_KERNELS_CALL_H
#define CAIRN_KERNELS_CALL_H

#include <stdarg.h>
#include <stdint.h>

#include "kernels/kernels.h"

#define CALL_MAX_ARGS 20

/* What an argument may be. */
enum {
    T_F32 = 1 << CAIRN_F32,
    T_BF16 = 1 << CAIRN_BF16,
    T_F16 = 1 << CAIRN_F16,
    T_F64 = 1 << CAIRN_F64,
    T_I32 = 1 << CAIRN_I32,
    T_I64 = 1 << CAIRN_I64,
    T_U8 = 1 << CAIRN_U8,
    T_WEIGHT = T_F32 | T_BF16,
    T_SAME_ACT = 1 << 15,
    T_ACT = T_F32 | T_BF16 | T_SAME_ACT, /* f32 or bf16, the same for all T_ACT arguments of the call */
    STRIDED = 1 << 16,                   /* else the tensor must be dense */
    ABSENT = 1 << 17,                    /* may be absent: arg.p is NULL */
    OUT = 1 << 18,                       /* opened for writing (and reading) */
};

/* A tensor as the code of an op takes it: pointer, sizes and strides in elements. Plain data, may be passed to a kernel by value.
 */
struct arg {
    void *p;
    enum cairn_dtype type;
    int ndim;
    int64_t d[CAIRN_MAX_DIMS], s[CAIRN_MAX_DIMS];
};

struct cairn_op_call {
    const char *op;
    const struct cairn_device *dev; /* all tensors live there */
    struct cairn_error *err;
    enum cairn_status st;
    int act; /* type of the T_ACT arguments so far; -1 */
    struct cairn_buffer *open[CALL_MAX_ARGS];
    int n;
};

/* Notes CAIRN_EBUG "op: sentence" unless something is wrong already. */
void cairn_call_fail(struct cairn_op_call *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cairn_call_vfail(struct cairn_op_call *c, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
/* letters: ndim of int64_t *. types: further ones that are taken besides those in what. */
struct arg cairn_call_arg(struct cairn_op_call *c, const char *name, const struct cairn_tensor *t, int what, int types, int ndim,
                          va_list letters);
/* Closes what was opened; the status. */
enum cairn_status cairn_call_end(struct cairn_op_call *c);

#endif
