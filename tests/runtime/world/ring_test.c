/* ring_test.c - generations in shared memory: a million switches under the eyes of readers, chunks in any order, processes killed at each
 * step, memory that is not what it should be.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "world/ring.h"

#define CHUNKS 5
#define WORDS  64 /* of a chunk */

#define OK(call)                                                                                                                   \
    do {                                                                                                                           \
        enum cairn_status st_ = (call);                                                                                            \
        if (st_ != CAIRN_OK)                                                                                                       \
            fail_msg("%s: %s", cairn_status_name(st_), err.text);                                                                  \
    } while (0)

static const struct cairn_digest layout = {1, 2};
static struct cairn_error err;
static struct cairn_ring *volatile made; /* the newest: a forked child, which has no use for it, still knows it */

static struct cairn_ring *make(int slots)
{
    const struct cairn_ring_opts o = {.slots = slots, .chunks = CHUNKS, .slot_bytes = CHUNKS * WORDS * 8, .layout = layout};
    struct cairn_ring *r = NULL;

    OK(cairn_ring_create(&r, &o, &err));
    return made = r;
}

/* What every word of a chunk is in a generation. */
static uint64_t word(uint64_t generation, int chunk)
{
    return generation * 1000003 + (uint64_t)chunk;
}

static void write_chunk(struct cairn_ring *r, int slot, uint64_t generation, int chunk)
{
    volatile uint64_t *p = (uint64_t *)cairn_ring_data(r, slot) + chunk * WORDS;

    for (int i = 0; i < WORDS; i++)
        p[i] = word(generation, chunk);
}

static struct cairn_digest digest_of(uint64_t generation, int chunk)
{
    return (struct cairn_digest){word(generation, chunk), ~0ull - (uint64_t)chunk};
}

static int wrong_words(const struct cairn_ring_view *v)
{
    const volatile uint64_t *p = v->data;
    int wrong = 0;

    for (int c = 0; c < CHUNKS; c++)
        for (int i = 0; i < WORDS; i++)
            wrong += p[c * WORDS + i] != word(v->generation, c);
    return wrong + (v->tag.step != (int64_t)v->generation);
}

static enum cairn_status publish(struct cairn_ring *r, uint64_t generation)
{
    struct cairn_ring_tag tag = {.step = (int64_t)generation};
    enum cairn_status st;
    int slot;

    TRY(cairn_ring_begin(r, generation, 20, &slot, &err));
    for (int c = 0; c < CHUNKS; c++) {
        write_chunk(r, slot, generation, c);
        TRY(cairn_ring_land(r, slot, generation, c, digest_of(generation, c), &err));
    }
    TRY(cairn_ring_commit(r, slot, generation, &tag, &err));
out:
    return st;
}

/* The current generation is this one, whole. */
static void serves(struct cairn_ring *r, uint64_t generation)
{
    struct cairn_ring_view v;

    OK(cairn_ring_pin(r, &v, &err));
    assert_true(v.generation == generation);
    assert_int_equal(wrong_words(&v), 0);
    cairn_ring_unpin(r, v.slot);
}

static struct cairn_ring *attach(const struct cairn_ring_place *place)
{
    struct cairn_ring *r = NULL;

    OK(cairn_ring_attach(&r, place, layout, &err));
    return r;
}

/* ---- the switch --------------------------------------------------------------------------------------------------------------- */

#define SWITCHES 1000000
#define READERS  2

/* Until the last generation; the number of torn reads, at most 250, as exit status. */
static void read_on(const struct cairn_ring_place *place, volatile uint64_t *reads)
{
    struct cairn_ring *r = NULL;
    struct cairn_ring_view v = {0};
    int torn = 0;
    uint64_t last = 0;

    if (cairn_ring_attach(&r, place, layout, &err) != CAIRN_OK)
        _exit(251);
    while (v.generation < SWITCHES) {
        if (cairn_ring_pin(r, &v, &err) != CAIRN_OK)
            continue; /* nothing there yet */
        torn += wrong_words(&v) > 0 || v.generation < last;
        last = v.generation;
        ++*reads;
        cairn_ring_unpin(r, v.slot);
    }
    cairn_ring_close(r);
    _exit(torn > 250 ? 250 : torn);
}

