/* tokenizer_file.c - reads a HuggingFace tokenizer.json; what it does not know, it refuses by name.
 *
 * The file is one object: version, truncation, padding, added_tokens, normalizer, pre_tokenizer, post_processor,
 * decoder, model. Everything in it is bounds-checked before use: ids, lengths, references from merges to tokens.
 * The parsed JSON lives until the tokenizer is built, then goes.
 * Source of the format: the serialisation of HuggingFace's tokenizers (read, not copied).
 */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "text/skim.h"
#include "text/tokenizer_impl.h"

#define MAX_FILE ((size_t)256 << 20)

struct reader {
    struct cairn_tokenizer *t;
    const char *where; /* the file */
    struct cairn_error *err;
    const char *text; /* NULL, or of one that only decodes: where the vocabulary lies, which the parsed object does not hold */
    struct cairn_skim_span vocab;
};

static enum cairn_status unsupported(const struct reader *r, const char *place, const char *what)
{
    return cairn_fail(r->err, CAIRN_EDATA, "%s: %s: %s is not supported", r->where, place, what);
}

/* --- members with defaults --- */

static enum cairn_status get_bool(const struct reader *r, const char *place, const json_t *obj, const char *key, int missing,
                                  int *out)
{
    const json_t *v = json_object_get(obj, key);

    if (v && !json_is_boolean(v))
        return cairn_fail(r->err, CAIRN_EDATA, "%s: %s.%s: expected true or false", r->where, place, key);
    *out = v ? json_is_true(v) : missing;
    return CAIRN_OK;
}

/* A switch that has to be off. */
static enum cairn_status want_false(const struct reader *r, const char *place, const json_t *obj, const char *key, int missing)
{
    int on = 0;
    enum cairn_status st = get_bool(r, place, obj, key, missing, &on);

    if (st == CAIRN_OK && on)
        return cairn_fail(r->err, CAIRN_EDATA, "%s: %s: %s true is not supported", r->where, place, key);
    return st;
}

static int is_null(const json_t *v)
{
    return !v || json_is_null(v);
}

static enum cairn_status want_null(const struct reader *r, const char *place, const json_t *obj, const char *key)
{
    return is_null(json_object_get(obj, key)) ? CAIRN_OK : unsupported(r, place, key);
}

/* null or "". */
static enum cairn_status want_empty(const struct reader *r, const char *place, const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);

    return is_null(v) || (json_is_string(v) && !json_string_length(v)) ? CAIRN_OK : unsupported(r, place, key);
}

static enum cairn_status want_keys(const struct reader *r, const char *place, json_t *obj, const char *const *keys)
{
    const char *key;
    json_t *value;

    json_object_foreach(obj, key, value)
    {
        size_t i = 0;

        while (keys[i] && strcmp(keys[i], key))
            i++;
        if (!keys[i])
            return cairn_fail(r->err, CAIRN_EDATA, "%s: %s: unknown member \"%s\"", r->where, place, key);
    }
    return CAIRN_OK;
}

/* "type" of a component must be `type`. */
static enum cairn_status want_type(const struct reader *r, const char *place, const json_t *obj, const char *type)
{
    const char *is = json_string_value(json_object_get(obj, "type"));

    if (!is)
        return cairn_fail(r->err, CAIRN_EDATA, "%s: %s: a component without \"type\" (expected %s)", r->where, place, type);
    if (strcmp(is, type))
        return cairn_fail(r->err, CAIRN_EDATA, "%s: %s: %s is not supported (expected %s)", r->where, place, is, type);
    return CAIRN_OK;
}

/* --- the pipeline --- */

static enum cairn_status read_split(const struct reader *r, json_t *split)
{
    static const char place[] = "pre_tokenizer.pretokenizers[0]";
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    enum cairn_status st = CAIRN_OK;
    const json_t *regex = json_object_get(json_object_get(split, "pattern"), "Regex");
    const char *behavior = json_string_value(json_object_get(split, "behavior"));

    TRY(want_type(r, place, split, "Split"));
    TRY(want_keys(r, place, split, keys));
    TRY(want_false(r, place, split, "invert", 0));
    if (!json_is_string(regex))
        TRY(cairn_fail(r->err, CAIRN_EDATA, "%s: %s: expected pattern {\"Regex\": \"...\"}", r->where, place));
    if (!behavior || strcmp(behavior, "Isolated"))
        TRY(cairn_fail(r->err, CAIRN_EDATA, "%s: %s: behavior %s is not supported (expected Isolated)", r->where, place,
                       behavior ? behavior : "(none)"));
    if (!r->text)
        st = cairn_split_create(&r->t->split, json_string_value(regex), json_string_length(regex), 0, r->err);
    if (st != CAIRN_OK)
        cairn_error_prefix(r->err, "%s: %s", r->where, place);
out:
    return st;
}

