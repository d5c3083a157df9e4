/* kernels.h - the op table: every op's contract in one place; back-ends (cpu/, cuda/, ascend/) fill it in.
 *
 * A back-end is a shared object that exports `const struct cairn_backend *cairn_backend_entry(void)`; kernels/backend.h
 * opens one at run time. An op takes a stream, a struct of tensors and scalars, and an error; it enqueues its work on the
 * stream and may return before the work is done. It knows nothing of models, files or ranks.
 *
 * Letters: N rows (tokens of a batch), D width, K reduced width, F expert width, E experts, k experts per token, H heads,
 * C latent width, R rope width, V vocabulary, S key rows, B sequences, T index_topk; in the ops of GLM-5.3-Flash: J streams.
 *
 * Types: "act" is the activation type (cpu: f32; cuda: bf16, or f32 when opened so), the same for all act tensors of one call.
 * Weights are f32 or bf16. Everything marked f32, f64, i32 is that on every back-end. Unless a tensor is marked
 * "strided", it is dense. Strided: any stride in all dimensions but the last, whose stride is 1.
 *
 * Rules for every op, proved by tests/conformance:
 *  - Row-invariant: what is computed for row n depends on row n (and on the keys of its sequence), never on N, on other rows,
 *    or on how rows are cut into calls. Bits, not tolerance. The exceptions are marked "sum over rows".
 *  - Deterministic: no atomics on floats; sums run in an order fixed by the contract, not by threads.
 *  - `segments` V (power of two, 1 = plain): the reduced dimension, which must be a multiple of V, is accumulated inside V equal
 *    consecutive segments, and these are added by a fixed binary tree: ((s0+s1)+(s2+s3))+...
 *  - Outputs are fully written (no need to clear them) unless marked "+=" .
 *  - N = 0 is legal and does nothing. Aliasing only where the contract allows it.
 *  - Wrong shapes or types are CAIRN_EBUG with the op's name: the caller checks what comes from outside.
 */
#ifndef CAIRN_KERNELS_KERNELS_H
#define CAIRN_KERNELS_KERNELS_H

#include <stdint.h>

#include "base/buffer.h"

#define CAIRN_BACKEND_ABI 10

/* ---- dense products ------------------------------------------------------------------------------------------- */

enum cairn_form {
    CAIRN_NT, /* y (N, O) = x (N, K) . w (O, K)^T      forward            sum over K, row-invariant */
    CAIRN_NN, /* y (N, O) = x (N, K) . w (K, O)        input gradient     sum over K, row-invariant */
    CAIRN_TN  /* y (O, I) = x (N, O)^T . w (N, I)      weight gradient    sum over rows, n ascending */
};

/* y = alpha * product, or y += alpha * product with accumulate: each sum is finished in fp32, multiplied by alpha (skipped
 * when 1), then added to y. x, w, y strided; either all have 2 dimensions, or all have 3 and dimension 0 is a batch
 * (heads). y is act or f32; in TN f32. Accumulation fp32, k ascending inside a segment, one fma a term. */
struct cairn_matmul {
    enum cairn_form form;
    struct cairn_tensor x, w, y;
    float alpha;
    int accumulate;
    int segments;
};

/* The same for rows that are sorted by group (experts): rows offsets[e] .. offsets[e+1] belong to group e.
 * NT: w (E, O, K). NN: w (E, K, O). TN: y (E, O, I), x (N, O), w (N, I); an empty group's gradient gets nothing added.
 * offsets i32 (E+1), offsets[0] = 0, offsets[E] = N; checked on the device side where that is cheap. */
struct cairn_matmul_grouped {
    enum cairn_form form;
    struct cairn_tensor x, w, y;
    struct cairn_tensor offsets;
    float alpha;
    int accumulate;
    int segments;
};

/* ---- norms ---------------------------------------------------------------------------------------------------- */

/* y = g * x / sqrt(mean(x^2) + eps) over the last dimension (arXiv:1910.07467, eq. 4; eps inside the root).
 * x, y act (N, D) strided; g (D) weight; rstd f32 (N) or absent. y may be x. cuda: bf16(x_hat) * g, as HF has it. */
struct cairn_rmsnorm {
    struct cairn_tensor x, g, y, rstd;
    float eps;
};
/* t = dy*g; dx = rstd * (t - xh * mean(t*xh)), xh = x*rstd; dg += sum over rows dy*xh (f32, n ascending; absent: skip).
 * x, dy, dx strided, dx may be dy; accumulate: dx +=. cuda: dg in runs of 64 rows, added ascending. */
struct cairn_rmsnorm_bwd {
    struct cairn_tensor x, g, rstd, dy, dx, dg;
    int accumulate;
};

