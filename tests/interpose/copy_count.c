/* A witness for "no copy": counts what a process copies, without asking the process.
 *
 * Loaded by LD_PRELOAD into any program. With COPY_COUNT=/some/path in the environment each process
 * makes two files, which grow while it runs and are therefore there after SIGKILL too:
 *   /some/path.<command>.<pid>.count     64 little-endian uint64, as numbered in enum counter
 * below: `od -A n -t u8 -v -w8` prints one a line /some/path.<command>.<pid>.segments  a line for
 * each of our memfds that it maps: inode, bytes, name Without COPY_COUNT it only passes calls on.
 *
 * What is counted: memcpy, memmove, mempcpy, bcopy and their fortified forms, from 64 bytes up;
 * which of them read or write memory of a mapped segment (a memfd whose name begins with
 * "tensorbus"); of these, which copy COPY_COUNT_LARGE bytes (default 65536) or more; and the bytes
 * that read, write and their relatives move through sockets, pipes and files. What it cannot see:
 * copies that a compiler made inline, stores of a library's own loops, and what libc calls inside
 * itself (stdio's writes). A forked child that starts no other program counts into its parent's
 * files.
 *
 * Threads: any. The tables are fixed; counting takes no lock and allocates nothing. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum counter {
    MAGIC = 0, /* "TBCOPY01" */
    PID = 1,
    LARGE_LIMIT = 2, /* bytes from which a copy is large */
    COPIES = 3,      /* all copies from 64 bytes up, wherever */
    COPIED_BYTES = 4,
    INTO = 5, /* copies into a segment, of any size from 64 bytes up */
    INTO_BYTES = 6,
    OUT_OF = 7, /* copies out of a segment */
    OUT_OF_BYTES = 8,
    LARGE_INTO = 9,
    LARGE_INTO_BYTES = 10,
    LARGE_OUT_OF = 11,
    LARGE_OUT_OF_BYTES = 12,
    SOCKET_SENT_BYTES = 13,
    SOCKET_RECEIVED_BYTES = 14,
    PIPE_WRITTEN_BYTES = 15,
    PIPE_READ_BYTES = 16,
    FILE_WRITTEN_BYTES = 17,
    FILE_READ_BYTES = 18,
    LARGEST_MESSAGE = 19,     /* most bytes that one call moved through a socket or pipe */
    OTHER_PROCESS_BYTES = 20, /* process_vm_readv, process_vm_writev, splice and relatives */
    SEGMENTS = 21,            /* segments mapped so far */
    COUNTERS = 64
};

enum { SMALLEST = 64, MAX_RANGES = 512 };

static _Atomic uint64_t nowhere[COUNTERS]; /* counts of a process that has no file */
static _Atomic uint64_t *counters = nowhere;
static uint64_t large_limit = 65536;
static int segments_fd = -1;

/* Mapped segments. Writers hold the lock; readers look without it: an entry is valid while its end
 * is not 0, and its end is written last and cleared first. */
struct range {
    _Atomic uintptr_t start, end;
};
static struct range ranges[MAX_RANGES];
static _Atomic int range_count; /* entries that were ever used */
static pthread_mutex_t ranges_lock = PTHREAD_MUTEX_INITIALIZER;

static void *(*real_memcpy)(void *, const void *, size_t);
static void *(*real_memmove)(void *, const void *, size_t);
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static int (*real_munmap)(void *, size_t);

static void count(enum counter which, uint64_t n)
{
    atomic_fetch_add_explicit(&counters[which], n, memory_order_relaxed);
}

static int in_segment(uintptr_t first, size_t bytes)
{
    const int used = atomic_load_explicit(&range_count, memory_order_acquire);
    for (int i = 0; i < used; i++) {
        const uintptr_t end = atomic_load_explicit(&ranges[i].end, memory_order_acquire);
        if (end && first < end &&
            first + bytes > atomic_load_explicit(&ranges[i].start, memory_order_relaxed)) {
            return 1;
        }
    }
    return 0;
}

static void count_copy(const void *to, const void *from, size_t bytes)
{
    if (bytes < SMALLEST) {
        return;
    }
    count(COPIES, 1);
    count(COPIED_BYTES, bytes);
    if (in_segment((uintptr_t)to, bytes)) {
        count(INTO, 1);
        count(INTO_BYTES, bytes);
        if (bytes >= large_limit) {
            count(LARGE_INTO, 1);
            count(LARGE_INTO_BYTES, bytes);
        }
    }
    if (in_segment((uintptr_t)from, bytes)) {
        count(OUT_OF, 1);
        count(OUT_OF_BYTES, bytes);
        if (bytes >= large_limit) {
            count(LARGE_OUT_OF, 1);
            count(LARGE_OUT_OF_BYTES, bytes);
        }
    }
}