static enum cairn_status read_pipeline(const struct reader *r, json_t *root)
{
    static const char *const keys[] = {"type", "pretokenizers", NULL};
    enum cairn_status st = CAIRN_OK;
    json_t *pre = json_object_get(root, "pre_tokenizer"), *list = json_object_get(pre, "pretokenizers"),
           *last = json_array_get(list, 1);

    TRY(want_null(r, "tokenizer", root, "truncation"));
    TRY(want_null(r, "tokenizer", root, "padding"));
    if (!is_null(json_object_get(root, "normalizer"))) {
        TRY(want_type(r, "normalizer", json_object_get(root, "normalizer"), "NFC"));
        r->t->nfc = 1;
    }
    TRY(want_type(r, "pre_tokenizer", pre, "Sequence"));
    TRY(want_keys(r, "pre_tokenizer", pre, keys));
    if (json_array_size(list) != 2)
        TRY(cairn_fail(r->err, CAIRN_EDATA, "%s: pre_tokenizer: a Sequence of %zu is not supported (expected Split, ByteLevel)",
                       r->where, json_array_size(list)));
    TRY(read_split(r, json_array_get(list, 0)));
    TRY(want_type(r, "pre_tokenizer.pretokenizers[1]", last, "ByteLevel"));
    TRY(want_false(r, "pre_tokenizer.pretokenizers[1]", last, "add_prefix_space", 1));
    TRY(want_false(r, "pre_tokenizer.pretokenizers[1]", last, "use_regex", 1));
    TRY(want_type(r, "decoder", json_object_get(root, "decoder"), "ByteLevel"));
    if (!is_null(json_object_get(root, "post_processor"))) /* ByteLevel only moves offsets, which we do not give */
        TRY(want_type(r, "post_processor", json_object_get(root, "post_processor"), "ByteLevel"));
out:
    return st;
}

/* --- added tokens --- */

static enum cairn_status read_added(const struct reader *r, const json_t *item, size_t i)
{
    static const char *const keys[] = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special", NULL};
    enum cairn_status st = CAIRN_OK;
    struct cairn_added_token t = {0};
    const json_t *content = json_object_get(item, "content");
    int64_t id = 0;
    int special = 0, lstrip = 0, rstrip = 0, normalized = 0;
    char place[64];

    snprintf(place, sizeof place, "added_tokens[%zu]", i);
    TRY(cairn_json_i64(item, "id", 0, CAIRN_VOCAB_MAX - 1, &id, r->where, r->err));
    TRY(want_keys(r, place, (json_t *)(uintptr_t)item, keys));
    if (!json_is_string(content) || !json_string_length(content) || json_string_length(content) > CAIRN_ADDED_MAX_BYTES)
        TRY(cairn_fail(r->err, CAIRN_EDATA, "%s: %s: expected content of 1 to %d bytes", r->where, place, CAIRN_ADDED_MAX_BYTES));
    TRY(want_false(r, place, item, "single_word", 0));
    TRY(get_bool(r, place, item, "lstrip", 0, &lstrip));
    TRY(get_bool(r, place, item, "rstrip", 0, &rstrip));
    TRY(get_bool(r, place, item, "special", 0, &special));
    TRY(get_bool(r, place, item, "normalized", !special, &normalized));
    if (normalized && r->t->nfc) /* would have to be searched in the composed text */
        TRY(cairn_fail(r->err, CAIRN_EDATA, "%s: %s: normalized true together with a normalizer is not supported", r->where,
                       place));
    t.name = (char *)(uintptr_t)json_string_value(content);
    t.n = json_string_length(content);
    t.id = (int32_t)id;
    t.special = (unsigned char)special;
    t.lstrip = (unsigned char)lstrip;
    t.rstrip = (unsigned char)rstrip;
    t.normalized = (unsigned char)normalized;
    TRY(cairn_added_add(&r->t->added, &t, r->err));
    st = cairn_vocab_add(&r->t->vocab, t.id, t.name, t.n, CAIRN_TOKEN_ADDED | (special ? CAIRN_TOKEN_SPECIAL : 0), r->err);
    if (st != CAIRN_OK)
        cairn_error_prefix(r->err, "%s: %s \"%s\"", r->where, place, t.name);
out:
    return st;
}

