/* command.h - the grader that is a program: long-lived, one JSON line in, one JSON line out.
 *
 *     in   {"id": 17, "gold": "...", "response": "..."}
 *     out  {"id": 17, "match": true}       or {"id": 17, "score": 0.5}, 0 to 1; "extracted": text and "why": text if it likes;
 *          {"id": 17, "answer": false} says that the response offers none
 *
 * A reply must carry its request's id: what came late, twice or unasked is never taken for the next response's verdict. Text that
 * is no UTF-8 arrives with U+FFFD in the place of broken bytes. The program runs behind a sandbox (sandbox.h), is started when it
 * is first needed and stays; when it ends, exceeds its time, or says what is no verdict, it is ended with all that it started, and
 * the response is given to a fresh one, `retries` times; then its status is `crashed`, `timeout` or `invalid`. A time-out is not
 * tried again unless `retry_timeout` says so: what took too long once mostly does so twice, at twice the price. A program that ends
 * between two responses, also while the next one lies unread in its pipe, is started again at no response's cost. Its stderr is
 * read and thrown away but for the last line, which says why it crashed.
 */
#ifndef CAIRN_GRADE_COMMAND_H
#define CAIRN_GRADE_COMMAND_H

#include "grade/define.h"

#define CAIRN_COMMAND_REPLY_MAX ((size_t)1 << 20) /* bytes of a line */

enum cairn_status cairn_command_create(struct cairn_grader **out, const struct cairn_grader_def *def, struct cairn_error *err);

#endif