/* y = g*(x-mean)/sqrt(var+eps) + b; x, y act (N, D) strided. The indexer's key norm; frozen, hence no backward. */
struct cairn_layernorm {
    struct cairn_tensor x, g, b, y;
    float eps;
};

/* ---- rotary positions ----------------------------------------------------------------------------------------- */

/* Interleaved RoPE (arXiv:2104.09864): pair j = (u[2j], u[2j+1]) of each head turned by pos * theta^(-2j/R), written in place
 * of the pair. x, y act (N, H, R) strided, y may be x; pos i32 (N). inverse: by the negative angle (the backward).
 * Angles: inv_freq and angle in fp32 as the models define them, cos and sin to fp32 accuracy for any position. */
struct cairn_rope {
    struct cairn_tensor x, y, pos;
    float theta;
    int inverse;
};

/* ---- keys of attention: packed or paged ------------------------------------------------------------------------- */

/* Which key rows a query sees. Query n sits at position pos[n] of sequence seq[n] and may see positions 0 .. pos[n] of it.
 * Position p of sequence b is row   pages absent:  start[b] + p              (packed: training)
 *                                   else           pages[b][p / page] * page + p % page     (the sampler's cache)  */
struct cairn_keys {
    struct cairn_tensor rows;  /* act (S, W), strided */
    struct cairn_tensor pos;   /* i32 (N) */
    struct cairn_tensor seq;   /* i32 (N) */
    struct cairn_tensor start; /* i32 (B), packed only */
    struct cairn_tensor pages; /* i32 (B, P), paged only */
    int page;                  /* positions a page */
};

/* DSA lightning indexer (DeepSeek-V3.2): I[n,s] = sum_h w[n,h] * relu(scale * q[n,h].k[s]), h ascending, in fp32; idx[n] = the
 * min(T, pos[n]+1) largest, ties to the lower position, NaN as -inf; stored ascending, padded with -1. When pos[n] < T all
 * positions are taken without looking at scores. q act (N, Hi, Di) strided; w f32 (N, Hi) strided; keys.rows act (S, Di);
 * idx i32 (N, T). */
struct cairn_index {
    struct cairn_tensor q, w, idx;
    struct cairn_keys keys;
    float scale;
};

/* Sparse attention with one shared key head (absorbed MLA): keys W = C + R wide, values are their first C channels.
 * l[h,s] = scale * q[n,h].k[s] over s in idx[n]; P = softmax; o[n,h] = sum_s P * k[s][0:C]; lse = ln sum exp l.
 * o sums over s ascending; the order of sum exp depends on position and choice alone. idx: ascending positions that row n sees, at
 * least one, then -1 (else CAIRN_EBUG). A key that is not finite may reach rows of its sequence behind it that do not choose it.
 * q act (N, H, W) strided; o act (N, H, C) strided; lse f32 (N, H); idx i32 (N, T). */
struct cairn_attention {
    struct cairn_tensor q, idx, o, lse;
    struct cairn_keys keys;
    float scale;
};
/* Packed keys only; q, o, d_o, dq strided. D = do.o; dl = P*(do.k[0:C] - D); dq = scale * sum_s dl*k (strided); dk[s] += scale *
 * sum dl*q + [P*do | 0]: sum over rows n ascending, heads ascending inside; dk f32 (S, W). Long calls are taken in runs of rows,
 * whose length depends on the shapes alone; the two sums of a run are added to each other, then to dk. all_seen: the caller's word that every
 * row chooses all it sees and that sequences stand one behind the other, their rows in order: a back-end may leave out what other rows need
 * (cuda: CAIRN_EBUG where it needed that). It changes no bit. */
struct cairn_attention_bwd {
    struct cairn_tensor q, idx, o, lse, d_o, dq, dk;
    struct cairn_keys keys;
    float scale;
    int all_seen;
};

/* The same backward in the heads' own space, for packed sequences whose rows choose all they see: keys and values of each head in
 * the place of latents, k = [k_nope | k_rope], q alike, P = nope + R. l = scale * q.k; P, D, dl as above; dq = scale * sum_s dl*k,
 * dk = scale * sum_n dl*q, dv = sum_n P*do: keys and rows ascending, dk_rope (which heads have in common) heads ascending, +=. lse
 * may come from the latent form. Rows of sequence b: start[b] .. start[b+1] - 1 (N for the last). Sequences of more than `longest`
 * rows are left out: their dq is not written, their dk_nope and dv are 0. q_nope, k_nope, dk_nope act (N, H, nope), q_rope act (N,
 * H, R), k_rope act (N, R), v, o, d_o, dv act (N, H, V), dq act (N, H, P), all strided; dk_rope f32 (N, R) strided; lse f32 (N, H);
 * start i32 (B). A back-end has it for the widths that its attention_heads_fits says. */