/* --- the model --- */

/* What is found out, or made, of the members of a vocabulary that lies in a text. */
struct entries {
    const struct reader *r;
    struct cairn_str bytes;
    enum cairn_status st;
    int64_t largest;
};

static int entry_measure(void *arg, const struct cairn_str *name, int64_t number)
{
    struct entries *x = arg;

    (void)name;
    x->largest = number > x->largest ? number : x->largest;
    return number < CAIRN_VOCAB_MAX;
}

/* Largest id of both lists, so that the tables can be made; each id is checked here. */
static enum cairn_status largest_id(const struct reader *r, json_t *vocab, const json_t *added, int32_t *out, size_t *entries)
{
    struct entries all = {.largest = -1};
    enum cairn_status st = CAIRN_OK;
    int64_t id, largest = -1;
    const char *key;
    json_t *value;
    size_t i;

    if (r->text && !cairn_skim_numbers(r->text, r->vocab, entry_measure, &all))
        TRY(cairn_fail(r->err, CAIRN_EDATA, "%s: model.vocab is not understood", r->where));
    largest = all.largest;
    *entries = json_object_size(vocab);
    json_object_foreach(vocab, key, value)
    {
        id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= CAIRN_VOCAB_MAX)
            TRY(cairn_fail(r->err, CAIRN_EDATA, "%s: model.vocab: \"%s\": expected an id from 0 to %d", r->where, key,
                           CAIRN_VOCAB_MAX - 1));
        largest = id > largest ? id : largest;
    }
    json_array_foreach(added, i, value)
    {
        TRY(cairn_json_i64(value, "id", 0, CAIRN_VOCAB_MAX - 1, &id, r->where, r->err));
        largest = id > largest ? id : largest;
    }
    *out = (int32_t)(largest + 1);
out:
    return st;
}

static enum cairn_status read_entry(const struct reader *r, const char *key, size_t n, int32_t id, struct cairn_str *bytes)
{
    int32_t added = cairn_added_find(&r->t->added, key, n);
    enum cairn_status st = CAIRN_OK;
    int in_alphabet;

    if (!n)
        TRY(cairn_fail(r->err, CAIRN_EDATA, "%s: model.vocab: an empty token", r->where));
    if (added >= 0 && added != id)
        TRY(cairn_fail(r->err, CAIRN_EDATA, "%s: added token \"%s\" has id %d, model.vocab says %d", r->where, key, (int)added,
                       (int)id));
    cairn_str_clear(bytes);
    in_alphabet = cairn_byte_alphabet_decode(key, n, bytes);
    if (bytes->oom)
        TRY(CAIRN_NOMEM(r->err));
    /* A name outside of the alphabet, or whose bytes would be others, is out of reach of merges. */
    if (in_alphabet && (added < 0 || (bytes->len == n && !memcmp(bytes->p, key, n))))
        st = cairn_vocab_add(&r->t->vocab, id, bytes->p, bytes->len, r->text ? 0 : CAIRN_TOKEN_MODEL,
                             r->err); /* nobody looks for it */
    else if (added < 0)
        st = cairn_vocab_add(&r->t->vocab, id, key, n, 0, r->err);
    if (st != CAIRN_OK)
        cairn_error_prefix(r->err, "%s: model.vocab: \"%s\"", r->where, key);
out:
    return st;
}

static int entry_take(void *arg, const struct cairn_str *name, int64_t number)
{
    struct entries *x = arg;

    x->st = read_entry(x->r, cairn_str_z((struct cairn_str *)name), name->len, (int32_t)number, &x->bytes);
    return x->st == CAIRN_OK;
}

static enum cairn_status read_vocab(const struct reader *r, json_t *vocab)
{
    struct entries x = {.r = r};
    const char *key;
    json_t *value;

    if (r->text && !cairn_skim_numbers(r->text, r->vocab, entry_take, &x) && x.st == CAIRN_OK)
        x.st = cairn_fail(r->err, CAIRN_EDATA, "%s: model.vocab is not understood", r->where);
    json_object_foreach(vocab, key, value) if (x.st == CAIRN_OK) x.st =
        read_entry(r, key, strlen(key), (int32_t)json_integer_value(value), &x.bytes);
    cairn_str_free(&x.bytes);
    return x.st;
}

static enum cairn_status no_token(const struct reader *r, size_t i, const char *p, size_t n)
{
    return cairn_fail(r->err, CAIRN_EDATA, "%s: model.merges[%zu]: \"%.*s\" is not in the vocabulary", r->where, i,
                      (int)(n < 100 ? n : 100), p);
}

