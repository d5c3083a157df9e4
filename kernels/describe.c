/* describe.c - the table of describe.h, in the order of CAIRN_OPS; an op without an entry does not compile. */
#include "kernels/describe.h"

#include <stddef.h>

#define I(m) {#m, offsetof(OP, m), CAIRN_OP_IN}
#define W(m) {#m, offsetof(OP, m), CAIRN_OP_WEIGHT}
#define K(m) {#m, offsetof(OP, m), CAIRN_OP_KEYS}
#define O(m) {#m, offsetof(OP, m), CAIRN_OP_OUT}
#define A(m) {#m, offsetof(OP, m), CAIRN_OP_ADDED}
#define KEYS K(keys.rows), I(keys.pos), I(keys.seq), I(keys.start), I(keys.pages)
#define ENTRY(op, back, ...) static const struct cairn_op_info info_##op = {#op, sizeof(struct cairn_##op), back, {__VA_ARGS__}};

/* clang-format off */
#define OP struct cairn_matmul
ENTRY(matmul, 0, I(x), W(w), A(y))
#undef OP
#define OP struct cairn_matmul_grouped
ENTRY(matmul_grouped, 0, I(x), W(w), A(y), I(offsets))
#undef OP
#define OP struct cairn_rmsnorm
ENTRY(rmsnorm, 0, I(x), W(g), O(y), O(rstd))
#undef OP
#define OP struct cairn_rmsnorm_bwd
ENTRY(rmsnorm_bwd, 1, I(x), W(g), I(rstd), I(dy), A(dx), A(dg))
#undef OP
#define OP struct cairn_layernorm
ENTRY(layernorm, 0, I(x), W(g), W(b), O(y))
#undef OP
#define OP struct cairn_rope
ENTRY(rope, 0, I(x), O(y), I(pos))
#undef OP
#define OP struct cairn_index
ENTRY(index, 0, I(q), I(w), O(idx), KEYS)
#undef OP
#define OP struct cairn_attention
ENTRY(attention, 0, I(q), I(idx), O(o), O(lse), KEYS)
#undef OP
#define OP struct cairn_attention_bwd
ENTRY(attention_bwd, 1, I(q), I(idx), I(o), I(lse), I(d_o), O(dq), A(dk), KEYS)
#undef OP
#define OP struct cairn_router
ENTRY(router, 0, I(r), W(bias), O(idx), O(gate), O(prob), I(forced))
#undef OP
#define OP struct cairn_router_bwd
ENTRY(router_bwd, 1, I(idx), I(prob), I(dgate), O(dr))
#undef OP
#define OP struct cairn_dispatch
ENTRY(dispatch, 0, I(idx), O(offsets), O(token), O(where))
#undef OP
#define OP struct cairn_combine
ENTRY(combine, 0, I(x), I(gate), I(where), I(base), O(y))
#undef OP
#define OP struct cairn_combine_bwd
ENTRY(combine_bwd, 1, I(x), I(gate), I(where), I(dy), O(dx), O(dgate))
#undef OP
#define OP struct cairn_swiglu
ENTRY(swiglu, 0, I(a), I(u), O(h))
#undef OP
#define OP struct cairn_swiglu_bwd
ENTRY(swiglu_bwd, 1, I(a), I(u), I(dh), O(da), O(du))
#undef OP
#define OP struct cairn_rows
ENTRY(rows, 0, I(src), I(src_index), A(dst), I(dst_index))
#undef OP
#define OP struct cairn_embed_bwd
ENTRY(embed_bwd, 1, I(ids), I(dy), A(dtable))
#undef OP
#define OP struct cairn_axpby
ENTRY(axpby, 0, I(x), A(y))
#undef OP
#define OP struct cairn_cast
ENTRY(cast, 0, I(src), O(dst))
#undef OP
#define OP struct cairn_logprob
ENTRY(logprob, 0, I(z), W(w), I(target), O(logprob), O(lse), O(entropy), O(argmax))
#undef OP
#define OP struct cairn_logprob_bwd
ENTRY(logprob_bwd, 1, I(z), W(w), I(target), I(lse), I(entropy), I(dlogprob), I(dentropy), O(dz), A(dw))
#undef OP
#define OP struct cairn_sample
ENTRY(sample, 0, I(logits), I(prompt), I(sample), I(position), O(token), O(logprob), O(logprob_sampled))
#undef OP
#define OP struct cairn_policy_loss
ENTRY(policy_loss, 1, I(cur), I(old), I(smp), I(ref), I(adv), I(weight), I(entropy), I(mask), I(seq), O(dcur), O(dentropy), A(stats))
#undef OP
#define OP struct cairn_adamw
ENTRY(adamw, 1, A(p), I(g), A(m), A(v))
#undef OP
#define OP struct cairn_sumsq
ENTRY(sumsq, 1, I(x), O(out), I(pieces))
#undef OP
#define OP struct cairn_short_conv
ENTRY(short_conv, 0, I(x), W(w), O(y), I(pos), I(seq), A(tail))
#undef OP
#define OP struct cairn_short_conv_bwd
ENTRY(short_conv_bwd, 1, I(x), W(w), I(dy), O(dx), A(dw), I(pos), I(seq))
#undef OP
#define OP struct cairn_kda_gate
ENTRY(kda_gate, 0, I(f), I(b), W(a_log), W(dt_bias), O(g), O(beta))
#undef OP
#define OP struct cairn_kda_gate_bwd
ENTRY(kda_gate_bwd, 1, I(f), I(b), W(a_log), W(dt_bias), I(dg), I(dbeta), O(df), O(db), A(da_log), A(ddt_bias))
#undef OP
#define OP struct cairn_kda
ENTRY(kda, 0, I(q), I(k), I(v), I(g), I(beta), O(o), I(pos), I(seq), A(state))
#undef OP
#define OP struct cairn_kda_bwd
ENTRY(kda_bwd, 1, I(q), I(k), I(v), I(g), I(beta), I(d_o), O(dq), O(dk), O(dv), O(dg), O(dbeta), I(pos), I(seq))
#undef OP
#define OP struct cairn_gated_norm
ENTRY(gated_norm, 0, I(x), I(z), W(w), O(y), O(rstd))
#undef OP
#define OP struct cairn_gated_norm_bwd
ENTRY(gated_norm_bwd, 1, I(x), I(z), W(w), I(rstd), I(dy), O(dx), O(dz), A(dw))
#undef OP
#define OP struct cairn_hyper
ENTRY(hyper, 0, I(x), I(m), W(base), W(scale), O(mix), O(rstd), O(y))
#undef OP
#define OP struct cairn_hyper_bwd
ENTRY(hyper_bwd, 1, I(x), I(m), W(base), W(scale), I(rstd), I(dy), I(dmix), O(dm), A(dx), A(dbase), A(dscale))
#undef OP
#define OP struct cairn_hyper_out
ENTRY(hyper_out, 0, I(x), I(y), I(mix), O(out))
#undef OP
#define OP struct cairn_hyper_out_bwd
ENTRY(hyper_out_bwd, 1, I(x), I(y), I(mix), I(dout), O(dy), O(dmix), O(dx))
#undef OP
#define OP struct cairn_streams_sum
ENTRY(streams_sum, 0, I(x), O(y))
#undef OP
#define OP struct cairn_streams_spread
ENTRY(streams_spread, 0, I(x), O(y))
#undef OP
#define OP struct cairn_pool_keys
ENTRY(pool_keys, 0, I(k), I(gate), W(ape), A(tail), A(keys.rows), I(keys.pos), I(keys.seq), I(keys.start), I(keys.pages))
#undef OP
#define OP struct cairn_pool_expand
ENTRY(pool_expand, 0, I(choice), I(pos), O(idx))
#undef OP
#define OP struct cairn_transfer
ENTRY(transfer, 0, I(x), A(y), I(runs))
#undef OP
#define OP struct cairn_tiles
ENTRY(tiles, 0, I(x), I(runs), O(out))
#undef OP
#define OP struct cairn_ship
ENTRY(ship, 0, I(x), A(y), I(runs), O(out))
#undef OP
#define OP struct cairn_attention_heads_bwd
ENTRY(attention_heads_bwd, 1, I(q_nope), I(q_rope), I(k_nope), I(k_rope), I(v), I(o), I(lse), I(d_o), O(dq), O(dk_nope), A(dk_rope), O(dv), I(start))
#undef OP
/* clang-format on */

const struct cairn_op_info *cairn_op_info(enum cairn_op_number op)
{
#define AT(op) &info_##op,
    static const struct cairn_op_info *const all[] = {CAIRN_OPS(AT)};

    return all[op];
}
