/* command.c - fork, exec, two pipes and a clock (command.h). */
#include "slurm/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/signals.h"

#define MOST (16 << 20) /* bytes kept of each stream: a queue of 100,000 jobs is less */

void cairn_command_free(struct cairn_command *c)
{
    cairn_str_free(&c->out);
    cairn_str_free(&c->err);
}

/* sbatch hands its environment on to the job: what Slurm told this job about itself (restarts, array, tasks per node) would be
 * taken for the new one's. Where the cluster is stays. */
static void environment_clean(void)
{
    extern char **environ;

    for (char **e = environ; e && *e;) {
        size_t n = strcspn(*e, "=");
        char name[128];

        if (strncmp(*e, "SLURM_", 6) || !strncmp(*e, "SLURM_CONF=", 11) || !strncmp(*e, "SLURM_CLUSTERS=", 15) ||
            n >= sizeof name) {
            e++;
            continue;
        }
        memcpy(name, *e, n);
        name[n] = 0;
        unsetenv(name); /* moves the later ones here */
    }
}

static void child_exec(const char *const *argv, const int in[2], const int out[2], const int errs[2])
{
    static const int signals[] = {SIGTERM, SIGUSR1, SIGINT, SIGCHLD, SIGPIPE};
    sigset_t none;

    cairn_signals_reset();
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        signal(signals[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (dup2(in[0], 0) < 0 || dup2(out[1], 1) < 0 || dup2(errs[1], 2) < 0)
        _exit(126);
    if (!strcmp(argv[0], "sbatch"))
        environment_clean();
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Reads what is there into s; closes at the end. */
static void drain(int *fd, struct cairn_str *s)
{
    char block[16384];
    ssize_t n = read(*fd, block, sizeof block);

    if (n > 0 && s->len < MOST)
        cairn_str_add(s, block, (size_t)n);
    else if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
        close_fd(fd);
}

static void feed(int *fd, const char **input, size_t *left)
{
    ssize_t n = write(*fd, *input, *left);

    if (n > 0) {
        *input += n;
        *left -= (size_t)n;
    }
    if (*left == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
        close_fd(fd);
}

/* Moves bytes until both streams end or the time is over. */
static void talk(struct cairn_command *c, int *in, int *out, int *errs, const char *input, double until)
{
    size_t left = input ? strlen(input) : 0;

    if (!left)
        close_fd(in);
    while (*out >= 0 || *errs >= 0) {
        struct pollfd p[3] = {{*out, POLLIN, 0}, {*errs, POLLIN, 0}, {*in, POLLOUT, 0}};
        double rest = until - cairn_now_s();

        if (rest <= 0) {
            c->late = 1;
            return;
        }
        if (poll(p, 3, rest > 1 ? 1000 : (int)(rest * 1000) + 1) < 0)
            continue;
        if (*out >= 0 && p[0].revents)
            drain(out, &c->out);
        if (*errs >= 0 && p[1].revents)
            drain(errs, &c->err);
        if (*in >= 0 && p[2].revents)
            feed(in, &input, &left);
    }
}

enum cairn_status cairn_command_run(struct cairn_command *c, const char *const *argv, const char *input, double timeout_s,
                                    struct cairn_error *err)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, errs[2] = {-1, -1}, status = 0;
    double until = cairn_now_s() + (timeout_s > 0 ? timeout_s : 60);
    enum cairn_status st = CAIRN_OK;
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    pid_t pid;

    memset(c, 0, sizeof *c);
    sigaction(SIGPIPE, &ignore, &before);
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(errs, O_CLOEXEC))
        TRY(cairn_fail_errno(err, errno, "pipe for %s", argv[0]));
    fcntl(in[1], F_SETFL, O_NONBLOCK);
    pid = fork();
    if (pid < 0)
        TRY(cairn_fail_errno(err, errno, "fork for %s", argv[0]));
    if (pid == 0)
        child_exec(argv, in, out, errs);
    close_fd(&in[0]);
    close_fd(&out[1]);
    close_fd(&errs[1]);
    talk(c, &in[1], &out[0], &errs[0], input, until);
    if (c->late)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    c->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (c->out.oom || c->err.oom)
        TRY(CAIRN_NOMEM(err));
out:
    for (int i = 0; i < 2; i++) {
        close_fd(&in[i]);
        close_fd(&out[i]);
        close_fd(&errs[i]);
    }
    sigaction(SIGPIPE, &before, NULL);
    if (st != CAIRN_OK)
        cairn_command_free(c);
    return st;
}

/* The last line of s with a letter in it, cut out of it. */
static char *last_line(struct cairn_str *s)
{
    while (s->len) {
        char *line, *end;

        while (s->len && (s->p[s->len - 1] == '\n' || s->p[s->len - 1] == ' '))
            s->p[--s->len] = 0;
        end = s->len ? memrchr(s->p, '\n', s->len) : NULL;
        line = end ? end + 1 : s->p;
        if (line && *line)
            return line;
    }
    return NULL;
}

const char *cairn_command_says(struct cairn_command *c)
{
    static const char *const fronts[] = {"sbatch: ",
                                         "scontrol: ",
                                         "squeue: ",
                                         "scancel: ",
                                         "slurm_update error: ",
                                         "error: ",
                                         "Batch job submission failed: ",
                                         "allocation failure: "};
    char *line = last_line(&c->err);

    if (!line)
        line = last_line(&c->out);
    if (!line)
        return "";
    for (int again = 1; again;) {
        again = 0;
        for (size_t i = 0; i < sizeof fronts / sizeof *fronts; i++)
            if (cairn_starts_with(line, fronts[i])) {
                line += strlen(fronts[i]);
                again = 1;
            }
    }
    return line;
}
