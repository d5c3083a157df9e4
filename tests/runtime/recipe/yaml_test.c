/* yaml_test.c - texts that are refused, with the exact place and sentence, and the limits that keep memory small (fault F38). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <cmocka.h>

#include "base/str.h"
#include "recipe/yaml.h"

static const struct cairn_yaml_source src = {"f.yaml", "/"};

static enum cairn_status parse(struct cairn_arena *a, const char *text, size_t n, const struct cairn_yaml_node **out,
                               struct cairn_error *err)
{
    struct cairn_yaml_place at = {&src, 1, 1};

    return cairn_yaml_parse(a, text, n, at, 1, out, err);
}

static void refused(void **state)
{
    static const struct {
        const char *text;
        size_t n; /* 0: strlen */
        const char *says;
    } t[] = {
        {"a: 1\nb: 2\na: 3\n", 0, "f.yaml:3:1: key \"a\" is given twice, first at line 1"},
        {"r:\n  x: 1\n  y: {p: 1, p: 2}\n", 0, "f.yaml:3:13: key \"p\" is given twice, first at line 3"},
        {"a: b\0c\n", 7, "f.yaml:1:5: a NUL byte"},
        {"a: \"b\\0c\"\n", 0, "f.yaml:1:4: a string with a NUL in it"},
        {"a:\n\tb: 1\n", 0, "f.yaml:2:1: a tab where indentation belongs; use blanks"},
        {"a:\n  b: 1\n\tc: 1\n", 0, "f.yaml:3:1: a tab where indentation belongs; use blanks"},
        {"\xef\xbb\xbf"
         "a: 1\n",
         0, "f.yaml:1:1: a byte order mark; save the file as UTF-8 without it"},
        {"a: 1\nb: x\xffy\n", 0, "f.yaml:2:5: byte 0xff is not UTF-8"},
        {"# \xc3\xa4\xc3\xa4 \x01\n", 0, "f.yaml:1:6: the control character U+0001; write it as an escape in double quotes"},
        {"- a\n- b\n", 0, "f.yaml:1:1: expected a map of keys (\"run:\", \"model:\", ...)"},
        {"just a text\n", 0, "f.yaml:1:1: expected a map of keys (\"run:\", \"model:\", ...)"},
        {"a: 1\n---\nb: 2\n", 0, "f.yaml:2:1: a second document; a recipe is one"},
        {"a: !!int 5\n", 0, "f.yaml:1:4: the tag tag:yaml.org,2002:int: tags are not supported"},
        {"a: !x {}\n", 0, "f.yaml:1:4: the tag !x: tags are not supported"},
        {"a: &a {b: 1}\nc:\n  <<: *a\n", 0, "f.yaml:3:3: merge keys (<<) are not supported; use inherit"},
        {"a: *nobody\n", 0, "f.yaml:1:4: *nobody: no such anchor before this place"},
        {"a: &me {b: *me}\n", 0, "f.yaml:1:12: *me: no such anchor before this place"},
        {"? [a, b]\n: 1\n", 0, "f.yaml:1:3: a key must be a plain word"},
        {"\"\": 1\n", 0, "f.yaml:1:1: a key has 1 to 128 bytes, none of them NUL; this one has 0"},
        {"a: [1, 2\nb: 3\n", 0, "f.yaml:2:2: did not find expected ',' or ']' (while parsing a flow sequence)"},
        {"a: b: c\n", 0, "f.yaml:1:5: mapping values are not allowed in this context"},
        {"a: \"open\n", 0, "f.yaml:2:1: found unexpected end of stream (while scanning a quoted scalar)"},
        {"a: @x\n", 0, "f.yaml:1:4: found character that cannot start any token (while scanning for the next token)"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_arena *a = cairn_arena_create();
        const struct cairn_yaml_node *root = NULL;
        struct cairn_error err = {0};

        assert_int_equal(parse(a, t[i].text, t[i].n ? t[i].n : strlen(t[i].text), &root, &err), CAIRN_ERECIPE);
        assert_string_equal(err.text, t[i].says);
        assert_null(root);
        cairn_arena_destroy(a);
    }
}

