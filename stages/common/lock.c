/* lock.c - flock on RUN/.lock; the file's text (host, pid) is for the sentence only and decides nothing. */
#include "stages/common/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

/* That path still leads to the open file: a directory that was given up takes its lock along (place.h). */
static enum cairn_status leads_to(const char *path, int fd, const char *dir, struct cairn_error *err)
{
    struct stat a, b;
    int there = !stat(path, &a);

    if ((!there && errno != ENOENT && errno != ENOTDIR) || fstat(fd, &b))
        return cairn_fail_errno(err, errno, "stat %s", path);
    if (!there || a.st_dev != b.st_dev || a.st_ino != b.st_ino)
        return cairn_fail(err, CAIRN_EAGAIN, "%s: went while its lock was waited for; run again", dir);
    return CAIRN_OK;
}

/* Who only looks (cairn_lock_held) holds it for an instant: so somebody who takes it tries for a while before giving up. */
#define TRIES 20
#define PAUSE_S 0.01

struct cairn_lock {
    int fd;
};

/* The holder's line into text: "host h pid 1". */
static void holder_read(int fd, char *text, size_t n)
{
    ssize_t got = pread(fd, text, n - 1, 0);

    text[got > 0 ? got : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    if (!text[0])
        snprintf(text, n, "not named yet");
}

enum cairn_status cairn_lock_take(struct cairn_lock **out, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_path_join(dir, ".lock"), text[400], host[256] = "";
    int fd = -1, n;

    if (!path)
        return CAIRN_NOMEM(err);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        TRY(cairn_fail_errno(err, errno, "open %s", path));
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB); i++) {
        if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP) {
            cairn_warn("%s: this file system has no locks (%s): see to it that only one cairn run works here", dir, strerror(errno));
            break;
        }
        if (errno != EWOULDBLOCK)
            TRY(cairn_fail_errno(err, errno, "lock %s", path));
        if (i == TRIES) {
            holder_read(fd, text, sizeof text);
            TRY(cairn_fail(err, CAIRN_EAGAIN, "%s: somebody else is at work here (%s); run again when it has ended", dir, text));
        }
        cairn_sleep_s(PAUSE_S);
    }
    TRY(leads_to(path, fd, dir, err));
    gethostname(host, sizeof host - 1);
    n = snprintf(text, sizeof text, "host %s pid %ld\n", host, (long)getpid());
    if (ftruncate(fd, 0))
        TRY(cairn_fail_errno(err, errno, "truncate %s", path));
    TRY(cairn_fd_pwrite_all(fd, text, (size_t)n, 0, path, err));
    *out = malloc(sizeof **out);
    if (!*out)
        TRY(CAIRN_NOMEM(err));
    (*out)->fd = fd;
    fd = -1;
out:
    if (fd >= 0)
        close(fd);
    free(path);
    return st;
}

void cairn_lock_drop(struct cairn_lock *l)
{
    if (l) {
        close(l->fd);
        free(l);
    }
}

int cairn_lock_held(const char *dir, char *text, size_t n)
{
    char *path = cairn_path_join(dir, ".lock");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1, held = 0;

    if (fd >= 0) {
        held = flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
        if (held)
            holder_read(fd, text, n);
        close(fd);
    }
    free(path);
    return held;
}
