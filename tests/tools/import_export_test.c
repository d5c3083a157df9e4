/* import_export_test.c - the two verbs as people call them: output, exit codes, what the sentences name. */
#include "../runtime/model/hfdir.h"

#include <fcntl.h>

#include "base/log.h"
#include "ckpt/attempt.h"
#include "tools/verbs.h"

#define MODELS "tests/fixtures/models/"

static char said[8192], told[8192]; /* stdout and stderr of the last verb */

static void slurp(int fd, char *out, size_t n)
{
    ssize_t r;

    lseek(fd, 0, SEEK_SET);
    r = read(fd, out, n - 1);
    out[r > 0 ? r : 0] = '\0';
    close(fd);
}

/* Runs a verb with stdout and stderr caught. `line` is split at blanks. */
static int verb(int (*fn)(int, char **), const char *format, ...) __attribute__((format(printf, 2, 3)));
static int verb(int (*fn)(int, char **), const char *format, ...)
{
    char line[2000], out[300], err_[300], *argv[32], *save = NULL;
    int argc = 0, o, e, keep_o, keep_e, rc;
    va_list ap;

    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    for (char *p = strtok_r(line, " ", &save); p; p = strtok_r(NULL, " ", &save))
        argv[argc++] = p;
    argv[argc] = NULL;
    snprintf(out, sizeof out, "%s/stdout", hf_tmp);
    snprintf(err_, sizeof err_, "%s/stderr", hf_tmp);
    o = open(out, O_RDWR | O_CREAT | O_TRUNC, 0600);
    e = open(err_, O_RDWR | O_CREAT | O_TRUNC, 0600);
    fflush(stdout);
    fflush(stderr);
    keep_o = dup(1);
    keep_e = dup(2);
    dup2(o, 1);
    dup2(e, 2);
    rc = fn(argc, argv);
    fflush(stdout);
    fflush(stderr);
    dup2(keep_o, 1);
    dup2(keep_e, 2);
    close(keep_o);
    close(keep_e);
    slurp(o, said, sizeof said);
    slurp(e, told, sizeof told);
    return rc;
}

#define IMPORT(...) verb(cairn_verb_import, "import " __VA_ARGS__)
#define EXPORT(...) verb(cairn_verb_export, "export " __VA_ARGS__)

static void round_trips(void **state)
{
    static const char *const names[] = {"glm51-tiny", "glm52-tiny", "bf16-sharded-tiny"};
    static const char *const adapters[] = {"adapter", "adapter_mlp"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        char a[200], b[200];

        assert_int_equal(IMPORT(MODELS "%s --out %s/%s", names[i], hf_tmp, names[i]), 0);
        assert_non_null(strstr(said, "imported"));
        assert_int_equal(IMPORT(MODELS "%s --out %s/%s", names[i], hf_tmp, names[i]), 0);
        assert_non_null(strstr(said, "there already"));
        assert_int_equal(EXPORT("%s/%s --merged --out %s/out", hf_tmp, names[i], hf_tmp), 0);
        snprintf(a, sizeof a, MODELS "%s", names[i]);
        snprintf(b, sizeof b, "%s/out", hf_tmp);
        hf_same(a, b);
        assert_int_equal(EXPORT("%s/%s --adapter --out %s/none", hf_tmp, names[i], hf_tmp), CAIRN_EDATA);
        for (int j = 0; j < 2; j++) {
            assert_int_equal(IMPORT(MODELS "%s/%s --base %s/%s --out %s/%s-%d", names[i], adapters[j], hf_tmp, names[i], hf_tmp, names[i], j), 0);
            assert_int_equal(EXPORT("%s/%s-%d --out %s/peft", hf_tmp, names[i], j, hf_tmp), 0); /* the adapter is the default */
            snprintf(a, sizeof a, MODELS "%s/%s", names[i], adapters[j]);
            snprintf(b, sizeof b, "%s/peft", hf_tmp);
            hf_same(a, b);
        }
    }
    /* many files with an index */
    assert_int_equal(EXPORT("%s/glm51-tiny --out %s/many --file-bytes 400000 --json", hf_tmp, hf_tmp), 0);
    assert_true(cairn_path_exists(hf_path("many/model-00001-of-00004.safetensors")));
    assert_true(cairn_path_exists(hf_path("many/model.safetensors.index.json")));
    hf_same(MODELS "glm51-tiny", hf_path("many"));
    assert_non_null(strstr(said, "\"kind\":\"checkpoint\""));
    assert_string_equal(told, "");
}

/* GLM-5.3-Flash: the checkpoint comes back whole, vision tower and all, under the checkpoint's names; adapters without what they have
 * for the vision tower. */
