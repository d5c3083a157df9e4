/* product_lt.c - products by cuBLASLt, restricted to algorithms that sum k in one chain.
 *
 * Asked for without a workspace and without a reduction scheme, and filtered by SPLITK_NUM 1; whether the bits are those of the
 * definition is for product_choose.c to see. cuBLASLt counts in columns: y (m, n) by rows is D (n, m) by columns, so its A is our
 * B.
 */
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "product_choose.h"

#define FUNCTIONS(X)                                                                                                               \
    X(cublasLtGetVersion)                                                                                                          \
    X(cublasLtCreate)                                                                                                              \
    X(cublasLtDestroy)                                                                                                             \
    X(cublasLtMatmul)                                                                                                              \
    X(cublasLtMatmulDescCreate)                                                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                                                              \
    X(cublasLtMatrixLayoutCreate)                                                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                                                 \
    X(cublasLtMatrixLayoutSetAttribute)                                                                                            \
    X(cublasLtMatmulPreferenceCreate)                                                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                              \
    X(cublasLtMatmulAlgoConfigGetAttribute)

struct product_lt {
    void *object;
    cublasLtHandle_t handle;
#define POINTER(f) __typeof__(f) *f;
    FUNCTIONS(POINTER)
#undef POINTER
};

struct product_lt *product_lt_open(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    struct product_lt *lt = calloc(1, sizeof *lt);

    if (!lt)
        return NULL;
    for (size_t i = 0; !lt->object && i < sizeof names / sizeof *names; i++)
        lt->object = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lt->object)
        goto none;
#define FIND(f)                                                                                                                    \
    *(void **)&lt->f = dlsym(lt->object, #f);                                                                                      \
    if (!lt->f)                                                                                                                    \
        goto none;
    FUNCTIONS(FIND)
#undef FIND
    if (lt->cublasLtCreate(&lt->handle) != CUBLAS_STATUS_SUCCESS)
        goto none;
    return lt;
none:
    if (lt->object)
        dlclose(lt->object);
    free(lt);
    return NULL;
}

void product_lt_close(struct product_lt *lt)
{
    if (!lt)
        return;
    lt->cublasLtDestroy(lt->handle);
    dlclose(lt->object);
    free(lt);
}

uint64_t product_lt_version(const struct product_lt *lt)
{
    return lt ? lt->cublasLtGetVersion() : 0;
}

struct problem {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
};

static void problem_close(const struct product_lt *lt, struct problem *x)
{
    if (x->desc)
        lt->cublasLtMatmulDescDestroy(x->desc);
    if (x->a)
        lt->cublasLtMatrixLayoutDestroy(x->a);
    if (x->b)
        lt->cublasLtMatrixLayoutDestroy(x->b);
    if (x->d)
        lt->cublasLtMatrixLayoutDestroy(x->d);
}

static cublasLtMatrixLayout_t layout(const struct product_lt *lt, cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld,
                                     int32_t batch, int64_t step)
{
    cublasLtMatrixLayout_t l = NULL;

    if (ld < rows)
        ld = rows; /* one column */
    if (lt->cublasLtMatrixLayoutCreate(&l, type, (uint64_t)rows, (uint64_t)cols, ld) != CUBLAS_STATUS_SUCCESS)
        return NULL;
    if (batch > 1 && (lt->cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch) !=
                          CUBLAS_STATUS_SUCCESS ||
                      lt->cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step) !=
                          CUBLAS_STATUS_SUCCESS)) {
        lt->cublasLtMatrixLayoutDestroy(l);
        return NULL;
    }
    return l;
}

