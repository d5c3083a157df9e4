/* command.c - see command.h. Runs in a grading child, which is process 1 of its namespace where there is one. */
#include "grade/command.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"

#define TAIL    120 /* bytes of stderr that are kept */
#define BEGIN   48  /* bytes of a reply that is no verdict that are told */
#define LOOK_MS 50  /* how often it is seen whether the program still lives: what it started may hold its output open */

struct command {
    struct cairn_grader g;
    struct cairn_sandbox box;
    char *name, *program, *interpreter;
    char **argv; /* NULL-terminated; what execvp gets */
    double time_s;
    int retries, retry_timeout;
    /* in the child: */
    pid_t pid;  /* 0: not running */
    int served; /* 1: this one has replied to something */
    int in, out, err;
    int64_t id;
    struct cairn_str got;
    char tail[TAIL + 1];
};

/* --- the program --------------------------------------------------------------------------------------------------------- */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Ends the program and all that it started; its wait status. */
static int stop(struct command *x)
{
    int status = 0;

    close_fd(&x->in);
    close_fd(&x->out);
    close_fd(&x->err);
    if (x->pid) {
        kill(-x->pid, SIGKILL);
        kill(x->pid, SIGKILL);
        while (waitpid(x->pid, &status, 0) < 0 && errno == EINTR)
            ;
    }
    x->pid = 0;
    x->served = 0;
    cairn_sandbox_end(NULL, 0);
    cairn_str_clear(&x->got);
    return status;
}

static void run(const struct command *x, const int to[2], const int from[2], const int complaints[2])
{
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_DFL);
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    dup2(complaints[1], STDERR_FILENO);
    cairn_sandbox_limit(&x->box, 1);
    execvp(x->argv[0], x->argv);
    dprintf(STDERR_FILENO, "%s: %s\n", x->argv[0], strerror(errno));
    _exit(127);
}

/* 0, with errno: it cannot be had. */
static int start(struct command *x)
{
    int to[2] = {-1, -1}, from[2] = {-1, -1}, complaints[2] = {-1, -1}, ok, why;

    ok = pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0 && pipe2(complaints, O_CLOEXEC) == 0;
    if (ok && (x->pid = fork()) == 0)
        run(x, to, from, complaints);
    ok = ok && x->pid > 0;
    why = errno;
    close_fd(&to[0]);
    close_fd(&from[1]);
    close_fd(&complaints[1]);
    x->in = to[1];
    x->out = from[0];
    x->err = complaints[0];
    x->tail[0] = 0;
    if (!ok) {
        x->pid = 0;
        stop(x);
        errno = why;
        return 0;
    }
    fcntl(x->in, F_SETFL, O_NONBLOCK);
    fcntl(x->out, F_SETFL, O_NONBLOCK);
    fcntl(x->err, F_SETFL, O_NONBLOCK);
    return 1;
}

/* Keeps the end of what it complains. */
static void hear(struct command *x)
{
    char part[4096];
    ssize_t n;

    while ((n = read(x->err, part, sizeof part)) > 0) {
        size_t have = strlen(x->tail), take = (size_t)n < TAIL ? (size_t)n : TAIL;

        if (have + take > TAIL) {
            memmove(x->tail, x->tail + (have + take - TAIL), TAIL - take);
            have = TAIL - take;
        }
        memcpy(x->tail + have, part + (size_t)n - take, take);
        x->tail[have + take] = 0;
        for (size_t i = have; i < have + take; i++)
            if (!x->tail[i])
                x->tail[i] = '?';
    }
    if (n == 0)
        close_fd(&x->err);
}

/* --- one exchange --------------------------------------------------------------------------------------------------------- */

enum outcome { REPLIED, ENDED, LATE, FLOOD, NEVER_BEGAN };

static int has_ended(const struct command *x)
{
    siginfo_t i = {0};

    return waitid(P_PID, (id_t)x->pid, &i, WEXITED | WNOHANG | WNOWAIT) == 0 && i.si_pid == x->pid;
}

/* It ended after its last reply and has read nothing of the request, of which `sent` bytes lie in its pipe: that response has cost
 * it nothing. */
static int never_began(const struct command *x, size_t sent)
{
    int unread = 0;

    return x->served && (!sent || (ioctl(x->in, FIONREAD, &unread) == 0 && (size_t)unread == sent));
}

/* Writes the request while it reads the reply: either side may be full. The line is in x->got, without its end. */
static enum outcome exchange(struct command *x, const struct cairn_str *request)
{
    double deadline = cairn_now_s() + x->time_s;
    size_t sent = 0;
    char part[8192];

