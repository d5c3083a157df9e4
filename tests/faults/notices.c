/* notices.c - see flips.h: who uses a file, and whether he notices that it is damaged. */
#include "tests/faults/flips.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "ckpt/reader.h"
#include "ckpt/verify.h"
#include "model/base.h"

void told_bad(void *arg, const char *path, const char *text)
{
    struct told *t = arg;

    if (!strcmp(path, t->path) || strstr(text, t->path))
        t->named = 1;
    else
        t->other = 1;
    snprintf(t->first, sizeof t->first, "%.299s", text);
}

/* Reads every tensor. 1: it failed with a sentence that is right; 0: all bytes are those of `whole`; -1: wrong bytes. */
static int reader_notices(const char *dir, const char *whole, char *why)
{
    struct cairn_error err = {0}, e2 = {0};
    struct cairn_reader *r = NULL, *w = NULL;
    enum cairn_status st;
    int result = 0;

    st = cairn_reader_open(&r, dir, NULL, &err);
    if (st != CAIRN_OK)
        return st == CAIRN_EDATA || st == CAIRN_ENOINPUT ? 1 : (snprintf(why, WHY_BYTES, "reader: %d: %.400s", st, err.text), -1);
    if (cairn_reader_open(&w, whole, NULL, &e2) != CAIRN_OK)
        lab_die("%s", e2.text);
    for (int i = 0; !result && i < cairn_reader_manifest(w)->ntensors; i++) {
        const struct cairn_tensor_entry *t = &cairn_reader_manifest(w)->tensors[i];
        void *a = NULL, *b = NULL;
        int64_t n = 0, m = 0;

        if (cairn_reader_array(w, t->name, t->dtype, &b, &m, &e2) != CAIRN_OK)
            lab_die("%s", e2.text);
        st = cairn_reader_array(r, t->name, t->dtype, &a, &n, &err);
        if (st == CAIRN_EDATA) {
            result = 1;
        } else if (st != CAIRN_OK || n != m || memcmp(a, b, (size_t)n * cairn_dtype_size(t->dtype))) {
            snprintf(why, WHY_BYTES, "the reader gave wrong bytes of %s: %d %.300s", t->name, st, err.text);
            result = -1;
        }
        free(a);
        free(b);
    }
    cairn_reader_close(r);
    cairn_reader_close(w);
    return result;
}

int artefact_notices(const struct flips *f, const struct victim *v, const char *run, const char *path, int collected, enum outcome *how, char *why)
{
    char *dir = cairn_format("%s/%s", run, v->artefact), *whole = cairn_format("%s/%s", f->run, v->artefact);
    struct told t = {.path = path};
    struct cairn_verify_opts o = {.deep = 1, .bad = told_bad, .arg = &t};
    struct cairn_verify_counts c = {0};
    struct cairn_error err = {0};
    enum cairn_status st = cairn_verify_artefact(dir, run, &o, &c, &err);
    int ok = 0, data = fault_ends(v->rel, ".h5") || fault_ends(v->rel, "MANIFEST.json");

    *how = NAMED_BY_VERIFY;
    if (st != CAIRN_EDATA)
        snprintf(why, WHY_BYTES, "verify ended with %d: %.300s", st, err.text);
    else if (!t.named)
        snprintf(why, WHY_BYTES, "verify names another: %s", t.first);
    else
        ok = 1;
    if (ok && data && !collected)
        ok = reader_notices(dir, whole, why) >= 0;
    free(dir);
    free(whole);
    return ok;
}

int base_notices(const struct victim *v, const char *run, char *why)
{
    char *dir = cairn_format("%s/base", run), *path = NULL;
    struct cairn_manifest *m = NULL;
    struct cairn_error err = {0};
    enum cairn_status st;

    if (cairn_manifest_load(&m, dir, &err) != CAIRN_OK)
        lab_die("%s", err.text);
    st = cairn_base_file(dir, m, v->rel + 5, &path, &err);
    if (st != CAIRN_EDATA || !strstr(err.text, v->rel + 5))
        snprintf(why, WHY_BYTES, "cairn_base_file gave %d: %.300s", st, err.text);
    cairn_manifest_destroy(m);
    free(path);
    free(dir);
    return st == CAIRN_EDATA;
}

int run_notices(const struct flips *f, const struct victim *v, const char *run, enum outcome *how, char *why)
{
    struct cairn_run *r = NULL, *w = NULL;
    struct cairn_error err = {0};
    enum cairn_status st = cairn_run_open(&r, run, &err);
    int ok = 0;

    *how = NAMED_BY_LOADER;
    if (v->kind == FILE_OUTSIDE) {
        const char *key = v->rel + 6;
        char *path = NULL;

        if (st != CAIRN_OK)
            lab_die("%s", err.text);
        st = cairn_run_outside(r, key, &path, &err);
        ok = st == CAIRN_EDATA && strstr(err.text, key);
        free(path);
    } else if (st == CAIRN_OK && v->kind == FILE_RECIPE) {
        struct cairn_str diff = {0};

        if (cairn_run_open(&w, f->run, &err) != CAIRN_OK)
            lab_die("%s", err.text);
        if (!cairn_recipe_diff(w->recipe, r->recipe, CAIRN_SCIENCE | CAIRN_LAYOUT, &diff)) {
            *how = cairn_recipe_diff(w->recipe, r->recipe, CAIRN_OPS, &diff) ? OPS_KEY : EQUAL_RECIPE;
            ok = 1;
        }
        cairn_str_free(&diff);
        cairn_run_close(w);
    } else {
        const char *name = strrchr(v->rel, '/') ? strrchr(v->rel, '/') + 1 : v->rel;

        ok = (st == CAIRN_EDATA || st == CAIRN_ERECIPE || st == CAIRN_ENOINPUT) && strstr(err.text, name);
    }
    if (!ok)
        snprintf(why, WHY_BYTES, "opening the run gave %d: %.400s", st, err.text);
    if (r)
        cairn_run_close(r);
    return ok;
}