static int problem_open(const struct product_lt *lt, const struct product *p, struct problem *x)
{
    cublasOperation_t ta = p->form == CAIRN_NT ? CUBLAS_OP_T : CUBLAS_OP_N, tb = p->form == CAIRN_TN ? CUBLAS_OP_T : CUBLAS_OP_N;
    int nt = p->form == CAIRN_NT, tn = p->form == CAIRN_TN;

    memset(x, 0, sizeof *x);
    x->a = layout(lt, CUDA_R_16BF, nt ? p->k : p->n, nt ? p->n : p->k, p->bs, p->batch, p->bb);
    x->b = layout(lt, CUDA_R_16BF, tn ? p->m : p->k, tn ? p->k : p->m, p->as, p->batch, p->ab);
    x->d = layout(lt, p->y_bf16 ? CUDA_R_16BF : CUDA_R_32F, p->n, p->m, p->ys, p->batch, p->yb);
    if (x->a && x->b && x->d && lt->cublasLtMatmulDescCreate(&x->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        lt->cublasLtMatmulDescSetAttribute(x->desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta) == CUBLAS_STATUS_SUCCESS &&
        lt->cublasLtMatmulDescSetAttribute(x->desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb) == CUBLAS_STATUS_SUCCESS)
        return 1;
    problem_close(lt, x);
    return 0;
}

int product_lt_plans(struct product_lt *lt, const struct product *p, int free_choice, struct product_lt_plan *plan, int n)
{
    cublasLtMatmulHeuristicResult_t found[16];
    cublasLtMatmulPreference_t wish = NULL;
    struct problem x;
    int count = 0, taken = 0;
    uint32_t schemes = free_choice ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_NONE, align = 16;
    size_t room = free_choice ? (size_t)32 << 20 : 0;

    _Static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(plan->algo), "an algorithm is 64 bytes");
    if (!lt || !problem_open(lt, p, &x))
        return 0;
#define WISH(what, v) lt->cublasLtMatmulPreferenceSetAttribute(wish, what, &(v), sizeof(v)) == CUBLAS_STATUS_SUCCESS
    if (lt->cublasLtMatmulPreferenceCreate(&wish) == CUBLAS_STATUS_SUCCESS &&
        WISH(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, room) && WISH(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes) &&
        WISH(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align) && WISH(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align) &&
        WISH(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align) && WISH(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align) &&
        lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, x.desc, x.a, x.b, x.d, x.d, wish, 16, found, &count) !=
            CUBLAS_STATUS_SUCCESS)
        count = 0;
#undef WISH
    for (int i = 0; i < count && taken < n; i++) {
        int32_t split = 0;
        size_t got = 0;

        if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > room ||
            lt->cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &got) !=
                CUBLAS_STATUS_SUCCESS ||
            (split > 1 && !free_choice))
            continue;
        plan[taken].workspace = found[i].workspaceSize;
        memcpy(plan[taken++].algo, &found[i].algo, sizeof plan->algo);
    }
    if (wish)
        lt->cublasLtMatmulPreferenceDestroy(wish);
    problem_close(lt, &x);
    return taken;
}

void product_lt_run(struct call *c, struct product_lt *lt, const struct product *p, const struct product_lt_plan *plan)
{
    const float alpha = p->alpha, beta = p->accumulate ? 1.0f : 0.0f;
    cublasLtMatmulAlgo_t algo;
    void *workspace = plan->workspace ? call_scratch(c, plan->workspace) : NULL;
    struct problem x;
    cublasStatus_t s;

    if (!call_ok(c))
        return;
    memcpy(&algo, plan->algo, sizeof algo);
    if (!problem_open(lt, p, &x)) {
        call_fail(c, "cuBLASLt has no memory for a description");
        return;
    }
    s = lt->cublasLtMatmul(lt->handle, x.desc, &alpha, p->b, x.a, p->a, x.b, &beta, p->y, x.d, p->y, x.d, &algo, workspace,
                           plan->workspace, c->stream);
    if (s != CUBLAS_STATUS_SUCCESS) {
        call_fail(c, "cuBLASLt: status %d", (int)s);
        cudaGetLastError();
    }
    problem_close(lt, &x);
}
