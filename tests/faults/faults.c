/*
 * Makes a disk fail on demand, one call at a time.
 *
 * The cache promises that a compilation never fails because of it. A full disk, one that was mounted read-only, missing
 * rights, a dying device and too many open files can each strike at any call, and a test that waits for a real one
 * strikes at few. This library is preloaded into a Python process (LD_PRELOAD). It stands in front of the libc
 * functions that touch files, Python's and SQLite's calls alike, and counts those whose path, or the path of whose
 * descriptor, is at or below one directory. While it is armed, the calls with the chosen numbers fail with the chosen
 * error without being made; all others, and all of other paths, are made as ever. A process can be killed at any call
 * in the same way.
 *
 * The process that is tested arms it itself, through ctypes, so that it can go through hundreds of cases.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
#include <utime.h>

/* What a call does; a set of these says which calls an error is for. The driver has the same numbers. */
enum kind {
    OPEN_TO_READ = 1 << 0,
    OPEN_TO_WRITE = 1 << 1,
    CREATE = 1 << 2,
    READ = 1 << 3,
    WRITE = 1 << 4,
    RENAME = 1 << 5,
    UNLINK = 1 << 6,
    MKDIR = 1 << 7,
    LOOK_UP = 1 << 8,
    STATUS = 1 << 9,
    TIMES = 1 << 10,
    MODE = 1 << 11,
    TRUNCATE = 1 << 12,
    SYNC = 1 << 13,
    LOCK = 1 << 14,
    UNLOCK = 1 << 15,
    LOCK_RECORD = 1 << 16,
    LIST = 1 << 17,
    NEXT_NAME = 1 << 18,
    MAP = 1 << 19,
    CLOSE = 1 << 20,
};

enum { CALLS = 8192, DESCRIPTION = 112 };

static char directory[PATH_MAX];
static size_t directory_length;
static int failure;
static unsigned failing_kinds;
static long first_failing, last_failing;
static atomic_bool armed, tears;
static atomic_long counted;
static char described[CALLS][DESCRIPTION];

/*
 * Count the calls of these kinds at or below a directory from now on, beginning with 0, and let those from `first` to
 * `last` fail with `error`. With `torn`, the first that fails, if it writes, writes half, as on a disk that fills up.
 * Without an error the process is killed instead, before the call is made.
 */
void faults_arm(const char *path, int error, unsigned kinds, long first, long last, int torn)
{
    atomic_store(&armed, 0);
    directory_length = strlen(path);
    memcpy(directory, path, directory_length + 1);
    failure = error;
    failing_kinds = kinds;
    first_failing = first;
    last_failing = last;
    atomic_store(&tears, torn);
    atomic_store(&counted, 0);
    atomic_store(&armed, 1);
}

/* Let all calls through again. */
void faults_disarm(void)
{
    atomic_store(&armed, 0);
}

/* How many calls were counted. */
long faults_count(void)
{
    return atomic_load(&counted);
}

/* What the call with this number was: the function and the path below the directory. */
const char *faults_call(long number)
{
    return number >= 0 && number < CALLS ? described[number] : "";
}

/* The path of a descriptor as the kernel has it. Made by hand, as the functions of libc are ours here. */
static int path_of(int fd, char *path)
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return 1;
}

/* The number of a call if it is one to be counted, else -1. Without a path it is about the descriptor itself. */
static long number_of(const char *name, unsigned kind, int at, const char *path)
{
    char buffer[2 * PATH_MAX];
    if (!atomic_load(&armed) || !(kind & failing_kinds))
        return -1;
    if (!path || (path[0] != '/' && at != AT_FDCWD)) {
        if (at < 0 || !path_of(at, buffer))
            return -1;
        if (path)
            snprintf(buffer + strlen(buffer), PATH_MAX, "/%s", path);
        path = buffer;
    }
    if (strncmp(path, directory, directory_length) != 0)
        return -1;
    path += directory_length;
    if (*path != 0 && *path != '/')
        return -1;
    long number = atomic_fetch_add(&counted, 1);
    if (number < CALLS)
        snprintf(described[number], DESCRIPTION, "%s %.80s", name, *path ? path + 1 : ".");
    return number;
}

/* Whether a call is to fail; errno says then why, and is left alone otherwise. */
static int fails(const char *name, unsigned kind, int at, const char *path)
{
    int before = errno;
    long number = number_of(name, kind, at, path);
    int failed = number >= 0 && number >= first_failing && number <= last_failing;
    if (failed && !failure)
        kill(getpid(), SIGKILL);
    errno = failed ? failure : before;
    return failed;
}

