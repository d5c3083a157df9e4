/* world_test.c - alone: every collective is a copy; what the environment says; channels on a device and on a transport of
 * our own; the watchdog's way out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/signals.h"
#include "world/channel.h"
#include "world/world.h"

static struct cairn_world *w;

static int open_alone(void **state)
{
    struct cairn_error err;

    (void)state;
    return cairn_world_open(&w, &(struct cairn_world_opts){.alone = 1}, &err) == CAIRN_OK ? 0 : -1;
}

static int close_alone(void **state)
{
    (void)state;
    return cairn_world_close(w, NULL) == CAIRN_OK ? 0 : -1;
}

static void alone_is_a_world(void **state)
{
    (void)state;
    assert_int_equal(w->rank, 0);
    assert_int_equal(w->size, 1);
    assert_int_equal(w->nodes, 1);
    assert_int_equal(w->local_size, 1);
    assert_string_equal(w->launcher, "alone");
    assert_string_equal(w->wire_name, "none");
    assert_true(w->host[0] != 0);
    assert_true(w->deadline_s == 600);
    assert_int_equal(w->all->size, 1);
    assert_int_equal(w->commit->size, 1);
    assert_int_equal(w->node_group->members[0], 0);
}

static void collectives_are_copies(void **state)
{
    struct cairn_group *g, *none = w->all;
    struct cairn_error err;
    char a[4] = "abc", b[4], *bytes;
    size_t n = 4, m = 3, *offset;
    int stop;

    (void)state;
    assert_int_equal(cairn_world_split(w, NULL, 3, 0, "tp", &g, &err), CAIRN_OK);
    assert_int_equal(g->size, 1);
    assert_int_equal(cairn_world_split(w, NULL, -1, 0, "tp", &none, &err), CAIRN_OK);
    assert_null(none);
    assert_int_equal(cairn_group_barrier(g, "x", &err), CAIRN_OK);
    assert_int_equal(cairn_group_bcast(g, "x", 0, a, 4, &err), CAIRN_OK);
    assert_int_equal(cairn_group_bcast(g, "x", 1, a, 4, &err), CAIRN_EBUG);
    assert_int_equal(cairn_group_allgather(g, "x", a, 4, b, &err), CAIRN_OK);
    assert_string_equal(b, "abc");
    memset(b, 0, 4);
    assert_int_equal(cairn_group_allgatherv(g, "x", a, &n, b, &err), CAIRN_OK);
    assert_string_equal(b, "abc");
    memset(b, 0, 4);
    assert_int_equal(cairn_group_alltoallv(g, "x", a, &n, b, &n, &err), CAIRN_OK);
    assert_string_equal(b, "abc");
    assert_int_equal(cairn_group_alltoallv(g, "x", a, &n, b, &m, &err), CAIRN_EBUG);
    memset(b, 0, 4);
    assert_int_equal(cairn_group_gather(g, "x", 0, a, 4, b, &err), CAIRN_OK);
    assert_string_equal(b, "abc");
    assert_int_equal(cairn_group_collect(g, "x", 0, a, 4, &bytes, &offset, &err), CAIRN_OK);
    assert_string_equal(bytes, "abc");
    assert_int_equal(offset[1], 4);
    free(bytes);
    free(offset);
    memset(b, 0, 4);
    assert_int_equal(cairn_group_exchange(g, "x", 0, a, 4, 0, b, 4, &err), CAIRN_OK);
    assert_string_equal(b, "abc");
    assert_int_equal(cairn_group_exchange(g, "x", -1, NULL, 0, -1, NULL, 0, &err), CAIRN_OK);
    assert_int_equal(cairn_group_exchange(g, "x", 0, a, 4, -1, NULL, 0, &err), CAIRN_EBUG);
    assert_int_equal(cairn_group_exchange(g, "x", 1, a, 4, -1, NULL, 0, &err), CAIRN_EBUG);

    snprintf(err.text, sizeof err.text, "untouched");
    assert_int_equal(cairn_group_agree(g, "x", CAIRN_OK, &err), CAIRN_OK);
    assert_string_equal(err.text, "untouched");
    cairn_fail(&err, CAIRN_EDATA, "prompts.jsonl:3: broken");
    assert_int_equal(cairn_group_agree(g, "x", CAIRN_EDATA, &err), CAIRN_EDATA);
    assert_string_equal(err.text, "prompts.jsonl:3: broken");
    assert_int_equal(cairn_group_agree(g, "x", CAIRN_EDATA, NULL), CAIRN_EDATA);
    cairn_signals_reset();
    assert_int_equal(cairn_group_any_stop(g, "x", &stop, &err), CAIRN_OK);
    assert_int_equal(stop, 0);
    cairn_stop_request(SIGUSR1);
    assert_int_equal(cairn_group_any_stop(g, "x", &stop, &err), CAIRN_OK);
    assert_int_equal(stop, SIGUSR1);
    cairn_signals_reset();
    cairn_group_destroy(g);
    cairn_group_destroy(NULL);
}

static void launchers(void **state)
{
    static const char *const names[] = {"CAIRN_WORLD", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "SLURM_STEP_ID", "SLURM_PROCID",
                                        "SLURM_STEP_NUM_TASKS"};
    static const struct {
        const char *set[4]; /* NAME VALUE pairs */
        int launched;
        const char *why;
    } t[] = {
        {{NULL}, 0, "a shell"},
        {{"OMPI_COMM_WORLD_SIZE", "2"}, 1, "mpirun"},
        {{"PMIX_RANK", "0"}, 1, "prun"},
        {{"SLURM_PROCID", "0"}, 0, "a batch script"},
        {{"OMPI_COMM_WORLD_SIZE", "2", "CAIRN_WORLD", "alone"}, 0, "told so"},
        {{"OMPI_COMM_WORLD_SIZE", "junk"}, 0, "no number"},
        {{"PMI_SIZE", "4"}, 1, "MPICH"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            unsetenv(names[k]);
        for (int k = 0; k < 4 && t[i].set[k]; k += 2)
            setenv(t[i].set[k], t[i].set[k + 1], 1);
        assert_int_equal(cairn_world_launched(), t[i].launched);
    }
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        unsetenv(names[k]);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_PROCID", "1", 1);
    setenv("SLURM_STEP_NUM_TASKS", "1", 1);
    assert_false(cairn_world_launched());
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    assert_true(cairn_world_launched());
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        unsetenv(names[k]);
}

