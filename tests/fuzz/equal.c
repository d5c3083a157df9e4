/* equal.c - fuzz target: the math grader on any pair of answers.
 *
 * It always ends with a verdict, the same one each time; a match has status ok. Where both sides are plain integers or fractions the verdict
 * is GMP's: nothing that is wrong is accepted.
 */
#include "fuzz/fuzz.h"

#include <gmp.h>
#include <string.h>

#include "grade/grade.h"

#define DIGITS_MAX 40

/* [-]digits[/digits], nothing else: its value. */
static int plain(const char *p, size_t n, mpq_t q)
{
    char z[DIGITS_MAX + 1];
    size_t digits = 0, slash = 0;

    if (n == 0 || n > DIGITS_MAX)
        return 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] >= '0' && p[i] <= '9')
            digits++;
        else if (p[i] == '/' && digits && !slash && i + 1 < n)
            slash = i;
        else if (!(p[i] == '-' && i == 0))
            return 0;
    }
    if (!digits || (slash && slash + 1 == n))
        return 0;
    memcpy(z, p, n);
    z[n] = 0;
    if (mpq_set_str(q, z, 10) != 0 || mpz_sgn(mpq_denref(q)) == 0)
        return 0;
    mpq_canonicalize(q);
    return 1;
}

static struct cairn_verdict grade(const char *gold, size_t ng, const char *response, size_t nr)
{
    struct cairn_verdict v;

    MUST(cairn_grade(cairn_grader_find("math"), NULL, gold, ng, response, nr, &v, NULL) == CAIRN_OK);
    MUST(memchr(v.extracted, 0, sizeof v.extracted) && memchr(v.why, 0, sizeof v.why));
    MUST(!v.match || v.status == CAIRN_VERDICT_OK);
    MUST(v.value == v.match);
    return v;
}

int fuzz_equal(const uint8_t *data, size_t n)
{
    static const char say[] = "Answer: ";
    const char *text = (const char *)data, *end = memchr(data, '\n', n);
    size_t ng = end ? (size_t)(end - text) : n, na = end ? n - ng - 1 : 0;
    char *response = malloc(sizeof say - 1 + na + 1), *gold = malloc(ng ? ng : 1);
    struct cairn_verdict v, again;
    mpq_t x, y;

    MUST(response && gold);
    memcpy(gold, text, ng);
    memcpy(response, say, sizeof say - 1);
    if (na)
        memcpy(response + sizeof say - 1, end + 1, na);
    v = grade(gold, ng, response, sizeof say - 1 + na);
    again = grade(gold, ng, response, sizeof say - 1 + na);
    MUST(v.match == again.match && v.status == again.status && strcmp(v.extracted, again.extracted) == 0);
    mpq_inits(x, y, NULL);
    if (end && plain(gold, ng, x) && plain(end + 1, na, y))
        MUST(v.match == (mpq_equal(x, y) != 0));
    mpq_clears(x, y, NULL);
    free(response);
    free(gold);
    return 0;
}

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return fuzz_equal(data, n);
}
#endif
