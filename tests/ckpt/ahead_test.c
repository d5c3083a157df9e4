/* ahead_test.c - what is read ahead is what is in the file, with threads and without; what is read for nothing has a bound;
 * a file that ends early, and one that is closed while it is being read. */
#include "tests/ckpt/helpers.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>

#include "base/file.h"
#include "ckpt/ahead.h"

enum { SIZE = 24 << 20 };

static unsigned char *bytes; /* of the file */
static int fd;
static char *file;

static int up(void **state)
{
    struct cairn_error e;

    if (scratch_up(state) || !(bytes = malloc(SIZE)))
        return -1;
    noise(bytes, SIZE, 17);
    file = strdup(at("file"));
    fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return fd < 0 || cairn_fd_pwrite_all(fd, bytes, SIZE, 0, file, &e) != CAIRN_OK ? -1 : 0;
}

static int down(void **state)
{
    close(fd);
    free(file);
    free(bytes);
    return scratch_down(state);
}

struct lab {
    struct cairn_crew *crew;
    struct cairn_ahead *ahead;
    int64_t asked, alone; /* bytes asked for; read by the caller himself */
};

static void lab_up(struct lab *l)
{
    memset(l, 0, sizeof *l);
    ok(cairn_crew_create(&l->crew, err));
    ok(cairn_ahead_create(&l->ahead, l->crew, err));
}

static void lab_down(struct lab *l)
{
    cairn_ahead_destroy(l->ahead);
    cairn_crew_destroy(l->crew);
}

/* Takes a piece, as a reader does, and holds it against the file. */
static int take(struct lab *l, int64_t from, int64_t n)
{
    static unsigned char got[2 << 20];
    int here;

    memset(got, 0x55, (size_t)n);
    here = cairn_ahead_take(l->ahead, fd, file, SIZE, from, n, got);
    if (!here) {
        ok(cairn_fd_pread_all(fd, got, (size_t)n, from, file, err));
        l->alone += n;
    }
    assert_memory_equal(got, bytes + from, (size_t)n);
    l->asked += n;
    return here;
}

static int64_t read_bytes(const struct lab *l)
{
    return l->alone + cairn_ahead_bytes(l->ahead);
}

/* Every size that there may be, in order, to the end of the file; nothing is read twice. */
static void in_order(void **state)
{
    static const int64_t size[] = {1, 100, 3600, 28672, 65536, 65537, 118784, 262144, 262145, 500000, 1500000};

    (void)state;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        struct lab l;
        int64_t from = 0, most = size[i] < 1000 ? 3000 * size[i] : SIZE;
        int here = 0;

        lab_up(&l);
        for (int64_t k = 0; from < most; k++, from += size[i])
            here += take(&l, from, size[i] < SIZE - from ? size[i] : SIZE - from);
        assert_true(read_bytes(&l) <= l.asked + (256 << 10));
        if (most == SIZE)
            assert_int_equal(read_bytes(&l), SIZE);
        if (size[i] <= 65536)
            assert_true(here > 0);
        lab_down(&l);
    }
}

/* Pieces of random sizes, with the padding of tensors between them, with jumps now and then. */
static void at_random(int jumps, int64_t most, uint64_t seed)
{
    struct lab l;
    int64_t from = 0;

    lab_up(&l);
    for (int k = 0; k < 2500 && l.asked < 4 * (int64_t)SIZE; k++) {
        int64_t n = (int64_t)(mix(&seed) % (uint64_t)most) + 1, align = n < 65536 ? 8 : 4096;

        from += (align - from % align) % align;
        if (from + n > SIZE || (jumps && mix(&seed) % (uint64_t)jumps == 0))
            from = (int64_t)(mix(&seed) % (uint64_t)(SIZE - n));
        take(&l, from, n);
        from += n;
    }
    /* the padding is read, too: below 8 bytes a piece, or a page at a 16th of it */
    assert_true(read_bytes(&l) <= l.asked + l.asked / 32 + (1 << 20) + 2500 * 8 + (most > 65536 ? l.asked / 16 : 0));
    lab_down(&l);
}

