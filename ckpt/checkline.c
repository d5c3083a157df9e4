/* checkline.c - see checkline.h. */
#include "ckpt/checkline.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/digest.h"
#include "base/json.h"

#define CHECK_HEAD "  \"check\": \""
#define CHECK_TAIL "\"\n}\n"
#define CHECK_LEN  (sizeof CHECK_HEAD - 1 + 32 + sizeof CHECK_TAIL - 1)
_Static_assert(CHECK_LEN <= CAIRN_CHECK_BYTES, "who reads the end of a file reads less than the line");

enum cairn_status cairn_checked_finish(struct cairn_str *s, char **out, size_t *n, struct cairn_error *err)
{
    char hex[33];

    if (!s->oom) {
        cairn_digest_hex(cairn_digest_bytes(s->p, s->len), hex);
        cairn_str_printf(s, CHECK_HEAD "%s" CHECK_TAIL, hex);
    }
    if (s->oom) {
        cairn_str_free(s);
        return CAIRN_NOMEM(err);
    }
    *n = s->len;
    *out = cairn_str_take(s);
    return CAIRN_OK;
}

enum cairn_status cairn_checked_hold(const char *text, size_t n, const char *where, size_t *covered, struct cairn_error *err)
{
    char want[CHECK_LEN + 1], hex[33];

    if (n < CHECK_LEN)
        return cairn_fail(err, CAIRN_EDATA, "%s: damaged: %zu bytes are too few to hold its check line", where, n);
    *covered = n - CHECK_LEN;
    cairn_digest_hex(cairn_digest_bytes(text, *covered), hex);
    snprintf(want, sizeof want, CHECK_HEAD "%s" CHECK_TAIL, hex);
    if (memcmp(text + *covered, want, CHECK_LEN))
        return cairn_fail(err, CAIRN_EDATA, "%s: damaged: its check line does not hold", where);
    return CAIRN_OK;
}

void cairn_checked_claim(const char *end, size_t n, char hex[33])
{
    const char *line, *digits;

    hex[0] = 0;
    if (n < CHECK_LEN)
        return;
    line = end + n - CHECK_LEN;
    digits = line + sizeof CHECK_HEAD - 1;
    if (memcmp(line, CHECK_HEAD, sizeof CHECK_HEAD - 1) || memcmp(digits + 32, CHECK_TAIL, sizeof CHECK_TAIL - 1))
        return;
    memcpy(hex, digits, 32);
    hex[32] = 0;
}

enum cairn_status cairn_checked_text(const json_t *obj, char **out, size_t *n, struct cairn_error *err)
{
    struct cairn_str s = {0};
    const char *key;
    json_t *v;

    cairn_str_puts(&s, "{\n");
    json_object_foreach((json_t *)(uintptr_t)obj, key, v)
    {
        cairn_str_puts(&s, "  ");
        cairn_json_put_string(&s, key, strlen(key));
        cairn_str_puts(&s, ": ");
        cairn_json_canonical(&s, v);
        cairn_str_puts(&s, ",\n");
    }
    return cairn_checked_finish(&s, out, n, err);
}

enum cairn_status cairn_checked_parse(json_t **out, const char *text, size_t n, const char *where, struct cairn_error *err)
{
    enum cairn_status st;
    size_t covered;
    json_t *obj = NULL;

    TRY(cairn_checked_hold(text, n, where, &covered, err));
    TRY(cairn_json_parse(&obj, text, n, where, err));
    if (!json_is_object(obj))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: expected an object", where));
    *out = obj;
    obj = NULL;
out:
    json_decref(obj);
    return st;
}
