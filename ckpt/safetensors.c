/* safetensors.c - the reader of safetensors.h. Everything that a header says is checked when the file is opened; after
 * that a tensor is a file, an offset and a size that lie within it. */
#include "ckpt/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "ckpt/convert.h"

#define MAX_FILES 65536
#define CHUNK ((int64_t)64 << 10) /* elements converted at a time */
#define FP8_BLOCK 128

static const struct {
    const char *word;
    int dtype; /* enum cairn_dtype, -1: passes through */
    int64_t esize;
} words[] = {
    {"F32", CAIRN_F32, 4}, {"BF16", CAIRN_BF16, 2}, {"F16", CAIRN_F16, 2}, {"F64", CAIRN_F64, 8}, {"I32", CAIRN_I32, 4},
    {"I64", CAIRN_I64, 8}, {"U8", CAIRN_U8, 1},     {"F8_E4M3", CAIRN_F8E4M3, 1},
    {"I8", -1, 1},         {"I16", -1, 2},          {"U16", -1, 2},        {"U32", -1, 4},        {"U64", -1, 8},
    {"BOOL", -1, 1},       {"F8_E5M2", -1, 1},      {"F8_E8M0", -1, 1},    {"C64", -1, 8},
};

struct st_file {
    char *path;
    int fd;
    int64_t size;
};

struct cairn_st {
    struct cairn_arena *arena; /* names */
    struct st_file *file;
    int nfiles;
    struct cairn_st_tensor *tensor; /* (n) sorted by name */
    int n, cap;
    json_t *metadata;
    const struct cairn_st_tensor *scaled; /* whose scales lie in `scale` */
    float *scale;
    int64_t scale_cols;
};

const char *cairn_st_word(enum cairn_dtype dtype)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].dtype == (int)dtype)
            return words[i].word;
    return NULL;
}

/* --- headers --- */

static enum cairn_status get_shape(struct cairn_st_tensor *t, const json_t *shape, const char *where, struct cairn_error *err)
{
    if (!json_is_array(shape) || json_array_size(shape) > CAIRN_ST_MAX_DIMS)
        return cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s: no shape of at most %d dimensions", where, t->name, CAIRN_ST_MAX_DIMS);
    t->ndim = (int)json_array_size(shape);
    t->count = 1;
    for (int d = 0; d < t->ndim; d++) {
        const json_t *v = json_array_get(shape, (size_t)d);

        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s: dimension %d is no size", where, t->name, d);
        t->shape[d] = json_integer_value(v);
        if (!cairn_mul_i64(t->count, t->shape[d], &t->count))
            return cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s: its size overflows", where, t->name);
    }
    if (!cairn_mul_i64(t->count, t->esize, &t->bytes))
        return cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s: its size overflows", where, t->name);
    return CAIRN_OK;
}

/* One member of the header; `base` is where the data begin, `room` how many bytes of them there are. */
static enum cairn_status get_tensor(struct cairn_st_tensor *t, const json_t *v, int64_t base, int64_t room, const char *where,
                                    struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const json_t *offsets = json_object_get(v, "data_offsets"), *b, *e;
    const char *word = json_string_value(json_object_get(v, "dtype"));
    int64_t begin, end;
    size_t i;

    for (i = 0; word && i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i].word, word))
            break;
    if (!word || i == sizeof words / sizeof *words)
        return cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s: unknown dtype \"%.32s\"", where, t->name, word ? word : "");
    t->word = words[i].word;
    t->dtype = words[i].dtype;
    t->esize = words[i].esize;
    TRY(get_shape(t, json_object_get(v, "shape"), where, err));
    b = json_array_get(offsets, 0);
    e = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(e))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s: no data_offsets", where, t->name));
    begin = json_integer_value(b);
    end = json_integer_value(e);
    if (begin < 0 || end < begin || end > room)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s: bytes [%lld, %lld) do not lie within the %lld of the data", where, t->name,
                       (long long)begin, (long long)end, (long long)room));
    if (end - begin != t->bytes)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s: shape and dtype need %lld bytes, data_offsets span %lld", where, t->name,
                       (long long)t->bytes, (long long)(end - begin)));
    t->at = base + begin;
