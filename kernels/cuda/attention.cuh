/* attention.cuh - what the files of sparse attention share: the job of one call, and which rows go together.
 *
 * Rows by position. The wgmma kernels work on tiles of 64 (row, head) pairs. With H <= 32 heads a tile has room for
 * G = min(64 / H, 16) rows, which is worth it if they share keys. So a row whose position is below `reach` goes by position: its
 * places are all positions that it sees, in order, and those that it does not choose have P = 0. reach is T, whose rows choose all
 * they see, or with G > 1 twice that: half of the work is then for nothing, but done for G rows at a time. Other rows go by
 * their list. Positions, H and T alone decide, so that training and decode share bits.
 *
 * Rows that go together. Rows by position of one sequence go together where their positions fall into one aligned group of G and
 * stand in consecutive rows. P = 0 exactly at places that a row does not see, so that its sums are those that it has alone; a
 * key of the group that is not finite (0 * NaN) keeps the next row out of the group. A key that is not finite reaches all rows by
 * position behind it, whether they choose it or not. Which rows go together depends on positions, not on where they stand.
 */
#ifndef CAIRN_KERNELS_CUDA_ATTENTION_CUH
#define CAIRN_KERNELS_CUDA_ATTENTION_CUH

#include "keys.cuh"

/* Which rows of a backward call go how; made on the device (attention_rows.cu). A row that chooses all of its positions is `all`.
 * The chain of a sequence: its first stretch of such rows that stand and count on one by one. What rows of a chain give to their
 * keys is summed tile by tile (attention_bwd_key.cu), in chunks of positions; what the rest gives goes through memory. */
struct attention_rows {
    uint8_t *is;           /* (N) ROW_ ... */
    int32_t *first, *last; /* (B) rows of the chain of sequence b; first > last: none */
    int32_t *item;         /* (B + 1) pieces of work (chunk, key block) before sequence b */
    int32_t *tile;         /* (N) rows with which tiles of `all` rows begin, ascending */
    int32_t *rest;         /* (N) rows in no chain, ascending */
    int32_t *count;        /* ROWS_... */
    int32_t *turn;         /* (S) at start[b] + 64 i: how many chunks are in dk already */
    float *D;              /* (N, H) of `all` rows */
    int chunk;             /* positions */
};
enum { ROW_ALL = 1, ROW_CHAINED = 2 /* to the row before */, ROW_JOINED = 4 /* in its tile, too */ };
enum { ROWS_TILES, ROWS_REST, ROWS_TICKET, ROWS_COUNTS };

#define KEY_BLOCK 64

/* A tile of the forward: rows n .. n + rows - 1 go together; n < 0: there is none. */
struct attention_tile {
    int32_t n, rows;
};

struct attention_job {
    struct arg q, o, d_o, dq; /* (N, H, W), (N, H, C), (N, H, C), (N, H, W) */
    struct keys keys;
    const int32_t *idx; /* (N, T) */
    float *lse;         /* (N, H) */
    float *dk;          /* (S, W) */
    int64_t N;
    int H, W, C, T, G, reach, words;
    uint64_t *mask; /* (N, words), reach > T: positions that row n chooses, 64 by 64; of tiles that have a row behind T */
    float scale;
    /* forward, where rows may go together and there are many: (N), the last rows first; else NULL, and each block looks for itself */
    struct attention_tile *tiles;
    uint8_t *joined; /* (N) row n goes with row n - 1 */
    int32_t *ticket; /* of the next tile */
    /* backward: rows n0 .. n0 + run (with rows.rest: of that list), what they give to their keys, and where. A run's length changes
     * no bit. */
    int64_t n0;
    int all_seen;  /* nothing is left for rows.rest; else a fault */
    int run;       /* times parts: */
    void *give;    /* (run, T, W): bf16 in the wgmma kernels, which have a part for 64 heads, else f32 */
    int16_t *slot; /* (S, run): at which place of part i key s stands; -1: nowhere */
    struct attention_rows rows;
};

/* Blocks of keys that the rows of chunk c of a chain see, whose last position is p1. */
__device__ static inline int chunk_keys(int p1, int chunk, int c)
{
    int last = (c + 1) * chunk - 1;

    return (last < p1 ? last : p1) / KEY_BLOCK + 1;
}

/* Do types and shapes fit the wgmma kernels, on this device? */
int attention_wgmma_takes(const struct call *c, const struct attention_job *k);
void attention_wgmma_form(struct attention_job *k); /* G, reach, words */
void attention_wgmma(struct call *c, const struct attention_job *k);
/* Scratch of the forward, and (room not NULL) where its pieces are; then its list of tiles is made, if it has one. */
size_t attention_tiles_room(struct attention_job *k, char *room);
void attention_tiles_make(struct call *c, const struct attention_job *k);
/* Scratch of rows, and (room not NULL) where its pieces are. chunk and D come from the shapes. */
size_t attention_rows_room(struct attention_job *k, char *room);
void attention_rows_make(struct call *c, const struct attention_job *k);
/* dq and D of all rows by position; then what those of chains give to dk. */
void attention_bwd_query(struct call *c, const struct attention_job *k);
void attention_bwd_key(struct call *c, const struct attention_job *k);
/* Query pass of the backward for rows n0 .. n0 + rows of the rest. */
void attention_bwd_wgmma(struct call *c, const struct attention_job *k, int64_t rows);

#endif
