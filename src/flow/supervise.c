/* The rules of a running flow, as a state machine: told what happened and what time it is, it calls
 * the operations that follow. It makes no system call itself, so tests drive it without sleeping.
 *
 * A flow runs until all its nodes have ended for good, or one has failed, or somebody asks it to
 * stop. Then: STOP to every node, the grace period, SIGTERM to the process groups, a shorter wait,
 * SIGKILL to the groups. A node that cannot be told STOP (any program can be a node) gets SIGTERM
 * in its place, and the same grace.
 *
 * A node has ended when its process has ended *and* its process group is empty: what it left behind
 * gets SIGTERM, then SIGKILL, before it is restarted or counted as ended.
 *
 * Driven by the runner's loop; one thread. */
#include "flow/supervise.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "flow/process.h"

#define GROUP_POLL_NS INT64_C(20000000)
#define FAR INT64_MAX

void tb__supervise_init(struct tb__supervise *run, const struct tb__supervise_ops *ops,
                        struct tb__supervise_node *nodes, uint32_t count)
{
    *run = (struct tb__supervise){
        .ops = ops,
        .nodes = nodes,
        .count = count,
        .grace_ns = TB__GRACE_NS,
        .term_ns = TB__TERM_NS,
        .failed_node = -1,
        .deadline_ns = FAR,
    };
}

static int has_process(const struct tb__supervise_node *node)
{
    return node->state == TB__NODE_RUNNING || node->state == TB__NODE_LEFTOVER;
}

