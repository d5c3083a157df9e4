/* footprint_test.c - the arithmetic of model/footprint.h against what a device is really asked for: every buffer of a trainer and of a
 * sampler, counted by the device's own allocator; and the refusal of what does not fit.
 */
#include "tests/runtime/model/tiny.h"

#include "model/footprint.h"
#include "model/optimizer.h"
#include "stages/rollout/engine.h"

static struct {
    const struct cairn_device_ops *real;
    struct cairn_device_ops ops;
    size_t held, most, left;
} counted;

static enum cairn_status count_alloc(struct cairn_device *dev, size_t bytes, void **impl, struct cairn_error *err)
{
    enum cairn_status st = counted.real->alloc(dev, bytes, impl, err);

    if (st == CAIRN_OK && (counted.held += bytes) > counted.most)
        counted.most = counted.held;
    return st;
}

static void count_release(struct cairn_device *dev, void *impl, size_t bytes)
{
    counted.held -= bytes;
    counted.real->release(dev, impl, bytes);
}

static enum cairn_status count_memory(struct cairn_device *dev, size_t *left, size_t *total, struct cairn_error *err)
{
    (void)dev, (void)err;
    *left = counted.left;
    *total = counted.left + counted.held;
    return CAIRN_OK;
}

static void count_begin(struct cairn_device *dev)
{
    counted.real = dev->ops;
    counted.ops = *dev->ops;
    counted.ops.alloc = count_alloc;
    counted.ops.release = count_release;
    counted.ops.memory = count_memory;
    counted.held = counted.most = 0;
    dev->ops = &counted.ops;
}

static void within(size_t said, size_t asked, double share)
{
    if ((double)said < (1 - share) * (double)asked || (double)said > (1 + share) * (double)asked)
        fail_msg("said %zu bytes, asked for %zu", said, asked);
}

/* Everything a trainer of `rows` has on its device but its lists of rows. */
static void trainer(const char *backend, int lora, int recompute)
{
    struct tiny t;
    struct cairn_pass *p = NULL;
    struct cairn_optimizer o;
    struct cairn_store weights, adapter, grads;
    const struct cairn_pass_opts pass = {.max_rows = 200, .max_seqs = 9, .train = 1, .recompute = recompute, .entropy = 1};
    struct cairn_footprint f;

    tiny_open(&t, backend, 1, TINY_SPARSE, lora);
    count_begin(t.k.dev);
    OK(cairn_weights_create(&weights, &t.table, &t.k, err));
    if (lora)
        OK(cairn_weights_create(&adapter, &t.adapter.table, &t.k, err));
    OK(cairn_optimizer_create(&o, lora ? &t.adapter.table : &t.table, &t.k, err));
    OK(cairn_store_create(&grads, lora ? &t.adapter.table : &t.table, t.k.dev, 1, err));
    OK(cairn_pass_create(&p, &t.m, &pass, err));
    OK(cairn_footprint(&(struct cairn_footprint_opts){.config = &t.config, .table = &t.table, .adapter = lora ? &t.adapter : NULL, .act = t.k.act,
                                                      .segments = 1, .pass = pass}, &f, err));
    assert_int_equal(f.activations, cairn_pass_bytes(p));
    assert_int_equal(f.weights, weights.buf->bytes);
    assert_int_equal(f.gradients, grads.buf->bytes);
    within(f.total, counted.held, 0.05);
    cairn_pass_destroy(p);
    cairn_store_free(&grads);
    cairn_optimizer_free(&o);
    if (lora)
        cairn_store_free(&adapter);
    cairn_store_free(&weights);
    assert_int_equal(counted.held, 0);
    t.k.dev->ops = counted.real;
    tiny_close(&t);
}

static void test_training(void **state)
{
    trainer(*state, 0, 0);
    trainer(*state, 0, 1);
    trainer(*state, 1, 0);
}

static enum cairn_status ignore(void *arg, const struct cairn_response *r, struct cairn_error *err)
{
    (void)r, (void)err;
    ++*(int *)arg;
    return CAIRN_OK;
}

static void test_sampling(void **state)
{
    static const int32_t prompt[] = {5, 6, 7, 8, 9, 10, 11};
    const struct cairn_engine_opts o = {.batch = 12, .page = 4, .max_length = 40, .prefill = 30, .seed = 1, .step = 1, .temperature = 1};
    struct cairn_engine *e = NULL;
    struct cairn_footprint f;
    struct tiny t;
    int told = 0;

    tiny_open(&t, *state, 1, TINY_SPARSE, 0);
    OK(cairn_engine_footprint(&t.m, &o, &f, err));
    count_begin(t.k.dev);
    OK(cairn_engine_create(&e, &t.m, &o, err));
    for (int i = 0; i < 12; i++)
        OK(cairn_engine_submit(e, &(struct cairn_request){.prompt = prompt, .length = 7, .max_new = 5, .samples = 1, .key = i}, err));
    OK(cairn_engine_run(e, ignore, &told, err));
    assert_int_equal(told, 12);
    within(f.total - f.weights, counted.most, 0.05);
    assert_int_equal(f.activations + f.logits + f.cache, cairn_engine_bytes(e));
    cairn_engine_destroy(e);
    t.k.dev->ops = counted.real;
    tiny_close(&t);
}

static void test_refused(void **state)
{
    struct cairn_footprint f = {.weights = 3000u << 10, .masters = 5000u << 10, .total = 8000u << 10};
    struct cairn_error refused = {0};
    char text[200];
    struct tiny t;

    tiny_open(&t, *state, 1, TINY_SPARSE, 0);
    OK(cairn_footprint_fits(&f, 0, t.k.dev, "all", err)); /* host memory is not counted */
    count_begin(t.k.dev);
    counted.left = 5000u << 10;
    OK(cairn_footprint_fits(&f, f.weights, t.k.dev, "masters", err));
    counted.left--;
    assert_int_equal(cairn_footprint_fits(&f, f.weights, t.k.dev, "train.pack", &refused), CAIRN_ENOSPACE);
    assert_non_null(strstr(refused.text, "train.pack"));
    assert_non_null(strstr(refused.text, "the largest part is masters"));
    t.k.dev->ops = counted.real;
    cairn_footprint_text(&(struct cairn_footprint){.weights = (size_t)3 << 30, .cache = (size_t)1 << 29, .total = (size_t)7 << 29}, text,
                         sizeof text);
    assert_string_equal(text, "3.50 GiB: weights 3.00, cache 0.50");
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON("cpu", test_training), ON("guard", test_training), ON("cpu", test_sampling), ON("cpu", test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
