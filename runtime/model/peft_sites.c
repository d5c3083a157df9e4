/* peft_sites.c - the tensors of a PEFT adapter as a list of adapted layers.
 *
 * The tensors say which layers are adapted; each must fit its layer, and have its other half. Experts' layouts are told apart by
 * names and, for the fused one, by shapes (spec/model.md, 16.2). When the single experts' A of gate and up have equal bits
 * throughout, they are one matrix again, as they were before a per-expert file was written from it.
 */
#include "model/peft_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "model/hf.h"

#define NAME_BYTES CAIRN_NAME_BYTES

const struct cairn_st_tensor *cairn_peft_half(const struct cairn_peft *p, const char *module, char which)
{
    char name[NAME_BYTES + 64], other[NAME_BYTES];
    const struct cairn_st_tensor *t;

    snprintf(name, sizeof(name), CAIRN_PEFT_PREFIX "%s.lora_%c.weight", module, which);
    t = cairn_st_find(p->st, name);
    for (int i = 0; !t && cairn_name_other(p->c, module, i, other); i++) {
        snprintf(name, sizeof(name), CAIRN_PEFT_PREFIX "%s.lora_%c.weight", other, which);
        t = cairn_st_find(p->st, name);
    }
    return t;
}

/* Both halves of a module, two dimensions, float, of one rank: A (r, in), B (out, r). */
static enum cairn_status pair(const struct cairn_peft *p, const char *module, const struct cairn_st_tensor **a,
                              const struct cairn_st_tensor **b, struct cairn_error *err)
{
    const struct cairn_st_tensor *t[2] = {cairn_peft_half(p, module, 'A'), cairn_peft_half(p, module, 'B')};

    for (int i = 0; i < 2; i++) {
        if (!t[i])
            return cairn_fail(err, CAIRN_EDATA, "%s: no tensor " CAIRN_PEFT_PREFIX "%s.lora_%c.weight", p->dir, module, 'A' + i);
        if (t[i]->ndim != 2)
            return cairn_fail(err, CAIRN_EDATA, "%s: %s has %d dimensions, expected 2", p->dir, t[i]->name, t[i]->ndim);
        if (t[i]->dtype != CAIRN_F32 && t[i]->dtype != CAIRN_BF16 && t[i]->dtype != CAIRN_F16)
            return cairn_fail(err, CAIRN_EDATA, "%s: %s is %s; adapters may be F32, BF16 or F16", p->dir, t[i]->name, t[i]->word);
    }
    *a = t[0];
    *b = t[1];
    if (t[0]->shape[0] != t[1]->shape[1] || t[0]->shape[0] < 1)
        return cairn_fail(err, CAIRN_EDATA, "%s: %s has %lld rows, but B has %lld columns: no common rank", p->dir, t[0]->name,
                          (long long)t[0]->shape[0], (long long)t[1]->shape[1]);
    return CAIRN_OK;
}

static int find_module(const struct cairn_param_table *t, const char *module)
{
    char name[NAME_BYTES + 48];

    snprintf(name, sizeof(name), "%s.weight", module);
    return cairn_param_find(t, name);
}

static enum cairn_status misfit(const struct cairn_peft *p, const char *module, const struct cairn_st_tensor *a,
                                const struct cairn_st_tensor *b, int64_t out, int64_t in, struct cairn_error *err)
{
    return cairn_fail(err, CAIRN_EDATA, "%s: %s: A is (%lld,%lld) and B (%lld,%lld), the layer is (%lld,%lld)", p->dir, module,
                      (long long)a->shape[0], (long long)a->shape[1], (long long)b->shape[0], (long long)b->shape[1],
                      (long long)out, (long long)in);
}

static enum cairn_status add_site(struct cairn_peft *p, const struct cairn_peft_site *s, struct cairn_error *err)
{
    struct cairn_peft_site *grown = realloc(p->site, (size_t)(p->sites + 1) * sizeof(*grown));

    if (!grown)
        return CAIRN_NOMEM(err);
    p->site = grown;
    p->site[p->sites++] = *s;
    return CAIRN_OK;
}

