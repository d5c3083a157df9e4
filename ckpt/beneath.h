/* beneath.h - open files that a manifest names, without leaving the artefact's directory.
 *
 * A relative path has one or two components, each as cairn_name_ok. The directory itself may be reached through links
 * (RUN/base is one); below it none is followed, and only regular files are opened (never waits on a FIFO).
 */
#ifndef CAIRN_CKPT_BENEATH_H
#define CAIRN_CKPT_BENEATH_H

#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"

int cairn_beneath_ok(const char *rel); /* 1: the path has that form */
/* Read-only descriptor and size. CAIRN_EDATA: missing (*missing = 1 if missing is not NULL), a link, no regular file. */
enum cairn_status cairn_beneath_open(const char *dir, const char *rel, int *fd, int64_t *size, int *missing, struct cairn_error *err);
/* The whole file, at most max bytes; malloc'ed and NUL-terminated beyond n. */
enum cairn_status cairn_beneath_read(const char *dir, const char *rel, size_t max, char **out, size_t *n, int *missing,
                                     struct cairn_error *err);

/* XXH3-128 and size of the whole file. CAIRN_EAGAIN if a stop is requested meanwhile. */
enum cairn_status cairn_beneath_digest(const char *dir, const char *rel, struct cairn_digest *out, int64_t *size, int *missing,
                                       struct cairn_error *err);
/* The same of an open descriptor of `size` bytes; path is for the sentence. */
enum cairn_status cairn_fd_digest(int fd, int64_t size, const char *path, struct cairn_digest *out, struct cairn_error *err);

#endif
