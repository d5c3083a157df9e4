/* config.c - reads a HuggingFace config.json into struct cairn_model_config, or refuses it by key and value.
 *
 * The rules are those the models' own code follows (spec/model.md, 1.4): where releases disagree with each other (head_dim,
 * num_experts, library defaults of the index offset), the key that is right in all of them decides and the others are ignored.
 * What this code cannot run (other activations, biases, tied embeddings, scaled RoPE) is refused here, so that nothing downstream
 * has to ask. Memory: the struct is plain but for `raw`, a deep copy of the object.
 */
#include "model/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "model/config_keys.h"

#define SUPPORTED "glm_moe_dsa (GLM-5, 5.1, 5.2, 5.3) and glm5_next (GLM-5.3-Flash)"

static enum cairn_status read_arch(struct cairn_model_config *c, const json_t *o, const char *where, struct cairn_error *err)
{
    const char *type = json_string_value(json_object_get(o, "model_type"));
    const char *cls = json_string_value(json_array_get(json_object_get(o, "architectures"), 0));

    if (!type)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"model_type\" is missing: this is no model configuration; supported: %s", where,
                          SUPPORTED);
    if (!strcmp(type, "glm5_next") || !strcmp(type, "glm5_next_text"))
        c->arch = CAIRN_ARCH_GLM5_NEXT;
    else if (strcmp(type, "glm_moe_dsa") != 0)
        return cairn_fail(err, CAIRN_EDATA, "%s: architecture \"%.64s\" (%.64s) is not supported; supported: %s", where, type,
                          cls ? cls : "no class given", SUPPORTED);
    return CAIRN_OK;
}

/* Theta: rope_parameters, else the top level, else rope_scaling; any scaling of positions is refused. */
static enum cairn_status read_rope(struct cairn_model_config *c, const json_t *o, const char *where, struct cairn_error *err)
{
    static const char *const boxes[] = {"rope_parameters", NULL, "rope_scaling"};
    enum cairn_status st = CAIRN_OK;
    int found = 0;

    for (int i = 0; i < 3; i++) {
        const json_t *box = boxes[i] ? cairn_key_find(o, boxes[i]) : o;

        if (!box)
            continue;
        if (!json_is_object(box))
            return cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\": expected an object", where, boxes[i]);
        if (boxes[i]) { /* both spellings of the type's key are in use */
            TRY(cairn_key_only_string(box, "rope_type", "default", where, err));
            TRY(cairn_key_only_string(box, "type", "default", where, err));
        }
        if (!found && cairn_key_find(box, "rope_theta")) {
            TRY(cairn_key_float_or(box, "rope_theta", 0, &c->rope_theta, where, err));
            found = 1;
        }
    }
    if (!found)
        st = cairn_fail(err, CAIRN_EDATA, "%s: no \"rope_theta\" in \"rope_parameters\", at the top level or in \"rope_scaling\"", where);
out:
    return st;
}

static enum cairn_status read_dense(struct cairn_model_config *c, const json_t *o, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const json_t *list;
    int64_t first = 3, freq = 1;

    TRY(cairn_key_layer_list(c, o, "mlp_layer_types", &list, where, err));
    if (list) {
        for (int i = 0; i < c->layers; i++)
            TRY(cairn_key_layer_word(list, i, "mlp_layer_types", "dense", "sparse", &c->dense[i], where, err));
        goto out;
    }
    if (c->arch == CAIRN_ARCH_GLM_MOE_DSA || cairn_key_find(o, "first_k_dense_replace")) /* glm5_next has a default, 3 */
        TRY(cairn_json_i64(o, "first_k_dense_replace", 0, CAIRN_MAX_LAYERS, &first, where, err));
    TRY(cairn_key_int_or(o, "moe_layer_freq", 1, 1, 1, &freq, where, err));
    for (int i = 0; i < c->layers; i++)
        c->dense[i] = i < first;
out:
    return st;
}