static enum cairn_status add_plain(struct cairn_peft *p, int param, const char *module, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param *q = &p->base->param[param];
    const struct cairn_st_tensor *a, *b;
    struct cairn_peft_site s = {.param = param, .form = CAIRN_PEFT_SITE_PLAIN, .alias = -1};

    if (!q->adaptable)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: adapter on %s: router, indexer, embedding and head cannot have one", p->dir, module));
    TRY(pair(p, module, &a, &b, err));
    if (a->shape[1] != q->dim[1] || b->shape[0] != q->dim[0])
        TRY(misfit(p, module, a, b, q->dim[0], q->dim[1], err));
    snprintf(s.module, sizeof(s.module), "%s", module);
    TRY(cairn_peft_scale(p, &s, cairn_peft_by_parameter(p, q->name) ? q->name : module, a->shape[0], err));
    TRY(add_site(p, &s, err));
out:
    return st;
}

/* All experts of one projection; called for expert 0. */
static enum cairn_status add_experts(struct cairn_peft *p, int param, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param *q = &p->base->param[param];
    struct cairn_peft_site s = {.param = param, .form = CAIRN_PEFT_SITE_EXPERTS, .alias = -1}, one = s;

    snprintf(s.module, sizeof(s.module), "%.*s", (int)(strlen(q->name) - strlen(".weight")), q->name);
    for (int64_t e = 0; e < q->dim[0]; e++) {
        const struct cairn_st_tensor *a, *b;
        char module[NAME_BYTES];

        cairn_expert_name(s.module, e, module, sizeof(module));
        TRY(pair(p, module, &a, &b, err));
        if (a->shape[1] != q->dim[2] || b->shape[0] != q->dim[1])
            TRY(misfit(p, module, a, b, q->dim[1], q->dim[2], err));
        TRY(cairn_peft_scale(p, &one, module, a->shape[0], err));
        if (e == 0) {
            s.rank = one.rank;
            s.gamma = one.gamma;
        } else if (one.rank != s.rank || one.gamma != s.gamma) {
            TRY(cairn_fail(err, CAIRN_EDATA,
                           "%s: %s: rank or alpha differ from expert 0's; they must be the same for all experts of a "
                           "projection",
                           p->where, module));
        }
    }
    TRY(add_site(p, &s, err));
out:
    return st;
}

/* ---- fused experts ---------------------------------------------------------------------------------------------------------- */

/* What a pair under "...experts" or "...experts.base_layer" can be, by shapes: bit 0 gate_up, 1 down, 2 gate_up transposed,
 * 3 down transposed (peft <= 0.18). */
static int meanings(const struct cairn_model_config *c, const struct cairn_st_tensor *a, const struct cairn_st_tensor *b)
{
    int64_t D = c->width, F = c->expert_width, in = a->shape[1], out = b->shape[0];

    return (in == D && out == 2 * F) | (in == F && out == D) << 1 | (in == 2 * F && out == D) << 2 | (in == D && out == F) << 3;
}

static enum cairn_status add_fused_part(struct cairn_peft *p, const char *module, const char *target, int param, int alias,
                                        int64_t row, int64_t rows, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_peft_site s = {.param = param, .form = CAIRN_PEFT_SITE_FUSED, .alias = alias, .row = row};

    snprintf(s.module, sizeof(s.module), "%s", module);
    if (rows % p->c->experts)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s: A has %lld rows, which is no multiple of %d experts", p->dir, module,
                       (long long)rows, p->c->experts));
    TRY(cairn_peft_scale(p, &s, target, rows / p->c->experts, err));
    TRY(add_site(p, &s, err));
out:
    return st;
}

