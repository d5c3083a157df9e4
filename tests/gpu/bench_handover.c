/* bench_handover.c - how long weights take from a trainer to a sampler, two processes on two GPUs (or on one, or on the CPU).
 *
 *     bench_handover TABLE PATH GPU_OF_TRAINER GPU_OF_SAMPLER [REPEATS]
 *     bench_handover kill TABLE nccl GPU_OF_TRAINER GPU_OF_SAMPLER [DEADLINE]   the sampler is killed while a chunk travels: how long until the
 *                                            trainer has gone, and how. Not 0 unless it leaves with 75 within twice the deadline (s, 5) and 5 s
 *     bench_handover ring [SWITCHES]         from a commit to a reader of another process that sees it, on this CPU
 *         TABLE    tensors18040: 18,040 matrices of a rank-32 adapter, 2.0 GB in bf16 · tensors18040/16: a sixteenth of each
 *                  CONFIG.json: the rank-32 adapter of every linear layer of that model (fp32 masters)
 *         PATH     cuda-ipc, shm, nccl; with -1 for both GPUs shm on the CPU
 *         CHUNK_MIB=N     other chunks than CAIRN_TRANSIT_CHUNK
 *         SEND=straight   kernels write the place; staged: a room and a copy; else what the product does
 *         TIMELINE=PREFIX what happened when in the last handover: PREFIX.trainer and PREFIX.sampler, lines of microseconds since
 *                         both were ready, host or device, what, chunk, begin or end. The marks cost a little time.
 *
 * Masters are f32 on the trainer, bf16 travels: cast, packed, sent, summed up on both sides, compared, switched in place. The clock runs on the
 * sampler's side from the moment that both are ready to the moment that its store is the new generation, and on the trainer's to the
 * commit; visible is from the trainer's commit to the sampler's switch. Beside it, in the same run and turn about: a plain copy of the same bytes
 * from device to device (or pinned host memory to the device, or memory to memory). One JSON line. Idea of interleaving and of the peer: spec of the
 * project's speed figures.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "model/adapter.h"
#include "model/handover.h"
#include "tests/kin.h"

#define MOST 1024

struct job {
    const char *table, *path;
    int gpu[2], repeats;
};

static void must(enum cairn_status st, const struct cairn_error *err, const char *what)
{
    if (st == CAIRN_OK)
        return;
    fprintf(stderr, "bench_handover: %s: %s\n", what, err->text);
    _exit((int)st);
}

/* ---- the table ----------------------------------------------------------------------------------------------------------------- */

/* 18,040 matrices, A (32, 2048) and B (1428, 32) in turn: 1.0024 billion elements. */
static enum cairn_status many(struct cairn_param_table *t, int64_t divide, struct cairn_error *err)
{
    enum cairn_status st = cairn_param_table_begin(t, err);

    for (int i = 0; i < 18040 && st == CAIRN_OK; i++) {
        char name[160];
        struct cairn_param p = {.name = name, .layer = i / 392, .ndim = 2, .decay = 1};

        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.gate_proj.lora_%c.weight", i / 392, i % 392 / 2, "AB"[i % 2]);
        p.dim[0] = i % 2 ? 1428 / divide : 32;
        p.dim[1] = i % 2 ? 32 : 2048 / divide;
        st = cairn_param_table_add(t, &p, err);
    }
    return st == CAIRN_OK ? cairn_param_table_finish(t, err) : st;
}

static enum cairn_status table_make(struct cairn_param_table *t, const char *what, struct cairn_error *err)
{
    static const char *const all[] = {"all-linear", NULL};
    const struct cairn_adapter_spec spec = {.rank = 32, .alpha = 32, .targets = all};
    static struct cairn_param_table base;
    static struct cairn_model_config c;
    static struct cairn_adapter a;
    json_t *v = NULL;
    enum cairn_status st;