static void random_pieces(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        at_random(0, 7000, seed);
        at_random(9, 7000, seed);
        at_random(0, 300000, seed);
        at_random(6, 300000, seed);
        at_random(30, 300000, seed);
    }
}

/* A quarter of each tensor, for tensors of every size: what is read is what is asked for. */
static void quarters(void **state)
{
    (void)state;
    for (int64_t whole = 4096; whole <= 4 << 20; whole *= 2) {
        struct lab l;

        lab_up(&l);
        for (int64_t from = 0; from + whole <= SIZE; from += whole)
            take(&l, from, whole / 4);
        assert_int_equal(read_bytes(&l), l.asked);
        lab_down(&l);
    }
}

/* Stretches of 20 pieces of 100 KB, then as much is left out: the first stretch is worth a try, then there is a bound. */
static void stretches(void **state)
{
    struct lab l;

    (void)state;
    lab_up(&l);
    for (int round = 0; round < 8; round++)
        for (int64_t from = 0; from + 4000000 <= SIZE; from += 4000000)
            for (int k = 0; k < 20; k++)
                take(&l, from + k * 100000, 100000);
    assert_true(read_bytes(&l) > l.asked || !cairn_crew_threads(l.crew));
    assert_true(read_bytes(&l) <= l.asked + l.asked / 32 + (256 << 10));
    lab_down(&l);
}

/* A file that ends before it should: the caller is sent to read himself, and what comes before is right. */
static void ends_early(void **state)
{
    const int64_t cut = 9 * 1000 * 1000;
    unsigned char *got = malloc(118784);
    struct lab l;
    int64_t from = 0;

    (void)state;
    lab_up(&l);
    assert_int_equal(ftruncate(fd, cut), 0);
    for (; from + 118784 <= cut; from += 118784)
        take(&l, from, 118784);
    assert_int_equal(cairn_ahead_take(l.ahead, fd, file, SIZE, from, 118784, got), 0);
    ok(cairn_fd_pwrite_all(fd, bytes + cut, (size_t)(SIZE - cut), cut, file, err));
    for (; from + 118784 <= SIZE; from += 118784)
        take(&l, from, 118784);
    lab_down(&l);
    free(got);
}

/* Forgotten in the middle, as before a descriptor is closed; the same number may be another file afterwards. */
static void forgotten(void **state)
{
    struct lab l;

    (void)state;
    for (int64_t pieces = 4; pieces < 120; pieces += 3) {
        unsigned char *other = malloc(SIZE), *keep = bytes;
        int64_t from = 0;

        lab_up(&l);
        for (int k = 0; k < pieces; k++, from += 118784)
            take(&l, from, 118784);
        cairn_ahead_forget(l.ahead);
        noise(other, SIZE, (uint64_t)pieces);
        ok(cairn_fd_pwrite_all(fd, other, SIZE, 0, file, err));
        bytes = other;
        for (int k = 0; k < 10; k++, from += 118784)
            take(&l, from, 118784);
        lab_down(&l);
        bytes = keep;
        ok(cairn_fd_pwrite_all(fd, bytes, SIZE, 0, file, err));
        free(other);
    }
    cairn_ahead_forget(NULL);
    cairn_ahead_destroy(NULL);
}

/* All of it once more on one processor, where the crew has no threads. */
static void alone(void **state)
{
    cpu_set_t all, one;
    struct lab l;
    int here = 0;

    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    in_order(state);
    random_pieces(state);
    quarters(state);
    stretches(state);
    ends_early(state);
    lab_up(&l);
    for (int k = 0; k < 200; k++)
        here += take(&l, k * (int64_t)118784, 118784);
    assert_int_equal(here, 0); /* a copy more would not pay */
    lab_down(&l);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_order),  cmocka_unit_test(random_pieces), cmocka_unit_test(quarters),
                                       cmocka_unit_test(stretches), cmocka_unit_test(ends_early),    cmocka_unit_test(forgotten),
                                       cmocka_unit_test(alone)};

    return cmocka_run_group_tests(tests, up, down);
}
