/* safetensors_writer.c - the writer of safetensors.h. Sizes are known before the first byte, so every tensor has its place
 * in a file at once and bytes go straight there. */
#include "ckpt/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "ckpt/strides.h"

#define STAGE ((size_t)4 << 20)

struct out_tensor {
    char *name, *word;
    int64_t esize, bytes, written, at; /* at: byte offset in its file */
    int ndim, file;
    int64_t shape[CAIRN_ST_MAX_DIMS];
    int64_t begin; /* in the data of its file */
};

struct out_file {
    char *tmp, *final;
    int fd, made;
    int64_t data; /* bytes of tensors */
};

struct cairn_st_writer {
    char *dir, *stem;
    struct out_tensor *tensor;
    int n;
    struct out_file *file;
    int nfiles;
    unsigned char *stage;
};

static enum cairn_status copy_decls(struct cairn_st_writer *w, const struct cairn_st_decl *t, int n, struct cairn_error *err)
{
    if (!(w->tensor = calloc((size_t)n + 1, sizeof *w->tensor)))
        return CAIRN_NOMEM(err);
    for (int i = 0; i < n; i++) {
        struct out_tensor *o = &w->tensor[i];

        w->n = i + 1;
        o->name = strdup(t[i].name);
        o->word = strdup(t[i].word);
        if (!o->name || !o->word)
            return CAIRN_NOMEM(err);
        o->esize = t[i].esize;
        o->ndim = t[i].ndim;
        o->bytes = t[i].esize;
        if (t[i].ndim < 0 || t[i].ndim > CAIRN_ST_MAX_DIMS || t[i].esize < 1 || !t[i].name[0])
            return cairn_fail(err, CAIRN_EBUG, "%s: tensor %.200s: malformed declaration", w->dir, t[i].name);
        for (int d = 0; d < t[i].ndim; d++) {
            o->shape[d] = t[i].shape[d];
            if (o->shape[d] < 0 || !cairn_mul_i64(o->bytes, o->shape[d], &o->bytes))
                return cairn_fail(err, CAIRN_EBUG, "%s: tensor %.200s: its size overflows", w->dir, t[i].name);
        }
    }
    return CAIRN_OK;
}

/* Fills files in order of declaration. */
static enum cairn_status assign_files(struct cairn_st_writer *w, int64_t max_bytes, struct cairn_error *err)
{
    int64_t used = 0;
    int files = 1;

    for (int i = 0; i < w->n; i++) {
        if (max_bytes > 0 && used > 0 && w->tensor[i].bytes > max_bytes - used) {
            files++;
            used = 0;
        }
        w->tensor[i].file = files - 1;
        if (!cairn_add_i64(used, w->tensor[i].bytes, &used))
            return cairn_fail(err, CAIRN_EBUG, "%s: too many bytes", w->dir);
    }
    if (!(w->file = calloc((size_t)files, sizeof *w->file)))
        return CAIRN_NOMEM(err);
    w->nfiles = files;
    for (int f = 0; f < files; f++)
        w->file[f].fd = -1;
    return CAIRN_OK;
}

/* Wider elements first, so that everything stays aligned to its size. */
static void place_tensors(struct cairn_st_writer *w)
{
    for (int64_t e = 16; e >= 1; e--)
        for (int i = 0; i < w->n; i++) {
            struct out_tensor *t = &w->tensor[i];

            if (t->esize != e && !(e == 16 && t->esize > 16))
                continue;
            t->begin = w->file[t->file].data;
            w->file[t->file].data += t->bytes;
        }
}

static int final_name(const struct cairn_st_writer *w, int f, char *out, size_t size)
{
    if (w->nfiles == 1)
        return snprintf(out, size, "%s.safetensors", w->stem);
    return snprintf(out, size, "%s-%05d-of-%05d.safetensors", w->stem, f + 1, w->nfiles);
}

