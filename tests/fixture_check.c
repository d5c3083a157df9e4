/* fixture_check.c - holds the build against a reference directory of the form described in shared data's README ("fixtures"):
 * numbers that transformers, peft and torch computed for tiny models.
 *
 *     fixture_check DIR [--backend cpu|guard|cuda|auto] [--act f32|bf16] [--threads N]
 *
 * One line an item, with the largest error: logits, losses, every gradient, the same with each adapter, greedy tokens through the
 * paged cache, and equal bits between the trainer's forward and the sampler's. Exit 0 if all hold, 76 if one does not, 65 for a
 * directory that is no reference or another architecture.
 *
 * Tolerances in fp32: logits 5e-4 absolute and 1e-4 rms; losses 1e-4; gradients 2e-3 of the tensor's largest entry. With bf16
 * activations and weights the selections of an fp32 run are forced where numbers are compared (fixture_replay.h), and an item may be
 * off by 1.1 times what torch's bf16 is off by at most in items of its class (DIR/../bf16_errors.json, made by bf16_errors.py
 * beside it): root mean square, and largest difference. Items whose names differ in numbers alone (layers, sequences) are a class; losses are one; for
 * the largest difference all gradients of the model, or of an adapter, are.
 * Bits of trainer and sampler are compared without forcing.
 */
#include "model/names.h"
#include "model/peft.h"

#include "fixture_replay.h"

static const struct tolerance exact = {5e-4, 1e-4, 1e-4, 2e-3};

/* A model to hold against numbers: the base, or the base with an adapter. */
struct variant {
    const char *name;
    struct cairn_model m;
    struct cairn_peft *peft; /* of the adapter */
    struct cairn_st *st;
    struct cairn_pass *pass; /* packed, training */
    struct cairn_store grads;
};

static enum cairn_status check_logits(struct reference *r, struct variant *v, struct cairn_error *err)
{
    struct cairn_batch b = whole_batch(r);
    struct cairn_tensor logits;
    float *mine = NULL, *ref = NULL;
    int64_t vocab = r->hf->config.vocab, n;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_forward_logits(v->pass, &b, &logits, err));
    TRY(fetch(&mine, &r->k, &logits, err));
    for (int s = 0; s < r->nseq; s++) {
        struct errors e = {0};
        char name[128];

        snprintf(name, sizeof name, "logits.%d", s);
        TRY(read_f32(&ref, &n, v->st, name, err));
        if (n != r->len[s] * vocab)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s has %lld entries", cairn_st_file(v->st, 0), name, (long long)n));
        for (int64_t i = 0; i < n; i++)
            differ(&e, mine[r->start[s] * vocab + i], ref[i]);
        snprintf(name, sizeof name, "%slogits.%d", v->name, s);
        if (r->torch)
            torch_item(r, name, &e);
        else
            item(e.max <= r->tol->logit_abs && sqrt(e.sum2 / (double)e.n) <= r->tol->logit_rms, name, "max %.2e rms %.2e", e.max,
                 sqrt(e.sum2 / (double)e.n));
        free(ref);
        ref = NULL;
    }
out:
    free(mine);
    free(ref);
    return st;
}

/* ---- gradients ---------------------------------------------------------------------------------------------------- */

/* Gradient of parameter i, on the host. */
static enum cairn_status grad_of(float **out, struct reference *r, const struct variant *v, int i, struct cairn_error *err)
{
    if (i < 0 || !v->grads.tensor[i].buf)
        return cairn_fail(err, CAIRN_ENUMERIC, "no gradient");
    return fetch(out, &r->k, &v->grads.tensor[i], err);
}

/* Compares rows [at, at + ours) of a reference gradient of `all` elements with parameter `name`'s; *at moves on. */
static enum cairn_status part_gradient(struct reference *r, struct variant *v, const char *name, const float *ref, int64_t *at, int64_t all,
                                       uint8_t *seen, struct errors *e, struct cairn_error *err)
{
    int p = cairn_param_find(&r->hf->table, name);
    float *mine = NULL;
    int64_t n;
    enum cairn_status st = CAIRN_OK;

    TRY(grad_of(&mine, r, v, p, err));
    seen[p] = 1;
    n = cairn_tensor_count(&v->grads.tensor[p]);
    if (*at + n > all)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s has %lld entries", name, (long long)all));
    for (int64_t i = 0; i < n; i++)
        differ(e, mine[i], ref[*at + i]);
    *at += n;
out:
    free(mine);
    return st;
}

