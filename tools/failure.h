/* failure.h - how a link ended last, from its stage's log, and what the failure asks for: to call again helps only where nothing that the
 * link reads is damaged. */
#ifndef CAIRN_TOOLS_FAILURE_H
#define CAIRN_TOOLS_FAILURE_H

#include <jansson.h>

#include "stages/common/run.h"

/* The last event of a link in RUN/log/<stage>.jsonl, with "done" and "total" of the last progress behind its start; or NULL. New
 * reference. */
json_t *cairn_link_event(const struct cairn_run *run, const struct cairn_link *l);

enum cairn_failure {
    CAIRN_FAILURE_OTHER,    /* nothing is known to be damaged: call again once what the sentence names is mended */
    CAIRN_FAILURE_ARTEFACT, /* a committed artefact that the link reads is damaged: cairn verify --repair takes it out */
    CAIRN_FAILURE_GONE,     /* an artefact that the link reads was collected: cairn verify --deep --repair goes back far enough to make it again */
    CAIRN_FAILURE_GIVEN     /* a file that the run was given is missing or changed: cairn verify says how it is put back */
};

/* Of the last event of l, which is not done (NULL: there is none). */
enum cairn_failure cairn_failure_of(const struct cairn_run *run, const struct cairn_link *l, const json_t *event);
/* The command that such a failure asks for ("cairn verify --repair RUN"); 0, and nothing is written: none of its own. */
int cairn_failure_next(enum cairn_failure f, const struct cairn_run *run, char *next, size_t size);

/* What refuses the next call, whatever became of the last one: a file that l, the next link, reads is gone, or the rollouts that the run was to
 * bring are missing or cannot be trained on. 1: the sentence is in reason (cut to size) and the command that helps, if it does not name
 * it, in next. 0: nothing, both untouched. Contents are not looked at. */
int cairn_failure_ahead(const struct cairn_run *run, const struct cairn_link *l, char *reason, size_t size, char *next, size_t next_size);

/* The command that goes on with a run on this machine: cairn run, or of a run that `replay --train` made that call again. */
void cairn_go_on(const struct cairn_run *run, char *command, size_t size);

/* The quarantine ("quarantine/0002") of RUN to which a repair has taken l, the newest if there are several. 1, or 0: none. */
int cairn_link_quarantined(const struct cairn_run *run, const struct cairn_link *l, char *name, size_t size);

#endif
