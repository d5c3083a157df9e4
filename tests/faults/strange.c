/* strange.c - a run directory that is not as we left it: files of others, other clocks, locks and epochs of processes that are gone, another
 * recipe (F13, F15, F16, F19, F33, F44, F45, F47, F48).
 *
 * Each case is a state of the run, something done to it by sh (R: the run, O: a finished run of the same recipe with another seed, M: the
 * recipe, B: where the programs are), and what `cairn run` does next: go on to the same bits (extra files stay where they are), or end with one code
 * and a sentence that holds certain words.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/faults/faults.h"

struct strange {
    const char *what;
    const char *script;
    const char *args;  /* further words for `cairn run`, or NULL */
    long skew;         /* of its clock, seconds */
    int code;
    const char *words; /* of the sentence, where code is not 0 */
    const char *stays; /* a path below the run that must still be there */
    const char *plan;  /* for the shim, or NULL */
};

/* One of two array tasks has made its half and is gone. */
#define HALF_A_ROLLOUT "$B/cairn-rollout $R --step 2 --shard 1/2 --quiet && [ ! -e $R/step/000002/rollout/MANIFEST.json ]"

/* Before step 2's rollout. */
static const struct strange cases[] = {
    {"unknown files in a generation", "echo x >$R/policy/000001/junk; mkdir $R/policy/000001/more; echo x >$R/policy/000001/a1/extra.h5", NULL, 0, 0,
     NULL, "policy/000001/a1/extra.h5", NULL},
    {"unknown directories beside generations", "mkdir $R/policy/junk $R/step/old $R/policy/g999999999; echo x >$R/policy/junk/MANIFEST", NULL, 0, 0,
     NULL, "policy/junk/MANIFEST", NULL},
    {"a far generation of another run", "cp -r $O/policy/000002 $R/policy/999999999", NULL, 0, 0, NULL, "policy/999999999/a1/weights-00000.h5", NULL},
    {"a far trainer state of another run", "mkdir -p $R/step/000900; cp -r $O/step/000002/train $R/step/000900/train", NULL, 0, 0, NULL,
     "step/000900/train/a1/master-00000.h5", NULL},
    {"the policy is another run's", "rm -r $R/policy/000001; cp -r $O/policy/000001 $R/policy/000001", NULL, 0, 65, "policy/000001 was made for run",
     NULL, NULL},
    {"the policy is another step's", "rm -r $R/policy/000001; cp -r $R/policy/000000 $R/policy/000001", NULL, 0, 65, "of step 0", NULL, NULL},
    {"the policy is a trainer state", "rm -r $R/policy/000001; cp -r $R/step/000001/train $R/policy/000001", NULL, 0, 65, "holds a trainer", NULL,
     NULL},
    {"temporaries of dead processes", "echo x >$R/run.json.tmp.0123456789abcdef; echo x >$R/files/model.tokenizer.tmp.0123456789abcdef", NULL, 0, 0,
     NULL, "run.json", NULL},
    {"an attempt of a process that is gone",
     "d=$R/step/000002/rollout; mkdir -p $d/epoch $d/a1; sed 's/\"pid\": *[0-9]*/\"pid\": 999999/' $R/step/000001/rollout/epoch/1 >$d/epoch/1; echo "
     "x >$d/a1/x.h5",
     NULL, 0, 0, NULL, "step/000002/rollout/MANIFEST.json", NULL},
    {"a torn epoch file and a torn entry",
     "d=$R/step/000002/rollout; mkdir -p $d/epoch $d/a1; printf '{' >$d/epoch/1; printf '{' >$d/a1/unit-000000.json", NULL, 0, 0, NULL,
     "step/000002/rollout/MANIFEST.json", NULL},
    {"rollouts of another step in an attempt that was given up",
     "d=$R/step/000002/rollout; mkdir -p $d/epoch; cp $R/step/000001/rollout/epoch/1 $d/epoch/1; cp -r $R/step/000001/rollout/a1 $d/a1", NULL, 0, 0,
     NULL, "step/000002/rollout/MANIFEST.json", NULL},
    {"the same rollouts in two attempts that were given up",
     HALF_A_ROLLOUT " && d=$R/step/000002/rollout && a=$(ls -d $d/a*) && cp -r $a $d/a7 && cp $d/epoch/${a##*/a} $d/epoch/7", NULL, 0, 0, NULL,
     "step/000002/rollout/MANIFEST.json", NULL},
    {"rollouts that are scored twice",
     "$B/cairn-rollout $R --step 2 --quiet && $B/cairn-score $R --step 2 --quiet && $B/cairn-score $R --step 2 --quiet && "
     "[ $(ls -d $R/step/000002/score/a* | wc -l) = 1 ]",
     NULL, 0, 0, NULL, "step/000002/score/MANIFEST.json", NULL},
    {"stored rollouts that were replayed: the same scores, the same bits",
     "$B/cairn replay $R --score $M --changes --quiet --only step=1 | grep -q 'changed: 0 verdicts, 0 rewards, 0 advantages of [1-9]' && "
     "$B/cairn-rollout $R --step 2 --quiet && $B/cairn replay $R --regenerate --quiet --only step=2 >/dev/null",
     NULL, 0, 0, NULL, "replay", NULL},
    {"a directory of an attempt without its epoch", "d=$R/step/000002/rollout; mkdir -p $d/a1 $d/a7; echo x >$d/a7/unit-000000.h5", NULL, 0, 0, NULL,
     "step/000002/rollout/MANIFEST.json", NULL},
    {"a lock file of somebody who is gone", "echo 'host elsewhere pid 1' >$R/.lock", NULL, 0, 0, NULL, NULL, NULL},
    {"a pin of somebody who is gone",
     "for s in 000000 000001; do mkdir $R/step/$s/train/pin; sed 's/\"pid\": *[0-9]*/\"pid\": 999999/' $R/step/000001/rollout/epoch/1 "
     ">$R/step/$s/train/pin/x; done",
     NULL, 0, 0, NULL, NULL, NULL},
    {"a clock that is an hour ahead", ":", NULL, 3600, 0, NULL, NULL, NULL},
    {"a clock that is an hour behind", ":", NULL, -3600, 0, NULL, NULL, NULL},
    {"a clock of 1970", ":", NULL, -1700000000, 0, NULL, NULL, NULL},
    {"files of the future", "find $R -exec touch -d '2037-01-01' {} +", NULL, 0, 0, NULL, NULL, NULL},
    {"files of equal times", "find $R -exec touch -d '2001-01-01' {} +", NULL, 0, 0, NULL, NULL, NULL},
    {"a clock that goes back an hour in the middle of each stage", ":", NULL, 0, 0, NULL, NULL, "n=60 kind=jump ms=-3600000"},
    {"a clock that goes ahead a day in the middle of each stage", ":", NULL, 0, 0, NULL, NULL, "n=60 kind=jump ms=86400000"},
    {"a rollout that goes on with two tasks", HALF_A_ROLLOUT, "rollout.tasks=2", 0, 0, NULL, NULL, NULL},
    {"a rollout that goes on with two ranks", HALF_A_ROLLOUT, "rollout.parallel.dp=2", 0, 0, NULL, NULL, NULL},
    {"scores by three tasks", ":", "score.tasks=3", 0, 0, NULL, NULL, NULL},
    {"another number of ranks for the trainer", ":", "train.parallel.dp=2", 0, 78, "train.parallel.dp", NULL, NULL},
    {"another learning rate", ":", "train.learning_rate=0.5", 0, 78, "train.learning_rate", NULL, NULL},
    {"another seed", ":", "run.seed=8", 0, 78, "run.seed", NULL, NULL},
    {"another width", ":", "model.init.hidden_size=16", 0, 78, "hidden_size", NULL, NULL},
    {"fewer threads are fine", ":", "kernels.threads=2", 0, 0, NULL, NULL, NULL},
    {"a read-only log directory", "[ \"$(id -u)\" = 0 ] && rm -rf $R/log && touch $R/log || chmod 500 $R/log", NULL, 0, 74, "log", NULL, NULL},
    {"a prompts copy that changed", "echo >>$R/files/data.prompts.0", NULL, 0, 65, "data.prompts.0", NULL, NULL},
};
#define CASES ((int)(sizeof cases / sizeof *cases))

