/* rollout_units_test.c - the list of candidates: what is kept depends on the order of the list, never on who finished first; whole
 * units of a dead attempt are taken over, and the artefact is the same however often it died. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/philox.h"
#include "stages/rollout/cursor.h"
#include "stages/rollout/rollout.h"
#include "stages/rollout/units.h"

#define SAMPLES 3
#define MOST    64

#define OK(call)                                                                                                                   \
    do {                                                                                                                           \
        struct cairn_error err_ = {0}, *err = &err_;                                                                               \
        enum cairn_status st_ = (call);                                                                                            \
        if (st_ != CAIRN_OK)                                                                                                       \
            fail_msg("%s: %s", cairn_status_name(st_), err_.text);                                                                 \
    } while (0)

static char dir[256];

static int setup(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)state;
    snprintf(dir, sizeof dir, "%s/cairn-units-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return cairn_tree_remove(dir, NULL) == CAIRN_OK ? 0 : -1;
}

/* Verdicts of group g, sample s: as the letters say; R all right, W all wrong, M mixed; T, U, N: like R, W, M, but the grader of
 * sample 1 took too long, which counts as wrong (N: of no other than sample 1); F and G: half right, and one is right by less, or
 * by more, than what counts as equal. */
static const char *letters;
static int asked;

static uint8_t verdict_of(int64_t g, int s)
{
    if (s == 1 && strchr("TUN", letters[g]))
        return 0;
    return letters[g] == 'R' || letters[g] == 'T' || (letters[g] == 'M' && s == (int)(g % SAMPLES)) || (letters[g] == 'N' && !s);
}

static uint8_t status_of(int64_t g, int s)
{
    return s == 1 && strchr("TUN", letters[g]) ? CAIRN_VERDICT_TIMEOUT : CAIRN_VERDICT_OK;
}

static enum cairn_status grade(void *arg, int64_t prompt_id, const struct cairn_response *r, int n, uint8_t *verdict, float *value,
                               uint8_t *status, struct cairn_error *err)
{
    (void)arg;
    (void)err;
    assert_int_equal(n, SAMPLES);
    for (int s = 0; s < n; s++) {
        assert_int_equal(r[s].tokens[0], prompt_id * 10 + s); /* the right responses, in order */
        verdict[s] = verdict_of(prompt_id, s);
        value[s] = verdict[s];
        status[s] = status_of(prompt_id, s);
        if (letters[prompt_id] == 'F' || letters[prompt_id] == 'G')
            value[s] = 0.5f + (s ? 0 : letters[prompt_id] == 'F' ? 5e-7f : 1e-5f);
    }
    asked++;
    return CAIRN_OK;
}

struct
try {
    struct cairn_attempt *attempt;
    struct cairn_manifest *manifest;
    struct cairn_units *units;
};

static void try_begin(struct try *t, const char *path, int64_t want, int dynamic)
{
    struct cairn_attempt_opts ao = {0};
    struct cairn_units_opts o = {.samples = SAMPLES,
                                 .want = want,
                                 .dynamic = dynamic,
                                 .right = 1,
                                 .identity = "test numerics",
                                 .dir = path,
                                 .sampled = 1,
                                 .grade = grade};

    t->manifest = cairn_manifest_create("rollout", 1, "");
    assert_non_null(t->manifest);
    ao.identity = cairn_manifest_identity(t->manifest);
    OK(cairn_attempt_begin(&t->attempt, path, &ao, err));
    o.attempt = t->attempt;
    o.manifest = t->manifest;
    OK(cairn_units_create(&t->units, &o, err));
}

static void try_end(struct try *t)
{
    cairn_units_destroy(t->units);
    cairn_attempt_end(t->attempt);
    cairn_manifest_destroy(t->manifest);
}

static void add(struct try *t, int64_t from, int64_t to)
{
    for (int64_t g = from; g < to; g++) {
        struct cairn_ids ids = {0};

        for (int64_t i = 0; i <= g % 4; i++)
            assert_true(cairn_ids_push(&ids, (int32_t)(g + i)));
        OK(cairn_units_add(t->units, g, &ids, -1, err));
    }
}

