/* schema.c - the table of keys. What a key means stands in its doc, here and nowhere else: recipes/base.yaml is printed from it.
 *
 * Meanings follow the objective's definitions (rewards, advantages, losses) and the classes of recipe.h. Refuses to know
 * which keys go together: that is rules.c; and what this build cannot do yet: limits.c.
 */
#include "recipe/schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
#define SCI CAIRN_SCIENCE
#define LAY CAIRN_LAYOUT
#define OPS CAIRN_OPS
#define OPT CAIRN_KEY_NULL
#define REQ CAIRN_KEY_REQUIRED
#define ABOVE CAIRN_KEY_ABOVE
#define BELOW CAIRN_KEY_BELOW
#define INF INFINITY
#define BIG 9.3e18   /* integers without an upper limit of their own; above all of them */
#define MILL 1000000

/* path, class, flags, default, ..., doc */
#define SECTION(p, c, doc) {p, CAIRN_KEY_SECTION, c, 0, "{}", 0, 0, NULL, NULL, doc}
#define OPTION(p, c, doc) {p, CAIRN_KEY_SECTION, c, OPT, "null", 0, 0, NULL, NULL, doc}
#define ITEM(p, c, doc) {p, CAIRN_KEY_SECTION, c, 0, NULL, 0, 0, NULL, NULL, doc}
#define LIST(p, c, doc) {p, CAIRN_KEY_SECTIONS, c, 0, "[]", 0, 0, NULL, NULL, doc}
#define INT(p, c, f, d, lo, hi, unit, doc) {p, CAIRN_KEY_INT, c, f, d, lo, hi, NULL, unit, doc}
#define FLT(p, c, f, d, lo, hi, unit, doc) {p, CAIRN_KEY_FLOAT, c, f, d, lo, hi, NULL, unit, doc}
#define BOOL(p, c, d, doc) {p, CAIRN_KEY_BOOL, c, 0, d, 0, 0, NULL, NULL, doc}
#define STR(p, c, f, d, doc) {p, CAIRN_KEY_STRING, c, f, d, 0, 0, NULL, NULL, doc}
#define PATH(p, c, f, d, doc) {p, CAIRN_KEY_PATH, c, f, d, 0, 0, NULL, NULL, doc}
#define WORD(p, c, f, d, words, doc) {p, CAIRN_KEY_WORD, c, f, d, 0, 0, words, NULL, doc}
#define TEXTS(p, c, f, d, doc) {p, CAIRN_KEY_STRINGS, c, f, d, 0, 0, NULL, NULL, doc}

#define STAGES "rollout|score|train|sync"

/* What one stage's Slurm job asks for; `array` only where a stage has tasks. */
#define SLURM(s)                                                                                                                    \
    SECTION("slurm." s, OPS, "Resources of " s "; where stages share a job, the first stage that names a value decides."),         \
    STR("slurm." s ".partition", OPS, OPT, "null", "sbatch --partition; null: slurm.partition."),                                  \
    STR("slurm." s ".account", OPS, OPT, "null", "sbatch --account; null: slurm.account."),                                        \
    STR("slurm." s ".qos", OPS, OPT, "null", "sbatch --qos; null: slurm.qos."),                                                    \
    STR("slurm." s ".constraint", OPS, OPT, "null", "sbatch --constraint; null: slurm.constraint."),                               \
    STR("slurm." s ".gres", OPS, OPT, "null", "sbatch --gres, per node; null: slurm.gres."),                                       \
    STR("slurm." s ".time", OPS, OPT, "null", "sbatch --time, as \"hours:minutes:seconds\"; null: slurm.time."),                   \
    STR("slurm." s ".memory", OPS, OPT, "null", "sbatch --mem, per node, as \"64G\"; null: slurm.memory."),                        \
    INT("slurm." s ".nodes", OPS, OPT, "null", 1, MILL, "nodes", "sbatch --nodes; null: as many as the stage's layout needs."),    \
    INT("slurm." s ".tasks_per_node", OPS, OPT, "null", 1, MILL, "tasks", "sbatch --ntasks-per-node; null: Slurm decides."),       \
    INT("slurm." s ".cpus_per_task", OPS, OPT, "null", 1, MILL, "cores", "sbatch --cpus-per-task; null: Slurm decides."),          \
    TEXTS("slurm." s ".extra", OPS, 0, "[]", "Further sbatch arguments for this stage, after slurm.extra.")

