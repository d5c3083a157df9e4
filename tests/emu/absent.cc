/* absent.cc - what the emulated GPU does not have: cuBLASLt, and kernels with TMA. The back-end asks before it uses them. With CAIRN_EMU_LT=VERSION
 * there is a cuBLASLt of that version, whose only algorithm is one of our own kernels: what is chosen among, kept and loaded ahead can be tried.
 */
#include <cstdlib>
#include <cstring>

#include "product_choose.h"

struct product_lt {
    uint64_t version;
};

static const unsigned char only[] = "the only algorithm";

struct product_lt *product_lt_open(void)
{
    const char *v = getenv("CAIRN_EMU_LT");

    return v ? new product_lt{strtoull(v, NULL, 10)} : NULL;
}
uint64_t product_lt_version(const struct product_lt *lt)
{
    return lt ? lt->version : 0;
}
void product_lt_close(struct product_lt *lt)
{
    delete lt;
}
int product_lt_plans(struct product_lt *lt, const struct product *, int, struct product_lt_plan *plan, int n)
{
    if (!lt || n < 1)
        return 0;
    *plan = product_lt_plan{};
    memcpy(plan->algo, only, sizeof only);
    return 1;
}
void product_lt_run(struct call *c, struct product_lt *lt, const struct product *p, const struct product_lt_plan *plan)
{
    if (!lt || memcmp(plan->algo, only, sizeof only))
        call_fail(c, "cuBLASLt on an emulated GPU");
    else
        product_mma(c, p, 3);
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
