/* backend.c - finds, opens and closes back-ends; see backend.h.
 *
 * Objects lie in ../lib beside the running program's directory (build/bin, build/tests and an installed prefix alike), named
 * cairn-cpu-<instruction set>.so and cairn-<name>.so. An object is never unmapped again: its threads may still be parked in
 * its libraries. Refuses an object of another ABI.
 */
#include "kernels/backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
/* Instruction sets, best first, and whether this machine has them (the levels of the x86-64 psABI). */
static const char *const isas[] = {"x86-64-v4", "x86-64-v3", "x86-64-v2"};

static int isa_here(int i)
{
    int v3;

    __builtin_cpu_init();
    v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
    if (i == 0)
        return v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return i == 1 ? v3 : __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
}
#else
static const char *const isas[] = {"native"};

static int isa_here(int i)
{
    return i == 0;
}
#endif

static enum cairn_status cpu_object(char *name, size_t n, struct cairn_error *err)
{
    const char *want = getenv("CAIRN_CPU_ISA");

    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (want && *want ? strcmp(want, isas[i]) != 0 : !isa_here((int)i))
            continue;
        if (!isa_here((int)i))
            return cairn_fail(err, CAIRN_EDEVICE, "CAIRN_CPU_ISA=%s: this processor does not have it", want);
        snprintf(name, n, "cairn-cpu-%s.so", isas[i]);
        return CAIRN_OK;
    }
    if (want && *want)
        return cairn_fail(err, CAIRN_EDEVICE, "CAIRN_CPU_ISA=%s is unknown; the best one here is %s", want, isas[0]);
    return cairn_fail(err, CAIRN_EDEVICE, "this processor is older than %s, the oldest one built for",
                      isas[sizeof isas / sizeof *isas - 1]);
}

/* ../lib/<name> as seen from the program. */
static enum cairn_status object_path(const char *name, char *path, size_t n, struct cairn_error *err)
{
    char exe[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    char *slash;

    if (len <= 0)
        return cairn_fail_errno(err, 2, "cannot find where this program lies: /proc/self/exe");
    exe[len] = '\0';
    for (int i = 0; i < 2; i++) {
        slash = strrchr(exe, '/');
        if (slash)
            *slash = '\0';
    }
    if ((size_t)snprintf(path, n, "%s/lib/%s", exe, name) >= n)
        return cairn_fail(err, CAIRN_EDEVICE, "path of %s is too long", name);
    return CAIRN_OK;
}

static enum cairn_status load(struct cairn_compute *c, const char *name, const char *how, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char path[PATH_MAX + 64];
    cairn_backend_entry_fn *entry;
    void *symbol;

    TRY(object_path(name, path, sizeof path, err));
    if (access(path, F_OK) != 0)
        return cairn_fail(err, CAIRN_EDEVICE, "back-end %s was not built; %s", path, how);
    c->object = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!c->object)
        return cairn_fail_dl(err, CAIRN_EDEVICE, dlerror(), "cannot open back-end");
    symbol = dlsym(c->object, "cairn_backend_entry");
    if (!symbol)
        TRY(cairn_fail(err, CAIRN_EDEVICE, "%s is not a back-end of cairn", path));
    memcpy(&entry, &symbol, sizeof entry);
    c->backend = entry();
    if (c->backend->abi != CAIRN_BACKEND_ABI)
        TRY(cairn_fail(err, CAIRN_EDEVICE, "%s has back-end ABI %u, this program %u: build both again", path, c->backend->abi,
                       CAIRN_BACKEND_ABI));
out:
    if (st != CAIRN_OK && c->object) {
        dlclose(c->object);
        c->object = NULL;
    }
    return st;
}

/* The object of a back-end, by name. */
static enum cairn_status load_named(struct cairn_compute *c, const char *name, struct cairn_error *err)
{
    const char *other = getenv("CAIRN_CUDA_OBJECT"); /* another object in its place: the emulated one of the tests */
    enum cairn_status st = CAIRN_OK;
    char object[64];

    memset(c, 0, sizeof *c);
    if (!strcmp(name, "cpu") || !strcmp(name, "guard")) {
        TRY(cpu_object(object, sizeof object, err));
        TRY(load(c, object, "run make", err));
    } else if (!strcmp(name, "cuda")) {
        TRY(load(c, other && *other ? other : "cairn-cuda.so", "it needs nvcc in the PATH when make runs", err));
    } else {
        return cairn_fail(err, CAIRN_EDEVICE, "unknown back-end \"%s\": auto, cpu, guard, cuda", name);
    }
out:
    return st;
}

