/* Running a flow, from its directory to its summary.
 *
 * Order: the flow's directory and its lock; the guard (forked while the process has one thread and
 * no pipe of a node); logs; the endpoint; the nodes. The end takes it down the other way round, and
 * the directory goes before the endpoint, so that `tensorbus stop`, which waits for the endpoint,
 * returns when nothing is left. */
#define TB_LOG_TOPIC "flow"
#include "flow/run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "flow/run_directory.h"
#include "flow/run_environment.h"
#include "flow/run_loop.h"
#include "flow/run_summary.h"
#include "pool/observe.h"

#define READ_BYTES 65536
#define OUTPUT_PATIENCE_NS INT64_C(60000000000)
#define OUTPUT_HURRY_NS INT64_C(2000000000) /* somebody wants it to end */

extern char **environ;

/* Everything of one run. */
struct job {
    const struct tb__flow *flow;
    const struct tb__run_options *options;
    char flow_id[16];
    char name[TB__NAME_SIZE];
    char runtime_path[TB__RUN_PATH_SIZE];
    char log_path[TB__STATE_PATH_SIZE];
    int root_fd;
    int lock_fd;
    int log_fd; /* directory of the logs */
    int directory_made;
    const char **names; /* node ids, for the screen */
    struct tb__runner runner;
    int64_t started_ns;
};

/* ---- making ---- */

static tb_status make_directory(struct job *job)
{
    TB__TRY(tb__run_root_open(1, job->runtime_path, &job->root_fd));
    tb_status status = TB_E_EXISTS;
    for (int i = 0; i < 100 && status == TB_E_EXISTS; i++) {
        snprintf(job->flow_id, sizeof job->flow_id, "%08" PRIx32, (uint32_t)tb__random64());
        status = tb__run_directory_create(job->root_fd, job->flow_id, &job->runner.directory_fd,
                                          &job->lock_fd);
    }
    job->directory_made = status == TB_OK;
    return status;
}

/* "<out>/<id>-<name>", made absolute for tools in other directories. */
static tb_status make_log_directory(struct job *job)
{
    const char *out = job->options->out_directory != NULL ? job->options->out_directory : "out";
    char *absolute = NULL;
    if ((mkdir(out, 0755) != 0 && errno != EEXIST) || (absolute = realpath(out, NULL)) == NULL) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "creating the directory `%s` for logs", out);
    }
    int length = snprintf(job->log_path, sizeof job->log_path, "%s/%s-%s", absolute, job->flow_id,
                          job->name);
    free(absolute);
    if (length < 0 || (size_t)length >= sizeof job->log_path) {
        return TB__FAIL(TB_E_LIMIT, "the path of the directory for logs is longer than %zu bytes",
                        sizeof job->log_path - 1);
    }
    if (mkdir(job->log_path, 0755) != 0 && errno != EEXIST) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "creating the directory `%s` for logs", job->log_path);
    }
    job->log_fd = open(job->log_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (job->log_fd < 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "opening the directory `%s` for logs", job->log_path);
    }
    return TB_OK;
}

