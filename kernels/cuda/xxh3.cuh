/* xxh3.cuh - XXH3-128 with a seed (xxHash 0.8, its specification doc/xxhash_spec.md), of 1 to 4096 bytes: by one thread up to 240
 * bytes, by a warp above. The same numbers as base/digest.c's library gives; bytes may begin anywhere.
 */
#ifndef CAIRN_KERNELS_CUDA_XXH3_CUH
#define CAIRN_KERNELS_CUDA_XXH3_CUH

#include "kernel.cuh"

#define XXH_P32_1 0x9E3779B1u
#define XXH_P32_2 0x85EBCA77u
#define XXH_P32_3 0xC2B2AE3Du
#define XXH_P64_1 0x9E3779B185EBCA87ull
#define XXH_P64_2 0xC2B2AE3D27D4EB4Full
#define XXH_P64_3 0x165667B19E3779F9ull
#define XXH_P64_4 0x85EBCA77C2B2AE63ull
#define XXH_P64_5 0x27D4EB2F165667C5ull

struct u128 {
    uint64_t lo, hi;
};

__device__ static inline struct u128 u128_add(struct u128 a, struct u128 b)
{
    struct u128 s;

    s.lo = a.lo + b.lo;
    s.hi = a.hi + b.hi + (s.lo < a.lo);
    return s;
}

__device__ static inline struct u128 u128_warp_sum(struct u128 s)
{
#pragma unroll
    for (int h = 16; h; h >>= 1) {
        struct u128 o;

        o.lo = __shfl_xor_sync(0xffffffffu, s.lo, h);
        o.hi = __shfl_xor_sync(0xffffffffu, s.hi, h);
        s = u128_add(s, o);
    }
    return s;
}

__device__ static inline struct u128 u128_mul(uint64_t a, uint64_t b)
{
    const unsigned __int128 p = (unsigned __int128)a * b;
    struct u128 r;

    r.lo = (uint64_t)p;
    r.hi = (uint64_t)(p >> 64);
    return r;
}

/* The default secret, as 64-bit words. */
__constant__ uint64_t xxh_secret[24] = {
    0xbe4ba423396cfeb8ull, 0x1cad21f72c81017cull, 0xdb979083e96dd4deull, 0x1f67b3b7a4a44072ull, 0x78e5c0cc4ee679cbull, 0x2172ffcc7dd05a82ull,
    0x8e2443f7744608b8ull, 0x4c263a81e69035e0ull, 0xcb00c391bb52283cull, 0xa32e531b8b65d088ull, 0x4ef90da297486471ull, 0xd8acdea946ef1938ull,
    0x3f349ce33f76faa8ull, 0x1d4f0bc7c7bbdcf9ull, 0x3159b4cd4be0518aull, 0x647378d9c97e9fc8ull, 0xc3ebd33483acc5eaull, 0xeb6313faffa081c5ull,
    0x49daf0b751dd0d17ull, 0x9e68d429265516d3ull, 0xfca1477d58be162bull, 0xce31d07ad1b8f88full, 0x280416958f3acb45ull, 0x7e404bbbcafbd7afull};

/* Eight bytes of the secret from byte `at` on. */
__device__ static inline uint64_t xxh_secret_at(int at)
{
    const int q = at / 8, s = at % 8 * 8;

    return s ? xxh_secret[q] >> s | xxh_secret[q + 1] << (64 - s) : xxh_secret[q];
}
/* The same of the secret that a seed makes: even words plus, odd ones minus it. */
__device__ static inline uint64_t xxh_seeded_word(int q, uint64_t seed)
{
    return q % 2 ? xxh_secret[q] - seed : xxh_secret[q] + seed;
}
__device__ static inline uint64_t xxh_seeded_at(int at, uint64_t seed)
{
    const int q = at / 8, s = at % 8 * 8;

    return s ? xxh_seeded_word(q, seed) >> s | xxh_seeded_word(q + 1, seed) << (64 - s) : xxh_seeded_word(q, seed);
}

