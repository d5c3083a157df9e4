/* base_yaml_test.c - recipes/base.yaml and the schema say the same: same keys, same defaults, same words.
 *
 *     build/tests/base_yaml_test --print > recipes/base.yaml     after the schema has changed
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "recipe/check.h"
#include "recipe/recipe.h"
#include "recipe/schema.h"

static const char base[] = "recipes/base.yaml";

static void text_is_the_printed_schema(void **state)
{
    struct cairn_str want = {0};
    struct cairn_error err;
    char *have;
    size_t n;

    (void)state;
    cairn_schema_print(&want);
    assert_false(want.oom);
    assert_int_equal(cairn_file_read(base, 1 << 20, &have, &n, &err), CAIRN_OK);
    assert_string_equal(have, want.p);
    free(have);
    cairn_str_free(&want);
}

/* The file must give each default itself, not by being silent: read it with a YAML reader and compare with the table. */
static void file_gives_every_default(void **state)
{
    struct cairn_recipe *r;
    struct cairn_error err;
    const struct cairn_key *k;
    struct cairn_yaml_place at;
    size_t n;

    (void)state;
    assert_int_equal(cairn_recipe_load_part(&r, base, 0, NULL, &err), CAIRN_OK);
    k = cairn_schema_table(&n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = r->tree;
        char path[256], *part, *save;
        json_t *def;

        if (!k[i].def || strchr(k[i].path, '*'))
            continue;
        /* keys of an optional section are there only as comments */
        snprintf(path, sizeof path, "%s", k[i].path);
        for (part = strtok_r(path, ".", &save); part && !json_is_null(v); part = strtok_r(NULL, ".", &save))
            v = json_object_get(v, part);
        if (part)
            continue;
        if (!cairn_yaml_node_place(r->root, k[i].path, &at))
            fail_msg("%s is missing in %s", k[i].path, base);
        if (k[i].type == CAIRN_KEY_SECTION && !(k[i].flags & CAIRN_KEY_NULL))
            continue;
        def = cairn_recipe_default(&k[i]);
        assert_non_null(def);
        if (!json_equal(def, (json_t *)v))
            fail_msg("%s has another default in %s", k[i].path, base);
        json_decref(def);
    }
    cairn_recipe_free(r);
}

/* With every commented block uncommented, each key of the schema is there and each value is accepted. */
static void commented_blocks_are_valid(void **state)
{
    char name[] = "/tmp/cairn-base-XXXXXX", *text, *line, *save;
    int fd = mkstemp(name);
    struct cairn_str out = {0};
    struct cairn_recipe *r;
    struct cairn_error err;
    const struct cairn_key *k;
    char last[256] = "";
    size_t n;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(cairn_file_read(base, 1 << 20, &text, &n, &err), CAIRN_OK);
    for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        size_t in = strspn(line, " "), key;

        if (line[in] == '#' && line[in + 1] == ' ' && line[in + 2] != ' ')
            continue; /* words */
        if (line[in] == '#')
            memmove(line + in, line + in + 1, strlen(line + in));
        in = strspn(line, " ");
        if (line[in] == '#')
            continue;
        /* "adapter:" after "adapter: null": the written-out form takes the place of the empty one */
        key = in + strcspn(line + in, ":");
        if (strcmp(line + key, ":") == 0 && strncmp(last, line, key + 1) == 0)
            out.len -= strlen(last) + 1;
        cairn_str_printf(&out, "%s\n", line);
        snprintf(last, sizeof last, "%s", line);
    }
    assert_int_equal(cairn_fd_write_all(fd, out.p, out.len, name, &err), CAIRN_OK);
    close(fd);
    if (cairn_recipe_load_part(&r, name, 0, NULL, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    k = cairn_schema_table(&n);
    for (size_t i = 0; i < n; i++) {
        struct cairn_str path = {0};
        struct cairn_yaml_place at;

        for (const char *p = k[i].path; *p; p++) {
            if (*p == '*')
                cairn_str_puts(&path, strstr(k[i].path, "modules") || strstr(k[i].path, "graders") ? "NAME" : "0");
            else
                cairn_str_putc(&path, *p);
        }
        if (!cairn_yaml_node_place(r->root, cairn_str_z(&path), &at))
            fail_msg("%s is missing in %s", path.p, base);
        cairn_str_free(&path);
    }
    cairn_recipe_free(r);
    cairn_str_free(&out);
    free(text);
    unlink(name);
}

static void table_is_sound(void **state)
{
    const struct cairn_key *k;
    size_t n;

    (void)state;
    k = cairn_schema_table(&n);
    for (size_t i = 0; i < n; i++) {
        const char *dot = strrchr(k[i].path, '.');
        char parent[256];

        assert_ptr_equal(cairn_schema_find(k[i].path), &k[i]); /* no path twice */
        assert_true(k[i].doc && *k[i].doc);
        assert_int_equal(k[i].def != NULL, !(k[i].flags & CAIRN_KEY_REQUIRED) && !cairn_ends_with(k[i].path, "*"));
        if (!dot)
            continue;
        snprintf(parent, sizeof parent, "%.*s", (int)(dot - k[i].path), k[i].path);
        assert_non_null(cairn_schema_find(parent)); /* no key without its section */
        assert_true(cairn_schema_find(parent) < &k[i]);
        if (k[i].def) {
            json_t *def = cairn_recipe_default(&k[i]);

            assert_non_null(def); /* each default obeys its own type and range */
            json_decref(def);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_sound),
        cmocka_unit_test(text_is_the_printed_schema),
        cmocka_unit_test(file_gives_every_default),
        cmocka_unit_test(commented_blocks_are_valid),
    };

    if (argc > 1 && strcmp(argv[1], "--print") == 0) {
        struct cairn_str text = {0};

        cairn_schema_print(&text);
        return text.oom || fwrite(text.p, 1, text.len, stdout) != text.len || fflush(stdout);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
