/* board.c - one page or two of shared slots; each is written by its rank and read by a watchdog about to leave. */
#include "world/board.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct slot {
    atomic_int inside; /* 0: between operations; the rest is then the last one */
    int32_t pid;
    uint64_t seq;
    char group[24], op[16], what[64];
    char pad[8]; /* two cache lines */
};
_Static_assert(sizeof(struct slot) == 128, "slots do not share cache lines");

struct cairn_board {
    struct slot *slot;
    int slots, fd;
};

static struct cairn_board *map(int fd, int slots)
{
    struct cairn_board *b = malloc(sizeof *b);
    size_t bytes = (size_t)slots * sizeof(struct slot);
    struct stat sb;

    if (b) {
        b->fd = fd;
        b->slots = slots;
        b->slot = fstat(fd, &sb) || sb.st_size != (off_t)bytes ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (b->slot != MAP_FAILED)
            return b;
    }
    free(b);
    close(fd);
    return NULL;
}

struct cairn_board *cairn_board_create(int slots, struct cairn_board_place *place)
{
    int fd = memfd_create("cairn-board", MFD_CLOEXEC);
    off_t bytes = (off_t)slots * (off_t)sizeof(struct slot);
    struct cairn_board *b;

    place->pid = getpid();
    place->slots = slots;
    place->fd = -1;
    if (fd < 0)
        return NULL;
    /* allocated, not only sized: a full memory is found here and not by SIGBUS */
    if (ftruncate(fd, bytes) || posix_fallocate(fd, 0, bytes)) {
        close(fd);
        return NULL;
    }
    if ((b = map(fd, slots)))
        place->fd = fd;
    return b;
}

struct cairn_board *cairn_board_attach(const struct cairn_board_place *place)
{
    char path[64];
    int fd;

    if (place->fd < 0 || place->slots < 1)
        return NULL;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)place->pid, (int)place->fd);
    fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    return fd < 0 ? NULL : map(fd, place->slots);
}

void cairn_board_destroy(struct cairn_board *b)
{
    if (!b)
        return;
    munmap(b->slot, (size_t)b->slots * sizeof(struct slot));
    close(b->fd);
    free(b);
}

static void copy(char *dst, size_t size, const char *src)
{
    size_t n = strnlen(src, size - 1);

    memcpy(dst, src, n);
    dst[n] = 0;
}

void cairn_board_enter(struct cairn_board *b, int slot, const char *group, uint64_t seq, const char *op, const char *what)
{
    struct slot *s;

    if (!b)
        return;
    s = &b->slot[slot];
    s->pid = getpid();
    s->seq = seq;
    copy(s->group, sizeof s->group, group);
    copy(s->op, sizeof s->op, op);
    copy(s->what, sizeof s->what, what);
    atomic_store_explicit(&s->inside, 1, memory_order_release);
}

void cairn_board_leave(struct cairn_board *b, int slot)
{
    if (b)
        atomic_store_explicit(&b->slot[slot].inside, 0, memory_order_release);
}

/* "stopped, " for T, "has ended, " for a process that is gone, "waits for a disc, " for D; else "". */
static const char *condition(int pid)
{
    char path[32], text[512], *p;
    ssize_t n;
    int fd;

    if (pid <= 0)
        return "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return "has ended, ";
    n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    p = strrchr(text, ')'); /* behind the program's name, which may hold anything */
    if (!p || p[1] != ' ')
        return "";
    switch (p[2]) {
    case 'T':
    case 't': return "is stopped, ";
    case 'Z':
    case 'X': return "has ended, ";
    case 'D': return "waits for a disc, ";
    default: return "";
    }
}

int cairn_board_inside(const struct cairn_board *b, int slot, const char *group, uint64_t seq, char *text, size_t size)
{
    struct slot *s = &b->slot[slot];
    int inside = atomic_load_explicit(&s->inside, memory_order_acquire);
    const char *how;
    struct slot c;

    memcpy(&c, s, sizeof c);
    c.group[sizeof c.group - 1] = c.op[sizeof c.op - 1] = c.what[sizeof c.what - 1] = 0;
    how = condition(c.pid);
    if (!how[0] && group && (c.seq > seq || (inside && c.seq == seq)) && !strncmp(c.group, group, sizeof c.group - 1))
        return 1;
    if (!c.op[0])
        snprintf(text, size, "%shas been in no operation yet", how);
    else
        snprintf(text, size, "%s%s %s #%llu of %s (%s)", how, inside ? "is in" : "last was in", c.op, (unsigned long long)c.seq, c.group, c.what);
    return 0;
}
