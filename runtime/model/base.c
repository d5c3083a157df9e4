/* base.c - makes base artefacts, from a HuggingFace directory or at random, and finds the small files that came with one.
 *
 * Small files lie beside the manifest under their own names, so that people and other programs find them; the manifest's content holds
 * their sizes and digests, and nobody here uses one without looking. They are written before the commit, which is the last act.
 * "The same source again" is told by path, sizes and times of its files; where those differ, by the digest of every tensor: a
 * source that was copied elsewhere or touched is still the same.
 */
#include "model/base.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "model/io.h"
#include "model/passed.h"

#define SMALL_MAX ((size_t)256 << 20)

static const char *const small_files[] = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                          "chat_template.jinja", "chat_template.json", "special_tokens_map.json", "added_tokens.json",
                                          "vocab.json", "merges.txt", "preprocessor_config.json", "LICENSE"};

/* ---- small files ------------------------------------------------------------------------------------------------------------------- */

static json_t *file_record(const char *bytes, size_t n)
{
    char hex[33];

    cairn_digest_hex(cairn_digest_bytes(bytes, n), hex);
    return json_pack("{s:I, s:s}", "size", (json_int_t)n, "digest", hex);
}

/* Writes bytes as dir/name and notes them. */
static enum cairn_status keep_file(const char *dir, const char *name, const char *bytes, size_t n, json_t *files, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_path_join(dir, name);

    if (!path || json_object_set_new(files, name, file_record(bytes, n)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_file_replace(path, bytes, n, err));
out:
    free(path);
    return st;
}

/* config.json as it goes on: as it was; of an FP8 source without quantization_config, since the weights are BF16 from here on. */
static enum cairn_status config_text(const struct cairn_hf *h, const char *bytes, size_t n, struct cairn_str *out, struct cairn_error *err)
{
    json_t *o;

    if (!json_object_get(h->config.raw, "quantization_config")) {
        cairn_str_add(out, bytes, n);
    } else {
        o = json_deep_copy(h->config.raw);
        if (!o)
            return CAIRN_NOMEM(err);
        json_object_del(o, "quantization_config");
        cairn_json_pretty(out, o);
        cairn_str_putc(out, '\n');
        json_decref(o);
    }
    return out->oom ? CAIRN_NOMEM(err) : CAIRN_OK;
}

/* Copies the small files that are there (dir NULL: only their records). */
static enum cairn_status small_from(const char *dir, const struct cairn_hf *h, json_t *files, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = NULL, *bytes = NULL;
    struct cairn_str config = {0};

    for (size_t i = 0; i < sizeof(small_files) / sizeof(*small_files); i++) {
        size_t n = 0;
        const char *data;

        free(path);
        free(bytes);
        bytes = NULL;
        path = cairn_path_join(h->dir, small_files[i]);
        if (!path)
            TRY(CAIRN_NOMEM(err));
        if (cairn_file_size(path) < 0)
            continue;
        TRY(cairn_file_read(path, SMALL_MAX, &bytes, &n, err));
        data = bytes;
        if (i == 0) {
            TRY(config_text(h, bytes, n, &config, err));
            data = cairn_str_z(&config);
            n = config.len;
        }
        if (dir)
            TRY(keep_file(dir, small_files[i], data, n, files, err));
        else if (json_object_set_new(files, small_files[i], file_record(data, n)))
            TRY(CAIRN_NOMEM(err));
    }
out:
    cairn_str_free(&config);
    free(path);
    free(bytes);
    return st;
}

enum cairn_status cairn_base_file(const char *dir, const struct cairn_manifest *m, const char *name, char **out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const json_t *rec = json_object_get(json_object_get(m->content, "files"), name);
    const char *hex = json_string_value(json_object_get(rec, "digest"));
    struct cairn_digest want, have;
    char *path = NULL;

    if (!rec || !cairn_name_ok(name))
        return cairn_fail(err, CAIRN_ENOINPUT, "%s: no %s came with this checkpoint", dir, name);
    if (!hex || !cairn_digest_parse(hex, &want))
        return cairn_fail(err, CAIRN_EDATA, "%s: the record of %s is damaged", dir, name);
    path = cairn_path_join(dir, name);
    if (!path)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_digest_file(path, &have, NULL, err));
    if (!cairn_digest_equal(want, have))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s has changed since the checkpoint was made", path));
    *out = path;
    path = NULL;
out:
    free(path);
    return st;
}

