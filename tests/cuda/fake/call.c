/* What every call begins with: counting, failures on demand, fork; and the tests' control. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cuda/fake/fake.h"

#define MAX_RULES 16
#define MAX_NAMES 128

struct rule {
    char name[64];
    int async;
    unsigned long at;
    unsigned long seen;
    int code;
    int acted;
};

static struct {
    struct rule rules[MAX_RULES];
    int rule_count;
    int acted;
    int loaded;
    unsigned long total;
    struct {
        char name[64];
        unsigned long count;
    } names[MAX_NAMES];
    int name_count;
} calls;

int fake_is_sticky(int code)
{
    return code == TB__CUDA_ECC_UNCORRECTABLE || code == TB__CUDA_NVLINK_UNCORRECTABLE ||
           code == TB__CUDA_CONTAINED || code == TB__CUDA_ILLEGAL_ADDRESS ||
           code == TB__CUDA_LAUNCH_TIMEOUT ||
           (code >= TB__CUDA_ASSERT && code <= TB__CUDA_LAUNCH_FAILED &&
            code != TB__CUDA_TOO_MANY_PEERS && code != TB__CUDA_HOST_MEMORY_ALREADY_REGISTERED &&
            code != TB__CUDA_HOST_MEMORY_NOT_REGISTERED);
}

/* ------------------------------------------------------------------ rules */

static void rule_parse(const char *text, size_t length)
{
    struct rule *rule = &calls.rules[calls.rule_count];
    char one[128];
    snprintf(one, sizeof one, "%.*s", (int)length, text);
    *rule = (struct rule){0};
    char *at = one;
    if (strncmp(at, "async:", 6) == 0) {
        rule->async = 1;
        at += 6;
    }
    if (calls.rule_count == MAX_RULES ||
        sscanf(at, "%63[^:]:%lu:%d", rule->name, &rule->at, &rule->code) != 3) {
        fprintf(stderr, "fake libcuda: FAKE_CUDA_FAIL: `%s` is not understood\n", one);
        abort();
    }
    calls.rule_count++;
}

static void rules_set(const char *rules)
{
    calls.rule_count = 0;
    calls.acted = 0;
    calls.loaded = 1;
    while (rules != NULL && *rules != '\0') {
        size_t length = strcspn(rules, ",");
        rule_parse(rules, length);
        rules += length;
        rules += *rules == ',';
    }
}

/* The code of the rule that acts on this call or work; 0. */
static int rules_ask(const char *name, int async)
{
    if (!calls.loaded) {
        rules_set(getenv("FAKE_CUDA_FAIL"));
    }
    int code = 0;
    for (int i = 0; i < calls.rule_count; i++) {
        struct rule *rule = &calls.rules[i];
        if (rule->async == async && !rule->acted &&
            (strcmp(rule->name, "*") == 0 || strcmp(rule->name, name) == 0) &&
            ++rule->seen == rule->at) {
            rule->acted = 1;
            calls.acted = 1;
            code = rule->code;
        }
    }
    return code;
}

static void count(const char *name)
{
    calls.total++;
    for (int i = 0; i < calls.name_count; i++) {
        if (strcmp(calls.names[i].name, name) == 0) {
            calls.names[i].count++;
            return;
        }
    }
    if (calls.name_count < MAX_NAMES) {
        snprintf(calls.names[calls.name_count].name, sizeof calls.names[0].name, "%s", name);
        calls.names[calls.name_count++].count = 1;
    }
}

/* ------------------------------------------------------------------ calls */

static int enter(const char *name)
{
    if (fake.forked) {
        return TB__CUDA_NOT_INITIALIZED;
    }
    fake_lock();
    count(name);
    int code = rules_ask(name, 0);
    if (fake_is_sticky(code)) {
        struct fake_context *context = fake_current();
        if (context != NULL) {
            context->broken = code;
        }
    }
    if (code == 0 && !fake.initialised && strcmp(name, "cuInit") != 0) {
        code = TB__CUDA_NOT_INITIALIZED;
    }
    return fake_unlock(code);
}

int fake_enter(const char *name)
{
    return enter(name);
}

int fake_enter_release(const char *name)
{
    return enter(name);
}

int fake_async_failure(const char *name)
{
    return rules_ask(name, 1);
}

/* ------------------------------------------------------------------ control */

static void control_fail(const char *rules)
{
    fake_lock();
    rules_set(rules);
    fake_unlock(0);
}

static int control_has_failed(void)
{
    fake_lock();
    return fake_unlock(calls.acted);
}

