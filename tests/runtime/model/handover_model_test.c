/* handover_model_test.c - weights from trainers to samplers in processes of their own: equal bits on each path and however they are shared
 * out, the sums that a policy artefact has, damage told by name, an old generation that serves on.
 *
 * CAIRN_TEST_BACKEND=cuda (an emulated GPU): the path cuda-ipc within one process, which is all that can be had without a GPU.
 */
#include "tiny.h"

#include <signal.h>
#include <sys/resource.h>

#include "base/log.h"
#include "ckpt/tiles.h"
#include "model/handover.h"
#include "model/handover_impl.h"
#include "model/hf.h"
#include "model/shares.h"
#include "tests/kin.h"

/* In a process of its own: a sentence, and out. */
#undef OK
#define OK(call)                                                                                                                   \
    do {                                                                                                                           \
        struct cairn_error err_ = {0}, *err = &err_;                                                                               \
        if ((call) != CAIRN_OK) {                                                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, err_.text);                                                         \
            _exit(2);                                                                                                              \
        }                                                                                                                          \
    } while (0)

enum role { TRAINER = 1, SAMPLER = 2 };

struct scene {
    const char *backend, *path;
    int adapter;             /* 1: the adapter's table, 0: the model's */
    enum cairn_dtype dtype;
    int role[KIN_MOST], ranks;
    int shared;              /* 1: trainers hold shares of the masters */
    int in_place;
    const struct cairn_transport *transport;
    enum cairn_handover_send send;
    size_t chunk;
    int generations;
};

static const char *backend_name(void)
{
    const char *b = getenv("CAIRN_TEST_BACKEND");

    return b && *b ? b : "cpu";
}

/* The master value of element i of a parameter in a generation: the same for whoever holds it. */
static float master(int param, int64_t i, uint64_t generation)
{
    uint32_t x = (uint32_t)param * 2654435761u + (uint32_t)i * 40503u + (uint32_t)generation * 97u;

    x ^= x >> 15, x *= 0x2c1b3c6du, x ^= x >> 12, x *= 0x297a2d39u, x ^= x >> 15;
    return ((float)x * 0x1p-32f - 0.5f) * (1 + param % 7);
}

static float published(float x, enum cairn_dtype dtype)
{
    uint32_t u;

    if (dtype != CAIRN_BF16)
        return x;
    memcpy(&u, &x, sizeof u);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &u, sizeof x);
    return x;
}

static void fill(struct tiny *t, struct cairn_store *s, uint64_t generation, enum cairn_dtype dtype)
{
    for (int p = 0; p < s->table->count; p++) {
        const struct cairn_tensor *x = &s->tensor[p];
        int64_t n = cairn_tensor_count(x), row = n && x->dim[0] ? n / x->dim[0] : 0, from = s->row ? s->row[p] * row : 0;
        float *h = malloc((size_t)n * sizeof *h + 1);

        for (int64_t i = 0; x->buf && i < n; i++)
            h[i] = published(master(p, from + i, generation), dtype);
        if (x->buf)
            OK(cairn_values_set(&t->k, x, h, n, err));
        free(h);
    }
    OK(cairn_stream_wait(&t->k.stream, err));
}

/* 0: the store is this generation, bit for bit. */
static int64_t differences(struct tiny *t, const struct cairn_store *s, uint64_t generation, enum cairn_dtype dtype)
{
    int64_t bad = 0;

    for (int p = 0; p < s->table->count; p++) {
        int64_t n = cairn_tensor_count(&s->tensor[p]);
        float *h;

        if (s->table->param[p].frozen)
            continue;
        h = tiny_get(&t->k, &s->tensor[p]);
        for (int64_t i = 0; i < n; i++) {
            float want = published(master(p, i, generation), dtype);

            bad += memcmp(&h[i], &want, sizeof want) != 0;
        }
        free(h);
    }
    return bad;
}

/* The sum of the tiles of all tensors, as a shard of a policy artefact has them. */
static struct cairn_digest sums_of_shards(const struct cairn_param_table *t, uint64_t generation, enum cairn_dtype dtype)
{
    struct cairn_digest sum = {0, 0};

