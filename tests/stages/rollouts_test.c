/* rollouts_test.c - columns.c, rollouts.c, scores.c: round trips through an artefact, and everything in one that does not fit
 * together. */
#include "tests/stages/lab.h"

#include "ckpt/attempt.h"

/* An artefact in the making, and its reader once it is committed. */
struct art {
    char dir[300];
    struct cairn_attempt *attempt;
    struct cairn_manifest *m;
    int units;
};

static void art_begin(struct art *a, const struct lab *l, const char *name, const char *kind)
{
    struct cairn_attempt_opts o = {0};

    memset(a, 0, sizeof *a);
    snprintf(a->dir, sizeof a->dir, "%s/%s", l->dir, name);
    a->m = cairn_manifest_create(kind, 1, "");
    assert_non_null(a->m);
    o.identity = cairn_manifest_identity(a->m);
    OK(cairn_attempt_begin(&a->attempt, a->dir, &o, err));
}

static void art_add(struct art *a, struct cairn_shard_entry *e)
{
    OK(cairn_manifest_add_shard(a->m, e, err));
    a->units++;
}

static struct cairn_reader *art_commit(struct art *a)
{
    struct cairn_reader *r = NULL;

    json_object_set_new(a->m->content, "units", json_integer(a->units));
    OK(cairn_attempt_commit(a->attempt, a->m, err));
    cairn_attempt_end(a->attempt);
    cairn_manifest_destroy(a->m);
    OK(cairn_reader_open(&r, a->dir, NULL, err));
    return r;
}

static void same(const struct cairn_rollouts *a, const struct cairn_rollouts *b)
{
    size_t n = (size_t)a->n;

    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->offsets, b->offsets, (n + 1) * sizeof *a->offsets);
    assert_memory_equal(a->response, b->response, (n + 1) * sizeof *a->response);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->offsets[n] * sizeof *a->tokens);
    assert_int_equal(!a->logprobs, !b->logprobs);
    if (a->logprobs)
        assert_memory_equal(a->logprobs, b->logprobs, (size_t)a->response[n] * sizeof *a->logprobs);
    assert_int_equal(!a->logprobs_sampled, !b->logprobs_sampled);
    if (a->logprobs_sampled)
        assert_memory_equal(a->logprobs_sampled, b->logprobs_sampled, (size_t)a->response[n] * sizeof *a->logprobs_sampled);
    assert_memory_equal(a->prompt_length, b->prompt_length, n * sizeof *a->prompt_length);
    assert_memory_equal(a->prompt_id, b->prompt_id, n * sizeof *a->prompt_id);
    assert_memory_equal(a->group, b->group, n * sizeof *a->group);
    assert_memory_equal(a->sample, b->sample, n * sizeof *a->sample);
    assert_memory_equal(a->finish, b->finish, n);
    assert_memory_equal(a->used, b->used, n);
    assert_memory_equal(a->verdict, b->verdict, n);
    assert_true(!a->status == !b->status && !a->carried == !b->carried && !a->text == !b->text && !a->experts == !b->experts);
    if (a->status)
        assert_memory_equal(a->status, b->status, n);
    if (a->carried)
        assert_memory_equal(a->carried, b->carried, n * sizeof *a->carried);
    if (a->text) {
        assert_memory_equal(a->text_offsets, b->text_offsets, (n + 1) * sizeof *a->text_offsets);
        assert_memory_equal(a->text, b->text, (size_t)a->text_offsets[n]);
    }
    if (a->experts) {
        assert_true(a->expert_bytes == b->expert_bytes && a->expert_row == b->expert_row);
        assert_memory_equal(a->experts, b->experts, (size_t)((a->offsets[n] - a->n) * a->expert_row) * (size_t)a->expert_bytes);
    }
}

