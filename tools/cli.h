/* cli.h - what all verbs of `cairn` share: how a failure is told, how results leave, how help looks.
 *
 * Results go to stdout, everything else to stderr. A verb is `int cairn_verb_<name>(int argc, char **argv)`; argv[0] is the verb's
 * name; it returns the exit code (base/status.h).
 */
#ifndef CAIRN_TOOLS_CLI_H
#define CAIRN_TOOLS_CLI_H

#include <argp.h>
#include <stddef.h>

#include "base/json.h"
#include "base/status.h"

/* Prints "cairn VERB: sentence" on stderr and returns the code. */
int cairn_cli_fail(const char *verb, const struct cairn_error *err);
/* "cairn VERB: sentence (try: cairn VERB --help)", 64. */
int cairn_cli_usage(const char *verb, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* argp_parse with our exit codes: *done = 1 when --help or --usage was answered. Returns 0 or 64. The page's own parser puts the values
 * away; where each has its slot, cairn_cli_read does it. */
int cairn_cli_parse(const struct argp *argp, int argc, char **argv, void *input, int *done);
/* Where the value of an option goes: `at` bytes into the struct that is the parser's input. */
struct cairn_cli_slot {
    int key; /* of the option; ARGP_KEY_ARG: a word */
    enum cairn_cli_kind {
        CAIRN_CLI_END,   /* of the list */
        CAIRN_CLI_FLAG,  /* int: 1 when it was given */
        CAIRN_CLI_TEXT,  /* const char *: the last one given; of words, only one is taken */
        CAIRN_CLI_COUNT, /* int64_t */
        CAIRN_CLI_NUMBER, /* double */
        CAIRN_CLI_RECIPE  /* struct cairn_recipe_args: takes the words */
    } kind;
    size_t at;
    const char *name, *expected; /* of a count or a number: of the option; what it says of a value that is not in [low, high] */
    double low, high;
};
#define CAIRN_CLI_ABOVE_0 0x1p-149 /* float32's smallest */
#define CAIRN_CLI_BELOW_1 0x1.fffffep-1
#define CAIRN_CLI_FLAG_AT(key, type, member) {(key), CAIRN_CLI_FLAG, offsetof(type, member), NULL, NULL, 0, 0}
#define CAIRN_CLI_TEXT_AT(key, type, member) {(key), CAIRN_CLI_TEXT, offsetof(type, member), NULL, NULL, 0, 0}
#define CAIRN_CLI_COUNT_AT(key, type, member, name, low, high, expected) \
    {(key), CAIRN_CLI_COUNT, offsetof(type, member), (name), (expected), (double)(low), (double)(high)}
#define CAIRN_CLI_NUMBER_AT(key, type, member, name, low, high, expected) \
    {(key), CAIRN_CLI_NUMBER, offsetof(type, member), (name), (expected), (low), (high)}
#define CAIRN_CLI_RECIPE_AT(type, member) {ARGP_KEY_ARG, CAIRN_CLI_RECIPE, offsetof(type, member), NULL, NULL, 0, 0}
#define CAIRN_CLI_STEP_AT(key, type, member, name) CAIRN_CLI_COUNT_AT(key, type, member, name, 0, 999999999, "a step")
#define CAIRN_CLI_BYTES_AT(key, type, member, name) CAIRN_CLI_COUNT_AT(key, type, member, name, 1, 0x1p62, "a number of bytes, 1 or more")
/* For a verb's parser: puts the value into its slot (the list ends with {0}). ARGP_ERR_UNKNOWN if it has none; a value that is wrong
 * is told, EINVAL. */
error_t cairn_cli_take(const struct cairn_cli_slot *slots, int key, char *arg, struct argp_state *state);
/* Tells that `arg` is no value for --name (a single letter: -n), and what would be; EINVAL. */
error_t cairn_bad_value(struct argp_state *state, const char *name, const char *arg, const char *expected);
/* cairn_cli_parse of a page without a parser: every value goes into its slot of *input. */
int cairn_cli_read(const struct argp *argp, const struct cairn_cli_slot *slots, int argc, char **argv, void *input, int *done);
/* Prints v as one line of JSON and drops the reference. */
enum cairn_status cairn_cli_json(json_t *v, struct cairn_error *err);
/* Flushes stdout; CAIRN_EIO / CAIRN_ENOSPACE if anything written there was lost. */
enum cairn_status cairn_cli_flush(struct cairn_error *err);

#endif