/* module: ".../experts" or ".../experts.base_layer" of `layer`. */
static enum cairn_status add_fused(struct cairn_peft *p, const char *module, int layer, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_st_tensor *a, *b;
    char stem[NAME_BYTES], name[NAME_BYTES + 32], target[NAME_BYTES + 32];
    int inner = cairn_ends_with(module, ".base_layer"), both, can, gate, up, down;

    cairn_name_of_layer(p->c, layer, "mlp.experts", stem);
    snprintf(name, sizeof(name), "%s.gate_proj", stem);
    gate = find_module(p->base, name);
    snprintf(name, sizeof(name), "%s.up_proj", stem);
    up = find_module(p->base, name);
    snprintf(name, sizeof(name), "%s.down_proj", stem);
    down = find_module(p->base, name);
    if (gate < 0 || up < 0 || down < 0)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: adapter on %s, but layer %d has no experts", p->dir, module, layer));
    TRY(pair(p, module, &a, &b, err));
    snprintf(name, sizeof(name), "%s.base_layer", stem);
    both = cairn_peft_half(p, name, 'A') != NULL;
    can = meanings(p->c, a, b);
    if (both) /* wrapped first: inner */
        can &= inner ? 1 | 4 : 2 | 8;
    if (!can)
        TRY(cairn_fail(err, CAIRN_EDATA,
                       "%s: %s: A (%lld,%lld) and B (%lld,%lld) fit neither gate_up_proj nor down_proj of %d experts", p->dir,
                       module, (long long)a->shape[0], (long long)a->shape[1], (long long)b->shape[0], (long long)b->shape[1],
                       p->c->experts));
    if ((can & 3) && (can & 12)) { /* square enough for both: the version decides */
        if (cairn_peft_version(p) < 0)
            TRY(cairn_fail(err, CAIRN_EDATA,
                           "%s: %s: the shapes do not tell which way round the matrices are, and \"peft_version\" is "
                           "missing",
                           p->where, module));
        can &= cairn_peft_version(p) >= 19 ? 3 : 12;
    }
    if (!(can & 3))
        TRY(cairn_fail(err, CAIRN_EDATA,
                       "%s: %s has experts the way round that peft 0.18 and older wrote them; convert it with peft 0.19 "
                       "or newer",
                       p->dir, module));
    if ((can & 3) == 3) { /* only with 2F = D = F, which no size can be */
        st = CAIRN_BUG(err, "an expert matrix is both gate_up and down");
        goto out;
    }
    if (can & 1) {
        snprintf(target, sizeof(target), "%s.gate_up_proj", stem);
        TRY(add_fused_part(p, module, target, gate, -1, 0, a->shape[0], err));
        TRY(add_fused_part(p, module, target, up, gate, p->c->expert_width, a->shape[0], err));
    } else {
        snprintf(target, sizeof(target), "%s.down_proj", stem);
        TRY(add_fused_part(p, module, target, down, -1, 0, a->shape[0], err));
    }
out:
    return st;
}

/* ---- all tensors ---------------------------------------------------------------------------------------------------------- */

static enum cairn_status unknown(const struct cairn_peft *p, const char *name, struct cairn_error *err)
{
    return cairn_fail(err, CAIRN_EDATA, "%s: tensor %s is no LoRA matrix of a layer of this model", p->dir, name);
}

/* Takes in the tensor, once for each module: at its A, and at expert 0; the rest is looked up from there. */
static enum cairn_status take_tensor(struct cairn_peft *p, const char *name, struct cairn_error *err)
{
    static const char mark[] = ".mlp.experts";
    char module[NAME_BYTES], stack[NAME_BYTES], again[NAME_BYTES];
    const char *at, *rest = NULL;
    size_t n = strlen(name), head = strlen(CAIRN_PEFT_PREFIX), tail = strlen(".lora_A.weight");
    int is_a = cairn_ends_with(name, ".lora_A.weight"), param, layer, used = 0;
    long long e;

    if (!cairn_starts_with(name, CAIRN_PEFT_PREFIX) || (!is_a && !cairn_ends_with(name, ".lora_B.weight")) || n <= head + tail ||
        n - head - tail >= sizeof(module) - 64)
        return unknown(p, name, err);
    memcpy(again, name + head, n - head - tail);
    again[n - head - tail] = '\0';
    if (p->c->arch == CAIRN_ARCH_GLM5_NEXT && cairn_starts_with(again, "model.visual.")) { /* no effect on text */
        p->vision++;
        return CAIRN_OK;
    }
    if (!cairn_name_canonical(p->c, again, module))
        return unknown(p, name, err);
    if (!is_a) /* its A is needed and brings it in */
        return cairn_peft_half(p, module, 'A')
                   ? CAIRN_OK
                   : cairn_fail(err, CAIRN_EDATA, "%s: no tensor " CAIRN_PEFT_PREFIX "%s.lora_A.weight", p->dir, module);
    param = find_module(p->base, module);
    if (param >= 0 && p->base->param[param].ndim == 2)
        return add_plain(p, param, module, err);
    at = strstr(module, mark);
    layer = cairn_name_layer(p->c, module, &rest);
    if (!at || layer < 0)
        return unknown(p, name, err);
    rest = at + sizeof(mark) - 1;
    if (rest[0] == '\0' || strcmp(rest, ".base_layer") == 0) {
        snprintf(again, sizeof(again), "mlp.experts%s", rest);
        cairn_name_of_layer(p->c, layer, again, stack);
        return strcmp(stack, module) == 0 ? add_fused(p, module, layer, err) : unknown(p, name, err);
    }
    if (sscanf(rest, ".%lld.%n", &e, &used) != 1 || used == 0 || e < 0)
        return unknown(p, name, err);
    snprintf(stack, sizeof(stack), "%.*s.%s", (int)(rest - module), module, rest + used);
    param = find_module(p->base, stack);
    if (param < 0 || !p->base->param[param].experts || e >= p->base->param[param].dim[0] ||
        !cairn_expert_name(stack, e, again, sizeof(again)) || strcmp(again, module) != 0)
        return unknown(p, name, err);
    if (e > 0) { /* expert 0 must be there too, and checks them all */
        snprintf(stack, sizeof(stack), "%.*s.0.%s", (int)(rest - module), module, rest + used);
        return cairn_peft_half(p, stack, 'A')
                   ? CAIRN_OK
                   : cairn_fail(err, CAIRN_EDATA, "%s: no tensor " CAIRN_PEFT_PREFIX "%s.lora_A.weight", p->dir, stack);
    }
    return add_experts(p, param, err);
}

