/* mpirun_test.c - worlds of 1, 2 and 4 ranks under mpirun, and what becomes of the others when one dies, stops or strays.
 *
 * The program starts itself under mpirun as `mpirun_test --worker SCENARIO`. Rank results are agreed upon; what mpirun
 * returns and what came out on stderr is asserted here. Skipped where there is no mpirun or no cairn-mpi.so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/signals.h"
#include "base/str.h"
#include "world/channel.h"
#include "world/world.h"

/* --- workers --- */

static struct cairn_world *w;
static struct cairn_error err;

#define CHECK(x)                                                                                       \
    do {                                                                                               \
        if (!(x))                                                                                      \
            return cairn_fail(&err, CAIRN_EBUG, "line %d: %s (%s)", __LINE__, #x, err.text);           \
    } while (0)

/* Byte i of the block that rank a has for rank b. */
static unsigned char mark(int a, int b, size_t i)
{
    return (unsigned char)(31 * a + 7 * b + (int)(i % 251));
}

static int marked(const unsigned char *p, int a, int b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != mark(a, b, i))
            return 0;
    return 1;
}

static void put(unsigned char *p, int a, int b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = mark(a, b, i);
}

/* Uneven on purpose, with zeros. */
static size_t block(int a, int b)
{
    return (size_t)((a * 5 + b * 3) % 4) * 777;
}

static enum cairn_status moves(struct cairn_group *g)
{
    enum { MOST = 16 * 4000 };
    static unsigned char src[MOST], dst[MOST];
    size_t n[16], m[16], at, *offset;
    char *bytes;

    CHECK(g->size <= 16);
    for (int root = 0; root < g->size; root++) {
        memset(src, 0, 3001);
        if (g->rank == root)
            put(src, root, 9, 3001);
        CHECK(cairn_group_bcast(g, "bcast", root, src, 3001, &err) == CAIRN_OK);
        CHECK(marked(src, root, 9, 3001));
        CHECK(cairn_group_bcast(g, "bcast", root, src, 0, &err) == CAIRN_OK);
    }
    for (size_t each = 1; each < 3500; each = each * 3 + 2) { /* below, at and above the message size */
        put(src, g->rank, 1, each);
        memset(dst, 0, MOST);
        CHECK(cairn_group_allgather(g, "allgather", src, each, dst, &err) == CAIRN_OK);
        for (int r = 0; r < g->size; r++)
            CHECK(marked(dst + (size_t)r * each, r, 1, each));
        CHECK(dst[(size_t)g->size * each] == 0);
        CHECK(cairn_group_allgather(g, "allgather", dst + (size_t)g->rank * each, each, dst, &err) == CAIRN_OK); /* in place */
        for (int r = 0; r < g->size; r++)
            CHECK(marked(dst + (size_t)r * each, r, 1, each));
        memset(dst, 0, MOST);
        CHECK(cairn_group_gather(g, "gather", g->size - 1, src, each, g->rank == g->size - 1 ? dst : NULL, &err) == CAIRN_OK);
        for (int r = 0; r < g->size && g->rank == g->size - 1; r++)
            CHECK(marked(dst + (size_t)r * each, r, 1, each));
    }
    for (int r = 0; r < g->size; r++)
        n[r] = block(r, 0);
    put(src, g->rank, 2, n[g->rank]);
    memset(dst, 0, MOST);
    CHECK(cairn_group_allgatherv(g, "allgatherv", src, n, dst, &err) == CAIRN_OK);
    at = 0;
    for (int r = 0; r < g->size; at += n[r++])
        CHECK(marked(dst + at, r, 2, n[r]));
    at = 0;
    for (int r = 0; r < g->size; at += n[r++]) {
        n[r] = block(g->rank, r);
        m[r] = block(r, g->rank);
        put(src + at, g->rank, r, n[r]);
    }
    memset(dst, 0, MOST);
    CHECK(cairn_group_alltoallv(g, "alltoallv", src, n, dst, m, &err) == CAIRN_OK);
    at = 0;
    for (int r = 0; r < g->size; at += m[r++])
        CHECK(marked(dst + at, r, g->rank, m[r]));
    put(src, g->rank, 3, block(g->rank, 1));
    CHECK(cairn_group_collect(g, "collect", 0, src, block(g->rank, 1), &bytes, &offset, &err) == CAIRN_OK);
    CHECK((bytes != NULL) == (g->rank == 0) && (offset != NULL) == (g->rank == 0));
    for (int r = 0; r < g->size && offset; r++) {
        CHECK(offset[r + 1] - offset[r] == block(r, 1));
        CHECK(marked((unsigned char *)bytes + offset[r], r, 3, block(r, 1)));
    }
    free(bytes);
    free(offset);
    if (g->size > 1) { /* a ring, then half a pair */
        int next = (g->rank + 1) % g->size, last = (g->rank + g->size - 1) % g->size;

        put(src, g->rank, 4, 2500);
        memset(dst, 0, MOST);
        CHECK(cairn_group_exchange(g, "ring", next, src, 2500, last, dst, 2500, &err) == CAIRN_OK);
        CHECK(marked(dst, last, 4, 2500));
        if (g->rank == 0)
            CHECK(cairn_group_exchange(g, "give", 1, src, 10, -1, NULL, 0, &err) == CAIRN_OK);
        if (g->rank == 1)
            CHECK(cairn_group_exchange(g, "take", -1, NULL, 0, 0, dst, 10, &err) == CAIRN_OK && marked(dst, 0, 4, 10));
    }
    CHECK(cairn_group_barrier(g, "barrier", &err) == CAIRN_OK);
    return CAIRN_OK;
}

