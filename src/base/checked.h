/* Sizes are added, multiplied and rounded with overflow checks. Functions return 0 on overflow. */
#ifndef TB_BASE_CHECKED_H
#define TB_BASE_CHECKED_H

#include <stdint.h>

static inline int tb__add(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline int tb__mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Round up to a power of two. */
static inline int tb__round_up(uint64_t value, uint64_t unit, uint64_t *out)
{
    uint64_t sum;
    if (!tb__add(value, unit - 1, &sum)) {
        return 0;
    }
    *out = sum & ~(unit - 1);
    return 1;
}

/* The range [offset, offset + length) lies within `total` bytes. */
static inline int tb__range_fits(uint64_t offset, uint64_t length, uint64_t total)
{
    return offset <= total && length <= total - offset;
}

#endif
