/* process.c - the program's side of the grader process: starts it, asks it. See process.h; the other side is keeper.c. */
#include "grade/process.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "grade/frame.h"
#include "grade/keeper.h"

#define MEMORY_BYTES    ((int64_t)2 << 30)
#define CPU_S           20
#define WALL_S          300
#define AHEAD_MAX       256 /* requests sent before the first verdict is back */
#define AHEAD_BYTES_MAX ((size_t)4 << 20)

struct cairn_grader_process {
    int fd;
    pid_t keeper;
    uint32_t serial;
    int gone;
};

enum cairn_status cairn_grader_process_start(struct cairn_grader_process **out, const struct cairn_grader_limits *limits,
                                             struct cairn_error *err)
{
    static struct cairn_grader_limits used; /* read by keeper and child after the fork */
    struct cairn_grader_process *p = NULL;
    int pair[2] = {-1, -1};
    enum cairn_status st = CAIRN_OK;

    used.memory_bytes = limits && limits->memory_bytes ? limits->memory_bytes : MEMORY_BYTES;
    used.cpu_s = limits && limits->cpu_s ? limits->cpu_s : CPU_S;
    used.wall_s = limits && limits->wall_s ? limits->wall_s : WALL_S;
    if (used.memory_bytes < 0 || used.cpu_s < 0 || used.wall_s < 0 || used.cpu_s > 86400 || used.wall_s > 86400)
        return cairn_fail(err, CAIRN_EUSAGE, "grader: limits of %lld bytes, %d s CPU, %d s", (long long)used.memory_bytes,
                          used.cpu_s, used.wall_s);
    if (!(p = calloc(1, sizeof *p)))
        TRY(CAIRN_NOMEM(err));
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        TRY(cairn_fail_errno(err, errno, "grader: socketpair"));
    fflush(NULL);
    p->keeper = fork();
    if (p->keeper < 0)
        TRY(cairn_fail_errno(err, errno, "grader: fork"));
    if (p->keeper == 0) {
        close(pair[0]);
        cairn_grader_keeper(pair[1], &used);
    }
    p->fd = pair[0];
    pair[0] = -1;
    *out = p;
    p = NULL;
out:
    if (pair[0] >= 0)
        close(pair[0]);
    if (pair[1] >= 0)
        close(pair[1]);
    free(p);
    return st;
}

void cairn_grader_process_stop(struct cairn_grader_process *p)
{
    if (!p)
        return;
    close(p->fd);
    while (waitpid(p->keeper, NULL, 0) < 0 && errno == EINTR)
        ;
    free(p);
}

enum cairn_status cairn_grader_process_grade(struct cairn_grader_process *p, const char *grader,
                                             const struct cairn_grade_opts *opts, const char *gold, size_t gold_bytes,
                                             const char *response, size_t response_bytes, struct cairn_verdict *out,
                                             struct cairn_error *err)
{
    struct cairn_grade_job job = {.gold = gold, .gold_bytes = gold_bytes, .response = response, .response_bytes = response_bytes};
    struct cairn_error mine = {CAIRN_OK, ""};
    enum cairn_status st = cairn_grader_process_grade_many(p, grader, opts, &job, 1, &mine);

    if (st == CAIRN_OK)
        *out = job.verdict;
    else
        cairn_fail(err, st, "%s", strncmp(mine.text, "job 0: ", 7) == 0 ? mine.text + 7 : mine.text);
    return st;
}

