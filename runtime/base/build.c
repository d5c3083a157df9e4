/* build.c - the version compiled in, and places found through /proc/self/exe. */
#include "base/build.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

#ifndef CAIRN_VERSION
#define CAIRN_VERSION "unknown"
#endif

static char install_dir[PATH_MAX]; /* empty: unknown */
static pthread_once_t once = PTHREAD_ONCE_INIT;

const char *cairn_build_version(void)
{
    return CAIRN_VERSION;
}

static void find_install_dir(void)
{
    ssize_t n = readlink("/proc/self/exe", install_dir, sizeof install_dir - 1);

    install_dir[n > 0 && n < (ssize_t)sizeof install_dir - 1 ? n : 0] = 0;
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(install_dir, '/');

        if (slash)
            slash[slash == install_dir] = 0;
    }
}

const char *cairn_install_dir(void)
{
    pthread_once(&once, find_install_dir);
    return install_dir[0] ? install_dir : NULL;
}

char *cairn_lib_path(const char *name)
{
    const char *dir = getenv("CAIRN_LIB_DIR");
    char *lib, *path;

    if (dir && *dir)
        return cairn_path_join(dir, name);
    if (!cairn_install_dir() || !(lib = cairn_path_join(cairn_install_dir(), "lib")))
        return NULL;
    path = cairn_path_join(lib, name);
    free(lib);
    return path;
}
