/* fixture_check.c - holds the build against a reference directory of the form described in shared data's README ("fixtures"):
 * numbers that transformers, peft and torch computed for tiny models.
 *
 *     fixture_check DIR [--backend cpu|guard|cuda|auto] [--act f32|bf16] [--threads N]
 *
 * One line an item, with the largest error: logits, losses, every gradient, the same with each adapter, greedy tokens through the
 * paged cache, and equal bits between the trainer's forward and the sampler's. Exit 0 if all hold, 76 if one does not, 65 for a
 * directory that is no reference or another architecture.
 *
 * Tolerances in fp32: logits 5e-4 absolute and 1e-4 rms; losses 1e-4; gradients 2e-3 of the tensor's largest entry. With bf16 activations and
 * weights these hold for the same model in fp32 on the cpu, and the model itself may be off from that by 1.1 times what torch's bf16 is off by, class
 * by class, over copies of the model (fixture_draws.h; torch's: DIR/../bf16_errors.json, made by bf16_errors.py beside it), with the selections of
 * the fp32 run forced (fixture_replay.h).
 * Bits of trainer and sampler are compared without forcing.
 */
#include "model/names.h"

#include "fixture_draws.h"
#include "fixture_sampler.h"

static const struct tolerance exact = {5e-4, 1e-4, 1e-4, 2e-3};

/* Of bf16's gradient norm, relative: one number a model, too few to be a class. */
#define NARROW_NORM 0.4

static enum cairn_status gradient_item(const struct reference *r, const struct variant *v, const char *kind, const char *name,
                                       const struct errors *e, struct cairn_error *err)
{
    char label[192];

    snprintf(label, sizeof label, "%s%s", kind, name);
    item(e->max <= r->tol->grad * e->largest, label, "max %.2e of %.2e (%.1e)", e->max, e->largest, e->largest > 0 ? e->max / e->largest : 0);
    return r->torch ? tally_add(r, v, ITEM_GRADIENT, label, 0, err) : CAIRN_OK;
}

/* A loss: the reference's, in fp32; the one that the logits say, in bf16. Relative above 1. */
static enum cairn_status check_loss(struct reference *r, struct variant *v, const char *name, double mine, double by_logits,
                                    struct cairn_error *err)
{
    char label[192];
    float *ref = NULL;
    int64_t n;
    double want;
    enum cairn_status st = CAIRN_OK;

    TRY(read_f32(&ref, &n, v->st, name, err));
    want = r->torch ? by_logits : (double)ref[0];
    snprintf(label, sizeof label, "%s%s", v->name, name);
    item(fabs(mine - want) <= r->tol->loss * fmax(1, fabs(want)), label, "%.7g, %s %.7g; reference %.7g", mine,
         r->torch ? "by its logits" : "reference", want, (double)ref[0]);
out:
    free(ref);
    return st;
}

static enum cairn_status check_logits(struct reference *r, struct variant *v, struct cairn_error *err)
{
    float *ref = NULL;
    int64_t vocab = r->hf->config.vocab, n;
    enum cairn_status st = CAIRN_OK;

    for (int s = 0; s < r->nseq; s++) {
        struct errors e = {0};
        char name[128];

        snprintf(name, sizeof name, "logits.%d", s);
        TRY(read_f32(&ref, &n, v->st, name, err));
        if (n != r->len[s] * vocab)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: %s has %lld entries", cairn_st_file(v->st, 0), name, (long long)n));
        for (int64_t i = 0; i < n; i++)
            differ(&e, v->now.logits[r->start[s] * vocab + i], ref[i]);
        snprintf(name, sizeof name, "%slogits.%d", v->name, s);
        item(e.max <= r->tol->logit_abs && sqrt(e.sum2 / (double)e.n) <= r->tol->logit_rms, name, "max %.2e rms %.2e", e.max,
             sqrt(e.sum2 / (double)e.n));
        if (r->torch)
            TRY(tally_add(r, v, ITEM_LOGITS, name, s, err));
        free(ref);
        ref = NULL;
    }
out:
    free(ref);
    return st;
}

/* ---- gradients ---------------------------------------------------------------------------------------------------- */

/* Gradient of parameter i, which is part of the item at work. */
static enum cairn_status grad_of(const float **out, const struct variant *v, int i, struct cairn_error *err)
{
    if (i < 0 || !v->grads.tensor[i].buf)
        return cairn_fail(err, CAIRN_ENUMERIC, "no gradient");
    *out = numbers_grad(v->now.ce_grad ? v->now.ce_grad : v->now.grad, v->grads.table, i);
    tally_note(i);
    return CAIRN_OK;
}

