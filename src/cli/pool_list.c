/* `tensorbus pool list`: all is looked at first, then printed as wide as it is. */
#include "cli/pool_list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/name.h"
#include "cli/cli.h"
#include "cli/pool_find.h"
#include "cli/pool_text.h"

struct row {
    char process[TB__NAME_SIZE];
    struct tb__observation seen;
};

struct listing {
    tb_bus *bus;
    struct row *rows;
    size_t count;
    size_t room;
    unsigned unreadable; /* processes and pools that are there and could not be looked at */
    tb_status status;
};

/* What ended just now is no news, nor is the socket of a process that was killed. */
static int is_gone(tb_status status)
{
    return status == TB_E_NOT_FOUND || status == TB_E_FREED || status == TB_E_OWNER_DIED ||
           status == TB_CLOSED;
}

/* A list without the pools of a process that does not answer would look complete. */
static void leave_out(struct listing *listing, const char *what, const char *why)
{
    listing->unreadable++;
    fprintf(stderr, "tensorbus pool list: `%s` is left out: %s\n", what, why);
}

static struct row *add_row(struct listing *listing)
{
    if (listing->count == listing->room) {
        size_t room = listing->room > 0 ? 2 * listing->room : 16;
        struct row *rows = realloc(listing->rows, room * sizeof *rows);
        if (rows == NULL) {
            listing->status = TB__FAIL(TB_E_NOMEM, "memory for a list of %zu pools", room);
            return NULL;
        }
        listing->rows = rows;
        listing->room = room;
    }
    return &listing->rows[listing->count++];
}

static void look_at_pool(struct listing *listing, const char *process, const char *name)
{
    char path[2 * TB__NAME_SIZE];
    snprintf(path, sizeof path, "%s/%s", process, name);
    tb__observer *observer;
    tb_status status = tb__observer_open(listing->bus, path, &observer);
    if (status != TB_OK) {
        if (!is_gone(status)) {
            leave_out(listing, path, tb_last_error_text());
        }
        return;
    }
    struct row *row = add_row(listing);
    if (row != NULL) {
        tb__name_copy(row->process, process);
        tb__observer_look(observer, &row->seen);
    }
    tb__observer_close(observer);
}

static void look_at_process(void *context, const char *process)
{
    struct listing *listing = context;
    char *names = NULL;
    size_t count = 0;
    tb_status status = tb__pools_list(listing->bus, process, &names, &count);
    if (status != TB_OK) {
        tb_error error;
        tb_last_error(&error);
        if (!is_gone(status) || tb__pool_process_listens(listing->bus, process)) {
            leave_out(listing, process, error.text);
        }
        return;
    }
    const char *name = names;
    for (size_t i = 0; i < count && listing->status == TB_OK; i++) {
        /* A name that a hostile process made up is not shown. */
        if (tb__name_valid(name)) {
            look_at_pool(listing, process, name);
        }
        name += strlen(name) + 1;
    }
    free(names);
}

static int wider(int width, size_t length)
{
    return (int)length > width ? (int)length : width;
}

static void print_table(const struct listing *listing)
{
    char device[TB__POOL_DEVICE_TEXT];
    int path_width = (int)strlen("pool");
    int tensor_width = (int)strlen("tensor");
    int device_width = (int)strlen("device");
    for (size_t i = 0; i < listing->count; i++) {
        const struct row *row = &listing->rows[i];
        path_width = wider(path_width, strlen(row->process) + 1 + strlen(row->seen.name));
        tensor_width = wider(tensor_width, strlen(row->seen.tensor));
        device_width = wider(device_width, strlen(tb__pool_device_text(&row->seen, device)));
    }
    printf("%-*s  %-*s  %-*s  %5s  %8s  %-6s  %7s  %8s  %6s  %5s\n", path_width, "pool",
           tensor_width, "tensor", device_width, "device", "slots", "MiB", "policy", "readers",
           "frames", "copies", "drops");
    for (size_t i = 0; i < listing->count; i++) {
        const struct row *row = &listing->rows[i];
        const tb_pool_stats *stats = &row->seen.stats;
        printf("%s/%-*s  %-*s  %-*s  %5u  %8.1f  %-6s  %7u  %8" PRIu64 "  %6" PRIu64 "  %5" PRIu64
               "\n",
               row->process, path_width - (int)strlen(row->process) - 1, row->seen.name,
               tensor_width, row->seen.tensor, device_width,
               tb__pool_device_text(&row->seen, device), row->seen.slots,
               (double)(row->seen.segment_bytes + row->seen.device_bytes) / 1048576.0,
               tb__pool_policy_name(&row->seen), stats->readers, stats->frames, stats->copies,
               stats->drops);
    }
}

static void print_json(const struct listing *listing, const char *flow)
{
    printf("{\"flow\":\"%s\",\"pools\":[", flow);
    for (size_t i = 0; i < listing->count; i++) {
        printf("%s", i > 0 ? "," : "");
        tb__pool_print_json(listing->rows[i].process, &listing->rows[i].seen);
    }
    printf("],\"unreadable\":%u}\n", listing->unreadable);
}

int tb__pool_list(const char *which, int json)
{
    char flow[TB__NAME_SIZE];
    struct listing listing = {0};
    if (tb__pool_find_flow(which, flow) != TB_OK ||
        tb__pool_tool_bus(flow, &listing.bus) != TB_OK) {
        return tb__cli_failed("pool list");
    }
    tb_status status = tb__pool_each_process(listing.bus, look_at_process, &listing);
    status = status == TB_OK ? listing.status : status;
    if (status == TB_OK && json) {
        print_json(&listing, flow);
    } else if (status == TB_OK && listing.count > 0) {
        print_table(&listing);
    } else if (status == TB_OK && listing.unreadable == 0) {
        fprintf(stderr, "no pools in flow `%s`\n", flow);
    }
    int code = status == TB_OK ? TB__EXIT_OK : tb__cli_failed("pool list");
    free(listing.rows);
    tb_bus_close(listing.bus);
    return code;
}
