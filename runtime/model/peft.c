/* peft.c - reads PEFT adapters: configuration and tensor names to a list of adapted layers, then the tensors into a store.
 *
 * The tensors say which layers are adapted (peft_sites.c); the configuration says how (rank, alpha) and is held against them
 * (peft_config.c). Writing is in peft_save.c. Memory: one table of sites, one layer's tensors at a time.
 */
#include "model/peft_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "model/hf.h"
#include "model/values.h"

static enum cairn_status make_adapter(struct cairn_peft *p, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_lora_choice *list = calloc((size_t)p->sites + 1, sizeof(*list));

    if (!list)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < p->sites; i++)
        list[i] = (struct cairn_lora_choice){p->site[i].param, p->site[i].rank, p->site[i].gamma, p->site[i].alias};
    TRY(cairn_adapter_create_from(&p->adapter, p->base, list, p->sites, err));
    p->adapter.peft = json_incref(p->config);
out:
    free(list);
    return st;
}

enum cairn_status cairn_peft_open(struct cairn_peft **out, const char *dir, const struct cairn_param_table *base,
                                  const struct cairn_model_config *c, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_peft *p = calloc(1, sizeof(*p));

    if (!p || !(p->dir = strdup(dir)) || !(p->where = cairn_path_join(dir, "adapter_config.json")))
        TRY(CAIRN_NOMEM(err));
    p->base = base;
    p->c = c;
    TRY(cairn_json_load(&p->config, p->where, (size_t)16 << 20, err));
    if (!json_is_object(p->config))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: expected an object", p->where));
    TRY(cairn_peft_check_config(p, err));
    TRY(cairn_st_open(&p->st, dir, err));
    TRY(cairn_peft_find_sites(p, err));
    TRY(cairn_peft_check_targets(p, err));
    TRY(cairn_peft_find_aliases(p, err));
    TRY(make_adapter(p, err));
    *out = p;
    p = NULL;
out:
    cairn_peft_close(p);
    return st;
}

void cairn_peft_close(struct cairn_peft *p)
{
    if (!p)
        return;
    cairn_st_close(p->st);
    json_decref(p->config);
    if (!p->taken)
        cairn_adapter_free(&p->adapter);
    free(p->site);
    free(p->where);
    free(p->dir);
    free(p);
}

void cairn_peft_take(struct cairn_peft *p, struct cairn_adapter *a)
{
    *a = p->adapter;
    p->taken = 1;
    memset(&p->adapter, 0, sizeof(p->adapter));
}

enum cairn_dtype cairn_peft_dtype(const struct cairn_peft *p)
{
    int t = cairn_st_at(p->st, 0)->dtype;

    for (int i = 1; i < cairn_st_count(p->st); i++)
        if (cairn_st_at(p->st, i)->dtype != t)
            return CAIRN_F32;
    return (enum cairn_dtype)t;
}

/* Half `which` of a site, in the adapter table's form, dense f32 of n elements. */
static enum cairn_status read_half(struct cairn_peft *p, const struct cairn_peft_site *s, char which, float *x, int64_t n,
                                   struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param *q = &p->base->param[s->param];
    int64_t E = q->experts ? q->dim[0] : 1, out = q->dim[q->ndim - 2], r = s->rank;
    const struct cairn_st_tensor *t;
    float *b = NULL;

    if (s->form == CAIRN_PEFT_SITE_EXPERTS) {
        for (int64_t e = 0; e < E; e++) {
            char module[CAIRN_NAME_BYTES];

            cairn_expert_name(s->module, e, module, sizeof(module));
            t = cairn_peft_half(p, module, which);
            TRY(cairn_st_read_as(p->st, t, 0, t->count, CAIRN_F32, x + e * (n / E), err));
        }
        goto out;
    }
    t = cairn_peft_half(p, s->module, which);
    if (s->form == CAIRN_PEFT_SITE_PLAIN || which == 'A') { /* A of fused experts: row e*r + i, which is (E, r, in) */
        TRY(cairn_st_read_as(p->st, t, 0, t->count, CAIRN_F32, x, err));
        goto out;
    }
    b = malloc((size_t)(out * r * E) * sizeof(*b)); /* B of fused experts: column i*E + e */
    if (!b)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_st_read_as(p->st, t, s->row * r * E, out * r * E, CAIRN_F32, b, err));
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < r; i++)
            for (int64_t e = 0; e < E; e++)
                x[(e * out + o) * r + i] = b[(o * r + i) * E + e];
out:
    free(b);
    return st;
}

enum cairn_status cairn_peft_read(struct cairn_peft *p, const struct cairn_adapter *a, int i, float *h_dst, int64_t n,
                                  struct cairn_error *err)
{
    if (a->loras != p->sites)
        return CAIRN_BUG(err, "another adapter");
    for (int j = 0; j < p->sites; j++) { /* an A that is shared is read with its first user */
        if (a->lora[j].a == i)
            return read_half(p, &p->site[j], 'A', h_dst, n, err);
        if (a->lora[j].b == i)
            return read_half(p, &p->site[j], 'B', h_dst, n, err);
    }
    return CAIRN_BUG(err, "no such tensor in the adapter");
}

enum cairn_status cairn_peft_load(struct cairn_peft *p, const struct cairn_adapter *a, struct cairn_store *s,
                                  struct cairn_compute *k, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    float *x = NULL;

    if (s->table->count != a->table.count)
        TRY(CAIRN_BUG(err, "the store is of another adapter"));
    for (int i = 0; i < a->table.count; i++) {
        int64_t n = cairn_param_count(&a->table.param[i]);

        free(x);
        x = malloc((size_t)n * sizeof(*x));
        if (!x)
            TRY(CAIRN_NOMEM(err));
        TRY(cairn_peft_read(p, a, i, x, n, err));
        TRY(cairn_values_set(k, &s->tensor[i], x, n, err));
    }
    TRY(cairn_stream_wait(&k->stream, err));
out:
    free(x);
    return st;
}