out:
    return st;
}

static int by_place(const void *a, const void *b)
{
    const struct cairn_st_tensor *x = a, *y = b;

    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones first */
}

/* No gap, no overlap, nothing behind. */
static enum cairn_status check_places(struct cairn_st_tensor *t, int n, int64_t base, int64_t size, const char *where, struct cairn_error *err)
{
    int64_t at = base;

    if (n)
        qsort(t, (size_t)n, sizeof *t, by_place);
    for (int i = 0; i < n; i++) {
        if (t[i].at != at)
            return cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s begins at byte %lld of the data, %s byte %lld", where, t[i].name,
                              (long long)(t[i].at - base), t[i].at < at ? "overlapping another up to" : "leaving a gap from",
                              (long long)(at - base));
        at += t[i].bytes;
    }
    if (at != size)
        return cairn_fail(err, CAIRN_EDATA, "%s: %lld bytes behind the last tensor", where, (long long)(size - at));
    return CAIRN_OK;
}

static enum cairn_status check_metadata(const json_t *v, const char *where, struct cairn_error *err)
{
    const char *key;
    json_t *s;

    if (!json_is_object(v))
        return cairn_fail(err, CAIRN_EDATA, "%s: __metadata__ is no object", where);
    json_object_foreach((json_t *)(uintptr_t)v, key, s)
        if (!json_is_string(s))
            return cairn_fail(err, CAIRN_EDATA, "%s: __metadata__: \"%.64s\" is no string", where, key);
    return CAIRN_OK;
}

static enum cairn_status room_for(struct cairn_st *s, size_t more, struct cairn_error *err)
{
    struct cairn_st_tensor *p;

    if (more > INT32_MAX / 2 || s->n > INT32_MAX / 2)
        return cairn_fail(err, CAIRN_EDATA, "too many tensors");
    if (s->n + (int)more <= s->cap)
        return CAIRN_OK;
    if (!(p = realloc(s->tensor, ((size_t)s->n + more) * sizeof *p)))
        return CAIRN_NOMEM(err);
    s->tensor = p;
    s->cap = s->n + (int)more;
    return CAIRN_OK;
}

static enum cairn_status open_regular(struct st_file *f, struct cairn_error *err)
{
    struct stat sb;

