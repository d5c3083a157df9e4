/* frame.h - what goes over the sockets between a program, its grader process and the grading child.
 *
 * A frame is a header of 16 bytes and `bytes` bytes of body; all numbers in host order (both ends are one program on
 * one machine):
 *
 *     offset  0  uint32  magic   0x31524743 ("CGR1")
 *             4  uint32  type    enum cairn_frame_type
 *             8  uint32  serial  of the request; an answer carries its request's
 *            12  uint32  bytes   of the body, at most CAIRN_FRAME_MAX
 *
 *     REQUEST  text grader, uint32 markers, text marker ..., text gold, text response
 *     VERDICT  uint32 match, uint32 status, double value, text extracted, text why
 *     ERROR    uint32 code (enum cairn_status), text sentence
 *
 * where "text" is uint32 length and that many bytes. A reader trusts nothing: lengths are checked against what is
 * left, counts against their limits, and a body must be used up exactly. What breaks a rule is CAIRN_EBUG.
 */
#ifndef CAIRN_GRADE_FRAME_H
#define CAIRN_GRADE_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "grade/grade.h"

#define CAIRN_FRAME_MAGIC 0x31524743u
#define CAIRN_FRAME_MAX   (64u << 20)

enum cairn_frame_type { CAIRN_FRAME_REQUEST = 1, CAIRN_FRAME_VERDICT, CAIRN_FRAME_ERROR };

struct cairn_frame_header {
    uint32_t magic, type, serial, bytes;
};

/* Borrowed parts of a request. */
struct cairn_grade_request {
    const char *grader; /* name */
    const struct cairn_grade_opts *opts;
    const char *gold;
    size_t gold_bytes;
    const char *response;
    size_t response_bytes;
};

/* Append a whole frame to s. CAIRN_EDATA: larger than CAIRN_FRAME_MAX. */
enum cairn_status cairn_frame_put_request(struct cairn_str *s, uint32_t serial, const struct cairn_grade_request *request,
                                          struct cairn_error *err);
enum cairn_status cairn_frame_put_verdict(struct cairn_str *s, uint32_t serial, const struct cairn_verdict *verdict,
                                          struct cairn_error *err);
enum cairn_status cairn_frame_put_error(struct cairn_str *s, uint32_t serial, const struct cairn_error *error,
                                        struct cairn_error *err);

enum cairn_status cairn_frame_check(const struct cairn_frame_header *h, struct cairn_error *err);

/* A request read back; everything points into body or the struct itself. */
struct cairn_frame_request {
    struct cairn_grade_request request;
    struct cairn_grade_opts opts;
    const char *marker[CAIRN_MARKERS_MAX];
    char names[(CAIRN_MARKERS_MAX + 1) * (CAIRN_MARKER_BYTES_MAX + 1)]; /* NUL-terminated copies */
};

enum cairn_status cairn_frame_get_request(const char *body, size_t n, struct cairn_frame_request *out, struct cairn_error *err);
enum cairn_status cairn_frame_get_verdict(const char *body, size_t n, struct cairn_verdict *out, struct cairn_error *err);
/* The error that was sent: its code and sentence become *err; CAIRN_EBUG if it is no error. */
enum cairn_status cairn_frame_get_error(const char *body, size_t n, struct cairn_error *err);

/* Blocking, EINTR handled. n bytes to or from a socket. CAIRN_EAGAIN: the other end is gone (*got says how much came). */
enum cairn_status cairn_socket_write(int fd, const void *p, size_t n, struct cairn_error *err);
enum cairn_status cairn_socket_read(int fd, void *p, size_t n, size_t *got, struct cairn_error *err);

#endif
