/* stage_impl.h - what the files of a stage share: command.c (its command line and the world around it), stage.c (the order of one
 * link), device.c (what it computes on), rival.c (another attempt that was first). Nobody else includes it.
 */
#ifndef CAIRN_STAGES_COMMON_STAGE_IMPL_H
#define CAIRN_STAGES_COMMON_STAGE_IMPL_H

#include "stages/common/stage.h"

/* What follows a commit, on rank 0. first: another one made it, now or before we asked. */
enum cairn_status cairn_stage_follow(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def, int first,
                                     struct cairn_error *err);

/* --- device.c ---------------------------------------------------------------------------------------------------------------- */

/* The device, if the work wants one, and its fingerprint in the manifest; inputs that were computed by other numerics are refused,
 * or told (numerics.require). */
enum cairn_status cairn_stage_device_prepare(struct cairn_stage_ctx *ctx, const struct cairn_stage_def *def,
                                             struct cairn_error *err);
/* Each rank of a node has a GPU of its own, unless kernels.share allows otherwise. Collective. */
enum cairn_status cairn_stage_devices_compare(struct cairn_stage_ctx *ctx, struct cairn_error *err);

/* --- rival.c -------------------------------------------------------------------------------------------------------------------
 */

/* We did not get through. Has another attempt committed just what we would have, as far as we had come? Then all is done. */
int cairn_stage_rival(const struct cairn_stage_ctx *ctx);

#endif