/* The columns that only some rollouts have: texts, some of them empty, and choices of `bytes` bytes. */
static void optional_put(struct cairn_rollouts *r, int bytes)
{
    size_t n = (size_t)r->n, choices;

    r->status = calloc(n + 1, 1);
    r->carried = calloc(n + 1, sizeof *r->carried);
    r->text = calloc(n * 8 + 1, 1);
    r->text_offsets = calloc(n + 1, sizeof *r->text_offsets);
    r->expert_bytes = bytes;
    r->expert_row = 3;
    choices = (size_t)(r->offsets[n] - r->n) * 3;
    r->experts = malloc(choices * (size_t)bytes + 1);
    for (size_t i = 0; i < n; i++) {
        r->status[i] = (uint8_t)(i % 5);
        r->carried[i] = i < n / 2 ? (int32_t)(7 * i) : -1;
        r->text_offsets[i + 1] = r->text_offsets[i] + (int64_t)(i % 4);
        memset(r->text + r->text_offsets[i], (int)(0xc0 + i % 40), i % 4); /* no UTF-8 */
    }
    for (size_t i = 0; i < choices * (size_t)bytes; i++)
        ((uint8_t *)r->experts)[i] = (uint8_t)(i * 37);
}

static void test_rollouts(void **state)
{
    static const struct {
        int groups, samples, least, spread, per_unit; /* groups of a unit */
        int logprobs, sampled, optional;              /* bytes of a choice of experts; 0: no such columns */
        const char *why;
    } row[] = {
        {6, 4, 1, 9, 2, 1, 0, 0, "three units"},
        {6, 4, 1, 9, 6, 1, 1, 0, "one unit, truncated sampling"},
        {5, 3, 0, 3, 2, 0, 0, 0, "empty responses, no log-probabilities, uneven units"},
        {1, 1, 0, 0, 1, 1, 1, 0, "one rollout without a response"},
        {0, 1, 0, 0, 1, 0, 0, 0, "none"},
        {6, 4, 1, 9, 2, 1, 0, 1, "texts, carried ones and small choices in three units"},
        {5, 3, 1, 3, 2, 1, 1, 4, "large choices in uneven units"},
    };
    struct lab l;

    (void)state;
    lab_open(&l);
    for (size_t i = 0; i < COUNT(row); i++) {
        struct cairn_rollouts r, back = {0};
        struct cairn_reader *reader;
        struct art a;
        char name[20];

        lab_rollouts(&r, row[i].groups, row[i].samples, row[i].least, row[i].spread, (uint32_t)(100 * i));
        for (int64_t k = 0; k < r.response[r.n]; k++) {
            r.logprobs[k] = -(float)k / 3;
            r.logprobs[k] = k == 3 ? -INFINITY : r.logprobs[k];
        }
        for (int64_t k = 0; k < r.n; k++) {
            r.finish[k] = (uint8_t)(k % 3);
            r.used[k] = (uint8_t)(k % 4 != 0);
            r.verdict[k] = (uint8_t)(k % 5 ? k % 2 : CAIRN_VERDICT_UNASKED);
            r.prompt_id[k] |= (int64_t)r.group[k] << 32;
        }
        if (row[i].sampled) {
            r.logprobs_sampled = calloc((size_t)r.response[r.n] + 1, sizeof(float));
            for (int64_t k = 0; k < r.response[r.n]; k++)
                r.logprobs_sampled[k] = r.logprobs[k] / 2;
        }
        if (!row[i].logprobs) {
            free(r.logprobs);
            r.logprobs = NULL;
        }
        if (row[i].optional)
            optional_put(&r, row[i].optional);
        snprintf(name, sizeof name, "rollout%zu", i);
        art_begin(&a, &l, name, "rollout");
        for (int g = 0; g < row[i].groups; g += row[i].per_unit) {
            int end = g + row[i].per_unit < row[i].groups ? g + row[i].per_unit : row[i].groups;
            struct cairn_shard_entry *e = NULL;

            OK(cairn_rollouts_write(&r, (int64_t)g * row[i].samples, (int64_t)end * row[i].samples, a.attempt, a.units, "x", &e,
                                    err));
            art_add(&a, e);
        }
        reader = art_commit(&a);
        OK(cairn_rollouts_load(&back, reader, err));
        same(&r, &back);
        cairn_reader_close(reader);
        cairn_rollouts_free(&back);
        cairn_rollouts_free(&r);
    }
    lab_close(&l);
}

