/* grade.c - the table of graders, and one call through it. See grade.h. */
#include "grade/grade.h"

#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "grade/define.h"
#include "grade/exact.h"
#include "grade/math.h"

#define GRADERS_MAX 32

static const struct cairn_grader math_grader = {.name = "math", .grade = cairn_math_grade};
static const struct cairn_grader exact_grader = {.name = "exact", .grade = cairn_exact_grade};

static const struct cairn_grader *graders[GRADERS_MAX] = {&math_grader, &exact_grader};
static int grader_count = 2;

const struct cairn_grader *cairn_grader_at(int i)
{
    return i >= 0 && i < grader_count ? graders[i] : NULL;
}

void cairn_graders_forget(void)
{
    int kept = 0;

    for (int i = 0; i < grader_count; i++)
        if (graders[i]->destroy)
            graders[i]->destroy((struct cairn_grader *)graders[i]); /* made by cairn_grader_define */
        else
            graders[kept++] = graders[i];
    grader_count = kept;
}

const struct cairn_grader *cairn_grader_find(const char *name)
{
    for (int i = 0; i < grader_count; i++)
        if (strcmp(graders[i]->name, name) == 0)
            return graders[i];
    return NULL;
}

enum cairn_status cairn_grader_register(const struct cairn_grader *grader, struct cairn_error *err)
{
    if (!cairn_name_ok(grader->name))
        return cairn_fail(err, CAIRN_EUSAGE, "grader: \"%s\" is not a name", grader->name);
    if (cairn_grader_find(grader->name))
        return cairn_fail(err, CAIRN_EUSAGE, "grader: there is one named \"%s\" already", grader->name);
    if (grader_count == GRADERS_MAX)
        return cairn_fail(err, CAIRN_EUSAGE, "grader: no more than %d can be registered", GRADERS_MAX);
    graders[grader_count++] = grader;
    return CAIRN_OK;
}

enum cairn_status cairn_grader_unknown(const char *name, struct cairn_error *err)
{
    struct cairn_str names = {0};
    enum cairn_status st;

    for (int i = 0; i < grader_count; i++)
        cairn_str_printf(&names, "%s%s", i ? ", " : "", graders[i]->name);
    st = cairn_fail(err, CAIRN_EUSAGE, "no grader is named \"%.64s\"; there are: %s", name, cairn_str_z(&names));
    cairn_str_free(&names);
    return st;
}

enum cairn_status cairn_grade_opts_check(const struct cairn_grade_opts *opts, struct cairn_error *err)
{
    if (!opts)
        return CAIRN_OK;
    if (opts->markers < 0 || opts->markers > CAIRN_MARKERS_MAX)
        return cairn_fail(err, CAIRN_EUSAGE, "grader: %d markers, at most %d are possible", opts->markers, CAIRN_MARKERS_MAX);
    for (int i = 0; i < opts->markers; i++) {
        size_t n = strlen(opts->marker[i]);

        if (n == 0 || n > CAIRN_MARKER_BYTES_MAX)
            return cairn_fail(err, CAIRN_EUSAGE, "grader: marker %d has %zu bytes, not 1 to %d", i + 1, n, CAIRN_MARKER_BYTES_MAX);
    }
    return CAIRN_OK;
}

enum cairn_status cairn_grade(const struct cairn_grader *grader, const struct cairn_grade_opts *opts, const char *gold,
                              size_t gold_bytes, const char *response, size_t response_bytes, struct cairn_verdict *out,
                              struct cairn_error *err)
{
    static const struct cairn_grade_opts defaults;
    struct cairn_verdict v;
    enum cairn_status st = CAIRN_OK;

    memset(&v, 0, sizeof v);
    TRY(cairn_grade_opts_check(opts, err));
    TRY(grader->grade(grader, opts ? opts : &defaults, gold, gold_bytes, response, response_bytes, &v, err));
    if (v.status != CAIRN_VERDICT_OK) {
        v.match = 0;
        v.value = 0;
    } else if (v.match) {
        v.value = 1;
    }
    *out = v;
out:
    return st;
}

const char *cairn_verdict_status_name(enum cairn_verdict_status status)
{
    static const char *const name[] = {"ok", "no_answer", "budget", "crashed", "timeout", "undecided", "invalid"};

    return (unsigned)status < CAIRN_VERDICT_STATUSES ? name[status] : "?";
}

void cairn_verdict_text(char *dst, size_t size, const char *p, size_t n)
{
    size_t at = 0, len = 0;

    while (at < n) {
        size_t used;
        int32_t cp = cairn_utf8_next((const unsigned char *)p + at, n - at, &used);

        if (len + used + 1 > size)
            break;
        if (cp < 0 || cp < 32 || cp == 127)
            dst[len++] = cp == '\n' || cp == '\t' ? ' ' : '?';
        else {
            memcpy(dst + len, p + at, used);
            len += used;
        }
        at += used;
    }
    dst[len] = 0;
}
