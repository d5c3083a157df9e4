/* isa_test.c - every fast op has the same bits in every build of the cpu back-end that this machine can run, on one thread or
 * several. It is why the instruction set is not part of the fingerprint (`numerics`). On a machine with one build the test compares
 * threads only.
 */
#include "lab.h"

#define RESULTS 96

struct results {
    int n;
    const char *what[RESULTS];
    uint64_t hash[RESULTS];
};

static void note(struct lab *l, struct results *r, const char *what, struct thing *x)
{
    uint64_t h = 1469598103934665603u;

    thing_down(l, x);
    for (size_t i = 0; i < x->bytes; i++)
        h = (h ^ x->h[i]) * 1099511628211u;
    assert_true(r->n < RESULTS);
    r->what[r->n] = what;
    r->hash[r->n++] = h;
}

#define F(...)    thing_normal(l, thing_new(l, CAIRN_F32, 0, __VA_ARGS__), 1)
#define NEW(...)  thing_new(l, CAIRN_F32, 0, __VA_ARGS__)
#define INT(...)  thing_new(l, CAIRN_I32, 0, __VA_ARGS__)
#define DO(op, a) LAB_OK(l, l->fast->op(&l->c.stream, &(a), &l->err))

static struct thing *ids(struct lab *l, struct thing *x, int lo, int hi)
{
    for (int64_t i = 0; i < thing_count(x); i++)
        *thing_i(x, i) = lab_int(l, lo, hi);
    thing_up(l, x);
    return x;
}

static void products(struct lab *l, struct results *r)
{
    for (int form = CAIRN_NT; form <= CAIRN_TN; form++)
        for (int k = 24; k <= 600; k += 576) {
            int n = 61, o = 43;
            struct thing *x = F(2, n, k),
                         *w = form == CAIRN_NT   ? F(2, o, k)
                              : form == CAIRN_NN ? F(2, k, o)
                                                 : F(2, n, o),
                         *y = form == CAIRN_TN ? NEW(2, k, o) : NEW(2, n, o);
            struct cairn_matmul a = {form, x->t, w->t, y->t, 0.7f, 0, form == CAIRN_TN ? 1 : 4};

            DO(matmul, a);
            note(l, r, "matmul", y);
        }
}

static void pieces(struct lab *l, struct results *r)
{
    struct thing *x = F(2, 50, 70), *g = F(1, 70), *b = F(1, 70), *y = NEW(2, 50, 70), *s = NEW(1, 50), *dy = F(2, 50, 70),
                 *dg = F(1, 70), *p = ids(l, INT(1, 50), 0, 100000);
    struct cairn_rmsnorm n = {x->t, g->t, y->t, s->t, 1e-5f};
    struct cairn_rmsnorm_bwd nb = {x->t, g->t, s->t, dy->t, y->t, dg->t, 0};
    struct cairn_layernorm ln = {x->t, g->t, b->t, y->t, 1e-6f};
    struct cairn_swiglu sw = {x->t, dy->t, y->t, 0};
    struct cairn_swiglu_bwd sb = {x->t, dy->t, F(2, 50, 70)->t, y->t, F(2, 50, 70)->t, 2};
    int64_t heads[3] = {50, 5, 14};
    struct cairn_rope ro = {cairn_tensor_reshape(&x->t, 3, heads), cairn_tensor_reshape(&y->t, 3, heads), p->t, 10000, 0};
    struct thing *sum = thing_new(l, CAIRN_F64, 0, 1, 1), *m = F(1, 9000), *v = F(1, 9000), *w = F(1, 9000), *gr = F(1, 9000);
    struct cairn_sumsq sq = {.x = m->t, .out = sum->t};
    struct cairn_adamw ad = {w->t, gr->t, m->t, v->t, 1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f, 0.5f, 3};

    DO(rmsnorm, n);
    note(l, r, "rmsnorm", y);
    note(l, r, "rstd", s);
    DO(rmsnorm_bwd, nb);
    note(l, r, "rmsnorm_bwd", y);
    note(l, r, "dg", dg);
    DO(layernorm, ln);
    note(l, r, "layernorm", y);
    DO(swiglu, sw);
    note(l, r, "swiglu", y);
    DO(swiglu_bwd, sb);
    note(l, r, "swiglu_bwd", y);
    DO(rope, ro);
    note(l, r, "rope", y);
    DO(sumsq, sq);
    note(l, r, "sumsq", sum);
    for (int i = 0; i < 9000; i++)
        *thing_f(v, i) = fabsf(*thing_f(v, i));
    thing_up(l, v);
    DO(adamw, ad);
    note(l, r, "adamw", w);
    note(l, r, "adamw m", m);
    note(l, r, "adamw v", v);
}