struct stranger {
    const struct lab *lab;
    char *other;
    int from; /* link */
};

static int trial(void *arg, long i, const char *box, char *why)
{
    const struct stranger *s = arg;
    const struct strange *c = &cases[i];
    char run[600], scratch[2][600], skew[40], path[1300], *sh, *digest = NULL;
    struct lab_exec x = {.box = box, .root = run, .plan = ""};
    struct lab_end e;
    double t0;
    int ok, n = 0;

    if (c->args && strstr(c->args, "dp=") && !c->code && !lab_has_mpirun())
        return 2;
    snprintf(run, sizeof run, "%s/run", box);
    lab_argv_run(s->lab, "run", run, &x, scratch);
    while (x.argv[n])
        n++;
    x.argv[n] = c->args;
    x.program = NULL;
    if (c->plan)
        x.plan = c->plan;
    lab_copy(s->lab->before[s->from], run);
    sh = lab_text("R='%s' O='%s' M='%s' B='%s'; %s", run, s->other, s->lab->recipe, s->lab->bin, c->script);
    if (system(sh))
        lab_die("%s: %s failed", c->what, sh);
    free(sh);
    snprintf(skew, sizeof skew, "%ld", c->skew);
    setenv("CAIRN_FAULT_SKEW", skew, 1);
    t0 = lab_now();
    lab_run(s->lab, &x, &e);
    unsetenv("CAIRN_FAULT_SKEW");
    snprintf(path, sizeof path, "%s/%s", run, c->stays ? c->stays : "");
    if (e.code != c->code || e.late || e.orphans || e.outside)
        snprintf(why, WHY_BYTES, "ended with %d after %.1f s: %.350s (%.150s)", e.code, lab_now() - t0, e.last, e.where);
    else if (c->code && !strstr(e.last, c->words) && !strstr(e.first, c->words))
        snprintf(why, WHY_BYTES, "does not say \"%s\": %.500s", c->words, e.last);
    else if (c->stays && access(path, F_OK))
        snprintf(why, WHY_BYTES, "%s is gone", c->stays);
    else if (!c->code) {
        char *kept = s->lab->digest, *p;

        if (!(digest = lab_digest(run, why)))
            return 1;
        ok = 1;
        for (p = kept; ok && *p; p += strcspn(p, "\n") + 1) { /* every line of the undisturbed run is there; strangers may be, too */
            char line[300];

            snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
            ok = strstr(digest, line) != NULL;
            if (!ok)
                snprintf(why, WHY_BYTES, "missing: %s", line);
        }
        free(digest);
        return !ok;
    } else {
        return 0;
    }
    return 1;
}