    for (int p = 0; p < t->count; p++) {
        struct cairn_slice s = cairn_slice_whole(t->param[p].name, dtype, t->param[p].ndim, t->param[p].dim);
        int64_t n = cairn_param_count(&t->param[p]);
        char each[CAIRN_TENSOR_NAME_MAX + 1];
        struct cairn_tiling tiling;
        unsigned char *h = malloc((size_t)n * 4);

        if (t->param[p].ndim == 3 && cairn_expert_name(s.name, -1, each, sizeof each))
            s.each = each;
        for (int64_t i = 0; i < n; i++) {
            float x = published(master(p, i, generation), dtype);

            if (dtype == CAIRN_BF16)
                memcpy(h + 2 * i, (char *)&x + 2, 2);
            else
                memcpy(h + 4 * i, &x, 4);
        }
        if (!t->param[p].frozen) {
            OK(cairn_tiling_init(&tiling, &s, "test", err));
            sum = cairn_digest_add(sum, cairn_tiling_hash(&tiling, 0, tiling.tiles, h, NULL));
        }
        free(h);
    }
    return sum;
}

struct stores {
    struct tiny t;
    const struct cairn_param_table *table;
    struct cairn_store give, take;
    struct cairn_shares shares;
};

static void stores_open(struct stores *s, const struct scene *c, int rank)
{
    int trainers = 0, own = 0;

    cairn_log_quiet(1);
    tiny_open(&s->t, c->backend, 1, TINY_SPARSE, c->adapter);
    s->table = c->adapter ? &s->t.adapter.table : &s->t.table;
    memset(&s->give, 0, sizeof s->give);
    memset(&s->take, 0, sizeof s->take);
    memset(&s->shares, 0, sizeof s->shares);
    for (int r = 0; r < c->ranks; r++) {
        own = r == rank ? trainers : own;
        trainers += c->role[r] & TRAINER ? 1 : 0;
    }
    if (c->role[rank] & TRAINER && c->shared) {
        OK(cairn_shares_create(&s->shares, s->table, err));
        OK(cairn_store_create_share(&s->give, s->table, &s->shares, trainers, own, s->t.k.dev, err));
    } else if (c->role[rank] & TRAINER) {
        OK(cairn_store_create(&s->give, s->table, s->t.k.dev, 1, err));
    }
    if (c->role[rank] & SAMPLER) {
        OK(cairn_weights_create(&s->take, s->table, &s->t.k, err));
        fill(&s->t, &s->take, 0, c->dtype);
    }
}

static void stores_close(struct stores *s)
{
    cairn_store_free(&s->give);
    cairn_store_free(&s->take);
    cairn_shares_free(&s->shares);
    tiny_close(&s->t);
}

static struct cairn_handover *open_handover(struct stores *s, const struct scene *c, struct cairn_world *w, double deadline)
{
    const struct cairn_handover_opts o = {.path = (enum cairn_handover_path)cairn_handover_path_parse(c->path),
                                          .table = s->table,
                                          .dtype = c->dtype,
                                          .give = c->role[w->rank] & TRAINER ? &s->give : NULL,
                                          .take = c->role[w->rank] & SAMPLER ? &s->take : NULL,
                                          .in_place = c->in_place,
                                          .compute = &s->t.k,
                                          .chunk_bytes = c->chunk,
                                          .deadline_s = deadline,
                                          .transport = c->transport,
                                          .send = c->send,
                                          .marks = 64};
    struct cairn_handover *h = NULL;

    OK(cairn_handover_open(&h, w->all, &o, err));
    return h;
}

/* The marks of the last give or take: from its begin to its end, in order of time, chunks among them; of the path of rings. */
static int marks_wrong(struct cairn_handover *h, uint64_t generation)
{
    struct cairn_handover_mark *m = NULL;
    int n = 0, bad = 0, chunks = 0;

    OK(cairn_handover_marks(h, &m, &n, err));
    for (int i = 0; i < n; i++) {
        bad += i && m[i].s < m[i - 1].s;
        chunks += m[i].chunk >= 0;
    }
    if (cairn_handover_path(h) == CAIRN_HANDOVER_NCCL)
        bad += n != 0;
    else
        bad += n < 3 || !chunks;
    if (bad)
        fprintf(stderr, "generation %d: %d marks, %d of chunks\n", (int)generation, n, chunks);
    free(m);
    return bad;
}

