/* keeper.c - the two processes behind the program: the keeper, which alone forks, and the children that grade. See process.h.
 *
 * Requests for graders that are ours go to their child as many as lie there, and their verdicts come back in as few pieces: per response that
 * was most of what grading costs. Foreign graders get one at a time.
 */
#include "grade/keeper.h"

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

#define CHILDREN_MAX   33 /* one for the graders that are ours, one for each that is not */
#define PIECE          ((size_t)32 << 10) /* of a socket that is read or written at once */
#define FLUSH_S        0.002
#define TOGETHER       64 /* verdicts of so many fit into a socket's buffer, so that neither side waits for the other */
#define TOGETHER_BYTES ((size_t)1 << 20)

/* Back to its first n bytes. */
static void cut(struct cairn_str *s, size_t n)
{
    s->len = n;
}

/* --- what comes in ------------------------------------------------------------------------------------------------------ */

/* Bytes of a socket that no whole frame was taken of yet. */
struct inbox {
    char *p;
    size_t at, n, cap;
};

/* The length of the whole frame at the front; 0: there is none yet; -1: what is there is none. */
static ssize_t frame_at(const struct inbox *in, size_t from)
{
    struct cairn_frame_header h;

    if (in->n - from < sizeof h)
        return 0;
    memcpy(&h, in->p + from, sizeof h);
    if (cairn_frame_check(&h, NULL) != CAIRN_OK)
        return -1;
    return in->n - from < sizeof h + h.bytes ? 0 : (ssize_t)(sizeof h + h.bytes);
}

/* One more piece of the socket: 1, or 0 at its end. Waits for it. */
static int inbox_fill(struct inbox *in, int fd)
{
    ssize_t k;

    if (in->at) {
        memmove(in->p, in->p + in->at, in->n - in->at);
        in->n -= in->at;
        in->at = 0;
    }
    if (in->cap - in->n < PIECE) {
        size_t cap = in->cap ? 2 * in->cap : 4 * PIECE;
        char *p = realloc(in->p, cap);

        if (!p)
            return 0;
        in->p = p;
        in->cap = cap;
    }
    while ((k = recv(fd, in->p + in->n, in->cap - in->n, 0)) < 0 && errno == EINTR)
        ;
    if (k <= 0)
        return 0;
    in->n += (size_t)k;
    return 1;
}

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

