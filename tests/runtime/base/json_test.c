/* json_test.c - what is refused and where it says so, the canonical text (a format), JSON lines from files and pipes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"

static void parsing(void **state)
{
    static const struct {
        const char *text;
        int ok;
        const char *says;
    } t[] = {
        {"{\"a\": 1}", 1, ""},
        {"[1, \"x\\u0000y\"]", 1, ""},
        {"3", 1, ""},
        {"", 0, "f.json:1:"},
        {"{\"a\": 1,\n \"b\": 2,\n \"a\": 3}", 0, "f.json:3:"},
        {"{\"a\": 1}\n\n x", 0, "f.json:3:"},
        {"{\"a\": 1", 0, "f.json:1:"},
        {"[1e999]", 0, "f.json:1:"},
        {"[9223372036854775808]", 0, "f.json:1:"},
        {"[\"\xC0\x80\"]", 0, "f.json:1:"},
        {"[\"\\ud800\"]", 0, "f.json:1:"},
        {"[NaN]", 0, "f.json:1:"},
        {"{'a': 1}", 0, "f.json:1:"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_error err = {0};
        json_t *v = NULL;
        enum cairn_status st = cairn_json_parse(&v, t[i].text, strlen(t[i].text), "f.json", &err);

        assert_int_equal(st, t[i].ok ? CAIRN_OK : CAIRN_EDATA);
        if (!t[i].ok && strncmp(err.text, t[i].says, strlen(t[i].says)))
            fail_msg("%s: \"%s\"", t[i].text, err.text);
        assert_true(t[i].ok == (v != NULL));
        json_decref(v);
    }
}

static void depth(void **state)
{
    static const struct {
        int depth, ok;
    } t[] = {{1, 1}, {200, 1}, {201, 0}, {100000, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_str s = {0};
        struct cairn_error err;
        json_t *v = NULL;

        cairn_str_puts(&s, "\n");
        for (int d = 0; d < t[i].depth; d++)
            cairn_str_putc(&s, '[');
        cairn_str_puts(&s, "\"[[{\\\"[\"");
        for (int d = 0; d < t[i].depth; d++)
            cairn_str_putc(&s, ']');
        assert_int_equal(cairn_json_parse(&v, s.p, s.len, "deep", &err), t[i].ok ? CAIRN_OK : CAIRN_EDATA);
        if (!t[i].ok)
            assert_string_equal(err.text, "deep:2: nesting deeper than 200");
        json_decref(v);
        cairn_str_free(&s);
    }
}

static void members(void **state)
{
    const char *text = "{\"i\": 5, \"f\": 0.5, \"b\": true, \"s\": \"x\", \"o\": {}, \"a\": [], \"z\": \"a\\u0000b\"}";
    struct cairn_error err;
    json_t *v, *w;
    const char *s = "before";
    int64_t i = -1;
    double f;
    int b;

    (void)state;
    assert_int_equal(cairn_json_parse(&v, text, strlen(text), "m", &err), CAIRN_OK);
    assert_int_equal(cairn_json_i64(v, "i", 0, 5, &i, "m", &err), CAIRN_OK);
    assert_int_equal(i, 5);
    assert_int_equal(cairn_json_i64(v, "i", 0, 4, &i, "m", &err), CAIRN_EDATA);
    assert_string_equal(err.text, "m: key \"i\": 5 is not in 0..4");
    assert_int_equal(cairn_json_i64(v, "f", 0, 4, &i, "m", &err), CAIRN_EDATA);
    assert_string_equal(err.text, "m: key \"f\": expected an integer");
    assert_int_equal(cairn_json_i64(v, "none", 0, 4, &i, "m", &err), CAIRN_EDATA);
    assert_string_equal(err.text, "m: key \"none\" is missing");
    assert_int_equal(i, 5);
    assert_int_equal(cairn_json_f64(v, "f", &f, "m", &err), CAIRN_OK);
    assert_true(f == 0.5);
    assert_int_equal(cairn_json_f64(v, "i", &f, "m", &err), CAIRN_OK);
    assert_true(f == 5);
    assert_int_equal(cairn_json_f64(v, "s", &f, "m", &err), CAIRN_EDATA);
    assert_int_equal(cairn_json_bool(v, "b", &b, "m", &err), CAIRN_OK);
    assert_true(b);
    assert_int_equal(cairn_json_bool(v, "i", &b, "m", &err), CAIRN_EDATA);
    assert_int_equal(cairn_json_string(v, "z", &s, "m", &err), CAIRN_EDATA);
    assert_string_equal(s, "before");
    assert_int_equal(cairn_json_string(v, "s", &s, "m", &err), CAIRN_OK);
    assert_string_equal(s, "x");
    assert_int_equal(cairn_json_object(v, "o", &w, "m", &err), CAIRN_OK);
    assert_int_equal(cairn_json_object(v, "a", &w, "m", &err), CAIRN_EDATA);
    assert_int_equal(cairn_json_array(v, "a", &w, "m", &err), CAIRN_OK);
    assert_int_equal(cairn_json_array(v, "o", &w, "m", NULL), CAIRN_EDATA);
    assert_int_equal(cairn_json_array(w, "o", &w, "m", &err), CAIRN_EDATA); /* no object at all */
    json_decref(v);
}

