/* lab.h - a run directory in small for tests of stages: a byte-level tokenizer, a few sums, a model of two sparse layers, a recipe.
 *
 * Everything is written into a fresh directory below $TMPDIR (or /dev/shm, where fsync costs nothing, or /tmp) and removed again. The tokenizer is
 * made up: 256 bytes and the usual role tokens, no merges, so a text has as many ids as bytes and nothing hangs on data files.
 */
#ifndef TESTS_STAGES_LAB_H
#define TESTS_STAGES_LAB_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/str.h"
#include "stages/common/rollouts.h"
#include "stages/common/run.h"
#include "stages/common/scores.h"

#define OK(call)                                                   \
    do {                                                           \
        struct cairn_error err_ = {0}, *err = &err_;               \
        enum cairn_status st_ = (call);                            \
        if (st_ != CAIRN_OK)                                       \
            fail_msg("%s: %s", cairn_status_name(st_), err_.text); \
    } while (0)

/* The call must fail with that status and a sentence that holds `word`. */
#define FAILS(status, word, call)                                                                                         \
    do {                                                                                                                  \
        struct cairn_error err_ = {0}, *err = &err_;                                                                      \
        enum cairn_status st_ = (call);                                                                                   \
        if (st_ != (status) || !strstr(err_.text, word))                                                                  \
            fail_msg("%s, not %s with \"%s\": %s", cairn_status_name(st_), cairn_status_name(status), word, err_.text); \
    } while (0)

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* A test on a back-end, which is its state: one group, so that TAP has one plan. */
#define ON(backend, test) {#test " on " backend, test, NULL, NULL, (void *)backend}

#define LAB_VOCAB 262
#define LAB_STOP 256 /* <|endoftext|> */

struct lab {
    char dir[200];  /* inputs */
    char run[240];  /* the run directory, inside of dir; not made yet */
};

static inline void lab_write(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");

    if (!f || fwrite(text, 1, n, f) != n || fclose(f))
        fail_msg("cannot write %s: %s", path, strerror(errno));
}

static inline void lab_put(const struct lab *l, const char *name, const char *text)
{
    char *path = cairn_path_join(l->dir, name);

    lab_write(path, text, strlen(text));
    free(path);
}

/* mini-glm's file with the vocabulary of bytes alone and six added tokens. GPT-2's bytes to printable characters: 33-126, 161-172,
 * 174-255 are themselves, the others 256, 257, ... in order. */
static inline void lab_tokenizer(const struct lab *l)
{
    static const char *const added[] = {"<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>"};
    json_t *root = NULL, *vocab = json_object(), *list = json_array(), *model;
    struct cairn_str s = {0};
    int next = 256;

    OK(cairn_json_load(&root, "recipes/data/tokenizers/mini-glm/tokenizer.json", 1 << 20, err));
    for (int i = 0; i < (int)COUNT(added); i++)
        json_array_append_new(list, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", 256 + i, "content", added[i], "single_word", 0, "lstrip",
                                              0, "rstrip", 0, "normalized", 0, "special", 1));
    for (int b = 0; b < 256; b++) {
        int c = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : next++;
        char utf8[3] = {(char)(c < 128 ? c : 0xc0 | c >> 6), (char)(c < 128 ? 0 : 0x80 | (c & 63))};

        json_object_set_new(vocab, utf8, json_integer(b));
    }
    model = json_object_get(root, "model");
    json_object_set_new(root, "added_tokens", list);
    json_object_set_new(model, "vocab", vocab);
    json_object_set_new(model, "merges", json_array());
    cairn_json_pretty(&s, root);
    lab_put(l, "tokenizer.json", cairn_str_z(&s));
    cairn_str_free(&s);
    json_decref(root);
}

#define LAB_PROMPTS 8