/* For calls that come before our constructor has run. The barrier keeps the compiler from making a
 * call of memcpy out of the loop, which would be a call of ourselves. */
static void *copy_slowly(void *to, const void *from, size_t bytes)
{
    unsigned char *t = to;
    const unsigned char *f = from;
    const int backwards = t > f && t < f + bytes;
    for (size_t i = 0; i < bytes; i++) {
        const size_t k = backwards ? bytes - 1 - i : i;
        t[k] = f[k];
        __asm__ volatile("" ::: "memory");
    }
    return to;
}

static void *copy(void *to, const void *from, size_t bytes)
{
    if (!real_memcpy) {
        return copy_slowly(to, from, bytes);
    }
    count_copy(to, from, bytes);
    return real_memcpy(to, from, bytes);
}

static void *move(void *to, const void *from, size_t bytes)
{
    if (!real_memmove) {
        return copy_slowly(to, from, bytes);
    }
    count_copy(to, from, bytes);
    return real_memmove(to, from, bytes);
}

/* libc's headers know these names as builtins with attributes of their own: only the names matter.
 */
EXPORT void *memcpy(void *to, const void *from, size_t bytes);
EXPORT void *memcpy(void *to, const void *from, size_t bytes)
{
    return copy(to, from, bytes);
}

EXPORT void *memmove(void *to, const void *from, size_t bytes);
EXPORT void *memmove(void *to, const void *from, size_t bytes)
{
    return move(to, from, bytes);
}

EXPORT void *mempcpy(void *to, const void *from, size_t bytes);
EXPORT void *mempcpy(void *to, const void *from, size_t bytes)
{
    return (char *)copy(to, from, bytes) + bytes;
}

EXPORT void *__mempcpy(void *to, const void *from, size_t bytes);
EXPORT void *__mempcpy(void *to, const void *from, size_t bytes)
{
    return (char *)copy(to, from, bytes) + bytes;
}

EXPORT void bcopy(const void *from, void *to, size_t bytes);
EXPORT void bcopy(const void *from, void *to, size_t bytes)
{
    move(to, from, bytes);
}

EXPORT void *__memcpy_chk(void *to, const void *from, size_t bytes, size_t room);
EXPORT void *__memcpy_chk(void *to, const void *from, size_t bytes, size_t room)
{
    if (bytes > room) {
        abort();
    }
    return copy(to, from, bytes);
}

EXPORT void *__memmove_chk(void *to, const void *from, size_t bytes, size_t room);
EXPORT void *__memmove_chk(void *to, const void *from, size_t bytes, size_t room)
{
    if (bytes > room) {
        abort();
    }
    return move(to, from, bytes);
}

EXPORT void *__mempcpy_chk(void *to, const void *from, size_t bytes, size_t room);
EXPORT void *__mempcpy_chk(void *to, const void *from, size_t bytes, size_t room)
{
    return (char *)__memcpy_chk(to, from, bytes, room) + bytes;
}

/* ---- which memory is a segment ---- */

static int is_segment(int fd, char *name, size_t size, struct stat *status)
{
    static const char wanted[] = "/memfd:tensorbus";
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t bytes = readlink(link, name, size - 1);
    if (bytes < (ssize_t)sizeof(wanted) - 1 || fstat(fd, status) != 0) {
        return 0;
    }
    name[bytes] = '\0';
    for (size_t i = 0; i + 1 < sizeof(wanted); i++) {
        if (name[i] != wanted[i]) {
            return 0;
        }
    }
    return 1;
}

static void add_range(uintptr_t start, uintptr_t end)
{
    pthread_mutex_lock(&ranges_lock);
    const int used = atomic_load(&range_count);
    int place = 0;
    while (place < used && atomic_load(&ranges[place].end)) {
        place++;
    }
    if (place == MAX_RANGES) {
        static const char text[] = "copy_count: too many segments: counts are too low from here\n";
        (void)!syscall(SYS_write, STDERR_FILENO, text, sizeof(text) - 1);
    } else {
        atomic_store(&ranges[place].start, start);
        atomic_store_explicit(&ranges[place].end, end, memory_order_release);
        if (place == used) {
            atomic_store_explicit(&range_count, used + 1, memory_order_release);
        }
    }
    pthread_mutex_unlock(&ranges_lock);
}

static void note_mapping(void *start, size_t bytes, int fd)
{
    char name[96], line[192];
    struct stat status;
    const int saved = errno;
    if (is_segment(fd, name, sizeof(name), &status)) {
        add_range((uintptr_t)start, (uintptr_t)start + bytes);
        count(SEGMENTS, 1);
        const int length =
            snprintf(line, sizeof(line), "%llu %llu %s\n", (unsigned long long)status.st_ino,
                     (unsigned long long)status.st_size, name + 1);
        if (segments_fd >= 0) {
            (void)!syscall(SYS_write, segments_fd, line, (size_t)length);
        }
    }
    errno = saved;
}

