/* file.h - system calls with one sentence on failure: whole files, exact reads and writes, durable directories.
 *
 * All functions name the path in their sentence and map ENOSPC/EDQUOT to CAIRN_ENOSPACE, other failures to
 * CAIRN_EIO, a missing file to CAIRN_EDATA where it is input. EINTR, EAGAIN (for a second) and short
 * transfers are handled here. A failed
 * fsync or close is a failed write and is never retried.
 */
#ifndef CAIRN_BASE_FILE_H
#define CAIRN_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

/* Reads a regular file or pipe of at most max bytes; *out is malloc'ed and NUL-terminated beyond n. */
enum cairn_status cairn_file_read(const char *path, size_t max, char **out, size_t *n, struct cairn_error *err);
/* Creates (O_EXCL) path with the n bytes, fsync, close. Removes it again on failure. errno is EEXIST after a failure
 * exactly if path was there before (who creates first may be the question). */
enum cairn_status cairn_file_create(const char *path, const void *p, size_t n, struct cairn_error *err);
/* Replaces path atomically: temporary beside it, fsync, rename, fsync of the directory. */
enum cairn_status cairn_file_replace(const char *path, const void *p, size_t n, struct cairn_error *err);
/* Removes the temporaries that killed calls of cairn_file_replace left in a directory; only while nobody else replaces files there. Errors are
 * left for the next one to meet. */
void cairn_dir_sweep(const char *path);
/* read(2), patient with EINTR and EAGAIN. */
ssize_t cairn_fd_read_some(int fd, void *p, size_t n);
enum cairn_status cairn_fd_write_all(int fd, const void *p, size_t n, const char *path, struct cairn_error *err);
enum cairn_status cairn_fd_pwrite_all(int fd, const void *p, size_t n, int64_t offset, const char *path, struct cairn_error *err);
/* CAIRN_EDATA when the file ends before n bytes. */
enum cairn_status cairn_fd_pread_all(int fd, void *p, size_t n, int64_t offset, const char *path, struct cairn_error *err);
enum cairn_status cairn_fd_sync_close(int *fd, const char *path, struct cairn_error *err); /* sets *fd = -1 in any case */
enum cairn_status cairn_dir_sync(const char *path, struct cairn_error *err);
enum cairn_status cairn_dir_make(const char *path, struct cairn_error *err);  /* mkdir -p, durable; existing is fine */
/* What is in a directory, "." and ".." left out, in the order of bytes; read to its end before anything is done with it: CAIRN_EIO where
 * that fails midway, so that what could not be listed is not taken for absent. */
struct cairn_names {
    char **name;
    size_t n;
};
/* there: NULL, or gets 0 where there is no such directory, with no names and CAIRN_OK; without it that is a failure. */
enum cairn_status cairn_dir_names(struct cairn_names *out, const char *path, int *there, struct cairn_error *err);
/* As the last of them; takes `name` over in any case, NULL is want of memory. */
enum cairn_status cairn_names_add(struct cairn_names *names, char *name, struct cairn_error *err);
void cairn_names_free(struct cairn_names *names);
/* Removes a tree below path (no symlink is followed); missing is fine. */
enum cairn_status cairn_tree_remove(const char *path, struct cairn_error *err);
int cairn_path_exists(const char *path); /* follows links; 0: certainly absent, 1 also if it cannot be told */
int cairn_path_is_dir(const char *path);
/* A directory that somebody named: CAIRN_ENOINPUT "PATH: no such directory", CAIRN_EDATA "PATH: not a directory". */
enum cairn_status cairn_dir_expect(const char *path, struct cairn_error *err);
int64_t cairn_file_size(const char *path); /* -1 if it is no regular file */
/* malloc'ed "a/b"; b alone if it is absolute. NULL without memory. */
char *cairn_path_join(const char *a, const char *b);
char *cairn_path_dirname(const char *path); /* malloc'ed */
const char *cairn_path_basename(const char *path);
/* A name that may come from a file: [A-Za-z0-9._-]{1,128}, not "." or "..". */
int cairn_name_ok(const char *name);

#endif
