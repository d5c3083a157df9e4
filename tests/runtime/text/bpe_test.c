/* bpe_test.c - bpe.[ch] and vocab.[ch] against the definition: merge the pair of lowest rank, leftmost first, by plain loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "text/bpe.h"

static uint32_t draw(uint32_t a, uint32_t b)
{
    struct cairn_philox_key key = {.seed = 3, .purpose = CAIRN_PURPOSE_PROBE};
    uint32_t out[4];

    cairn_philox(&key, a, b, 0, out);
    return out[0];
}

/* A vocabulary: 256 bytes, then `merges` random pairs of earlier tokens over the letters a..d, deduplicated. */
struct toy {
    struct cairn_vocab vocab;
    struct cairn_bpe bpe;
    int merges;
    struct {
        int32_t left, right, id;
    } merge[400];
};

static void toy_make(struct toy *t, uint32_t seed, int merges, int ignore_merges)
{
    int32_t next = 256;
    char bytes[256];

    memset(t, 0, sizeof *t);
    assert_int_equal(cairn_vocab_init(&t->vocab, 256 + 400, 256 + 400, NULL), CAIRN_OK);
    for (int c = 0; c < 256; c++) {
        char byte = (char)c;

        assert_int_equal(cairn_vocab_add(&t->vocab, c, &byte, 1, CAIRN_TOKEN_MODEL, NULL), CAIRN_OK);
    }
    for (uint32_t i = 0; i < 2000 && t->merges < merges; i++) {
        int32_t pick[2], id;
        size_t n = 0;

        for (int k = 0; k < 2; k++) {
            uint32_t x = draw(seed, 2 * i + (uint32_t)k);

            pick[k] = x % 3 && next > 256 ? 256 + (int32_t)(x / 3 % (uint32_t)(next - 256)) : 'a' + (int32_t)(x / 3 % 4);
            if (n + t->vocab.entry[pick[k]].len > 20)
                break;
            memcpy(bytes + n, cairn_vocab_bytes(&t->vocab, pick[k]), t->vocab.entry[pick[k]].len);
            n += t->vocab.entry[pick[k]].len;
        }
        if (n < 2 || n != t->vocab.entry[pick[0]].len + t->vocab.entry[pick[1]].len)
            continue;
        id = cairn_vocab_find(&t->vocab, bytes, n, cairn_vocab_hash(bytes, n)); /* two pairs may make one token */
        if (id < 0) {
            id = next++;
            assert_int_equal(cairn_vocab_add(&t->vocab, id, bytes, n, CAIRN_TOKEN_MODEL, NULL), CAIRN_OK);
        }
        t->merge[t->merges].left = pick[0];
        t->merge[t->merges].right = pick[1];
        t->merge[t->merges++].id = id;
    }
    assert_int_equal(cairn_bpe_init(&t->bpe, &t->vocab, 400, ignore_merges, NULL), CAIRN_OK);
    for (int i = 0; i < t->merges; i++)
        cairn_bpe_add(&t->bpe, t->merge[i].left, t->merge[i].right, (uint32_t)i, t->merge[i].id);
}

static void toy_free(struct toy *t)
{
    cairn_bpe_free(&t->bpe);
    cairn_vocab_free(&t->vocab);
}

/* The definition. id has room for n. A pair that is listed twice has its later rank. */
static int definition(const struct toy *t, const char *p, int n, int32_t *id)
{
    if (t->bpe.ignore_merges && (id[0] = cairn_vocab_find(&t->vocab, p, (size_t)n, cairn_vocab_hash(p, (size_t)n))) >= 0)
        return 1;
    for (int i = 0; i < n; i++)
        id[i] = (unsigned char)p[i];
    for (;;) {
        int best = -1, at = 0;

        for (int i = 0; i + 1 < n; i++)
            for (int m = t->merges - 1; m >= 0; m--)
                if (t->merge[m].left == id[i] && t->merge[m].right == id[i + 1]) {
                    if (best < 0 || m < best)
                        best = m, at = i;
                    break;
                }
        if (best < 0)
            return n;
        id[at] = t->merge[best].id;
        memmove(id + at + 1, id + at + 2, (size_t)(n - at - 2) * sizeof *id);
        n--;
    }
}

