/* The runner's loop: one epoll set over signals, node processes, their output, the endpoint's news,
 * the guard and the screen. It turns events into calls of the rules (supervise.c) and does what
 * they ask for. Nothing in it waits but epoll_wait: files of logs are the one exception, as slow as
 * the disk is.
 *
 * Runs on the runner's main thread, which must be the one that forks (see process.h). */
#define TB_LOG_TOPIC "flow"
#include "flow/run_loop.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "flow/run_directory.h"
#include "flow/run_environment.h"

#define READ_BYTES 65536
#define DRAIN_BYTES (4u << 20) /* of a node's last output: more than its pipe holds */
#define EVENTS 64

enum source {
    SOURCE_SIGNAL,
    SOURCE_PROCESS,
    SOURCE_OUTPUT,
    SOURCE_CONTROL,
    SOURCE_GUARD,
    SOURCE_SCREEN
};

static uint64_t tag(enum source source, uint32_t node)
{
    return (uint64_t)source << 32 | node;
}

static tb_status watch(struct tb__runner *runner, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    if (epoll_ctl(runner->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        return TB__FAIL_ERRNO(TB_E_LIMIT, "watching a descriptor");
    }
    return TB_OK;
}

static const char *node_id(const struct tb__runner *runner, uint32_t node)
{
    return runner->flow->nodes[node].id;
}

/* ---- the guard ---- */

/* Start the guard again if it was killed, and tell it about everything that runs. */
static void restore_guard(struct tb__runner *runner)
{
    if (!tb__guard_ended(&runner->guard)) {
        return;
    }
    tb_log_warn("the guard process has ended; starting another");
    if (tb__guard_start(&runner->guard_options, &runner->guard) != TB_OK) {
        tb_log_error("%s: nodes may outlive this process if it is killed", tb_last_error_text());
        return;
    }
    (void)watch(runner, runner->guard.pid_fd, EPOLLIN, tag(SOURCE_GUARD, 0));
    for (uint32_t i = 0; i < runner->flow->nodes_count; i++) {
        if (runner->nodes[i].process.pid > 0) {
            (void)tb__guard_add(&runner->guard, runner->nodes[i].process.pid);
        }
    }
}

/* ---- output of nodes ---- */

static void close_output(struct tb__runner *runner, uint32_t node)
{
    struct tb__run_node *it = &runner->nodes[node];
    if (it->process.output_fd >= 0) {
        (void)epoll_ctl(runner->epoll_fd, EPOLL_CTL_DEL, it->process.output_fd, NULL);
        tb__fd_close(&it->process.output_fd);
        tb__log_end(&it->log);
    }
}

/* Take one portion. Returns its size, 0 when there is nothing (more) now. */
static size_t read_output(struct tb__runner *runner, uint32_t node)
{
    struct tb__run_node *it = &runner->nodes[node];
    if (it->process.output_fd < 0) {
        return 0;
    }
    ssize_t got = read(it->process.output_fd, runner->buffer, READ_BYTES);
    if (got > 0) {
        tb__log_write(&it->log, runner->buffer, (size_t)got);
        return (size_t)got;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        close_output(runner, node); /* all that could write have closed it */
    }
    return 0;
}

/* ---- what the rules ask for ---- */

static tb_status op_start(void *context, uint32_t node)
{
    struct tb__runner *runner = context;
    struct tb__run_node *it = &runner->nodes[node];
    const struct tb__process_options options = {
        .label = node_id(runner, node),
        .argv = runner->flow->nodes[node].argv,
        .environment = it->environment,
        .directory = runner->flow->nodes[node].working_dir,
    };
    runner->state_changed = 1;
    tb__run_environment_set_restarts(it->environment, runner->supervised[node].restarts);
    tb__control_started(runner->control, node);
    TB__TRY(tb__process_start(&options, &it->process));
    if (tb__guard_add(&runner->guard, it->process.pid) != TB_OK) {
        restore_guard(runner);
    }
    tb_status status = watch(runner, it->process.pid_fd, EPOLLIN, tag(SOURCE_PROCESS, node));
    if (status == TB_OK) {
        status = watch(runner, it->process.output_fd, EPOLLIN, tag(SOURCE_OUTPUT, node));
    }
    if (status != TB_OK) {
        /* Started but not to be followed: not to be left alone either. */
        int ignored;
        tb__process_signal_group(it->process.pid, SIGKILL);
        while (!tb__process_reap(&it->process, &ignored)) {
            struct timespec pause = {.tv_nsec = 1000000};
            nanosleep(&pause, NULL);
        }
        (void)tb__guard_remove(&runner->guard, it->process.pid);
        tb__process_fini(&it->process);
        it->process.pid = 0;
    }
    return status;
}

static int op_stop(void *context, uint32_t node)
{
    struct tb__runner *runner = context;
    return tb__control_stop(runner->control, node);
}

static void op_signal(void *context, uint32_t node, int signal_number)
{
    struct tb__runner *runner = context;
    tb__process_signal_group(runner->nodes[node].process.pid, signal_number);
}

static int op_group_alive(void *context, uint32_t node)
{
    struct tb__runner *runner = context;
    return tb__process_group_alive(runner->nodes[node].process.pid);
}

/* Nobody of the group writes any more. A daemon that left the group may still hold the pipe, so
 * the end of the file is not waited for. */
static void op_group_empty(void *context, uint32_t node)
{
    struct tb__runner *runner = context;
    struct tb__run_node *it = &runner->nodes[node];
    size_t drained = 0;
    for (size_t got; drained < DRAIN_BYTES && (got = read_output(runner, node)) > 0;) {
        drained += got;
    }
    close_output(runner, node);
    (void)tb__guard_remove(&runner->guard, it->process.pid);
    tb__process_fini(&it->process);
    it->process.pid = 0;
    runner->state_changed = 1;
}

static void op_gone(void *context, uint32_t node)
{
    struct tb__runner *runner = context;
    tb__control_gone(runner->control, node);
    runner->state_changed = 1;
}

static void op_note(void *context, uint32_t node, const char *text)
{
    struct tb__runner *runner = context;
    tb__screen_note(&runner->screen, "%s: %s", node_id(runner, node), text);
    runner->state_changed = 1;
}

/* ---- the state for tools ---- */

static const char *state_text(const struct tb__supervise *run, uint32_t node)
{
    switch (run->nodes[node].state) {
    case TB__NODE_WAITING:
        return "waiting";
    case TB__NODE_RUNNING:
        return run->phase == TB__PHASE_RUNNING ? "running" : "stopping";
    case TB__NODE_LEFTOVER:
        return "stopping";
    case TB__NODE_BACKOFF:
        return "restarting";
    default:
        return "ended";
    }
}

static void write_state(struct tb__runner *runner)
{
    if (!runner->state_changed) {
        return;
    }
    runner->state_changed = 0;
    const struct tb__supervise *run = &runner->run;
    snprintf(runner->state.phase, sizeof runner->state.phase, "%s",
             run->phase == TB__PHASE_RUNNING ? "running" : "stopping");
    for (uint32_t i = 0; i < runner->flow->nodes_count; i++) {
        struct tb__state_node *node = &runner->state.nodes[i];
        snprintf(node->state, sizeof node->state, "%s", state_text(run, i));
        /* Of a node that was started again, its end before stays. */
        if (run->nodes[i].has_status || run->nodes[i].start_failed) {
            tb__supervise_describe(run, i, node->cause, sizeof node->cause);
        }
        node->pid = runner->nodes[i].process.pid;
        node->restarts = run->nodes[i].restarts;
        node->started_ns = run->nodes[i].started_ns;
    }
    if (tb__state_write(runner->directory_fd, &runner->state) != TB_OK) {
        tb_log_warn_limited("%s", tb_last_error_text());
    }
}

/* ---- events ---- */

static void interrupted(struct tb__runner *runner, const char *by)
{
    runner->interrupts++;
    if (runner->interrupts == 1) {
        if (runner->run.phase == TB__PHASE_RUNNING) {
            tb__screen_note(&runner->screen, "%s: stopping all nodes (again: kill them)", by);
        }
        tb__supervise_stop(&runner->run, TB__REASON_INTERRUPTED, tb__now_ns());
    } else {
        tb__screen_note(&runner->screen, "%s again: killing all nodes", by);
        tb__supervise_kill(&runner->run, TB__REASON_INTERRUPTED, tb__now_ns());
    }
    runner->state_changed = 1;
}

static void on_signal(struct tb__runner *runner)
{
    struct signalfd_siginfo info;
    while (read(runner->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        interrupted(runner, info.ssi_signo == SIGINT   ? "Ctrl-C"
                            : info.ssi_signo == SIGHUP ? "terminal closed"
                                                       : "SIGTERM");
    }
}

static void on_process(struct tb__runner *runner, uint32_t node)
{
    struct tb__run_node *it = &runner->nodes[node];
    int status;
    if (it->process.pid_fd < 0 || !tb__process_reap(&it->process, &status)) {
        return;
    }
    (void)epoll_ctl(runner->epoll_fd, EPOLL_CTL_DEL, it->process.pid_fd, NULL);
    tb__fd_close(&it->process.pid_fd);
    runner->state_changed = 1;
    tb__control_ended(runner->control, node);
    tb__supervise_exited(&runner->run, node, status, tb__now_ns());
}

static void on_control(struct tb__runner *runner)
{
    struct tb__control_news news;
    tb__control_take(runner->control, &news);
    if (news.kill) {
        tb__screen_note(&runner->screen, "asked to kill all nodes");
        tb__supervise_kill(&runner->run, TB__REASON_REQUESTED, tb__now_ns());
    } else if (news.stop && runner->run.phase == TB__PHASE_RUNNING) {
        tb__screen_note(&runner->screen, "asked to stop: stopping all nodes");
        tb__supervise_stop(&runner->run, TB__REASON_REQUESTED, tb__now_ns());
    }
    for (uint32_t i = 0; i < runner->flow->nodes_count; i++) {
        if (news.reachable[i]) {
            tb__supervise_reachable(&runner->run, i);
        }
    }
    runner->state_changed |= news.kill || news.stop;
}

static void on_event(struct tb__runner *runner, uint64_t data)
{
    uint32_t node = (uint32_t)data;
    switch ((enum source)(data >> 32)) {
    case SOURCE_SIGNAL:
        on_signal(runner);
        break;
    case SOURCE_PROCESS:
        on_process(runner, node);
        break;
    case SOURCE_OUTPUT:
        (void)read_output(runner, node);
        break;
    case SOURCE_CONTROL:
        on_control(runner);
        break;
    case SOURCE_GUARD:
        restore_guard(runner);
        break;
    case SOURCE_SCREEN:
        break; /* the flush before the next wait does it */
    }
}

/* Write out what the screen has, and wait for room only while it has something left. */
static void flush_screen(struct tb__runner *runner)
{
    int left = tb__screen_flush(&runner->screen);
    if (left == runner->screen_watched) {
        return;
    }
    runner->screen_watched = left;
    if (left) {
        (void)watch(runner, runner->screen.fd, EPOLLOUT, tag(SOURCE_SCREEN, 0));
    } else {
        (void)epoll_ctl(runner->epoll_fd, EPOLL_CTL_DEL, runner->screen.fd, NULL);
    }
}

static int wait_ms(int64_t next_ns)
{
    int64_t left = next_ns == INT64_MAX ? -1 : next_ns - tb__now_ns();
    if (left < 0) {
        return next_ns == INT64_MAX ? -1 : 0;
    }
    int64_t ms = (left + 999999) / 1000000;
    return ms > 60000 ? 60000 : (int)ms;
}

static void run_until_ended(struct tb__runner *runner)
{
    struct epoll_event events[EVENTS];
    for (;;) {
        int64_t next = tb__supervise_step(&runner->run, tb__now_ns());
        write_state(runner);
        if (runner->run.phase == TB__PHASE_ENDED) {
            return;
        }
        flush_screen(runner);
        int count = epoll_wait(runner->epoll_fd, events, EVENTS, wait_ms(next));
        for (int i = 0; i < count; i++) {
            on_event(runner, events[i].data.u64);
        }
    }
}

tb_status tb__run_loop_signals(struct tb__runner *runner)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    struct sigaction hangup;
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
        sigaddset(&set, SIGHUP); /* else started with nohup: go on */
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGCHLD, SIG_DFL);
    runner->signal_fd = -1;
    if (sigprocmask(SIG_BLOCK, &set, NULL) == 0) {
        runner->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    }
    if (runner->signal_fd < 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "a descriptor for signals");
    }
    return TB_OK;
}

tb_status tb__run_loop(struct tb__runner *runner, int64_t grace_ns)
{
    runner->ops = (struct tb__supervise_ops){
        .start = op_start,
        .stop = op_stop,
        .signal = op_signal,
        .group_alive = op_group_alive,
        .group_empty = op_group_empty,
        .gone = op_gone,
        .note = op_note,
        .context = runner,
    };
    tb__supervise_init(&runner->run, &runner->ops, runner->supervised, runner->flow->nodes_count);
    runner->run.grace_ns = grace_ns;
    TB__TRY(watch(runner, runner->signal_fd, EPOLLIN, tag(SOURCE_SIGNAL, 0)));
    TB__TRY(watch(runner, tb__control_fd(runner->control), EPOLLIN, tag(SOURCE_CONTROL, 0)));
    TB__TRY(watch(runner, runner->guard.pid_fd, EPOLLIN, tag(SOURCE_GUARD, 0)));
    runner->state_changed = 1;
    tb__supervise_start(&runner->run, tb__now_ns());
    run_until_ended(runner);
    return TB_OK;
}
