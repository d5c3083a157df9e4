/* log.c - messages, progress and JSON lines. One write(2) per line, so lines of several ranks do not mix. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"

static struct {
    char program[64];
    int rank, quiet;
    int bar; /* a progress bar stands on the terminal's last line */
} self = {.program = "cairn"};

void cairn_log_init(const char *program, int rank)
{
    snprintf(self.program, sizeof self.program, "%s", program);
    self.rank = rank;
}

void cairn_log_quiet(int on)
{
    self.quiet = on;
}

/* To stderr; what cannot be told there cannot be told. */
static void put_line(const struct cairn_str *s)
{
    size_t done = 0;

    while (done < s->len) {
        ssize_t put = write(STDERR_FILENO, s->p + done, s->len - done);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return;
        done += (size_t)put;
    }
}

static void message(const char *kind, const char *fmt, va_list ap)
{
    struct cairn_str s = {0};
    char text[1024];

    vsnprintf(text, sizeof text, fmt, ap);
    if (self.bar)
        cairn_str_puts(&s, "\r\033[K"); /* wipe the bar; it comes back with its next call */
    if (self.rank > 0)
        cairn_str_printf(&s, "%s[%d]: %s%s\n", self.program, self.rank, kind, text);
    else
        cairn_str_printf(&s, "%s: %s%s\n", self.program, kind, text);
    if (s.oom) /* that there is no memory must be told without any */
        dprintf(STDERR_FILENO, "%s: %s%s\n", self.program, kind, text);
    else
        put_line(&s);
    cairn_str_free(&s);
}

void cairn_info(const char *fmt, ...)
{
    va_list ap;

    if (self.quiet || self.rank > 0)
        return;
    va_start(ap, fmt);
    message("", fmt, ap);
    va_end(ap);
}

void cairn_warn(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    message("warning: ", fmt, ap);
    va_end(ap);
}

/* --- progress --- */

struct cairn_progress {
    char what[48], unit[24];
    int64_t total, done, from;
    double every_s, begun, due;
    int terminal;
};

#define BAR_EVERY_S 0.1

struct cairn_progress *cairn_progress_begin(const char *what, const char *unit, int64_t total, double every_s)
{
    struct cairn_progress *p;

    if (self.quiet || self.rank > 0 || !(p = calloc(1, sizeof *p)))
        return NULL;
    snprintf(p->what, sizeof p->what, "%s", what);
    snprintf(p->unit, sizeof p->unit, "%s", unit);
    p->total = total;
    p->terminal = isatty(STDERR_FILENO);
    p->every_s = p->terminal ? BAR_EVERY_S : every_s > 0 ? every_s : 10;
    p->begun = cairn_now_s();
    p->due = p->begun + p->every_s;
    return p;
}

static void put_time(struct cairn_str *s, double t)
{
    long sec = (long)(t + 0.5);

    if (sec >= 3600)
        cairn_str_printf(s, "%ldh%02ldm", sec / 3600, sec / 60 % 60);
    else
        cairn_str_printf(s, "%ld:%02ld", sec / 60, sec % 60);
}

/* "37.5 tokens/s, ", "12300 tokens/s, ", "1.23 Mbytes/s, " */
static void put_rate(struct cairn_str *s, double rate, const char *unit)
{
    if (rate >= 1e6)
        cairn_str_printf(s, "%.3g M%s/s, ", rate / 1e6, unit);
    else
        cairn_str_printf(s, "%.*f %s/s, ", rate >= 100 ? 0 : rate >= 10 ? 1 : 2, rate, unit);
}

static void progress_print(struct cairn_progress *p, double now, int last)
{
    struct cairn_str s = {0};
    double spent = now - p->begun, rate = spent > 0 ? (double)(p->done - p->from) / spent : 0;

    if (p->terminal)
        cairn_str_puts(&s, "\r\033[K");
    cairn_str_printf(&s, "%s: %s ", self.program, p->what);
    if (p->terminal && p->total > 0) {
        int full = (int)(20.0 * (double)(p->done < p->total ? p->done : p->total) / (double)p->total);

        cairn_str_putc(&s, '[');
        for (int i = 0; i < 20; i++)
            cairn_str_putc(&s, i < full ? '=' : ' ');
        cairn_str_puts(&s, "] ");
    }
    cairn_str_printf(&s, "%lld", (long long)p->done);
    if (p->total > 0)
        cairn_str_printf(&s, "/%lld", (long long)p->total);
    cairn_str_printf(&s, " %s, ", p->unit);
    put_rate(&s, rate, p->unit);
    put_time(&s, spent);
    if (!last && p->total > p->done && rate > 0) {
        cairn_str_puts(&s, ", about ");
        put_time(&s, (double)(p->total - p->done) / rate);
        cairn_str_puts(&s, " left");
    }
    if (last || !p->terminal)
        cairn_str_putc(&s, '\n');
    self.bar = p->terminal && !last;
    put_line(&s);
    cairn_str_free(&s);
}