static unsigned long control_calls(const char *name)
{
    unsigned long found = 0;
    fake_lock();
    for (int i = 0; name != NULL && i < calls.name_count; i++) {
        if (strcmp(calls.names[i].name, name) == 0) {
            found = calls.names[i].count;
        }
    }
    found = name == NULL ? calls.total : found;
    fake_unlock(0);
    return found;
}

static struct fake_leaks owned;
static int owns;

static void leaks_count(struct fake_leaks *out)
{
    *out = (struct fake_leaks){0};
    for (struct range *range = range_next(NULL); range != NULL; range = range_next(range)) {
        out->registrations += range->kind == RANGE_REGISTERED;
        out->reservations += range->kind == RANGE_RESERVED;
        out->opened += range->kind == RANGE_IPC;
        out->externals += range->kind == RANGE_EXTERNAL;
        out->allocations += range->kind == RANGE_DEVICE || range->kind == RANGE_POOL ||
                            range->kind == RANGE_MANAGED || range->kind == RANGE_HOST_ALLOC;
    }
    for (struct block *block = block_next(NULL); block != NULL; block = block_next(block)) {
        out->blocks++;
    }
    for (struct CUstream_st *s = stream_next(NULL); s != NULL; s = stream_next(s)) {
        out->streams += !s->is_default;
    }
    for (struct fake_context *c = fake.contexts; c != NULL; c = c->next) {
        out->contexts++;
    }
    for (int i = 0; i < fake.device_count; i++) {
        out->primaries += fake.primaries[i].retained;
        out->device_bytes += fake.devices[i].used;
    }
    out->events = event_count();
    out->allocations -= owned.allocations;
    out->registrations -= owned.registrations;
    out->blocks -= owned.blocks;
    out->reservations -= owned.reservations;
    out->device_bytes -= owned.device_bytes;
}

static void control_leaks(struct fake_leaks *out)
{
    fake_lock();
    leaks_count(out);
    fake_unlock(0);
}

static void *control_bytes(uint64_t address, size_t bytes)
{
    fake_lock();
    struct range *range = range_find(address);
    void *found = NULL;
    if (range != NULL && range->host != NULL && bytes <= range->bytes - (address - range->base)) {
        found = range->host + (address - range->base);
    }
    fake_unlock(0);
    return found;
}

static void control_own(void)
{
    struct fake_leaks now;
    fake_lock();
    owned = (struct fake_leaks){0};
    leaks_count(&now);
    owns = !owns;
    owned = owns ? now : owned;
    fake_unlock(0);
}

static int is_broken(int device)
{
    int broken = fake.primaries[device].broken;
    for (struct fake_context *c = fake.contexts; c != NULL; c = c->next) {
        broken = c->device == device && c->broken ? c->broken : broken;
    }
    return broken;
}

static void control_break(int device, int code)
{
    fake_lock();
    if (code == 0 && is_broken(device)) {
        device_run_empty(device); /* what was lost stays so */
    }
    fake.primaries[device].broken = code;
    for (struct fake_context *c = fake.contexts; c != NULL; c = c->next) {
        c->broken = c->device == device ? code : c->broken;
    }
    fake_unlock(0);
}

static void control_reset(int device)
{
    fake_lock();
    fake.primaries[device].retained = 0;
    fake.primaries[device].broken = 0;
    fake_unlock(0);
}

FAKE_API extern const struct fake_control fake_cuda_control;
const struct fake_control fake_cuda_control = {
    .fail = control_fail,
    .has_failed = control_has_failed,
    .calls = control_calls,
    .leaks = control_leaks,
    .bytes = control_bytes,
    .advice = managed_advice,
    .own = control_own,
    .break_device = control_break,
    .reset_device = control_reset,
};

/* ------------------------------------------------------------------ the end */

__attribute__((destructor)) static void at_exit(void)
{
    const char *path = getenv("FAKE_CUDA_LEAKS");
    struct fake_leaks l;
    if (path == NULL || fake.forked || !fake.initialised ||
        pthread_mutex_trylock(&fake.lock) != 0) {
        return;
    }
    leaks_count(&l);
    pthread_mutex_unlock(&fake.lock);
    if (l.allocations + l.registrations + l.blocks + l.reservations + l.opened + l.externals +
            l.streams + l.events + l.contexts ==
        0) {
        return;
    }
    FILE *file = fopen(path, "ae");
    if (file != NULL) {
        fprintf(file,
                "process %d: %d allocations, %d registrations, %d blocks, %d reservations, "
                "%d opened, %d externals, %d streams, %d events, %d contexts, %zu bytes\n",
                (int)getpid(), l.allocations, l.registrations, l.blocks, l.reservations, l.opened,
                l.externals, l.streams, l.events, l.contexts, l.device_bytes);
        fclose(file);
    }
}
