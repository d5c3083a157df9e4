/* backend.h - opens a back-end's shared object and gives one handle to compute with.
 *
 * `auto` takes the best device there is (cuda where a usable GPU is found and the object was built, else cpu); the cpu
 * object is chosen by instruction set. "guard" is the cpu back-end with guarded buffers.
 */
#ifndef CAIRN_KERNELS_BACKEND_H
#define CAIRN_KERNELS_BACKEND_H

#include "kernels/kernels.h"

struct cairn_compute_opts {
    const char *backend; /* "auto", "cpu", "guard", "cuda"; NULL: auto */
    const char *dsa;     /* "fused" or "reference" (index, attention and its backward from the reference table); NULL: fused */
    const char *act;     /* activation type: "f32", "bf16"; NULL: the back-end's own (cpu f32, cuda bf16) */
    int reference;       /* 1: every op from the reference table */
    int threads;         /* 0: all */
    const char *keep;    /* as in cairn_backend_opts; NULL: nothing is kept */
    int rank;            /* among the processes of this node: takes device rank % n of the n that it sees */
};

struct cairn_compute {
    const struct cairn_backend *backend;
    struct cairn_device *dev;
    struct cairn_stream stream;
    struct cairn_ops ops; /* a copy, so that single ops may be exchanged */
    enum cairn_dtype act; /* activation type of this device */
    struct cairn_device_info device;
    char numerics[128];   /* fingerprint, field `numerics`: back-end, instruction set, op variants */
    void *object;         /* dlopen handle */
};

/* Devices of a named back-end ("cuda"), in order: *info malloc'ed, caller frees; *n = 0 where it was built and has none. CAIRN_EDEVICE when it
 * was not built. */
enum cairn_status cairn_compute_devices(const char *backend, struct cairn_device_info **info, int *n, struct cairn_error *err);
/* CAIRN_EDEVICE when the back-end is unknown, was not built, or finds no device; the sentence says which and how to get it. */
enum cairn_status cairn_compute_open(struct cairn_compute *c, const struct cairn_compute_opts *o, struct cairn_error *err);
void cairn_compute_close(struct cairn_compute *c);

#endif