static void attention(struct lab *l, struct results *r)
{
    enum { N = 120, H = 5, W = 40, C = 32, T = 20 };
    struct thing *q = F(3, N, H, W), *k = F(2, N, W), *iq = F(3, N, 4, W), *w = F(2, N, 4), *idx = INT(2, N, T),
                 *o = NEW(3, N, H, C), *lse = NEW(2, N, H);
    struct thing *pos = INT(1, N), *seq = INT(1, N), *start = INT(1, 2), *d_o = F(3, N, H, C), *dq = NEW(3, N, H, W),
                 *dk = F(2, N, W);
    struct cairn_keys keys = {.rows = k->t, .pos = pos->t, .seq = seq->t, .start = start->t};
    struct cairn_index ix = {iq->t, w->t, idx->t, keys, 0.3f};
    struct cairn_attention a = {q->t, idx->t, o->t, lse->t, keys, 0.2f};
    struct cairn_attention_bwd b = {q->t, idx->t, o->t, lse->t, d_o->t, dq->t, dk->t, keys, 0.2f, 0};

    for (int i = 0; i < N; i++)
        *thing_i(seq, i) = i >= 45, *thing_i(pos, i) = i >= 45 ? i - 45 : i;
    *thing_i(start, 0) = 0, *thing_i(start, 1) = 45;
    thing_up(l, seq), thing_up(l, pos), thing_up(l, start);
    DO(index, ix);
    note(l, r, "index", idx);
    DO(attention, a);
    note(l, r, "attention", o);
    note(l, r, "attention lse", lse);
    DO(attention_bwd, b);
    note(l, r, "attention_bwd dq", dq);
    note(l, r, "attention_bwd dk", dk);
}

static void experts(struct lab *l, struct results *r)
{
    enum { N = 40, E = 24, K = 4, D = 30 };
    struct thing *x = F(2, N, E), *bias = F(1, E), *idx = INT(2, N, K), *gate = NEW(2, N, K), *prob = NEW(2, N, K),
                 *dgate = F(2, N, K), *dr = NEW(2, N, E);
    struct thing *off = INT(1, E + 1), *token = INT(1, N * K), *where = INT(2, N, K), *rows = F(2, N * K, D), *y = NEW(2, N, D),
                 *dx = F(2, N * K, D);
    struct cairn_router a = {x->t, bias->t, idx->t, gate->t, prob->t, {0}, 4, 2, 1, 2.5f};
    struct cairn_router_bwd b = {idx->t, prob->t, dgate->t, dr->t, 1, 2.5f};
    struct cairn_dispatch d = {idx->t, off->t, token->t, where->t};
    struct cairn_combine c = {rows->t, gate->t, where->t, {0}, y->t};
    struct cairn_combine_bwd cb = {rows->t, gate->t, where->t, y->t, dx->t, dgate->t};
    struct cairn_matmul_grouped g;
    struct thing *w = F(3, E, 17, D), *h = NEW(2, N * K, 17);

    DO(router, a);
    note(l, r, "router", idx);
    note(l, r, "gate", gate);
    note(l, r, "prob", prob);
    DO(router_bwd, b);
    note(l, r, "router_bwd", dr);
    DO(dispatch, d);
    note(l, r, "dispatch", where);
    DO(combine, c);
    note(l, r, "combine", y);
    DO(combine_bwd, cb);
    note(l, r, "combine_bwd", dx);
    note(l, r, "dgate", dgate);
    g = (struct cairn_matmul_grouped){CAIRN_NT, rows->t, w->t, h->t, off->t, 1, 0, 1};
    DO(matmul_grouped, g);
    note(l, r, "matmul_grouped", h);
}