static void a_million_switches(void **state)
{
    struct cairn_ring *r = make(READERS + 2);
    struct cairn_ring_place place;
    volatile uint64_t *reads = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[READERS];
    int status;

    (void)state;
    assert_true(reads != MAP_FAILED);
    cairn_ring_place(r, &place);
    for (int i = 0; i < READERS; i++)
        if (!(pid[i] = fork()))
            read_on(&place, reads + 8 * i);
    for (uint64_t g = 1; g <= SWITCHES; g++)
        OK(publish(r, g));
    for (int i = 0; i < READERS; i++) {
        waitpid(pid[i], &status, 0);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        assert_true(reads[8 * i] > 1000);
    }
    print_message("# %d switches, %llu and %llu reads\n", SWITCHES, (unsigned long long)reads[0], (unsigned long long)reads[8]);
    munmap((void *)reads, 4096);
    cairn_ring_close(r);
}

static void chunks_in_any_order(void **state)
{
    static const int order[][CHUNKS] = {{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}};
    struct cairn_ring *r = make(2);
    struct cairn_ring_tag tag = {.step = 0};
    struct cairn_digest first = {0, 0};
    struct cairn_ring_view v;
    int slot;

    (void)state;
    for (uint64_t g = 1; g <= 3; g++) {
        tag.step = (int64_t)g;
        OK(cairn_ring_begin(r, g, 1, &slot, &err));
        for (int i = 0; i < CHUNKS; i++) {
            int c = order[g - 1][i];

            write_chunk(r, slot, g, c);
            OK(cairn_ring_land(r, slot, g, c, (struct cairn_digest){(uint64_t)c, ~0ull}, &err));
        }
        OK(cairn_ring_commit(r, slot, g, &tag, &err));
        if (g == 1)
            first = tag.weights;
        assert_true(cairn_digest_equal(tag.weights, first));
        serves(r, g);
    }
    /* chunk 3 of 5 is lost: not committed, the old one serves; then a good one */
    OK(cairn_ring_begin(r, 4, 1, &slot, &err));
    for (int c = 0; c < CHUNKS; c++)
        if (c != 3) {
            write_chunk(r, slot, 4, c);
            OK(cairn_ring_land(r, slot, 4, c, digest_of(4, c), &err));
        }
    assert_int_equal(cairn_ring_commit(r, slot, 4, &tag, &err), CAIRN_EDATA);
    assert_string_equal(err.text, "generation 4: chunk 3 of 5 is missing");
    serves(r, 3);
    cairn_ring_abandon(r, slot);
    serves(r, 3);
    OK(publish(r, 4));
    serves(r, 4);
    /* one that comes too late, of a generation that was given up */
    assert_int_equal(cairn_ring_land(r, slot, 4, 3, digest_of(4, 3), &err), CAIRN_EAGAIN);
    assert_int_equal(cairn_ring_begin(r, 4, 1, &slot, &err), CAIRN_EBUG);
    /* a reader that follows an open slot sees just what has landed */
    OK(cairn_ring_begin(r, 5, 1, &slot, &err));
    OK(cairn_ring_land(r, slot, 5, 2, digest_of(5, 2), &err));
    {
        struct cairn_digest d;
        uint64_t g;
        int open;

        assert_int_equal(cairn_ring_open_slot(r, &g, &open), 1);
        assert_true(g == 5 && open == slot);
        assert_int_equal(cairn_ring_landed(r, slot, 5, 2, &d), 1);
        assert_true(cairn_digest_equal(d, digest_of(5, 2)));
        assert_int_equal(cairn_ring_landed(r, slot, 5, 1, &d), 0);
    }
    cairn_ring_abandon(r, slot);
    OK(cairn_ring_pin(r, &v, &err));
    cairn_ring_unpin(r, v.slot);
    cairn_ring_close(r);
}

/* ---- kills ------------------------------------------------------------------------------------------------------------------------ */

