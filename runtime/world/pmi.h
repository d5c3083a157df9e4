/* pmi.h - rank, size and an exchange of short texts for a program without MPI, through what the launcher speaks: PMIx or PMI2.
 *
 *     struct cairn_pmi *p;
 *     TRY(cairn_pmi_open(&p, NULL, err));
 *     TRY(cairn_pmi_put(p, "address", "10.0.0.3:4711", err));
 *     TRY(cairn_pmi_fence(p, err));                               collective: everybody has put what he has to say
 *     TRY(cairn_pmi_get(p, 0, "address", text, sizeof text, err));
 *     cairn_pmi_close(p);                                         collective
 *
 * Which one is chosen at run time by what the launcher put into the environment. Both libraries are opened at run time: PMIx
 * through a shared object of ours (cairn-pmix.so, built where its header is), PMI2 is Slurm's own libpmi2. Not together with MPI in
 * one process: an MPI library talks to the same server. One thread at a time.
 */
#ifndef CAIRN_WORLD_PMI_H
#define CAIRN_WORLD_PMI_H

#include <stddef.h>

#include "base/status.h"

#define CAIRN_PMI_KEY   40  /* longest key, bytes: letters, digits, '.', '_', '-' */
#define CAIRN_PMI_VALUE 320 /* longest value, bytes: any text without NUL */

struct cairn_pmi;

/* kind: "pmix", "pmi2", or NULL for the one that the launcher offers. CAIRN_EDEVICE: it offers none, or its library is missing. */
enum cairn_status cairn_pmi_open(struct cairn_pmi **out, const char *kind, struct cairn_error *err);
void cairn_pmi_close(struct cairn_pmi *p); /* NULL is fine */
const char *cairn_pmi_kind(const struct cairn_pmi *p);
int cairn_pmi_rank(const struct cairn_pmi *p);
int cairn_pmi_size(const struct cairn_pmi *p);

enum cairn_status cairn_pmi_put(struct cairn_pmi *p, const char *key, const char *value, struct cairn_error *err);
enum cairn_status cairn_pmi_fence(struct cairn_pmi *p, struct cairn_error *err);
/* What rank `rank` put before the last fence. CAIRN_EBUG if it put nothing, or more than n - 1 bytes. */
enum cairn_status cairn_pmi_get(struct cairn_pmi *p, int rank, const char *key, char *value, size_t n, struct cairn_error *err);

/* For doctor: can the library of that kind be opened on this machine? 1: yes, `text` names it; 0: no, `text` says why. */
int cairn_pmi_there(const char *kind, char *text, size_t n);

#endif