struct cairn_attention_heads_bwd {
    struct cairn_tensor q_nope, q_rope, k_nope, k_rope, v, o, lse, d_o, dq, dk_nope, dk_rope, dv, start;
    int longest;
    float scale;
};

/* ---- mixture of experts --------------------------------------------------------------------------------------- */

/* Sigmoid router with selection bias (DeepSeek-V3, noaux_tc). s = sigmoid(r); choice by s + bias inside the topk_group best of
 * n_group groups (group score: its two largest; ties to the lower index); gate = s, divided by (sum + 1e-20) if norm, times
 * scale; chosen experts are stored ascending. n_group <= 1: no groups. NaN loses against every number. r f32 (N, E), strided; bias
 * f32 (E) or absent; idx i32 (N, k); gate, prob f32 (N, k), prob = s of the chosen. forced (i32 (N, k), ascending; absent: none):
 * take these experts, gates from this s (router replay). */
struct cairn_router {
    struct cairn_tensor r, bias, idx, gate, prob, forced;
    int n_group, topk_group, norm;
    float scale;
};
/* dr f32 (N, E): zero but for the chosen: p = prob, P = sum p + 1e-20; dp = scale/P * (dgate - sum dgate*p / P) (norm) or
 * scale * dgate; dr = dp * p * (1 - p). */
struct cairn_router_bwd {
    struct cairn_tensor idx, prob, dgate, dr;
    int norm;
    float scale;
};

/* Sorts the N*k choices by expert, tokens ascending inside: offsets i32 (E+1); token i32 (N*k): token of sorted row i;
 * where i32 (N, k): sorted row of choice (n, j). */
struct cairn_dispatch {
    struct cairn_tensor idx, offsets, token, where;
};

/* y[n] = base[n] (absent: 0) + sum_j gate[n,j] * x[where[n,j]], j ascending, fp32. x act (M, D); y, base act (N, D), y may be base.
 * gate absent: all 1 (this is also the backward of a gather by token: dx[n] = base + sum_j dxs[where[n,j]]). */
struct cairn_combine {
    struct cairn_tensor x, gate, where, base, y;
};
/* dx[where[n,j]] = gate[n,j] * dy[n]; dgate f32 (N, k) [n,j] = dy[n].x[where[n,j]]. gate absent: all 1; dgate (and then x) may be
 * absent; dx may be x. */
struct cairn_combine_bwd {
    struct cairn_tensor x, gate, where, dy, dx, dgate;
};

/* h = silu(a) * u; limit > 0 (GLM-5.3-Flash): a = min(a, limit), u = clamp(u, -limit, limit). a, u, h act (N, F) strided. */
struct cairn_swiglu {
    struct cairn_tensor a, u, h;
    float limit;
};
/* du = dh * silu(a); da = dh * u * sg*(1 + a*(1-sg)); zero where clamped. da may be a, du may be u. */
struct cairn_swiglu_bwd {
    struct cairn_tensor a, u, dh, da, du;
    float limit;
};

/* ---- rows in runs (GLM-5.3-Flash) -------------------------------------------------------------------------------------- */

/* Ops with pos and seq, i32 (N), go along sequences: row n is position pos[n] of sequence seq[n]. The rows of a sequence are a run:
 * adjacent, positions ascending without a gap, one run a sequence (else CAIRN_EBUG). What lies before a run's first row is in the
 * op's `tail` or `state`, which holds something for each of B sequences and is brought up to date by the call. Both absent
 * (training): sequences are whole, each run begins at position 0. A position 0 starts afresh, whatever the tail or state holds, NaN
 * too. Cutting a sequence into calls anyhow changes no bit. Fork: copy the sequence's entry of tail or state.
 * Sums over rows, in all ops of GLM-5.3-Flash: cuda takes them in runs of 64 rows, then of 64 such sums, and so on, ascending. */

/* Depthwise causal convolution of K taps, then SiLU (Kimi Linear, arXiv:2510.26692): u[n,c] = sum_j w[c,j] * x[n-K+1+j, c], j
 * ascending, rows before position 0 are 0; y = u * sigmoid(u). x, y act (N, C) strided; w (C, K) weight, K <= 8; tail act (B, K,
 * C): position p is row p mod K. */
struct cairn_short_conv {
    struct cairn_tensor x, w, y, pos, seq, tail;
};
/* du = dy * s*(1 + u*(1-s)), s = sigmoid(u), u again from x; dx[n] = sum_j w[c,j] * du[n+K-1-j], j ascending, inside the sequence;
 * dw f32 (C, K) += sum over rows (absent: skip). Whole sequences. x, dy, dx strided. */
