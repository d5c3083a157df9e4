/* id_lines.c - reading token sequences line by line (id_lines.h). */
#include "tools/id_lines.h"

#include <stdlib.h>

struct cairn_id_lines {
    struct cairn_jsonl *file;
    const struct cairn_model_config *c;
    int64_t more;
    struct cairn_id_line held; /* read, but too large for the last lot */
    struct cairn_error bad;    /* code CAIRN_OK: none */
    int end;
};

enum cairn_status cairn_id_lines_open(struct cairn_id_lines **out, const char *path, const struct cairn_model_config *c, int64_t more,
                                      struct cairn_error *err)
{
    struct cairn_id_lines *l = calloc(1, sizeof *l);
    enum cairn_status st = l ? cairn_jsonl_open(&l->file, path, err) : CAIRN_NOMEM(err);

    if (st != CAIRN_OK) {
        free(l);
        return st;
    }
    l->c = c;
    l->more = more;
    *out = l;
    return CAIRN_OK;
}

void cairn_id_lines_close(struct cairn_id_lines *l)
{
    if (!l)
        return;
    cairn_ids_free(&l->held.ids);
    cairn_jsonl_close(l->file);
    free(l);
}

static enum cairn_status ids_read(struct cairn_id_lines *l, const json_t *row, struct cairn_ids *ids, struct cairn_error *err)
{
    const json_t *list = json_object_get(row, "ids"), *v;
    const char *where = cairn_jsonl_where(l->file);
    size_t i;

    if (!json_is_array(list))
        return cairn_fail(err, CAIRN_EDATA, "%s: expected {\"ids\": [integers]}", where);
    if (!json_array_size(list))
        return cairn_fail(err, CAIRN_EDATA, "%s: no ids", where);
    json_array_foreach(list, i, v)
    {
        if (!json_is_integer(v))
            return cairn_fail(err, CAIRN_EDATA, "%s: ids[%zu]: expected an integer", where, i);
        if (json_integer_value(v) < 0 || json_integer_value(v) >= l->c->vocab)
            return cairn_fail(err, CAIRN_EDATA, "%s: ids[%zu]: %lld is outside the vocabulary of %lld", where, i,
                              (long long)json_integer_value(v), (long long)l->c->vocab);
        if (cairn_config_placeholder(l->c, json_integer_value(v)))
            return cairn_fail(err, CAIRN_EDATA, "%s: ids[%zu]: %lld stands for an image or a video; only text is supported", where, i,
                              (long long)json_integer_value(v));
        if (!cairn_ids_push(ids, (int32_t)json_integer_value(v)))
            return CAIRN_NOMEM(err);
    }
    if (ids->n > l->c->max_positions || l->more > l->c->max_positions - ids->n)
        return cairn_fail(err, CAIRN_EDATA, "%s: %lld ids and %lld more do not fit the model's %lld positions", where, (long long)ids->n,
                          (long long)l->more, (long long)l->c->max_positions);
    return CAIRN_OK;
}

/* One line into l->held; ids.n = 0 at the end. */
static enum cairn_status hold(struct cairn_id_lines *l, struct cairn_error *err)
{
    const json_t *row;
    enum cairn_status st = cairn_jsonl_next(l->file, &row, err);

    if (st != CAIRN_OK)
        return st;
    if (!row) {
        l->end = 1;
        return CAIRN_OK;
    }
    l->held.number = cairn_jsonl_line(l->file);
    st = ids_read(l, row, &l->held.ids, err);
    if (st != CAIRN_OK)
        cairn_ids_free(&l->held.ids);
    return st;
}

enum cairn_status cairn_id_lines_next(struct cairn_id_lines *l, struct cairn_id_line *line, int lines, int64_t tokens, int *n,
                                      struct cairn_error *err)
{
    int64_t taken = 0;

    *n = 0;
    while (l->bad.code == CAIRN_OK && !l->end && *n < lines) {
        if (!l->held.ids.n && hold(l, &l->bad) != CAIRN_OK)
            break;
        if (!l->held.ids.n || (*n && l->held.ids.n > tokens - taken))
            break;
        taken += l->held.ids.n;
        line[(*n)++] = l->held;
        l->held = (struct cairn_id_line){0};
    }
    if (*n || l->bad.code == CAIRN_OK)
        return CAIRN_OK;
    return cairn_fail(err, l->bad.code, "%s", l->bad.text);
}
