/* flips.c - flipped bits, cut and lengthened files, files that are not there or are somebody else's (F8, F10-F14), in every file of a
 * finished run.
 *
 * Each sample damages one file and asks whoever uses it. Of an artefact's files verify must name the damaged one, and the reader must fail or
 * give the very bytes that were written (a flip in what HDF5 alone reads). run.json, recipe.yaml, amendments and outside copies must be refused
 * when the run is opened or the file is asked for. Without effect, provably: comments and blanks of recipe.yaml (the parsed recipe is equal)
 * and its ops keys (which never change a bit and may be edited), logs and the lock's text (no stage reads them to decide anything;
 * some damaged runs are let go on to show it). Files of a step under way (shards without a manifest, saves beside the training) are made again.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/reader.h"
#include "ckpt/verify.h"
#include "model/base.h"
#include "tests/faults/faults.h"

enum kind { FILE_ARTEFACT, FILE_BASE, FILE_RUN, FILE_RECIPE, FILE_AMENDMENT, FILE_OUTSIDE, FILE_IDLE, FILE_KINDS };

struct victim {
    char *rel;       /* path below the run */
    char *artefact;  /* the artefact it belongs to ("policy/000002"), or NULL */
    enum kind kind;
    int type;        /* index of a group of like files: every group gets as many samples */
};

enum outcome { NAMED_BY_VERIFY, NAMED_BY_LOADER, EQUAL_RECIPE, OPS_KEY, READ_BY_NOBODY, OUTCOMES };

struct flips {
    const struct lab *lab;
    const struct faults_opts *o;
    char *run;                /* the undamaged run */
    struct victim *victim;
    int n, types;
    const char *type[64];
    long samples;
};

/* ---- what there is ---------------------------------------------------------------------------------------------------- */

static int type_of(struct flips *f, const char *name)
{
    for (int i = 0; i < f->types; i++)
        if (!strcmp(f->type[i], name))
            return i;
    if (f->types == 64)
        lab_die("too many types of files");
    f->type[f->types] = name;
    return f->types++;
}

static void victim_add(struct flips *f, const char *rel)
{
    char *full = cairn_format("%s/%s", f->run, rel), *up = strdup(rel), *slash;
    struct victim v = {.rel = strdup(rel)};
    const char *type;

    while (!v.artefact && (slash = strrchr(up, '/'))) {
        char *manifest;

        *slash = 0;
        manifest = cairn_format("%s/%s/MANIFEST.json", f->run, up);
        if (cairn_path_exists(manifest))
            v.artefact = strdup(up);
        free(manifest);
    }
    if (v.artefact) {
        const char *in = rel + strlen(v.artefact) + 1;

        v.kind = !strcmp(v.artefact, "base") && !strchr(in, '/') && strcmp(in, "MANIFEST.json") ? FILE_BASE : FILE_ARTEFACT;
        type = v.kind == FILE_BASE             ? "file of the base"
               : fault_ends(in, ".h5")         ? "shard"
               : !strcmp(in, "MANIFEST.json")  ? "MANIFEST.json"
               : !strncmp(in, "epoch/", 6)     ? "epoch"
               : !strcmp(in, "COLLECTED")      ? "COLLECTED"
                                               : "entry";
    } else if (!strcmp(rel, "run.json")) {
        v.kind = FILE_RUN, type = "run.json";
    } else if (!strcmp(rel, "recipe.yaml")) {
        v.kind = FILE_RECIPE, type = "recipe.yaml";
    } else if (!strncmp(rel, "recipe.amend-", 13)) {
        v.kind = FILE_AMENDMENT, type = "amendment";
    } else if (!strncmp(rel, "files/", 6)) {
        v.kind = FILE_OUTSIDE, type = strstr(rel, "tokenizer") ? "tokenizer" : "prompts";
    } else if (!strncmp(rel, "log/", 4) || !strcmp(rel, ".lock")) {
        v.kind = FILE_IDLE, type = "log or lock";
    } else {
        lab_die("%s: a file of no known type", full);
    }
    v.type = type_of(f, type);
    f->victim = realloc(f->victim, (size_t)(f->n + 1) * sizeof v);
    if (!f->victim)
        lab_die("out of memory");
    f->victim[f->n++] = v;
    free(full);
    free(up);
}

