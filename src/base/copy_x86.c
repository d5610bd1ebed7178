/* Store kinds of x86-64 processors: non-temporal stores of three widths, and `rep movsb`.
 *
 * The functions carry target attributes, so the library needs no special compiler flags; the caller
 * asks tb__x86_has() first. Larger unrollings and software prefetch (1 KiB, 4 KiB, whole pages
 * ahead) were measured and were equal up to 8 MiB and up to 30 % slower from 64 MiB on, because
 * they get in the way of the hardware's own prefetching. Several runs of pages at once help it: it
 * fetches ahead within a page alone, and follows each run by itself (see copy.c). */
#include "base/copy_x86.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LINE_BYTES ((size_t)64)

int tb__x86_has(enum tb__x86_width width)
{
    switch (width) {
    case TB__X86_AVX512:
        return __builtin_cpu_supports("avx512f") != 0;
    case TB__X86_AVX2:
        return __builtin_cpu_supports("avx2") != 0;
    default:
        return width == TB__X86_SSE2;
    }
}

/* One cache line on its way, in the registers of each width. */
struct line512 {
    __m512i a;
};
struct line256 {
    __m256i a, b;
};
struct line128 {
    __m128i a, b, c, d;
};

__attribute__((target("avx512f"))) static inline struct line512 load512(const char *from)
{
    return (struct line512){_mm512_loadu_si512((const void *)from)};
}

__attribute__((target("avx512f"))) static inline void stream512(char *to, struct line512 line)
{
    _mm512_stream_si512((__m512i *)(void *)to, line.a);
}

__attribute__((target("avx2"))) static inline struct line256 load256(const char *from)
{
    const __m256i *at = (const __m256i *)(const void *)from;
    return (struct line256){_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}

__attribute__((target("avx2"))) static inline void stream256(char *to, struct line256 line)
{
    _mm256_stream_si256((__m256i *)(void *)to, line.a);
    _mm256_stream_si256((__m256i *)(void *)to + 1, line.b);
}

static inline struct line128 load128(const char *from)
{
    const __m128i *at = (const __m128i *)(const void *)from;
    return (struct line128){_mm_loadu_si128(at), _mm_loadu_si128(at + 1), _mm_loadu_si128(at + 2),
                            _mm_loadu_si128(at + 3)};
}

static inline void stream128(char *to, struct line128 line)
{
    _mm_stream_si128((__m128i *)(void *)to, line.a);
    _mm_stream_si128((__m128i *)(void *)to + 1, line.b);
    _mm_stream_si128((__m128i *)(void *)to + 2, line.c);
    _mm_stream_si128((__m128i *)(void *)to + 3, line.d);
}

/* Whole lines to a destination that is aligned to a line: one after the other, or line by line from
 * four equal parts of `part` bytes. The four are loaded before they are stored: a load would wait
 * for a store before it whose address has the same last 12 bits, as those of equal parts have. */
#define STREAM_LOOPS(WIDTH, TARGET)                                                                \
    TARGET static void forward##WIDTH(char *dst, const char *src, size_t bytes)                    \
    {                                                                                              \
        for (size_t i = 0; i < bytes; i += LINE_BYTES) {                                           \
            stream##WIDTH(dst + i, load##WIDTH(src + i));                                          \
        }                                                                                          \
    }                                                                                              \
    TARGET static void fourfold##WIDTH(char *dst, const char *src, size_t part)                    \
    {                                                                                              \
        for (size_t i = 0; i < part; i += LINE_BYTES) {                                            \
            struct line##WIDTH first = load##WIDTH(src + i);                                       \
            struct line##WIDTH second = load##WIDTH(src + part + i);                               \
            struct line##WIDTH third = load##WIDTH(src + 2 * part + i);                            \
            struct line##WIDTH fourth = load##WIDTH(src + 3 * part + i);                           \
            stream##WIDTH(dst + i, first);                                                         \
            stream##WIDTH(dst + part + i, second);                                                 \
            stream##WIDTH(dst + 2 * part + i, third);                                              \
            stream##WIDTH(dst + 3 * part + i, fourth);                                             \
        }                                                                                          \
    }

STREAM_LOOPS(512, __attribute__((target("avx512f"))))
STREAM_LOOPS(256, __attribute__((target("avx2"))))
STREAM_LOOPS(128, )

static const struct {
    void (*forward)(char *dst, const char *src, size_t bytes);
    void (*fourfold)(char *dst, const char *src, size_t part);
} loops[TB__X86_WIDTHS] = {
    [TB__X86_SSE2] = {forward128, fourfold128},
    [TB__X86_AVX2] = {forward256, fourfold256},
    [TB__X86_AVX512] = {forward512, fourfold512},
};

/* Lines, with `interleaved` four parts of a block at a time; what is less than a block goes
 * forward.
 */
static void stream_lines(enum tb__x86_width width, int interleaved, char *dst, const char *src,
                         size_t bytes)
{
    size_t done = 0;
    while (interleaved && bytes - done >= TB__X86_BLOCK_BYTES) {
        loops[width].fourfold(dst + done, src + done, TB__X86_BLOCK_BYTES / 4);
        done += TB__X86_BLOCK_BYTES;
    }
    loops[width].forward(dst + done, src + done, bytes - done);
}

void tb__x86_stream(enum tb__x86_width width, int interleaved, void *dst, const void *src,
                    size_t bytes)
{
    char *to = dst;
    const char *from = src;
    size_t head = (LINE_BYTES - ((uintptr_t)to & (LINE_BYTES - 1))) & (LINE_BYTES - 1);
    if (head > bytes) {
        head = bytes;
    }
    size_t lines = (bytes - head) & ~(LINE_BYTES - 1);
    size_t tail = bytes - head - lines;
    memcpy(to, from, head);
    stream_lines(width, interleaved, to + head, from + head, lines);
    memcpy(to + head + lines, from + head + lines, tail);
    /* Non-temporal stores are not ordered with later stores: without this a generation word could
     * be seen before the payload that it announces. */
    _mm_sfence();
}

void tb__x86_rep(void *dst, const void *src, size_t bytes)
{
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(bytes) : : "memory");
}