static enum cairn_status agreement(void)
{
    struct cairn_error e;
    int stop = -1;

    for (int bad = 0; bad < w->size; bad++) {
        enum cairn_status st = CAIRN_OK;
        char want[64];

        cairn_fail(&e, CAIRN_OK, "fine");
        if (w->rank == bad)
            st = cairn_fail(&e, CAIRN_ENUMERIC, "tensor %d is not finite", bad);
        else if (w->rank > bad)
            st = cairn_fail(&e, CAIRN_EDATA, "something less");
        CHECK(cairn_group_agree(w->all, "agree", st, &e) == CAIRN_ENUMERIC);
        if (w->size > 1)
            snprintf(want, sizeof want, "rank %d: tensor %d is not finite", bad, bad);
        else
            snprintf(want, sizeof want, "tensor 0 is not finite");
        CHECK(!strcmp(e.text, want));
        CHECK(e.code == CAIRN_ENUMERIC);
    }
    CHECK(cairn_group_agree(w->commit, "agree", CAIRN_OK, NULL) == CAIRN_OK);
    cairn_signals_install();
    CHECK(cairn_group_any_stop(w->all, "stop", &stop, &err) == CAIRN_OK && stop == 0);
    if (w->rank == w->size - 1)
        raise(SIGUSR1);
    CHECK(cairn_group_any_stop(w->all, "stop", &stop, &err) == CAIRN_OK && stop == SIGUSR1);
    CHECK(cairn_stop_requested() == SIGUSR1);
    return CAIRN_OK;
}

static enum cairn_status splits(void)
{
    struct cairn_group *half, *some, *back;

    /* even and odd ranks, in reverse order */
    CHECK(cairn_world_split(w, NULL, w->rank % 2, -w->rank, "half", &half, &err) == CAIRN_OK);
    CHECK(half->size == (w->size + 1 - w->rank % 2) / 2);
    for (int i = 0; i < half->size; i++)
        CHECK(half->members[i] % 2 == w->rank % 2 && (!i || half->members[i] < half->members[i - 1]));
    CHECK(half->members[half->rank] == w->rank);
    CHECK(moves(half) == CAIRN_OK);
    /* a group within a group */
    CHECK(cairn_world_split(w, half, half->rank, 0, "single", &back, &err) == CAIRN_OK);
    CHECK(back->size == 1 && back->members[0] == w->rank);
    CHECK(moves(back) == CAIRN_OK);
    cairn_group_destroy(back);
    /* rank 0 stays out */
    CHECK(cairn_world_split(w, NULL, w->rank ? 5 : -1, 0, "some", &some, &err) == CAIRN_OK);
    CHECK((some != NULL) == (w->rank > 0));
    if (some)
        CHECK(moves(some) == CAIRN_OK);
    cairn_group_destroy(some);
    cairn_group_destroy(half);
    return CAIRN_OK;
}