struct cairn_short_conv_bwd {
    struct cairn_tensor x, w, dy, dx, dw, pos, seq;
};

/* Gates of KDA, H heads of D channels. a = f + dt_bias; bound < 0: g = bound * sigmoid(exp(a_log[h]) * a); bound = 0: g =
 * -exp(a_log[h]) * softplus(a). beta = sigmoid(b). f act (N, H*D), b act (N, H), both strided; a_log f32 (H); dt_bias f32 (H*D); g
 * f32 (N, H*D): ln of the decay; beta f32 (N, H). */
struct cairn_kda_gate {
    struct cairn_tensor f, b, a_log, dt_bias, g, beta;
    float bound;
};
/* With s = sigmoid(A a), A = exp(a_log): e = dg * bound * s*(1-s), da = A * e, da_log[h] += sum over rows and channels e*A*a (bound
 * = 0: da = -dg * A * sigmoid(a), da_log[h] += dg * g); df = da; ddt_bias += sum over rows da; db = dbeta * beta * (1 - beta). df,
 * db act, strided, db may be b, df may be f. da_log f32 (H), ddt_bias f32 (H*D): sums over rows, may be absent. da_log: each
 * channel's sum over rows, then channels. */
struct cairn_kda_gate_bwd {
    struct cairn_tensor f, b, a_log, dt_bias, dg, dbeta, df, db, da_log, ddt_bias;
    float bound;
};

/* Kimi delta attention (arXiv:2510.26692), per head, state S (D keys, D values) in fp32, zero before position 0:
 *     qh = q / sqrt(sum q^2 + eps) * scale, kh = k / sqrt(sum k^2 + eps), a = exp(g)
 *     S~ = diag(a) S, d = beta * (v - S~^T kh), S = S~ + kh d^T, o = S^T qh.
 * In chunks of 16 positions (p / 16). S: the state before the chunk; P_i = a_0 .. a_i; kh~_s = kh_s * a_{s+1} .. a_i, before row i:
 *     d_i = beta_i (v_i - S^T (kh_i P_i) - sum_{s<i} (kh_i.kh~_s) d_s),  o_i = S^T (qh_i P_i) + sum_{s<=i} (qh_i.kh~_s) d_s,
 * and S <- diag(P) S + sum_s kh~_s d_s^T after row 15. Decays are running products: no exponential of a sum, no quotient, nothing
 * above 1 for any g <= 0. A row needs the chunk's earlier rows alone, so decoding is this algorithm one row at a time.
 * q, k, v, o act (N, H, D) strided, D a multiple of 4 (cuda: at most 128); g f32 (N, H, D); beta f32 (N, H).
 * state f32 (B, H, CAIRN_KDA_ROWS(D), D): S by key; 16 rows kh~; 16 rows d; P. Open rows: (next position) mod 16.
 * The sums over s and over channels: kda.h, kda.cuh. */
#define CAIRN_KDA_CHUNK   16
#define CAIRN_KDA_ROWS(D) ((D) + 2 * CAIRN_KDA_CHUNK + 1)
struct cairn_kda {
    struct cairn_tensor q, k, v, g, beta, o, pos, seq, state;
    float scale, eps;
};
/* Gradients of the inputs, through both normalisations; whole sequences. States come again from the inputs. dq, dk, dv act (N, H,
 * D), strided, may be q, k, v; dg f32 (N, H, D), may be g; dbeta f32 (N, H). Equal bits packed or alone. */
struct cairn_kda_bwd {
    struct cairn_tensor q, k, v, g, beta, d_o, dq, dk, dv, dg, dbeta, pos, seq;
    float scale, eps;
};

/* y = w * x*rstd * sigmoid(z), rstd = 1/sqrt(mean(x^2) + eps); one rounding. x, z, y act (N, D) strided, y may be x; w (D) weight;
 * rstd f32 (N) or absent. A row is one head of a token. */
struct cairn_gated_norm {
    struct cairn_tensor x, z, w, y, rstd;
    float eps;
};
/* xh = x*rstd, s = sigmoid(z): dz = dy*w*xh*s*(1-s); t = dy*w*s, dx = rstd * (t - xh*mean(t*xh)); dw f32 (D) += sum over rows
 * dy*xh*s (absent: skip). dx may be dy or x, dz may be z; all strided. */
struct cairn_gated_norm_bwd {
    struct cairn_tensor x, z, w, rstd, dy, dx, dz, dw;
};

/* ---- hyper-connections (mHC, arXiv:2512.24880): J residual streams, J <= 8 ---------------------------------------------- */

