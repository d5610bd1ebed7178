/* Store kinds of x86-64 processors. Elsewhere nothing is declared and copy.c uses memcpy. */
#ifndef TB_BASE_COPY_X86_H
#define TB_BASE_COPY_X86_H

#include <stddef.h>

/* What an interleaved copy has four parts of. */
#define TB__X86_BLOCK_BYTES ((size_t)1 << 20)

#if defined(__x86_64__)

enum tb__x86_width {
    TB__X86_SSE2 = 0,
    TB__X86_AVX2 = 1,
    TB__X86_AVX512 = 2,
    TB__X86_WIDTHS = 3,
};

/* Whether the processor and the kernel support stores of that width. SSE2 always is. */
int tb__x86_has(enum tb__x86_width width);

/* Copy with non-temporal stores, ended by sfence. Any alignment, any size. `interleaved`: each
 * whole block in four parts at once, a line of each in turn. */
void tb__x86_stream(enum tb__x86_width width, int interleaved, void *dst, const void *src,
                    size_t bytes);

/* Copy with `rep movsb`. Any alignment, any size. */
void tb__x86_rep(void *dst, const void *src, size_t bytes);

/* Whether `rep movsb` is at least as good as vector stores on this processor. */
int tb__x86_rep_is_fast(void);

/* Size of the largest cache by cpuid, 0 if it does not say. */
size_t tb__x86_cache_bytes(void);

#endif
#endif
