/* keys.cuh - struct cairn_keys on the device: which row holds position p of sequence b. The host checks types and shapes
 * (keys_arg, keys.cu); what stands in device memory is checked where it is used, and a row that nobody has is never touched.
 */
#ifndef CAIRN_KERNELS_CUDA_KEYS_CUH
#define CAIRN_KERNELS_CUDA_KEYS_CUH

#include "kernel.cuh"

struct keys {
    struct arg rows; /* (S, W) */
    const int32_t *pos, *seq, *start, *pages;
    int64_t N, S, B, P;
    int page;
    enum cuda_op op; /* whose fault it is */
    struct fault *fault;
};

/* Letters as in the cpu back-end: binds N, S, W. */
struct keys keys_arg(struct call *c, const struct cairn_keys *k, enum cuda_op op, int64_t *N, int64_t *S, int64_t *W);

/* Positions a sequence may have at most, as far as shapes tell. */
static inline int64_t keys_longest(const struct keys *k)
{
    int64_t most = k->pages ? k->P * k->page : k->S;

    return most < INT32_MAX ? most : INT32_MAX;
}

/* Row of position p of sequence b; -1 (and a fault) if there is none. b is good (keys_see). */
__device__ static inline int64_t key_row(const struct keys *k, int b, int p)
{
    int64_t row;

    if (k->pages) {
        int i = p / k->page, page = i < k->P ? k->pages[(int64_t)b * k->P + i] : -1;

        row = page < 0 ? -1 : (int64_t)page * k->page + (p - i * k->page);
        if (page < 0 || row >= k->S) {
            fault_set(k->fault, k->op, FAULT_PAGE, page);
            return -1;
        }
    } else {
        row = (int64_t)k->start[b] + p;
        if (row < 0 || row >= k->S) {
            fault_set(k->fault, k->op, FAULT_POSITION, p);
            return -1;
        }
    }
    return row;
}

/* Is row n at a position that its sequence has? Else a fault: the row is left out. */
__device__ static inline int keys_see(const struct keys *k, int64_t n)
{
    int b = k->seq[n], p = k->pos[n];

    if (b < 0 || b >= k->B) {
        fault_set(k->fault, k->op, FAULT_INDEX, b);
        return 0;
    }
    if (p < 0) {
        fault_set(k->fault, k->op, FAULT_POSITION, p);
        return 0;
    }
    return key_row(k, b, p) >= 0;
}

/* How many entries of idx (T) are in use, for a row at position pos: lanes of a warp together, all get the number; 0 (and a
 * fault) where the list is empty. Whether it ascends is checked by who reads it (choice_good). */
__device__ static inline int choice_count(const struct keys *k, const int32_t *idx, int T, int pos)
{
    int most = pos < T ? pos + 1 : T, lane = threadIdx.x % 32, count = 0;

    if (idx[most - 1] >= 0) {
        count = most;
    } else {
        for (int j = lane; j < most + lane; j += 32) { /* whole warps go round */
            unsigned used = __ballot_sync(0xffffffffu, j < most && idx[j] >= 0);

            count += used == 0xffffffffu ? 32 : __ffs((int)~used) - 1;
            if (used != 0xffffffffu)
                break;
        }
    }
    if (!count && !lane)
        fault_set(k->fault, k->op, FAULT_CHOICE, idx[0]);
    return count;
}

/* Are entries count .. T - 1 of idx -1? Thread t of `threads` looks at its part. all: the first count are 0, 1, ... as well. The
 * loads of a thread do not wait for each other. */
__device__ static inline void choice_end(const struct keys *k, const int32_t *idx, int T, int count, int all, int t, int threads)
{
    int bad = -1;

#pragma unroll 8
    for (int j = (all ? 0 : count) + t; j < T; j += threads)
        bad = idx[j] != (j < count ? j : -1) ? j : bad;
    if (bad >= 0)
        fault_set(k->fault, k->op, FAULT_CHOICE, idx[bad]);
}

/* Position p at place j > 0 behind position `before`, or at place 0: ascending, and not beyond pos; else a fault. */
__device__ static inline int choice_fits(const struct keys *k, int p, int j, int before, int pos)
{
    if (p < 0 || p > pos || (j && p <= before)) {
        fault_set(k->fault, k->op, FAULT_CHOICE, p);
        return 0;
    }
    return 1;
}

/* Entry j < count of idx. */
__device__ static inline int choice_good(const struct keys *k, const int32_t *idx, int j, int pos)
{
    return choice_fits(k, idx[j], j, j ? idx[j - 1] : -1, pos);
}

#endif
