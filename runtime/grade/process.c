/* process.c - program, keeper, child. See process.h. */
#include "grade/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "grade/frame.h"
#include "grade/sandbox.h"

#define CHILDREN_MAX    33 /* one for the graders that are ours, one for each that is not */
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

/* --- the child ---------------------------------------------------------------------------------------------------------- */

/* The program's handlers are not ours: a crash must kill, and what goes to whole process groups must not. */
static void own_signals(void)
{
    static const int group[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGPIPE};
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int s = 1; s < NSIG; s++)
        if (s != SIGKILL && s != SIGSTOP)
            signal(s, SIG_DFL);
    for (size_t i = 0; i < sizeof group / sizeof *group; i++)
        signal(group[i], SIG_IGN);
}

/* CPU seconds for one more response. */
static void allow_cpu(int cpu_s)
{
    struct rusage used;
    struct rlimit limit;

    if (getrusage(RUSAGE_SELF, &used) != 0 || getrlimit(RLIMIT_CPU, &limit) != 0)
        return;
    limit.rlim_cur = (rlim_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec + 2 + cpu_s);
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_cur > limit.rlim_max)
        limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_CPU, &limit);
}

static enum cairn_status answer(const struct cairn_frame_header *h, const char *body, struct cairn_str *out,
                                struct cairn_error *err)
{
    struct cairn_frame_request request;
    struct cairn_verdict verdict;
    const struct cairn_grader *grader;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_frame_get_request(body, h->bytes, &request, err));
    grader = cairn_grader_find(request.request.grader);
    if (!grader)
        TRY(cairn_grader_unknown(request.request.grader, err));
    TRY(cairn_grade(grader, &request.opts, request.request.gold, request.request.gold_bytes, request.request.response,
                    request.request.response_bytes, &verdict, err));
    TRY(cairn_frame_put_verdict(out, h->serial, &verdict, err));
out:
    return st;
}

/* Limits of the child whose graders are ours. */
static void own_limits(const struct cairn_grader_limits *limits)
{
    struct rlimit memory = {(rlim_t)limits->memory_bytes, (rlim_t)limits->memory_bytes}, no_core = {0, 0};

    setrlimit(RLIMIT_CORE, &no_core);
    if (CAIRN_LIMIT_MEMORY)
        setrlimit(RLIMIT_AS, &memory);
}

static void child_main(int fd, const struct cairn_grader_limits *limits)
{
    struct cairn_str out = {0};
    char *body = NULL;
    size_t cap = 0, got;

    for (;;) {
        struct cairn_frame_header h;
        struct cairn_error err;

        if (cairn_socket_read(fd, &h, sizeof h, &got, NULL) != CAIRN_OK || cairn_frame_check(&h, NULL) != CAIRN_OK)
            _exit(0);
        if (h.bytes > cap) {
            free(body);
            body = malloc(h.bytes);
            if (!body)
                abort(); /* the keeper says "crashed" */
            cap = h.bytes;
        }
        if (cairn_socket_read(fd, body, h.bytes, &got, NULL) != CAIRN_OK)
            _exit(0);
        if (limits)
            allow_cpu(limits->cpu_s);
        cairn_str_clear(&out);
        if (answer(&h, body, &out, &err) != CAIRN_OK) {
            cairn_str_clear(&out);
            if (cairn_frame_put_error(&out, h.serial, &err, NULL) != CAIRN_OK)
                abort();
        }
        if (cairn_socket_write(fd, out.p, out.len, NULL) != CAIRN_OK)
            _exit(0);
    }
}

/* --- the keeper ----------------------------------------------------------------------------------------------------------- */

struct child {
    int down; /* socket to it; -1: it does not run */
    pid_t pid;
    int told; /* what its sandbox lacks was told */
};

struct keeper {
    int up;                           /* socket to the program */
    struct child child[CHILDREN_MAX]; /* 0: of our graders; i + 1: of the i-th of the table, where that has a sandbox */
    const struct cairn_grader_limits *limits;
};