/* One reference gradient of the full model: a tensor of ours, transformers' fused gate_up_proj of a layer's experts, or its one
 * convolution of q, k, v. */
static enum cairn_status check_gradient(struct reference *r, struct variant *v, const struct cairn_st_tensor *t,
                                        struct cairn_st *file, uint8_t *seen, struct cairn_error *err)
{
    static const char gate_up[] = "experts.gate_up_proj", down[] = "experts.down_proj", conv[] = "self_attn.conv1d.weight";
    const struct cairn_param_table *table = &r->hf->table;
    float *ref = NULL, *mine[2] = {0};
    int64_t n, half, at = 0;
    struct errors e = {0};
    char *name = NULL, own[CAIRN_NAME_BYTES];
    enum cairn_status st = CAIRN_OK;
    int p;

    TRY(read_f32(&ref, &n, file, t->name, err));
    if (cairn_ends_with(t->name, gate_up)) {
        for (int j = 0; j < 2; j++) {
            free(name);
            name = cairn_format("%.*s%s_proj.weight", (int)(strlen(t->name) - strlen("gate_up_proj")), t->name, j ? "up" : "gate");
            p = cairn_param_find(table, name);
            TRY(grad_of(&mine[j], r, v, p, err));
            seen[p] = 1;
        }
        half = table->param[p].dim[1] * table->param[p].dim[2];
        if (n != 2 * half * table->param[p].dim[0])
            TRY(cairn_fail(err, CAIRN_EDATA, "%s has %lld entries", t->name, (long long)n));
        for (int64_t i = 0; i < n; i++)
            differ(&e, mine[i / half % 2][i / (2 * half) * half + i % half], ref[i]);
    } else if (cairn_ends_with(t->name, conv)) {
        for (int j = 0; j < 3; j++) {
            free(name);
            name = cairn_format("%.*s%c_conv1d.weight", (int)(strlen(t->name) - strlen("conv1d.weight")), t->name, "qkv"[j]);
            TRY(part_gradient(r, v, name, ref, &at, n, seen, &e, err));
        }
    } else {
        name = cairn_format("%s%s", t->name, cairn_ends_with(t->name, down) ? ".weight" : "");
        if (!cairn_name_canonical(&r->hf->config, name, own))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s is too long a name", name));
        TRY(part_gradient(r, v, own, ref, &at, n, seen, &e, err));
    }
    if (at && at != n)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s has %lld entries", t->name, (long long)n));
    gradient_item(r, "gradient ", t->name, &e);
out:
    if (st == CAIRN_ENUMERIC) {
        item(0, t->name, "the model gives no such gradient");
        st = CAIRN_OK;
    }
    free(name);
    free(ref);
    free(mine[0]);
    free(mine[1]);
    return st;
}

/* Mean next-token loss over all sequences, and its gradient for every parameter. */
static enum cairn_status check_ce(struct reference *r, struct variant *v, struct cairn_error *err)
{
    struct cairn_batch b = whole_batch(r);
    struct cairn_scores scores;
    struct cairn_st *file = NULL;
    struct value up = {0};
    float *logprob = NULL, *ref = NULL, *h = NULL;
    uint8_t *seen = calloc((size_t)r->hf->table.count, 1);
    double loss = 0;
    int64_t n;
    enum cairn_status st = CAIRN_OK;

    h = calloc((size_t)r->rows, sizeof *h);
    if (!h || !seen)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_forward(v->pass, &b, r->target, 1, &scores, err));
    TRY(fetch(&logprob, &r->k, &scores.logprob, err));
    for (int64_t i = 0; i < r->rows; i++)
        if (r->target[i] >= 0) {
            loss -= logprob[i];
            h[i] = -1 / (float)r->losses;
        }
    TRY(read_f32(&ref, &n, v->st, "ce_loss", err));
    scalar_item(r, v->name, "ce_loss", loss / (double)r->losses, ref[0], r->tol->loss);

    TRY(value_make(&up, &r->k, CAIRN_F32, r->rows, h, err));
    TRY(cairn_tensor_zero(&r->k.stream, &v->grads.flat, err));
    TRY(cairn_backward(v->pass, &up.t, NULL, &v->grads, NULL, err));
    TRY(open_st(&file, r->dir, "gradients_ce.safetensors", err));
    for (int i = 0; i < cairn_st_count(file); i++)
        TRY(check_gradient(r, v, cairn_st_at(file, i), file, seen, err));
    for (int i = 0; i < r->hf->table.count; i++)
        if (v->grads.tensor[i].buf && !seen[i])
            item(0, r->hf->table.param[i].name, "trained, but the reference has no gradient for it");
