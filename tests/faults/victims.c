/* victims.c - see flips.h: which files a run has, and of which type each is. */
#include "tests/faults/flips.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"

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

void victims_find(struct flips *f)
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
