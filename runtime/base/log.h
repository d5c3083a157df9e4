/* log.h - what people and programs are told while work is going on.
 *
 * Messages go to stderr as one line "cairn-train: ...". Progress is a bar on a terminal and one line every
 * `every_s` seconds elsewhere. Events and metrics are JSON lines appended to a file (one write(2) a line), each with
 * t (wall seconds), stage, rank, step, attempt, ev.
 */
#ifndef CAIRN_BASE_LOG_H
#define CAIRN_BASE_LOG_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

/* Name in front of messages ("cairn-train"); rank > 0 is silent except for warnings. Call once. */
void cairn_log_init(const char *program, int rank);
void cairn_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void cairn_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void cairn_log_quiet(int on); /* 1: no info and no progress (--quiet, --json) */

struct cairn_progress;
/* total in `unit`s ("tokens", "rollouts"); total 0: unknown. NULL is fine everywhere below. */
struct cairn_progress *cairn_progress_begin(const char *what, const char *unit, int64_t total, double every_s);
void cairn_progress_from(struct cairn_progress *p, int64_t done); /* so much was there before: no part of the rate */
void cairn_progress_at(struct cairn_progress *p, int64_t done); /* cheap: reads the clock, prints when due */
void cairn_progress_end(struct cairn_progress *p);

/* JSON lines. `base` members are put in front of each line. */
struct cairn_events;
enum cairn_status cairn_events_open(struct cairn_events **out, const char *path, struct cairn_error *err);
void cairn_events_close(struct cairn_events *e);
/* Sets the base members (an object with job, attempt, ...; its reference is taken over; replaces earlier ones). A
 * member of an event has precedence over a base member of its name. */
void cairn_events_base(struct cairn_events *e, json_t *base);
/* Takes over the reference to members (an object; NULL: none). A failed write is told once and costs nothing else. */
void cairn_event(struct cairn_events *e, const char *ev, const char *stage, int64_t step, json_t *members);

#endif
