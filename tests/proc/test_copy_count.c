/* The witness of `make demo` (tests/interpose/copy_count.c): it must see every copy that it says it
 * sees, in a process that is then killed, and must not invent any. The victim is this program. */
#include "harness/harness.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, COUNTERS = 64 };

static const char witness[] = TB_BINARY_DIR "/examples/camera/copy_count.so";

/* Through pointers, so that the compiler makes calls and nothing else. */
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void *(*volatile move)(void *, const void *, size_t) = memmove;

static char *map_memfd(const char *name, size_t bytes)
{
    const int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        _exit(3);
    }
    char *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return mapped == MAP_FAILED ? NULL : mapped;
}

/* What the victim does, and what must be counted of it, is listed side by side below. */
static void victim(void)
{
    char *segment = map_memfd("tensorbus-frames", MIB);
    char *foreign = map_memfd("somebody-else", MIB);
    char *heap = malloc(2 * MIB);
    int sockets[2], pipes[2];
    if (!segment || !foreign || !heap || pipe(pipes) != 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) {
        _exit(4);
    }
    memset(heap, 1, 2 * MIB);
    copy(segment, heap, MIB);             /* into, large */
    copy(segment + 100, heap, 1000);      /* into, small */
    move(heap, segment, 65536);           /* out of, large: exactly the limit */
    copy(heap, segment, 65535);           /* out of, small: just below */
    copy(heap, segment + MIB - 70, 70);   /* out of, small: the segment's last bytes */
    copy(heap, segment, 63);              /* too small to be looked at */
    move(segment, segment + 4096, 70000); /* both, large */
    copy(foreign, heap, MIB);             /* another memfd is no segment */
    copy(heap, heap + MIB, MIB);
    struct iovec parts[2] = {{heap, 3000}, {heap + MIB, 2000}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (sendmsg(sockets[0], &message, 0) != 5000 || recv(sockets[1], heap, MIB, 0) != 5000 ||
        write(pipes[1], heap, 700) != 700 || read(pipes[0], heap, 700) != 700) {
        _exit(5);
    }
    munmap(segment, MIB);
    char *reused =
        mmap(segment, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    copy(reused, heap, MIB); /* the address was a segment and is none now */
    raise(SIGKILL);
}

/* Run the victim under the witness; its counters, read after its death. */
static void run_victim(uint64_t counters[COUNTERS], char *segments, size_t segments_size)
{
    char prefix[] = "/tmp/test_copy_count_XXXXXX", path[96], setting[96], preload[512];
    int status;
    const int unused = mkstemp(prefix);
    CHECK(unused >= 0);
    close(unused);
    snprintf(setting, sizeof(setting), "COPY_COUNT=%s", prefix);
    snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", witness);
    const pid_t pid = fork();
    if (pid == 0) {
        char name[] = "victim", option[] = "--victim";
        char *const arguments[] = {name, option, NULL};
        char *const environment[] = {setting, preload, NULL};
        execve("/proc/self/exe", arguments, environment);
        _exit(6);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(WTERMSIG(status), SIGKILL);
    unlink(prefix);

    snprintf(path, sizeof(path), "%s.victim.%d.count", prefix, (int)pid);
    FILE *file = fopen(path, "re");
    CHECK(file != NULL);
    CHECK_EQ(fread(counters, sizeof(uint64_t), COUNTERS, file), COUNTERS);
    CHECK_EQ(fgetc(file), EOF);
    fclose(file);
    unlink(path);
    snprintf(path, sizeof(path), "%s.victim.%d.segments", prefix, (int)pid);
    file = fopen(path, "re");
    CHECK(file != NULL);
    segments[fread(segments, 1, segments_size - 1, file)] = '\0';
    fclose(file);
    unlink(path);
    CHECK(memcmp(counters, "TBCOPY01", 8) == 0);
    CHECK_EQ(counters[1], pid);
}

static void test_counts_what_a_killed_process_copied(void)
{
    uint64_t counters[COUNTERS];
    char segments[512];
    unsigned long long inode, bytes;
    char name[64];
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    harness_skip("a sanitizer wants to be loaded first");
#endif
    if (access(witness, R_OK) != 0) {
        harness_skip("the examples are not built");
    }
    run_victim(counters, segments, sizeof(segments));
    CHECK_EQ(counters[2], 65536);
    CHECK_EQ(counters[5], 3); /* into */
    CHECK_EQ(counters[6], MIB + 1000 + 70000);
    CHECK_EQ(counters[7], 4); /* out of */
    CHECK_EQ(counters[8], 65536 + 65535 + 70 + 70000);
    CHECK_EQ(counters[9], 2); /* large into */
    CHECK_EQ(counters[10], MIB + 70000);
    CHECK_EQ(counters[11], 2); /* large out of */
    CHECK_EQ(counters[12], 65536 + 70000);
    CHECK(counters[3] >= 9); /* wherever: libraries may copy too */
    CHECK(counters[4] >= UINT64_C(4) * MIB);
    CHECK_EQ(counters[13], 5000); /* sockets */
    CHECK_EQ(counters[14], 5000);
    CHECK_EQ(counters[15], 700); /* pipes */
    CHECK_EQ(counters[16], 700);
    CHECK_EQ(counters[19], 5000); /* the largest of them */
    CHECK_EQ(counters[20], 0);
    CHECK_EQ(counters[21], 1); /* segments mapped */
    CHECK_EQ(sscanf(segments, "%llu %llu %63s", &inode, &bytes, name), 3);
    CHECK_EQ(bytes, MIB);
    CHECK_STR(name, "memfd:tensorbus-frames");
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {TEST(test_counts_what_a_killed_process_copied, 20)};
    if (argc > 1 && strcmp(argv[1], "--victim") == 0) {
        victim();
        return 7;
    }
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
