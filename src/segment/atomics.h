/* Atomics in shared memory: C11 atomics inside one-member structs, touched only through helpers
 * whose names state the order. A helper's pair is named where it is called. */
#ifndef TB_SEGMENT_ATOMICS_H
#define TB_SEGMENT_ATOMICS_H

#include <stdatomic.h>
#include <stdint.h>

struct tb__a32 {
    _Atomic uint32_t value;
};
struct tb__a64 {
    _Atomic uint64_t value;
};
_Static_assert(sizeof(struct tb__a32) == 4 && _Alignof(struct tb__a32) == 4, "a32 is one word");
_Static_assert(sizeof(struct tb__a64) == 8 && _Alignof(struct tb__a64) == 8, "a64 is one word");

#define TB__ATOMIC_HELPERS(T, U)                                                                   \
    static inline U tb__##T##_load_relaxed(const struct tb__##T *word)                             \
    {                                                                                              \
        return atomic_load_explicit(&word->value, memory_order_relaxed);                           \
    }                                                                                              \
    static inline U tb__##T##_load_acquire(const struct tb__##T *word)                             \
    {                                                                                              \
        return atomic_load_explicit(&word->value, memory_order_acquire);                           \
    }                                                                                              \
    static inline U tb__##T##_load_seq(const struct tb__##T *word)                                 \
    {                                                                                              \
        return atomic_load_explicit(&word->value, memory_order_seq_cst);                           \
    }                                                                                              \
    static inline void tb__##T##_store_relaxed(struct tb__##T *word, U value)                      \
    {                                                                                              \
        atomic_store_explicit(&word->value, value, memory_order_relaxed);                          \
    }                                                                                              \
    static inline void tb__##T##_store_release(struct tb__##T *word, U value)                      \
    {                                                                                              \
        atomic_store_explicit(&word->value, value, memory_order_release);                          \
    }                                                                                              \
    static inline void tb__##T##_store_seq(struct tb__##T *word, U value)                          \
    {                                                                                              \
        atomic_store_explicit(&word->value, value, memory_order_seq_cst);                          \
    }                                                                                              \
    static inline U tb__##T##_exchange(struct tb__##T *word, U value)                              \
    {                                                                                              \
        return atomic_exchange_explicit(&word->value, value, memory_order_seq_cst);                \
    }                                                                                              \
    static inline U tb__##T##_add(struct tb__##T *word, U value)                                   \
    {                                                                                              \
        return atomic_fetch_add_explicit(&word->value, value, memory_order_seq_cst);               \
    }                                                                                              \
    static inline U tb__##T##_add_relaxed(struct tb__##T *word, U value)                           \
    {                                                                                              \
        return atomic_fetch_add_explicit(&word->value, value, memory_order_relaxed);               \
    }                                                                                              \
    static inline int tb__##T##_cas(struct tb__##T *word, U *expected, U value)                    \
    {                                                                                              \
        return atomic_compare_exchange_strong_explicit(                                            \
            &word->value, expected, value, memory_order_seq_cst, memory_order_seq_cst);            \
    }

TB__ATOMIC_HELPERS(a32, uint32_t)
TB__ATOMIC_HELPERS(a64, uint64_t)

static inline void tb__fence_full(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

static inline void tb__fence_acquire(void)
{
    atomic_thread_fence(memory_order_acquire);
}

/* Orders non-temporal payload stores, which a release store does not. */
static inline void tb__fence_stores(void)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Ask for a line in writable state ahead of a store. A hint: a no-op where it does not exist. */
static inline void tb__prefetch_write(const void *address)
{
#if defined(__x86_64__)
    __asm__ __volatile__("prefetchw %0" : : "m"(*(const char *)address));
#else
    __builtin_prefetch(address, 1);
#endif
}

static inline void tb__pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif
