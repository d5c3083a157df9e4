/* latex.c - the lexer: bytes of an answer to tokens. See latex.h; the dictionary is latex_words.c, one spelling latex_canonical.c. */
#include "grade/latex.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

#include "grade/latex_words.h"

#define TEXT_BYTES_MAX 200 /* longer words in a wrapper are no answer of ours: TOK_OTHER */
#define WRAP_DEPTH_MAX 8   /* wrappers in wrappers */
#define LOOK_MAX       ((size_t)1 << 21)

struct lexer {
    struct cairn_arena *arena;
    struct cairn_tok *t;
    int n, cap;
    int space, thin;
    size_t looked; /* bytes that group_at has looked at: unclosed groups could make that a square */
    enum cairn_tok_result result;
};

static void push(struct lexer *lx, enum cairn_tok_kind kind, char ch, const char *s)
{
    struct cairn_tok *t;

    if (lx->result != CAIRN_TOK_OK)
        return;
    if (lx->n == CAIRN_TOKENS_MAX) {
        lx->result = CAIRN_TOK_TOO_LONG;
        return;
    }
    if (lx->n == lx->cap) {
        int cap = lx->cap ? lx->cap * 2 : 64;
        struct cairn_tok *grown = cairn_arena_alloc(lx->arena, (size_t)cap * sizeof *grown);

        if (!grown) {
            lx->result = CAIRN_TOK_NOMEM;
            return;
        }
        if (lx->n)
            memcpy(grown, lx->t, (size_t)lx->n * sizeof *grown);
        lx->t = grown;
        lx->cap = cap;
    }
    t = &lx->t[lx->n++];
    t->kind = kind;
    t->ch = ch;
    t->s = s ? s : "";
    t->space = (unsigned char)lx->space;
    t->thin = (unsigned char)lx->thin;
    lx->space = lx->thin = 0;
}

static const char *keep(struct lexer *lx, const char *p, size_t n)
{
    char *s = cairn_arena_alloc(lx->arena, n + 1);

    if (!s) {
        lx->result = CAIRN_TOK_NOMEM;
        return "";
    }
    memcpy(s, p, n);
    s[n] = 0;
    return s;
}

static void lex(struct lexer *lx, const char *p, size_t n, int depth);

/* Content of the brace group that begins at p[0] == '{'; *after is the index behind it. 0 if it never closes. */
static int group_at(struct lexer *lx, const char *p, size_t n, size_t *content, size_t *after)
{
    size_t depth = 0;

    for (size_t i = 0; i < n; i++) {
        if (++lx->looked > LOOK_MAX) {
            lx->result = CAIRN_TOK_TOO_LONG;
            return 0;
        }
        if (p[i] == '\\') {
            i++;
        } else if (p[i] == '{') {
            depth++;
        } else if (p[i] == '}' && --depth == 0) {
            *content = i - 1;
            *after = i + 1;
            return 1;
        }
    }
    return 0;
}

/* What stands in a \text-like wrapper: a separator, mathematics, or words. */
static void lex_wrapped(struct lexer *lx, const char *p, size_t n, int depth)
{
    char words[TEXT_BYTES_MAX + 1];
    size_t len = 0, letters = 0, run = 0, best = 0;
    int digit_first = 0, command = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p[i];

        if (c == '~' || c <= ' ' || (c == '\\' && i + 1 < n && strchr(" ,;:!", p[i + 1]) && p[i + 1])) {
            if (c == '\\')
                i++;
            if (len && words[len - 1] != ' ' && len < TEXT_BYTES_MAX)
                words[len++] = ' ';
            run = 0;
            continue;
        }
        if (c == '\\' || c == '{' || c == '^' || c == '$')
            command = 1;
        if (len == 0 && (isdigit(c) || strchr("-.(+[", c)))
            digit_first = 1;
        if (isalpha(c)) {
            letters++;
            if (++run > best)
                best = run;
        } else {
            run = 0;
        }
        if (len >= TEXT_BYTES_MAX) {
            push(lx, TOK_OTHER, 0, "longtext");
            return;
        }
        words[len++] = (char)c;
    }
    while (len && words[len - 1] == ' ')
        len--;
    if (len == 0) {
        lx->space = 1;
        return;
    }
    if (cairn_latex_same_word(words, len, "and") || cairn_latex_same_word(words, len, ", and")) {
        push(lx, TOK_AND, 0, NULL);
    } else if (cairn_latex_same_word(words, len, "or") || cairn_latex_same_word(words, len, ", or")) {
        push(lx, TOK_OR, 0, NULL);
    } else if (digit_first || command || best < 2) {
        if (!digit_first && !command)
            lx->space = 1;        /* "5\\text{m}" is a unit more than a factor */
        lex(lx, p, n, depth + 1); /* 13, (C), A5, $x$, a degree sign */
    } else {
        struct cairn_latex_word w;

        if (cairn_latex_plain(words, len, &w)) /* "and" and "or" alone were taken above */
            push(lx, w.kind, w.ch, w.s);
        else
            push(lx, TOK_TEXT, 0, keep(lx, words, len));
    }
}

