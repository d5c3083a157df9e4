/* tokenizer.c - encoding and decoding, as tokenizer.h says. Reading the file is tokenizer_file.c. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/tokenizer_impl.h"

/* What one call of encode works in. */
struct scratch {
    struct scratch *next;
    struct cairn_bpe_work *bpe;
    struct cairn_split_work *split;
};

static void scratch_destroy(struct scratch *s)
{
    if (!s)
        return;
    cairn_bpe_work_destroy(s->bpe);
    cairn_split_work_destroy(s->split);
    free(s);
}

static struct scratch *scratch_take(struct cairn_tokenizer *t)
{
    struct scratch *s;

    pthread_mutex_lock(&t->lock);
    s = t->pool;
    if (s)
        t->pool = s->next;
    pthread_mutex_unlock(&t->lock);
    if (s || !(s = calloc(1, sizeof *s)))
        return s;
    s->bpe = cairn_bpe_work_create();
    s->split = cairn_split_work_create(t->split);
    if (s->bpe && s->split)
        return s;
    scratch_destroy(s);
    return NULL;
}

static void scratch_give(struct cairn_tokenizer *t, struct scratch *s)
{
    cairn_bpe_work_trim(s->bpe);
    pthread_mutex_lock(&t->lock);
    s->next = t->pool;
    t->pool = s;
    pthread_mutex_unlock(&t->lock);
}

void cairn_tokenizer_free(struct cairn_tokenizer *t)
{
    if (!t)
        return;
    while (t->pool) {
        struct scratch *s = t->pool;

        t->pool = s->next;
        scratch_destroy(s);
    }
    pthread_mutex_destroy(&t->lock);
    cairn_split_destroy(t->split);
    cairn_added_free(&t->added);
    cairn_bpe_free(&t->bpe);
    cairn_vocab_free(&t->vocab);
    free(t);
}

/* --- encode --- */

struct encoding {
    const struct cairn_tokenizer *t;
    struct scratch *s;
    const char *text;
    size_t literal_from, literal_to; /* of text */
    struct cairn_ids *out;
    struct cairn_error *err;
};

/* End of the valid UTF-8 that starts at `at` (`at` itself if there is none). */
static size_t valid_until(const char *p, size_t n, size_t at)
{
    while (at < n) {
        size_t used = 1;
        uint64_t word;

        if (at + 8 <= n) {
            memcpy(&word, p + at, 8);
            if (!(word & UINT64_C(0x8080808080808080))) {
                at += 8;
                continue;
            }
        }
        if ((unsigned char)p[at] >= 0x80 && cairn_utf8_next((const unsigned char *)p + at, n - at, &used) < 0)
            break;
        at += used;
    }
    return at;
}

static enum cairn_status encode_valid(const struct encoding *e, const char *p, size_t n)
{
    enum cairn_status st = CAIRN_OK;

    for (size_t at = 0, end; at < n; at = end) {
        TRY(cairn_split_next(e->t->split, e->s->split, p, n, at, &end, e->err));
        TRY(cairn_bpe_piece(&e->t->bpe, e->s->bpe, p + at, end - at, e->out, e->err));
    }
out:
    return st;
}

/* Below U+0300 nothing composes, so text whose bytes are all below 0xcc (the first byte of U+0300) is NFC. */
static int may_compose(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] >= 0xcc)
            return 1;
    return 0;
}

static enum cairn_status encode_nfc(const struct encoding *e, const char *p, size_t n)
{
    enum cairn_status st = CAIRN_OK;
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t m =
        utf8proc_map((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)n, &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);

    if (m == UTF8PROC_ERROR_NOMEM)
        TRY(CAIRN_NOMEM(e->err));
    if (m < 0)
        TRY(cairn_fail(e->err, CAIRN_EDATA, "NFC of the text: %s", utf8proc_errmsg(m)));
    TRY(encode_valid(e, (const char *)composed, (size_t)m));
out:
    free(composed);
    return st;
}

/* Text between added tokens. */
static enum cairn_status encode_plain(const struct encoding *e, size_t at, size_t end)
{
    enum cairn_status st = CAIRN_OK;

    while (at < end) {
        size_t stop = valid_until(e->text, end, at), used;

        if (stop > at)
            TRY(e->t->nfc && may_compose(e->text + at, stop - at) ? encode_nfc(e, e->text + at, stop - at)
                                                                  : encode_valid(e, e->text + at, stop - at));
        at = stop;
        while (stop < end && cairn_utf8_next((const unsigned char *)e->text + stop, end - stop, &used) < 0)
            stop += used;
        TRY(cairn_bpe_piece(&e->t->bpe, e->s->bpe, e->text + at, stop - at, e->out, e->err));
        at = stop;
    }
out:
    return st;
}

