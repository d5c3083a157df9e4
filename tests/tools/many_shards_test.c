/* many_shards_test.c - a run in which artefacts have more than 512 shards, so that their manifests name index files: what `cairn gc` counts and
 * frees, what `cairn verify --repair` takes away, and that the record stays whole.
 */
#include "tests/stages/lab.h"

#include <sys/stat.h>

#include "ckpt/attempt.h"
#include "ckpt/reader.h"
#include "ckpt/retention.h"

/* One slice as a shard of its own. */
static void shard_put(struct cairn_reader *from, const struct cairn_slice *s, struct cairn_attempt *a, struct cairn_manifest *m)
{
    struct cairn_shard_entry *entry;
    struct cairn_shard *w = NULL;
    size_t bytes = cairn_dtype_size(s->dtype);
    char name[32];
    void *x;

    for (int d = 0; d < s->ndim; d++)
        bytes *= (size_t)s->local[d];
    assert_non_null(x = malloc(bytes + 1));
    snprintf(name, sizeof name, "part%05d", m->nshards);
    OK(cairn_reader_box(from, s->name, s->ndim ? s->offset : NULL, s->ndim ? s->local : NULL, x, bytes, err));
    OK(cairn_attempt_shard(a, &w, name, s, 1, NULL, err));
    OK(cairn_shard_write(w, 0, 0, x, bytes, err));
    OK(cairn_attempt_shard_done(a, &w, &entry, err));
    OK(cairn_manifest_add_shard(m, entry, err));
    free(x);
}

/* The artefact made anew with a shard for each row of what has one for each entry of the vocabulary: another layout, the same digest. */
static void cut(const struct lab *l, const char *relative, char dir[400])
{
    const struct cairn_manifest *old;
    struct cairn_reader *from;
    struct cairn_manifest *m;
    struct cairn_attempt *a;
    char aside[400];

    snprintf(dir, 400, "%s/%s", l->run, relative);
    snprintf(aside, sizeof aside, "%s/cut", l->dir);
    assert_int_equal(rename(dir, aside), 0);
    OK(cairn_reader_open(&from, aside, NULL, err));
    old = cairn_reader_manifest(from);
    assert_non_null(m = cairn_manifest_create(old->kind, old->step, old->run));
    m->recipe = old->recipe;
    for (int i = 0; i < old->ninputs; i++)
        OK(cairn_manifest_add_input(m, old->inputs[i].path, old->inputs[i].digest, err));
    OK(cairn_manifest_set_fingerprint(m, old->numerics, old->layout, err));
    assert_int_equal(json_object_update(m->content, old->content) || json_object_update(m->info, old->info) ||
                         json_object_update(m->aliases, old->aliases),
                     0);
    OK(cairn_attempt_begin(&a, dir, &(struct cairn_attempt_opts){.identity = cairn_manifest_identity(m)}, err));
    for (int i = 0; i < old->ntensors; i++) {
        const struct cairn_tensor_entry *t = &old->tensors[i];
        struct cairn_slice whole = cairn_slice_whole(t->name, t->dtype, t->ndim, t->shape);
        const int rows = t->ndim && t->shape[0] == LAB_VOCAB ? LAB_VOCAB : 0;

        whole.each = t->each;
        whole.tile_bytes = t->tile_bytes;
        if (!rows)
            shard_put(from, &whole, a, m);
        for (int r = 0; r < rows; r++) {
            const struct cairn_slice row = cairn_slice_part(&whole, 0, r, 1);

            shard_put(from, &row, a, m);
        }
    }
    assert_true(m->nshards > CAIRN_MANIFEST_MAX_INLINE);
    OK(cairn_attempt_commit(a, m, err));
    assert_true(cairn_digest_equal(m->digest, old->digest));
    cairn_attempt_end(a);
    cairn_manifest_destroy(m);
    cairn_reader_close(from);
    OK(cairn_tree_remove(aside, err));
}

/* Exit code of `cairn VERB RUN MORE`; said: both its outputs. */
static int verb(const struct lab *l, const char *name, const char *more, char said[4000])
{
    char command[1200];
    size_t n;
    FILE *f;
    int rc;

    snprintf(command, sizeof command, "%s/bin/cairn %s %s %s 2>&1", cairn_install_dir(), name, l->run, more);
    f = popen(command, "r");
    assert_non_null(f);
    n = fread(said, 1, 3999, f);
    said[n] = 0;
    rc = pclose(f);
    assert_true(WIFEXITED(rc));
    return WEXITSTATUS(rc);
}

