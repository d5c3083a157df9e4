/* print.c - the schema as people read it: the text of recipes/base.yaml, every key with its meaning, unit, range, class and
 * default. Keys below an optional section, a list or free names have no place of their own there and stand as comments. */
#include <string.h>

#include "recipe/check.h"
#include "recipe/scalar.h"

enum { WIDTH = 112 };

static const char top[] =
    "# Every key of a recipe, with its meaning, unit and default. Recipes `inherit: base.yaml` and say what is different; a key "
    "that\n"
    "# is not here is refused. This file is printed from the schema; a test holds the two together.\n"
    "#\n"
    "# Classes: science (the numbers), layout (how they are cut over devices), ops (never changes a bit). ops may change at any "
    "time;\n"
    "# the others belong to the run. Relative paths count from the folder of the file that holds them; a.b.c=value on the command\n"
    "# line goes over all files. null means what the key's comment says. A key behind '#' without a blank (#adapter:) belongs to\n"
    "# a section, list or map that is off or empty by default.\n";

/* Starts a line: indentation, and '#' where all is a comment. What is said in words starts with "# ", what would be a key with
 * '#' and no blank or several: taking the '#' away makes it one. */
static void start(struct cairn_str *out, int in, int comment)
{
    /* a commented block keeps one '#' column: that of its section */
    int column = comment >= 0 ? comment : in;

    for (int i = 0; i < column; i++)
        cairn_str_putc(out, ' ');
    if (comment >= 0) {
        cairn_str_putc(out, '#');
        for (int i = comment; i < in; i++)
            cairn_str_putc(out, ' ');
    }
}

/* text as comment lines of at most WIDTH columns */
static void put_comment(struct cairn_str *out, int in, int comment, const char *text)
{
    while (*text) {
        size_t room = (size_t)(WIDTH - in - (comment >= 0 ? 3 : 2)), len = strlen(text);

        if (len > room)
            for (len = room; len > 0 && text[len] != ' ';)
                len--;
        if (len == 0)
            len = strcspn(text, " ");
        start(out, in, comment);
        cairn_str_puts(out, "# ");
        cairn_str_add(out, text, len);
        cairn_str_putc(out, '\n');
        text += len;
        while (*text == ' ')
            text++;
    }
}

/* "meaning [type, unit, range; class]" */
static void put_doc(struct cairn_str *out, const struct cairn_key *k, int in, int comment)
{
    struct cairn_str text = {0}, range = {0};

    cairn_str_puts(&text, k->doc);
    if (k->type != CAIRN_KEY_SECTION || (k->flags & CAIRN_KEY_NULL)) {
        cairn_str_puts(&text, " [");
        cairn_key_expects(k, &text);
        if (k->unit)
            cairn_str_printf(&text, ", %s", k->unit);
        cairn_key_range(k, &range);
        if (range.len)
            cairn_str_printf(&text, ", %s", cairn_str_z(&range));
        cairn_str_printf(&text, "%s; %s]", k->flags & CAIRN_KEY_REQUIRED ? ", required" : "", cairn_class_name(k->class));
    }
    put_comment(out, in, comment, cairn_str_z(&text));
    out->oom |= text.oom;
    cairn_str_free(&text);
    cairn_str_free(&range);
}

/* comment: column of the '#' of a commented block, -1 outside one */
static void put_keys(struct cairn_str *out, const char *path, int in, int comment)
{
    for (const struct cairn_key *k = cairn_schema_child(path, NULL); k; k = cairn_schema_child(path, k)) {
        int block = comment >= 0 ? comment : in;
        char below[256];

        if (!*path)
            cairn_str_putc(out, '\n');
        put_doc(out, k, in, comment);
        start(out, in, comment);
        if (k->type == CAIRN_KEY_SECTION && !(k->flags & CAIRN_KEY_NULL)) {
            cairn_str_printf(out, "%s:\n", cairn_key_leaf(k));
            put_keys(out, k->path, in + 2, comment);
            continue;
        }
        cairn_str_printf(out, "%s: ", cairn_key_leaf(k));
        if (k->def) {
            json_t *def = cairn_recipe_default(k);

            cairn_scalar_put_flow(out, def);
            out->oom |= !def;
            json_decref(def);
        } else if (k->type == CAIRN_KEY_WORD) { /* the first of its words */
            cairn_str_printf(out, "%.*s", (int)strcspn(k->words, "|"), k->words);
        } else {
            cairn_str_puts(out, k->type == CAIRN_KEY_PATH ? "FILE" : "NAME");
        }
        cairn_str_putc(out, '\n');
        if (k->type == CAIRN_KEY_SECTION || k->type == CAIRN_KEY_SECTIONS || k->type == CAIRN_KEY_NAMED) {
            start(out, in, block);
            cairn_str_printf(out, "%s:\n", cairn_key_leaf(k));
            if (k->type == CAIRN_KEY_SECTION) {
                put_keys(out, k->path, in + 2, block);
            } else {
                start(out, in + 2, block);
                cairn_str_puts(out, k->type == CAIRN_KEY_SECTIONS ? "-\n" : "NAME:\n");
                snprintf(below, sizeof below, "%s.*", k->path);
                put_keys(out, below, in + 4, block);
            }
        }
    }
}

void cairn_schema_print(struct cairn_str *out)
{
    cairn_str_puts(out, top);
    put_keys(out, "", 0, -1);
}