static inline void lab_prompts(const struct lab *l, const char *name, int n, int from)
{
    struct cairn_str s = {0};

    for (int i = 0; i < n; i++)
        cairn_str_printf(&s, "{\"id\": \"%s-%d\", \"prompt\": \"%d+%d=\", \"answer\": %d}\n", name, i, from + i, 2 * i, from + 3 * i);
    lab_put(l, name, cairn_str_z(&s));
    cairn_str_free(&s);
}

#define LAB_INIT                                                                                                                \
    "model_type: glm_moe_dsa, architectures: [GlmMoeDsaForCausalLM], vocab_size: 262, hidden_size: 32, num_hidden_layers: 3,\n"    \
    "    first_k_dense_replace: 1, mlp_layer_types: [dense, sparse, sparse], indexer_types: [full, full, shared],\n"               \
    "    intermediate_size: 48, moe_intermediate_size: 16, n_routed_experts: 4, num_experts_per_tok: 2, n_shared_experts: 1,\n"    \
    "    n_group: 1, topk_group: 1, scoring_func: sigmoid, topk_method: noaux_tc, norm_topk_prob: true,\n"                         \
    "    routed_scaling_factor: 2.5, num_attention_heads: 2, num_key_value_heads: 2, q_lora_rank: 16, kv_lora_rank: 24,\n"         \
    "    qk_nope_head_dim: 12, qk_rope_head_dim: 8, qk_head_dim: 20, v_head_dim: 10, index_n_heads: 2, index_head_dim: 16,\n"      \
    "    index_topk: 8, hidden_act: silu, rms_norm_eps: 1.0e-5, attention_bias: false,\n"                                          \
    "    rope_parameters: {rope_type: default, rope_theta: 10000.0}, rope_interleave: true, indexer_rope_interleave: true,\n"      \
    "    max_position_embeddings: 96, initializer_range: 0.15, tie_word_embeddings: false, eos_token_id: 256, dtype: float32"

#define LAB_RECIPE                                                                                                              \
    "run: {seed: 7, steps: 2, eval_every: 0, check: off}\n"                                                                        \
    "model:\n  tokenizer: tokenizer.json\n  init: {" LAB_INIT "}\n"                                                                \
    "data:\n  template: \"{prompt}\"\n  prompts: [{path: prompts.jsonl}]\n"                                                        \
    "rollout: {prompts: 4, samples: 3, max_new_tokens: 10, batch: 12, page: 4}\n"                                                  \
    "score: {overlong: {buffer: 4, factor: 0.5}}\n"                                                                                \
    "train: {updates_per_step: 2, learning_rate: 1.0e-2, warmup_updates: 0, pack: 64}\n"                                           \
    "kernels: {backend: cpu, threads: 1}\n"                                                                                        \
    "log: {level: error}\n"

/* What turns the recipe's run into one with a warm start, an adapter, an evaluation: overrides, with the lab's files. */
#define LAB_WARM "warm_start={data: %s/worked.jsonl, updates: 6, batch: 4, learning_rate: 1.0e-2}"
#define LAB_ADAPTER "model.adapter={rank: 3, alpha: 6, targets: [q_b_proj, kv_b_proj, o_proj, experts, down_proj]}"
#define LAB_EVAL "data.eval=[{name: held, path: %s/held.jsonl, k: 1}]"

static inline void lab_open(struct lab *l)
{
    const char *tmp = getenv("TMPDIR");
    struct cairn_str s = {0};

    cairn_log_init("test", 1); /* rank 1: only warnings */
    cairn_log_quiet(1);
    if (!tmp || !*tmp)
        tmp = access("/dev/shm", W_OK | X_OK) ? "/tmp" : "/dev/shm";
    snprintf(l->dir, sizeof l->dir, "%s/cairn-stages-XXXXXX", tmp);
    assert_non_null(mkdtemp(l->dir));
    snprintf(l->run, sizeof l->run, "%s/run", l->dir);
    lab_tokenizer(l);
    lab_prompts(l, "prompts.jsonl", LAB_PROMPTS, 1);
    lab_prompts(l, "held.jsonl", 3, 20);
    for (int i = 0; i < 7; i++)
        cairn_str_printf(&s, "{\"prompt\": \"%d+%d=\", \"response\": \"Answer: %d\"}\n", i, i, 2 * i);
    lab_put(l, "worked.jsonl", cairn_str_z(&s));
    lab_put(l, "recipe.yaml", LAB_RECIPE);
    cairn_str_free(&s);
}

