/* iolab.h - checkpoints in a folder of their own, on the guard back-end: imported, exported, compared. */
#ifndef CAIRN_TESTS_IOLAB_H
#define CAIRN_TESTS_IOLAB_H

#include "hfdir.h"

#include "base/log.h"
#include "model/base.h"
#include "model/hf.h"
#include "model/hf_save.h"
#include "model/io.h"
#include "model/policy.h"

static struct cairn_compute k;

static inline int setup(void **state)
{
    struct cairn_error e;

    cairn_log_quiet(1);
    if (cairn_compute_open(&k, &(struct cairn_compute_opts){.backend = "guard", .threads = 1}, &e) != CAIRN_OK)
        return -1;
    return hf_tmp_make(state);
}

static inline int teardown(void **state)
{
    cairn_compute_close(&k);
    return hf_tmp_remove(state);
}

static inline int import(const char *hf, const char *dir, int self_contained, int64_t shard_bytes)
{
    struct cairn_hf *h;
    int existed;

    OK(cairn_hf_open(&h, hf, err));
    OK(cairn_base_import(dir, h, &(struct cairn_base_opts){.self_contained = self_contained, .shard_bytes = shard_bytes}, &existed, err));
    cairn_hf_close(h);
    return existed;
}

static inline struct cairn_digest digest(const char *dir)
{
    struct cairn_manifest *m;
    struct cairn_digest d;

    OK(cairn_manifest_load(&m, dir, err));
    d = m->digest;
    cairn_manifest_destroy(m);
    return d;
}

static inline void export(const char *dir, const char *out, int64_t max_bytes)
{
    struct cairn_reader *r;
    struct cairn_model_config c;
    struct cairn_param_table t;
    struct cairn_hf_saved saved;

    OK(cairn_reader_open(&r, dir, NULL, err));
    OK(cairn_policy_config(&c, cairn_reader_manifest(r), NULL, dir, err));
    OK(cairn_param_table_create(&t, &c, err));
    OK(cairn_hf_save(out, &c, &t, &(struct cairn_hf_save_opts){.base_dir = dir, .base = r, .max_bytes = max_bytes}, &saved, err));
    cairn_param_table_free(&t);
    cairn_config_free(&c);
    cairn_reader_close(r);
}

static inline void stores_equal(const struct cairn_store *a, const struct cairn_store *b)
{
    assert_int_equal(a->table->count, b->table->count);
    for (int i = 0; i < a->table->count; i++) {
        float *x = tiny_get(&k, &a->tensor[i]), *y = tiny_get(&k, &b->tensor[i]);

        if (memcmp(x, y, cairn_tensor_bytes(&a->tensor[i])))
            fail_msg("%s differs", a->table->param[i].name);
        free(x);
        free(y);
    }
}

#endif
