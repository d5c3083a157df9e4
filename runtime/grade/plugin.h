/* plugin.h - the grader in a shared object: loaded in a child of its own, behind a sandbox, by the interface of grader_plugin.h.
 *
 * A plugin that cannot be loaded, or refuses its arguments, is an error of the recipe (CAIRN_ERECIPE) when the first response comes; one
 * that crashes or hangs on a response is that response's status.
 */
#ifndef CAIRN_GRADE_PLUGIN_H
#define CAIRN_GRADE_PLUGIN_H

#include "grade/define.h"

enum cairn_status cairn_plugin_create(struct cairn_grader **out, const struct cairn_grader_def *def, struct cairn_error *err);
/* In the process where it will run: dlopen, check, the plugin's own open. The grader does it at its first response if nobody did. */
enum cairn_status cairn_plugin_load(const struct cairn_grader *g, struct cairn_error *err);

#endif
