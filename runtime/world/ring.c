/* ring.c - the shared memory of ring.h: layout, claims, the switch.
 *
 *     struct header | records: slots x chunks | payload: slots x slot_bytes, on a page
 *
 * Claims and the switch are sequentially consistent: a reader writes its claim and then looks at `current` again, a writer marks the slot
 * and then looks at the claims; one of the two sees the other. Everything else is ordered by them.
 */
#include "world/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/str.h"
#include "world/shmname.h"

#define MAGIC  "cairnrng"
#define ABI    1
#define PAGE   ((size_t)2 << 20) /* the payload begins on a large one */
#define WAIT_S 0.0002

struct reader {
    _Atomic int64_t pid;   /* 0: free */
    _Atomic int64_t start; /* its start time; 0 until it is known */
    _Atomic uint64_t claim; /* a bit for each slot that it holds */
    char pad[40];
};
_Static_assert(sizeof(struct reader) == 64, "readers do not share cache lines");

struct slot {
    _Atomic int64_t writer, writer_start; /* who fills it; 0: nobody */
    struct cairn_ring_tag tag;
    unsigned char room[CAIRN_RING_ROOM];
};

struct record {
    _Atomic uint64_t landed; /* generation of which the chunk is here */
    _Atomic uint64_t lo, hi;
};

struct header {
    char magic[8];
    uint32_t abi, slots, chunks, pad;
    uint64_t slot_bytes, bytes;
    struct cairn_digest layout;
    struct cairn_digest self; /* of the bytes before it */
    _Alignas(64) _Atomic uint64_t current; /* generation << 8 | slot */
    _Alignas(64) _Atomic uint64_t open;    /* the same of a slot that is being filled; 0: none */
    atomic_int left;                       /* 1: nothing is begun any more */
    _Alignas(64) struct reader reader[CAIRN_RING_READERS];
    struct slot slot[CAIRN_RING_SLOTS];
};

struct cairn_ring {
    struct header *h;
    struct record *record;
    char *data;
    size_t bytes;
    int fd;
    int entry;     /* in h->reader; -1: none yet */
    uint64_t held; /* slots, as in the claim */
    int64_t pid, start; /* of this process */
};

/* ---- memory ------------------------------------------------------------------------------------------------------------- */

/* Bytes of it all, and where the payload begins; 0: it overflows. */
static size_t layout_of(uint64_t slots, uint64_t chunks, uint64_t slot_bytes, size_t *data)
{
    size_t records, payload, total;

    if (!cairn_mul_size(slots * chunks, sizeof(struct record), &records) || !cairn_add_size(sizeof(struct header), records, &total) ||
        !cairn_add_size(total, PAGE - 1, &total) || !cairn_mul_size((size_t)slots, (size_t)slot_bytes, &payload))
        return 0;
    if (!payload) {
        *data = total - (PAGE - 1);
        return *data;
    }
    *data = total / PAGE * PAGE;
    return cairn_add_size(*data, payload, &total) && total <= SIZE_MAX / 2 ? total : 0;
}

/* Takes over fd. */
static enum cairn_status map(struct cairn_ring **out, int fd, size_t bytes, struct cairn_error *err)
{
    struct cairn_ring *r = calloc(1, sizeof *r);
    void *p = r ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (p == MAP_FAILED) {
        enum cairn_status st = r ? cairn_fail_errno(err, errno, "map %zu bytes of shared memory", bytes) : CAIRN_NOMEM(err);

        free(r);
        close(fd);
        return st;
    }
    *r = (struct cairn_ring){.h = p, .bytes = bytes, .fd = fd, .entry = -1, .pid = getpid(), .start = cairn_shm_start_time(getpid())};
    *out = r;
    return CAIRN_OK;
}

/* Finds the parts behind the header, when that is known to be good. */
static void find_parts(struct cairn_ring *r)
{
    size_t data = 0;

    layout_of(r->h->slots, r->h->chunks, r->h->slot_bytes, &data);
    r->record = (struct record *)(r->h + 1);
    r->data = r->h->slot_bytes ? (char *)r->h + data : NULL;
}

/* Bytes that the machine can give without pushing others out; SIZE_MAX if it does not say. */
static size_t memory_there(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib;
    size_t bytes = SIZE_MAX;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            bytes = (size_t)kib * 1024;
    if (f)
        fclose(f);
    return bytes;
}

