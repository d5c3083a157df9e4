/* sandbox.c - namespaces, mounts, limits, system calls. See sandbox.h. */
#include "grade/sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef CAIRN_HAVE_SECCOMP
#include <seccomp.h>
#endif

#include "base/file.h"
#include "base/str.h"

#define PRIVATE_SIZE "size=64m,mode=1777"
#define FILE_BYTES   ((rlim_t)64 << 20)
#define FILES_OPEN   256

static const char *const devices[] = {"null", "zero", "full", "random", "urandom"};
#define DEVICES ((int)(sizeof devices / sizeof *devices))

/* --- files ------------------------------------------------------------------------------------------------------------- */

static int write_line(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC), ok;

    if (fd < 0)
        return 0;
    ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return ok;
}

/* We stay who we are, alone in our user namespace. */
static int map_user(uid_t uid, gid_t gid)
{
    char line[64];

    write_line("/proc/self/setgroups", "deny");
    snprintf(line, sizeof line, "%u %u 1", uid, uid);
    if (!write_line("/proc/self/uid_map", line))
        return 0;
    snprintf(line, sizeof line, "%u %u 1", gid, gid);
    return write_line("/proc/self/gid_map", line);
}

/* mount_setattr(2) came with Linux 5.12 and younger C libraries. */
struct attributes {
    uint64_t set, clear, propagation, userns;
};

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#define ATTRIBUTE_RDONLY 1
#define ATTRIBUTE_NOSUID 2
#define EVERY_MOUNT      0x8000 /* AT_RECURSIVE */

static int read_only_everywhere(void)
{
    const struct attributes a = {.set = ATTRIBUTE_RDONLY | ATTRIBUTE_NOSUID};

    return syscall(SYS_mount_setattr, AT_FDCWD, "/", EVERY_MOUNT, &a, sizeof a) == 0;
}

static int beneath(const char *path, const char *dir)
{
    size_t n = strlen(dir);

    return path && strncmp(path, dir, n) == 0 && (path[n] == '/' || !path[n]);
}

static int private_folder(const struct cairn_sandbox *box)
{
    static const char *const places[] = {"/tmp", "/var/tmp", "/dev/shm", "/run"};
    char real[PATH_MAX];
    const char *program = box->program && realpath(box->program, real) ? real : box->program;

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (beneath(program, places[i]) || beneath(box->program, places[i]))
            continue;
        if (mount("tmpfs", places[i], "tmpfs", MS_NOSUID | MS_NODEV, PRIVATE_SIZE) != 0)
            continue;
        setenv("TMPDIR", places[i], 1);
        setenv("HOME", places[i], 1);
        return chdir(places[i]) == 0;
    }
    return 0;
}

/* /dev becomes a folder of our own with the harmless ones. */
static int few_devices(void)
{
    int fd[DEVICES], ok = 1;

    for (int i = 0; i < DEVICES; i++) {
        char path[64];

        snprintf(path, sizeof path, "/dev/%s", devices[i]);
        fd[i] = open(path, O_PATH | O_CLOEXEC);
    }
    ok = mount("tmpfs", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,mode=755") == 0;
    for (int i = 0; i < DEVICES; i++) {
        char path[64], from[64];
        int made;

        if (fd[i] < 0)
            continue;
        snprintf(path, sizeof path, "/dev/%s", devices[i]);
        snprintf(from, sizeof from, "/proc/self/fd/%d", fd[i]);
        if (ok && (made = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0666)) >= 0) {
            close(made);
            ok = mount(from, path, NULL, MS_BIND, NULL) == 0;
        }
        close(fd[i]);
    }
    if (ok) {
        ok = symlink("/proc/self/fd", "/dev/fd") == 0 && symlink("/proc/self/fd/0", "/dev/stdin") == 0 &&
             symlink("/proc/self/fd/1", "/dev/stdout") == 0 && symlink("/proc/self/fd/2", "/dev/stderr") == 0;
        mount(NULL, "/dev", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC, NULL);
    }
    return ok;
}

/* NULL, or what could not be had. */
static const char *enclose(const struct cairn_sandbox *box, uid_t uid, gid_t gid)
{
    if (!map_user(uid, gid))
        return "a user namespace";
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || !read_only_everywhere())
        return "read-only files";
    if (!few_devices())
        return "devices of its own";
    if (!private_folder(box))
        return "a private folder";
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0)
        return "its own /proc";
    return NULL;
}

/* --- privileges -------------------------------------------------------------------------------------------------------- */

static void give_up_capabilities(void)
{
    struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};

    for (int c = 0; c < 64; c++)
        prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
    syscall(SYS_capset, &h, none);
}

#ifdef CAIRN_HAVE_SECCOMP
static const char *const refused[] = {
    "socket",
    "connect",
    "bind",
    "listen",
    "accept",
    "accept4",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "mount",
    "umount",
    "umount2",
    "pivot_root",
    "chroot",
    "unshare",
    "setns",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    "keyctl",
    "add_key",
    "request_key",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "settimeofday",
    "clock_settime",
    "adjtimex",
    "sethostname",
    "setdomainname",
    "io_uring_setup",
    "open_by_handle_at",
    "name_to_handle_at",
    "quotactl",
    "syslog",
    "iopl",
    "ioperm",
    "personality",
    "mbind",
    "migrate_pages",
    "move_pages",
};

