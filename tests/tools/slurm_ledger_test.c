/* slurm_ledger_test.c - what the ledger concludes from events: how often the same failure came, which nodes are unfit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "slurm/ledger.h"

#define END(action, code)                                                                                                          \
    "{\"ev\":\"end\",\"step\":3,\"stage\":\"rollout\",\"action\":\"" action "\",\"code\":" #code ",\"text\":\"t" #code "\"}"
#define OTHER "{\"ev\":\"end\",\"step\":4,\"stage\":\"rollout\",\"action\":\"retry\",\"code\":137,\"text\":\"x\"}"
#define GO    "{\"ev\":\"go\",\"step\":0,\"stage\":\"\"}"

static void failures(void **state)
{
    static const struct {
        const char *events, *why;
        int same, code, for_good;
        const char *text;
    } table[] = {
        {"[]", "nothing happened", 0, 0, 0, ""},
        {"[" END("retry", 137) "]", "once", 1, 137, 0, "t137"},
        {"[" END("retry", 137) "," END("retry", 137) "]", "twice the same", 2, 137, 0, "t137"},
        {"[" END("retry", 137) "," END("retry", 70) "]", "another one", 1, 70, 0, "t70"},
        {"[" END("retry", 137) "," OTHER "," END("retry", 137) "]", "another step's does not count", 2, 137, 0, "t137"},
        {"[" END("retry", 137) "," END("requeue", 75) "," END("retry", 137) "]", "a preemption in between neither", 2, 137, 0,
         "t137"},
        {"[" END("retry", 137) "," END("killed", 0) "," END("retry", 137) "]", "nor a kill", 2, 137, 0, "t137"},
        {"[" END("retry", 137) "," END("done", 0) "]", "it did well after all", 0, 0, 0, ""},
        {"[" END("retry", 137) "," END("stop", 137) "]", "stopped", 2, 137, 1, "t137"},
        {"[" END("stop", 65) "," GO "]", "forgiven by a user", 0, 0, 0, ""},
        {"[" END("stop", 65) "," GO "," END("retry", 65) "]", "and again", 1, 65, 0, "t65"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        json_t *events = json_loads(table[i].events, 0, NULL);
        struct cairn_failures f;

        assert_non_null(events);
        cairn_ledger_failures(&f, events, 3, "rollout");
        if (f.same != table[i].same || f.code != table[i].code || f.for_good != table[i].for_good || strcmp(f.text, table[i].text))
            fail_msg("%s: %d times %d (%d) \"%s\"", table[i].why, f.same, f.code, f.for_good, f.text);
        json_decref(events);
    }
}

static void unfit(void **state)
{
    static const struct {
        const char *events, *nodes, *why;
    } table[] = {
        {"[]", "", "none"},
        {"[{\"ev\":\"unfit\",\"t\":1000,\"node\":\"n3\"}]", "n3", "one"},
        {"[{\"ev\":\"unfit\",\"t\":1000,\"node\":\"n3\"},{\"ev\":\"unfit\",\"t\":1001,\"node\":\"n3\"}]", "n3", "once is enough"},
        {"[{\"ev\":\"unfit\",\"t\":1000,\"node\":\"n12\"},{\"ev\":\"unfit\",\"t\":1001,\"node\":\"n1\"}]", "n12,n1",
         "a name within a name"},
        {"[{\"ev\":\"unfit\",\"t\":1000,\"node\":\"n3\"}," GO "]", "", "a user says go on"},
        {"[{\"ev\":\"unfit\",\"t\":-90000,\"node\":\"n3\"}]", "", "long ago"},
        {"[{\"ev\":\"unfit\",\"t\":1000,\"node\":\"n3; rm -rf\"}]", "", "no name of a node"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        json_t *events = json_loads(table[i].events, 0, NULL);
        char *nodes = cairn_ledger_unfit(events, 2000);

        assert_non_null(nodes);
        if (strcmp(nodes, table[i].nodes))
            fail_msg("%s: \"%s\"", table[i].why, nodes);
        free(nodes);
        json_decref(events);
    }
}

static void last_job(void **state)
{
    json_t *events = json_loads("[{\"ev\":\"queued\",\"step\":3,\"stage\":\"rollout\",\"job\":\"7\"},{\"ev\":\"queued\",\"step\":3,"
                                "\"stage\":\"score\",\"job\":\"8\"},"
                                "{\"ev\":\"queued\",\"step\":3,\"stage\":\"rollout\",\"job\":\"9\"},{\"ev\":\"start\",\"step\":3,"
                                "\"stage\":\"rollout\",\"job\":\"5\"}]",
                                0, NULL);

    (void)state;
    assert_string_equal(cairn_ledger_job(events, 3, "rollout"), "9");
    assert_string_equal(cairn_ledger_job(events, 3, "score"), "8");
    assert_null(cairn_ledger_job(events, 4, "rollout"));
    json_decref(events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(failures), cmocka_unit_test(unfit), cmocka_unit_test(last_job)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