enum cairn_status cairn_ring_create(struct cairn_ring **out, const struct cairn_ring_opts *o, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int slots = o->slots ? o->slots : 2, fd = -1, e;
    size_t data, bytes = layout_of((uint64_t)slots, (uint64_t)o->chunks, o->slot_bytes, &data);
    struct cairn_ring *r = NULL;

    if (slots < 2 || slots > CAIRN_RING_SLOTS || o->chunks < 0 || !bytes)
        return CAIRN_BUG(err, "a ring of such a form");
    if (bytes > memory_there())
        return cairn_fail(err, CAIRN_ENOSPACE, "%zu bytes of shared memory are more than this machine has free", bytes);
    fd = memfd_create("cairn-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return cairn_fail_errno(err, errno, "make shared memory");
    /* allocated, not only sized, and never smaller: what does not fit is found here and not by SIGBUS */
    e = ftruncate(fd, (off_t)bytes) ? errno : posix_fallocate(fd, 0, (off_t)bytes);
    if (e || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) {
        e = e ? e : errno;
        close(fd);
        return cairn_fail_errno(err, e == ENOMEM ? ENOSPC : e, "allocate %zu bytes of shared memory", bytes);
    }
    TRY(map(&r, fd, bytes, err));
    *r->h = (struct header){.magic = MAGIC,
                            .abi = ABI,
                            .slots = (uint32_t)slots,
                            .chunks = (uint32_t)o->chunks,
                            .slot_bytes = o->slot_bytes,
                            .bytes = bytes,
                            .layout = o->layout};
    r->h->self = cairn_digest_bytes(r->h, offsetof(struct header, self));
    find_parts(r);
    *out = r;
out:
    return st;
}

void cairn_ring_place(const struct cairn_ring *r, struct cairn_ring_place *place)
{
    *place = (struct cairn_ring_place){(int32_t)getpid(), r->fd, r->bytes};
}

/* What does not look as cairn_ring_create leaves it is not touched. */
static enum cairn_status check(const struct cairn_ring *r, struct cairn_digest layout, const char *path, struct cairn_error *err)
{
    const struct header *h = r->h;
    size_t data;

    if (memcmp(h->magic, MAGIC, sizeof h->magic) || h->abi != ABI)
        return cairn_fail(err, CAIRN_EDATA, "%s is no ring of this build", path);
    if (!cairn_digest_equal(h->self, cairn_digest_bytes(h, offsetof(struct header, self))))
        return cairn_fail(err, CAIRN_EDATA, "%s: the head of the ring is damaged", path);
    if (h->slots < 2 || h->slots > CAIRN_RING_SLOTS || h->chunks > INT32_MAX || h->bytes != r->bytes ||
        layout_of(h->slots, h->chunks, h->slot_bytes, &data) != r->bytes)
        return cairn_fail(err, CAIRN_EDATA, "%s: %u slots of %llu bytes and %u chunks do not make its %zu bytes", path, h->slots,
                          (unsigned long long)h->slot_bytes, h->chunks, r->bytes);
    if (!cairn_digest_equal(h->layout, layout)) {
        char have[33], want[33];

        cairn_digest_hex(h->layout, have);
        cairn_digest_hex(layout, want);
        return cairn_fail(err, CAIRN_EDATA, "%s holds plan %s, this process has %s: the two sides have other tables", path, have, want);
    }
    return CAIRN_OK;
}

enum cairn_status cairn_ring_attach(struct cairn_ring **out, const struct cairn_ring_place *place, struct cairn_digest layout,
                                    struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_ring *r = NULL;
    struct stat sb;
    char path[64];
    int fd, seals;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)place->pid, (int)place->fd);
    fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return cairn_fail(err, CAIRN_EDEVICE, "shared memory %s cannot be reached: %s", path, strerror(errno));
    seals = fstat(fd, &sb) ? -1 : fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !S_ISREG(sb.st_mode) || sb.st_uid != geteuid() || !(seals & F_SEAL_SHRINK) || (uint64_t)sb.st_size != place->bytes ||
        place->bytes < sizeof(struct header)) {
        close(fd);
        return cairn_fail(err, CAIRN_EDATA, "%s is not the shared memory that was told of: another user's, another size or kind", path);
    }
    TRY(map(&r, fd, (size_t)place->bytes, err));
    TRY(check(r, layout, path, err));
    find_parts(r);
    *out = r;
    r = NULL;
out:
    cairn_ring_close(r);
    return st;
}

void cairn_ring_leave(struct cairn_ring *r)
{
    atomic_store(&r->h->left, 1);
}

int cairn_ring_left(const struct cairn_ring *r)
{
    return atomic_load(&r->h->left);
}

void cairn_ring_close(struct cairn_ring *r)
{
    if (!r)
        return;
    if (r->entry >= 0) {
        atomic_store(&r->h->reader[r->entry].claim, 0);
        atomic_store(&r->h->reader[r->entry].start, 0);
        atomic_store(&r->h->reader[r->entry].pid, 0);
    }
    munmap(r->h, r->bytes);
    close(r->fd);
    free(r);
}

