/* value.h - exact values: quotients of polynomials with rational coefficients over named quantities.
 *
 * A monomial is a product of atoms with rational exponents. Atoms are: positive integers under a root (primes where
 * they could be factored), the imaginary unit, symbols (x; and pi, e, which are known to be positive), b^m for a
 * monomial m, roots of polynomials, and functions of values that are not evaluated (sin x). What is known about an
 * atom is used at once (p^(3/2) = p sqrt(p), i^2 = -1, root(P)^2 = P), so that a sum is zero exactly if no term is
 * left. For rational numbers, radicals of integers and i this decides equality (such radicals are linearly independent
 * over the rationals: Besicovitch, J. London Math. Soc. 15 (1940) 3-6); elsewhere equal values may be missed, but
 * values found equal are equal.
 *
 * Work is counted, in limbs touched; past the budget every call returns NULL with fail = CAIRN_VALUE_BUDGET. Powers too
 * large to write down stay powers.
 * Memory: all values live until cairn_algebra_destroy. NULL arguments give NULL, so calls may be nested.
 */
#ifndef CAIRN_GRADE_VALUE_H
#define CAIRN_GRADE_VALUE_H

#include <gmp.h>
#include <stddef.h>

#include "base/arena.h"

enum cairn_value_fail {
    CAIRN_VALUE_FINE = 0,
    CAIRN_VALUE_BUDGET,
    CAIRN_VALUE_UNDEFINED, /* 1/0, 0^0, (-1)! */
    CAIRN_VALUE_NONE,      /* not a scalar at all */
    CAIRN_VALUE_NOMEM
};

struct cairn_value;
struct cairn_algebra;

struct cairn_algebra *cairn_algebra_create(struct cairn_arena *arena, long budget); /* NULL: no memory */
void cairn_algebra_destroy(struct cairn_algebra *alg);
enum cairn_value_fail cairn_algebra_fail(const struct cairn_algebra *alg);
void cairn_algebra_clear_fail(struct cairn_algebra *alg);      /* a spent budget stays spent */
int cairn_algebra_spend(struct cairn_algebra *alg, long work); /* 0: failed before, or the budget is spent now */
struct cairn_value *cairn_value_none(struct cairn_algebra *alg, enum cairn_value_fail why); /* NULL; keeps the first reason */

struct cairn_value *cairn_value_int(struct cairn_algebra *alg, long x);
/* Decimal digits with at most one point; the last `repeat` decimals for ever. NULL if it is no number. */
struct cairn_value *cairn_value_decimal(struct cairn_algebra *alg, const char *digits, int repeat);
struct cairn_value *cairn_value_symbol(struct cairn_algebra *alg, const char *name, int positive);
struct cairn_value *cairn_value_i(struct cairn_algebra *alg);

struct cairn_value *cairn_value_neg(struct cairn_algebra *alg, const struct cairn_value *a);
struct cairn_value *cairn_value_add(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b);
struct cairn_value *cairn_value_mul(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b);
struct cairn_value *cairn_value_div(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b);
struct cairn_value *cairn_value_pow(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b);
struct cairn_value *cairn_value_root(struct cairn_algebra *alg, const struct cairn_value *a, long index);
struct cairn_value *cairn_value_abs(struct cairn_algebra *alg, const struct cairn_value *a);
struct cairn_value *cairn_value_round(struct cairn_algebra *alg, const struct cairn_value *a, int up); /* floor, ceiling */
struct cairn_value *cairn_value_factorial(struct cairn_algebra *alg, const struct cairn_value *a);
struct cairn_value *cairn_value_binomial(struct cairn_algebra *alg, const struct cairn_value *n, const struct cairn_value *k);
struct cairn_value *cairn_value_ln(struct cairn_algebra *alg, const struct cairn_value *a);
/* sin, cos and tan are known at multiples of pi/6 and pi/4; everything else is an atom of its own. */
struct cairn_value *cairn_value_function(struct cairn_algebra *alg, const char *name, const struct cairn_value *a);

int cairn_value_equal(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b); /* 1, 0, -1 failed */
/* 1 if values that are not found equal are known to differ: rational numbers, radicals of integers, i, symbols, pi and e as symbols. 0: they
 * hold functions or roots whose identities are not all known here. */
int cairn_value_decided(const struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b);
int cairn_value_is_zero(const struct cairn_value *a);
int cairn_value_rational(const struct cairn_value *a, mpq_srcptr *q); /* 1: *q (borrowed) is all there is to it */
/* The numerator of a over a common denominator, without it: a = 0 exactly where it is 0. */
struct cairn_value *cairn_value_numerator(struct cairn_algebra *alg, const struct cairn_value *a);
/* a / |leading coefficient| (signed: a / leading coefficient): the same for all positive (all) rational multiples. */
struct cairn_value *cairn_value_normalise(struct cairn_algebra *alg, const struct cairn_value *a, int with_sign);

#endif
