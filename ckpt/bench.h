/* bench.h - how fast shards are written and read here, against bare system calls on the same bytes.
 *
 * Interleaved: raw, shard, raw, shard, ... so that a drifting disk hits both alike. Medians. Files are made in `dir` and
 * removed again.
 */
#ifndef CAIRN_CKPT_BENCH_H
#define CAIRN_CKPT_BENCH_H

#include <stdint.h>

#include "base/status.h"

struct cairn_ckpt_bench {
    int64_t bytes;        /* of bulk in one save */
    int tensors;
    int repeats;
    double raw_save_s;    /* pwrite of the same bytes from memory, fsync, close */
    double save_s;        /* cairn_shard_create .. finish, digests included */
    double save_ratio;    /* median over repeats of raw_save_s / save_s of the pair: 1 is as fast as raw */
    double raw_load_s;    /* pread of the same bytes (page cache as the save left it) */
    double load_s;        /* cairn_reader_box of every tensor, tiles checked */
    double load_ratio;
};

/* `tensors` bf16 tensors, `bytes` in all, `repeats` pairs. */
enum cairn_status cairn_ckpt_bench_run(struct cairn_ckpt_bench *out, const char *dir, int64_t bytes, int tensors, int repeats,
                                       struct cairn_error *err);

#endif
