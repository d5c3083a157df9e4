/* yaml.c - libyaml's events to nodes. Recursion is bounded by CAIRN_YAML_DEPTH_MAX, checked before each descent. */
#include "recipe/yaml.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/str.h"

struct anchor {
    char *name;
    const struct cairn_yaml_node *node;
};

struct reader {
    yaml_parser_t parser;
    struct cairn_arena *arena;
    struct cairn_yaml_place start;
    const char *text;
    size_t n, nodes;
    struct anchor *anchor;
    size_t n_anchors, cap_anchors;
    struct cairn_error *err;
};

static struct cairn_yaml_place place(const struct reader *r, yaml_mark_t mark)
{
    struct cairn_yaml_place at = r->start;

    at.line += (int)mark.line;
    at.col = mark.line == 0 ? at.col + (int)mark.column : (int)mark.column + 1;
    return at;
}

/* Every code point before libyaml sees them: what YAML forbids, with a place. */
static enum cairn_status scan(const struct reader *r)
{
    const unsigned char *p = (const unsigned char *)r->text;
    yaml_mark_t mark = {0, 0, 0};
    size_t used;

    for (size_t i = 0; i < r->n; i += used) {
        int32_t c = cairn_utf8_next(p + i, r->n - i, &used);

        if (c < 0)
            return cairn_yaml_place_fail(r->err, place(r, mark), "byte 0x%02x is not UTF-8", p[i]);
        if (c == 0)
            return cairn_yaml_place_fail(r->err, place(r, mark), "a NUL byte");
        if (c == 0xfeff && i == 0)
            return cairn_yaml_place_fail(r->err, place(r, mark), "a byte order mark; save the file as UTF-8 without it");
        if ((c < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7f || (c >= 0x80 && c < 0xa0 && c != 0x85) || c == 0xfffe ||
            c == 0xffff)
            return cairn_yaml_place_fail(r->err, place(r, mark),
                                         "the control character U+%04X; write it as an escape in double quotes", (unsigned)c);
        mark.column++;
        if (c == '\n' || (c == '\r' && !(i + 1 < r->n && p[i + 1] == '\n'))) {
            mark.line++;
            mark.column = 0;
        }
    }
    return CAIRN_OK;
}

/* The byte at a mark of libyaml, 0 beyond the end. */
static int byte_at(const struct reader *r, yaml_mark_t mark)
{
    const unsigned char *p = (const unsigned char *)r->text;
    size_t used, i = 0;

    for (size_t k = 0; k < mark.index && i < r->n; k++, i += used)
        cairn_utf8_next(p + i, r->n - i, &used);
    return i < r->n ? p[i] : 0;
}

static enum cairn_status next(struct reader *r, yaml_event_t *event)
{
    const yaml_parser_t *p = &r->parser;

    if (yaml_parser_parse(&r->parser, event))
        return CAIRN_OK;
    if (p->error == YAML_MEMORY_ERROR)
        return CAIRN_NOMEM(r->err);
    if (p->error == YAML_SCANNER_ERROR && byte_at(r, p->problem_mark) == '\t')
        return cairn_yaml_place_fail(r->err, place(r, p->problem_mark), "a tab where indentation belongs; use blanks");
    if (p->context)
        return cairn_yaml_place_fail(r->err, place(r, p->problem_mark), "%s (%s)", p->problem, p->context);
    return cairn_yaml_place_fail(r->err, place(r, p->problem_mark), "%s", p->problem ? p->problem : "not YAML");
}

static enum cairn_status count(struct reader *r, size_t more, struct cairn_yaml_place at)
{
    if (more > CAIRN_YAML_NODES_MAX || r->nodes + more > CAIRN_YAML_NODES_MAX)
        return cairn_yaml_place_fail(r->err, at, "more than %d values (aliases counted where they are used)", CAIRN_YAML_NODES_MAX);
    r->nodes += more;
    return CAIRN_OK;
}

static enum cairn_status remember(struct reader *r, const yaml_char_t *name, const struct cairn_yaml_node *node)
{
    if (r->n_anchors == r->cap_anchors) {
        size_t cap = r->cap_anchors ? 2 * r->cap_anchors : 16;
        struct anchor *more = realloc(r->anchor, cap * sizeof *more);

        if (!more)
            return CAIRN_NOMEM(r->err);
        r->anchor = more;
        r->cap_anchors = cap;
    }
    r->anchor[r->n_anchors].name = cairn_arena_strdup(r->arena, (const char *)name);
    if (!r->anchor[r->n_anchors].name)
        return CAIRN_NOMEM(r->err);
    r->anchor[r->n_anchors++].node = node;
    return CAIRN_OK;
}

static enum cairn_status read_node(struct reader *r, yaml_event_t *event, int depth, const struct cairn_yaml_node **out);

static enum cairn_status read_scalar(struct reader *r, const yaml_event_t *event, const struct cairn_yaml_node **out)
{
    struct cairn_yaml_place at = place(r, event->start_mark);
    struct cairn_yaml_node *node;