/* p: left side (n bytes), q: right side (m bytes), in the alphabet. */
static enum cairn_status read_merge(const struct reader *r, size_t i, const char *p, size_t n, const char *q, size_t m,
                                    struct cairn_str *bytes)
{
    const struct cairn_vocab *v = &r->t->vocab;
    int32_t left, right, id;
    size_t cut;

    cairn_str_clear(bytes);
    if (!n || !cairn_byte_alphabet_decode(p, n, bytes))
        return no_token(r, i, p, n);
    cut = bytes->len;
    if (!m || !cairn_byte_alphabet_decode(q, m, bytes))
        return no_token(r, i, q, m);
    if (bytes->oom)
        return CAIRN_NOMEM(r->err);
    left = cairn_vocab_find(v, bytes->p, cut, cairn_vocab_hash(bytes->p, cut));
    if (left < 0)
        return no_token(r, i, p, n);
    right = cairn_vocab_find(v, bytes->p + cut, bytes->len - cut, cairn_vocab_hash(bytes->p + cut, bytes->len - cut));
    if (right < 0)
        return no_token(r, i, q, m);
    id = cairn_vocab_find(v, bytes->p, bytes->len, cairn_vocab_hash(bytes->p, bytes->len));
    if (id < 0)
        return cairn_fail(r->err, CAIRN_EDATA, "%s: model.merges[%zu]: \"%.*s\" + \"%.*s\" make no token of the vocabulary",
                          r->where, i, (int)(n < 100 ? n : 100), p, (int)(m < 100 ? m : 100), q);
    cairn_bpe_add(&r->t->bpe, left, right, (uint32_t)i, id);
    return CAIRN_OK;
}

static enum cairn_status read_merges(const struct reader *r, const json_t *merges)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_str bytes = {0};
    const json_t *item;
    size_t i;

    json_array_foreach(merges, i, item)
    {
        const char *p = json_string_value(item), *blank = p ? strchr(p, ' ') : NULL;
        const json_t *left = json_array_get(item, 0), *right = json_array_get(item, 1);

        if (blank && !strchr(blank + 1, ' ') && strlen(p) == json_string_length(item))
            TRY(read_merge(r, i, p, (size_t)(blank - p), blank + 1, strlen(blank + 1), &bytes));
        else if (json_array_size(item) == 2 && json_is_string(left) && json_is_string(right))
            TRY(read_merge(r, i, json_string_value(left), json_string_length(left), json_string_value(right),
                           json_string_length(right), &bytes));
        else
            TRY(cairn_fail(r->err, CAIRN_EDATA, "%s: model.merges[%zu]: expected \"left right\" or [\"left\", \"right\"]", r->where,
                           i));
    }
out:
    cairn_str_free(&bytes);
    return st;
}

static enum cairn_status read_model(const struct reader *r, json_t *root)
{
    /* unk_token and fuse_unk have no effect: cairn_bpe_init insists that every byte has its token. */
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    enum cairn_status st = CAIRN_OK;
    json_t *model = json_object_get(root, "model"), *vocab, *merges, *added = json_object_get(root, "added_tokens"), *item;
    const json_t *dropout = json_object_get(model, "dropout");
    int ignore_merges = 0;
    int32_t size = 0;
    size_t i, entries = 0;

