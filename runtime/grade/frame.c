/* frame.c - frames to bytes and back. See frame.h. */
#include "grade/frame.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

static void put_u32(struct cairn_str *s, uint32_t x)
{
    cairn_str_add(s, &x, sizeof x);
}

static void put_text(struct cairn_str *s, const char *p, size_t n)
{
    put_u32(s, (uint32_t)n);
    cairn_str_add(s, p, n);
}

static void begin(struct cairn_str *s, enum cairn_frame_type type, uint32_t serial, uint32_t bytes)
{
    struct cairn_frame_header h = {CAIRN_FRAME_MAGIC, type, serial, bytes};

    cairn_str_add(s, &h, sizeof h);
}

enum cairn_status cairn_frame_put_request(struct cairn_str *s, uint32_t serial, const struct cairn_grade_request *r,
                                          struct cairn_error *err)
{
    int markers = r->opts ? r->opts->markers : 0;
    size_t bytes = 4 * 4 + strlen(r->grader);
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_grade_opts_check(r->opts, err));
    for (int i = 0; i < markers; i++)
        bytes += 4 + strlen(r->opts->marker[i]);
    if (strlen(r->grader) > CAIRN_MARKER_BYTES_MAX)
        return cairn_grader_unknown(r->grader, err);
    if (r->gold_bytes > CAIRN_FRAME_MAX || r->response_bytes > CAIRN_FRAME_MAX ||
        bytes + r->gold_bytes + r->response_bytes > CAIRN_FRAME_MAX)
        return cairn_fail(err, CAIRN_EDATA, "grader: gold of %zu and response of %zu bytes, together more than %u", r->gold_bytes,
                          r->response_bytes, CAIRN_FRAME_MAX);
    bytes += r->gold_bytes + r->response_bytes;
    begin(s, CAIRN_FRAME_REQUEST, serial, (uint32_t)bytes);
    put_text(s, r->grader, strlen(r->grader));
    put_u32(s, (uint32_t)markers);
    for (int i = 0; i < markers; i++)
        put_text(s, r->opts->marker[i], strlen(r->opts->marker[i]));
    put_text(s, r->gold, r->gold_bytes);
    put_text(s, r->response, r->response_bytes);
    if (s->oom)
        st = CAIRN_NOMEM(err);
out:
    return st;
}

enum cairn_status cairn_frame_put_verdict(struct cairn_str *s, uint32_t serial, const struct cairn_verdict *v,
                                          struct cairn_error *err)
{
    size_t extracted = strnlen(v->extracted, sizeof v->extracted - 1), why = strnlen(v->why, sizeof v->why - 1);

    begin(s, CAIRN_FRAME_VERDICT, serial, (uint32_t)(4 * 4 + sizeof v->value + extracted + why));
    put_u32(s, (uint32_t)(v->match != 0));
    put_u32(s, (uint32_t)v->status);
    cairn_str_add(s, &v->value, sizeof v->value);
    put_text(s, v->extracted, extracted);
    put_text(s, v->why, why);
    return s->oom ? CAIRN_NOMEM(err) : CAIRN_OK;
}

enum cairn_status cairn_frame_put_error(struct cairn_str *s, uint32_t serial, const struct cairn_error *error,
                                        struct cairn_error *err)
{
    size_t n = strnlen(error->text, sizeof error->text - 1);

    begin(s, CAIRN_FRAME_ERROR, serial, (uint32_t)(4 * 2 + n));
    put_u32(s, (uint32_t)error->code);
    put_text(s, error->text, n);
    return s->oom ? CAIRN_NOMEM(err) : CAIRN_OK;
}

enum cairn_status cairn_frame_check(const struct cairn_frame_header *h, struct cairn_error *err)
{
    if (h->magic != CAIRN_FRAME_MAGIC || h->bytes > CAIRN_FRAME_MAX || h->type < CAIRN_FRAME_REQUEST || h->type > CAIRN_FRAME_ERROR)
        return cairn_fail(err, CAIRN_EBUG, "grader: broken frame (magic %08x, type %u, %u bytes)", h->magic, h->type, h->bytes);
    return CAIRN_OK;
}

/* --- reading ------------------------------------------------------------------------------------------------------------ */

struct reader {
    const char *p;
    size_t n;
    int broken;
};

/* The next n bytes, if there are as many. */
static void get(struct reader *r, void *to, size_t n)
{
    if (r->n < n) {
        r->broken = 1;
        return;
    }
    memcpy(to, r->p, n);
    r->p += n;
    r->n -= n;
}

static uint32_t get_u32(struct reader *r)
{
    uint32_t x = 0;

    get(r, &x, sizeof x);
    return x;
}

static double get_f64(struct reader *r)
{
    double x = 0;

    get(r, &x, sizeof x);
    return x;
}

