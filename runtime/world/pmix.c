/* pmix.c - PMIx: a shared object of its own (cairn-pmix.so), the only code that includes PMIx's header, opened only under a
 * launcher that speaks it. */
#include <pmix.h>
#include <stdio.h>
#include <string.h>

#include "world/pmi_kind.h"

extern const struct cairn_pmi_kind cairn_pmix;

static pmix_proc_t self;

static enum cairn_status failed(const char *what, pmix_status_t rc, struct cairn_error *err)
{
    return cairn_fail(err, CAIRN_EAGAIN, "PMIx %s failed: %s", what, PMIx_Error_string(rc));
}

static enum cairn_status start(int *rank, int *size, struct cairn_error *err)
{
    pmix_status_t rc = PMIx_Init(&self, NULL, 0);
    pmix_value_t *value = NULL;
    pmix_proc_t job;

    if (rc != PMIX_SUCCESS)
        return failed("init", rc, err);
    PMIX_LOAD_PROCID(&job, self.nspace, PMIX_RANK_WILDCARD);
    rc = PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &value);
    if (rc != PMIX_SUCCESS)
        return failed("job size", rc, err);
    *rank = (int)self.rank;
    *size = (int)value->data.uint32;
    PMIX_VALUE_RELEASE(value);
    return CAIRN_OK;
}

static void finish(void)
{
    PMIx_Finalize(NULL, 0);
}

static enum cairn_status put(int rank, const char *key, const char *text, struct cairn_error *err)
{
    pmix_value_t value;
    pmix_status_t rc;

    (void)rank; /* PMIx knows whose it is */
    PMIX_VALUE_CONSTRUCT(&value);
    value.type = PMIX_STRING;
    value.data.string = (char *)(uintptr_t)text;
    rc = PMIx_Put(PMIX_GLOBAL, key, &value); /* copies */
    return rc == PMIX_SUCCESS ? CAIRN_OK : failed("put", rc, err);
}

static enum cairn_status fence(struct cairn_error *err)
{
    pmix_status_t rc = PMIx_Commit();
    pmix_info_t info;
    bool collect = true;

    if (rc != PMIX_SUCCESS)
        return failed("commit", rc, err);
    PMIX_INFO_CONSTRUCT(&info);
    PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
    rc = PMIx_Fence(NULL, 0, &info, 1);
    PMIX_INFO_DESTRUCT(&info);
    return rc == PMIX_SUCCESS ? CAIRN_OK : failed("fence", rc, err);
}

static enum cairn_status get(int rank, const char *key, char *text, size_t n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    pmix_value_t *value = NULL;
    pmix_info_t now;
    bool yes = true;
    pmix_proc_t who;
    pmix_status_t rc;

    PMIX_LOAD_PROCID(&who, self.nspace, (pmix_rank_t)rank);
    PMIX_INFO_CONSTRUCT(&now);
    PMIX_INFO_LOAD(&now, PMIX_IMMEDIATE, &yes, PMIX_BOOL); /* what is not there by the fence is not waited for */
    rc = PMIx_Get(&who, key, &now, 1, &value);
    PMIX_INFO_DESTRUCT(&now);
    if (rc != PMIX_SUCCESS || value->type != PMIX_STRING)
        st = cairn_fail(err, CAIRN_EBUG, "PMIx: rank %d has put no %s before the last fence", rank, key);
    else if (strlen(value->data.string) >= n)
        st = cairn_fail(err, CAIRN_EBUG, "PMIx: %s of rank %d is longer than %zu bytes", key, rank, n - 1);
    else
        strcpy(text, value->data.string);
    if (value)
        PMIX_VALUE_RELEASE(value);
    return st;
}

const struct cairn_pmi_kind cairn_pmix = {CAIRN_PMI_ABI, "pmix", start, finish, put, fence, get};
