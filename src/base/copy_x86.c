/* Store kinds of x86-64 processors: non-temporal stores of three widths, and `rep movsb`.
 *
 * The functions carry target attributes, so the library needs no special compiler flags; the caller
 * asks tb__x86_has() first. The inner loops are one load and one store per cache line: larger
 * unrollings and software prefetch (1 KiB, 4 KiB, whole pages ahead) were measured and were equal
 * up to 8 MiB and up to 30 % slower from 64 MiB on, because they get in the way of the hardware's
 * own prefetching. */
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

/* The three loops copy whole lines to a destination that is aligned to a line. */

__attribute__((target("avx512f"))) static void stream_avx512(char *dst, const char *src,
                                                             size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE_BYTES) {
        _mm512_stream_si512((__m512i *)(void *)(dst + i),
                            _mm512_loadu_si512((const void *)(src + i)));
    }
}

__attribute__((target("avx2"))) static void stream_avx2(char *dst, const char *src, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE_BYTES) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(src + i));
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(src + i + 32));
        _mm256_stream_si256((__m256i *)(void *)(dst + i), low);
        _mm256_stream_si256((__m256i *)(void *)(dst + i + 32), high);
    }
}

static void stream_sse2(char *dst, const char *src, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE_BYTES) {
        const __m128i *from = (const __m128i *)(const void *)(src + i);
        __m128i *to = (__m128i *)(void *)(dst + i);
        __m128i a = _mm_loadu_si128(from);
        __m128i b = _mm_loadu_si128(from + 1);
        __m128i c = _mm_loadu_si128(from + 2);
        __m128i d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
}

void tb__x86_stream(enum tb__x86_width width, void *dst, const void *src, size_t bytes)
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
    if (width == TB__X86_AVX512) {
        stream_avx512(to + head, from + head, lines);
    } else if (width == TB__X86_AVX2) {
        stream_avx2(to + head, from + head, lines);
    } else {
        stream_sse2(to + head, from + head, lines);
    }
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