static void put(struct try *t, int64_t g, int s)
{
    int64_t n = 1 + (g * 7 + s * 3) % 11;
    int32_t tokens[16];
    float lp[16], sampled[16];

    for (int i = 0; i < 16; i++) {
        tokens[i] = i ? (int32_t)(g + s + i) : (int32_t)(g * 10 + s);
        lp[i] = -(float)(g + s) - (float)i / 16;
        sampled[i] = lp[i] / 2;
    }
    OK(cairn_units_put(t->units,
                       &(struct cairn_response){.tag = g,
                                                .sample = s,
                                                .n = n,
                                                .tokens = tokens,
                                                .logprobs = lp,
                                                .logprobs_sampled = sampled,
                                                .finish = n > 9 ? CAIRN_FINISH_LENGTH : CAIRN_FINISH_STOP},
                       err));
}

/* The missing samples of groups [from, to) in an order of its own; at most `most` of them (a kill). Returns how many are left. */
static int64_t put_all(struct try *t, int64_t from, int64_t to, uint64_t seed, int64_t most)
{
    const struct cairn_philox_key key = {.seed = seed, .purpose = CAIRN_PURPOSE_PROBE};
    int64_t n = (to - from) * SAMPLES, order[MOST * SAMPLES], left = 0;

    cairn_philox_permutation(&key, n, order);
    for (int64_t i = 0; i < n; i++) {
        int64_t g = from + order[i] / SAMPLES;

        if (!cairn_units_whole(t->units, g)) {
            if (most-- > 0)
                put(t, g, (int)(order[i] % SAMPLES));
            else
                left++;
        }
    }
    return left;
}

static void commit(struct try *t)
{
    OK(cairn_units_finish(t->units, err));
    assert_int_equal(json_object_set_new(t->manifest->content, "units", json_integer(cairn_units_count(t->units))), 0);
    OK(cairn_attempt_commit(t->attempt, t->manifest, err));
}

/* The committed artefact is what the letters and the first `groups` groups say. */
static void check(const char *path, int64_t groups, int64_t want, int dynamic)
{
    struct cairn_reader *reader = NULL;
    struct cairn_rollouts r;
    int64_t kept = 0;

    OK(cairn_reader_open(&reader, path, NULL, err));
    OK(cairn_rollouts_load(&r, reader, err));
    assert_int_equal(r.n, groups * SAMPLES);
    for (int64_t i = 0; i < r.n; i++) {
        int64_t g = i / SAMPLES, n = 1 + (g * 7 + i % SAMPLES * 3) % 11;
        int mixed = letters[g] == 'M' || letters[g] == 'T' || letters[g] == 'N', used = !dynamic || (mixed && kept < want);

        assert_int_equal(r.group[i], g);
        assert_int_equal(r.prompt_id[i], g);
        assert_int_equal(r.sample[i], i % SAMPLES);
        assert_int_equal(r.prompt_length[i], g % 4 + 1);
        assert_int_equal(cairn_rollout_length(&r, i), n);
        assert_int_equal(r.tokens[r.offsets[i]], g);
        assert_int_equal(r.tokens[r.offsets[i] + r.prompt_length[i]], g * 10 + i % SAMPLES);
        assert_true(r.logprobs[r.response[i]] == -(float)(g + i % SAMPLES));
        assert_true(r.logprobs_sampled[r.response[i]] == -(float)(g + i % SAMPLES) / 2);
        assert_int_equal(r.finish[i], n > 9 ? CAIRN_FINISH_LENGTH : CAIRN_FINISH_STOP);
        assert_int_equal(r.used[i], used);
        assert_int_equal(r.verdict[i], dynamic ? verdict_of(g, (int)(i % SAMPLES)) : CAIRN_VERDICT_UNASKED);
        if (dynamic)
            assert_int_equal(r.status[i], status_of(g, (int)(i % SAMPLES)));
        else
            assert_null(r.status);
        kept += used && i % SAMPLES == SAMPLES - 1;
    }
    cairn_rollouts_free(&r);
    cairn_reader_close(reader);
}

