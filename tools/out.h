/* out.h - where `cairn export` and `cairn import` may write: nowhere in what a run is made of. */
#ifndef CAIRN_TOOLS_OUT_H
#define CAIRN_TOOLS_OUT_H

#include "base/status.h"

/* CAIRN_EUSAGE naming the run where `out`, which need not be there yet, is a run or lies in a folder that belongs to one. */
enum cairn_status cairn_out_check(const char *out, struct cairn_error *err);

#endif
