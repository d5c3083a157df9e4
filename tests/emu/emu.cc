/* emu.cc - fibres, barriers and memory of the emulated GPU; see emu.h. Host threads take turns, a launch or an allocation each. */
#include "cuda_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#define MAX_THREADS 1024
#define STACK       ((128 << 10) + 1088) /* no power of two: else the tops of all stacks meet in the same few lines of the caches */
#define SHARED      (227 << 10)
#ifdef MAP_32BIT
#define LOW MAP_32BIT /* shared memory has addresses of 32 bits */
#else
#define LOW 0
#endif

enum state { READY, AT_BARRIER, IN_WARP, DONE };

struct fibre {
    void *sp; /* of a fibre that is not running */
    char *stack;
    uint3 tid;
    unsigned mask; /* IN_WARP: who meets */
    struct emu_words give;
    int vote; /* AT_BARRIER */
#if !defined(__x86_64__)
    ucontext_t ctx;
#endif
};

struct emu_place emu_grid;
char *emu_dynamic_shared;

static struct fibre fibres[MAX_THREADS], *now;
static unsigned char state[MAX_THREADS];                /* enum state, of each fibre */
static struct emu_words met[MAX_THREADS / 32][32]; /* what the lanes of each warp gave where they met last */
static int threads, votes, turns;
static emu_body_fn *body;
static void *body_ctx;
static const char *kernel;

#if defined(__x86_64__)
/* Saves what the ABI says a call preserves, and goes over to another stack. */
extern "C" void emu_switch(void **from, void *to);
__asm__(".text\n.globl emu_switch\n.hidden emu_switch\n.type emu_switch,@function\nemu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n.size emu_switch,.-emu_switch\n");
static void *main_sp;

static void leave(void)
{
    emu_switch(&now->sp, main_sp);
}

static void fibre_main(void)
{
    body(body_ctx);
    state[now - fibres] = DONE;
    leave();
    abort();
}

static void prepare(struct fibre *f)
{
    void **sp = (void **)(f->stack + STACK - 64);

    *--sp = NULL; /* where fibre_main would return to; also aligns its stack as a call does */
    *--sp = (void *)fibre_main;
    for (int i = 0; i < 6; i++)
        *--sp = NULL;
    f->sp = sp;
}

static void go(struct fibre *f)
{
    now = f;
    emu_switch(&main_sp, f->sp);
}
#else
static ucontext_t main_ctx;

static void leave(void)
{
    swapcontext(&now->ctx, &main_ctx);
}

static void fibre_main(void)
{
    body(body_ctx);
    state[now - fibres] = DONE;
}

static void prepare(struct fibre *f)
{
    getcontext(&f->ctx);
    f->ctx.uc_stack.ss_sp = f->stack;
    f->ctx.uc_stack.ss_size = STACK;
    f->ctx.uc_link = &main_ctx;
    makecontext(&f->ctx, fibre_main, 0);
}

static void go(struct fibre *f)
{
    now = f;
    swapcontext(&main_ctx, &f->ctx);
}
#endif

const uint3 &emu_thread(void)
{
    return now->tid;
}

int emu_count(int x)
{
    now->vote = x != 0;
    state[now - fibres] = AT_BARRIER;
    leave();
    return votes;
}

void emu_barrier(void)
{
    emu_count(0);
}

const struct emu_words *emu_exchange(unsigned mask, struct emu_words mine)
{
    now->mask = mask;
    now->give = mine;
    state[now - fibres] = IN_WARP;
    leave();
    return met[(now - fibres) / 32];
}

/* Lets go the lanes of the warp at w0 that all of a mask have come to. */
static int meet_warp(int w0)
{
    const int lanes = threads - w0 < 32 ? threads - w0 : 32;
    unsigned waiting = 0;
    int let_go = 0;

    for (int l = 0; l < lanes; l++)
        waiting |= (unsigned)(state[w0 + l] == IN_WARP) << l;
    while (waiting) {
        const unsigned mask = fibres[w0 + __builtin_ctz(waiting)].mask;
        unsigned here = 0;

        for (int l = 0; l < lanes; l++)
            here |= (unsigned)((waiting >> l & 1) && fibres[w0 + l].mask == mask) << l;
        waiting &= ~here;
        if ((here & mask) != mask)
            continue;
        for (int l = 0; l < lanes; l++) {
            if (!let_go)
                met[w0 / 32][l] = fibres[w0 + l].give;
            if (mask >> l & 1)
                state[w0 + l] = READY;
        }
        let_go++;
    }
    return let_go;
}

