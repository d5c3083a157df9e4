/* math.c - the way of one verdict. See math.h. */
#include "grade/math.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "grade/compare.h"
#include "grade/extract.h"
#include "grade/latex.h"
#include "grade/parse.h"
#include "grade/units.h"
#include "grade/value.h"

#define ANSWER_BYTES_MAX 32768
#define BUDGET           300000 /* limbs touched, for both sides together */

struct grading {
    struct cairn_arena *arena;
    struct cairn_algebra *alg;
    struct cairn_verdict *v;
    int no_memory;
};

static void conclude(struct grading *g, int match, enum cairn_verdict_status status, const char *why)
{
    g->v->match = match;
    g->v->status = status;
    snprintf(g->v->why, sizeof g->v->why, "%s", why);
}

/* Same answer in words: blanks and punctuation aside, and case where the gold answer is a word and no label. */
static int same_words(const char *a, const char *b)
{
    int letters = 0, lower = 0;

    for (const char *s = a; *s; s++) {
        letters += isalpha((unsigned char)*s) != 0;
        lower |= islower((unsigned char)*s) != 0;
    }
    for (;;) {
        while (*a && strchr(".,'()- ", *a))
            a++;
        while (*b && strchr(".,'()- ", *b))
            b++;
        if (!*a || !*b)
            return !*a && !*b && letters > 0;
        if (*a != *b && !(letters >= 3 && lower && tolower((unsigned char)*a) == tolower((unsigned char)*b)))
            return 0;
        a++;
        b++;
    }
}

/* What stands before a top-level approximation sign. */
static void before_approximation(struct cairn_toks *t)
{
    for (int i = 1; i < t->n; i++)
        if (t->t[i].kind == TOK_APPROX) {
            t->n = i;
            return;
        }
}

/* Reads and compares; *status is OK or BUDGET. */
static int compare(struct grading *g, const struct cairn_toks *gold, const struct cairn_toks *response,
                   enum cairn_verdict_status *status, const char **why)
{
    struct cairn_compare c = {.alg = g->alg, .arena = g->arena, .gold_toks = gold, .response_toks = response};
    struct cairn_node *x, *y;
    enum cairn_parse_result rx = cairn_parse(g->arena, gold, &x), ry = cairn_parse(g->arena, response, &y);
    int match;

    *status = CAIRN_VERDICT_OK;
    if (rx == CAIRN_PARSE_NOMEM || ry == CAIRN_PARSE_NOMEM) {
        g->no_memory = 1;
        return 0;
    }
    if (ry != CAIRN_PARSE_OK || rx != CAIRN_PARSE_OK) {
        if (ry == CAIRN_PARSE_TOO_DEEP)
            *status = CAIRN_VERDICT_BUDGET;
        *why = ry == CAIRN_PARSE_TOO_DEEP ? "the answer is nested too deeply"
               : ry != CAIRN_PARSE_OK     ? "the answer cannot be read as mathematics and is not the gold text"
                                          : "the gold answer cannot be read as mathematics and the texts differ";
        return 0;
    }
    match = cairn_compare(&c, x, y);
    *why = c.why;
    if (cairn_algebra_fail(g->alg) == CAIRN_VALUE_NOMEM)
        g->no_memory = 1;
    if (!match && cairn_algebra_fail(g->alg) == CAIRN_VALUE_BUDGET) {
        *status = CAIRN_VERDICT_BUDGET;
        *why = "the answer takes more work than the budget allows";
    } else if (!match && c.undecided) {
        *status = CAIRN_VERDICT_UNDECIDED;
        *why = "neither shown to be equal nor to differ";
    }
    return match;
}

static enum cairn_status grade_tokens(struct grading *g, struct cairn_toks gold, struct cairn_toks response,
                                      struct cairn_error *err)
{
    struct cairn_str a = {0}, b = {0};
    struct cairn_toks gold_bare, response_bare;
    enum cairn_verdict_status status;
    const char *why = "";
    enum cairn_status st = CAIRN_OK;
    int changed;