    f->fd = open(f->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (f->fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return cairn_fail(err, CAIRN_EDATA, "%s: no such file", f->path);
    if (f->fd < 0 || fstat(f->fd, &sb))
        return cairn_fail_errno(err, errno, "open %s", f->path);
    if (!S_ISREG(sb.st_mode))
        return cairn_fail(err, CAIRN_EDATA, "%s: not a regular file", f->path);
    f->size = (int64_t)sb.st_size;
    return CAIRN_OK;
}

/* Adds a file and its tensors. With a map (NULL: none), those that it places elsewhere are left out. */
static enum cairn_status add_file(struct cairn_st *s, char *path, const char *name, const json_t *map, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct st_file *f = &s->file[s->nfiles];
    unsigned char len8[8];
    char *text = NULL;
    json_t *header = NULL, *v;
    const char *key;
    uint64_t len = 0;
    int first = s->n, k;

    f->path = path;
    f->fd = -1;
    s->nfiles++;
    TRY(open_regular(f, err));
    if (f->size < 8)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: truncated: %lld bytes are no safetensors file", path, (long long)f->size));
    TRY(cairn_fd_pread_all(f->fd, len8, 8, 0, path, err));
    for (int i = 7; i >= 0; i--)
        len = len << 8 | len8[i];
    if (len > CAIRN_ST_MAX_HEADER)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: a header of %llu bytes is announced, at most %d are allowed", path, (unsigned long long)len,
                       CAIRN_ST_MAX_HEADER));
    if ((int64_t)len > f->size - 8)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: truncated: a header of %llu bytes is announced, the file has %lld", path,
                       (unsigned long long)len, (long long)f->size));
    if (!(text = malloc((size_t)len + 1)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_fd_pread_all(f->fd, text, (size_t)len, 8, path, err));
    if (!len || text[0] != '{')
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: its header is no JSON object", path));
    TRY(cairn_json_parse(&header, text, (size_t)len, path, err));
    free(text);
    text = NULL;
    TRY(room_for(s, json_object_size(header), err));
    json_object_foreach(header, key, v) {
        struct cairn_st_tensor *t = &s->tensor[s->n];

        if (!strcmp(key, "__metadata__")) {
            TRY(check_metadata(v, path, err));
            if (!s->metadata)
                s->metadata = json_incref(v);
            continue;
        }
        memset(t, 0, sizeof *t);
        t->file = s->nfiles - 1;
        if (!key[0] || !(t->name = cairn_arena_strdup(s->arena, key)))
            TRY(key[0] ? CAIRN_NOMEM(err) : cairn_fail(err, CAIRN_EDATA, "%s: a tensor without a name", path));
        TRY(get_tensor(t, v, 8 + (int64_t)len, f->size - 8 - (int64_t)len, path, err));
        s->n++;
    }
    TRY(check_places(s->tensor + first, s->n - first, 8 + (int64_t)len, f->size, path, err));
    for (int i = k = first; map && i < s->n; i++) {
        const char *file = json_string_value(json_object_get(map, s->tensor[i].name));

        if (!file || !strcmp(file, name))
            s->tensor[k++] = s->tensor[i];
    }
    if (map)
        s->n = k;
out:
    json_decref(header);
    free(text);
    return st;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum cairn_status add_index(struct cairn_st *s, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *index = NULL, *map, *v;
    char *dir = cairn_path_dirname(path), *full;
    const char **names = NULL, *key;
    size_t n = 0, files = 0;

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_json_load(&index, path, CAIRN_ST_MAX_HEADER, err));
    TRY(cairn_json_object(index, "weight_map", &map, path, err));
    if (!(names = malloc((json_object_size(map) + 1) * sizeof *names)))
        TRY(CAIRN_NOMEM(err));
    json_object_foreach(map, key, v) {
        if (!json_is_string(v) || !cairn_name_ok(json_string_value(v)))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: tensor %.100s: \"%.100s\" is no file name", path, key,
                           json_is_string(v) ? json_string_value(v) : ""));
        names[n++] = json_string_value(v);
    }
    qsort(names, n, sizeof *names, by_text);
    for (size_t i = 0; i < n; i++)
        if (!i || strcmp(names[i], names[i - 1]))
            names[files++] = names[i];
    if (!files || files > MAX_FILES)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: names %zu files", path, files));
    if (!(s->file = calloc(files, sizeof *s->file)))
        TRY(CAIRN_NOMEM(err));
    for (size_t i = 0; i < files; i++) {
        if (!(full = cairn_path_join(dir, names[i])))
            TRY(CAIRN_NOMEM(err));
        TRY(add_file(s, full, names[i], map, err));
    }
    TRY(CAIRN_OK);
out:
    free(names);
    free(dir);
    if (st == CAIRN_OK && s->n < (int)json_object_size(map)) /* some name of the map is in none of its files; say which */
        json_object_foreach(map, key, v) {
            int found = 0;

            for (int i = 0; i < s->n && !found; i++)
                found = !strcmp(s->tensor[i].name, key);
            if (!found) {
                st = cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s is not in %.128s", path, key, json_string_value(v));
                break;
            }
        }
    json_decref(index);
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct cairn_st_tensor *)a)->name, ((const struct cairn_st_tensor *)b)->name);
}