static const struct cairn_key table[] = {
    SECTION("run", SCI, "The run as a whole."),
    INT("run.seed", SCI, 0, "1", 0, BIG, NULL, "Seed of every random draw (Philox, keyed by seed, step, prompt, sample, position)."),
    INT("run.steps", OPS, 0, "20", 0, BIG, "steps", "How far the run goes; 0: no further than the warm start."),
    INT("run.eval_every", SCI, 0, "10", 0, BIG, "steps",
        "Evaluate data.eval before step 1, after every so many steps and after the last; 0: never."),
    WORD("run.mode", OPS, 0, "chained", "chained|resident",
         "chained: one job after another. resident: stages stay alive in one allocation. The results are the same."),
    WORD("run.check", OPS, 0, "first", "first|off",
         "first: before the first rollout trainer and sampler must be one policy (cairn check). off: cairn check is called by hand."),
    INT("run.lag", SCI, 0, "0", 0, 1, "steps",
        "1: the rollout of step s+1 is sampled while step s trains, by the policy before it; needs train.correction."),
    FLT("run.deadline", OPS, ABOVE, "600.0", 0, INF, "seconds", "A collective operation that takes longer ends the process."),
    STR("run.origin", SCI, OPT, "null",
        "Where stored rollouts came from (\"run UUID\", \"file NAME DIGEST\"); cairn replay writes it. null: they are sampled."),

    SECTION("model", SCI, "What is trained. Exactly one of from and init."),
    PATH("model.from", SCI, OPT, "null", "Imported checkpoint (made by cairn import) to start with."),
    {"model.init", CAIRN_KEY_FREE, SCI, OPT, "null", 0, 0, NULL, NULL,
     "Start from random weights: the keys of a config.json (model_type, hidden_size, ...). Inherited maps merge."},
    PATH("model.tokenizer", SCI, OPT, "null",
         "tokenizer.json or a folder that holds one; null: the one in model.from. model.init needs it."),
    OPTION("model.adapter", SCI, "Train a LoRA adapter: W x + (alpha/rank) B A x. null: train the full weights."),
    INT("model.adapter.rank", SCI, 0, "32", 1, 65536, NULL, "Rank of A and B."),
    FLT("model.adapter.alpha", SCI, OPT | ABOVE, "null", 0, INF, NULL, "Scale; null: the rank, so that the factor is 1."),
    TEXTS("model.adapter.targets", SCI, 0,
          "[q_a_proj, q_b_proj, kv_a_proj_with_mqa, kv_b_proj, o_proj, gate_proj, up_proj, down_proj, experts]",
          "Module names that get an adapter, in all layers that have them; experts means each routed expert's projections."),
    WORD("model.adapter.init", SCI, 0, "kaiming", "kaiming", "kaiming: A Kaiming-uniform, B zero."),
    BOOL("model.adapter.alias_gate_up", SCI, "false", "One A serves gate and up of the experts, as PEFT's fused experts have it."),
    BOOL("model.adapter.rslora", SCI, "false", "The factor is alpha / sqrt(rank)."),
    {"model.adapter.modules", CAIRN_KEY_NAMED, SCI, 0, "{}", 0, 0, NULL, NULL, "Another rank or alpha for single modules, by name."},
    ITEM("model.adapter.modules.*", SCI, "One module's."),
    INT("model.adapter.modules.*.rank", SCI, OPT, "null", 1, 65536, NULL, "null: model.adapter.rank."),
    FLT("model.adapter.modules.*.alpha", SCI, OPT | ABOVE, "null", 0, INF, NULL, "null: the module's rank."),

    SECTION("data", SCI, "Prompts."),
    LIST("data.prompts", SCI, "Prompt files to train on; several are mixed by weight."),
    ITEM("data.prompts.*", SCI, "One file."),
    PATH("data.prompts.*.path", SCI, REQ, NULL, "JSON lines {\"id\", \"prompt\", \"answer\"}; prompt is a text or a chat, [{\"role\", \"content\"}, ...]."),
    FLT("data.prompts.*.weight", SCI, ABOVE, "1.0", 0, INF, NULL, "Share of the prompts drawn from this file, relative to the others."),
    STR("data.prompts.*.grader", SCI, OPT, "null", "null: score.grader."),
    OPTION("data.prompts.*.keys", SCI,
           "Names of a row's members, where they are others; a dot goes into an object (reward_model.ground_truth). null: id, prompt, answer, grader."),
    STR("data.prompts.*.keys.id", SCI, 0, "id", "A string or an integer; may be missing: then the row's number."),
    STR("data.prompts.*.keys.prompt", SCI, 0, "prompt", "A text, or a chat: a list of {\"role\", \"content\"}."),
    STR("data.prompts.*.keys.answer", SCI, 0, "answer", "The gold answer: a string or an integer."),
    STR("data.prompts.*.keys.grader", SCI, 0, "grader", "Who grades this row; may be missing: then the file's grader."),
    STR("data.template", SCI, 0, "glm5",
        "How a prompt becomes tokens: a chat template (glm5, glm5.1, glm5.2, glm5.3, plain), words around the prompt (dapo, slime, or a "
        "text with {prompt} in it: \"Q: {prompt}\\nA:\"), or both (\"glm5.2:dapo\")."),
    BOOL("data.thinking", SCI, "true", "Chat templates that know it: the answer starts in thinking mode."),
    WORD("data.effort", SCI, OPT, "null", "low|high|max", "Reasoning effort, for glm5.2 (high, max) and glm5.3; null: max."),
    BOOL("data.added_in_prompt", SCI, "false", "Added tokens (\"<|user|>\") in a prompt's text count as tokens; false: they are plain text."),
    BOOL("data.shuffle", SCI, "true", "Each pass over a prompt file has an order of its own, by run.seed; false: the file's order."),
    LIST("data.eval", SCI, "Evaluation sets, kept apart from training."),
    ITEM("data.eval.*", SCI, "One set."),
    STR("data.eval.*.name", SCI, REQ, NULL, "Name in paths and metrics: letters, digits, '.', '_', '-'."),
    PATH("data.eval.*.path", SCI, REQ, NULL, "JSON lines {\"id\", \"prompt\", \"answer\"}; prompt is a text or a chat, [{\"role\", \"content\"}, ...]."),
    INT("data.eval.*.k", SCI, 0, "1", 1, MILL, "samples", "Responses a problem."),
    INT("data.eval.*.limit", SCI, OPT, "null", 1, BIG, "problems", "Only the first so many; null: all."),
    FLT("data.eval.*.temperature", SCI, OPT, "null", 0, 100, NULL, "0: greedy; null: rollout.temperature."),
    FLT("data.eval.*.top_p", SCI, OPT | ABOVE, "null", 0, 1, NULL, "null: rollout.top_p."),
    INT("data.eval.*.max_new_tokens", SCI, OPT, "null", 1, BIG, "tokens", "null: rollout.max_new_tokens."),
    STR("data.eval.*.grader", SCI, OPT, "null", "null: score.grader."),
    OPTION("data.eval.*.keys", SCI,
           "Names of a row's members, where they are others; a dot goes into an object (reward_model.ground_truth). null: id, prompt, answer, grader."),
    STR("data.eval.*.keys.id", SCI, 0, "id", "A string or an integer; may be missing: then the row's number."),
    STR("data.eval.*.keys.prompt", SCI, 0, "prompt", "A text, or a chat: a list of {\"role\", \"content\"}."),
    STR("data.eval.*.keys.answer", SCI, 0, "answer", "The gold answer: a string or an integer."),
    STR("data.eval.*.keys.grader", SCI, 0, "grader", "Who grades this row; may be missing: then the set's grader."),

    OPTION("warm_start", SCI,
           "Supervised fine-tuning before step 1, of the same parameters that training trains; the optimiser's moments are reset after it."),
    PATH("warm_start.data", SCI, REQ, NULL, "JSON lines {\"prompt\", \"response\"}."),
    INT("warm_start.updates", SCI, 0, "100", 1, BIG, "updates", "Optimiser updates."),
    INT("warm_start.batch", SCI, 0, "64", 1, MILL, "examples", "Examples an update."),
    FLT("warm_start.learning_rate", SCI, ABOVE, "1.0e-5", 0, INF, "per update", "Constant after its warm-up."),
    INT("warm_start.warmup_updates", SCI, 0, "0", 0, BIG, "updates", "Linear warm-up of the learning rate."),

    SECTION("rollout", SCI, "Sampling."),
    INT("rollout.prompts", SCI, 0, "128", 1, MILL, "prompts", "Groups a step."),
    INT("rollout.samples", SCI, 0, "16", 1, MILL, "rollouts", "Rollouts of each prompt (a group)."),
    INT("rollout.max_new_tokens", SCI, 0, "8192", 1, BIG, "tokens", "Length cap of a response."),
    FLT("rollout.temperature", SCI, ABOVE, "1.0", 0, 100, NULL,
        "Logits are divided by it, also for every log-probability of trainer and sampler."),
    FLT("rollout.top_p", SCI, ABOVE, "1.0", 0, 1, NULL, "Smallest set of tokens with this probability; 1: all. See train.truncation."),
    INT("rollout.top_k", SCI, 0, "0", 0, BIG, "tokens", "The most probable so many; 0: all. See train.truncation."),
    FLT("rollout.min_p", SCI, BELOW, "0.0", 0, 1, NULL,
        "Tokens with at least this share of the most probable one's probability; 0: all. See train.truncation."),
    {"rollout.stop", CAIRN_KEY_STOPS, SCI, OPT, "null", 0, 0x7fffffff, NULL, NULL,
     "What ends a response: token ids and strings; null: the template's stop tokens."},
    OPTION("rollout.dynamic", SCI, "Dynamic sampling: groups whose verdicts are all equal are replaced. null: off."),
    WORD("rollout.dynamic.keep", SCI, 0, "mixed", "mixed", "mixed: groups whose raw rewards are not all equal, first in list order."),
    INT("rollout.dynamic.max_rounds", SCI, 0, "10", 1, MILL, "rounds",
        "Refills before the step goes on with what there is (at least one group)."),
    BOOL("rollout.carry", SCI, "false",
         "Surplus groups of dynamic sampling are trained in the next step; needs train.correction. false: their prompts are drawn again."),
    {"rollout.store", CAIRN_KEY_WORDS, SCI, 0, "[]", 0, 0, "text|experts", NULL,
     "Kept beside tokens and log-probabilities: text (each response), experts (training's rollouts: what each router chose for each token that was run)."},
    INT("rollout.batch", OPS, 0, "64", 1, MILL, "sequences", "Sequences decoded at once by a replica."),
    INT("rollout.page", LAY, 0, "64", 1, 65536, "tokens", "Page of the cache; a power of two, and a multiple of the index_kpool of models that have one."),
    SECTION("rollout.parallel", LAY, "How the sampler is cut over devices."),
    INT("rollout.parallel.tp", LAY, 0, "1", 1, 65536, "ranks", "Tensor parallel."),
    INT("rollout.parallel.ep", LAY, 0, "1", 1, 65536, "ranks", "Expert parallel."),
    INT("rollout.parallel.dp", OPS, 0, "1", 1, 65536, "ranks", "Replicas."),
    INT("rollout.tasks", OPS, 0, "1", 1, 65536, "tasks", "Independent processes that share the prompts of a step."),

    SECTION("score", SCI, "From responses to advantages."),
    STR("score.grader", SCI, 0, "math", "Grader of prompts that name none."),
    {"score.graders", CAIRN_KEY_NAMED, SCI, 0, "{}", 0, 0, NULL, NULL,
     "Graders of one's own, by name, for grader keys here and in data; math and exact are there already."},
    ITEM("score.graders.*", SCI, "One grader."),
    WORD("score.graders.*.kind", SCI, REQ, NULL, "exact|regex|command|plugin",
         "exact: the answer is the gold text. regex: an expression finds it. command: a program, one JSON line {\"id\", \"gold\", "
         "\"response\"} in, one {\"id\", \"match\"} or {\"id\", \"score\"} out. plugin: a shared object (runtime/grade/grader_plugin.h)."),
    WORD("score.graders.*.take", SCI, OPT, "null", "answer|response",
         "exact, regex: what is looked at, the answer behind a marker or in a box, or all of the response; null: answer for exact, "
         "response for regex."),
    BOOL("score.graders.*.any_case", SCI, "false", "exact, regex: upper and lower case are one."),
    STR("score.graders.*.pattern", SCI, OPT, "null",
        "regex: PCRE2; the last match decides; with a group, its text must be the gold text, without one a match is enough."),
    PATH("score.graders.*.program", SCI, OPT, "null", "command, plugin: the program or shared object; recorded by digest."),
    STR("score.graders.*.interpreter", SCI, OPT, "null", "command: what runs the program (python3); null: it runs by itself."),
    TEXTS("score.graders.*.arguments", SCI, 0, "[]", "command, plugin: further arguments."),
    FLT("score.graders.*.time", SCI, ABOVE, "10.0", 0, 86400, "seconds",
        "command, plugin: for one response, then its status is timeout; a score that a time-out decided marks its step as not "
        "deterministic."),
    INT("score.graders.*.retries", SCI, 0, "1", 0, 100, NULL, "command: how often a response is given to a fresh program after it crashed or said no verdict."),
    BOOL("score.graders.*.retry_timeout", SCI, "false", "command: after a time-out, too; false: its status is timeout at once."),
    FLT("score.graders.*.memory", SCI, ABOVE, "1.0", 0, 1048576, "GiB", "command, plugin: address space of each of its processes."),
    INT("score.graders.*.processes", SCI, 0, "64", 1, MILL, "processes", "command: at most at once (does not bind root)."),
    TEXTS("score.marker", SCI, 0, "[\"Answer:\"]", "Texts that announce the answer; the last one in a response decides."),
    SECTION("score.reward", SCI, "Raw reward r of a verdict."),
    FLT("score.reward.right", SCI, 0, "1.0", -INF, INF, NULL, "Of a right answer."),
    FLT("score.reward.wrong", SCI, 0, "0.0", -INF, INF, NULL, "Of a wrong one."),
    WORD("score.reward.truncated", SCI, 0, "graded", "graded|zero",
         "A response that hit the cap: graded like any other, or reward 0."),
    OPTION("score.overlong", SCI,
           "Soft over-length penalty, M = rollout.max_new_tokens, b = buffer, f = factor: 0 up to M-b tokens, then linear down to -f at M. "
           "null: off."),
    INT("score.overlong.buffer", SCI, 0, "4096", 1, BIG, "tokens", "b; at most rollout.max_new_tokens."),
    FLT("score.overlong.factor", SCI, 0, "1.0", 0, INF, NULL, "f."),
    WORD("score.advantage", SCI, 0, "grpo", "grpo|rloo",
         "grpo: (R - group mean) / (std + 1e-6). rloo: R - mean of the others. R is the shaped reward."),
    BOOL("score.normalise", SCI, "true", "grpo: divide by the group's standard deviation (n-1); false: Dr. GRPO."),
    FLT("score.clamp", SCI, OPT | ABOVE, "null", 0, INF, NULL, "Advantages are clamped to +- this; null: not."),
    BOOL("score.mask_truncated", SCI, "false", "No loss on responses that hit the cap; they still count in their group's statistics."),
    INT("score.tasks", OPS, 0, "1", 1, 65536, "tasks", "Independent processes that share the rollouts of a step."),

    SECTION("train", SCI, "From advantages to weights."),
    WORD("train.loss", SCI, 0, "grpo", "grpo|sft", "grpo: clipped policy loss. sft: cross-entropy of the stored responses."),
    WORD("train.ratio", SCI, 0, "token", "token|sequence|cispo",
         "rho: token: exp(cur - old). sequence: its geometric mean over the response (GSPO). cispo: clipped weight without gradient times cur."),
    INT("train.updates_per_step", SCI, 0, "4", 1, MILL, "updates",
        "A step's groups are shuffled by seed and step and cut into so many mini-batches; at most rollout.prompts."),
    FLT("train.learning_rate", SCI, ABOVE, "1.0e-5", 0, INF, "per update", "Constant after the warm-up."),
    INT("train.warmup_updates", SCI, 0, "40", 0, BIG, "updates", "Update k has learning_rate * min(1, k / warmup_updates)."),
    {"train.betas", CAIRN_KEY_FLOATS, SCI, BELOW, "[0.9, 0.999]", 0, 1, NULL, NULL, "AdamW."},
    FLT("train.eps", SCI, ABOVE, "1.0e-8", 0, INF, NULL, "AdamW."),
    FLT("train.weight_decay", SCI, 0, "0.0", 0, INF, "per update", "AdamW, decoupled; none on norms and biases."),
    FLT("train.grad_clip", SCI, 0, "1.0", 0, INF, NULL, "Limit of the global gradient norm; 0: off."),
    SECTION("train.clip", SCI, "The policy loss: max(-A rho, -A clip(rho, 1 - low, 1 + high))."),
    FLT("train.clip.low", SCI, BELOW, "0.2", 0, 1, NULL, "eps_low."),
    FLT("train.clip.high", SCI, 0, "0.28", 0, INF, NULL, "eps_high."),
    FLT("train.clip.dual", SCI, OPT | ABOVE, "null", 1, INF, NULL, "c: where A < 0 the loss is at most -c A; null: off."),
    WORD("train.reduction", SCI, 0, "token_mean", "token_mean|sequence_mean|prompt_mean|sum_over_max",
         "How token losses become one number, over the update's global batch. sum_over_max: sum / (rollouts * max_new_tokens), Dr. GRPO."),
    SECTION("train.correction", SCI,
            "For rollouts of another policy or back-end: w = exp(old - sampler's), without gradient. `correction: tis` is short for kind."),
    WORD("train.correction.kind", SCI, 0, "none", "none|tis|icepop|sequence",
         "tis: min(w, cap). icepop: w outside [low, high] counts 0. sequence: a response whose geometric mean is outside is dropped."),
    FLT("train.correction.cap", SCI, ABOVE, "2.0", 0, INF, NULL, "tis."),
    FLT("train.correction.low", SCI, 0, "0.5", 0, INF, NULL, "icepop, sequence."),
    FLT("train.correction.high", SCI, ABOVE, "2.0", 0, INF, NULL, "icepop, sequence."),
    SECTION("train.kl", SCI, "Penalty for leaving the reference policy (the start: LoRA with the adapter off, else base)."),
    FLT("train.kl.coef", SCI, 0, "0.0", 0, INF, NULL, "0: off, and no reference pass is made."),
    WORD("train.kl.kind", SCI, 0, "k3", "k1|k2|k3", "x = ref - cur: k1 = -x, k2 = x^2/2, k3 = e^x - 1 - x."),
    FLT("train.entropy", SCI, 0, "0.0", -INF, INF, NULL, "Coefficient of the entropy bonus."),
    WORD("train.on_policy", SCI, 0, "require", "require|correct",
         "require: rollouts of another policy are refused. correct: they are trained on with train.correction."),
    WORD("train.truncation", SCI, OPT, "null", "ignore|correct",
         "Must be said where top_p, top_k or min_p truncate; ratios are over the full vocabulary. correct: the weights of train.correction "
         "hold them against what was drawn from. ignore: they do not."),
    BOOL("train.skip_nonfinite", SCI, "false", "An update whose gradient is not finite is left out and counted; false: the step stops (76)."),
    BOOL("train.recompute", LAY, "false", "Keep only each layer's inputs and run the layer again in the backward: less memory, more time."),
    INT("train.pack", LAY, 0, "16384", 1, BIG, "tokens", "Tokens of a packed micro-batch; a longer sequence is one by itself."),
    SECTION("train.parallel", LAY, "How the trainer is cut over devices."),
    INT("train.parallel.tp", LAY, 0, "1", 1, 65536, "ranks", "Tensor parallel."),
    INT("train.parallel.pp", LAY, 0, "1", 1, 65536, "ranks", "Pipeline parallel."),
    INT("train.parallel.cp", LAY, 0, "1", 1, 65536, "ranks", "Context parallel."),
    INT("train.parallel.ep", LAY, 0, "1", 1, 65536, "ranks", "Expert parallel."),
    INT("train.parallel.dp", LAY, 0, "1", 1, 65536, "ranks", "Data parallel; the optimiser's state is sharded over it."),

    SECTION("sync", SCI, "From a trainer state to the sampler's weights."),
    WORD("sync.path", OPS, 0, "auto", "auto|file|shm|cuda-ipc|nccl", "How policies reach samplers that are alive (run.mode: resident), beside their files; the same bits on each path. auto: "
         "shm or cuda-ipc on one node, else file."),
    WORD("sync.dtype", SCI, 0, "bf16", "bf16|f32", "The published weights; every forward uses them, the trainer's too."),
    OPTION("sync.node_store", OPS, "Base weights that stay on the node for the next job. null: off."),
    PATH("sync.node_store.path", OPS, REQ, NULL, "Folder on node-local disk or in /dev/shm."),
    FLT("sync.node_store.max", OPS, ABOVE, "64.0", 0, INF, "GiB", "Size at which the oldest is evicted."),
    FLT("sync.node_store.ttl", OPS, ABOVE, "24.0", 0, INF, "hours", "Age without use after which it is removed."),

    SECTION("checkpoint", OPS, "What is kept."),
    INT("checkpoint.every", OPS, 0, "1", 1, BIG, "steps", "Resident runs save the trainer's state after so many steps and at the end; a stop or a kill costs the training since, which is done again, to the same bits. Chained runs save each."),
    INT("checkpoint.updates", OPS, 0, "0", 0, BIG, "updates", "Also after so many updates inside a step, dropped when the step commits; 0: not."),
    INT("checkpoint.keep", OPS, 0, "2", 1, BIG, "states", "The last so many trainer states stay."),
    INT("checkpoint.keep_every", OPS, 0, "10", 0, BIG, "steps", "Trainer states of every so many-th step stay too; 0: none."),
    {"checkpoint.keep_policies", CAIRN_KEY_INT, OPS, 0, "all", 1, BIG, "all", "generations", "Policies that stay: the last so many, or all."},
    WORD("checkpoint.durability", OPS, 0, "fsync", "fsync|none",
         "fsync: what was told to be committed survives a power cut. none: it survives killed processes only."),

    SECTION("kernels", LAY, "What computes."),
    WORD("kernels.backend", LAY, 0, "auto", "auto|cpu|cuda|ascend|guard",
         "auto: the best that this machine has. guard: the CPU with memory protected outside operations, for tests."),
    WORD("kernels.precision", LAY, 0, "auto", "auto|f32|bf16",
         "Type of weights and activations in products; sums, norms, softmax, masters and moments are f32. auto: bf16 on a GPU, f32 on the CPU. "
         "f32 on a GPU, bf16 on a CPU: slow, for comparisons."),
    WORD("kernels.dsa", LAY, 0, "fused", "fused|reference", "The sparse attention's variant."),
    WORD("kernels.graphs", OPS, 0, "auto", "auto|off",
         "The sampler's calls of one size are recorded and enqueued as one thing from then on, where the device can; never changes a "
         "bit. off: each kernel by itself."),
    BOOL("kernels.share", OPS, "false",
         "Ranks of one node may take the same GPU, in turns; never changes a bit. false: more ranks than GPUs are refused."),
    INT("kernels.threads", OPS, 0, "0", 0, 65536, "threads", "CPU threads of a process, never changes a bit; 0: all cores it may use."),

    SECTION("numerics", LAY, "What is promised of bits."),
    INT("numerics.segments", LAY, 0, "1", 1, 1024, "segments",
        "Long sums are accumulated in so many fixed segments, so that tensor parallel sizes up to it give equal bits; a power of two; 1: off."),
    WORD("numerics.require", LAY, 0, "same", "same|compatible",
         "A resumed run on another back-end, build or layout is refused, or goes on and says so."),

    SECTION("mismatch", SCI, "Sampler against trainer, log-probabilities of the same tokens."),
    {"mismatch.max", CAIRN_KEY_FLOAT, SCI, 0, "auto", 0, INF, "auto", NULL,
     "Largest |old - sampler's| before the step stops (76). auto: 0 where both carry the same numerics, else the declared band."},
    FLT("mismatch.sample", SCI, 0, "0.01", 0, 1, NULL, "Share of the rollouts that is recomputed to compare, beyond the first update's."),

    SECTION("log", OPS, "What is told."),
    WORD("log.level", OPS, 0, "info", "error|warn|info|debug", "Least severity on stderr."),
    FLT("log.interval", OPS, ABOVE, "10.0", 0, INF, "seconds", "Between progress lines where stderr is no terminal."),

    SECTION("slurm", OPS, "Jobs. Values here are for all stages; each stage's own section goes before."),
    {"slurm.jobs", CAIRN_KEY_JOBS, OPS, 0, "[[rollout], [score, train, sync]]", 0, 0, STAGES, NULL,
     "Which stages share an allocation: every stage once, in the order of the chain."},
    INT("slurm.window", OPS, 0, "3", 1, 1000, "steps", "Steps that are queued ahead."),
    BOOL("slurm.extend", OPS, "true", "The last act of a job queues further steps; false, where sbatch is forbidden on compute nodes: the user does."),
    INT("slurm.attempts", OPS, 0, "3", 1, 1000, "attempts", "The same failure so often stops the chain."),
    FLT("slurm.grace", OPS, 0, "30.0", 0, INF, "seconds", "Time between SIGTERM and SIGKILL where Slurm does not tell."),
    FLT("slurm.signal_lead", OPS, 0, "120.0", 0, 65535, "seconds", "Before the time limit, when a job is told to stop (sbatch --signal)."),
    STR("slurm.partition", OPS, OPT, "null", "sbatch --partition; null: the site's default."),
    STR("slurm.account", OPS, OPT, "null", "sbatch --account; null: the user's default."),
    STR("slurm.qos", OPS, OPT, "null", "sbatch --qos; null: the user's default."),
    STR("slurm.constraint", OPS, OPT, "null", "sbatch --constraint; null: none."),
    STR("slurm.gres", OPS, OPT, "null", "sbatch --gres, per node (\"gpu:8\"); null: none."),
    STR("slurm.time", OPS, OPT, "null", "sbatch --time, as \"hours:minutes:seconds\"; null: the partition's default."),
    STR("slurm.memory", OPS, OPT, "null", "sbatch --mem, per node, as \"64G\"; null: the partition's default."),
    STR("slurm.exclude", OPS, OPT, "null", "sbatch --exclude: nodes to stay away from; null: none."),
    TEXTS("slurm.extra", OPS, 0, "[]", "Further sbatch arguments, each as one string."),
    TEXTS("slurm.setup", OPS, 0, "[]", "Shell lines at the start of each job (\"module load openmpi\")."),
    SLURM("rollout"),
    BOOL("slurm.rollout.array", OPS, "true", "The rollout.tasks of a step are a job array; false: they share one allocation."),
    SLURM("score"),
    BOOL("slurm.score.array", OPS, "true", "The score.tasks of a step are a job array; false: they share one allocation."),
    SLURM("train"),
    SLURM("sync"),
    SLURM("check"),
};
/* clang-format on */

