/* A runner for tests of GPUs. Each test is a process of its own, because the driver can be opened
 * once per process and each test plays on a machine of its own (FAKE_CUDA). After the function the
 * fake driver must have nothing left but a primary context per device, and the process no more
 * descriptors than before.
 *
 * With a real driver in place of the fake one (run the program without LD_LIBRARY_PATH) tests for
 * ANY machine run on what is there, the others are skipped. TB_TEST=name runs one. */
#ifndef TB_TESTS_CUDA_KIT_H
#define TB_TESTS_CUDA_KIT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <tensorbus/status.h>

#include "cuda/device.h"
#include "tests/cuda/fake/control.h"

struct kit_test {
    const char *name;
    void (*run)(void);
    const char *machine; /* FAKE_CUDA */
    int any;             /* a real machine will do as well */
};

#define FAKE(function, machine)                                                                    \
    {                                                                                              \
#function, function, machine, 0                                                            \
    }
#define ANY(function, machine)                                                                     \
    {                                                                                              \
#function, function, machine, 1                                                            \
    }
#define KIT_COUNT(tests) (sizeof(tests) / sizeof((tests)[0]))

int kit_main(int argc, char **argv, const struct kit_test *tests, size_t count);

/* The fake's control; NULL with a real driver. */
const struct fake_control *kit_fake(void);

/* End the test here: `skipped`. Only for what the machine lacks. */
_Noreturn void kit_skip(const char *why);

_Noreturn void kit_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Sanitizers turn mlock() off. */
static inline int kit_locks_nothing(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 1;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return 1;
#endif
#endif
    return 0;
}

/* Run `body` in a forked process; its exit status (256 + signal when it was killed). */
int kit_child(void (*body)(void *), void *argument);

/* A second process that is forked now, before this one has opened the driver, and a socket to it.
 */
struct kit_pair {
    int pid;
    int socket;
};
struct kit_pair kit_pair_start(void (*body)(int socket));
/* Wait for its end, which must be a good one; kill it first, or not. */
void kit_pair_end(struct kit_pair *pair);
void kit_pair_kill(struct kit_pair *pair);
/* One message of fixed size, with a descriptor or -1. */
void kit_send(int socket, const void *data, size_t bytes, int borrow_fd);
int kit_receive(int socket, void *data, size_t bytes);

/* Device memory, through copies on a stream of its own. fill: bytes from a seed. */
void kit_fill(int ordinal, uint64_t address, size_t bytes, unsigned seed);
void kit_expect(const char *file, int line, int ordinal, uint64_t address, size_t bytes,
                unsigned seed);
#define EXPECT(ordinal, address, bytes, seed)                                                      \
    kit_expect(__FILE__, __LINE__, ordinal, address, bytes, seed)
void kit_pattern(void *host, size_t bytes, unsigned seed);
int kit_same(const void *host, size_t bytes, unsigned seed);

/* Run `body` with the 1st, 2nd, ... call failing, until none fails any more. Each time it must say
 * so, leave nothing behind, and work when it is called again. Returns how many calls it makes. */
unsigned kit_fail_each(const char *file, int line, tb_status (*body)(void *), void *argument,
                       int code);
#define FAIL_EACH(body, argument, code) kit_fail_each(__FILE__, __LINE__, body, argument, code)

/* Nothing of ours is left in the fake, for a look in the middle of a test. */
void kit_check_clean(const char *file, int line);

#define FAIL(...) kit_fail(__FILE__, __LINE__, __VA_ARGS__)
#define CLEAN() kit_check_clean(__FILE__, __LINE__)
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            FAIL("%s", #condition);                                                                \
        }                                                                                          \
    } while (0)
#define CHECK_EQ(a, b)                                                                             \
    do {                                                                                           \
        long long kit_a = (long long)(a), kit_b = (long long)(b);                                  \
        if (kit_a != kit_b) {                                                                      \
            FAIL("%s is %lld, expected %s, %lld", #a, kit_a, #b, kit_b);                           \
        }                                                                                          \
    } while (0)
#define OK(call)                                                                                   \
    do {                                                                                           \
        tb_status kit_status = (call);                                                             \
        if (kit_status != TB_OK) {                                                                 \
            FAIL("%s: %s: %s", #call, tb_status_name(kit_status), tb_last_error_text());           \
        }                                                                                          \
    } while (0)
/* The call fails with a status, and the error's text has `text`. */
#define FAILS(call, expected, text)                                                                \
    do {                                                                                           \
        tb_status kit_status = (call);                                                             \
        if (kit_status != (expected)) {                                                            \
            FAIL("%s is %s, expected %s: %s", #call, tb_status_name(kit_status), #expected,        \
                 tb_last_error_text());                                                            \
        }                                                                                          \
        if (strstr(tb_last_error_text(), (text)) == NULL) {                                        \
            FAIL("%s: `%s` is not in `%s`", #call, (text), tb_last_error_text());                  \
        }                                                                                          \
    } while (0)

static inline const struct tb__gpu *gpu_at(int ordinal)
{
    const struct tb__gpu *gpu = NULL;
    OK(tb__gpu_get(ordinal, &gpu));
    return gpu;
}

static inline char *pages(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return (char *)at;
}

static inline void pause_ms(int ms)
{
    struct timespec time = {.tv_nsec = ms * 1000000L};
    nanosleep(&time, NULL);
}

#endif