/* The logical digest knows nothing of attempts, but of every column. */
static void test_digest(void **state)
{
    struct cairn_digest first = {0, 0};
    struct cairn_rollouts r;
    struct lab l;

    (void)state;
    lab_open(&l);
    lab_rollouts(&r, 3, 2, 1, 5, 1);
    for (int k = 0; k < 4; k++) {
        struct cairn_shard_entry *e = NULL;
        struct cairn_reader *reader;
        struct cairn_digest d;
        struct art a;
        char name[20];

        if (k == 2)
            r.used[1] = 0;
        if (k == 3)
            r.logprobs[0] = -0.0f;
        snprintf(name, sizeof name, "r%d", k);
        art_begin(&a, &l, name, "rollout");
        if (k == 1) { /* a second attempt */
            cairn_attempt_end(a.attempt);
            OK(cairn_attempt_begin(&a.attempt, a.dir, &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(a.m)}, err));
        }
        OK(cairn_rollouts_write(&r, 0, r.n, a.attempt, 0, "", &e, err));
        art_add(&a, e);
        reader = art_commit(&a);
        d = cairn_reader_manifest(reader)->digest;
        if (!k)
            first = d;
        assert_int_equal(cairn_digest_equal(d, first), k < 2);
        cairn_reader_close(reader);
    }
    cairn_rollouts_free(&r);
    lab_close(&l);
}

/* ---- damage: digests hold, but the columns do not fit together (somebody else wrote them)
 * ------------------------------------------------ */

struct columns {
    int32_t tokens[8], prompt_length[2], group[2], sample[2];
    int64_t offsets[3], prompt_id[2];
    float logprobs[8];
    uint8_t finish[2], used[2], verdict[2];
    int64_t ntokens, noffsets, nlogprobs, n;
};

static void unit_put(struct art *a, const struct columns *c, int logprobs)
{
    const struct cairn_column col[] = {
        {"tokens", CAIRN_I32, c->tokens, c->ntokens},
        {"offsets", CAIRN_I64, c->offsets, c->noffsets},
        {"prompt_length", CAIRN_I32, c->prompt_length, c->n},
        {"prompt_id", CAIRN_I64, c->prompt_id, c->n},
        {"group", CAIRN_I32, c->group, c->n},
        {"sample", CAIRN_I32, c->sample, c->n},
        {"finish", CAIRN_U8, c->finish, c->n},
        {"used", CAIRN_U8, c->used, c->n},
        {"verdict", CAIRN_U8, c->verdict, c->n},
        {"logprobs", CAIRN_F32, c->logprobs, c->nlogprobs},
    };
    struct cairn_shard_entry *e = NULL;

    OK(cairn_unit_write(a->attempt, a->units, "", col, logprobs ? 10 : 9, &e, err));
    art_add(a, e);
}

static const struct columns good = {
    .prompt_length = {2, 1}, .group = {0, 1}, .offsets = {0, 5, 8}, .ntokens = 8, .noffsets = 3, .nlogprobs = 5, .n = 2};

