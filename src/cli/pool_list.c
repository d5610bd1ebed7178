/* `tensorbus pool list`: all is looked at first, then printed as wide as it is. Processes are asked
 * side by side, each by one of a few threads, so that those that are stopped cost their patience
 * once. */
#include "cli/pool_list.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/name.h"
#include "cli/cli.h"
#include "cli/pool_find.h"
#include "cli/pool_missing.h"
#include "cli/pool_text.h"

#define MOST_THREADS 64

/* One process; of the thread that looks at it until that has ended. */
struct process {
    char name[TB__NAME_SIZE];
    tb_bus *bus;
    struct tb__observation *pools;
    size_t count;
    size_t room;
    unsigned unreadable; /* it, or pools of it, are there and could not be looked at */
    int answered;
    char *why; /* heap: lines for standard error; NULL: none */
    int no_memory;
};

struct listing {
    tb_bus *bus;
    struct process *processes; /* by name */
    size_t count;
    size_t room;
    _Atomic size_t next; /* to be looked at */
    int no_memory;
};

/* What ended just now is no news, nor is the socket of a process that was killed. */
static int is_gone(tb_status status)
{
    return status == TB_E_NOT_FOUND || status == TB_E_FREED || status == TB_E_OWNER_DIED ||
           status == TB_CLOSED;
}

/* One more element of a growing array; NULL: no memory. */
static void *grow(void *array, size_t *count, size_t *room, size_t bytes)
{
    if (*count == *room) {
        size_t more = *room > 0 ? 2 * *room : 16;
        void *grown = realloc(array, more * bytes);
        if (grown == NULL) {
            return NULL;
        }
        array = grown;
        *room = more;
    }
    ++*count;
    return array;
}

/* A list without the pools of a process that does not answer would look complete. */
static void leave_out(struct process *process, const char *what, const char *why)
{
    char *before = process->why;
    process->unreadable++;
    if (asprintf(&process->why, "%stensorbus pool list: `%s` is left out: %s\n",
                 before != NULL ? before : "", what, why) < 0) {
        process->why = before;
        process->no_memory = 1;
        return;
    }
    free(before);
}

static void look_at_pool(struct process *process, const char *name)
{
    char path[2 * TB__NAME_SIZE];
    snprintf(path, sizeof path, "%s/%s", process->name, name);
    tb__observer *observer;
    tb_status status = tb__observer_open(process->bus, path, &observer);
    if (status != TB_OK) {
        if (!is_gone(status)) {
            leave_out(process, path, tb_last_error_text());
        }
        return;
    }
    struct tb__observation *pools =
        grow(process->pools, &process->count, &process->room, sizeof *pools);
    if (pools != NULL) {
        process->pools = pools;
        tb__observer_look(observer, &pools[process->count - 1]);
    }
    process->no_memory |= pools == NULL;
    tb__observer_close(observer);
}

static void look_at_process(struct process *process)
{
    char *names = NULL;
    size_t count = 0;
    tb_status status = tb__pools_list(process->bus, process->name, &names, &count);
    if (status != TB_OK) {
        tb_error error;
        tb_last_error(&error);
        if (!is_gone(status) || tb__pool_process_listens(process->bus, process->name)) {
            leave_out(process, process->name, error.text);
        }
        return;
    }
    process->answered = 1;
    const char *name = names;
    for (size_t i = 0; i < count && !process->no_memory; i++) {
        /* A name that a hostile process made up is not shown. */
        if (tb__name_valid(name)) {
            look_at_pool(process, name);
        }
        name += strlen(name) + 1;
    }
    free(names);
}

static void *look_at_some(void *context)
{
    struct listing *listing = context;
    size_t i;
    while ((i = atomic_fetch_add(&listing->next, 1)) < listing->count) {
        look_at_process(&listing->processes[i]);
    }
    return NULL;
}

/* Threads that cannot be started are done without. */
static void look_at_all(struct listing *listing)
{
    pthread_t threads[MOST_THREADS];
    size_t started = 0;
    while (started < MOST_THREADS && started + 1 < listing->count &&
           pthread_create(&threads[started], NULL, look_at_some, listing) == 0) {
        started++;
    }
    look_at_some(listing);
    while (started > 0) {
        pthread_join(threads[--started], NULL);
    }
}

static void add_process(void *context, const char *name)
{
    struct listing *listing = context;
    struct process *processes =
        grow(listing->processes, &listing->count, &listing->room, sizeof *processes);
    if (processes == NULL) {
        listing->no_memory = 1;
        return;
    }
    listing->processes = processes;
    processes[listing->count - 1] = (struct process){.bus = listing->bus};
    tb__name_copy(processes[listing->count - 1].name, name);
}