    if (!strcmp(what, "tensors18040"))
        return many(t, 1, err);
    if (!strcmp(what, "tensors18040/16"))
        return many(t, 16, err);
    TRY(cairn_json_load(&v, what, 1 << 20, err));
    TRY(cairn_config_parse(&c, v, what, err));
    TRY(cairn_param_table_create(&base, &c, err));
    TRY(cairn_adapter_create(&a, &base, &c, &spec, err));
    *t = a.table;
out:
    json_decref(v);
    return st;
}

/* Tensors by their own names (experts each by itself), and what would travel if what experts share were copied for each of them. */
static void count(const struct cairn_param_table *t, int64_t *tensors, int64_t *expanded)
{
    int64_t experts = 1;

    *tensors = *expanded = 0;
    for (int i = 0; i < t->count; i++)
        experts = t->param[i].ndim == 3 && t->param[i].dim[0] > experts ? t->param[i].dim[0] : experts;
    for (int i = 0; i < t->count; i++) {
        *tensors += t->param[i].ndim == 3 ? t->param[i].dim[0] : 1;
        *expanded += cairn_param_count(&t->param[i]) * 2 * (t->param[i].ndim == 2 && strstr(t->param[i].name, "shared_experts") ? experts : 1);
    }
}

/* ---- what is in memory ------------------------------------------------------------------------------------------------------------ */

/* Different values for every generation, cheaply: the first store is random, later ones are scaled. */
static void fill(struct cairn_compute *k, struct cairn_store *s, struct cairn_error *err)
{
    int64_t n = cairn_tensor_count(&s->flat), block = n < 1 << 22 ? n : 1 << 22;
    float *h = malloc((size_t)block * sizeof *h);
    uint64_t x = 0x9e3779b97f4a7c15u;

    if (!h)
        _exit(73);
    for (int64_t i = 0; i < block; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        h[i] = (float)((double)(x >> 11) * 0x1p-53 - 0.5);
    }
    for (int64_t i = 0; i < n; i += block) {
        struct cairn_tensor part = cairn_tensor_slice(&s->flat, 0, i, n - i < block ? n - i : block);

        must(cairn_tensor_set(&k->stream, &part, h, cairn_tensor_bytes(&part), err), err, "masters");
    }
    must(cairn_stream_wait(&k->stream, err), err, "masters");
    free(h);
}

static void scale(struct cairn_compute *k, struct cairn_store *s, float by, struct cairn_error *err)
{
    struct cairn_axpby a = {.x = s->flat, .y = s->flat, .a = by, .b = 0};

    must(k->ops.axpby(&k->stream, &a, err), err, "scale");
    must(cairn_stream_wait(&k->stream, err), err, "scale");
}

/* W = cast(master), compared bit by bit on the host for a sample of the tensors. */
static int64_t differences(struct cairn_compute *k, const struct cairn_store *s, const struct cairn_param_table *t, float by, struct cairn_error *err)
{
    uint64_t x = 0x9e3779b97f4a7c15u;
    int64_t block = (int64_t)(t->trainable_bytes / 4) < 1 << 22 ? (int64_t)(t->trainable_bytes / 4) : 1 << 22, bad = 0;
    float *want = malloc((size_t)block * sizeof *want);

    if (!want)
        _exit(73);
    for (int64_t i = 0; i < block; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        want[i] = by * (float)((double)(x >> 11) * 0x1p-53 - 0.5);
    }
    for (int i = 0; i < t->count; i += 1 + t->count / 97) {
        int64_t n = cairn_param_count(&t->param[i]), at = (int64_t)((t->param[i].offset - t->trainable_begin) / 4);
        size_t size = cairn_dtype_size(s->tensor[i].dtype);
        unsigned char *got = malloc((size_t)n * size);

        must(cairn_tensor_get(&k->stream, &s->tensor[i], got, (size_t)n * size, err), err, "look");
        for (int64_t j = 0; j < n; j++) {
            float f = want[(at + j) % block];
            uint32_t u, v = 0;

            memcpy(&u, &f, sizeof u);
            u = (u + 0x7fff + (u >> 16 & 1)) >> 16;
            memcpy(&v, got + (size_t)j * size, size);
            bad += (size == 2 ? v : v >> 16) != u || (size == 4 && v & 0xffff);
        }
        free(got);
    }
    free(want);
    return bad;
}