static void accepted(void **state)
{
    static const char text[] =
        "# comment\n%YAML 1.1\n---\na: &x [1, two, \"3\"]\nb: *x\r\nc: |\n  a\tline\n  two\nd: {e: , f: ~}\n\"g h\": 'it''s'\n";
    struct cairn_arena *a = cairn_arena_create();
    const struct cairn_yaml_node *root, *v;
    struct cairn_error err;

    (void)state;
    /* the directive must be the first thing but comments */
    if (parse(a, text, strlen(text), &root, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    assert_int_equal(root->n, 5);
    v = cairn_yaml_node_member(root, "b", NULL);
    assert_ptr_equal(v, cairn_yaml_node_member(root, "a", NULL));
    assert_int_equal(v->n, 3);
    assert_int_equal(v->item[1]->quoted, 0);
    assert_int_equal(v->item[2]->quoted, 1);
    assert_int_equal(v->item[2]->at.line, 4);
    assert_int_equal(v->item[2]->at.col, 16);
    assert_string_equal(cairn_yaml_node_member(root, "c", NULL)->text, "a\tline\ntwo\n");
    v = cairn_yaml_node_member(root, "d", NULL);
    assert_true(cairn_yaml_node_is_null(v->item[0]) && cairn_yaml_node_is_null(v->item[1]));
    assert_string_equal(cairn_yaml_node_member(root, "g h", NULL)->text, "it's");
    assert_int_equal(parse(a, "", 0, &root, &err), CAIRN_OK);
    assert_int_equal(root->kind, CAIRN_YAML_NODE_MAP);
    assert_int_equal(root->n, 0);
    cairn_arena_destroy(a);
}

static long peak_kib(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

static void bomb_of_aliases(struct cairn_str *s)
{
    cairn_str_puts(s, "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 30; i++) {
        cairn_str_printf(s, "a%d: &a%d [", i, i);
        for (int k = 0; k < 10; k++)
            cairn_str_printf(s, "%s*a%d", k ? ", " : "", i - 1);
        cairn_str_puts(s, "]\n");
    }
}

static void deep(struct cairn_str *s)
{
    cairn_str_puts(s, "a: ");
    for (int i = 0; i < 100000; i++)
        cairn_str_putc(s, '[');
}

static void deep_blocks(struct cairn_str *s)
{
    for (int i = 0; i < 1000; i++)
        cairn_str_printf(s, "%*sk:\n", i, "");
}

static void deep_by_alias(struct cairn_str *s)
{
    cairn_str_puts(s, "a0: &a0 [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[x]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]\nb: "
                      "[[[[[[[[[[[[[[[[[[[[[[[*a0]]]]]]]]]]]]]]]]]]]]]]]\n");
}

static void long_scalar(struct cairn_str *s)
{
    cairn_str_puts(s, "a: 1\nb: \"");
    for (int i = 0; i < CAIRN_YAML_SCALAR_MAX + 1; i++)
        cairn_str_putc(s, 'x');
    cairn_str_puts(s, "\"\n");
}

static void long_text(struct cairn_str *s)
{
    for (int i = 0; i <= CAIRN_YAML_TEXT_MAX / 2; i++)
        cairn_str_puts(s, "# \n");
}

static void many_nodes(struct cairn_str *s)
{
    cairn_str_puts(s, "a: [");
    for (int i = 0; i < 100000; i++)
        cairn_str_puts(s, "1, ");
    cairn_str_puts(s, "]\n");
}

static void many_keys(struct cairn_str *s)
{
    for (int i = 0; i < 1025; i++)
        cairn_str_printf(s, "k%d: 1\n", i);
}

static void long_key(struct cairn_str *s)
{
    for (int i = 0; i < 129; i++)
        cairn_str_putc(s, 'k');
    cairn_str_puts(s, ": 1\n");
}

static void limits(void **state)
{
    static const struct {
        void (*make)(struct cairn_str *);
        const char *says;
    } t[] = {
        {bomb_of_aliases, "f.yaml:5:10: more than 20000 values (aliases counted where they are used)"},
        {deep, "f.yaml:1:67: more than 64 levels"},
        {deep_blocks, "f.yaml:65:65: more than 64 levels"},
        {deep_by_alias, "f.yaml:2:27: *a0: more than 64 levels"},
        {long_scalar, "f.yaml:2:4: a scalar of 1048577 bytes; at most 1048576"},
        {long_text, "f.yaml:1:1: 6291459 bytes; a recipe has at most 4194304"},
        {many_nodes, "f.yaml:1:59999: more than 20000 values (aliases counted where they are used)"},
        {many_keys, "f.yaml:1025:1: more than 1024 keys in one map"},
        {long_key, "f.yaml:1:1: a key has 1 to 128 bytes, none of them NUL; this one has 129"},
    };
    long before = peak_kib();

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_arena *a = cairn_arena_create();
        const struct cairn_yaml_node *root = NULL;
        struct cairn_error err = {0};
        struct cairn_str s = {0};

        t[i].make(&s);
        assert_int_equal(parse(a, s.p, s.len, &root, &err), CAIRN_ERECIPE);
        assert_string_equal(err.text, t[i].says);
        cairn_str_free(&s);
        cairn_arena_destroy(a);
    }
    assert_true(peak_kib() - before < 64 * 1024);
}

/* Any text: an answer, no crash. Mutations of a valid one reach deeper than noise does. */
static void mutations(void **state)
{
    static const char good[] = "run: {seed: 1, steps: 2}\nmodel:\n  init: &i {a: [1, 2.5, x], b: \"q\\n\"}\n  other: *i\ndata:\n  "
                               "- p: |\n      t\n  - q: 'z'\n";
    uint64_t x = 1234567;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        struct cairn_arena *a = cairn_arena_create();
        const struct cairn_yaml_node *root;
        struct cairn_error err;
        char text[sizeof good];
        enum cairn_status st;

        memcpy(text, good, sizeof good);
        for (int k = 0; k < 1 + i % 4; k++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            text[x % (sizeof good - 1)] = (char)(x >> 32 & 1 ? "{}[]:,&*!|>'\"#-?\n\t \\"[(x >> 33) % 20] : (int)(x >> 40 & 255));
        }
        st = parse(a, text, sizeof good - 1, &root, &err);
        assert_true(st == CAIRN_OK || st == CAIRN_ERECIPE);
        if (st != CAIRN_OK)
            assert_memory_equal(err.text, "f.yaml:", 7);
        cairn_arena_destroy(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused),
        cmocka_unit_test(accepted),
        cmocka_unit_test(limits),
        cmocka_unit_test(mutations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