static tb_status make_tables(struct job *job)
{
    struct tb__runner *runner = &job->runner;
    uint32_t count = job->flow->nodes_count;
    runner->flow = job->flow;
    runner->nodes = calloc(count, sizeof *runner->nodes);
    runner->supervised = calloc(count, sizeof *runner->supervised);
    runner->state.nodes = calloc(count, sizeof *runner->state.nodes);
    runner->buffer = malloc(READ_BYTES);
    job->names = calloc(count, sizeof *job->names);
    if (runner->nodes == NULL || runner->supervised == NULL || runner->state.nodes == NULL ||
        runner->buffer == NULL || job->names == NULL) {
        return TB__FAIL(TB_E_NOMEM, "memory for %" PRIu32 " nodes", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct tb__flow_node *node = &job->flow->nodes[i];
        job->names[i] = node->id;
        runner->nodes[i].process = (struct tb__process){.pid_fd = -1, .output_fd = -1};
        runner->supervised[i].restart = (enum tb__supervise_restart)node->restart_policy;
        runner->supervised[i].max_restarts = node->max_restarts;
        runner->supervised[i].restart_delay_ns = node->restart_delay_ns;
    }
    return TB_OK;
}

static tb_status make_environments(struct job *job)
{
    for (uint32_t i = 0; i < job->flow->nodes_count; i++) {
        const struct tb__run_environment_options options = {
            .flow = job->flow,
            .node = i,
            .runtime_directory = job->runtime_path,
            .flow_id = job->flow_id,
            .inherited = environ,
        };
        TB__TRY(tb__run_environment_create(&options, &job->runner.nodes[i].environment));
    }
    return TB_OK;
}

static tb_status make_logs(struct job *job)
{
    struct tb__runner *runner = &job->runner;
    TB__TRY(tb__screen_open(&runner->screen, STDOUT_FILENO, job->options->colour, job->names,
                            job->flow->nodes_count));
    const struct tb__log_sink sink = tb__screen_sink(&runner->screen);
    for (uint32_t i = 0; i < job->flow->nodes_count; i++) {
        TB__TRY(tb__log_open(&runner->nodes[i].log, job->log_fd, job->names[i], i, &sink));
    }
    return TB_OK;
}

static void fill_state(struct job *job)
{
    struct tb__state *state = &job->runner.state;
    tb__name_copy(state->flow, job->flow_id);
    tb__name_copy(state->name, job->name);
    char *absolute = realpath(job->flow->file, NULL);
    snprintf(state->file, sizeof state->file, "%s", absolute != NULL ? absolute : job->flow->file);
    free(absolute);
    memcpy(state->log_directory, job->log_path, sizeof state->log_directory);
    state->pid = getpid();
    state->started_ns = job->started_ns;
    state->count = job->flow->nodes_count;
    for (uint32_t i = 0; i < state->count; i++) {
        tb__name_copy(state->nodes[i].id, job->names[i]);
    }
}

static tb_status make_guard(struct job *job)
{
    job->runner.guard_options = (struct tb__guard_options){
        .directory_fd = job->root_fd,
        .directory_name = job->flow_id,
        .lock_fd = job->lock_fd,
        .term_ns = TB__TERM_NS,
    };
    return tb__guard_start(&job->runner.guard_options, &job->runner.guard);
}

static tb_status make_all(struct job *job)
{
    struct tb__runner *runner = &job->runner;
    /* Each node takes five descriptors: log, output, process, and its lifeline with a doorbell. */
    tb__process_raise_limit(RLIMIT_NOFILE);
    TB__TRY(tb__run_loop_signals(runner));
    TB__TRY(make_directory(job));
    TB__TRY(make_guard(job));
    TB__TRY(make_log_directory(job));
    TB__TRY(make_tables(job));
    TB__TRY(make_environments(job));
    TB__TRY(make_logs(job));
    fill_state(job);
    runner->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (runner->epoll_fd < 0) {
        return TB__FAIL_ERRNO(TB_E_LIMIT, "a descriptor for the event loop");
    }
    const struct tb__control_options control = {
        .flow = job->flow,
        .runtime_directory = job->runtime_path,
        .flow_id = job->flow_id,
    };
    return tb__control_open(&control, &runner->control);
}

/* ---- ending ---- */

/* The two lines that the pool examples are known for. */
static void report_pools(struct job *job)
{
    char text[96];
    uint64_t count = tb__control_pools(job->runner.control);
    if (count == 0) {
        return;
    }
    snprintf(text, sizeof text, "Detected %" PRIu64 " unreleased memory pool, releasing...", count);
    tb__screen_plain(&job->runner.screen, text);
    /* Their memory went with their processes, which have all ended. */
    snprintf(text, sizeof text, "Successfully released %" PRIu64 " unreleased memory pools!",
             count);
    tb__screen_plain(&job->runner.screen, text);
}

static void print_summary(const struct job *job)
{
    const struct tb__log *logs[TB__FLOW_NODES_MAX];
    for (uint32_t i = 0; i < job->flow->nodes_count; i++) {
        logs[i] = &job->runner.nodes[i].log;
    }
    const struct tb__summary summary = {
        .flow = job->flow,
        .name = job->name,
        .id = job->flow_id,
        .log_directory = job->log_path,
        .run = &job->runner.run,
        .logs = logs,
        .total_ns = tb__now_ns() - job->started_ns,
    };
    tb__summary_print(&summary, stderr);
}

/* Directory, guard and endpoint go; afterwards nothing of the flow is left but its logs. */
static void take_down(struct job *job)
{
    struct tb__runner *runner = &job->runner;
    tb__fd_close(&runner->directory_fd);
    if (job->directory_made) {
        tb__run_directory_remove(job->root_fd, job->flow_id);
    }
    tb__guard_stop(&runner->guard);
    tb__control_close(runner->control);
    runner->control = NULL;
    tb__fd_close(&job->lock_fd);
    tb__fd_close(&job->root_fd);
}

static void free_all(struct job *job)
{
    struct tb__runner *runner = &job->runner;
    for (uint32_t i = 0; runner->nodes != NULL && i < job->flow->nodes_count; i++) {
        tb__process_fini(&runner->nodes[i].process);
        tb__log_fini(&runner->nodes[i].log);
        tb__run_environment_destroy(runner->nodes[i].environment);
    }
    tb__screen_fini(&runner->screen);
    tb__fd_close(&runner->epoll_fd);
    tb__fd_close(&runner->signal_fd);
    tb__fd_close(&job->log_fd);
    free(runner->nodes);
    free(runner->supervised);
    free(runner->buffer);
    tb__state_fini(&runner->state);
    free(job->names);
}

static void run(struct job *job, int *out_exit_code)
{
    struct tb__runner *runner = &job->runner;
    tb__screen_note(&runner->screen, "flow %s (%s): %" PRIu32 " node%s; logs in %s", job->flow_id,
                    job->name, job->flow->nodes_count, job->flow->nodes_count == 1 ? "" : "s",
                    job->log_path);
    if (tb__run_loop(runner, job->options->grace_ns) != TB_OK) {
        tb_log_error("%s", tb_last_error_text());
        *out_exit_code = 1;
        return;
    }
    /* Files for foreign readers, of nodes that were killed. */
    (void)tb__exports_sweep(NULL);
    report_pools(job);
    *out_exit_code = tb__supervise_exit_code(&runner->run);
}

/* How long the end waits for a reader that does not read; the logs have it all. */
static int64_t output_patience_ns(const struct job *job)
{
    enum tb__supervise_reason reason = job->runner.run.reason;
    int hurry = reason == TB__REASON_REQUESTED || job->runner.interrupts > 0;
    return hurry ? OUTPUT_HURRY_NS : OUTPUT_PATIENCE_NS;
}

tb_status tb__run_flow(const struct tb__flow *flow, const struct tb__run_options *options,
                       int *out_exit_code)
{
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return TB__FAIL(TB_E_NOMEM, "memory for a run");
    }
    job->flow = flow;
    job->options = options;
    job->root_fd = job->lock_fd = job->log_fd = -1;
    job->runner.directory_fd = job->runner.epoll_fd = job->runner.signal_fd = -1;
    job->runner.guard = (struct tb__guard){.pipe_fd = -1, .pid_fd = -1};
    job->started_ns = tb__now_ns();
    const char *name = options->name != NULL ? options->name : flow->name;
    tb_status status = tb__name_check("flow", name);
    if (status == TB_OK) {
        tb__name_copy(job->name, name);
        status = make_all(job);
    }
    if (status == TB_OK) {
        run(job, out_exit_code);
    } else {
        /* Removing needs descriptors, and they may be what is lacking. */
        tb__fd_close(&job->log_fd);
        tb__fd_close(&job->lock_fd);
    }
    take_down(job);
    if (status == TB_OK) {
        tb__screen_finish(&job->runner.screen, output_patience_ns(job));
        print_summary(job);
    }
    free_all(job);
    free(job);
    return status;
}
