/* `tensorbus list`: the flows that run. */
#include <inttypes.h>
#include <string.h>

#include <tensorbus/status.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "flow/run_directory.h"
#include "flow/run_find.h"
#include "flow/run_summary.h"

static const char help[] =
    "usage: tensorbus list [--json]\n"
    "\n"
    "List the flows of this user that run: id, name, state, number of nodes, how long, file.\n"
    "\n"
    "  --json    {\"flows\":[{\"id\",\"name\",\"state\",\"nodes\",\"uptime_s\",\"file\",\n"
    "             \"logs\",\"pid\"}],\"unreadable\"}\n"
    "\n"
    "exit codes: 0 ok (also when none runs), 1 failed, 2 wrong usage\n"
    "\n"
    "examples:\n"
    "  tensorbus list\n"
    "  tensorbus list --json\n";

static int64_t uptime_ns(const struct tb__state *state)
{
    int64_t now = tb__now_ns();
    return state->started_ns < now ? now - state->started_ns : 0;
}

static void print_json(const struct tb__state *list, uint32_t count, uint32_t unreadable)
{
    printf("{\"flows\":[");
    for (uint32_t i = 0; i < count; i++) {
        printf("%s{\"id\":\"%s\",\"name\":\"%s\",\"state\":", i > 0 ? "," : "", list[i].flow,
               list[i].name);
        tb__cli_json_string(stdout, list[i].phase);
        printf(",\"nodes\":%" PRIu32 ",\"uptime_s\":%.3f,\"file\":", list[i].count,
               (double)uptime_ns(&list[i]) / 1e9);
        tb__cli_json_string(stdout, list[i].file);
        printf(",\"logs\":");
        tb__cli_json_string(stdout, list[i].log_directory);
        printf(",\"pid\":%" PRId64 "}", list[i].pid);
    }
    printf("],\"unreadable\":%" PRIu32 "}\n", unreadable);
}

static void print_table(const struct tb__state *list, uint32_t count)
{
    int width = (int)strlen("name");
    for (uint32_t i = 0; i < count; i++) {
        int length = (int)strlen(list[i].name);
        width = length > width ? length : width;
    }
    printf("%-8s  %-*s  %-8s  %5s  %12s  %s\n", "id", width, "name", "state", "nodes", "uptime",
           "file");
    for (uint32_t i = 0; i < count; i++) {
        char duration[32];
        printf("%-8s  %-*s  %-8.16s  %5" PRIu32 "  %12s  ", list[i].flow, width, list[i].name,
               list[i].phase, list[i].count,
               tb__summary_duration(uptime_ns(&list[i]), duration, sizeof duration));
        tb__summary_text(list[i].file, stdout);
        printf("\n");
    }
}

static int list_flows(int json)
{
    char path[TB__RUN_PATH_SIZE];
    struct tb__state *list = NULL;
    uint32_t count = 0;
    uint32_t unreadable = 0;
    int root_fd = -1;
    tb_status status = tb__run_root_open(0, path, &root_fd);
    if (status == TB_OK) {
        status = tb__state_list(root_fd, &list, &count, &unreadable);
        tb__fd_close(&root_fd);
    } else if (status == TB_E_NOT_FOUND) {
        status = TB_OK; /* nothing has ever run */
    }
    if (status != TB_OK) {
        return tb__cli_failed("list");
    }
    if (json) {
        print_json(list, count, unreadable);
    } else if (count > 0) {
        print_table(list, count);
    } else {
        fprintf(stderr, "no flow is running\n");
    }
    if (unreadable > 0 && !json) {
        fprintf(stderr, "%" PRIu32 " more whose state cannot be read\n", unreadable);
    }
    tb__state_list_free(list, count);
    return TB__EXIT_OK;
}

int tb__verb_list(int argc, char **argv)
{
    int json = 0;
    if (tb__cli_help(argc, argv, help)) {
        return TB__EXIT_OK;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") != 0) {
            return argv[i][0] == '-' ? tb__cli_unknown_option("list", argv[i], help)
                                     : tb__cli_usage("list", "unknown word `%s`", argv[i]);
        }
        json = 1;
    }
    return list_flows(json);
}
