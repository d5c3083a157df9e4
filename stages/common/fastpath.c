/* fastpath.c - the handover of a resident run: its tensors from base and recipe, its ends in the trainer and the samplers (fastpath.h). */
#include "stages/common/fastpath.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "ckpt/tiles.h"
#include "model/handover.h"
#include "stages/common/setup.h"
#include "world/group.h"

#define TAKE_S 60.0 /* what is committed has been given before */

struct cairn_fastpath {
    struct cairn_group *group; /* samplers and the trainer's first rank */
    struct cairn_handover *h;  /* NULL: dropped, or files */
    struct cairn_model_config config;
    struct cairn_param_table table;
    struct cairn_adapter adapter;
    int lora, told;
    struct cairn_store *bound;
    /* nccl: give and take are one operation of all, so the trainer gives when every sampler has come for it */
    cairn_fastpath_come_fn *come;
    void *arg;
    struct cairn_store *due; /* of the trainer: to be given when they come; NULL: nothing */
    struct cairn_ring_tag due_tag, have; /* have: of what the sampler's store is */
};

static const struct cairn_param_table *tensors(const struct cairn_fastpath *f)
{
    return f->lora ? &f->adapter.table : &f->table;
}

static enum cairn_status tables_make(struct cairn_fastpath *f, struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    char *dir = cairn_run_path(ctx->run, "base");
    struct cairn_reader *base = NULL;
    enum cairn_status st = CAIRN_OK;

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_reader_open(&base, dir, NULL, err));
    TRY(cairn_policy_config(&f->config, cairn_reader_manifest(base), NULL, dir, err));
    TRY(cairn_param_table_create(&f->table, &f->config, err));
    TRY(cairn_setup_adapter(&f->adapter, &f->lora, &f->table, &f->config, ctx->run->recipe, err));
out:
    cairn_reader_close(base);
    free(dir);
    return st;
}

enum cairn_status cairn_fastpath_open(struct cairn_fastpath **out, struct cairn_stage_ctx *ctx, struct cairn_world *whole, int role,
                                      struct cairn_error *err)
{
    const int path = cairn_handover_path_parse(cairn_recipe_str(ctx->run->recipe, "sync.path"));
    struct cairn_fastpath *f = NULL;
    struct cairn_group *group = NULL;
    enum cairn_status st = CAIRN_OK;

    *out = NULL;
    if (path == CAIRN_HANDOVER_FILE)
        return CAIRN_OK;
    TRY(cairn_world_split(whole, whole->all, role == 1 || (role == 2 && !ctx->world->rank) ? 0 : -1, whole->rank, "handover", &group, err));
    if (!group)
        return CAIRN_OK;
    if (!(f = calloc(1, sizeof *f)))
        TRY(CAIRN_NOMEM(err));
    f->group = group;
    TRY(cairn_group_agree(group, "handover: tensors", tables_make(f, ctx, err), err));
    {
        const struct cairn_handover_opts o = {.path = (enum cairn_handover_path)path,
                                              .table = tensors(f),
                                              .dtype = cairn_setup_dtype(ctx->run->recipe),
                                              .trainer = role == 2 && ctx->world->rank == 0,
                                              .sampler = role == 1,
                                              .compute = ctx->compute,
                                              .deadline_s = TAKE_S};

        TRY(cairn_handover_open(&f->h, group, &o, err));
    }
    *out = f;
    f = NULL;
out:
    if (!f && st != CAIRN_OK)
        cairn_group_destroy(group);
    cairn_fastpath_close(f);
    return st;
}

void cairn_fastpath_drop(struct cairn_fastpath *f)
{
    if (!f)
        return;
    cairn_handover_close(f->h);
    f->h = NULL;
}

void cairn_fastpath_close(struct cairn_fastpath *f)
{
    if (!f)
        return;
    cairn_fastpath_drop(f);
    if (f->lora)
        cairn_adapter_free(&f->adapter);
    cairn_param_table_free(&f->table);
    cairn_config_free(&f->config);
    cairn_group_destroy(f->group);
    free(f);
}

static int there(const struct cairn_fastpath *f)
{
    return f && f->h && cairn_handover_path(f->h) != CAIRN_HANDOVER_FILE;
}