static void verb_ok(const struct lab *l, const char *name, const char *more, char said[4000])
{
    int rc = verb(l, name, more, said);

    if (rc)
        fail_msg("cairn %s %s: %d: %s", name, more, rc, said);
}

/* Files of ARTEFACT/a1 by the ending of their names, and the bytes that they take on the disk. */
static int files(const char *dir, const char *ending, int64_t *bytes)
{
    char *folder = cairn_path_join(dir, "a1");
    struct cairn_names names;
    int n = 0;

    OK(cairn_dir_names(&names, folder, NULL, err));
    for (size_t i = 0; i < names.n; i++) {
        char *path = cairn_path_join(folder, names.name[i]);
        struct stat sb;

        assert_int_equal(stat(path, &sb), 0);
        if (cairn_ends_with(path, ending)) {
            n++;
            *bytes += (int64_t)sb.st_blocks * 512;
        }
        free(path);
    }
    cairn_names_free(&names);
    free(folder);
    return n;
}

static int64_t freed(const struct lab *l, const char *more)
{
    char said[4000];
    json_t *o = NULL;
    int64_t bytes;

    verb_ok(l, "gc", more, said);
    OK(cairn_json_parse(&o, said, strlen(said), "gc", err));
    OK(cairn_json_i64(o, "bytes", 0, INT64_MAX, &bytes, "gc", err));
    json_decref(o);
    return bytes;
}

static void record_stays(const char *dir)
{
    struct cairn_reader *reader;
    struct cairn_manifest *m;
    int64_t bytes = 0;

    OK(cairn_manifest_load(&m, dir, err));
    assert_int_equal(files(dir, ".json", &bytes), m->nshards);
    assert_int_equal(files(dir, "", &bytes), m->nshards);
    FAILS(CAIRN_ENOINPUT, "was collected", cairn_reader_open(&reader, dir, NULL, err));
    cairn_manifest_destroy(m);
}

static void test_collected(void **state)
{
    char state_dir[400], policy[400], file[440], said[4000];
    int64_t bytes = 0;
    unsigned char byte;
    struct lab l;
    int fd;

    (void)state;
    lab_open(&l);
    cairn_run_close(lab_init(&l, LAB_OVERRIDES("checkpoint.keep=1", "checkpoint.keep_every=0")));
    for (int s = 0; s < 4; s++)
        lab_stage_ok(cairn_stage_name((enum cairn_stage)s), l.run, 1, NULL);
    cut(&l, "step/000001/train", state_dir);
    cut(&l, "policy/000001", policy);
    verb_ok(&l, "verify", "--deep", said);
    for (int s = 0; s < 3; s++)
        lab_stage_ok(cairn_stage_name((enum cairn_stage)s), l.run, 2, NULL);

    files(state_dir, ".h5", &bytes);
    assert_int_equal(freed(&l, "--json --dry-run"), bytes);
    assert_int_equal(freed(&l, "--json"), bytes);
    record_stays(state_dir);
    assert_int_equal(freed(&l, "--json --dry-run"), 0);
    assert_int_equal(freed(&l, "--json"), 0);
    record_stays(state_dir);
    verb_ok(&l, "verify", "--deep", said);

    /* a damaged policy that cannot be made again, as its trainer state is gone, and that nobody needs */
    snprintf(file, sizeof file, "%s/a1/part00000.h5", policy);
    assert_true((fd = open(file, O_RDWR)) >= 0 && pread(fd, &byte, 1, 100) == 1);
    byte ^= 1;
    assert_true(pwrite(fd, &byte, 1, 100) == 1 && !close(fd));
    assert_int_equal(verb(&l, "verify", "", said), 65);
    verb_ok(&l, "verify", "--repair", said);
    assert_non_null(strstr(said, "collected: policy/000001: damaged"));
    record_stays(policy);
    snprintf(file, sizeof file, "%s/quarantine/0001/policy/000001/a1/part00000.h5", l.run);
    assert_true(cairn_path_exists(file));
    verb_ok(&l, "verify", "--deep", said);
    lab_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_collected)};

    return cmocka_run_group_tests_name("more than 512 shards", tests, NULL, NULL);
}