/* Per row, from the streams x and m = W . flatten(x) (a matmul, f32 (N, M), M = J*(J+2)), all in fp32: rstd = 1/sqrt(mean(x^2) +
 * norm_eps) over all J*D; l = scale[group] * m * rstd + base; pre = sigmoid(l[0:J]) + eps; post = 2 sigmoid(l[J:2J]); comb (J, J):
 * softmax of each row of l[2J:], + eps; each column divided by (its sum + eps); then iterations - 1 times: rows, columns. mix = pre
 * | post | comb. y = sum_i pre[i] * x[i], i ascending. x act (N, J, D) strided, y act (N, D) strided; base f32 (M), scale f32 (3):
 * pre, post, comb; mix f32 (N, M); rstd f32 (N). */
struct cairn_hyper {
    struct cairn_tensor x, m, base, scale, mix, rstd, y;
    float norm_eps, eps;
    int iterations;
};
/* From dy (N, D) and dmix (N, M; its pre is not read): dm f32 (N, M), gradient of m, through the unrolled loop; may be dmix.
 * dx += pre[i] * dy + x * r', r' the gradient through rstd; the caller adds dm . W.
 * dbase f32 (M), dscale f32 (3) += sum over rows (absent: skip). */
struct cairn_hyper_bwd {
    struct cairn_tensor x, m, base, scale, rstd, dy, dmix, dm, dx, dbase, dscale;
    float eps;
    int iterations;
};
/* out[j] = post[j] * y + sum_i comb[i][j] * x[i], i ascending. out act (N, J, D) strided, may be x. */
struct cairn_hyper_out {
    struct cairn_tensor x, y, mix, out;
};
/* dy = sum_j post[j] * dout[j]; dmix: pre 0, post[j] = dout[j].y, comb[i][j] = x[i].dout[j]; dx[i] = sum_j comb[i][j] * dout[j]; dx
 * may be dout. */
struct cairn_hyper_out_bwd {
    struct cairn_tensor x, y, mix, dout, dy, dmix, dx;
};
/* y[n] = a * sum_i x[n,i], i ascending: the mean of streams, and the gradient of copies. x act (N, J, D), y act (N, D), strided. */
struct cairn_streams_sum {
    struct cairn_tensor x, y;
    float a;
};
/* y[n,i] = a * x[n]: copies, and the gradient of the mean. x act (N, D), y act (N, J, D), strided. */
struct cairn_streams_spread {
    struct cairn_tensor x, y;
    float a;
};

/* ---- pooled indexer ------------------------------------------------------------------------------------------------------- */

/* Pool p of a sequence is its positions p*m .. p*m+m-1; its key, once the last one is there: sum_r w_r * k[p*m+r], w = softmax over
 * r of (gate[p*m+r] + ape[r]), channel by channel, r ascending. k, gate act (N, D) strided; ape (m, D) weight, m <= 32; tail act
 * (B, m, 2*D): position p is row p mod m, k | gate. keys.rows act (S, D): where pool p's key goes; keys.page in pools;
 * keys.start[b]: row of pool 0, packed. keys.pos and keys.seq: of the rows of the call, in positions, not pools. Frozen, hence no
 * backward. Selection: op index with pos = max((pos + 1) / m - 1, 0), keys.rows, T / m; then pool_expand. */
struct cairn_pool_keys {
    struct cairn_tensor k, gate, ape, tail;
    struct cairn_keys keys;
};
/* Chosen pools to positions: idx i32 (N, T + m - 1) = the m positions of each chosen pool, then those after the last whole pool, m
 * * ((pos+1) / m) .. pos; ascending, padded with -1. choice i32 (N, T / m), ascending pools, padded with -1; not read where there
 * is no whole pool. */
struct cairn_pool_expand {
    struct cairn_tensor choice, pos, idx;
    int m;
};

/* ---- rows and elements ---------------------------------------------------------------------------------------- */

/* dst[dst_index[i]] = src[src_index[i]]; an absent index is i itself; dst rows are distinct. Also embedding look-up (src =
 * table, converts weight type to act), cache writes (dst = page rows) and copy-on-write of pages. src, dst strided (?, D). */
struct cairn_rows {
    struct cairn_tensor src, src_index, dst, dst_index; /* indexes i32 (N) */
};
/* dtable f32 (V, D) [ids[n]] += dy[n]: sum over rows, n ascending. */
struct cairn_embed_bwd {
    struct cairn_tensor ids, dy, dtable;
};
/* y = a*x + b*y, same shape; y may be x. x, y act or f32, strided. b = 0: y is not read. */
struct cairn_axpby {
    struct cairn_tensor x, y;
    float a, b;
};
/* Converts between f32, bf16, f16 (round to nearest even), dense, equal counts. round_to >= 0: values are first rounded to that
 * dtype, so that a master in f32 becomes a published weight held as f32: W = cast(master, sync.dtype). dst may be src. */