static void canonical(void **state)
{
    static const struct {
        const char *text, *want;
    } t[] = {
        {"{\"b\": 1, \"a\": [1, 2, {\"d\": null, \"c\": true}]}", "{\"a\":[1,2,{\"c\":true,\"d\":null}],\"b\":1}"},
        {"{\"Z\": 1, \"a\": 2, \"\xC3\xA9\": 3}", "{\"Z\":1,\"a\":2,\"\xC3\xA9\":3}"},
        {"[1.0, 1, 1e0, -0.0, 0.0, 0]", "[1,1,1,-0.0,0,0]"},
        {"[1e10, 10000000000, 1e15, 1e18]", "[10000000000,10000000000,1000000000000000,1000000000000000000]"},
        {"[1e-5, 0.5, 0.1, 2.5e-1]", "[1e-05,0.5,0.1,0.25]"},
        {"[0.100000001490116119384765625]", "[0.10000000149011612]"}, /* the float nearest to 0.1 */
        {"[1e300, -1e25, 9223372036854775808.0, 0.30000000000000004]", "[1e+300,-1e+25,9.223372036854776e+18,0.30000000000000004]"},
        {"\"a\\u0000\\n\\\"\\\\\\/\\u00e9\\u001f\"", "\"a\\u0000\\n\\\"\\\\/\xC3\xA9\\u001f\""},
        {"{}", "{}"},
        {"[]", "[]"},
        {"[[],{}]", "[[],{}]"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_str s = {0}, again = {0};
        struct cairn_error err;
        json_t *v, *w;

        assert_int_equal(cairn_json_parse(&v, t[i].text, strlen(t[i].text), "c", &err), CAIRN_OK);
        cairn_json_canonical(&s, v);
        assert_string_equal(s.p, t[i].want);
        assert_int_equal(cairn_json_parse(&w, s.p, s.len, "c", &err), CAIRN_OK); /* and it is a fixed point */
        cairn_json_canonical(&again, w);
        assert_string_equal(again.p, t[i].want);
        json_decref(v);
        json_decref(w);
        cairn_str_free(&s);
        cairn_str_free(&again);
    }
}

/* Bits survive: doubles and floats at random, through text and jansson. */
static void numbers_read_back(void **state)
{
    uint64_t x = 88172645463325252ull;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        struct cairn_str s = {0};
        json_t *v;
        double d, back;
        float f;
        uint32_t half;

        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        half = (uint32_t)(x >> 32);
        memcpy(&d, &x, 8);
        memcpy(&f, &half, 4);
        if (i % 2)
            d = f;
        if (!isfinite(d))
            continue;
        if (i % 2)
            cairn_json_put_float(&s, f);
        else
            cairn_json_put_double(&s, d);
        assert_int_equal(cairn_json_parse(&v, s.p, s.len, "n", NULL), CAIRN_OK);
        back = json_number_value(v);
        if (i % 2)
            assert_true((float)back == f && !signbit(f) == !signbit(back));
        else
            assert_memory_equal(&back, &d, 8);
        json_decref(v);
        cairn_str_free(&s);
    }
}