static enum cairn_status host_alloc(struct cairn_device *d, size_t bytes, void **impl, struct cairn_error *e)
{
    (void)d;
    *impl = calloc(1, bytes);
    return *impl ? CAIRN_OK : CAIRN_NOMEM(e);
}

static void host_release(struct cairn_device *d, void *impl, size_t bytes)
{
    (void)d;
    (void)bytes;
    free(impl);
}

static void *host_open(struct cairn_device *d, void *impl, size_t bytes, int access)
{
    (void)d;
    (void)bytes;
    (void)access;
    return impl;
}

static void host_close(struct cairn_device *d, void *impl, size_t bytes)
{
    (void)d;
    (void)impl;
    (void)bytes;
}

static enum cairn_status host_wait(struct cairn_device *d, void *impl, struct cairn_error *e)
{
    (void)d;
    (void)impl;
    (void)e;
    return CAIRN_OK;
}

static const struct cairn_device_ops host_ops = {.alloc = host_alloc, .release = host_release, .open = host_open, .close = host_close,
                                                 .stream_wait = host_wait};

static enum cairn_status tensors(void)
{
    struct cairn_device dev = {.name = "cpu", .ops = &host_ops};
    struct cairn_stream stream = {.dev = &dev};
    const int64_t dim[2] = {64, 3};
    struct cairn_buffer *b;
    struct cairn_channel *c;
    struct cairn_tensor all, src, dst;
    int64_t send[16], recv[16], sent = 0, got = 0, at;
    int32_t *p;

    CHECK(cairn_channel_open(&c, w->all, &dev, NULL, &err) == CAIRN_OK);
    CHECK(cairn_buffer_create(&dev, 64 * 3 * 4, &b, &err) == CAIRN_OK);
    CHECK(cairn_tensor_view(&all, b, 0, CAIRN_I32, 2, dim, &err) == CAIRN_OK);
    p = cairn_buffer_open(b, CAIRN_READ | CAIRN_WRITE); /* the test plays the op here */
    for (int r = 0; r < w->size; r++) {
        sent += send[r] = (w->rank + 2 * r) % 3;
        got += recv[r] = (r + 2 * w->rank) % 3;
    }
    at = 0;
    for (int r = 0; r < w->size; r++)
        for (int64_t i = 0; i < send[r]; i++, at++)
            for (int k = 0; k < 3; k++)
                p[at * 3 + k] = 10000 * w->rank + 100 * r + 10 * (int)i + k;
    src = cairn_tensor_slice(&all, 0, 0, sent);
    dst = cairn_tensor_slice(&all, 0, 32, got);
    CHECK(cairn_channel_alltoallv(c, &stream, "rows", &dst, recv, &src, send, &err) == CAIRN_OK);
    at = 32;
    for (int r = 0; r < w->size; r++)
        for (int64_t i = 0; i < recv[r]; i++, at++)
            for (int k = 0; k < 3; k++)
                CHECK(p[at * 3 + k] == 10000 * r + 100 * w->rank + 10 * (int)i + k);
    for (int r = 0; r < w->size; r++)
        recv[r] = r % 2 + 1;
    got = 0;
    for (int r = 0; r < w->size; r++)
        got += recv[r];
    src = cairn_tensor_slice(&all, 0, 0, recv[w->rank]);
    dst = cairn_tensor_slice(&all, 0, 32, got);
    for (int i = 0; i < 6; i++)
        p[i] = 100 * w->rank + i;
    CHECK(cairn_channel_allgatherv(c, &stream, "rows", &dst, &src, recv, &err) == CAIRN_OK);
    at = 96;
    for (int r = 0; r < w->size; r++)
        for (int i = 0; i < 3 * (int)recv[r]; i++)
            CHECK(p[at++] == 100 * r + i);
    src = cairn_tensor_slice(&all, 0, 0, 1);
    dst = cairn_tensor_slice(&all, 0, 32, w->size);
    CHECK(cairn_channel_allgather(c, &stream, "rows", &dst, &src, &err) == CAIRN_OK);
    for (int r = 0; r < w->size; r++)
        CHECK(p[96 + 3 * r] == 100 * r);
    CHECK(cairn_channel_bcast(c, &stream, "rows", w->size - 1, &src, &err) == CAIRN_OK);
    CHECK(p[0] == 100 * (w->size - 1));
    cairn_buffer_close(b);
    cairn_channel_close(c);
    cairn_buffer_destroy(b);
    return CAIRN_OK;
}

