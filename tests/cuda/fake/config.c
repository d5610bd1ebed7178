/* The machine that the fake plays: FAKE_CUDA and CUDA_VISIBLE_DEVICES. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/fake/fake.h"

struct fake fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* The value of `key` in "a=1;b=2", as a copy in `out`; NULL if it is not there. */
static const char *setting(const char *key, char out[256])
{
    const char *at = getenv("FAKE_CUDA");
    size_t key_length = strlen(key);
    while (at != NULL && *at != '\0') {
        size_t length = strcspn(at, ";");
        if (length > key_length && strncmp(at, key, key_length) == 0 && at[key_length] == '=') {
            snprintf(out, 256, "%.*s", (int)(length - key_length - 1), at + key_length + 1);
            return out;
        }
        at += length;
        at += *at == ';';
    }
    return NULL;
}

static int number(const char *key, int otherwise)
{
    char text[256];
    return setting(key, text) != NULL ? atoi(text) : otherwise;
}

/* Whether a list "0,2" or "all" has the device. */
static int listed(const char *key, int device)
{
    char text[256];
    if (setting(key, text) == NULL) {
        return 0;
    }
    if (strcmp(text, "all") == 0) {
        return 1;
    }
    for (char *at = text; *at != '\0';) {
        char *end = at;
        if (strtol(at, &end, 10) == device && end != at) {
            return 1;
        }
        at = end + (*end != '\0');
    }
    return 0;
}

static void find_peers(void)
{
    char text[256];
    if (setting("peer", text) == NULL) {
        return;
    }
    for (char *at = text; *at != '\0';) {
        int a = -1, b = -1, used = 0;
        if (sscanf(at, "%d-%d%n", &a, &b, &used) != 2 || a < 0 || b < 0 || a >= MAX_DEVICES ||
            b >= MAX_DEVICES) {
            fprintf(stderr, "fake libcuda: FAKE_CUDA: peer=%s is not understood\n", text);
            abort();
        }
        fake.peers[a] |= 1u << b;
        fake.peers[b] |= 1u << a;
        at += used + (at[used] == ',');
    }
}

static struct fake_device describe_device(int physical)
{
    return (struct fake_device){
        .physical = physical,
        .integrated = listed("integrated", physical),
        .mig = listed("mig", physical),
        .vmm = !listed("no_vmm", physical),
        .posix_fd = !listed("no_posix_fd", physical),
        .stream_ops = !listed("no_stream_ops", physical),
        .ipc = !listed("no_ipc", physical) && !listed("integrated", physical),
        .managed = !listed("no_managed", physical),
        .pools = !listed("no_pools", physical),
        .read_only_register = !listed("no_read_only_register", physical),
        .same_pointer = !listed("no_same_pointer", physical),
        .host_register = !listed("no_host_register", physical),
        .dma_buf = !listed("no_dma_buf", physical),
        .unified = !listed("no_unified", physical),
        .total = (size_t)number("memory", 1024) << 20,
    };
}

void fake_uuid(int physical, int instance, char out[16])
{
    memcpy(out, "fake gpu \0\0\0\0\0\0\0", 16);
    out[9] = (char)('0' + physical);
    out[15] = (char)(instance ? 0x4d : 0x47);
}

static void add_visible(int physical, int all)
{
    if (physical >= 0 && physical < all && fake.device_count < MAX_DEVICES) {
        fake.devices[fake.device_count++] = describe_device(physical);
    }
}

/* The number of a device by "GPU-..." or "MIG-..." text; -1. */
static int by_uuid_text(const char *text, int all)
{
    for (int i = 0; i < all; i++) {
        struct fake_device device = describe_device(i);
        char uuid[16], wanted[48];
        fake_uuid(i, device.mig, uuid);
        int used = snprintf(wanted, sizeof wanted, "%s", device.mig ? "MIG-" : "GPU-");
        for (int k = 0; k < 16; k++) {
            used +=
                snprintf(wanted + used, sizeof wanted - (size_t)used, "%02x%s",
                         (unsigned char)uuid[k], k == 3 || k == 5 || k == 7 || k == 9 ? "-" : "");
        }
        if (strcmp(text, wanted) == 0) {
            return i;
        }
    }
    return -1;
}

void fake_configure(void)
{
    int all = number("devices", 1);
    fake.dma_buf_borrows = number("dma_buf_borrows", 0);
    fake.empty = number("empty", 0);
    all = all > MAX_DEVICES ? MAX_DEVICES : all;
    fake.device_count = 0;
    fake.slow_to_device = number("slow_to_device", 0);
    fake.slow_us = (unsigned)number("slow", 0);
    fake.queue = (uint64_t)number("queue", 0);
    memset(fake.peers, 0, sizeof fake.peers);
    find_peers();
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible == NULL) {
        for (int i = 0; i < all; i++) {
            add_visible(i, all);
        }
    } else {
        /* As with the real one, the first entry that names nothing ends the list. */
        char text[256];
        snprintf(text, sizeof text, "%s", visible);
        char *rest = text;
        for (char *one = strtok_r(text, ",", &rest); one != NULL;
             one = strtok_r(NULL, ",", &rest)) {
            char *end = one;
            long physical = strtol(one, &end, 10);
            if (end == one || *end != '\0') {
                physical = by_uuid_text(one, all);
            }
            if (physical < 0 || physical >= all) {
                break;
            }
            add_visible((int)physical, all);
        }
    }
    for (int i = 0; i < fake.device_count; i++) {
        fake.primaries[i] = (struct fake_context){
            .device = i, .is_primary = 1, .callbacks = PTHREAD_MUTEX_INITIALIZER};
    }
}

int fake_peers(int a, int b)
{
    return a == b || (fake.peers[fake.devices[a].physical] >> fake.devices[b].physical & 1);
}