/* ---- all that can be shared out
 * ------------------------------------------------------------------------------------------------------- */

static int hand_over(struct cairn_world *w, void *arg)
{
    const struct scene *c = arg;
    struct stores s;
    struct cairn_handover *h;
    struct cairn_ring_tag tag;
    int bad = 0;

    stores_open(&s, c, w->rank);
    h = open_handover(&s, c, w, 20);
    bad += strcmp(cairn_handover_path_name(cairn_handover_path(h)), strcmp(c->path, "auto") ? c->path : "shm") != 0;
    for (uint64_t g = 1; g <= (uint64_t)c->generations && !bad; g++) {
        uint64_t got = 0;

        tag = (struct cairn_ring_tag){.step = (int64_t)g * 10, .policy = {g, 5}};
        if (c->role[w->rank] & TRAINER) {
            fill(&s.t, &s.give, g, CAIRN_F32);
            OK(cairn_handover_give(h, g, &tag, err));
        }
        if (c->role[w->rank] & SAMPLER) {
            bad += differences(&s.t, &s.take, g - 1, c->dtype) != 0; /* the old one serves until it is taken */
            memset(&tag, 0, sizeof tag);
            OK(cairn_handover_take(h, g, &got, &tag, err));
            bad += got != g || tag.step != (int64_t)g * 10 || tag.policy.lo != g || tag.policy.hi != 5;
            bad += differences(&s.t, &s.take, g, c->dtype) != 0;
            bad += !cairn_digest_equal(tag.weights, sums_of_shards(s.table, g, c->dtype));
        }
        bad += marks_wrong(h, g);
        OK(cairn_group_barrier(w->all, "step", err)); /* a trainer that ran ahead would be taken at its newest */
    }
    bad += cairn_handover_plan(h)->wire_bytes < cairn_handover_plan(h)->unique_bytes;
    bad += cairn_handover_plan(h)->wire_bytes > cairn_handover_plan(h)->unique_bytes + 64 * (size_t)s.table->count;
    OK(cairn_group_barrier(w->all, "end", err));
    cairn_handover_close(h);
    stores_close(&s);
    return bad ? 1 : 0;
}

static void run(struct scene c)
{
    c.backend = backend_name();
    c.ranks = 0;
    while (c.ranks < KIN_MOST && c.role[c.ranks])
        c.ranks++;
    c.generations = c.generations ? c.generations : 4;
    assert_int_equal(kin_run(c.ranks, hand_over, &c), 0);
}

static void shared_memory(void **state)
{
    (void)state;
    run((struct scene){.path = "auto", .adapter = 1, .dtype = CAIRN_BF16, .role = {TRAINER, SAMPLER}, .chunk = 4096});
    run((struct scene){.path = "shm", .adapter = 1, .dtype = CAIRN_F32, .role = {TRAINER, SAMPLER}, .in_place = 1, .chunk = 10000});
    run((struct scene){.path = "shm", .adapter = 0, .dtype = CAIRN_BF16, .role = {SAMPLER, TRAINER}, .chunk = 30000});
    run((struct scene){.path = "shm", .adapter = 1, .dtype = CAIRN_BF16, .role = {TRAINER | SAMPLER}, .generations = 20});
}

static void many_ranks(void **state)
{
    (void)state;
    run((struct scene){.path = "shm", .adapter = 1, .dtype = CAIRN_BF16, .role = {TRAINER, TRAINER, SAMPLER, SAMPLER}, .shared = 1, .chunk = 3000});
    run((struct scene){.path = "shm", .adapter = 0, .dtype = CAIRN_F32, .role = {TRAINER, TRAINER, SAMPLER, SAMPLER}, .in_place = 1, .chunk = 20000});
    run((struct scene){.path = "shm", .adapter = 0, .dtype = CAIRN_BF16, .role = {TRAINER, SAMPLER, TRAINER, TRAINER}, .shared = 1});
}