#define COUNT (sizeof table / sizeof *table)

const struct cairn_key *cairn_schema_table(size_t *n)
{
    *n = COUNT;
    return table;
}

const struct cairn_key *cairn_schema_find(const char *path)
{
    for (size_t i = 0; i < COUNT; i++)
        if (strcmp(table[i].path, path) == 0)
            return &table[i];
    return NULL;
}

const struct cairn_key *cairn_schema_child(const char *path, const struct cairn_key *after)
{
    size_t len = strlen(path);

    for (const struct cairn_key *k = after ? after + 1 : table; k < table + COUNT; k++) {
        const char *rest = k->path;

        if (len) {
            if (strncmp(rest, path, len) != 0 || rest[len] != '.')
                continue;
            rest += len + 1;
        }
        if (!strchr(rest, '.') && strcmp(rest, "*") != 0)
            return k;
    }
    return NULL;
}

const char *cairn_key_leaf(const struct cairn_key *k)
{
    const char *dot = strrchr(k->path, '.');

    return dot ? dot + 1 : k->path;
}

static void put_words(struct cairn_str *out, const char *words)
{
    for (const char *p = words; *p; p++) {
        if (*p == '|')
            cairn_str_puts(out, ", ");
        else
            cairn_str_putc(out, *p);
    }
}

