/* pmi_kind.h - what a process manager's client must do: the table behind pmi.h, one for PMIx and one for PMI2. */
#ifndef CAIRN_WORLD_PMI_KIND_H
#define CAIRN_WORLD_PMI_KIND_H

#include <stddef.h>

#include "base/status.h"

#define CAIRN_PMI_ABI     1
#define CAIRN_PMIX_SYMBOL "cairn_pmix"

struct cairn_pmi_kind {
    int abi;
    const char *name;
    enum cairn_status (*start)(int *rank, int *size, struct cairn_error *err);
    void (*finish)(void);
    enum cairn_status (*put)(int rank, const char *key, const char *value, struct cairn_error *err);
    enum cairn_status (*fence)(struct cairn_error *err);
    enum cairn_status (*get)(int rank, const char *key, char *value, size_t n, struct cairn_error *err);
};

extern const struct cairn_pmi_kind cairn_pmi2;

/* Opens libpmi2; CAIRN_EDEVICE with the linker's sentence. */
enum cairn_status cairn_pmi2_load(struct cairn_error *err);

#endif
