/* exec.c - programs of a lab (lab.h): started in a session of their own under the shim, waited for with a time limit, and what they left
 * in their box (stderr, the shim's report) read. Orphans come to us (lab_open makes us their reaper) and are reaped here.
 */
#include "tests/faults/lab.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

static void redirect(const char *path, int as, int flags)
{
    int fd = open(path, flags, 0644);

    if (fd < 0 || dup2(fd, as) < 0)
        _exit(125);
    close(fd);
}

pid_t lab_start(const struct lab *lab, const struct lab_exec *x)
{
    static const int stops[] = {SIGTERM, SIGUSR1, SIGINT};
    static const char *const mpi[][2] = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                         {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                                         {"OMPI_MCA_orte_execute_quiet", "1"},
                                         {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                         {"OMPI_MCA_mpi_yield_when_idle", "1"}};
    char *tmp = lab_text("%s/tmp", x->box), *err = lab_text("%s/err", x->box), *report = lab_text("%s/report", x->box);
    sigset_t held, before;
    pid_t pid;

    if (mkdir(tmp, 0777) && errno != EEXIST)
        lab_die("mkdir %s: %s", tmp, strerror(errno));
    unlink(report);
    fflush(NULL);
    sigemptyset(&held);
    for (size_t k = 0; k < sizeof stops / sizeof *stops; k++)
        sigaddset(&held, stops[k]);
    sigprocmask(SIG_BLOCK, &held, &before); /* in the child until its handlers stand */
    pid = fork();
    if (pid)
        sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid < 0)
        lab_die("fork: %s", strerror(errno));
    if (!pid) {
        setsid();
        if (!strcmp(x->argv[0], "mpirun")) /* which expects them open, and is asked to stop by nobody but its parent */
            sigprocmask(SIG_SETMASK, &before, NULL);
        if (chdir(x->box))
            _exit(125);
        redirect("/dev/null", 0, O_RDONLY);
        redirect("/dev/null", 1, O_WRONLY);
        redirect(err, 2, O_WRONLY | O_CREAT | O_TRUNC);
        setenv("TMPDIR", tmp, 1);
        setenv("HOME", tmp, 1);
        setenv("OMP_NUM_THREADS", "1", 1);
        for (size_t k = 0; k < sizeof mpi / sizeof *mpi; k++) /* as `cairn run` starts it */
            setenv(mpi[k][0], mpi[k][1], 1);
        if (x->root) {
            setenv("LD_PRELOAD", lab->shim, 1);
            setenv("CAIRN_FAULT_ROOT", x->root, 1);
            setenv("CAIRN_FAULT", x->plan ? x->plan : "", 1);
            setenv("CAIRN_FAULT_PROGRAM", x->program ? x->program : "", 1);
            setenv("CAIRN_FAULT_REPORT", report, 1);
            setenv("CAIRN_FAULT_FREE", tmp, 1);
            if (x->journal)
                setenv("CAIRN_FAULT_JOURNAL", x->journal, 1);
        }
        execvp(x->argv[0], (char **)(uintptr_t)x->argv);
        _exit(126);
    }
    free(tmp);
    free(err);
    free(report);
    return pid;
}

static int number_of(const char *name, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(name, names[i]))
            return i;
    return 0;
}

static void report_read(const char *box, struct lab_end *end)
{
    char *path = lab_text("%s/report", box), *line = NULL;
    FILE *f = fopen(path, "re");
    size_t cap = 0;

    while (f && getline(&line, &cap, f) > 0) {
        char op[16], cls[16];

        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "fire ", 5) && sscanf(line, "fire %*d %15s %15s", op, cls) == 2) {
            end->fired = 1;
            end->op = (enum fault_op)number_of(op, fault_op_name, OPS);
            end->cls = (enum fault_class)number_of(cls, fault_class_name, CLASSES);
            snprintf(end->where, sizeof end->where, "%.399s", line + 5);
        } else if (!strncmp(line, "end ", 4)) {
            end->calls = strtol(line + 4, NULL, 10);
        } else if (!strncmp(line, "publish ", 8)) {
            end->published++;
        } else if (!strncmp(line, "outside ", 8)) {
            if (!end->outside++)
                snprintf(end->where, sizeof end->where, "%.399s", line);
        }
    }
    if (f)
        fclose(f);
    free(line);
    free(path);
}

static void err_read(const char *box, struct lab_end *end)
{
    char *path = lab_text("%s/err", box), *line = NULL, warning[sizeof end->last] = "";
    FILE *f = fopen(path, "re");
    size_t cap = 0;

    while (f && getline(&line, &cap, f) > 0) {
        line[strcspn(line, "\n")] = 0;
        if (!*line)
            continue;
        if (strstr(line, ": warning: ")) { /* counts only where nothing else is said */
            snprintf(warning, sizeof warning, "%.599s", line);
            end->goes_on += strstr(line, ": warning: eval/") && fault_ends(line, "; training goes on");
            continue;
        }
        if (!end->lines++)
            snprintf(end->first, sizeof end->first, "%.599s", line);
        snprintf(end->last, sizeof end->last, "%.599s", line);
    }
    if (!end->lines && warning[0]) {
        end->lines = 1;
        memcpy(end->last, warning, sizeof end->last);
    }
    if (f)
        fclose(f);
    free(line);
    free(path);
}