    for (;;) {
        struct pollfd p[3] = {{sent < request->len ? x->in : -1, POLLOUT, 0}, {x->out, POLLIN, 0}, {x->err, POLLIN, 0}};
        double left = deadline - cairn_now_s();
        int ended = has_ended(x); /* before the look at what it said last */
        ssize_t n;

        if (left <= 0)
            return LATE;
        if (poll(p, 3, (int)fmin(left * 1000 + 1, LOOK_MS)) < 0 && errno != EINTR)
            return never_began(x, sent) ? NEVER_BEGAN : ENDED;
        if (x->err >= 0 && p[2].revents)
            hear(x);
        if (sent < request->len && p[0].revents) {
            n = write(x->in, request->p + sent, request->len - sent);
            if (n < 0 && errno != EAGAIN && errno != EINTR)
                return never_began(x, sent) ? NEVER_BEGAN : ENDED;
            sent += n > 0 ? (size_t)n : 0;
        }
        if (!p[1].revents && ended)
            return never_began(x, sent) ? NEVER_BEGAN : ENDED;
        if (!p[1].revents)
            continue;
        n = read(x->out, part, sizeof part);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return never_began(x, sent) ? NEVER_BEGAN : ENDED;
        for (ssize_t i = 0; i < n; i++)
            if (part[i] == '\n') {
                cairn_str_add(&x->got, part, (size_t)i);
                /* A reply before the whole request was read, or more behind it: it does not keep to the protocol. */
                return sent < request->len || i + 1 < n || x->got.oom ? FLOOD : REPLIED;
            }
        if (n > 0)
            cairn_str_add(&x->got, part, (size_t)n);
        if (x->got.oom || x->got.len > CAIRN_COMMAND_REPLY_MAX)
            return FLOOD;
    }
}

static void say(struct cairn_verdict *v, enum cairn_verdict_status status, const char *why)
{
    v->status = status;
    cairn_verdict_text(v->why, sizeof v->why, why, strlen(why));
}

/* The reply is no verdict, for that reason: `the program's reply "..." WHY`. */
static void say_invalid(const struct command *x, const char *why, struct cairn_verdict *v)
{
    size_t n = x->got.len < BEGIN ? x->got.len : BEGIN;
    char begin[BEGIN + 1], line[sizeof v->why];

    while (n && n < x->got.len && ((unsigned char)x->got.p[n] & 0xc0) == 0x80) /* at a character */
        n--;
    cairn_verdict_text(begin, sizeof begin, x->got.p, n);
    snprintf(line, sizeof line, "the program's reply \"%s%s\" %s", begin, n < x->got.len ? "..." : "", why);
    say(v, CAIRN_VERDICT_INVALID, line);
}

static void text_of(const json_t *o, const char *key, char *dst, size_t size)
{
    const json_t *s = json_object_get(o, key);

    if (json_is_string(s))
        cairn_verdict_text(dst, size, json_string_value(s), json_string_length(s));
}

/* A reply becomes a verdict; 0: it is none, and v says what is wrong with it. */
static int understand(const struct command *x, struct cairn_verdict *v)
{
    const json_t *match, *score, *id;
    struct cairn_error err;
    json_t *o = NULL;
    char line[64 + sizeof err.text];
    int ok = 0;

    if (cairn_json_parse(&o, cairn_str_z((struct cairn_str *)&x->got), x->got.len, "its line", &err) != CAIRN_OK) {
        snprintf(line, sizeof line, "is no JSON object: %s", err.text);
        say_invalid(x, line, v);
        return 0;
    }
    id = json_object_get(o, "id");
    match = json_object_get(o, "match");
    score = json_object_get(o, "score");
    if (!json_is_integer(id) || json_integer_value(id) != x->id) {
        snprintf(line, sizeof line, "is not for id %lld", (long long)x->id);
        say_invalid(x, line, v);
    } else if (json_is_false(json_object_get(o, "answer"))) {
        v->status = CAIRN_VERDICT_NO_ANSWER;
        ok = 1;
    } else if (json_is_boolean(match) && !score) {
        v->match = json_is_true(match);
        ok = 1;
    } else if (!match && json_is_number(score) && json_number_value(score) >= 0 && json_number_value(score) <= 1) {
        v->value = json_number_value(score);
        v->match = v->value == 1;
        ok = 1;
    } else {
        say_invalid(x, "holds neither \"match\": true or false nor \"score\": 0 to 1", v);
    }
    if (ok) {
        text_of(o, "extracted", v->extracted, sizeof v->extracted);
        text_of(o, "why", v->why, sizeof v->why);
    }
    json_decref(o);
    return ok;
}

/* Stops the program and says how it ended. */
static void tell_end(struct command *x, enum outcome what, struct cairn_verdict *v)
{
    char line[200 + TAIL], *last;
    const char *colon;
    int status;

    if (x->err >= 0)
        hear(x);
    while ((last = strrchr(x->tail, '\n')) && !last[1])
        *last = 0;
    last = strrchr(x->tail, '\n');
    last = last ? last + 1 : x->tail;
    colon = last[0] ? ": " : "";
    if (what == FLOOD)
        say_invalid(x, "is not one line for one response", v);
    status = stop(x);
    if (what == LATE) {
        snprintf(line, sizeof line, "the program took more than %g s", x->time_s);
        say(v, CAIRN_VERDICT_TIMEOUT, line);
    } else if (what != FLOOD) {
        if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
            snprintf(line, sizeof line, "the program died of signal %d (%s)%s%s", WTERMSIG(status), strsignal(WTERMSIG(status)), colon, last);
        else if (WIFEXITED(status))
            snprintf(line, sizeof line, "the program ended with code %d%s%s", WEXITSTATUS(status), colon, last);
        else
            snprintf(line, sizeof line, "the program closed its output%s%s", colon, last);
        say(v, CAIRN_VERDICT_CRASHED, line);
    }
}

