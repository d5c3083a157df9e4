/* cli.c - the shared manners of the verbs (cli.h). */
#include "tools/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/str.h"
#include "tools/recipe_args.h"

int cairn_cli_fail(const char *verb, const struct cairn_error *err)
{
    fprintf(stderr, "cairn %s: %s\n", verb, err->text);
    return (int)err->code;
}

int cairn_cli_usage(const char *verb, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "cairn %s: ", verb);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, " (try: cairn %s --help)\n", verb);
    return CAIRN_EUSAGE;
}

enum { OPT_USAGE = 1024 };

struct asked {
    const struct argp *inner;
    void *input;
    int *done;
};

/* --help and --usage are answered here, because argp's own would call exit(). */
static error_t asked_option(int key, char *arg, struct argp_state *state)
{
    struct asked *a = state->input;

    (void)arg;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->input;
        return 0;
    case '?':
        argp_state_help(state, stdout, ARGP_HELP_USAGE | ARGP_HELP_LONG | ARGP_HELP_DOC);
        *a->done = 1;
        state->next = state->argc;
        return 0;
    case OPT_USAGE:
        argp_state_help(state, stdout, ARGP_HELP_USAGE);
        *a->done = 1;
        state->next = state->argc;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

int cairn_cli_parse(const struct argp *argp, int argc, char **argv, void *input, int *done)
{
    static const struct argp_option options[] = {{"help", '?', NULL, 0, "this page", -1},
                                                 {"usage", OPT_USAGE, NULL, OPTION_HIDDEN, NULL, -1},
                                                 {0}};
    struct argp_child child[] = {{argp, 0, NULL, 0}, {0}};
    struct argp outer = {options, asked_option, NULL, NULL, child, NULL, NULL}; /* argp prints the child's texts, too */
    struct asked a = {argp, input, done};
    char name[64];
    char *saved = argv[0];
    error_t e;

    *done = 0;
    snprintf(name, sizeof name, "cairn %s", argv[0]);
    argv[0] = name;
    e = argp_parse(&outer, argc, argv, ARGP_NO_EXIT | ARGP_NO_HELP, NULL, &a);
    argv[0] = saved;
    return *done || !e ? 0 : CAIRN_EUSAGE;
}

error_t cairn_bad_value(struct argp_state *state, const char *name, const char *arg, const char *expected)
{
    argp_error(state, "%s%s %s: expected %s", name[1] ? "--" : "-", name, arg, expected);
    return EINVAL;
}

enum cairn_status cairn_cli_json(json_t *v, struct cairn_error *err)
{
    struct cairn_str s = {0};
    enum cairn_status st = CAIRN_OK;

    if (!v)
        return CAIRN_NOMEM(err);
    cairn_json_canonical(&s, v);
    json_decref(v);
    cairn_str_putc(&s, '\n');
    if (s.oom)
        st = CAIRN_NOMEM(err);
    else
        fwrite(s.p, 1, s.len, stdout); /* errors are kept by the stream: cairn_cli_flush tells */
    cairn_str_free(&s);
    return st;
}

enum cairn_status cairn_cli_flush(struct cairn_error *err)
{
    errno = 0;
    if (fflush(stdout) || ferror(stdout))
        return cairn_fail_errno(err, errno ? errno : EIO, "write to standard output");
    return CAIRN_OK;
}

static error_t put(const struct cairn_cli_slot *slots, void *input, int key, char *arg, struct argp_state *state)
{
    const struct cairn_cli_slot *s = slots;
    int64_t n;
    double x;
    char *to;

    while (s->kind != CAIRN_CLI_END && s->key != key)
        s++;
    to = (char *)input + s->at;
    switch (s->kind) {
    case CAIRN_CLI_END:
        break;
    case CAIRN_CLI_FLAG:
        *(int *)to = 1;
        return 0;
    case CAIRN_CLI_TEXT:
        if (key == ARGP_KEY_ARG && *(const char **)to)
            return ARGP_ERR_UNKNOWN;
        *(const char **)to = arg;
        return 0;
    case CAIRN_CLI_COUNT:
        if (cairn_parse_i64(arg, &n) && (double)n >= s->low && (double)n <= s->high) {
            *(int64_t *)to = n;
            return 0;
        }
        return cairn_bad_value(state, s->name, arg, s->expected);
    case CAIRN_CLI_NUMBER:
        if (cairn_parse_double(arg, &x) && x >= s->low && x <= s->high) {
            *(double *)to = x;
            return 0;
        }
        return cairn_bad_value(state, s->name, arg, s->expected);
    case CAIRN_CLI_RECIPE:
        return cairn_recipe_args_take((struct cairn_recipe_args *)to, arg, state);
    }
    return ARGP_ERR_UNKNOWN;
}

error_t cairn_cli_take(const struct cairn_cli_slot *slots, int key, char *arg, struct argp_state *state)
{
    return put(slots, state->input, key, arg, state);
}

struct table {
    const struct cairn_cli_slot *slots;
    void *input;
};

static error_t table_option(int key, char *arg, struct argp_state *state)
{
    const struct table *t = state->input;

    return put(t->slots, t->input, key, arg, state);
}

int cairn_cli_read(const struct argp *argp, const struct cairn_cli_slot *slots, int argc, char **argv, void *input, int *done)
{
    struct argp page = *argp;

    page.parser = table_option;
    return cairn_cli_parse(&page, argc, argv, &(struct table){slots, input}, done);
}
