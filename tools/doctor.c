/* doctor.c - `cairn doctor [DIR]`: what this machine lacks for cairn, and how to get it.
 *
 * Asks each thing by using it (a back-end is opened, a link is made), not by its version. What a run on this machine needs and is not there
 * is `missing` and makes the exit code 72; what only some work needs is a `note`. With DIR the file system that holds it is tried, too: what
 * the commit of artefacts rests on. Leaves nothing behind.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/file.h"
#include "base/str.h"
#include "kernels/backend.h"
#include "slurm/queue.h"
#include "tools/cli.h"
#include "tools/fit.h"
#include "tools/gpus_here.h"
#include "tools/verbs.h"
#include "world/pmi.h"

enum state { OK, NOTE, MISSING };

struct report {
    json_t *rows;
    int missing;
};

static void tell(struct report *r, enum state s, const char *what, const char *found, const char *get)
{
    static const char *const names[] = {"ok", "note", "missing"};

    r->missing += s == MISSING;
    json_array_append_new(r->rows, json_pack("{s:s, s:s, s:s, s:s}", "what", what, "state", names[s], "found", found, "get", s == OK ? "" : get));
}

/* ---- this machine ------------------------------------------------------------------------------------------------ */

static void program_check(struct report *r, const char *name, const char *what, const char *get)
{
    int there = cairn_program_there(name);
    char found[128];

    snprintf(found, sizeof found, there ? "%s is there" : "%s is not in the PATH", name);
    tell(r, there ? OK : NOTE, what, found, get);
}

static void backend_check(struct report *r)
{
    struct cairn_compute k;
    struct cairn_error err = {0};

    if (cairn_compute_open(&k, &(struct cairn_compute_opts){.backend = "cpu"}, &err) == CAIRN_OK) {
        tell(r, OK, "CPU back-end", k.numerics, "");
        cairn_compute_close(&k);
    } else {
        tell(r, MISSING, "CPU back-end", err.text, "run make in the source folder");
    }
}

/* GPU number i, by opening it. */
static void gpu_check(struct report *r, int i, const struct cairn_device_info *info)
{
    struct cairn_compute k;
    struct cairn_error err = {0};
    char what[32], found[512];
    int good = cairn_compute_open(&k, &(struct cairn_compute_opts){.backend = "cuda", .rank = i}, &err) == CAIRN_OK;

    snprintf(what, sizeof what, "GPU %d", i);
    snprintf(found, sizeof found, "%s, %s%s%.240s", info->name, info->detail, good ? "" : ": ", good ? "" : err.text);
    tell(r, good ? OK : NOTE, what, found, "nvidia-smi tells what the driver knows of it");
    if (good && i == 0)
        tell(r, OK, "CUDA back-end", k.numerics, "");
    if (good)
        cairn_compute_close(&k);
}

static void gpus_check(struct report *r)
{
    struct cairn_device_info *info = NULL;
    struct cairn_compute k;
    struct cairn_error err = {0};
    char here[400], found[840];
    int n = 0, there = cairn_gpus_here("", here, sizeof here);

    if (cairn_compute_devices("cuda", &info, &n, &err) != CAIRN_OK) {
        snprintf(found, sizeof found, there ? "%.350s; a GPU is here: %.350s" : "%.350s; no GPU is here", err.text, here);
        tell(r, NOTE, "CUDA back-end", found, there ? "install the CUDA toolkit, put nvcc into the PATH, run make" : "not needed on the CPU");
    } else if (n == 0) {
        if (cairn_compute_open(&k, &(struct cairn_compute_opts){.backend = "cuda"}, &err) == CAIRN_OK)
            cairn_compute_close(&k);
        snprintf(found, sizeof found, there ? "built, but it finds no GPU (%.350s); the machine has: %.350s" : "built, but no GPU is here (%.350s)",
                 err.text, here);
        tell(r, NOTE, "CUDA back-end", found, there ? "see nvidia-smi, and CUDA_VISIBLE_DEVICES" : "not needed on the CPU");
    }
    for (int i = 0; i < n; i++)
        gpu_check(r, i, &info[i]);
    free(info);
}

static void stages_check(struct report *r)
{
    static const char *const stages[] = {"rollout", "score", "train", "sync"};
    const char *install = cairn_install_dir();
    struct cairn_str lacks = {0};

    for (int i = 0; i < 4; i++) {
        char *path = cairn_format("%s/bin/cairn-%s", install ? install : "", stages[i]);

        if (!path || access(path, X_OK))
            cairn_str_printf(&lacks, " cairn-%s", stages[i]);
        free(path);
    }
    if (lacks.len) {
        char *found = cairn_format("%s/bin lacks%s", install ? install : "?", cairn_str_z(&lacks));

        tell(r, MISSING, "stages", found ? found : "", "run make in the source folder");
        free(found);
    } else {
        char *found = cairn_format("all four beside cairn %s", cairn_build_version());

        tell(r, OK, "stages", found ? found : "", "");
        free(found);
    }
    cairn_str_free(&lacks);
}