/* The chains of path nccl, over the host's transport. */
static void chains(void **state)
{
    (void)state;
    run((struct scene){
        .path = "nccl", .transport = &cairn_transport_host, .adapter = 1, .dtype = CAIRN_BF16, .role = {TRAINER, SAMPLER}, .chunk = 4096});
    run((struct scene){.path = "nccl",
                       .transport = &cairn_transport_host,
                       .adapter = 1,
                       .dtype = CAIRN_BF16,
                       .role = {TRAINER, SAMPLER, SAMPLER, SAMPLER},
                       .chunk = 2000});
    run((struct scene){.path = "nccl",
                       .transport = &cairn_transport_host,
                       .adapter = 0,
                       .dtype = CAIRN_BF16,
                       .role = {SAMPLER, TRAINER, TRAINER, SAMPLER},
                       .shared = 1,
                       .in_place = 1,
                       .chunk = 10000});
}

static void within_a_gpu(void **state)
{
    (void)state;
    run((struct scene){.path = "cuda-ipc", .adapter = 1, .dtype = CAIRN_F32, .role = {TRAINER | SAMPLER}, .in_place = 1, .chunk = 4096});
    run((struct scene){.path = "cuda-ipc", .adapter = 1, .dtype = CAIRN_BF16, .role = {TRAINER | SAMPLER}, .chunk = 3000});
}

/* A device's chunks are staged: three in flight, brought from pinned host memory. */
static void staged(void **state)
{
    (void)state;
    run((struct scene){
        .path = "shm", .adapter = 1, .dtype = CAIRN_F32, .role = {TRAINER, SAMPLER}, .ranks = 2, .in_place = 1, .chunk = 4096});
    run((struct scene){.path = "shm",
                       .adapter = 1,
                       .dtype = CAIRN_BF16,
                       .role = {TRAINER | SAMPLER, TRAINER},
                       .ranks = 2,
                       .shared = 1,
                       .chunk = 10000});
    run((struct scene){.path = "shm",
                       .adapter = 0,
                       .dtype = CAIRN_BF16,
                       .role = {TRAINER, SAMPLER},
                       .send = CAIRN_HANDOVER_STRAIGHT,
                       .chunk = 10000});
}

/* ---- what goes wrong -------------------------------------------------------------------------------------------------------------------- */

/* A byte changes between sending and reading: told by name, nothing is taken; repaired, it is. */
static int damage(struct cairn_world *w, void *arg)
{
    const struct scene *c = arg;
    struct stores s;
    struct cairn_handover *h;
    struct cairn_ring_tag tag = {.step = 1};
    struct cairn_error e = {0};
    int bad = 0;

    stores_open(&s, c, w->rank);
    h = open_handover(&s, c, w, 20);
    if (w->rank == 0) {
        fill(&s.t, &s.give, 1, CAIRN_F32);
        OK(cairn_handover_give(h, 1, &tag, err));
        OK(cairn_group_barrier(w->all, "given", err));
    } else {
        unsigned char *byte;

        OK(cairn_group_barrier(w->all, "given", err));
        byte = (unsigned char *)cairn_ring_data(h->read.ring, 0) + 12345;
        *byte ^= 4;
        bad += cairn_handover_take(h, 1, NULL, &tag, &e) != CAIRN_EDATA;
        bad += !strstr(e.text, "generation 1: chunk ") || !strstr(e.text, " ...) arrived with digest ");
        bad += differences(&s.t, &s.take, 0, c->dtype) != 0;
        *byte ^= 4;
        OK(cairn_handover_take(h, 1, NULL, &tag, err));
        bad += differences(&s.t, &s.take, 1, c->dtype) != 0;
    }
    OK(cairn_group_barrier(w->all, "end", err));
    cairn_handover_close(h);
    stores_close(&s);
    return bad;
}