void cairn_key_expects(const struct cairn_key *k, struct cairn_str *out)
{
    switch (k->type) {
    case CAIRN_KEY_SECTION:
        cairn_str_puts(out, "a map of keys");
        break;
    case CAIRN_KEY_SECTIONS:
        cairn_str_puts(out, "a list of maps");
        break;
    case CAIRN_KEY_NAMED:
        cairn_str_puts(out, "a map of names to maps");
        break;
    case CAIRN_KEY_FREE:
        cairn_str_puts(out, "a map");
        break;
    case CAIRN_KEY_INT:
        cairn_str_puts(out, "an integer");
        break;
    case CAIRN_KEY_FLOAT:
        cairn_str_puts(out, "a number");
        break;
    case CAIRN_KEY_BOOL:
        cairn_str_puts(out, "true or false");
        break;
    case CAIRN_KEY_STRING:
        cairn_str_puts(out, "a string");
        break;
    case CAIRN_KEY_PATH:
        cairn_str_puts(out, "a path");
        break;
    case CAIRN_KEY_WORD:
        cairn_str_puts(out, "one of ");
        break;
    case CAIRN_KEY_STRINGS:
        cairn_str_puts(out, "a list of strings");
        break;
    case CAIRN_KEY_WORDS:
        cairn_str_puts(out, "a list of some of ");
        break;
    case CAIRN_KEY_FLOATS:
        cairn_str_puts(out, "a list of two numbers");
        break;
    case CAIRN_KEY_STOPS:
        cairn_str_puts(out, "a list of token ids and strings");
        break;
    case CAIRN_KEY_JOBS:
        cairn_str_puts(out, "a list of lists of ");
        break;
    }
    if (k->words && (k->type == CAIRN_KEY_INT || k->type == CAIRN_KEY_FLOAT))
        cairn_str_puts(out, " or ");
    if (k->words)
        put_words(out, k->words);
    if (k->flags & CAIRN_KEY_NULL)
        cairn_str_puts(out, k->type == CAIRN_KEY_BOOL ? ", or null" : " or null");
}

