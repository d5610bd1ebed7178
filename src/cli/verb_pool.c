/* `tensorbus pool list|info|watch`: the pools of running processes and their counters. Nobody is
 * disturbed: the numbers are read from the pools' own memory. */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/size.h"
#include "cli/cli.h"
#include "cli/pool_find.h"
#include "cli/pool_list.h"
#include "cli/pool_missing.h"
#include "cli/pool_text.h"

static const char help[] =
    "usage: tensorbus pool list [--json] [FLOW]\n"
    "       tensorbus pool info [--json] [--flow FLOW] PROCESS/POOL\n"
    "       tensorbus pool watch [--json] [--flow FLOW] [-n COUNT] [-i SECONDS] PROCESS/POOL\n"
    "\n"
    "Look at the pools of running processes; nobody is disturbed. FLOW is the id or name of a\n"
    "running flow, or the name of a directory of the runtime directory; without it, the only\n"
    "running flow, else `default`, where processes outside of flows are.\n"
    "\n"
    "  --flow FLOW   for info and watch: where the process is\n"
    "  -n COUNT      watch ends after so many lines (default: at Ctrl-C, or the owner's end)\n"
    "  -i SECONDS    watch prints a line each so many seconds, 0.01 to 3600 (default: 1)\n"
    "  --json        list:  {\"flow\",\"pools\":[POOL...],\"unreadable\"}; watch: one POOL per\n"
    "                line; info: POOL with \"reader_processes\":[{\"process\",\"pid\"}...], where\n"
    "                process is null without a name; 256 are listed at most\n"
    "\n"
    "what is counted, since the pool was registered:\n"
    "  readers       attached now; info says who\n"
    "  frames        published\n"
    "  copies        frames of these that were copied in, not written in place\n"
    "  drops         the producer found no free slot in time\n"
    "  overwrites    frames that went before a reader had taken them (policy latest)\n"
    "  waits         the producer slept for a free slot\n"
    "  wake-ups      readers that slept and were woken\n"
    "\n"
    "POOL = {\"process\",\"pool\",\"tensor\",\"slots\",\"slot_bytes\",\"segment_bytes\",\n"
    "        \"policy\",\"lane\",\"readers\",\"frames\",\"bytes\",\"copies\",\"copied_bytes\",\n"
    "        \"drops\",\"overwrites\",\"waits\",\"wakeups\",\"age_s\",\"device\",\n"
    "        \"device_uuid\",\"device_memory\",\"device_bytes\",\"adopted\",\n"
    "        \"troubles\",\"trouble\"}\n"
    "device is cpu or cuda; of cpu device_uuid, device_memory and device_bytes are null, and\n"
    "trouble is null without one. unreadable: processes and pools that did not answer\n"
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

/* ---- info and watch ---- */

static void print_info(const char *path, const struct tb__observation *seen,
                       const struct tb__observed_readers *readers)
{
    const tb_pool_stats *stats = &seen->stats;
    char size[TB__SIZE_TEXT];
    printf("pool         %s\n", path);
    printf("tensor       %s%s\n", seen->tensor, seen->varying ? " (shape may vary)" : "");
    if (tb__pool_is_on_gpu(seen)) {
        printf("device       cuda, UUID %s, memory %s\n", seen->device_uuid,
               tb__pool_place_name(seen->place));
        printf("slots        %u of %s\n", seen->slots, tb__size_text(seen->slot_bytes, size));
        printf("memory       %s on the device\n", tb__size_text(seen->device_bytes, size));
        printf("             %s on the host\n", tb__size_text(seen->segment_bytes, size));
    } else {
        printf("device       cpu\n");
        printf("slots        %u of %s\n", seen->slots, tb__size_text(seen->slot_bytes, size));
        printf("memory       %s in all\n",
               tb__size_text(seen->segment_bytes + seen->device_bytes, size));
    }
    if (seen->adopted) {
        printf("             adopted: it belongs to the user of the pool\n");
    }
    printf("policy       %s%s, up to %u leases per reader\n", tb__pool_policy_name(seen),
           seen->live ? ": written in place whoever reads" : "", seen->max_leases);
    printf("lane         %s\n", tb__pool_lane_name(seen->lane));
    tb__pool_print_readers(seen, readers);
    printf("frames       %" PRIu64 ": %s\n", stats->frames, tb__size_text(stats->bytes, size));
    printf("copies       %" PRIu64 ": %s\n", stats->copies,
           tb__size_text(stats->copied_bytes, size));
    printf("drops        %" PRIu64 "\n", stats->drops);
    printf("overwrites   %" PRIu64 "\n", stats->overwrites);
    printf("waits        %" PRIu64 "\n", stats->waits);
    printf("wake-ups     %" PRIu64 "\n", stats->wakeups);
    if (stats->troubles > 0) {
        printf("troubles     %" PRIu64 " of readers, the newest: %s: %s\n", stats->troubles,
               tb_status_name(stats->trouble_status), stats->trouble);
    }
    if (seen->newest_stamp_ns != 0) {
        printf("newest       frame %" PRIu64 ", %.3f s ago\n", seen->sequence,
               tb__pool_age_s(seen));
    }
}

/* An owner that does not say who the readers are has ended or stands still by now. */
static void info(const struct options *options, const char *process, tb_bus *bus,
                 const struct tb__observation *seen)
{
    struct tb__observed_readers readers = {.readers = NULL};
    int known = tb__pool_readers(bus, options->target, &readers) == TB_OK;
    if (!known) {
        fprintf(stderr, "tensorbus pool info: who the readers are is not known: %s\n",
                tb_last_error_text());
    }
    if (options->json) {
        tb__pool_print_info_json(process, seen, known ? &readers : NULL);
        printf("\n");
    } else {
        print_info(options->target, seen, known ? &readers : NULL);
    }
    free(readers.readers);
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
    char device[TB__POOL_DEVICE_TEXT];
    if (tb__pool_is_on_gpu(now)) {
        printf("  on %s", tb__pool_device_text(now, device));
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
            tb__pool_print_json(process, &now);
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
        return tb__cli_usage("pool", "which pool? `tensorbus %s PROCESS/POOL`", verb);
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
        tb_error error;
        tb_last_error(&error);
        int code = tb__cli_failed(verb);
        if (error.status == TB_E_NOT_FOUND) {
            tb__pool_say_elsewhere(verb, process, flow);
        }
        tb_bus_close(bus);
        return code;
    }
    struct tb__observation seen;
    tb__observer_look(observer, &seen);
    if (is_watch) {
        watch(options, process, observer);
    } else {
        info(options, process, bus, &seen);
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
        } else if (strcmp(argv[i], "--flow") == 0 || strcmp(argv[i], "-n") == 0 ||
                   strcmp(argv[i], "-i") == 0) {
            return tb__cli_usage("pool", "%s needs a value", argv[i]);
        } else if (argv[i][0] == '-') {
            return tb__cli_unknown_option("pool", argv[i], help);
        } else if (options->target != NULL) {
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
        if (options.target != NULL && strchr(options.target, '/') != NULL) {
            return tb__cli_usage("pool",
                                 "`list` takes a flow; `tensorbus pool info %.200s` shows a pool",
                                 options.target);
        }
        return tb__pool_list(options.target != NULL ? options.target : options.flow, options.json);
    }
    if (strcmp(what, "info") == 0 || strcmp(what, "watch") == 0) {
        return verb_one(&options, what[0] == 'w');
    }
    return what[0] == '\0' ? tb__cli_usage("pool", "what to do: `list`, `info` or `watch`")
                           : tb__cli_usage("pool", "`list`, `info` or `watch`, not `%.60s`", what);
}