struct cairn_cast {
    struct cairn_tensor src, dst;
    int round_to; /* enum cairn_dtype, or -1 */
};

/* ---- head: logits, log-probabilities, sampling ------------------------------------------------------------------ */

/* l = (z . w^T) * inv_temperature, in fp32; logprob[n] = l[target[n]] - lse(l). Never holds more than a chunk of rows of logits.
 * z act (N, D); w (V, D); target i32 (N), -1: row is not wanted (logprob 0); logprob, lse, entropy f32 (N), argmax i32 (N)
 * (ties to the lower id): entropy and argmax may be absent. lse and entropy: vocabulary cut in `segments` segments; the product has
 * one. A row that is not wanted costs nothing and gets lse 0, entropy 0, argmax -1. */
struct cairn_logprob {
    struct cairn_tensor z, w, target, logprob, lse, entropy, argmax;
    float inv_temperature;
    int segments;
};
/* With p = exp(l - lse), and upstream gradients dlogprob and dentropy (f32 (N), dentropy absent: 0):
 * dl[v] = inv_temperature * (dlogprob * ([v = target] - p[v]) - dentropy * p[v] * (ln p[v] + entropy));
 * dz = dl . w (act (N, D), row-invariant); dw f32 (V, D) += sum over rows dl^T z (absent: frozen head).
 * Rows whose target is -1 give dz = 0 and nothing to dw. dz sums over the vocabulary in `segments` segments; dw goes on from what
 * it holds, one chain over the wanted rows. dw strided. */
struct cairn_logprob_bwd {
    struct cairn_tensor z, w, target, lse, entropy, dlogprob, dentropy, dz, dw;
    float inv_temperature;
    int segments;
};

/* Draws one token a row from logits f32 (N, V) as matmul (NT, f32 out, alpha 1) gives them. l = logits * inv_temperature.
 * Truncation in this order on the full distribution: top_k (0 off), top_p (1 off; smallest set of the most likely, ties to
 * the lower id, whose mass reaches top_p), min_p (0 off; p >= min_p * max p). Token: inverse CDF over the kept ids in ascending
 * id, with the uniform of Philox (key; prompt[n], sample[n], position[n]). greedy: the argmax, no draw. Each rule looks at the full
 * distribution; kept is what all of them keep. A row whose lse is not finite gets its argmax and a log-probability that is not
 * finite. logprob f32: log-softmax over the full vocabulary, the same bits as cairn_logprob gives for that token; logprob_sampled
 * f32: over the kept ids (absent: not wanted). token i32; prompt, sample, position i32 (N). barred u8 (V), or absent: ids with 1 are
 * never drawn, nor the argmax that greedy takes; rules look at the distribution over the others, logprob still at the full vocabulary.
 * (They must leave an id.) */
struct cairn_sample {
    struct cairn_tensor logits, prompt, sample, position, token, logprob, logprob_sampled;
    uint64_t seed;
    uint32_t step;
    float inv_temperature, top_p, min_p;
    int top_k, greedy;
    int segments;
    struct cairn_tensor barred;
};

/* ---- objective (spec: DAPO arXiv:2503.14476, GRPO arXiv:2402.03300, GSPO arXiv:2507.18071, CISPO arXiv:2506.13585) ------ */

enum cairn_ratio { CAIRN_RATIO_TOKEN, CAIRN_RATIO_SEQUENCE, CAIRN_RATIO_CISPO };
enum cairn_correction { CAIRN_CORRECT_NONE, CAIRN_CORRECT_TIS, CAIRN_CORRECT_ICEPOP };
enum cairn_kl { CAIRN_KL_K1, CAIRN_KL_K2, CAIRN_KL_K3 };

/* Sums that a policy loss leaves behind, f64, one call adds to them (min, max combine). */
enum cairn_loss_stat {
    CAIRN_LS_POLICY,  /* sum of weight * policy term */
    CAIRN_LS_KL,      /* sum of weight * kl term */
    CAIRN_LS_ENTROPY, /* sum of entropy over loss tokens */
    CAIRN_LS_TOKENS,  /* loss tokens */
    CAIRN_LS_RATIO,   /* sum of ratios */
    CAIRN_LS_RATIO_MIN,
    CAIRN_LS_RATIO_MAX,
    CAIRN_LS_CLIP_LOW, /* tokens where the clipped branch won, below and above */
    CAIRN_LS_CLIP_HIGH,
    CAIRN_LS_MISMATCH, /* sum, max of |old - smp|, tokens with equal bits, k3 of (smp -> old) */
    CAIRN_LS_MISMATCH_MAX,
    CAIRN_LS_MISMATCH_EQUAL,
    CAIRN_LS_MISMATCH_K3,
    CAIRN_LS_COUNT
};