    before_approximation(&gold);
    before_approximation(&response);
    cairn_latex_canonical(&gold, &a);
    cairn_latex_canonical(&response, &b);
    if (a.oom || b.oom)
        TRY(CAIRN_NOMEM(err));
    if (response.n == 0) {
        conclude(g, 0, CAIRN_VERDICT_NO_ANSWER, "the answer is empty");
        goto out;
    }
    if (gold.n && a.len == b.len && memcmp(a.p, b.p, a.len) == 0) {
        conclude(g, 1, CAIRN_VERDICT_OK, "the same text");
        goto out;
    }
    if (cairn_latex_is_words(&gold)) {
        int match = same_words(cairn_str_z(&a), cairn_str_z(&b));

        conclude(g, match, CAIRN_VERDICT_OK, match ? "the same words" : "other words");
        goto out;
    }
    if (compare(g, &gold, &response, &status, &why)) {
        conclude(g, 1, CAIRN_VERDICT_OK, "equal");
        goto out;
    }
    if (!g->no_memory && (status == CAIRN_VERDICT_OK || status == CAIRN_VERDICT_UNDECIDED)) {
        changed = cairn_latex_without_units(g->arena, &gold, &gold_bare);
        changed |= cairn_latex_without_units(g->arena, &response, &response_bare);
        if (!gold_bare.t || !response_bare.t)
            TRY(CAIRN_NOMEM(err));
        cairn_algebra_clear_fail(g->alg);
        if (changed && compare(g, &gold_bare, &response_bare, &status, &why)) {
            conclude(g, 1, CAIRN_VERDICT_OK, "equal without units");
            goto out;
        }
    }
    if (g->no_memory)
        TRY(CAIRN_NOMEM(err));
    conclude(g, 0, status, why);
out:
    cairn_str_free(&a);
    cairn_str_free(&b);
    return st;
}

enum cairn_status cairn_math_grade(const struct cairn_grader *self, const struct cairn_grade_opts *opts, const char *gold, size_t gold_bytes,
                                   const char *response, size_t response_bytes, struct cairn_verdict *out, struct cairn_error *err)
{
    struct grading g = {.v = out};
    struct cairn_span want, have;
    struct cairn_toks want_toks, have_toks;
    enum cairn_tok_result rw, rh;
    enum cairn_status st = CAIRN_OK;

    (void)self;
    TRY(cairn_extract_gold(gold, gold_bytes, &want, err));
    TRY(cairn_extract_answer(opts, response, response_bytes, &have, err));
    if (!have.p) {
        conclude(&g, 0, CAIRN_VERDICT_NO_ANSWER, have.why);
        goto out;
    }
    cairn_verdict_text(out->extracted, sizeof out->extracted, have.p, have.n);
    if (want.n == have.n && want.n > 0 && memcmp(want.p, have.p, want.n) == 0 && have.n > ANSWER_BYTES_MAX) {
        conclude(&g, 1, CAIRN_VERDICT_OK, "the same text");
        goto out;
    }
    if (want.n > ANSWER_BYTES_MAX || have.n > ANSWER_BYTES_MAX) {
        conclude(&g, 0, CAIRN_VERDICT_BUDGET, "the answer is too long");
        goto out;
    }
    if (!(g.arena = cairn_arena_create()) || !(g.alg = cairn_algebra_create(g.arena, BUDGET)))
        TRY(CAIRN_NOMEM(err));
    rw = cairn_latex_tokens(g.arena, want.p, want.n, &want_toks);
    rh = cairn_latex_tokens(g.arena, have.p, have.n, &have_toks);
    if (rw == CAIRN_TOK_NOMEM || rh == CAIRN_TOK_NOMEM)
        TRY(CAIRN_NOMEM(err));
    if (rw == CAIRN_TOK_TOO_LONG || rh == CAIRN_TOK_TOO_LONG) {
        int same = want.n == have.n && memcmp(want.p, have.p, want.n) == 0;

        conclude(&g, same, same ? CAIRN_VERDICT_OK : CAIRN_VERDICT_BUDGET, same ? "the same text" : "the answer is too long");
        goto out;
    }
    TRY(grade_tokens(&g, want_toks, have_toks, err));
out:
    cairn_algebra_destroy(g.alg);
    cairn_arena_destroy(g.arena);
    return st;
}
