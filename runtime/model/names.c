/* names.c - see names.h. Pure text: nothing is looked up. */
#include "model/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

#define LONG_PREFIX  "model.language_model."
#define SHORT_PREFIX "model."

/* transformers' name in memory, the checkpoint's: both behind "layers.N." */
static const char *const renamed[][2] = {
    {"self_attn.forget_gate.", "self_attn."},
    {"attn_hc.", "hc_attn_"},
    {"ffn_hc.", "hc_ffn_"},
};

void cairn_name_of_layer(const struct cairn_model_config *c, int layer, const char *suffix, char *out)
{
    snprintf(out, CAIRN_NAME_BYTES, "%slayers.%d.%s", c->prefix, layer, suffix);
}

void cairn_name_of_model(const struct cairn_model_config *c, const char *suffix, char *out)
{
    snprintf(out, CAIRN_NAME_BYTES, "%s%s", c->prefix, suffix);
}

int cairn_name_layer(const struct cairn_model_config *c, const char *name, const char **rest)
{
    static const char word[] = "layers.";
    size_t n = strlen(c->prefix);
    char *end = NULL;
    long v;

    if (strncmp(name, c->prefix, n) != 0 || !cairn_starts_with(name + n, word))
        return -1;
    name += n + sizeof(word) - 1;
    if (name[0] < '0' || name[0] > '9')
        return -1;
    v = strtol(name, &end, 10);
    if (*end != '.' || v < 0 || v > 1000000)
        return -1;
    *rest = end + 1;
    return (int)v;
}

int cairn_name_canonical(const struct cairn_model_config *c, const char *name, char *out)
{
    const char *rest = NULL, *tail = name;
    int n;

    if (c->arch != CAIRN_ARCH_GLM5_NEXT)
        return snprintf(out, CAIRN_NAME_BYTES, "%s", name) < CAIRN_NAME_BYTES;
    if (cairn_starts_with(name, LONG_PREFIX))
        tail = name + strlen(LONG_PREFIX);
    else if (cairn_starts_with(name, SHORT_PREFIX "layers.") || cairn_starts_with(name, SHORT_PREFIX "embed_tokens.") ||
             cairn_starts_with(name, SHORT_PREFIX "norm."))
        tail = name + strlen(SHORT_PREFIX);
    n = snprintf(out, CAIRN_NAME_BYTES, "%s%s", tail == name ? "" : c->prefix, tail);
    if (n >= CAIRN_NAME_BYTES)
        return 0;
    if (cairn_name_layer(c, out, &rest) < 0)
        return 1;
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
        if (cairn_starts_with(rest, renamed[i][0])) {
            char *at = out + (rest - out);

            n = snprintf(at, (size_t)(CAIRN_NAME_BYTES - (at - out)), "%s%s", renamed[i][1],
                         tail + strlen(tail) - strlen(rest) + strlen(renamed[i][0]));
            return n < CAIRN_NAME_BYTES - (at - out);
        }
    return 1;
}

/* The name in memory of what stands behind "layers.N.", or NULL if it has no other. */
static const char *in_memory(const char *rest, size_t *cut)
{
    static const char *const gate[] = {"self_attn.A_log", "self_attn.dt_bias", "self_attn.f_a_proj", "self_attn.f_b_proj"};
    int first = 1;

    for (size_t i = 0; i < sizeof gate / sizeof *gate && first; i++) { /* a tensor, or the module that holds it */
        size_t n = strlen(gate[i]);

        first = strncmp(rest, gate[i], n) != 0 || (rest[n] && rest[n] != '.');
    }
    for (size_t i = (size_t)first; i < sizeof renamed / sizeof *renamed; i++)
        if (cairn_starts_with(rest, renamed[i][1])) {
            *cut = strlen(renamed[i][1]);
            return renamed[i][0];
        }
    return NULL;
}

int cairn_name_other(const struct cairn_model_config *c, const char *name, int i, char *out)
{
    const char *prefix = strcmp(c->prefix, LONG_PREFIX) ? LONG_PREFIX : SHORT_PREFIX, *rest = NULL, *word;
    size_t cut = 0, n = strlen(c->prefix);
    int layer;

    if (c->arch != CAIRN_ARCH_GLM5_NEXT || strncmp(name, c->prefix, n) != 0)
        return 0;
    layer = cairn_name_layer(c, name, &rest);
    word = layer < 0 ? NULL : in_memory(rest, &cut);
    if (i == 0)
        return snprintf(out, CAIRN_NAME_BYTES, "%s%s", prefix, name + n) < CAIRN_NAME_BYTES;
    if (!word || i > 2)
        return 0;
    return snprintf(out, CAIRN_NAME_BYTES, "%slayers.%d.%s%s", i == 1 ? c->prefix : prefix, layer, word, rest + cut) < CAIRN_NAME_BYTES;
}