static void name_of(void *arg, long i, char *out, size_t n)
{
    (void)arg;
    snprintf(out, n, "strange: %s", cases[i].what);
}

long faults_strange(const struct faults_opts *o)
{
    const struct lab *lab = lab_get(LAB_WHOLE);
    struct stranger s = {.lab = lab, .from = lab_link(lab, CAIRN_STAGE_ROLLOUT, 2, NULL)};
    char *box = lab_text("%s/strange", lab->work), scratch[2][600];
    struct lab_exec x = {.box = box};
    struct lab_counts c;
    struct lab_end e;
    double t0 = lab_now();
    int n = 0;

    lab_part_pools(1);
    s.other = lab_text("%s/run", box);
    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    lab_argv_run(lab, "run", s.other, &x, scratch);
    while (x.argv[n])
        n++;
    x.argv[n++] = "run.seed=11";
    x.argv[n] = NULL;
    lab_run(lab, &x, &e);
    if (e.code)
        lab_die("run ended with %d: %s", e.code, e.last);
    c = lab_pool_run(lab, &(struct lab_pool){o->jobs, CASES, trial, name_of, &s}, "strange");
    tap(!c.violated, "strange: %ld of %d strange states of a run, %ld violations, %.0f s", c.held + c.violated, CASES, c.violated, lab_now() - t0);
    sum("%ld of %d strange states of a run, %ld violations", c.held + c.violated, CASES, c.violated);
    lab_remove(box);
    free(box);
    free(s.other);
    return c.violated;
}
