/* policy.c - opens whatever holds a policy, checks that its parts belong together, and fills stores.
 *
 * A policy with an adapter says which base it stands on by digest; a base that is not that one is refused, wherever it was found.
 * Memory: the struct owns configuration, tables and stores. Does not look into runs: the caller names the policy's directory.
 */
#include "model/policy.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/planted.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "model/hf.h"
#include "model/image.h"
#include "model/io.h"
#include "model/peft.h"

/* ---- what an artefact says about itself ----------------------------------------------------------------------------------------------- */

static const json_t *adapter_of(const struct cairn_manifest *m)
{
    const json_t *v = json_object_get(m->content, "adapter");

    return json_is_object(v) ? v : NULL;
}

enum cairn_status cairn_policy_config(struct cairn_model_config *c, const struct cairn_manifest *m, const struct cairn_manifest *base,
                                      const char *where, struct cairn_error *err)
{
    const json_t *v = json_object_get(m->content, "config");

    if (strcmp(m->kind, "base") != 0 && strcmp(m->kind, "policy") != 0)
        return cairn_fail(err, CAIRN_EDATA, "%s: an artefact of kind \"%s\" is no model; a base or a policy is", where, m->kind);
    if (!json_is_object(v) && base)
        v = json_object_get(base->content, "config");
    if (!json_is_object(v))
        return cairn_fail(err, CAIRN_EDATA, "%s: the manifest records no configuration", where);
    return cairn_config_parse(c, v, where, err);
}

/* malloc'ed DIR/../../base, as policies of a run have it. */
static char *beside(const char *dir)
{
    char *real = realpath(dir, NULL), *up = real ? cairn_path_dirname(real) : NULL, *upper = up ? cairn_path_dirname(up) : NULL;
    char *path = upper ? cairn_path_join(upper, "base") : NULL;

    free(real);
    free(up);
    free(upper);
    return path;
}

enum cairn_status cairn_policy_base(struct cairn_reader **out, struct cairn_reader *r, const char *dir, const char *base, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_manifest *m = cairn_reader_manifest(r);
    const char *hex = json_string_value(json_object_get(m->content, "base"));
    const char *recorded = json_string_value(json_object_get(m->info, "base"));
    struct cairn_digest want;
    const struct cairn_reader_expect expect = {.kind = "base"};
    struct cairn_reader *b = NULL;
    char *path = NULL;

    *out = NULL;
    if (strcmp(m->kind, "policy") != 0 || !adapter_of(m))
        return CAIRN_OK;
    if (!hex || !cairn_digest_parse(hex, &want))
        return cairn_fail(err, CAIRN_EDATA, "%s: the manifest does not say which base the adapter stands on", dir);
    path = base ? strdup(base) : beside(dir);
    if (path && !base && !cairn_artefact_committed(path) && recorded) {
        free(path);
        path = strdup(recorded);
    }
    if (!path)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_artefact_committed(path))
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s stands on a base checkpoint that is not at %s; give it with --base", dir, path));
    TRY(cairn_reader_open(&b, path, &expect, err));
    if (!cairn_digest_equal(cairn_reader_manifest(b)->digest, want)) {
        char have[33];

        cairn_digest_hex(cairn_reader_manifest(b)->digest, have);
        TRY(cairn_fail(err, CAIRN_EDATA, "%s stands on base %s, but %s is %s", dir, hex, path, have));
    }
    *out = b;
    b = NULL;
out:
    cairn_reader_close(b);
    free(path);
    return st;
}

/* ---- open ---------------------------------------------------------------------------------------------------------------------------------- */

#define FETCH ((int64_t)1 << 30) /* bytes of an adapter */

static const char *bar(const struct cairn_policy_opts *o)
{
    return o && o->quiet ? NULL : "load weights";
}

static const struct cairn_nodestore_opts *store_of(const struct cairn_policy_opts *o)
{
    return o ? o->store : NULL;
}

