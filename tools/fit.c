/* fit.c - has this machine what a recipe asks of it? (fit.h) */
#include "tools/fit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/build.h"
#include "base/file.h"
#include "kernels/backend.h"
#include "tools/launch.h"

int cairn_program_there(const char *name)
{
    const char *path = getenv("PATH");
    char *copy = path ? strdup(path) : NULL, *save = NULL;
    int there = 0;

    for (char *dir = copy ? strtok_r(copy, ":", &save) : NULL; dir && !there; dir = strtok_r(NULL, ":", &save)) {
        char *file = cairn_path_join(dir, name);

        there = file && !access(file, X_OK);
        free(file);
    }
    free(copy);
    return there;
}

/* here: with a device, too. */
static enum cairn_status backend_fit(const struct cairn_recipe *recipe, int here, struct cairn_error *err)
{
    const char *name = cairn_recipe_str(recipe, "kernels.backend");
    struct cairn_device_info *info = NULL;
    struct cairn_compute k;
    enum cairn_status st = CAIRN_OK;
    int n = 0;

    if (!strcmp(name, "auto")) /* takes what there is */
        return CAIRN_OK;
    TRY(cairn_compute_devices(name, &info, &n, err));
    if (here && !n && (st = cairn_compute_open(&k, &(struct cairn_compute_opts){.backend = name}, err)) == CAIRN_OK)
        cairn_compute_close(&k);
out:
    free(info);
    if (st == CAIRN_EDEVICE)
        cairn_error_prefix(err, "kernels.backend: %s", name);
    return st;
}

/* 1: it starts more than one process at once that speak to each other. */
static int wants_mpirun(const struct cairn_recipe *recipe)
{
    return !strcmp(cairn_recipe_str(recipe, "run.mode"), "resident") || cairn_launch_ranks(recipe, CAIRN_STAGE_ROLLOUT) > 1 ||
           cairn_launch_ranks(recipe, CAIRN_STAGE_TRAIN) > 1;
}

static enum cairn_status mpirun_fit(struct cairn_error *err)
{
    char *object = cairn_lib_path("cairn-mpi.so");
    enum cairn_status st = CAIRN_OK;

    if (!object)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_program_there("mpirun"))
        TRY(cairn_fail(err, CAIRN_EDEVICE, "the recipe's layout has several ranks, and mpirun is not in the PATH: install openmpi-bin, or "
                                           "leave the layout at one (train.parallel, rollout.parallel, run.mode)"));
    if (!cairn_path_exists(object))
        TRY(cairn_fail(err, CAIRN_EDEVICE, "the recipe's layout has several ranks, and this build speaks no MPI (%s is not there): install "
                                           "libopenmpi-dev and run make, or leave the layout at one", object));
out:
    free(object);
    return st;
}

enum cairn_status cairn_fit(const struct cairn_recipe *recipe, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(backend_fit(recipe, 1, err));
    if (wants_mpirun(recipe))
        TRY(mpirun_fit(err));
out:
    return st;
}

enum cairn_status cairn_fit_new(const char *dir, const struct cairn_recipe *recipe, struct cairn_error *err)
{
    return cairn_run_there(dir) ? CAIRN_OK : cairn_fit(recipe, err);
}

enum cairn_status cairn_fit_build(const struct cairn_recipe *recipe, struct cairn_error *err)
{
    return backend_fit(recipe, 0, err);
}
