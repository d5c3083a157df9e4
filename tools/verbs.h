/* verbs.h - the verbs of `cairn`, one file each in tools/. argv[0] is the verb's name; the result is the exit code. */
#ifndef CAIRN_TOOLS_VERBS_H
#define CAIRN_TOOLS_VERBS_H

int cairn_verb_run(int argc, char **argv);
int cairn_verb_submit(int argc, char **argv);
int cairn_verb_stop(int argc, char **argv);
int cairn_verb_job(int argc, char **argv);
int cairn_verb_init(int argc, char **argv);
int cairn_verb_status(int argc, char **argv);
int cairn_verb_amend(int argc, char **argv);
int cairn_verb_verify(int argc, char **argv);
int cairn_verb_gc(int argc, char **argv);
int cairn_verb_digest(int argc, char **argv);
int cairn_verb_inspect(int argc, char **argv);
int cairn_verb_import(int argc, char **argv);
int cairn_verb_export(int argc, char **argv);
int cairn_verb_logprobs(int argc, char **argv);
int cairn_verb_generate(int argc, char **argv);
int cairn_verb_tokenize(int argc, char **argv);
int cairn_verb_detokenize(int argc, char **argv);
int cairn_verb_grade(int argc, char **argv);
int cairn_verb_eval(int argc, char **argv);
int cairn_verb_replay(int argc, char **argv);
int cairn_verb_check(int argc, char **argv);
int cairn_verb_bench(int argc, char **argv);
int cairn_verb_doctor(int argc, char **argv);

#endif