/* A function with the given parameters that fails when it is to, and is the next one of its name otherwise. */
#define NEXT(type, name, parameters)                                                                                   \
    static type(*next) parameters;                                                                                     \
    if (!next)                                                                                                         \
        next = (type(*) parameters)dlsym(RTLD_NEXT, #name)

#define WRAP(type, name, parameters, arguments, failed, kind, at, path)                                                \
    type name parameters                                                                                               \
    {                                                                                                                  \
        NEXT(type, name, parameters);                                                                                  \
        return fails(#name, kind, at, path) ? failed : next arguments;                                                 \
    }

/* Opening. The mode is there only where a file may be created. */

static unsigned kind_of_opening(int at, const char *path, int flags)
{
    int before = errno;
    int creates = (flags & O_CREAT) && syscall(SYS_faccessat, at, path, F_OK) != 0;
    errno = before;
    if (creates)
        return CREATE;
    return (flags & O_ACCMODE) == O_RDONLY ? OPEN_TO_READ : OPEN_TO_WRITE;
}

static unsigned mode_of(int flags, va_list arguments)
{
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, unsigned) : 0;
}

#define WRAP_OPEN(name)                                                                                                \
    int name(const char *path, int flags, ...)                                                                         \
    {                                                                                                                  \
        NEXT(int, name, (const char *, int, ...));                                                                     \
        va_list arguments;                                                                                             \
        va_start(arguments, flags);                                                                                    \
        unsigned mode = mode_of(flags, arguments);                                                                     \
        va_end(arguments);                                                                                             \
        return fails(#name, kind_of_opening(AT_FDCWD, path, flags), AT_FDCWD, path) ? -1 : next(path, flags, mode);    \
    }

#define WRAP_OPENAT(name)                                                                                              \
    int name(int at, const char *path, int flags, ...)                                                                 \
    {                                                                                                                  \
        NEXT(int, name, (int, const char *, int, ...));                                                                \
        va_list arguments;                                                                                             \
        va_start(arguments, flags);                                                                                    \
        unsigned mode = mode_of(flags, arguments);                                                                     \
        va_end(arguments);                                                                                             \
        return fails(#name, kind_of_opening(at, path, flags), at, path) ? -1 : next(at, path, flags, mode);            \
    }

WRAP_OPEN(open)
WRAP_OPEN(open64)
WRAP_OPENAT(openat)
WRAP_OPENAT(openat64)
WRAP(int, creat, (const char *path, mode_t mode), (path, mode), -1, CREATE, AT_FDCWD, path)
WRAP(int, creat64, (const char *path, mode_t mode), (path, mode), -1, CREATE, AT_FDCWD, path)
WRAP(DIR *, opendir, (const char *path), (path), NULL, LIST, AT_FDCWD, path)

/* Reading and mapping. */

WRAP(ssize_t, read, (int fd, void *data, size_t size), (fd, data, size), -1, READ, fd, NULL)
WRAP(ssize_t, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at), -1, READ, fd, NULL)
WRAP(ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at), -1, READ, fd, NULL)
WRAP(struct dirent *, readdir, (DIR * folder), (folder), NULL, NEXT_NAME, dirfd(folder), NULL)
WRAP(struct dirent64 *, readdir64, (DIR * folder), (folder), NULL, NEXT_NAME, dirfd(folder), NULL)
WRAP(void *, mmap, (void *address, size_t size, int access, int flags, int fd, off_t at),
     (address, size, access, flags, fd, at), MAP_FAILED, MAP, fd, NULL)
WRAP(void *, mmap64, (void *address, size_t size, int access, int flags, int fd, off64_t at),
     (address, size, access, flags, fd, at), MAP_FAILED, MAP, fd, NULL)

/* Writing. The first that fails may write half: then the next one has nowhere to go. */

#define WRAP_WRITE(name, parameters, all, half)                                                                        \
    ssize_t name parameters                                                                                            \
    {                                                                                                                  \
        NEXT(ssize_t, name, parameters);                                                                               \
        if (!fails(#name, WRITE, fd, NULL))                                                                            \
            return next all;                                                                                           \
        return size > 1 && atomic_exchange(&tears, 0) ? next half : -1;                                                \
    }

WRAP_WRITE(write, (int fd, const void *data, size_t size), (fd, data, size), (fd, data, size / 2))
WRAP_WRITE(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), (fd, data, size / 2, at))
WRAP_WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at),
           (fd, data, size / 2, at))
WRAP(int, ftruncate, (int fd, off_t size), (fd, size), -1, TRUNCATE, fd, NULL)
WRAP(int, ftruncate64, (int fd, off64_t size), (fd, size), -1, TRUNCATE, fd, NULL)
WRAP(int, truncate, (const char *path, off_t size), (path, size), -1, TRUNCATE, AT_FDCWD, path)
WRAP(int, truncate64, (const char *path, off64_t size), (path, size), -1, TRUNCATE, AT_FDCWD, path)
WRAP(int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), -1, TRUNCATE, fd, NULL)
WRAP(int, fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size), -1, TRUNCATE, fd, NULL)

/* Nothing here has to outlive a power cut, and waiting for a disk would be most of the time that the tests take. */

int fsync(int fd)
{
    return fails("fsync", SYNC, fd, NULL) ? -1 : 0;
}

int fdatasync(int fd)
{
    return fails("fdatasync", SYNC, fd, NULL) ? -1 : 0;
}

