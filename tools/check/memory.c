/* memory.c - see memory.h. */
#include "tools/check/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/handover.h"
#include "stages/common/setup.h"
#include "world/world.h"

#define TAKE_S 60.0 /* what is taken has been given before */

struct cairn_check_memory {
    struct cairn_world *world; /* of this process alone */
    struct cairn_handover *h;
    uint64_t generation;
};

enum cairn_status cairn_check_memory_open(struct cairn_check_memory **out, struct cairn_sides *x, char *why, size_t n, struct cairn_error *err)
{
    const int path = cairn_handover_path_parse(cairn_recipe_str(x->run->recipe, "sync.path"));
    struct cairn_policy *p = &x->policy;
    const struct cairn_handover_opts o = {.path = (enum cairn_handover_path)path,
                                          .table = p->lora ? &p->adapter.table : &p->table,
                                          .dtype = cairn_setup_dtype(x->run->recipe),
                                          .give = x->trainer.published,
                                          .take = p->lora ? &p->adapter_weights : &p->weights,
                                          .trainer = 1,
                                          .sampler = 1,
                                          .compute = &x->k,
                                          .deadline_s = TAKE_S};
    struct cairn_check_memory *m = NULL;
    enum cairn_status st = CAIRN_OK;
    struct cairn_error reason = {0};

    *out = NULL;
    why[0] = 0;
    if (path == CAIRN_HANDOVER_FILE)
        return CAIRN_OK;
    if (path == CAIRN_HANDOVER_NCCL) {
        snprintf(why, n, "nccl joins several ranks; this check is one");
        return CAIRN_OK;
    }
    if (!(m = calloc(1, sizeof *m)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_world_open(&m->world, &(struct cairn_world_opts){.alone = 1}, err));
    if (cairn_handover_open(&m->h, m->world->all, &o, &reason) != CAIRN_OK) {
        if (reason.code != CAIRN_EDEVICE)
            TRY(cairn_fail(err, reason.code, "%s", reason.text));
        snprintf(why, n, "%s", reason.text);
        goto out;
    }
    if (cairn_handover_path(m->h) == CAIRN_HANDOVER_FILE) {
        snprintf(why, n, "sync.path auto takes files for these tensors");
        goto out;
    }
    *out = m;
    m = NULL;
out:
    cairn_check_memory_close(m);
    return st;
}

void cairn_check_memory_close(struct cairn_check_memory *m)
{
    if (!m)
        return;
    cairn_handover_close(m->h);
    cairn_world_close(m->world, NULL);
    free(m);
}

const char *cairn_check_memory_path(const struct cairn_check_memory *m)
{
    return cairn_handover_path_name(cairn_handover_path(m->h));
}

enum cairn_status cairn_check_memory_sync(struct cairn_check_memory *m, struct cairn_error *err)
{
    struct cairn_ring_tag given = {.step = (int64_t)m->generation + 1}, taken = {0};
    enum cairn_status st = CAIRN_OK;
    uint64_t got = 0;

    m->generation++;
    TRY(cairn_handover_give(m->h, m->generation, &given, err));
    st = cairn_handover_take(m->h, m->generation, &got, &taken, err);
    if (st == CAIRN_EDATA)
        TRY(cairn_fail(err, CAIRN_ENUMERIC, "sync: by %s: %.400s", cairn_check_memory_path(m), err ? err->text : "a chunk arrived with other bytes"));
    TRY(st);
    if (got != m->generation || taken.step != given.step)
        TRY(cairn_fail(err, CAIRN_ENUMERIC, "sync: by %s the sampler took generation %lld of step %lld, generation %lld was given",
                       cairn_check_memory_path(m), (long long)got, (long long)taken.step, (long long)m->generation));
out:
    return st;
}