/* A limit for people: 1000000, 0.5. */
static void put_limit(struct cairn_str *out, double x)
{
    if (fabs(x) < BIG && x == (double)(long long)x)
        cairn_str_printf(out, "%lld", (long long)x);
    else
        cairn_str_printf(out, "%g", x);
}

void cairn_key_range(const struct cairn_key *k, struct cairn_str *out)
{
    int numbers =
        k->type == CAIRN_KEY_INT || k->type == CAIRN_KEY_FLOAT || k->type == CAIRN_KEY_FLOATS || k->type == CAIRN_KEY_STOPS;
    int low = numbers && k->min > -INF, high = numbers && k->max < BIG;

    if (low && high && !(k->flags & (CAIRN_KEY_ABOVE | CAIRN_KEY_BELOW))) {
        put_limit(out, k->min);
        cairn_str_puts(out, " to ");
        put_limit(out, k->max);
        return;
    }
    if (low) {
        cairn_str_puts(out, k->flags & CAIRN_KEY_ABOVE ? "above " : "at least ");
        put_limit(out, k->min);
    }
    if (low && high)
        cairn_str_puts(out, ", ");
    if (high) {
        cairn_str_puts(out, k->flags & CAIRN_KEY_BELOW ? "below " : "at most ");
        put_limit(out, k->max);
    }
}

