/* grader_plugin.h - what a grader written in C (or anything with a C interface) looks like. This file alone is needed to build one:
 *
 *     cc -shared -fPIC -I CAIRN/runtime/grade mygrader.c -o mygrader.so
 *
 * It exports one function, cairn_grader_plugin, that returns the struct below. cairn loads it in a process of its own that has no network,
 * no capabilities and a read-only file system but for its working folder, which is empty, private and gone with the process; threads may
 * be made and must be joined before a call returns. The verdict must depend on nothing but the request: cairn may call on any machine, in
 * any order, twice. A crash, a call that takes too long, or a result that breaks a rule is a status of that response, and the plugin is
 * loaded anew. Text given to the plugin may hold any bytes, NULs too, and is not NUL-terminated.
 */
#ifndef CAIRN_GRADER_PLUGIN_H
#define CAIRN_GRADER_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAIRN_GRADER_PLUGIN_ABI 1u

struct cairn_plugin_request {
    uint32_t bytes; /* size of this struct as cairn knows it: later fields are there only if it says so */
    const char *gold;
    size_t gold_bytes;
    const char *response;
    size_t response_bytes;
};

struct cairn_plugin_result {
    uint32_t bytes;      /* as above; all else is zero at the call */
    double score;        /* 0 wrong ... 1 right; finite, from 0 to 1 */
    int answered;        /* 0: the response offers no answer */
    char extracted[256]; /* the answer that was found, for people; NUL-terminated */
    char why[160];       /* one sentence, for people */
};

struct cairn_grader_plugin {
    uint32_t abi; /* CAIRN_GRADER_PLUGIN_ABI */
    /* Once, before the first request. arguments: the recipe's, NULL-terminated. 0, or anything else with a sentence in why. May be NULL. */
    int (*open)(const char *const *arguments, void **state, char *why, size_t why_size);
    /* 0: *result holds the verdict. Anything else: it could not do its work; result->why says why. */
    int (*grade)(void *state, const struct cairn_plugin_request *request, struct cairn_plugin_result *result);
};

const struct cairn_grader_plugin *cairn_grader_plugin(void);

#ifdef __cplusplus
}
#endif
#endif
