/* damage.c - see flips.h: one file is damaged, or whole again. */
#include "tests/faults/flips.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

void damage_file(const char *path, uint64_t *r, char *did, size_t room)
{
    int fd = open(path, O_RDWR | O_CLOEXEC), kind = (int)(lab_random(r) % 20);
    struct stat sb;
    unsigned char c;

    if (fd < 0 || fstat(fd, &sb))
        lab_die("%s: %s", path, strerror(errno));
    if (kind < 3 || !sb.st_size) {
        off_t to = kind == 0 ? 0 : kind == 1 ? sb.st_size - 1 : (off_t)(lab_random(r) % (uint64_t)sb.st_size);

        snprintf(did, room, "cut from %lld to %lld bytes", (long long)sb.st_size, (long long)to);
        if (ftruncate(fd, to))
            lab_die("%s: %s", path, strerror(errno));
    } else if (kind == 3) {
        c = (unsigned char)lab_random(r);
        snprintf(did, room, "lengthened by a byte %d", c);
        if (pwrite(fd, &c, 1, sb.st_size) != 1)
            lab_die("%s: %s", path, strerror(errno));
    } else {
        off_t at = (off_t)(lab_random(r) % (uint64_t)sb.st_size);
        int bit = (int)(lab_random(r) % 8);

        snprintf(did, room, "bit %d of byte %lld flipped", bit, (long long)at);
        if (pread(fd, &c, 1, at) != 1)
            lab_die("%s: %s", path, strerror(errno));
        c ^= (unsigned char)(1 << bit);
        if (pwrite(fd, &c, 1, at) != 1)
            lab_die("%s: %s", path, strerror(errno));
    }
    close(fd);
}

void damage_undo(const char *from, const char *to)
{
    struct cairn_error err = {0};
    char *bytes = NULL;
    size_t n;
    int fd;

    if (cairn_file_read(from, 1 << 28, &bytes, &n, &err) != CAIRN_OK)
        lab_die("%s", err.text);
    fd = open(to, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd < 0 || cairn_fd_write_all(fd, bytes, n, to, &err) != CAIRN_OK)
        lab_die("%s: %s", to, err.text);
    close(fd);
    free(bytes);
}