static void no_wire(void **state)
{
    struct cairn_error err;
    struct cairn_world *x = NULL;

    (void)state;
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("CAIRN_LIB_DIR", "/nowhere", 1);
    assert_int_equal(cairn_world_open(&x, NULL, &err), CAIRN_EDEVICE);
    assert_non_null(strstr(err.text, "/nowhere/cairn-mpi.so is missing"));
    assert_null(x);
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("CAIRN_LIB_DIR");
}

/* --- a device that notices access outside of brackets: its memory is elsewhere while closed --- */

struct cell {
    char *hidden, *seen; /* seen: what open gave out */
    int opened;
};

static enum cairn_status cell_alloc(struct cairn_device *d, size_t bytes, void **impl, struct cairn_error *err)
{
    struct cell *c = calloc(1, sizeof *c);

    (void)d;
    (void)err;
    c->hidden = calloc(1, bytes);
    *impl = c;
    return CAIRN_OK;
}

static void cell_release(struct cairn_device *d, void *impl, size_t bytes)
{
    struct cell *c = impl;

    (void)d;
    (void)bytes;
    assert_int_equal(c->opened, 0);
    free(c->hidden);
    free(c);
}

static void *cell_open(struct cairn_device *d, void *impl, size_t bytes, int access)
{
    struct cell *c = impl;

    (void)d;
    (void)access;
    if (c->opened++ == 0) {
        c->seen = malloc(bytes);
        memcpy(c->seen, c->hidden, bytes);
    }
    return c->seen;
}

static void cell_close(struct cairn_device *d, void *impl, size_t bytes)
{
    struct cell *c = impl;

    (void)d;
    if (--c->opened == 0) {
        memcpy(c->hidden, c->seen, bytes);
        free(c->seen);
        c->seen = NULL;
    }
}

static int waits;

static enum cairn_status cell_wait(struct cairn_device *d, void *impl, struct cairn_error *err)
{
    (void)d;
    (void)impl;
    (void)err;
    waits++;
    return CAIRN_OK;
}