/* ---- the plain copy ------------------------------------------------------------------------------------------------------------------- */

struct bare {
    struct cairn_buffer *from, *to;
    struct cairn_tensor src, dst;
};

static void bare_copy(struct cairn_compute *k, const struct bare *b, struct cairn_error *err)
{
    must(cairn_tensor_copy(&k->stream, &b->dst, &b->src, err), err, "copy");
    must(cairn_stream_wait(&k->stream, err), err, "copy");
}

/* Trainer: its device's memory to the sampler's; on shm with GPUs the sampler: pinned host memory to its device. */
static void bare_open(struct cairn_world *w, struct cairn_compute *k, struct bare *b, const char *path, int64_t bytes, int trainer,
                      struct cairn_error *err)
{
    struct cairn_share own = {0}, all[2];
    struct cairn_buffer *mine = NULL;
    int host = !strcmp(k->dev->name, "cpu"), shm = !strcmp(path, "shm");
    void *p;

    if (!trainer || host)
        must(cairn_buffer_create(k->dev, (size_t)bytes, &mine, err), err, "memory of the copy");
    if (!trainer && !host && !shm)
        must(cairn_buffer_export(mine, &own, err), err, "name of the copy's memory");
    must(cairn_group_allgather(w->all, "copy", &own, sizeof own, all, err), err, "copy");
    if (host) { /* memory to memory, in the trainer */
        must(cairn_buffer_create(k->dev, (size_t)bytes, &b->from, err), err, "memory of the copy");
        b->to = mine;
        memset(cairn_buffer_open(b->from, CAIRN_WRITE), 1, (size_t)bytes);
        memset(cairn_buffer_open(b->to, CAIRN_WRITE), 1, (size_t)bytes);
        cairn_buffer_close(b->from);
        cairn_buffer_close(b->to);
    } else if (shm && !trainer) {
        p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            _exit(73);
        memset(p, 1, (size_t)bytes);
        must(cairn_buffer_pin(k->dev, p, (size_t)bytes, &b->from, err), err, "pinned memory");
        b->to = mine;
    } else if (!shm && trainer) {
        must(cairn_buffer_create(k->dev, (size_t)bytes, &b->from, err), err, "memory of the copy");
        must(cairn_buffer_import(k->dev, &all[1], &b->to, err), err, "memory of the other GPU");
    }
    if (!b->from)
        return;
    must(cairn_tensor_view(&b->src, b->from, 0, CAIRN_U8, 1, &bytes, err), err, "copy");
    must(cairn_tensor_view(&b->dst, b->to, 0, CAIRN_U8, 1, &bytes, err), err, "copy");
}

/* ---- the run ---------------------------------------------------------------------------------------------------------------------------- */

static int open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_size);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

