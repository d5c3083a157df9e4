/* safetensors.h - read and write HuggingFace's safetensors files: one, or many behind an index.
 *
 * Format: uint64 little-endian length of the header, the header (JSON object: name -> {"dtype", "shape",
 * "data_offsets": [begin, end]}, "__metadata__": strings), then the data; offsets count from the end of the header, leave no
 * gap and do not overlap. Source: github.com/huggingface/safetensors, README "Format".
 *
 * Reading streams with pread, maps nothing, holds the headers only. Refused with CAIRN_EDATA before any large allocation: a
 * header longer than 128 MiB or than the file, overlap, gap, end < begin, shape x dtype other than the span, overflow,
 * duplicate names, malformed JSON or UTF-8, trailing bytes, file names with a path in an index.
 * Block FP8: a tensor X of dtype F8_E4M3 (two dimensions) with X_scale_inv beside it (F32 [ceil(rows/128), ceil(cols/128)])
 * is read as X * scale, in fp32, then rounded once to the dtype asked for.
 */
#ifndef CAIRN_CKPT_SAFETENSORS_H
#define CAIRN_CKPT_SAFETENSORS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/status.h"

#define CAIRN_ST_MAX_DIMS 8
#define CAIRN_ST_MAX_HEADER (128 << 20)

struct cairn_st_tensor {
    const char *name;
    const char *word;  /* dtype as the file says: "BF16", "F8_E4M3", "BOOL", ... */
    int dtype;         /* enum cairn_dtype, or -1 for one that only passes through */
    int64_t esize;     /* bytes of an element */
    int ndim;
    int64_t shape[CAIRN_ST_MAX_DIMS];
    int64_t count;     /* elements */
    int64_t bytes;
    int file;          /* index into the files */
    int64_t at;        /* byte offset in that file */
};

struct cairn_st;

/* path: a *.safetensors file, a *.safetensors.index.json, or a directory that holds model.safetensors,
 * model.safetensors.index.json, or adapter_model.safetensors (looked for in this order, as transformers does). Links are
 * followed (HuggingFace's cache is made of them). A missing file is CAIRN_EDATA. */
enum cairn_status cairn_st_open(struct cairn_st **out, const char *path, struct cairn_error *err);
void cairn_st_close(struct cairn_st *s);
int cairn_st_count(const struct cairn_st *s);
const struct cairn_st_tensor *cairn_st_at(const struct cairn_st *s, int i); /* sorted by name (strcmp); borrowed */
const struct cairn_st_tensor *cairn_st_find(const struct cairn_st *s, const char *name); /* NULL if absent */
int cairn_st_files(const struct cairn_st *s);
const char *cairn_st_file(const struct cairn_st *s, int i); /* path */
const json_t *cairn_st_metadata(const struct cairn_st *s);  /* of the first file; NULL if it has none */

/* n bytes from byte `offset` of the tensor, as they are. */
enum cairn_status cairn_st_read(struct cairn_st *s, const struct cairn_st_tensor *t, int64_t offset, void *h_dst, size_t n,
                                struct cairn_error *err);
/* Elements [begin, begin + n) (row-major) as F32 or BF16, from F32, BF16, F16, F64 or F8_E4M3 (dequantised if scales are
 * there); equal dtypes of any kind are copied bit for bit. */
enum cairn_status cairn_st_read_as(struct cairn_st *s, const struct cairn_st_tensor *t, int64_t begin, int64_t n,
                                   enum cairn_dtype as, void *h_dst, struct cairn_error *err);
/* The scales of a block-FP8 tensor, or NULL. */
const struct cairn_st_tensor *cairn_st_scales(const struct cairn_st *s, const struct cairn_st_tensor *t);

/* dtype word of a cairn dtype ("F32", ...). */
const char *cairn_st_word(enum cairn_dtype dtype);

struct cairn_st_decl {
    const char *name;
    const char *word; /* dtype word, known or not, with esize its element's bytes */
    int64_t esize;
    int ndim;
    int64_t shape[CAIRN_ST_MAX_DIMS];
};
struct cairn_st_writer_opts {
    const char *stem;  /* NULL: "model"; files are STEM.safetensors, or STEM-0000I-of-0000N.safetensors and STEM.safetensors.index.json */
    int64_t max_bytes; /* of data in one file; 0: one file. A larger tensor has a file to itself */
};

struct cairn_st_writer;

/* All tensors are declared first (copied). In a file the wider elements come first, otherwise the order stays. Data go
 * to temporary names in dir (made if missing); nothing has its final name before cairn_st_writer_finish. */
enum cairn_status cairn_st_writer_create(struct cairn_st_writer **out, const char *dir, const struct cairn_st_decl *t, int n,
                                         const struct cairn_st_writer_opts *opts, struct cairn_error *err);
/* The next nbytes of tensor i (tensors in any order, the bytes of one in sequence). */
enum cairn_status cairn_st_writer_add(struct cairn_st_writer *w, int i, const void *h_p, size_t nbytes, struct cairn_error *err);
/* All of tensor i from a device tensor of that size; waits for the stream. */
enum cairn_status cairn_st_writer_put(struct cairn_st_writer *w, int i, struct cairn_stream *s, const struct cairn_tensor *t,
                                      struct cairn_error *err);
/* Every tensor must be complete. fsync, final names (an existing file is replaced; the other form, one file or index, of the
 * same stem is removed, so that no reader finds old weights), index last, fsync of dir. */
enum cairn_status cairn_st_writer_finish(struct cairn_st_writer *w, struct cairn_error *err);
void cairn_st_writer_destroy(struct cairn_st_writer *w); /* removes temporaries; NULL is fine */

#endif