static enum cairn_status cell_copy(struct cairn_device *d, void *s, void *dst, const void *src, size_t n, struct cairn_error *err)
{
    (void)d;
    (void)s;
    (void)err;
    memcpy(dst, src, n);
    return CAIRN_OK;
}

static const struct cairn_device_ops cell_ops = {.alloc = cell_alloc, .release = cell_release, .open = cell_open, .close = cell_close,
                                                 .stream_wait = cell_wait, .copy_in = cell_copy, .copy_out = cell_copy};
static struct cairn_device cpu = {.name = "guard", .ops = &cell_ops}, other = {.name = "cuda:0", .ops = &cell_ops},
                           strange = {.name = "npu:0", .ops = &cell_ops};
static struct cairn_stream stream = {.dev = &cpu};

static void channels_alone(void **state)
{
    struct cairn_channel *c;
    struct cairn_error err;
    struct cairn_buffer *b, *b2;
    struct cairn_tensor t, src, dst, row, wide, far;
    const int64_t dim[2] = {3, 2}, one[1] = {3}, wrong[1] = {2}, whole[2] = {6, 2};
    float h[6] = {1, 2, 3, 4, 5, 6}, back[6];

    (void)state;
    assert_int_equal(cairn_channel_open(&c, w->all, &strange, NULL, &err), CAIRN_EDEVICE);
    assert_string_equal(err.text, "no transport for device npu:0");
    assert_int_equal(cairn_channel_open(&c, w->all, &cpu, NULL, &err), CAIRN_OK);
    assert_string_equal(cairn_channel_transport(c), "host");
    assert_ptr_equal(cairn_channel_group(c), w->all);
    assert_int_equal(cairn_buffer_create(&cpu, 12 * sizeof(float), &b, &err), CAIRN_OK);
    assert_int_equal(cairn_buffer_create(&other, 6 * sizeof(float), &b2, &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_view(&t, b, 0, CAIRN_F32, 2, whole, &err), CAIRN_OK);
    src = cairn_tensor_slice(&t, 0, 0, 3);
    dst = cairn_tensor_slice(&t, 0, 3, 3); /* of the same buffer: as in an arena */
    assert_int_equal(cairn_tensor_set(&stream, &src, h, sizeof h, &err), CAIRN_OK);
    waits = 0;
    assert_int_equal(cairn_channel_alltoallv(c, &stream, "x", &dst, one, &src, one, &err), CAIRN_OK);
    assert_int_equal(waits, 1);
    assert_int_equal(cairn_tensor_get(&stream, &dst, back, sizeof back, &err), CAIRN_OK);
    assert_memory_equal(back, h, sizeof h);
    h[0] = 9;
    assert_int_equal(cairn_tensor_set(&stream, &src, h, sizeof h, &err), CAIRN_OK);
    assert_int_equal(cairn_channel_allgather(c, &stream, "x", &dst, &src, &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_get(&stream, &dst, back, sizeof back, &err), CAIRN_OK);
    assert_memory_equal(back, h, sizeof h);
    h[1] = 8;
    assert_int_equal(cairn_tensor_set(&stream, &src, h, sizeof h, &err), CAIRN_OK);
    assert_int_equal(cairn_channel_allgatherv(c, &stream, "x", &dst, &src, one, &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_get(&stream, &dst, back, sizeof back, &err), CAIRN_OK);
    assert_memory_equal(back, h, sizeof h);
    h[2] = 7;
    assert_int_equal(cairn_tensor_set(&stream, &src, h, sizeof h, &err), CAIRN_OK);
    assert_int_equal(cairn_channel_exchange(c, &stream, "x", 0, &src, 0, &dst, &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_get(&stream, &dst, back, sizeof back, &err), CAIRN_OK);
    assert_memory_equal(back, h, sizeof h);
    assert_int_equal(cairn_channel_bcast(c, &stream, "x", 0, &t, &err), CAIRN_OK);
    assert_int_equal(cairn_channel_settle(c, &err), CAIRN_OK);

    /* what must not be sent */
    assert_int_equal(cairn_channel_alltoallv(c, &stream, "x", &dst, wrong, &src, one, &err), CAIRN_EBUG);
    far = cairn_tensor_slice(&t, 0, 1, 3);
    assert_int_equal(cairn_channel_alltoallv(c, &stream, "x", &far, one, &src, one, &err), CAIRN_EBUG);
    wide = cairn_tensor_slice(&t, 1, 0, 1);
    assert_int_equal(cairn_channel_bcast(c, &stream, "x", 0, &wide, &err), CAIRN_EBUG);
    assert_int_equal(cairn_tensor_view(&row, b2, 0, CAIRN_F32, 2, dim, &err), CAIRN_OK);
    assert_int_equal(cairn_channel_bcast(c, &stream, "x", 0, &row, &err), CAIRN_EBUG);
    assert_non_null(strstr(err.text, "cuda:0"));
    row.buf = NULL;
    assert_int_equal(cairn_channel_bcast(c, &stream, "x", 0, &row, &err), CAIRN_EBUG);
    assert_int_equal(cairn_channel_allgather(c, &stream, "x", &t, &src, &err), CAIRN_EBUG);
    assert_int_equal(cairn_channel_exchange(c, &stream, "x", 0, NULL, 0, &dst, &err), CAIRN_EBUG);
    cairn_channel_close(c);
    cairn_buffer_destroy(b);
    cairn_buffer_destroy(b2);
}

/* --- a transport that only enqueues: the world must settle it before the wire is used --- */

static int enqueued, settled;

static int lazy_takes(const struct cairn_device *dev)
{
    return !strncmp(dev->name, "cuda", 4);
}

static enum cairn_status lazy_open(struct cairn_group *g, struct cairn_device *dev, void **state, struct cairn_error *err)
{
    (void)g;
    (void)err;
    *state = dev;
    return CAIRN_OK;
}

static void lazy_close(void *state)
{
    (void)state;
}

static enum cairn_status lazy_settle(void *state, struct cairn_error *err)
{
    (void)state;
    (void)err;
    settled = enqueued;
    return CAIRN_OK;
}

static enum cairn_status lazy_bcast(void *state, struct cairn_stream *s, const char *what, int root, const struct cairn_tensor *t,
                                    struct cairn_error *err)
{
    (void)state;
    (void)s;
    (void)what;
    (void)root;
    (void)t;
    (void)err;
    enqueued++;
    return CAIRN_OK;
}

static void device_work_settles_first(void **state)
{
    const struct cairn_transport lazy = {.abi = CAIRN_TRANSPORT_ABI, .name = "lazy", .takes = lazy_takes, .open = lazy_open,
                                         .close = lazy_close, .settle = lazy_settle, .bcast = lazy_bcast};
    struct cairn_channel *c, *d;
    struct cairn_error err;
    struct cairn_buffer *b;
    struct cairn_tensor t;
    const int64_t dim[1] = {4};
    uint64_t seq;

    (void)state;
    assert_int_equal(cairn_channel_open(&c, w->all, &cpu, &lazy, &err), CAIRN_EDEVICE);
    assert_int_equal(cairn_channel_open(&c, w->all, &other, &lazy, &err), CAIRN_OK);
    assert_int_equal(cairn_channel_open(&d, w->all, &cpu, NULL, &err), CAIRN_OK);
    assert_int_equal(cairn_buffer_create(&other, 4 * sizeof(float), &b, &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_view(&t, b, 0, CAIRN_F32, 1, dim, &err), CAIRN_OK);
    seq = w->all->seq;
    assert_int_equal(cairn_channel_bcast(c, &stream, "x", 0, &t, &err), CAIRN_OK);
    assert_int_equal(cairn_channel_bcast(c, &stream, "x", 0, &t, &err), CAIRN_OK);
    assert_int_equal(w->all->seq, seq + 2);
    assert_int_equal(settled, 0);
    assert_int_equal(cairn_group_barrier(w->commit, "x", &err), CAIRN_OK);
    assert_int_equal(settled, 2);
    settled = 0;
    assert_int_equal(cairn_group_barrier(w->commit, "x", &err), CAIRN_OK);
    assert_int_equal(settled, 0); /* nothing was in flight */
    assert_int_equal(cairn_channel_bcast(c, &stream, "x", 0, &t, &err), CAIRN_OK);
    assert_int_equal(cairn_channel_settle(c, &err), CAIRN_OK);
    assert_int_equal(settled, 3);
    cairn_buffer_destroy(b);
    cairn_channel_close(c);
    cairn_channel_close(d);
    assert_null(w->channels);
}

/* --- the watchdog, in a child whose stderr is read --- */

static int child(void (*fn)(void), char *text, size_t size)
{
    int fd[2], ws;
    pid_t pid;
    ssize_t got;
    size_t n = 0;

    assert_int_equal(pipe(fd), 0);
    pid = fork();
    if (!pid) {
        dup2(fd[1], STDERR_FILENO);
        fn();
        _exit(0);
    }
    close(fd[1]);
    while (n < size - 1 && (got = read(fd[0], text + n, size - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = 0;
    close(fd[0]);
    waitpid(pid, &ws, 0);
    return WIFEXITED(ws) ? WEXITSTATUS(ws) : -WTERMSIG(ws);
}

static void hang(void)
{
    struct cairn_world *x;

    if (cairn_world_open(&x, &(struct cairn_world_opts){.alone = 1, .deadline_s = 5}, NULL) != CAIRN_OK)
        _exit(1);
    cairn_world_watch_begin(x, "outer", -1, NULL);
    cairn_world_watch_begin(x, "shard 3", 0.3, NULL);
    cairn_sleep_s(20);
}

static void in_time(void)
{
    struct cairn_world *x;

    if (cairn_world_open(&x, &(struct cairn_world_opts){.alone = 1, .deadline_s = 0.3}, NULL) != CAIRN_OK)
        _exit(1);
    for (int i = 0; i < 8; i++) { /* together longer than the deadline, each shorter */
        cairn_world_watch_begin(x, "shard", 0, NULL);
        cairn_sleep_s(0.1);
        cairn_world_watch_end(x);
    }
    cairn_sleep_s(0.5);
    cairn_world_close(x, NULL);
}

static void aborting(void)
{
    struct cairn_world *x;

    if (cairn_world_open(&x, &(struct cairn_world_opts){.alone = 1}, NULL) == CAIRN_OK)
        cairn_world_abort(x, CAIRN_ENUMERIC);
}

static void deadlines(void **state)
{
    char text[2048];
    double t0 = cairn_now_s();

    (void)state;
    assert_int_equal(child(hang, text, sizeof text), CAIRN_EAGAIN);
    assert_true(cairn_now_s() - t0 < 5);
    assert_non_null(strstr(text, "rank 0 of 1"));
    assert_non_null(strstr(text, "wait (shard 3) waited"));
    assert_non_null(strstr(text, "code 75"));
    assert_int_equal(child(in_time, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(child(aborting, text, sizeof text), CAIRN_ENUMERIC);
}

/* Stopped as a whole for longer than the deadline: nobody is late. */
static void nap(void)
{
    struct cairn_world *x;

    if (cairn_world_open(&x, &(struct cairn_world_opts){.alone = 1}, NULL) != CAIRN_OK)
        _exit(1);
    cairn_world_watch_begin(x, "shard", 1.0, NULL);
    if (!fork()) {
        pid_t parent = getppid();

        kill(parent, SIGSTOP);
        cairn_sleep_s(1.5);
        kill(parent, SIGCONT);
        _exit(0);
    }
    cairn_sleep_s(0.2);
    wait(NULL);
    cairn_world_watch_end(x);
    cairn_world_close(x, NULL);
}

static void suspension_is_no_wait(void **state)
{
    char text[2048];

    (void)state;
    assert_int_equal(child(nap, text, sizeof text), 0);
    assert_string_equal(text, "");
}

int main(void)
{
    /* Those with children first: the thread sanitizer lets no child start threads whose parent had some when it forked. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deadlines),        cmocka_unit_test(suspension_is_no_wait),  cmocka_unit_test(alone_is_a_world),
        cmocka_unit_test(collectives_are_copies), cmocka_unit_test(launchers),
        cmocka_unit_test(no_wire),          cmocka_unit_test(channels_alone),         cmocka_unit_test(device_work_settles_first),
    };

    return cmocka_run_group_tests(tests, open_alone, close_alone);
}
