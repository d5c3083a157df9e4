/* tokenizers.h - the tokenizers that the tests of this room read, and files made from them by replacing text, so that each differs from
 * a good one in just what is said. */
#ifndef CAIRN_TESTS_TOKENIZERS_H
#define CAIRN_TESTS_TOKENIZERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/philox.h"
#include "base/str.h"
#include "text/tokenizer.h"

#define MINI "recipes/data/tokenizers/mini-glm/tokenizer.json"
#define GLM  "recipes/data/tokenizers/cl100k-glm"
#define QWEN "tests/fixtures/tokenizers/qwen3"

static inline struct cairn_tokenizer *load(const char *path)
{
    struct cairn_tokenizer *t = NULL;
    struct cairn_error err = {0};

    if (cairn_tokenizer_load(&t, path, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    return t;
}

static inline uint32_t draw(uint32_t a, uint32_t b)
{
    struct cairn_philox_key key = {.seed = 7, .purpose = CAIRN_PURPOSE_PROBE};
    uint32_t out[4];

    cairn_philox(&key, a, b, 0, out);
    return out[0];
}

/* Copy of text[0..n) with the first `from` replaced; fails if there is none. */
static inline char *replace(const char *text, size_t n, const char *from, const char *to, size_t *m)
{
    const char *at = strstr(text, from);
    struct cairn_str out = {0};

    if (!at)
        fail_msg("the file holds no %s", from);
    cairn_str_add(&out, text, (size_t)(at - text));
    cairn_str_puts(&out, to);
    cairn_str_puts(&out, at + strlen(from));
    assert_int_equal(out.len, n - strlen(from) + strlen(to));
    *m = out.len;
    return cairn_str_take(&out);
}

#endif