/* Per token n: masked rows (mask 0) are selected out: whatever their other inputs hold, gradient 0, no statistics.
 * d = clamp(cur - old, +-20), rho = exp(d) (sequence: mean of d over the loss tokens of seq[n]);
 * L = max(-A rho, -A clip(rho, 1-low, 1+high)); A < 0 and dual > 1: L = min(L, -dual A); cispo: -A sg(clip(rho)) cur.
 * times w = correction weight of exp(clamp(old - smp, +-20)); plus kl_coef * kl(ref, cur) - entropy_coef * entropy.
 * loss = sum_n weight[n] * L: weight f32 (N) holds the reduction (1/loss tokens of the update, ...).
 * dcur f32 (N) = d loss / d cur, dentropy f32 (N) = -entropy_coef * weight (absent: not wanted).
 * cur, old, smp, ref, adv, weight, entropy f32 (N); smp, ref, entropy may be absent; mask u8 (N); seq i32 (N), ascending runs;
 * stats f64 (CAIRN_LS_COUNT) +=; zeros are a good start: with CAIRN_LS_TOKENS 0, minima and maxima begin afresh. CAIRN_LS_KL is
 * without kl_coef; a token that dual cuts counts as neither clip. ln rho and x of the kl beyond +-20: no gradient. */
struct cairn_policy_loss {
    struct cairn_tensor cur, old, smp, ref, adv, weight, entropy, mask, seq, dcur, dentropy, stats;
    enum cairn_ratio ratio;
    enum cairn_correction correction;
    enum cairn_kl kl;
    float clip_low, clip_high, dual;
    float correct_low, correct_high; /* tis: cap = high; icepop: [low, high] */
    float kl_coef, entropy_coef;
};

/* ---- optimiser ------------------------------------------------------------------------------------------------ */

/* AdamW (arXiv:1711.05101), one flat run of parameters, all f32, dense:
 * g' = grad_scale*g; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2; p -= lr*(m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + wd*p). */
struct cairn_adamw {
    struct cairn_tensor p, g, m, v;
    float lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t t; /* from 1 */
};
/* Sums of squares in fp64 of pieces of x (f32, any shape, dense): out f64 (P) [i] = sum of squares of the pieces[i][1] elements of
 * x from element pieces[i][0] on; pieces i64 (P, 2), ascending, without overlap; absent: P = 1, all of x. A piece is taken in
 * blocks of 4096 from its begin, each one chain in order, and the blocks are added ascending. NaN and inf carry. */
struct cairn_sumsq {
    struct cairn_tensor x, out, pieces;
};

/* ---- handing weights over -------------------------------------------------------------------------------------- */

/* Runs of elements from one memory to another, converted on the way (f32, bf16, f16; round to nearest even). Run r: for b < blocks,
 * i < n: y[y_at + b*y_step + i] = x[x_at + b*x_step + i], bits where the types are equal. x, y (1-D) may be any two memories that the
 * device reaches and do not overlap; runs i64 (R, CAIRN_TRANSFER_RUN): x_at, x_step, y_at, y_step, blocks, n, elements of all runs
 * before; destinations do not overlap. elements: of all runs. What reaches outside of x or y is CAIRN_EBUG. */
#define CAIRN_TRANSFER_RUN 7
struct cairn_transfer {
    struct cairn_tensor x, y, runs;
    int64_t elements;
};

/* Sums of digest tiles (runtime/base/digest.h) over bytes x (u8). Run r: rows of row_bytes, row_step bytes apart from byte `at` on, each
 * cut into tiles of tile_bytes (the last of a row shorter, 1 .. 4096 bytes); tile c of row b is XXH3-128 with the seed
 * seed + (first + b*tile_step + c) * 0x9E3779B97F4A7C15. out i64 (R, 2): low and high word of the sum mod 2^128.
 * runs i64 (R, CAIRN_TILES_RUN): at, rows, row_step, row_bytes, tile_bytes, seed, first, tile_step, units of all runs before; a run has
 * ceil(tiles / CAIRN_TILES_UNIT(tile_bytes)) units. units: of all runs. */
#define CAIRN_TILES_RUN 9
struct cairn_tiles {
    struct cairn_tensor x, runs, out;
    int64_t units;
};
#define CAIRN_TILES_UNIT(tile_bytes) ((tile_bytes) <= 240 ? 32 : 2) /* tiles that one unit of work takes */

