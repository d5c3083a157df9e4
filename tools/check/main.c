/* main.c - cairn-check: the gate as the first link of a chain (check.h).
 *
 * The stage contract is the others': a manifest says that it held, and with it how (info.report); without one nothing of the chain begins.
 * What it found lies in RUN/check/finding.json and, as one sentence, in RUN/log/check.jsonl, where `cairn status` reads it.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "stages/common/stage.h"
#include "tools/check/check.h"

static enum cairn_status finding_write(const struct cairn_stage_ctx *ctx, const json_t *report, struct cairn_error *err)
{
    char *path = cairn_path_join(ctx->dir, "finding.json"), *text = json_dumps(report, JSON_INDENT(2));
    enum cairn_status st = path && text ? cairn_file_replace(path, text, strlen(text), err) : CAIRN_NOMEM(err);

    free(path);
    free(text);
    return st;
}

static enum cairn_status work(struct cairn_stage_ctx *ctx, struct cairn_error *err)
{
    const struct cairn_check_opts o = {.dir = ctx->run->dir, .first = 0, .last = 5, .threads = (int)ctx->threads};
    struct cairn_error why = {0};
    enum cairn_status st = CAIRN_OK, found;
    json_t *report = NULL;
    char *path = NULL;

    if (ctx->world->rank)
        goto out;
    found = cairn_check_run(&o, &report, err);
    if (found == CAIRN_ENUMERIC && finding_write(ctx, report, &why) != CAIRN_OK)
        cairn_warn("%s", why.text);
    TRY(found);
    if (!(path = cairn_path_join(ctx->dir, "finding.json")))
        TRY(CAIRN_NOMEM(err));
    unlink(path); /* of a try before */
    if (json_object_set_new(ctx->manifest->content, "holds", json_true()) || json_object_set(ctx->manifest->info, "report", report))
        TRY(CAIRN_NOMEM(err));
out:
    json_decref(report);
    free(path);
    return st;
}

int main(int argc, char **argv)
{
    static const struct cairn_stage_def def = {
        .stage = CAIRN_STAGE_CHECK,
        .doc = "Proves that trainer and sampler are one policy before the first rollout (run.check: first); 76 if they are not.\v"
               "Examples:\n  cairn-check /tmp/tiny --step 0\n  srun -n1 cairn-check RUN --step 0 --quiet",
        .work = work,
    };

    return cairn_stage_main(argc, argv, &def);
}