static enum cairn_status open_artefact(struct cairn_policy *p, const char *dir, const struct cairn_policy_opts *o, struct cairn_compute *k,
                                       struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_reader *r = NULL, *base = NULL;
    const struct cairn_manifest *m;

    TRY(cairn_reader_open(&r, dir, NULL, err));
    m = cairn_reader_manifest(r);
    TRY(cairn_policy_base(&base, r, dir, o ? o->base : NULL, err));
    TRY(cairn_policy_config(&p->config, m, base ? cairn_reader_manifest(base) : NULL, dir, err));
    TRY(cairn_param_table_create(&p->table, &p->config, err));
    if (base) /* on its way while the base is loaded */
        TRY(cairn_reader_fetch(r, FETCH, err));
    TRY(cairn_image_load(&p->weights, &p->table, base ? base : r, base || strcmp(m->kind, "base") == 0 ? store_of(o) : NULL, k, bar(o), err));
    p->digest = m->digest;
    p->step = m->step;
    p->base = base ? cairn_reader_manifest(base)->digest : strcmp(m->kind, "base") == 0 ? m->digest : (struct cairn_digest){0, 0};
    if (base) {
        TRY(cairn_adapter_from_json(&p->adapter, &p->table, adapter_of(m), dir, err));
        p->lora = 1;
        TRY(cairn_weights_create(&p->adapter_weights, &p->adapter.table, k, err));
        TRY(cairn_load(&p->adapter_weights, r, NULL, k, NULL, err));
    }
out:
    cairn_reader_close(r);
    cairn_reader_close(base);
    return st;
}

static enum cairn_status open_hf(struct cairn_policy *p, const char *dir, const struct cairn_policy_opts *o, struct cairn_compute *k,
                                 struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_hf *h = NULL;

    TRY(cairn_hf_open(&h, dir, err));
    TRY(cairn_config_load(&p->config, dir, err));
    TRY(cairn_param_table_create(&p->table, &p->config, err));
    TRY(cairn_weights_create(&p->weights, &p->table, k, err));
    TRY(cairn_hf_load(h, &p->weights, k, bar(o), err));
out:
    cairn_hf_close(h);
    return st;
}

static enum cairn_status put_adapter(struct cairn_policy *p, const char *dir, struct cairn_compute *k, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_peft *a = NULL;

    TRY(cairn_peft_open(&a, dir, &p->table, &p->config, err));
    cairn_peft_take(a, &p->adapter);
    p->lora = 1;
    TRY(cairn_weights_create(&p->adapter_weights, &p->adapter.table, k, err));
    TRY(cairn_peft_load(a, &p->adapter, &p->adapter_weights, k, err));
out:
    cairn_peft_close(a);
    return st;
}

static int has(const char *dir, const char *name)
{
    char *path = cairn_path_join(dir, name);
    int there = !path || cairn_path_exists(path); /* in doubt: who opens it tells */

    free(path);
    return there;
}

enum cairn_status cairn_policy_open(struct cairn_policy *p, const char *dir, const struct cairn_policy_opts *o, struct cairn_compute *k,
                                    struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    memset(p, 0, sizeof(*p));
    TRY(cairn_dir_expect(dir, err));
    if (o && o->adapter)
        TRY(cairn_dir_expect(o->adapter, err));
    if (has(dir, CAIRN_MANIFEST_NAME))
        TRY(open_artefact(p, dir, o, k, err));
    else if (has(dir, "epoch"))
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: not committed", dir));
    else if (has(dir, "config.json"))
        TRY(open_hf(p, dir, o, k, err));
    else if (has(dir, "adapter_config.json"))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s is an adapter; name the model it stands on, and this with --adapter", dir));
    else if (has(dir, "recipe.yaml"))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s is a run; name one of its policies, for example %s/policy/000000", dir, dir));
    else
        TRY(cairn_fail(err, CAIRN_EDATA, "%s is no model: neither a checkpoint (MANIFEST.json) nor a HuggingFace directory (config.json)", dir));
    if (o && o->adapter && p->lora)
        TRY(cairn_fail(err, CAIRN_EUSAGE, "%s has an adapter already", dir));
    if (o && o->adapter)
        TRY(put_adapter(p, o->adapter, k, err));
out:
    if (st != CAIRN_OK)
        cairn_policy_close(p);
    return st;
}