static void head(struct lab *l, struct results *r)
{
    enum { N = 70, D = 20, V = 132 };
    struct thing *z = F(2, N, D), *w = F(2, V, D), *t = ids(l, INT(1, N), -1, V - 1), *lp = NEW(1, N), *lse = NEW(1, N),
                 *h = NEW(1, N), *best = INT(1, N), *g = F(1, N), *gh = F(1, N);
    struct thing *dz = NEW(2, N, D), *dw = F(2, V, D), *logits = F(2, N, V), *tok = INT(1, N), *ls = NEW(1, N),
                 *n = ids(l, INT(1, N), 0, 1000), *mask = thing_new(l, CAIRN_U8, 0, 1, N);
    struct thing *stats = thing_new(l, CAIRN_F64, 0, 1, CAIRN_LS_COUNT), *dcur = NEW(1, N), *dent = NEW(1, N), *old = F(1, N);
    struct cairn_logprob a = {z->t, w->t, t->t, lp->t, lse->t, h->t, best->t, 1.1f, 4};
    struct cairn_logprob_bwd b = {z->t, w->t, t->t, lse->t, h->t, g->t, gh->t, dz->t, dw->t, 1.1f, 4};
    struct cairn_sample s = {logits->t, n->t, n->t, n->t, tok->t, lp->t, ls->t, 7, 8, 1.3f, 0.9f, 0.001f, 50, 0, 4, {0}};
    struct cairn_policy_loss p = {.cur = lp->t,
                                  .old = old->t,
                                  .smp = g->t,
                                  .ref = gh->t,
                                  .adv = gh->t,
                                  .weight = g->t,
                                  .entropy = h->t,
                                  .mask = mask->t,
                                  .dcur = dcur->t,
                                  .dentropy = dent->t,
                                  .stats = stats->t,
                                  .correction = CAIRN_CORRECT_TIS,
                                  .kl = CAIRN_KL_K3,
                                  .clip_low = 0.2f,
                                  .clip_high = 0.28f,
                                  .correct_high = 2,
                                  .kl_coef = 0.1f,
                                  .entropy_coef = 0.01f};

    DO(logprob, a);
    note(l, r, "logprob", lp);
    note(l, r, "lse", lse);
    note(l, r, "entropy", h);
    note(l, r, "argmax", best);
    memset(mask->h, 1, N);
    memset(stats->h, 0, stats->bytes);
    thing_up(l, mask), thing_up(l, stats);
    DO(policy_loss, p);
    note(l, r, "policy_loss", dcur);
    note(l, r, "stats", stats);
    DO(logprob_bwd, b);
    note(l, r, "logprob_bwd dz", dz);
    note(l, r, "logprob_bwd dw", dw);
    DO(sample, s);
    note(l, r, "sample", tok);
    note(l, r, "sample logprob", lp);
    note(l, r, "logprob_sampled", ls);
}