    TRY(want_type(r, "model", model, "BPE"));
    TRY(want_keys(r, "model", model, keys));
    if (!is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        TRY(unsupported(r, "model", "dropout"));
    TRY(want_empty(r, "model", model, "continuing_subword_prefix"));
    TRY(want_empty(r, "model", model, "end_of_word_suffix"));
    TRY(want_false(r, "model", model, "byte_fallback", 0));
    TRY(get_bool(r, "model", model, "ignore_merges", 0, &ignore_merges));
    TRY(cairn_json_object(model, "vocab", &vocab, r->where, r->err));
    TRY(cairn_json_array(model, "merges", &merges, r->where, r->err));
    if (!is_null(added) && !json_is_array(added))
        TRY(cairn_fail(r->err, CAIRN_EDATA, "%s: added_tokens: expected an array", r->where));
    TRY(largest_id(r, vocab, added, &size, &entries));
    TRY(cairn_vocab_init(&r->t->vocab, size, entries, r->err));
    json_array_foreach(added, i, item) TRY(read_added(r, item, i));
    st = cairn_added_done(&r->t->added, r->err);
    if (st != CAIRN_OK)
        cairn_error_prefix(r->err, "%s", r->where);
    TRY(st);
    TRY(read_vocab(r, vocab));
    if (r->text)
        goto out;
    st = cairn_bpe_init(&r->t->bpe, &r->t->vocab, json_array_size(merges), ignore_merges, r->err);
    if (st != CAIRN_OK)
        cairn_error_prefix(r->err, "%s", r->where);
    TRY(st);
    TRY(read_merges(r, merges));
out:
    return st;
}

/* --- the file --- */

/* text: NULL, or of one that only decodes, with the span of its vocabulary. */
static enum cairn_status build(struct cairn_tokenizer **out, json_t *root, const char *where, const char *text,
                               struct cairn_skim_span vocab, struct cairn_error *err)
{
    static const char *const keys[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    enum cairn_status st = CAIRN_OK;
    struct reader r = {.where = where, .err = err, .text = text, .vocab = vocab};

    if (!json_is_object(root))
        return cairn_fail(err, CAIRN_EDATA, "%s: expected an object", where);
    if (!(r.t = calloc(1, sizeof *r.t)))
        return CAIRN_NOMEM(err);
    pthread_mutex_init(&r.t->lock, NULL);
    TRY(want_keys(&r, "tokenizer", root, keys));
    TRY(read_pipeline(&r, root));
    TRY(read_model(&r, root));
    *out = r.t;
    r.t = NULL;
out:
    cairn_tokenizer_free(r.t);
    return st;
}

enum cairn_status cairn_tokenizer_parse(struct cairn_tokenizer **out, const char *json, size_t n, const char *where,
                                        struct cairn_error *err)
{
    json_t *root = NULL;
    enum cairn_status st = cairn_json_parse(&root, json, n, where, err);

    if (st == CAIRN_OK)
        st = build(out, root, where, NULL, (struct cairn_skim_span){0}, err);
    json_decref(root);
    return st;
}

enum cairn_status cairn_tokenizer_load(struct cairn_tokenizer **out, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *root = NULL;
    char *file = cairn_path_is_dir(path) ? cairn_path_join(path, "tokenizer.json") : cairn_format("%s", path);

    if (!file)
        return CAIRN_NOMEM(err);
    TRY(cairn_json_load(&root, file, MAX_FILE, err));
    TRY(build(out, root, file, NULL, (struct cairn_skim_span){0}, err));
out:
    json_decref(root);
    free(file);
    return st;
}

/* The text without what lies in both spans, which are made empty. NULL: no memory. */
static char *without(const char *text, size_t n, struct cairn_skim_span a, struct cairn_skim_span b, size_t *left)
{
    struct cairn_skim_span first = a.at < b.at ? a : b, second = a.at < b.at ? b : a;
    struct cairn_str s = {0};

    cairn_str_add(&s, text, first.at);
    cairn_str_puts(&s, text[first.at] == '{' ? "{}" : "[]");
    cairn_str_add(&s, text + first.end, second.at - first.end);
    cairn_str_puts(&s, text[second.at] == '{' ? "{}" : "[]");
    cairn_str_add(&s, text + second.end, n - second.end);
    *left = s.len;
    return cairn_str_take(&s);
}

enum cairn_status cairn_tokenizer_load_decoder(struct cairn_tokenizer **out, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *file = cairn_path_is_dir(path) ? cairn_path_join(path, "tokenizer.json") : cairn_format("%s", path), *text = NULL,
         *rest = NULL;
    struct cairn_skim_span model, vocab, merges;
    struct cairn_error why;
    json_t *root = NULL;
    size_t n, left;

    if (!file)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_file_read(file, MAX_FILE, &text, &n, err));
    if (cairn_skim_member(text, n, 0, "model", &model) && cairn_skim_member(text, model.end, model.at, "vocab", &vocab) &&
        cairn_skim_member(text, model.end, model.at, "merges", &merges) && text[vocab.at] == '{' && text[merges.at] == '[') {
        if (!(rest = without(text, n, vocab, merges, &left)))
            TRY(CAIRN_NOMEM(err));
        if (cairn_json_parse(&root, rest, left, file, &why) == CAIRN_OK && build(out, root, file, text, vocab, &why) == CAIRN_OK)
            goto out;
    }
    TRY(cairn_tokenizer_load(out, file, err)); /* whatever is wrong with it: said as always */
out:
    json_decref(root);
    free(rest);
    free(text);
    free(file);
    return st;
}