/* indexer_types, else index_topk_pattern, else the formula of IndexShare: full where max(i - o + 1, 0) mod f = 0. */
static enum cairn_status read_indexer(struct cairn_model_config *c, const json_t *o, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const json_t *list;
    int64_t freq = 1, offset = 1;

    TRY(cairn_key_layer_list(c, o, "indexer_types", &list, where, err));
    if (list) {
        for (int i = 0; i < c->layers; i++)
            TRY(cairn_key_layer_word(list, i, "indexer_types", "full", "shared", &c->indexer[i], where, err));
    } else if (cairn_key_find(o, "index_topk_pattern")) {
        const char *p = NULL;

        TRY(cairn_json_string(o, "index_topk_pattern", &p, where, err));
        if (strlen(p) != (size_t)c->layers && strlen(p) != (size_t)c->layers + (size_t)c->nextn)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"index_topk_pattern\" has %zu letters, \"num_hidden_layers\" is %d", where,
                           strlen(p), c->layers));
        for (int i = 0; i < c->layers; i++) {
            if (p[i] != 'F' && p[i] != 'S')
                TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"index_topk_pattern\", letter %d: expected F or S", where, i));
            c->indexer[i] = p[i] == 'F';
        }
    } else {
        TRY(cairn_key_int_or(o, "index_topk_freq", 1, CAIRN_MAX_LAYERS, 1, &freq, where, err));
        if (c->arch == CAIRN_ARCH_GLM5_NEXT)
            offset = 2; /* whose library default is known */
        else if (freq > 1 && !cairn_key_find(o, "index_skip_topk_offset"))
            TRY(cairn_fail(err, CAIRN_EDATA,
                           "%s: \"index_topk_freq\" is %d but \"index_skip_topk_offset\" is missing, and libraries disagree about its "
                           "default; write \"indexer_types\"", where, (int)freq));
        TRY(cairn_key_int_or(o, "index_skip_topk_offset", 0, CAIRN_MAX_LAYERS, offset, &offset, where, err));
        for (int i = 0; i < c->layers; i++)
            c->indexer[i] = (i - offset + 1 > 0 ? i - offset + 1 : 0) % freq == 0;
    }
out:
    return st;
}

static enum cairn_status read_stop(struct cairn_model_config *c, const json_t *o, const char *where, struct cairn_error *err)
{
    const json_t *v = cairn_key_find(o, "eos_token_id");
    size_t n = !v ? 0 : json_is_array(v) ? json_array_size(v) : 1;

    if (n > CAIRN_MAX_STOP)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"eos_token_id\" lists %zu ids, at most %d are supported", where, n, CAIRN_MAX_STOP);
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_is_array(v) ? json_array_get(v, i) : v;

        if (!json_is_integer(e) || json_integer_value(e) < 0 || json_integer_value(e) >= c->vocab)
            return cairn_fail(err, CAIRN_EDATA, "%s: key \"eos_token_id\": expected ids from 0 to %lld", where, (long long)c->vocab - 1);
        c->stop[i] = (int)json_integer_value(e);
    }
    c->stops = (int)n;
    return CAIRN_OK;
}

/* Widths of a head of glm_moe_dsa and its angles. Never head_dim, and qk_rope_head_dim only where qk_head_dim is missing: library releases
 * overwrite both. */
static enum cairn_status read_rope_width(struct cairn_model_config *c, const json_t *o, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t v = 0;

    if (cairn_key_find(o, "qk_head_dim")) {
        TRY(cairn_json_i64(o, "qk_head_dim", c->nope + 1, 131072, &v, where, err));
        c->rope = v - c->nope;
    } else {
        TRY(cairn_json_i64(o, "qk_rope_head_dim", 1, 65536, &c->rope, where, err));
    }
out:
    return st;
}

