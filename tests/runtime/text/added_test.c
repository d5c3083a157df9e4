/* added_test.c - added.[ch]: leftmost, then longest; two sets; blanks that are swallowed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "text/added.h"

static void add(struct cairn_added *a, const char *name, int32_t id, int lstrip, int rstrip, int normalized)
{
    struct cairn_added_token t = {.name = (char *)(uintptr_t)name,
                                  .n = strlen(name),
                                  .id = id,
                                  .lstrip = (unsigned char)lstrip,
                                  .rstrip = (unsigned char)rstrip,
                                  .normalized = (unsigned char)normalized};

    assert_int_equal(cairn_added_add(a, &t, NULL), CAIRN_OK);
}

static void matches(void **state)
{
    static const struct {
        const char *text;
        int set;
        size_t at;
        int32_t id; /* -1: none */
        size_t from, to;
        const char *why;
    } rows[] = {
        {"x<a>y", 0, 0, 1, 1, 4, "in the middle"},
        {"<a>b<a>", 0, 0, 2, 0, 4, "the longer of two that start here"},
        {"<a>b", 0, 1, -1, 0, 0, "behind its start"},
        {"<<a>", 0, 0, 1, 1, 4, "a false start before it"},
        {"<a", 0, 0, -1, 0, 0, "cut off"},
        {"<a>c<a>bcd", 0, 0, 1, 0, 3, "leftmost wins over longest"},
        {"<a>bc", 0, 0, 2, 0, 4, "<a>bcd is not there"},
        {"<a>bcd", 0, 0, 3, 0, 6, "<a>bcd is there"},
        {"a  \xc2\xa0<l> b", 0, 0, 4, 1, 8, "lstrip takes U+00A0 too"},
        {"a  <l> b", 0, 2, 4, 2, 6, "lstrip stops where the search began"},
        {"a <r> \n\xe3\x80\x80"
         "b",
         0, 0, 5, 2, 10, "rstrip takes U+3000 too"},
        {"a<r>", 0, 0, 5, 1, 4, "rstrip at the end"},
        {"<n>", 0, 0, -1, 0, 0, "of the other set"},
        {"<n>", 1, 0, 6, 0, 3, "of this set"},
        {"<a>", 1, 0, -1, 0, 0, "of the other set"},
        {"", 0, 0, -1, 0, 0, "nothing to search"},
        {"\xe2\x82\xac<a>", 0, 0, 1, 3, 6, "behind a character of three bytes"},
    };
    struct cairn_added a = {0};

    (void)state;
    add(&a, "<a>", 1, 0, 0, 0);
    add(&a, "<a>bcd", 3, 0, 0, 0);
    add(&a, "<a>b", 2, 0, 0, 0);
    add(&a, "<l>", 4, 1, 0, 0);
    add(&a, "<r>", 5, 0, 1, 0);
    add(&a, "<n>", 6, 0, 0, 1);
    assert_int_equal(cairn_added_done(&a, NULL), CAIRN_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cairn_added_match m = {0};
        int found = cairn_added_next(&a, rows[i].set, rows[i].text, strlen(rows[i].text), rows[i].at, &m);

        if (found != (rows[i].id >= 0) || (found && (m.id != rows[i].id || m.from != rows[i].from || m.to != rows[i].to)))
            fail_msg("%s: found %d, id %d, %zu..%zu", rows[i].why, found, m.id, m.from, m.to);
    }
    assert_int_equal(cairn_added_find(&a, "<a>b", 4), 2);
    assert_int_equal(cairn_added_find(&a, "<a>bc", 5), -1);
    assert_int_equal(cairn_added_find(&a, "", 0), -1);
    cairn_added_free(&a);
}

static void none_and_twice(void **state)
{
    struct cairn_added a = {0};
    struct cairn_added_match m;
    struct cairn_error err;

    (void)state;
    assert_int_equal(cairn_added_done(&a, NULL), CAIRN_OK);
    assert_int_equal(cairn_added_next(&a, 0, "abc", 3, 0, &m), 0);
    cairn_added_free(&a);
    add(&a, "x", 1, 0, 0, 0);
    add(&a, "x", 2, 0, 0, 1);
    assert_int_equal(cairn_added_done(&a, &err), CAIRN_EDATA);
    cairn_added_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(matches), cmocka_unit_test(none_and_twice)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