static enum cairn_status grade(const struct cairn_grader *self, const struct cairn_grade_opts *opts, const char *gold,
                               size_t gold_bytes, const char *response, size_t response_bytes, struct cairn_verdict *out,
                               struct cairn_error *err)
{
    struct command *x = (struct command *)self; /* made by cairn_command_create: never const memory */
    struct cairn_str request = {0};
    enum cairn_status st = CAIRN_OK;

    (void)opts;
    for (int attempt = 0; attempt <= x->retries;) {
        enum outcome what;

        memset(out, 0, sizeof *out);
        if (x->pid && has_ended(x)) /* after its last reply: no attempt of this response */
            stop(x);
        if (!x->pid && !start(x))
            TRY(cairn_fail_errno(err, errno, "grader %s: cannot start a process", x->name));
        cairn_str_clear(&request);
        cairn_str_printf(&request, "{\"id\":%lld,\"gold\":", (long long)++x->id);
        cairn_json_put_string(&request, gold, gold_bytes);
        cairn_str_puts(&request, ",\"response\":");
        cairn_json_put_string(&request, response, response_bytes);
        cairn_str_puts(&request, "}\n");
        if (request.oom)
            TRY(CAIRN_NOMEM(err));
        cairn_str_clear(&x->got);
        what = exchange(x, &request);
        if (what == NEVER_BEGAN) { /* once at most: the next one has not replied yet */
            stop(x);
            continue;
        }
        attempt++;
        if (what != REPLIED) {
            tell_end(x, what, out);
            if (what == LATE && !x->retry_timeout)
                break;
            continue;
        }
        x->served = 1;
        if (understand(x, out))
            break;
        stop(x);
    }
out:
    cairn_str_free(&request);
    return st;
}

/* --- the definition --------------------------------------------------------------------------------------------------------- */

static void destroy(struct cairn_grader *g)
{
    struct command *x = (struct command *)g;

    free(x->argv); /* what it points to is program, interpreter and those after it */
    free(x->name);
    free(x->program);
    free(x->interpreter);
    cairn_str_free(&x->got);
    free(x);
}

/* interpreter, program, arguments: pointers and texts in one piece. */
static char **arguments_copy(const struct cairn_grader_def *def, char *interpreter, char *program)
{
    size_t bytes = ((size_t)def->arguments + 3) * sizeof(char *);
    char **argv, *at;
    int n = 0;

    for (int i = 0; i < def->arguments; i++)
        bytes += strlen(def->argument[i]) + 1;
    if (!(argv = malloc(bytes)))
        return NULL;
    at = (char *)(argv + def->arguments + 3);
    if (interpreter)
        argv[n++] = interpreter;
    argv[n++] = program;
    for (int i = 0; i < def->arguments; i++) {
        size_t k = strlen(def->argument[i]) + 1;

        argv[n++] = memcpy(at, def->argument[i], k);
        at += k;
    }
    argv[n] = NULL;
    return argv;
}

enum cairn_status cairn_command_create(struct cairn_grader **out, const struct cairn_grader_def *def, struct cairn_error *err)
{
    struct command *x = NULL;
    enum cairn_status st = CAIRN_OK;

    if (!def->program)
        return cairn_fail(err, CAIRN_ERECIPE, "program: a grader of kind command needs one");
    if (!def->interpreter && access(def->program, X_OK) != 0)
        return cairn_fail(err, CAIRN_ERECIPE, "program: %s cannot be executed: %s; chmod +x, or name its interpreter", def->program,
                          strerror(errno));
    if (!(x = calloc(1, sizeof *x)) || !(x->name = strdup(def->name)) || !(x->program = strdup(def->program)) ||
        (def->interpreter && !(x->interpreter = strdup(def->interpreter))) ||
        !(x->argv = arguments_copy(def, x->interpreter, x->program)))
        TRY(CAIRN_NOMEM(err));
    x->in = x->out = x->err = -1;
    x->time_s = def->time_s;
    x->retries = def->retries;
    x->retry_timeout = def->retry_timeout;
    x->box = (struct cairn_sandbox){
        .name = x->name, .program = x->program, .memory_bytes = def->memory_bytes, .processes = def->processes};
    x->g = (struct cairn_grader){.name = x->name,
                                 .grade = grade,
                                 .sandbox = &x->box,
                                 .gold_unused = 1,
                                 .time_s = (def->time_s + 5) * (def->retries + 1) + 30, /* ours comes first */
                                 .destroy = destroy};
    *out = &x->g;
    x = NULL;
out:
    if (x)
        destroy(&x->g);
    return st;
}