__device__ static inline uint64_t xxh_read(const unsigned char *p, int n) /* n bytes, little-endian */
{
    uint64_t v = 0;

    for (int i = 0; i < n; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}
__device__ static inline uint64_t xxh_read64(const unsigned char *p)
{
    if ((uintptr_t)p % 8 == 0)
        return *(const uint64_t *)p;
    if ((uintptr_t)p % 4 == 0)
        return ((const uint32_t *)p)[0] | (uint64_t)((const uint32_t *)p)[1] << 32;
    return xxh_read(p, 8);
}

__device__ static inline uint64_t xxh_fold(uint64_t a, uint64_t b)
{
    const struct u128 p = u128_mul(a, b);

    return p.lo ^ p.hi;
}
__device__ static inline uint64_t xxh_avalanche(uint64_t h)
{
    h = (h ^ h >> 37) * 0x165667919E3779F9ull;
    return h ^ h >> 32;
}
__device__ static inline uint64_t xxh_avalanche64(uint64_t h)
{
    h = (h ^ h >> 33) * XXH_P64_2;
    h = (h ^ h >> 29) * XXH_P64_3;
    return h ^ h >> 32;
}
__device__ static inline uint32_t xxh_swap32(uint32_t x)
{
    return x << 24 | (x & 0xff00u) << 8 | (x >> 8 & 0xff00u) | x >> 24;
}
__device__ static inline uint64_t xxh_swap64(uint64_t x)
{
    return (uint64_t)xxh_swap32((uint32_t)x) << 32 | xxh_swap32((uint32_t)(x >> 32));
}

/* ---- up to 16 bytes ---------------------------------------------------------------------------------------------------- */

__device__ static inline struct u128 xxh_1to3(const unsigned char *p, int n, uint64_t seed)
{
    const uint32_t lo = (uint32_t)p[0] << 16 | (uint32_t)p[n >> 1] << 24 | p[n - 1] | (uint32_t)n << 8, swapped = xxh_swap32(lo),
                   hi = swapped << 13 | swapped >> 19;
    struct u128 r;

    r.lo = xxh_avalanche64(lo ^ (((uint32_t)xxh_secret[0] ^ (uint32_t)(xxh_secret[0] >> 32)) + seed));
    r.hi = xxh_avalanche64(hi ^ (((uint32_t)xxh_secret[1] ^ (uint32_t)(xxh_secret[1] >> 32)) - seed));
    return r;
}

__device__ static inline struct u128 xxh_4to8(const unsigned char *p, int n, uint64_t seed)
{
    const uint64_t in = xxh_read(p, 4) | xxh_read(p + n - 4, 4) << 32;
    struct u128 m;

    seed ^= (uint64_t)xxh_swap32((uint32_t)seed) << 32;
    m = u128_mul(in ^ ((xxh_secret[2] ^ xxh_secret[3]) + seed), XXH_P64_1 + ((uint64_t)n << 2));
    m.hi += m.lo << 1;
    m.lo ^= m.hi >> 3;
    m.lo = (m.lo ^ m.lo >> 35) * 0x9FB21C651E98DF25ull;
    m.lo ^= m.lo >> 28;
    m.hi = xxh_avalanche(m.hi);
    return m;
}

__device__ static inline struct u128 xxh_9to16(const unsigned char *p, int n, uint64_t seed)
{
    const uint64_t lo = xxh_read64(p), hi = xxh_read64(p + n - 8), keyed = hi ^ ((xxh_secret[6] ^ xxh_secret[7]) + seed);
    struct u128 m = u128_mul(lo ^ hi ^ ((xxh_secret[4] ^ xxh_secret[5]) - seed), XXH_P64_1), r;

    m.lo += (uint64_t)(n - 1) << 54;
    m.hi += keyed + (uint64_t)(uint32_t)keyed * (XXH_P32_2 - 1);
    m.lo ^= xxh_swap64(m.hi);
    r = u128_mul(m.lo, XXH_P64_2);
    r.hi += m.hi * XXH_P64_2;
    r.lo = xxh_avalanche(r.lo);
    r.hi = xxh_avalanche(r.hi);
    return r;
}

/* ---- 17 to 240 bytes --------------------------------------------------------------------------------------------------- */

__device__ static inline void xxh_mix(struct u128 *acc, const unsigned char *a, const unsigned char *b, int secret, uint64_t seed)
{
    const uint64_t a0 = xxh_read64(a), a1 = xxh_read64(a + 8), b0 = xxh_read64(b), b1 = xxh_read64(b + 8);

    acc->lo += xxh_fold(a0 ^ (xxh_secret_at(secret) + seed), a1 ^ (xxh_secret_at(secret + 8) - seed));
    acc->lo ^= b0 + b1;
    acc->hi += xxh_fold(b0 ^ (xxh_secret_at(secret + 16) + seed), b1 ^ (xxh_secret_at(secret + 24) - seed));
    acc->hi ^= a0 + a1;
}

__device__ static inline struct u128 xxh_17to240(const unsigned char *p, int n, uint64_t seed)
{
    struct u128 acc, r;

    acc.lo = (uint64_t)n * XXH_P64_1;
    acc.hi = 0;
    if (n <= 128) {
        for (int i = (n - 1) / 32; i >= 0; i--) /* from the middle to both ends */
            xxh_mix(&acc, p + 16 * i, p + n - 16 - 16 * i, 32 * i, seed);
    } else {
        for (int i = 0; i < n / 32; i++) {
            if (i == 4) {
                acc.lo = xxh_avalanche(acc.lo);
                acc.hi = xxh_avalanche(acc.hi);
            }
            xxh_mix(&acc, p + 32 * i, p + 32 * i + 16, i < 4 ? 32 * i : 3 + 32 * (i - 4), seed);
        }
        if (n / 32 == 4) {
            acc.lo = xxh_avalanche(acc.lo);
            acc.hi = xxh_avalanche(acc.hi);
        }
        xxh_mix(&acc, p + n - 16, p + n - 32, 103, (uint64_t)0 - seed);
    }
    r.lo = xxh_avalanche(acc.lo + acc.hi);
    r.hi = (uint64_t)0 - xxh_avalanche(acc.lo * XXH_P64_1 + acc.hi * XXH_P64_4 + ((uint64_t)n - seed) * XXH_P64_2);
    return r;
}

/* One thread; 1 <= n <= 240. */
__device__ static inline struct u128 xxh_short(const unsigned char *p, int n, uint64_t seed)
{
    return n > 16 ? xxh_17to240(p, n, seed) : n > 8 ? xxh_9to16(p, n, seed) : n >= 4 ? xxh_4to8(p, n, seed) : xxh_1to3(p, n, seed);
}

/* ---- above 240 bytes, by a warp -------------------------------------------------------------------------------------------- */

/* Sum over the four lanes that share lane % 8. */
__device__ static inline uint64_t xxh_over_stripes(uint64_t x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

/* Bytes in memory, as xxh_long_of takes them: word `at` is fetched first, taken later. */
struct xxh_bytes {
    const unsigned char *p;
    typedef uint64_t raw;

    __device__ inline void fetch(raw *r, int at) const
    {
        *r = xxh_read64(p + at);
    }
    __device__ inline uint64_t take(const raw *r, int) const
    {
        return *r;
    }
};

/* Lane l holds accumulator l % 8 and looks at stripes l / 8, l / 8 + 4, ...: inside a block of 16 stripes the accumulators are
 * sums. Every lane gets the digest. source: the eight bytes from byte `at` of the tile on, each byte asked for by one lane, but for
 * those that the last 64 bytes share with the stripe before. */
template <class S> __device__ static inline struct u128 xxh_long_of(const S &source, int n, uint64_t seed)
{
    const int lane = threadIdx.x % 32, j = lane % 8, g = lane / 8, blocks = (n - 1) / 1024, rest = (n - 1 - 1024 * blocks) / 64;
    const uint64_t scramble = xxh_seeded_word(16 + j, seed);
    uint64_t acc = j == 0   ? XXH_P32_3
                   : j == 1 ? XXH_P64_1
                   : j == 2 ? XXH_P64_2
                   : j == 3 ? XXH_P64_3
                   : j == 4 ? XXH_P64_4
                   : j == 5 ? XXH_P32_2
                   : j == 6 ? XXH_P64_5
                            : XXH_P32_1;
    uint64_t key[4], product, other;
    int p = 0;
    struct u128 r;

#pragma unroll
    for (int i = 0; i < 4; i++)
        key[i] = xxh_seeded_word(g + 4 * i + j, seed);
    for (int b = 0; b <= blocks; b++, p += 1024) {
        const int stripes = b < blocks ? 16 : rest;
        uint64_t own = 0, swapped = 0;
        typename S::raw raw[4], last = {};

#pragma unroll
        for (int i = 0; i < 4; i++)
            if (g + 4 * i < stripes)
                source.fetch(&raw[i], p + (g + 4 * i) * 64 + j * 8);
        if (b == blocks && g == 3)
            source.fetch(&last, n - 64 + j * 8);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (g + 4 * i < stripes) {
                const uint64_t d = source.take(&raw[i], p + (g + 4 * i) * 64 + j * 8), keyed = d ^ key[i];

                own += (uint64_t)(uint32_t)keyed * (uint32_t)(keyed >> 32);
                swapped += d;
            }
        if (b == blocks && g == 3) { /* the last 64 bytes once more */
            const uint64_t d = source.take(&last, n - 64 + j * 8), keyed = d ^ xxh_seeded_at(121 + j * 8, seed);

            own += (uint64_t)(uint32_t)keyed * (uint32_t)(keyed >> 32);
            swapped += d;
        }
        acc += xxh_over_stripes(own + __shfl_xor_sync(0xffffffffu, swapped, 1));
        if (b < blocks)
            acc = (acc ^ acc >> 47 ^ scramble) * XXH_P32_1;
    }
    other = __shfl_xor_sync(0xffffffffu, acc ^ xxh_seeded_at(11 + j * 8, seed), 1);
    product = xxh_fold(acc ^ xxh_seeded_at(11 + j * 8, seed), other);
    product += __shfl_xor_sync(0xffffffffu, product, 2);
    product += __shfl_xor_sync(0xffffffffu, product, 4);
    r.lo = xxh_avalanche(product + (uint64_t)n * XXH_P64_1);
    other = __shfl_xor_sync(0xffffffffu, acc ^ xxh_seeded_at(117 + j * 8, seed), 1);
    product = xxh_fold(acc ^ xxh_seeded_at(117 + j * 8, seed), other);
    product += __shfl_xor_sync(0xffffffffu, product, 2);
    product += __shfl_xor_sync(0xffffffffu, product, 4);
    r.hi = xxh_avalanche(product + ~((uint64_t)n * XXH_P64_2));
    return r;
}

__device__ static inline struct u128 xxh_long(const unsigned char *p, int n, uint64_t seed)
{
    const struct xxh_bytes source = {p};

    return xxh_long_of(source, n, seed);
}

#endif