enum cairn_status cairn_policy_next(struct cairn_policy *p, const char *dir, struct cairn_compute *k, struct cairn_error *err)
{
    return cairn_policy_next_by(p, dir, k, NULL, NULL, err);
}

enum cairn_status cairn_policy_next_by(struct cairn_policy *p, const char *dir, struct cairn_compute *k, cairn_policy_fill_fn *fill, void *arg,
                                       struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_reader *r = NULL;
    const struct cairn_manifest *m;
    struct cairn_adapter a = {0};
    const char *hex;
    struct cairn_digest base;

    if (cairn_planted("sync-not-taken"))
        return CAIRN_OK;
    TRY(cairn_reader_open(&r, dir, NULL, err));
    m = cairn_reader_manifest(r);
    if (strcmp(m->kind, "policy") != 0 || (adapter_of(m) != NULL) != p->lora)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: not a policy of the form that is loaded", dir));
    if (!p->lora) {
        if (!fill || !fill(arg, &p->weights, r))
            TRY(cairn_load(&p->weights, r, NULL, k, NULL, err));
    } else {
        hex = json_string_value(json_object_get(m->content, "base"));
        if (!hex || !cairn_digest_parse(hex, &base) || !cairn_digest_equal(base, p->base))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s stands on another base than the one that is loaded", dir));
        TRY(cairn_adapter_from_json(&a, &p->table, adapter_of(m), dir, err));
        if (a.loras != p->adapter.loras || a.table.count != p->adapter.table.count)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s has an adapter of another form than the one that is loaded", dir));
        for (int i = 0; i < a.loras; i++) {
            const struct cairn_lora *x = &a.lora[i], *y = &p->adapter.lora[i];

            if (x->param != y->param || x->a != y->a || x->b != y->b || x->rank != y->rank || x->gamma != y->gamma)
                TRY(cairn_fail(err, CAIRN_EDATA, "%s has an adapter of another form than the one that is loaded", dir));
        }
        if (!fill || !fill(arg, &p->adapter_weights, r))
            TRY(cairn_load(&p->adapter_weights, r, NULL, k, NULL, err));
    }
    p->digest = m->digest;
    p->step = m->step;
out:
    cairn_adapter_free(&a);
    cairn_reader_close(r);
    return st;
}

void cairn_policy_close(struct cairn_policy *p)
{
    if (!p)
        return;
    cairn_store_free(&p->adapter_weights);
    cairn_adapter_free(&p->adapter);
    cairn_store_free(&p->weights);
    cairn_param_table_free(&p->table);
    cairn_config_free(&p->config);
    memset(p, 0, sizeof(*p));
}

/* ---- a PEFT directory as a policy ------------------------------------------------------------------------------------------------------------ */

struct peft_source { /* a cairn_source over a PEFT directory: the last tensor read is kept, since rows come in pieces */
    struct cairn_peft *peft;
    const struct cairn_adapter *adapter;
    float *x;
    int i;
};

static enum cairn_status read_peft(void *arg, int i, int64_t begin, int64_t n, enum cairn_dtype as, void *h_dst, struct cairn_error *err)
{
    struct peft_source *s = arg;
    const struct cairn_param *p = &s->adapter->table.param[i];
    int64_t count = cairn_param_count(p), row = count / p->dim[0];

    if (as != CAIRN_F32)
        return CAIRN_BUG(err, "adapters are read as f32");
    if (s->i != i) {
        enum cairn_status st;

        s->i = -1;
        free(s->x);
        s->x = malloc((size_t)count * sizeof(*s->x));
        if (!s->x)
            return CAIRN_NOMEM(err);
        st = cairn_peft_read(s->peft, s->adapter, i, s->x, count, err);
        if (st != CAIRN_OK)
            return st;
        s->i = i;
    }
    memcpy(h_dst, s->x + begin * row, (size_t)(n * row) * sizeof(*s->x));
    return CAIRN_OK;
}

