/* Looking at a pool without taking part in it: a read-only mapping of its segment, no page, no
 * lease. For tools; nobody is disturbed. */
#ifndef TB_POOL_OBSERVE_H
#define TB_POOL_OBSERVE_H

#include <tensorbus/bus.h>
#include <tensorbus/pool.h>
#include <tensorbus/reader.h>

#include "segment/doradma.h"

typedef struct tb__observer tb__observer;

/* One look at a pool's counters. */
struct tb__observation {
    char name[65];
    char tensor[192]; /* "uint8[1080, 1920, 3]" */
    uint32_t slots;
    uint32_t max_leases;
    tb_policy policy;
    int varying;
    int exported;
    int live;
    int adopted; /* the slots are memory of its user's */
    uint64_t slot_bytes;
    uint64_t segment_bytes;
    uint64_t sequence;        /* of the newest frame; 0: none */
    uint64_t newest_stamp_ns; /* CLOCK_MONOTONIC */
    uint64_t registered_ns;
    tb_pool_stats stats; /* `held` is not known to an observer: 0 */
    tb_lane lane;
    enum tb__doradma_place place; /* of the slots */
    uint64_t device_bytes;        /* of the allocation there; 0: the slots are in the segment */
    char device_uuid[37];         /* of the GPU, as nvidia-smi has it behind "GPU-"; "" */
};

/* Names of the pools of a process that are not freed; each terminated, *count of them. The caller
 * frees *out. */
tb_status tb__pools_list(tb_bus *bus, const char *owner, char **out, size_t *count);

/* Who reads "process/pool" now, as its owner says. The caller frees out->readers. */
struct tb__observed_readers {
    struct tb__observed_reader {
        uint32_t pid;     /* as the owner sees it */
        char process[65]; /* "": without a name */
    } * readers;
    uint32_t listed;
    uint32_t count; /* of all, should they not fit the owner's answer */
};
tb_status tb__pool_readers(tb_bus *bus, const char *path, struct tb__observed_readers *out);

/* Open an observer of "process/pool". */
tb_status tb__observer_open(tb_bus *bus, const char *path, tb__observer **out);
void tb__observer_close(tb__observer *observer);
void tb__observer_look(const tb__observer *observer, struct tb__observation *out);
/* Whether the owner is gone. */
int tb__observer_ended(const tb__observer *observer);

/* Remove the files of exported pools whose owner is gone: an owner holds a lock for as long as it
 * lives. `report` (may be NULL) hears of each. Returns how many. */
unsigned tb__exports_sweep(void (*report)(const char *what, const char *name));

#endif
