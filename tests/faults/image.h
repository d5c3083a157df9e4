/* image.h - what a disk may hold after the power went: the changes that a program made, as the shim recorded them (journal.h), and for each
 * prefix of them images of the disk.
 *
 * Whatever an fsync had made durable is in an image; each other change is there or not: all of them not; all names but no bytes; all bytes
 * but no names; or drawn. (Stricter than any one file system: it may keep a later change and lose an earlier one.)
 */
#ifndef CAIRN_TESTS_FAULTS_IMAGE_H
#define CAIRN_TESTS_FAULTS_IMAGE_H

#include "tests/faults/journal.h"
#include "tests/faults/lab.h"

enum variant { SYNCED_ONLY, NAMES_ONLY, BYTES_ONLY, DRAWN, DRAWN_AGAIN, VARIANTS };
extern const char *const variant_name[VARIANTS];

struct change {
    enum journal_op op;
    char *path, *path2;
    unsigned char *data;
    size_t n;
    int64_t offset;
    int inode;   /* that is written, cut, synced, linked or made */
    long synced; /* index of the record that made it durable; -1: none */
};

/* A name in an image or in the volatile tree. */
struct name {
    char *path;
    int inode; /* DIRECTORY: -1 */
    char *target; /* of a symbolic link */
};

struct tree {
    struct name *name;
    int n;
};

#define DIRECTORY (-1)
#define SYMLINK (-2)

struct record {
    char *base;             /* the run before; NULL: nothing. Borrowed */
    struct change *change;
    long n;
    char **content;         /* (inodes) path in base whose bytes an inode begins with; NULL: empty */
    int inodes;
    struct tree before;     /* base */
};

/* Reads a journal of changes that began with base. Dies if it is torn. */
void record_read(struct record *c, char *base, const char *journal);
void record_free(struct record *c);

/* Builds an image of the first `prefix` changes in dir, which must not exist. */
void image_make(const struct record *c, long prefix, enum variant v, uint64_t seed, const char *dir);

#endif