static int meets(const struct cairn_fastpath *f)
{
    return there(f) && cairn_handover_path(f->h) == CAIRN_HANDOVER_NCCL;
}

void cairn_fastpath_meet(struct cairn_fastpath *f, cairn_fastpath_come_fn *come, void *arg)
{
    if (!f)
        return;
    f->come = come;
    f->arg = arg;
}

/* One line, and files from now on. */
static void give_up(struct cairn_fastpath *f, const struct cairn_error *err)
{
    cairn_warn("handover: %s; policies go through files", err->text);
    cairn_fastpath_drop(f);
}

void cairn_fastpath_give(struct cairn_fastpath *f, int64_t step, const struct cairn_store *published)
{
    struct cairn_store *s = (struct cairn_store *)(uintptr_t)published; /* read only, on this side */
    struct cairn_ring_tag tag = {.step = step};
    struct cairn_error err = {0};

    if (!there(f) || published->table->count != tensors(f)->count)
        return;
    if (cairn_handover_left(f->h)) { /* the last rollout is made */
        cairn_fastpath_drop(f);
        return;
    }
    if (f->bound != s && cairn_handover_bind(f->h, s, NULL, &err) != CAIRN_OK) {
        give_up(f, &err);
        return;
    }
    f->bound = s;
    if (meets(f)) {
        f->due = s;
        f->due_tag = tag;
        return;
    }
    if (cairn_handover_give(f->h, (uint64_t)step + 1, &tag, &err) != CAIRN_OK)
        give_up(f, &err);
}

int cairn_fastpath_due(const struct cairn_fastpath *f)
{
    return f && f->due && meets(f);
}

enum cairn_status cairn_fastpath_give_due(struct cairn_fastpath *f, struct cairn_error *err)
{
    struct cairn_error why = {0};
    enum cairn_status st = CAIRN_OK;
    uint64_t generation;
    int all = 0;

    if (!cairn_fastpath_due(f))
        return CAIRN_OK;
    generation = (uint64_t)f->due_tag.step + 1;
    f->due = NULL;
    TRY(f->come(f->arg, generation, &all, err));
    if (!all) /* some sampler has made its last rollout */
        cairn_fastpath_drop(f);
    else if (cairn_handover_give(f->h, generation, &f->due_tag, &why) != CAIRN_OK)
        give_up(f, &why);
out:
    return st;
}

/* What the tensors' tiles add up to, by the manifest. */
static struct cairn_digest sums(const struct cairn_fastpath *f, const struct cairn_manifest *m)
{
    struct cairn_digest sum = {0, 0};

    for (int i = 0; i < m->ntensors; i++) {
        int p = cairn_param_find(tensors(f), m->tensors[i].name);

        for (int k = 0; p >= 0 && !tensors(f)->param[p].frozen && k < m->tensors[i].nparts; k++)
            sum = cairn_digest_add(sum, m->tensors[i].parts[k].slice->sum);
    }
    return sum;
}

int cairn_fastpath_take(void *arg, struct cairn_store *s, struct cairn_reader *r)
{
    struct cairn_fastpath *f = arg;
    const struct cairn_manifest *m = cairn_reader_manifest(r);
    const uint64_t generation = (uint64_t)m->step + 1;
    struct cairn_ring_tag tag = {0};
    struct cairn_error err = {0};
    uint64_t got = 0;
    int comes = 0;

    if (!there(f))
        return 0;
    if (meets(f)) {
        if (f->bound == s && cairn_handover_generation(f->h) == generation) /* for an evaluation, or taken by one */
            return f->have.step == m->step && cairn_digest_equal(f->have.weights, sums(f, m));
        if (f->come(f->arg, generation, &comes, &err) != CAIRN_OK || !comes)
            return 0;
    } else if (cairn_handover_generation(f->h) < generation) { /* it was made by somebody else, or before */
        return 0;
    }
    if (f->bound != s && cairn_handover_bind(f->h, NULL, s, &err) != CAIRN_OK) {
        give_up(f, &err);
        return 0;
    }
    f->bound = s;
    if (cairn_handover_take(f->h, generation, &got, &tag, &err) != CAIRN_OK) {
        give_up(f, &err);
        return 0;
    }
    f->have = tag;
    return got == generation && tag.step == m->step && cairn_digest_equal(tag.weights, sums(f, m));
}
