/* Preloaded into root's programs: at each call that names a file in a folder of EXCHANGER_UID's, each component of the name that this
   user could exchange becomes, in turn, a link to a place that only root may write and whose files only root may read. The call is
   made, what it did out there is noted in EXCHANGER_REPORT, the component is put back, and the call is made as it was meant. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

static uid_t user;
static char outside[PATH_MAX];
static char report[PATH_MAX];
static char within[PATH_MAX];
static __thread int busy;

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("EXCHANGER_UID");
    user = text ? (uid_t)atoi(text) : 0;
    snprintf(outside, sizeof outside, "%s", getenv("EXCHANGER_OUTSIDE") ? getenv("EXCHANGER_OUTSIDE") : "");
    snprintf(within, sizeof within, "%s", getenv("EXCHANGER_WITHIN") ? getenv("EXCHANGER_WITHIN") : "");
    snprintf(report, sizeof report, "%s", getenv("EXCHANGER_REPORT") ? getenv("EXCHANGER_REPORT") : "");
}

/* The library's own calls go straight to the kernel, as no other function here may be met by them. */
static int raw_open(const char *path, int flags, int mode) { return syscall(SYS_openat, AT_FDCWD, path, flags, mode); }
static int raw_lstat(const char *path, struct stat *status)
{
    return syscall(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
static int raw_rename(const char *from, const char *to) { return syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to); }
static int raw_unlink(const char *path) { return syscall(SYS_unlinkat, AT_FDCWD, path, 0); }
static int raw_mkdir(const char *path) { return syscall(SYS_mkdirat, AT_FDCWD, path, 0755); }

static void say(const char *verdict, const char *function, const char *path, const char *component)
{
    char line[3 * PATH_MAX];
    int size = snprintf(line, sizeof line, "%s\t%s\t%s\t%s\t%d\n", verdict, function, path, component, (int)getpid());
    int file = raw_open(report, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) {
        if (syscall(SYS_write, file, line, size) != size)
            abort();
        syscall(SYS_close, file);
    }
}

/* Where a call leads, as an absolute name; empty where that is no matter of folders. Returns from where on its components are looked up
   by the call: those above an open folder are not. */
static size_t whole(int folder, const char *name, char *path)
{
    *path = 0;
    if (!name || strncmp(name, "/proc/", 6) == 0 || strstr(name, "/../") || strcmp(name, "..") == 0)
        return 0;
    if (*name == '/') {
        snprintf(path, PATH_MAX, "%s", name);
        return 0;
    }
    char place[64], base[PATH_MAX];
    if (folder == AT_FDCWD)
        snprintf(place, sizeof place, "/proc/self/cwd");
    else
        snprintf(place, sizeof place, "/proc/self/fd/%d", folder);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, place, base, sizeof base - 1);
    if (size <= 0 || *base != '/')
        return 0;
    base[size] = 0;
    snprintf(path, PATH_MAX, "%.2000s/%.2000s", base, name);
    return strlen(base) + 1;
}

/* Make a name out there, as the remaining one is here. */
static void mirror(const char *there, const char *rest, int leaf_is_folder, int exists)
{
    char path[PATH_MAX];
    if (!*rest) {
        snprintf(path, sizeof path, "%s", there);
    } else {
        raw_mkdir(there);
        snprintf(path, sizeof path, "%.2000s/%.2000s", there, rest);
        for (char *slash = path + strlen(there) + 1; (slash = strchr(slash, '/')); slash++) {
            *slash = 0;
            raw_mkdir(path);
            *slash = '/';
        }
    }
    if (!exists)
        return;
    if (leaf_is_folder) {
        raw_mkdir(path);
        strncat(path, "/kept", sizeof path - strlen(path) - 1);
    }
    int file = raw_open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0) {
        if (syscall(SYS_write, file, "only root may read this", 23) != 23)
            abort();
        syscall(SYS_close, file);
    }
}

