/* regex.c - an expression finds the answer. See exact.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "grade/exact.h"

/* PCRE2's own limit of work holds for each place where a match may begin, of which a response has as many as bytes: so steps are
 * counted here, over all of a response. A step is an item of the expression that is tried, or a byte that the one before it went
 * over. */
#define WORK_LIMIT  20000000
#define CHECKED     256 /* bytes whose check for UTF-8 is a step */
#define DEPTH_LIMIT 10000
#define HEAP_KIB    65536

struct regex {
    struct cairn_grader g;
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
    int whole, any_case;
    uint32_t groups;
    char name[];
};

static void destroy(struct cairn_grader *g)
{
    struct regex *x = (struct regex *)g;

    pcre2_code_free(x->code);
    pcre2_match_data_free(x->data);
    pcre2_match_context_free(x->context);
    free(x);
}

struct work {
    int64_t left;
    PCRE2_SIZE at; /* where the step before was */
};

/* Called at each item of the expression. */
static int step(pcre2_callout_block *b, void *arg)
{
    struct work *w = arg;

    w->left -= 1 + (int64_t)(b->current_position > w->at ? b->current_position - w->at : w->at - b->current_position);
    w->at = b->current_position;
    return w->left < 0 ? PCRE2_ERROR_MATCHLIMIT : 0;
}

/* The last match's span: of the first group if there is one. PCRE2's return code: below 0 only for errors; 0: no match. */
static int last_match(const struct regex *x, const char *p, size_t n, size_t *from, size_t *to)
{
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(x->data);
    struct work work = {.left = WORK_LIMIT};
    size_t start = 0;
    int found = 0;

    pcre2_set_callout(x->context, step, &work);
    while (start <= n) {
        int rc, group;

        work.left -= 1 + (int64_t)((n - start) / CHECKED); /* as UTF-8, by each call */
        rc = work.left < 0 ? PCRE2_ERROR_MATCHLIMIT : pcre2_match(x->code, (PCRE2_SPTR)p, n, start, 0, x->data, x->context);

        if (rc == PCRE2_ERROR_NOMATCH)
            return found;
        if (rc < 0)
            return rc;
        group = x->groups && rc > 1 && at[2] != PCRE2_UNSET;
        if (group || !x->groups) {
            *from = at[2 * group];
            *to = at[2 * group + 1];
            found = 1;
        }
        start = at[1] > at[0] ? at[1] : at[1] + 1;
        while (start < n && ((unsigned char)p[start] & 0xC0) == 0x80) /* to a character's first byte */
            start++;
    }
    return found;
}

static enum cairn_status grade(const struct cairn_grader *self, const struct cairn_grade_opts *opts, const char *gold,
                               size_t gold_bytes, const char *response, size_t response_bytes, struct cairn_verdict *out,
                               struct cairn_error *err)
{
    const struct regex *x = (const struct regex *)self;
    enum cairn_status st = CAIRN_OK;
    const char *p;
    size_t n, from = 0, to = 0;
    int rc;

    if (!cairn_exact_take(x->whole, opts, response, response_bytes, &p, &n, out, &st, err))
        return st;
    rc = last_match(x, p, n, &from, &to);
    if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT) {
        out->status = CAIRN_VERDICT_BUDGET;
        snprintf(out->why, sizeof out->why, "the expression takes more work than the budget allows");
        return CAIRN_OK;
    }
    if (rc == PCRE2_ERROR_NOMEMORY)
        return CAIRN_NOMEM(err);
    if (rc < 0)
        return CAIRN_BUG(err, "pcre2_match");
    if (rc == 0) {
        out->status = CAIRN_VERDICT_NO_ANSWER;
        snprintf(out->why, sizeof out->why, "the expression matches nowhere");
        return CAIRN_OK;
    }
    n = to > from ? to - from : 0;
    if (x->groups)
        return cairn_exact_compare(gold, gold_bytes, p + from, n, x->any_case, out, err);
    cairn_verdict_text(out->extracted, sizeof out->extracted, p + from, n);
    out->match = 1;
    snprintf(out->why, sizeof out->why, "the expression matches");
    return CAIRN_OK;
}

enum cairn_status cairn_regex_create(struct cairn_grader **out, const struct cairn_grader_def *def, struct cairn_error *err)
{
    size_t n = strlen(def->name) + 1;
    struct regex *x = NULL;
    enum cairn_status st = CAIRN_OK;
    PCRE2_SIZE at;
    int code;

    if (!def->pattern)
        return cairn_fail(err, CAIRN_ERECIPE, "pattern: a grader of kind regex needs one");
    if (!(x = calloc(1, sizeof *x + n)))
        return CAIRN_NOMEM(err);
    memcpy(x->name, def->name, n);
    x->g = (struct cairn_grader){.name = x->name, .grade = grade, .destroy = destroy};
    x->whole = !def->take || strcmp(def->take, "response") == 0;
    x->any_case = def->any_case;
    x->code = pcre2_compile((PCRE2_SPTR)def->pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT |
                                (def->any_case ? PCRE2_CASELESS : 0),
                            &code, &at, NULL);
    if (!x->code && code == PCRE2_ERROR_HEAP_FAILED)
        TRY(CAIRN_NOMEM(err));
    if (!x->code) {
        PCRE2_UCHAR why[128];

        pcre2_get_error_message(code, why, sizeof why);
        TRY(cairn_fail(err, CAIRN_ERECIPE, "pattern: %s, at its character %zu", (const char *)why, (size_t)at));
    }
    pcre2_pattern_info(x->code, PCRE2_INFO_CAPTURECOUNT, &x->groups);
    x->g.gold_unused = !x->groups;
    x->data = pcre2_match_data_create_from_pattern(x->code, NULL);
    x->context = pcre2_match_context_create(NULL);
    if (!x->data || !x->context)
        TRY(CAIRN_NOMEM(err));
    pcre2_set_depth_limit(x->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(x->context, HEAP_KIB);
    *out = &x->g;
    x = NULL;
out:
    if (x)
        destroy(&x->g);
    return st;
}
