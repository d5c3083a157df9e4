/* latex_canonical.c - what is said of a list of tokens: its one spelling, and whether it is words. See latex.h. */
#include <ctype.h>
#include <string.h>

#include "grade/latex.h"

void cairn_latex_canonical(const struct cairn_toks *in, struct cairn_str *out)
{
    for (int i = 0; i < in->n; i++) {
        const struct cairn_tok *t = &in->t[i];

        switch (t->kind) {
        case TOK_CHAR:
            if (t->space && i > 0 && in->t[i - 1].kind == TOK_CHAR && isalnum((unsigned char)in->t[i - 1].ch) &&
                isdigit((unsigned char)t->ch))
                cairn_str_putc(out, ' ');
            cairn_str_putc(out, t->ch);
            break;
        case TOK_TEXT:
            for (const char *s = t->s; *s; s++)
                if (*s != ' ')
                    cairn_str_putc(out, *s);
            break;
        case TOK_SCALE:
            cairn_str_printf(out, "\\%s ", t->s);
            break;
        default:
            cairn_str_printf(out, "\\%d%s ", (int)t->kind,
                             t->kind == TOK_SYM || t->kind == TOK_FUNC || t->kind == TOK_OTHER || t->kind == TOK_BEGIN ||
                                     t->kind == TOK_END
                                 ? t->s
                                 : "");
        }
    }
}

static int is_letter(const struct cairn_tok *t)
{
    return t->kind == TOK_CHAR && isalpha((unsigned char)t->ch);
}

int cairn_latex_is_words(const struct cairn_toks *in)
{
    int letters = 0, text = 0;

    for (int i = 0; i < in->n; i++) {
        const struct cairn_tok *t = &in->t[i];

        if (t->kind == TOK_TEXT)
            text = 1;
        else if (is_letter(t))
            letters++;
        else if (!(t->kind == TOK_CHAR && strchr(".-'(),", t->ch)))
            return 0;
    }
    return text || letters >= 3;
}