static enum cairn_status everything(void)
{
    CHECK(!strcmp(w->launcher, "mpirun"));
    CHECK(!strncmp(w->wire_name, "mpi: ", 5));
    CHECK(w->nodes == 1 && w->node == 0);
    CHECK(w->local_rank == w->rank && w->local_size == w->size);
    CHECK(w->node_group->size == w->size && w->commit->rank == w->rank);
    CHECK(moves(w->all) == CAIRN_OK);
    CHECK(moves(w->commit) == CAIRN_OK);
    CHECK(splits() == CAIRN_OK);
    CHECK(tensors() == CAIRN_OK);
    CHECK(agreement() == CAIRN_OK);
    return CAIRN_OK;
}

/* Rank 1 does something wrong; the others come to a barrier. */
static enum cairn_status stray(const char *how)
{
    struct cairn_error e = {0};
    char buf[8] = "";

    CHECK(cairn_group_barrier(w->all, "before", &err) == CAIRN_OK);
    w->all->deadline_s = w->commit->deadline_s = 2; /* all are there: from here on somebody is missing, however slow the machine */
    if (w->rank == 1 && !strcmp(how, "kill"))
        raise(SIGKILL);
    if (w->rank == 1 && !strcmp(how, "stop"))
        raise(SIGSTOP);
    if (w->rank == 1 && !strcmp(how, "leave"))
        _exit(0);
    if (w->rank == 1 && !strcmp(how, "fail"))
        _exit(CAIRN_ENUMERIC);
    if (w->rank == 1 && !strcmp(how, "abort"))
        cairn_world_abort(w, CAIRN_EDATA);
    if (w->rank == 1 && !strcmp(how, "loop"))
        for (;;)
            cairn_sleep_s(1);
    if (w->rank == 1) /* so that rank 0 is the first to lose patience */
        w->all->deadline_s = w->commit->deadline_s = 30;
    if (w->rank == 1 && !strcmp(how, "elsewhere"))
        return cairn_group_barrier(w->commit, "the vote", &err);
    if (!strcmp(how, "silent")) /* rank 0 waits for rank 1, which has nothing to give */
        return w->rank == 0 ? cairn_group_exchange(w->all, "activations", -1, NULL, 0, 1, buf, 8, &err)
                            : cairn_group_barrier(w->all, "the end", &err);
    if (!strcmp(how, "sizes") && w->rank == 0) /* notices; rank 1 goes on to the barrier */
        return cairn_group_exchange(w->all, "sizes", -1, NULL, 0, 1, buf, 8, &err);
    if (!strcmp(how, "sizes"))
        CHECK(cairn_group_exchange(w->all, "sizes", 0, buf, 4, -1, NULL, 0, &err) == CAIRN_OK);
    if (!strcmp(how, "order")) { /* one rank has done one collective more */
        if (w->rank == 1)
            w->all->seq++;
        CHECK(cairn_group_agree(w->all, "the vote", CAIRN_OK, &e) == CAIRN_EBUG);
        CHECK(strstr(e.text, "rank 0 is at operation #") != NULL);
        return CAIRN_OK;
    }
    return cairn_group_barrier(w->all, "after", &err);
}

static int worker(const char *scenario)
{
    int small = !strcmp(scenario, "small"), sound = small || !strcmp(scenario, "all");
    struct cairn_world_opts opts = {.deadline_s = strcmp(scenario, "late") ? 60 : 2, .max_message = small ? 1000 : 0};
    enum cairn_status st;

    if (!strcmp(scenario, "late") && !strcmp(getenv("OMPI_COMM_WORLD_RANK"), "1"))
        cairn_sleep_s(30);
    if ((st = cairn_world_open(&w, &opts, &err)) != CAIRN_OK) {
        fprintf(stderr, "open: %s\n", err.text);
        return st;
    }
    st = sound ? everything() : stray(scenario);
    if (sound || !strcmp(scenario, "order")) {
        if ((st = cairn_group_agree(w->commit, "verdict", st, &err)) != CAIRN_OK && w->rank == 0)
            fprintf(stderr, "%s\n", err.text);
        if (cairn_world_close(w, &err) != CAIRN_OK)
            return CAIRN_EBUG;
        return st;
    }
    if (st != CAIRN_OK) {
        fprintf(stderr, "rank %d fails: %s\n", w->rank, err.text);
        cairn_world_abort(w, st);
    }
    return 0;
}

