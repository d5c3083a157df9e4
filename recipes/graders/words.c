/* words.c - a grader as a shared object: how many of the words that are wanted does the response have?
 *
 *     cc -shared -fPIC -iquote runtime/grade recipes/graders/words.c -o words.so
 *
 * The gold answer is a list of words; the score is the share of them that the response holds. See runtime/grade/grader_plugin.h.
 */
#include "grader_plugin.h"

#include <stdio.h>
#include <string.h>

static int holds(const struct cairn_plugin_request *q, const char *word, size_t n)
{
    for (size_t i = 0; i + n <= q->response_bytes; i++)
        if (memcmp(q->response + i, word, n) == 0)
            return 1;
    return 0;
}

static int grade(void *state, const struct cairn_plugin_request *q, struct cairn_plugin_result *r)
{
    int wanted = 0, found = 0;

    (void)state;
    for (size_t i = 0; i < q->gold_bytes;) {
        size_t n = 0;

        while (i + n < q->gold_bytes && q->gold[i + n] != ' ')
            n++;
        if (n) {
            wanted++;
            found += holds(q, q->gold + i, n);
        }
        i += n + 1;
    }
    r->answered = q->response_bytes > 0;
    r->score = wanted ? (double)found / wanted : 1;
    snprintf(r->why, sizeof r->why, "%d of %d words", found, wanted);
    return 0;
}

const struct cairn_grader_plugin *cairn_grader_plugin(void)
{
    static const struct cairn_grader_plugin self = {.abi = CAIRN_GRADER_PLUGIN_ABI, .grade = grade};

    return &self;
}