static enum cairn_status find_in(const char *dir, char **out, struct cairn_error *err)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *p = cairn_path_join(dir, names[i]);

        if (!p)
            return CAIRN_NOMEM(err);
        if (cairn_path_exists(p)) {
            *out = p;
            return CAIRN_OK;
        }
        free(p);
    }
    return cairn_fail(err, CAIRN_EDATA, "%s: holds no model.safetensors, model.safetensors.index.json or adapter_model.safetensors", dir);
}

enum cairn_status cairn_st_open(struct cairn_st **out, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_st *s = calloc(1, sizeof *s);
    char *found = NULL;

    if (!s)
        return CAIRN_NOMEM(err);
    if (!(s->arena = cairn_arena_create()))
        TRY(CAIRN_NOMEM(err));
    if (cairn_path_is_dir(path))
        TRY(find_in(path, &found, err));
    else if (!(found = strdup(path)))
        TRY(CAIRN_NOMEM(err));
    if (cairn_ends_with(found, ".json")) {
        TRY(add_index(s, found, err));
    } else {
        char *own;

        if (!(s->file = calloc(1, sizeof *s->file)) || !(own = strdup(found)))
            TRY(CAIRN_NOMEM(err));
        TRY(add_file(s, own, own, NULL, err));
    }
    if (s->n)
        qsort(s->tensor, (size_t)s->n, sizeof *s->tensor, by_name);
    for (int i = 1; i < s->n; i++)
        if (!strcmp(s->tensor[i - 1].name, s->tensor[i].name))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s is in %s and in %s", found, s->tensor[i].name,
                           s->file[s->tensor[i - 1].file].path, s->file[s->tensor[i].file].path));
    *out = s;
    s = NULL;
out:
    free(found);
    cairn_st_close(s);
    return st;
}

void cairn_st_close(struct cairn_st *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->nfiles; i++) {
        if (s->file[i].fd >= 0)
            close(s->file[i].fd);
        free(s->file[i].path);
    }
    json_decref(s->metadata);
    cairn_arena_destroy(s->arena);
    free(s->file);
    free(s->tensor);
    free(s->scale);
    free(s);
}

int cairn_st_count(const struct cairn_st *s)
{
    return s->n;
}

const struct cairn_st_tensor *cairn_st_at(const struct cairn_st *s, int i)
{
    return &s->tensor[i];
}

static int to_name(const void *key, const void *item)
{
    return strcmp(key, ((const struct cairn_st_tensor *)item)->name);
}

const struct cairn_st_tensor *cairn_st_find(const struct cairn_st *s, const char *name)
{
    return s->n ? bsearch(name, s->tensor, (size_t)s->n, sizeof *s->tensor, to_name) : NULL;
}

int cairn_st_files(const struct cairn_st *s)
{
    return s->nfiles;
}

const char *cairn_st_file(const struct cairn_st *s, int i)
{
    return s->file[i].path;
}

const json_t *cairn_st_metadata(const struct cairn_st *s)
{
    return s->metadata;
}

/* --- data --- */

enum cairn_status cairn_st_read(struct cairn_st *s, const struct cairn_st_tensor *t, int64_t offset, void *h_dst, size_t n,
                                struct cairn_error *err)
{
    const struct st_file *f = &s->file[t->file];

    if (offset < 0 || offset > t->bytes || n > (size_t)(t->bytes - offset))
        return cairn_fail(err, CAIRN_EBUG, "%s: tensor %.200s has %lld bytes, [%lld, +%zu) was asked for", f->path, t->name,
                          (long long)t->bytes, (long long)offset, n);
    return n ? cairn_fd_pread_all(f->fd, h_dst, n, t->at + offset, f->path, err) : CAIRN_OK;
}

const struct cairn_st_tensor *cairn_st_scales(const struct cairn_st *s, const struct cairn_st_tensor *t)
{
    char name[1200];

    if (t->dtype != CAIRN_F8E4M3 || strlen(t->name) > sizeof name - 16)
        return NULL;
    strcpy(name, t->name);
    strcat(name, "_scale_inv");
    return cairn_st_find(s, name);
}