static int wider(int width, size_t length)
{
    return (int)length > width ? (int)length : width;
}

struct widths {
    int path, tensor, device;
};

static void widen(struct widths *widths, const struct process *process)
{
    char device[TB__POOL_DEVICE_TEXT];
    for (size_t i = 0; i < process->count; i++) {
        const struct tb__observation *seen = &process->pools[i];
        widths->path = wider(widths->path, strlen(process->name) + 1 + strlen(seen->name));
        widths->tensor = wider(widths->tensor, strlen(seen->tensor));
        widths->device = wider(widths->device, strlen(tb__pool_device_text(seen, device)));
    }
}

static void print_rows(const struct widths *widths, const struct process *process)
{
    char device[TB__POOL_DEVICE_TEXT];
    for (size_t i = 0; i < process->count; i++) {
        const struct tb__observation *seen = &process->pools[i];
        const tb_pool_stats *stats = &seen->stats;
        printf("%s/%-*s  %-*s  %-*s  %5u  %8.1f  %-6s  %7u  %8" PRIu64 "  %6" PRIu64 "  %5" PRIu64
               "\n",
               process->name, widths->path - (int)strlen(process->name) - 1, seen->name,
               widths->tensor, seen->tensor, widths->device, tb__pool_device_text(seen, device),
               seen->slots, (double)(seen->segment_bytes + seen->device_bytes) / 1048576.0,
               tb__pool_policy_name(seen), stats->readers, stats->frames, stats->copies,
               stats->drops);
    }
}

static void print_table(const struct listing *listing)
{
    struct widths widths = {(int)strlen("pool"), (int)strlen("tensor"), (int)strlen("device")};
    for (size_t i = 0; i < listing->count; i++) {
        widen(&widths, &listing->processes[i]);
    }
    printf("%-*s  %-*s  %-*s  %5s  %8s  %-6s  %7s  %8s  %6s  %5s\n", widths.path, "pool",
           widths.tensor, "tensor", widths.device, "device", "slots", "MiB", "policy", "readers",
           "frames", "copies", "drops");
    for (size_t i = 0; i < listing->count; i++) {
        print_rows(&widths, &listing->processes[i]);
    }
}

static void print_json(const struct listing *listing, const char *flow, unsigned unreadable)
{
    const char *comma = "";
    printf("{\"flow\":\"%s\",\"pools\":[", flow);
    for (size_t i = 0; i < listing->count; i++) {
        const struct process *process = &listing->processes[i];
        for (size_t k = 0; k < process->count; k++) {
            printf("%s", comma);
            tb__pool_print_json(process->name, &process->pools[k]);
            comma = ",";
        }
    }
    printf("],\"unreadable\":%u}\n", unreadable);
}

/* What was found, and on standard error what was not. */
static tb_status print_all(const struct listing *listing, const char *flow, int json)
{
    size_t pools = 0;
    size_t answered = 0;
    unsigned unreadable = 0;
    int no_memory = listing->no_memory;
    for (size_t i = 0; i < listing->count; i++) {
        const struct process *process = &listing->processes[i];
        pools += process->count;
        answered += process->answered != 0;
        unreadable += process->unreadable;
        no_memory |= process->no_memory;
        fputs(process->why != NULL ? process->why : "", stderr);
    }
    if (no_memory) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a list of more than %zu pools", pools);
    }
    if (json) {
        print_json(listing, flow, unreadable);
    } else if (pools > 0) {
        print_table(listing);
    } else if (unreadable == 0) {
        tb__pool_say_none(flow, answered);
    }
    return TB_OK;
}

static void listing_fini(struct listing *listing)
{
    for (size_t i = 0; i < listing->count; i++) {
        free(listing->processes[i].pools);
        free(listing->processes[i].why);
    }
    free(listing->processes);
    tb_bus_close(listing->bus);
}

int tb__pool_list(const char *which, int json)
{
    char flow[TB__NAME_SIZE];
    struct listing listing = {.count = 0};
    if (tb__pool_find_flow(which, flow) != TB_OK ||
        tb__pool_tool_bus(flow, &listing.bus) != TB_OK) {
        return tb__cli_failed("pool list");
    }
    tb_status status = tb__pool_each_process(listing.bus, add_process, &listing);
    if (status == TB_OK) {
        look_at_all(&listing);
        status = print_all(&listing, flow, json);
    }
    int code = status == TB_OK ? TB__EXIT_OK : tb__cli_failed("pool list");
    listing_fini(&listing);
    return code;
}
