/* latex_words.c - the dictionary of the answer lexer. See latex_words.h; add spellings here. */
#include "grade/latex_words.h"

#include <ctype.h>
#include <string.h>

#include "grade/listed.h"

/* Commands with a meaning of their own. */
static const struct cairn_latex_word commands[] = {
    {"frac", TOK_FRAC, 0, NULL},
    {"dfrac", TOK_FRAC, 0, NULL},
    {"tfrac", TOK_FRAC, 0, NULL},
    {"cfrac", TOK_FRAC, 0, NULL},
    {"binom", TOK_BINOM, 0, NULL},
    {"dbinom", TOK_BINOM, 0, NULL},
    {"tbinom", TOK_BINOM, 0, NULL},
    {"sqrt", TOK_SQRT, 0, NULL},
    {"pm", TOK_PM, 0, NULL},
    {"mp", TOK_MP, 0, NULL},
    {"cdot", TOK_CHAR, '*', NULL},
    {"times", TOK_CHAR, '*', NULL},
    {"ast", TOK_CHAR, '*', NULL},
    {"div", TOK_CHAR, '/', NULL},
    {"cup", TOK_CUP, 0, NULL},
    {"bigcup", TOK_CUP, 0, NULL},
    {"cap", TOK_CAP, 0, NULL},
    {"bigcap", TOK_CAP, 0, NULL},
    {"setminus", TOK_MINUS_SET, 0, NULL},
    {"smallsetminus", TOK_MINUS_SET, 0, NULL},
    {"backslash", TOK_MINUS_SET, 0, NULL},
    {"in", TOK_IN, 0, NULL},
    {"le", TOK_LE, 0, NULL},
    {"leq", TOK_LE, 0, NULL},
    {"leqslant", TOK_LE, 0, NULL},
    {"ge", TOK_GE, 0, NULL},
    {"geq", TOK_GE, 0, NULL},
    {"geqslant", TOK_GE, 0, NULL},
    {"ne", TOK_NE, 0, NULL},
    {"neq", TOK_NE, 0, NULL},
    {"lt", TOK_CHAR, '<', NULL},
    {"gt", TOK_CHAR, '>', NULL},
    {"approx", TOK_APPROX, 0, NULL},
    {"approxeq", TOK_APPROX, 0, NULL},
    {"simeq", TOK_APPROX, 0, NULL},
    {"colon", TOK_CHAR, ':', NULL},
    {"overline", TOK_OVERLINE, 0, NULL},
    {"bar", TOK_OVERLINE, 0, NULL},
    {"lfloor", TOK_FLOOR_L, 0, NULL},
    {"rfloor", TOK_FLOOR_R, 0, NULL},
    {"lceil", TOK_CEIL_L, 0, NULL},
    {"rceil", TOK_CEIL_R, 0, NULL},
    {"langle", TOK_LANGLE, 0, NULL},
    {"rangle", TOK_RANGLE, 0, NULL},
    {"lbrace", TOK_LSET, 0, NULL},
    {"rbrace", TOK_RSET, 0, NULL},
    {"vert", TOK_CHAR, '|', NULL},
    {"lvert", TOK_CHAR, '|', NULL},
    {"rvert", TOK_CHAR, '|', NULL},
    {"mid", TOK_CHAR, '|', NULL},
    {"lbrack", TOK_CHAR, '[', NULL},
    {"rbrack", TOK_CHAR, ']', NULL},
    {"land", TOK_AND, 0, NULL},
    {"lor", TOK_OR, 0, NULL},
    {"wedge", TOK_AND, 0, NULL},
    {"vee", TOK_OR, 0, NULL},
    {"cr", TOK_ROW, 0, NULL},
    {"prime", TOK_CHAR, '\'', NULL},
    {"infty", TOK_SYM, 0, NULL},
    {"emptyset", TOK_SYM, 0, NULL},
    {"varnothing", TOK_SYM, 0, "emptyset"},
    {"angle", TOK_SYM, 0, NULL},
    {"triangle", TOK_SYM, 0, NULL},
    {"ell", TOK_SYM, 0, NULL},
    {"hbar", TOK_SYM, 0, NULL},
    {"Re", TOK_SYM, 0, NULL},
    {"Im", TOK_SYM, 0, NULL},
};

static const char *const greek[] = {"alpha",   "beta",     "gamma", "delta", "epsilon", "varepsilon", "zeta",   "eta",
                                    "theta",   "vartheta", "iota",  "kappa", "lambda",  "mu",         "nu",     "xi",
                                    "omicron", "pi",       "rho",   "sigma", "tau",     "upsilon",    "phi",    "varphi",
                                    "chi",     "psi",      "omega", "Gamma", "Delta",   "Theta",      "Lambda", "Xi",
                                    "Pi",      "Sigma",    "Phi",   "Psi",   "Omega"};

