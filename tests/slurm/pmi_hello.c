/* pmi_hello.c - a program without MPI: every rank tells where it is, all hear all. For tests/slurm: prints one line a rank,
 *
 *     pmix 1 of 4: n1 n1 n2 n2
 *
 * With an argument it opens that kind. Values hold signs that wires are fond of, and their longest length. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "world/pmi.h"

#define SIGNS "a=b;c d%%\"'\\{}\xc3\xa4"

int main(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct cairn_pmi *p = NULL;
    struct cairn_str line = {0};
    char host[CAIRN_PMI_VALUE + 1] = "", lengthy[CAIRN_PMI_VALUE + 1], got[CAIRN_PMI_VALUE + 1];

    gethostname(host, sizeof host - 1);
    TRY(cairn_pmi_open(&p, argc > 1 ? argv[1] : NULL, &err));
    for (int round = 0; round < 2; round++) { /* a key of a later round is seen after its fence */
        char key[16];

        snprintf(key, sizeof key, "round-%d", round);
        memset(lengthy, 'a' + cairn_pmi_rank(p) % 26, sizeof lengthy - 1);
        lengthy[sizeof lengthy - 1] = 0;
        memcpy(lengthy, SIGNS, strlen(SIGNS));
        if (round == 0)
            TRY(cairn_pmi_put(p, "host", host, &err));
        TRY(cairn_pmi_put(p, key, lengthy, &err));
        TRY(cairn_pmi_fence(p, &err));
        for (int r = 0; r < cairn_pmi_size(p); r++) {
            TRY(cairn_pmi_get(p, r, key, got, sizeof got, &err));
            if (strncmp(got, SIGNS, strlen(SIGNS)) || got[sizeof got - 2] != 'a' + r % 26)
                TRY(cairn_fail(&err, CAIRN_EBUG, "rank %d put something else: %s", r, got));
        }
    }
    cairn_str_printf(&line, "%s %d of %d:", cairn_pmi_kind(p), cairn_pmi_rank(p), cairn_pmi_size(p));
    for (int r = 0; r < cairn_pmi_size(p); r++) {
        TRY(cairn_pmi_get(p, r, "host", got, sizeof got, &err));
        cairn_str_printf(&line, " %s", got);
    }
    if (cairn_pmi_get(p, 0, "never", got, sizeof got, &err) != CAIRN_EBUG)
        TRY(cairn_fail(&err, CAIRN_EBUG, "a key that nobody put was found"));
    puts(cairn_str_z(&line));
out:
    if (st != CAIRN_OK)
        fprintf(stderr, "pmi_hello: %s\n", err.text);
    cairn_pmi_close(p);
    cairn_str_free(&line);
    return (int)st;
}
