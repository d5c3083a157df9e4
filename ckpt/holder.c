/* holder.c - see holder.h. /proc is read where it exists; where it does not, nobody is called dead. */
#include "ckpt/holder.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"

static int read_small(const char *path, char *buf, size_t size)
{
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(buf, 1, size - 1, f) : 0;

    if (f)
        fclose(f);
    buf[n] = 0;
    buf[strcspn(buf, "\n")] = 0;
    return n > 0;
}

/* Field 22 of /proc/PID/stat; -1 if there is no such process. The command name may hold blanks and brackets. */
static int64_t start_time(int64_t pid)
{
    char path[64], text[1024], *p;
    long long t = -1;

    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    if (!read_small(path, text, sizeof text) || !(p = strrchr(text, ')')))
        return -1;
    for (int field = 2; field < 22 && p; field++)
        p = strchr(p + 1, ' ');
    return p && sscanf(p, " %lld", &t) == 1 ? t : -1;
}

void cairn_holder_self(struct cairn_holder *h)
{
    const char *job = getenv("SLURM_JOB_ID"), *again = getenv("SLURM_RESTART_COUNT");

    memset(h, 0, sizeof *h);
    if (job)
        snprintf(h->job, sizeof h->job, "%.40s.%.8s", job, again ? again : "0");
    if (gethostname(h->host, sizeof h->host - 1))
        h->host[0] = 0;
    read_small("/proc/sys/kernel/random/boot_id", h->boot, sizeof h->boot);
    h->pid = getpid();
    h->started = start_time(h->pid);
}

int cairn_holder_alive(const struct cairn_holder *h)
{
    struct cairn_holder me;
    int64_t t;

    cairn_holder_self(&me);
    if (strcmp(me.host, h->host) || !me.boot[0] || !h->boot[0])
        return -1;
    if (strcmp(me.boot, h->boot))
        return 0;
    if (h->pid <= 0 || h->pid > INT32_MAX || (kill((pid_t)h->pid, 0) && errno == ESRCH))
        return 0;
    t = start_time(h->pid);
    return t < 0 || h->started < 0 ? -1 : t == h->started;
}

json_t *cairn_holder_json(const struct cairn_holder *h)
{
    return json_pack("{s:s, s:s, s:s, s:I, s:I}", "job", h->job, "host", h->host, "boot", h->boot, "pid", (json_int_t)h->pid, "started",
                     (json_int_t)h->started);
}

enum cairn_status cairn_holder_parse(struct cairn_holder *h, const json_t *obj, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const char *s;

    memset(h, 0, sizeof *h);
    TRY(cairn_json_string(obj, "job", &s, where, err));
    snprintf(h->job, sizeof h->job, "%s", s);
    TRY(cairn_json_string(obj, "host", &s, where, err));
    snprintf(h->host, sizeof h->host, "%s", s);
    TRY(cairn_json_string(obj, "boot", &s, where, err));
    snprintf(h->boot, sizeof h->boot, "%s", s);
    TRY(cairn_json_i64(obj, "pid", INT64_MIN, INT64_MAX, &h->pid, where, err));
    TRY(cairn_json_i64(obj, "started", INT64_MIN, INT64_MAX, &h->started, where, err));
out:
    return st;
}