/* The trainer dies while a chunk is on its way: the sampler waits in vain, and goes on with what it has. */
static int death(struct cairn_world *w, void *arg)
{
    const struct scene *c = arg;
    struct stores s;
    struct cairn_handover *h;
    struct cairn_ring_tag tag = {.step = 1};
    struct cairn_error e = {0};
    uint64_t g = 0;
    int bad = 0, slot = -1;

    stores_open(&s, c, w->rank);
    h = open_handover(&s, c, w, w->rank ? 0.5 : 20);
    if (w->rank == 0) {
        fill(&s.t, &s.give, 1, CAIRN_F32);
        OK(cairn_handover_give(h, 1, &tag, err));
        OK(cairn_group_barrier(w->all, "given", err));
        OK(cairn_group_barrier(w->all, "taken", err));
        OK(cairn_ring_begin(h->end[0].ring, 2, 1, &h->end[0].open, err));
        memset(cairn_ring_data(h->end[0].ring, h->end[0].open), 0x55, 1000);
        raise(SIGKILL);
    }
    OK(cairn_group_barrier(w->all, "given", err));
    OK(cairn_handover_take(h, 1, NULL, &tag, err));
    OK(cairn_group_barrier(w->all, "taken", err));
    for (int i = 0; i < 1000 && !cairn_ring_open_slot(h->read.ring, &g, &slot); i++)
        cairn_sleep_s(0.001);
    bad += g != 2;
    bad += cairn_handover_take(h, 2, NULL, &tag, &e) != CAIRN_EAGAIN;
    bad += differences(&s.t, &s.take, 1, c->dtype) != 0;
    bad += cairn_handover_generation(h) != 1;
    cairn_handover_close(h);
    stores_close(&s);
    return bad ? 1 : 128 + SIGKILL; /* what the parent sees of the other */
}

static void damaged(void **state)
{
    struct scene c = {.backend = "cpu", .path = "shm", .adapter = 1, .dtype = CAIRN_BF16, .role = {TRAINER, SAMPLER}, .ranks = 2, .chunk = 8192};

    (void)state;
    assert_int_equal(kin_run(2, damage, &c), 0);
    assert_int_equal(kin_run(2, death, &c), 128 + SIGKILL);
}

/* Paths that cannot be had are refused in a sentence, the same on all ranks. */
static int refusal(struct cairn_world *w, void *arg)
{
    static const struct {
        const char *path, *text;
    } cases[] = {{"cuda-ipc", "sync.path cuda-ipc: some ranks compute on the CPU; take auto, file or shm"},
                 {"nccl", "sync.path nccl: some ranks compute on the CPU; take auto, file or shm"}};
    struct scene c = *(const struct scene *)arg;
    struct stores s;
    int bad = 0;

    stores_open(&s, &c, w->rank);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cairn_handover_opts o = {.path = (enum cairn_handover_path)cairn_handover_path_parse(cases[i].path),
                                        .table = s.table,
                                        .dtype = CAIRN_BF16,
                                        .give = w->rank ? NULL : &s.give,
                                        .take = w->rank ? &s.take : NULL,
                                        .compute = &s.t.k};
        struct cairn_handover *h = NULL;
        struct cairn_error e = {0};

        bad += cairn_handover_open(&h, w->all, &o, &e) != CAIRN_EDEVICE || strcmp(e.text, cases[i].text) != 0;
        o.path = CAIRN_HANDOVER_FILE;
        OK(cairn_handover_open(&h, w->all, &o, err));
        bad += cairn_handover_path(h) != CAIRN_HANDOVER_FILE || cairn_handover_plan(h) != NULL;
        cairn_handover_close(h);
    }
    stores_close(&s);
    return bad;
}

/* No room for the ring, as a full /dev/shm has none: with auto everybody takes files, forced it is said. */
static int full(struct cairn_world *w, void *arg)
{
    const struct rlimit small = {65536, 65536};
    struct scene c = *(const struct scene *)arg;
    struct stores s;
    int bad = 0;

    stores_open(&s, &c, w->rank);
    signal(SIGXFSZ, SIG_IGN);
    if (w->rank && setrlimit(RLIMIT_FSIZE, &small)) /* the sampler's, who makes the memory */
        return 1;
    for (int forced = 0; forced < 2; forced++) {
        struct cairn_handover_opts o = {.path = forced ? CAIRN_HANDOVER_SHM : CAIRN_HANDOVER_AUTO,
                                        .table = s.table,
                                        .dtype = CAIRN_BF16,
                                        .give = w->rank ? NULL : &s.give,
                                        .take = w->rank ? &s.take : NULL,
                                        .compute = &s.t.k};
        struct cairn_handover *h = NULL;
        struct cairn_error e = {0};
        enum cairn_status st = cairn_handover_open(&h, w->all, &o, &e);

        bad += forced ? st != CAIRN_ENOSPACE || !strstr(e.text, "shared memory") : st != CAIRN_OK || cairn_handover_path(h) != CAIRN_HANDOVER_FILE;
        cairn_handover_close(h);
    }
    stores_close(&s);
    return bad;
}

