/* The summary table. Pure formatting; one thread. */
#include "flow/run_summary.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "flow/logs_text.h"

#define CAUSE_SIZE 96
#define TEXT_PIECE 4096

const char *tb__summary_duration(int64_t ns, char *buffer, size_t size)
{
    int64_t seconds = ns / 1000000000;
    if (seconds < 10) {
        snprintf(buffer, size, "%.2f s", (double)ns / 1e9);
    } else if (seconds < 60) {
        snprintf(buffer, size, "%.1f s", (double)ns / 1e9);
    } else if (seconds < 3600) {
        snprintf(buffer, size, "%" PRId64 " min %02" PRId64 " s", seconds / 60, seconds % 60);
    } else {
        snprintf(buffer, size, "%" PRId64 " h %02" PRId64 " min", seconds / 3600,
                 seconds / 60 % 60);
    }
    return buffer;
}

void tb__summary_text(const char *text, FILE *out)
{
    char shown[TB__LOG_TEXT_ROOM(TEXT_PIECE)];
    for (size_t left = strlen(text); left > 0;) {
        size_t now = left < TEXT_PIECE ? left : TEXT_PIECE;
        (void)fwrite(shown, 1, tb__log_text(text, now, shown), out);
        text += now;
        left -= now;
    }
}

static const char *reason_text(const struct tb__supervise *run)
{
    switch (run->reason) {
    case TB__REASON_FAILED:
        return "stopped because a node failed";
    case TB__REASON_REQUESTED:
        return "stopped on request";
    case TB__REASON_INTERRUPTED:
        return "interrupted";
    default:
        return "finished";
    }
}

static void print_table(const struct tb__summary *summary, FILE *out)
{
    const struct tb__flow *flow = summary->flow;
    size_t id_width = strlen("node");
    size_t cause_width = strlen("end");
    char cause[CAUSE_SIZE];
    for (uint32_t i = 0; i < flow->nodes_count; i++) {
        size_t length = strlen(flow->nodes[i].id);
        id_width = length > id_width ? length : id_width;
        tb__supervise_describe(summary->run, i, cause, sizeof cause);
        cause_width = strlen(cause) > cause_width ? strlen(cause) : cause_width;
    }
    fprintf(out, "  %-*s  %-*s  %10s  %8s\n", (int)id_width, "node", (int)cause_width, "end",
            "run time", "restarts");
    for (uint32_t i = 0; i < flow->nodes_count; i++) {
        const struct tb__supervise_node *node = &summary->run->nodes[i];
        char duration[32];
        tb__supervise_describe(summary->run, i, cause, sizeof cause);
        fprintf(out, "  %-*s  %-*s  %10s  %8" PRIu32 "\n", (int)id_width, flow->nodes[i].id,
                (int)cause_width, cause,
                tb__summary_duration(node->total_ns, duration, sizeof duration), node->restarts);
    }
}

static void print_tail(const char *id, const struct tb__log *log, FILE *out)
{
    char text[TB__LOG_TEXT_ROOM(TB__LOG_TAIL_BYTES)];
    size_t at = tb__log_last_lines(log->tail, log->tail_length, TB__SUMMARY_LINES);
    while (at < log->tail_length) {
        const char *line = log->tail + at;
        const char *newline = memchr(line, '\n', log->tail_length - at);
        size_t length = newline != NULL ? (size_t)(newline - line) : log->tail_length - at;
        /* Of a line that was rewritten, the last state counts. */
        size_t shown = length > 0 && line[length - 1] == '\r' ? length - 1 : length;
        const char *carriage = memrchr(line, '\r', shown);
        size_t skip = carriage != NULL ? (size_t)(carriage - line) + 1 : 0;
        size_t used = tb__log_text(line + skip, shown - skip, text);
        fprintf(out, "  %s | %.*s\n", id, (int)used, text);
        at += length + 1;
    }
}

/* The likely reason of an end that beginners meet. */
static const char *cause_hint(const struct tb__supervise_node *node)
{
    int faulted = node->has_status && WIFSIGNALED(node->status) &&
                  (WTERMSIG(node->status) == SIGSEGV || WTERMSIG(node->status) == SIGBUS);
    return faulted ? " (frames are read-only: a write into one ends the process)" : "";
}

static void print_failed(const struct tb__summary *summary, uint32_t index, FILE *out)
{
    const struct tb__supervise_node *node = &summary->run->nodes[index];
    const char *id = summary->flow->nodes[index].id;
    const struct tb__log *log = summary->logs[index];
    char cause[CAUSE_SIZE];
    tb__supervise_describe(summary->run, index, cause, sizeof cause);
    fprintf(out, "\nnode `%s`: %s%s", id, cause, cause_hint(node));
    if (node->start_failed) {
        fprintf(out, ": %s\n", node->error);
    } else if (log->total_bytes == 0) {
        fprintf(out, "; it printed nothing, or its output was still in a buffer (a C program calls "
                     "setvbuf(stdout, NULL, _IOLBF, 0))\n");
    } else {
        fprintf(out, "; its last lines (all: %s/log_%s.txt):\n", summary->log_directory, id);
        print_tail(id, log, out);
    }
    if (log->lost_bytes > 0) {
        fprintf(out, "  %" PRIu64 " bytes of its output could not be kept\n", log->lost_bytes);
    }
}

void tb__summary_print(const struct tb__summary *summary, FILE *out)
{
    char duration[32];
    fprintf(out, "\nflow %s (%s) %s after %s; logs in %s\n", summary->id, summary->name,
            reason_text(summary->run),
            tb__summary_duration(summary->total_ns, duration, sizeof duration),
            summary->log_directory);
    print_table(summary, out);
    for (uint32_t i = 0; i < summary->flow->nodes_count; i++) {
        if (tb__supervise_node_failed(&summary->run->nodes[i])) {
            print_failed(summary, i, out);
        }
    }
}