static long resident(void) /* KiB */
{
    FILE *f = fopen("/proc/self/statm", "re");
    long size = 0, pages = 0;

    if (f && fscanf(f, "%ld %ld", &size, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int gpu_used(int gpu) /* MiB, by whomever */
{
    char line[100];
    FILE *f;
    int mib = 0;

    snprintf(line, sizeof line, "nvidia-smi -i %d --query-gpu=memory.used --format=csv,noheader,nounits", gpu);
    if ((f = popen(line, "r"))) {
        if (fscanf(f, "%d", &mib) != 1)
            mib = 0;
        pclose(f);
    }
    return mib;
}

/* Since `zero`, by the clock of the host. */
static void timeline(struct cairn_handover *h, double zero, int trainer, struct cairn_error *err)
{
    const char *prefix = getenv("TIMELINE");
    struct cairn_handover_mark *m = NULL;
    char path[512];
    FILE *f;
    int n;

    if (!prefix)
        return;
    must(cairn_handover_marks(h, &m, &n, err), err, "timeline");
    snprintf(path, sizeof path, "%s.%s", prefix, trainer ? "trainer" : "sampler");
    if (!(f = fopen(path, "we")))
        _exit(74);
    for (int i = 0; i < n; i++)
        fprintf(f, "%10.1f %-6s %-6s %3d %s\n", 1e6 * (m[i].s - zero), m[i].device ? "device" : "host", m[i].what, m[i].chunk,
                m[i].end ? "end" : "begin");
    fclose(f);
    free(m);
}

static enum cairn_handover_send send_as(void)
{
    const char *s = getenv("SEND");

    return s && !strcmp(s, "straight") ? CAIRN_HANDOVER_STRAIGHT
           : s && !strcmp(s, "staged") ? CAIRN_HANDOVER_STAGED
                                       : CAIRN_HANDOVER_BEST;
}

struct times {
    double ready, end, copy; /* s */
};

static float job_scale(int generations) /* what the scales of so many make */
{
    float s = 1;

    for (int i = 0; i < generations; i++)
        s *= i % 64 < 32 ? 0.5f : 2.0f;
    return s;
}

static int body(struct cairn_world *w, void *arg)
{
    const struct job *job = arg;
    const int trainer = w->rank == 0, cpu = job->gpu[0] < 0;
    const struct cairn_compute_opts how = {.backend = cpu ? "cpu" : "cuda", .rank = cpu ? 0 : job->gpu[w->rank], .threads = cpu ? 1 : 0};
    struct cairn_param_table t = {0};
    struct cairn_store store = {0};
    struct cairn_compute k;
    struct cairn_handover *h = NULL;
    struct cairn_error err = {0};
    struct bare bare = {0};
    const struct cairn_transit *plan;
    struct cairn_ring_tag tag = {0};
    static double ours[MOST], theirs[MOST], ratio[MOST], visible[MOST];
    double opened = cairn_now_s();
    int64_t tensors, expanded, bytes, bad = 0;
    int n = job->repeats, files = 0, gpu_mib = 0;
    long rss = 0;

    must(cairn_compute_open(&k, &how, &err), &err, "device");
    must(table_make(&t, job->table, &err), &err, "table");
    count(&t, &tensors, &expanded);
    bytes = (int64_t)(t.trainable_bytes / 2);
    must(trainer ? cairn_store_create(&store, &t, k.dev, 1, &err) : cairn_weights_create(&store, &t, &k, &err), &err, "store");
    if (trainer)
        fill(&k, &store, &err);
    {
        const struct cairn_handover_opts o = {.path = (enum cairn_handover_path)cairn_handover_path_parse(job->path),
                                              .table = &t,
                                              .dtype = CAIRN_BF16,
                                              .give = trainer ? &store : NULL,
                                              .take = trainer ? NULL : &store,
                                              .in_place = 1,
                                              .compute = &k,
                                              .send = send_as(),
                                              .marks = getenv("TIMELINE") ? 20000 : 0,
                                              .chunk_bytes = getenv("CHUNK_MIB") ? (size_t)atoi(getenv("CHUNK_MIB")) << 20 : 0};

        opened = cairn_now_s();
        must(cairn_handover_open(&h, w->all, &o, &err), &err, "open");
        opened = cairn_now_s() - opened;
    }
    plan = cairn_handover_plan(h);
    bare_open(w, &k, &bare, job->path, bytes, trainer, &err);
    for (int i = -3; i < n; i++) { /* three to warm up */
        struct times own = {0}, all[2];

        if (trainer)
            scale(&k, &store, (i + 3) % 64 < 32 ? 0.5f : 2.0f, &err); /* within the range of floats for ever */
        if (bare.from)
            bare_copy(&k, &bare, &err);
        must(cairn_group_barrier(w->all, "copy", &err), &err, "copy");
        own.copy = cairn_now_s();
        if (bare.from)
            bare_copy(&k, &bare, &err);
        own.copy = bare.from ? cairn_now_s() - own.copy : 0;
        must(cairn_group_barrier(w->all, "handover", &err), &err, "handover");
        own.ready = cairn_now_s();
        must(trainer ? cairn_handover_give(h, (uint64_t)(i + 4), &tag, &err) : cairn_handover_take(h, (uint64_t)(i + 4), NULL, &tag, &err), &err,
             trainer ? "give" : "take");
        own.end = cairn_now_s();
        must(cairn_group_allgather(w->all, "times", &own, sizeof own, all, &err), &err, "times");
        if (i == 0) {
            files = open_files();
            rss = resident();
            gpu_mib = cpu ? 0 : gpu_used(job->gpu[1]);
        }
        if (i < 0)
            continue;
        if (i == n - 1)
            timeline(h, all[0].ready > all[1].ready ? all[0].ready : all[1].ready, trainer, &err);
        ours[i] = all[1].end - (all[0].ready > all[1].ready ? all[0].ready : all[1].ready);
        theirs[i] = all[0].copy > 0 ? all[0].copy : all[1].copy;
        ratio[i] = theirs[i] / ours[i];
        visible[i] = all[1].end - all[0].end;
    }
    if (!trainer)
        bad = differences(&k, &store, &t, job_scale(n + 3), &err);
    if (!trainer) {
        double a = median(ours, n), b = median(theirs, n), v = median(visible, n), slowest = visible[n - 1];
        long rss_more = resident() - rss;
        int gpu_more = cpu ? 0 : gpu_used(job->gpu[1]) - gpu_mib, files_more = open_files() - files;

        printf("{\"bench\": \"handover\", \"table\": \"%s\", \"path\": \"%s\", \"send\": \"%s\", \"devices\": \"%s %d -> %d\", "
               "\"tensors\": %lld, \"bytes\": %zu, "
               "\"wire_over_unique\": %.6f, \"expanded_over_unique\": %.1f, \"chunks\": %d, \"open_s\": %.3f, \"ms\": %.3f, "
               "\"GBps\": %.1f, "
               "\"copy_ms\": %.3f, \"copy_GBps\": %.1f, \"of_copy\": %.3f, \"of_copy_min\": %.3f, "
               "\"visible_us\": %.1f, \"visible_us_max\": %.1f, \"repeats\": %d, \"files_more\": %d, \"rss_more_KiB\": %ld, \"gpu_more_MiB\": %d, "
               "\"wrong\": %lld}\n",
               job->table, job->path, getenv("SEND") ? getenv("SEND") : "", cpu ? "cpu" : "cuda", job->gpu[0], job->gpu[1],
               (long long)tensors, plan->unique_bytes, (double)plan->wire_bytes / (double)plan->unique_bytes,
               (double)expanded / (double)plan->unique_bytes, plan->chunks, opened, 1e3 * a, (double)plan->unique_bytes / a * 1e-9,
               1e3 * b, (double)bytes / b * 1e-9, median(ratio, n), ratio[0], 1e6 * v, 1e6 * slowest, n, files_more, rss_more,
               gpu_more, (long long)bad);
        fflush(stdout);
    }
    must(cairn_group_barrier(w->all, "end", &err), &err, "end");
    cairn_handover_close(h);
    cairn_buffer_destroy(bare.from);
    must(cairn_group_barrier(w->all, "end", &err), &err, "end");
    cairn_buffer_destroy(bare.to);
    cairn_store_free(&store);
    cairn_compute_close(&k);
    return bad ? 76 : 0;
}

/* ---- a peer that dies --------------------------------------------------------------------------------------------------------------------- */

struct victim {
    const struct job *job;
    double deadline_s;
    struct seen { /* shared by the processes */
        _Atomic double began, killed;
        _Atomic int given;
    } *seen;
};

/* Ends the process a little after a handover began. */
static void *die(void *arg)
{
    struct victim *v = arg;

    while (!atomic_load(&v->seen->began))
        cairn_sleep_s(0.00001);
    cairn_sleep_s(0.002);
    atomic_store(&v->seen->killed, cairn_now_s());
    raise(SIGKILL);
    return NULL;
}

static int kill_body(struct cairn_world *w, void *arg)
{
    struct victim *v = arg;
    const int trainer = w->rank == 0;
    const struct cairn_compute_opts how = {
        .backend = v->job->gpu[0] < 0 ? "cpu" : "cuda", .rank = v->job->gpu[0] < 0 ? 0 : v->job->gpu[w->rank], .threads = 1};
    struct cairn_param_table t = {0};
    struct cairn_store store = {0};
    struct cairn_compute k;
    struct cairn_handover *h = NULL;
    struct cairn_error err = {0};
    struct cairn_ring_tag tag = {0};
    enum cairn_status st = CAIRN_OK;
    pthread_t thread;

    must(cairn_compute_open(&k, &how, &err), &err, "device");
    must(table_make(&t, v->job->table, &err), &err, "table");
    must(trainer ? cairn_store_create(&store, &t, k.dev, 1, &err) : cairn_weights_create(&store, &t, &k, &err), &err, "store");
    if (trainer)
        fill(&k, &store, &err);
    {
        const struct cairn_handover_opts o = {.path = (enum cairn_handover_path)cairn_handover_path_parse(v->job->path),
                                              .table = &t,
                                              .dtype = CAIRN_BF16,
                                              .give = trainer ? &store : NULL,
                                              .take = trainer ? NULL : &store,
                                              .in_place = 1,
                                              .compute = &k,
                                              .transport = v->job->gpu[0] < 0 ? &cairn_transport_host : NULL};

        must(cairn_handover_open(&h, w->all, &o, &err), &err, "open");
    }
    w->all->deadline_s = v->deadline_s; /* not of the start: NCCL's takes its time */
    if (!trainer && pthread_create(&thread, NULL, die, v))
        return 73;
    for (uint64_t g = 1; st == CAIRN_OK && g < 1000; g++) {
        must(cairn_group_barrier(w->all, "handover", &err), &err, "handover");
        if (g == 4)
            atomic_store(&v->seen->began, cairn_now_s());
        st = trainer ? cairn_handover_give(h, g, &tag, &err) : cairn_handover_take(h, g, NULL, &tag, &err);
        if (trainer && st == CAIRN_OK)
            atomic_store(&v->seen->given, (int)g);
    }
    fprintf(stderr, "bench_handover: %s\n", err.text);
    _exit((int)st); /* as a process leaves whose peers are lost: nothing more is waited for */
}

static int kill_run(const struct job *job, double deadline_s)
{
    struct victim v = {job, deadline_s, mmap(NULL, sizeof *v.seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    int left, ok;
    double gone;

    if (v.seen == MAP_FAILED)
        return 73;
    left = kin_run(2, kill_body, &v); /* the trainer's way to leave */
    gone = cairn_now_s() - atomic_load(&v.seen->killed);
    ok = left == CAIRN_EAGAIN && gone < 2 * deadline_s + 5;
    printf(
        "{\"bench\": \"killed peer\", \"table\": \"%s\", \"path\": \"%s\", \"deadline_s\": %.1f, \"killed_in_generation\": %d, \"all_gone_s\": %.3f, "
        "\"left_with\": %d, \"ok\": %d}\n",
        job->table, job->path, deadline_s, atomic_load(&v.seen->given) + 1, gone, left, ok);
    return ok ? 0 : 1;
}

/* ---- the switch alone ------------------------------------------------------------------------------------------------------------------- */

static int ring_body(struct cairn_world *w, void *arg)
{
    const int n = *(const int *)arg, writer = w->rank == 0;
    const struct cairn_ring_opts o = {.slots = 3, .chunks = 1, .slot_bytes = 4096};
    struct cairn_ring_place own = {.fd = -1}, all[2];
    struct cairn_ring *r = NULL;
    struct cairn_error err = {0};
    struct cairn_ring_view v = {0};
    double *us = calloc((size_t)n + 1, sizeof *us), sum = 0;
    int seen = 0;

    if (!us)
        return 73;
    if (writer) {
        must(cairn_ring_create(&r, &o, &err), &err, "ring");
        cairn_ring_place(r, &own);
    }
    must(cairn_group_allgather(w->all, "ring", &own, sizeof own, all, &err), &err, "ring");
    if (!writer)
        must(cairn_ring_attach(&r, &all[0], o.layout, &err), &err, "ring");
    must(cairn_group_barrier(w->all, "ring", &err), &err, "ring");
    for (int g = 1; writer && g <= n; g++) {
        struct cairn_ring_tag tag = {0};
        int slot;

        must(cairn_ring_begin(r, (uint64_t)g, 20, &slot, &err), &err, "begin");
        must(cairn_ring_land(r, slot, (uint64_t)g, 0, (struct cairn_digest){1, 2}, &err), &err, "land");
        tag.step = (int64_t)(cairn_now_s() * 1e9);
        must(cairn_ring_commit(r, slot, (uint64_t)g, &tag, &err), &err, "commit");
        cairn_sleep_s(0.0001);
    }
    for (uint64_t last = 0; !writer && last < (uint64_t)n;) {
        double now;

        if (cairn_ring_pin(r, &v, &err) != CAIRN_OK)
            continue;
        now = cairn_now_s();
        if (v.generation != last)
            us[seen++] = (now * 1e9 - (double)v.tag.step) * 1e-3;
        last = v.generation;
        cairn_ring_unpin(r, v.slot);
    }
    if (!writer) {
        double m = median(us, seen);

        for (int i = 0; i < seen; i++)
            sum += us[i];
        printf("{\"bench\": \"ring\", \"switches\": %d, \"seen\": %d, \"us_median\": %.2f, \"us_mean\": %.2f, \"us_p99\": %.2f, \"us_max\": %.1f}\n",
               n, seen, m, sum / seen, us[(size_t)seen * 99 / 100], us[seen - 1]);
        fflush(stdout);
    }
    cairn_ring_close(r);
    free(us);
    return 0;
}

int main(int argc, char **argv)
{
    struct job job = {.repeats = argc > 5 ? atoi(argv[5]) : 15};

    if (argc > 1 && !strcmp(argv[1], "ring")) {
        int n = argc > 2 ? atoi(argv[2]) : 10000;

        return n > 0 ? kin_run(2, ring_body, &n) : 64;
    }
    if (argc > 5 && !strcmp(argv[1], "kill") && !strcmp(argv[3], "nccl")) {
        job = (struct job){argv[2], argv[3], {atoi(argv[4]), atoi(argv[5])}, 1};
        return kill_run(&job, argc > 6 ? atof(argv[6]) : 5);
    }
    if (argc < 5 || cairn_handover_path_parse(argv[2]) < 2 || job.repeats < 1 || job.repeats > MOST) {
        fprintf(stderr, "usage: bench_handover TABLE shm|cuda-ipc|nccl GPU_OF_TRAINER GPU_OF_SAMPLER [REPEATS, at most 1024]\n");
        return 64;
    }
    job.table = argv[1];
    job.path = argv[2];
    job.gpu[0] = atoi(argv[3]);
    job.gpu[1] = atoi(argv[4]);
    return kin_run(2, body, &job);
}