/* A store that comes later: published weights, as a stage that stays alive has them. */
static int bound(struct cairn_world *w, void *arg)
{
    struct scene c = *(const struct scene *)arg;
    struct cairn_handover_opts o = {
        .path = CAIRN_HANDOVER_SHM, .dtype = CAIRN_BF16, .trainer = w->rank == 0, .sampler = w->rank == 1, .chunk_bytes = 4096};
    struct cairn_handover *h = NULL;
    struct cairn_ring_tag tag = {.step = 3};
    struct cairn_store store = {0};
    struct cairn_error e;
    struct stores s;
    int bad = 0;

    stores_open(&s, &c, 1 - w->rank); /* the other's stores: masters are not what was told */
    o.table = s.table;
    o.compute = &s.t.k;
    OK(cairn_handover_open(&h, w->all, &o, err));
    bad += w->rank == 0 && cairn_handover_give(h, 1, &tag, &e) != CAIRN_EBUG;
    OK(cairn_weights_create(&store, s.table, &s.t.k, err));
    if (w->rank == 0) {
        fill(&s.t, &store, 1, CAIRN_BF16);
        bad += cairn_handover_bind(h, NULL, &store, &e) != CAIRN_EBUG;
        OK(cairn_handover_bind(h, &store, NULL, err));
        OK(cairn_handover_give(h, 1, &tag, err));
    } else {
        OK(cairn_handover_bind(h, NULL, &store, err));
        OK(cairn_handover_take(h, 1, NULL, &tag, err));
        bad += differences(&s.t, &store, 1, CAIRN_BF16) != 0;
        bad += !cairn_digest_equal(tag.weights, sums_of_shards(s.table, 1, CAIRN_BF16));
    }
    OK(cairn_group_barrier(w->all, "end", err));
    cairn_handover_close(h);
    cairn_store_free(&store);
    stores_close(&s);
    return bad;
}

static void without_room(void **state)
{
    struct scene c = {.backend = "cpu", .adapter = 1, .dtype = CAIRN_BF16, .role = {TRAINER, SAMPLER}, .ranks = 2};

    (void)state;
    assert_int_equal(kin_run(2, full, &c), 0);
}

static void stores_come_later(void **state)
{
    struct scene c = {.backend = "cpu", .adapter = 1, .dtype = CAIRN_BF16, .role = {TRAINER, SAMPLER}, .ranks = 2};

    (void)state;
    assert_int_equal(kin_run(2, bound, &c), 0);
    c.adapter = 0;
    assert_int_equal(kin_run(2, bound, &c), 0);
}

static void refused(void **state)
{
    struct scene c = {.backend = "cpu", .adapter = 1, .dtype = CAIRN_BF16, .role = {TRAINER, SAMPLER}, .ranks = 2};

    (void)state;
    assert_int_equal(kin_run(2, refusal, &c), 0);
    assert_int_equal(cairn_handover_path_parse("cuda-ipc"), CAIRN_HANDOVER_IPC);
    assert_int_equal(cairn_handover_path_parse("rdma"), -1);
}

int main(void)
{
    const struct CMUnitTest host[] = {
        cmocka_unit_test(shared_memory), cmocka_unit_test(many_ranks), cmocka_unit_test(chains),
        cmocka_unit_test(damaged),       cmocka_unit_test(refused),    cmocka_unit_test(without_room),
        cmocka_unit_test(stores_come_later),
    };
    const struct CMUnitTest gpu[] = {cmocka_unit_test(within_a_gpu), cmocka_unit_test(staged)};

    return strcmp(backend_name(), "cpu") ? cmocka_run_group_tests(gpu, NULL, NULL) : cmocka_run_group_tests(host, NULL, NULL);
}
