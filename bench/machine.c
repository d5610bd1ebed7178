/* Reading what the kernel says of the machine: all best effort, nothing here fails. */
#include "bench/machine.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/fd.h"

static void find_processor(char *out, size_t size)
{
    static char text[65536];
    snprintf(out, size, "unknown processor");
    if (tb__file_read("/proc/cpuinfo", text, sizeof text) <= 0) {
        return;
    }
    const char *line = strstr(text, "model name");
    const char *colon = line != NULL ? strchr(line, ':') : NULL;
    if (colon != NULL) {
        snprintf(out, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    }
}

/* First processor number in the list of a core's hardware threads ("0,64" or "0-1"). */
static int core_of(int cpu)
{
    char path[96], text[64];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    if (tb__file_read(path, text, sizeof text) <= 0) {
        return cpu;
    }
    return (int)strtol(text, NULL, 10);
}

static void find_cpus(struct tb__machine *out)
{
    cpu_set_t set;
    out->first_cpu = out->second_cpu = -1;
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return;
    }
    out->cpus = CPU_COUNT(&set);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set)) {
            continue;
        }
        if (out->first_cpu < 0) {
            out->first_cpu = cpu;
        } else if (out->second_cpu < 0 && core_of(cpu) != core_of(out->first_cpu)) {
            out->second_cpu = cpu;
        }
    }
}

static uint64_t meminfo_bytes(const char *key)
{
    char text[4096];
    if (tb__file_read("/proc/meminfo", text, sizeof text) <= 0) {
        return 0;
    }
    const char *line = strstr(text, key);
    return line != NULL ? strtoull(line + strlen(key), NULL, 10) * 1024 : 0;
}

void tb__machine_find(struct tb__machine *out)
{
    struct utsname name;
    *out = (struct tb__machine){0};
    find_processor(out->processor, sizeof out->processor);
    if (uname(&name) == 0) {
        snprintf(out->kernel, sizeof out->kernel, "%.16s %.64s", name.sysname, name.release);
    }
    find_cpus(out);
    int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
    out->realtime = policy == SCHED_FIFO || policy == SCHED_RR;
    out->cache_bytes = tb__copy_cache_bytes();
    out->memory_bytes = meminfo_bytes("MemTotal:");
}

uint64_t tb__machine_available_bytes(void)
{
    return meminfo_bytes("MemAvailable:");
}

void tb__disturbance_read(struct tb__disturbance *out)
{
    char text[4096];
    *out = (struct tb__disturbance){.now_ns = tb__now_ns()};
    if (tb__file_read("/proc/stat", text, sizeof text) > 0 && strncmp(text, "cpu ", 4) == 0) {
        /* user nice system idle iowait irq softirq steal */
        char *at = text + 4;
        for (int i = 0; i < 8; i++) {
            uint64_t ticks = strtoull(at, &at, 10);
            out->total_ticks += ticks;
            out->steal_ticks = ticks;
        }
    }
    if (tb__file_read("/proc/pressure/cpu", text, sizeof text) > 0) {
        const char *total = strstr(text, "total=");
        out->pressure_us = total != NULL ? strtoull(total + 6, NULL, 10) : 0;
    }
}

void tb__disturbance_between(const struct tb__disturbance *before,
                             const struct tb__disturbance *after, double *steal_percent,
                             double *pressure_percent)
{
    uint64_t ticks = after->total_ticks - before->total_ticks;
    uint64_t steal = after->steal_ticks - before->steal_ticks;
    double wall_us = (double)(after->now_ns - before->now_ns) / 1000;
    *steal_percent = ticks > 0 ? 100.0 * (double)steal / (double)ticks : 0;
    *pressure_percent = -1;
    if (after->pressure_us > 0 && wall_us > 0) {
        *pressure_percent = 100.0 * (double)(after->pressure_us - before->pressure_us) / wall_us;
    }
}