static void test_damage(void **state)
{
    static const struct {
        int64_t offsets[3], noffsets, ntokens, nlogprobs;
        int32_t prompt[2], group[2];
        const char *word, *why;
    } row[] = {
        {{0, 5, 8}, 3, 8, 5, {2, 1}, {0, 1}, NULL, "nothing wrong"},
        {{0, 5, 7}, 3, 8, 5, {2, 1}, {0, 1}, "offsets run", "a token behind the last rollout"},
        {{1, 5, 8}, 3, 8, 5, {2, 1}, {0, 1}, "offsets run", "a token before the first"},
        {{0, 9, 8}, 3, 8, 5, {2, 1}, {0, 1}, "impossible offsets", "beyond the end"},
        {{0, -3, 8}, 3, 8, 5, {2, 1}, {0, 1}, "impossible offsets", "negative"},
        {{0, INT64_MIN, 8}, 3, 8, 5, {2, 1}, {0, 1}, "impossible offsets", "the difference overflows"},
        {{0, INT64_MAX, 8}, 3, 8, 5, {2, 1}, {0, 1}, "impossible offsets", "the difference overflows"},
        {{0, 5, 8}, 2, 8, 5, {2, 1}, {0, 1}, "offsets has 2 elements, expected 3", "an offset is missing"},
        {{0, 5, 8}, 3, 8, 5, {6, 1}, {0, 1}, "impossible offsets", "a prompt longer than its rollout"},
        {{0, 5, 8}, 3, 8, 5, {0, 1}, {0, 1}, "impossible offsets", "no prompt"},
        {{0, 5, 8}, 3, 8, 5, {INT32_MIN, 1}, {0, 1}, "impossible offsets", "a prompt of less than nothing"},
        {{0, 5, 8}, 3, 8, 4, {2, 1}, {0, 1}, "logprobs has 4 elements, expected 5", "a log-probability is missing"},
        {{0, 5, 8}, 3, 8, 5, {2, 1}, {1, 0}, "its group stands before", "groups descend"},
    };
    struct lab l;

    (void)state;
    lab_open(&l);
    for (size_t i = 0; i < COUNT(row); i++) {
        struct columns c = good;
        struct cairn_reader *reader;
        struct cairn_rollouts r;
        struct cairn_error e = {0};
        enum cairn_status st;
        struct art a;
        char name[20];

        snprintf(name, sizeof name, "bad%zu", i);
        art_begin(&a, &l, name, "rollout");
        memcpy(c.offsets, row[i].offsets, sizeof c.offsets);
        memcpy(c.prompt_length, row[i].prompt, sizeof c.prompt_length);
        memcpy(c.group, row[i].group, sizeof c.group);
        c.noffsets = row[i].noffsets;
        c.ntokens = row[i].ntokens;
        c.nlogprobs = row[i].nlogprobs;
        unit_put(&a, &c, 1);
        reader = art_commit(&a);
        st = cairn_rollouts_load(&r, reader, &e);
        if (st != (row[i].word ? CAIRN_EDATA : CAIRN_OK) ||
            (row[i].word && (!strstr(e.text, row[i].word) || !strstr(e.text, name))))
            fail_msg("%s: %s: %s", row[i].why, cairn_status_name(st), e.text);
        cairn_rollouts_free(&r);
        cairn_reader_close(reader);
    }
    lab_close(&l);
}

/* Texts and choices that do not fit their rollouts. */
static void test_damage_optional(void **state)
{
    static const struct {
        int64_t text_offsets[3], text, experts;
        enum cairn_dtype type;
        const char *word, *why;
    } row[] = {
        {{0, 2, 5}, 5, 12, CAIRN_U8, NULL, "nothing wrong: 6 tokens were run"},
        {{0, 2, 4}, 5, 12, CAIRN_U8, "text 2 has impossible offsets", "a byte behind the last"},
        {{1, 2, 5}, 5, 12, CAIRN_U8, "text 0 has impossible offsets", "a byte before the first"},
        {{0, 6, 5}, 5, 12, CAIRN_U8, "text 1 has impossible offsets", "beyond the end"},
        {{0, -1, 5}, 5, 12, CAIRN_U8, "text 1 has impossible offsets", "negative"},
        {{0, INT64_MIN, 5}, 5, 12, CAIRN_U8, "text 1 has impossible offsets", "the difference overflows"},
        {{0, 2, 5}, 5, 11, CAIRN_U8, "11 choices of experts for 6 tokens", "one is missing"},
        {{0, 2, 5}, 5, 0, CAIRN_U8, "0 choices of experts for 6 tokens", "none"},
        {{0, 2, 5}, 5, 6, CAIRN_I64, "experts are of another type", "no type of theirs"},
        {{0, 2, 5}, 5, 6, CAIRN_I32, NULL, "large ones"},
    };
    static const char bytes[128];
    struct lab l;

    (void)state;
    lab_open(&l);
    for (size_t i = 0; i < COUNT(row); i++) {
        const struct cairn_column col[] = {
            {"tokens", CAIRN_I32, good.tokens, good.ntokens},
            {"offsets", CAIRN_I64, good.offsets, good.noffsets},
            {"prompt_length", CAIRN_I32, good.prompt_length, good.n},
            {"prompt_id", CAIRN_I64, good.prompt_id, good.n},
            {"group", CAIRN_I32, good.group, good.n},
            {"sample", CAIRN_I32, good.sample, good.n},
            {"finish", CAIRN_U8, good.finish, good.n},
            {"used", CAIRN_U8, good.used, good.n},
            {"verdict", CAIRN_U8, good.verdict, good.n},
            {"text", CAIRN_U8, bytes, row[i].text},
            {"text_offsets", CAIRN_I64, row[i].text_offsets, 3},
            {"experts", row[i].type, bytes, row[i].experts},
        };
        struct cairn_shard_entry *e = NULL;
        struct cairn_reader *reader;
        struct cairn_rollouts r;
        struct art a;
        char name[20];

        snprintf(name, sizeof name, "more%zu", i);
        art_begin(&a, &l, name, "rollout");
        OK(cairn_unit_write(a.attempt, 0, "", col, COUNT(col), &e, err));
        art_add(&a, e);
        reader = art_commit(&a);
        if (row[i].word)
            FAILS(CAIRN_EDATA, row[i].word, cairn_rollouts_load(&r, reader, err));
        else
            OK(cairn_rollouts_load(&r, reader, err));
        cairn_rollouts_free(&r);
        cairn_reader_close(reader);
    }
    lab_close(&l);
}