static struct cairn_digest digest_of(const char *path)
{
    struct cairn_manifest_head head;

    OK(cairn_manifest_head(&head, path, err));
    return head.digest;
}

static const struct {
    const char *letters;
    int64_t want;
    int dynamic, rounds;
    int64_t kept, surplus, all_right, all_wrong;
    const char *why;
    int64_t undecided, timeouts;
} table[] = {
    {"MRWMRWMRWMRWMRWMRWMR", 20, 0, 1, 20, 0, 0, 0, "everything is kept", 0, 0},
    {"MMMMMMMMMMMMMMMMMMMMMMMM", 10, 1, 1, 10, 14, 0, 0, "more than wanted", 0, 0},
    {"MRWMRWMRWMMM", 4, 1, 1, 4, 2, 3, 3, "first in list order", 0, 0},
    {"RWRWRWRWRRRRWWWWRMRM", 9, 1, 1, 2, 0, 10, 8, "not enough", 0, 0},
    {"MRWMRWMRWMRWMRWMRWMRWMRWMRWM", 10, 1, 3, 10, 0, 9, 9, "three rounds", 0, 0},
    {"WWWWWWWWWWWM", 1, 1, 2, 1, 0, 0, 11, "the very last", 0, 0},
    {"TUNRWMTUNRWM", 4, 1, 1, 4, 2, 2, 4, "time-outs count as wrong: all but one right are mixed, and that is told", 4, 6},
};

/* Rounds cut the list in equal pieces; each is sampled to its end before the next is added. `kill`: attempts that die first. */
static void make(const char *path, size_t row, uint64_t seed, int kills, struct cairn_units_counts *c, int64_t **back,
                 int64_t *nback)
{
    int64_t n = (int64_t)strlen(table[row].letters);
    int rounds = table[row].rounds;

    letters = table[row].letters;
    for (int k = 0; k <= kills; k++) {
        struct try t;
        int64_t begin = 0, left = 0;

        try_begin(&t, path, table[row].want, table[row].dynamic);
        for (int r = 0; r < rounds && !left; r++) {
            int64_t end = n * (r + 1) / rounds;

            add(&t, begin, end);
            OK(cairn_units_adopt(t.units, begin, err));
            left = put_all(&t, begin, end, seed + (uint64_t)(100 * k), k < kills ? 5 + (int64_t)(seed % 7) * 6 : INT64_MAX);
            begin = end;
        }
        if (k == kills) {
            assert_int_equal(left, 0);
            commit(&t);
            if (c)
                *c = cairn_units_counts(t.units);
            if (back)
                OK(cairn_units_surplus(t.units, back, nback, err));
        }
        try_end(&t);
    }
}

static void test_list_order(void **state)
{
    char path[300];

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct cairn_digest first = {0, 0};

        for (uint64_t seed = 0; seed < 5; seed++) {
            struct cairn_units_counts c;
            int64_t *back = NULL, nback = 0, groups = (int64_t)strlen(table[i].letters);

            snprintf(path, sizeof path, "%s/order-%zu-%d", dir, i, (int)seed);
            make(path, i, seed, 0, &c, &back, &nback);
            check(path, groups, table[i].want, table[i].dynamic);
            if (c.groups != groups || c.kept != table[i].kept || c.surplus != table[i].surplus ||
                c.all_right != table[i].all_right || c.all_wrong != table[i].all_wrong || c.undecided != table[i].undecided ||
                c.status[CAIRN_VERDICT_TIMEOUT] != table[i].timeouts || c.rollouts != groups * SAMPLES || nback != c.surplus)
                fail_msg("%s: kept %lld, surplus %lld, all right %lld, all wrong %lld", table[i].why, (long long)c.kept,
                         (long long)c.surplus, (long long)c.all_right, (long long)c.all_wrong);
            for (int64_t k = 0, g = 0, mixed = 0; k < nback; g++) /* in list order, behind the kept ones */
                if (strchr("MTN", letters[g]) && ++mixed > table[i].want)
                    assert_int_equal(back[k++], g);
            free(back);
            if (!seed)
                first = digest_of(path);
            else if (!cairn_digest_equal(first, digest_of(path)))
                fail_msg("%s: the artefact depends on the order of completion", table[i].why);
        }
    }
}