out:
    cairn_buffer_destroy(up.buf);
    cairn_st_close(file);
    free(logprob);
    free(ref);
    free(h);
    free(seen);
    return st;
}

/* Clipped surrogate, token mean over all sequences; leaves its gradient in v->grads. */
static enum cairn_status check_grpo(struct reference *r, struct variant *v, struct cairn_error *err)
{
    struct cairn_batch b = whole_batch(r);
    struct cairn_scores scores;
    struct value old = {0}, adv = {0}, weight = {0}, mask = {0}, seq = {0}, dcur = {0}, stats = {0};
    struct cairn_policy_loss loss;
    float *w = calloc((size_t)r->rows, sizeof *w), *ref = NULL;
    uint8_t *m = calloc((size_t)r->rows, 1);
    double sums[CAIRN_LS_COUNT];
    int lora = v->m.adapter != NULL;
    int64_t n;
    enum cairn_status st = CAIRN_OK;

    if (!w || !m)
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i < r->rows; i++) {
        m[i] = r->target[i] >= 0;
        w[i] = 1 / (float)r->losses;
    }
    TRY(value_make(&old, &r->k, CAIRN_F32, r->rows, r->old, err));
    TRY(value_make(&adv, &r->k, CAIRN_F32, r->rows, r->adv, err));
    TRY(value_make(&weight, &r->k, CAIRN_F32, r->rows, w, err));
    TRY(value_make(&mask, &r->k, CAIRN_U8, r->rows, m, err));
    TRY(value_make(&seq, &r->k, CAIRN_I32, r->rows, r->seq, err));
    TRY(value_make(&dcur, &r->k, CAIRN_F32, r->rows, NULL, err));
    TRY(value_make(&stats, &r->k, CAIRN_F64, CAIRN_LS_COUNT, NULL, err));
    TRY(cairn_forward(v->pass, &b, r->target, 1, &scores, err));
    loss = (struct cairn_policy_loss){.cur = scores.logprob,
                                      .old = old.t,
                                      .adv = adv.t,
                                      .weight = weight.t,
                                      .mask = mask.t,
                                      .seq = seq.t,
                                      .dcur = dcur.t,
                                      .stats = stats.t,
                                      .clip_low = 0.2f,
                                      .clip_high = 0.28f};
    TRY(r->k.ops.policy_loss(&r->k.stream, &loss, err));
    TRY(cairn_tensor_get(&r->k.stream, &stats.t, sums, sizeof sums, err));
    TRY(read_f32(&ref, &n, v->st, "grpo_loss", err));
    scalar_item(r, v->name, "grpo_loss", sums[CAIRN_LS_POLICY], ref[0], r->tol->loss);
    TRY(cairn_tensor_zero(&r->k.stream, &v->grads.flat, err));
    TRY(cairn_backward(v->pass, &dcur.t, NULL, lora ? NULL : &v->grads, lora ? &v->grads : NULL, err));
out:
    cairn_buffer_destroy(old.buf);
    cairn_buffer_destroy(adv.buf);
    cairn_buffer_destroy(weight.buf);
    cairn_buffer_destroy(mask.buf);
    cairn_buffer_destroy(seq.buf);
    cairn_buffer_destroy(dcur.buf);
    cairn_buffer_destroy(stats.buf);
    free(w);
    free(m);
    free(ref);
    return st;
}

static enum cairn_status check_norm(struct reference *r, struct variant *v, struct cairn_error *err)
{
    float *flat = NULL, *ref = NULL;
    double sum = 0;
    int64_t n;
    enum cairn_status st = CAIRN_OK;

    TRY(fetch(&flat, &r->k, &v->grads.flat, err));
    for (int64_t i = 0; i < cairn_tensor_count(&v->grads.flat); i++)
        sum += (double)flat[i] * flat[i];
    TRY(read_f32(&ref, &n, v->st, "grpo_grad_norm", err));
    scalar_item(r, v->name, "grpo_grad_norm", sqrt(sum), ref[0], r->tol->grad);
out:
    free(flat);
    free(ref);
    return st;
}

