/* product_ahead.c - see product_ahead.h. */
#include "product_ahead.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SIDE 2048 /* of n and k; a kernel is the same one for more */
#define ROWS 256

struct product_ahead {
    const struct cuda *d;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t told;
    int open, taken;        /* cuBLASLt was looked for; it is the caller's */
    struct product_lt *lt;  /* NULL: there is none */
    struct product_lt *own; /* the thread's: nothing says that two may use one at a time; what one has loaded serves the other */
    atomic_int stop;
    uint64_t lt_version;
    int n;
    struct product_wanted wanted[];
};

static int64_t at_most(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

/* Small, of the same kernel. */
static void shrink(struct product *p)
{
    int tn = p->form == CAIRN_TN;

    p->n = at_most(p->n, SIDE);
    p->m = at_most(p->m, tn ? SIDE : ROWS);
    p->k = at_most(p->k, tn ? ROWS : SIDE);
    p->part_k = p->k;
    p->batch = (int)at_most(p->batch, 2);
}

/* The same kernel was launched for one before i. */
static int launched(const struct product_ahead *a, int i)
{
    const struct product_wanted *w = &a->wanted[i];

    for (int j = 0; j < i; j++) {
        const struct product_wanted *v = &a->wanted[j];

        if (v->choice.kind == w->choice.kind && v->choice.which == w->choice.which && v->p.form == w->p.form && v->p.y_bf16 == w->p.y_bf16 &&
            v->p.accumulate == w->p.accumulate &&
            (w->choice.kind != KIND_LT || !memcmp(v->choice.lt.algo, w->choice.lt.algo, sizeof w->choice.lt.algo)))
            return 1;
    }
    return 0;
}

/* What fails here fails nothing: who wants the product meets the fault himself. */
static void launch_all(struct product_ahead *a, int lt_same)
{
    struct cuda *d = (struct cuda *)a->d; /* a call's, which changes nothing of it */
    struct cuda_stream str = {0};
    unsigned char *room = NULL;
    size_t most = 0;

    for (int i = 0; i < a->n; i++) {
        struct product_room r;

        shrink(&a->wanted[i].p);
        r = product_dense(&a->wanted[i].p);
        most = r.a + r.b + r.y > most ? r.a + r.b + r.y : most;
    }
    if (cudaStreamCreateWithFlags(&str.s, cudaStreamNonBlocking) != cudaSuccess)
        return;
    if (cudaMalloc((void **)&room, most) == cudaSuccess && cudaMemsetAsync(room, 0, most, str.s) == cudaSuccess)
        for (int i = 0; i < a->n && !atomic_load(&a->stop); i++) {
            struct call c = {.c = {.op = "matmul", .dev = &d->dev, .act = -1}, .cuda = d, .str = &str, .stream = str.s};
            struct product p = a->wanted[i].p;
            struct product_room r = product_dense(&p);

            if (launched(a, i) || (a->wanted[i].choice.kind == KIND_LT && !lt_same))
                continue;
            p.a = room, p.b = room + r.a, p.y = room + r.a + r.b;
            product_launch(&c, a->own, &p, &a->wanted[i].choice);
        }
    cudaStreamSynchronize(str.s);
    cudaFree(room);
    cudaFree(str.scratch);
    for (int i = 0; i < str.n_outgrown; i++)
        cudaFree(str.outgrown[i]);
    cudaStreamDestroy(str.s);
    cudaGetLastError();
}

static void *work(void *arg)
{
    struct product_ahead *a = arg;
    const int there = cudaSetDevice(a->d->ordinal) == cudaSuccess; /* else another card's would be opened */
    struct product_lt *lt = there ? product_lt_open() : NULL;

    pthread_mutex_lock(&a->lock);
    a->lt = lt;
    a->open = 1;
    pthread_cond_broadcast(&a->told);
    pthread_mutex_unlock(&a->lock);
    if (!there || atomic_load(&a->stop))
        return NULL;
    a->own = lt ? product_lt_open() : NULL;
    launch_all(a, a->own && product_lt_version(a->own) == a->lt_version);
    return NULL;
}

struct product_ahead *product_ahead_begin(const struct cuda *d, const struct product_wanted *wanted, int n, uint64_t lt_version)
{
    struct product_ahead *a = n > 0 ? calloc(1, sizeof *a + (size_t)n * sizeof *wanted) : NULL;
    sigset_t all, old;
    int begun = 0;

    if (!a)
        return NULL;
    a->d = d;
    a->lt_version = lt_version;
    a->n = n;
    memcpy(a->wanted, wanted, (size_t)n * sizeof *wanted);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->told, NULL);
    sigfillset(&all);
    if (!pthread_sigmask(SIG_SETMASK, &all, &old)) { /* signals are the caller's */
        begun = !pthread_create(&a->thread, NULL, work, a);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    if (begun)
        return a;
    pthread_cond_destroy(&a->told);
    pthread_mutex_destroy(&a->lock);
    free(a);
    return NULL;
}

struct product_lt *product_ahead_lt(struct product_ahead *a)
{
    struct product_lt *lt;

    pthread_mutex_lock(&a->lock);
    while (!a->open)
        pthread_cond_wait(&a->told, &a->lock);
    a->taken = 1;
    lt = a->lt;
    pthread_mutex_unlock(&a->lock);
    return lt;
}

void product_ahead_end(struct product_ahead *a)
{
    if (!a)
        return;
    atomic_store(&a->stop, 1);
    pthread_join(a->thread, NULL);
    product_lt_close(a->own);
    if (!a->taken)
        product_lt_close(a->lt);
    pthread_cond_destroy(&a->told);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
