/* prompts.c - reads prompt files (prompts.h). */
#include "stages/common/prompts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

static char *copy(struct cairn_arena *arena, const char *s, size_t n)
{
    char *z = cairn_arena_alloc(arena, n + 1);

    if (z) {
        memcpy(z, s, n);
        z[n] = 0;
    }
    return z;
}

struct cairn_prompt_keys cairn_prompt_keys_of(const json_t *entry)
{
    const json_t *keys = json_object_get(entry, "keys");

    if (!json_is_object(keys))
        return CAIRN_PROMPT_KEYS;
    return (struct cairn_prompt_keys){
        json_string_value(json_object_get(keys, "id")), json_string_value(json_object_get(keys, "prompt")),
        json_string_value(json_object_get(keys, "answer")), json_string_value(json_object_get(keys, "grader"))};
}

/* The member of that name; with dots, if there is none, a member of a member. */
static const json_t *member(const json_t *v, const char *name)
{
    const json_t *there = json_object_get(v, name);
    const char *dot = strchr(name, '.');

    for (; !there && dot; dot = strchr(dot + 1, '.')) {
        const json_t *inside = json_object_getn(v, name, (size_t)(dot - name));

        if (inside)
            there = member(inside, dot + 1);
    }
    return there;
}

/* ---- chats ---------------------------------------------------------------------------------------------------------- */

static enum cairn_status message_read(struct cairn_message *m, const json_t *v, struct cairn_arena *arena, const char *where,
                                      struct cairn_error *err)
{
    static const char *const roles[] = {
        [CAIRN_ROLE_SYSTEM] = "system", [CAIRN_ROLE_USER] = "user", [CAIRN_ROLE_ASSISTANT] = "assistant"};
    const json_t *content = json_object_get(v, "content");
    enum cairn_status st = CAIRN_OK;
    const char *role;

    TRY(cairn_json_string(v, "role", &role, where, err));
    for (m->role = CAIRN_ROLE_SYSTEM; m->role <= CAIRN_ROLE_ASSISTANT && strcmp(role, roles[m->role]); m->role++)
        ;
    if (m->role > CAIRN_ROLE_ASSISTANT)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: role \"%.40s\": expected system, user or assistant", where, role));
    if (!json_is_string(content))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"content\": expected a string", where));
    m->bytes = json_string_length(content);
    m->text = copy(arena, json_string_value(content), m->bytes);
    if (!m->text)
        TRY(CAIRN_NOMEM(err));
out:
    return st;
}

enum cairn_status cairn_messages_read(const json_t *v, const char *key, struct cairn_arena *arena, const struct cairn_message **m,
                                      int *n, const char *where, struct cairn_error *err)
{
    size_t count = json_is_array(v) ? json_array_size(v) : 1;
    struct cairn_message *list = cairn_arena_alloc(arena, (count + 1) * sizeof *list);
    enum cairn_status st = CAIRN_OK;
    char place[4400];

    if (!list)
        TRY(CAIRN_NOMEM(err));
    if (!json_is_string(v) && (!json_is_array(v) || !count || count > 10000))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\": expected a string, or a list of {\"role\", \"content\"}", where, key));
    if (json_is_string(v)) {
        list[0] = (struct cairn_message){CAIRN_ROLE_USER, copy(arena, json_string_value(v), json_string_length(v)),
                                         json_string_length(v)};
        if (!list[0].text)
            TRY(CAIRN_NOMEM(err));
    }
    for (size_t i = 0; json_is_array(v) && i < count; i++) {
        snprintf(place, sizeof place, "%s: message %zu", where, i);
        TRY(message_read(&list[i], json_array_get(v, i), arena, place, err));
    }
    if (list[count - 1].role != CAIRN_ROLE_USER)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: the last message of the chat is not a user's: there is nothing to answer", where));
    *m = list;
    *n = (int)count;
out:
    return st;
}

/* ---- rows ----------------------------------------------------------------------------------------------------------- */

