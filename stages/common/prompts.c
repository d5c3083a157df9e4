/* prompts.c - reads prompt files (prompts.h). */
#include "stages/common/prompts.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

static char *copy(struct cairn_prompts *p, const char *s, size_t n)
{
    char *z = cairn_arena_alloc(p->arena, n + 1);

    if (z) {
        memcpy(z, s, n);
        z[n] = 0;
    }
    return z;
}

static enum cairn_status row_read(struct cairn_prompts *p, struct cairn_prompt *row, const json_t *v, const char *where, struct cairn_error *err)
{
    const json_t *id = json_object_get(v, "id"), *answer = json_object_get(v, "answer");
    enum cairn_status st = CAIRN_OK;
    const char *prompt;

    TRY(cairn_json_string(v, "prompt", &prompt, where, err));
    row->prompt_bytes = json_string_length(json_object_get(v, "prompt"));
    row->prompt = copy(p, prompt, row->prompt_bytes);
    if (json_is_string(answer)) {
        row->answer_bytes = json_string_length(answer);
        row->answer = copy(p, json_string_value(answer), row->answer_bytes);
    } else if (json_is_integer(answer)) {
        row->answer = cairn_arena_printf(p->arena, "%lld", (long long)json_integer_value(answer));
        row->answer_bytes = row->answer ? strlen(row->answer) : 0;
    } else {
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"answer\": expected a string or an integer", where));
    }
    row->id = json_is_string(id)    ? copy(p, json_string_value(id), json_string_length(id))
              : json_is_integer(id) ? cairn_arena_printf(p->arena, "%lld", (long long)json_integer_value(id))
                                    : cairn_arena_printf(p->arena, "%lld", (long long)p->n);
    if (!row->prompt || !row->answer || !row->id)
        TRY(CAIRN_NOMEM(err));
out:
    return st;
}

enum cairn_status cairn_prompts_load(struct cairn_prompts *p, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_jsonl *file = NULL;
    const json_t *v;
    int64_t cap = 0;

    *p = (struct cairn_prompts){.path = strdup(path), .arena = cairn_arena_create()};
    if (!p->path || !p->arena)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_jsonl_open(&file, path, err));
    while ((st = cairn_jsonl_next(file, &v, err)) == CAIRN_OK && v) {
        if (p->n == cap) {
            struct cairn_prompt *row = realloc(p->row, (size_t)(cap = cap ? 2 * cap : 1024) * sizeof *row);

            if (!row)
                TRY(CAIRN_NOMEM(err));
            p->row = row;
        }
        memset(&p->row[p->n], 0, sizeof *p->row);
        TRY(row_read(p, &p->row[p->n], v, cairn_jsonl_where(file), err));
        p->n++;
    }
    TRY(st);
    if (!p->n)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: no prompt in it", path));
out:
    cairn_jsonl_close(file);
    if (st != CAIRN_OK)
        cairn_prompts_free(p);
    return st;
}

void cairn_prompts_free(struct cairn_prompts *p)
{
    free(p->row);
    free(p->path);
    cairn_arena_destroy(p->arena);
    memset(p, 0, sizeof *p);
}

enum cairn_status cairn_prompts_of(const struct cairn_run *r, const struct cairn_link *l, struct cairn_prompts **files, int *n,
                                   struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_prompts *p = NULL;
    char **keys = NULL;
    int nkeys = 0, k = 0;

    TRY(cairn_link_outside(r, l, &keys, &nkeys, err));
    p = calloc((size_t)nkeys + 1, sizeof *p);
    if (!p)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < nkeys; i++) {
        char *path = NULL;

        if (!cairn_starts_with(keys[i], "data."))
            continue;
        TRY(cairn_run_outside(r, keys[i], &path, err));
        st = cairn_prompts_load(&p[k], path, err);
        free(path);
        TRY(st);
        k++;
    }
    *files = p;
    *n = k;
    p = NULL;
out:
    cairn_prompts_list_free(p, k);
    cairn_strings_free(keys, nkeys);
    return st;
}

void cairn_prompts_list_free(struct cairn_prompts *files, int n)
{
    for (int i = 0; files && i < n; i++)
        cairn_prompts_free(&files[i]);
    free(files);
}

const struct cairn_prompt *cairn_prompts_find(const struct cairn_prompts *files, int n, int64_t prompt_id)
{
    int64_t file = prompt_id >> 32, row = prompt_id & 0xffffffff;

    return prompt_id >= 0 && file < n && row < files[file].n ? &files[file].row[row] : NULL;
}
