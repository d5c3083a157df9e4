/* exact.c - the answer is the gold text. See exact.h. */
#include "grade/exact.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/str.h"
#include "grade/extract.h"

struct exact {
    struct cairn_grader g;
    int whole, any_case;
    char name[];
};

static int blank(unsigned char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* p[0, n) without blanks at its ends and with single blanks inside, folded if any_case. Appends. */
static enum cairn_status plain_text(struct cairn_str *out, const char *p, size_t n, int any_case, struct cairn_error *err)
{
    size_t start = out->len;

    for (size_t i = 0; i < n;) {
        size_t used = 1;
        int32_t c;

        if (blank((unsigned char)p[i])) {
            while (i < n && blank((unsigned char)p[i]))
                i++;
            if (i < n && out->len > start)
                cairn_str_add(out, " ", 1);
            continue;
        }
        c = cairn_utf8_next((const unsigned char *)p + i, n - i, &used);
        if (any_case && c >= 0) {
            utf8proc_uint8_t b[4];

            cairn_str_add(out, b, (size_t)utf8proc_encode_char(utf8proc_tolower(c), b));
        } else {
            cairn_str_add(out, p + i, used);
        }
        i += used;
    }
    return out->oom ? CAIRN_NOMEM(err) : CAIRN_OK;
}

int cairn_exact_take(int whole, const struct cairn_grade_opts *opts, const char *response, size_t bytes, const char **p, size_t *n,
                     struct cairn_verdict *v, enum cairn_status *st, struct cairn_error *err)
{
    struct cairn_span span = {response, bytes, ""};

    *st = whole ? CAIRN_OK : cairn_extract_answer(opts, response, bytes, &span, err);
    if (*st != CAIRN_OK)
        return 0;
    if (!span.p) {
        v->status = CAIRN_VERDICT_NO_ANSWER;
        snprintf(v->why, sizeof v->why, "%s", span.why);
        return 0;
    }
    *p = span.p;
    *n = span.n;
    return 1;
}

enum cairn_status cairn_exact_compare(const char *gold, size_t gold_bytes, const char *p, size_t n, int any_case, struct cairn_verdict *v,
                                      struct cairn_error *err)
{
    struct cairn_str want = {0}, have = {0};
    enum cairn_status st = CAIRN_OK;

    TRY(plain_text(&want, gold, gold_bytes, any_case, err));
    TRY(plain_text(&have, p, n, any_case, err));
    cairn_verdict_text(v->extracted, sizeof v->extracted, p, n);
    v->match = want.len == have.len && (want.len == 0 || memcmp(want.p, have.p, want.len) == 0);
    snprintf(v->why, sizeof v->why, v->match ? "the same text" : "another text");
out:
    cairn_str_free(&want);
    cairn_str_free(&have);
    return st;
}

static enum cairn_status compare(int whole, int any_case, const struct cairn_grade_opts *opts, const char *gold, size_t gold_bytes,
                                 const char *response, size_t response_bytes, struct cairn_verdict *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const char *p;
    size_t n;

    if (!cairn_exact_take(whole, opts, response, response_bytes, &p, &n, out, &st, err))
        return st;
    return cairn_exact_compare(gold, gold_bytes, p, n, any_case, out, err);
}

enum cairn_status cairn_exact_grade(const struct cairn_grader *self, const struct cairn_grade_opts *opts, const char *gold, size_t gold_bytes,
                                    const char *response, size_t response_bytes, struct cairn_verdict *out, struct cairn_error *err)
{
    const struct exact *x = self->destroy ? (const struct exact *)self : NULL; /* the built-in one has no settings */

    return compare(x && x->whole, x && x->any_case, opts, gold, gold_bytes, response, response_bytes, out, err);
}

static void destroy(struct cairn_grader *g)
{
    free(g);
}

enum cairn_status cairn_exact_create(struct cairn_grader **out, const struct cairn_grader_def *def, struct cairn_error *err)
{
    size_t n = strlen(def->name) + 1;
    struct exact *x = calloc(1, sizeof *x + n);

    if (!x)
        return CAIRN_NOMEM(err);
    memcpy(x->name, def->name, n);
    x->g = (struct cairn_grader){.name = x->name, .grade = cairn_exact_grade, .destroy = destroy};
    x->whole = def->take && strcmp(def->take, "response") == 0;
    x->any_case = def->any_case;
    *out = &x->g;
    return CAIRN_OK;
}