/* Log-probabilities of all rollouts or of none. */
static void test_mixed_units(void **state)
{
    struct lab l;

    (void)state;
    lab_open(&l);
    for (int first = 0; first < 2; first++) {
        struct cairn_reader *reader;
        struct cairn_rollouts r;
        struct columns c = good;
        struct art a;

        art_begin(&a, &l, first ? "with" : "without", "rollout");
        unit_put(&a, &c, first);
        c.group[0] = c.group[1] = 2;
        unit_put(&a, &c, !first);
        reader = art_commit(&a);
        FAILS(CAIRN_EDATA, "unit 1 has other columns", cairn_rollouts_load(&r, reader, err));
        cairn_reader_close(reader);
    }
    lab_close(&l);
}

static void test_units(void **state)
{
    static const struct {
        const char *units, *word;
    } row[] = {{"1", NULL},    {"-1", "units"}, {"1000000", "units"}, {"\"1\"", "units"}, {"2", "no tensor prompt_length.000001"},
               {NULL, "units"}};
    struct lab l;

    (void)state;
    lab_open(&l);
    for (size_t i = 0; i < COUNT(row); i++) {
        struct cairn_reader *reader = NULL;
        struct cairn_rollouts r;
        struct art a;
        char name[20];

        snprintf(name, sizeof name, "u%zu", i);
        art_begin(&a, &l, name, "rollout");
        unit_put(&a, &good, 1);
        if (row[i].units)
            json_object_set_new(a.m->content, "units", json_loads(row[i].units, JSON_DECODE_ANY, NULL));
        OK(cairn_attempt_commit(a.attempt, a.m, err));
        cairn_attempt_end(a.attempt);
        cairn_manifest_destroy(a.m);
        OK(cairn_reader_open(&reader, a.dir, NULL, err));
        if (row[i].word)
            FAILS(CAIRN_EDATA, row[i].word, cairn_rollouts_load(&r, reader, err));
        else
            OK(cairn_rollouts_load(&r, reader, err));
        cairn_rollouts_free(&r);
        cairn_reader_close(reader);
    }
    lab_close(&l);
}

/* ---- scores ------------------------------------------------------------------------------------------------------------ */