static int status_is_failure(int status)
{
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* A node that ends by the SIGTERM that we sent has done what it was asked to. */
static int ended_by_our_term(const struct tb__supervise_node *node)
{
    return node->sent_term && node->has_status &&
           ((WIFSIGNALED(node->status) && WTERMSIG(node->status) == SIGTERM) ||
            (WIFEXITED(node->status) && WEXITSTATUS(node->status) == 128 + SIGTERM));
}

static int killed_by_us(const struct tb__supervise_node *node)
{
    return node->sent_kill && node->has_status && WIFSIGNALED(node->status) &&
           WTERMSIG(node->status) == SIGKILL;
}

int tb__supervise_node_failed(const struct tb__supervise_node *node)
{
    return node->start_failed || node->unkillable ||
           (node->has_status && status_is_failure(node->status) && !ended_by_our_term(node));
}

static void check_all_ended(struct tb__supervise *run)
{
    for (uint32_t i = 0; i < run->count; i++) {
        if (run->nodes[i].state != TB__NODE_ENDED) {
            return;
        }
    }
    run->phase = TB__PHASE_ENDED;
    run->deadline_ns = FAR;
}

static void end_for_good(struct tb__supervise *run, uint32_t index, int64_t now_ns)
{
    struct tb__supervise_node *node = &run->nodes[index];
    node->state = TB__NODE_ENDED;
    node->deadline_ns = FAR;
    run->ops->gone(run->ops->context, index);
    if (run->phase == TB__PHASE_RUNNING && tb__supervise_node_failed(node)) {
        run->failed_node = (int32_t)index;
        tb__supervise_stop(run, TB__REASON_FAILED, now_ns);
    }
    check_all_ended(run);
}

static int64_t next_delay(struct tb__supervise_node *node)
{
    int64_t delay = node->restart_delay_ns;
    if (delay < TB__RESTART_DELAY_MIN_NS) {
        delay = TB__RESTART_DELAY_MIN_NS;
    }
    int64_t most = delay > TB__RESTART_DELAY_MAX_NS ? delay : TB__RESTART_DELAY_MAX_NS;
    for (uint32_t i = 0; i < node->doublings && delay < most; i++) {
        delay = delay > most / 2 ? most : delay * 2;
    }
    node->doublings++;
    return delay;
}

static int may_restart(const struct tb__supervise *run, const struct tb__supervise_node *node)
{
    int wanted = node->restart == TB__RESTART_ALWAYS ||
                 (node->restart == TB__RESTART_ON_FAILURE && tb__supervise_node_failed(node));
    return wanted && run->phase == TB__PHASE_RUNNING &&
           (node->max_restarts == 0 || node->restarts < node->max_restarts);
}

/* The process has ended and its group is empty. */
static void settle(struct tb__supervise *run, uint32_t index, int64_t now_ns)
{
    struct tb__supervise_node *node = &run->nodes[index];
    if (!may_restart(run, node)) {
        end_for_good(run, index, now_ns);
        return;
    }
    if (node->has_status && node->ended_ns - node->started_ns >= TB__RESTART_FORGET_NS) {
        node->doublings = 0;
    }
    int64_t delay = next_delay(node);
    char cause[64];
    char text[160];
    tb__supervise_describe(run, index, cause, sizeof cause);
    int used = snprintf(text, sizeof text, "%s; restart %u", cause, node->restarts + 1);
    if (node->max_restarts != 0) {
        used += snprintf(text + used, sizeof text - (size_t)used, " of %u", node->max_restarts);
    }
    snprintf(text + used, sizeof text - (size_t)used, " in %.1f s", (double)delay / 1e9);
    run->ops->note(run->ops->context, index, text);
    node->state = TB__NODE_BACKOFF;
    node->deadline_ns = now_ns + delay;
}

static void start_node(struct tb__supervise *run, uint32_t index, int64_t now_ns)
{
    struct tb__supervise_node *node = &run->nodes[index];
    node->has_status = 0;
    node->start_failed = 0;
    node->sent_term = 0;
    node->sent_kill = 0;
    node->told_stop = 0;
    node->left_behind = 0;
    node->started_ns = now_ns;
    node->ended_ns = now_ns;
    if (run->ops->start(run->ops->context, index) == TB_OK) {
        node->state = TB__NODE_RUNNING;
        return;
    }
    node->start_failed = 1;
    snprintf(node->error, sizeof node->error, "%s", tb_last_error_text());
    run->ops->note(run->ops->context, index, node->error);
    settle(run, index, now_ns);
}

void tb__supervise_start(struct tb__supervise *run, int64_t now_ns)
{
    for (uint32_t i = 0; i < run->count; i++) {
        run->nodes[i].deadline_ns = FAR;
    }
    for (uint32_t i = 0; i < run->count && run->phase == TB__PHASE_RUNNING; i++) {
        start_node(run, i, now_ns);
    }
    check_all_ended(run);
}

void tb__supervise_exited(struct tb__supervise *run, uint32_t index, int status, int64_t now_ns)
{
    struct tb__supervise_node *node = &run->nodes[index];
    if (node->state != TB__NODE_RUNNING) {
        return;
    }
    node->status = status;
    node->has_status = 1;
    node->ended_ns = now_ns;
    node->total_ns += now_ns - node->started_ns;
    if (run->ops->group_alive(run->ops->context, index)) {
        /* Others of a group that we have just signalled may end a moment later than the node. */
        node->left_behind = !node->sent_term && !node->sent_kill;
        node->state = TB__NODE_LEFTOVER;
        node->deadline_ns = now_ns + run->term_ns;
        run->ops->signal(run->ops->context, index,
                         run->phase == TB__PHASE_KILLING ? SIGKILL : SIGTERM);
        return;
    }
    run->ops->group_empty(run->ops->context, index);
    settle(run, index, now_ns);
}

static void signal_running(struct tb__supervise *run, int signal_number)
{
    for (uint32_t i = 0; i < run->count; i++) {
        struct tb__supervise_node *node = &run->nodes[i];
        if (!has_process(node)) {
            continue;
        }
        if (node->state == TB__NODE_RUNNING) {
            node->sent_term |= signal_number == SIGTERM;
            node->sent_kill |= signal_number == SIGKILL;
        }
        run->ops->signal(run->ops->context, i, signal_number);
    }
}

/* Nodes that are not running are not started any more. */
static void drop_pending(struct tb__supervise *run, int64_t now_ns)
{
    for (uint32_t i = 0; i < run->count; i++) {
        enum tb__supervise_state state = run->nodes[i].state;
        if (state == TB__NODE_WAITING || state == TB__NODE_BACKOFF) {
            end_for_good(run, i, now_ns);
        }
    }
}

void tb__supervise_stop(struct tb__supervise *run, enum tb__supervise_reason reason, int64_t now_ns)
{
    if (run->phase != TB__PHASE_RUNNING) {
        return;
    }
    run->phase = TB__PHASE_STOPPING;
    run->reason = reason;
    run->deadline_ns = now_ns + run->grace_ns;
    for (uint32_t i = 0; i < run->count; i++) {
        struct tb__supervise_node *node = &run->nodes[i];
        if (node->state != TB__NODE_RUNNING) {
            continue;
        }
        node->told_stop = run->ops->stop(run->ops->context, i);
        if (!node->told_stop) {
            node->sent_term = 1;
            run->ops->signal(run->ops->context, i, SIGTERM);
        }
    }
    drop_pending(run, now_ns);
    check_all_ended(run);
}

void tb__supervise_reachable(struct tb__supervise *run, uint32_t index)
{
    struct tb__supervise_node *node = &run->nodes[index];
    if (run->phase != TB__PHASE_RUNNING && node->state == TB__NODE_RUNNING && !node->told_stop) {
        node->told_stop = run->ops->stop(run->ops->context, index);
    }
}

static void begin_killing(struct tb__supervise *run, int64_t now_ns)
{
    run->phase = TB__PHASE_KILLING;
    run->deadline_ns = now_ns + TB__KILL_PATIENCE_NS;
    signal_running(run, SIGKILL);
}

void tb__supervise_kill(struct tb__supervise *run, enum tb__supervise_reason reason, int64_t now_ns)
{
    if (run->phase == TB__PHASE_ENDED || run->phase == TB__PHASE_KILLING) {
        return;
    }
    if (run->phase == TB__PHASE_RUNNING || run->reason != TB__REASON_FAILED) {
        run->reason = reason;
    }
    run->hurried = 1;
    begin_killing(run, now_ns);
    drop_pending(run, now_ns);
    check_all_ended(run);
}

/* After SIGKILL only the kernel can keep a process: one that waits for a device, say. */
static void give_up(struct tb__supervise *run, int64_t now_ns)
{
    for (uint32_t i = 0; i < run->count; i++) {
        if (has_process(&run->nodes[i])) {
            run->nodes[i].unkillable = 1;
            run->ops->note(run->ops->context, i, "does not end even after SIGKILL; left alone");
            end_for_good(run, i, now_ns);
        }
    }
}

static void step_phase(struct tb__supervise *run, int64_t now_ns)
{
    if (now_ns < run->deadline_ns) {
        return;
    }
    if (run->phase == TB__PHASE_STOPPING) {
        run->phase = TB__PHASE_TERMINATING;
        run->deadline_ns = now_ns + run->term_ns;
        signal_running(run, SIGTERM);
    } else if (run->phase == TB__PHASE_TERMINATING) {
        begin_killing(run, now_ns);
    } else if (run->phase == TB__PHASE_KILLING) {
        give_up(run, now_ns);
    }
}

static void step_leftover(struct tb__supervise *run, uint32_t index, int64_t now_ns)
{
    struct tb__supervise_node *node = &run->nodes[index];
    if (!run->ops->group_alive(run->ops->context, index)) {
        node->deadline_ns = FAR;
        run->ops->group_empty(run->ops->context, index);
        settle(run, index, now_ns);
    } else if (now_ns >= node->deadline_ns) {
        node->deadline_ns = now_ns + run->term_ns;
        node->left_behind |= !node->sent_kill;
        run->ops->signal(run->ops->context, index, SIGKILL);
    }
}

int64_t tb__supervise_step(struct tb__supervise *run, int64_t now_ns)
{
    step_phase(run, now_ns);
    for (uint32_t i = 0; i < run->count; i++) {
        struct tb__supervise_node *node = &run->nodes[i];
        if (node->state == TB__NODE_LEFTOVER) {
            step_leftover(run, i, now_ns);
        } else if (node->state == TB__NODE_BACKOFF && now_ns >= node->deadline_ns) {
            node->restarts++;
            start_node(run, i, now_ns);
        }
    }
    int64_t next = run->deadline_ns;
    for (uint32_t i = 0; i < run->count; i++) {
        const struct tb__supervise_node *node = &run->nodes[i];
        int64_t due = node->state == TB__NODE_LEFTOVER  ? now_ns + GROUP_POLL_NS
                      : node->state == TB__NODE_BACKOFF ? node->deadline_ns
                                                        : FAR;
        next = due < next ? due : next;
    }
    return run->phase == TB__PHASE_ENDED ? FAR : next;
}

void tb__supervise_describe(const struct tb__supervise *run, uint32_t index, char *buffer,
                            size_t size)
{
    const struct tb__supervise_node *node = &run->nodes[index];
    char status[48];
    const char *text = status;
    if (node->unkillable) {
        text = "cannot be killed";
    } else if (node->start_failed) {
        text = "could not be started";
    } else if (node->state == TB__NODE_RUNNING && !node->has_status) {
        text = "running";
    } else if (!node->has_status) {
        text = "not started";
    } else if (killed_by_us(node)) {
        text = run->hurried ? "killed on request" : "killed after grace";
    } else if (ended_by_our_term(node)) {
        text = node->told_stop ? "SIGTERM after grace" : "stopped by SIGTERM";
    } else {
        tb__process_describe_status(node->status, status, sizeof status);
    }
    snprintf(buffer, size, "%s%s", text, node->left_behind ? ", left processes behind" : "");
}

int tb__supervise_exit_code(const struct tb__supervise *run)
{
    if (run->reason == TB__REASON_INTERRUPTED) {
        return 130;
    }
    for (uint32_t i = 0; i < run->count; i++) {
        if (tb__supervise_node_failed(&run->nodes[i])) {
            return 1;
        }
    }
    return 0;
}
