/* `tensorbus pool list|info|watch`: the pools of running processes and their counters. Nobody is
 * disturbed: the numbers are read from the pools' own memory. */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "cli/pool_find.h"

static const char help[] =
    "usage: tensorbus pool list [--json] [FLOW]\n"
    "       tensorbus pool info [--json] [--flow FLOW] PROCESS/POOL\n"
    "       tensorbus pool watch [--json] [--flow FLOW] [-n COUNT] [-i SECONDS] PROCESS/POOL\n"
    "\n"
    "Look at the pools of running processes. FLOW is the id or name of a running flow, or the\n"
    "name of a directory of the runtime directory; without it, the only running flow, else\n"
    "`default`. `watch` prints a line per interval (1 s) until Ctrl-C, COUNT lines, or the\n"
    "owner's end.\n"
    "\n"
    "  --json   list:  {\"flow\",\"pools\":[POOL...]}; info: POOL; watch: one object per line\n"
    "           POOL = {\"process\",\"pool\",\"tensor\",\"slots\",\"slot_bytes\",\n"
    "           \"segment_bytes\",\"policy\",\"lane\",\"readers\",\"frames\",\"bytes\",\n"
    "           \"copies\",\"copied_bytes\",\"drops\",\"overwrites\",\"waits\",\"wakeups\",\n"
    "           \"age_s\",\"device\",\"device_uuid\",\"device_memory\",\"device_bytes\",\n"
    "           \"adopted\",\"troubles\",\"trouble\"}\n"
    "           device is cpu or cuda; of cpu device_uuid, device_memory and device_bytes are\n"
    "           null, and trouble is null without one\n"
    "\n"
    "exit codes: 0 ok, 1 no such flow, process or pool, 2 wrong usage\n"
    "\n"
    "examples:\n"
    "  tensorbus pool list\n"
    "  tensorbus pool info camera/frames\n"
    "  tensorbus pool watch -n 5 camera/frames\n";

