/* trail.c - figures of a manifest in one line (trail.h). */
#include "tools/trail.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/str.h"
#include "ckpt/manifest.h"
#include "tools/cli.h"

/* In the order in which they are told; times 100 for shares. */
static const struct {
    const char *key, *name, *fmt;
    double scale;
} figures[] = {
    {"accuracy", "accuracy", "%.1f%%", 100}, {"reward/shaped_mean", "reward", "%.3f", 1}, {"capped_share", "capped", "%.1f%%", 100},
    {"length/mean", "length", "%.1f", 1},    {"loss/policy", "loss", "%.4f", 1},          {"loss/sft", "loss", "%.4f", 1},
    {"grad_norm", "grad norm", "%.3f", 1},   {"mismatch/max", "mismatch", "%.3g", 1},     {"tokens/per_second", "tokens/s", "%.0f", 1},
};

/* A metric stands in content (logical) or in info (how it went). */
static const json_t *metric(const struct cairn_manifest *m, const char *key)
{
    const json_t *v = json_object_get(json_object_get(m->content, "metrics"), key);

    return v ? v : json_object_get(json_object_get(m->info, "metrics"), key);
}

static void line_make(struct cairn_str *s, const struct cairn_manifest *m, const char *name)
{
    const json_t *seconds = json_object_get(m->info, "seconds");

    cairn_str_printf(s, "%-27s", name);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        const json_t *v = metric(m, figures[i].key);
        char number[64];

        if (!json_is_number(v))
            continue;
        snprintf(number, sizeof number, figures[i].fmt, json_number_value(v) * figures[i].scale);
        cairn_str_printf(s, "  %s %s", figures[i].name, number);
    }
    if (json_is_number(seconds))
        cairn_str_printf(s, "  %.1f s", json_number_value(seconds));
    else if (json_object_get(m->info, "copied_from"))
        cairn_str_puts(s, "  copied");
}

static json_t *object_make(const struct cairn_manifest *m, const struct cairn_link *l, const char *name)
{
    const json_t *parts[] = {json_object_get(m->info, "metrics"), json_object_get(m->content, "metrics")};
    json_t *metrics = json_object(), *o;
    char hex[33];

    for (int i = 0; metrics && i < 2; i++)
        if (parts[i])
            json_object_update(metrics, (json_t *)parts[i]);
    cairn_digest_hex(m->digest, hex);
    o = json_pack("{s:I, s:s, s:s?, s:s, s:s, s:o, s:O*}", "step", (json_int_t)l->step, "stage", cairn_stage_name(l->stage), "eval", l->eval,
                  "artefact", name, "digest", hex, "metrics", metrics, "seconds", json_object_get(m->info, "seconds"));
    return o;
}

enum cairn_status cairn_trail_tell(const struct cairn_run *run, const struct cairn_link *l, int json, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_link_path(run, l), *name = cairn_link_relative(l);
    struct cairn_manifest *m = NULL;
    struct cairn_str s = {0};

    if (!path || !name)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_manifest_load(&m, path, err));
    if (json) {
        TRY(cairn_cli_json(object_make(m, l, name), err));
        TRY(cairn_cli_flush(err));
    } else {
        line_make(&s, m, name);
        fprintf(stderr, "%s\n", cairn_str_z(&s));
    }
out:
    cairn_manifest_destroy(m);
    cairn_str_free(&s);
    free(path);
    free(name);
    return st;
}
