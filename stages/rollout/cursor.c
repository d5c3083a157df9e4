/* cursor.c - counting draws; permutations made when their pass begins (cursor.h). */
#include "stages/rollout/cursor.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/philox.h"

#define DRAW_STEP 0xffffffffu /* Philox: draws of files; passes count from 0 and never get here */

struct file {
    int64_t rows, taken;
    double weight;
    int64_t *order; /* (rows) of pass `pass`; NULL: not made yet */
    int64_t pass;
};

struct cairn_cursor {
    struct file *file;
    int n;
    uint64_t seed;
    int shuffle;
    double weights; /* sum */
    int64_t drawn;  /* sum of taken */
    int64_t *front; /* stack: the last one is next */
    int64_t fronts, room;
};

void cairn_cursor_destroy(struct cairn_cursor *c)
{
    if (!c)
        return;
    for (int i = 0; c->file && i < c->n; i++)
        free(c->file[i].order);
    free(c->file);
    free(c->front);
    free(c);
}

enum cairn_status cairn_cursor_create(struct cairn_cursor **out, const struct cairn_cursor_file *file, int n, uint64_t seed, int shuffle,
                                      struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_cursor *c;

    if (n < 1)
        return CAIRN_BUG(err, "a cursor over no files");
    c = calloc(1, sizeof *c);
    if (!c)
        return CAIRN_NOMEM(err);
    c->n = n;
    c->seed = seed;
    c->shuffle = shuffle;
    c->file = calloc((size_t)n, sizeof *c->file);
    if (!c->file)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < n; i++) {
        if (file[i].rows < 1 || file[i].rows > UINT32_MAX || !(file[i].weight > 0))
            TRY(CAIRN_BUG(err, "a cursor over a file without rows or weight"));
        c->file[i] = (struct file){.rows = file[i].rows, .weight = file[i].weight};
        c->weights += file[i].weight;
    }
    *out = c;
    c = NULL;
out:
    cairn_cursor_destroy(c);
    return st;
}

static int id_ok(const struct cairn_cursor *c, int64_t id)
{
    return id >= 0 && id >> 32 < c->n && (id & 0xffffffff) < c->file[id >> 32].rows;
}

enum cairn_status cairn_cursor_set(struct cairn_cursor *c, const json_t *v, const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    json_t *taken, *front;
    int64_t drawn = 0, *ids = NULL;
    size_t n;

    TRY(cairn_json_array(v, "taken", &taken, where, err));
    TRY(cairn_json_array(v, "front", &front, where, err));
    if (json_array_size(taken) > (size_t)c->n)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: cursor over %zu prompt files, the recipe has %d", where, json_array_size(taken), c->n));
    for (size_t i = 0; i < json_array_size(taken); i++) {
        const json_t *t = json_array_get(taken, i);

        if (!json_is_integer(t) || json_integer_value(t) < 0 || !cairn_add_i64(drawn, json_integer_value(t), &drawn))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: cursor: taken[%zu] is no count", where, i));
    }
    n = json_array_size(front);
    ids = malloc((n + 1) * sizeof *ids);
    if (!ids)
        TRY(CAIRN_NOMEM(err));
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_array_get(front, n - 1 - i);

        if (!json_is_integer(t) || !id_ok(c, json_integer_value(t)))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: cursor: front[%zu] is no prompt of these files", where, n - 1 - i));
        ids[i] = json_integer_value(t);
    }
    for (int i = 0; i < c->n; i++)
        c->file[i].taken = json_integer_value(json_array_get(taken, (size_t)i)); /* 0 beyond the array */
    free(c->front);
    c->front = ids;
    ids = NULL;
    c->fronts = (int64_t)n;
    c->room = (int64_t)n + 1;
    c->drawn = drawn;
out:
    free(ids);
    return st;
}

json_t *cairn_cursor_json(const struct cairn_cursor *c)
{
    json_t *taken = json_array(), *front = json_array();
    int bad = !taken || !front;

    for (int i = 0; !bad && i < c->n; i++)
        bad = json_array_append_new(taken, json_integer(c->file[i].taken));
    for (int64_t i = c->fronts - 1; !bad && i >= 0; i--)
        bad = json_array_append_new(front, json_integer(c->front[i]));
    if (bad) {
        json_decref(taken);
        json_decref(front);
        return NULL;
    }
    return json_pack("{s:o, s:o}", "taken", taken, "front", front);
}

/* The file of draw number `drawn`. */
static int file_draw(const struct cairn_cursor *c)
{
    const struct cairn_philox_key key = {c->seed, CAIRN_PURPOSE_DATA, DRAW_STEP};
    double u, sum = 0;
    uint32_t w[4];

    if (c->n == 1)
        return 0;
    cairn_philox(&key, (uint32_t)c->drawn, (uint32_t)((uint64_t)c->drawn >> 32), 0, w);
    u = ((double)(w[0] >> 5) * 0x1p26 + (double)(w[1] >> 6)) * 0x1p-53 * c->weights;
    for (int i = 0; i < c->n - 1; i++)
        if (u < (sum += c->file[i].weight))
            return i;
    return c->n - 1;
}

static enum cairn_status order_make(const struct cairn_cursor *c, int f, int64_t pass, struct cairn_error *err)
{
    const struct cairn_philox_key key = {c->seed ^ (uint64_t)f * 0x9e3779b97f4a7c15u, CAIRN_PURPOSE_DATA, (uint32_t)pass};
    struct file *file = &c->file[f];

    if (file->order && file->pass == pass)
        return CAIRN_OK;
    if (!file->order && !(file->order = malloc((size_t)file->rows * sizeof *file->order)))
        return CAIRN_NOMEM(err);
    cairn_philox_permutation(&key, file->rows, file->order);
    file->pass = pass;
    return CAIRN_OK;
}

enum cairn_status cairn_cursor_next(struct cairn_cursor *c, int64_t *prompt_id, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct file *file;
    int64_t row;
    int f;

    if (c->fronts) {
        *prompt_id = c->front[--c->fronts];
        return CAIRN_OK;
    }
    f = file_draw(c);
    file = &c->file[f];
    if (file->taken / file->rows >= DRAW_STEP)
        TRY(CAIRN_BUG(err, "a prompt file was gone through 2^32 times"));
    row = file->taken % file->rows;
    if (c->shuffle) {
        TRY(order_make(c, f, file->taken / file->rows, err));
        row = file->order[row];
    }
    file->taken++;
    c->drawn++;
    *prompt_id = cairn_prompt_id(f, row);
out:
    return st;
}

enum cairn_status cairn_cursor_return(struct cairn_cursor *c, const int64_t *id, int64_t n, struct cairn_error *err)
{
    if (c->fronts + n > c->room) {
        int64_t room = c->fronts + n, *p = realloc(c->front, (size_t)room * sizeof *p);

        if (!p)
            return CAIRN_NOMEM(err);
        c->front = p;
        c->room = room;
    }
    for (int64_t i = n - 1; i >= 0; i--)
        c->front[c->fronts++] = id[i];
    return CAIRN_OK;
}