/* ---- gradients of adapters, in peft's names and layouts ------------------------------------------------------------- */

/* Index of the base parameter of `module`, which must be adapted; -1 if it is not. */
static int adapted(const struct reference *r, const struct variant *v, const char *module, const char *leaf)
{
    char *name = cairn_format("%s%s.weight", module, leaf);
    int p = name ? cairn_param_find(&r->hf->table, name) : -1;

    free(name);
    return p >= 0 ? v->m.adapter->of_param[p] : -1;
}

/* Compares gradient `ref` (t) of peft's fused experts below `module` with ours. Row e*r+i of A; column i*E+e of B. */
static enum cairn_status fused_gradient(struct reference *r, struct variant *v, const char *module, int down, int is_b,
                                        const struct cairn_st_tensor *t, const float *ref, uint8_t *seen, struct errors *e,
                                        struct cairn_error *err)
{
    const char *const leaf[2] = {down ? ".down_proj" : ".gate_proj", ".up_proj"};
    int64_t experts = r->hf->config.experts;
    float *mine = NULL;
    enum cairn_status st = CAIRN_OK;

    for (int j = 0; j < (down || !is_b ? 1 : 2); j++) {
        int l = adapted(r, v, module, leaf[j]), which = l < 0 ? -1 : is_b ? v->m.adapter->lora[l].b : v->m.adapter->lora[l].a;
        int64_t rank, out;

        TRY(grad_of(&mine, r, v, which, err));
        seen[which] = 1;
        rank = v->m.adapter->lora[l].rank;
        out = v->grads.tensor[which].dim[1];
        if (!is_b && t->count != cairn_tensor_count(&v->grads.tensor[which]))
            TRY(cairn_fail(err, CAIRN_ENUMERIC, "shape"));
        if (is_b && t->count != (down ? 1 : 2) * cairn_tensor_count(&v->grads.tensor[which]))
            TRY(cairn_fail(err, CAIRN_ENUMERIC, "shape"));
        if (!is_b)
            for (int64_t i = 0; i < t->count; i++)
                differ(e, mine[i], ref[i]);
        else
            for (int64_t x = 0; x < experts; x++)
                for (int64_t o = 0; o < out; o++)
                    for (int64_t i = 0; i < rank; i++)
                        differ(e, mine[(x * out + o) * rank + i], ref[(j * out + o) * rank * experts + i * experts + x]);
        free(mine);
        mine = NULL;
    }
out:
    free(mine);
    return st;
}

static enum cairn_status check_adapter_gradient(struct reference *r, struct variant *v, const struct cairn_st_tensor *t,
                                                uint8_t *seen, struct cairn_error *err)
{
    static const char head[] = "grad:base_model.model.", tail_a[] = ".lora_A.default.weight", tail_b[] = ".lora_B.default.weight";
    int is_b = cairn_ends_with(t->name, tail_b);
    struct errors e = {0};
    float *ref = NULL, *mine = NULL;
    char *module = NULL, *base;
    int64_t n;
    enum cairn_status st = CAIRN_OK;

    if (!cairn_starts_with(t->name, head) || !(is_b || cairn_ends_with(t->name, tail_a)))
        TRY(cairn_fail(err, CAIRN_ENUMERIC, "name"));
    TRY(read_f32(&ref, &n, v->st, t->name, err));
    module = cairn_format("%.*s", (int)(strlen(t->name) - strlen(head) - strlen(tail_a)), t->name + strlen(head));
    if (cairn_ends_with(module, ".base_layer") || cairn_ends_with(module, ".mlp.experts")) {
        int both; /* with two targets the inner one is gate_up; a single one has the outer name: A's width tells */
        char *other;

        base = strstr(module, ".base_layer");
        if (base)
            *base = '\0';
        other = cairn_format("%s%s.base_layer.lora_A.default.weight", head, module);
        both = cairn_st_find(v->st, other) != NULL;
        free(other);
        TRY(fused_gradient(r, v, module, !base && (both || adapted(r, v, module, ".gate_proj") < 0), is_b, t, ref, seen, &e, err));
    } else {
        int l = adapted(r, v, module, ""), which = l < 0 ? -1 : is_b ? v->m.adapter->lora[l].b : v->m.adapter->lora[l].a;

        TRY(grad_of(&mine, r, v, which, err));
        seen[which] = 1;
        if (n != cairn_tensor_count(&v->grads.tensor[which]))
            TRY(cairn_fail(err, CAIRN_ENUMERIC, "shape"));
        for (int64_t i = 0; i < n; i++)
            differ(&e, mine[i], ref[i]);
    }
    gradient_item(r, v->name, t->name, &e);
out:
    if (st == CAIRN_ENUMERIC) {
        item(0, t->name, "the adapter gives no such gradient");
        st = CAIRN_OK;
    }
    free(module);
    free(ref);
    free(mine);
    return st;
}