static void flash(struct lab *l, struct results *r)
{
    enum { N = 75, H = 3, D = 20, P = H * D, J = 3, M = J * (J + 2), K = 4, POOL = 4 };
    struct thing *pos = INT(1, N), *seq = INT(1, N), *start = INT(1, 2), *x = F(2, N, P), *y = NEW(2, N, P), *w = F(2, P, K),
                 *tail = F(3, 2, K, P), *dx = NEW(2, N, P), *dw = F(2, P, K), *b = F(2, N, H), *a_log = F(1, H), *bias = F(1, P),
                 *g = NEW(2, N, P), *beta = NEW(2, N, H), *q = F(3, N, H, D), *k = F(3, N, H, D), *v = F(3, N, H, D),
                 *o = NEW(3, N, H, D), *kept = F(4, 2, H, CAIRN_KDA_ROWS(D), D), *d_o = F(3, N, H, D), *db = NEW(2, N, H);
    struct thing *streams = F(3, N, J, P), *m = F(2, N, M), *base = F(1, M), *scale = F(1, 3), *mix = NEW(2, N, M), *rs = NEW(1, N),
                 *out = NEW(3, N, J, P), *dmix = NEW(2, N, M), *ape = F(2, POOL, P), *rows = F(2, N, P), *gain = F(1, P);
    int64_t dim[3] = {N, H, D};
    struct cairn_tensor gh = cairn_tensor_reshape(&g->t, 3, dim);
    struct cairn_short_conv conv = {x->t, w->t, y->t, pos->t, seq->t, tail->t};
    struct cairn_short_conv_bwd conv_bwd = {x->t, w->t, y->t, dx->t, dw->t, pos->t, seq->t};
    struct cairn_kda_gate gate = {x->t, b->t, a_log->t, bias->t, g->t, beta->t, -5};
    struct cairn_kda_gate_bwd gate_bwd = {x->t, b->t, a_log->t, bias->t, g->t, beta->t, dx->t, db->t, a_log->t, bias->t, -5};
    struct cairn_kda kda = {q->t, k->t, v->t, gh, beta->t, o->t, pos->t, seq->t, kept->t, 0.2f, 1e-6f};
    struct cairn_kda_bwd kda_bwd = {q->t, k->t, v->t,  gh,     beta->t, d_o->t, q->t, k->t,
                                    v->t, gh,   db->t, pos->t, seq->t,  0.2f,   1e-6f};
    struct cairn_gated_norm norm = {x->t, y->t, gain->t, dx->t, rs->t, 1e-5f};
    struct cairn_gated_norm_bwd norm_bwd = {x->t, y->t, gain->t, rs->t, dx->t, dx->t, y->t, gain->t};
    struct cairn_hyper hyper = {streams->t, m->t, base->t, scale->t, mix->t, rs->t, y->t, 1e-5f, 1e-6f, 20};
    struct cairn_hyper_out over = {streams->t, x->t, mix->t, out->t};
    struct cairn_hyper_out_bwd over_bwd = {streams->t, x->t, mix->t, out->t, dx->t, dmix->t, out->t};
    struct cairn_hyper_bwd hyper_bwd = {streams->t, m->t,   base->t, scale->t, rs->t, dx->t, dmix->t,
                                        dmix->t,    out->t, base->t, scale->t, 1e-6f, 20};
    struct cairn_pool_keys pool = {x->t, y->t, ape->t, {0}, {.rows = rows->t, .pos = pos->t, .seq = seq->t, .start = start->t}};

    for (int i = 0; i < N; i++)
        *thing_i(seq, i) = i >= 41, *thing_i(pos, i) = i >= 41 ? i - 41 : i;
    *thing_i(start, 0) = 0, *thing_i(start, 1) = 10;
    thing_up(l, seq), thing_up(l, pos), thing_up(l, start);
    DO(short_conv, conv);
    note(l, r, "short_conv", y);
    DO(short_conv_bwd, conv_bwd);
    note(l, r, "short_conv_bwd", dx), note(l, r, "short_conv_bwd dw", dw);
    DO(kda_gate, gate);
    note(l, r, "kda_gate", g), note(l, r, "kda_gate beta", beta);
    DO(kda, kda);
    note(l, r, "kda", o), note(l, r, "kda state", kept);
    DO(kda_bwd, kda_bwd);
    note(l, r, "kda_bwd dq", q), note(l, r, "kda_bwd dk", k), note(l, r, "kda_bwd dg", g), note(l, r, "kda_bwd dbeta", db);
    DO(kda_gate_bwd, gate_bwd);
    note(l, r, "kda_gate_bwd", dx), note(l, r, "kda_gate_bwd a_log", a_log);
    DO(gated_norm, norm);
    note(l, r, "gated_norm", dx);
    DO(gated_norm_bwd, norm_bwd);
    note(l, r, "gated_norm_bwd", dx), note(l, r, "gated_norm_bwd dz", y), note(l, r, "gated_norm_bwd dw", gain);
    DO(hyper, hyper);
    note(l, r, "hyper", y), note(l, r, "hyper mix", mix);
    DO(hyper_out, over);
    note(l, r, "hyper_out", out);
    DO(hyper_out_bwd, over_bwd);
    note(l, r, "hyper_out_bwd", dmix);
    DO(hyper_bwd, hyper_bwd);
    note(l, r, "hyper_bwd", dmix), note(l, r, "hyper_bwd dx", out), note(l, r, "hyper_bwd base", base);
    DO(pool_keys, pool);
    note(l, r, "pool_keys", rows);
}

static void the_same_bits(void **state)
{
    static const char *const isas[] = {"", "x86-64-v2", "x86-64-v3", "x86-64-v4"};
    static struct results first, now;
    int builds = 0;

    (void)state;
    for (int i = 0; i < 4; i++)
        for (int threads = 1; threads <= 3; threads++) {
            const struct cairn_compute_opts o = {.backend = "cpu", .threads = threads};
            struct lab l;

            memset(&l, 0, sizeof l);
            setenv("CAIRN_CPU_ISA", isas[i], 1);
            if (cairn_compute_open(&l.c, &o, &l.err) != CAIRN_OK) {
                if (i == 0)
                    fail_msg("%s", l.err.text);
                continue; /* another machine's */
            }
            l.device = isas[i];
            l.fast = l.c.backend->ops;
            builds++;
            now.n = 0;
            products(&l, &now);
            pieces(&l, &now);
            attention(&l, &now);
            experts(&l, &now);
            head(&l, &now);
            lab_clear(&l);
            flash(&l, &now);
            for (int k = 0; builds > 1 && k < now.n; k++)
                if (now.hash[k] != first.hash[k])
                    fail_msg("%s, %d threads: %s has other bits", isas[i], threads, now.what[k]);
            if (builds == 1)
                first = now;
            lab_close(&l);
        }
    assert_true(builds >= 2);
    unsetenv("CAIRN_CPU_ISA");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_bits)};

    return LAB_RUN(tests);
}