/* ---- the source ---------------------------------------------------------------------------------------------------------------------- */

/* {"path", "files": [{"name", "size", "mtime_ns"}]} */
static json_t *describe_source(const struct cairn_hf *h)
{
    char *real = realpath(h->dir, NULL);
    json_t *files = json_array(), *o = json_object();
    int bad = !real || !files || !o || json_object_set_new(o, "path", json_string(real ? real : ""));

    for (int i = 0; i < cairn_st_files(h->st) && !bad; i++) {
        const char *path = cairn_st_file(h->st, i);
        struct stat s;

        bad = stat(path, &s) != 0 ||
              json_array_append_new(files, json_pack("{s:s, s:I, s:I}", "name", cairn_path_basename(path), "size", (json_int_t)s.st_size,
                                                     "mtime_ns", (json_int_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec));
    }
    bad = bad || json_object_set(o, "files", files);
    free(real);
    json_decref(files);
    if (bad) {
        json_decref(o);
        return NULL;
    }
    return o;
}

/* XXH3-128 of every tensor's name, type, shape and place, the configuration and the options: what an import of it must contain. */
static struct cairn_digest source_digest(const struct cairn_hf *h, const struct cairn_base_opts *opts)
{
    struct cairn_str s = {0};
    struct cairn_digest d;

    cairn_json_canonical(&s, h->config.raw);
    for (int i = 0; i < cairn_st_count(h->st); i++) {
        const struct cairn_st_tensor *t = cairn_st_at(h->st, i);

        cairn_str_printf(&s, "\n%s %s %s %lld", t->name, t->word, cairn_path_basename(cairn_st_file(h->st, t->file)), (long long)t->at);
        for (int k = 0; k < t->ndim; k++)
            cairn_str_printf(&s, " %lld", (long long)t->shape[k]);
    }
    cairn_str_printf(&s, "\n%d", opts->self_contained);
    d = cairn_digest_bytes(cairn_str_z(&s), s.len);
    cairn_str_free(&s);
    return d;
}

static enum cairn_status read_hf(void *arg, int i, int64_t begin, int64_t n, enum cairn_dtype as, void *h_dst, struct cairn_error *err)
{
    return cairn_hf_read(arg, i, begin, n, as, h_dst, err);
}

/* ---- "it is there already" -------------------------------------------------------------------------------------------------------------- */

/* Digest of parameter i of the source, read whole, as it would be in the artefact. */
static enum cairn_status param_digest(struct cairn_hf *h, int i, struct cairn_digest *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param *p = &h->table.param[i];
    enum cairn_dtype dtype = h->param[i].dtype;
    struct cairn_slice s = cairn_slice_whole(p->name, dtype, p->ndim, p->dim);
    char each[288];
    void *x = malloc((size_t)cairn_param_count(p) * cairn_dtype_size(dtype));

    if (!x)
        TRY(CAIRN_NOMEM(err));
    if (p->experts && cairn_expert_name(p->name, -1, each, sizeof(each)))
        s.each = each;
    TRY(cairn_hf_read(h, i, 0, p->dim[0], dtype, x, err));
    TRY(cairn_tensor_digest(&s, x, out, err));
out:
    free(x);
    return st;
}

static enum cairn_status compare(const char *dir, const struct cairn_manifest *m, struct cairn_hf *h, const struct cairn_base_opts *opts,
                                 struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *source = describe_source(h), *files = json_object();
    struct cairn_progress *bar = NULL;
    int64_t done = 0;
    int contained = json_is_true(json_object_get(m->content, "self_contained"));

    if (!source || !files)
        TRY(CAIRN_NOMEM(err));
    if (strcmp(m->kind, "base") != 0)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s holds an artefact of kind %s already", dir, m->kind));
    if (opts->self_contained && !contained)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s was imported without --self-contained; import into another directory", dir));
    TRY(small_from(NULL, h, files, err));
    if (!json_equal(files, json_object_get(m->content, "files")))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s holds another import: configuration or tokenizer of %s differ from its", dir, h->dir));
    if (json_equal(source, json_object_get(m->info, "source")))
        goto out;
    bar = cairn_progress_begin("compare with what is there", "parameters", h->table.elements, 10);
    for (int i = 0; i < h->table.count; i++) {
        const struct cairn_tensor_entry *e = cairn_manifest_find(m, h->table.param[i].name);
        struct cairn_digest d;

        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped while comparing %s with %s", h->dir, dir));
        TRY(param_digest(h, i, &d, err));
        if (!e || !cairn_digest_equal(d, e->digest))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s holds another import: %s differs from that of %s", dir, h->table.param[i].name, h->dir));
        done += cairn_param_count(&h->table.param[i]);
        cairn_progress_at(bar, done);
    }
    TRY(cairn_passed_same(h, json_object_get(m->content, "passed"), dir, err));
out:
    cairn_progress_end(bar);
    json_decref(source);
    json_decref(files);
    return st;
}

/* ---- import ------------------------------------------------------------------------------------------------------------------------------ */

/* Layers whose experts lie fused in the source, so that export gives the same names back. */
static json_t *fused_layers(const struct cairn_hf *h)
{
    json_t *l = json_array();

    for (int i = 0; i < h->table.count && l; i++) {
        const struct cairn_param *p = &h->table.param[i];
        int down = cairn_ends_with(p->name, "down_proj.weight");

        if (h->param[i].form == CAIRN_HF_FUSED && !cairn_ends_with(p->name, ".up_proj.weight") &&
            json_array_append_new(l, json_pack("[i, s]", p->layer, down ? "down_proj" : "gate_up_proj"))) {
            json_decref(l);
            l = NULL;
        }
    }
    return l;
}

static enum cairn_status import_into(const char *dir, struct cairn_hf *h, const struct cairn_base_opts *opts, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest *m = cairn_manifest_create("base", 0, "");
    struct cairn_attempt *a = NULL;
    struct cairn_attempt_opts ao = {.lane = NULL};
    struct cairn_source src = {.table = &h->table, .read = read_hf, .arg = h};
    enum cairn_dtype *each = calloc((size_t)h->table.count + 1, sizeof(*each));
    json_t *source = describe_source(h), *files = json_object(), *passed = NULL, *config;
    struct cairn_digest d = source_digest(h, opts);
    struct cairn_str id = {0};
    char hex[33];

    if (!m || !each || !source || !files)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < h->table.count; i++)
        each[i] = h->param[i].dtype;
    TRY(cairn_manifest_add_input(m, "file:source", d, err));
    ao.identity = cairn_manifest_identity(m);
    cairn_digest_hex(d, hex);
    cairn_str_printf(&id, "%s ", hex);
    cairn_json_canonical(&id, source);
    cairn_digest_hex(cairn_digest_bytes(cairn_str_z(&id), id.len), hex); /* finished shards are adopted if the source did not change */
    TRY(cairn_attempt_begin(&a, dir, &ao, err));
    {
        const struct cairn_save_opts so = {.stem = "weights", .each = each, .max_bytes = opts->shard_bytes, .identity = hex, .what = "import"};

        TRY(cairn_save(&src, a, m, &so, err));
    }
    TRY(cairn_passed_save(h, opts->self_contained, opts->shard_bytes, hex, a, m, &passed, err));
    TRY(small_from(dir, h, files, err));
    config = json_deep_copy(h->config.raw);
    if (config)
        json_object_del(config, "quantization_config");
    if (json_object_set_new(m->content, "config", config) || json_object_set(m->content, "files", files) ||
        json_object_set_new(m->content, "fused", fused_layers(h)) || json_object_set(m->content, "passed", passed) ||
        json_object_set_new(m->content, "self_contained", json_boolean(opts->self_contained)) ||
        json_object_set(m->info, "source", source))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_attempt_commit(a, m, err));