static const char *const functions[] = {"sin",    "cos",  "tan",  "cot",  "sec", "csc", "arcsin", "arccos",
                                        "arctan", "sinh", "cosh", "tanh", "log", "ln",  "lg",     "exp",
                                        "gcd",    "lcm",  "max",  "min",  "det", "deg", "arg"};

/* Commands that leave nothing behind; the first two stand beside a bracket. */
static const char *const silent[] = {"left",   "right",        "bigl",      "bigr",        "Bigl",     "Bigr",          "biggl",
                                     "biggr",  "Biggl",        "Biggr",     "big",         "Big",      "bigg",          "Bigg",
                                     "middle", "displaystyle", "textstyle", "scriptstyle", "limits",   "nolimits",      "mathstrut",
                                     "strut",  "rm",           "bf",        "it",          "boldmath", "left.",         "phantom",
                                     "hfill",  "null",         "degree",    "degrees",     "dollar",   "displaylimits", "nonumber"};
static const char *const spaces[] = {"quad", "qquad", "enspace", "enskip", "thinspace", "hspace", "space", "newline", "par"};

/* Wrappers whose content is words, and wrappers whose content is mathematics in another font. */
static const char *const word_wrappers[] = {
    "text", "textbf",  "textit",       "textrm",    "texttt", "textsf", "textnormal", "textsc", "mbox",   "hbox",
    "emph", "mathrm",  "operatorname", "underline", "textup", "mathsf", "mathtt",     "mathit", "mathbf", "boldsymbol",
    "bm",   "mathcal", "mathfrak",     "mathscr",   "boxed",  "fbox",   "ensuremath", "tiny",   "large"};

/* Words in plain text that mean mathematics. */
static const struct cairn_latex_word plain_words[] = {
    {"sqrt", TOK_SQRT, 0, NULL},     {"pi", TOK_SYM, 0, NULL},        {"infinity", TOK_SYM, 0, "infty"},
    {"inf", TOK_SYM, 0, "infty"},    {"infty", TOK_SYM, 0, NULL},     {"and", TOK_AND, 0, NULL},
    {"or", TOK_OR, 0, NULL},         {"hundred", TOK_SCALE, 2, NULL}, {"thousand", TOK_SCALE, 3, NULL},
    {"million", TOK_SCALE, 6, NULL}, {"billion", TOK_SCALE, 9, NULL}, {"trillion", TOK_SCALE, 12, NULL},
    {"union", TOK_CUP, 0, NULL},     {"theta", TOK_SYM, 0, NULL},     {"alpha", TOK_SYM, 0, NULL},
    {"beta", TOK_SYM, 0, NULL},      {"lambda", TOK_SYM, 0, NULL},    {"sin", TOK_FUNC, 0, NULL},
    {"cos", TOK_FUNC, 0, NULL},      {"tan", TOK_FUNC, 0, NULL},      {"cot", TOK_FUNC, 0, NULL},
    {"sec", TOK_FUNC, 0, NULL},      {"csc", TOK_FUNC, 0, NULL},      {"log", TOK_FUNC, 0, NULL},
    {"ln", TOK_FUNC, 0, NULL},       {"exp", TOK_FUNC, 0, NULL},
};

