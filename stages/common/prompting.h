/* prompting.h - from the words of a recipe to what a sampler wants: prompts as ids, and what ends a response. A warm start teaches to end
 * so.
 *
 * What ends a response: token ids, and strings. A string that names an added token of the tokenizer means that token; any other ends the
 * response with the token that completes it, wherever token borders lie (it stays in the response, like a stop token).
 *
 * A model's embedding may have more rows than the tokenizer has ids: those ids take part in every log-probability, as in training, but a
 * response that holds one could not be read, so they are barred.
 *
 * Memory: the struct owns everything but the prompt files.
 */
#ifndef CAIRN_STAGES_COMMON_PROMPTING_H
#define CAIRN_STAGES_COMMON_PROMPTING_H

#include "model/config.h"
#include "recipe/recipe.h"
#include "stages/common/prompts.h"
#include "text/template.h"
#include "text/tokenizer.h"

struct cairn_prompting {
    struct cairn_tokenizer *tokenizer;
    struct cairn_template *template;
    struct cairn_ids stop;  /* ids that end a response */
    char **text;            /* (texts) strings that do */
    int texts;
    uint8_t *barred; /* (vocabulary of the model) 1: the tokenizer has no such id, so it is never sampled; NULL: it has all */
};

/* Fills in barred from the tokenizer. */
enum cairn_status cairn_prompting_bar(struct cairn_prompting *p, int64_t vocab, struct cairn_error *err);
/* data.template and its options, rollout.stop. Without stop tokens of the recipe or the template: the model's own (eos_token_id); without
 * those, too, CAIRN_ERECIPE. */
enum cairn_status cairn_prompting_open(struct cairn_prompting *p, const struct cairn_recipe *recipe, const char *tokenizer,
                                       const struct cairn_model_config *c, struct cairn_error *err);
void cairn_prompting_close(struct cairn_prompting *p);

/* Appends the ids of row `row` of a prompt file. CAIRN_EDATA "FILE:LINE: ..." if there are none, one is outside the model's vocabulary or
 * stands for an image, or prompt and max_new tokens exceed its positions. */
enum cairn_status cairn_prompting_ids(struct cairn_prompting *p, const struct cairn_prompts *file, int64_t row, int64_t max_new,
                                      const struct cairn_model_config *c, struct cairn_ids *ids, struct cairn_error *err);
/* Appends what a response is taught to end with: the first of the stop ids, else the first of the strings. */
enum cairn_status cairn_prompting_end(const struct cairn_prompting *p, struct cairn_ids *ids, struct cairn_error *err);
/* For cairn_engine_opts.ended (stages/rollout/engine.h); arg is a struct cairn_prompting. */
int cairn_prompting_ended(void *arg, const int32_t *response, int64_t n);

#endif
