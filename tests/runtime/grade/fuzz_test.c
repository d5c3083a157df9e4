/* fuzz_test.c - a short, fixed run of the fuzz targets over mutations of the grading fixtures; `--seeds DIR` writes them as a corpus for
 * `make fuzz-grade`, which goes on from there for as long as it is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/philox.h"
#include "base/str.h"
#include "fuzz/fuzz.h"

#define ROUNDS 60000 /* of each target */
#define SEEDS  2000
#define LENGTH 4096

struct seed {
    char *p;
    size_t n;
};

/* What fuzzing has found once. */
static const char *const found[][2] = {{")", "^{ \\circ }"}};

static struct seed extracts[SEEDS], equals[SEEDS];
static int n_extracts, n_equals;

static void add(struct seed *s, int *n, const char *head, size_t head_n, const char *tail, size_t tail_n)
{
    size_t bytes = head_n + 1 + tail_n;

    if (*n == SEEDS || bytes > LENGTH)
        return;
    s[*n].p = malloc(bytes);
    assert_non_null(s[*n].p);
    memcpy(s[*n].p, head, head_n);
    s[*n].p[head_n] = head_n ? '\n' : 0;
    memcpy(s[*n].p + head_n + 1, tail, tail_n);
    s[(*n)++].n = bytes;
}

static void read_seeds(const char *file, const char *gold_key, const char *response_key)
{
    struct cairn_jsonl *r;
    struct cairn_error err;
    const json_t *v;

    if (cairn_jsonl_open(&r, file, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    while (cairn_jsonl_next(r, &v, &err) == CAIRN_OK && v) {
        const json_t *g = json_object_get(v, gold_key), *s = json_object_get(v, response_key);

        if (!json_is_string(g) || !json_is_string(s))
            continue;
        add(equals, &n_equals, json_string_value(g), json_string_length(g), json_string_value(s), json_string_length(s));
        add(extracts, &n_extracts, "", 0, json_string_value(s), json_string_length(s));
    }
    cairn_jsonl_close(r);
}

static int read_all(void **state)
{
    (void)state;
    read_seeds("tests/fixtures/grading/grading_cases.jsonl", "gold", "response");
    read_seeds("tests/fixtures/grading/math500_half_a.jsonl", "answer", "answer");
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        add(equals, &n_equals, found[i][0], strlen(found[i][0]), found[i][1], strlen(found[i][1]));
    assert_true(n_equals > 500 && n_extracts > 500);
    return 0;
}

static uint32_t draw(uint32_t round, uint32_t k, uint32_t below)
{
    const struct cairn_philox_key key = {.seed = 42, .purpose = CAIRN_PURPOSE_PROBE};
    uint32_t out[4];

    cairn_philox(&key, round, k, 0, out);
    return below ? out[0] % below : out[0];
}

static size_t put(char *s, size_t n, size_t at, const char *what, size_t k)
{
    if (n + k > LENGTH)
        return n;
    memmove(s + at + k, s + at, n - at);
    memcpy(s + at, what, k);
    return n + k;
}

/* A few of: a byte flipped, a piece cut out, doubled, a piece of another seed or a word of mathematics put in. */
static size_t mutate(char *s, size_t n, const struct seed *all, int count, uint32_t round)
{
    static const char *const words[] = {"\\frac",
                                        "{",
                                        "}",
                                        "\\sqrt",
                                        "^",
                                        "_",
                                        "\\boxed{",
                                        "Answer:",
                                        "(",
                                        ")",
                                        "[",
                                        "]",
                                        ",",
                                        "\\pm",
                                        "\\pi",
                                        "!",
                                        "9",
                                        "/",
                                        "-",
                                        ".",
                                        "%",
                                        "$",
                                        "\\text{",
                                        "\\begin{pmatrix}",
                                        "\\end{pmatrix}",
                                        "&",
                                        "\\\\",
                                        "=",
                                        "<",
                                        "\\cup",
                                        "\\infty",
                                        "e",
                                        "\\overline{",
                                        "\xc2\xbd",
                                        "\xe2\x88\x9a",
                                        "\\log",
                                        "x",
                                        "\n",
                                        " ",
                                        "\\left(",
                                        "\\circ",
                                        "\\times"};

    for (uint32_t k = 0, steps = 1 + draw(round, 1, 6); k < steps; k++) {
        size_t at = n ? draw(round, 10 + 8 * k, (uint32_t)n) : 0, len = n - at ? 1 + draw(round, 11 + 8 * k, (uint32_t)(n - at)) : 0;
        const char *w = words[draw(round, 12 + 8 * k, sizeof words / sizeof *words)];
        const struct seed *o = &all[draw(round, 13 + 8 * k, (uint32_t)count)];

        switch (draw(round, 14 + 8 * k, 5)) {
        case 0:
            if (n)
                s[at] ^= (char)(1u << draw(round, 15 + 8 * k, 8));
            break;
        case 1:
            memmove(s + at, s + at + len, n - at - len);
            n -= len;
            break;
        case 2:
            if (len <= 256) {
                char piece[256];

                memcpy(piece, s + at, len);
                n = put(s, n, at, piece, len);
            }
            break;
        case 3:
            n = put(s, n, at, o->p, o->n < 64 ? o->n : 64);
            break;
        default:
            for (uint32_t times = draw(round, 15 + 8 * k, 16) ? 1 : 40; times; times--)
                n = put(s, n, at, w, strlen(w));
        }
    }
    return n;
}

static void run(int (*target)(const uint8_t *data, size_t n), const struct seed *all, int count)
{
    static char s[LENGTH];

    for (int i = 0; i < count; i++)
        target((const uint8_t *)all[i].p, all[i].n);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const struct seed *from = &all[draw(i, 0, (uint32_t)count)];
        size_t n;

        memcpy(s, from->p, from->n);
        n = mutate(s, from->n, all, count, i);
        target((const uint8_t *)s, n);
    }
}

static void test_extract(void **state)
{
    (void)state;
    run(fuzz_extract, extracts, n_extracts);
}

static void test_equal(void **state)
{
    (void)state;
    run(fuzz_equal, equals, n_equals);
}

static void seeds_write(const char *dir, const char *name, const struct seed *s, int n)
{
    for (int i = 0; i < n; i++) {
        char *path = cairn_format("%s/%s/%05d", dir, name, i);
        FILE *f;

        assert_non_null(path);
        f = fopen(path, "w");
        if (!f || fwrite(s[i].p, 1, s[i].n, f) != s[i].n || fclose(f) != 0)
            fail_msg("%s: cannot write it", path);
        free(path);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_extract), cmocka_unit_test(test_equal)};

    if (argc == 3 && strcmp(argv[1], "--seeds") == 0) {
        read_all(NULL);
        seeds_write(argv[2], "extract", extracts, n_extracts);
        seeds_write(argv[2], "equal", equals, n_equals);
        return 0;
    }
    return cmocka_run_group_tests(tests, read_all, NULL);
}