static const char *get_text(struct reader *r, size_t max, size_t *n)
{
    uint32_t len = get_u32(r);
    const char *p = r->p;

    *n = 0;
    if (r->broken || len > r->n || len > max) {
        r->broken = 1;
        return "";
    }
    r->p += len;
    r->n -= len;
    *n = len;
    return p;
}

static enum cairn_status finish(const struct reader *r, const char *what, struct cairn_error *err)
{
    if (r->broken || r->n)
        return cairn_fail(err, CAIRN_EBUG, "grader: broken %s frame", what);
    return CAIRN_OK;
}

/* A NUL-terminated copy in out->names at *used. */
static const char *keep(struct cairn_frame_request *out, size_t *used, struct reader *r)
{
    size_t n;
    const char *p = get_text(r, CAIRN_MARKER_BYTES_MAX, &n);
    char *kept = out->names + *used;

    if (memchr(p, 0, n))
        r->broken = 1;
    memcpy(kept, p, n);
    kept[n] = 0;
    *used += n + 1;
    return kept;
}

enum cairn_status cairn_frame_get_request(const char *body, size_t n, struct cairn_frame_request *out, struct cairn_error *err)
{
    struct reader r = {body, n, 0};
    size_t used = 0;
    uint32_t markers;

    out->request.grader = keep(out, &used, &r);
    markers = get_u32(&r);
    if (markers > CAIRN_MARKERS_MAX)
        r.broken = 1;
    for (uint32_t i = 0; i < markers && !r.broken; i++)
        out->marker[i] = keep(out, &used, &r);
    out->opts.marker = out->marker;
    out->opts.markers = r.broken ? 0 : (int)markers;
    out->request.opts = &out->opts;
    out->request.gold = get_text(&r, CAIRN_FRAME_MAX, &out->request.gold_bytes);
    out->request.response = get_text(&r, CAIRN_FRAME_MAX, &out->request.response_bytes);
    return finish(&r, "request", err);
}

enum cairn_status cairn_frame_get_verdict(const char *body, size_t n, struct cairn_verdict *out, struct cairn_error *err)
{
    struct reader r = {body, n, 0};
    struct cairn_verdict v;
    uint32_t match = get_u32(&r), status = get_u32(&r);
    size_t extracted, why;
    const char *p;

    memset(&v, 0, sizeof v);
    v.value = get_f64(&r);
    p = get_text(&r, sizeof v.extracted - 1, &extracted);
    memcpy(v.extracted, p, extracted);
    p = get_text(&r, sizeof v.why - 1, &why);
    memcpy(v.why, p, why);
    if (match > 1 || status >= CAIRN_VERDICT_STATUSES || !(v.value >= 0 && v.value <= 1))
        r.broken = 1;
    v.match = (int)match;
    v.status = (enum cairn_verdict_status)status;
    if (!r.broken && !r.n)
        *out = v;
    return finish(&r, "verdict", err);
}

enum cairn_status cairn_frame_get_error(const char *body, size_t n, struct cairn_error *err)
{
    struct reader r = {body, n, 0};
    uint32_t code = get_u32(&r);
    size_t len;
    const char *p = get_text(&r, sizeof(((struct cairn_error *)0)->text) - 1, &len);

    if (r.broken || r.n || code < CAIRN_EUSAGE || code > CAIRN_ERECIPE)
        return cairn_fail(err, CAIRN_EBUG, "grader: broken error frame");
    return cairn_fail(err, (enum cairn_status)code, "%.*s", (int)len, p);
}

/* --- sockets ------------------------------------------------------------------------------------------------------------ */

enum cairn_status cairn_socket_write(int fd, const void *p, size_t n, struct cairn_error *err)
{
    const char *at = p;

    while (n > 0) {
        ssize_t k = send(fd, at, n, MSG_NOSIGNAL);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0 && (errno == EPIPE || errno == ECONNRESET))
            return cairn_fail(err, CAIRN_EAGAIN, "grader: the other process is gone");
        if (k < 0)
            return cairn_fail_errno(err, errno, "grader: send");
        at += k;
        n -= (size_t)k;
    }
    return CAIRN_OK;
}

enum cairn_status cairn_socket_read(int fd, void *p, size_t n, size_t *got, struct cairn_error *err)
{
    *got = 0;
    while (*got < n) {
        ssize_t k = recv(fd, (char *)p + *got, n - *got, 0);

        if (k < 0 && errno == EINTR)
            continue;
        if (k == 0 || (k < 0 && errno == ECONNRESET))
            return cairn_fail(err, CAIRN_EAGAIN, "grader: the other process is gone");
        if (k < 0)
            return cairn_fail_errno(err, errno, "grader: receive");
        *got += (size_t)k;
    }
    return CAIRN_OK;
}