    if (event->data.scalar.length > CAIRN_YAML_SCALAR_MAX)
        return cairn_yaml_place_fail(r->err, at, "a scalar of %zu bytes; at most %d", event->data.scalar.length,
                                     CAIRN_YAML_SCALAR_MAX);
    if (memchr(event->data.scalar.value, 0, event->data.scalar.length))
        return cairn_yaml_place_fail(r->err, at, "a string with a NUL in it");
    node = cairn_yaml_node_create(r->arena, CAIRN_YAML_NODE_SCALAR, at, 0);
    if (!node)
        return CAIRN_NOMEM(r->err);
    node->text = cairn_arena_strdup(r->arena, (const char *)event->data.scalar.value);
    if (!node->text)
        return CAIRN_NOMEM(r->err);
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    *out = node;
    return CAIRN_OK;
}

static enum cairn_status read_alias(struct reader *r, const yaml_event_t *event, int depth, const struct cairn_yaml_node **out)
{
    const char *name = (const char *)event->data.alias.anchor;
    struct cairn_yaml_place at = place(r, event->start_mark);

    for (size_t i = r->n_anchors; i-- > 0;)
        if (strcmp(r->anchor[i].name, name) == 0) {
            const struct cairn_yaml_node *node = r->anchor[i].node;

            if (depth + node->depth - 1 > CAIRN_YAML_DEPTH_MAX)
                return cairn_yaml_place_fail(r->err, at, "*%s: more than %d levels", name, CAIRN_YAML_DEPTH_MAX);
            *out = node;
            return count(r, node->size, at);
        }
    return cairn_yaml_place_fail(r->err, at, "*%s: no such anchor before this place", name);
}

/* A list's or map's parts until its end event. Parts are gathered in growing host arrays, then copied into the node. */
static enum cairn_status read_parts(struct reader *r, const yaml_event_t *begin, int depth, struct cairn_yaml_node **out)
{
    int is_map = begin->type == YAML_MAPPING_START_EVENT, n = 0, cap = 0, have = 0;
    struct cairn_yaml_place *key_at = NULL;
    const char **key = NULL;
    const struct cairn_yaml_node **item = NULL;
    struct cairn_yaml_node *node;
    yaml_event_t event;
    enum cairn_status st;

    for (;;) {
        TRY(next(r, &event));
        have = 1;
        if (event.type == (is_map ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT))
            break;
        if (n == cap) {
            void *more;

            cap = cap ? 2 * cap : 8;
            if ((more = realloc(item, (size_t)cap * sizeof *item)))
                item = more;
            if (more && (more = realloc(key, (size_t)cap * sizeof *key)))
                key = more;
            if (more && (more = realloc(key_at, (size_t)cap * sizeof *key_at)))
                key_at = more;
            if (!more)
                TRY(CAIRN_NOMEM(r->err));
        }
        if (is_map) {
            const char *name;

            key_at[n] = place(r, event.start_mark);
            if (n == CAIRN_YAML_KEYS_MAX)
                TRY(cairn_yaml_place_fail(r->err, key_at[n], "more than %d keys in one map", CAIRN_YAML_KEYS_MAX));
            if (event.type != YAML_SCALAR_EVENT || event.data.scalar.tag)
                TRY(cairn_yaml_place_fail(r->err, key_at[n], "a key must be a plain word"));
            name = (const char *)event.data.scalar.value;
            if (event.data.scalar.length == 0 || event.data.scalar.length > CAIRN_YAML_KEY_BYTES_MAX ||
                memchr(name, 0, event.data.scalar.length))
                TRY(cairn_yaml_place_fail(r->err, key_at[n], "a key has 1 to %d bytes, none of them NUL; this one has %zu",
                                          CAIRN_YAML_KEY_BYTES_MAX, event.data.scalar.length));
            if (strcmp(name, "<<") == 0 && event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
                TRY(cairn_yaml_place_fail(r->err, key_at[n], "merge keys (<<) are not supported; use inherit"));
            for (int i = 0; i < n; i++)
                if (strcmp(key[i], name) == 0)
                    TRY(cairn_yaml_place_fail(r->err, key_at[n], "key \"%s\" is given twice, first at line %d", name,
                                              key_at[i].line));
            key[n] = cairn_arena_strdup(r->arena, name);
            if (!key[n])
                TRY(CAIRN_NOMEM(r->err));
            yaml_event_delete(&event);
            have = 0;
            TRY(next(r, &event));
            have = 1;
        }
        TRY(read_node(r, &event, depth + 1, &item[n]));
        n++;
        yaml_event_delete(&event);
        have = 0;
    }

    node = cairn_yaml_node_create(r->arena, is_map ? CAIRN_YAML_NODE_MAP : CAIRN_YAML_NODE_LIST, place(r, begin->start_mark), n);
    if (!node)
        TRY(CAIRN_NOMEM(r->err));
    for (int i = 0; i < n; i++) {
        node->item[i] = item[i];
        if (is_map) {
            node->key[i] = key[i];
            node->key_at[i] = key_at[i];
        }
        node->size += item[i]->size; /* bounded by the count of nodes, aliases included */
        if (item[i]->depth >= node->depth)
            node->depth = item[i]->depth + 1;
    }
    node->n = n;
    *out = node;
    st = CAIRN_OK;
out:
    if (have)
        yaml_event_delete(&event);
    free(key_at);
    free(key);
    free(item);
    return st;
}

/* The node that starts with event (which stays the caller's). */
static enum cairn_status read_node(struct reader *r, yaml_event_t *event, int depth, const struct cairn_yaml_node **out)
{
    struct cairn_yaml_place at = place(r, event->start_mark);
    const yaml_char_t *anchor = NULL, *tag = NULL;
    struct cairn_yaml_node *parts = NULL;
    enum cairn_status st = CAIRN_OK;

