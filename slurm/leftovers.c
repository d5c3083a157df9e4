/* leftovers.c - looks for segments that nobody maps (leftovers.h). */
#include "slurm/leftovers.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"

#define OLD_S 5.0 /* between making a segment and mapping it lie microseconds */
#define MOST  (64 << 20)

/* This host's, this user's, and not made just now. */
static int candidate(const char *dir, const char *name)
{
    static const char *const kinds[] = {"vader_segment.", "sm_segment."};
    char host[256] = "", own[300], *path;
    struct stat s;
    int is = 0;

    gethostname(host, sizeof host - 1);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(own, sizeof own, "%s%s.%ld.", kinds[i], host, (long)getuid());
        is |= cairn_starts_with(name, own);
    }
    path = is ? cairn_path_join(dir, name) : NULL;
    is = path && !lstat(path, &s) && S_ISREG(s.st_mode) && s.st_uid == getuid() && cairn_wall_s() - (double)s.st_mtime > OLD_S;
    free(path);
    return is;
}

/* 1: some process of this user maps `path`, or one of them cannot be looked at. */
static int mapped(const char *path)
{
    DIR *proc = opendir("/proc");
    struct dirent *d;
    int is = !proc;

    while (!is && (d = readdir(proc))) {
        char maps[64], *text = NULL;
        struct stat s;
        int64_t pid;
        size_t n;

        snprintf(maps, sizeof maps, "/proc/%.20s", d->d_name);
        if (!cairn_parse_i64(d->d_name, &pid) || stat(maps, &s) || s.st_uid != getuid())
            continue;
        snprintf(maps, sizeof maps, "/proc/%.20s/maps", d->d_name);
        if (access(maps, R_OK))
            is = errno == EACCES || errno == EPERM; /* keeps its secrets; else it has ended meanwhile */
        else if (cairn_file_read(maps, MOST, &text, &n, NULL) == CAIRN_OK)
            is = strstr(text, path) != NULL;
        free(text);
    }
    if (proc)
        closedir(proc);
    return is;
}

int cairn_leftovers_sweep(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int n = 0;

    while (d && (e = readdir(d))) {
        char *path = candidate(dir, e->d_name) ? cairn_path_join(dir, e->d_name) : NULL;

        n += path && !mapped(path) && !unlink(path);
        free(path);
    }
    if (d)
        closedir(d);
    return n;
}
