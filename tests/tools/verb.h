/* verb.h - a verb of `cairn` in a process of its own, and files in a folder of its own. */
#ifndef CAIRN_TESTS_VERB_H
#define CAIRN_TESTS_VERB_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "tools/verbs.h"

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static char folder[] = "/tmp/verb_test.XXXXXX";
static char in_path[300], out_path[300], err_path[300]; /* err_path: what the last verb said on stderr */

static inline int folder_make(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(in_path, sizeof in_path, "%s/in.jsonl", folder);
    snprintf(out_path, sizeof out_path, "%s/out", folder);
    snprintf(err_path, sizeof err_path, "%s/err", folder);
    return 0;
}

static inline int folder_remove(void **state)
{
    (void)state;
    return cairn_tree_remove(folder, NULL) != CAIRN_OK;
}

static inline void put(const char *path, const char *text, size_t n)
{
    unlink(path);
    assert_int_equal(cairn_file_create(path, text, n, NULL), CAIRN_OK);
}

/* malloc'ed */
static inline char *get(const char *path)
{
    char *text = NULL;
    size_t n;

    assert_int_equal(cairn_file_read(path, 1 << 26, &text, &n, NULL), CAIRN_OK);
    return text;
}

/* In a child, since a verb may start threads. Its stdout goes to `out`. Returns its exit code. */
static inline int run(int (*verb)(int, char **), const char *const *args, const char *out)
{
    char *argv[24] = {0};
    int argc = 0, status = 0;
    pid_t pid;

    for (; args[argc]; argc++)
        argv[argc] = (char *)(uintptr_t)args[argc];
    assert_true(argc < 24);
    fflush(NULL);
    pid = fork();
    if (!pid) {
        int o = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600), e = open(err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600), rc;

        dup2(o, 1);
        dup2(e, 2);
        rc = verb(argc, argv);
        fflush(NULL);
        _exit(rc);
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

#endif