/* Compares rows [at, at + ours) of a reference gradient of `all` elements with parameter `name`'s; *at moves on. */
static enum cairn_status part_gradient(struct reference *r, struct variant *v, const char *name, const float *ref, int64_t *at, int64_t all,
                                       uint8_t *seen, struct errors *e, struct cairn_error *err)
{
    int p = cairn_param_find(&r->hf->table, name);
    const float *mine;
    int64_t n;
    enum cairn_status st = CAIRN_OK;

    TRY(grad_of(&mine, v, p, err));
    seen[p] = 1;
    n = cairn_tensor_count(&v->grads.tensor[p]);
    if (*at + n > all)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s has %lld entries", name, (long long)all));
    for (int64_t i = 0; i < n; i++)
        differ(e, mine[i], ref[*at + i]);
    *at += n;
out:
    return st;
}

/* One reference gradient of the full model: a tensor of ours, transformers' fused gate_up_proj of a layer's experts, or its one
 * convolution of q, k, v. */
static enum cairn_status check_gradient(struct reference *r, struct variant *v, const struct cairn_st_tensor *t,
                                        struct cairn_st *file, uint8_t *seen, struct cairn_error *err)
{
    static const char gate_up[] = "experts.gate_up_proj", down[] = "experts.down_proj", conv[] = "self_attn.conv1d.weight";
    const struct cairn_param_table *table = &r->hf->table;
    float *ref = NULL;
    const float *mine[2];
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
            TRY(grad_of(&mine[j], v, p, err));
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
    TRY(gradient_item(r, v, "gradient ", t->name, &e, err));
out:
    if (st == CAIRN_ENUMERIC) {
        item(0, t->name, "the model gives no such gradient");
        st = CAIRN_OK;
    }
    tallies.notes = 0;
    free(name);
    free(ref);
    return st;
}

/* Every gradient of the mean next-token loss. */
static enum cairn_status check_gradients(struct reference *r, struct variant *v, struct cairn_error *err)
{
    struct cairn_st *file = NULL;
    uint8_t *seen = calloc((size_t)r->hf->table.count, 1);
    enum cairn_status st = CAIRN_OK;

    if (!seen)
        TRY(CAIRN_NOMEM(err));
    TRY(open_st(&file, r->dir, "gradients_ce.safetensors", err));
    for (int i = 0; i < cairn_st_count(file); i++)
        TRY(check_gradient(r, v, cairn_st_at(file, i), file, seen, err));
    for (int i = 0; i < r->hf->table.count; i++)
        if (v->grads.tensor[i].buf && !seen[i])
            item(0, r->hf->table.param[i].name, "trained, but the reference has no gradient for it");
out:
    cairn_st_close(file);
    free(seen);
    return st;
}

/* Of the gradient of the clipped surrogate. */
static enum cairn_status check_norm(struct reference *r, struct variant *v, const float *grad, struct cairn_error *err)
{
    float *ref = NULL;
    double sum = 0, off, most;
    int64_t n;
    enum cairn_status st = CAIRN_OK;

    for (int64_t i = 0; i < cairn_tensor_count(&v->grads.flat); i++)
        sum += (double)grad[i] * grad[i];
    TRY(read_f32(&ref, &n, v->st, "grpo_grad_norm", err));
    off = fabs(sqrt(sum) - (double)ref[0]);
    most = r->torch ? NARROW_NORM * fabs((double)ref[0]) : r->tol->grad * fmax(1, fabs((double)ref[0]));
    item(off <= most, "grpo_grad_norm", "%.7g, reference %.7g, error %.2e of %.2e", sqrt(sum), (double)ref[0], off, most);
out:
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
    const float *mine;
    enum cairn_status st = CAIRN_OK;

    for (int j = 0; j < (down || !is_b ? 1 : 2); j++) {
        int l = adapted(r, v, module, leaf[j]), which = l < 0 ? -1 : is_b ? v->m.adapter->lora[l].b : v->m.adapter->lora[l].a;
        int64_t rank, out;

        TRY(grad_of(&mine, v, which, err));
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
    }
out:
    return st;
}