static void test_scores(void **state)
{
    static const char *const answers[] = {"42", "", NULL, "\xc3\xa9 \xe2\x88\x9a{2}", "a longer one, with \"quotes\"", "0"};
    struct cairn_scores_table s, back;
    struct cairn_reader *reader;
    struct art a;
    struct lab l;

    (void)state;
    lab_open(&l);
    OK(cairn_scores_create(&s, 11, err));
    for (int i = 0; i < 11; i++) {
        s.reward[i] = (float)(i % 2);
        s.penalty[i] = -0.1f * (float)i;
        s.advantage[i] = 1.0f / (float)(i + 1);
        s.mask[i] = (uint8_t)(i % 3 != 0);
        s.verdict[i] = (uint8_t)(i % 2);
        s.value[i] = 1.0f / (float)(i + 2);
        s.status[i] = (uint8_t)(i % 4);
        s.group[i] = i / 2;
        if (answers[i % 6])
            s.extracted[i] = strdup(answers[i % 6]);
    }
    art_begin(&a, &l, "score", "score");
    for (int u = 0; u < 3; u++) {
        struct cairn_shard_entry *e = NULL;

        OK(cairn_scores_write(&s, 4 * u, u == 2 ? 11 : 4 * u + 4, a.attempt, u, "", &e, err));
        art_add(&a, e);
    }
    reader = art_commit(&a);
    for (int extracted = 0; extracted < 2; extracted++) {
        OK(cairn_scores_load(&back, reader, extracted, err));
        assert_int_equal(back.n, s.n);
        assert_memory_equal(back.reward, s.reward, 11 * sizeof *s.reward);
        assert_memory_equal(back.penalty, s.penalty, 11 * sizeof *s.penalty);
        assert_memory_equal(back.advantage, s.advantage, 11 * sizeof *s.advantage);
        assert_memory_equal(back.mask, s.mask, 11);
        assert_memory_equal(back.verdict, s.verdict, 11);
        assert_memory_equal(back.value, s.value, 11 * sizeof *s.value);
        assert_memory_equal(back.status, s.status, 11);
        assert_memory_equal(back.group, s.group, 11 * sizeof *s.group);
        for (int i = 0; i < 11; i++)
            if (extracted)
                assert_string_equal(back.extracted[i], answers[i % 6] ? answers[i % 6] : "");
            else
                assert_null(back.extracted[i]);
        cairn_scores_free(&back);
    }
    cairn_reader_close(reader);
    cairn_scores_free(&s);
    lab_close(&l);
}

static void test_scores_damage(void **state)
{
    static const struct {
        int64_t offsets[3], noffsets, nmask;
        const char *word, *why;
    } row[] = {
        {{0, 3, 5}, 3, 2, NULL, "nothing wrong"},
        {{0, 6, 5}, 3, 2, "impossible offsets", "beyond the text"},
        {{-1, 3, 5}, 3, 2, "impossible offsets", "before it"},
        {{0, 3, 2}, 3, 2, "impossible offsets", "descending"},
        {{0, INT64_MAX, 5}, 3, 2, "impossible offsets", "far beyond"},
        {{0, 3, 5}, 2, 2, "impossible offsets", "one missing"},
        {{0, 3, 5}, 3, 1, "mask has 1 elements, expected 2", "a short column"},
    };
    struct lab l;

    (void)state;
    lab_open(&l);
    for (size_t i = 0; i < COUNT(row); i++) {
        static const float f[2];
        static const uint8_t b[2];
        static const int32_t g[2];
        const struct cairn_column c[] = {{"reward", CAIRN_F32, f, 2},
                                         {"penalty", CAIRN_F32, f, 2},
                                         {"advantage", CAIRN_F32, f, 2},
                                         {"mask", CAIRN_U8, b, row[i].nmask},
                                         {"verdict", CAIRN_U8, b, 2},
                                         {"status", CAIRN_U8, b, 2},
                                         {"group", CAIRN_I32, g, 2},
                                         {"extracted", CAIRN_U8, "abcde", 5},
                                         {"extracted_offsets", CAIRN_I64, row[i].offsets, row[i].noffsets}};
        struct cairn_shard_entry *e = NULL;
        struct cairn_scores_table s;
        struct cairn_reader *reader;
        struct art a;
        char name[20];

        snprintf(name, sizeof name, "s%zu", i);
        art_begin(&a, &l, name, "score");
        OK(cairn_unit_write(a.attempt, 0, "", c, (int)COUNT(c), &e, err));
        art_add(&a, e);
        reader = art_commit(&a);
        if (row[i].word)
            FAILS(CAIRN_EDATA, row[i].word, cairn_scores_load(&s, reader, 1, err));
        else
            OK(cairn_scores_load(&s, reader, 1, err)); /* these have no value column: the verdict is it */
        cairn_scores_free(&s);
        cairn_reader_close(reader);
    }
    lab_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rollouts),        cmocka_unit_test(test_digest),        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_damage_optional), cmocka_unit_test(test_mixed_units),   cmocka_unit_test(test_units),
        cmocka_unit_test(test_scores),          cmocka_unit_test(test_scores_damage),
    };

    return cmocka_run_group_tests_name("rollouts", tests, NULL, NULL);
}