static inline void lab_close(struct lab *l)
{
    OK(cairn_tree_remove(l->dir, err));
}

/* lab/recipe.yaml with overrides; "%s" in one stands for the lab's directory. NULL-terminated. */
static inline enum cairn_status lab_recipe_load(struct cairn_recipe **out, const struct lab *l, const char *const *override, struct cairn_error *err)
{
    char text[16][600], *path = cairn_path_join(l->dir, "recipe.yaml");
    const char *p[16];
    enum cairn_status st;
    int n = 0;

    for (; override && override[n]; n++) {
        const char *hole = strstr(override[n], "%s");

        assert_true(n < 16);
        snprintf(text[n], sizeof text[n], "%.*s%s%s", hole ? (int)(hole - override[n]) : (int)strlen(override[n]), override[n], hole ? l->dir : "",
                 hole ? hole + 2 : "");
        p[n] = text[n];
    }
    st = cairn_recipe_load(out, path, n, p, err);
    free(path);
    return st;
}

/* The run directory `where` (NULL: the lab's) made from the recipe; the recipe is freed if that fails, as its owner would. */
static inline enum cairn_status lab_init_at(struct cairn_run **run, const struct lab *l, const char *where, const char *const *override,
                                            struct cairn_error *err)
{
    struct cairn_recipe *recipe = NULL;
    enum cairn_status st = lab_recipe_load(&recipe, l, override, err);

    *run = NULL;
    if (st == CAIRN_OK)
        st = cairn_run_init(run, where ? where : l->run, recipe, err);
    if (st != CAIRN_OK)
        cairn_recipe_free(recipe);
    return st;
}

#define LAB_OVERRIDES(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(,) NULL})

static inline struct cairn_run *lab_init(const struct lab *l, const char *const *override)
{
    struct cairn_run *run = NULL;

    OK(lab_init_at(&run, l, NULL, override, err));
    return run;
}

static inline uint32_t lab_draw(uint32_t a, uint32_t b, uint32_t below)
{
    const struct cairn_philox_key key = {.seed = 99, .purpose = CAIRN_PURPOSE_PROBE};
    uint32_t w[4];

    cairn_philox(&key, a, b, 0, w);
    return w[0] % below;
}

/* Groups of `samples` rollouts with random ids below 256, prompts of 2-6 and responses of least .. least + spread ids; everything used, stopped,
 * log-probabilities zero. */
static inline void lab_rollouts(struct cairn_rollouts *r, int groups, int samples, int least, int spread, uint32_t salt)
{
    int64_t n = (int64_t)groups * samples, tokens = 0, responses = 0;

    memset(r, 0, sizeof *r);
    r->n = n;
    r->offsets = calloc((size_t)n + 1, sizeof *r->offsets);
    r->tokens = calloc((size_t)n * 80, sizeof *r->tokens);
    r->logprobs = calloc((size_t)n * 80, sizeof *r->logprobs);
    r->prompt_length = calloc((size_t)n + 1, sizeof *r->prompt_length);
    r->prompt_id = calloc((size_t)n + 1, sizeof *r->prompt_id);
    r->group = calloc((size_t)n + 1, sizeof *r->group);
    r->sample = calloc((size_t)n + 1, sizeof *r->sample);
    r->finish = calloc((size_t)n + 1, 1);
    r->used = calloc((size_t)n + 1, 1);
    r->verdict = calloc((size_t)n + 1, 1);
    for (int64_t i = 0; i < n; i++) {
        int group = (int)(i / samples);

        r->group[i] = group;
        r->sample[i] = (int32_t)(i % samples);
        r->prompt_id[i] = group % LAB_PROMPTS;
        r->prompt_length[i] = 2 + (int32_t)lab_draw(salt, (uint32_t)group, 5);
        responses = least + (spread ? lab_draw(salt + 1, (uint32_t)i, (uint32_t)spread + 1) : 0);
        for (int64_t k = 0; k < r->prompt_length[i] + responses; k++)
            r->tokens[tokens + k] =
                (int32_t)lab_draw(salt + 2, (uint32_t)((k < r->prompt_length[i] ? 1000 + group : i + 2000) * 100 + k), 256);
        tokens += r->prompt_length[i] + responses;
        r->offsets[i + 1] = tokens;
        r->finish[i] = CAIRN_FINISH_STOP;
        r->used[i] = 1;
        r->verdict[i] = CAIRN_VERDICT_UNASKED;
    }
    OK(cairn_rollouts_finish(r, "lab", err));
}

