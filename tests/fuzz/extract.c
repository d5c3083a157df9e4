/* extract.c - fuzz target: whatever a response holds, its answer is a part of it, the same each time, and found in linear work. */
#include "fuzz/fuzz.h"

#include <string.h>

#include "grade/extract.h"

int fuzz_extract(const uint8_t *data, size_t n)
{
    static const char *const markers[4][2] = {{"Answer:", NULL}, {"A:", NULL}, {"####", "The answer is"}, {"\xe7\xad\x94\xe6\xa1\x88:", "A"}};
    struct cairn_grade_opts opts = {0};
    struct cairn_span a, b, gold;
    const char *text;
    char *copy;

    if (n == 0)
        return 0;
    opts.marker = markers[data[0] % 4];
    opts.markers = opts.marker[1] ? 2 : 1;
    n--;
    text = (const char *)data + 1;
    copy = malloc(n ? n : 1); /* of its own size, so that a sanitizer sees a byte too far */
    MUST(copy != NULL);
    memcpy(copy, text, n);
    MUST(cairn_extract_answer(&opts, copy, n, &a, NULL) == CAIRN_OK);
    MUST(!a.p || (a.p >= copy && a.p + a.n <= copy + n));
    MUST(a.why != NULL);
    MUST(cairn_extract_answer(&opts, copy, n, &b, NULL) == CAIRN_OK && a.p == b.p && (!a.p || a.n == b.n));
    MUST(cairn_extract_gold(copy, n, &gold, NULL) == CAIRN_OK);
    MUST(gold.n == 0 || (gold.p >= copy && gold.p + gold.n <= copy + n));
    free(copy);
    return 0;
}

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return fuzz_extract(data, n);
}
#endif