/* A key with the leaf `name` that can be named as it stands; those that are in every recipe before those that are not. */
static const struct cairn_key *by_leaf(const char *name)
{
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < COUNT; i++) {
            const struct cairn_key *k = &table[i];
            int rare = strncmp(k->path, "slurm.", 6) == 0 || strncmp(k->path, "warm_start.", 11) == 0;

            if (rare == pass && !strchr(k->path, '*') && strcmp(cairn_key_leaf(k), name) == 0)
                return k;
        }
    return NULL;
}

void cairn_schema_suggest(const char *path, const char *shown, const char *name, struct cairn_str *out)
{
    const char *word[COUNT], *best;
    const struct cairn_key *other;
    struct cairn_str whole = {0};
    size_t n = 0, siblings;

    for (const struct cairn_key *k = cairn_schema_child(path, NULL); k; k = cairn_schema_child(path, k))
        word[n++] = cairn_key_leaf(k);
    siblings = n;
    best = cairn_nearest(name, word, n);
    if (best) {
        cairn_str_printf(out, "nearest valid key: %s%s%s", shown, *shown ? "." : "", best);
        return;
    }
    other = by_leaf(name); /* the right word in the wrong section */
    if (!other) {
        n = 0;
        for (size_t i = 0; i < COUNT; i++)
            if (!strchr(table[i].path, '*') && table[i].type != CAIRN_KEY_SECTION)
                word[n++] = table[i].path;
        cairn_str_printf(&whole, "%s%s%s", path, *path ? "." : "", name);
        best = cairn_nearest(cairn_str_z(&whole), word, n);
        other = best ? cairn_schema_find(best) : NULL;
        cairn_str_free(&whole);
    }
    if (!other && strlen(name) > 3) { /* a misspelt word in the wrong section; anything is near to a short one */
        n = 0;
        for (size_t i = 0; i < COUNT; i++)
            if (!strchr(table[i].path, '*'))
                word[n++] = cairn_key_leaf(&table[i]);
        best = cairn_nearest(name, word, n);
        other = best ? by_leaf(best) : NULL;
    }
    if (other) {
        cairn_str_printf(out, "nearest valid key: %s", other->path);
        return;
    }
    cairn_str_puts(out, "valid here: ");
    n = 0;
    for (const struct cairn_key *k = cairn_schema_child(path, NULL); k && n < siblings; k = cairn_schema_child(path, k))
        cairn_str_printf(out, "%s%s", n++ ? ", " : "", cairn_key_leaf(k));
}

const char *cairn_class_name(enum cairn_recipe_class c)
{
    return c == CAIRN_SCIENCE ? "science" : c == CAIRN_LAYOUT ? "layout" : "ops";
}

int cairn_words_has(const char *words, const char *text)
{
    size_t len = strlen(text);

    for (const char *p = words; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (len && strncmp(p, text, len) == 0 && (p[len] == 0 || p[len] == '|'))
            return 1;
    return 0;
}

char *cairn_words_nearest(const char *words, const char *text)
{
    const char *list[32], *best;
    char *copy = cairn_format("%s", words), *out = NULL;
    size_t n = 0;

    for (char *p = copy, *end; p && n < sizeof list / sizeof *list; p = end) {
        end = strchr(p, '|');
        if (end)
            *end++ = 0;
        list[n++] = p;
    }
    best = cairn_nearest(text, list, n);
    if (best)
        out = cairn_format("%s", best);
    free(copy);
    return out;
}
