/* unruly.c - build/tests/unruly TOKEN: a grader's program that does its worst: what the response says. For foreign_test.c.
 *
 * TOKEN tells its processes from all others. Foreign on purpose: it is linked with nothing of ours and never sanitized nor run
 * under valgrind, so that the sandbox's limits meet what they are for. $UNRULY_OUTSIDE: a file that it tries to write.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

static int can_write(const char *path)
{
    int fd = open(path, O_CREAT | O_WRONLY, 0600);

    if (fd < 0)
        return 0;
    close(fd);
    return 1;
}

static int can_connect(void)
{
    return socket(AF_UNIX, SOCK_STREAM, 0) >= 0 || socket(AF_INET, SOCK_STREAM, 0) >= 0;
}

static void spawn_sleepers(int n)
{
    for (int i = 0; i < n; i++)
        if (fork() == 0) {
            setsid();
            for (;;)
                pause();
        }
}

static void flood(int fd)
{
    char block[65536];

    memset(block, 'x', sizeof block);
    for (int i = 0; i < 256; i++)
        if (write(fd, block, sizeof block) < 0)
            return;
}

static void reply(const char *id, const char *rest)
{
    printf("{\"id\":%s,%s}\n", id, rest);
    fflush(stdout);
}

static int other_descriptors(void)
{
    int n = 0;

    for (int fd = 3; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

int main(void)
{
    static char line[1 << 20];

    while (fgets(line, sizeof line, stdin)) {
        char id[32] = "0";
        const char *word = strstr(line, "\"response\":\"");

        sscanf(line, "{\"id\":%31[0-9]", id);
        word = word ? word + 12 : "";
#define SAYS(w) (strncmp(word, w "\"", sizeof(w)) == 0)
        if (SAYS("right"))
            reply(id, "\"match\":true,\"extracted\":\"it\",\"why\":\"so\"");
        else if (SAYS("last")) { /* its work is done */
            reply(id, "\"match\":true");
            exit(0);
        } else if (SAYS("lingers")) { /* ... but it takes its time to go, and reads nothing more */
            reply(id, "\"match\":true");
            usleep(60000);
            exit(0);
        } else if (SAYS("deaf")) { /* ... or never goes */
            reply(id, "\"match\":true");
            close(0);
            close(1);
            sleep(600);
        } else if (SAYS("slowonce")) { /* where it was never before */
            if (can_write("slept-here") && access("slept-here-before", F_OK) != 0) {
                can_write("slept-here-before");
                sleep(600);
            }
            reply(id, "\"match\":true");
        } else if (SAYS("half"))
            reply(id, "\"score\":0.5");
        else if (SAYS("two"))
            reply(id, "\"score\":2");
        else if (SAYS("none"))
            reply(id, "\"answer\":false");
        else if (SAYS("sleep"))
            sleep(600);
        else if (SAYS("crash")) {
            fprintf(stderr, "first line\nthe heart is broken\n");
            abort();
        } else if (SAYS("exit"))
            exit(5);
        else if (SAYS("garbage"))
            printf("what?\n"), fflush(stdout);
        else if (SAYS("others"))
            reply("999999", "\"match\":true");
        else if (SAYS("twice")) {
            printf("{\"id\":%s,\"match\":false}\n{\"id\":%s,\"match\":true}\n", id, id);
            fflush(stdout);
        } else if (SAYS("flood"))
            flood(1);
        else if (SAYS("complain")) {
            flood(2);
            reply(id, "\"match\":true");
        } else if (SAYS("fork")) {
            spawn_sleepers(8);
            reply(id, "\"match\":true");
        } else if (SAYS("forkcrash")) {
            spawn_sleepers(8);
            abort();
        } else if (SAYS("close")) {
            close(1);
            sleep(600);
        } else if (SAYS("write"))
            reply(id, can_write(getenv("UNRULY_OUTSIDE")) || can_write("/etc/cairn-unruly") ? "\"match\":true" : "\"match\":false");
        else if (SAYS("inside"))
            reply(id, can_write("mine") && can_write("/dev/null") ? "\"match\":true" : "\"match\":false");
        else if (SAYS("socket"))
            reply(id, can_connect() ? "\"match\":true" : "\"match\":false");
        else if (SAYS("remount"))
            reply(id, mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL) == 0 || umount("/tmp") == 0 ? "\"match\":true"
                                                                                                     : "\"match\":false");
        else if (SAYS("descriptors"))
            reply(id, other_descriptors() ? "\"match\":true" : "\"match\":false");
        else if (SAYS("once")) { /* dies where it was never before; its private folder outlives it */
            if (can_write("been-here") && access("been-here-before", F_OK) != 0) {
                can_write("been-here-before");
                abort();
            }
            reply(id, "\"match\":true");
        } else if (SAYS("memory")) {
            size_t n = 0;

            while (malloc((size_t)16 << 20) && n < 1024)
                n++;
            reply(id, n < 64 ? "\"match\":false" : "\"match\":true");
        }
    }
    return 0;
}