/* What is out there, as one number: names, owners, permissions, sizes and times. */
static unsigned long state_of(const char *path)
{
    struct stat status;
    unsigned long sum = 5381;
    if (raw_lstat(path, &status))
        return 0;
    unsigned long facts[] = {status.st_ino,  status.st_uid,          status.st_gid,          status.st_mode,
                             status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_nlink};
    for (unsigned i = 0; i < sizeof facts / sizeof *facts; i++)
        sum = sum * 33 + facts[i];
    if (!S_ISDIR(status.st_mode))
        return sum;
    int folder = raw_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    char entries[8192];
    long size;
    while (folder >= 0 && (size = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0)
        for (long at = 0; at < size;) {
            struct dirent64 *entry = (struct dirent64 *)(entries + at);
            at += entry->d_reclen;
            if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) {
                char below[PATH_MAX];
                snprintf(below, sizeof below, "%.2000s/%s", path, entry->d_name);
                sum += 31 * state_of(below);
            }
        }
    if (folder >= 0)
        syscall(SYS_close, folder);
    return sum;
}

static int is_out_there(int file)
{
    char place[64], path[PATH_MAX];
    snprintf(place, sizeof place, "/proc/self/fd/%d", file);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, place, path, sizeof path - 1);
    if (size <= 0)
        return 0;
    path[size] = 0;
    return strncmp(path, outside, strlen(outside)) == 0;
}

struct call {
    const char *function;
    long (*make)(struct call *);
    void (*undo)(struct call *);
    int opens;
    int folder, folder2, flags;
    const char *path, *path2;
    const void *one;
    void *two;
    mode_t mode;
    uid_t uid;
    gid_t gid;
};

static __thread uid_t caller;

static void try_each(struct call *call, const char *path, size_t from)
{
    static unsigned number;
    char parent[PATH_MAX], component[PATH_MAX], saved[PATH_MAX], there[PATH_MAX];
    size_t length = strlen(path);
    struct stat whole_status;
    int exists = raw_lstat(path, &whole_status) == 0;
    for (size_t end = 1; end <= length; end++) {
        if (path[end] != '/' && path[end] != 0)
            continue;
        size_t start = end;
        while (start > 0 && path[start - 1] != '/')
            start--;
        if (start == end || start < from)
            continue;
        snprintf(parent, sizeof parent, "%.*s", (int)(start > 1 ? start - 1 : 1), path);
        snprintf(component, sizeof component, "%.*s", (int)end, path);
        struct stat status, own;
        if (raw_lstat(parent, &status) || !S_ISDIR(status.st_mode) || status.st_uid != user)
            continue;
        int here = raw_lstat(component, &own) == 0;
        snprintf(there, sizeof there, "%.2000s/%d-%u", outside, (int)getpid(), number++);
        mirror(there, path[end] ? path + end + 1 : "", exists && S_ISDIR(whole_status.st_mode), exists);
        snprintf(saved, sizeof saved, "%.3000s.exchanged", component);
        if (here && raw_rename(component, saved))
            continue;
        if (syscall(SYS_symlinkat, there, AT_FDCWD, component)) {
            if (here)
                raw_rename(saved, component);
            continue;
        }
        unsigned long before = state_of(there);
        setfsuid(caller);
        long result = call->make(call);
        setfsuid(0);
        if (call->opens && result >= 0) {
            if (is_out_there((int)result))
                say("OPENED", call->function, path, component);
            syscall(SYS_close, (int)result);
        } else if (result >= 0 && call->undo) {
            call->undo(call);
        }
        if (state_of(there) != before)
            say("CHANGED", call->function, path, component);
        raw_unlink(component);
        if (here)
            raw_rename(saved, component);
        say("tried", call->function, path, component);
    }
}

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

/* One thread of one process at a time exchanges names, or reads them. */
static int take_turn(void)
{
    pthread_mutex_lock(&turn);
    char name[PATH_MAX + 8];
    snprintf(name, sizeof name, "%s.lock", report);
    int lock = raw_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    syscall(SYS_flock, lock, LOCK_EX);
    return lock;
}

static void end_turn(int lock)
{
    syscall(SYS_close, lock);
    pthread_mutex_unlock(&turn);
}