/* Takes the frames that are whole off the front of in; *back counts them. An error frame becomes *first_bad. */
static enum cairn_status take(struct cairn_str *in, uint32_t first_serial, struct cairn_grade_job *job, size_t sent, size_t *back,
                              size_t *first_bad, struct cairn_error *bad, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    size_t at = 0;

    while (in->len - at >= sizeof(struct cairn_frame_header)) {
        struct cairn_frame_header h;
        const char *body = in->p + at + sizeof h;

        memcpy(&h, in->p + at, sizeof h);
        TRY(cairn_frame_check(&h, err));
        if (in->len - at - sizeof h < h.bytes)
            break;
        if (*back >= sent || h.serial != first_serial + (uint32_t)*back)
            TRY(CAIRN_BUG(err, "a verdict that nobody asked for"));
        if (h.type == CAIRN_FRAME_VERDICT) {
            TRY(cairn_frame_get_verdict(body, h.bytes, &job[*back].verdict, err));
        } else {
            struct cairn_error e;

            cairn_frame_get_error(body, h.bytes, &e);
            if (*first_bad == SIZE_MAX) {
                *first_bad = *back;
                *bad = e;
            }
        }
        ++*back;
        at += sizeof h + h.bytes;
    }
    if (at) {
        memmove(in->p, in->p + at, in->len - at);
        in->len -= at;
    }
out:
    return st;
}

enum cairn_status cairn_grader_process_grade_many(struct cairn_grader_process *p, const char *grader,
                                                  const struct cairn_grade_opts *opts, struct cairn_grade_job *job, size_t n,
                                                  struct cairn_error *err)
{
    struct cairn_str out = {0}, in = {0};
    size_t written = 0, sent = 0, back = 0, first_bad = SIZE_MAX;
    uint32_t first_serial = p->serial;
    struct cairn_error bad = {CAIRN_OK, ""}, unsendable = {CAIRN_OK, ""};
    size_t limit = n;
    char part[65536];
    enum cairn_status st = CAIRN_OK;

    if (p->gone)
        return cairn_fail(err, CAIRN_EAGAIN, "the grader process is gone");
    while (back < limit) {
        struct pollfd pf = {p->fd, POLLIN, 0};

        if (written == out.len) {
            cairn_str_clear(&out);
            written = 0;
        }
        while (sent < limit && sent - back < AHEAD_MAX && out.len < AHEAD_BYTES_MAX) {
            struct cairn_grade_request r = {
                grader, opts, job[sent].gold, job[sent].gold_bytes, job[sent].response, job[sent].response_bytes};

            if (cairn_frame_put_request(&out, first_serial + (uint32_t)sent, &r, &unsendable) != CAIRN_OK) {
                limit = sent; /* what was sent comes back first */
                break;
            }
            sent++;
        }
        if (back >= limit)
            break;
        if (written < out.len)
            pf.events |= POLLOUT;
        if (poll(&pf, 1, -1) < 0) {
            if (errno == EINTR)
                continue;
            TRY(cairn_fail_errno(err, errno, "grader: poll"));
        }
        if (pf.revents & POLLOUT) {
            ssize_t k = send(p->fd, out.p + written, out.len - written, MSG_NOSIGNAL | MSG_DONTWAIT);

            if (k > 0)
                written += (size_t)k;
            else if (k < 0 && errno != EINTR && errno != EAGAIN)
                TRY(cairn_fail(err, CAIRN_EAGAIN, "the grader process is gone (job %zu)", back));
        }
        if (pf.revents & (POLLIN | POLLHUP | POLLERR)) {
            ssize_t k = recv(p->fd, part, sizeof part, MSG_DONTWAIT);

            if (k == 0 || (k < 0 && errno != EINTR && errno != EAGAIN))
                TRY(cairn_fail(err, CAIRN_EAGAIN, "the grader process is gone (job %zu)", back));
            if (k > 0)
                cairn_str_add(&in, part, (size_t)k);
            if (in.oom)
                TRY(CAIRN_NOMEM(err));
            TRY(take(&in, first_serial, job, sent, &back, &first_bad, &bad, err));
        }
    }
    p->serial = first_serial + (uint32_t)sent;
    if (first_bad != SIZE_MAX)
        st = cairn_fail(err, bad.code, "job %zu: %s", first_bad, bad.text);
    else if (limit < n)
        st = cairn_fail(err, unsendable.code, "job %zu: %s", limit, unsendable.text);
out:
    if (st != CAIRN_OK && back < limit)
        p->gone = 1; /* frames are under way that nobody will read */
    cairn_str_free(&out);
    cairn_str_free(&in);
    return st;
}
