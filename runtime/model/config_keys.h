/* config_keys.h - reading single keys of a config.json, for config.c and config_flash.c. A key that is null is absent. */
#ifndef CAIRN_MODEL_CONFIG_KEYS_H
#define CAIRN_MODEL_CONFIG_KEYS_H

#include <math.h>
#include <string.h>

#include "model/config.h"

#define CAIRN_MAX_DIM (INT64_C(1) << 20) /* any width; keeps products of three below 2^62 */

static inline const json_t *cairn_key_find(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return v && !json_is_null(v) ? v : NULL; /* null means absent in every published configuration */
}

static inline enum cairn_status cairn_key_int_or(const json_t *o, const char *key, int64_t min, int64_t max, int64_t def, int64_t *out,
                                const char *where, struct cairn_error *err)
{
    if (!cairn_key_find(o, key)) {
        *out = def;
        return CAIRN_OK;
    }
    return cairn_json_i64(o, key, min, max, out, where, err);
}

static inline enum cairn_status cairn_key_int32(const json_t *o, const char *key, int64_t min, int64_t max, int *out, const char *where,
                                    struct cairn_error *err)
{
    int64_t v = 0;
    enum cairn_status st = cairn_json_i64(o, key, min, max, &v, where, err);

    if (st == CAIRN_OK)
        *out = (int)v;
    return st;
}

static inline enum cairn_status cairn_key_float_or(const json_t *o, const char *key, double def, float *out, const char *where,
                                  struct cairn_error *err)
{
    double v = def;
    enum cairn_status st = cairn_key_find(o, key) ? cairn_json_f64(o, key, &v, where, err) : CAIRN_OK;

    if (st == CAIRN_OK && (!isfinite(v) || !(v > 0) || !isfinite((float)v) || (float)v == 0))
        st = cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\": %g is not a positive number", where, key, v);
    if (st == CAIRN_OK)
        *out = (float)v;
    return st;
}

static inline enum cairn_status cairn_key_bool_or(const json_t *o, const char *key, int def, int *out, const char *where, struct cairn_error *err)
{
    if (!cairn_key_find(o, key)) {
        *out = def;
        return CAIRN_OK;
    }
    return cairn_json_bool(o, key, out, where, err);
}

/* The key, if it is there, must be this string. */
static inline enum cairn_status cairn_key_only_string(const json_t *o, const char *key, const char *value, const char *where, struct cairn_error *err)
{
    const char *s = NULL;
    enum cairn_status st;

    if (!cairn_key_find(o, key))
        return CAIRN_OK;
    st = cairn_json_string(o, key, &s, where, err);
    if (st == CAIRN_OK && strcmp(s, value) != 0)
        st = cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\": \"%.64s\" is not supported, only \"%s\" is", where, key, s, value);
    return st;
}

static inline enum cairn_status cairn_key_only_bool(const json_t *o, const char *key, int value, const char *where, struct cairn_error *err)
{
    int v = value;
    enum cairn_status st = cairn_key_bool_or(o, key, value, &v, where, err);

    if (st == CAIRN_OK && v != value)
        st = cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\": %s is not supported, only %s is", where, key, v ? "true" : "false",
                        value ? "true" : "false");
    return st;
}

/* A list of one word a layer; entries for MTP layers may follow. *list = NULL when the key is absent. */
static inline enum cairn_status cairn_key_layer_list(const struct cairn_model_config *c, const json_t *o, const char *key, const json_t **list,
                                                     const char *where, struct cairn_error *err)
{
    const json_t *v = cairn_key_find(o, key);

    *list = NULL;
    if (!v)
        return CAIRN_OK;
    if (!json_is_array(v))
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\": expected a list", where, key);
    if (json_array_size(v) != (size_t)c->layers && json_array_size(v) != (size_t)c->layers + (size_t)c->nextn)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\" has %zu entries, \"num_hidden_layers\" is %d", where, key,
                          json_array_size(v), c->layers);
    *list = v;
    return CAIRN_OK;
}

static inline enum cairn_status cairn_key_layer_word(const json_t *list, int i, const char *key, const char *yes, const char *no, uint8_t *out,
                                                     const char *where, struct cairn_error *err)
{
    const char *s = json_string_value(json_array_get(list, (size_t)i));

    if (!s || (strcmp(s, yes) != 0 && strcmp(s, no) != 0))
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\", entry %d: expected \"%s\" or \"%s\"", where, key, i, yes, no);
    *out = strcmp(s, yes) == 0;
    return CAIRN_OK;
}

/* What glm5_next has beside the sizes that both architectures share (config_flash.c): hyper-connections, KDA, pools, clamp. `text` holds the
 * keys of the language model, `top` the whole object. */
enum cairn_status cairn_config_flash(struct cairn_model_config *c, const json_t *text, const json_t *top, const char *where,
                                     struct cairn_error *err);

#endif
