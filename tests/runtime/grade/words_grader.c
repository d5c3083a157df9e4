/* words_grader.c - a plugin for foreign_test.c: the score is words / N, at most 1, with N its first argument. Some golds make it misbehave. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "grade/grader_plugin.h"

static int begin(const char *const *argument, void **state, char *why, size_t why_size)
{
    static int wanted;

    if (!argument[0] || argument[1]) {
        snprintf(why, why_size, "one argument, please");
        return 1;
    }
    wanted = atoi(argument[0]);
    *state = &wanted;
    return 0;
}

static int is(const struct cairn_plugin_request *q, const char *gold)
{
    return q->gold_bytes == strlen(gold) && memcmp(q->gold, gold, q->gold_bytes) == 0;
}

static int grade(void *state, const struct cairn_plugin_request *q, struct cairn_plugin_result *r)
{
    int words = 0;

    if (is(q, "crash"))
        abort();
    while (is(q, "hang"))
        pause();
    for (size_t i = 0; i < q->response_bytes; i++)
        words += q->response[i] != ' ' && (i == 0 || q->response[i - 1] == ' ');
    r->answered = words > 0;
    r->score = is(q, "nan") ? NAN : fmin(1, (double)words / *(const int *)state);
    return 0;
}

const struct cairn_grader_plugin *cairn_grader_plugin(void)
{
    static const struct cairn_grader_plugin self = {.abi = CAIRN_GRADER_PLUGIN_ABI, .open = begin, .grade = grade};

    return &self;
}