struct options {
    const char *flow;
    const char *target;
    int json;
    long count;
    double interval_s;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static const char *lane_name(tb_lane lane)
{
    static const char *const names[] = {"direct", "dma", "staged", "mirror", "copy"};
    return (unsigned)lane < 5 ? names[lane] : "?";
}

/* How a GPU's allocation travels between processes. */
static const char *place_name(enum tb__doradma_place place)
{
    switch (place) {
    case TB__PLACE_VMM:
        return "vmm";
    case TB__PLACE_IPC:
        return "ipc";
    case TB__PLACE_MAPPED:
        return "mapped";
    case TB__PLACE_DMABUF:
        return "dmabuf";
    default:
        return "host";
    }
}

static int is_on_gpu(const struct tb__observation *seen)
{
    return tb__place_is_gpu(seen->place);
}

/* "cpu", or the GPU by the beginning of its UUID: its number differs between processes. */
static const char *device_text(const struct tb__observation *seen, char text[16])
{
    snprintf(text, 16, "%s%.8s", is_on_gpu(seen) ? "cuda " : "cpu", seen->device_uuid);
    return text;
}

static double age_s(const struct tb__observation *seen)
{
    return seen->newest_stamp_ns == 0
               ? -1.0
               : (double)(tb__now_ns() - (int64_t)seen->newest_stamp_ns) / 1e9;
}

static void print_json(const char *process, const struct tb__observation *seen)
{
    printf("{\"process\":\"%s\",\"pool\":\"%s\",\"tensor\":", process, seen->name);
    tb__cli_json_string(stdout, seen->tensor);
    printf(",\"slots\":%u,\"slot_bytes\":%" PRIu64 ",\"segment_bytes\":%" PRIu64
           ",\"policy\":\"%s\",\"lane\":\"%s\",\"readers\":%u,\"frames\":%" PRIu64
           ",\"bytes\":%" PRIu64 ",\"copies\":%" PRIu64 ",\"copied_bytes\":%" PRIu64
           ",\"drops\":%" PRIu64 ",\"overwrites\":%" PRIu64 ",\"waits\":%" PRIu64
           ",\"wakeups\":%" PRIu64 ",\"age_s\":%.6f,\"adopted\":%s",
           seen->slots, seen->slot_bytes, seen->segment_bytes,
           seen->policy == TB_EVERY ? "every" : "latest", lane_name(seen->lane),
           seen->stats.readers, seen->stats.frames, seen->stats.bytes, seen->stats.copies,
           seen->stats.copied_bytes, seen->stats.drops, seen->stats.overwrites, seen->stats.waits,
           seen->stats.wakeups, age_s(seen), seen->adopted ? "true" : "false");
    printf(",\"troubles\":%" PRIu64 ",\"trouble\":", seen->stats.troubles);
    if (seen->stats.troubles > 0) {
        char text[200];
        snprintf(text, sizeof text, "%s: %s", tb_status_name(seen->stats.trouble_status),
                 seen->stats.trouble);
        tb__cli_json_string(stdout, text);
    } else {
        printf("null");
    }
    if (is_on_gpu(seen)) {
        printf(",\"device\":\"cuda\",\"device_uuid\":\"%s\",\"device_memory\":\"%s\","
               "\"device_bytes\":%" PRIu64 "}",
               seen->device_uuid, place_name(seen->place), seen->device_bytes);
    } else {
        printf(",\"device\":\"cpu\",\"device_uuid\":null,\"device_memory\":null,"
               "\"device_bytes\":null}");
    }
}

/* ---- list ---- */

struct listing {
    tb_bus *bus;
    int json;
    int printed;
    int skipped;
};

static void list_pool(struct listing *listing, const char *process, const char *name)
{
    char path[2 * TB__NAME_SIZE];
    snprintf(path, sizeof path, "%s/%s", process, name);
    tb__observer *observer;
    if (tb__observer_open(listing->bus, path, &observer) != TB_OK) {
        listing->skipped++; /* freed, or its process ended, just now */
        return;
    }
    struct tb__observation seen;
    tb__observer_look(observer, &seen);
    if (listing->json) {
        printf("%s", listing->printed > 0 ? "," : "");
        print_json(process, &seen);
    } else {
        if (listing->printed == 0) {
            printf("%-32s  %-28s  %-13s  %5s  %9s  %-6s  %7s  %9s  %6s  %6s\n", "pool", "tensor",
                   "device", "slots", "MiB", "policy", "readers", "frames", "copies", "drops");
        }
        char device[16];
        printf("%-32s  %-28s  %-13s  %5u  %9.1f  %-6s  %7u  %9" PRIu64 "  %6" PRIu64 "  %6" PRIu64
               "\n",
               path, seen.tensor, device_text(&seen, device), seen.slots,
               (double)(seen.segment_bytes + seen.device_bytes) / 1048576.0,
               seen.policy == TB_EVERY ? "every" : "latest", seen.stats.readers, seen.stats.frames,
               seen.stats.copies, seen.stats.drops);
    }
    listing->printed++;
    tb__observer_close(observer);
}

static void list_process(void *context, const char *process)
{
    struct listing *listing = context;
    char *names = NULL;
    size_t count = 0;
    if (tb__pools_list(listing->bus, process, &names, &count) != TB_OK) {
        listing->skipped++;
        return;
    }
    const char *name = names;
    for (size_t i = 0; i < count; i++) {
        /* A name that a hostile process made up is not shown. */
        if (tb__name_valid(name)) {
            list_pool(listing, process, name);
        }
        name += strlen(name) + 1;
    }
    free(names);
}

static int verb_list(const struct options *options)
{
    char flow[TB__NAME_SIZE];
    const char *which = options->target != NULL ? options->target : options->flow;
    struct listing listing = {.json = options->json};
    if (tb__pool_find_flow(which, flow) != TB_OK ||
        tb__pool_tool_bus(flow, &listing.bus) != TB_OK) {
        return tb__cli_failed("pool list");
    }
    if (options->json) {
        printf("{\"flow\":\"%s\",\"pools\":[", flow);
    }
    tb_status status = tb__pool_each_process(listing.bus, list_process, &listing);
    if (options->json) {
        printf("]}\n");
    } else if (listing.printed == 0 && status == TB_OK) {
        fprintf(stderr, "no pools in flow `%s`\n", flow);
    }
    tb_bus_close(listing.bus);
    return status == TB_OK ? TB__EXIT_OK : tb__cli_failed("pool list");
}

/* ---- info and watch ---- */

static void print_info(const char *path, const struct tb__observation *seen)
{
    const tb_pool_stats *stats = &seen->stats;
    printf("pool         %s\n", path);
    printf("tensor       %s%s\n", seen->tensor, seen->varying ? " (shape may vary)" : "");
    if (is_on_gpu(seen)) {
        printf("device       cuda, UUID %s, memory %s\n", seen->device_uuid,
               place_name(seen->place));
        printf("slots        %u of %" PRIu64 " bytes, %" PRIu64 " bytes on the device, %" PRIu64
               " on the host\n",
               seen->slots, seen->slot_bytes, seen->device_bytes, seen->segment_bytes);
    } else {
        printf("device       cpu\n");
        printf("slots        %u of %" PRIu64 " bytes, %" PRIu64 " bytes in all\n", seen->slots,
               seen->slot_bytes, seen->segment_bytes + seen->device_bytes);
    }
    if (seen->adopted) {
        printf("memory       adopted: it belongs to the user of the pool\n");
    }
    printf("policy       %s, up to %u leases per reader\n",
           seen->live                 ? "live: written in place whoever reads"
           : seen->policy == TB_EVERY ? "every"
                                      : "latest",
           seen->max_leases);
    printf("lane         %s\n", lane_name(seen->lane));
    printf("readers      %u\n", stats->readers);
    printf("frames       %" PRIu64 " (%" PRIu64 " bytes)\n", stats->frames, stats->bytes);
    printf("copies       %" PRIu64 " (%" PRIu64 " bytes)\n", stats->copies, stats->copied_bytes);
    printf("drops        %" PRIu64 "\n", stats->drops);
    printf("overwrites   %" PRIu64 "\n", stats->overwrites);
    printf("waits        %" PRIu64 "\n", stats->waits);
    printf("wake-ups     %" PRIu64 "\n", stats->wakeups);
    if (stats->troubles > 0) {
        printf("troubles     %" PRIu64 " of readers, the newest: %s: %s\n", stats->troubles,
               tb_status_name(stats->trouble_status), stats->trouble);
    }
    if (seen->newest_stamp_ns != 0) {
        printf("newest       frame %" PRIu64 ", %.3f s ago\n", seen->sequence, age_s(seen));
    }
}

static void print_rate(const struct tb__observation *before, const struct tb__observation *now,
                       double seconds)
{
    printf("%8.1f frames/s  %9.1f MB/s  copies %" PRIu64 "  drops %" PRIu64 "  overwrites %" PRIu64
           "  readers %u",
           (double)(now->stats.frames - before->stats.frames) / seconds,
           (double)(now->stats.bytes - before->stats.bytes) / seconds / 1e6,
           now->stats.copies - before->stats.copies, now->stats.drops - before->stats.drops,
           now->stats.overwrites - before->stats.overwrites, now->stats.readers);
    char device[16];
    if (is_on_gpu(now)) {
        printf("  on %s", device_text(now, device));
    }
    printf("\n");
}

static void watch(const struct options *options, const char *process, const tb__observer *observer)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
    struct tb__observation before;
    tb__observer_look(observer, &before);
    int64_t then = tb__now_ns();
    for (long i = 0; (options->count == 0 || i < options->count) && !interrupted; i++) {
        struct timespec pause = tb__timespec((int64_t)(options->interval_s * 1e9));
        nanosleep(&pause, NULL);
        struct tb__observation now;
        tb__observer_look(observer, &now);
        int64_t moment = tb__now_ns();
        if (options->json) {
            print_json(process, &now);
            printf("\n");
        } else {
            print_rate(&before, &now, (double)(moment - then) / 1e9);
        }
        fflush(stdout);
        before = now;
        then = moment;
        if (now.stats.freed || tb__observer_ended(observer)) {
            fprintf(stderr, "%s\n", now.stats.freed ? "the pool was freed" : "its owner has ended");
            return;
        }
    }
}

