/* metadata.c - HDF5 behind metadata.h. The page store belongs to the caller of cairn_image_make and outlives the library's
 * file; every identifier opened here is closed here, also after a failure. */
#include "ckpt/metadata.h"

#include <hdf5.h>
#if H5_VERSION_GE(1, 14, 0)
#include <H5FDdevelop.h>
#endif
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN_THRESHOLD (64 * 1024)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* --- pages: a growing array while HDF5 writes, sorted at the end --- */

struct store {
    uint64_t eoa, eof;
    struct slot {
        uint64_t page; /* number + 1; 0: free slot */
        unsigned char *data;
    } *slot; /* open addressing */
    size_t cap, used;
    int failed; /* out of memory */
};

static size_t slot_of(const struct store *s, uint64_t page)
{
    size_t i = (size_t)((page + 1) * 0x9E3779B97F4A7C15ull) & (s->cap - 1);

    while (s->slot[i].page && s->slot[i].page != page + 1)
        i = (i + 1) & (s->cap - 1);
    return i;
}

static unsigned char *page_at(struct store *s, uint64_t page, int make)
{
    size_t i;

    if (make && 2 * (s->used + 1) > s->cap) {
        struct store big = {.cap = s->cap ? 2 * s->cap : 64};

        if (!(big.slot = calloc(big.cap, sizeof *big.slot)))
            return NULL;
        for (i = 0; i < s->cap; i++)
            if (s->slot[i].page)
                big.slot[slot_of(&big, s->slot[i].page - 1)] = s->slot[i];
        free(s->slot);
        s->slot = big.slot;
        s->cap = big.cap;
    }
    if (!s->cap)
        return NULL;
    i = slot_of(s, page);
    if (!s->slot[i].page && make) {
        if (!(s->slot[i].data = calloc(1, CAIRN_PAGE)))
            return NULL;
        s->slot[i].page = page + 1;
        s->used++;
    }
    return s->slot[i].page ? s->slot[i].data : NULL;
}

static void store_free(struct store *s)
{
    for (size_t i = 0; i < s->cap; i++)
        free(s->slot[i].data);
    free(s->slot);
    memset(s, 0, sizeof *s);
}

/* --- the driver --- */

struct driver_file {
    H5FD_t pub; /* first: HDF5 knows only this */
    struct store *store;
};

static H5FD_t *drv_open(const char *name, unsigned flags, hid_t fapl, haddr_t maxaddr)
{
    struct store *const *info = H5Pget_driver_info(fapl);
    struct driver_file *f;

    (void)name;
    (void)flags;
    (void)maxaddr;
    if (!info || !(f = calloc(1, sizeof *f)))
        return NULL;
    f->store = *info;
    return &f->pub;
}

static herr_t drv_close(H5FD_t *file)
{
    free(file);
    return 0;
}

static herr_t drv_query(const H5FD_t *file, unsigned long *flags)
{
    (void)file;
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
}

static haddr_t drv_get_eoa(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return ((const struct driver_file *)file)->store->eoa;
}

static herr_t drv_set_eoa(H5FD_t *file, H5FD_mem_t type, haddr_t addr)
{
    (void)type;
    ((struct driver_file *)file)->store->eoa = addr;
    return 0;
}

static haddr_t drv_get_eof(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return ((const struct driver_file *)file)->store->eof;
}

static herr_t drv_read(H5FD_t *file, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size, void *buffer)
{
    struct store *s = ((struct driver_file *)file)->store;
    unsigned char *out = buffer;

    (void)type;
    (void)dxpl;
    while (size) {
        size_t in = (size_t)(addr % CAIRN_PAGE), n = CAIRN_PAGE - in < size ? CAIRN_PAGE - in : size;
        const unsigned char *p = page_at(s, addr / CAIRN_PAGE, 0);

        if (p)
            memcpy(out, p + in, n);
        else
            memset(out, 0, n);
        out += n;
        addr += n;
        size -= n;
    }
    return 0;
}

