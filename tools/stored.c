/* stored.c - lists a node store (stored.h); changes nothing. */
#include "tools/stored.h"

#include <stdio.h>
#include <unistd.h>

#include "stages/common/setup.h"

struct listing {
    json_t *objects;
    int64_t bytes;
};

static enum cairn_status add(void *arg, const struct cairn_nodestore_entry *e, struct cairn_error *err)
{
    struct listing *l = arg;
    const char *state = e->in_use ? "in use" : !e->made ? "unfinished" : e->expired ? "expired" : "kept";

    l->bytes += e->bytes;
    return json_array_append_new(l->objects, json_pack("{s:s, s:I, s:f, s:s}", "path", e->path, "bytes", (json_int_t)e->bytes,
                                                       "unused_s", e->age_s, "state", state))
               ? CAIRN_NOMEM(err)
               : CAIRN_OK;
}

json_t *cairn_stored_json(const struct cairn_recipe *r)
{
    struct listing l = {json_array(), 0};
    struct cairn_nodestore_opts o;
    struct cairn_error why = {0};
    char host[256] = "";

    if (!l.objects || !cairn_setup_node_store(&o, r)) {
        json_decref(l.objects);
        return NULL;
    }
    gethostname(host, sizeof host - 1);
    if (cairn_nodestore_list(&o, add, &l, &why) != CAIRN_OK) {
        json_decref(l.objects);
        return json_pack("{s:s, s:s, s:s}", "path", o.path, "host", host, "problem", why.text);
    }
    return json_pack("{s:s, s:s, s:I, s:f, s:o}", "path", o.path, "host", host, "bytes", (json_int_t)l.bytes, "max_bytes",
                     o.max_bytes, "objects", l.objects);
}

void cairn_stored_print(const json_t *o)
{
    const char *problem = json_string_value(json_object_get(o, "problem"));
    size_t i;
    json_t *v;

    if (!o)
        return;
    printf("  node store %s on %s: ", json_string_value(json_object_get(o, "path")), json_string_value(json_object_get(o, "host")));
    if (problem) {
        printf("%s\n", problem);
        return;
    }
    printf("%zu objects, %.2f of %.2f GiB\n", json_array_size(json_object_get(o, "objects")),
           json_number_value(json_object_get(o, "bytes")) * 0x1p-30, json_number_value(json_object_get(o, "max_bytes")) * 0x1p-30);
    json_array_foreach(json_object_get(o, "objects"), i, v)
        printf("    %-10s %8.2f GiB, last used %.1f h ago  %s\n", json_string_value(json_object_get(v, "state")),
               json_number_value(json_object_get(v, "bytes")) * 0x1p-30, json_number_value(json_object_get(v, "unused_s")) / 3600,
               json_string_value(json_object_get(v, "path")));
}