static void test_killed(void **state)
{
    char path[300], undisturbed[300];

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        snprintf(undisturbed, sizeof undisturbed, "%s/order-%zu-0", dir, i);
        for (uint64_t seed = 0; seed < 3; seed++) {
            struct cairn_units_counts c;

            snprintf(path, sizeof path, "%s/killed-%zu-%d", dir, i, (int)seed);
            make(path, i, seed, 3, &c, NULL, NULL);
            if (!cairn_digest_equal(digest_of(undisturbed), digest_of(path)))
                fail_msg("%s: another artefact after kills", table[i].why);
        }
    }
}

/* What was whole is not sampled or graded again; a damaged shard is. */
static void test_adopted(void **state)
{
    char path[300], shard[400];
    struct try t;
    FILE *f;

    (void)state;
    letters = "MRWMRWMRWMRWMRWMRWMR"; /* 20 groups: units of 8, 8, 4 */
    snprintf(path, sizeof path, "%s/adopted", dir);
    asked = 0;
    try_begin(&t, path, 7, 1);
    add(&t, 0, 20);
    for (int64_t g = 19; g >= 0; g--) /* the last unit is whole first, but nobody knows yet what of it is kept */
        for (int s = 0; s < SAMPLES; s++)
            if (g != 17)
                put(&t, g, s);
    assert_int_equal(asked, 19);
    try_end(&t); /* dies with two units written */
    asked = 0;
    try_begin(&t, path, 7, 1);
    add(&t, 0, 20);
    OK(cairn_units_adopt(t.units, 0, err));
    for (int64_t g = 0; g < 20; g++)
        assert_int_equal(cairn_units_whole(t.units, g), g < 16);
    assert_int_equal(cairn_units_counts(t.units).adopted, 16 * SAMPLES);
    assert_int_equal(cairn_units_counts(t.units).kept, 6);
    try_end(&t);
    snprintf(shard, sizeof shard, "%s/a1/unit-000000.h5", path);
    f = fopen(shard, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -5, SEEK_END), 0);
    fputc(77, f);
    fclose(f);
    snprintf(shard, sizeof shard, "%s/a2/unit-000000.h5", path); /* linked there by the second attempt: the same file */
    try_begin(&t, path, 7, 1);
    add(&t, 0, 20);
    OK(cairn_units_adopt(t.units, 0, err));
    for (int64_t g = 0; g < 20; g++)
        assert_int_equal(cairn_units_whole(t.units, g), g >= 8 && g < 16);
    assert_int_equal(put_all(&t, 0, 20, 3, INT64_MAX), 0);
    assert_int_equal(asked, 12);
    commit(&t);
    try_end(&t);
    check(path, 20, 7, 1);
}

/* Another fingerprint, or another end of the list, is another unit. */
static void test_not_adopted(void **state)
{
    struct cairn_units_opts o = {.samples = SAMPLES, .identity = "other numerics"};
    char path[300];
    struct try t;

    (void)state;
    letters = "MMMMMMMMMMMM";
    snprintf(path, sizeof path, "%s/other", dir);
    try_begin(&t, path, 12, 0);
    add(&t, 0, 12);
    put_all(&t, 0, 12, 1, INT64_MAX);
    OK(cairn_units_finish(t.units, err)); /* units 0 and 1 are written; dies before the commit */
    try_end(&t);
    try_begin(&t, path, 12, 0);
    add(&t, 0, 11);
    OK(cairn_units_adopt(t.units, 0, err));
    assert_int_equal(cairn_units_whole(t.units, 7), 1);
    assert_int_equal(cairn_units_whole(t.units, 8), 0); /* groups 8 to 11 are not groups 8 to 12 */
    try_end(&t);
    try_begin(&t, path, 12, 0);
    o.dir = path;
    o.attempt = t.attempt;
    o.manifest = t.manifest;
    cairn_units_destroy(t.units);
    OK(cairn_units_create(&t.units, &o, err));
    add(&t, 0, 12);
    OK(cairn_units_adopt(t.units, 0, err));
    for (int64_t g = 0; g < 12; g++)
        assert_int_equal(cairn_units_whole(t.units, g), 0);
    try_end(&t);
}