static void victims_find(struct flips *f)
{
    char *cmd = cairn_format("cd '%s' && find . -type f | LC_ALL=C sort", f->run), *names = NULL;
    size_t cap = 0, len;
    FILE *p;

    if (!(p = popen(cmd, "r")))
        lab_die("%s: %s", cmd, strerror(errno));
    while (getline(&names, &cap, p) > 0) {
        len = strcspn(names, "\n");
        names[len] = 0;
        victim_add(f, names + 2);
    }
    if (pclose(p))
        lab_die("%s failed", cmd);
    free(names);
    free(cmd);
}

/* ---- who notices ------------------------------------------------------------------------------------------------------ */

struct told {
    const char *path; /* of the damaged file */
    int named, other;
    char first[300];
};

static void bad(void *arg, const char *path, const char *text)
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

static int artefact_notices(const struct flips *f, const struct victim *v, const char *run, const char *path, enum outcome *how, char *why)
{
    char *dir = cairn_format("%s/%s", run, v->artefact), *whole = cairn_format("%s/%s", f->run, v->artefact);
    struct told t = {.path = path};
    struct cairn_verify_opts o = {.deep = 1, .bad = bad, .arg = &t};
    struct cairn_verify_counts c = {0};
    struct cairn_error err = {0};
    enum cairn_status st = cairn_verify_artefact(dir, run, &o, &c, &err);
    int ok = 0, data = fault_ends(v->rel, ".h5") || fault_ends(v->rel, "MANIFEST.json"), collected = !data || strstr(why, "?") != NULL;

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

static int base_notices(const struct victim *v, const char *run, char *why)
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

static int run_notices(const struct flips *f, const struct victim *v, const char *run, enum outcome *how, char *why)
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

/* ---- one sample ---------------------------------------------------------------------------------------------------------- */

/* Damages the file; what was done goes to `did`. */
static void damage(const char *path, uint64_t *r, char *did, size_t room)
{
    int fd = open(path, O_RDWR | O_CLOEXEC), kind = (int)(lab_random(r) % 20);
    struct stat sb;
    unsigned char c;

    if (fd < 0 || fstat(fd, &sb))
        lab_die("%s: %s", path, strerror(errno));
    if (kind < 3 || !sb.st_size) {
        off_t to = kind == 0 ? 0 : kind == 1 ? sb.st_size - 1 : (off_t)(lab_random(r) % (uint64_t)sb.st_size);

        snprintf(did, room, "cut from %lld to %lld bytes", (long long)sb.st_size, (long long)to);
        if (ftruncate(fd, to))
            lab_die("%s: %s", path, strerror(errno));
    } else if (kind == 3) {
        c = (unsigned char)lab_random(r);
        snprintf(did, room, "lengthened by a byte %d", c);
        if (pwrite(fd, &c, 1, sb.st_size) != 1)
            lab_die("%s: %s", path, strerror(errno));
    } else {
        off_t at = (off_t)(lab_random(r) % (uint64_t)sb.st_size);
        int bit = (int)(lab_random(r) % 8);

        snprintf(did, room, "bit %d of byte %lld flipped", bit, (long long)at);
        if (pread(fd, &c, 1, at) != 1)
            lab_die("%s: %s", path, strerror(errno));
        c ^= (unsigned char)(1 << bit);
        if (pwrite(fd, &c, 1, at) != 1)
            lab_die("%s: %s", path, strerror(errno));
    }
    close(fd);
}

static void restore(const char *from, const char *to)
{
    struct cairn_error err = {0};
    char *bytes = NULL;
    size_t n;
    int fd;

    if (cairn_file_read(from, 1 << 28, &bytes, &n, &err) != CAIRN_OK)
        lab_die("%s", err.text);
    fd = open(to, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd < 0 || cairn_fd_write_all(fd, bytes, n, to, &err) != CAIRN_OK)
        lab_die("%s: %s", to, err.text);
    close(fd);
    free(bytes);
}

#define BATCH 100 /* samples of one copy of the run */
#define VIOLATIONS (LAB_TALLIES - 2)

static int sample(const struct flips *f, uint64_t number, const char *run, char *why)
{
    uint64_t r = f->o->seed * 0x51ed2701u + number;
    int type = (int)(number % (uint64_t)f->types), of_type = 0, k, held;
    const struct victim *v = NULL;
    enum outcome how = READ_BY_NOBODY;
    char path[700], whole[700], did[100];
    struct stat sb;

    for (int i = 0; i < f->n; i++)
        of_type += f->victim[i].type == type;
    k = (int)(lab_random(&r) % (uint64_t)of_type);
    for (int i = 0; i < f->n && !v; i++)
        if (f->victim[i].type == type && !k--)
            v = &f->victim[i];
    snprintf(path, sizeof path, "%s/%s", run, v->rel);
    snprintf(whole, sizeof whole, "%s/%s", f->run, v->rel);
    if (!stat(whole, &sb) && !sb.st_size) /* nothing to damage in an empty file */
        return 0;
    damage(path, &r, did, sizeof did);
    *why = 0;
    switch (v->kind) {
    case FILE_ARTEFACT: {
        char *marker = cairn_format("%s/%s/COLLECTED", f->run, v->artefact);

        if (cairn_path_exists(marker))
            strcpy(why, "?"); /* its data are gone: only verify is asked */
        free(marker);
        held = artefact_notices(f, v, run, path, &how, why);
        break;
    }
    case FILE_BASE:
        how = NAMED_BY_LOADER;
        held = base_notices(v, run, why);
        break;
    case FILE_IDLE:
        held = 1;
        break;
    default:
        held = run_notices(f, v, run, &how, why);
    }
    restore(whole, path);
    if (held) {
        lab_tally[type * OUTCOMES + (int)how]++;
        return 0;
    }
    {
        size_t n = strlen(why);

        snprintf(why + n, WHY_BYTES - n, " (sample %llu: %s: %s)", (unsigned long long)number, v->rel, did);
    }
    return 1;
}

static int batch(void *arg, long i, const char *box, char *why)
{
    const struct flips *f = arg;
    char run[600];

    snprintf(run, sizeof run, "%s/run", box);
    lab_copy(f->run, run);
    for (int k = 0; k < BATCH; k++) {
        char text[WHY_BYTES];

        if (sample(f, (uint64_t)i * BATCH + (uint64_t)k, run, text) && !lab_tally[VIOLATIONS]++)
            memcpy(why, text, sizeof text);
    }
    return lab_tally[VIOLATIONS] > 0;
}

static void name_of(void *arg, long i, char *out, size_t n)
{
    (void)arg;
    snprintf(out, n, "flips, batch %ld", i);
}

/* A run with a damaged log goes on to the same bits (its lines may be lost). */
static int idle_trial(void *arg, long i, const char *box, char *why)
{
    const struct flips *f = arg;
    const struct lab *lab = f->lab;
    uint64_t r = f->o->seed + (uint64_t)i * 31u;
    int link = lab->nlinks / 2, k = 0;
    char run[600], path[700], did[100], scratch[2][600], *digest;
    struct lab_exec x = {.box = box};
    struct lab_end e;
    int same;

    snprintf(run, sizeof run, "%s/run", box);
    lab_argv_run(lab, "run", run, &x, scratch);
    lab_copy(lab->before[link], run);
    for (int j = 0; j < f->n; j++)
        if (f->victim[j].kind == FILE_IDLE) {
            snprintf(path, sizeof path, "%s/%s", run, f->victim[j].rel);
            if (cairn_file_size(path) > 0) {
                damage(path, &r, did, sizeof did);
                k++;
            }
        }
    lab_run(lab, &x, &e);
    if (e.code) {
        snprintf(why, WHY_BYTES, "with %d damaged logs it ended with %d: %.400s", k, e.code, e.last);
        return 1;
    }
    if (!(digest = lab_digest(run, why)))
        return 1;
    same = !strcmp(digest, lab->digest);
    if (!same)
        snprintf(why, WHY_BYTES, "with %d damaged logs the digests differ", k);
    free(digest);
    return !same;
}

/* ---- whole files that are not what they should be (F12-F14) ------------------------------------------------------------------ */

static const struct swap {
    const char *what;
    const char *script; /* sh, in the run directory */
    const char *names;  /* what a told path or sentence holds */
} swaps[] = {
    {"two shards of an artefact swapped", "cd step/000002/rollout/a1 && mv unit-000000.h5 x && mv unit-000001.h5 unit-000000.h5 && mv x unit-000001.h5",
     "step/000002/rollout/a1/unit-00000"},
    {"two shards and their entries swapped",
     "cd step/000002/rollout/a1 && for e in h5 json; do mv unit-000000.$e x && mv unit-000001.$e unit-000000.$e && mv x unit-000001.$e; done",
     "step/000002/rollout/a1/unit-00000"},
    {"a shard of an older generation under the new name", "cp policy/000001/a1/weights-00000.h5 policy/000002/a1/weights-00000.h5", "policy/000002/a1/weights-00000.h5"},
    {"a shard that is missing", "rm step/000002/score/a1/unit-000001.h5", "step/000002/score/a1/unit-000001.h5"},
    {"a shard that is a link", "cd policy/000002/a1 && mv weights-00000.h5 ../../w && ln -s ../../w weights-00000.h5", "policy/000002/a1/weights-00000.h5"},
    {"a shard that is a pipe", "cd policy/000002/a1 && rm weights-00000.h5 && mkfifo weights-00000.h5", "policy/000002/a1/weights-00000.h5"},
    {"a shard that is a directory", "cd policy/000002/a1 && rm weights-00000.h5 && mkdir weights-00000.h5", "policy/000002/a1/weights-00000.h5"},
    {"a generation under another's name", "rm -r policy/000002 && cp -r policy/000001 policy/000002", "policy/000002"},
    {"a rollout of another step", "rm -r step/000002/rollout && cp -r step/000001/rollout step/000002/rollout", "step/000002/rollout"},
    {"a manifest of an older generation", "cp policy/000001/MANIFEST.json policy/000002/MANIFEST.json", "policy/000002"},
    {"all shards of an artefact gone", "rm -r step/000002/train/a1", "step/000002/train/a1/"},
};
#define SWAPS ((int)(sizeof swaps / sizeof *swaps))

struct swap_told {
    const char *part;
    int named;
    char first[400];
};

static void swap_bad(void *arg, const char *path, const char *text)
{
    struct swap_told *t = arg;

    t->named |= strstr(path, t->part) || strstr(text, t->part);
    if (!t->first[0])
        snprintf(t->first, sizeof t->first, "%.399s", text);
}

static int swap_trial(void *arg, long i, const char *box, char *why)
{
    const struct flips *f = arg;
    struct swap_told t = {.part = swaps[i].names};
    struct cairn_verify_opts o = {.deep = 1, .bad = swap_bad, .arg = &t};
    struct cairn_verify_counts c = {0};
    struct cairn_error err = {0};
    char run[600], *cmd;
    enum cairn_status st;

    snprintf(run, sizeof run, "%s/run", box);
    lab_copy(f->lab->before[f->lab->nlinks], run);
    cmd = cairn_format("cd '%s' && %s", run, swaps[i].script);
    if (system(cmd))
        lab_die("%s failed", cmd);
    free(cmd);
    st = cairn_verify_tree(run, &o, &c, &err);
    if (st != CAIRN_EDATA || !t.named) {
        snprintf(why, WHY_BYTES, "verify ended with %d and says: %.400s", st, t.first);
        return 1;
    }
    return 0;
}

static void swap_name(void *arg, long i, char *out, size_t n)
{
    (void)arg;
    snprintf(out, n, "%s", swaps[i].what);
}

/* ---- of a step under way ------------------------------------------------------------------------------------------------------ */

#define UNDERWAY 600

/* States that a kill left (points.c): finished shards without a manifest; a save beside the training, and reference log-probabilities. */
static const struct underway {
    const char *subject;
    const char *below; /* what is damaged lies there */
} underways[] = {
    {"rollout-again", "step/000002/rollout"},
    {"score-again", "step/000002/score"},
    {"train-resumed", "step/000001/train"},
};
#define UNDERWAYS ((int)(sizeof underways / sizeof *underways))

struct wrecks {
    const struct faults_opts *o;
    const struct lab *lab[UNDERWAYS];
    const char *state[UNDERWAYS];
    char **file[UNDERWAYS]; /* relative to it */
    int n[UNDERWAYS];
};

static void wreck_look(struct wrecks *w, int k)
{
    char *line = NULL, *cmd;
    size_t cap = 0;
    FILE *p;

    w->state[k] = faults_state(underways[k].subject, &w->lab[k]);
    cmd = lab_text("cd '%s' && find %s -type f -size +0 | LC_ALL=C sort", w->state[k], underways[k].below);
    if (!(p = popen(cmd, "r")))
        lab_die("%s: %s", cmd, strerror(errno));
    while (getline(&line, &cap, p) > 0) {
        line[strcspn(line, "\n")] = 0;
        w->file[k] = realloc(w->file[k], (size_t)(w->n[k] + 1) * sizeof *w->file[k]);
        if (!w->file[k])
            lab_die("out of memory");
        w->file[k][w->n[k]++] = lab_text("%s", line);
    }
    if (pclose(p) || !w->n[k])
        lab_die("%s failed, or found nothing", cmd);
    free(cmd);
    free(line);
}

/* The run goes on to the same bits. What is damaged was made again; or, where none of its bytes that count were hit, it stays and verify names it, and
 * nothing else. */
static int underway_trial(void *arg, long i, const char *box, char *why)
{
    const struct wrecks *w = arg;
    uint64_t r = w->o->seed * 0x2545f491u + (uint64_t)i;
    int k = (int)(i % UNDERWAYS), at = (int)(lab_random(&r) % (uint64_t)w->n[k]), held = 0;
    const struct lab *lab = w->lab[k];
    char run[600], path[900], did[100], scratch[2][600], *digest = NULL;
    struct told t = {.path = path};
    struct cairn_verify_opts o = {.deep = 1, .bad = bad, .arg = &t};
    struct cairn_verify_counts c = {0};
    struct cairn_error err = {0};
    struct lab_exec x = {.box = box};
    struct lab_end e;

    snprintf(run, sizeof run, "%s/run", box);
    snprintf(path, sizeof path, "%s/%s", run, w->file[k][at]);
    lab_copy(w->state[k], run);
    damage(path, &r, did, sizeof did);
    lab_argv_run(lab, "run", run, &x, scratch);
    lab_run(lab, &x, &e);
    if (e.code) {
        snprintf(why, WHY_BYTES, "going on ended with %d: %.400s", e.code, e.last);
    } else if (cairn_verify_tree(run, &o, &c, &err) == CAIRN_OK) {
        held = lab_finished(lab, run, 0, why) && lab_box_clean(box, why);
    } else if (!t.named || t.other) {
        snprintf(why, WHY_BYTES, "verify names another: %s %.300s", t.first, err.text);
    } else if ((digest = lab_digest(run, why))) {
        held = !strcmp(digest, lab->digest);
        lab_tally[0] += held;
        if (!held)
            snprintf(why, WHY_BYTES, "the digests differ");
    }
    free(digest);
    if (held)
        return 0;
    snprintf(why + strlen(why), WHY_BYTES - strlen(why), " (%s: %s)", w->file[k][at], did);
    return 1;
}

static void underway_name(void *arg, long i, char *out, size_t n)
{
    const struct wrecks *w = arg;

    snprintf(out, n, "flips --seed %llu, of a step under way, trial %ld", (unsigned long long)w->o->seed, i);
}

static long underway(const struct faults_opts *o)
{
    struct wrecks w = {.o = o};
    struct lab_counts c;
    long n = UNDERWAY / o->every > UNDERWAYS ? UNDERWAY / o->every : UNDERWAYS;
    double t0 = lab_now();

    for (int k = 0; k < UNDERWAYS; k++)
        wreck_look(&w, k);
    c = lab_pool_run(lab_get(LAB_PLAIN), &(struct lab_pool){o->jobs, n, underway_trial, underway_name, &w}, "flips/underway");
    tap(!c.violated, "flips: %ld damaged files of steps under way (%ld stay and are named by verify), %ld violations, %.0f s", n, c.tally[0], c.violated,
        lab_now() - t0);
    for (int k = 0; k < UNDERWAYS; k++) {
        for (int j = 0; j < w.n[k]; j++)
            free(w.file[k][j]);
        free(w.file[k]);
    }
    return c.violated;
}

/* ---- all ------------------------------------------------------------------------------------------------------------------- */

#define SAMPLES 20000
#define IDLE 20

static void types_print(const struct flips *f, const struct lab_counts *c)
{
    static const char *const outcome_name[OUTCOMES] = {"named by verify", "named by the loader", "equal recipe", "an ops key", "read by nobody"};

    for (int t = 0; t < f->types; t++) {
        printf("#   %-18s", f->type[t]);
        for (int k = 0; k < OUTCOMES; k++)
            if (c->tally[t * OUTCOMES + k])
                printf("  %s %ld", outcome_name[k], c->tally[t * OUTCOMES + k]);
        printf("\n");
    }
}

long faults_flips(const struct faults_opts *o)
{
    const struct lab *lab = lab_get(LAB_WHOLE);
    struct flips f = {.lab = lab, .o = o};
    char *box = lab_text("%s/flips", lab->work), *cairn = lab_text("%s/cairn", lab->bin);
    struct lab_counts c, d, s;
    struct lab_end e;
    long violated, idle = IDLE / o->every + 2;
    double t0 = lab_now();

    lab_part_pools(4);
    f.run = lab_text("%s/run", box);
    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    lab_copy(lab->before[lab->nlinks], f.run);
    lab_run(lab, &(struct lab_exec){.argv = {cairn, "amend", f.run, "train.learning_rate=2e-3", "--from-step", "3", NULL}, .box = box}, &e);
    if (e.code)
        lab_die("amend ended with %d: %s", e.code, e.last);
    victims_find(&f);
    f.samples = SAMPLES / o->every / BATCH > 1 ? SAMPLES / o->every / BATCH : 1;
    c = lab_pool_run(lab, &(struct lab_pool){o->jobs, f.samples, batch, name_of, &f}, "flips/bits");
    tap(!c.violated, "flips: %ld flipped bits and cut files of %d types, %ld violations, %.0f s", f.samples * BATCH, f.types, c.tally[VIOLATIONS],
        lab_now() - t0);
    types_print(&f, &c);
    s = lab_pool_run(lab, &(struct lab_pool){o->jobs, SWAPS, swap_trial, swap_name, &f}, "flips/swaps");
    tap(!s.violated, "swaps: %d ways of having the wrong file, %ld violations", SWAPS, s.violated);
    d = lab_pool_run(lab, &(struct lab_pool){o->jobs, idle, idle_trial, name_of, &f}, "flips/logs");
    tap(!d.violated, "damaged logs: %ld runs went on, %ld violations", idle, d.violated);
    violated = c.tally[VIOLATIONS] + s.violated + d.violated + underway(o);
    sum("%ld flipped bits, cut and lengthened files of %d types, %d wrong files, %ld damaged logs; damaged files of steps under way; %ld violations",
        f.samples * BATCH, f.types, SWAPS, idle, violated);
    for (int i = 0; i < f.n; i++) {
        free(f.victim[i].rel);
        free(f.victim[i].artefact);
    }
    free(f.victim);
    free(f.run);
    lab_remove(box);
    free(box);
    free(cairn);
    return violated;
}