static enum cairn_status read_sizes(struct cairn_model_config *c, const json_t *o, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t v = 0;

    TRY(cairn_json_i64(o, "vocab_size", 1, INT32_MAX, &c->vocab, where, err));
    TRY(cairn_json_i64(o, "hidden_size", 1, CAIRN_MAX_DIM, &c->width, where, err));
    TRY(cairn_key_int32(o, "num_hidden_layers", 1, CAIRN_MAX_LAYERS, &c->layers, where, err));
    TRY(cairn_key_int_or(o, "num_nextn_predict_layers", 0, 16, 0, &v, where, err));
    c->nextn = (int)v;
    TRY(cairn_json_i64(o, "intermediate_size", 1, CAIRN_MAX_DIM, &c->dense_width, where, err));
    TRY(cairn_json_i64(o, "moe_intermediate_size", 1, CAIRN_MAX_DIM, &c->expert_width, where, err));
    TRY(cairn_key_int32(o, c->arch == CAIRN_ARCH_GLM5_NEXT && !cairn_key_find(o, "n_routed_experts") ? "num_local_experts" : "n_routed_experts",
                        1, 65536, &c->experts, where, err));
    TRY(cairn_key_int32(o, "num_experts_per_tok", 1, c->experts, &c->experts_per_token, where, err));
    TRY(cairn_key_int_or(o, "n_shared_experts", 1, 64, 1, &v, where, err));
    c->shared_experts = (int)v;
    TRY(cairn_key_int_or(o, "n_group", 1, c->experts < CAIRN_MAX_GROUPS ? c->experts : CAIRN_MAX_GROUPS, 1, &v, where, err));
    c->n_group = (int)v;
    TRY(cairn_key_int_or(o, "topk_group", 1, c->n_group, 1, &v, where, err));
    c->topk_group = (int)v;
    TRY(cairn_key_bool_or(o, "norm_topk_prob", 1, &c->norm_topk, where, err));
    TRY(cairn_key_float_or(o, "routed_scaling_factor", 2.5, &c->routed_scale, where, err));
    TRY(cairn_key_int32(o, "num_attention_heads", 1, 4096, &c->heads, where, err));
    TRY(cairn_json_i64(o, "q_lora_rank", 1, CAIRN_MAX_DIM, &c->q_rank, where, err));
    TRY(cairn_json_i64(o, "kv_lora_rank", 1, CAIRN_MAX_DIM, &c->kv_rank, where, err));
    TRY(cairn_json_i64(o, "qk_nope_head_dim", 1, 65536, &c->nope, where, err));
    TRY(cairn_json_i64(o, "v_head_dim", 1, 65536, &c->v_dim, where, err));
    TRY(cairn_key_int32(o, "index_n_heads", 1, 4096, &c->index_heads, where, err));
    TRY(cairn_json_i64(o, "index_head_dim", 1, 65536, &c->index_dim, where, err));
    TRY(cairn_key_int32(o, "index_topk", 1, 1 << 24, &c->index_topk, where, err));
    TRY(cairn_key_float_or(o, "rms_norm_eps", 1e-5, &c->norm_eps, where, err));
    TRY(cairn_key_float_or(o, "initializer_range", 0.02, &c->init_range, where, err));
    TRY(cairn_key_int_or(o, "max_position_embeddings", 1, INT32_MAX, 202752, &c->max_positions, where, err));
out:
    return st;
}

/* The first layer that attends has to choose by itself. */
static enum cairn_status check_sets(const struct cairn_model_config *c, const char *where, struct cairn_error *err)
{
    int i = 0;

    while (i < c->layers && c->kda[i])
        i++;
    if (i < c->layers && !c->indexer[i])
        return cairn_fail(err, CAIRN_EDATA, "%s: layer %d shares an index set, but no layer before it computes one", where, i);
    return CAIRN_OK;
}

/* What holds between sizes. */
static enum cairn_status check(const struct cairn_model_config *c, const char *where, struct cairn_error *err)
{
    if (c->rope % 2)
        return cairn_fail(err, CAIRN_EDATA, "%s: the rotary width (qk_head_dim - qk_nope_head_dim) is %lld, expected an even number",
                          where, (long long)c->rope);
    if (c->index_dim < c->rope)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"index_head_dim\": %lld is less than the rotary width %lld", where,
                          (long long)c->index_dim, (long long)c->rope);
    if (c->experts % c->n_group)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"n_group\": %d does not divide \"n_routed_experts\" %d", where, c->n_group,
                          c->experts);
    if (c->n_group > 1 && c->experts / c->n_group < 2)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"n_group\": a group of one expert has no second largest score", where);
    if ((int64_t)c->topk_group * (c->experts / c->n_group) < c->experts_per_token)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"num_experts_per_tok\": %d, but \"topk_group\" leaves %d experts to choose from",
                          where, c->experts_per_token, c->topk_group * (c->experts / c->n_group));
    return check_sets(c, where, err);
}

