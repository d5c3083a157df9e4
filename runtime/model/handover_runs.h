/* handover_runs.h - the tables of ops transfer, tiles and ship for a handover: made once on the host, kept on the device.
 *
 * A table is many calls' rows, one after the other; a call takes the rows between two marks. For handover*.c and sums.c.
 */
#ifndef CAIRN_MODEL_HANDOVER_RUNS_H
#define CAIRN_MODEL_HANDOVER_RUNS_H

#include "kernels/backend.h"
#include "world/transit.h"

/* One call's rows, and what the op wants to know of them. */
struct cairn_runs_call {
    int64_t first, rows;
    int64_t count; /* elements or units */
};

struct cairn_runs {
    int width; /* CAIRN_TRANSFER_RUN, CAIRN_TILES_RUN or CAIRN_SHIP_RUN */
    int64_t *h, rows, room;
    struct cairn_buffer *buf; /* after cairn_runs_upload */
    int64_t most; /* rows of the longest call */
};

void cairn_runs_free(struct cairn_runs *r);
/* Calls are made in order: begin, add ..., end. */
struct cairn_runs_call cairn_runs_begin(const struct cairn_runs *r);
void cairn_runs_end(struct cairn_runs *r, struct cairn_runs_call *c);
enum cairn_status cairn_runs_upload(struct cairn_runs *r, struct cairn_compute *k, struct cairn_error *err);

/* Bytes from one index to the next in a dense part, for each dimension. */
void cairn_runs_steps(const struct cairn_transit_tensor *t, const int64_t *local, int64_t step[CAIRN_MAX_DIMS]);
/* The elements of a piece, from element x on (a step between blocks) to element y on; joined with the row before where both go on.
 */
enum cairn_status cairn_runs_add_transfer(struct cairn_runs *r, struct cairn_runs_call *c, const struct cairn_transit_piece *q,
                                          int64_t x, int64_t x_step, int64_t y, int64_t y_step, struct cairn_error *err);
/* The tiles of a piece that begins at byte `at` of a memory with these steps; of a table of ship (its width says so) with the
 * elements that are on their way, from where they lie at the holder. A stack's elements go by their own names. */
enum cairn_status cairn_runs_add_tiles(struct cairn_runs *r, struct cairn_runs_call *c, const struct cairn_transit_tensor *t,
                                       const struct cairn_transit_piece *q, size_t at, const int64_t step[CAIRN_MAX_DIMS], struct cairn_error *err);

/* Enqueue one call. x and y: whole buffers. out: i64 (rows, 2) from row `at` of a buffer. */
enum cairn_status cairn_runs_transfer(const struct cairn_runs *r, const struct cairn_runs_call *c, struct cairn_compute *k,
                                      struct cairn_stream *s, struct cairn_buffer *x, enum cairn_dtype from, struct cairn_buffer *y,
                                      enum cairn_dtype to, struct cairn_error *err);
enum cairn_status cairn_runs_tiles(const struct cairn_runs *r, const struct cairn_runs_call *c, struct cairn_compute *k,
                                   struct cairn_stream *s, struct cairn_buffer *x, struct cairn_buffer *out, int64_t at,
                                   struct cairn_error *err);
enum cairn_status cairn_runs_ship(const struct cairn_runs *r, const struct cairn_runs_call *c, struct cairn_compute *k,
                                  struct cairn_stream *s, struct cairn_buffer *x, enum cairn_dtype from, struct cairn_buffer *y,
                                  enum cairn_dtype to, struct cairn_buffer *out, int64_t at, struct cairn_error *err);
/* Room for n sums, two words each, in pinned host memory: a kernel writes them, after a wait for its stream the host reads
 * them. A copy of them would queue behind those of the chunks. */
struct cairn_runs_sums {
    struct cairn_buffer *buf;
    int64_t *h;
    size_t bytes;
};
enum cairn_status cairn_runs_sums_create(struct cairn_runs_sums *out, int64_t n, struct cairn_device *dev, struct cairn_error *err);
void cairn_runs_sums_free(struct cairn_runs_sums *s);
/* The sum of a call whose rows are in their own places. */
struct cairn_digest cairn_runs_sum(const struct cairn_runs_call *c, const int64_t *h);

#endif