static enum cairn_status write_header(struct cairn_st_writer *w, int f, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_str s = {0};
    unsigned char len8[8];

    cairn_str_puts(&s, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int64_t e = 16; e >= 1; e--) /* in the order of the data */
        for (int i = 0; i < w->n; i++) {
            const struct out_tensor *t = &w->tensor[i];

            if (t->file != f || (t->esize != e && !(e == 16 && t->esize > 16)))
                continue;
            cairn_str_putc(&s, ',');
            cairn_json_put_string(&s, t->name, strlen(t->name));
            cairn_str_printf(&s, ":{\"dtype\":\"%s\",\"shape\":[", t->word);
            for (int d = 0; d < t->ndim; d++)
                cairn_str_printf(&s, d ? ",%lld" : "%lld", (long long)t->shape[d]);
            cairn_str_printf(&s, "],\"data_offsets\":[%lld,%lld]}", (long long)t->begin, (long long)(t->begin + t->bytes));
        }
    cairn_str_putc(&s, '}');
    while (s.len % 8 && !s.oom)
        cairn_str_putc(&s, ' ');
    if (s.oom)
        TRY(CAIRN_NOMEM(err));
    if (s.len > CAIRN_ST_MAX_HEADER)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: a header of %zu bytes would be too long", w->file[f].final, s.len));
    for (int i = 0; i < 8; i++)
        len8[i] = (unsigned char)(s.len >> (8 * i));
    TRY(cairn_fd_pwrite_all(w->file[f].fd, len8, 8, 0, w->file[f].tmp, err));
    TRY(cairn_fd_pwrite_all(w->file[f].fd, s.p, s.len, 8, w->file[f].tmp, err));
    for (int i = 0; i < w->n; i++)
        if (w->tensor[i].file == f)
            w->tensor[i].at = 8 + (int64_t)s.len + w->tensor[i].begin;
out:
    cairn_str_free(&s);
    return st;
}

