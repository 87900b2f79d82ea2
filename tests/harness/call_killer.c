/* Preloaded into a program: ends it just before one of its threads makes its n-th call of a function, as
   `strace -f -e inject=CALL:signal=SIGKILL:when=N` does at many times the price. What it starts is let go. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *chosen = "", *awaited = "";
static long last;
static volatile int armed;
static __thread long made;

__attribute__((constructor)) static void let_children_go(void) { unsetenv("LD_PRELOAD"); }

/* From when a file is there, or from here on if `path` is empty; call 0: at none. */
void kill_at(const char *function, long call, const char *path)
{
    chosen = strdup(function);
    awaited = strdup(path);
    last = call;
    made = 0;
    armed = !*path;
}

static void count(const char *function)
{
    if (!last || strcmp(function, chosen) != 0)
        return;
    if (!armed && access(awaited, F_OK) != 0)
        return;
    armed = 1;
    if (++made == last) {
        kill(getpid(), SIGKILL);
        for (;;)
            pause();
    }
}

#define COUNTED(result, function, call, parameters, ...)                 \
    result function parameters                                           \
    {                                                                    \
        static result(*real) parameters;                                 \
        if (!real)                                                       \
            real = (result(*) parameters)dlsym(RTLD_NEXT, #function);    \
        count(call);                                                     \
        return real(__VA_ARGS__);                                        \
    }

COUNTED(ssize_t, write, "write", (int fd, const void *content, size_t size), fd, content, size)
COUNTED(ssize_t, writev, "writev", (int fd, const struct iovec *pieces, int number), fd, pieces, number)
COUNTED(int, rename, "rename", (const char *from, const char *to), from, to)
COUNTED(int, link, "link", (const char *from, const char *to), from, to)
COUNTED(int, unlink, "unlink", (const char *path), path)
COUNTED(int, mkdir, "mkdir", (const char *path, mode_t mode), path, mode)
COUNTED(int, fsync, "fsync", (int fd), fd)
COUNTED(int, ftruncate, "ftruncate", (int fd, off_t size), fd, size)
COUNTED(int, ftruncate64, "ftruncate", (int fd, off64_t size), fd, size)
