/* Choosing how to copy into a slot, and packing strided tensors.
 *
 * Where the thresholds come from (Zen 5, 32 MiB of last-level cache; memfd destination; GB/s of
 * plain / streaming / rep movsb; the ring is what the writer cycles through):
 *
 *   6.2 MB, 1 slot    52 / 41 / 63      the ring fits: rep movsb
 *   6.2 MB, 4 slots   34 / 40 / 57
 *   6.2 MB, 6 slots   29 / 40 / 47
 *   8 MiB,  5 slots   28 / 41 / 38      ring and source are 1.5 times the cache: streaming
 *   16 MiB, 2 slots   26 / 39 / 30
 *   6.2 MB, 32 slots  25 / 38 / 28
 *   61 MB,  2 slots   20 / 26 / 26      streaming and rep movsb are equal from here on
 *   64 KiB, any ring that fits: plain and rep movsb are equal; streaming a third
 *
 * The lines cross where ring and source together are 1.3 to 1.5 times the cache, with the source in
 * the cache or not.
 *
 * Streaming forward / by 2, 4, 8 parts of each block, a line of each in turn / rep movsb:
 *
 *   6.2 MB, 22 slots  40.6 / 41.4 42.2 -    / 28.6   blocks of 1 MiB; 512 KiB and 2 MiB are equal
 *   25 MB,  6 slots   25.3 / 28.4 30.0 29.4 / 22.2
 *   61 MB,  3 slots   23.8 / 24.5 25.8 25.4 / 23.3
 *   256 MiB, 2 slots  23.8 / 25.1 26.3 24.4 / 25.4 */
#include "base/copy.h"

#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/copy_x86.h"
#include "base/fd.h"

#define SMALL_BYTES ((size_t)64 << 10)
#define MIN_CACHE_BYTES ((size_t)1 << 20)
#define DEFAULT_CACHE_BYTES ((size_t)8 << 20)
/* A virtual machine or a container sees the whole cache of a large host, of which it has a share.
 */
#define MAX_CACHE_BYTES ((size_t)64 << 20)

/* Race detectors see neither `rep movsb` nor non-temporal stores. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define PLAIN_ONLY 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define PLAIN_ONLY 1
#endif
#endif
#ifndef PLAIN_ONLY
#define PLAIN_ONLY 0
#endif

/* What this machine can do: found once, constant afterwards. */
static struct {
    size_t cache_bytes;
    int has_stream;
    int rep_is_fast;
    int width;
} machine;
static pthread_once_t machine_once = PTHREAD_ONCE_INIT;

/* Largest cache of the first processor by sysfs ("32768K"), 0 when it does not say. */
static size_t sysfs_cache_bytes(void)
{
    size_t largest = 0;
    for (int i = 0; i < 16; i++) {
        char path[80], text[32];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (tb__file_read(path, text, sizeof text) <= 0) {
            break;
        }
        char *end;
        unsigned long long value = strtoull(text, &end, 10);
        unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : 0;
        if (value <= (ULLONG_MAX >> 24) && (size_t)(value << shift) > largest) {
            largest = (size_t)(value << shift);
        }
    }
    return largest;
}

static void machine_find(void)
{
    size_t cache = sysfs_cache_bytes();
#if defined(__x86_64__)
    if (cache == 0) {
        cache = tb__x86_cache_bytes();
    }
    machine.has_stream = 1;
    machine.rep_is_fast = tb__x86_rep_is_fast();
    machine.width = TB__X86_SSE2;
    for (int width = 0; width < TB__X86_WIDTHS; width++) {
        if (tb__x86_has((enum tb__x86_width)width)) {
            machine.width = width;
        }
    }
#endif
    if (cache == 0) {
        cache = DEFAULT_CACHE_BYTES;
    }
    if (cache < MIN_CACHE_BYTES) {
        cache = MIN_CACHE_BYTES;
    }
    machine.cache_bytes = cache < MAX_CACHE_BYTES ? cache : MAX_CACHE_BYTES;
}

size_t tb__copy_cache_bytes(void)
{
    pthread_once(&machine_once, machine_find);
    return machine.cache_bytes;
}

int tb__copy_available(enum tb__copy_kind kind)
{
#if defined(__x86_64__)
    return kind >= TB__COPY_PLAIN && kind < TB__COPY_KINDS;
#else
    return kind == TB__COPY_PLAIN;
#endif
}

const char *tb__copy_kind_name(enum tb__copy_kind kind)
{
    static const char *const names[] = {"plain", "streaming", "rep movsb", "interleaved"};
    return kind >= 0 && kind < TB__COPY_KINDS ? names[kind] : "?";
}

enum tb__copy_kind tb__copy_choose(size_t bytes, size_t working_set_bytes)
{
    pthread_once(&machine_once, machine_find);
    if (PLAIN_ONLY || bytes < SMALL_BYTES) {
        return TB__COPY_PLAIN;
    }
    /* Eleven eighths of the cache: see the top of the file. A ring smaller than the copy is a
     * caller's mistake; the copy itself is what counts then. */
    size_t ring = working_set_bytes > bytes ? working_set_bytes : bytes;
    size_t limit = machine.cache_bytes / 8 * 11;
    if (machine.has_stream && (ring > limit || bytes > limit - ring)) {
        return bytes >= TB__X86_BLOCK_BYTES ? TB__COPY_INTERLEAVED : TB__COPY_STREAM;
    }
    return machine.rep_is_fast ? TB__COPY_REP : TB__COPY_PLAIN;
}

