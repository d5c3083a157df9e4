/* template.c - chat templates by name, as template.h says. One table holds them. */
#include "text/template.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* Role tokens before and after the inside; lists end with NULL. */
static const struct chat {
    const char *name;
    const char *before[4], *thinking[3], *silent[4]; /* silent[0] NULL: thinking cannot be off */
    const char *past[3], *last_past[3];              /* behind <|assistant|> of earlier turns, and of the last of those */
    const char *efforts[4];                          /* that may be asked for, weakest first; the last is the default */
    const char *stop[4];
} chats[] = {
    {"glm5",
     {"[gMASK]", "<sop>"},
     {"<|assistant|>", "<think>"},
     {"<|assistant|>", "</think>"},
     {"</think>"},
     {"</think>"},
     {NULL},
     {"<|endoftext|>", "<|user|>", "<|observation|>"}},
    {"glm5.1",
     {"[gMASK]", "<sop>"},
     {"<|assistant|>", "<think>"},
     {"<|assistant|>", "</think>"},
     {"</think>"},
     {"<think>", "</think>"},
     {NULL},
     {"<|endoftext|>", "<|user|>", "<|observation|>"}},
    {"glm5.2",
     {"[gMASK]", "<sop>"},
     {"<|assistant|>", "<think>"},
     {"<|assistant|>", "<think>", "</think>"},
     {"<think>", "</think>"},
     {"<think>", "</think>"},
     {"high", "max"},
     {"<|endoftext|>", "<|user|>", "<|observation|>"}},
    {"glm5.3",
     {"[gMASK]", "<sop>"},
     {"<|assistant|>", "<think>"},
     {NULL},
     {"<think>", "</think>"},
     {"<think>", "</think>"},
     {"low", "high", "max"},
     {"<|endoftext|>", "<|user|>", "<|observation|>"}},
    {"plain", {NULL}, {NULL}, {NULL}, {NULL}, {NULL}, {NULL}, {NULL}},
};

static const struct wrapper {
    const char *name, *format;
} wrappers[] = {
    {"dapo", "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer "
             "(without quotes) where $Answer is the answer to the problem.\n\n{prompt}\n\nRemember to put your answer on its own "
             "line after \"Answer:\"."},
    {"slime", "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
              "\\boxed{$Answer} where $Answer is the answer to the problem.\n\n{prompt}\n\nRemember to put your answer on its own "
              "line after \"Answer:\"."},
};

struct cairn_template {
    const struct chat *chat;
    char *before, *after; /* the words around the prompt */
    const char *effort;   /* "Max"; NULL: no line */
    int thinking_off, added_in_prompt;
};

/* --- parsing --- */

static const struct chat *find_chat(const char *name, size_t n)
{
    for (size_t i = 0; i < COUNT(chats); i++)
        if (strlen(chats[i].name) == n && !memcmp(chats[i].name, name, n))
            return &chats[i];
    return NULL;
}

static const char *find_format(const char *inside)
{
    for (size_t i = 0; i < COUNT(wrappers); i++)
        if (!strcmp(wrappers[i].name, inside))
            return wrappers[i].format;
    return strstr(inside, "{prompt}") ? inside : NULL;
}

static enum cairn_status unknown(const char *spec, struct cairn_error *err)
{
    const char *names[COUNT(chats) + COUNT(wrappers)], *near;