int lab_members(pid_t session, pid_t *out, int room)
{
    DIR *d = opendir("/proc");
    int n = 0;

    for (struct dirent *e; d && n < room && (e = readdir(d));) {
        char path[300], text[400], state;
        const char *p;
        int fd, parent, group, of;
        ssize_t got;

        if (e->d_name[0] < '1' || e->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
            continue;
        got = read(fd, text, sizeof text - 1);
        close(fd);
        text[got > 0 ? got : 0] = 0;
        if (!(p = strrchr(text, ')')) || sscanf(p, ") %c %d %d %d", &state, &parent, &group, &of) != 4 || of != session)
            continue;
        if (state == 'Z' || state == 'X') {
            if (atoi(e->d_name) != session) /* an orphan came to us: we are their reaper */
                waitpid(atoi(e->d_name), NULL, WNOHANG);
            continue;
        }
        out[n++] = atoi(e->d_name);
    }
    if (d)
        closedir(d);
    return n;
}

/* 1: we have no child at all, and so no orphan either: nobody of a session that we started lives. Saves a look at all of /proc. */
static int childless(void)
{
    siginfo_t info;

    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) && errno == ECHILD;
}

void lab_wait(const struct lab_exec *x, pid_t pid, struct lab_end *end)
{
    double limit = lab_now() + (x->limit_s > 0 ? x->limit_s : 120), since;
    int status;
    pid_t got, member;

    memset(end, 0, sizeof *end);
    while (!(got = waitpid(pid, &status, WNOHANG))) {
        if (lab_now() > limit) {
            end->late = 1;
            kill(pid, SIGKILL);
            limit += 1e9;
        }
        nanosleep(&(struct timespec){0, 300000}, NULL);
    }
    if (got < 0)
        lab_die("waitpid: %s", strerror(errno));
    end->code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (end->code == 125 || end->code == 126)
        lab_die("cannot start %s", x->argv[0]);
    since = lab_now();
    while (!childless() && lab_members(pid, &member, 1)) { /* its children see that it is gone and follow */
        if (lab_now() - since > 60) {
            end->orphans = 1;
            kill(member, SIGKILL);
        }
        pause_ms(1);
    }
    report_read(x->box, end);
    err_read(x->box, end);
}

void lab_run(const struct lab *lab, const struct lab_exec *x, struct lab_end *end)
{
    lab_wait(x, lab_start(lab, x), end);
}

void lab_argv(const struct lab *lab, int i, const char *dir, struct lab_exec *x, char scratch[2][600])
{
    static const char *const np[] = {"0", "1", "2", "3", "4"};
    const struct cairn_link *l = &lab->link[i];
    int n = 0;

    snprintf(scratch[0], sizeof scratch[0], "%s/cairn-%s", lab->bin, cairn_stage_name(l->stage));
    snprintf(scratch[1], sizeof scratch[1], "%lld", (long long)l->step);
    x->program = strrchr(scratch[0], '/') + 1;
    if (lab->ranks > 1 && (l->stage == CAIRN_STAGE_ROLLOUT || l->stage == CAIRN_STAGE_TRAIN)) {
        x->argv[n++] = "mpirun";
        x->argv[n++] = "-np";
        x->argv[n++] = np[lab->ranks];
    }
    x->argv[n++] = scratch[0];
    x->argv[n++] = dir;
    x->argv[n++] = "--step";
    x->argv[n++] = scratch[1];
    if (l->eval) {
        x->argv[n++] = "--eval";
        x->argv[n++] = l->eval;
    }
    x->argv[n++] = "--quiet";
    x->argv[n] = NULL;
}

void lab_argv_run(const struct lab *lab, const char *verb, const char *dir, struct lab_exec *x, char scratch[2][600])
{
    int n = 0;

    snprintf(scratch[0], sizeof scratch[0], "%s/cairn", lab->bin);
    snprintf(scratch[1], sizeof scratch[1], "%.599s", dir);
    x->program = "cairn";
    x->argv[n++] = scratch[0];
    x->argv[n++] = verb;
    x->argv[n++] = lab->recipe;
    x->argv[n++] = "--run";
    x->argv[n++] = scratch[1];
    if (!strcmp(verb, "run"))
        x->argv[n++] = "--quiet";
    for (int k = 0; lab->override[k]; k++)
        x->argv[n++] = lab->override[k];
    x->argv[n] = NULL;
}