static enum cairn_status only(const json_t *o, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_key_only_bool(o, "rope_interleave", 1, where, err));
    TRY(cairn_key_only_bool(o, "indexer_rope_interleave", 1, where, err));
out:
    return st;
}

/* What glm_moe_dsa has that glm5_next has not. */
static enum cairn_status read_dsa(struct cairn_model_config *c, const json_t *o, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    snprintf(c->prefix, sizeof c->prefix, "model.");
    c->pad = -1;
    c->index_pool = 1;
    TRY(only(o, where, err));
    TRY(read_rope_width(c, o, where, err));
    TRY(cairn_key_float_or(o, "latent_norm_eps", 1e-6, &c->latent_norm_eps, where, err));
    TRY(read_rope(c, o, where, err));
out:
    return st;
}

enum cairn_status cairn_config_parse(struct cairn_model_config *out, const json_t *obj, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_model_config c;
    const json_t *text = obj; /* the keys of the language model */

    memset(&c, 0, sizeof(c));
    if (!json_is_object(obj))
        return cairn_fail(err, CAIRN_EDATA, "%s: expected an object", where);
    TRY(read_arch(&c, obj, where, err));
    if (c.arch == CAIRN_ARCH_GLM5_NEXT && json_is_object(json_object_get(obj, "text_config")))
        text = json_object_get(obj, "text_config");
    TRY(cairn_key_only_string(text, "hidden_act", "silu", where, err));
    TRY(cairn_key_only_string(text, "scoring_func", "sigmoid", where, err));
    TRY(cairn_key_only_string(text, "topk_method", "noaux_tc", where, err));
    TRY(cairn_key_only_bool(text, "attention_bias", 0, where, err));
    TRY(cairn_key_only_bool(text, "mlp_bias", 0, where, err));
    TRY(cairn_key_only_bool(text, "tie_word_embeddings", 0, where, err));
    TRY(read_sizes(&c, text, where, err));
    TRY(c.arch == CAIRN_ARCH_GLM5_NEXT ? cairn_config_flash(&c, text, obj, where, err) : read_dsa(&c, text, where, err));
    TRY(read_dense(&c, text, where, err));
    TRY(read_indexer(&c, text, where, err));
    for (int i = 0; i < c.layers; i++)
        c.indexer[i] = c.indexer[i] && !c.kda[i];
    TRY(read_stop(&c, text, where, err));
    TRY(check(&c, where, err));
    c.raw = json_deep_copy(obj);
    if (!c.raw)
        TRY(CAIRN_NOMEM(err));
    *out = c;
out:
    return st;
}

int64_t cairn_config_index_width(const struct cairn_model_config *c)
{
    return (int64_t)c->index_topk + c->index_pool - 1;
}

int cairn_config_placeholder(const struct cairn_model_config *c, int64_t id)
{
    for (int i = 0; i < c->placeholders; i++)
        if (c->placeholder[i] == id)
            return 1;
    return 0;
}