static void mpi_check(struct report *r)
{
    char *path = cairn_lib_path("cairn-mpi.so");
    void *object = NULL;

    if (path && !cairn_path_exists(path))
        tell(r, NOTE, "MPI", "this build has no cairn-mpi.so: stages run in one process", "install libopenmpi-dev, then run make");
    else if (!path || !(object = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
        tell(r, NOTE, "MPI", path ? dlerror() : "", "install openmpi-bin");
    else
        tell(r, OK, "MPI", path, "");
    if (object)
        dlclose(object);
    free(path);
    program_check(r, "mpirun", "MPI's launcher", "install openmpi-bin; only stages of several ranks need it");
}

/* Is there a cluster to submit to? Its commands may be here without it. */
static void cluster_check(struct report *r)
{
    struct cairn_queue queue = {0};
    struct cairn_error err = {0};
    enum cairn_status st = cairn_queue_read(&queue, "", 0, &err);
    char found[128];

    if (st == CAIRN_OK) {
        snprintf(found, sizeof found, "it answers: %d jobs of yours", queue.n);
        tell(r, OK, "Slurm", found, "");
    } else if (st == CAIRN_EDEVICE) {
        tell(r, NOTE, "Slurm", "squeue is not in the PATH", "not needed on one machine; on a cluster: load its module");
    } else {
        tell(r, NOTE, "Slurm", err.text, "its commands are here, its controller is not: scontrol ping; not needed on one machine");
    }
    cairn_queue_free(&queue);
}

/* Under Slurm: what a stage of several ranks (PMIx) or a program without MPI (either) finds each other by. */
static void slurm_check(struct report *r)
{
    static const struct {
        const char *kind, *what, *get;
    } kinds[] = {{"pmix", "PMIx", "install libpmix-dev, then run make; srun --mpi=list tells what this Slurm speaks"},
                 {"pmi2", "PMI2", "install libpmi2-0; only programs without MPI use it"}};
    char found[512];

    cluster_check(r);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int there = cairn_pmi_there(kinds[i].kind, found, sizeof found);

        tell(r, there ? OK : NOTE, kinds[i].what, found, kinds[i].get);
    }
}

static void machine_check(struct report *r)
{
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1 << 30);
    struct statvfs v;
    char found[128];

    snprintf(found, sizeof found, "%d cores, %.1f GiB of memory", cairn_cores(), memory);
    tell(r, memory < 1.5 ? NOTE : OK, "processor and memory", found, "recipes/tiny.yaml wants 2 GiB");
    if (!statvfs("/dev/shm", &v)) {
        snprintf(found, sizeof found, "%.1f GiB free", (double)v.f_bavail * (double)v.f_frsize / (1 << 30));
        tell(r, OK, "/dev/shm", found, "");
    } else {
        tell(r, NOTE, "/dev/shm", strerror(errno), "mpirun puts its shared memory there: mount -t tmpfs tmpfs /dev/shm");
    }
    program_check(r, "h5dump", "HDF5's tools", "install hdf5-tools; cairn does not need them, people may");
}

/* ---- the file system of DIR ---------------------------------------------------------------------------------------- */

struct trial {
    char dir[4200];
    char a[4300], b[4300];
};

static const char *link_try(struct trial *t)
{
    int fd = open(t->a, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644);
    const char *bad = NULL;

    if (fd < 0)
        return strerror(errno);
    if (write(fd, "cairn", 5) != 5 || fsync(fd))
        bad = strerror(errno);
    else if (link(t->a, t->b))
        bad = strerror(errno);
    else if (!link(t->a, t->b) || errno != EEXIST)
        bad = "a second link over an existing name is not refused";
    close(fd);
    return bad;
}

static const char *excl_try(struct trial *t)
{
    int fd = open(t->a, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644);

    if (fd >= 0) {
        close(fd);
        return "O_EXCL does not refuse an existing file";
    }
    return errno == EEXIST ? NULL : strerror(errno);
}

static const char *flock_try(struct trial *t)
{
    int a = open(t->a, O_RDWR | O_CLOEXEC), b = open(t->a, O_RDWR | O_CLOEXEC);
    const char *bad = NULL;

    if (a < 0 || b < 0 || flock(a, LOCK_EX | LOCK_NB))
        bad = strerror(errno);
    else if (!flock(b, LOCK_EX | LOCK_NB))
        bad = "two holders at once";
    if (a >= 0)
        close(a);
    if (b >= 0)
        close(b);
    return bad;
}