static void flash_round_trips(void **state)
{
    static const char *const names[] = {"glm53flash-tiny", "glm53flash-clamp-tiny"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char a[200];

        assert_int_equal(IMPORT(MODELS "%s --self-contained --out %s/%s", names[i], hf_tmp, names[i]), 0);
        assert_non_null(strstr(said, "glm5_next, 5 layers"));
        assert_non_null(strstr(said, "25 vision"));
        assert_int_equal(EXPORT("%s/%s --merged --out %s/out", hf_tmp, names[i], hf_tmp), 0);
        snprintf(a, sizeof a, MODELS "%s", names[i]);
        hf_same(a, hf_path("out"));
        for (int j = 0; j < 2; j++) {
            struct cairn_st *x, *y;
            int vision = 0;

            snprintf(a, sizeof a, MODELS "%s/%s", names[i], j ? "adapter_mlp" : "adapter");
            assert_int_equal(IMPORT("%s --base %s/%s --out %s/%s-%d", a, hf_tmp, names[i], hf_tmp, names[i], j), 0);
            assert_int_equal(strstr(told, "12 tensors for the vision tower are left out") != NULL, !j);
            assert_int_equal(EXPORT("%s/%s-%d --out %s/peft", hf_tmp, names[i], j, hf_tmp), 0);
            OK(cairn_st_open(&x, a, err));
            OK(cairn_st_open(&y, hf_path("peft"), err));
            for (int k = 0; k < cairn_st_count(x); k++) {
                const struct cairn_st_tensor *s = cairn_st_at(x, k), *t = cairn_st_find(y, s->name);
                char *p = malloc((size_t)s->bytes), *q = malloc((size_t)s->bytes);

                if (strstr(s->name, ".visual.")) {
                    assert_null(t);
                    vision++;
                } else {
                    assert_true(t && t->bytes == s->bytes);
                    OK(cairn_st_read(x, s, 0, p, (size_t)s->bytes, err));
                    OK(cairn_st_read(y, t, 0, q, (size_t)s->bytes, err));
                    assert_memory_equal(p, q, (size_t)s->bytes);
                }
                free(p);
                free(q);
            }
            assert_int_equal(cairn_st_count(y) + vision, cairn_st_count(x));
            assert_int_equal(vision, j ? 0 : 12);
            cairn_st_close(x);
            cairn_st_close(y);
        }
    }
}

/* W + gamma B A in double against what --merged wrote, and untouched tensors bit for bit. */
static void merged(void **state)
{
    struct cairn_st *base, *lora, *out;
    int changed = 0, kept = 0;

    (void)state;
    assert_int_equal(IMPORT(MODELS "glm52-tiny --out %s/mb", hf_tmp), 0);
    assert_int_equal(IMPORT(MODELS "glm52-tiny/adapter --base %s/mb --out %s/ma", hf_tmp, hf_tmp), 0);
    assert_int_equal(EXPORT("%s/ma --adapter-layout expert --out %s/me", hf_tmp, hf_tmp), 0);
    assert_int_equal(EXPORT("%s/ma --merged --out %s/mm", hf_tmp, hf_tmp), 0);
    OK(cairn_st_open(&base, MODELS "glm52-tiny", err));
    OK(cairn_st_open(&lora, hf_path("me"), err));
    OK(cairn_st_open(&out, hf_path("mm"), err));
    for (int i = 0; i < cairn_st_count(base); i++) {
        const struct cairn_st_tensor *t = cairn_st_at(base, i), *u = cairn_st_find(out, t->name), *a, *b;
        char name[300];
        float *w = malloc((size_t)t->bytes), *m = malloc((size_t)t->bytes);

        OK(cairn_st_read(base, t, 0, w, (size_t)t->bytes, err));
        OK(cairn_st_read(out, u, 0, m, (size_t)t->bytes, err));
        snprintf(name, sizeof name, "base_model.model.%.*s.lora_A.weight", (int)strlen(t->name) - 7, t->name);
        a = cairn_st_find(lora, name);
        snprintf(name, sizeof name, "base_model.model.%.*s.lora_B.weight", (int)strlen(t->name) - 7, t->name);
        b = cairn_st_find(lora, name);
        if (!a) {
            assert_memory_equal(w, m, (size_t)t->bytes);
            kept++;
        } else {
            float *A = malloc((size_t)a->bytes), *B = malloc((size_t)b->bytes);
            int64_t r = a->shape[0], in = a->shape[1];
            int moved = 0;

            OK(cairn_st_read(lora, a, 0, A, (size_t)a->bytes, err));
            OK(cairn_st_read(lora, b, 0, B, (size_t)b->bytes, err));
            for (int64_t o = 0; o < t->shape[0]; o++)
                for (int64_t c = 0; c < in; c++) {
                    double sum = 0, size = 0;

                    for (int64_t q = 0; q < r; q++) {
                        sum += (double)B[o * r + q] * A[q * in + c];
                        size += fabs((double)B[o * r + q] * A[q * in + c]);
                    }
                    /* alpha 8, r 4; gate_up: alpha 16, r 8. A few roundings of what was added. */
                    if (fabs(m[o * in + c] - (w[o * in + c] + 2 * sum)) > 1e-6 * (fabs(w[o * in + c]) + size))
                        fail_msg("%s (%lld,%lld): %g", t->name, (long long)o, (long long)c, m[o * in + c]);
                    moved += m[o * in + c] != w[o * in + c];
                }
            assert_true(moved > t->count / 2);
            changed++;
            free(A);
            free(B);
        }
        free(w);
        free(m);
    }
    assert_int_equal(changed, 237); /* 9 layers x 5 attention + 8 x 8 x 3 experts */
    assert_int_equal(kept, 339 - 237);
    cairn_st_close(base);
    cairn_st_close(lora);
    cairn_st_close(out);
}