static int is_amd(void)
{
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == signature_AMD_ebx &&
           ecx == signature_AMD_ecx && edx == signature_AMD_edx;
}

int tb__x86_rep_is_fast(void)
{
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        return 0;
    }
    int enhanced = (ebx >> 9 & 1) != 0;
    int fast_short = (edx >> 4 & 1) != 0;
    if (!enhanced || !fast_short || !__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
        return 0;
    }
    unsigned family = (eax >> 8 & 15) + (eax >> 20 & 255);
    /* AMD's families before 1Ah (Zen 5) fall to a tenth of the speed when source and destination
     * have unlucky distances modulo 4096, although they announce both features. */
    return !is_amd() || family >= 0x1a;
}

size_t tb__x86_cache_bytes(void)
{
    unsigned eax, ebx, ecx, edx;
    unsigned leaf = is_amd() ? 0x8000001d : 4;
    size_t largest = 0;
    /* One sub-leaf per cache until the type is 0; the bound is against a hypervisor that never says
     * 0. */
    for (unsigned i = 0; i < 16 && __get_cpuid_count(leaf, i, &eax, &ebx, &ecx, &edx); i++) {
        if ((eax & 31) == 0) {
            break;
        }
        size_t ways = (ebx >> 22) + 1;
        size_t partitions = (ebx >> 12 & 1023) + 1;
        size_t line = (ebx & 4095) + 1;
        size_t bytes = ways * partitions * line * ((size_t)ecx + 1);
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

#else
/* A translation unit needs a declaration. */
typedef int tb__x86_not_here;
#endif
