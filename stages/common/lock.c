/* lock.c - flock on RUN/.lock; the file's text (host, pid) is for the sentence only and decides nothing. */
#include "stages/common/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"

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
/* The ranks of a holder that was killed are gone by then (tools/mpirun.h: 10 s at most, and some to die). */
#define BEHIND_TRIES 1500

struct cairn_lock {
    int fd;
    struct cairn_lock *next;
};
static struct cairn_lock *own; /* those that this process holds */

/* The holder's line into text: "host h pid 1". */
static void holder_read(int fd, char *text, size_t n)
{
    ssize_t got = pread(fd, text, n - 1, 0);

    text[got > 0 ? got : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    if (!text[0])
        snprintf(text, n, "not named yet");
}

/* The process that the holder's line names is no more on this machine. */
static int holder_dead(const char *text)
{
    char host[256] = "", here[256] = "";
    long pid = 0;

    gethostname(here, sizeof here - 1);
    return sscanf(text, "host %255s pid %ld", host, &pid) == 2 && pid > 0 && !strcmp(host, here) && kill((pid_t)pid, 0) && errno == ESRCH;
}

/* The lock of fd, waited for as long as that makes sense. */
static enum cairn_status wait_for(int fd, const char *path, const char *dir, struct cairn_error *err)
{
    char text[400];

    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB); i++) {
        if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP) {
            cairn_warn("%s: this file system has no locks (%s): see to it that only one cairn run works here", dir, strerror(errno));
            return CAIRN_OK;
        }
        if (errno != EWOULDBLOCK)
            return cairn_fail_errno(err, errno, "lock %s", path);
        if (i >= TRIES) {
            holder_read(fd, text, sizeof text);
            if (i >= BEHIND_TRIES || !holder_dead(text) || cairn_stop_requested())
                return cairn_fail(err, CAIRN_EAGAIN, "%s: somebody else is at work here (%s); run again when it has ended", dir, text);
            if (i == TRIES)
                cairn_info("%s: the cairn run that was at work here (%s) was killed, its ranks are on their way out: waiting for them", dir, text);
        }
        cairn_sleep_s(PAUSE_S);
    }
    return CAIRN_OK;
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
    TRY(wait_for(fd, path, dir, err));
    TRY(leads_to(path, fd, dir, err));
    gethostname(host, sizeof host - 1);
    n = snprintf(text, sizeof text, "host %s pid %ld\n", host, (long)getpid());
    if (ftruncate(fd, 0))
        TRY(cairn_fail_errno(err, errno, "truncate %s", path));
    TRY(cairn_fd_pwrite_all(fd, text, (size_t)n, 0, path, err));
    *out = malloc(sizeof **out);
    if (!*out)
        TRY(CAIRN_NOMEM(err));
    **out = (struct cairn_lock){fd, own};
    own = *out;
    fd = -1;
out:
    if (fd >= 0)
        close(fd);
    free(path);
    return st;
}

void cairn_lock_drop(struct cairn_lock *l)
{
    for (struct cairn_lock **at = &own; l && *at; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            close(l->fd);
            free(l);
            return;
        }
}

void cairn_lock_share(void)
{
    for (struct cairn_lock *l = own; l; l = l->next)
        fcntl(l->fd, F_SETFD, 0);
}

int cairn_lock_owns(int fd)
{
    for (struct cairn_lock *l = own; l; l = l->next)
        if (l->fd == fd)
            return 1;
    return 0;
}

int cairn_lock_held(const char *dir, char *text, size_t n)
{
    char *path = cairn_path_join(dir, ".lock");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1, held = 0;

    if (fd >= 0) {
        held = flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
        if (held) {
            holder_read(fd, text, n);
            if (holder_dead(text))
                snprintf(text + strlen(text), n - strlen(text), ", killed: its ranks are on their way out");
        }
        close(fd);
    }
    free(path);
    return held;
}