int cairn_ring_slots(const struct cairn_ring *r)
{
    return (int)r->h->slots;
}

size_t cairn_ring_slot_bytes(const struct cairn_ring *r)
{
    return (size_t)r->h->slot_bytes;
}

void *cairn_ring_data(const struct cairn_ring *r, int slot)
{
    return r->data ? r->data + (size_t)slot * (size_t)r->h->slot_bytes : NULL;
}

void *cairn_ring_memory(const struct cairn_ring *r, size_t *bytes)
{
    *bytes = r->data ? (size_t)r->h->slots * (size_t)r->h->slot_bytes : 0;
    return r->data;
}

void *cairn_ring_room(const struct cairn_ring *r, int slot)
{
    return r->h->slot[slot].room;
}

uint64_t cairn_ring_generation(const struct cairn_ring *r)
{
    return atomic_load(&r->h->current) >> 8;
}

int cairn_ring_open_slot(const struct cairn_ring *r, uint64_t *generation, int *slot)
{
    uint64_t w = atomic_load(&r->h->open);

    *generation = w >> 8;
    *slot = (int)(w & 255);
    return w != 0;
}

/* ---- who lives ------------------------------------------------------------------------------------------------------------ */

/* 0: the process is certainly gone. A start time of 0 is one that was not written yet. */
static int lives(int64_t pid, int64_t start)
{
    int64_t now;

    if (kill((pid_t)pid, 0) && errno == ESRCH)
        return 0;
    now = cairn_shm_start_time((pid_t)pid);
    return start <= 0 || now < 0 || now == start;
}

/* A living process that claims the slot, or 0. Claims of the dead count for nothing and stay: the entry may just be becoming another's. */
static int64_t claimed_by(struct cairn_ring *r, int slot)
{
    for (int i = 0; i < CAIRN_RING_READERS; i++) {
        struct reader *e = &r->h->reader[i];
        int64_t pid = atomic_load(&e->pid);

        if (!pid || !(atomic_load(&e->claim) >> slot & 1))
            continue;
        if (lives(pid, atomic_load(&e->start)))
            return pid;
    }
    return 0;
}

/* An entry for this handle. */
static enum cairn_status enter(struct cairn_ring *r, struct cairn_error *err)
{
    if (r->entry >= 0)
        return CAIRN_OK;
    for (int round = 0; round < 2; round++) /* free ones first, then those of the dead */
        for (int i = 0; i < CAIRN_RING_READERS; i++) {
            struct reader *e = &r->h->reader[i];
            int64_t pid = atomic_load(&e->pid);

            if (pid && (!round || lives(pid, atomic_load(&e->start))))
                continue;
            if (!atomic_compare_exchange_strong(&e->pid, &pid, r->pid))
                continue;
            atomic_store(&e->start, r->start);
            atomic_store(&e->claim, 0);
            r->entry = i;
            return CAIRN_OK;
        }
    return cairn_fail(err, CAIRN_EBUG, "a ring has %d readers already", CAIRN_RING_READERS);
}

/* ---- writer ----------------------------------------------------------------------------------------------------------------- */

static struct record *record_of(const struct cairn_ring *r, int slot, int chunk)
{
    return &r->record[(size_t)slot * r->h->chunks + (size_t)chunk];
}

static void shut(struct cairn_ring *r, int slot)
{
    struct slot *s = &r->h->slot[slot];

    atomic_store(&r->h->open, 0);
    atomic_store(&s->writer, 0);
}

/* A slot nobody uses, marked as being written; -1: every one is held, *who by. */
static int slot_take(struct cairn_ring *r, int64_t *who)
{
    uint64_t current = atomic_load(&r->h->current);

    for (int i = 0; i < (int)r->h->slots; i++) {
        struct slot *s = &r->h->slot[i];
        int64_t writer = atomic_load(&s->writer);

        if (current && i == (int)(current & 255))
            continue;
        if (writer && writer != r->pid && lives(writer, atomic_load(&s->writer_start))) {
            *who = writer;
            continue;
        }
        atomic_store(&s->writer_start, r->start);
        atomic_store(&s->writer, r->pid);
        if (!(*who = claimed_by(r, i)))
            return i;
        shut(r, i);
    }
    return -1;
}

enum cairn_status cairn_ring_begin(struct cairn_ring *r, uint64_t generation, double deadline_s, int *slot, struct cairn_error *err)
{
    double end = cairn_now_s() + deadline_s;
    int64_t who = 0;
    int i;