static herr_t drv_write(H5FD_t *file, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size, const void *buffer)
{
    struct store *s = ((struct driver_file *)file)->store;
    const unsigned char *in = buffer;

    (void)type;
    (void)dxpl;
    while (size) {
        size_t at = (size_t)(addr % CAIRN_PAGE), n = CAIRN_PAGE - at < size ? CAIRN_PAGE - at : size;
        unsigned char *p = page_at(s, addr / CAIRN_PAGE, 1);

        if (!p) {
            s->failed = 1;
            return -1;
        }
        memcpy(p + at, in, n);
        in += n;
        addr += n;
        size -= n;
    }
    if (addr > s->eof)
        s->eof = addr;
    return 0;
}

static herr_t drv_truncate(H5FD_t *file, hid_t dxpl, hbool_t closing)
{
    struct store *s = ((struct driver_file *)file)->store;

    (void)dxpl;
    (void)closing;
    s->eof = s->eoa;
    return 0;
}

static const H5FD_class_t driver = {
#if H5_VERSION_GE(1, 14, 0)
    .version = H5FD_CLASS_VERSION,
    .value = (H5FD_class_value_t)600, /* in the range for drivers of one's own */
#endif
    .name = "cairn-pages",
    .maxaddr = (haddr_t)1 << 62,
    .fc_degree = H5F_CLOSE_WEAK,
    .fapl_size = sizeof(struct store *),
    .open = drv_open,
    .close = drv_close,
    .query = drv_query,
    .get_eoa = drv_get_eoa,
    .set_eoa = drv_set_eoa,
    .get_eof = drv_get_eof,
    .read = drv_read,
    .write = drv_write,
    .truncate = drv_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

/* --- the library --- */

static enum cairn_status library_ready(struct cairn_error *err)
{
    static int ready; /* under `lock` */

    if (ready)
        return CAIRN_OK;
    H5dont_atexit(); /* must come before anything else; its exit handler crashes after a failed close */
    setenv("HDF5_USE_FILE_LOCKING", "FALSE", 1);
    if (H5open() < 0 || H5Eset_auto2(H5E_DEFAULT, NULL, NULL) < 0)
        return CAIRN_BUG(err, "HDF5 does not start");
    ready = 1;
    return CAIRN_OK;
}

static herr_t first_message(unsigned n, const H5E_error2_t *e, void *arg)
{
    char *text = arg;

    if (n == 0 && e->desc)
        snprintf(text, 200, "%.199s", e->desc);
    return 0;
}

static enum cairn_status hdf5_failed(const char *what, struct cairn_error *err, enum cairn_status code)
{
    char text[200] = "unknown";

    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first_message, text);
    H5Eclear2(H5E_DEFAULT);
    return cairn_fail(err, code, "HDF5: %s: %s", what, text);
}

/* A floating-point type of its own: `size` bytes, `e` exponent and `m` mantissa bits. */
static hid_t small_float(size_t size, size_t e, size_t m)
{
    hid_t t = H5Tcopy(H5T_IEEE_F32LE);

    if (t < 0)
        return t;
    if (H5Tset_fields(t, e + m, m, e, 0, m) < 0 || H5Tset_precision(t, 1 + e + m) < 0 || H5Tset_size(t, size) < 0 ||
        H5Tset_ebias(t, ((size_t)1 << (e - 1)) - 1) < 0) {
        H5Tclose(t);
        return -1;
    }
    return t;
}

static hid_t type_of(enum cairn_dtype t)
{
    switch (t) {
    case CAIRN_F32: return H5Tcopy(H5T_IEEE_F32LE);
    case CAIRN_F64: return H5Tcopy(H5T_IEEE_F64LE);
    case CAIRN_I32: return H5Tcopy(H5T_STD_I32LE);
    case CAIRN_I64: return H5Tcopy(H5T_STD_I64LE);
    case CAIRN_U8: return H5Tcopy(H5T_STD_U8LE);
    case CAIRN_BF16: return small_float(2, 8, 7);
    case CAIRN_F16: return small_float(2, 5, 10);
    default: return small_float(1, 4, 3);
    }
}

static void to_hsize(hsize_t *out, const int64_t *in, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = (hsize_t)in[i];
}

