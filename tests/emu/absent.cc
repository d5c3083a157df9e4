/* absent.cc - what the emulated GPU does not have: cuBLASLt, and kernels with TMA. The back-end asks before it uses them. */
#include "product_choose.h"

struct product_lt *product_lt_open(void)
{
    return NULL;
}
uint64_t product_lt_version(const struct product_lt *)
{
    return 0;
}
void product_lt_close(struct product_lt *)
{
}
int product_lt_plans(struct product_lt *, const struct product *, int, struct product_lt_plan *, int)
{
    return 0;
}
void product_lt_run(struct call *c, struct product_lt *, const struct product *, const struct product_lt_plan *)
{
    call_fail(c, "cuBLASLt on an emulated GPU");
}
int product_wgmma_there(const struct call *)
{
    return 0;
}
int product_wgmma_can(const struct call *, const struct product *)
{
    return 0;
}
void product_wgmma(struct call *c, const struct product *, int)
{
    call_fail(c, "wgmma on an emulated GPU");
}
