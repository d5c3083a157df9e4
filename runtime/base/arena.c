/* arena.c - chunks in a list, bumped; clean-ups are entries in the same memory (nginx's ngx_palloc is the model).
 *
 * A request above a quarter of the chunk size gets a chunk of its own, so that large strings waste nothing.
 */
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

#define CHUNK ((size_t)64 * 1024)
#define ALIGN ((size_t)16)

struct chunk {
    struct chunk *next;
    size_t cap, used; /* of the bytes behind the header */
};
#define HEADER ((sizeof(struct chunk) + ALIGN - 1) / ALIGN * ALIGN)

struct cleanup {
    struct cleanup *next;
    void (*fn)(void *);
    void *arg;
};

struct cairn_arena {
    struct chunk *small; /* the chunk being carved is the first; all of them are freed together */
    struct chunk *large; /* one request each */
    struct cleanup *cleanups;
};

struct cairn_arena *cairn_arena_create(void)
{
    return calloc(1, sizeof(struct cairn_arena));
}

static void free_chunks(struct chunk *c)
{
    while (c) {
        struct chunk *next = c->next;

        free(c);
        c = next;
    }
}

static void run_cleanups(struct cairn_arena *a)
{
    while (a->cleanups) {
        struct cleanup *c = a->cleanups;

        a->cleanups = c->next; /* first: a clean-up may register another one */
        c->fn(c->arg);
    }
}

void cairn_arena_reset(struct cairn_arena *a)
{
    run_cleanups(a);
    free_chunks(a->large);
    a->large = NULL;
    if (a->small) {
        free_chunks(a->small->next);
        a->small->next = NULL;
        a->small->used = 0;
    }
}

void cairn_arena_destroy(struct cairn_arena *a)
{
    if (!a)
        return;
    run_cleanups(a);
    free_chunks(a->large);
    free_chunks(a->small);
    free(a);
}

static struct chunk *chunk_create(size_t cap)
{
    struct chunk *c;
    size_t bytes;

    if (!cairn_add_size(cap, HEADER, &bytes) || !(c = malloc(bytes)))
        return NULL;
    c->next = NULL;
    c->cap = cap;
    c->used = 0;
    return c;
}

static char *chunk_take(struct chunk *c, size_t bytes)
{
    char *p = (char *)c + HEADER + c->used;

    c->used += bytes;
    return p;
}

void *cairn_arena_alloc(struct cairn_arena *a, size_t bytes)
{
    struct chunk *c;

    if (bytes > SIZE_MAX - ALIGN)
        return NULL;
    bytes = bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    if (bytes > CHUNK / 4) {
        if (!(c = chunk_create(bytes)))
            return NULL;
        c->next = a->large;
        a->large = c;
        return chunk_take(c, bytes);
    }
    if (!a->small || a->small->cap - a->small->used < bytes) {
        if (!(c = chunk_create(CHUNK)))
            return NULL;
        c->next = a->small;
        a->small = c;
    }
    return chunk_take(a->small, bytes);
}

void *cairn_arena_calloc(struct cairn_arena *a, size_t n, size_t size)
{
    size_t bytes;
    void *p;

    if (!cairn_mul_size(n, size, &bytes) || !(p = cairn_arena_alloc(a, bytes)))
        return NULL;
    return memset(p, 0, bytes);
}

char *cairn_arena_strdup(struct cairn_arena *a, const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = cairn_arena_alloc(a, n);

    return p ? memcpy(p, s, n) : NULL;
}

char *cairn_arena_printf(struct cairn_arena *a, const char *fmt, ...)
{
    va_list ap;
    char *p;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !(p = cairn_arena_alloc(a, (size_t)n + 1)))
        return NULL;
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}

int cairn_arena_on_release(struct cairn_arena *a, void (*fn)(void *), void *arg)
{
    struct cleanup *c = cairn_arena_alloc(a, sizeof *c);

    if (!c)
        return -1;
    c->fn = fn;
    c->arg = arg;
    c->next = a->cleanups;
    a->cleanups = c;
    return 0;
}
