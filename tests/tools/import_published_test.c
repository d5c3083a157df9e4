/* import_published_test.c - `cairn import --dry-run` on the published shapes of GLM-5.2 and GLM-5.3-Flash: header sets written here from
 * the tables of spec/model.md, 12, and spec/model_flash.md, 6 to 14, over sparse files; counts that were published elsewhere. Nothing of
 * the hundreds of GB is allocated: the address space is limited.
 */
#include "../runtime/model/flash.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "tools/verbs.h"

/* ---- header sets --------------------------------------------------------------------------------------------------------- */

struct set {
    char dir[64];
    struct cairn_str header, index; /* of the file being written; of all */
    int64_t at, tensors, elements;
    int file, any;
};

static void shard_close(struct set *s)
{
    char path[128];
    uint64_t length;
    int fd;

    if (!s->header.len)
        return;
    cairn_str_putc(&s->header, '}');
    snprintf(path, sizeof path, "%s/model-%05d.safetensors", s->dir, s->file);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    length = s->header.len;
    assert_true(write(fd, &length, 8) == 8 && write(fd, s->header.p, length) == (ssize_t)length);
    assert_int_equal(ftruncate(fd, (off_t)(8 + length) + s->at), 0); /* a hole */
    close(fd);
    cairn_str_clear(&s->header);
    s->at = 0;
    s->file++;
}

