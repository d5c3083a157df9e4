/* main.c - `cairn <verb> ...`: the front door. One table of verbs, one file per verb. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/build.h"
#include "base/log.h"
#include "base/str.h"
#include "tools/verbs.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static int verb_help(int argc, char **argv);

static const struct verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *doc;
} verbs[] = {
    {"run", cairn_verb_run, "the whole chain on this machine; run again after anything: goes on where it stands"},
    {"init", cairn_verb_init, "resolve, check and freeze a recipe into a run directory"},
    {"submit", cairn_verb_submit, "the whole chain as Slurm jobs; again after anything: queues what is missing"},
    {"stop", cairn_verb_stop, "cancel a run's Slurm jobs; it can go on afterwards"},
    {"job", cairn_verb_job, "what a Slurm job does; its script calls it"},
    {"status", cairn_verb_status, "per step and stage: state, progress, what blocks"},
    {"amend", cairn_verb_amend, "a science or layout key changes from a step on, on the record"},
    {"verify", cairn_verb_verify, "every manifest and every shard, size and digest over all bytes"},
    {"gc", cairn_verb_gc, "retention now, leftovers of the dead, old quarantine, orphaned shared memory"},
    {"digest", cairn_verb_digest, "one line per committed artefact: the hash of its logical content"},
    {"inspect", cairn_verb_inspect, "what is in a checkpoint, rollout, score or run"},
    {"import", cairn_verb_import, "a HuggingFace model becomes a checkpoint"},
    {"export", cairn_verb_export, "a checkpoint or policy becomes HuggingFace files"},
    {"logprobs", cairn_verb_logprobs, "log-probabilities of token sequences, by the trainer's or the sampler's path"},
    {"generate", cairn_verb_generate, "sample from a model"},
    {"tokenize", cairn_verb_tokenize, "text to ids"},
    {"detokenize", cairn_verb_detokenize, "ids to text"},
    {"grade", cairn_verb_grade, "grade responses against gold answers"},
    {"eval", cairn_verb_eval, "sample and grade a problem set with a policy of a run"},
    {"replay", cairn_verb_replay, "score, train from, or bring in stored rollouts"},
    {"check", cairn_verb_check, "prove that trainer and sampler are one policy, before a run"},
    {"bench", cairn_verb_bench, "measure this machine and this build"},
    {"doctor", cairn_verb_doctor, "what this machine lacks and how to get it"},
    {"help", verb_help, "this list, or the page of one verb: cairn help VERB"},
};

static const struct verb *verb_find(const char *name)
{
    for (size_t i = 0; i < COUNT(verbs); i++)
        if (!strcmp(name, verbs[i].name))
            return &verbs[i];
    return NULL;
}

static int verb_unknown(const char *name)
{
    const char *names[COUNT(verbs)], *near;

    for (size_t i = 0; i < COUNT(verbs); i++)
        names[i] = verbs[i].name;
    near = cairn_nearest(name, names, COUNT(verbs));
    fprintf(stderr, "cairn: no verb \"%s\"%s%s%s; cairn help lists them\n", name, near ? "; did you mean \"" : "", near ? near : "",
            near ? "\"" : "");
    return CAIRN_EUSAGE;
}

static int verb_help(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--help")) {
        const struct verb *v = verb_find(argv[1]);
        char *page[] = {argv[1], (char[]){"--help"}, NULL};

        if (!v)
            return verb_unknown(argv[1]);
        if (v->run != verb_help)
            return v->run(2, page);
    }
    puts("usage: cairn VERB [options]\n\ncairn: reinforcement learning for GLM-5-family language models as plain batch work.\n");
    for (size_t i = 0; i < COUNT(verbs); i++)
        printf("  %-11s %s\n", verbs[i].name, verbs[i].doc);
    puts("\nEvery verb has --help, which ends with two examples. Exit codes: 0 done, 64 usage, 65 bad data, 69 input not committed,\n"
         "70 our bug, 71 fenced, 72 device, 73 no space, 74 I/O, 75 run me again, 76 wrong numbers, 78 recipe.\n\n"
         "Examples:\n  cairn run recipes/tiny.yaml --run /tmp/tiny\n  cairn status /tmp/tiny");
    return fflush(stdout) ? CAIRN_EIO : CAIRN_OK;
}

int main(int argc, char **argv)
{
    const struct verb *v;

    cairn_log_init("cairn", 0);
    if (argc < 2) {
        verb_help(1, argv);
        return CAIRN_EUSAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
        return verb_help(1, argv);
    if (!strcmp(argv[1], "--version")) {
        printf("cairn %s\n", cairn_build_version());
        return CAIRN_OK;
    }
    v = verb_find(argv[1]);
    return v ? v->run(argc - 1, argv + 1) : verb_unknown(argv[1]);
}