/* What closes a file closes it, whatever it reports. */
int close(int fd)
{
    NEXT(int, close, (int));
    int failed = fails("close", CLOSE, fd, NULL), error = errno, result = next(fd);
    if (!failed)
        return result;
    errno = error;
    return -1;
}

/* Names. */

WRAP(int, rename, (const char *from, const char *to), (from, to), -1, RENAME, AT_FDCWD, to)
WRAP(int, renameat, (int from_at, const char *from, int at, const char *to), (from_at, from, at, to), -1, RENAME, at,
     to)
WRAP(int, link, (const char *from, const char *to), (from, to), -1, CREATE, AT_FDCWD, to)
WRAP(int, symlink, (const char *from, const char *to), (from, to), -1, CREATE, AT_FDCWD, to)
WRAP(int, unlink, (const char *path), (path), -1, UNLINK, AT_FDCWD, path)
WRAP(int, unlinkat, (int at, const char *path, int flags), (at, path, flags), -1, UNLINK, at, path)
WRAP(int, rmdir, (const char *path), (path), -1, UNLINK, AT_FDCWD, path)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), -1, MKDIR, AT_FDCWD, path)
WRAP(int, mkdirat, (int at, const char *path, mode_t mode), (at, path, mode), -1, MKDIR, at, path)

/* Status, times and permissions. */

WRAP(int, stat, (const char *path, struct stat *status), (path, status), -1, LOOK_UP, AT_FDCWD, path)
WRAP(int, stat64, (const char *path, struct stat64 *status), (path, status), -1, LOOK_UP, AT_FDCWD, path)
WRAP(int, lstat, (const char *path, struct stat *status), (path, status), -1, LOOK_UP, AT_FDCWD, path)
WRAP(int, lstat64, (const char *path, struct stat64 *status), (path, status), -1, LOOK_UP, AT_FDCWD, path)
WRAP(int, fstatat, (int at, const char *path, struct stat *status, int flags), (at, path, status, flags), -1, LOOK_UP,
     at, path)
WRAP(int, fstatat64, (int at, const char *path, struct stat64 *status, int flags), (at, path, status, flags), -1,
     LOOK_UP, at, path)
WRAP(int, statx, (int at, const char *path, int flags, unsigned mask, struct statx *status),
     (at, path, flags, mask, status), -1, LOOK_UP, at, path)
WRAP(int, access, (const char *path, int mode), (path, mode), -1, LOOK_UP, AT_FDCWD, path)
WRAP(int, faccessat, (int at, const char *path, int mode, int flags), (at, path, mode, flags), -1, LOOK_UP, at, path)
WRAP(ssize_t, readlink, (const char *path, char *data, size_t size), (path, data, size), -1, LOOK_UP, AT_FDCWD, path)
WRAP(int, fstat, (int fd, struct stat *status), (fd, status), -1, STATUS, fd, NULL)
WRAP(int, fstat64, (int fd, struct stat64 *status), (fd, status), -1, STATUS, fd, NULL)
WRAP(int, utime, (const char *path, const struct utimbuf *times), (path, times), -1, TIMES, AT_FDCWD, path)
WRAP(int, utimes, (const char *path, const struct timeval times[2]), (path, times), -1, TIMES, AT_FDCWD, path)
WRAP(int, utimensat, (int at, const char *path, const struct timespec times[2], int flags), (at, path, times, flags),
     -1, TIMES, at, path)
WRAP(int, futimens, (int fd, const struct timespec times[2]), (fd, times), -1, TIMES, fd, NULL)
WRAP(int, chmod, (const char *path, mode_t mode), (path, mode), -1, MODE, AT_FDCWD, path)
WRAP(int, fchmod, (int fd, mode_t mode), (fd, mode), -1, MODE, fd, NULL)
WRAP(int, fchmodat, (int at, const char *path, mode_t mode, int flags), (at, path, mode, flags), -1, MODE, at, path)

/* Locks: of whole files, Python's, and of records, SQLite's. That one of these cannot be released is left out: SQLite
   does not expect it, and no local disk does it. */

int flock(int fd, int operation)
{
    NEXT(int, flock, (int, int));
    int failed = operation & LOCK_UN ? fails("unflock", UNLOCK, fd, NULL) : fails("flock", LOCK, fd, NULL);
    return failed ? -1 : next(fd, operation);
}

static unsigned kind_of_control(int command, const struct flock *lock)
{
    int locks = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
    return locks && lock->l_type != F_UNLCK ? LOCK_RECORD : 0;
}

#define WRAP_FCNTL(name)                                                                                               \
    int name(int fd, int command, ...)                                                                                 \
    {                                                                                                                  \
        NEXT(int, name, (int, int, ...));                                                                              \
        va_list arguments;                                                                                             \
        va_start(arguments, command);                                                                                  \
        void *argument = va_arg(arguments, void *);                                                                    \
        va_end(arguments);                                                                                             \
        return fails(#name, kind_of_control(command, argument), fd, NULL) ? -1 : next(fd, command, argument);          \
    }

WRAP_FCNTL(fcntl)
WRAP_FCNTL(fcntl64)