/* What the published config.json files of glm_moe_dsa hold, read here or not. */
static const char *const dsa_keys[] = {
    "architectures", "attention_bias", "attention_dropout", "bos_token_id", "dtype", "eos_token_id", "ep_size", "first_k_dense_replace",
    "head_dim", "hidden_act", "hidden_size", "index_head_dim", "index_n_heads", "index_share_for_mtp_iteration", "index_skip_topk_offset",
    "index_topk", "index_topk_freq", "index_topk_pattern", "indexer_rope_interleave", "indexer_types", "initializer_range",
    "intermediate_size", "kv_lora_rank", "latent_norm_eps", "layer_types", "max_position_embeddings", "mlp_bias", "mlp_layer_types",
    "model_type", "moe_intermediate_size", "moe_layer_freq", "moe_router_dtype", "n_group", "n_routed_experts", "n_shared_experts",
    "norm_topk_prob", "num_attention_heads", "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads", "num_nextn_predict_layers",
    "pad_token_id", "pretraining_tp", "q_lora_rank", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "rms_norm_eps",
    "rope_interleave", "rope_parameters", "rope_scaling", "rope_theta", "routed_scaling_factor", "scoring_func", "tie_word_embeddings",
    "topk_group", "topk_method", "torch_dtype", "transformers_version", "use_cache", "v_head_dim", "vocab_size",
};
/* Those of glm5_next: beside text_config, and in it (or at the top where there is none). */
static const char *const flash_top_keys[] = {
    "architectures", "dtype", "image_end_token_id", "image_start_token_id", "image_token_id", "model_type", "text_config",
    "tie_word_embeddings", "torch_dtype", "transformers_version", "video_end_token_id", "video_start_token_id", "video_token_id",
    "vision_config",
};
static const char *const flash_text_keys[] = {
    "architectures", "attention_bias", "attention_dropout", "bos_token_id", "dtype", "eos_token_id", "first_k_dense_replace", "hc_eps",
    "hc_mult", "hc_sinkhorn_iters", "head_dim", "hidden_act", "hidden_size", "index_head_dim", "index_kpool",
    "index_kpool_always_select_tail", "index_kpool_compress", "index_n_heads", "index_share_for_mtp_iteration",
    "index_skip_topk_offset", "index_topk", "index_topk_freq", "index_topk_pattern", "indexer_rope_interleave", "indexer_types",
    "initializer_range", "intermediate_size", "kv_lora_rank", "layer_types", "linear_attn_config", "linear_conv_kernel_dim",
    "linear_head_dim", "linear_lower_bound", "linear_num_heads", "max_position_embeddings", "mhc", "mla_use_nope", "mlp_layer_types",
    "model_type", "moe_intermediate_size", "moe_router_dtype", "n_group", "n_routed_experts", "n_shared_experts", "norm_topk_prob",
    "num_attention_heads", "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads", "num_local_experts",
    "num_nextn_predict_layers", "output_router_logits", "pad_token_id", "q_lora_rank", "qk_head_dim", "qk_nope_head_dim",
    "qk_rope_head_dim", "rms_norm_eps", "routed_scaling_factor", "router_aux_loss_coef", "scoring_func", "swiglu_limit",
    "tie_word_embeddings", "topk_group", "topk_method", "torch_dtype", "transformers_version", "use_cache", "v_head_dim", "vocab_size",
};

static const char *unknown(const json_t *obj, const char *const *known, size_t n, const char **near)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)obj, key, v)
    {
        size_t i = 0;

        while (i < n && strcmp(key, known[i]))
            i++;
        if (i == n) {
            *near = cairn_nearest(key, known, n);
            return key;
        }
    }
    return NULL;
}

#define LIST(a) a, sizeof a / sizeof *a

const char *cairn_config_unknown(const json_t *obj, const char **box, const char **near)
{
    const char *type = json_string_value(json_object_get(obj, "model_type")), *key;
    const json_t *text = json_object_get(obj, "text_config");

    *near = NULL;
    *box = "";
    if (!type || (strcmp(type, "glm5_next") && strcmp(type, "glm5_next_text")))
        return unknown(obj, LIST(dsa_keys), near);
    if (!json_is_object(text))
        return unknown(obj, LIST(flash_text_keys), near);
    if ((key = unknown(obj, LIST(flash_top_keys), near)) != NULL)
        return key;
    *box = "text_config.";
    return unknown(text, LIST(flash_text_keys), near);
}

enum cairn_status cairn_config_load(struct cairn_model_config *c, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_path_join(dir, "config.json");
    json_t *obj = NULL;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_json_load(&obj, path, (size_t)16 << 20, err));
    TRY(cairn_config_parse(c, obj, path, err));
out:
    json_decref(obj);
    free(path);
    return st;
}

void cairn_config_free(struct cairn_model_config *c)
{
    if (!c)
        return;
    json_decref(c->raw);
    c->raw = NULL;
}
