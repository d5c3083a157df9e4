/* flips.c - flipped bits, cut and lengthened files, files that are not there or are somebody else's (F8, F10-F14), in every file of a
 * finished run.
 *
 * Each sample damages one file and asks whoever uses it. Of an artefact's files verify must name the damaged one, and the reader must fail or
 * give the very bytes that were written (a flip in what HDF5 alone reads). run.json, recipe.yaml, amendments and outside copies must be refused
 * when the run is opened or the file is asked for. Without effect, provably: comments and blanks of recipe.yaml (the parsed recipe is equal)
 * and its ops keys (which never change a bit and may be edited), logs and the lock's text (no stage reads them to decide anything;
 * some damaged runs are let go on to show it). Files of a step under way (shards without a manifest, saves beside the training) are made again.
 */
#include "tests/faults/flips.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/str.h"

/* ---- one sample ---------------------------------------------------------------------------------------------------------- */

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
    damage_file(path, &r, did, sizeof did);
    *why = 0;
    switch (v->kind) {
    case FILE_ARTEFACT: {
        char *marker = cairn_format("%s/%s/COLLECTED", f->run, v->artefact);

        held = artefact_notices(f, v, run, path, cairn_path_exists(marker), &how, why);
        free(marker);
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
    damage_undo(whole, path);
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
                damage_file(path, &r, did, sizeof did);
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
    struct lab_counts c, d;
    struct lab_end e;
    long violated, swapped, idle = IDLE / o->every + 2;
    double t0 = lab_now();
    int ways;

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
    swapped = flips_swaps(&f, &ways);
    d = lab_pool_run(lab, &(struct lab_pool){o->jobs, idle, idle_trial, name_of, &f}, "flips/logs");
    tap(!d.violated, "damaged logs: %ld runs went on, %ld violations", idle, d.violated);
    violated = c.tally[VIOLATIONS] + swapped + d.violated + flips_underway(o);
    sum("%ld flipped bits, cut and lengthened files of %d types, %d wrong files, %ld damaged logs; damaged files of steps under way; %ld violations",
        f.samples * BATCH, f.types, ways, idle, violated);
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
