/* Rows of system calls on the hand-over path when nobody sleeps. */
#include "bench/rows.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/processes.h"
#include "bench/worker.h"

static const struct tb__bench_text seccomp_text = {
    .does = "An owner publishes 20,000 frames to a reader in another process that calls "
            "tb_reader_next() with timeout 0. Both threads run under a seccomp filter that traps "
            "and counts every system call; one call made on purpose proves that it does.",
    .interval = "Calls of both threads from the first loan to the last release, per frame.",
    .floor = "0.",
};
static const struct tb__bench_text strace_text = {
    .does = "The same loop under `strace -f`, with all threads of both processes, the service "
            "threads too. A getsid() of each loop marks begin and end; what lies between is "
            "counted.",
    .interval = "Calls of all threads from the first loan to the last release, per frame.",
    .floor = "0.",
};
static const struct tb__bench_row rows[] = {
    {"syscalls/seccomp", "/frame", &seccomp_text},
    {"syscalls/strace", "/frame", &strace_text},
};

static tb_status seccomp_row(struct tb__bench *bench)
{
    struct tb__worker_result result;
    uint64_t frames = tb__bench_quick(bench) ? 2000 : 20000;
    TB__TRY(tb__worker_run(TB__WITNESS_SECCOMP, frames, &result));
    if (!result.counter_works || result.frames != frames) {
        return TB__FAIL(TB_E_SYSTEM, "only %" PRIu64 " of %" PRIu64 " frames were counted",
                        result.frames, frames);
    }
    struct tb__figure figure;
    double each = (double)result.calls / (double)frames;
    tb__figure_of(&each, 1, &figure);
    if (result.calls > 0) {
        tb__bench_report(bench, rows[0].name, &figure, NAN,
                         "%" PRIu64 " calls in %" PRIu64 " frames, the first is number %" PRId64,
                         result.calls, frames, result.first_call);
    } else {
        tb__bench_report(bench, rows[0].name, &figure, NAN, "0 calls in %" PRIu64 " frames",
                         frames);
    }
    return TB_OK;
}

static tb_status run_strace(const char *trace, uint64_t frames)
{
    char number[24], self[512];
    int code;
    /* By its own path: /proc/self/exe would be strace itself. */
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "cannot read /proc/self/exe");
    }
    self[length] = '\0';
    snprintf(number, sizeof number, "%" PRIu64, frames);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        tb__interrupts_restore();
        execlp("strace", "strace", "-f", "-qq", "-o", trace, self, "bench", "local", "--worker",
               number, (char *)NULL);
        _exit(errno == ENOENT ? 126 : 127);
    }
    if (pid < 0 || waitpid(pid, &code, 0) != pid) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "cannot run strace");
    }
    if (WIFEXITED(code) && WEXITSTATUS(code) == 126) {
        return TB__FAIL(TB_E_NOT_FOUND, "strace is not installed");
    }
    if (!WIFEXITED(code) || WEXITSTATUS(code) != 0) {
        return TB__FAIL(TB_E_SYSTEM, "the loop under strace failed");
    }
    return TB_OK;
}

/* Lines between the second and the third mark: both threads have begun, none has ended. */
static tb_status count_lines(const char *trace, uint64_t *out, char first[64])
{
    char line[1024];
    int marks = 0;
    FILE *file = fopen(trace, "re");
    if (file == NULL) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "cannot read the trace");
    }
    *out = 0;
    first[0] = '\0';
    while (fgets(line, sizeof line, file) != NULL) {
        /* "PID getsid(0) = N", or in two parts when threads interleave. */
        if (strstr(line, " getsid(") != NULL) {
            marks++;
        } else if (marks == 2 && strstr(line, "getsid resumed") == NULL) {
            if (*out == 0) {
                const char *space = strchr(line, ' ');
                snprintf(first, 64, "%.60s", space != NULL ? space + 1 : line);
                first[strcspn(first, "\n")] = '\0';
            }
            ++*out;
        }
    }
    fclose(file);
    if (marks != 4) {
        return TB__FAIL(TB_E_SYSTEM, "the trace has %d marks, not 4", marks);
    }
    return TB_OK;
}

static tb_status strace_row(struct tb__bench *bench)
{
    char trace[] = "/tmp/tensorbus-trace-XXXXXX", first[64];
    uint64_t frames = tb__bench_quick(bench) ? 2000 : 20000, calls = 0;
    int fd = mkostemp(trace, 02000000 /* O_CLOEXEC */);
    if (fd < 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "cannot make a file under /tmp");
    }
    close(fd);
    tb_status status = run_strace(trace, frames);
    if (status == TB_OK) {
        status = count_lines(trace, &calls, first);
    }
    unlink(trace);
    TB__TRY(status);
    struct tb__figure figure;
    double each = (double)calls / (double)frames;
    tb__figure_of(&each, 1, &figure);
    tb__bench_report(bench, rows[1].name, &figure, NAN,
                     "%" PRIu64 " calls of all threads in %" PRIu64 " frames%s%s", calls, frames,
                     calls > 0 ? ", the first: " : "", first);
    return TB_OK;
}

static tb_status syscalls_run(struct tb__bench *bench)
{
    tb_status status = TB_OK;
    if (tb__bench_wants(bench, rows[0].name)) {
        status = seccomp_row(bench);
        if (status != TB_OK) {
            tb__bench_skip(bench, rows[0].name, "%s", tb_last_error_text());
        }
    }
    if (tb__bench_wants(bench, rows[1].name)) {
        status = strace_row(bench);
    }
    return status;
}

const struct tb__bench_group tb__group_syscalls = {rows, 2, syscalls_run};
