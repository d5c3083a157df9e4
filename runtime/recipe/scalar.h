/* scalar.h - what a plain YAML scalar means (a strict part of YAML 1.2's core schema), and how values are printed so that
 * they read back as the same value, floats to the bit.
 *
 * null: "", ~, null   booleans: true, false (also True, TRUE, ...)   integers: decimal or 0x, 64 bits
 * floats: 1.5, .5, 1e-5, 1.e3   everything else is a string.
 * Bad, because two YAML readers would not agree or because no key can use it: 010, 0o7, .inf, .nan, numbers that overflow.
 */
#ifndef CAIRN_RECIPE_SCALAR_H
#define CAIRN_RECIPE_SCALAR_H

#include <jansson.h>
#include <stdint.h>

#include "base/str.h"

enum cairn_scalar_kind {
    CAIRN_SCALAR_NULL,
    CAIRN_SCALAR_BOOL,
    CAIRN_SCALAR_INT,
    CAIRN_SCALAR_FLOAT,
    CAIRN_SCALAR_STRING,
    CAIRN_SCALAR_BAD
};

struct cairn_scalar {
    enum cairn_scalar_kind kind;
    int b;
    int64_t i;
    double f;        /* also the value of an integer */
    const char *bad; /* why it is bad; static text */
};

void cairn_scalar_resolve(const char *text, struct cairn_scalar *out);
/* yes, no, on, off in any case: booleans of YAML 1.1. */
int cairn_scalar_is_old_bool(const char *text);

/* Shortest text that reads back to the same bits, with a '.' or an 'e' in it: 0.2, 1.0, 1e-5. x is finite. */
void cairn_scalar_put_float(struct cairn_str *out, double x);
/* A string, plain where that is safe, else in double quotes. */
void cairn_scalar_put_string(struct cairn_str *out, const char *text);
/* Any value in one line, YAML flow style. */
void cairn_scalar_put_flow(struct cairn_str *out, const json_t *v);

#endif
