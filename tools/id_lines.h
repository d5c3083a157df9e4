/* id_lines.h - JSON lines {"ids": [...]} as token sequences, some lines at a time, with errors that name the line. */
#ifndef CAIRN_TOOLS_ID_LINES_H
#define CAIRN_TOOLS_ID_LINES_H

#include <stdint.h>

#include "base/json.h"
#include "model/config.h"
#include "text/ids.h"

struct cairn_id_lines;

/* FILE may be a pipe. c: ids must be in its vocabulary and text, sequences (with `more` tokens behind them) within its positions; borrowed. */
enum cairn_status cairn_id_lines_open(struct cairn_id_lines **out, const char *path, const struct cairn_model_config *c, int64_t more,
                                      struct cairn_error *err);
void cairn_id_lines_close(struct cairn_id_lines *l);

struct cairn_id_line {
    struct cairn_ids ids;
    int64_t number; /* of the line, from 1 */
};

/* The next lines, at most `lines` of them and (but for the first) `tokens` tokens, into line[0 .. *n): caller frees each with
 * cairn_ids_free. *n = 0: the end. A bad line after good ones: the good ones are given, the next call fails. */
enum cairn_status cairn_id_lines_next(struct cairn_id_lines *l, struct cairn_id_line *line, int lines, int64_t tokens, int *n,
                                      struct cairn_error *err);

#endif