/* --- driver --- */

static const char *self;

/* Exit code of mpirun (124: it was still there after 150 s); its stderr in text. */
static int run(int ranks, const char *scenario, char *text, size_t size, double *took)
{
    char path[] = "/tmp/cairn-mpirun-XXXXXX", np[16], *p = NULL;
    int fd = mkstemp(path), ws;
    double t0 = cairn_now_s();
    size_t n;
    pid_t pid;

    snprintf(np, sizeof np, "%d", ranks);
    pid = fork();
    if (!pid) {
        dup2(fd, STDERR_FILENO);
        dup2(fd, STDOUT_FILENO);
        execlp("timeout", "timeout", "-k", "2", "150", "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", np, self,
               "--worker", scenario, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, &ws, 0);
    *took = cairn_now_s() - t0;
    close(fd);
    assert_int_equal(cairn_file_read(path, 1 << 20, &p, &n, NULL), CAIRN_OK);
    unlink(path);
    snprintf(text, size, "%s", p);
    free(p);
    return WIFEXITED(ws) ? WEXITSTATUS(ws) : -1;
}

static void collectives(void **state)
{
    static const int ranks[] = {1, 2, 4};
    static const char *const how[] = {"all", "small"};
    char text[4096];
    double took;

    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 2; k++)
            if (run(ranks[i], how[k], text, sizeof text, &took) != 0)
                fail_msg("%d ranks, %s: %s", ranks[i], how[k], text);
}

static void strays(void **state)
{
    static const struct {
        const char *how;
        int ranks, code; /* 0: any but 0 */
        const char *says[3];
    } t[] = {
        {"kill", 3, 0, {NULL}},
        {"leave", 3, 0, {NULL}},
        {"fail", 3, CAIRN_ENUMERIC, {NULL}},
        {"abort", 3, CAIRN_EDATA, {NULL}},
        {"stop",
         3,
         CAIRN_EAGAIN,
         {"barrier #5 of all: not there: rank 1 is stopped, last was in barrier #4 of all (before);", "(after) waited", NULL}},
        {"loop", 3, CAIRN_EAGAIN, {"barrier #5 of all: not there: rank 1 last was in barrier #4 of all (before);"}},
        {"elsewhere", 2, CAIRN_EAGAIN, {"rank 1 is in barrier #1 of commit (the vote)"}},
        {"silent", 2, CAIRN_EAGAIN, {"exchange #1 of all: rank 1 is in barrier #5 of all (the end);"}},
        {"late", 2, CAIRN_EAGAIN, {"start (all ranks) waited"}},
        {"sizes", 2, CAIRN_EBUG, {"rank 1 of the group sent 4 bytes where 8 were expected"}},
        {"order", 2, 0x100, {NULL}},
    };
    char text[16384];
    double took;

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        int rc = run(t[i].ranks, t[i].how, text, sizeof text, &took);

        print_message("# %s: mpirun returned %d after %.1f s\n", t[i].how, rc, took);
        if (t[i].code == 0x100 ? rc != 0 : t[i].code ? rc != t[i].code : rc == 0)
            fail_msg("%s: mpirun returned %d: %s", t[i].how, rc, text);
        for (int k = 0; k < 3 && t[i].says[k]; k++)
            if (!strstr(text, t[i].says[k]))
                fail_msg("%s: \"%s\" is not in: %s", t[i].how, t[i].says[k], text);
        /* rank 1 is stopped: one of the others gives up first, and may end the third before it speaks */
        if (!strcmp(t[i].how, "stop") && !strstr(text, "rank 0 of 3") && !strstr(text, "rank 2 of 3"))
            fail_msg("stop: no rank names itself: %s", text);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(collectives), cmocka_unit_test(strays)};
    char *so;

    if (argc == 3 && !strcmp(argv[1], "--worker"))
        return worker(argv[2]);
    self = argv[0];
    so = cairn_lib_path("cairn-mpi.so");
    if (system("command -v mpirun >/dev/null 2>&1") || !cairn_path_exists(so)) {
        printf("1..0 # SKIP no mpirun, or no %s\n", so);
        free(so);
        return 0;
    }
    free(so);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