EXPORT void *mmap(void *start, size_t bytes, int protection, int flags, int fd, off_t offset);
EXPORT void *mmap(void *start, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *mapped = real_mmap
                       ? real_mmap(start, bytes, protection, flags, fd, offset)
                       : (void *)syscall(SYS_mmap, start, bytes, protection, flags, fd, offset);
    if (mapped != MAP_FAILED && fd >= 0 && !(flags & MAP_ANONYMOUS) && real_mmap) {
        note_mapping(mapped, bytes, fd);
    }
    return mapped;
}

EXPORT void *mmap64(void *start, size_t bytes, int protection, int flags, int fd, off_t offset);
EXPORT void *mmap64(void *start, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return mmap(start, bytes, protection, flags, fd, offset);
}

EXPORT int munmap(void *start, size_t bytes);
EXPORT int munmap(void *start, size_t bytes)
{
    const uintptr_t first = (uintptr_t)start, last = first + bytes;
    const int used = atomic_load_explicit(&range_count, memory_order_acquire);
    for (int i = 0; i < used; i++) {
        const uintptr_t begin = atomic_load(&ranges[i].start), end = atomic_load(&ranges[i].end);
        if (end && first <= begin && last >= end) {
            atomic_store_explicit(&ranges[i].end, 0, memory_order_release);
        }
    }
    return real_munmap ? real_munmap(start, bytes) : (int)syscall(SYS_munmap, start, bytes);
}

/* ---- what goes through descriptors ---- */

static void count_io(int fd, ssize_t bytes, int out)
{
    struct stat status;
    const int saved = errno;
    if (bytes > 0 && fstat(fd, &status) == 0) {
        enum counter which = out ? FILE_WRITTEN_BYTES : FILE_READ_BYTES;
        if (S_ISSOCK(status.st_mode)) {
            which = out ? SOCKET_SENT_BYTES : SOCKET_RECEIVED_BYTES;
        } else if (S_ISFIFO(status.st_mode)) {
            which = out ? PIPE_WRITTEN_BYTES : PIPE_READ_BYTES;
        }
        count(which, (uint64_t)bytes);
        if (which <= PIPE_READ_BYTES) {
            uint64_t largest = atomic_load(&counters[LARGEST_MESSAGE]);
            while ((uint64_t)bytes > largest &&
                   !atomic_compare_exchange_weak(&counters[LARGEST_MESSAGE], &largest,
                                                 (uint64_t)bytes)) {
            }
        }
    }
    errno = saved;
}

/* Define `name` as a call of libc's own that is counted as input or output of its descriptor. */
#define COUNTED(result, name, parameters, arguments, fd, out)                                      \
    EXPORT result name parameters;                                                                 \
    EXPORT result name parameters                                                                  \
    {                                                                                              \
        static result(*_Atomic next) parameters;                                                   \
        result(*call) parameters = atomic_load_explicit(&next, memory_order_relaxed);              \
        if (!call) {                                                                               \
            *(void **)&call = dlsym(RTLD_NEXT, #name);                                             \
            atomic_store_explicit(&next, call, memory_order_relaxed);                              \
        }                                                                                          \
        const result bytes_done = call arguments;                                                  \
        count_io(fd, (ssize_t)bytes_done, out);                                                    \
        return bytes_done;                                                                         \
    }

COUNTED(ssize_t, read, (int fd, void *to, size_t n), (fd, to, n), fd, 0)
COUNTED(ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n), fd, 1)
COUNTED(ssize_t, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at), fd, 0)
COUNTED(ssize_t, pread64, (int fd, void *to, size_t n, off_t at), (fd, to, n, at), fd, 0)
COUNTED(ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at), fd, 1)
COUNTED(ssize_t, pwrite64, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at), fd, 1)
COUNTED(ssize_t, readv, (int fd, const struct iovec *v, int n), (fd, v, n), fd, 0)
COUNTED(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n), fd, 1)
COUNTED(ssize_t, recv, (int fd, void *to, size_t n, int flags), (fd, to, n, flags), fd, 0)
COUNTED(ssize_t, send, (int fd, const void *from, size_t n, int flags), (fd, from, n, flags), fd, 1)
COUNTED(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags), fd, 0)
COUNTED(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags), fd, 1)
COUNTED(ssize_t, recvfrom,
        (int fd, void *to, size_t n, int flags, struct sockaddr *a, socklen_t *an),
        (fd, to, n, flags, a, an), fd, 0)
