/* Running the tests; see kit.h. */
#include "tests/cuda/kit.h"

#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/order.h"

#define LIMIT_S 120
#define SKIPPED 77

static int count_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory != NULL && readdir(directory) != NULL) {
        count++;
    }
    closedir(directory);
    return count;
}

const struct fake_control *kit_fake(void)
{
    static const struct fake_control *control;
    static int asked;
    if (!asked) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        control = library != NULL ? dlsym(library, "fake_cuda_control") : NULL;
        asked = 1;
    }
    return control;
}

void kit_fail(const char *file, int line, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s:%d: %s\n", file, line, text);
    fflush(NULL);
    _exit(1);
}

void kit_skip(const char *why)
{
    fprintf(stderr, "skipped: %s\n", why);
    fflush(NULL);
    _exit(SKIPPED);
}

void kit_check_clean(const char *file, int line)
{
    struct fake_leaks l;
    if (kit_fake() == NULL) {
        return;
    }
    kit_fake()->leaks(&l);
    if (l.allocations + l.registrations + l.blocks + l.reservations + l.opened + l.externals +
                l.streams + l.events + l.contexts !=
            0 ||
        l.device_bytes != 0) {
        kit_fail(file, line,
                 "left: %d allocations, %d registrations, %d blocks, %d reservations, %d opened, "
                 "%d externals, %d streams, %d events, %d contexts, %zu bytes",
                 l.allocations, l.registrations, l.blocks, l.reservations, l.opened, l.externals,
                 l.streams, l.events, l.contexts, l.device_bytes);
    }
}

static int status_of(pid_t pid)
{
    int status = 0;
    if (waitpid(pid, &status, 0) != pid) {
        return 255;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

int kit_child(void (*body)(void *), void *argument)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(LIMIT_S);
        body(argument);
        _exit(0);
    }
    return status_of(pid);
}

/* ------------------------------------------------------------------ pairs */

struct kit_pair kit_pair_start(void (*body)(int socket))
{
    int sockets[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        close(sockets[0]);
        alarm(LIMIT_S);
        body(sockets[1]);
        CLEAN();
        exit(0);
    }
    close(sockets[1]);
    return (struct kit_pair){.pid = pid, .socket = sockets[0]};
}

void kit_pair_end(struct kit_pair *pair)
{
    CHECK_EQ(status_of(pair->pid), 0);
    close(pair->socket);
}

void kit_pair_kill(struct kit_pair *pair)
{
    kill(pair->pid, SIGKILL);
    CHECK_EQ(status_of(pair->pid), 256 + SIGKILL);
    close(pair->socket);
}

void kit_send(int socket, const void *data, size_t bytes, int borrow_fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)),
                            .cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS}};
    struct iovec part = {(void *)(uintptr_t)data, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (borrow_fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control.space;
        memcpy(CMSG_DATA(&control.header), &borrow_fd, sizeof borrow_fd);
    }
    CHECK_EQ(sendmsg(socket, &message, 0), bytes);
}

int kit_receive(int socket, void *data, size_t bytes)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {data, bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    CHECK_EQ(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), bytes);
    int fd = -1;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header != NULL && header->cmsg_type == SCM_RIGHTS) {
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    }
    return fd;
}

/* ------------------------------------------------------------------ bytes on devices */

void kit_pattern(void *host, size_t bytes, unsigned seed)
{
    unsigned char *at = host;
    for (size_t i = 0; i < bytes; i++) {
        at[i] = (unsigned char)(i * 7 + (i >> 11) + (i >> 19) * 13 + seed * 31);
    }
}

int kit_same(const void *host, size_t bytes, unsigned seed)
{
    const unsigned char *at = host;
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] != (unsigned char)(i * 7 + (i >> 11) + (i >> 19) * 13 + seed * 31)) {
            return 0;
        }
    }
    return 1;
}

/* Copy a whole range to or from pageable memory, and wait. */
static void move(int ordinal, uint64_t address, void *host, size_t bytes, int to_device)
{
    const struct tb__gpu *gpu = NULL;
    struct tb__gpu_scope scope;
    tb__stream stream = NULL;
    OK(tb__gpu_get(ordinal, &gpu));
    OK(tb__stream_create(gpu, &stream));
    OK(tb__gpu_enter(gpu, &scope));
    int result = to_device ? tb__cuda()->memcpy_htod_async(address, host, bytes, stream)
                           : tb__cuda()->memcpy_dtoh_async(host, address, bytes, stream);
    tb__gpu_leave(&scope);
    CHECK_EQ(result, 0);
    OK(tb__stream_synchronize(stream, gpu));
    tb__stream_destroy(gpu, stream);
}

