/* fit.h - has this machine what a recipe asks of it? */
#ifndef CAIRN_TOOLS_FIT_H
#define CAIRN_TOOLS_FIT_H

#include "recipe/recipe.h"

/* Before a run is made of the recipe on this machine, whose layout cannot be taken back afterwards: the back-end that it names must be
 * here with a device, and mpirun where stages have several ranks. CAIRN_EDEVICE says what is missing, which key asks for it, and how to
 * get it or do without. Opens no device. */
enum cairn_status cairn_fit(const struct cairn_recipe *recipe, struct cairn_error *err);
/* The same, if there is no run in `dir` yet. */
enum cairn_status cairn_fit_new(const char *dir, const struct cairn_recipe *recipe, struct cairn_error *err);
/* Before a run is made of it that other machines may carry on with this build: the back-end must have been built. */
enum cairn_status cairn_fit_build(const struct cairn_recipe *recipe, struct cairn_error *err);

/* 1: a program of that name is in the PATH. */
int cairn_program_there(const char *name);

#endif
