/* lock.c - flock on RUN/.lock; the file's text (host, pid) is for the sentence only and decides nothing. */
#include "stages/common/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"

struct cairn_lock {
    int fd;
};

enum cairn_status cairn_lock_take(struct cairn_lock **out, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_path_join(dir, ".lock"), text[400], host[256] = "";
    int fd = -1, n;
    ssize_t got;

    if (!path)
        return CAIRN_NOMEM(err);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        TRY(cairn_fail_errno(err, errno, "open %s", path));
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK)
            TRY(cairn_fail_errno(err, errno, "lock %s", path));
        got = pread(fd, text, sizeof text - 1, 0);
        text[got > 0 ? got : 0] = 0;
        text[strcspn(text, "\n")] = 0;
        TRY(cairn_fail(err, CAIRN_EAGAIN, "%s: somebody else is at work here (%s); run again when it has ended", dir,
                       text[0] ? text : "not named yet"));
    }
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
