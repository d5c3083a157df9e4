/* preflight.c - looks a node over (preflight.h). */
#include "slurm/preflight.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "slurm/leftovers.h"
#include "stages/common/setup.h"

#define MEMORY_MIB 256.0
#define SHM_MIB    32.0
#define DISK_MIB   64.0
#define CLOCK_S    30.0

static double memory_mib(void)
{
    char *text = NULL, *p;
    size_t n;
    double kib = -1;

    if (cairn_file_read("/proc/meminfo", 1 << 20, &text, &n, NULL) == CAIRN_OK && (p = strstr(text, "MemAvailable:")))
        kib = atof(p + strlen("MemAvailable:"));
    free(text);
    return kib < 0 ? INFINITY : kib / 1024;
}

static double free_mib(const char *path)
{
    struct statvfs v;

    return statvfs(path, &v) ? -1 : (double)v.f_bavail * (double)v.f_frsize / (1 << 20);
}

/* A small file in RUN/log, written durably and removed. */
static int write_try(const struct cairn_run *run, const char *node, char *text, size_t n)
{
    char *dir = cairn_run_path(run, "log"), *path = dir ? cairn_format("%s/.preflight.%s.%ld", dir, node, (long)getpid()) : NULL;
    int bad = 0, fd;

    if (path && cairn_dir_make(dir, NULL) == CAIRN_OK) {
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        bad = fd < 0 || write(fd, "cairn\n", 6) != 6 || fsync(fd);
        if (bad)
            snprintf(text, n, "%s: %s", dir, strerror(errno));
        if (fd >= 0)
            close(fd);
        unlink(path);
    }
    free(dir);
    free(path);
    return bad;
}

json_t *cairn_preflight_node(const struct cairn_run *run, int device)
{
    char node[256] = "", text[400] = "", numerics[256] = "";
    int swept = cairn_leftovers_sweep("/dev/shm"); /* before it is asked how much is free */
    double memory = memory_mib(), shm = free_mib("/dev/shm"), disk = free_mib(run->dir);
    struct cairn_compute k = {0};
    struct cairn_error err = {0};

    gethostname(node, sizeof node - 1);
    if (swept)
        cairn_info("%s: %d segments of killed ranks removed from /dev/shm", node, swept);
    if (memory < MEMORY_MIB)
        snprintf(text, sizeof text, "only %.0f MiB of memory are free", memory);
    else if (shm >= 0 && shm < SHM_MIB)
        snprintf(text, sizeof text, "only %.0f MiB are free in /dev/shm", shm);
    else if (disk >= 0 && disk < DISK_MIB)
        snprintf(text, sizeof text, "only %.0f MiB are free in %s", disk, run->dir);
    else if (!write_try(run, node, text, sizeof text) && device) {
        if (cairn_setup_compute(&k, run, 1, 0, &err) == CAIRN_OK) {
            snprintf(numerics, sizeof numerics, "%s", k.numerics);
            cairn_compute_close(&k);
        } else {
            snprintf(text, sizeof text, "%.350s", err.text);
        }
    }
    return json_pack("{s:s, s:f, s:s, s:s, s:s}", "node", node, "wall", cairn_wall_s(), "version", cairn_build_version(),
                     "numerics", numerics, "text", text);
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

/* What most of them have under key. */
static const char *common(const json_t *all, const char *key)
{
    const char *best = "";
    size_t most = 0, i, k;
    json_t *a, *b;

    json_array_foreach(all, i, a)
    {
        size_t n = 0;

        json_array_foreach(all, k, b) n += !strcmp(text_of(a, key), text_of(b, key));
        if (n > most) {
            most = n;
            best = text_of(a, key);
        }
    }
    return best;
}

void cairn_preflight_judge(const char *lines, int expected, void (*fn)(void *arg, const char *node, const char *text), void *arg,
                           int *silent)
{
    char *copy = strdup(lines), *save = NULL, text[600];
    json_t *all = json_array(), *o;
    const char *version, *numerics;
    double first = 0;
    size_t i;

    for (char *line = copy ? strtok_r(copy, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        char *brace = strchr(line, '{'); /* srun may put a label in front */
        json_t *v = brace ? json_loads(brace, JSON_DISABLE_EOF_CHECK, NULL) : NULL;

        if (json_is_object(v) && json_object_get(v, "node"))
            json_array_append(all, v);
        json_decref(v);
    }
    version = common(all, "version");
    numerics = common(all, "numerics");
    json_array_foreach(all, i, o)
    {
        double wall = json_number_value(json_object_get(o, "wall"));

        if (i == 0)
            first = wall;
        if (fabs(wall - first) > CLOCK_S)
            cairn_warn("the clock of %s is %.0f s off that of %s", text_of(o, "node"), wall - first,
                       text_of(json_array_get(all, 0), "node"));
        if (text_of(o, "text")[0])
            snprintf(text, sizeof text, "%s", text_of(o, "text"));
        else if (strcmp(text_of(o, "version"), version))
            snprintf(text, sizeof text, "it has cairn %s, the others %s", text_of(o, "version"), version);
        else if (strcmp(text_of(o, "numerics"), numerics))
            snprintf(text, sizeof text, "it computes as \"%s\", the others as \"%s\"", text_of(o, "numerics"), numerics);
        else
            continue;
        fn(arg, text_of(o, "node"), text);
    }
    *silent = expected - (int)json_array_size(all);
    json_decref(all);
    free(copy);
}
