/* peft_impl.h - what the files that read PEFT adapters share: peft_config.c (adapter_config.json), peft_sites.c (tensors to adapted
 * layers), peft.c (the adapter, its values). Nobody else includes it.
 */
#ifndef CAIRN_MODEL_PEFT_IMPL_H
#define CAIRN_MODEL_PEFT_IMPL_H

#include "model/names.h"
#include "model/peft.h"

#define CAIRN_PEFT_PREFIX "base_model.model."

enum cairn_peft_form { CAIRN_PEFT_SITE_PLAIN, CAIRN_PEFT_SITE_EXPERTS, CAIRN_PEFT_SITE_FUSED };

struct cairn_peft_site { /* one adapted layer as it lies in the file */
    int param;
    enum cairn_peft_form form;
    int rank;
    double gamma;
    int alias;                     /* base parameter whose A it shares, or -1 */
    int64_t row;                   /* CAIRN_PEFT_SITE_FUSED: first row of B */
    char module[CAIRN_NAME_BYTES]; /* path in the file behind the prefix; CAIRN_PEFT_SITE_EXPERTS: that of the stack */
};

struct cairn_peft {
    char *dir, *where; /* where: path of adapter_config.json */
    const struct cairn_param_table *base;
    const struct cairn_model_config *c;
    struct cairn_st *st;
    json_t *config;
    struct cairn_peft_site *site;
    int sites;
    struct cairn_adapter adapter;
    int taken;
    int vision; /* tensors for the vision tower */
};

/* --- peft_config.c: what the configuration says --------------------------------------------------------------------------- */

/* Refuses by key what cairn has no counterpart of. */
enum cairn_status cairn_peft_check_config(const struct cairn_peft *p, struct cairn_error *err);
/* Rank and scale of the site at `path`; the file's rank must be the configuration's. */
enum cairn_status cairn_peft_scale(const struct cairn_peft *p, struct cairn_peft_site *s, const char *path, int64_t rank,
                                   struct cairn_error *err);
/* 1: target_parameters names this parameter ("shared_experts.up_proj.weight"): patterns then go by the parameter's path. */
int cairn_peft_by_parameter(const struct cairn_peft *p, const char *name);
/* Version "a.b.c" as 1000 a + b, or -1. */
int cairn_peft_version(const struct cairn_peft *p);
/* Every target must have been found among the sites. */
enum cairn_status cairn_peft_check_targets(const struct cairn_peft *p, struct cairn_error *err);

/* --- peft_sites.c: what the tensors say ------------------------------------------------------------------------------------- */

/* All tensors to p->site, ordered by parameter. */
enum cairn_status cairn_peft_find_sites(struct cairn_peft *p, struct cairn_error *err);
/* Sets `alias` of those whose A has the bits of gate's throughout. Reads them. */
enum cairn_status cairn_peft_find_aliases(struct cairn_peft *p, struct cairn_error *err);
const struct cairn_peft_site *cairn_peft_site_of(const struct cairn_peft *p, int param); /* NULL: not adapted */
/* The tensor of half 'A' or 'B', by the table's name of the module; the file may have another that means the same. NULL: none. */
const struct cairn_st_tensor *cairn_peft_half(const struct cairn_peft *p, const char *module, char which);

#endif
