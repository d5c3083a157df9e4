/* memory.c - see shim.h: allocations, counted by themselves, which may fail. */
#include "tests/faults/shim/shim.h"

#include <stdatomic.h>
#include <stdlib.h>

static atomic_long allocs;

long shim_allocated(void)
{
    return atomic_load(&allocs);
}

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t m, size_t n);
void *__libc_realloc(void *p, size_t n);

/* 1: this allocation is to fail. */
static int starve(void)
{
    long k;

    if (!shim_active || !(shim_plan.ops >> OP_ALLOC & 1))
        return 0;
    k = atomic_fetch_add(&allocs, 1) + 1;
    if (!shim_plan.n || !(k == shim_plan.n || (shim_plan.on && k > shim_plan.n)))
        return 0;
    if (k == shim_plan.n)
        shim_tell("fire %ld alloc dir 0 /\n", k);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n)
{
    return starve() ? NULL : __libc_malloc(n);
}

void *calloc(size_t m, size_t n)
{
    return starve() ? NULL : __libc_calloc(m, n);
}

void *realloc(void *p, size_t n)
{
    return starve() ? NULL : __libc_realloc(p, n);
}