static void dry_run(void **state)
{
    (void)state;
    assert_int_equal(IMPORT(MODELS "glm52-tiny --dry-run --json"), 0);
    assert_non_null(strstr(said, "\"tensors\":339"));
    assert_non_null(strstr(said, "\"parameters\":776848"));
    assert_int_equal(IMPORT(MODELS "glm52-tiny --dry-run --out %s/dry", hf_tmp), 0);
    assert_false(cairn_path_exists(hf_path("dry")));
}

static void bad_input(void **state)
{
    struct hfdir *d = hf_make("{}", CAIRN_BF16, 0);
    char *tokenizer;
    size_t n;
    const struct {
        int rc;
        const char *args, *says;
    } t[] = {
        {CAIRN_EUSAGE, "", "HF_DIR is missing"},
        {CAIRN_EUSAGE, MODELS "glm52-tiny", "--out is missing"},
        {CAIRN_EUSAGE, MODELS "glm52-tiny --nonsense", ""},
        {CAIRN_EUSAGE, MODELS "glm52-tiny/adapter --out X", "--base"},
        {CAIRN_EUSAGE, MODELS "glm52-tiny --base Y --out X", "--base is for adapters"},
        {CAIRN_ENOINPUT, MODELS "nowhere --out X", "no such directory"},
        {CAIRN_EDATA, MODELS " --out X", "config.json"},
        {CAIRN_ENOINPUT, MODELS "glm52-tiny/adapter --base /tmp/none --out X", "not committed"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        int rc = IMPORT("%s", t[i].args);

        if (rc != t[i].rc || !strstr(told, t[i].says))
            fail_msg("import %s: %d, \"%s\"", t[i].args, rc, told);
        if (strcmp(said, ""))
            fail_msg("import %s prints \"%s\"", t[i].args, said);
    }
    assert_false(cairn_path_exists("X"));
    /* another architecture */
    hf_write(d, hf_path("arch"), 0);
    hf_write_file(hf_path("arch"), "config.json", "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"]}");
    assert_int_equal(IMPORT("%s/arch --out %s/x", hf_tmp, hf_tmp), CAIRN_EDATA);
    assert_non_null(strstr(told, "\"llama\" (LlamaForCausalLM) is not supported; supported: glm_moe_dsa"));
    /* a tokenizer larger than the embedding: 2331 ids for 120 rows */
    hf_write(d, hf_path("tok"), 0);
    OK(cairn_file_read("recipes/data/tokenizers/mini-glm/tokenizer.json", 1 << 24, &tokenizer, &n, err));
    hf_write_file(hf_path("tok"), "tokenizer.json", tokenizer);
    free(tokenizer);
    assert_int_equal(IMPORT("%s/tok --dry-run", hf_tmp), CAIRN_EDATA);
    assert_non_null(strstr(told, "2331 ids"));
    assert_int_equal(IMPORT("%s/tok --out %s/x", hf_tmp, hf_tmp), CAIRN_EDATA);
    assert_false(cairn_path_exists(hf_path("x")));
    hf_free(d);
    d = hf_make("{\"vocab_size\": 2331}", CAIRN_BF16, 0);
    hf_write(d, hf_path("tok"), 0);
    assert_int_equal(IMPORT("%s/tok --out %s/x --json", hf_tmp, hf_tmp), 0);
    assert_non_null(strstr(said, "\"tokenizer_ids\":2331"));
    assert_int_equal(EXPORT("%s/x --out %s/xo", hf_tmp, hf_tmp), 0);
    assert_true(cairn_file_size(hf_path("xo/tokenizer.json")) == cairn_file_size("recipes/data/tokenizers/mini-glm/tokenizer.json"));
    hf_free(d);
    /* export */
    assert_int_equal(EXPORT("%s/nothing --out %s/y", hf_tmp, hf_tmp), CAIRN_ENOINPUT);
    assert_int_equal(EXPORT("%s/x --step 3 --out %s/y", hf_tmp, hf_tmp), CAIRN_EUSAGE);
    assert_int_equal(EXPORT("%s/x --adapter --merged --out %s/y", hf_tmp, hf_tmp), CAIRN_EUSAGE);
    assert_int_equal(EXPORT("%s/x", hf_tmp), CAIRN_EUSAGE);
}

static void help(void **state)
{
    (void)state;
    assert_int_equal(IMPORT("--help"), 0);
    assert_non_null(strstr(said, "Examples:\n  cairn import tests/fixtures/models/glm52-tiny --dry-run"));
    assert_int_equal(EXPORT("--help"), 0);
    assert_non_null(strstr(said, "Examples:"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips), cmocka_unit_test(flash_round_trips),
        cmocka_unit_test(merged), cmocka_unit_test(dry_run), cmocka_unit_test(bad_input), cmocka_unit_test(help),
    };

    cairn_log_init("cairn", 0);
    return cmocka_run_group_tests(tests, hf_tmp_make, hf_tmp_remove);
}