static enum cairn_status check_adapter_gradient(struct reference *r, struct variant *v, const struct cairn_st_tensor *t,
                                                uint8_t *seen, struct cairn_error *err)
{
    static const char head[] = "grad:base_model.model.", tail_a[] = ".lora_A.default.weight", tail_b[] = ".lora_B.default.weight";
    int is_b = cairn_ends_with(t->name, tail_b);
    struct errors e = {0};
    const float *mine;
    float *ref = NULL;
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

        TRY(grad_of(&mine, v, which, err));
        seen[which] = 1;
        if (n != cairn_tensor_count(&v->grads.tensor[which]))
            TRY(cairn_fail(err, CAIRN_ENUMERIC, "shape"));
        for (int64_t i = 0; i < n; i++)
            differ(&e, mine[i], ref[i]);
    }
    TRY(gradient_item(r, v, v->name, t->name, &e, err));
out:
    if (st == CAIRN_ENUMERIC) {
        item(0, t->name, "the adapter gives no such gradient");
        st = CAIRN_OK;
    }
    tallies.notes = 0;
    free(module);
    free(ref);
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

/* ---- variants ---------------------------------------------------------------------------------------------------------- */

static enum cairn_status check_variant(struct reference *r, struct variant *v, struct cairn_error *err)
{
    struct cairn_pass_opts train = {.max_rows = r->rows + GREEDY, .max_seqs = r->nseq, .train = 1};
    struct cairn_pass_opts sample = {.max_rows = r->rows + GREEDY, .max_seqs = r->nseq};
    struct cairn_pass *pass = NULL;
    struct oracle o = {0};
    int first = tallies.count;
    const struct numbers *tested = &v->now;
    double ce, grpo;
    char name[32];
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_pass_create(&v->pass, &v->m, &train, err));
    TRY(cairn_pass_create(&pass, &v->m, &sample, err));
    TRY(cairn_store_create(&v->grads, v->m.adapter ? &v->m.adapter->table : &r->hf->table, r->k.dev, 1, err));
    if (r->torch) { /* the reference's numbers are held against by the oracle, the model under test by it and torch */
        TRY(oracle_open(&o, r, v->peft, v->m.adapter, err));
        TRY(numbers_make(&v->now, r, &o.m, o.pass, &o.grads, err));
        TRY(replay_record(&v->now, r, &o, err));
        replay_begin(&r->k, 0);
        st = numbers_make(&v->narrow, r, &v->m, v->pass, &v->grads, err);
        replay_end(&r->k);
        TRY(st);
        tested = &v->narrow;
    } else {
        TRY(numbers_make(&v->now, r, &v->m, v->pass, &v->grads, err));
    }
    numbers_losses(r, tested->logits, &ce, &grpo);
    TRY(check_logits(r, v, err));
    TRY(check_loss(r, v, "grpo_loss", tested->grpo, grpo, err));
    if (v->m.adapter) {
        TRY(check_adapter_gradients(r, v, err));
    } else {
        TRY(check_loss(r, v, "ce_loss", tested->ce, ce, err));
        TRY(check_gradients(r, v, err));
        TRY(check_norm(r, v, tested->grad, err));
    }
    if (r->torch)
        TRY(draws_run(r, v, &o, first, err));
    TRY(check_bits(r, v, pass, err));
    for (int s = 0; !v->m.adapter && s < r->nseq; s++) {
        snprintf(name, sizeof name, "greedy.%d", s);
        if (cairn_st_find(v->st, name))
            TRY(check_greedy(r, v, pass, s, err));
    }
out:
    oracle_close(&o);
    replay_free();
    numbers_free(&v->now);
    numbers_free(&v->narrow);
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
    if (!json_is_object(json_object_get(r->torch, r->model)) || draws_of(r) < 2 || draws_of(r) > MAX_DRAWS)
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
    if (r->torch)
        draws_judge(r);
    printf("# %d items do not hold\n", failures);
    if (failures)
        TRY(cairn_fail(err, CAIRN_ENUMERIC, "%s: %d items do not hold", r->dir, failures));
out:
    tallies_free();
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
                        "bf16 may be off by 1.1 times what torch's bf16 is off by in each class of items (DIR/../bf16_errors.json)\n"
                        "  fixture_check tests/fixtures/models/glm51-tiny\n"
                        "  fixture_check tests/fixtures/models/glm52-tiny --backend guard\n");
        return CAIRN_EUSAGE;
    }
    st = check(&r, &opts, &err);
    if (st != CAIRN_OK)
        fprintf(stderr, "fixture_check: %s\n", err.text);
    return st;
}
