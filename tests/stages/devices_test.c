/* devices_test.c - which GPU each rank takes, on emulated ones (tests/emu): its own, whatever the launcher shows it; and the sentence
 * where there are too few. Skipped without mpirun, cairn-mpi.so or the emulation.
 */
#include "tests/stages/lab.h"

#include "kernels/backend.h"

/* Ranks of cairn-rollout under mpirun, each through sh, which may show it GPUs of its own. */
static int ranks(int n, const char *gpus, const char *show, const char *run, char said[2000])
{
    char np[20], line[1500];
    struct lab_program p = {0};
    int fd[2], rc;

    snprintf(np, sizeof np, "%d", n);
    snprintf(line, sizeof line, "%s exec %s/bin/cairn-rollout %s --step 1 --quiet", show, cairn_install_dir(), run);
    assert_int_equal(pipe2(fd, O_CLOEXEC), 0);
    fflush(NULL);
    p.pid = fork();
    assert_true(p.pid >= 0);
    if (!p.pid) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
        setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
        setenv("CAIRN_EMU_GPUS", gpus, 1);
        dup2(fd[1], 2);
        execlp("timeout", "timeout", "-k", "30", "120", "mpirun", "-np", np, "sh", "-c", line, NULL);
        _exit(101);
    }
    close(fd[1]);
    p.pipe = fd[0];
    rc = lab_wait(&p);
    memcpy(said, p.said, sizeof p.said);
    return rc;
}

static void ranks_take_their_own(void **state)
{
    static const struct {
        int ranks, refused;
        const char *gpus, *show, *share, *why;
    } cases[] = {
        {2, 0, "2", "", "kernels.share=false", "a GPU for each"},
        {2, 1, "1", "", "kernels.share=false", "one for both"},
        {2, 0, "1", "", "kernels.share=true", "one for both, on purpose"},
        {2, 1, "8", "CUDA_VISIBLE_DEVICES=5", "kernels.share=false", "both are shown the same"},
        {2, 0, "8", "CUDA_VISIBLE_DEVICES=$((4 + OMPI_COMM_WORLD_LOCAL_RANK))", "kernels.share=false", "each is shown one of its own"},
        {3, 0, "8", "CUDA_VISIBLE_DEVICES=6,1,3", "kernels.share=false", "three of eight, shown to all"},
    };
    char said[2000], path[300];
    struct lab l;

    (void)state;
    lab_open(&l);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct cairn_run *run = NULL;
        int rc;

        snprintf(path, sizeof path, "%s/run%zu", l.dir, i);
        OK(lab_init_at(&run, &l, path,
                       LAB_OVERRIDES("kernels.backend=cuda", "kernels.precision=f32", cases[i].share, "rollout.prompts=2", "rollout.samples=2",
                                     "rollout.max_new_tokens=4"),
                       err));
        cairn_run_close(run);
        rc = ranks(cases[i].ranks, cases[i].gpus, cases[i].show, path, said);
        if (rc != (cases[i].refused ? CAIRN_EDEVICE : 0))
            fail_msg("%s: %d: %s", cases[i].why, rc, said);
        if (cases[i].refused && !strstr(said, "ranks 0 and 1 of one node both take emulated GPU"))
            fail_msg("%s: %s", cases[i].why, said);
    }
    lab_close(&l);
}

/* Numbers count among the GPUs that are visible; an id is a GPU's, wherever it is seen from. */
static void numbers_and_ids(void **state)
{
    struct cairn_device_info *all = NULL, *some = NULL;
    struct cairn_compute k;
    int n;

    (void)state;
    setenv("CAIRN_EMU_GPUS", "4", 1);
    OK(cairn_compute_devices("cuda", &all, &n, err));
    assert_int_equal(n, 4);
    setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
    OK(cairn_compute_devices("cuda", &some, &n, err));
    assert_int_equal(n, 2);
    assert_string_equal(some[0].id, all[3].id);
    assert_string_equal(some[1].id, all[1].id);
    assert_string_not_equal(all[0].id, all[1].id);
    for (int rank = 0; rank < 5; rank++) {
        OK(cairn_compute_open(&k, &(struct cairn_compute_opts){.backend = "cuda", .rank = rank}, err));
        assert_string_equal(k.device.id, some[rank % 2].id);
        cairn_compute_close(&k);
    }
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    free(some);
    OK(cairn_compute_devices("cuda", &some, &n, err));
    assert_int_equal(n, 0);
    FAILS(CAIRN_EDEVICE, "no GPU here", cairn_compute_open(&k, &(struct cairn_compute_opts){.backend = "cuda"}, err));
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("CAIRN_EMU_GPUS");
    free(all);
    free(some);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_and_ids), cmocka_unit_test(ranks_take_their_own)};
    char *mpi = cairn_lib_path("cairn-mpi.so"), *emulation = cairn_lib_path("cairn-emu.so");
    int here = mpi && emulation && !access(mpi, R_OK) && !access(emulation, R_OK) && !system("command -v mpirun >/dev/null 2>&1");

    free(mpi);
    free(emulation);
    if (!here) {
        printf("1..0 # SKIP no mpirun, no cairn-mpi.so or no cairn-emu.so\n");
        return 0;
    }
    setenv("CAIRN_CUDA_OBJECT", "cairn-emu.so", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