static enum cairn_status check_adapter_gradients(struct reference *r, struct variant *v, struct cairn_error *err)
{
    const struct cairn_param_table *table = &v->m.adapter->table;
    uint8_t *seen = calloc((size_t)table->count + 1, 1);
    enum cairn_status st = CAIRN_OK;

    if (!seen)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < cairn_st_count(v->st); i++)
        if (cairn_starts_with(cairn_st_at(v->st, i)->name, "grad:"))
            TRY(check_adapter_gradient(r, v, cairn_st_at(v->st, i), seen, err));
    for (int i = 0; i < table->count; i++)
        if (!seen[i])
            item(0, table->param[i].name, "trained, but the reference has no gradient for it");
out:
    free(seen);
    return st;
}

/* ---- the sampler's path ---------------------------------------------------------------------------------------------- */

/* How a sequence is cut into calls. */
struct split {
    const char *name;
    int64_t prompt; /* first piece; 0: half of the sequence, -1: all of it */
    int64_t piece;  /* later pieces; 0: 1, 2, 3, 1, 2, 3, ... */
    int page;
};

/* Runs all sequences through the cache, cut as said, and counts the rows whose log-probability has other bits than `want`. */
static enum cairn_status decode_bits(struct reference *r, struct variant *v, struct cairn_pass *pass, const struct split *how,
                                     const float *want, int64_t *unequal, struct cairn_error *err)
{
    int pool = r->hf->config.index_pool;
    struct cairn_cache_opts o = {.slots = r->nseq, .page = (how->page + pool - 1) / pool * pool, .max_length = r->rows};
    struct cairn_cache *cache = NULL;
    struct cairn_scores scores;
    int32_t *id = calloc((size_t)r->rows * 4, sizeof *id), *pos, *seq, *target;
    int64_t *row = calloc((size_t)r->rows, sizeof *row), at[MAX_SEQS] = {0};
    float *got = NULL;
    int slot[MAX_SEQS], fits, turn = 0;
    enum cairn_status st = CAIRN_OK;

    *unequal = 0;
    if (!id || !row)
        TRY(CAIRN_NOMEM(err));
    pos = id + r->rows;
    seq = pos + r->rows;
    target = seq + r->rows;
    for (int s = 0; s < r->nseq; s++)
        o.pages += (int)((r->len[s] - 1) / o.page + 1);
    TRY(cairn_cache_create(&cache, &r->hf->config, &r->k, &o, err));
    for (int s = 0; s < r->nseq; s++)
        slot[s] = cairn_cache_slot(cache);
    for (int64_t n = 1; n; turn++) {
        n = 0;
        for (int s = 0; s < r->nseq; s++) {
            int64_t piece = turn              ? how->piece ? how->piece : 1 + turn % 3
                            : how->prompt > 0 ? how->prompt
                                              : r->len[s] / (how->prompt ? 1 : 2);

            piece = piece < 1 ? 1 : piece;
            piece = piece < r->len[s] - at[s] ? piece : r->len[s] - at[s];
            TRY(cairn_cache_extend(cache, slot[s], piece, &fits, err));
            if (!fits)
                TRY(CAIRN_BUG(err, "the cache is too small"));
            for (int64_t i = 0; i < piece; i++, n++, at[s]++) {
                row[n] = r->start[s] + at[s];
                id[n] = r->id[row[n]];
                pos[n] = (int32_t)at[s];
                seq[n] = slot[s];
                target[n] = r->target[row[n]];
            }
        }
        TRY(cairn_forward_cached_scores(pass, cache,
                                        &(struct cairn_batch){.n = n, .id = id, .pos = pos, .seq = seq, .nseq = r->nseq}, target, 1,
                                        &scores, err));
        free(got);
        got = NULL;
        TRY(fetch(&got, &r->k, &scores.logprob, err));
        for (int64_t i = 0; i < n; i++)
            *unequal += memcmp(&got[i], &want[row[i]], sizeof(float)) != 0;
    }
    (void)v;
out:
    cairn_cache_destroy(cache);
    free(id);
    free(row);
    free(got);
    return st;
}