/* Identifiers that live through one cairn_image_make. */
struct ids {
    hid_t fapl, fcpl, dcpl, file, type[CAIRN_DTYPES], dims_space[CAIRN_MAX_DIMS + 1];
};

static int put_dims(const struct ids *h, hid_t dataset, const char *name, const int64_t *v, int n)
{
    hid_t a = H5Acreate2(dataset, name, H5T_STD_I64LE, h->dims_space[n], H5P_DEFAULT, H5P_DEFAULT);
    int ok = a >= 0 && H5Awrite(a, H5T_NATIVE_INT64, v) >= 0;

    if (a >= 0)
        ok &= H5Aclose(a) >= 0;
    return ok;
}

static int put_text(hid_t object, const char *name, const char *text)
{
    hid_t t = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR), a = -1;
    int ok = t >= 0 && space >= 0 && H5Tset_size(t, strlen(text) + 1) >= 0 &&
             (a = H5Acreate2(object, name, t, space, H5P_DEFAULT, H5P_DEFAULT)) >= 0 && H5Awrite(a, t, text) >= 0;

    if (a >= 0)
        ok &= H5Aclose(a) >= 0;
    if (space >= 0)
        H5Sclose(space);
    if (t >= 0)
        H5Tclose(t);
    return ok;
}

static int put_version(hid_t file)
{
    int64_t version = CAIRN_SHARD_VERSION;
    hid_t space = H5Screate(H5S_SCALAR), a = -1;
    int ok = space >= 0 && (a = H5Acreate2(file, "cairn_shard", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT)) >= 0 &&
             H5Awrite(a, H5T_NATIVE_INT64, &version) >= 0;

    if (a >= 0)
        ok &= H5Aclose(a) >= 0;
    if (space >= 0)
        H5Sclose(space);
    return ok;
}

/* One dataset; *at is its raw data's address, 0 if it has none. */
static int put_dataset(const struct ids *h, const char *name, hid_t type, int ndim, const hsize_t *dims, hid_t *dataset, int64_t *at)
{
    hid_t space = ndim ? H5Screate_simple(ndim, dims, NULL) : H5Screate(H5S_SCALAR);
    haddr_t addr;

    *dataset = space < 0 ? -1 : H5Dcreate2(h->file, name, type, space, H5P_DEFAULT, h->dcpl, H5P_DEFAULT);
    if (space >= 0)
        H5Sclose(space);
    if (*dataset < 0)
        return 0;
    addr = H5Dget_offset(*dataset);
    H5Eclear2(H5E_DEFAULT); /* an empty dataset has no address, which HDF5 takes for an error */
    *at = addr == HADDR_UNDEF ? 0 : (int64_t)addr;
    return 1;
}

static enum cairn_status fill_file(const struct ids *h, struct cairn_slice *s, int n, int64_t tiles, int64_t *table_at,
                                   struct cairn_error *err)
{
    hsize_t dims[CAIRN_MAX_DIMS];
    hid_t d;
    int ok;

    if (!put_version(h->file))
        return hdf5_failed("attribute cairn_shard", err, CAIRN_EBUG);
    for (int i = 0; i < n; i++) {
        to_hsize(dims, s[i].local, s[i].ndim);
        if (!put_dataset(h, s[i].name, h->type[s[i].dtype], s[i].ndim, dims, &d, &s[i].at))
            return hdf5_failed(s[i].name, err, CAIRN_EBUG);
        ok = !s[i].ndim || (put_dims(h, d, "global_shape", s[i].shape, s[i].ndim) && put_dims(h, d, "offset", s[i].offset, s[i].ndim));
        ok = ok && (!s[i].each || put_text(d, "each", s[i].each));
        if (H5Dclose(d) < 0 || !ok)
            return hdf5_failed(s[i].name, err, CAIRN_EBUG);
    }
    *table_at = 0;
    if (tiles > 0) {
        dims[0] = (hsize_t)tiles;
        dims[1] = 2;
        if (!put_dataset(h, CAIRN_TILES_NAME, H5T_STD_U64LE, 2, dims, &d, table_at) || H5Dclose(d) < 0)
            return hdf5_failed(CAIRN_TILES_NAME, err, CAIRN_EBUG);
    }
    return CAIRN_OK;
}

