/* inspect_artefact.c - a manifest as a page (inspect.h): who made it, from what, which tensors in which shards. */
#include "tools/inspect.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/retention.h"

#define VALUE_MAX 96 /* characters of a member that are shown to people */

static void shape_put(struct cairn_str *s, const struct cairn_tensor_entry *t)
{
    cairn_str_putc(s, '[');
    for (int i = 0; i < t->ndim; i++)
        cairn_str_printf(s, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    cairn_str_putc(s, ']');
}

static int64_t elements(const struct cairn_tensor_entry *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= t->shape[i]; /* checked against overflow when the manifest was loaded */
    return n;
}

/* Members of an object, one a line, deeper ones in short; "metrics" is spread out. */
static void members_put(struct cairn_str *out, const json_t *o, int indent)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)o, key, v)
    {
        struct cairn_str text = {0};

        if (!strcmp(key, "metrics") && json_is_object(v)) {
            cairn_str_printf(out, "%*smetrics\n", indent, "");
            members_put(out, v, indent + 2);
            continue;
        }
        cairn_json_canonical(&text, v);
        cairn_str_printf(out, "%*s%-28s %.*s%s\n", indent, "", key, VALUE_MAX, cairn_str_z(&text), text.len > VALUE_MAX ? " ..." : "");
        cairn_str_free(&text);
    }
}

/* "ok", "differs", "not here", or "" for what cannot be looked up. */
static const char *input_state(const struct cairn_input *in, const char *root)
{
    struct cairn_manifest_head head;
    char *path;
    enum cairn_status st;

    if (!root || cairn_starts_with(in->path, "file:"))
        return "";
    path = cairn_path_join(root, in->path);
    st = path && cairn_artefact_committed(path) ? cairn_manifest_head(&head, path, NULL) : CAIRN_ENOINPUT;
    free(path);
    if (st != CAIRN_OK)
        return st == CAIRN_ENOINPUT ? "not here" : "damaged";
    return cairn_digest_equal(head.digest, in->digest) ? "ok" : "differs";
}

static void page_put(struct cairn_str *out, const char *dir, const char *root, const struct cairn_manifest *m, int collected)
{
    char hex[33];
    int64_t bytes = 0, n = 0;

    cairn_str_printf(out, "%s\n  %s of step %lld%s%s%s\n", dir, m->kind, (long long)m->step, m->run[0] ? ", run " : "", m->run,
                     collected ? "; its shards were collected" : "");
    cairn_digest_hex(m->digest, hex);
    cairn_str_printf(out, "  logical digest  %s\n", hex);
    cairn_digest_hex(m->recipe, hex);
    cairn_str_printf(out, "  recipe          %s\n  made by         cairn %s, attempt %lld\n", hex, m->version, (long long)m->epoch);
    if (m->numerics[0])
        cairn_str_printf(out, "  numerics        %s\n  layout          %s\n", m->numerics, m->layout);
    for (int i = 0; i < m->ninputs; i++) {
        cairn_digest_hex(m->inputs[i].digest, hex);
        cairn_str_printf(out, "%s%-28s %s  %s\n", i ? "    " : "  inputs\n    ", m->inputs[i].path, hex, input_state(&m->inputs[i], root));
    }
    if (json_object_size(m->content))
        cairn_str_puts(out, "  content\n");
    members_put(out, m->content, 4);
    if (json_object_size(m->info))
        cairn_str_puts(out, "  info\n");
    members_put(out, m->info, 4);
    for (int i = 0; i < m->nshards; i++)
        bytes += m->shards[i]->size;
    cairn_str_printf(out, "  %d shards, %lld bytes\n", m->nshards, (long long)bytes);
    for (int i = 0; i < m->nshards; i++) {
        cairn_digest_hex(m->shards[i]->digest, hex);
        cairn_str_printf(out, "    %-28s %12lld  %s\n", m->shards[i]->file, (long long)m->shards[i]->size, hex);
    }
    for (int i = 0; i < m->ntensors; i++)
        n += elements(&m->tensors[i]);
    cairn_str_printf(out, "  %d tensors, %lld elements\n", m->ntensors, (long long)n);
    for (int i = 0; i < m->ntensors; i++) {
        const struct cairn_tensor_entry *t = &m->tensors[i];

        cairn_str_printf(out, "    %-64s %-6s ", t->name, cairn_dtype_name(t->dtype));
        shape_put(out, t);
        if (t->nparts > 1)
            cairn_str_printf(out, "  in %d parts", t->nparts);
        cairn_str_putc(out, '\n');
    }
}

static json_t *tensor_json(const struct cairn_tensor_entry *t)
{
    json_t *shape = json_array();
    char hex[33];

    for (int i = 0; shape && i < t->ndim; i++)
        json_array_append_new(shape, json_integer(t->shape[i]));
    cairn_digest_hex(t->digest, hex);
    return json_pack("{s:s, s:s, s:o, s:i, s:s, s:s*}", "name", t->name, "dtype", cairn_dtype_name(t->dtype), "shape", shape, "parts", t->nparts,
                     "digest", hex, "each", t->each);
}

static json_t *page_json(const char *dir, const char *root, const struct cairn_manifest *m, int collected)
{
    json_t *inputs = json_array(), *shards = json_array(), *tensors = json_array();
    char digest[33], recipe[33], hex[33];

    for (int i = 0; i < m->ninputs; i++) {
        cairn_digest_hex(m->inputs[i].digest, hex);
        json_array_append_new(inputs, json_pack("{s:s, s:s, s:s}", "path", m->inputs[i].path, "digest", hex, "state",
                                                input_state(&m->inputs[i], root)));
    }
    for (int i = 0; i < m->nshards; i++) {
        cairn_digest_hex(m->shards[i]->digest, hex);
        json_array_append_new(shards,
                              json_pack("{s:s, s:I, s:s}", "file", m->shards[i]->file, "size", (json_int_t)m->shards[i]->size, "digest", hex));
    }
    for (int i = 0; i < m->ntensors; i++)
        json_array_append_new(tensors, tensor_json(&m->tensors[i]));
    cairn_digest_hex(m->digest, digest);
    cairn_digest_hex(m->recipe, recipe);
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:b, s:o, s:O, s:O, s:o, s:o}", "path", dir, "kind", m->kind, "step",
                     (json_int_t)m->step, "run", m->run, "digest", digest, "recipe", recipe, "cairn", m->version, "numerics", m->numerics,
                     "layout", m->layout, "attempt", (json_int_t)m->epoch, "collected", collected, "inputs", inputs, "content", m->content,
                     "info", m->info, "shards", shards, "tensors", tensors);
}

enum cairn_status cairn_inspect_artefact(const char *dir, const char *root, struct cairn_str *out, json_t **json, struct cairn_error *err)
{
    struct cairn_manifest *m = NULL;
    enum cairn_status st = CAIRN_OK;
    int collected = cairn_artefact_collected(dir);

    TRY(cairn_manifest_load(&m, dir, err));
    if (out)
        page_put(out, dir, root, m, collected);
    else
        *json = page_json(dir, root, m, collected);
out:
    cairn_manifest_destroy(m);
    return st;
}