void tb__copy_with(enum tb__copy_kind kind, void *dst, const void *src, size_t bytes)
{
    if (bytes == 0) {
        return; /* either pointer may be NULL */
    }
#if defined(__x86_64__)
    if (kind == TB__COPY_STREAM || kind == TB__COPY_INTERLEAVED) {
        pthread_once(&machine_once, machine_find);
        tb__x86_stream((enum tb__x86_width)machine.width, kind == TB__COPY_INTERLEAVED, dst, src,
                       bytes);
        return;
    }
    if (kind == TB__COPY_REP) {
        tb__x86_rep(dst, src, bytes);
        return;
    }
#else
    (void)kind;
#endif
    memcpy(dst, src, bytes);
}

void tb__copy_store(void *dst, const void *src, size_t bytes, size_t working_set_bytes)
{
    tb__copy_with(tb__copy_choose(bytes, working_set_bytes), dst, src, bytes);
}

/* A tensor's loops, outermost first, after merging: element strides became byte strides, and the
 * innermost contiguous run became one block. */
struct loops {
    int count;
    int64_t shape[TB_MAX_NDIM];
    int64_t stride_bytes[TB_MAX_NDIM];
    size_t block_bytes;
};

/* Byte strides wrap like the addresses that they are added to; a valid tensor stays inside memory.
 */
static int64_t wrapping_mul(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

/* Drop dimensions of one element and join neighbours that walk memory as one. Returns 0 when the
 * tensor is empty. */
static int loops_build(const tb_tensor *src, struct loops *out)
{
    size_t element = tb_dtype_bytes(src->dtype);
    int64_t packed = (int64_t)element;
    int64_t strides[TB_MAX_NDIM] = {0};
    for (int i = src->ndim - 1; i >= 0; i--) {
        strides[i] =
            src->strides != NULL ? wrapping_mul(src->strides[i], (int64_t)element) : packed;
        packed = wrapping_mul(packed, src->shape[i]);
    }
    out->count = 0;
    out->block_bytes = element;
    for (int i = 0; i < src->ndim; i++) {
        if (src->shape[i] <= 0) {
            return 0;
        }
        if (src->shape[i] == 1) {
            continue;
        }
        int last = out->count - 1;
        if (last >= 0 && out->stride_bytes[last] == wrapping_mul(src->shape[i], strides[i])) {
            out->shape[last] *= src->shape[i];
            out->stride_bytes[last] = strides[i];
        } else {
            out->shape[out->count] = src->shape[i];
            out->stride_bytes[out->count] = strides[i];
            out->count++;
        }
    }
    if (out->count > 0 && out->stride_bytes[out->count - 1] == (int64_t)element) {
        out->count--;
        out->block_bytes = element * (size_t)out->shape[out->count];
    }
    return element != 0;
}

/* Blocks of a constant size compile to one load and one store. */
#define ROW_OF(SIZE)                                                                               \
    for (int64_t i = 0; i < count; i++, dst += (SIZE)) {                                           \
        memcpy(dst, src + wrapping_mul(i, stride), (SIZE));                                        \
    }                                                                                              \
    break

/* Copy `count` blocks that lie `stride` bytes apart; returns where the next one goes. */
static char *copy_row(char *dst, const char *src, int64_t count, int64_t stride, size_t block)
{
    switch (block) {
    case 1:
        ROW_OF(1);
    case 2:
        ROW_OF(2);
    case 4:
        ROW_OF(4);
    case 8:
        ROW_OF(8);
    case 16:
        ROW_OF(16);
    default:
        ROW_OF(block);
    }
    return dst;
}

void tb__copy_strided(void *dst, const tb_tensor *src)
{
    struct loops loops;
    if (!loops_build(src, &loops)) {
        return;
    }
    const char *base = src->data;
    char *to = dst;
    int outer = loops.count > 0 ? loops.count - 1 : 0;
    int64_t row_count = loops.count > 0 ? loops.shape[outer] : 1;
    int64_t row_stride = loops.count > 0 ? loops.stride_bytes[outer] : 0;
    int64_t index[TB_MAX_NDIM] = {0};
    uint64_t offset = 0; /* of the current row from the first element; wraps below zero */
    for (;;) {
        to = copy_row(to, base + (int64_t)offset, row_count, row_stride, loops.block_bytes);
        int i = outer - 1;
        while (i >= 0 && index[i] == loops.shape[i] - 1) {
            offset -= (uint64_t)wrapping_mul(index[i], loops.stride_bytes[i]);
            index[i--] = 0;
        }
        if (i < 0) {
            return;
        }
        index[i]++;
        offset += (uint64_t)loops.stride_bytes[i];
    }
}
