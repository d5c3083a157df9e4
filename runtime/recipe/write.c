/* write.c - the resolved form: every key in the schema's order, readable, and equal when read again. Several files together can
 * hold more than one may: such a recipe is refused here, before anybody freezes what nobody could read. */
#include "recipe/check.h"
#include "recipe/scalar.h"
#include "recipe/yaml.h"

static void indent(struct cairn_str *out, int n)
{
    for (int i = 0; i < n; i++)
        cairn_str_putc(out, ' ');
}

/* The keys of a section; the first line's indentation was written already if `open`. */
static void put_section(struct cairn_str *out, const char *path, const json_t *section, int in, int open)
{
    for (const struct cairn_key *k = cairn_schema_child(path, NULL); k; k = cairn_schema_child(path, k)) {
        const json_t *v = json_object_get(section, cairn_key_leaf(k));
        char below[256];
        const char *name;
        json_t *item;
        size_t i;

        snprintf(below, sizeof below, "%s.*", k->path);
        if (!open)
            indent(out, in);
        open = 0;
        cairn_str_puts(out, cairn_key_leaf(k));
        cairn_str_putc(out, ':');
        if (k->type == CAIRN_KEY_SECTION && json_is_object(v)) {
            cairn_str_putc(out, '\n');
            put_section(out, k->path, v, in + 2, 0);
        } else if (k->type == CAIRN_KEY_SECTIONS && json_array_size(v) > 0) {
            cairn_str_putc(out, '\n');
            json_array_foreach(v, i, item)
            {
                indent(out, in + 2);
                cairn_str_puts(out, "- ");
                put_section(out, below, item, in + 4, 1);
            }
        } else if ((k->type == CAIRN_KEY_NAMED || k->type == CAIRN_KEY_FREE) && json_object_size(v) > 0) {
            cairn_str_putc(out, '\n');
            json_object_foreach((json_t *)v, name, item)
            {
                indent(out, in + 2);
                cairn_scalar_put_string(out, name);
                cairn_str_puts(out, k->type == CAIRN_KEY_NAMED ? ":\n" : ": ");
                if (k->type == CAIRN_KEY_NAMED) {
                    put_section(out, below, item, in + 4, 0);
                } else {
                    cairn_scalar_put_flow(out, item);
                    cairn_str_putc(out, '\n');
                }
            }
        } else {
            cairn_str_putc(out, ' ');
            cairn_scalar_put_flow(out, v);
            cairn_str_putc(out, '\n');
        }
    }
}

enum cairn_status cairn_recipe_write(const struct cairn_recipe *r, struct cairn_str *yaml, struct cairn_error *err)
{
    static const struct cairn_yaml_source src = {"the resolved recipe", "/"};
    struct cairn_yaml_place at = {&src, 1, 1};
    struct cairn_arena *arena = cairn_arena_create();
    const struct cairn_yaml_node *again;
    struct cairn_str text = {0};
    enum cairn_status st = CAIRN_OK;

    put_section(&text, "", r->tree, 0, 0);
    if (text.oom || !arena)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_yaml_parse(arena, text.p, text.len, at, 1, &again, err));
    cairn_str_add(yaml, text.p, text.len);
    if (yaml->oom)
        TRY(CAIRN_NOMEM(err));
out:
    cairn_arena_destroy(arena);
    cairn_str_free(&text);
    return st;
}