void kit_fill(int ordinal, uint64_t address, size_t bytes, unsigned seed)
{
    void *host = malloc(bytes);
    kit_pattern(host, bytes, seed);
    move(ordinal, address, host, bytes, 1);
    free(host);
}

void kit_expect(const char *file, int line, int ordinal, uint64_t address, size_t bytes,
                unsigned seed)
{
    void *host = malloc(bytes);
    memset(host, 0x5a, bytes);
    move(ordinal, address, host, bytes, 0);
    if (!kit_same(host, bytes, seed)) {
        kit_fail(file, line, "%zu bytes at 0x%llx are not those of seed %u", bytes,
                 (unsigned long long)address, seed);
    }
    free(host);
}

/* ------------------------------------------------------------------ failures */

unsigned kit_fail_each(const char *file, int line, tb_status (*body)(void *), void *argument,
                       int code)
{
    if (body(argument) != TB_OK) {
        kit_fail(file, line, "it fails without a reason: %s", tb_last_error_text());
    }
    kit_check_clean(file, line);
    for (unsigned n = 1;; n++) {
        char rule[64];
        snprintf(rule, sizeof rule, "*:%u:%d", n, code);
        kit_fake()->fail(rule);
        tb_status status = body(argument);
        int failed = kit_fake()->has_failed();
        kit_fake()->fail(NULL);
        tb_error error;
        tb_last_error(&error);
        /* Calls that give something back tell nobody. */
        if (failed && status < 0 && (error.status != status || error.cuda_code != code)) {
            kit_fail(file, line, "call %u returned %d: status %s, error %s, %d: %s", n, code,
                     tb_status_name(status), tb_status_name(error.status), error.cuda_code,
                     error.text);
        }
        kit_check_clean(file, line);
        if (body(argument) != TB_OK) {
            kit_fail(file, line, "after call %u had returned %d: %s", n, code,
                     tb_last_error_text());
        }
        kit_check_clean(file, line);
        if (!failed) {
            return n - 1;
        }
    }
}

/* ------------------------------------------------------------------ running */

static void run_one(void *argument)
{
    const struct kit_test *test = argument;
    setenv("FAKE_CUDA", test->machine != NULL ? test->machine : "devices=1", 1);
    int before = count_descriptors();
    test->run();
    if (kit_fake() != NULL) {
        CLEAN();
        CHECK_EQ(count_descriptors(), before);
    }
    exit(0); /* not _exit: LeakSanitizer looks at the end */
}

/* Which driver the tests meet: 0 none, 1 the fake, 2 a real one. In a process of its own. */
static void find_driver(void *argument)
{
    (void)argument;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    _exit(library == NULL ? 0 : dlsym(library, "fake_cuda_control") != NULL ? 1 : 2);
}

int kit_main(int argc, char **argv, const struct kit_test *tests, size_t count)
{
    const char *only = argc > 1 ? argv[1] : getenv("TB_TEST");
    int driver = kit_child(find_driver, NULL);
    int passed = 0, failed = 0, skipped = 0;
    for (size_t i = 0; i < count; i++) {
        const struct kit_test *test = &tests[i];
        if (only != NULL && strcmp(only, test->name) != 0) {
            continue;
        }
        int status = SKIPPED;
        if (driver == 1 || (driver == 2 && test->any)) {
            status = kit_child(run_one, (void *)(uintptr_t)test);
        }
        passed += status == 0;
        skipped += status == SKIPPED;
        failed += status != 0 && status != SKIPPED;
        printf("%s %s", status == 0 ? "ok" : status == SKIPPED ? "skipped" : "FAIL", test->name);
        printf(status > 256 ? " (signal %d)\n" : "\n", status - 256);
    }
    printf("%d passed, %d failed, %d skipped%s\n", passed, failed, skipped,
           driver == 1   ? " (fake driver)"
           : driver == 0 ? " (no libcuda.so.1)"
                         : " (the machine's driver)");
    return failed > 0 ? 1 : passed > 0 ? 0 : SKIPPED;
}
