/* Which addresses are what: ranges, physical blocks, and memfds that say what they are. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cuda/fake/fake.h"

static struct range *ranges;
static struct block *blocks;

/* ------------------------------------------------------------------ ranges */

struct range *range_add(enum range_kind kind, int device, uint64_t base, size_t bytes)
{
    struct range *range = calloc(1, sizeof *range);
    if (range == NULL) {
        abort();
    }
    *range = (struct range){
        .next = ranges, .kind = kind, .base = base, .bytes = bytes, .device = device, .fd = -1};
    ranges = range;
    return range;
}

void range_remove(struct range *range)
{
    struct range **at = &ranges;
    while (*at != range) {
        at = &(*at)->next;
    }
    *at = range->next;
    if (range->fd >= 0) {
        close(range->fd);
    }
    free(range);
}

struct range *range_find(uint64_t address)
{
    for (struct range *range = ranges; range != NULL; range = range->next) {
        if (address >= range->base && address - range->base < range->bytes) {
            return range;
        }
    }
    return NULL;
}

struct range *range_find_host(const void *host)
{
    for (struct range *range = ranges; range != NULL; range = range->next) {
        if ((range->kind == RANGE_REGISTERED || range->kind == RANGE_HOST_ALLOC) &&
            (const char *)host >= range->host &&
            (size_t)((const char *)host - range->host) < range->bytes) {
            return range;
        }
    }
    return NULL;
}

struct range *range_next(struct range *range)
{
    return range == NULL ? ranges : range->next;
}

int range_back(struct range *range, size_t bytes)
{
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    if (tag_make(whole, fake.devices[range->device].physical, range->kind, &range->fd,
                 &range->key) != 0) {
        return TB__CUDA_OUT_OF_MEMORY;
    }
    void *address =
        mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *host = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, range->fd, 0);
    if (address == MAP_FAILED || host == MAP_FAILED) {
        abort();
    }
    range->base = (uint64_t)(uintptr_t)address;
    range->host = host;
    range->bytes = bytes;
    return 0;
}

/* Whether the primary context of `device` was let into the memory of `other`. */
static int reaches(int device, int other)
{
    return device == other || (fake.primaries[device].peers >> other & 1);
}

static int allowed(const struct range *range, int device, int writing)
{
    switch (range->kind) {
    case RANGE_RESERVED:
        return ((writing ? range->writers : range->readers) >> device & 1) != 0;
    case RANGE_REGISTERED:
        return !writing || (range->flags & TB__MEMHOSTREGISTER_READ_ONLY) == 0;
    case RANGE_MANAGED:
    case RANGE_HOST_ALLOC:
        return 1;
    default:
        return reaches(device, range->device);
    }
}

char *fake_resolve(uint64_t address, size_t bytes, int device, int writing)
{
    struct range *range = range_find(address);
    if (range == NULL || range->host == NULL || bytes > range->bytes - (address - range->base) ||
        !allowed(range, device, writing)) {
        return NULL;
    }
    return range->host + (address - range->base);
}

int fake_host_locked(const void *host, size_t bytes)
{
    uintptr_t from = (uintptr_t)host, to = from + bytes;
    for (struct range *range = ranges; range != NULL; range = range->next) {
        if (range->kind != RANGE_REGISTERED && range->kind != RANGE_HOST_ALLOC &&
            range->kind != RANGE_MANAGED) {
            continue;
        }
        uintptr_t base = (uintptr_t)range->host, end = base + range->bytes;
        if (from >= base && to <= end) {
            return 1;
        }
        if (from < end && to > base) {
            return -1;
        }
    }
    return 0;
}

/* ------------------------------------------------------------------ blocks */

struct block *block_next(struct block *block)
{
    return block == NULL ? blocks : block->next;
}

struct block *block_add(size_t bytes, int device, int fd)
{
    static unsigned long long last = 0x4000;
    struct block *block = calloc(1, sizeof *block);
    if (block == NULL) {
        abort();
    }
    *block = (struct block){
        .next = blocks, .handle = ++last, .bytes = bytes, .device = device, .fd = fd, .handles = 1};
    blocks = block;
    return block;
}

struct block *block_find(unsigned long long handle)
{
    for (struct block *block = blocks; block != NULL; block = block->next) {
        if (block->handle == handle && block->handles > 0) {
            return block;
        }
    }
    return NULL;
}

void block_drop(struct block *block)
{
    if (block->handles > 0 || block->mappings > 0) {
        return;
    }
    struct block **at = &blocks;
    while (*at != block) {
        at = &(*at)->next;
    }
    *at = block->next;
    if (!block->imported && block->device >= 0) {
        fake.devices[block->device].used -= block->bytes;
    }
    close(block->fd);
    free(block);
}

/* ------------------------------------------------------------------ memfds */

/* The tag lies behind the memory, on a page of its own. */
int tag_make(size_t bytes, int physical, enum range_kind kind, int *out_fd, uint64_t *out_key)
{
    static uint64_t last;
    struct memory_tag tag = {.magic = "fake cuda mem",
                             .bytes = bytes,
                             .physical = physical,
                             .kind = (int32_t)kind,
                             .key = (uint64_t)getpid() << 32 | ++last};
    int fd = memfd_create("fake-cuda", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)(bytes + PAGE)) != 0 ||
        pwrite(fd, &tag, sizeof tag, (off_t)bytes) != (ssize_t)sizeof tag) {
        close(fd);
        return -1;
    }
    *out_fd = fd;
    *out_key = tag.key;
    return 0;
}

int tag_read(int fd, struct memory_tag *out)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < (off_t)PAGE ||
        pread(fd, out, sizeof *out, info.st_size - (off_t)PAGE) != (ssize_t)sizeof *out ||
        strcmp(out->magic, "fake cuda mem") != 0 || out->bytes != (uint64_t)info.st_size - PAGE) {
        return -1;
    }
    return 0;
}

struct handle_text {
    char magic[16];
    int32_t pid;
    int32_t fd;
};

void handle_make(struct tb__ipc_handle *out, int fd)
{
    struct handle_text text = {.magic = "fake cuda ipc", .pid = getpid(), .fd = fd};
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, &text, sizeof text);
}

int handle_open(const struct tb__ipc_handle *handle, int *out_fd)
{
    struct handle_text text;
    char path[64];
    memcpy(&text, handle->bytes, sizeof text);
    if (strncmp(text.magic, "fake cuda ipc", sizeof text.magic) != 0) {
        return TB__CUDA_INVALID_VALUE;
    }
    if (text.pid == getpid()) {
        return TB__CUDA_INVALID_CONTEXT; /* one's own memory cannot be opened */
    }
    snprintf(path, sizeof path, "/proc/%d/fd/%d", text.pid, text.fd);
    *out_fd = open(path, O_RDWR | O_CLOEXEC);
    return *out_fd >= 0 ? 0 : TB__CUDA_INVALID_VALUE;
}