/* transfer and tiles in one pass over x: what is converted is summed up on its way into y. Run r: for b < rows, i < n:
 * y[y_at + b*y_step + i] = x[x_at + b*x_step + i]; each row of y is cut into tiles of `tile` elements (the last one shorter; at
 * most 4096 bytes), tile c of row b with the seed of struct cairn_tiles. out i64 (2): low and high word of the sum over all tiles
 * of all runs, mod 2^128. x, y as of transfer. runs i64 (R, CAIRN_SHIP_RUN): x_at, x_step, y_at, y_step, rows, n, tile, seed,
 * first, tile_step, units of all runs before; a run has ceil(tiles / CAIRN_SHIP_UNIT(bytes of a tile)) units. units: of all runs.
 */
#define CAIRN_SHIP_RUN 11
struct cairn_ship {
    struct cairn_tensor x, y, runs, out;
    int64_t units;
};
#define CAIRN_SHIP_UNIT(tile_bytes) ((tile_bytes) <= 240 ? 32 : 1)

/* ---- the table ------------------------------------------------------------------------------------------------- */

/* X(name): op `name` with arguments struct cairn_<name>. New ops are added at the end. */
#define CAIRN_OPS(X)                                                                                                               \
    X(matmul)                                                                                                                      \
    X(matmul_grouped)                                                                                                              \
    X(rmsnorm)                                                                                                                     \
    X(rmsnorm_bwd)                                                                                                                 \
    X(layernorm)                                                                                                                   \
    X(rope) X(index) X(attention) X(attention_bwd) X(router) X(router_bwd) X(dispatch) X(combine) X(combine_bwd) X(swiglu)         \
        X(swiglu_bwd) X(rows) X(embed_bwd) X(axpby) X(cast) X(logprob) X(logprob_bwd) X(sample) X(policy_loss) X(adamw) X(sumsq)   \
            X(short_conv) X(short_conv_bwd) X(kda_gate) X(kda_gate_bwd) X(kda) X(kda_bwd) X(gated_norm) X(gated_norm_bwd) X(hyper) \
                X(hyper_bwd) X(hyper_out) X(hyper_out_bwd) X(streams_sum) X(streams_spread) X(pool_keys) X(pool_expand)            \
                    X(transfer) X(tiles) X(ship) X(attention_heads_bwd)

struct cairn_ops {
#define CAIRN_OP_FIELD(op) enum cairn_status (*op)(struct cairn_stream * s, const struct cairn_##op *a, struct cairn_error *err);
    CAIRN_OPS(CAIRN_OP_FIELD)
#undef CAIRN_OP_FIELD
};

struct cairn_backend_opts {
    int guard;       /* 1: buffers are PROT_NONE outside brackets (cpu only) */
    int threads;     /* 0: as many as the machine gives this process; never changes a bit */
    const char *act; /* activation type: "f32", "bf16"; NULL: the back-end's own. CAIRN_EDEVICE where it has no such ops */
    const char *keep; /* a folder of the user's, where what takes time to find out about a device may be left for the next process; NULL: nothing
                       * is. Never changes a bit */
};

/* What a device is: for people, and for processes that must not share it by mistake. */
struct cairn_device_info {
    char name[64];    /* "NVIDIA H200" */
    char id[40];      /* the same wherever it is seen from, whatever its number there; "" where sharing is no question (cpu) */
    char detail[128]; /* memory, what it is capable of, versions of driver and runtime */
};

struct cairn_backend {
    uint32_t abi;         /* CAIRN_BACKEND_ABI */
    const char *name;     /* "cpu", "cuda" */
    enum cairn_dtype act; /* its own activation type: what a device has that was opened without opts.act */
    /* How many devices this process may use, numbered from 0; 0 also where that cannot be found out: open then says why. */
    int (*devices)(void);
    /* Without opening it. */
    enum cairn_status (*info)(int ordinal, struct cairn_device_info *out, struct cairn_error *err);
    /* Opens device `ordinal`; the device lives until close. */
    enum cairn_status (*open)(int ordinal, const struct cairn_backend_opts *o, struct cairn_device **out, struct cairn_error *err);
    void (*close)(struct cairn_device *dev);
    const struct cairn_ops *ops;       /* the fast ones */
    const struct cairn_ops *reference; /* plain loops, the definitions; NULL where a back-end has none */
    /* Is there attention_heads_bwd for these widths and activations, faster than the latent form? NULL: for none. */
    int (*attention_heads_fits)(const struct cairn_device *dev, enum cairn_dtype act, int nope, int rope, int v);
    /* What the numbers depend on besides the inputs: "cpu x86-64-v4 ops1". NUL-terminated into out. */
    void (*numerics)(struct cairn_device *dev, char *out, int n);
    void (*set_threads)(struct cairn_device *dev, int threads);
    int (*threads)(struct cairn_device *dev);
};

typedef const struct cairn_backend *cairn_backend_entry_fn(void);

#endif