/* A tensor of the shape (up to five dimensions, 0 ends it). */
static void put(struct set *s, const char *dtype, const char *name, int64_t a, int64_t b, int64_t c, int64_t d, int64_t e)
{
    int64_t shape[5] = {a, b, c, d, e}, n = 1, bytes;

    cairn_str_printf(&s->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", s->header.len ? "," : "{", name, dtype);
    for (int i = 0; i < 5 && shape[i]; i++) {
        n *= shape[i];
        cairn_str_printf(&s->header, "%s%lld", i ? "," : "", (long long)shape[i]);
    }
    bytes = n * (strcmp(dtype, "F32") ? 2 : 4);
    cairn_str_printf(&s->header, "],\"data_offsets\":[%lld,%lld]}", (long long)s->at, (long long)(s->at + bytes));
    cairn_str_printf(&s->index, "%s\"%s\":\"model-%05d.safetensors\"", s->any ? "," : "", name, s->file);
    s->any = 1;
    s->at += bytes;
    s->tensors++;
    s->elements += n;
}

static void set_open(struct set *s)
{
    memset(s, 0, sizeof *s);
    snprintf(s->dir, sizeof s->dir, "/tmp/cairn-published-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    cairn_str_puts(&s->index, "{\"metadata\":{},\"weight_map\":{");
}

static void text_file(const struct set *s, const char *name, const char *text)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    OK(cairn_file_create(path, text, strlen(text), err));
}

static void set_close(struct set *s, const char *config)
{
    shard_close(s);
    cairn_str_puts(&s->index, "}}");
    text_file(s, "model.safetensors.index.json", cairn_str_z(&s->index));
    text_file(s, "config.json", config);
    cairn_str_free(&s->index);
    cairn_str_free(&s->header);
}

static void set_remove(struct set *s)
{
    OK(cairn_tree_remove(s->dir, err));
}

/* Names below a prefix, so that the tables read as the specs do. */
static char below[200];

#define P(s, suffix, ...) put_below(s, "BF16", suffix, (const int64_t[2]){__VA_ARGS__})
#define P32(s, suffix, ...) put_below(s, "F32", suffix, (const int64_t[2]){__VA_ARGS__})

static void put_below(struct set *s, const char *dtype, const char *suffix, const int64_t *shape)
{
    char name[600];

    snprintf(name, sizeof name, "%s%s", below, suffix);
    put(s, dtype, name, shape[0], shape[1], 0, 0, 0);
}

static void put_moe(struct set *s, int64_t experts, int64_t width, int64_t f)
{
    char name[64];

    P(s, "mlp.gate.weight", experts, width);
    P32(s, "mlp.gate.e_score_correction_bias", experts);
    for (int e = 0; e < experts; e++) {
        snprintf(name, sizeof name, "mlp.experts.%d.gate_proj.weight", e);
        P(s, name, f, width);
        snprintf(name, sizeof name, "mlp.experts.%d.up_proj.weight", e);
        P(s, name, f, width);
        snprintf(name, sizeof name, "mlp.experts.%d.down_proj.weight", e);
        P(s, name, width, f);
    }
    P(s, "mlp.shared_experts.gate_proj.weight", f, width);
    P(s, "mlp.shared_experts.up_proj.weight", f, width);
    P(s, "mlp.shared_experts.down_proj.weight", width, f);
}

static void put_dense(struct set *s, int64_t width)
{
    P(s, "mlp.gate_proj.weight", 12288, width);
    P(s, "mlp.up_proj.weight", 12288, width);
    P(s, "mlp.down_proj.weight", width, 12288);
}

static void put_norms(struct set *s, int64_t width)
{
    P(s, "input_layernorm.weight", width);
    P(s, "post_attention_layernorm.weight", width);
}

/* spec/model.md, 12 */
static void glm52(struct set *s)
{
    set_open(s);
    put(s, "BF16", "model.embed_tokens.weight", 154880, 6144, 0, 0, 0);
    put(s, "BF16", "model.norm.weight", 6144, 0, 0, 0, 0);
    put(s, "BF16", "lm_head.weight", 154880, 6144, 0, 0, 0);
    for (int i = 0; i < 79; i++) {
        int full = i <= 2 || (i - 2) % 4 == 0 || i == 78;

        shard_close(s);
        snprintf(below, sizeof below, "model.layers.%d.", i);
        put_norms(s, 6144);
        P(s, "self_attn.q_a_proj.weight", 2048, 6144);
        P(s, "self_attn.q_a_layernorm.weight", 2048);
        P(s, "self_attn.q_b_proj.weight", 16384, 2048);
        P(s, "self_attn.kv_a_proj_with_mqa.weight", 576, 6144);
        P(s, "self_attn.kv_a_layernorm.weight", 512);
        P(s, "self_attn.kv_b_proj.weight", 28672, 512);
        P(s, "self_attn.o_proj.weight", 6144, 16384);
        if (full) {
            P(s, "self_attn.indexer.wq_b.weight", 4096, 2048);
            P(s, "self_attn.indexer.wk.weight", 128, 6144);
            P(s, "self_attn.indexer.k_norm.weight", 128);
            P(s, "self_attn.indexer.k_norm.bias", 128);
            P(s, "self_attn.indexer.weights_proj.weight", 32, 6144);
        }
        if (i < 3)
            put_dense(s, 6144);
        else
            put_moe(s, 256, 6144, 2048);
        if (i == 78) {
            P(s, "enorm.weight", 6144);
            P(s, "hnorm.weight", 6144);
            P(s, "eh_proj.weight", 6144, 12288);
            P(s, "shared_head.norm.weight", 6144);
        }
    }
    set_close(s, "{\"model_type\": \"glm_moe_dsa\", \"vocab_size\": 154880, \"hidden_size\": 6144, \"num_hidden_layers\": 78,"
                 "\"num_nextn_predict_layers\": 1, \"intermediate_size\": 12288, \"moe_intermediate_size\": 2048, \"first_k_dense_replace\": 3,"
                 "\"n_routed_experts\": 256, \"n_shared_experts\": 1, \"num_experts_per_tok\": 8, \"num_attention_heads\": 64,"
                 "\"q_lora_rank\": 2048, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 192, \"qk_head_dim\": 256, \"v_head_dim\": 256,"
                 "\"index_n_heads\": 32, \"index_head_dim\": 128, \"index_topk\": 2048, \"index_topk_freq\": 4, \"index_skip_topk_offset\": 3,"
                 "\"rope_parameters\": {\"rope_theta\": 8000000}}");
}

/* spec/model_flash.md, 6.1 and 7.1 */
static void flash_kda(struct set *s)
{
    static const char *const qkv[] = {"q", "k", "v"};

    for (int i = 0; i < 3; i++) {
        char name[300];

        snprintf(name, sizeof name, "self_attn.%s_proj.weight", qkv[i]);
        P(s, name, 8192, 4096);
        snprintf(name, sizeof name, "%sself_attn.%s_conv1d.weight", below, qkv[i]);
        put(s, "BF16", name, 8192, 1, 4, 0, 0);
    }
    P(s, "self_attn.f_a_proj.weight", 128, 4096);
    P(s, "self_attn.f_b_proj.weight", 8192, 128);
    P32(s, "self_attn.A_log", 64);
    P32(s, "self_attn.dt_bias", 8192);
    P(s, "self_attn.b_proj.weight", 64, 4096);
    P(s, "self_attn.g_a_proj.weight", 128, 4096);
    P(s, "self_attn.g_b_proj.weight", 8192, 128);
    P(s, "self_attn.o_norm.weight", 128);
    P(s, "self_attn.o_proj.weight", 4096, 8192);
}

static void flash_dsa(struct set *s)
{
    P(s, "self_attn.q_a_proj.weight", 1536, 4096);
    P(s, "self_attn.q_a_layernorm.weight", 1536);
    P(s, "self_attn.q_b_proj.weight", 16384, 1536);
    P(s, "self_attn.kv_a_proj_with_mqa.weight", 512, 4096);
    P(s, "self_attn.kv_a_layernorm.weight", 512);
    P(s, "self_attn.kv_b_proj.weight", 32768, 512);
    P(s, "self_attn.o_proj.weight", 4096, 16384);
    P(s, "self_attn.indexer.wq_b.weight", 4096, 1536);
    P(s, "self_attn.indexer.wk.weight", 128, 4096);
    P(s, "self_attn.indexer.k_norm.weight", 128);
    P(s, "self_attn.indexer.k_norm.bias", 128);
    P(s, "self_attn.indexer.weights_proj.weight", 32, 4096);
    P(s, "self_attn.indexer.index_kpool_compress_ape", 4, 128);
    P(s, "self_attn.indexer.index_kpool_compress_gate", 128, 4096);
}

/* section 11 */
static void flash_vision(struct set *s)
{
    snprintf(below, sizeof below, "model.visual.");
    put(s, "BF16", "model.visual.patch_embed.proj.weight", 1024, 3, 2, 14, 14);
    P(s, "patch_embed.proj.bias", 1024);
    for (int b = 0; b < 24; b++) {
        snprintf(below, sizeof below, "model.visual.blocks.%d.", b);
        P(s, "norm1.weight", 1024);
        P(s, "norm2.weight", 1024);
        P(s, "attn.qkv.weight", 3072, 1024);
        P(s, "attn.qkv.bias", 3072);
        P(s, "attn.proj.weight", 1024, 1024);
        P(s, "attn.proj.bias", 1024);
        P(s, "attn.q_norm.weight", 64);
        P(s, "attn.k_norm.weight", 64);
        P(s, "mlp.gate_proj.weight", 4096, 1024);
        P(s, "mlp.gate_proj.bias", 4096);
        P(s, "mlp.up_proj.weight", 4096, 1024);
        P(s, "mlp.up_proj.bias", 4096);
        P(s, "mlp.down_proj.weight", 1024, 4096);
        P(s, "mlp.down_proj.bias", 1024);
    }
    snprintf(below, sizeof below, "model.visual.");
    P(s, "post_layernorm.weight", 1024);
    put(s, "BF16", "model.visual.downsample.weight", 4096, 1024, 2, 2, 0);
    P(s, "downsample.bias", 4096);
    P(s, "merger.proj.weight", 4096, 4096);
    P(s, "merger.gate_proj.weight", 10240, 4096);
    P(s, "merger.up_proj.weight", 10240, 4096);
    P(s, "merger.down_proj.weight", 4096, 10240);
    P(s, "merger.post_projection_norm.weight", 4096);
    P(s, "merger.post_projection_norm.bias", 4096);
}

static void flash_mixing(struct set *s)
{
    static const char *const site[] = {"attn", "ffn"};

    for (int i = 0; i < 2; i++) {
        char name[64];

        snprintf(name, sizeof name, "hc_%s_fn", site[i]);
        P(s, name, 24, 16384);
        snprintf(name, sizeof name, "hc_%s_base", site[i]);
        P32(s, name, 24);
        snprintf(name, sizeof name, "hc_%s_scale", site[i]);
        P32(s, name, 3);
    }
}

static void flash(struct set *s, const char *stranger)
{
    set_open(s);
    put(s, "BF16", "model.language_model.embed_tokens.weight", 154880, 4096, 0, 0, 0);
    put(s, "BF16", "model.language_model.norm.weight", 4096, 0, 0, 0, 0);
    put(s, "BF16", "lm_head.weight", 154880, 4096, 0, 0, 0);
    if (stranger)
        put(s, "BF16", stranger, 8, 0, 0, 0, 0);
    for (int i = 0; i < 46; i++) {
        shard_close(s);
        snprintf(below, sizeof below, "model.language_model.layers.%d.", i);
        put_norms(s, 4096);
        if (i == 45) {
            P(s, "enorm.weight", 4096);
            P(s, "hnorm.weight", 4096);
            P(s, "eh_proj.weight", 4096, 8192);
            P(s, "shared_head.norm.weight", 4096);
        } else {
            flash_mixing(s);
        }
        if (i == 45 || i % 4 == 3)
            flash_dsa(s);
        else
            flash_kda(s);
        if (i < 3)
            put_dense(s, 4096);
        else
            put_moe(s, 288, 4096, 2048);
    }
    shard_close(s);
    flash_vision(s);
    set_close(s, FLASH_PUBLISHED);
}

/* ---- the verb -------------------------------------------------------------------------------------------------------------- */

/* Runs `cairn import DIR --dry-run --json` in a process of its own with an address space of 4 GiB; what it says on fd 1 and 2. */
static int dry_run(const struct set *s, char *said, size_t n)
{
    char *argv[] = {"import", (char *)(uintptr_t)s->dir, "--dry-run", "--json", NULL};
    int pipe_[2], status = 0;
    size_t got = 0;
    ssize_t r;
    pid_t pid;

    assert_int_equal(pipe(pipe_), 0);
    fflush(stdout);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        const struct rlimit most = {(rlim_t)4 << 30, (rlim_t)4 << 30};

        dup2(pipe_[1], 1);
        dup2(pipe_[1], 2);
        close(pipe_[0]);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        if (setrlimit(RLIMIT_AS, &most))
            _exit(99);
#else
        (void)most;
#endif
        status = cairn_verb_import(4, argv);
        fflush(stdout);
        _exit(status);
    }
    close(pipe_[1]);
    while (got + 1 < n && (r = read(pipe_[0], said + got, n - 1 - got)) > 0)
        got += (size_t)r;
    said[got] = '\0';
    close(pipe_[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect(const char *said, const char *key, int64_t want)
{
    json_t *o = NULL;
    json_int_t have;

    OK(cairn_json_parse(&o, said, strlen(said), "the verb's answer", err));
    have = json_integer_value(json_object_get(o, key));
    json_decref(o);
    if (have != want)
        fail_msg("%s is %lld, not %lld", key, (long long)have, (long long)want);
}

static void published_glm52(void **state)
{
    static char said[8192];
    struct set s;

    (void)state;
    glm52(&s);
    assert_int_equal(s.tensors, 59585);
    assert_int_equal(dry_run(&s, said, sizeof said), 0);
    expect(said, "tensors", 59585);
    expect(said, "elements", 753329940480);
    expect(said, "parameters", 743377000704);
    expect(said, "selection_biases", 19200);
    expect(said, "mtp_elements", 9952920576);
    set_remove(&s);
}

static void published_flash(void **state)
{
    static char said[8192];
    struct set s;

    (void)state;
    flash(&s, NULL);
    assert_int_equal(dry_run(&s, said, sizeof said), 0);
    expect(said, "layers", 45);
    expect(said, "parameters", 313326811966 - 42 * 288);
    expect(said, "selection_biases", 42 * 288);
    expect(said, "vision_tensors", 347);
    expect(said, "vision_elements", 563627008);
    expect(said, "mtp_tensors", 889);
    expect(said, "mtp_elements", 7432592416);
    expect(said, "passed_through", 347 + 889);
    expect(said, "elements", 321323031390);
    set_remove(&s);
}

/* What is neither ours, nor vision, nor MTP is named. */
static void strangers(void **state)
{
    static const char *const names[] = {"model.audio.proj.weight", "model.language_model.extra_norm.weight"};
    static char said[8192];

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct set s;

        flash(&s, names[i]);
        assert_int_equal(dry_run(&s, said, sizeof said), CAIRN_EDATA);
        if (!strstr(said, names[i]))
            fail_msg("\"%s\" does not name %s", said, names[i]);
        set_remove(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_glm52),
        cmocka_unit_test(published_flash),
        cmocka_unit_test(strangers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