static void against_definition(void **state)
{
    static struct toy t;
    int32_t want[300];
    char text[300];

    (void)state;
    for (uint32_t round = 0; round < 6; round++) {
        struct cairn_bpe_work *w = cairn_bpe_work_create();
        struct cairn_ids ids = {0};

        toy_make(&t, round, 12 << round, (int)round % 2);
        assert_true(t.merges > 10);
        for (uint32_t i = 0; i < 1500; i++) {
            int n = (int)(draw(1000 + round, i) % (i % 10 ? 70 : 299)) + 1, k; /* both sides of the switch to the heap */

            for (int c = 0; c < n; c++)
                text[c] = (char)('a' + draw(2000 + round * 7 + i % 500, (uint32_t)c) % (i % 3 ? 4 : 2)); /* some texts come again */
            k = definition(&t, text, n, want);
            ids.n = 0;
            assert_int_equal(cairn_bpe_piece(&t.bpe, w, text, (size_t)n, &ids, NULL), CAIRN_OK);
            assert_int_equal(ids.n, k);
            assert_memory_equal(ids.p, want, (size_t)k * sizeof *want);
            cairn_bpe_work_trim(w);
        }
        cairn_ids_free(&ids);
        cairn_bpe_work_destroy(w);
        toy_free(&t);
    }
}

static void vocabulary(void **state)
{
    struct cairn_vocab v;
    struct cairn_error err;

    (void)state;
    assert_int_equal(cairn_vocab_init(&v, 10, 10, NULL), CAIRN_OK);
    assert_int_equal(cairn_vocab_add(&v, 3, "ab\0c", 4, CAIRN_TOKEN_MODEL, NULL), CAIRN_OK);
    assert_int_equal(cairn_vocab_find(&v, "ab\0c", 4, cairn_vocab_hash("ab\0c", 4)), 3);
    assert_int_equal(cairn_vocab_find(&v, "ab", 2, cairn_vocab_hash("ab", 2)), -1);
    assert_int_equal(cairn_vocab_add(&v, 3, "ab\0c", 4, CAIRN_TOKEN_ADDED, NULL), CAIRN_OK); /* the same once more */
    assert_int_equal(v.entry[3].flags, CAIRN_TOKEN_MODEL | CAIRN_TOKEN_ADDED);
    assert_int_equal(v.held, 1);
    assert_int_equal(cairn_vocab_add(&v, 3, "x", 1, 0, &err), CAIRN_EDATA);
    assert_int_equal(cairn_vocab_add(&v, 4, "ab\0c", 4, CAIRN_TOKEN_MODEL, &err), CAIRN_EDATA);
    assert_string_equal(err.text, "ids 3 and 4 stand for the same token");
    assert_int_equal(cairn_vocab_add(&v, 10, "x", 1, 0, &err), CAIRN_EBUG);
    cairn_vocab_free(&v);
    cairn_vocab_free(&v);
}

/* All 256 characters of the alphabet, from GPT-2's rule: printable Latin-1 stands for itself, the rest counts up. */
static void alphabet(void **state)
{
    struct cairn_str in = {0}, out = {0};
    uint32_t beyond = 0x100;

    (void)state;
    for (uint32_t b = 0; b < 256; b++)
        cairn_str_put_utf8(&in, (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae ? b : beyond++);
    assert_int_equal(cairn_byte_alphabet_decode(in.p, in.len, &out), 1);
    assert_int_equal(out.len, 256);
    for (int b = 0; b < 256; b++)
        assert_int_equal((unsigned char)out.p[b], b);
    cairn_str_clear(&out);
    assert_int_equal(cairn_byte_alphabet_decode("a b", 3, &out), 0);
    assert_int_equal(cairn_byte_alphabet_decode("\xc5\x84", 2, &out), 0); /* U+0144, one too far */
    assert_int_equal(cairn_byte_alphabet_decode("\xff", 1, &out), 0);
    cairn_str_free(&in);
    cairn_str_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_definition),
        cmocka_unit_test(vocabulary),
        cmocka_unit_test(alphabet),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