static void lex_replacement(struct lexer *lx, const char *z, int depth)
{
    lex(lx, z, strlen(z), depth + 1);
}

/* The command whose name begins at p[1]; returns the bytes it takes. */
static size_t lex_command(struct lexer *lx, const char *p, size_t n, int depth)
{
    size_t len = 0, content, after, i;
    const char *name = p + 1;
    enum cairn_latex_role role;
    struct cairn_latex_word w;

    while (1 + len < n && isalpha((unsigned char)name[len]) && (unsigned char)name[len] < 0x80)
        len++;
    if (len == 0) {
        char c = n > 1 ? name[0] : 0;

        if (n == 1)
            return 1; /* a lone backslash at the end */
        switch (c) {
        case '{':
            push(lx, TOK_LSET, 0, NULL);
            break;
        case '}':
            push(lx, TOK_RSET, 0, NULL);
            break;
        case '|':
            push(lx, TOK_OTHER, 0, "norm");
            break;
        case '\\':
            push(lx, TOK_ROW, 0, NULL);
            break;
        case ',':
        case ':':
            lx->thin = 1;
            lx->space = 1;
            break;
        case '!': /* "12,\!000": the comma groups; elsewhere nothing */
            if (lx->n && lx->t[lx->n - 1].kind == TOK_CHAR && lx->t[lx->n - 1].ch == ',')
                lx->t[lx->n - 1].kind = TOK_GROUP;
            break;
        case ';':
        case ' ':
        case '\n':
        case '\t':
            lx->space = 1;
            break;
        case '$':
        case '%':
        case '(':
        case ')':
        case '[':
        case ']':
            break;
        case '#':
        case '&':
        case '_':
            push(lx, TOK_OTHER, 0, c == '#' ? "#" : c == '&' ? "&" : "_");
            break;
        default:
            return 1; /* a stray backslash in front of something readable */
        }
        return 2;
    }
    i = 1 + len;
    role = cairn_latex_role(name, len);
    if (role == CAIRN_LATEX_SILENT || role == CAIRN_LATEX_SIDE) {
        /* \left. is an invisible bracket */
        if (i < n && p[i] == '.' && role == CAIRN_LATEX_SIDE)
            i++;
        return i;
    }
    if (role == CAIRN_LATEX_SPACE) {
        lx->space = 1;
        if (len == 6 && memcmp(name, "hspace", 6) == 0 && i < n && p[i] == '{' && group_at(lx, p + i, n - i, &content, &after))
            i += after;
        return i;
    }
    if (len == 4 && memcmp(name, "circ", 4) == 0)
        return i; /* a degree mark wherever it stands */
    if (role == CAIRN_LATEX_WRAPPER) {
        while (i < n && p[i] == ' ')
            i++;
        if (i < n && p[i] == '{' && group_at(lx, p + i, n - i, &content, &after)) {
            if (depth >= WRAP_DEPTH_MAX) {
                push(lx, TOK_OTHER, 0, "deep");
                return i + after;
            }
            if ((len == 5 && memcmp(name, "boxed", 5) == 0) || (len == 4 && memcmp(name, "fbox", 4) == 0))
                lex(lx, p + i + 1, content, depth + 1);
            else
                lex_wrapped(lx, p + i + 1, content, depth);
            return i + after;
        }
        return i; /* "\mathrm cm", "\mathbf x": the font of what comes next */
    }
    if ((len == 6 && memcmp(name, "mathbb", 6) == 0)) {
        while (i < n && (p[i] == ' ' || p[i] == '{'))
            i++;
        if (i < n && isupper((unsigned char)p[i])) {
            char set[3] = {'B', p[i], 0};

            push(lx, TOK_SYM, 0, keep(lx, set, 2));
            i++;
            while (i < n && (p[i] == ' ' || p[i] == '}')) {
                if (p[i++] == '}')
                    break;
            }
        }
        return i;
    }
    if ((len == 5 && memcmp(name, "begin", 5) == 0) || (len == 3 && memcmp(name, "end", 3) == 0)) {
        int begin = name[0] == 'b';

        if (i < n && p[i] == '{' && group_at(lx, p + i, n - i, &content, &after) && content < 32) {
            push(lx, begin ? TOK_BEGIN : TOK_END, 0, keep(lx, p + i + 1, content));
            i += after;
            if (begin && i < n && p[i] == '{' && strcmp(lx->result == CAIRN_TOK_OK ? lx->t[lx->n - 1].s : "", "array") == 0 &&
                group_at(lx, p + i, n - i, &content, &after))
                i += after; /* column specification */
            return i;
        }
        push(lx, TOK_OTHER, 0, "environment");
        return i;
    }
    if (cairn_latex_command(name, len, &w)) {
        push(lx, w.kind, w.ch, w.s);
        return i;
    }
    push(lx, TOK_OTHER, 0, keep(lx, name, len < 64 ? len : 64));
    return i;
}

