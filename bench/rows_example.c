/* Row of the pool example, run as its users run it. */
#include "bench/rows.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "bench/copies.h"
#include "bench/machine.h"
#include "bench/processes.h"

#define FLOW "examples/pool/cpu2cpu.yml"
#define FRAME_BYTES 61440000
#define SLOTS 2
#define FRAMES 100
#define LIMIT_NS TB_SECONDS(60)

static const struct tb__bench_text example_text = {
    .does =
        "Runs `tensorbus run " FLOW "` (100 frames of 15000 x 512 int64, 61,440,000 bytes, by two "
        "processes in turn) and reads the line `Average transfer throughput`. Alternates with the "
        "three kinds of copies of 61,440,000 bytes into a ring of two slots, as many as the "
        "example has frames.",
    .interval =
        "The example's own: 2^20 bytes over the time from just before the write to just after the "
        "receiver's check of element 0, averaged over its frames.",
    .floor = "The fastest kind of copy in the same run, in the same unit.",
};
static const struct tb__bench_row rows[] = {{"example/cpu2cpu", "MiB/s", &example_text}};

struct example_job {
    double *gbps; /* shared, one per kind */
};

static tb_status copier_main(struct tb__side *side, void *argument)
{
    struct example_job *job = argument;
    tb__side_reply(side, 1);
    while (tb__side_wait(side) != TB__SIDE_STOP) {
        /* Another ring for each block, as the example has another pool: which pages it gets makes a
         * difference of several percent. */
        struct tb__copy_ring ring;
        TB__TRY(tb__copy_ring_create(&ring, FRAME_BYTES, SLOTS));
        for (int kind = 0; kind < TB__COPY_KINDS; kind++) {
            job->gbps[kind] = 0;
            if (tb__copy_available((enum tb__copy_kind)kind)) {
                tb__copy_ring_run(&ring, (enum tb__copy_kind)kind, FRAMES, &job->gbps[kind]);
            }
        }
        tb__copy_ring_destroy(&ring);
        tb__side_reply(side, 1);
    }
    return TB_OK;
}

/* The flow: as told, else under the working directory or one above it. */
static tb_status find_flow(const struct tb__bench *bench, char path[512])
{
    static const char *const places[] = {FLOW, "../" FLOW, "../../" FLOW};
    if (tb__bench_example(bench) != NULL) {
        snprintf(path, 512, "%s", tb__bench_example(bench));
        if (access(path, R_OK) == 0) {
            return TB_OK;
        }
        return TB__FAIL_ERRNO(TB_E_NOT_FOUND, "cannot read `%.200s`", path);
    }
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (access(places[i], R_OK) == 0) {
            snprintf(path, 512, "%s", places[i]);
            return TB_OK;
        }
    }
    return TB__FAIL(TB_E_NOT_FOUND, "no " FLOW " here: run from the source tree or give --example");
}

/* Reads all output, up to a limit of time, and looks for the line. */
static tb_status read_throughput(int fd, double *mibs)
{
    static char text[1 << 20];
    static const char key[] = "Average transfer throughput: ";
    size_t used = 0;
    int64_t deadline = tb__deadline_ns(LIMIT_NS);
    for (;;) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, (int)(tb__left_ns(deadline) / 1000000)) <= 0) {
            return TB__FAIL(TB_E_SYSTEM, "the example did not end within 60 s");
        }
        if (used == sizeof text - 1) { /* a long log: the line is at its end */
            memmove(text, text + used / 2, used - used / 2);
            used -= used / 2;
        }
        ssize_t got = read(fd, text + used, sizeof text - 1 - used);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        used += (size_t)got;
    }
    text[used] = '\0';
    const char *line = strstr(text, key);
    if (line == NULL) {
        return TB__FAIL(TB_E_SYSTEM, "the example printed no throughput: %.160s",
                        used > 160 ? text + used - 160 : text);
    }
    *mibs = strtod(line + sizeof key - 1, NULL);
    return TB_OK;
}

static tb_status run_example(const char *flow, double *mibs)
{
    int output[2], code;
    if (pipe2(output, O_CLOEXEC) != 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "cannot make a pipe");
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        tb__interrupts_restore();
        unsetenv("TENSORBUS_FLOW"); /* the runner has a flow of its own */
        dup2(output[1], STDOUT_FILENO);
        dup2(output[1], STDERR_FILENO);
        execl("/proc/self/exe", "tensorbus", "run", flow, (char *)NULL);
        _exit(127);
    }
    close(output[1]);
    if (pid < 0) {
        close(output[0]);
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "cannot fork");
    }
    tb_status status = read_throughput(output[0], mibs);
    close(output[0]);
    if (status != TB_OK) {
        kill(pid, SIGTERM);
    }
    waitpid(pid, &code, 0);
    if (status == TB_OK && (!WIFEXITED(code) || WEXITSTATUS(code) != 0)) {
        return TB__FAIL(TB_E_SYSTEM, "`tensorbus run %.200s` failed", flow);
    }
    return status;
}

static tb_status measure(const char *flow, struct example_job *job, struct tb__side *copier,
                         int blocks, double results[1 + TB__COPY_KINDS][TB__BENCH_MAX_BLOCKS])
{
    struct tb__machine machine;
    tb__machine_find(&machine);
    int cpu = machine.second_cpu >= 0 ? machine.second_cpu : machine.first_cpu;
    TB__TRY(tb__side_start(copier, "copier", cpu, copier_main, job));
    TB__TRY(tb__side_answer(copier, NULL));
    for (int block = 0; block < blocks; block++) {
        TB__TRY(run_example(flow, &results[0][block]));
        TB__TRY(tb__side_command(copier, 1));
        TB__TRY(tb__side_answer(copier, NULL));
        for (int kind = 0; kind < TB__COPY_KINDS; kind++) {
            results[1 + kind][block] = job->gbps[kind] * 1e9 / 1048576;
        }
    }
    return TB_OK;
}

static tb_status example_run(struct tb__bench *bench)
{
    static double results[1 + TB__COPY_KINDS][TB__BENCH_MAX_BLOCKS];
    char flow[512];
    struct tb__side copier = {0};
    int blocks = tb__bench_blocks(bench, 9);
    struct example_job job = {0};
    TB__TRY(find_flow(bench, flow));
    size_t bytes = TB__COPY_KINDS * sizeof(double);
    job.gbps = tb__shared_map(bytes);
    if (job.gbps == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no shared memory");
    }
    tb_status status = measure(flow, &job, &copier, blocks, results);
    tb__side_stop(&copier);
    tb__shared_unmap(job.gbps, bytes);
    if (status == TB_OK) {
        struct tb__figure figure, alone, best = {.value = 0};
        int best_kind = 0;
        tb__figure_of(results[0], blocks, &figure);
        tb__figure_of(results[1 + TB__COPY_INTERLEAVED], blocks, &alone);
        for (int kind = 0; kind < TB__FLOOR_KINDS; kind++) {
            struct tb__figure copy;
            tb__figure_of(results[1 + kind], blocks, &copy);
            if (copy.value > best.value) {
                best = copy;
                best_kind = kind;
            }
        }
        tb__bench_report(bench, rows[0].name, &figure, best.value,
                         "best copy: %s [%.0f..%.0f]; our own kind without the hand-over: %.0f",
                         tb__copy_kind_name((enum tb__copy_kind)best_kind), best.min, best.max,
                         alone.value);
    }
    return status;
}

const struct tb__bench_group tb__group_example = {rows, 1, example_run};
