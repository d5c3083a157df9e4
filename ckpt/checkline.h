/* checkline.h - JSON documents that say by themselves whether they are whole: their last line is the digest of all before it.
 *
 *     {
 *       ...
 *       "check": "<32 hex digits>"
 *     }
 */
#ifndef CAIRN_CKPT_CHECKLINE_H
#define CAIRN_CKPT_CHECKLINE_H

#include <jansson.h>
#include <stddef.h>

#include "base/status.h"
#include "base/str.h"

/* obj, a member a line (markers, epochs, amendments): borrowed; text malloc'ed. */
enum cairn_status cairn_checked_text(const json_t *obj, char **out, size_t *n, struct cairn_error *err);
/* CAIRN_EDATA "WHERE: damaged: ..." before anything that it says is looked at. */
enum cairn_status cairn_checked_parse(json_t **out, const char *text, size_t n, const char *where, struct cairn_error *err);

/* The same for who writes and reads the members himself. Ends a text, open behind the comma of its last member, and hands its bytes
 * over; s is empty afterwards. */
enum cairn_status cairn_checked_finish(struct cairn_str *s, char **out, size_t *n, struct cairn_error *err);
/* Does the check hold? *covered: how much of the text lies before it. */
enum cairn_status cairn_checked_hold(const char *text, size_t n, const char *where, size_t *covered, struct cairn_error *err);
/* What the check line says with which these n bytes, the end of a text, end; "" if they end with none. Nothing is checked. */
#define CAIRN_CHECK_BYTES 64 /* more than the line takes */
void cairn_checked_claim(const char *end, size_t n, char hex[33]);

#endif
