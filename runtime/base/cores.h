/* cores.h - how many cores there are to compute on. */
#ifndef CAIRN_BASE_CORES_H
#define CAIRN_BASE_CORES_H

/* Those that this process may run on, as a batch system or taskset has set them; at least 1. */
int cairn_cores(void);
/* Those of this machine that are at work, whoever may use them; at least 1. */
int cairn_cores_here(void);

#endif
