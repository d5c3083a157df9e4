/* define.c - from definitions to graders. See define.h. */
#include "grade/define.h"

#include <string.h>

#include "grade/command.h"
#include "grade/exact.h"
#include "grade/plugin.h"

enum cairn_status cairn_grader_define(const struct cairn_grader_def *def, struct cairn_error *err)
{
    static const struct {
        const char *kind;
        enum cairn_status (*create)(struct cairn_grader **out, const struct cairn_grader_def *def, struct cairn_error *err);
    } kinds[] = {{"exact", cairn_exact_create}, {"regex", cairn_regex_create}, {"command", cairn_command_create}, {"plugin", cairn_plugin_create}};
    struct cairn_grader *g = NULL;
    struct cairn_error taken;
    enum cairn_status st = CAIRN_OK;

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !g; i++)
        if (strcmp(kinds[i].kind, def->kind) == 0)
            TRY(kinds[i].create(&g, def, err));
    if (!g)
        TRY(cairn_fail(err, CAIRN_ERECIPE, "kind: %s is none of exact, regex, command, plugin", def->kind));
    if (cairn_grader_register(g, &taken) != CAIRN_OK) {
        g->destroy(g);
        st = cairn_fail(err, CAIRN_ERECIPE, "%s", taken.text);
    }
out:
    return st;
}
