/* describe.h - the op table as data: which members of an op's arguments are tensors, and what becomes of them.
 *
 * For tools that look at ops without knowing each: the gate holds every call of a run against the reference, and finds the first one whose
 * rows differ between trainer and sampler. The contracts themselves stand in kernels.h; this table only says who reads and who writes.
 */
#ifndef CAIRN_KERNELS_DESCRIBE_H
#define CAIRN_KERNELS_DESCRIBE_H

#include "kernels/kernels.h"

enum cairn_op_role {
    CAIRN_OP_IN,     /* read */
    CAIRN_OP_WEIGHT, /* read, and a parameter of the model where the model calls it */
    CAIRN_OP_KEYS,   /* read: rows of keys, of which a row sees those of its sequence alone */
    CAIRN_OP_OUT,    /* wholly written */
    CAIRN_OP_ADDED   /* read and written: +=, in part, or brought up to date */
};

struct cairn_op_member {
    const char *name;
    size_t offset; /* of a struct cairn_tensor in the arguments */
    enum cairn_op_role role;
};

#define CAIRN_OP_MEMBERS 16

struct cairn_op_info {
    const char *name;
    size_t bytes; /* of the arguments */
    int backward; /* a gradient, or the optimiser's */
    struct cairn_op_member member[CAIRN_OP_MEMBERS]; /* up to the first without a name */
};

enum cairn_op_number {
#define CAIRN_OP_NUMBER(op) CAIRN_OP_##op,
    CAIRN_OPS(CAIRN_OP_NUMBER)
#undef CAIRN_OP_NUMBER
        CAIRN_OP_COUNT
};

const struct cairn_op_info *cairn_op_info(enum cairn_op_number op);

/* The member's tensor in the arguments. */
static inline struct cairn_tensor *cairn_op_tensor(void *args, const struct cairn_op_member *m)
{
    return (struct cairn_tensor *)(void *)((char *)args + m->offset);
}

#endif