static enum cairn_status open_named(struct cairn_compute *c, const char *name, const struct cairn_compute_opts *o,
                                    struct cairn_error *err)
{
    struct cairn_backend_opts bo = {.guard = !strcmp(name, "guard"), .threads = o->threads, .act = o->act, .keep = o->keep};
    enum cairn_status st = CAIRN_OK;
    int devices, ordinal;

    TRY(load_named(c, name, err));
    if (o->act && cairn_dtype_parse(o->act) < 0)
        TRY(cairn_fail(err, CAIRN_ERECIPE, "activations of type \"%s\": f32, bf16", o->act));
    devices = c->backend->devices();
    ordinal = devices ? o->rank % devices : 0;
    TRY(c->backend->open(ordinal, &bo, &c->dev, err));
    TRY(c->backend->info(ordinal, &c->device, err));
    c->act = o->act ? (enum cairn_dtype)cairn_dtype_parse(o->act) : c->backend->act;
    TRY(cairn_stream_create(c->dev, &c->stream, err));
out:
    if (st != CAIRN_OK)
        cairn_compute_close(c);
    return st;
}

enum cairn_status cairn_compute_devices(const char *backend, struct cairn_device_info **info, int *n, struct cairn_error *err)
{
    struct cairn_compute c = {0};
    struct cairn_device_info *all = NULL;
    enum cairn_status st = CAIRN_OK;
    int count;

    TRY(load_named(&c, backend, err));
    count = c.backend->devices();
    all = calloc((size_t)count + 1, sizeof *all);
    if (!all)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < count; i++)
        TRY(c.backend->info(i, &all[i], err));
    *info = all;
    *n = count;
    all = NULL;
out:
    free(all);
    cairn_compute_close(&c);
    return st;
}

static enum cairn_status choose_ops(struct cairn_compute *c, const struct cairn_compute_opts *o, struct cairn_error *err)
{
    const char *dsa = o->dsa ? o->dsa : "fused", *tail = "";
    int by_reference = !strcmp(dsa, "reference");

    if (!by_reference && strcmp(dsa, "fused"))
        return cairn_fail(err, CAIRN_ERECIPE, "kernels.dsa: \"%s\" is neither fused nor reference", dsa);
    if ((by_reference || o->reference) && !c->backend->reference)
        return cairn_fail(err, CAIRN_EDEVICE, "back-end %s has no reference kernels", c->backend->name);
    c->ops = o->reference ? *c->backend->reference : *c->backend->ops;
    if (by_reference) {
        c->ops.index = c->backend->reference->index;
        c->ops.attention = c->backend->reference->attention;
        c->ops.attention_bwd = c->backend->reference->attention_bwd;
        tail = " dsa=reference";
    }
    if (o->reference)
        tail = " reference";
    c->backend->numerics(c->dev, c->numerics, (int)(sizeof c->numerics - strlen(tail)));
    strcat(c->numerics, tail);
    return CAIRN_OK;
}

enum cairn_status cairn_compute_open(struct cairn_compute *c, const struct cairn_compute_opts *o, struct cairn_error *err)
{
    static const struct cairn_compute_opts defaults;
    enum cairn_status st = CAIRN_OK;
    const char *name;

    if (!o)
        o = &defaults;
    name = o->backend ? o->backend : "auto";
    if (strcmp(name, "auto")) {
        st = open_named(c, name, o, err);
    } else {
        struct cairn_error unfit; /* why there is no cuda is of no interest to who takes the best there is */

        st = open_named(c, "cuda", o, &unfit);
        if (st == CAIRN_ENOSPACE) { /* there is one, and no memory to open it: another one would give other numbers */
            if (err)
                *err = unfit;
        } else if (st != CAIRN_OK) {
            st = open_named(c, "cpu", o, err);
        }
    }
    if (st != CAIRN_OK)
        return st;
    TRY(choose_ops(c, o, err));
out:
    if (st != CAIRN_OK)
        cairn_compute_close(c);
    return st;
}

void cairn_compute_close(struct cairn_compute *c)
{
    if (!c)
        return;
    if (c->dev) {
        cairn_stream_destroy(&c->stream);
        c->backend->close(c->dev);
    }
    if (c->object)
        dlclose(c->object);
    memset(c, 0, sizeof *c);
}