/* The scales of t into s->scale. */
static enum cairn_status load_scales(struct cairn_st *s, const struct cairn_st_tensor *t, const struct cairn_st_tensor *scales,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t rows, cols;
    float *p = NULL;

    if (s->scaled == t)
        return CAIRN_OK;
    if (t->ndim != 2)
        return cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s has block scales but %d dimensions", s->file[t->file].path, t->name, t->ndim);
    rows = t->shape[0] / FP8_BLOCK + (t->shape[0] % FP8_BLOCK > 0);
    cols = t->shape[1] / FP8_BLOCK + (t->shape[1] % FP8_BLOCK > 0);
    if (scales->dtype != CAIRN_F32 || scales->ndim != 2 || scales->shape[0] != rows || scales->shape[1] != cols)
        return cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s is not F32 (%lld,%lld), as blocks of (%lld,%lld) need", s->file[scales->file].path,
                          scales->name, (long long)rows, (long long)cols, (long long)t->shape[0], (long long)t->shape[1]);
    if (!(p = malloc((size_t)scales->bytes + 1)))
        return CAIRN_NOMEM(err);
    TRY(cairn_st_read(s, scales, 0, p, (size_t)scales->bytes, err));
    free(s->scale);
    s->scale = p;
    s->scale_cols = cols;
    s->scaled = t;
    p = NULL;
out:
    free(p);
    return st;
}

/* n fp8 values from element `begin` to fp32, scaled. */
static void dequantise(const struct cairn_st *s, const struct cairn_st_tensor *t, int64_t begin, int64_t n, const unsigned char *in, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t row = (begin + i) / t->shape[1], col = (begin + i) % t->shape[1];

        out[i] = cairn_e4m3_to_f32(in[i]) * s->scale[row / FP8_BLOCK * s->scale_cols + col / FP8_BLOCK];
    }
}

enum cairn_status cairn_st_read_as(struct cairn_st *s, const struct cairn_st_tensor *t, int64_t begin, int64_t n, enum cairn_dtype as,
                                   void *h_dst, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_st_tensor *scales = cairn_st_scales(s, t);
    unsigned char *raw = NULL, *dst = h_dst;
    size_t out_size = cairn_dtype_size(as);
    float *f = NULL;

    if (begin < 0 || n < 0 || begin > t->count || n > t->count - begin)
        return cairn_fail(err, CAIRN_EBUG, "%s: tensor %.200s has %lld elements, [%lld, +%lld) was asked for", s->file[t->file].path,
                          t->name, (long long)t->count, (long long)begin, (long long)n);
    if (t->dtype == (int)as && !scales)
        return cairn_st_read(s, t, begin * t->esize, h_dst, (size_t)(n * t->esize), err);
    if (t->dtype < 0 || !cairn_convert(as, NULL, (enum cairn_dtype)t->dtype, NULL, 0))
        return cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s is %s, which is not read as %s", s->file[t->file].path, t->name, t->word,
                          cairn_dtype_name(as));
    if (scales)
        TRY(load_scales(s, t, scales, err));
    if (!(raw = malloc((size_t)(CHUNK * t->esize))) || (scales && !(f = malloc((size_t)CHUNK * sizeof *f))))
        TRY(CAIRN_NOMEM(err));
    for (int64_t done = 0; done < n;) {
        int64_t k = n - done < CHUNK ? n - done : CHUNK;

        TRY(cairn_st_read(s, t, (begin + done) * t->esize, raw, (size_t)(k * t->esize), err));
        if (scales) {
            dequantise(s, t, begin + done, k, raw, f);
            cairn_convert(as, dst, CAIRN_F32, f, (size_t)k);
        } else {
            cairn_convert(as, dst, (enum cairn_dtype)t->dtype, raw, (size_t)k);
        }
        dst += (size_t)k * out_size;
        done += k;
    }
out:
    free(raw);
    free(f);
    return st;
}