static void put(void **state)
{
    struct cairn_str s = {0};
    json_t *v = json_pack("{s:[i,i], s:{s:f}, s:[{}]}", "shape", 2, 3, "z", "y", 0.5, "l");

    (void)state;
    cairn_json_put_string(&s, "a\xFF\xE4\xBD" "b\0\x7F", 7);
    cairn_json_put_float(&s, NAN);
    cairn_json_put_double(&s, INFINITY);
    assert_string_equal(s.p, "\"a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD" "b\\u0000\\u007f\"nullnull");
    cairn_str_clear(&s);
    cairn_json_pretty(&s, v);
    assert_string_equal(s.p, "{\n  \"shape\": [2, 3],\n  \"z\": {\n    \"y\": 0.5\n  },\n  \"l\": [\n    {}\n  ]\n}\n");
    json_decref(v);
    cairn_str_free(&s);
}

static void lines(void **state)
{
    char path[] = "/tmp/cairn-jsonl-XXXXXX", want[64];
    struct cairn_error err;
    struct cairn_jsonl *r;
    const json_t *v;
    FILE *f = fdopen(mkstemp(path), "w");

    (void)state;
    fputs("{\"n\": 1}\r\n{\"n\": 2\n\n   \n{\"pad\": \"", f);
    for (int i = 0; i < 300000; i++)
        fputc('x', f);
    fputs("\", \"n\": 5}\n{\"n\": 6}", f); /* no newline at the end */
    fclose(f);
    assert_int_equal(cairn_jsonl_open(&r, path, &err), CAIRN_OK);
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_OK);
    assert_int_equal(json_integer_value(json_object_get(v, "n")), 1);
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_EDATA);
    snprintf(want, sizeof want, "%s:2: ", path);
    assert_memory_equal(err.text, want, strlen(want));
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_EDATA);
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_EDATA);
    snprintf(want, sizeof want, "%s:4: blank line", path);
    assert_string_equal(err.text, want);
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_OK);
    assert_int_equal(json_integer_value(json_object_get(v, "n")), 5);
    snprintf(want, sizeof want, "%s:5", path);
    assert_string_equal(cairn_jsonl_where(r), want);
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_OK);
    assert_int_equal(json_integer_value(json_object_get(v, "n")), 6);
    assert_int_equal(cairn_jsonl_line(r), 6);
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_OK);
    assert_null(v);
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_OK);
    assert_null(v);
    cairn_jsonl_close(r);
    unlink(path);
    assert_int_equal(cairn_jsonl_open(&r, path, &err), CAIRN_EDATA);
    cairn_jsonl_close(NULL);
}

static void lines_from_a_pipe(void **state)
{
    struct cairn_error err;
    struct cairn_jsonl *r;
    const json_t *v;
    char path[32];
    int fd[2];

    (void)state;
    assert_int_equal(pipe(fd), 0);
    snprintf(path, sizeof path, "/dev/fd/%d", fd[0]);
    assert_int_equal(write(fd[1], "[1]\n[2]\n", 8), 8);
    assert_int_equal(cairn_jsonl_open(&r, path, &err), CAIRN_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_OK);
        assert_int_equal(json_integer_value(json_array_get(v, 0)), i + 1);
    }
    close(fd[1]);
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_OK);
    assert_null(v);
    cairn_jsonl_close(r);
    close(fd[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parsing),   cmocka_unit_test(depth), cmocka_unit_test(members), cmocka_unit_test(canonical),
        cmocka_unit_test(numbers_read_back), cmocka_unit_test(put),   cmocka_unit_test(lines),   cmocka_unit_test(lines_from_a_pipe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
