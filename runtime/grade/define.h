/* define.h - graders that a recipe defines: a kind, and what that kind needs.
 *
 *   exact    the answer is the gold text                      regex    an expression finds it
 *   command  a program that reads and writes JSON lines       plugin   a shared object (grader_plugin.h)
 * A definition is checked, copied and added to those that cairn_grader_find knows. Definitions last until they are forgotten; the
 * grader process (process.h) takes those that exist when it starts.
 */
#ifndef CAIRN_GRADE_DEFINE_H
#define CAIRN_GRADE_DEFINE_H

#include "grade/grade.h"
#include "grade/sandbox.h"

struct cairn_grader_def {
    const char *name;
    const char *kind;
    const char *take;            /* exact, regex: "answer", as the math grader finds it, or "response", all of it */
    int any_case;                /* exact, regex: upper and lower case are one */
    const char *pattern;         /* regex */
    const char *program;         /* command, plugin: absolute path */
    const char *interpreter;     /* command: runs the program ("python3", found by PATH); NULL: it runs by itself */
    const char *const *argument; /* command, plugin: (arguments) further ones */
    int arguments;
    double time_s;        /* command, plugin: for one response */
    int retries;          /* command: how often a response is given again after anything but a verdict or a time-out */
    int retry_timeout;    /* command: after a time-out, too */
    int64_t memory_bytes; /* command, plugin: address space of each process */
    int processes;        /* command: at most at once */
};

/* CAIRN_ERECIPE with a sentence that names the key below score.graders.NAME. */
enum cairn_status cairn_grader_define(const struct cairn_grader_def *def, struct cairn_error *err);
void cairn_graders_forget(void); /* all definitions */

#endif
