/* pmi2.c - PMI2 through Slurm's libpmi2, opened at run time, so that nothing of Slurm is needed to build or to start.
 *
 * One key space for all ranks: keys carry the rank. The wire takes "key=value;" texts, so values are written with %XX for
 * everything but letters, digits and a few signs. The four functions that are used are declared here as Slurm's pmi2.h has them.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "world/pmi.h"
#include "world/pmi_kind.h"

#define LONGEST 1024 /* PMI2_MAX_VALLEN */

static struct {
    int (*init)(int *spawned, int *size, int *rank, int *appnum);
    int (*finalize)(void);
    int (*put)(const char *key, const char *value);
    int (*fence)(void);
    int (*get)(const char *job, int source, const char *key, char *value, int most, int *length);
} pmi2;

enum cairn_status cairn_pmi2_load(struct cairn_error *err)
{
    static const struct {
        const char *name;
        void *where;
    } functions[] = {{"PMI2_Init", &pmi2.init},
                     {"PMI2_Finalize", &pmi2.finalize},
                     {"PMI2_KVS_Put", &pmi2.put},
                     {"PMI2_KVS_Fence", &pmi2.fence},
                     {"PMI2_KVS_Get", &pmi2.get}};
    static void *so; /* never closed: it holds the connection */

    if (!so && !(so = dlopen("libpmi2.so.0", RTLD_NOW | RTLD_LOCAL)) && !(so = dlopen("libpmi2.so", RTLD_NOW | RTLD_LOCAL)))
        return cairn_fail_dl(err, CAIRN_EDEVICE, dlerror(), "cannot open Slurm's libpmi2-0; is it installed?");
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *f = dlsym(so, functions[i].name);

        if (!f)
            return cairn_fail(err, CAIRN_EDEVICE, "libpmi2 has no %s", functions[i].name);
        memcpy(functions[i].where, &f, sizeof f);
    }
    return CAIRN_OK;
}

static enum cairn_status failed(const char *what, int rc, struct cairn_error *err)
{
    return cairn_fail(err, CAIRN_EAGAIN, "PMI2 %s failed (%d): the launcher or a peer is gone", what, rc);
}

static enum cairn_status start(int *rank, int *size, struct cairn_error *err)
{
    int spawned, app, rc = pmi2.init(&spawned, size, rank, &app);

    return rc ? failed("init", rc, err) : CAIRN_OK;
}

static void finish(void)
{
    pmi2.finalize();
}

static void key_make(int rank, const char *key, char *text, size_t n)
{
    snprintf(text, n, "%d.%s", rank, key);
}

static enum cairn_status put(int rank, const char *key, const char *value, struct cairn_error *err)
{
    char name[CAIRN_PMI_KEY + 16], text[3 * CAIRN_PMI_VALUE + 1], *p = text;
    int rc;

    key_make(rank, key, name, sizeof name);
    for (; *value; value++)
        if (isalnum((unsigned char)*value) || strchr("._:/-", *value))
            *p++ = *value;
        else
            p += sprintf(p, "%%%02X", (unsigned char)*value);
    *p = 0;
    rc = pmi2.put(name, text);
    return rc ? failed("put", rc, err) : CAIRN_OK;
}

static enum cairn_status fence(struct cairn_error *err)
{
    int rc = pmi2.fence();

    return rc ? failed("fence", rc, err) : CAIRN_OK;
}

static enum cairn_status get(int rank, const char *key, char *value, size_t n, struct cairn_error *err)
{
    char name[CAIRN_PMI_KEY + 16], text[LONGEST + 1] = "";
    int length = 0, rc;
    size_t k = 0;

    key_make(rank, key, name, sizeof name);
    rc = pmi2.get(NULL, rank, name, text, sizeof text - 1, &length);
    if (rc || length <= 0)
        return cairn_fail(err, CAIRN_EBUG, "PMI2: rank %d has put no %s before the last fence", rank, key);
    for (const char *p = text; *p; p++) {
        unsigned c = (unsigned char)*p;

        if (*p == '%' && sscanf(p + 1, "%2X", &c) == 1)
            p += 2;
        if (k + 1 >= n)
            return cairn_fail(err, CAIRN_EBUG, "PMI2: %s of rank %d is longer than %zu bytes", key, rank, n - 1);
        value[k++] = (char)c;
    }
    value[k] = 0;
    return CAIRN_OK;
}

const struct cairn_pmi_kind cairn_pmi2 = {CAIRN_PMI_ABI, "pmi2", start, finish, put, fence, get};
