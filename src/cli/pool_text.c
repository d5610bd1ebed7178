/* A look at a pool in words: its device, its lane, and all of it as JSON. */
#include "cli/pool_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/cli.h"

const char *tb__pool_lane_name(tb_lane lane)
{
    static const char *const names[] = {"direct", "dma", "staged", "mirror", "copy"};
    return (unsigned)lane < 5 ? names[lane] : "?";
}

const char *tb__pool_place_name(enum tb__doradma_place place)
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

const char *tb__pool_policy_name(const struct tb__observation *seen)
{
    return seen->live ? "live" : seen->policy == TB_EVERY ? "every" : "latest";
}

int tb__pool_is_on_gpu(const struct tb__observation *seen)
{
    return tb__place_is_gpu(seen->place);
}

const char *tb__pool_device_text(const struct tb__observation *seen,
                                 char text[TB__POOL_DEVICE_TEXT])
{
    snprintf(text, TB__POOL_DEVICE_TEXT, "%s%.8s", tb__pool_is_on_gpu(seen) ? "cuda " : "cpu",
             seen->device_uuid);
    return text;
}

double tb__pool_age_s(const struct tb__observation *seen)
{
    return seen->newest_stamp_ns == 0
               ? -1.0
               : (double)(tb__now_ns() - (int64_t)seen->newest_stamp_ns) / 1e9;
}

static int same_process(const struct tb__observed_reader *a, const struct tb__observed_reader *b)
{
    return a->pid == b->pid && strcmp(a->process, b->process) == 0;
}

/* A process, where it is listed first, with how many of the readers are its. */
static void print_reader(const struct tb__observed_readers *readers, uint32_t index)
{
    const struct tb__observed_reader *reader = &readers->readers[index];
    uint32_t times = 0;
    for (uint32_t i = 0; i < readers->listed; i++) {
        int same = same_process(&readers->readers[i], reader);
        if (same && i < index) {
            return;
        }
        times += (uint32_t)same;
    }
    printf("%s", index > 0 ? ", " : ": ");
    if (times > 1) {
        printf("%u of ", times);
    }
    if (reader->process[0] != '\0') {
        printf("`%s` (pid %u)", reader->process, reader->pid);
    } else {
        printf("pid %u", reader->pid);
    }
}

void tb__pool_print_readers(const struct tb__observation *seen,
                            const struct tb__observed_readers *readers)
{
    printf("readers      %u", readers != NULL ? readers->count : seen->stats.readers);
    for (uint32_t i = 0; readers != NULL && i < readers->listed; i++) {
        print_reader(readers, i);
    }
    if (readers != NULL && readers->count > readers->listed) {
        printf(" and %u more", readers->count - readers->listed);
    }
    printf("\n");
}

static void print_open_json(const char *process, const struct tb__observation *seen)
{
    printf("{\"process\":\"%s\",\"pool\":\"%s\",\"tensor\":", process, seen->name);
    tb__cli_json_string(stdout, seen->tensor);
    printf(",\"slots\":%u,\"slot_bytes\":%" PRIu64 ",\"segment_bytes\":%" PRIu64
           ",\"policy\":\"%s\",\"lane\":\"%s\",\"readers\":%u,\"frames\":%" PRIu64
           ",\"bytes\":%" PRIu64 ",\"copies\":%" PRIu64 ",\"copied_bytes\":%" PRIu64
           ",\"drops\":%" PRIu64 ",\"overwrites\":%" PRIu64 ",\"waits\":%" PRIu64
           ",\"wakeups\":%" PRIu64 ",\"age_s\":%.6f,\"adopted\":%s",
           seen->slots, seen->slot_bytes, seen->segment_bytes,
           seen->policy == TB_EVERY ? "every" : "latest", tb__pool_lane_name(seen->lane),
           seen->stats.readers, seen->stats.frames, seen->stats.bytes, seen->stats.copies,
           seen->stats.copied_bytes, seen->stats.drops, seen->stats.overwrites, seen->stats.waits,
           seen->stats.wakeups, tb__pool_age_s(seen), seen->adopted ? "true" : "false");
    printf(",\"troubles\":%" PRIu64 ",\"trouble\":", seen->stats.troubles);
    if (seen->stats.troubles > 0) {
        char text[200];
        snprintf(text, sizeof text, "%s: %s", tb_status_name(seen->stats.trouble_status),
                 seen->stats.trouble);
        tb__cli_json_string(stdout, text);
    } else {
        printf("null");
    }
    if (tb__pool_is_on_gpu(seen)) {
        printf(",\"device\":\"cuda\",\"device_uuid\":\"%s\",\"device_memory\":\"%s\","
               "\"device_bytes\":%" PRIu64,
               seen->device_uuid, tb__pool_place_name(seen->place), seen->device_bytes);
    } else {
        printf(",\"device\":\"cpu\",\"device_uuid\":null,\"device_memory\":null,"
               "\"device_bytes\":null");
    }
}

void tb__pool_print_json(const char *process, const struct tb__observation *seen)
{
    print_open_json(process, seen);
    printf("}");
}

void tb__pool_print_info_json(const char *process, const struct tb__observation *seen,
                              const struct tb__observed_readers *readers)
{
    print_open_json(process, seen);
    printf(",\"reader_processes\":%s", readers == NULL ? "null}" : "[");
    for (uint32_t i = 0; readers != NULL && i < readers->listed; i++) {
        const struct tb__observed_reader *reader = &readers->readers[i];
        int named = reader->process[0] != '\0';
        printf("%s{\"process\":%s%s%s,\"pid\":%u}", i > 0 ? "," : "", named ? "\"" : "null",
               reader->process, named ? "\"" : "", reader->pid);
    }
    printf("%s", readers == NULL ? "" : "]}");
}