    if (generation <= cairn_ring_generation(r) || generation >> 56)
        return cairn_fail(err, CAIRN_EBUG, "generation %llu after %llu", (unsigned long long)generation,
                          (unsigned long long)cairn_ring_generation(r));
    if (atomic_load(&r->h->left))
        return cairn_fail(err, CAIRN_EAGAIN, "generation %llu: the sampler that has the memory has left", (unsigned long long)generation);
    while ((i = slot_take(r, &who)) < 0) {
        if (cairn_now_s() >= end)
            return cairn_fail(err, CAIRN_EAGAIN, "generation %llu finds no room: process %lld still holds an older one after %.1f s",
                              (unsigned long long)generation, (long long)who, deadline_s);
        cairn_sleep_s(WAIT_S);
    }
    for (int c = 0; c < (int)r->h->chunks; c++)
        atomic_store_explicit(&record_of(r, i, c)->landed, 0, memory_order_relaxed);
    atomic_store(&r->h->open, generation << 8 | (uint64_t)i);
    *slot = i;
    return CAIRN_OK;
}

enum cairn_status cairn_ring_land(struct cairn_ring *r, int slot, uint64_t generation, int chunk, struct cairn_digest digest,
                                  struct cairn_error *err)
{
    struct record *k;

    if (slot < 0 || slot >= (int)r->h->slots || chunk < 0 || chunk >= (int)r->h->chunks)
        return CAIRN_BUG(err, "a chunk that the plan has not");
    if (atomic_load(&r->h->open) != (generation << 8 | (uint64_t)slot))
        return cairn_fail(err, CAIRN_EAGAIN, "chunk %d of generation %llu comes too late: its slot is not open", chunk,
                          (unsigned long long)generation);
    k = record_of(r, slot, chunk);
    atomic_store(&k->landed, 0); /* who looks meanwhile sees nothing */
    atomic_store(&k->lo, digest.lo);
    atomic_store(&k->hi, digest.hi);
    atomic_store(&k->landed, generation);
    return CAIRN_OK;
}

int cairn_ring_landed(const struct cairn_ring *r, int slot, uint64_t generation, int chunk, struct cairn_digest *digest)
{
    struct record *k = record_of(r, slot, chunk);

    if (atomic_load(&k->landed) != generation)
        return 0;
    digest->lo = atomic_load(&k->lo);
    digest->hi = atomic_load(&k->hi);
    return 1;
}

enum cairn_status cairn_ring_commit(struct cairn_ring *r, int slot, uint64_t generation, struct cairn_ring_tag *tag, struct cairn_error *err)
{
    struct slot *s = &r->h->slot[slot];
    struct cairn_digest sum = {0, 0}, d;

    if (atomic_load(&r->h->open) != (generation << 8 | (uint64_t)slot))
        return CAIRN_BUG(err, "a commit of a slot that is not open");
    for (int c = 0; c < (int)r->h->chunks; c++) {
        if (!cairn_ring_landed(r, slot, generation, c, &d))
            return cairn_fail(err, CAIRN_EDATA, "generation %llu: chunk %d of %u is missing", (unsigned long long)generation, c, r->h->chunks);
        sum = cairn_digest_add(sum, d);
    }
    tag->weights = sum;
    s->tag = *tag;
    atomic_store(&r->h->current, generation << 8 | (uint64_t)slot); /* the switch */
    shut(r, slot);
    return CAIRN_OK;
}

void cairn_ring_abandon(struct cairn_ring *r, int slot)
{
    shut(r, slot);
}

/* ---- reader ------------------------------------------------------------------------------------------------------------------ */

enum cairn_status cairn_ring_pin(struct cairn_ring *r, struct cairn_ring_view *v, struct cairn_error *err)
{
    enum cairn_status st = enter(r, err);
    uint64_t seen, again;

    if (st != CAIRN_OK)
        return st;
    again = atomic_load(&r->h->current);
    do {
        if (!(seen = again))
            return cairn_fail(err, CAIRN_ENOINPUT, "no generation has been handed over yet");
        atomic_store(&r->h->reader[r->entry].claim, r->held | (uint64_t)1 << (seen & 255));
        again = atomic_load(&r->h->current);
    } while (again != seen);
    *v = (struct cairn_ring_view){.slot = (int)(seen & 255), .generation = seen >> 8};
    r->held |= (uint64_t)1 << v->slot;
    v->tag = r->h->slot[v->slot].tag;
    v->data = cairn_ring_data(r, v->slot);
    return CAIRN_OK;
}

void cairn_ring_unpin(struct cairn_ring *r, int slot)
{
    r->held &= ~((uint64_t)1 << slot);
    if (r->entry >= 0)
        atomic_store(&r->h->reader[r->entry].claim, r->held);
}