/* CPU seconds for one more response. Counted on from the last time, which is at most a second ago: a second more is granted for that. */
static void allow_cpu(int cpu_s, double *armed_s)
{
    double now = cairn_now_s();
    struct rusage used;
    struct rlimit limit;

    if (*armed_s > 0 && now - *armed_s < 1)
        return;
    *armed_s = now;
    if (getrusage(RUSAGE_SELF, &used) != 0 || getrlimit(RLIMIT_CPU, &limit) != 0)
        return;
    limit.rlim_cur = (rlim_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec + 3 + cpu_s);
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

/* Answers what comes, in order. Verdicts are handed back together while more requests lie there, but not later than FLUSH_S after the last. */
static void child_main(int fd, const struct cairn_grader_limits *limits)
{
    double armed_s = 0, flushed_s = cairn_now_s();
    struct cairn_str out = {0};
    struct inbox in = {0};

    for (;;) {
        ssize_t n = frame_at(&in, in.at);
        struct cairn_frame_header h;
        struct cairn_error err;
        size_t before = out.len;

        if (out.len && (n <= 0 || out.len > PIECE || cairn_now_s() - flushed_s > FLUSH_S)) {
            if (cairn_socket_write(fd, out.p, out.len, NULL) != CAIRN_OK)
                _exit(0);
            cairn_str_clear(&out);
            before = 0;
            flushed_s = cairn_now_s();
        }
        if (n < 0)
            _exit(0);
        if (n == 0) {
            if (!inbox_fill(&in, fd))
                _exit(0);
            continue;
        }
        memcpy(&h, in.p + in.at, sizeof h);
        if (limits)
            allow_cpu(limits->cpu_s, &armed_s);
        if (answer(&h, in.p + in.at + sizeof h, &out, &err) != CAIRN_OK) {
            cut(&out, before);
            if (cairn_frame_put_error(&out, h.serial, &err, NULL) != CAIRN_OK)
                abort(); /* the keeper says "crashed" */
        }
        in.at += (size_t)n;
    }
}

/* --- the keeper ----------------------------------------------------------------------------------------------------------- */

struct child {
    int down; /* socket to it; -1: it does not run */
    pid_t pid;
    int told; /* what its sandbox lacks was told */
    struct inbox in;
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
    c->in.at = c->in.n = 0;
    return 1;
}

/* Ends a child, if it runs; its wait status. What it started and left behind fell to us. */
static int end_child(struct keeper *k, int slot)
{
    struct child *c = &k->child[slot];
    int status = 0;

    if (c->down < 0)
        return 0;
    kill(c->pid, SIGKILL); /* before its input ends, which would let it end by itself, and nothing would tell that it was killed */
    close(c->down);
    c->down = -1;
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

/* One frame of the child behind what is in *out, or why not. */
enum outcome { ANSWERED, DIED, LATE, UNWANTED };

static enum outcome receive(struct child *c, int up, uint32_t serial, double wall_s, struct cairn_str *out)
{
    double deadline = cairn_now_s() + wall_s;
    ssize_t n;

    while (!(n = frame_at(&c->in, c->in.at))) {
        int can = readable(c->down, up, deadline);

        if (can <= 0)
            return can ? UNWANTED : LATE;
        if (!inbox_fill(&c->in, c->down))
            return DIED;
    }
    if (n > 0) {
        struct cairn_frame_header h;

        memcpy(&h, c->in.p + c->in.at, sizeof h);
        if (h.serial != serial)
            n = -1;
    }
    if (n < 0)
        return DIED; /* its memory was not its own any more */
    cairn_str_add(out, c->in.p + c->in.at, (size_t)n);
    c->in.at += (size_t)n;
    return out->oom ? DIED : ANSWERED;
}

/* Which child a request is for. A name that nobody has goes to the first, which says so. */
static int slot_of(const char *frame, size_t n, const struct cairn_grader **g)
{
    struct cairn_frame_request r;

    *g = NULL;
    if (cairn_frame_get_request(frame + sizeof(struct cairn_frame_header), n - sizeof(struct cairn_frame_header), &r, NULL) != CAIRN_OK)
        return 0;
    for (int i = 0; (*g = cairn_grader_at(i)); i++)
        if (strcmp((*g)->name, r.request.grader) == 0)
            return (*g)->sandbox ? i + 1 : 0;
    return 0;
}

/* The answer to one request frame behind what is in *out, whatever it takes. 0: not even a child can be had, or nobody waits for it. */
static int serve(struct keeper *k, const char *frame, size_t n, struct cairn_str *out)
{
    const struct cairn_grader *g;
    int slot = slot_of(frame, n, &g);
    double wall_s = slot && g->time_s ? g->time_s : k->limits->wall_s;
    struct child *c = &k->child[slot];
    size_t before = out->len;
    struct cairn_frame_header h;
    struct cairn_verdict v;

    memcpy(&h, frame, sizeof h);
    memset(&v, 0, sizeof v);
    for (int attempt = 0; attempt < 2; attempt++) {
        enum outcome what = DIED;
        int status;

        if (c->down < 0 && !start_child(k, slot))
            return 0;
        if (cairn_socket_write(c->down, frame, n, NULL) == CAIRN_OK)
            what = receive(c, k->up, h.serial, wall_s, out);
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
    cut(out, before);
    return cairn_frame_put_verdict(out, h.serial, &v, NULL) == CAIRN_OK;
}

/* n requests for our own graders, one behind the other in `bytes` bytes: given to their child at once. If it fails in between, those that have no
 * answer yet are served one by one, so that each has its own. */
static int serve_many(struct keeper *k, const char *frames, const size_t *length, int n, struct cairn_str *out)
{
    struct child *c = &k->child[0];
    size_t bytes = 0, at = 0;
    int done = 0;

    for (int i = 0; i < n; i++)
        bytes += length[i];
    if (c->down < 0 && !start_child(k, 0))
        return 0;
    if (cairn_socket_write(c->down, frames, bytes, NULL) == CAIRN_OK)
        for (; done < n; done++) {
            struct cairn_frame_header h;
            enum outcome what;

            memcpy(&h, frames + at, sizeof h);
            what = receive(c, k->up, h.serial, k->limits->wall_s, out);
            if (what == UNWANTED)
                return 0;
            if (what != ANSWERED)
                break;
            at += length[done];
        }
    if (done < n)
        end_child(k, 0);
    for (; done < n; at += length[done++])
        if (!serve(k, frames + at, length[done], out))
            return 0;
    return 1;
}

/* What the program has sent so far, from *at on: requests for our own graders that follow each other, or one of anybody else's. 0: no whole one. */
static int gather(const struct inbox *in, size_t length[TOGETHER])
{
    const struct cairn_grader *g;
    size_t from = in->at, bytes = 0;
    int n = 0;

    while (n < TOGETHER && bytes < TOGETHER_BYTES) {
        ssize_t k = frame_at(in, from);

        if (k <= 0)
            break;
        if (slot_of(in->p + from, (size_t)k, &g)) {
            if (!n)
                length[n++] = (size_t)k;
            break;
        }
        length[n++] = (size_t)k;
        bytes += (size_t)k;
        from += (size_t)k;
    }
    return n;
}

/* Are all frames that lie there requests, as far as they are whole? */
static int sound(const struct inbox *in, const size_t *length, int n)
{
    size_t at = in->at;

    if (frame_at(in, in->at) < 0)
        return 0;
    for (int i = 0; i < n; at += length[i++]) {
        struct cairn_frame_header h;

        memcpy(&h, in->p + at, sizeof h);
        if (h.type != CAIRN_FRAME_REQUEST)
            return 0;
    }
    return 1;
}

void cairn_grader_keeper(int up, const struct cairn_grader_limits *limits)
{
    struct keeper k = {.up = up, .limits = limits};
    struct cairn_str reply = {0};
    struct inbox in = {0};

    own_signals(); /* the child inherits them */
    prctl(PR_SET_NAME, "cairn-grader");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int i = 0; i < CHILDREN_MAX; i++)
        k.child[i].down = -1;
    for (;;) {
        size_t length[TOGETHER];
        int n = gather(&in, length), ok;

        if (!sound(&in, length, n))
            break;
        if (!n) {
            if (!inbox_fill(&in, up))
                break;
            continue;
        }
        cairn_str_clear(&reply);
        ok = n == 1 ? serve(&k, in.p + in.at, length[0], &reply) : serve_many(&k, in.p + in.at, length, n, &reply);
        if (!ok || reply.oom || cairn_socket_write(up, reply.p, reply.len, NULL) != CAIRN_OK)
            break;
        for (int i = 0; i < n; i++)
            in.at += length[i];
    }
    for (int i = 0; i < CHILDREN_MAX; i++)
        end_child(&k, i);
    _exit(0);
}
