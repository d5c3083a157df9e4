/* names.h - names of tensors: the published checkpoints', which the parameter table has, and those that other software uses.
 *
 * glm_moe_dsa: "model.layers.3.self_attn.q_b_proj.weight". glm5_next: "model.language_model.layers.3.self_attn.A_log"; files without
 * "language_model.", and transformers' names in memory, which its gradients and PEFT adapters have, mean the same:
 *   self_attn.forget_gate.{A_log,dt_bias,f_a_proj,f_b_proj}   self_attn.…        attn_hc.{fn,base,scale}   hc_attn_{fn,base,scale}
 *                                                                                 ffn_hc.{…}                hc_ffn_{…}
 */
#ifndef CAIRN_MODEL_NAMES_H
#define CAIRN_MODEL_NAMES_H

#include "model/config.h"

#define CAIRN_NAME_BYTES 256

/* "<prefix>layers.N.<suffix>" and "<prefix><suffix>" into out[CAIRN_NAME_BYTES]. */
void cairn_name_of_layer(const struct cairn_model_config *c, int layer, const char *suffix, char *out);
void cairn_name_of_model(const struct cairn_model_config *c, const char *suffix, char *out);
/* Layer of "<prefix>layers.N.<rest>", or -1; *rest behind the dot. */
int cairn_name_layer(const struct cairn_model_config *c, const char *name, const char **rest);
/* The table's name for a name of other software (itself, where it is no such name) into out[CAIRN_NAME_BYTES]; 0 if there is no room. */
int cairn_name_canonical(const struct cairn_model_config *c, const char *name, char *out);
/* Name i = 0, 1, ... under which other software may have written the tensor of the table; 0 when there are no more. */
int cairn_name_other(const struct cairn_model_config *c, const char *name, int i, char *out);

#endif