/* Whatever descends from us and is none of our children: the leavings of one that ran without namespaces. */
static void end_orphans(const struct keeper *k)
{
    pid_t spare[CHILDREN_MAX];
    int n = 0;

    for (int i = 0; i < CHILDREN_MAX; i++)
        if (k->child[i].down >= 0)
            spare[n++] = k->child[i].pid;
    cairn_sandbox_end(spare, n);
}

/* A plugin runs in the child itself, so the child has its limits; a program that the child starts has them alone. */
static int start_child(struct keeper *k, int slot)
{
    const struct cairn_grader *g = slot ? cairn_grader_at(slot - 1) : NULL;
    struct child *c = &k->child[slot];
    int pair[2], whole = 1;
    pid_t self = getpid();

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return 0;
    c->pid = g ? cairn_sandbox_fork(g->sandbox, pair[1], c->told, &whole) : fork();
    if (c->pid == 0) {
        if (!g) {
            close(pair[0]);
            close(k->up);
            for (int i = 0; i < CHILDREN_MAX; i++)
                if (k->child[i].down >= 0)
                    close(k->child[i].down);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != self)
                _exit(0);
            own_limits(k->limits);
        }
        child_main(pair[1], g ? NULL : k->limits);
        _exit(0);
    }
    close(pair[1]);
    if (c->pid < 0) {
        close(pair[0]);
        return 0;
    }
    c->told = 1;
    c->down = pair[0];
    return 1;
}

/* Ends a child, if it runs; its wait status. What it started and left behind fell to us. */
static int end_child(struct keeper *k, int slot)
{
    struct child *c = &k->child[slot];
    int status = 0;

    if (c->down < 0)
        return 0;
    close(c->down);
    c->down = -1;
    kill(c->pid, SIGKILL);
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (slot) {
        end_orphans(k);
        cairn_sandbox_tidy(c->pid);
    }
    return status;
}

/* Waits until the child can be read. 1: yes; 0: past the deadline; -1: the program is gone, and nobody waits for the answer. */
static int readable(int fd, int up, double deadline_s)
{
    for (;;) {
        struct pollfd p[2] = {{fd, POLLIN, 0}, {up, POLLRDHUP, 0}};
        double left = deadline_s - cairn_now_s();
        int n = poll(p, 2, left > 0 ? (int)(left * 1000) + 1 : 0); /* never early by a fraction of a millisecond */

        if (n > 0)
            return p[1].revents ? -1 : 1;
        if (n == 0)
            return 0;
        if (errno != EINTR)
            return 1;
    }
}

/* One frame of the child into *s, or why not. */
enum outcome { ANSWERED, DIED, LATE, UNWANTED };

static enum outcome receive(int down, int up, uint32_t serial, double wall_s, struct cairn_str *s)
{
    double deadline = cairn_now_s() + wall_s;
    struct cairn_frame_header h;
    char part[4096];
    size_t have = 0, want = sizeof h;