/* Code points with an ASCII or LaTeX spelling; the replacement is read again as input. */
static const struct {
    uint32_t cp;
    const char *as;
} unicode[] = {
    {0x2212, "-"},
    {0x2010, "-"},
    {0x2011, "-"},
    {0x2012, "-"},
    {0x2013, "-"},
    {0x2014, "-"},
    {0xFE63, "-"},
    {0x00D7, "*"},
    {0x2715, "*"},
    {0x22C5, "*"},
    {0x00B7, "*"},
    {0x2219, "*"},
    {0x2217, "*"},
    {0x00F7, "/"},
    {0x2215, "/"},
    {0x2044, "/"},
    {0x03C0, "\\pi "},
    {0x221E, "\\infty "},
    {0x221A, "\\sqrt "},
    {0x2264, "\\le "},
    {0x2265, "\\ge "},
    {0x2A7D, "\\le "},
    {0x2A7E, "\\ge "},
    {0x2260, "\\ne "},
    {0x2248, "\\approx "},
    {0x222A, "\\cup "},
    {0x2229, "\\cap "},
    {0x2208, "\\in "},
    {0x00B1, "\\pm "},
    {0x2213, "\\mp "},
    {0x2205, "\\emptyset "},
    {0x211D, "\\mathbb{R}"},
    {0x2124, "\\mathbb{Z}"},
    {0x2115, "\\mathbb{N}"},
    {0x211A, "\\mathbb{Q}"},
    {0x2102, "\\mathbb{C}"},
    {0x2216, "\\setminus "},
    {0x00B2, "^{2}"},
    {0x00B3, "^{3}"},
    {0x00B9, "^{1}"},
    {0x2070, "^{0}"},
    {0x2074, "^{4}"},
    {0x2075, "^{5}"},
    {0x2076, "^{6}"},
    {0x2077, "^{7}"},
    {0x2078, "^{8}"},
    {0x2079, "^{9}"},
    {0x207F, "^{n}"},
    {0x2080, "_{0}"},
    {0x2081, "_{1}"},
    {0x2082, "_{2}"},
    {0x2083, "_{3}"},
    {0x2084, "_{4}"},
    {0x2085, "_{5}"},
    {0x2086, "_{6}"},
    {0x2087, "_{7}"},
    {0x2088, "_{8}"},
    {0x2089, "_{9}"},
    {0x00BD, "\\frac{1}{2}"},
    {0x00BC, "\\frac{1}{4}"},
    {0x00BE, "\\frac{3}{4}"},
    {0x2153, "\\frac{1}{3}"},
    {0x2154, "\\frac{2}{3}"},
    {0x27E8, "\\langle "},
    {0x27E9, "\\rangle "},
    {0x230A, "\\lfloor "},
    {0x230B, "\\rfloor "},
    {0x2308, "\\lceil "},
    {0x2309, "\\rceil "},
    {0x2220, "\\angle "},
    {0x25B3, "\\triangle "},
    {0x2032, "'"},
    {0x2019, "'"},
    {0x3001, ","},
    {0x3002, "."},
    {0x2223, "|"},
    {0x2236, ":"},
    {0x00B0, ""},
    {0x00BA, ""},
    {0x20AC, ""},
    {0x00A3, ""},
    {0x00A5, ""},
    {0x00A2, ""},
    {0x20B9, ""},
    {0x200B, ""},
    {0x200C, ""},
    {0x200D, ""},
    {0x2060, ""},
    {0xFEFF, ""},
    {0x00AD, ""},
    {0x2061, ""},
    {0x2062, "*"},
    {0x00A0, " "},
    {0x202F, "\\,"},
    {0x2009, "\\,"},
    {0x200A, "\\,"},
    {0x2002, " "},
    {0x2003, " "},
    {0x2004, " "},
    {0x2005, " "},
    {0x2006, "\\,"},
    {0x2007, " "},
    {0x2008, " "},
    {0x205F, " "},
    {0x3000, " "},
};

static const char greek_order[] =
    "alpha\0beta\0gamma\0delta\0epsilon\0zeta\0eta\0theta\0iota\0kappa\0lambda\0mu\0nu\0xi\0omicron\0pi\0rho"
    "\0sigma\0sigma\0tau\0upsilon\0phi\0chi\0psi\0omega\0";

static struct cairn_latex_word filled(struct cairn_latex_word w)
{
    if (!w.s)
        w.s = w.name;
    return w;
}

int cairn_latex_command(const char *p, size_t len, struct cairn_latex_word *w)
{
    int k;

    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strlen(commands[i].name) == len && memcmp(commands[i].name, p, len) == 0) {
            *w = filled(commands[i]);
            return 1;
        }
    if ((k = CAIRN_LISTED(greek, p, len)) != 0)
        *w = (struct cairn_latex_word){greek[k - 1], TOK_SYM, 0, greek[k - 1]};
    else if ((k = CAIRN_LISTED(functions, p, len)) != 0)
        *w = (struct cairn_latex_word){functions[k - 1], TOK_FUNC, 0, functions[k - 1]};
    return k != 0;
}

enum cairn_latex_role cairn_latex_role(const char *p, size_t len)
{
    int k = CAIRN_LISTED(silent, p, len);

    if (k)
        return k <= 2 ? CAIRN_LATEX_SIDE : CAIRN_LATEX_SILENT;
    if (CAIRN_LISTED(spaces, p, len))
        return CAIRN_LATEX_SPACE;
    return CAIRN_LISTED(word_wrappers, p, len) ? CAIRN_LATEX_WRAPPER : CAIRN_LATEX_OTHER;
}

int cairn_latex_same_word(const char *p, size_t n, const char *word)
{
    if (strlen(word) != n)
        return 0;
    for (size_t i = 0; i < n; i++)
        if (tolower((unsigned char)p[i]) != word[i])
            return 0;
    return 1;
}

int cairn_latex_plain(const char *p, size_t n, struct cairn_latex_word *w)
{
    for (size_t i = 0; i < sizeof plain_words / sizeof *plain_words; i++)
        if (cairn_latex_same_word(p, n, plain_words[i].name)) {
            *w = filled(plain_words[i]);
            return 1;
        }
    return 0;
}

const char *cairn_latex_of_unicode(uint32_t cp)
{
    for (size_t i = 0; i < sizeof unicode / sizeof *unicode; i++)
        if (unicode[i].cp == cp)
            return unicode[i].as;
    return NULL;
}

const char *cairn_latex_greek(uint32_t cp)
{
    const char *s = greek_order;

    if (cp < 0x3B1 || cp > 0x3C9)
        return NULL;
    for (uint32_t k = 0x3B1; k < cp; k++)
        s += strlen(s) + 1;
    return s;
}