static enum cairn_status check_bits(struct reference *r, struct variant *v, struct cairn_pass *pass, struct cairn_error *err)
{
    static const struct split how[] = {
        {"prompt of 1, then one by one", 1, 1, 16},   {"the whole as prompt", -1, 1, 16},
        {"half as prompt, then one by one", 0, 1, 5}, {"pieces of 1, 2, 3", 3, 0, 8},
        {"pieces of 17, page of 1", 17, 17, 1},
    };
    struct cairn_batch b = whole_batch(r);
    struct cairn_scores scores;
    float *want = NULL;
    int64_t unequal;
    char name[256];
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_forward(v->pass, &b, r->target, 1, &scores, err));
    TRY(fetch(&want, &r->k, &scores.logprob, err));
    for (size_t i = 0; i < sizeof how / sizeof how[0]; i++) {
        TRY(decode_bits(r, v, pass, &how[i], want, &unequal, err));
        snprintf(name, sizeof name, "%strain = decode: %s", v->name, how[i].name);
        item(!unequal, name, "%lld of %lld rows differ in bits", (long long)unequal, (long long)r->rows);
    }
out:
    free(want);
    return st;
}

/* GREEDY tokens after the whole of sequence s; then the trainer's log-probabilities of these must be the sampler's, bit for bit. */
static enum cairn_status check_greedy(struct reference *r, struct variant *v, struct cairn_pass *pass, int s,
                                      struct cairn_error *err)
{
    int64_t len = r->len[s], all = len + GREEDY, n;
    struct cairn_cache_opts o = {.slots = 1, .pages = (int)(all / 16 + 1), .page = 16, .max_length = all};
    struct cairn_cache *cache = NULL;
    struct cairn_scores scores;
    struct cairn_tensor logits;
    struct value token = {0}, logprob = {0}, zero = {0};
    int32_t *id = calloc((size_t)all * 4, sizeof *id), *pos = id + all, *seq = pos + all, *target = seq + all, *ref = NULL,
            start = 0, want;
    float *train = NULL, sampled[GREEDY];
    int fits, equal = 0, bits = 0;
    char name[128];
    enum cairn_status st = CAIRN_OK;

    if (!id)
        TRY(CAIRN_NOMEM(err));
    snprintf(name, sizeof name, "greedy.%d", s);
    TRY(read_i32(&ref, &n, v->st, name, err));
    if (n != GREEDY)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s has %lld tokens", cairn_st_file(v->st, 0), name, (long long)n));
    TRY(value_make(&token, &r->k, CAIRN_I32, 1, NULL, err));
    TRY(value_make(&logprob, &r->k, CAIRN_F32, 1, NULL, err));
    TRY(value_make(&zero, &r->k, CAIRN_I32, 1, NULL, err));
    TRY(cairn_cache_create(&cache, &r->hf->config, &r->k, &o, err));
    cairn_cache_slot(cache);
    for (int64_t i = 0; i < all; i++) {
        id[i] = i < len ? r->id[r->start[s] + i] : 0;
        pos[i] = (int32_t)i;
        target[i] = -1;
    }
    for (int64_t at = 0, i = 0; i < GREEDY; i++) {
        int64_t rows = len + i - at;
        struct cairn_sample draw = {
            .token = token.t, .logprob = logprob.t, .greedy = 1, .inv_temperature = 1, .top_p = 1, .segments = 1};

        TRY(cairn_cache_extend(cache, 0, rows, &fits, err));
        want = (int32_t)rows - 1;
        TRY(cairn_forward_cached(pass, cache,
                                 &(struct cairn_batch){.n = rows, .id = id + at, .pos = pos + at, .seq = seq, .nseq = 1}, &want, 1,
                                 &logits, err));
        draw.logits = logits;
        draw.prompt = draw.sample = draw.position = zero.t; /* not looked at when greedy */
        TRY(r->k.ops.sample(&r->k.stream, &draw, err));
        TRY(cairn_tensor_get(&r->k.stream, &token.t, &id[len + i], sizeof *id, err));
        TRY(cairn_tensor_get(&r->k.stream, &logprob.t, &sampled[i], sizeof *sampled, err));
        target[len + i - 1] = id[len + i];
        equal += id[len + i] == ref[i];
        at = len + i;
    }
    item(equal == GREEDY || r->torch, name, "%d of %d tokens equal", equal, GREEDY);
    TRY(cairn_forward(v->pass, &(struct cairn_batch){.n = all, .id = id, .pos = pos, .seq = seq, .nseq = 1, .start = &start},
                      target, 1, &scores, err));
    TRY(fetch(&train, &r->k, &scores.logprob, err));
    for (int i = 0; i < GREEDY; i++)
        bits += memcmp(&train[len + i - 1], &sampled[i], sizeof(float)) == 0;
    snprintf(name, sizeof name, "greedy.%d: trainer's log-probability = sampler's", s);
    item(bits == GREEDY, name, "%d of %d equal bits", bits, GREEDY);
out:
    cairn_cache_destroy(cache);
    cairn_buffer_destroy(token.buf);
    cairn_buffer_destroy(logprob.buf);
    cairn_buffer_destroy(zero.buf);
    free(id);
    free(ref);
    free(train);
    return st;
}