static int meet_block(void)
{
    int alive = 0, here = 0, sum = 0;

    for (int i = 0; i < threads; i++) {
        alive += state[i] != DONE;
        here += state[i] == AT_BARRIER;
    }
    if (!here || here != alive)
        return 0;
    for (int i = 0; i < threads; i++)
        if (state[i] == AT_BARRIER) {
            sum += fibres[i].vote;
            state[i] = READY;
        }
    votes = sum;
    return here;
}

static void stuck(void)
{
    int n[4] = {0};

    for (int i = 0; i < threads; i++)
        n[state[i]]++;
    fprintf(stderr,
            "emulated kernel %s, block (%u, %u): %d threads wait at a barrier, %d in a warp, %d have ended: nobody can go on\n",
            kernel, emu_grid.block.x, emu_grid.block.y, n[AT_BARRIER], n[IN_WARP], n[DONE]);
    abort();
}

static void run_block(void)
{
    for (int i = 0; i < threads; i++) {
        state[i] = READY;
        prepare(&fibres[i]);
    }
    for (;;) {
        int moved = 0, done = 0;

        for (int i = 0; i < threads; i++) {
            const int turn = turns % 2 ? threads - 1 - i : i;

            if (state[turn] == READY) {
                go(&fibres[turn]);
                moved++;
            }
        }
        for (int w = 0; w < threads; w += 32)
            moved += meet_warp(w);
        moved += meet_block();
        for (int i = 0; i < threads; i++)
            done += state[i] == DONE;
        if (done == threads)
            return;
        if (!moved)
            stuck();
    }
}

static std::recursive_mutex one; /* at a time runs a kernel, or looks at the allocations */
static thread_local struct {
    cudaError_t last;
} host;

/* Shared memory that kernels declare (cuda_runtime.h puts it into a section of its own). */
extern char __start_emu_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_emu_shared[] __attribute__((weak, visibility("hidden")));

static cudaError_t failed(cudaError_t e)
{
    host.last = e;
    return e;
}

void emu_launch(const char *name, dim3 grid, dim3 block, size_t shared, emu_body_fn *b, void *ctx)
{
    static char *dynamic;
    std::lock_guard<std::recursive_mutex> mine(one);

    threads = (int)(block.x * block.y * block.z);
    if (threads < 1 || threads > MAX_THREADS || shared > SHARED || !grid.x || !grid.y || !grid.z || grid.y > 65535 ||
        grid.z > 65535) {
        failed(cudaErrorInvalidValue);
        return;
    }
    if (!dynamic) {
        char *stacks = (char *)mmap(NULL, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        char *room = (char *)mmap(NULL, SHARED + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | LOW, -1, 0);

        if (stacks == MAP_FAILED || room == MAP_FAILED)
            abort();
        dynamic = room;
        mprotect(room + (SHARED + 4095) / 4096 * 4096, 4096, PROT_NONE);
        for (int i = 0; i < MAX_THREADS; i++)
            fibres[i].stack = stacks + (size_t)i * STACK;
    }
    /* ends at the page without access, as far as an alignment of 128 lets it */
    emu_dynamic_shared = dynamic + (SHARED + 4095) / 4096 * 4096 - (shared + 127) / 128 * 128;
    body = b;
    body_ctx = ctx;
    kernel = name;
    turns++;
    emu_grid.block_dim = {block.x, block.y, block.z};
    emu_grid.grid_dim = {grid.x, grid.y, grid.z};
    for (int i = 0; i < threads; i++)
        fibres[i].tid = {(unsigned)i % block.x, (unsigned)i / block.x % block.y, (unsigned)i / (block.x * block.y)};
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                emu_grid.block = {x, y, z};
                memset(emu_dynamic_shared, 0xff, (shared + 127) / 128 * 128);
                memset(__start_emu_shared, 0xff, (size_t)(__stop_emu_shared - __start_emu_shared));
                run_block();
            }
}

/* ---- the host functions ------------------------------------------------------------------------------------------------------ */

/* Before each allocation, on a page of its own: where its mapping begins and how long it is. */
struct head {
    void *map;
    size_t bytes;
};

/* What a captured stream was given, in order. */
struct emu_graph {
    std::vector<std::function<void()>> work;
};
struct emu_graph_exec {
    std::vector<std::function<void()>> work;
};
static thread_local struct emu_graph *recording; /* a capture is its thread's */

int emu_recording(void)
{
    return recording != NULL;
}
void emu_record(std::function<void()> work)
{
    recording->work.push_back(std::move(work));
}

