/* status.c - formats the sentences of status.h. */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum cairn_status cairn_fail(struct cairn_error *err, enum cairn_status code, const char *fmt, ...)
{
    if (err) {
        /* an argument may be err->text itself, so format beside it first */
        char text[sizeof err->text];
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        memcpy(err->text, text, sizeof text);
        err->code = code;
    }
    return code;
}

enum cairn_status cairn_fail_errno(struct cairn_error *err, int errnum, const char *fmt, ...)
{
    enum cairn_status code = errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG ? CAIRN_ENOSPACE : CAIRN_EIO;

    if (err) {
        char text[sizeof err->text];
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        snprintf(err->text, sizeof err->text, "%.400s: %s", text, strerror(errnum));
        err->code = code;
    }
    return code;
}

/* glibc's words: its own where it could not even make a sentence, else those of errno behind one. */
static int lacks_memory(const char *why)
{
    return !why || strstr(why, strerror(ENOMEM)) || strstr(why, "out of memory");
}

enum cairn_status cairn_fail_dl(struct cairn_error *err, enum cairn_status code, const char *why, const char *fmt, ...)
{
    code = lacks_memory(why) ? CAIRN_ENOSPACE : code;
    if (err) {
        char text[sizeof err->text];
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        snprintf(err->text, sizeof err->text, "%.200s: %.300s", text, why ? why : "out of memory");
        err->code = code;
    }
    return code;
}

enum cairn_status cairn_error_prefix(struct cairn_error *err, const char *fmt, ...)
{
    char front[sizeof err->text], all[sizeof err->text];
    va_list ap;

    if (!err)
        return CAIRN_EBUG;
    va_start(ap, fmt);
    vsnprintf(front, sizeof front, fmt, ap);
    va_end(ap);
    snprintf(all, sizeof all, "%.200s: %.300s", front, err->text);
    memcpy(err->text, all, sizeof all);
    return err->code;
}

const char *cairn_status_name(enum cairn_status code)
{
    switch (code) {
    case CAIRN_OK: return "OK";
    case CAIRN_EUSAGE: return "EUSAGE";
    case CAIRN_EDATA: return "EDATA";
    case CAIRN_ENOINPUT: return "ENOINPUT";
    case CAIRN_EBUG: return "EBUG";
    case CAIRN_EFENCED: return "EFENCED";
    case CAIRN_EDEVICE: return "EDEVICE";
    case CAIRN_ENOSPACE: return "ENOSPACE";
    case CAIRN_EIO: return "EIO";
    case CAIRN_EAGAIN: return "EAGAIN";
    case CAIRN_ENUMERIC: return "ENUMERIC";
    case CAIRN_ERECIPE: return "ERECIPE";
    }
    return "unknown";
}