static int verb_one(const struct options *options, int is_watch)
{
    const char *verb = is_watch ? "pool watch" : "pool info";
    if (options->target == NULL) {
        return tb__cli_usage("pool", "which pool? `%s PROCESS/POOL`", verb);
    }
    char flow[TB__NAME_SIZE];
    char process[TB__NAME_SIZE];
    char name[TB__NAME_SIZE];
    if (tb__name_split(options->target, process, name) != TB_OK) {
        return tb__cli_usage("pool", "%s", tb_last_error_text());
    }
    tb_bus *bus;
    tb__observer *observer;
    if (tb__pool_find_flow(options->flow, flow) != TB_OK ||
        tb__pool_tool_bus(flow, &bus) != TB_OK) {
        return tb__cli_failed(verb);
    }
    if (tb__observer_open(bus, options->target, &observer) != TB_OK) {
        int code = tb__cli_failed(verb);
        tb_bus_close(bus);
        return code;
    }
    struct tb__observation seen;
    tb__observer_look(observer, &seen);
    if (is_watch) {
        watch(options, process, observer);
    } else if (options->json) {
        print_json(process, &seen);
        printf("\n");
    } else {
        print_info(options->target, &seen);
    }
    tb__observer_close(observer);
    tb_bus_close(bus);
    return TB__EXIT_OK;
}