static void close_ids(struct ids *h)
{
    for (int i = 0; i < CAIRN_DTYPES; i++)
        if (h->type[i] >= 0)
            H5Tclose(h->type[i]);
    for (int i = 0; i <= CAIRN_MAX_DIMS; i++)
        if (h->dims_space[i] >= 0)
            H5Sclose(h->dims_space[i]);
    if (h->dcpl >= 0)
        H5Pclose(h->dcpl);
    if (h->fcpl >= 0)
        H5Pclose(h->fcpl);
    if (h->fapl >= 0)
        H5Pclose(h->fapl);
}

static enum cairn_status open_ids(struct ids *h, struct store *store, int n, struct cairn_error *err)
{
    /* Metadata blocks grow with the number of datasets, so that they stay together and small shards stay small. */
    hsize_t block = n < 4 ? 2048 : n < 2048 ? (hsize_t)n * 512 : 1 << 20;
    hid_t id = H5FDregister(&driver);
    int ok;

    h->fapl = H5Pcreate(H5P_FILE_ACCESS);
    h->fcpl = H5Pcreate(H5P_FILE_CREATE);
    h->dcpl = H5Pcreate(H5P_DATASET_CREATE);
    ok = id >= 0 && h->fapl >= 0 && h->fcpl >= 0 && h->dcpl >= 0 && H5Pset_driver(h->fapl, id, &store) >= 0 &&
         H5Pset_libver_bounds(h->fapl, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST) >= 0 &&
         H5Pset_alignment(h->fapl, ALIGN_THRESHOLD, CAIRN_PAGE) >= 0 && H5Pset_meta_block_size(h->fapl, block) >= 0 &&
         H5Pset_obj_track_times(h->fcpl, 0) >= 0 && H5Pset_obj_track_times(h->dcpl, 0) >= 0 &&
         H5Pset_layout(h->dcpl, H5D_CONTIGUOUS) >= 0 && H5Pset_alloc_time(h->dcpl, H5D_ALLOC_TIME_EARLY) >= 0 &&
         H5Pset_fill_time(h->dcpl, H5D_FILL_TIME_NEVER) >= 0;
    if (id >= 0)
        H5FDunregister(id); /* the list keeps a reference of its own */
    for (int i = 0; ok && i < CAIRN_DTYPES; i++)
        ok = (h->type[i] = type_of((enum cairn_dtype)i)) >= 0;
    for (int i = 1; ok && i <= CAIRN_MAX_DIMS; i++) {
        hsize_t dim = (hsize_t)i;

        ok = (h->dims_space[i] = H5Screate_simple(1, &dim, NULL)) >= 0;
    }
    return ok ? CAIRN_OK : hdf5_failed("property lists", err, CAIRN_EBUG);
}

static int by_page(const void *a, const void *b)
{
    uint64_t x = ((const struct slot *)a)->page, y = ((const struct slot *)b)->page;

    return x < y ? -1 : x > y;
}

/* Hands the pages over, in order. */
static enum cairn_status take_pages(struct cairn_image *m, struct store *s, struct cairn_error *err)
{
    size_t k = 0;

    m->size = (int64_t)s->eoa;
    m->page = malloc((s->used + 1) * sizeof *m->page);
    m->data = malloc((s->used + 1) * sizeof *m->data);
    if (!m->page || !m->data)
        return CAIRN_NOMEM(err);
    for (size_t i = 0; i < s->cap; i++)
        if (s->slot[i].page)
            s->slot[k++] = s->slot[i];
    qsort(s->slot, k, sizeof *s->slot, by_page);
    for (size_t i = 0; i < k; i++) {
        m->page[i] = (int64_t)s->slot[i].page - 1;
        m->data[i] = s->slot[i].data;
    }
    m->npages = (int64_t)k;
    free(s->slot);
    memset(s, 0, sizeof *s);
    return CAIRN_OK;
}