    if (depth > CAIRN_YAML_DEPTH_MAX)
        return cairn_yaml_place_fail(r->err, at, "more than %d levels", CAIRN_YAML_DEPTH_MAX);
    if (event->type == YAML_ALIAS_EVENT)
        return read_alias(r, event, depth, out);
    TRY(count(r, 1, at));
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    } else {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    }
    if (tag)
        TRY(cairn_yaml_place_fail(r->err, at, "the tag %s: tags are not supported", (const char *)tag));
    if (event->type == YAML_SCALAR_EVENT) {
        TRY(read_scalar(r, event, out));
    } else {
        TRY(read_parts(r, event, depth, &parts));
        *out = parts;
    }
    if (anchor)
        TRY(remember(r, anchor, *out));
out:
    return st;
}

static enum cairn_status read_document(struct reader *r, int map, const struct cairn_yaml_node **out)
{
    struct cairn_yaml_place at = r->start;
    enum cairn_status st;
    yaml_event_t event;
    int have = 0;

    do { /* STREAM-START, then DOCUMENT-START or STREAM-END */
        if (have)
            yaml_event_delete(&event);
        have = 0;
        TRY(next(r, &event));
        have = 1;
    } while (event.type == YAML_STREAM_START_EVENT);
    if (event.type == YAML_STREAM_END_EVENT) {
        *out = cairn_yaml_node_create(r->arena, map ? CAIRN_YAML_NODE_MAP : CAIRN_YAML_NODE_SCALAR, at, 0);
        st = *out ? CAIRN_OK : CAIRN_NOMEM(r->err);
        goto out;
    }
    yaml_event_delete(&event);
    have = 0;
    TRY(next(r, &event));
    have = 1;
    if (map && event.type != YAML_MAPPING_START_EVENT)
        TRY(cairn_yaml_place_fail(r->err, place(r, event.start_mark), "expected a map of keys (\"run:\", \"model:\", ...)"));
    TRY(read_node(r, &event, 1, out));
    yaml_event_delete(&event);
    have = 0;
    TRY(next(r, &event)); /* DOCUMENT-END */
    yaml_event_delete(&event);
    TRY(next(r, &event));
    have = 1;
    if (event.type != YAML_STREAM_END_EVENT)
        TRY(cairn_yaml_place_fail(r->err, place(r, event.start_mark), "a second document; a recipe is one"));
out:
    if (have)
        yaml_event_delete(&event);
    return st;
}

enum cairn_status cairn_yaml_parse(struct cairn_arena *a, const char *text, size_t n, struct cairn_yaml_place start, int map,
                                   const struct cairn_yaml_node **out, struct cairn_error *err)
{
    struct reader r = {.arena = a, .start = start, .text = text, .n = n, .err = err};
    const struct cairn_yaml_node *top = NULL;
    enum cairn_status st;

    if (n > CAIRN_YAML_TEXT_MAX)
        return cairn_yaml_place_fail(err, start, "%zu bytes; a recipe has at most %d", n, CAIRN_YAML_TEXT_MAX);
    TRY(scan(&r));
    if (!yaml_parser_initialize(&r.parser))
        return CAIRN_NOMEM(err);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, n);
    st = read_document(&r, map, &top);
    yaml_parser_delete(&r.parser);
    if (st == CAIRN_OK)
        *out = top;
out:
    free(r.anchor);
    return st;
}