/* A sender that kills itself at step `at` of publishing `generation`: after begin, in each chunk, after each, before and after commit. */
static void send_and_die(const struct cairn_ring_place *place, uint64_t generation, int at)
{
    struct cairn_ring *r = NULL;
    struct cairn_ring_tag tag = {.step = (int64_t)generation};
    int slot, step = 0;

#define STEP                                                                                                                       \
    if (step++ == at)                                                                                                              \
    raise(SIGKILL)
    if (cairn_ring_attach(&r, place, layout, &err) != CAIRN_OK)
        _exit(1);
    STEP;
    if (cairn_ring_begin(r, generation, 5, &slot, &err) != CAIRN_OK)
        _exit(2);
    STEP;
    for (int c = 0; c < CHUNKS; c++) {
        ((uint64_t *)cairn_ring_data(r, slot))[c * WORDS] = word(generation, c);
        STEP;
        write_chunk(r, slot, generation, c);
        STEP;
        if (cairn_ring_land(r, slot, generation, c, digest_of(generation, c), &err) != CAIRN_OK)
            _exit(3);
    }
    STEP;
    if (cairn_ring_commit(r, slot, generation, &tag, &err) != CAIRN_OK)
        _exit(4);
    STEP;
    _exit(0);
}

static int run_sender(const struct cairn_ring_place *place, uint64_t generation, int at)
{
    pid_t pid = fork();
    int status;

    if (!pid)
        send_and_die(place, generation, at);
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void sender_killed(void **state)
{
    const int steps = 2 + 2 * CHUNKS + 2;
    struct cairn_ring *r = make(2);
    struct cairn_ring_place place;
    uint64_t good;

    (void)state;
    cairn_ring_place(r, &place);
    assert_int_equal(run_sender(&place, 1, -1), 0);
    good = 1;
    for (int at = 0; at < steps; at++) {
        assert_int_equal(run_sender(&place, good + 1, at), 128 + SIGKILL);
        good += at == steps - 1; /* it was committed */
        serves(r, good);
        assert_int_equal(run_sender(&place, good + 1, -1), 0); /* the next one works */
        serves(r, ++good);
    }
    cairn_ring_close(r);
}

/* A process that pins and is killed: its claim ends with it. One that lives keeps the slot. */
static void receiver_killed(void **state)
{
    struct cairn_ring *r = make(2), *reader;
    struct cairn_ring_place place;
    struct cairn_ring_view v;
    int ready[2], slot;
    pid_t pid;
    char c;

    (void)state;
    cairn_ring_place(r, &place);
    OK(publish(r, 1));
    assert_int_equal(pipe(ready), 0);
    if (!(pid = fork())) {
        reader = NULL;
        if (cairn_ring_attach(&reader, &place, layout, &err) != CAIRN_OK || cairn_ring_pin(reader, &v, &err) != CAIRN_OK)
            _exit(1);
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    OK(publish(r, 2));
    assert_int_equal(cairn_ring_begin(r, 3, 0.01, &slot, &err), CAIRN_EAGAIN); /* generation 1 is being read */
    assert_non_null(strstr(err.text, "still holds an older one"));
    serves(r, 2);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    OK(publish(r, 3));
    serves(r, 3);
    /* a handle may hold the old and the new one */
    reader = attach(&place);
    OK(cairn_ring_pin(reader, &v, &err));
    OK(publish(r, 4));
    {
        struct cairn_ring_view w;

        OK(cairn_ring_pin(reader, &w, &err));
        assert_true(w.generation == 4 && v.generation == 3 && w.slot != v.slot);
        assert_int_equal(wrong_words(&v) + wrong_words(&w), 0);
        assert_int_equal(cairn_ring_begin(r, 5, 0.01, &slot, &err), CAIRN_EAGAIN);
        cairn_ring_unpin(reader, v.slot);
        OK(publish(r, 5));
        assert_int_equal(wrong_words(&w), 0);
    }
    cairn_ring_close(reader);
    OK(publish(r, 6));
    cairn_ring_leave(r); /* whoever owns what the slots stand for */
    assert_int_equal(cairn_ring_begin(r, 7, 1, &slot, &err), CAIRN_EAGAIN);
    serves(r, 6);
    close(ready[0]);
    close(ready[1]);
    cairn_ring_close(r);
}

static int names_of_ours(void)
{
    DIR *d = opendir("/dev/shm");
    int n = 0;

    for (struct dirent *e; d && (e = readdir(d));)
        n += strstr(e->d_name, "ring") != NULL;
    if (d)
        closedir(d);
    return n;
}

/* The owner is killed with everything live, a hundred times: no name is left; who had it mapped reads on, nobody new comes in. */
static void owner_killed(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        struct cairn_ring_place place;
        struct cairn_ring *reader;
        int there[2], names = names_of_ours();
        pid_t pid;

        assert_int_equal(pipe(there), 0);
        if (!(pid = fork())) {
            struct cairn_ring *r = NULL;
            const struct cairn_ring_opts o = {.chunks = CHUNKS, .slot_bytes = CHUNKS * WORDS * 8, .layout = layout};

            if (cairn_ring_create(&r, &o, &err) != CAIRN_OK || publish(r, 7) != CAIRN_OK)
                _exit(1);
            cairn_ring_place(r, &place);
            if (write(there[1], &place, sizeof place) != sizeof place)
                _exit(1);
            for (uint64_t g = 8;; g++)
                if (publish(r, g) != CAIRN_OK)
                    _exit(1);
        }
        assert_int_equal(read(there[0], &place, sizeof place), sizeof place);
        reader = attach(&place);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        serves(reader, cairn_ring_generation(reader));
        assert_true(cairn_ring_generation(reader) >= 7);
        cairn_ring_close(reader);
        assert_int_equal(cairn_ring_attach(&reader, &place, layout, &err), CAIRN_EDEVICE);
        assert_int_equal(names_of_ours(), names);
        close(there[0]);
        close(there[1]);
    }
}

/* ---- what is not a ring --------------------------------------------------------------------------------------------------------------- */

static void refused(void **state)
{
    struct cairn_ring *r = make(2), *other = NULL;
    struct cairn_ring_place place, wrong;
    const struct cairn_ring_opts huge = {.chunks = 1, .slot_bytes = (size_t)1 << 50, .layout = layout};
    struct cairn_ring_view v;
    size_t bytes;
    FILE *f = tmpfile();
    void *map;

    (void)state;
    cairn_ring_place(r, &place);
    assert_int_equal(cairn_ring_pin(r, &v, &err), CAIRN_ENOINPUT);
    assert_int_equal(cairn_ring_attach(&other, &place, (struct cairn_digest){1, 3}, &err), CAIRN_EDATA);
    assert_non_null(strstr(err.text, "the two sides have other tables"));
    wrong = place;
    wrong.bytes += 4096;
    assert_int_equal(cairn_ring_attach(&other, &wrong, layout, &err), CAIRN_EDATA);
    wrong = place;
    wrong.fd = 1000;
    assert_int_equal(cairn_ring_attach(&other, &wrong, layout, &err), CAIRN_EDEVICE);
    assert_non_null(f); /* a file that may be cut short under its readers */
    assert_int_equal(ftruncate(fileno(f), (off_t)place.bytes), 0);
    wrong = (struct cairn_ring_place){(int32_t)getpid(), fileno(f), place.bytes};
    assert_int_equal(cairn_ring_attach(&other, &wrong, layout, &err), CAIRN_EDATA);
    fclose(f);
    assert_int_not_equal(ftruncate(place.fd, 4096), 0); /* ours may not */
    map = mmap(NULL, place.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, place.fd, 0);
    assert_true(map != MAP_FAILED);
    for (size_t at = 0; at < 40; at += 4) { /* magic, version, form, sizes */
        ((unsigned char *)map)[at] ^= 64;
        assert_int_equal(cairn_ring_attach(&other, &place, layout, &err), CAIRN_EDATA);
        ((unsigned char *)map)[at] ^= 64;
    }
    munmap(map, place.bytes);
    other = attach(&place);
    cairn_ring_close(other);
    assert_non_null(cairn_ring_memory(r, &bytes));
    assert_int_equal(bytes, 2 * CHUNKS * WORDS * 8);
    assert_int_equal(cairn_ring_create(&other, &huge, &err), CAIRN_ENOSPACE);
    cairn_ring_close(r);
    cairn_ring_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_million_switches), cmocka_unit_test(chunks_in_any_order), cmocka_unit_test(sender_killed),
        cmocka_unit_test(receiver_killed),    cmocka_unit_test(owner_killed),        cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