static void test_repeats(void **state)
{
    struct try t;
    char path[300];

    (void)state;
    letters = "MMMM";
    snprintf(path, sizeof path, "%s/repeats", dir);
    try_begin(&t, path, 12, 0);
    for (int i = 0; i < 300; i++) {
        struct cairn_ids ids = {0};

        assert_true(cairn_ids_push(&ids, 1));
        OK(cairn_units_add(t.units, cairn_prompt_id(i % 2, i % 50), &ids, -1, err));
    }
    for (int i = 0; i < 300; i++)
        assert_int_equal(cairn_units_repeat(t.units, i), i / 50);
    try_end(&t);
}

/* Raw rewards, not verdicts: a capped response that is worth 0 differs from a wrong one that costs a point. */
static void test_raw_rewards(void **state)
{
    static const struct {
        double right, wrong;
        int zero;
        const char *letters;
        int64_t mixed;
        const char *why;
    } rows[] = {
        {1, 0, 0, "WWWWWWWW", 0, "all wrong"},
        {1, 0, 1, "WWWWWWWW", 0, "capped ones are worth what wrong ones are"},
        {1, -1, 1, "WWWWWWWW", 5, "capped 0, wrong -1"},
        {1, 0, 1, "RRRRRRRR", 5, "right ones that were capped"},
        {1, 0, 0, "RRRRRRRR", 0, "all right"},
        {1, 0, 0, "FFFFFFFF", 0, "half right, equal to 1e-6"},
        {1, 0, 0, "GFGFGFGF", 4, "half right, four of them not equal"},
        {1e-7, 0, 0, "MMMMMMMM", 8, "verdicts are told apart exactly, whatever they are worth"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cairn_units_opts o = {.samples = SAMPLES,
                                     .want = 8,
                                     .dynamic = 1,
                                     .right = rows[i].right,
                                     .wrong = rows[i].wrong,
                                     .sampled = 1,
                                     .truncated_zero = rows[i].zero,
                                     .identity = "x",
                                     .grade = grade};
        char path[300];
        struct try t;

        letters = rows[i].letters;
        snprintf(path, sizeof path, "%s/raw-%zu", dir, i);
        try_begin(&t, path, 8, 1);
        cairn_units_destroy(t.units);
        o.dir = path;
        o.attempt = t.attempt;
        o.manifest = t.manifest;
        OK(cairn_units_create(&t.units, &o, err));
        add(&t, 0, 8);
        put_all(&t, 0, 8, 1, INT64_MAX);
        if (cairn_units_counts(t.units).kept != rows[i].mixed)
            fail_msg("%s: %lld mixed", rows[i].why, (long long)cairn_units_counts(t.units).kept);
        try_end(&t);
    }
}

static void test_refill(void **state)
{
    static const struct {
        int64_t want, groups, mixed, expected;
        const char *why;
    } rows[] = {
        {16, 16, 16, 0, "full"},
        {16, 16, 20, 0, "more than full"},
        {16, 16, 8, 16, "half of them mixed: twice what is missing"},
        {16, 32, 14, 8, "2 missing at 14 of 32: 5, to whole units"},
        {16, 16, 0, 16, "none mixed: as many as are wanted"},
        {16, 16, 1, 16, "few mixed: not more than are wanted"},
        {12, 12, 6, 12, "12 more end a unit"},
        {5, 5, 4, 3, "2, and to the end of the unit"},
        {1000000, 4000000000000, 1, 1000000, "no overflow"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t n = cairn_rollout_refill(rows[i].want, rows[i].groups, rows[i].mixed);

        if (n != rows[i].expected)
            fail_msg("%s: %lld", rows[i].why, (long long)n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_order),  cmocka_unit_test(test_killed),  cmocka_unit_test(test_adopted),
        cmocka_unit_test(test_not_adopted), cmocka_unit_test(test_repeats), cmocka_unit_test(test_raw_rewards),
        cmocka_unit_test(test_refill),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
