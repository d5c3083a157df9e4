/* config_flash.c - what glm5_next (GLM-5.3-Flash) has of its own in config.json: KDA, hyper-connections, pools, clamp, placeholders.
 *
 * The rules are spec/model_flash.md, section 2: linear_attn_config goes before linear_*, lists before formulas, defaults are the model's own
 * code's. What this code does not run (rotary channels, a softplus gate, sets without their tail, a key head of another count) is refused.
 */
#include <stdio.h>

#include "model/config_keys.h"

/* Integer `inner` of linear_attn_config, else `outer` of the text's keys. */
static enum cairn_status linear_int(const json_t *text, const char *inner, const char *outer, int64_t most, int64_t def, int64_t *out,
                                    const char *where, struct cairn_error *err)
{
    const json_t *box = cairn_key_find(text, "linear_attn_config");

    if (json_is_object(box) && cairn_key_find(box, inner))
        return cairn_json_i64(box, inner, 1, most, out, where, err);
    return cairn_key_int_or(text, outer, 1, most, def, out, where, err);
}

/* The log decay's lower bound. */
static enum cairn_status read_bound(struct cairn_model_config *c, const json_t *text, const char *where, struct cairn_error *err)
{
    const json_t *box = cairn_key_find(text, "linear_attn_config"), *in = json_is_object(box) ? box : NULL;
    const char *key = in && json_object_get(in, "gate_lower_bound") ? "gate_lower_bound" : "linear_lower_bound";
    const json_t *v = json_object_get(key[0] == 'g' ? in : text, key);
    double bound = -5;

    if (v && json_is_null(v) && json_is_true(json_object_get(in, "safe_gate")))
        v = NULL;
    if (v && json_is_null(v))
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\": null (a softplus gate) is not supported, only a bound is", where, key);
    if (v && (!json_is_number(v) || !(json_number_value(v) < 0) || json_number_value(v) < -5))
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\": expected a number from -5 to below 0", where, key);
    if (v)
        bound = json_number_value(v);
    c->kda_bound = (float)bound;
    return CAIRN_OK;
}

static enum cairn_status read_kda(struct cairn_model_config *c, const json_t *text, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const json_t *list;
    int64_t v = 0;

    TRY(linear_int(text, "num_heads", "linear_num_heads", 4096, 64, &v, where, err));
    c->kda_heads = (int)v;
    TRY(linear_int(text, "head_dim", "linear_head_dim", 4096, 128, &c->kda_dim, where, err));
    TRY(linear_int(text, "short_conv_kernel_size", "linear_conv_kernel_dim", 16, 4, &v, where, err));
    c->kda_conv = (int)v;
    TRY(read_bound(c, text, where, err));
    TRY(cairn_key_layer_list(c, text, "layer_types", &list, where, err));
    for (int i = 0; i < c->layers; i++) {
        const char *word = json_string_value(json_array_get(list, (size_t)i));

        c->kda[i] = list ? word && !strcmp(word, "linear_attention") : i % 4 != 3;
        if (list && !c->kda[i] && (!word || (strcmp(word, "deepseek_sparse_attention") && strcmp(word, "full_attention"))))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"layer_types\", entry %d: expected \"linear_attention\" or "
                           "\"deepseek_sparse_attention\"", where, i));
    }
out:
    return st;
}

static enum cairn_status read_streams(struct cairn_model_config *c, const json_t *text, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t v = 0;

    TRY(cairn_key_int_or(text, "hc_mult", 1, 8, 4, &v, where, err));
    c->streams = (int)v;
    TRY(cairn_key_int_or(text, "hc_sinkhorn_iters", 1, 1000, 20, &v, where, err));
    c->stream_iters = (int)v;
    TRY(cairn_key_float_or(text, "hc_eps", 1e-6, &c->stream_eps, where, err));
out:
    return st;
}

static enum cairn_status read_index(struct cairn_model_config *c, const json_t *text, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t v = 0;

    TRY(cairn_key_int_or(text, "index_kpool", 1, 1024, 16, &v, where, err));
    c->index_pool = (int)v;
    TRY(cairn_key_only_bool(text, "index_kpool_always_select_tail", 1, where, err));
    if (c->index_topk % c->index_pool)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"index_topk\": %d is no multiple of \"index_kpool\", %d", where, c->index_topk,
                       c->index_pool));
out:
    return st;
}

static enum cairn_status read_attention(struct cairn_model_config *c, const json_t *text, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t v = 0;

    TRY(cairn_key_int_or(text, "qk_rope_head_dim", 0, 65536, 0, &v, where, err));
    if (v)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"qk_rope_head_dim\": %lld, but glm5_next has no positions", where, (long long)v));
    TRY(cairn_key_int_or(text, "qk_head_dim", 1, 131072, c->nope, &v, where, err));
    if (v != c->nope)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"qk_head_dim\": %lld is not \"qk_nope_head_dim\", %lld", where, (long long)v,
                       (long long)c->nope));
    TRY(cairn_key_int_or(text, "num_key_value_heads", 1, 4096, c->heads, &v, where, err));
    if (v != c->heads)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"num_key_value_heads\": %lld is not \"num_attention_heads\", %d", where, (long long)v,
                       c->heads));
    c->latent_norm_eps = c->norm_eps;
out:
    return st;
}

/* Ids that stand for what this program does not see. */
static enum cairn_status read_placeholders(struct cairn_model_config *c, const json_t *top, const char *where, struct cairn_error *err)
{
    static const char *const keys[] = {"image_token_id",     "video_token_id",       "image_start_token_id",
                                       "image_end_token_id", "video_start_token_id", "video_end_token_id"};
    enum cairn_status st = CAIRN_OK;
    int64_t v = 0;

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        TRY(cairn_key_int_or(top, keys[i], 0, INT32_MAX, -1, &v, where, err));
        if (v >= 0)
            c->placeholder[c->placeholders++] = (int)v;
    }
out:
    return st;
}

enum cairn_status cairn_config_flash(struct cairn_model_config *c, const json_t *text, const json_t *top, const char *where,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t v = 0;

    snprintf(c->prefix, sizeof c->prefix, text == top ? "model." : "model.language_model.");
    TRY(read_attention(c, text, where, err));
    TRY(read_index(c, text, where, err));
    TRY(read_kda(c, text, where, err));
    TRY(read_streams(c, text, where, err));
    TRY(cairn_key_float_or(text, "swiglu_limit", 10, &c->swiglu_limit, where, err));
    TRY(cairn_key_int_or(text, "pad_token_id", 0, c->vocab - 1, -1, &v, where, err));
    c->pad = (int)v;
    TRY(read_placeholders(c, top, where, err));
out:
    return st;
}
