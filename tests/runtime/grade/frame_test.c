/* frame_test.c - frames read back as they were written; every cut, lengthened or bent frame is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "grade/frame.h"

#define HEADER sizeof(struct cairn_frame_header)

/* The n bytes at the end of memory that ends with them, so that a sanitizer sees a read beyond. */
static char *exact(const char *p, size_t n)
{
    char *copy = malloc(n ? n : 1);

    assert_non_null(copy);
    memcpy(copy, p, n);
    return copy;
}

static void test_request(void **state)
{
    static const char *const marker[] = {"A:", "####"};
    const struct cairn_grade_opts opts = {marker, 2};
    const struct cairn_grade_request request = {"math",
                                                &opts,
                                                "4\0"
                                                "2",
                                                3,
                                                "",
                                                0};
    struct cairn_frame_request *out = malloc(sizeof *out);
    struct cairn_frame_header h;
    struct cairn_str s = {0};
    uint64_t seed = 7;
    int accepted = 0;

    (void)state;
    assert_non_null(out);
    assert_int_equal(cairn_frame_put_request(&s, 9, &request, NULL), CAIRN_OK);
    memcpy(&h, s.p, HEADER);
    assert_int_equal(cairn_frame_check(&h, NULL), CAIRN_OK);
    assert_int_equal(h.serial, 9);
    assert_int_equal(h.bytes, s.len - HEADER);
    assert_int_equal(cairn_frame_get_request(s.p + HEADER, h.bytes, out, NULL), CAIRN_OK);
    assert_string_equal(out->request.grader, "math");
    assert_int_equal(out->opts.markers, 2);
    assert_string_equal(out->opts.marker[1], "####");
    assert_int_equal(out->request.gold_bytes, 3);
    assert_memory_equal(out->request.gold,
                        "4\0"
                        "2",
                        3);
    assert_int_equal(out->request.response_bytes, 0);
    for (size_t n = 0; n < h.bytes; n++) {
        char *cut = exact(s.p + HEADER, n);

        assert_int_equal(cairn_frame_get_request(cut, n, out, NULL), CAIRN_EBUG);
        free(cut);
    }
    cairn_str_putc(&s, 'x');
    assert_int_equal(cairn_frame_get_request(s.p + HEADER, s.len - HEADER, out, NULL), CAIRN_EBUG);
    for (int round = 0; round < 20000; round++) { /* bent bytes: refused or read, never out of bounds */
        char *bent = exact(s.p + HEADER, h.bytes);

        for (int k = 0; k < 3; k++) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            bent[(seed >> 40) % h.bytes] = (char)(seed >> 32);
        }
        accepted += cairn_frame_get_request(bent, h.bytes, out, NULL) == CAIRN_OK;
        free(bent);
    }
    assert_in_range(accepted, 1, 19999);
    cairn_str_free(&s);
    free(out);
}

static void test_verdict(void **state)
{
    struct cairn_verdict v, w;
    struct cairn_str s = {0};

    (void)state;
    memset(&v, 0, sizeof v);
    v.match = 1;
    strcpy(v.extracted, "\\frac12");
    strcpy(v.why, "equal");
    assert_int_equal(cairn_frame_put_verdict(&s, 1, &v, NULL), CAIRN_OK);
    assert_int_equal(cairn_frame_get_verdict(s.p + HEADER, s.len - HEADER, &w, NULL), CAIRN_OK);
    assert_memory_equal(&v, &w, sizeof v);
    for (size_t n = 0; n < s.len - HEADER; n++) {
        char *cut = exact(s.p + HEADER, n);

        assert_int_equal(cairn_frame_get_verdict(cut, n, &w, NULL), CAIRN_EBUG);
        free(cut);
    }
    s.p[HEADER] = 2; /* match is 0 or 1 */
    assert_int_equal(cairn_frame_get_verdict(s.p + HEADER, s.len - HEADER, &w, NULL), CAIRN_EBUG);
    s.p[HEADER] = 1;
    s.p[HEADER + 4] = CAIRN_VERDICT_STATUSES;
    assert_int_equal(cairn_frame_get_verdict(s.p + HEADER, s.len - HEADER, &w, NULL), CAIRN_EBUG);
    cairn_str_free(&s);
}

static void test_error(void **state)
{
    struct cairn_error e = {CAIRN_EDATA, "row 3 is odd"}, back;
    struct cairn_str s = {0};

    (void)state;
    assert_int_equal(cairn_frame_put_error(&s, 1, &e, NULL), CAIRN_OK);
    assert_int_equal(cairn_frame_get_error(s.p + HEADER, s.len - HEADER, &back), CAIRN_EDATA);
    assert_string_equal(back.text, "row 3 is odd");
    s.p[HEADER] = 0; /* "no error" is no error */
    assert_int_equal(cairn_frame_get_error(s.p + HEADER, s.len - HEADER, &back), CAIRN_EBUG);
    assert_int_equal(cairn_frame_get_error(s.p, 3, &back), CAIRN_EBUG);
    cairn_str_free(&s);
}

static void test_header(void **state)
{
    struct cairn_frame_header h = {CAIRN_FRAME_MAGIC, CAIRN_FRAME_REQUEST, 0, CAIRN_FRAME_MAX};

    (void)state;
    assert_int_equal(cairn_frame_check(&h, NULL), CAIRN_OK);
    h.bytes++;
    assert_int_equal(cairn_frame_check(&h, NULL), CAIRN_EBUG);
    h.bytes = 0;
    h.type = 4;
    assert_int_equal(cairn_frame_check(&h, NULL), CAIRN_EBUG);
    h.type = 1;
    h.magic++;
    assert_int_equal(cairn_frame_check(&h, NULL), CAIRN_EBUG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_request), cmocka_unit_test(test_verdict), cmocka_unit_test(test_error),
                                       cmocka_unit_test(test_header)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