static long met(struct call *call)
{
    if (busy || !user || geteuid() != 0)
        return call->make(call);
    int before = errno;
    busy = 1;
    char path[PATH_MAX], path2[PATH_MAX];
    size_t from = whole(call->folder, call->path, path), from2 = whole(call->folder2, call->path2, path2);
    int lock = -1;
    if (strstr(path, within) || strstr(path2, within)) {
        caller = (uid_t)setfsuid(-1);
        setfsuid(0);
        lock = take_turn();
        try_each(call, path, from);
        try_each(call, path2, from2);
        setfsuid(caller);
    }
    errno = before;
    long result = call->make(call);
    before = errno;
    if (lock >= 0)
        end_turn(lock);
    busy = 0;
    errno = before;
    return result;
}

#define REAL(type, name, parameters)                                     \
    static type(*real) parameters;                                       \
    if (!real)                                                           \
        real = (type(*) parameters)dlsym(RTLD_NEXT, name)

#define OPENS(name)                                                                                        \
    static long make_##name(struct call *c)                                                                \
    {                                                                                                      \
        REAL(int, #name, (const char *, int, ...));                                                        \
        return real(c->path, c->flags, c->mode);                                                           \
    }                                                                                                      \
    int name(const char *path, int flags, ...)                                                             \
    {                                                                                                      \
        va_list more;                                                                                      \
        va_start(more, flags);                                                                             \
        struct call c = {#name, make_##name, 0, 1, AT_FDCWD, AT_FDCWD, flags, path};                       \
        c.mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;                               \
        va_end(more);                                                                                      \
        return (int)met(&c);                                                                               \
    }
OPENS(open64)
OPENS(open)

#define OPENS_AT(name)                                                                                     \
    static long make_##name(struct call *c)                                                                \
    {                                                                                                      \
        REAL(int, #name, (int, const char *, int, ...));                                                   \
        return real(c->folder, c->path, c->flags, c->mode);                                                \
    }                                                                                                      \
    int name(int folder, const char *path, int flags, ...)                                                 \
    {                                                                                                      \
        va_list more;                                                                                      \
        va_start(more, flags);                                                                             \
        struct call c = {#name, make_##name, 0, 1, folder, AT_FDCWD, flags, path};                         \
        c.mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;                               \
        va_end(more);                                                                                      \
        return (int)met(&c);                                                                               \
    }
OPENS_AT(openat64)
OPENS_AT(openat)

/* Of one name: the parameters after it, what of them the call keeps, and how they are handed on. */
#define NAMED(name, undo, parameters, types, keep, ...)                                                    \
    static long make_##name(struct call *c)                                                                \
    {                                                                                                      \
        REAL(int, #name, types);                                                                           \
        return real(__VA_ARGS__);                                                                          \
    }                                                                                                      \
    int name parameters                                                                                    \
    {                                                                                                      \
        struct call c = {#name, make_##name, undo, 0, AT_FDCWD, AT_FDCWD};                                 \
        keep;                                                                                              \
        return (int)met(&c);                                                                               \
    }

static void take_back_rename(struct call *c)
{
    syscall(SYS_renameat, c->folder2, c->path2, c->folder, c->path);
}
static void take_back_second(struct call *c) { syscall(SYS_unlinkat, c->folder2, c->path2, 0); }

#define P c.path = path
#define AT c.folder = folder, c.path = path
NAMED(stat64, 0, (const char *path, struct stat64 *s), (const char *, struct stat64 *), (P, c.two = s), c->path, c->two)
NAMED(lstat64, 0, (const char *path, struct stat64 *s), (const char *, struct stat64 *), (P, c.two = s), c->path, c->two)
NAMED(fstatat64, 0, (int folder, const char *path, struct stat64 *s, int flags), (int, const char *, struct stat64 *, int),
      (AT, c.two = s, c.flags = flags), c->folder, c->path, c->two, c->flags)
NAMED(mkdir, 0, (const char *path, mode_t mode), (const char *, mode_t), (P, c.mode = mode), c->path, c->mode)
NAMED(mkdirat, 0, (int folder, const char *path, mode_t mode), (int, const char *, mode_t), (AT, c.mode = mode), c->folder,
      c->path, c->mode)
NAMED(mkfifo, 0, (const char *path, mode_t mode), (const char *, mode_t), (P, c.mode = mode), c->path, c->mode)
NAMED(unlink, 0, (const char *path), (const char *), P, c->path)
NAMED(unlinkat, 0, (int folder, const char *path, int flags), (int, const char *, int), (AT, c.flags = flags), c->folder, c->path,
      c->flags)
NAMED(rmdir, 0, (const char *path), (const char *), P, c->path)
NAMED(chmod, 0, (const char *path, mode_t mode), (const char *, mode_t), (P, c.mode = mode), c->path, c->mode)
NAMED(fchmodat, 0, (int folder, const char *path, mode_t mode, int flags), (int, const char *, mode_t, int),
      (AT, c.mode = mode, c.flags = flags), c->folder, c->path, c->mode, c->flags)
NAMED(chown, 0, (const char *path, uid_t uid, gid_t gid), (const char *, uid_t, gid_t), (P, c.uid = uid, c.gid = gid), c->path,
      c->uid, c->gid)
NAMED(lchown, 0, (const char *path, uid_t uid, gid_t gid), (const char *, uid_t, gid_t), (P, c.uid = uid, c.gid = gid), c->path,
      c->uid, c->gid)
NAMED(fchownat, 0, (int folder, const char *path, uid_t uid, gid_t gid, int flags), (int, const char *, uid_t, gid_t, int),
      (AT, c.uid = uid, c.gid = gid, c.flags = flags), c->folder, c->path, c->uid, c->gid, c->flags)
NAMED(utimensat, 0, (int folder, const char *path, const struct timespec times[2], int flags),
      (int, const char *, const struct timespec *, int), (AT, c.one = times, c.flags = flags), c->folder, c->path, c->one, c->flags)
NAMED(access, 0, (const char *path, int mode), (const char *, int), (P, c.flags = mode), c->path, c->flags)
NAMED(truncate64, 0, (const char *path, off64_t size), (const char *, off64_t), (P, c.flags = (int)size), c->path, c->flags)
NAMED(chdir, 0, (const char *path), (const char *), P, c->path)
NAMED(statvfs64, 0, (const char *path, struct statvfs64 *s), (const char *, struct statvfs64 *), (P, c.two = s), c->path, c->two)
NAMED(rename, take_back_rename, (const char *path, const char *path2), (const char *, const char *), (P, c.path2 = path2),
      c->path, c->path2)
NAMED(renameat, take_back_rename, (int folder, const char *path, int folder2, const char *path2), (int, const char *, int, const char *),
      (AT, c.folder2 = folder2, c.path2 = path2), c->folder, c->path, c->folder2, c->path2)
NAMED(link, take_back_second, (const char *path, const char *path2), (const char *, const char *), (P, c.path2 = path2), c->path,
      c->path2)
NAMED(linkat, take_back_second, (int folder, const char *path, int folder2, const char *path2, int flags),
      (int, const char *, int, const char *, int), (AT, c.folder2 = folder2, c.path2 = path2, c.flags = flags), c->folder, c->path,
      c->folder2, c->path2, c->flags)
/* The first name is a text: only where the link is made matters. */
NAMED(symlink, take_back_second, (const char *target, const char *path2), (const char *, const char *),
      (c.one = target, c.path2 = path2), c->one, c->path2)
NAMED(symlinkat, take_back_second, (const char *target, int folder2, const char *path2), (const char *, int, const char *),
      (c.one = target, c.folder2 = folder2, c.path2 = path2), c->one, c->folder2, c->path2)

static long make_opendir(struct call *c)
{
    int file = (int)syscall(SYS_openat, AT_FDCWD, c->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return file;
}
DIR *opendir(const char *path)
{
    struct call c = {"opendir", make_opendir, 0, 1, AT_FDCWD, AT_FDCWD, 0, path};
    long file = met(&c);
    return file < 0 ? NULL : fdopendir((int)file);
}

/* The name of an open file is read while none is exchanged. Another thread of ours would otherwise get one that is there only for the
   moment of an exchange, and not find the file by it. */
ssize_t readlink(const char *path, char *name, size_t size)
{
    REAL(ssize_t, "readlink", (const char *, char *, size_t));
    if (busy || !user || geteuid() != 0)
        return real(path, name, size);
    uid_t own = (uid_t)setfsuid(-1);
    setfsuid(0);
    int lock = take_turn();
    setfsuid(own);
    ssize_t result = real(path, name, size);
    int error = errno;
    end_turn(lock);
    errno = error;
    return result;
}