static int filter_calls(void)
{
    scmp_filter_ctx f = seccomp_init(SCMP_ACT_ALLOW);
    const uint64_t spaces =
        CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
    int ok = f != NULL;

    for (size_t i = 0; ok && i < sizeof refused / sizeof *refused; i++) {
        int nr = seccomp_syscall_resolve_name(refused[i]);

        if (nr != __NR_SCMP_ERROR)
            ok = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), nr, 0) == 0;
    }
    for (int bit = 0; ok && bit < 64; bit++)
        if (spaces >> bit & 1)
            ok = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                                  SCMP_A0(SCMP_CMP_MASKED_EQ, (uint64_t)1 << bit, (uint64_t)1 << bit)) == 0;
    /* clone3's flags lie in memory: C libraries fall back to clone */
    ok = ok && seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0) == 0;
    ok = ok && seccomp_load(f) == 0;
    if (f)
        seccomp_release(f);
    return ok;
}
#else
static int filter_calls(void)
{
    return 0;
}
#endif

static void close_others(int keep_fd)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (null >= 0)
        dup2(null, STDIN_FILENO);
    if (null >= 0)
        dup2(null, STDOUT_FILENO);
    if (keep_fd > 3)
        syscall(SYS_close_range, 3U, (unsigned)keep_fd - 1, 0U);
    syscall(SYS_close_range, (unsigned)(keep_fd > 2 ? keep_fd : 2) + 1, ~0U, 0U);
}

static void set_limit(int what, rlim_t most)
{
    struct rlimit l;

    if (getrlimit(what, &l) != 0)
        return;
    if (l.rlim_max == RLIM_INFINITY || l.rlim_max > most)
        l.rlim_max = most;
    l.rlim_cur = l.rlim_max;
    setrlimit(what, &l);
}

void cairn_sandbox_limit(const struct cairn_sandbox *box, int program)
{
    if (box->processes)
        set_limit(RLIMIT_NPROC, (rlim_t)box->processes);
    set_limit(RLIMIT_FSIZE, FILE_BYTES);
    set_limit(RLIMIT_NOFILE, FILES_OPEN);
    set_limit(RLIMIT_CORE, 0);
    if ((CAIRN_LIMIT_MEMORY || program) && box->memory_bytes)
        set_limit(RLIMIT_AS, (rlim_t)box->memory_bytes);
}

/* --- the fork ---------------------------------------------------------------------------------------------------------- */

/* Without namespaces: a folder that is ours alone until the child ends, in the place of the private one. */
static char *plain_folder(pid_t pid)
{
    const char *tmp = getenv("TMPDIR");

    return cairn_format("%s/cairn-grader.%ld", tmp && tmp[0] == '/' ? tmp : "/tmp", (long)pid);
}

static void plain_folder_enter(void)
{
    char *path = plain_folder(getpid());

    if (path && mkdir(path, 0700) == 0 && chdir(path) == 0) {
        setenv("TMPDIR", path, 1);
        setenv("HOME", path, 1);
    } else if (chdir("/") != 0) {
        _exit(1);
    }
    free(path);
}

void cairn_sandbox_tidy(pid_t pid)
{
    char *path = plain_folder(pid);

    if (path && cairn_path_is_dir(path))
        cairn_tree_remove(path, NULL);
    free(path);
}

pid_t cairn_sandbox_fork(const struct cairn_sandbox *box, int keep_fd, int quiet, int *whole)
{
    const int spaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
    uid_t uid = geteuid();
    gid_t gid = getegid();
    const char *missing = NULL;
    pid_t pid;

    *whole = 1;
    pid = (pid_t)syscall(SYS_clone, (long)(spaces | SIGCHLD), 0L, 0L, 0L, 0L);
    if (pid < 0) {
        *whole = 0;
        missing = "namespaces";
        pid = fork();
    }
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    close_others(keep_fd);
    if (*whole && (missing = enclose(box, uid, gid)))
        *whole = 0;
    if (!*whole)
        plain_folder_enter();
    give_up_capabilities();
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (!filter_calls() && !missing)
        missing = "a filter of system calls";
    if (missing && !quiet)
        fprintf(stderr, "WARNING: grader %s: %s cannot be had here: what it runs is not fully shut in%s\n", box->name, missing,
                *whole ? "" : "; it can read, write and connect as you can");
    return 0;
}

/* Who started process pid; 0: it is gone. Its name, in brackets, may hold anything. */
static pid_t parent_of(const char *pid)
{
    char path[300], line[512], *end;
    FILE *f;
    size_t n;
    int parent = 0;

    snprintf(path, sizeof path, "/proc/%.200s/stat", pid);
    if (!(f = fopen(path, "re")))
        return 0;
    n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    end = strrchr(line, ')');
    return end && sscanf(end + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

/* A child of ours that is not spared; 0: none. Whatever lost its parent below us is one, as we are a subreaper. */
static pid_t some_child(const pid_t *spare, int n)
{
    DIR *d = opendir("/proc");
    struct dirent *e;
    long found = 0;

    while (d && !found && (e = readdir(d))) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9' || parent_of(e->d_name) != getpid())
            continue;
        found = strtol(e->d_name, NULL, 10);
        for (int i = 0; i < n; i++)
            if (spare[i] == found)
                found = 0;
    }
    if (d)
        closedir(d);
    return (pid_t)found;
}

void cairn_sandbox_end(const pid_t *spare, int n)
{
    pid_t pid;

    if (getpid() == 1) { /* of a namespace, where a /proc may be another's: all of it but us */
        kill(-1, SIGKILL);
        while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
            ;
        return;
    }
    while ((pid = some_child(spare, n))) { /* whose own children fall to us then */
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
}
