/* metadata.c - HDF5, the library, behind metadata.h: it reads finished files for those who want to be sure. Every identifier
 * opened here is closed here, also after a failure. */
#include "ckpt/metadata.h"

#include <hdf5.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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