/* A chat's text is its JSON. */
static enum cairn_status prompt_read(struct cairn_prompts *p, struct cairn_prompt *row, const json_t *v, const char *key,
                                     const char *where, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_str text = {0};

    TRY(cairn_messages_read(v, key, p->arena, &row->message, &row->messages, where, err));
    if (json_is_string(v)) {
        row->prompt = row->message[0].text;
        row->prompt_bytes = row->message[0].bytes;
        row->messages = 0;
        goto out;
    }
    cairn_json_canonical(&text, v);
    row->prompt_bytes = text.len;
    row->prompt = text.oom ? NULL : copy(p->arena, cairn_str_z(&text), text.len);
    if (!row->prompt)
        TRY(CAIRN_NOMEM(err));
out:
    cairn_str_free(&text);
    return st;
}

static enum cairn_status row_read(struct cairn_prompts *p, struct cairn_prompt *row, const json_t *v,
                                  const struct cairn_prompt_keys *keys, const char *where, struct cairn_error *err)
{
    const json_t *id = member(v, keys->id), *answer = member(v, keys->answer),
                 *grader = keys->grader ? member(v, keys->grader) : NULL;
    enum cairn_status st = CAIRN_OK;

    if (!json_is_object(v))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: expected an object", where));
    TRY(prompt_read(p, row, member(v, keys->prompt), keys->prompt, where, err));
    if (grader && !json_is_null(grader)) {
        if (!json_is_string(grader))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\": expected a string", where, keys->grader));
        row->grader = copy(p->arena, json_string_value(grader), json_string_length(grader));
        if (!row->grader)
            TRY(CAIRN_NOMEM(err));
    }
    if (json_is_string(answer)) {
        row->answer_bytes = json_string_length(answer);
        row->answer = copy(p->arena, json_string_value(answer), row->answer_bytes);
    } else if (json_is_integer(answer)) {
        row->answer = cairn_arena_printf(p->arena, "%lld", (long long)json_integer_value(answer));
        row->answer_bytes = row->answer ? strlen(row->answer) : 0;
    } else {
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\": expected a string or an integer", where, keys->answer));
    }
    row->id = json_is_string(id)    ? copy(p->arena, json_string_value(id), json_string_length(id))
              : json_is_integer(id) ? cairn_arena_printf(p->arena, "%lld", (long long)json_integer_value(id))
                                    : cairn_arena_printf(p->arena, "%lld", (long long)p->n);
    if (!row->answer || !row->id)
        TRY(CAIRN_NOMEM(err));
out:
    return st;
}

enum cairn_status cairn_prompts_load(struct cairn_prompts *p, const char *path, const struct cairn_prompt_keys *keys,
                                     struct cairn_error *err)
{
    const struct cairn_prompt_keys usual = CAIRN_PROMPT_KEYS;
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
        TRY(row_read(p, &p->row[p->n], v, keys ? keys : &usual, cairn_jsonl_where(file), err));
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

struct named {
    const char *id;
    int64_t row;
};

static int by_id(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    int c = strcmp(x->id, y->id);

    return c ? c : x->row < y->row ? -1 : x->row > y->row;
}

enum cairn_status cairn_prompts_unique(const struct cairn_prompts *p, int64_t n, struct cairn_error *err)
{
    struct named *list = calloc((size_t)n + 1, sizeof *list);
    int64_t first = -1, second = -1;
    enum cairn_status st = CAIRN_OK;

    if (!list)
        return CAIRN_NOMEM(err);
    for (int64_t i = 0; i < n; i++)
        list[i] = (struct named){p->row[i].id, i};
    qsort(list, (size_t)n, sizeof *list, by_id);
    for (int64_t i = 1; i < n; i++)
        if (!strcmp(list[i - 1].id, list[i].id) && (second < 0 || list[i].row < second)) {
            first = list[i - 1].row;
            second = list[i].row;
        }
    if (second >= 0)
        st = cairn_fail(err, CAIRN_EDATA, "%s:%lld: id \"%.60s\" is that of line %lld, too: give every row an id of its own, or no row one", p->path,
                        (long long)second + 1, p->row[second].id, (long long)first + 1);
    free(list);
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
        struct cairn_prompt_keys names;
        char *path = NULL;

        if (!cairn_starts_with(keys[i], "data."))
            continue;
        names = cairn_prompt_keys_of(cairn_recipe_get(r->recipe, keys[i]));
        TRY(cairn_run_outside(r, keys[i], &path, err));
        st = cairn_prompts_load(&p[k], path, &names, err);
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