enum cairn_status cairn_image_make(struct cairn_image *m, struct cairn_slice *slices, int n, int64_t tiles, int64_t *table_at,
                                   struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct store store = {0};
    struct ids h;

    memset(m, 0, sizeof *m);
    h.fapl = h.fcpl = h.dcpl = h.file = -1;
    for (int i = 0; i < CAIRN_DTYPES; i++)
        h.type[i] = -1;
    for (int i = 0; i <= CAIRN_MAX_DIMS; i++)
        h.dims_space[i] = -1;
    pthread_mutex_lock(&lock);
    TRY(library_ready(err));
    TRY(open_ids(&h, &store, n, err));
    h.file = H5Fcreate("cairn shard", H5F_ACC_TRUNC, h.fcpl, h.fapl);
    if (h.file < 0)
        TRY(hdf5_failed("create", err, CAIRN_EBUG));
    st = fill_file(&h, slices, n, tiles, table_at, err);
    if (H5Fclose(h.file) < 0 && st == CAIRN_OK)
        st = hdf5_failed("close", err, CAIRN_EBUG);
    if (st == CAIRN_OK)
        st = take_pages(m, &store, err);
out:
    close_ids(&h);
    pthread_mutex_unlock(&lock);
    if (store.failed)
        st = CAIRN_NOMEM(err);
    store_free(&store);
    if (st != CAIRN_OK)
        cairn_image_free(m);
    return st;
}

void cairn_image_free(struct cairn_image *m)
{
    for (int64_t i = 0; i < m->npages; i++)
        free(m->data[i]);
    free(m->data);
    free(m->page);
    memset(m, 0, sizeof *m);
}

void cairn_image_read(const struct cairn_image *m, int64_t at, void *p, size_t n)
{
    unsigned char *out = p;
    int64_t lo = 0, hi = m->npages;

    while (lo < hi) { /* first page that is not below `at` */
        int64_t mid = (lo + hi) / 2;

        if (m->page[mid] < at / CAIRN_PAGE)
            lo = mid + 1;
        else
            hi = mid;
    }
    while (n) {
        size_t in = (size_t)(at % CAIRN_PAGE), k = CAIRN_PAGE - in < n ? CAIRN_PAGE - in : n;

        if (lo < m->npages && m->page[lo] == at / CAIRN_PAGE)
            memcpy(out, m->data[lo++] + in, k);
        else
            memset(out, 0, k);
        out += k;
        at += (int64_t)k;
        n -= k;
    }
}

/* --- reading --- */

static int has_dims(hid_t dataset, const char *name, const int64_t *want, int n)
{
    int64_t got[CAIRN_MAX_DIMS];
    hid_t a = H5Aopen(dataset, name, H5P_DEFAULT), space = -1;
    hsize_t dim = 0;
    int ok = a >= 0 && (space = H5Aget_space(a)) >= 0 && H5Sget_simple_extent_ndims(space) == 1 &&
             H5Sget_simple_extent_dims(space, &dim, NULL) == 1 && dim == (hsize_t)n && H5Aread(a, H5T_NATIVE_INT64, got) >= 0;

    for (int i = 0; ok && i < n; i++)
        ok = got[i] == want[i];
    if (space >= 0)
        H5Sclose(space);
    if (a >= 0)
        H5Aclose(a);
    return ok;
}

static int has_text(hid_t dataset, const char *name, const char *want)
{
    char got[CAIRN_TENSOR_NAME_MAX + 2] = "";
    hid_t a = H5Aopen(dataset, name, H5P_DEFAULT), t = -1;
    int ok = a >= 0 && (t = H5Aget_type(a)) >= 0 && H5Tget_class(t) == H5T_STRING && !H5Tis_variable_str(t) &&
             H5Tget_size(t) == strlen(want) + 1 && H5Tget_size(t) < sizeof got && H5Aread(a, t, got) >= 0 && !strcmp(got, want);

    if (t >= 0)
        H5Tclose(t);
    if (a >= 0)
        H5Aclose(a);
    return ok;
}

