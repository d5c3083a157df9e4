/* check_test.c - the gate's two sides: what is published is told from what the sampler holds to the last bit of one element. */
#include "tests/stages/lab.h"

#include "tools/check/sides.h"

struct bench {
    struct lab l;
    struct cairn_sides x;
};

static void bench_open(struct bench *b, const char *const *override)
{
    struct cairn_run *run;

    lab_open(&b->l);
    run = lab_init(&b->l, override);
    OK(cairn_sides_open(&b->x, &(struct cairn_check_opts){.dir = run->dir, .last = 5, .threads = 1}, err));
    cairn_run_close(run);
}

static void bench_close(struct bench *b)
{
    cairn_sides_close(&b->x);
    lab_close(&b->l);
}

static struct cairn_store *sampled(struct cairn_sides *x)
{
    return x->policy.lora ? &x->policy.adapter_weights : &x->policy.weights;
}

/* One element of a tensor that the sampler holds, one ulp further. */
static void step_up(struct cairn_sides *x, const struct cairn_tensor *t, int64_t element)
{
    size_t bytes = cairn_tensor_bytes(t), e = cairn_dtype_size(t->dtype);
    char *h = malloc(bytes);

    assert_non_null(h);
    OK(cairn_tensor_get(&x->k.stream, t, h, bytes, err));
    h[(size_t)element * e]++; /* of a little-endian number; 255 becomes 0, which is a change, too */
    OK(cairn_tensor_set(&x->k.stream, t, h, bytes, err));
    free(h);
}

static void ulp_of_every_tensor(struct bench *b)
{
    struct cairn_store *s = sampled(&b->x);
    const char *name = "";

    OK(cairn_sides_sync(&b->x, err));
    OK(cairn_sides_weights_differ(&b->x, &name, NULL, err));
    assert_null(name);
    for (int i = 0; i < s->table->count; i++)
        for (int k = 0; k < 3; k++) {
            int64_t n = cairn_tensor_count(&s->tensor[i]), element = k == 0 ? 0 : k == 1 ? n / 2 : n - 1;
            char *was = malloc(cairn_tensor_bytes(&s->tensor[i]));

            assert_non_null(was);
            OK(cairn_tensor_get(&b->x.k.stream, &s->tensor[i], was, cairn_tensor_bytes(&s->tensor[i]), err));
            step_up(&b->x, &s->tensor[i], element);
            OK(cairn_sides_weights_differ(&b->x, &name, NULL, err));
            if (!name || strcmp(name, s->table->param[i].name))
                fail_msg("element %lld of %s: %s", (long long)element, s->table->param[i].name, name ? name : "not seen");
            OK(cairn_tensor_set(&b->x.k.stream, &s->tensor[i], was, cairn_tensor_bytes(&s->tensor[i]), err));
            free(was);
        }
    OK(cairn_sides_weights_differ(&b->x, &name, NULL, err));
    assert_null(name);
}

static void test_one_ulp_of_an_adapter(void **state)
{
    struct bench b;

    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        bench_open(&b, LAB_OVERRIDES("model.adapter={rank: 2, alpha: 4}", wide ? "sync.dtype=f32" : "sync.dtype=bf16"));
        assert_int_equal(b.x.policy.lora, 1);
        ulp_of_every_tensor(&b);
        bench_close(&b);
    }
}

static void test_one_ulp_of_full_weights(void **state)
{
    struct bench b;

    (void)state;
    bench_open(&b, NULL);
    ulp_of_every_tensor(&b);
    bench_close(&b);
}

/* The digest follows the weights, there and back. */
static void test_digest_there_and_back(void **state)
{
    struct cairn_digest first, second, third;
    struct bench b;
    const char *name;

    (void)state;
    bench_open(&b, LAB_OVERRIDES("model.adapter={rank: 2, alpha: 4}"));
    OK(cairn_sides_masters_save(&b.x, err));
    OK(cairn_sides_sync(&b.x, err));
    OK(cairn_sides_weights_differ(&b.x, &name, &first, err));
    OK(cairn_sides_perturb(&b.x, 0.1, 1, err));
    OK(cairn_sides_weights_differ(&b.x, &name, &second, err));
    assert_non_null(name); /* not synced */
    OK(cairn_sides_sync(&b.x, err));
    OK(cairn_sides_weights_differ(&b.x, &name, &second, err));
    assert_null(name);
    assert_false(cairn_digest_equal(first, second));
    OK(cairn_sides_masters_load(&b.x, err));
    OK(cairn_sides_sync(&b.x, err));
    OK(cairn_sides_weights_differ(&b.x, &name, &third, err));
    assert_null(name);
    assert_true(cairn_digest_equal(first, third));
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_ulp_of_an_adapter),
        cmocka_unit_test(test_one_ulp_of_full_weights),
        cmocka_unit_test(test_digest_there_and_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