out:
    cairn_attempt_end(a);
    cairn_manifest_destroy(m);
    json_decref(source);
    json_decref(files);
    json_decref(passed);
    cairn_str_free(&id);
    free(each);
    return st;
}

enum cairn_status cairn_base_import(const char *dir, struct cairn_hf *h, const struct cairn_base_opts *opts, int *existed,
                                    struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest *m = NULL;

    if (existed)
        *existed = 0;
    if (opts->tokenizer_ids > h->config.vocab)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: the tokenizer has %lld ids, but the embedding has %lld rows (vocab_size)", h->dir,
                       (long long)opts->tokenizer_ids, (long long)h->config.vocab));
    if (cairn_artefact_committed(dir)) {
        TRY(cairn_manifest_load(&m, dir, err));
        TRY(compare(dir, m, h, opts, err));
        TRY(cairn_artefact_settle(dir, err));
        if (existed)
            *existed = 1;
        goto out;
    }
    TRY(import_into(dir, h, opts, err));
out:
    cairn_manifest_destroy(m);
    return st;
}

/* ---- random weights ------------------------------------------------------------------------------------------------------------------------ */

/* The members that every reader of config.json wants. */
static json_t *complete_config(const json_t *config, enum cairn_dtype dtype)
{
    static const char *const words[CAIRN_DTYPES] = {[CAIRN_F32] = "float32", [CAIRN_BF16] = "bfloat16", [CAIRN_F16] = "float16"};
    json_t *o = json_deep_copy(config);
    int bad = !o;

    if (!bad && !json_object_get(o, "model_type"))
        bad = json_object_set_new(o, "model_type", json_string("glm_moe_dsa"));
    if (!bad && !json_object_get(o, "architectures"))
        bad = json_object_set_new(o, "architectures", json_pack("[s]", "GlmMoeDsaForCausalLM"));
    if (!bad && words[dtype])
        bad = json_object_set_new(o, "dtype", json_string(words[dtype]));
    if (bad) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static enum cairn_status init_into(const char *dir, const struct cairn_base_init_opts *o, const json_t *config, struct cairn_manifest *m,
                                   const struct cairn_model_config *c, struct cairn_compute *k, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_param_table table = {0};
    struct cairn_store store = {0};
    struct cairn_store_source from = {&store, k};
    struct cairn_source src;
    struct cairn_attempt *a = NULL;
    struct cairn_attempt_opts ao = {.identity = cairn_manifest_identity(m)};
    char identity[64], hex[33], *bytes = NULL;
    struct cairn_str text = {0};
    json_t *files = json_object();
    size_t n = 0;

    cairn_digest_hex(ao.identity, hex);
    snprintf(identity, sizeof(identity), "init %s", hex);
    cairn_json_pretty(&text, config);
    cairn_str_putc(&text, '\n');
    if (!files || text.oom)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_param_table_create(&table, c, err));
    TRY(cairn_store_create(&store, &table, k->dev, 0, err));
    TRY(cairn_store_init(&store, c, o->seed, k, err));
    TRY(cairn_attempt_begin(&a, dir, &ao, err));
    src = cairn_source_store(&from);
    {
        const struct cairn_save_opts so = {.stem = "weights", .dtype = o->dtype, .identity = identity};

        TRY(cairn_save(&src, a, m, &so, err));
    }
    TRY(keep_file(dir, "config.json", cairn_str_z(&text), text.len, files, err));
    if (o->tokenizer) {
        TRY(cairn_file_read(o->tokenizer, SMALL_MAX, &bytes, &n, err));
        TRY(keep_file(dir, "tokenizer.json", bytes, n, files, err));
    }
    if (json_object_set_new(m->content, "config", json_deep_copy(config)) || json_object_set(m->content, "files", files) ||
        json_object_set_new(m->content, "fused", json_array()) || json_object_set_new(m->content, "passed", json_array()) ||
        json_object_set_new(m->content, "self_contained", json_true()) ||
        json_object_set_new(m->info, "init_seed", json_integer((json_int_t)o->seed)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_attempt_commit(a, m, err));
out:
    cairn_attempt_end(a);
    cairn_store_free(&store);
    cairn_param_table_free(&table);
    cairn_str_free(&text);
    json_decref(files);
    free(bytes);
    return st;
}

enum cairn_status cairn_base_init(const char *dir, const struct cairn_base_init_opts *o, struct cairn_compute *k, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_model_config c = {0};
    struct cairn_manifest *m = NULL;
    json_t *config = NULL;
    struct cairn_str id = {0};

    if (cairn_artefact_committed(dir))
        return cairn_artefact_settle(dir, err);
    config = complete_config(o->config, o->dtype);
    m = cairn_manifest_create("base", 0, o->run ? o->run : "");
    if (!config || !m)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_config_parse(&c, config, "model.init", err));
    if (o->recipe)
        m->recipe = *o->recipe;
    cairn_json_canonical(&id, config);
    cairn_str_printf(&id, "\n%llu %s", (unsigned long long)o->seed, cairn_dtype_name(o->dtype));
    if (id.oom)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_manifest_add_input(m, "file:init", cairn_digest_bytes(id.p, id.len), err));
    TRY(init_into(dir, o, config, m, &c, k, err));
out:
    cairn_config_free(&c);
    cairn_manifest_destroy(m);
    json_decref(config);
    cairn_str_free(&id);
    return st;
}