static std::map<const char *, size_t> allocations;

void emu_check_read(const void *p, size_t bytes)
{
    auto a = allocations.upper_bound((const char *)p);

    if (a != allocations.begin() && (uintptr_t)p % 16 == 0 && (const char *)p + bytes <= std::prev(a)->first + std::prev(a)->second)
        return;
    fprintf(stderr, "emulated kernel %s, block (%u, %u): an asynchronous copy reads beyond its allocation or is not aligned\n", kernel,
            emu_grid.block.x, emu_grid.block.y);
    abort();
}

extern "C" {

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaSuccess                 ? "no error"
           : e == cudaErrorMemoryAllocation ? "out of memory"
           : e == cudaErrorNotSupported     ? "operation not supported"
                                            : "invalid argument";
}
cudaError_t cudaGetLastError(void)
{
    cudaError_t e = host.last;

    host.last = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError(void)
{
    return host.last;
}
cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}

/* A mapping that ends, up to 16 bytes, at a page without access; full of 0xff. */
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    const size_t page = 4096, body_bytes = (bytes + 15) / 16 * 16, size = page + (body_bytes + page - 1) / page * page + page;
    std::lock_guard<std::recursive_mutex> mine(one);
    char *map;

    if (recording)
        return failed(cudaErrorNotSupported);
    if (bytes > (size_t)1 << 40)
        return failed(cudaErrorMemoryAllocation);
    map = (char *)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return failed(cudaErrorMemoryAllocation);
    mprotect(map + size - page, page, PROT_NONE);
    memset(map + page, 0xff, size - 2 * page);
    *(struct head *)map = {map, size};
    *p = map + size - page - body_bytes;
    allocations[(char *)*p] = bytes;
    return cudaSuccess;
}
cudaError_t cudaFree(void *p)
{
    /* the head stands at the start of the page before the one that p lies in, or earlier: found by walking down */
    std::lock_guard<std::recursive_mutex> mine(one);

    if (p) {
        char *q = (char *)((uintptr_t)p & ~(uintptr_t)4095) - 4096;

        if (((struct head *)q)->map != q)
            abort();
        allocations.erase((char *)p);
        munmap(q, ((struct head *)q)->bytes);
    }
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *free_bytes = *total = (size_t)1 << 30;
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    return *p ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void *, size_t, unsigned)
{
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *)
{
    return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *h, void *p)
{
    const pid_t self = getpid();

    memset(h, 0, sizeof *h);
    memcpy(h, &p, sizeof p);
    memcpy(h->reserved + sizeof p, &self, sizeof self);
    return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t h, unsigned)
{
    const pid_t self = getpid();

    if (memcmp(h.reserved + sizeof *p, &self, sizeof self)) /* the memory of an emulated GPU is its process's */
        return failed(cudaErrorNotSupported);
    memcpy(p, &h, sizeof *p);
    return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void *)
{
    return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **d, void *h, unsigned)
{
    *d = h;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *)
{
    a->type = cudaMemoryTypeUnregistered;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    *s = NULL;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t)
{
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return recording ? failed(cudaErrorNotSupported) : cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t)
{
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned)
{
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    *e = NULL;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t)
{
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t)
{
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    *e = NULL;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t)
{
    static uint32_t any = 1;
    std::lock_guard<std::recursive_mutex> mine(one);

    any = any * 1664525u + 1013904223u; /* no clock: each of those that are compared wins some time */
    *ms = 1 + (float)(any >> 16);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t)
{
    if (recording && kind != cudaMemcpyDeviceToDevice)
        return failed(cudaErrorNotSupported);
    if (recording)
        emu_record([=]() { memmove(d, s, bytes); });
    else
        memmove(d, s, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *d, int byte, size_t bytes, cudaStream_t)
{
    if (recording)
        emu_record([=]() { memset(d, byte, bytes); });
    else
        memset(d, byte, bytes);
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, enum cudaStreamCaptureMode)
{
    if (recording)
        return failed(cudaErrorNotSupported);
    recording = new emu_graph;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *g)
{
    if (!recording)
        return failed(cudaErrorNotSupported);
    *g = recording;
    recording = NULL;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, enum cudaStreamCaptureStatus *status)
{
    *status = recording ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    *x = new emu_graph_exec{g->work};
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t)
{
    if (recording)
        return failed(cudaErrorNotSupported);
    for (auto &w : x->work)
        w();
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    delete g;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    delete x;
    return cudaSuccess;
}
}
