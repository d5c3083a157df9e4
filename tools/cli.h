/* cli.h - what all verbs of `cairn` share: how a failure is told, how results leave, how help looks.
 *
 * Results go to stdout, everything else to stderr. A verb is `int cairn_verb_<name>(int argc, char **argv)`; argv[0] is the verb's
 * name; it returns the exit code (base/status.h).
 */
#ifndef CAIRN_TOOLS_CLI_H
#define CAIRN_TOOLS_CLI_H

#include <argp.h>

#include "base/json.h"
#include "base/status.h"

/* Prints "cairn VERB: sentence" on stderr and returns the code. */
int cairn_cli_fail(const char *verb, const struct cairn_error *err);
/* "cairn VERB: sentence (try: cairn VERB --help)", 64. */
int cairn_cli_usage(const char *verb, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* argp_parse with our exit codes: *done = 1 when --help or --usage was answered. Returns 0 or 64. */
int cairn_cli_parse(const struct argp *argp, int argc, char **argv, void *input, int *done);
/* Tells that `arg` is no value for --name, and what would be; EINVAL. */
error_t cairn_bad_value(struct argp_state *state, const char *name, const char *arg, const char *expected);
/* Prints v as one line of JSON and drops the reference. */
enum cairn_status cairn_cli_json(json_t *v, struct cairn_error *err);
/* Flushes stdout; CAIRN_EIO / CAIRN_ENOSPACE if anything written there was lost. */
enum cairn_status cairn_cli_flush(struct cairn_error *err);

#endif
