/* `tensorbus node list [FLOW]`: the nodes of a running flow and what they use. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tensorbus/status.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "flow/process.h"
#include "flow/run_find.h"
#include "flow/run_summary.h"

static const char help[] =
    "usage: tensorbus node list [--json] [FLOW]\n"
    "\n"
    "List the nodes of a running flow, named by its id or name; without FLOW, of the only one\n"
    "that runs. CPU is measured over a quarter of a second, in percent of one core; CPU and\n"
    "resident memory are those of all processes of the node's group.\n"
    "\n"
    "  --json    {\"flow\",\"name\",\"nodes\":[{\"id\",\"state\",\"pid\",\"cpu_percent\",\n"
    "             \"rss_bytes\",\"processes\",\"restarts\",\"uptime_s\",\"last_end\"}]}\n"
    "\n"
    "exit codes: 0 ok, 1 there is no such flow, 2 wrong usage\n"
    "\n"
    "examples:\n"
    "  tensorbus node list\n"
    "  tensorbus node list --json camera\n";

#define SAMPLE_NS INT64_C(250000000)

struct row {
    struct tb__process_usage usage;
    double cpu_percent;
    double uptime_s;
};

static void sample(const struct tb__state *state, struct tb__process_usage *usages)
{
    memset(usages, 0, state->count * sizeof *usages);
    for (uint32_t i = 0; i < state->count; i++) {
        if (state->nodes[i].pid > 1) {
            tb__process_group_usage((pid_t)state->nodes[i].pid, &usages[i]);
        }
    }
}

/* Two samples of all groups, a moment apart. */
static int measure(const struct tb__state *state, struct row *rows)
{
    struct tb__process_usage *before = calloc(state->count + 1, sizeof *before);
    struct tb__process_usage *after = calloc(state->count + 1, sizeof *after);
    int ok = before != NULL && after != NULL;
    if (ok) {
        int64_t begin = tb__now_ns();
        sample(state, before);
        struct timespec pause = tb__timespec(SAMPLE_NS);
        nanosleep(&pause, NULL);
        int64_t now = tb__now_ns();
        sample(state, after);
        double seconds = (double)(now - begin) / 1e9;
        for (uint32_t i = 0; i < state->count; i++) {
            const struct tb__state_node *node = &state->nodes[i];
            /* Members that ended meanwhile took their ticks with them. */
            uint64_t ticks = after[i].cpu_ticks > before[i].cpu_ticks
                                 ? after[i].cpu_ticks - before[i].cpu_ticks
                                 : 0;
            int running = node->pid > 0 && node->started_ns > 0 && node->started_ns < now;
            rows[i] = (struct row){
                .usage = after[i],
                .cpu_percent = 100.0 * (double)ticks / (double)sysconf(_SC_CLK_TCK) / seconds,
                .uptime_s = running ? (double)(now - node->started_ns) / 1e9 : 0,
            };
        }
    }
    free(before);
    free(after);
    return ok;
}

static void print_json(const struct tb__state *state, const struct row *rows)
{
    printf("{\"flow\":\"%s\",\"name\":\"%s\",\"nodes\":[", state->flow, state->name);
    for (uint32_t i = 0; i < state->count; i++) {
        const struct row *row = &rows[i];
        const struct tb__state_node *node = &state->nodes[i];
        printf("%s{\"id\":\"%s\",\"state\":", i > 0 ? "," : "", node->id);
        tb__cli_json_string(stdout, node->state);
        printf(",\"pid\":%" PRId64 ",\"cpu_percent\":%.1f,\"rss_bytes\":%" PRIu64
               ",\"processes\":%" PRIu32 ",\"restarts\":%" PRIu64
               ",\"uptime_s\":%.3f,\"last_end\":",
               node->pid, row->cpu_percent, row->usage.resident_bytes, row->usage.members,
               node->restarts, row->uptime_s);
        tb__cli_json_string(stdout, node->cause);
        printf("}");
    }
    printf("]}\n");
}

static void print_table(const struct tb__state *state, const struct row *rows)
{
    int width = (int)strlen("node");
    for (uint32_t i = 0; i < state->count; i++) {
        int length = (int)strlen(state->nodes[i].id);
        width = length > width ? length : width;
    }
    printf("%-*s  %-10s  %8s  %6s  %9s  %8s  %12s  %s\n", width, "node", "state", "pid", "cpu %",
           "rss MiB", "restarts", "uptime", "last end");
    for (uint32_t i = 0; i < state->count; i++) {
        const struct row *row = &rows[i];
        const struct tb__state_node *node = &state->nodes[i];
        char duration[32];
        printf("%-*s  %-10.16s  %8" PRId64 "  %6.1f  %9.1f  %8" PRIu64 "  %12s  ", width, node->id,
               node->state, node->pid, row->cpu_percent,
               (double)row->usage.resident_bytes / 1048576.0, node->restarts,
               tb__summary_duration((int64_t)(row->uptime_s * 1e9), duration, sizeof duration));
        tb__summary_text(node->cause, stdout);
        printf("\n");
    }
}

static int show(const struct tb__state *state, int json)
{
    struct row *rows = calloc(state->count + 1, sizeof *rows);
    int ok = rows != NULL && measure(state, rows);
    if (!ok) {
        TB__FAIL(TB_E_NOMEM, "memory for %" PRIu32 " nodes", state->count);
    } else if (json) {
        print_json(state, rows);
    } else {
        print_table(state, rows);
    }
    free(rows);
    return ok ? TB__EXIT_OK : tb__cli_failed("node list");
}

static int list_nodes(const char *flow, int json)
{
    struct tb__state state;
    if (tb__state_find_running(flow, &state) != TB_OK) {
        return tb__cli_failed("node list");
    }
    int code = show(&state, json);
    tb__state_fini(&state);
    return code;
}

int tb__verb_node(int argc, char **argv)
{
    const char *flow = NULL;
    int json = 0;
    if (tb__cli_help(argc, argv, help)) {
        return TB__EXIT_OK;
    }
    if (argc < 2 || strcmp(argv[1], "list") != 0) {
        return tb__cli_usage("node", "`tensorbus node list` is what there is");
    }
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = 1;
        } else if (argv[i][0] == '-') {
            return tb__cli_unknown_option("node", argv[i], help);
        } else if (flow != NULL) {
            return tb__cli_usage("node", "unexpected word `%s`", argv[i]);
        } else {
            flow = argv[i];
        }
    }
    return list_nodes(flow, json);
}
