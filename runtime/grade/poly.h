/* poly.h - polynomials over atoms with rational exponents: what values (value.h) are made of. For value.c, power.c and
 * function.c only.
 *
 * A polynomial is immutable once it is returned and may be shared. Everything lives until cairn_algebra_destroy; NULL
 * arguments give NULL, failures are kept in the algebra.
 */
#ifndef CAIRN_GRADE_POLY_H
#define CAIRN_GRADE_POLY_H

#include <gmp.h>
#include <stdint.h>

#include "grade/value.h"

#define ATOMS_MAX         1024
#define BITS_MAX          65536 /* of a number that is written down */
#define EXPONENT_MAX      ((int64_t)1 << 50)
#define EXPONENT_DEN_MAX  4096
#define POWER_TERMS_MAX   64 /* power of a sum that is multiplied out */
#define FACTORIAL_MAX     4000
#define FACTOR_BITS_MAX   4096 /* of an integer that is searched for prime factors below 2^16 */
#define FACTORS_MAX       256  /* of one term */
#define NUMBERS_PER_CHUNK 128

enum atom_kind { ATOM_INTEGER, ATOM_I, ATOM_SYMBOL, ATOM_POSITIVE, ATOM_ROOT, ATOM_OPAQUE };

struct factor {
    int atom;
    int64_t p, q; /* exponent p/q, q > 0, lowest terms */
};

struct term {
    mpq_ptr c;
    const struct factor *f; /* (n) by ascending atom */
    int n;
};

struct poly {
    struct term *t; /* (n) by ascending monomial, no zero coefficient, no monomial twice */
    int n;
};

struct atom {
    enum atom_kind kind;
    const char *key;
    mpz_ptr z;               /* ATOM_INTEGER */
    const struct poly *poly; /* ATOM_ROOT: the radicand */
};

struct cairn_value {
    const struct poly *num, *den; /* den is not zero; the shared constant 1 wherever that is possible */
};

struct chunk {
    struct chunk *next;
    int n;
    __mpq_struct q[NUMBERS_PER_CHUNK];
};

struct cairn_algebra {
    struct cairn_arena *arena;
    long budget;
    enum cairn_value_fail fail;
    struct atom atom[ATOMS_MAX];
    int atoms;
    struct chunk *chunks;
    const struct poly *one; /* the constant 1 */
};

void *cairn_alg_get(struct cairn_algebra *alg, size_t bytes);
mpq_ptr cairn_alg_number(struct cairn_algebra *alg); /* 0, to be written before it is shared */
size_t cairn_number_bits(mpq_srcptr q);
long cairn_number_limbs(mpq_srcptr q);

/* Index of the atom with this key, made if it is new; -1: failed. */
int cairn_atom(struct cairn_algebra *alg, enum atom_kind kind, const char *key);
int cairn_atom_integer(struct cairn_algebra *alg, mpz_srcptr z);

/* The exponent becomes, grows by, is multiplied by p/q; 0 if that is out of range. */
int cairn_exponent_set(struct factor *f, int64_t p, int64_t q);
int cairn_exponent_add(struct factor *f, int64_t p, int64_t q);
int cairn_exponent_scale(struct factor *f, int64_t p, int64_t q);

const struct poly *cairn_poly_add(struct cairn_algebra *alg, const struct poly *a, const struct poly *b);
const struct poly *cairn_poly_scale(struct cairn_algebra *alg, const struct poly *a, mpq_srcptr c);
const struct poly *cairn_poly_neg(struct cairn_algebra *alg, const struct poly *a);
const struct poly *cairn_poly_mul(struct cairn_algebra *alg, const struct poly *a, const struct poly *b);
const struct poly *cairn_poly_power(struct cairn_algebra *alg, const struct poly *a, int64_t k);
/* c times the n raw factors (any order, atoms may repeat), with everything used that is known about the atoms. */
const struct poly *cairn_poly_reduced(struct cairn_algebra *alg, mpq_srcptr c, const struct factor *raw, int n);
int cairn_poly_equal(const struct poly *a, const struct poly *b);

/* value.c */
struct cairn_value *cairn_value_quotient(struct cairn_algebra *alg, const struct poly *num, const struct poly *den);
struct cairn_value *cairn_value_from_poly(struct cairn_algebra *alg, const struct poly *p);
struct cairn_value *cairn_value_from_number(struct cairn_algebra *alg, mpq_srcptr q);
struct cairn_value *cairn_value_from_atom(struct cairn_algebra *alg, int a, int64_t p, int64_t q); /* atom^(p/q) */
int cairn_value_is_constant(const struct cairn_algebra *alg, const struct cairn_value *a);         /* a rational number */

/* power.c: name(a, b) as an atom of its own (b may be NULL); factors of z > 0 with exponent p/q each, appended to f. */
struct cairn_value *cairn_value_opaque(struct cairn_algebra *alg, enum atom_kind kind, const char *name,
                                       const struct cairn_value *a, const struct cairn_value *b);
int cairn_factor_integer(struct cairn_algebra *alg, mpz_srcptr z, int64_t p, int64_t q, struct factor *f, int *n, int cap);

#endif