    for (size_t i = 0; i < COUNT(chats); i++)
        names[i] = chats[i].name;
    for (size_t i = 0; i < COUNT(wrappers); i++)
        names[COUNT(chats) + i] = wrappers[i].name;
    near = cairn_nearest(spec, names, COUNT(names));
    return cairn_fail(err, CAIRN_ERECIPE, "template \"%s\" is no template and holds no {prompt}%s%s%s", spec,
                      near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

/* The effort line's word, "Max" for max. */
static enum cairn_status parse_effort(struct cairn_template *t, const char *effort, struct cairn_error *err)
{
    static const char *const words[][2] = {{"low", "Low"}, {"high", "High"}, {"max", "Max"}};
    const char *const *has = t->chat->efforts;

    if (!has[0])
        return effort ? cairn_fail(err, CAIRN_ERECIPE, "template %s has no reasoning effort", t->chat->name) : CAIRN_OK;
    for (size_t i = 0; has[i]; i++)
        if (effort ? !strcmp(has[i], effort) : !has[i + 1])
            for (size_t k = 0; k < COUNT(words); k++)
                if (!strcmp(words[k][0], has[i]) && !t->thinking_off)
                    t->effort = words[k][1];
    if (!t->effort && !t->thinking_off)
        return cairn_fail(err, CAIRN_ERECIPE, "template %s: reasoning effort \"%s\" is unknown (the strongest is \"max\")",
                          t->chat->name, effort);
    return CAIRN_OK;
}

enum cairn_status cairn_template_parse(struct cairn_template **out, const char *spec, const struct cairn_template_opts *opts,
                                       struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const char *colon = strchr(spec, ':'), *inside = NULL, *format = "{prompt}", *hole;
    struct cairn_template *t = calloc(1, sizeof *t);

    if (!t)
        return CAIRN_NOMEM(err);
    if ((t->chat = find_chat(spec, strlen(spec))) != NULL)
        inside = NULL;
    else if (colon && (t->chat = find_chat(spec, (size_t)(colon - spec))) != NULL)
        inside = colon + 1;
    else {
        t->chat = find_chat("plain", 5);
        inside = spec;
    }
    if (inside && !(format = find_format(inside)))
        TRY(unknown(inside, err));
    hole = strstr(format, "{prompt}");
    if (strstr(hole + 1, "{prompt}"))
        TRY(cairn_fail(err, CAIRN_ERECIPE, "template \"%s\" holds {prompt} twice", spec));
    t->before = cairn_format("%.*s", (int)(hole - format), format);
    t->after = cairn_format("%s", hole + strlen("{prompt}"));
    if (!t->before || !t->after)
        TRY(CAIRN_NOMEM(err));
    t->thinking_off = opts && opts->thinking_off;
    t->added_in_prompt = opts && opts->added_in_prompt;
    if (t->thinking_off && t->chat->before[0] && !t->chat->silent[0])
        TRY(cairn_fail(err, CAIRN_ERECIPE, "template %s: this model always thinks; thinking cannot be off", t->chat->name));
    TRY(parse_effort(t, opts ? opts->effort : NULL, err));
    *out = t;
    t = NULL;
out:
    cairn_template_destroy(t);
    return st;
}

void cairn_template_destroy(struct cairn_template *t)
{
    if (!t)
        return;
    free(t->before);
    free(t->after);
    free(t);
}

/* --- rendering --- */

static enum cairn_status put_tokens(const struct cairn_tokenizer *tok, const char *const *names, struct cairn_ids *ids,
                                    const char *template_name, struct cairn_error *err)
{
    for (; *names; names++) {
        int32_t id = cairn_tokenizer_token_id(tok, *names);

        if (id < 0 || !cairn_tokenizer_is_added(tok, id))
            return cairn_fail(err, CAIRN_EDATA, "template %s needs the added token %s, which the tokenizer lacks", template_name,
                              *names);
        if (!cairn_ids_push(ids, id))
            return CAIRN_NOMEM(err);
    }
    return CAIRN_OK;
}

/* Text from outside (n bytes) between words of the template's author. */
static enum cairn_status put_text(const struct cairn_template *t, struct cairn_tokenizer *tok, const char *before, const char *inside, size_t n,
                                  const char *after, struct cairn_ids *ids, struct cairn_error *err)
{
    struct cairn_encode_opts opts = {0};
    struct cairn_str text = {0};
    enum cairn_status st = CAIRN_OK;

    cairn_str_puts(&text, before);
    cairn_str_add(&text, inside, n);
    cairn_str_puts(&text, after);
    if (text.oom)
        TRY(CAIRN_NOMEM(err));
    if (!t->added_in_prompt) {
        opts.literal_from = strlen(before);
        opts.literal_to = opts.literal_from + n;
    }
    TRY(cairn_tokenizer_encode(tok, cairn_str_z(&text), text.len, &opts, ids, err));
out:
    cairn_str_free(&text);
    return st;
}

static int is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* What is left of an assistant's message in a later turn: no thoughts, no blanks around it. */
static struct cairn_message spoken(struct cairn_message m)
{
    static const char end[] = "</think>";

    for (size_t i = m.bytes; i >= sizeof end - 1; i--)
        if (!memcmp(m.text + i - (sizeof end - 1), end, sizeof end - 1)) {
            m.text += i;
            m.bytes -= i;
            break;
        }
    for (; m.bytes && is_blank(*m.text); m.text++)
        m.bytes--;
    while (m.bytes && is_blank(m.text[m.bytes - 1]))
        m.bytes--;
    return m;
}

/* last: it is the one that is to be answered, or the last of the assistant's. */
static enum cairn_status put_message(const struct cairn_template *t, struct cairn_tokenizer *tok, const struct cairn_message *m, int last,
                                     struct cairn_ids *ids, struct cairn_error *err)
{
    static const char *const role[][2] = {{"<|system|>"}, {"<|user|>"}, {"<|assistant|>"}};
    const struct chat *c = t->chat;
    int answered = m->role == CAIRN_ROLE_USER && last;
    struct cairn_message said = m->role == CAIRN_ROLE_ASSISTANT ? spoken(*m) : *m;
    enum cairn_status st = CAIRN_OK;

    if (c->before[0])
        TRY(put_tokens(tok, role[m->role], ids, c->name, err));
    if (m->role == CAIRN_ROLE_ASSISTANT)
        TRY(put_tokens(tok, last ? c->last_past : c->past, ids, c->name, err));
    TRY(put_text(t, tok, answered ? t->before : "", said.text, said.bytes, answered ? t->after : "", ids, err));
out:
    return st;
}

/* Number of the last message of that role, -1: there is none. */
static int last_of(const struct cairn_message *m, int n, enum cairn_role role)
{
    while (--n >= 0 && m[n].role != role)
        ;
    return n;
}

static enum cairn_status chat_check(const struct cairn_template *t, const struct cairn_message *m, int n, struct cairn_error *err)
{
    if (!n || m[n - 1].role != CAIRN_ROLE_USER)
        return cairn_fail(err, CAIRN_EDATA, "the last message of the chat is not a user's: there is nothing to answer");
    if (n > 1 && !t->chat->before[0])
        return cairn_fail(err, CAIRN_EDATA, "a chat of %d messages, and template %s has no roles: it takes one user message", n, t->chat->name);
    return CAIRN_OK;
}

enum cairn_status cairn_template_chat(const struct cairn_template *t, struct cairn_tokenizer *tok, const struct cairn_message *m, int n,
                                      struct cairn_ids *ids, struct cairn_error *err)
{
    static const char *const system[] = {"<|system|>", NULL};
    const struct chat *c = t->chat;
    int assistant = last_of(m, n, CAIRN_ROLE_ASSISTANT);
    enum cairn_status st = CAIRN_OK;
    int64_t before = ids->n;
    struct cairn_str line = {0};

    TRY(chat_check(t, m, n, err));
    TRY(put_tokens(tok, c->before, ids, c->name, err));
    if (t->effort) {
        cairn_str_printf(&line, "Reasoning Effort: %s", t->effort);
        if (line.oom)
            TRY(CAIRN_NOMEM(err));
        TRY(put_tokens(tok, system, ids, c->name, err));
        TRY(cairn_tokenizer_encode(tok, line.p, line.len, NULL, ids, err));
    }
    for (int i = 0; i < n; i++)
        TRY(put_message(t, tok, &m[i], i == n - 1 || i == assistant, ids, err));
    TRY(put_tokens(tok, t->thinking_off ? c->silent : c->thinking, ids, c->name, err));
out:
    if (st != CAIRN_OK)
        ids->n = before;
    cairn_str_free(&line);
    return st;
}

enum cairn_status cairn_template_render(const struct cairn_template *t, struct cairn_tokenizer *tok, const char *prompt, size_t n,
                                        struct cairn_ids *ids, struct cairn_error *err)
{
    const struct cairn_message m = {CAIRN_ROLE_USER, prompt, n};

    return cairn_template_chat(t, tok, &m, 1, ids, err);
}

enum cairn_status cairn_template_check(const struct cairn_template *t, const struct cairn_tokenizer *tok, struct cairn_error *err)
{
    static const char *const system[] = {"<|system|>", NULL}, *const user[] = {"<|user|>", NULL};
    const struct chat *c = t->chat;
    struct cairn_ids ids = {0};
    enum cairn_status st = CAIRN_OK;

    TRY(put_tokens(tok, c->before, &ids, c->name, err));
    if (t->effort)
        TRY(put_tokens(tok, system, &ids, c->name, err));
    if (c->before[0])
        TRY(put_tokens(tok, user, &ids, c->name, err));
    TRY(put_tokens(tok, t->thinking_off ? c->silent : c->thinking, &ids, c->name, err));
    TRY(put_tokens(tok, c->stop, &ids, c->name, err));
out:
    cairn_ids_free(&ids);
    return st;
}

enum cairn_status cairn_template_stop_ids(const struct cairn_template *t, const struct cairn_tokenizer *tok, struct cairn_ids *ids,
                                          struct cairn_error *err)
{
    static const char *const end[] = {"<|endoftext|>", NULL};
    int64_t before = ids->n;
    enum cairn_status st;

    if (!t->chat->stop[0] && cairn_tokenizer_token_id(tok, end[0]) < 0)
        return CAIRN_OK;
    st = put_tokens(tok, t->chat->stop[0] ? t->chat->stop : end, ids, t->chat->name, err);
    if (st != CAIRN_OK)
        ids->n = before;
    return st;
}