static enum cairn_status create_file(struct cairn_st_writer *w, int f, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct out_file *o = &w->file[f];
    char name[300];
    uint64_t nonce;

    if (final_name(w, f, name, sizeof name) >= (int)sizeof name)
        return CAIRN_BUG(err, "name of a safetensors file");
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
        return cairn_fail_errno(err, errno, "getrandom");
    o->final = cairn_path_join(w->dir, name);
    o->tmp = cairn_format("%s/.%s.tmp.%016llx", w->dir, name, (unsigned long long)nonce);
    if (!o->final || !o->tmp)
        return CAIRN_NOMEM(err);
    o->fd = open(o->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (o->fd < 0)
        TRY(cairn_fail_errno(err, errno, "create %s", o->tmp));
    o->made = 1;
    TRY(write_header(w, f, err));
out:
    return st;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum cairn_status names_differ(const struct cairn_st_writer *w, struct cairn_error *err)
{
    const char **p = malloc(((size_t)w->n + 1) * sizeof *p);
    enum cairn_status st = CAIRN_OK;

    if (!p)
        return CAIRN_NOMEM(err);
    for (int i = 0; i < w->n; i++)
        p[i] = w->tensor[i].name;
    qsort(p, (size_t)w->n, sizeof *p, by_text);
    for (int i = 1; i < w->n && st == CAIRN_OK; i++)
        if (!strcmp(p[i - 1], p[i]))
            st = cairn_fail(err, CAIRN_EDATA, "%s: tensor %.200s is declared twice", w->dir, p[i]);
    free(p);
    return st;
}

enum cairn_status cairn_st_writer_create(struct cairn_st_writer **out, const char *dir, const struct cairn_st_decl *t, int n,
                                         const struct cairn_st_writer_opts *opts, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_st_writer *w = calloc(1, sizeof *w);

    if (!w)
        return CAIRN_NOMEM(err);
    w->dir = strdup(dir);
    w->stem = strdup(opts && opts->stem ? opts->stem : "model");
    if (!w->dir || !w->stem)
        TRY(CAIRN_NOMEM(err));
    TRY(copy_decls(w, t, n, err));
    TRY(names_differ(w, err));
    TRY(assign_files(w, opts ? opts->max_bytes : 0, err));
    place_tensors(w);
    TRY(cairn_dir_make(dir, err));
    for (int f = 0; f < w->nfiles; f++)
        TRY(create_file(w, f, err));
    *out = w;
    w = NULL;
out:
    cairn_st_writer_destroy(w);
    return st;
}

enum cairn_status cairn_st_writer_add(struct cairn_st_writer *w, int i, const void *h_p, size_t nbytes, struct cairn_error *err)
{
    struct out_tensor *t = &w->tensor[i];
    const struct out_file *f = &w->file[t->file];
    enum cairn_status st = CAIRN_OK;

    if (i < 0 || i >= w->n || nbytes > (size_t)(t->bytes - t->written))
        return CAIRN_BUG(err, "more bytes than a safetensors tensor was declared to have");
    if (nbytes)
        TRY(cairn_fd_pwrite_all(f->fd, h_p, nbytes, t->at + t->written, f->tmp, err));
    t->written += (int64_t)nbytes;
out:
    return st;
}

enum cairn_status cairn_st_writer_put(struct cairn_st_writer *w, int i, struct cairn_stream *s, const struct cairn_tensor *t,
                                      struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const unsigned char *d_p = NULL;
    int64_t total = t->buf ? (int64_t)cairn_tensor_bytes(t) : 0;

    if (total != w->tensor[i].bytes || w->tensor[i].written)
        return CAIRN_BUG(err, "a tensor of another size than was declared");
    if (!total)
        return CAIRN_OK;
    if (!w->stage && !(w->stage = malloc(STAGE)))
        return CAIRN_NOMEM(err);
    d_p = cairn_buffer_open(t->buf, CAIRN_READ);
    for (int64_t done = 0, n; done < total; done += n) {
        TRY(cairn_strides_gather(s, t, d_p, done, w->stage, STAGE, &n, err));
        TRY(cairn_st_writer_add(w, i, w->stage, (size_t)n, err));
    }
out:
    if (d_p)
        cairn_buffer_close(t->buf);
    return st;
}

static enum cairn_status write_index(const struct cairn_st_writer *w, const char *path, struct cairn_error *err)
{
    struct cairn_str s = {0};
    enum cairn_status st;
    int64_t total = 0;
    char name[300];

    for (int i = 0; i < w->n; i++)
        total += w->tensor[i].bytes;
    cairn_str_printf(&s, "{\n  \"metadata\": {\n    \"total_size\": %lld\n  },\n  \"weight_map\": {", (long long)total);
    for (int i = 0; i < w->n; i++) {
        cairn_str_puts(&s, i ? ",\n    " : "\n    ");
        cairn_json_put_string(&s, w->tensor[i].name, strlen(w->tensor[i].name));
        final_name(w, w->tensor[i].file, name, sizeof name);
        cairn_str_printf(&s, ": \"%s\"", name);
    }
    cairn_str_puts(&s, "\n  }\n}\n");
    st = s.oom ? CAIRN_NOMEM(err) : cairn_file_replace(path, s.p, s.len, err);
    cairn_str_free(&s);
    return st;
}

enum cairn_status cairn_st_writer_finish(struct cairn_st_writer *w, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *index = cairn_format("%s/%s.safetensors.index.json", w->dir, w->stem), *single = cairn_format("%s/%s.safetensors", w->dir, w->stem);
    const char *other;

    if (!index || !single)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < w->n; i++)
        if (w->tensor[i].written != w->tensor[i].bytes)
            TRY(cairn_fail(err, CAIRN_EBUG, "%s: tensor %.200s: %lld of %lld bytes were written", w->dir, w->tensor[i].name,
                           (long long)w->tensor[i].written, (long long)w->tensor[i].bytes));
    for (int f = 0; f < w->nfiles; f++)
        TRY(cairn_fd_sync_close(&w->file[f].fd, w->file[f].tmp, err));
    other = w->nfiles == 1 ? index : single;
    if (unlink(other) && errno != ENOENT)
        TRY(cairn_fail_errno(err, errno, "remove %s", other));
    for (int f = 0; f < w->nfiles; f++) {
        if (rename(w->file[f].tmp, w->file[f].final))
            TRY(cairn_fail_errno(err, errno, "rename %s to %s", w->file[f].tmp, w->file[f].final));
        w->file[f].made = 0;
    }
    if (w->nfiles > 1)
        TRY(write_index(w, index, err));
    TRY(cairn_dir_sync(w->dir, err));
out:
    free(index);
    free(single);
    return st;
}

void cairn_st_writer_destroy(struct cairn_st_writer *w)
{
    if (!w)
        return;
    for (int f = 0; f < w->nfiles; f++) {
        if (w->file[f].fd >= 0)
            close(w->file[f].fd);
        if (w->file[f].made)
            unlink(w->file[f].tmp);
        free(w->file[f].tmp);
        free(w->file[f].final);
    }
    for (int i = 0; i < w->n; i++) {
        free(w->tensor[i].name);
        free(w->tensor[i].word);
    }
    free(w->tensor);
    free(w->file);
    free(w->stage);
    free(w->dir);
    free(w->stem);
    free(w);
}
