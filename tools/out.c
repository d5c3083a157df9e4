/* out.c - see out.h. */
#include "tools/out.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "tools/inspect.h"

/* out as the file system has it, links followed as far as it is there; malloc'ed, NULL without memory. */
static char *resolve(const char *out)
{
    char *at = strdup(out), *real = NULL, *full = NULL;

    while (at && !(real = realpath(at, NULL)) && strcmp(at, "/") && strcmp(at, ".")) {
        char *up = cairn_path_dirname(at);

        free(at);
        at = up;
    }
    if (at && real) {
        size_t n = strlen(at);

        full = cairn_format("%s/%s", real, !strncmp(out, at, n) && (out[n] == '/' || !out[n]) ? out + n : out);
    }
    free(real);
    free(at);
    return full;
}

/* Is `name`, up to its first slash, what cairn keeps in a run, or may come to keep there (recipe.amend-0001.json)? */
static int is_part(const char *name)
{
    static const char *const parts[] = {"base", "policy", "step", "eval", "check", "files", "log", "quarantine", "replay"};
    size_t n = strcspn(name, "/");

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strlen(parts[i]) == n && !strncmp(name, parts[i], n))
            return 1;
    return cairn_starts_with(name, "recipe.") || cairn_starts_with(name, "run.json");
}

/* out as it was given, from the root on: links stand in it. malloc'ed; NULL: without memory, or nobody knows where this is. */
static char *absolute(const char *out)
{
    char *here = out[0] == '/' ? NULL : getcwd(NULL, 0), *full = out[0] == '/' ? strdup(out) : here ? cairn_path_join(here, out) : NULL;

    free(here);
    return full;
}

/* full: `out` from the root on. */
static enum cairn_status place_check(const char *full, const char *out, struct cairn_error *err)
{
    char *run = cairn_inspect_root(full);
    const char *below = run ? full + strlen(run) : "";
    enum cairn_status st = CAIRN_OK;

    below += strspn(below, "/");
    if (run && !*below)
        st = cairn_fail(err, CAIRN_EUSAGE, "--out %s is a run, and nothing else may be written into it; name a directory of its own", out);
    else if (run && is_part(below))
        st = cairn_fail(err, CAIRN_EUSAGE, "--out %s lies in %.*s of the run %s, which is the run's own; name a directory of its own", out,
                        (int)strcspn(below, "/"), below, run);
    free(run);
    return st;
}

/* "..", behind a directory that is not there: where that is will be known once it is made. */
static int goes_up(const char *resolved)
{
    const char *up = strstr(resolved, "/..");

    while (up && up[3] && up[3] != '/')
        up = strstr(up + 3, "/..");
    return up != NULL;
}

enum cairn_status cairn_out_check(const char *out, struct cairn_error *err)
{
    char *given = absolute(out), *resolved = resolve(out);
    enum cairn_status st = CAIRN_OK;

    if (!given || !resolved)
        TRY(CAIRN_NOMEM(err));
    if (goes_up(resolved))
        TRY(cairn_fail(err, CAIRN_EUSAGE, "--out %s leads up from a directory that is not there; name it without \"..\"", out));
    TRY(place_check(given, out, err));    /* RUN/base may be a link to elsewhere, */
    TRY(place_check(resolved, out, err)); /* and a link may lead into a run */
out:
    free(given);
    free(resolved);
    return st;
}
