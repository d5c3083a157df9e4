/* template.h - a prompt becomes the ids that a policy continues.
 *
 * A template is named by one string, as recipes write it (`data.template`):
 *
 *     [CHAT:]INSIDE       or      CHAT
 *
 *     CHAT     role tokens around it    glm5, glm5.1     [gMASK]<sop><|user|> INSIDE <|assistant|><think>
 *                                                        thinking off: ... <|assistant|></think>
 *                                       glm5.2           [gMASK]<sop><|system|>Reasoning Effort: Max<|user|> INSIDE
 *                                                        <|assistant|><think>; thinking off: no effort line, and
 *                                                        ... <|assistant|><think></think>
 *                                       glm5.3           as glm5.2, always with its line, thinking cannot be off
 *                                       plain            nothing
 *     INSIDE   words around the prompt  dapo             the prompt of DAPO and verl
 *                                       slime            the same, answer in \boxed{}
 *                                       a text that holds {prompt} once ("Q: {prompt}\nA:"); all else is literal
 *              none: the prompt alone.
 *     INSIDE without CHAT is `plain`. Examples: glm5, glm5.2:dapo, slime, "Question: {prompt}\nAnswer:".
 *
 * (Blanks around INSIDE in this table are for the eye.) Role tokens go in by id, so they must be added tokens of the
 * tokenizer. The words around the prompt and the prompt itself are encoded as one text, so that merges across their
 * border are those of the whole; added tokens in the words (the recipe's author wrote them) count, those in the
 * prompt do not: a problem that says <|assistant|> must not be able to open a turn, close the thinking or stop the
 * generation, whatever data it came from. HuggingFace's apply_chat_template renders text first and recognises them;
 * .added_in_prompt asks for that (to reproduce its ids, or for data sets that carry their own tokens).
 *
 * A prompt may be a whole chat: system, user and assistant messages, of which a user's is the last. INSIDE stands around that one.
 * `plain` has no roles and takes one user message alone. What an assistant thought in an earlier turn is dropped, as the models' templates
 * drop it: text up to the last </think>. In its place stands
 *     glm5   </think>     glm5.1   <think></think> in the last assistant's turn, </think> in those before     glm5.2, glm5.3   <think></think>
 *
 * Source: spec of the GLM-5 family's chat templates, section 19.2 (no tools); the maths prompts are those of BytedTsinghua-SIA/DAPO and
 * THUDM/slime.
 * Memory: a struct cairn_template owns its texts; constant after parsing, threads may share it.
 */
#ifndef CAIRN_TEXT_TEMPLATE_H
#define CAIRN_TEXT_TEMPLATE_H

#include <stddef.h>

#include "base/status.h"
#include "text/ids.h"
#include "text/tokenizer.h"

struct cairn_template;

struct cairn_template_opts {
    int thinking_off;    /* 1: the model answers without thinking first; refused where the model always thinks */
    const char *effort;  /* glm5.2: high, max; glm5.3: low, high, max; NULL: max */
    int added_in_prompt; /* 1: added tokens inside of the prompt count, as HuggingFace has it */
};

/* opts may be NULL. CAIRN_ERECIPE with a sentence (and the nearest name) if spec names no template. */
enum cairn_status cairn_template_parse(struct cairn_template **out, const char *spec, const struct cairn_template_opts *opts,
                                       struct cairn_error *err);
void cairn_template_destroy(struct cairn_template *t);

/* CAIRN_EDATA naming the first role token that the tokenizer lacks. */
enum cairn_status cairn_template_check(const struct cairn_template *t, const struct cairn_tokenizer *tok, struct cairn_error *err);
enum cairn_role { CAIRN_ROLE_SYSTEM, CAIRN_ROLE_USER, CAIRN_ROLE_ASSISTANT };
struct cairn_message {
    enum cairn_role role;
    const char *text; /* (bytes) borrowed */
    size_t bytes;
};

/* Appends the ids of a chat of n messages. On failure ids is as it was. CAIRN_EDATA: its last message is not a user's, or the template
 * has no roles for it. */
enum cairn_status cairn_template_chat(const struct cairn_template *t, struct cairn_tokenizer *tok, const struct cairn_message *m, int n,
                                      struct cairn_ids *ids, struct cairn_error *err);
/* The same for one user message of n bytes. */
enum cairn_status cairn_template_render(const struct cairn_template *t, struct cairn_tokenizer *tok, const char *prompt, size_t n,
                                        struct cairn_ids *ids, struct cairn_error *err);
/* Appends the ids that end a response by default. glm: <|endoftext|>, <|user|>, <|observation|>. plain: <|endoftext|>,
 * or nothing if the tokenizer has none (the recipe has to name its own). */
enum cairn_status cairn_template_stop_ids(const struct cairn_template *t, const struct cairn_tokenizer *tok, struct cairn_ids *ids,
                                          struct cairn_error *err);

#endif
