/* weights_image_test.c - a base from the node store (model/image.h) on a device that has it copied: the same values, and a stop on the way. */
#include "iolab.h"

#include <signal.h>

#include "base/signals.h"

static void stopped_on_its_way(void **state)
{
    const struct cairn_nodestore_opts store = {.path = hf_path("store")};
    const struct cairn_policy_opts with = {.quiet = 1, .store = &store}, without = {.quiet = 1};
    struct cairn_policy made, taken, read;
    struct cairn_error stopped;

    (void)state;
    assert_int_equal(import("tests/fixtures/models/glm51-tiny", hf_path("base"), 0, 0), 0);
    OK(cairn_policy_open(&read, hf_path("base"), &without, &k, err));
    OK(cairn_policy_open(&made, hf_path("base"), &with, &k, err));
    stores_equal(&read.weights, &made.weights);
    cairn_policy_close(&made);
    cairn_stop_request(SIGTERM);
    assert_int_equal(cairn_policy_open(&taken, hf_path("base"), &with, &k, &stopped), CAIRN_EAGAIN);
    assert_non_null(strstr(stopped.text, "stopped while loading the base from the node store"));
    cairn_signals_reset();
    OK(cairn_policy_open(&taken, hf_path("base"), &with, &k, err)); /* and the object is there still */
    stores_equal(&read.weights, &taken.weights);
    cairn_policy_close(&taken);
    cairn_policy_close(&read);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stopped_on_its_way)};

    return cmocka_run_group_tests(tests, setup, teardown);
}
