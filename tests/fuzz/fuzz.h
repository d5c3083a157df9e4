/* fuzz.h - the fuzz targets, as libFuzzer calls them (make fuzz-grade) and as fuzz_test.c does (make test): one input, any bytes.
 *
 * A target aborts with a sentence where something that must hold does not.
 */
#ifndef CAIRN_TESTS_FUZZ_H
#define CAIRN_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MUST(x)                                                          \
    do {                                                                 \
        if (!(x)) {                                                      \
            fprintf(stderr, "%s:%d: must hold: %s\n", __FILE__, __LINE__, #x); \
            abort();                                                     \
        }                                                                \
    } while (0)

int fuzz_extract(const uint8_t *data, size_t n); /* first byte: which markers; the rest: a response */
int fuzz_equal(const uint8_t *data, size_t n);   /* up to the first line break: the gold answer; the rest: the response's answer */

#endif