static int by_param(const void *a, const void *b)
{
    return ((const struct cairn_peft_site *)a)->param - ((const struct cairn_peft_site *)b)->param;
}

const struct cairn_peft_site *cairn_peft_site_of(const struct cairn_peft *p, int param)
{
    struct cairn_peft_site key = {.param = param};

    return bsearch(&key, p->site, (size_t)p->sites, sizeof(key), by_param);
}

enum cairn_status cairn_peft_find_sites(struct cairn_peft *p, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < cairn_st_count(p->st); i++)
        TRY(take_tensor(p, cairn_st_at(p->st, i)->name, err));
    if (!p->sites)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: no LoRA matrices", p->dir));
    if (p->vision)
        cairn_warn("%s: %d tensors for the vision tower are left out: they have no effect on text", p->dir, p->vision);
    qsort(p->site, (size_t)p->sites, sizeof(*p->site), by_param);
    for (int i = 1; i < p->sites; i++)
        if (p->site[i].param == p->site[i - 1].param)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s has an adapter in two layouts", p->dir,
                           p->base->param[p->site[i].param].name));
out:
    return st;
}

/* ---- one A for gate and up ------------------------------------------------------------------------------------------------ */

/* Sets *same if the A of both sites have equal bits for all experts. */
static enum cairn_status equal_a(struct cairn_peft *p, const struct cairn_peft_site *g, const struct cairn_peft_site *u, int *same,
                                 struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *x = NULL;

    *same = 1;
    for (int e = 0; e < p->c->experts && *same; e++) {
        char module[NAME_BYTES];
        const struct cairn_st_tensor *a, *b;
        char *grown;

        cairn_expert_name(g->module, e, module, sizeof(module));
        a = cairn_peft_half(p, module, 'A');
        cairn_expert_name(u->module, e, module, sizeof(module));
        b = cairn_peft_half(p, module, 'A');
        if (a->dtype != b->dtype || a->bytes != b->bytes) {
            *same = 0;
            break;
        }
        grown = realloc(x, 2 * (size_t)a->bytes);
        if (!grown)
            TRY(CAIRN_NOMEM(err));
        x = grown;
        TRY(cairn_st_read(p->st, a, 0, x, (size_t)a->bytes, err));
        TRY(cairn_st_read(p->st, b, 0, x + a->bytes, (size_t)a->bytes, err));
        *same = memcmp(x, x + a->bytes, (size_t)a->bytes) == 0;
    }
out:
    free(x);
    return st;
}

enum cairn_status cairn_peft_find_aliases(struct cairn_peft *p, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i + 1 < p->sites; i++) {
        struct cairn_peft_site *g = &p->site[i], *u = &p->site[i + 1]; /* gate and up are neighbours in the table */
        int same = 0;

        if (g->form != CAIRN_PEFT_SITE_EXPERTS || u->form != CAIRN_PEFT_SITE_EXPERTS || u->param != g->param + 1 ||
            g->rank != u->rank || !cairn_ends_with(g->module, ".gate_proj") || !cairn_ends_with(u->module, ".up_proj"))
            continue;
        TRY(equal_a(p, g, u, &same, err));
        if (same)
            u->alias = g->param;
    }
out:
    return st;
}