    cairn_str_clear(s);
    while (have < want) {
        size_t n = want - have;
        ssize_t got;
        int can = readable(down, up, deadline);

        if (can <= 0)
            return can ? UNWANTED : LATE;
        got = recv(down, part, n < sizeof part ? n : sizeof part, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return DIED;
        cairn_str_add(s, part, (size_t)got);
        if (s->oom)
            return DIED;
        have += (size_t)got;
        if (have == sizeof h) {
            memcpy(&h, s->p, sizeof h);
            if (cairn_frame_check(&h, NULL) != CAIRN_OK || h.serial != serial)
                return DIED; /* its memory was not its own any more */
            want += h.bytes;
        }
    }
    return ANSWERED;
}

/* Which child a request is for. A name that nobody has goes to the first, which says so. */
static int slot_of(const struct cairn_str *request, const struct cairn_grader **g)
{
    struct cairn_frame_request r;

    *g = NULL;
    if (cairn_frame_get_request(request->p + sizeof(struct cairn_frame_header), request->len - sizeof(struct cairn_frame_header),
                                &r, NULL) != CAIRN_OK)
        return 0;
    for (int i = 0; (*g = cairn_grader_at(i)); i++)
        if (strcmp((*g)->name, r.request.grader) == 0)
            return (*g)->sandbox ? i + 1 : 0;
    return 0;
}

/* The answer to one request frame, whatever it takes. 0: not even a child can be had, or nobody waits for it. */
static int serve(struct keeper *k, const struct cairn_frame_header *h, const struct cairn_str *request, struct cairn_str *reply)
{
    const struct cairn_grader *g;
    int slot = slot_of(request, &g);
    double wall_s = slot && g->time_s ? g->time_s : k->limits->wall_s;
    struct child *c = &k->child[slot];
    struct cairn_verdict v;

    memset(&v, 0, sizeof v);
    for (int attempt = 0; attempt < 2; attempt++) {
        enum outcome what = DIED;
        int status;

        if (c->down < 0 && !start_child(k, slot))
            return 0;
        if (cairn_socket_write(c->down, request->p, request->len, NULL) == CAIRN_OK)
            what = receive(c->down, k->up, h->serial, wall_s, reply);
        if (what == ANSWERED)
            return 1;
        if (what == UNWANTED)
            return 0;
        status = end_child(k, slot);
        if (what == LATE) {
            v.status = CAIRN_VERDICT_TIMEOUT;
            snprintf(v.why, sizeof v.why, "the grader took more than %g s", wall_s);
            break;
        }
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU) {
            v.status = CAIRN_VERDICT_TIMEOUT;
            snprintf(v.why, sizeof v.why, "the grader took more than %d s of CPU time", k->limits->cpu_s);
            break;
        }
        v.status = CAIRN_VERDICT_CRASHED;
        if (WIFSIGNALED(status))
            snprintf(v.why, sizeof v.why, "the grader died of signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
        else
            snprintf(v.why, sizeof v.why, "the grader ended with code %d", WEXITSTATUS(status));
    }
    cairn_str_clear(reply);
    return cairn_frame_put_verdict(reply, h->serial, &v, NULL) == CAIRN_OK;
}

static void keeper_main(int up, const struct cairn_grader_limits *limits)
{
    struct keeper k = {.up = up, .limits = limits};
    struct cairn_str request = {0}, reply = {0};

    own_signals(); /* the child inherits them */
    prctl(PR_SET_NAME, "cairn-grader");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int i = 0; i < CHILDREN_MAX; i++)
        k.child[i].down = -1;
    for (;;) {
        struct cairn_frame_header h;
        size_t got;
        char *body;

        if (cairn_socket_read(up, &h, sizeof h, &got, NULL) != CAIRN_OK)
            break;
        if (cairn_frame_check(&h, NULL) != CAIRN_OK || h.type != CAIRN_FRAME_REQUEST)
            break;
        cairn_str_clear(&request);
        cairn_str_add(&request, &h, sizeof h);
        if (!(body = malloc(h.bytes ? h.bytes : 1)))
            break;
        if (cairn_socket_read(up, body, h.bytes, &got, NULL) != CAIRN_OK) {
            free(body);
            break;
        }
        cairn_str_add(&request, body, h.bytes);
        free(body);
        if (request.oom || !serve(&k, &h, &request, &reply))
            break;
        if (cairn_socket_write(up, reply.p, reply.len, NULL) != CAIRN_OK)
            break;
    }
    for (int i = 0; i < CHILDREN_MAX; i++)
        end_child(&k, i);
    _exit(0);
}

/* --- the program ------------------------------------------------------------------------------------------------------------ */

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
        keeper_main(pair[1], &used);
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