/* ---- variants ---------------------------------------------------------------------------------------------------------- */

static enum cairn_status check_variant(struct reference *r, struct variant *v, struct cairn_error *err)
{
    struct cairn_pass_opts train = {.max_rows = r->rows + GREEDY, .max_seqs = r->nseq, .train = 1};
    struct cairn_pass_opts sample = {.max_rows = r->rows + GREEDY, .max_seqs = r->nseq};
    struct cairn_pass *pass = NULL;
    char name[32];
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_pass_create(&v->pass, &v->m, &train, err));
    TRY(cairn_pass_create(&pass, &v->m, &sample, err));
    TRY(cairn_store_create(&v->grads, v->m.adapter ? &v->m.adapter->table : &r->hf->table, r->k.dev, 1, err));
    if (r->k.act != CAIRN_F32) {
        TRY(replay_record(r, v->peft, v->m.adapter, err));
        replay_begin(&r->k, 0);
    }
    TRY(check_logits(r, v, err));
    if (!v->m.adapter)
        TRY(check_ce(r, v, err));
    TRY(check_grpo(r, v, err));
    if (v->m.adapter)
        TRY(check_adapter_gradients(r, v, err));
    else
        TRY(check_norm(r, v, err));
    if (r->k.act != CAIRN_F32)
        replay_end(&r->k);
    TRY(check_bits(r, v, pass, err));
    for (int s = 0; !v->m.adapter && s < r->nseq; s++) {
        snprintf(name, sizeof name, "greedy.%d", s);
        if (cairn_st_find(v->st, name))
            TRY(check_greedy(r, v, pass, s, err));
    }
out:
    replay_free();
    cairn_pass_destroy(pass);
    cairn_pass_destroy(v->pass);
    cairn_store_free(&v->grads);
    return st;
}

static enum cairn_status check_adapter(struct reference *r, const char *dir, const char *file, struct cairn_error *err)
{
    char *path = cairn_path_join(r->dir, dir), label[64];
    struct variant v = {.name = label, .m = {.k = &r->k, .config = &r->hf->config, .weights = &r->weights, .segments = 1}};
    struct cairn_peft *peft = NULL;
    struct cairn_adapter adapter = {0};
    struct cairn_store weights = {0};
    enum cairn_status st = CAIRN_OK;

    snprintf(label, sizeof label, "%s: ", dir);
    if (!path)
        TRY(CAIRN_NOMEM(err));
    TRY(open_st(&v.st, r->dir, file, err));
    TRY(cairn_peft_open(&peft, path, &r->hf->table, &r->hf->config, err));
    cairn_peft_take(peft, &adapter);
    TRY(cairn_weights_create(&weights, &adapter.table, &r->k, err));
    TRY(cairn_peft_load(peft, &adapter, &weights, &r->k, err));
    v.peft = peft;
    v.m.adapter = &adapter;
    v.m.adapter_weights = &weights;
    TRY(check_variant(r, &v, err));
out:
    cairn_peft_close(peft);
    cairn_store_free(&weights);
    cairn_adapter_free(&adapter);
    cairn_st_close(v.st);
    free(path);
    return st;
}

