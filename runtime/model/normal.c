/* normal.c - shares of a long array, a thread each; see normal.h. */
#include "model/normal.h"

#include <pthread.h>

#include "base/cores.h"

#define THREADS_MOST 64
#define SHARE_LEAST  ((int64_t)1 << 16) /* below, a thread costs more than it brings */

struct share {
    float *x;
    int64_t begin, end; /* begin is a multiple of 4 */
    const struct cairn_philox_key *key;
    double sd;
    pthread_t thread;
};

static void *fill(void *arg)
{
    const struct share *s = arg;

    for (int64_t i = s->begin; i < s->end; i += 4) {
        uint64_t block = (uint64_t)i / 4;
        uint32_t w[4];
        double z[4];

        cairn_philox(s->key, (uint32_t)block, (uint32_t)(block >> 32), 0, w);
        cairn_normal2(w[0], w[1], z);
        cairn_normal2(w[2], w[3], z + 2);
        for (int64_t j = 0; j < 4 && i + j < s->end; j++)
            s->x[i + j] = (float)(s->sd * z[j]);
    }
    return NULL;
}

static int processors(void)
{
    int n = cairn_cores();

    return n > THREADS_MOST ? THREADS_MOST : n;
}

void cairn_normal_fill(float *x, int64_t n, const struct cairn_philox_key *key, double sd)
{
    struct share share[THREADS_MOST];
    int64_t threads = processors(), each;
    int started[THREADS_MOST] = {0};

    if (n / SHARE_LEAST < threads)
        threads = n / SHARE_LEAST + 1;
    each = (n / threads + 4) / 4 * 4;
    for (int i = 0; i < threads; i++) {
        int64_t begin = i * each < n ? i * each : n;

        share[i] = (struct share){x, begin, begin + each < n ? begin + each : n, key, sd, 0};
        started[i] = i && !pthread_create(&share[i].thread, NULL, fill, &share[i]);
    }
    for (int i = 0; i < threads; i++)
        if (!started[i])
            fill(&share[i]);
    for (int i = 1; i < threads; i++)
        if (started[i])
            pthread_join(share[i].thread, NULL);
}