/* "^\circ", "^{\circ}", "^o": the circumflex goes with the degree mark. Returns bytes taken, 0 if it is a power. */
static size_t degree_at(const char *p, size_t n)
{
    static const char *const form[] = {"^\\circ",     "^{\\circ}",    "^{\\circ }",     "^ \\circ",    "^\\degree",
                                       "^{\\degree}", "^{\\text{o}}", "^{\\mathrm{o}}", "^{ \\circ }", "^{\\ \\circ}",
                                       "^\\text{o}",  "^{\xC2\xB0}",  "^\xC2\xB0"};

    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        size_t len = strlen(form[i]);

        if (n >= len && memcmp(p, form[i], len) == 0 && !(n > len && form[i][len - 1] == 'c' && isalpha((unsigned char)p[len])))
            return len;
    }
    return 0;
}

static void lex(struct lexer *lx, const char *p, size_t n, int depth)
{
    if (depth > WRAP_DEPTH_MAX + 2) {
        push(lx, TOK_OTHER, 0, "deep");
        return;
    }
    for (size_t i = 0; i < n && lx->result == CAIRN_TOK_OK;) {
        unsigned char c = (unsigned char)p[i];
        size_t used;

        if (c >= 0x80) {
            int32_t cp = cairn_utf8_next((const unsigned char *)p + i, n - i, &used);
            const char *as = cp < 0 ? NULL : cairn_latex_of_unicode((uint32_t)cp), *letter = cp < 0 ? NULL : cairn_latex_greek((uint32_t)cp);

            if (as) {
                lex_replacement(lx, as, depth);
            } else if (cp >= 0xFF01 && cp <= 0xFF5E) {
                char ascii[2] = {(char)(cp - 0xFF01 + 0x21), 0};

                lex_replacement(lx, ascii, depth);
            } else if (letter) {
                push(lx, TOK_SYM, 0, letter);
            } else {
                push(lx, TOK_OTHER, 0, keep(lx, p + i, used));
            }
            i += used;
            continue;
        }
        if (c == '\\') {
            i += lex_command(lx, p + i, n - i, depth);
            continue;
        }
        if (c <= ' ' || c == 127 || c == '~') {
            lx->space = 1;
            i++;
            continue;
        }
        if (c == '$' || c == '%') {
            i++;
            continue;
        }
        if (c == '^' && (used = degree_at(p + i, n - i)) != 0) {
            i += used;
            continue;
        }
        if (c == '{' && n - i >= 3 && p[i + 1] == ',' && p[i + 2] == '}') {
            push(lx, TOK_GROUP, 0, NULL);
            i += 3;
            continue;
        }
        if (c == '*' && i + 1 < n && p[i + 1] == '*') {
            push(lx, TOK_CHAR, '^', NULL);
            i += 2;
            continue;
        }
        if ((c == '<' || c == '>' || c == '!') && i + 1 < n && p[i + 1] == '=') {
            push(lx, c == '<' ? TOK_LE : c == '>' ? TOK_GE : TOK_NE, 0, NULL);
            i += 2;
            continue;
        }
        if (isalpha(c)) { /* a whole word that means something */
            struct cairn_latex_word w;
            size_t len = 1;

            while (i + len < n && isalpha((unsigned char)p[i + len]) && (unsigned char)p[i + len] < 0x80)
                len++;
            if (len >= 2 && (i == 0 || p[i - 1] != '_') && cairn_latex_plain(p + i, len, &w)) {
                push(lx, w.kind, w.ch, w.s);
                i += len;
                continue;
            }
            for (size_t k = 0; k < len; k++)
                push(lx, TOK_CHAR, p[i + k], NULL);
            i += len;
            continue;
        }
        push(lx, TOK_CHAR, (char)c, NULL);
        i++;
    }
}

static int is_ch(const struct cairn_tok *t, char c)
{
    return t->kind == TOK_CHAR && t->ch == c;
}

enum cairn_tok_result cairn_latex_tokens(struct cairn_arena *arena, const char *p, size_t n, struct cairn_toks *out)
{
    struct lexer lx = {.arena = arena};
    int at = 0, end;

    out->t = NULL;
    out->n = 0;
    lex(&lx, p, n, 0);
    if (lx.result != CAIRN_TOK_OK)
        return lx.result;
    end = lx.n;
    while (end > at) { /* trailing punctuation */
        const struct cairn_tok *t = &lx.t[end - 1];

        if (is_ch(t, '.') || is_ch(t, ',') || is_ch(t, ';') || is_ch(t, ':') || is_ch(t, '?') || t->kind == TOK_ROW)
            end--;
        else
            break;
    }
    while (at < end && (is_ch(&lx.t[at], ':') || is_ch(&lx.t[at], '=')))
        at++;
    out->t = lx.t ? lx.t + at : NULL; /* nothing but wrappers */
    out->n = end - at;
    return CAIRN_TOK_OK;
}