/* Next added token of the set in text[at..end), outside of the literal bytes. */
static int next_added(const struct encoding *e, int set, size_t at, size_t end, struct cairn_added_match *m)
{
    if (at < e->literal_from) {
        if (cairn_added_next(&e->t->added, set, e->text, end < e->literal_from ? end : e->literal_from, at, m))
            return 1;
    }
    if (at < e->literal_to)
        at = e->literal_to;
    return at < end && cairn_added_next(&e->t->added, set, e->text, end, at, m);
}

/* Text [at, end): added tokens of this set, and what lies between through the next set, then as plain text. */
static enum cairn_status encode_range(const struct encoding *e, int set, size_t at, size_t end)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_added_match m;

    if (set == 2)
        return encode_plain(e, at, end);
    while (at < end && next_added(e, set, at, end, &m)) {
        TRY(encode_range(e, set + 1, at, m.from));
        if (!cairn_ids_push(e->out, m.id))
            TRY(CAIRN_NOMEM(e->err));
        at = m.to;
    }
    TRY(encode_range(e, set + 1, at, end));
out:
    return st;
}

enum cairn_status cairn_tokenizer_encode(struct cairn_tokenizer *t, const char *text, size_t n,
                                         const struct cairn_encode_opts *opts, struct cairn_ids *out, struct cairn_error *err)
{
    struct encoding e = {.t = t, .text = text, .out = out, .err = err};
    int64_t before = out->n;
    enum cairn_status st;

    if (!t->split)
        return CAIRN_BUG(err, "a tokenizer that was loaded to decode only");
    if (n > INT32_MAX)
        return cairn_fail(err, CAIRN_EDATA, "a text of %zu bytes is longer than 2 GiB", n);
    if (opts && (opts->literal_from > opts->literal_to || opts->literal_to > n))
        return CAIRN_BUG(err, "literal bytes outside of the text");
    if (opts && opts->literal_from < opts->literal_to) {
        e.literal_from = opts->literal_from;
        e.literal_to = opts->literal_to;
    }
    if (!(e.s = scratch_take(t)))
        return CAIRN_NOMEM(err);
    st = encode_range(&e, 0, 0, n);
    scratch_give(t, e.s);
    if (st != CAIRN_OK)
        out->n = before;
    return st;
}

/* --- decode --- */

enum cairn_status cairn_tokenizer_decode(const struct cairn_tokenizer *t, const int32_t *ids, int64_t n,
                                         const struct cairn_decode_opts *opts, struct cairn_str *out, struct cairn_error *err)
{
    const struct cairn_vocab *v = &t->vocab;
    size_t before = out->len;

    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= v->size || !v->entry[ids[i]].len) {
            if (out->p) {
                out->len = before;
                out->p[before] = 0;
            }
            return cairn_fail(err, CAIRN_EDATA, "id %d at index %lld is not in the vocabulary (%d ids)", (int)ids[i], (long long)i,
                              (int)v->size);
        }
        if (!(opts && opts->skip_special && (v->entry[ids[i]].flags & CAIRN_TOKEN_SPECIAL)))
            cairn_str_add(out, cairn_vocab_bytes(v, ids[i]), v->entry[ids[i]].len);
    }
    return out->oom ? CAIRN_NOMEM(err) : CAIRN_OK;
}

/* --- the vocabulary --- */

int32_t cairn_tokenizer_vocab_size(const struct cairn_tokenizer *t)
{
    return t->vocab.size;
}

int32_t cairn_tokenizer_token_id(const struct cairn_tokenizer *t, const char *name)
{
    size_t n = strlen(name);
    int32_t id = cairn_added_find(&t->added, name, n);

    return id >= 0 ? id : cairn_vocab_find(&t->vocab, name, n, cairn_vocab_hash(name, n));
}

const char *cairn_tokenizer_token_bytes(const struct cairn_tokenizer *t, int32_t id, size_t *len)
{
    if (id < 0 || id >= t->vocab.size || !t->vocab.entry[id].len)
        return NULL;
    *len = t->vocab.entry[id].len;
    return cairn_vocab_bytes(&t->vocab, id);
}

static int has_flag(const struct cairn_tokenizer *t, int32_t id, unsigned flag)
{
    return id >= 0 && id < t->vocab.size && (t->vocab.entry[id].flags & flag) != 0;
}

int cairn_tokenizer_is_added(const struct cairn_tokenizer *t, int32_t id)
{
    return has_flag(t, id, CAIRN_TOKEN_ADDED);
}

int cairn_tokenizer_is_special(const struct cairn_tokenizer *t, int32_t id)
{
    return has_flag(t, id, CAIRN_TOKEN_SPECIAL);
}