/* ---- programs --------------------------------------------------------------------------------------------------------- */

struct lab_program {
    pid_t pid;
    char said[2000]; /* what it wrote on stderr; after lab_wait */
    int pipe;
};

/* build/bin/cairn-<stage> RUN --step N ... as a process group of its own; args NULL-terminated. before(arg) runs in the child. */
static inline void lab_start(struct lab_program *p, const char *stage, const char *run, int step, const char *eval, int (*before)(void *arg),
                             void *arg)
{
    char path[600], number[20];
    int fd[2];

    snprintf(path, sizeof path, "%s/bin/cairn-%s", cairn_install_dir(), stage);
    snprintf(number, sizeof number, "%d", step);
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
    memset(p, 0, sizeof *p);
    fflush(NULL);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (!p->pid) {
        const char *argv[] = {path, run, "--step", number, "--quiet", eval ? "--eval" : NULL, eval, NULL};

        setpgid(0, 0);
        dup2(fd[1], 2);
        if (before && before(arg))
            _exit(100);
        execv(path, (char **)argv);
        fprintf(stderr, "cannot start %s: %s\n", path, strerror(errno));
        _exit(101);
    }
    setpgid(p->pid, p->pid);
    close(fd[1]);
    p->pipe = fd[0];
}

/* Exit code, or 128 + signal. */
static inline int lab_wait(struct lab_program *p)
{
    size_t n = 0;
    ssize_t got;
    int status;

    while ((got = read(p->pipe, p->said + n, sizeof p->said - 1 - n)) > 0 || (got < 0 && errno == EINTR))
        n += got > 0 ? (size_t)got : 0;
    close(p->pipe);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline int lab_stage(const char *stage, const char *run, int step, const char *eval, char said[2000])
{
    struct lab_program p;
    int rc;

    lab_start(&p, stage, run, step, eval, NULL, NULL);
    rc = lab_wait(&p);
    if (said)
        memcpy(said, p.said, sizeof p.said);
    return rc;
}

/* It must succeed. */
static inline void lab_stage_ok(const char *stage, const char *run, int step, const char *eval)
{
    char said[2000];
    int rc = lab_stage(stage, run, step, eval, said);

    if (rc)
        fail_msg("cairn-%s --step %d: %d: %s", stage, step, rc, said);
}

/* The same, and the seconds that it took: moments at which it is killed are drawn from them, so that it is at work then on any machine. */
static inline double lab_stage_s(const char *stage, const char *run, int step)
{
    double t0 = cairn_now_s();

    lab_stage_ok(stage, run, step, NULL);
    return cairn_now_s() - t0;
}

static inline void lab_sleep(double s)
{
    usleep((useconds_t)(1e6 * s));
}

/* A share of something, 0 to 1. */
static inline double lab_share(uint32_t a, uint32_t b)
{
    return lab_draw(a, b, 1000000) / 1e6;
}

#endif
