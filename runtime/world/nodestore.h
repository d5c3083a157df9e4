/* nodestore.h - read-only bytes that stay on a node when a job ends, so that the next one maps them instead of reading a shared
 * file system.
 *
 *     PATH/cairn-UID/       ours alone (0700); PATH is the user's choice: node-local disk (then the page cache holds it) or /dev/shm
 *         KEY               an object: 32 hex digits that say what is in it (base, table, type), never how it came here
 *         KEY.making        one that is being made, or that a killed maker left; a second name of KEY where it was killed behind link(2)
 *
 * An object (all numbers little-endian as this machine has them; objects never travel):
 *     0     magic "cairn node store 1\n", zero-padded to 32        32  key (16)      48  payload bytes u64     56  block bytes u64
 *     64    offset of the payload u64      72  digest of the table of block digests (16)       88  digest of bytes 0..87 (16)
 *     4096  16 bytes a block of the payload (XXH3-128), padded to a page
 *     then  the payload
 * It is checked over all its bytes (threads share the blocks) before anybody gets to see it; of one that is read block by block, header and table
 * are, and each block as it is read. Nothing is fsynced: what a power cut tears does not pass the check and is made again. posix_fallocate reserves
 * every page first, so that writing through a mapping cannot meet SIGBUS.
 *
 * References are flock(2) locks, which die with their holder however it dies: a reader holds a shared lock on its object, a maker
 * an exclusive one on KEY.making; only what can be locked exclusively is removed. Whoever meets a maker waits until it is done or
 * dead. Age is the time of last use (mtime). Before an object is made, expired ones go, then the least recently used ones until it
 * fits under the cap; what is in use stays.
 *
 * Refuses: a folder that is a link, another user's or open to others; an object that is no regular file of ours, has another form,
 * size or key, or a wrong digest (it is removed). Every refusal is a status with a sentence: the caller goes on without a store and
 * says so once. Knows nothing of models: keys and bytes are the caller's. Memory: a mapping lives until its object is dropped.
 */
#ifndef CAIRN_WORLD_NODESTORE_H
#define CAIRN_WORLD_NODESTORE_H

#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"

struct cairn_nodestore_opts {
    const char *path;
    double max_bytes;  /* of all objects together; 0: any number */
    double ttl_s;      /* without use; 0: for ever */
    double patience_s; /* waiting for another maker; 0: 600 */
};

struct cairn_nodestore;

/* Makes the folder if it is not there. */
enum cairn_status cairn_nodestore_open(struct cairn_nodestore **out, const struct cairn_nodestore_opts *o, struct cairn_error *err);
void cairn_nodestore_close(struct cairn_nodestore *s); /* its objects live on; NULL is fine */

#define CAIRN_NODE_BLOCK ((size_t)4 << 20)

struct cairn_nodeobject {
    /* The payload: of a fresh one to be filled (shared with the file), of one that was there a private copy-on-write view; NULL of one to be read
     * block by block. */
    char *p;
    size_t bytes;
    int fresh; /* 1: not there yet; fill it, then cairn_nodeobject_keep */
    /* private */
    int fd;
    size_t at;
    char *map, *path, *final;
    struct cairn_digest key, *table;
};

/* The object of that key and size, or the making of it. CAIRN_ENOSPACE: it does not fit under the cap, or on the device.
 * CAIRN_EAGAIN: a stop was requested while another made it, or that one was not done in time. */
enum cairn_status cairn_nodestore_take(struct cairn_nodestore *s, struct cairn_digest key, size_t bytes, struct cairn_nodeobject **out,
                                       struct cairn_error *err);
/* The same for who copies it elsewhere: one that is there is not mapped, and of its payload nothing is checked yet. */
enum cairn_status cairn_nodestore_take_unread(struct cairn_nodestore *s, struct cairn_digest key, size_t bytes, struct cairn_nodeobject **out,
                                              struct cairn_error *err);
/* Bytes [at, at + n) of such a one to h_dst, checked; at is a multiple of CAIRN_NODE_BLOCK, and n one, or the rest. Threads may share the object.
 * CAIRN_EDATA: damaged; then call cairn_nodeobject_refuse. */
enum cairn_status cairn_nodeobject_read(const struct cairn_nodeobject *o, size_t at, size_t n, void *h_dst, struct cairn_error *err);
/* Takes its name away, unless somebody else holds it: the next one makes it anew. */
void cairn_nodeobject_refuse(struct cairn_nodeobject *o);
/* A fresh one is complete: digests it, gives it its name. From now on p must not be written; call cairn_nodeobject_view for memory
 * that may. */
enum cairn_status cairn_nodeobject_keep(struct cairn_nodeobject *o, struct cairn_error *err);
/* Turns the mapping of a kept object into a private one at the same address: writes stay with the process. */
enum cairn_status cairn_nodeobject_view(struct cairn_nodeobject *o, struct cairn_error *err);
/* Unmaps and lets go; a fresh one that was not kept goes away. NULL is fine. */
void cairn_nodeobject_drop(struct cairn_nodeobject *o);

/* What lies in a store, for people: fn for each object, oldest use first. Neither checks nor changes anything; a missing folder is
 * empty. */
struct cairn_nodestore_entry {
    const char *path;
    int64_t bytes;
    double age_s; /* since the last use */
    int in_use;   /* 1: somebody holds it */
    int made;     /* 0: in the making, or left by a killed maker */
    int expired;  /* older than ttl */
};
enum cairn_status cairn_nodestore_list(const struct cairn_nodestore_opts *o,
                                       enum cairn_status (*fn)(void *arg, const struct cairn_nodestore_entry *e, struct cairn_error *err), void *arg,
                                       struct cairn_error *err);
/* Removes what is expired, beyond the cap (oldest first) or left by killed makers, unless somebody holds it; fn (or NULL) hears of
 * each. dry: only tells. */
enum cairn_status cairn_nodestore_sweep(const struct cairn_nodestore_opts *o, int dry,
                                        enum cairn_status (*fn)(void *arg, const struct cairn_nodestore_entry *e, struct cairn_error *err), void *arg,
                                        struct cairn_error *err);

#endif