void cairn_progress_from(struct cairn_progress *p, int64_t done)
{
    if (p)
        p->from = p->done = done;
}

void cairn_progress_at(struct cairn_progress *p, int64_t done)
{
    double now;

    if (!p)
        return;
    p->done = done;
    now = cairn_now_s();
    if (now < p->due)
        return;
    p->due = now + p->every_s;
    progress_print(p, now, 0);
}

void cairn_progress_end(struct cairn_progress *p)
{
    if (!p)
        return;
    if (!p->from || p->done > p->from || p->due > p->begun + p->every_s) /* else all was there before, and nothing told */
        progress_print(p, cairn_now_s(), 1);
    free(p);
}

/* --- JSON lines --- */

struct cairn_events {
    char *path;
    int fd;
    int torn; /* the file does not end with a newline: the next line begins with one */
    int told; /* a failed write has been reported */
    json_t *base;
};

/* A process killed within a write leaves half a line, which must not swallow the next one. */
static int ends_torn(const char *path)
{
    struct stat sb;
    char last = '\n';
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return 0;
    if (!fstat(fd, &sb) && S_ISREG(sb.st_mode) && sb.st_size > 0 && pread(fd, &last, 1, sb.st_size - 1) != 1)
        last = '\n';
    close(fd);
    return last != '\n';
}

enum cairn_status cairn_events_open(struct cairn_events **out, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_events *e = calloc(1, sizeof *e);

    if (!e)
        return CAIRN_NOMEM(err);
    e->torn = ends_torn(path);
    e->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (e->fd < 0)
        TRY(cairn_fail_errno(err, errno, "open %s", path));
    if (!(e->path = cairn_format("%s", path)))
        TRY(CAIRN_NOMEM(err));
    *out = e;
    e = NULL;
out:
    cairn_events_close(e);
    return st;
}

void cairn_events_close(struct cairn_events *e)
{
    if (!e)
        return;
    if (e->fd >= 0)
        close(e->fd);
    json_decref(e->base);
    free(e->path);
    free(e);
}

void cairn_events_base(struct cairn_events *e, json_t *base)
{
    if (!e) {
        json_decref(base);
        return;
    }
    json_decref(e->base);
    e->base = base;
}

static int reserved(const char *key)
{
    static const char *const own[] = {"t", "stage", "rank", "step", "ev"};

    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(key, own[i]))
            return 1;
    return 0;
}

/* Members of obj that neither the line itself nor `before` has. */
static void put_members(struct cairn_str *s, json_t *obj, const json_t *over)
{
    const char *key;
    json_t *v;

    json_object_foreach(obj, key, v) {
        if (reserved(key) || (over && json_object_get(over, key)))
            continue;
        cairn_str_putc(s, ',');
        cairn_json_put_string(s, key, strlen(key));
        cairn_str_putc(s, ':');
        cairn_json_canonical(s, v);
    }
}

void cairn_event(struct cairn_events *e, const char *ev, const char *stage, int64_t step, json_t *members)
{
    struct cairn_str s = {0};
    ssize_t put;

    if (!e)
        goto out;
    if (e->torn)
        cairn_str_putc(&s, '\n');
    cairn_str_printf(&s, "{\"t\":%.3f", cairn_wall_s());
    put_members(&s, e->base, members);
    cairn_str_puts(&s, ",\"stage\":");
    cairn_json_put_string(&s, stage, strlen(stage));
    cairn_str_printf(&s, ",\"rank\":%d,\"step\":%lld,\"ev\":", self.rank, (long long)step);
    cairn_json_put_string(&s, ev, strlen(ev));
    put_members(&s, members, NULL);
    cairn_str_puts(&s, "}\n");
    if (s.oom)
        goto out;
    do
        put = write(e->fd, s.p, s.len);
    while (put < 0 && errno == EINTR);
    if (put > 0)
        e->torn = (size_t)put < s.len;
    if (put != (ssize_t)s.len && !e->told) {
        e->told = 1;
        cairn_warn("%s: events are being lost: %s", e->path, put < 0 ? strerror(errno) : "short write");
    }
out:
    cairn_str_free(&s);
    json_decref(members);
}