static const char *wrong_dataset(hid_t file, const char *name, hid_t type, int ndim, const int64_t *local, int64_t at)
{
    hid_t d = H5Dopen2(file, name, H5P_DEFAULT), t = -1, space = -1, plist = -1;
    hsize_t dims[CAIRN_MAX_DIMS];
    const char *what = NULL;
    haddr_t addr;

    if (d < 0)
        return "is missing";
    t = H5Dget_type(d);
    space = H5Dget_space(d);
    plist = H5Dget_create_plist(d);
    if (t < 0 || space < 0 || plist < 0)
        what = "cannot be described";
    else if (H5Tequal(t, type) <= 0)
        what = "has another type";
    else if (H5Sget_simple_extent_ndims(space) != ndim || (ndim && H5Sget_simple_extent_dims(space, dims, NULL) != ndim))
        what = "has another number of dimensions";
    else if (H5Pget_layout(plist) != H5D_CONTIGUOUS || H5Pget_external_count(plist) != 0)
        what = "is not contiguous";
    for (int i = 0; !what && i < ndim; i++)
        if (dims[i] != (hsize_t)local[i])
            what = "has another shape";
    if (!what) {
        addr = H5Dget_offset(d);
        if ((addr == HADDR_UNDEF ? 0 : (int64_t)addr) != at)
            what = "lies at another offset";
    }
    if (plist >= 0)
        H5Pclose(plist);
    if (space >= 0)
        H5Sclose(space);
    if (t >= 0)
        H5Tclose(t);
    H5Dclose(d);
    return what;
}

static enum cairn_status check_file(hid_t file, const char *path, const struct cairn_shard_entry *e, struct cairn_error *err)
{
    int64_t table[2] = {e->tiles, 2};
    H5G_info_t info;
    const char *what;

    if (H5Gget_info(file, &info) < 0)
        return hdf5_failed(path, err, CAIRN_EDATA);
    if (info.nlinks != (hsize_t)e->nslices + (e->tiles > 0))
        return cairn_fail(err, CAIRN_EDATA, "%s: HDF5 finds %llu datasets, the manifest has %d", path,
                          (unsigned long long)info.nlinks - (e->tiles > 0), e->nslices);
    for (int i = 0; i < e->nslices; i++) {
        const struct cairn_slice *s = &e->slices[i];
        hid_t type = type_of(s->dtype), d;

        what = type < 0 ? "has no type" : wrong_dataset(file, s->name, type, s->ndim, s->local, s->at);
        if (type >= 0)
            H5Tclose(type);
        if (!what && (d = H5Dopen2(file, s->name, H5P_DEFAULT)) >= 0) {
            if (s->ndim && (!has_dims(d, "global_shape", s->shape, s->ndim) || !has_dims(d, "offset", s->offset, s->ndim)))
                what = "has other attributes";
            else if (s->each && !has_text(d, "each", s->each))
                what = "has another attribute each";
            H5Dclose(d);
        }
        if (what)
            return cairn_fail(err, CAIRN_EDATA, "%s: dataset %s %s, by its manifest", path, s->name, what);
    }
    if (e->tiles > 0 && (what = wrong_dataset(file, CAIRN_TILES_NAME, H5T_STD_U64LE, 2, table, e->table_at)))
        return cairn_fail(err, CAIRN_EDATA, "%s: dataset %s %s, by its manifest", path, CAIRN_TILES_NAME, what);
    return CAIRN_OK;
}

enum cairn_status cairn_image_check(const char *path, const char *name, const struct cairn_shard_entry *e, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    hid_t file = -1;

    pthread_mutex_lock(&lock);
    TRY(library_ready(err));
    file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file < 0)
        TRY(hdf5_failed(name, err, CAIRN_EDATA));
    st = check_file(file, name, e, err);
    H5Eclear2(H5E_DEFAULT);
    if (H5Fclose(file) < 0 && st == CAIRN_OK)
        st = hdf5_failed(name, err, CAIRN_EDATA);
out:
    pthread_mutex_unlock(&lock);
    return st;
}
