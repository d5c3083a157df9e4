/* json.h - JSON through jansson, with errors that name the file, and numbers that read back to the same bits.
 *
 * json_t is jansson's; ownership follows jansson (json_decref). Getters check type and range and fail with
 * CAIRN_EDATA in the form "<where>: key \"x\": expected an integer"; `where` is usually the file's name.
 * Duplicate keys and nesting above 200 are refused.
 */
#ifndef CAIRN_BASE_JSON_H
#define CAIRN_BASE_JSON_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

enum cairn_status cairn_json_parse(json_t **out, const char *text, size_t n, const char *where, struct cairn_error *err);
enum cairn_status cairn_json_load(json_t **out, const char *path, size_t max_bytes, struct cairn_error *err);

/* Required members of an object. Strings are borrowed from obj. */
enum cairn_status cairn_json_i64(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *out, const char *where,
                                 struct cairn_error *err);
enum cairn_status cairn_json_f64(const json_t *obj, const char *key, double *out, const char *where, struct cairn_error *err);
enum cairn_status cairn_json_bool(const json_t *obj, const char *key, int *out, const char *where, struct cairn_error *err);
enum cairn_status cairn_json_string(const json_t *obj, const char *key, const char **out, const char *where,
                                    struct cairn_error *err);
enum cairn_status cairn_json_object(const json_t *obj, const char *key, json_t **out, const char *where, struct cairn_error *err);
enum cairn_status cairn_json_array(const json_t *obj, const char *key, json_t **out, const char *where, struct cairn_error *err);

/* Compact canonical text: keys sorted, no blanks; whole numbers below 2^63 as "%lld", so that 1.0 and 1 are one value
 * (-0.0 keeps its sign), other numbers in the fewest of 15, 16, 17 significant digits that read back to the same bits.
 * Equal values give equal bytes, parsed and written again too, so it may be hashed. Appends to s.
 * ("%.9g" would not do, even for what is a float exactly: 0.100000001 reads back as another double.) */
void cairn_json_canonical(struct cairn_str *s, const json_t *v);
/* Readable text: keys in insertion order, two blanks of indent, same number forms. */
void cairn_json_pretty(struct cairn_str *s, const json_t *v);
/* Appends a quoted JSON string (any bytes; invalid UTF-8 becomes U+FFFD); a float32 ("%.9g": read as a double and
 * converted to float it has the same bits); a double in the canonical form. Non-finite: null. */
void cairn_json_put_string(struct cairn_str *s, const char *p, size_t n);
void cairn_json_put_float(struct cairn_str *s, float x);
void cairn_json_put_double(struct cairn_str *s, double x);

/* A JSON string of n bytes that may be no UTF-8 (put_string's rule); new reference, NULL without memory. */
json_t *cairn_json_text(const char *p, size_t n);

/* Lines of a JSON-lines file. Reads any fd, pipes included; a line longer than 64 MiB is an error.
 *   while ((st = cairn_jsonl_next(r, &v, err)) == CAIRN_OK && v) { ... json_decref(v) done by the reader ... }
 * v == NULL: end. Errors read "FILE:LINE: ...". Blank lines are errors. After CAIRN_EDATA the next call goes on
 * with the next line. */
struct cairn_jsonl;
enum cairn_status cairn_jsonl_open(struct cairn_jsonl **out, const char *path, struct cairn_error *err);
void cairn_jsonl_close(struct cairn_jsonl *r);
enum cairn_status cairn_jsonl_next(struct cairn_jsonl *r, const json_t **v, struct cairn_error *err); /* borrowed until next call */
int64_t cairn_jsonl_line(const struct cairn_jsonl *r); /* number of the line just read, from 1 */
const char *cairn_jsonl_where(const struct cairn_jsonl *r); /* "FILE:LINE", borrowed until the next call */

#endif
