/* out.c - see out.h. */
#include "tools/out.h"

#include <stdlib.h>
#include <string.h>

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

/* Is `name`, up to its first slash, a folder that cairn keeps in a run? */
static int is_part(const char *name)
{
    static const char *const parts[] = {"base", "policy", "step", "eval", "check", "files", "log", "quarantine"};
    size_t n = strcspn(name, "/");

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strlen(parts[i]) == n && !strncmp(name, parts[i], n))
            return 1;
    return 0;
}

enum cairn_status cairn_out_check(const char *out, struct cairn_error *err)
{
    char *full = resolve(out), *run = full ? cairn_inspect_root(full) : NULL;
    const char *below = run ? full + strlen(run) : "";
    enum cairn_status st = CAIRN_OK;

    below += strspn(below, "/");
    if (!full)
        st = CAIRN_NOMEM(err);
    else if (run && !*below)
        st = cairn_fail(err, CAIRN_EUSAGE, "--out %s is a run, and nothing else may be written into it; name a directory of its own", out);
    else if (run && is_part(below))
        st = cairn_fail(err, CAIRN_EUSAGE, "--out %s lies in %.*s of the run %s, which is the run's own; name a directory of its own", out,
                        (int)strcspn(below, "/"), below, run);
    free(run);
    free(full);
    return st;
}