COUNTED(ssize_t, sendto,
        (int fd, const void *from, size_t n, int flags, const struct sockaddr *a, socklen_t an),
        (fd, from, n, flags, a, an), fd, 1)
COUNTED(ssize_t, __read_chk, (int fd, void *to, size_t n, size_t room), (fd, to, n, room), fd, 0)
COUNTED(ssize_t, __recv_chk, (int fd, void *to, size_t n, size_t room, int flags),
        (fd, to, n, room, flags), fd, 0)
COUNTED(ssize_t, sendfile, (int out, int in, off_t *at, size_t n), (out, in, at, n), out, 1)
COUNTED(ssize_t, sendfile64, (int out, int in, off_t *at, size_t n), (out, in, at, n), out, 1)

/* The same for calls that reach into another process or move pages between descriptors. */
#define COUNTED_ACROSS(name, parameters, arguments)                                                \
    EXPORT ssize_t name parameters;                                                                \
    EXPORT ssize_t name parameters                                                                 \
    {                                                                                              \
        ssize_t(*call) parameters;                                                                 \
        *(void **)&call = dlsym(RTLD_NEXT, #name);                                                 \
        const ssize_t bytes_done = call arguments;                                                 \
        count(OTHER_PROCESS_BYTES, bytes_done > 0 ? (uint64_t)bytes_done : 0);                     \
        return bytes_done;                                                                         \
    }

COUNTED_ACROSS(process_vm_readv,
               (pid_t pid, const struct iovec *l, unsigned long ln, const struct iovec *r,
                unsigned long rn, unsigned long flags),
               (pid, l, ln, r, rn, flags))
COUNTED_ACROSS(process_vm_writev,
               (pid_t pid, const struct iovec *l, unsigned long ln, const struct iovec *r,
                unsigned long rn, unsigned long flags),
               (pid, l, ln, r, rn, flags))
COUNTED_ACROSS(splice, (int in, off64_t *ia, int out, off64_t *oa, size_t n, unsigned flags),
               (in, ia, out, oa, n, flags))
COUNTED_ACROSS(vmsplice, (int fd, const struct iovec *v, size_t n, unsigned flags),
               (fd, v, n, flags))
COUNTED_ACROSS(tee, (int in, int out, size_t n, unsigned flags), (in, out, n, flags))
COUNTED_ACROSS(copy_file_range,
               (int in, off64_t *ia, int out, off64_t *oa, size_t n, unsigned flags),
               (in, ia, out, oa, n, flags))

/* ---- start ---- */

/* Name of the program, with nothing in it that a file name cannot have. */
static void command_name(char *to, size_t size)
{
    const char *name = program_invocation_short_name;
    size_t i = 0;
    for (; name[i] && i + 1 < size; i++) {
        to[i] = name[i] == '/' ? '_' : name[i];
    }
    to[i] = '\0';
}

static void open_files(const char *prefix)
{
    char path[PATH_MAX], command[64];
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC;
    command_name(command, sizeof(command));
    snprintf(path, sizeof(path), "%s.%s.%d.count", prefix, command, (int)getpid());
    const int fd = open(path, flags | O_TRUNC, 0600);
    if (fd < 0 || ftruncate(fd, COUNTERS * sizeof(uint64_t)) != 0) {
        fprintf(stderr, "copy_count: cannot write %s: nothing is counted\n", path);
        return;
    }
    void *mapped =
        real_mmap(NULL, COUNTERS * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) {
        fprintf(stderr, "copy_count: cannot map %s: nothing is counted\n", path);
        return;
    }
    snprintf(path, sizeof(path), "%s.%s.%d.segments", prefix, command, (int)getpid());
    segments_fd = open(path, flags | O_APPEND | O_TRUNC, 0600);
    counters = mapped;
    count(MAGIC, UINT64_C(0x313059504f434254)); /* "TBCOPY01" in memory */
    count(PID, (uint64_t)getpid());
    count(LARGE_LIMIT, large_limit);
}

__attribute__((constructor(101))) static void start(void)
{
    *(void **)&real_mmap = dlsym(RTLD_NEXT, "mmap");
    *(void **)&real_munmap = dlsym(RTLD_NEXT, "munmap");
    *(void **)&real_memmove = dlsym(RTLD_NEXT, "memmove");
    *(void **)&real_memcpy = dlsym(RTLD_NEXT, "memcpy");
    const char *prefix = getenv("COPY_COUNT"), *limit = getenv("COPY_COUNT_LARGE");
    if (limit && strtoull(limit, NULL, 10) > 0) {
        large_limit = strtoull(limit, NULL, 10);
    }
    if (prefix && *prefix) {
        open_files(prefix);
    }
}
