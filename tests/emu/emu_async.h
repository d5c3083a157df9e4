/* emu_async.h - the copies of kernels/cuda/async.cuh on the emulated GPU: done at once, and only from memory that holds all 16
 * bytes. Addresses of shared memory count from where the block's dynamic shared memory begins.
 */
#ifndef CAIRN_TESTS_EMU_ASYNC_H
#define CAIRN_TESTS_EMU_ASYNC_H

static inline uint32_t shared_address(const void *p)
{
    return (uint32_t)((const char *)p - emu_dynamic_shared);
}

static inline void copy16(uint32_t to, const void *p, int there)
{
    if (there) {
        emu_check_read(p, 16);
        memcpy(emu_dynamic_shared + to, p, 16);
    } else {
        memset(emu_dynamic_shared + to, 0, 16);
    }
}
static inline void copy_commit(void)
{
}
template <int> static inline void copy_wait(void)
{
}

#endif