static const char *dir_sync_try(struct trial *t)
{
    int fd = open(t->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const char *bad = fd < 0 || fsync(fd) ? strerror(errno) : NULL;

    if (fd >= 0)
        close(fd);
    return bad;
}

/* Seconds of one small file written durably: what each commit costs several times. */
static double sync_seconds(struct trial *t)
{
    int fd = open(t->a, O_RDWR | O_CLOEXEC);
    double t0 = cairn_now_s();

    for (int i = 0; fd >= 0 && i < 5; i++)
        if (pwrite(fd, "x", 1, i) != 1 || fsync(fd))
            break;
    if (fd >= 0)
        close(fd);
    return (cairn_now_s() - t0) / 5;
}

static enum cairn_status files_check(struct report *r, const char *dir, struct cairn_error *err)
{
    static const struct {
        const char *what;
        const char *(*run)(struct trial *t);
        enum state bad;
    } tries[] = {{"hard links that refuse to replace", link_try, NOTE}, {"exclusive creation", excl_try, MISSING},
                 {"flock", flock_try, NOTE},                            {"fsync of directories", dir_sync_try, MISSING}};
    struct statvfs v;
    enum cairn_status st = cairn_dir_expect(dir, err);
    struct trial t;
    char found[160];

    if (st != CAIRN_OK)
        return st;
    snprintf(t.dir, sizeof t.dir, "%s/.cairn-doctor.XXXXXX", dir);
    if (strlen(dir) > 4000 || !mkdtemp(t.dir))
        return cairn_fail_errno(err, errno, "%s: cannot make a directory in it", dir);
    snprintf(t.a, sizeof t.a, "%s/a", t.dir);
    snprintf(t.b, sizeof t.b, "%s/b", t.dir);
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        const char *bad = tries[i].run(&t);

        tell(r, bad ? tries[i].bad : OK, tries[i].what, bad ? bad : dir,
             tries[i].run == link_try    ? "runs there commit by renameat2 instead"
             : tries[i].run == flock_try ? "two `cairn run` at once on a run are then only kept apart by their attempts"
                                         : "put runs on another file system");
    }
    snprintf(found, sizeof found, "%.1f ms a small file", 1e3 * sync_seconds(&t));
    tell(r, OK, "durable writes", found, "");
    if (!statvfs(dir, &v)) {
        double gib = (double)v.f_bavail * (double)v.f_frsize / (1 << 30);

        snprintf(found, sizeof found, "%.1f GiB free", gib);
        tell(r, gib < 1 ? NOTE : OK, "space", found, "a run of recipes/tiny.yaml takes some 100 MB");
    }
    unlink(t.a);
    unlink(t.b);
    rmdir(t.dir);
    return CAIRN_OK;
}

/* ---- the verb --------------------------------------------------------------------------------------------------------- */

struct args {
    const char *dir;
    int json;
};

static const struct argp_option options[] = {{"json", 'j', NULL, 0, "print one JSON object", 0}, {0}};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    CAIRN_CLI_TEXT_AT(ARGP_KEY_ARG, struct args, dir),
    {0},
};

static const struct argp argp = {options, NULL, "[DIR]",
                                 "Says what this machine lacks and how to get it; with DIR also whether runs can be kept in that folder. "
                                 "Exit code 72 if something that every run needs is missing.\v"
                                 "Examples:\n  cairn doctor\n  cairn doctor /tmp",
                                 NULL, NULL, NULL};

static void rows_print(const json_t *rows)
{
    size_t i;
    json_t *row;

    json_array_foreach(rows, i, row)
    {
        const char *state = json_string_value(json_object_get(row, "state")), *get = json_string_value(json_object_get(row, "get"));

        printf("  %-8s %-34s %s\n", state, json_string_value(json_object_get(row, "what")), json_string_value(json_object_get(row, "found")));
        if (get && get[0])
            printf("  %-8s %-34s -> %s\n", "", "", get);
    }
}

int cairn_verb_doctor(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    struct report r = {0};
    int done, usage = cairn_cli_read(&argp, slots, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    r.rows = json_array();
    if (!r.rows)
        TRY(CAIRN_NOMEM(&err));
    machine_check(&r);
    stages_check(&r);
    backend_check(&r);
    gpus_check(&r);
    mpi_check(&r);
    slurm_check(&r);
    if (a.dir)
        TRY(files_check(&r, a.dir, &err));
    if (a.json)
        TRY(cairn_cli_json(json_pack("{s:b, s:O}", "fit", !r.missing, "checks", r.rows), &err));
    else
        rows_print(r.rows);
    TRY(cairn_cli_flush(&err));
    if (r.missing)
        TRY(cairn_fail(&err, CAIRN_EDEVICE, "%d things that every run needs are missing", r.missing));
out:
    json_decref(r.rows);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("doctor", &err);
}