/* bf16_errors.json beside the directory. */
static enum cairn_status torch_read(struct reference *r, struct cairn_error *err)
{
    size_t n = strlen(r->dir), begin;
    char *path;
    enum cairn_status st = CAIRN_OK;

    while (n > 1 && r->dir[n - 1] == '/')
        n--;
    path = cairn_format("%.*s/../bf16_errors.json", (int)n, r->dir);
    if (!path)
        return CAIRN_NOMEM(err);
    TRY(cairn_json_load(&r->torch, path, 1 << 20, err));
    for (begin = n; begin > 0 && r->dir[begin - 1] != '/'; begin--)
        ;
    snprintf(r->model, sizeof r->model, "%.*s", (int)(n - begin), r->dir + begin);
    if (!json_is_object(json_object_get(r->torch, r->model)))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s has no errors of %s: make them with bf16_errors.py", path, r->model));
out:
    free(path);
    return st;
}

static enum cairn_status check(struct reference *r, const struct cairn_compute_opts *opts, struct cairn_error *err)
{
    struct variant base = {.name = ""};
    enum cairn_status st = CAIRN_OK;

    if (!cairn_path_is_dir(r->dir))
        return cairn_fail(err, CAIRN_EDATA, "%s: no such directory", r->dir);
    TRY(cairn_hf_open(&r->hf, r->dir, err));
    TRY(open_st(&r->st, r->dir, "reference.safetensors", err));
    TRY(read_sequences(r, err));
    TRY(cairn_compute_open(&r->k, opts, err));
    r->tol = &exact;
    if (r->k.act != CAIRN_F32)
        TRY(torch_read(r, err));
    printf("# %s on %s: %s\n", r->dir, r->k.dev->name, r->k.numerics);
    TRY(cairn_weights_create(&r->weights, &r->hf->table, &r->k, err));
    TRY(cairn_hf_load(r->hf, &r->weights, &r->k, NULL, err));
    base.m = (struct cairn_model){.k = &r->k, .config = &r->hf->config, .weights = &r->weights, .segments = 1};
    base.st = r->st;
    TRY(check_variant(r, &base, err));
    TRY(check_adapter(r, "adapter", "reference_lora.safetensors", err));
    TRY(check_adapter(r, "adapter_mlp", "reference_lora_mlp.safetensors", err));
    printf("# %d items do not hold\n", failures);
    if (failures)
        TRY(cairn_fail(err, CAIRN_ENUMERIC, "%s: %d items do not hold", r->dir, failures));
out:
    cairn_store_free(&r->weights);
    if (r->k.dev)
        cairn_compute_close(&r->k);
    cairn_st_close(r->st);
    cairn_hf_close(r->hf);
    json_decref(r->torch);
    free(r->id);
    free(r->pos);
    free(r->seq);
    free(r->target);
    free(r->old);
    free(r->adv);
    return st;
}

int main(int argc, char **argv)
{
    struct reference r = {0};
    struct cairn_compute_opts opts = {0};
    struct cairn_error err = {0};
    enum cairn_status st;
    int64_t threads;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--backend") && i + 1 < argc)
            opts.backend = argv[++i];
        else if (!strncmp(argv[i], "--backend=", 10))
            opts.backend = argv[i] + 10;
        else if (!strcmp(argv[i], "--act") && i + 1 < argc)
            opts.act = argv[++i];
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc && cairn_parse_i64(argv[i + 1], &threads) && threads > 0 &&
                 threads < 4096)
            opts.threads = (int)(i++, threads);
        else if (argv[i][0] != '-' && !r.dir)
            r.dir = argv[i];
        else
            r.dir = NULL, i = argc;
    }
    if (!r.dir) {
        fprintf(stderr, "usage: fixture_check DIR [--backend cpu|guard|cuda|auto] [--act f32|bf16] [--threads N]\n"
                        "bf16 may be off by 1.1 times what torch's bf16 is off by in items of the same class (DIR/../bf16_errors.json)\n"
                        "  fixture_check tests/fixtures/models/glm51-tiny\n"
                        "  fixture_check tests/fixtures/models/glm52-tiny --backend guard\n");
        return CAIRN_EUSAGE;
    }
    st = check(&r, &opts, &err);
    if (st != CAIRN_OK)
        fprintf(stderr, "fixture_check: %s\n", err.text);
    return st;
}
