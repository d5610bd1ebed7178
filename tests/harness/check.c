/* Checks: a failing one tells the runner where and with which values, and ends its process. */
#include "harness/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct harness_state harness = {.result_fd = -1, .log_fd = -1};

void result_write(const char *text)
{
    size_t length = strlen(text);
    while (length > 0) {
        ssize_t written = write(harness.result_fd, text, length);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return; /* the runner is gone; the exit status still tells */
        }
        text += written;
        length -= (size_t)written;
    }
}

void harness_fail(const char *file, int line, const char *format, ...)
{
    char text[1024];
    const char *base = strrchr(file, '/');
    int head = snprintf(text, sizeof text, "%s:%d: %s%s", base != NULL ? base + 1 : file, line,
                        harness.role, harness.role[0] != '\0' ? ": " : "");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + head, sizeof text - (size_t)head - 1, format, arguments);
    va_end(arguments);
    strcat(text, "\n");
    result_write(text);
    _exit(1);
}

void harness_skip(const char *why)
{
    char text[256];
    snprintf(text, sizeof text, RESULT_SKIP "%s\n", why);
    result_write(text);
    _exit(0);
}

void harness_check_int(const char *file, int line, const char *texts, long long left, int relation,
                       long long right)
{
    int holds = relation == '='   ? left == right
                : relation == '!' ? left != right
                : relation == '<' ? left < right
                                  : left <= right;
    if (!holds) {
        harness_fail(file, line, "not true: %s (%lld, %lld)", texts, left, right);
    }
}

void harness_check_text(const char *file, int line, const char *what, const char *got,
                        const char *wanted, int within)
{
    int holds = got != NULL && (within ? strstr(got, wanted) != NULL : strcmp(got, wanted) == 0);
    if (!holds) {
        harness_fail(file, line, "%s is \"%s\", %s \"%s\"", what, got != NULL ? got : "(null)",
                     within ? "which lacks" : "not", wanted);
    }
}

void harness_check_status(const char *file, int line, const char *call, tb_status got,
                          tb_status wanted)
{
    if (got == wanted) {
        return;
    }
    tb_error error;
    tb_last_error(&error);
    harness_fail(file, line, "%s returned %s, not %s (last error: %s: %s)", call,
                 tb_status_name(got), tb_status_name(wanted), error.where, error.text);
}

int64_t harness_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void harness_sleep_us(unsigned microseconds)
{
    struct timespec left = {.tv_sec = microseconds / 1000000,
                            .tv_nsec = (long)(microseconds % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

unsigned harness_log_count(const char *text)
{
    off_t size = lseek(harness.log_fd, 0, SEEK_END);
    char *log = malloc(size > 0 ? (size_t)size + 1 : 1);
    ssize_t got = log != NULL ? pread(harness.log_fd, log, size > 0 ? (size_t)size : 0, 0) : -1;
    if (got < 0) {
        FAIL("cannot read the log");
    }
    log[got] = '\0';
    unsigned count = 0;
    size_t length = strlen(text);
    /* memmem, because roles may write NUL bytes. */
    for (char *at = log; (at = memmem(at, (size_t)(log + got - at), text, length)) != NULL;) {
        count++;
        at += length;
    }
    free(log);
    return count;
}

const char *harness_dir(void)
{
    return harness.directory;
}

int harness_full(void)
{
    const char *value = getenv("TB_TEST_FULL");
    return value != NULL && strcmp(value, "0") != 0 && value[0] != '\0';
}

unsigned harness_slowness(void)
{
    unsigned slowness = 1;
#if defined(__SANITIZE_THREAD__)
    slowness = 10;
#elif defined(__SANITIZE_ADDRESS__)
    slowness = 4;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    slowness = 10;
#elif __has_feature(address_sanitizer)
    slowness = 4;
#endif
#endif
    const char *value = getenv("TB_TEST_SLOW");
    int factor = value != NULL ? atoi(value) : 1;
    return factor > 1 ? slowness * (unsigned)factor : slowness;
}

unsigned long harness_scale(unsigned long quick, unsigned long full)
{
    if (harness_full()) {
        return full;
    }
    unsigned long scaled = harness_slowness() > 1 ? quick / 10 : quick;
    return scaled > 0 ? scaled : 1;
}
