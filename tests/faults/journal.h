/* journal.h - the form of CAIRN_FAULT_JOURNAL: every change of the file system below root, in the order it happened.
 *
 * Written by the shim (one write(2) with O_APPEND a record, so that threads and processes do not mix), read by image.c, which builds
 * from a prefix of it what a disk may hold after the power went. A record is this head, then path (path_n bytes, relative to
 * root), then path2 (path2_n bytes), then data (data_n bytes).
 */
#ifndef CAIRN_TESTS_FAULTS_JOURNAL_H
#define CAIRN_TESTS_FAULTS_JOURNAL_H

#include <stdint.h>

enum journal_op {
    J_CREATE = 1, /* path: a new, empty file (O_EXCL or it was absent) */
    J_WRITE,      /* path, offset, data */
    J_TRUNC,      /* path, offset = new size */
    J_SYNC,       /* path: fsync of a file */
    J_SYNC_DIR,   /* path: fsync of a directory ("" is root) */
    J_LINK,       /* path: old name, path2: new name */
    J_SYMLINK,    /* path: target as given, path2: name */
    J_RENAME,     /* path: old name, path2: new name */
    J_MKDIR,      /* path */
    J_UNLINK,     /* path */
    J_RMDIR,      /* path */
    J_END         /* a process ended by itself: data_n 0, offset = its pid */
};

struct journal_head {
    uint32_t magic, op, path_n, path2_n, data_n, pad;
    int64_t offset;
};

#define JOURNAL_MAGIC 0x6a6f7572u

#endif
