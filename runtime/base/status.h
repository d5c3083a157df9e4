/* status.h - one status, one sentence.
 *
 * Every function that can fail returns enum cairn_status and takes a struct cairn_error * as its last
 * argument (NULL: the caller does not want the sentence). The status values are the exit codes of all
 * cairn programs, so a main() returns what its work returned. Library code never exits and never prints.
 */
#ifndef CAIRN_BASE_STATUS_H
#define CAIRN_BASE_STATUS_H

enum cairn_status {
    CAIRN_OK = 0,
    CAIRN_EUSAGE = 64,   /* the command line is wrong */
    CAIRN_EDATA = 65,    /* bad data: the sentence names file, dataset, row or line */
    CAIRN_ENOINPUT = 69, /* an input artefact is not committed (or was collected) */
    CAIRN_EBUG = 70,     /* a broken invariant of ours */
    CAIRN_EFENCED = 71,  /* another attempt published something else */
    CAIRN_EDEVICE = 72,  /* device missing or unfit */
    CAIRN_ENOSPACE = 73, /* no space */
    CAIRN_EIO = 74,      /* I/O error */
    CAIRN_EAGAIN = 75,   /* stopped early: run me again */
    CAIRN_ENUMERIC = 76, /* the numbers are wrong: policy mismatch, non-finite */
    CAIRN_ERECIPE = 78   /* recipe wrong: file, line, key, nearest valid key */
};

struct cairn_error {
    enum cairn_status code;
    char text[512];
};

/* Formats the sentence into *err (NULL allowed) and returns code. */
enum cairn_status cairn_fail(struct cairn_error *err, enum cairn_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a failed system call: adds strerror(errnum); ENOSPC, EDQUOT and EFBIG (a limit of file sizes)
 * become CAIRN_ENOSPACE, everything else CAIRN_EIO. */
enum cairn_status cairn_fail_errno(struct cairn_error *err, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a failed dlopen: adds why, which is what dlerror() said. A lack of memory becomes CAIRN_ENOSPACE, for then nothing is wrong
 * with the object. */
enum cairn_status cairn_fail_dl(struct cairn_error *err, enum cairn_status code, const char *why, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Puts "context: " in front of the sentence that is there already; returns err's code. */
enum cairn_status cairn_error_prefix(struct cairn_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Short name of a status for logs, for example "EDATA". */
const char *cairn_status_name(enum cairn_status code);

/* Local convention: a variable `enum cairn_status st` and a label `out` at the end of the function. */
#define TRY(call)                     \
    do {                              \
        if ((st = (call)) != CAIRN_OK) \
            goto out;                 \
    } while (0)

#define CAIRN_BUG(err, what) cairn_fail((err), CAIRN_EBUG, "%s:%d: %s", __FILE__, __LINE__, (what))
#define CAIRN_NOMEM(err) cairn_fail((err), CAIRN_ENOSPACE, "%s:%d: out of memory", __FILE__, __LINE__)

#endif
