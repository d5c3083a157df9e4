/* carry_test.c - one response of a surplus group, and what is no response of any. */
#include "tests/stages/lab.h"

#include "stages/rollout/carry.h"

/* Three groups of two rollouts, prompts of two tokens; the second and the third group are surplus. */
#define GROUPS 3
#define N      (2 * GROUPS)

static int64_t offsets[N + 1], response[N + 1], first[] = {2, 4};
static int32_t tokens[N * 4], prompt_length[N], group[N];
static float logprobs[N * 2];
static uint8_t finish[N];

static struct cairn_carry make(void)
{
    struct cairn_carry c = {.first = first, .n = 2, .r = {.n = N, .offsets = offsets, .response = response, .tokens = tokens}};

    for (int i = 0; i < N; i++) {
        prompt_length[i] = 2;
        group[i] = 10 * (i / 2);
        finish[i] = i == 5 ? CAIRN_FINISH_LENGTH : CAIRN_FINISH_STOP;
        offsets[i + 1] = offsets[i] + 4;
        response[i + 1] = response[i] + 2;
    }
    c.r.prompt_length = prompt_length;
    c.r.group = group;
    c.r.logprobs = logprobs;
    c.r.finish = finish;
    return c;
}

static void test_response(void **state)
{
    struct cairn_carry c = make();
    struct cairn_response r = {0};

    (void)state;
    OK(cairn_carry_response(&c, 20, 1, 7, &r, err));
    assert_true(r.tag == 7 && r.sample == 1 && r.n == 2 && r.finish == CAIRN_FINISH_LENGTH);
    assert_ptr_equal(r.tokens, tokens + 5 * 4 + 2);
    assert_ptr_equal(r.logprobs, logprobs + 5 * 2);
}

/* Nothing that a user gives leads there: it is ours, with file and line, and nothing beyond the arrays is read. */
static void test_no_response(void **state)
{
    static const struct {
        int64_t from;
        int sample;
        const char *why;
    } bad[] = {
        {0, 0, "a group that was used"},
        {15, 0, "no group"},
        {-1, 0, "no group"},
        {10, 2, "the next group's first"},
        {20, 2, "beyond the last rollout"},
        {10, -1, "the group's before"},
    };
    struct cairn_carry c = make();

    (void)state;
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        struct cairn_response r = {.tag = -5};
        struct cairn_error err = {0};

        if (cairn_carry_response(&c, bad[k].from, bad[k].sample, 7, &r, &err) != CAIRN_EBUG || r.tag != -5)
            fail_msg("%s: %d: %s", bad[k].why, err.code, err.text);
        assert_non_null(strstr(err.text, "stages/rollout/carry.c:"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_response), cmocka_unit_test(test_no_response)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