static enum cairn_status digest_of(const char *dir, const char *name, struct cairn_digest *d, struct cairn_error *err)
{
    char *path = cairn_path_join(dir, name);
    enum cairn_status st = path ? cairn_digest_file(path, d, NULL, err) : CAIRN_NOMEM(err);

    free(path);
    return st;
}

enum cairn_status cairn_policy_import(const char *dir, const char *peft_dir, const char *base_dir, int *existed, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_reader_expect expect = {.kind = "base"};
    struct cairn_reader *base = NULL;
    struct cairn_model_config c = {0};
    struct cairn_param_table t = {0};
    struct cairn_adapter adapter = {0};
    struct peft_source from = {.i = -1};
    struct cairn_source src = {.table = &adapter.table, .read = read_peft, .arg = &from};
    struct cairn_manifest *m = cairn_manifest_create("policy", 0, ""), *old = NULL;
    struct cairn_attempt_opts ao = {.lane = NULL};
    struct cairn_attempt *a = NULL;
    struct cairn_digest d;
    struct cairn_digest id;
    char hex[33], *real = realpath(base_dir, NULL);
    enum cairn_dtype dtype;

    *existed = 0;
    TRY(cairn_dir_expect(base_dir, err));
    if (!m || !real)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_reader_open(&base, base_dir, &expect, err));
    TRY(cairn_policy_config(&c, cairn_reader_manifest(base), NULL, base_dir, err));
    TRY(cairn_param_table_create(&t, &c, err));
    TRY(cairn_peft_open(&from.peft, peft_dir, &t, &c, err));
    cairn_peft_take(from.peft, &adapter);
    from.adapter = &adapter;
    dtype = cairn_peft_dtype(from.peft);
    TRY(digest_of(peft_dir, "adapter_config.json", &d, err));
    TRY(cairn_manifest_add_input(m, "file:adapter_config.json", d, err));
    TRY(digest_of(peft_dir, "adapter_model.safetensors", &d, err));
    TRY(cairn_manifest_add_input(m, "file:adapter_model.safetensors", d, err));
    TRY(cairn_manifest_add_input(m, "base", cairn_reader_manifest(base)->digest, err));
    id = cairn_manifest_identity(m);
    if (cairn_artefact_committed(dir)) {
        TRY(cairn_manifest_load(&old, dir, err));
        if (!cairn_digest_equal(cairn_manifest_identity(old), id))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s holds another checkpoint already", dir));
        TRY(cairn_artefact_settle(dir, err));
        *existed = 1;
        goto out;
    }
    cairn_digest_hex(cairn_reader_manifest(base)->digest, hex);
    if (json_object_set_new(m->content, "base", json_string(hex)) || json_object_set_new(m->content, "dtype", json_string(cairn_dtype_name(dtype))) ||
        json_object_set_new(m->content, "adapter", cairn_adapter_to_json(&adapter, &t)) || json_object_set_new(m->info, "base", json_string(real)))
        TRY(CAIRN_NOMEM(err));
    ao.identity = id;
    cairn_digest_hex(id, hex);
    TRY(cairn_attempt_begin(&a, dir, &ao, err));
    {
        const struct cairn_save_opts so = {.stem = "weights", .dtype = dtype, .identity = hex};

        src.table = &adapter.table;
        TRY(cairn_save(&src, a, m, &so, err));
    }
    TRY(cairn_attempt_commit(a, m, err));
out:
    cairn_attempt_end(a);
    cairn_manifest_destroy(m);
    cairn_manifest_destroy(old);
    cairn_peft_close(from.peft);
    free(from.x);
    cairn_adapter_free(&adapter);
    cairn_param_table_free(&t);
    cairn_config_free(&c);
    cairn_reader_close(base);
    free(real);
    return st;
}
