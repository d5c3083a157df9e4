/* reach.c - see reach.h: parents from /proc/PID/stat, programs from /proc/PID/exe. */
#include "tools/reach.h"

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct process {
    pid_t pid, parent;
};

/* All that there are; malloc'ed, NULL: none, or no memory. */
static struct process *processes(int *n)
{
    struct process *all = NULL;
    DIR *d = opendir("/proc");
    int room = 0;

    *n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[300], text[512];
        const char *p;
        size_t got;
        FILE *f;

        if (e->d_name[0] < '1' || e->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        if (!(f = fopen(path, "re")))
            continue;
        got = fread(text, 1, sizeof text - 1, f);
        fclose(f);
        text[got] = 0;
        if (*n == room) {
            struct process *more = realloc(all, (size_t)(2 * room + 64) * sizeof *all);

            if (!more)
                break;
            all = more;
            room = 2 * room + 64;
        }
        p = strrchr(text, ')'); /* the name before it may hold anything */
        if (p && sscanf(p, ") %*c %d", &all[*n].parent) == 1) {
            all[*n].pid = atoi(e->d_name);
            ++*n;
        }
    }
    if (d)
        closedir(d);
    return all;
}

static int below(const struct process *all, int n, pid_t pid, pid_t top)
{
    for (int depth = 0; depth < 16 && pid > 1; depth++) {
        int i = 0;

        while (i < n && all[i].pid != pid)
            i++;
        if (i == n)
            return 0;
        pid = all[i].parent;
        if (pid == top)
            return 1;
    }
    return 0;
}

static int runs(pid_t pid, const char *program)
{
    char path[64], exe[PATH_MAX];
    ssize_t k;

    snprintf(path, sizeof path, "/proc/%ld/exe", (long)pid);
    k = readlink(path, exe, sizeof exe - 1);
    exe[k > 0 ? k : 0] = 0;
    return !strcmp(exe, program);
}

int cairn_reach(pid_t top, const char *program, int signo)
{
    struct process *all;
    int n, found = 0;

    all = processes(&n);
    for (int i = 0; i < n; i++)
        if (below(all, n, all[i].pid, top) && runs(all[i].pid, program))
            found += !kill(all[i].pid, signo);
    free(all);
    return found;
}

int cairn_reach_count(pid_t top, const char *program)
{
    struct process *all;
    int n, found = 0;

    all = processes(&n);
    for (int i = 0; i < n; i++)
        found += below(all, n, all[i].pid, top) && runs(all[i].pid, program) && (all[i].parent == top || !runs(all[i].parent, program));
    free(all);
    return found;
}
