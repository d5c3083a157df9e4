/* pmi.c - chooses between PMIx and PMI2, checks keys and values (pmi.h). */
#include "world/pmi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/build.h"
#include "base/file.h"
#include "world/pmi_kind.h"

#define PMIX_FILE "cairn-pmix.so"

struct cairn_pmi {
    const struct cairn_pmi_kind *kind;
    int rank, size;
};

static enum cairn_status pmix_load(const struct cairn_pmi_kind **out, struct cairn_error *err)
{
    char *path = cairn_lib_path(PMIX_FILE);
    const struct cairn_pmi_kind *kind;
    enum cairn_status st = CAIRN_OK;
    void *so;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_path_exists(path))
        TRY(cairn_fail(err, CAIRN_EDEVICE, "%s is missing: install libpmix-dev, then build again", path));
    if (!(so = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
        TRY(cairn_fail_dl(err, CAIRN_EDEVICE, dlerror(), "cannot open PMIx"));
    if (!(kind = dlsym(so, CAIRN_PMIX_SYMBOL)) || kind->abi != CAIRN_PMI_ABI)
        TRY(cairn_fail(err, CAIRN_EDEVICE, "%s is not of this build", path));
    *out = kind;
out:
    free(path);
    return st;
}

static enum cairn_status kind_load(const char *name, const struct cairn_pmi_kind **out, struct cairn_error *err)
{
    enum cairn_status st;

    if (!strcmp(name, "pmix"))
        return pmix_load(out, err);
    if (strcmp(name, "pmi2"))
        return cairn_fail(err, CAIRN_EUSAGE, "no process manager \"%s\": pmix or pmi2", name);
    if ((st = cairn_pmi2_load(err)) == CAIRN_OK)
        *out = &cairn_pmi2;
    return st;
}

/* What the launcher of this process put into its environment. */
static const char *offered(void)
{
    if (getenv("PMIX_NAMESPACE") && getenv("PMIX_RANK"))
        return "pmix";
    if (getenv("PMI_FD") || (getenv("PMI_RANK") && getenv("PMI_SIZE")))
        return "pmi2";
    return NULL;
}

int cairn_pmi_there(const char *kind, char *text, size_t n)
{
    const struct cairn_pmi_kind *k;
    struct cairn_error err = {0};

    if (kind_load(kind, &k, &err) != CAIRN_OK) {
        snprintf(text, n, "%s", err.text);
        return 0;
    }
    snprintf(text, n, "%s", !strcmp(kind, "pmix") ? "libpmix, through " PMIX_FILE : "Slurm's libpmi2");
    return 1;
}

enum cairn_status cairn_pmi_open(struct cairn_pmi **out, const char *kind, struct cairn_error *err)
{
    struct cairn_pmi *p = calloc(1, sizeof *p);
    enum cairn_status st = CAIRN_OK;

    if (!p)
        return CAIRN_NOMEM(err);
    if (!kind)
        kind = offered();
    if (!kind)
        TRY(cairn_fail(err, CAIRN_EDEVICE, "no process manager here: start with srun --mpi=pmix or srun --mpi=pmi2"));
    TRY(kind_load(kind, &p->kind, err));
    TRY(p->kind->start(&p->rank, &p->size, err));
    *out = p;
    p = NULL;
out:
    free(p);
    return st;
}

void cairn_pmi_close(struct cairn_pmi *p)
{
    if (p)
        p->kind->finish();
    free(p);
}

const char *cairn_pmi_kind(const struct cairn_pmi *p)
{
    return p->kind->name;
}

int cairn_pmi_rank(const struct cairn_pmi *p)
{
    return p->rank;
}

int cairn_pmi_size(const struct cairn_pmi *p)
{
    return p->size;
}

static enum cairn_status key_check(const char *key, struct cairn_error *err)
{
    if (!cairn_name_ok(key) || strlen(key) > CAIRN_PMI_KEY)
        return cairn_fail(err, CAIRN_EBUG, "pmi: \"%.60s\" is no key", key);
    return CAIRN_OK;
}

enum cairn_status cairn_pmi_put(struct cairn_pmi *p, const char *key, const char *value, struct cairn_error *err)
{
    enum cairn_status st = key_check(key, err);

    if (st == CAIRN_OK && strlen(value) > CAIRN_PMI_VALUE)
        st = cairn_fail(err, CAIRN_EBUG, "pmi: the value of %s has %zu bytes, %d at most", key, strlen(value), CAIRN_PMI_VALUE);
    return st == CAIRN_OK ? p->kind->put(p->rank, key, value, err) : st;
}

enum cairn_status cairn_pmi_fence(struct cairn_pmi *p, struct cairn_error *err)
{
    return p->kind->fence(err);
}

enum cairn_status cairn_pmi_get(struct cairn_pmi *p, int rank, const char *key, char *value, size_t n, struct cairn_error *err)
{
    enum cairn_status st = key_check(key, err);

    if (st == CAIRN_OK && (rank < 0 || rank >= p->size))
        st = cairn_fail(err, CAIRN_EBUG, "pmi: there is no rank %d of %d", rank, p->size);
    return st == CAIRN_OK ? p->kind->get(rank, key, value, n, err) : st;
}