/* ---- words ---- */

static int read_words(int argc, char **argv, struct options *options)
{
    for (int i = 2; i < argc; i++) {
        const int more = i + 1 < argc;
        char *end = NULL;
        if (strcmp(argv[i], "--json") == 0) {
            options->json = 1;
        } else if (strcmp(argv[i], "--flow") == 0 && more) {
            options->flow = argv[++i];
        } else if (strcmp(argv[i], "-n") == 0 && more) {
            options->count = strtol(argv[++i], &end, 10);
            if (*end != '\0' || options->count < 1) {
                return tb__cli_usage("pool", "-n takes a number of lines, not `%s`", argv[i]);
            }
        } else if (strcmp(argv[i], "-i") == 0 && more) {
            options->interval_s = strtod(argv[++i], &end);
            if (*end != '\0' || !(options->interval_s >= 0.01 && options->interval_s <= 3600)) {
                return tb__cli_usage("pool", "-i takes 0.01 to 3600 seconds, not `%s`", argv[i]);
            }
        } else if (argv[i][0] == '-' || options->target != NULL) {
            return tb__cli_usage("pool", "unexpected word `%s`", argv[i]);
        } else {
            options->target = argv[i];
        }
    }
    return TB__EXIT_OK;
}

int tb__verb_pool(int argc, char **argv)
{
    if (tb__cli_help(argc, argv, help)) {
        return TB__EXIT_OK;
    }
    const char *what = argc > 1 ? argv[1] : "";
    struct options options = {.interval_s = 1.0};
    int code = read_words(argc, argv, &options);
    if (code != TB__EXIT_OK) {
        return code;
    }
    if (strcmp(what, "list") == 0) {
        return verb_list(&options);
    }
    if (strcmp(what, "info") == 0 || strcmp(what, "watch") == 0) {
        return verb_one(&options, what[0] == 'w');
    }
    return tb__cli_usage("pool", "`list`, `info` or `watch`, not `%s`", what);
}
