/* sandbox.h - a child process that may reach little: where code that is not ours meets text that a model wrote.
 *
 * What the child finds, where the kernel lets an ordinary user make namespaces:
 *   processes    it is process 1 of a namespace of its own: its end, by whatever signal, ends everything it started
 *   network      none, not even a loopback; no abstract sockets of others
 *   files        everything is read-only but one private folder in memory (64 MiB), its working folder and TMPDIR, which lies over
 *                /tmp (over /var/tmp where the program itself lies below /tmp); /dev holds null, zero, full and the random ones
 *   privileges   none: no capabilities, no new ones by exec, and with libseccomp no sockets, mounts, namespaces, tracing, keys, modules
 *   descriptors  0, 1, 2 and the one that is named; nothing that the program had open
 *   limits       memory (address space) of each process, number of processes, size of files, no core dumps
 *
 * Where namespaces are refused the rest holds still, what it starts is hunted down when it ends (cairn_sandbox_end), and one line on
 * stderr says what is missing: then it reads, writes and connects as the user who runs it.
 *
 * For a process without threads. Refuses to: know what runs inside.
 */
#ifndef CAIRN_GRADE_SANDBOX_H
#define CAIRN_GRADE_SANDBOX_H

#include <stdint.h>
#include <sys/types.h>

/* 0: address space is not limited, as the shadow of a sanitizer alone takes more. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CAIRN_LIMIT_MEMORY 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CAIRN_LIMIT_MEMORY 0
#endif
#endif
#ifndef CAIRN_LIMIT_MEMORY
#define CAIRN_LIMIT_MEMORY 1
#endif

struct cairn_sandbox {
    const char *name;     /* for the line on stderr */
    const char *program;  /* absolute path that must stay in sight; NULL: none */
    int64_t memory_bytes; /* of address space, each process; 0: no limit */
    int processes;        /* at most at once; 0: no limit. Does not bind root */
};

/* fork into a sandbox: the child's pid, 0 in the child, -1 with errno. keep_fd: the descriptor that stays open beside 0, 1, 2.
 * *whole, in both: 1, or 0 where a namespace is missing. quiet: do not say so. */
pid_t cairn_sandbox_fork(const struct cairn_sandbox *box, int keep_fd, int quiet, int *whole);

/* The limits of memory and processes for this process and what it starts: called in the child where foreign code begins. program:
 * 1: that is another program, which exec puts in our place at once; 0: it runs in this process, whose memory has no limit in
 * sanitizer builds, as those map terabytes. */
void cairn_sandbox_limit(const struct cairn_sandbox *box, int program);

/* In the parent, when child pid has ended: removes what it had for a private folder where there were no namespaces. */
void cairn_sandbox_tidy(pid_t pid);

/* Kills and reaps whatever descends from this process but its (n) children `spare`: all of a namespace, or all orphans that fell to
 * us, found by their parent in /proc. For a subreaper (PR_SET_CHILD_SUBREAPER); where there is no /proc, only what is in a
 * namespace is found. */
void cairn_sandbox_end(const pid_t *spare, int n);

#endif
