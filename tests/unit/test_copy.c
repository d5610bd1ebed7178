/* Copies: every store kind and width byte for byte at every alignment, the choice among them, and
 * packing of strided tensors against a naive reference. */
#include "base/copy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/copy_x86.h"

#define GUARD_BYTES 64
#define GUARD 0xa5

/* A fixed sequence, so that a failure can be repeated. */
static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint64_t random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void random_fill(uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)(random_next() >> 24);
    }
}

struct buffers {
    uint8_t *src;
    uint8_t *dst;
};

#define BUFFER_BYTES ((size_t)5 << 20)

static int buffers_setup(void **state)
{
    static struct buffers buffers;
    buffers.src = aligned_alloc(4096, BUFFER_BYTES);
    buffers.dst = aligned_alloc(4096, BUFFER_BYTES);
    *state = &buffers;
    if (buffers.src == NULL || buffers.dst == NULL) {
        return -1;
    }
    random_fill(buffers.src, BUFFER_BYTES);
    return 0;
}

static int buffers_teardown(void **state)
{
    struct buffers *buffers = *state;
    free(buffers->src);
    free(buffers->dst);
    return 0;
}

typedef void copy_function(int variant, void *dst, const void *src, size_t bytes);

static void by_kind(int variant, void *dst, const void *src, size_t bytes)
{
    tb__copy_with((enum tb__copy_kind)variant, dst, src, bytes);
}

/* One copy between two offsets; bytes before and after the destination must stay. */
static void check_copy(const struct buffers *b, copy_function *copy, int variant, size_t to,
                       size_t from, size_t bytes)
{
    uint8_t *dst = b->dst + GUARD_BYTES + to;
    memset(dst - GUARD_BYTES, GUARD, bytes + 2 * GUARD_BYTES);
    copy(variant, dst, b->src + from, bytes);
    assert_memory_equal(dst, b->src + from, bytes);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        assert_int_equal(dst[-1 - (ptrdiff_t)i], GUARD);
        assert_int_equal(dst[bytes + i], GUARD);
    }
}

static void check_alignments(const struct buffers *b, copy_function *copy, int variant)
{
    static const size_t sizes[] = {1,   15,  16,  17,   31,   32,   63,   64,    65,    127,
                                   128, 129, 255, 1000, 4095, 4096, 4097, 65536, 65537, 300001};
    static const size_t offsets[] = {0, 1, 7, 8, 15, 16, 31, 32, 48, 63, 64, 100, 4095};
    size_t offset_count = sizeof offsets / sizeof offsets[0];
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t i = 0; i < offset_count; i++) {
            check_copy(b, copy, variant, offsets[i], offsets[(i * 5 + s) % offset_count], sizes[s]);
            check_copy(b, copy, variant, 0, offsets[i], sizes[s]);
        }
    }
}

static void every_kind_copies_every_alignment(void **state)
{
    for (int kind = 0; kind < TB__COPY_KINDS; kind++) {
        check_alignments(*state, by_kind, kind);
    }
}

static void kinds_accept_nothing(void **state)
{
    (void)state;
    for (int kind = 0; kind < TB__COPY_KINDS; kind++) {
        tb__copy_with((enum tb__copy_kind)kind, NULL, NULL, 0);
    }
    tb__copy_store(NULL, NULL, 0, 0);
}

#if defined(__x86_64__)
static void by_width(int variant, void *dst, const void *src, size_t bytes)
{
    tb__x86_stream((enum tb__x86_width)variant, 0, dst, src, bytes);
}

static void by_width_interleaved(int variant, void *dst, const void *src, size_t bytes)
{
    tb__x86_stream((enum tb__x86_width)variant, 1, dst, src, bytes);
}

/* Around one and three blocks, whose parts must not be mixed up. */
static void every_width_interleaves_blocks(void **state)
{
    static const size_t offsets[][2] = {{0, 0}, {0, 16}, {64, 1}, {1, 0}, {63, 63}, {48, 4095}};
    const size_t block = TB__X86_BLOCK_BYTES;
    const size_t sizes[] = {block - 1,  block,          block + 1,
                            block + 64, 3 * block + 77, 4 * block - 65};
    for (int width = 0; width < TB__X86_WIDTHS; width++) {
        for (size_t i = 0; tb__x86_has((enum tb__x86_width)width) && i < 36; i++) {
            check_copy(*state, by_width_interleaved, width, offsets[i % 6][0], offsets[i % 6][1],
                       sizes[i / 6]);
        }
    }
}

static void every_width_streams_every_alignment(void **state)
{
    assert_true(tb__x86_has(TB__X86_SSE2));
    for (int width = 0; width < TB__X86_WIDTHS; width++) {
        if (tb__x86_has((enum tb__x86_width)width)) {
            check_alignments(*state, by_width, width);
        }
    }
    assert_false(tb__x86_has(TB__X86_WIDTHS));
}
#endif

static void store_copies_at_every_choice(void **state)
{
    const struct buffers *b = *state;
    size_t cache = tb__copy_cache_bytes();
    size_t rings[] = {0, 4096, cache / 2, cache, cache * 2, SIZE_MAX};
    for (size_t r = 0; r < sizeof rings / sizeof rings[0]; r++) {
        memset(b->dst, GUARD, BUFFER_BYTES);
        tb__copy_store(b->dst + 1, b->src + 3, 500000, rings[r]);
        assert_memory_equal(b->dst + 1, b->src + 3, 500000);
        assert_int_equal(b->dst[0], GUARD);
        assert_int_equal(b->dst[500001], GUARD);
    }
}

static void choice_follows_size_and_ring(void **state)
{
    (void)state;
    size_t cache = tb__copy_cache_bytes();
    assert_in_range(cache, (size_t)1 << 20, (size_t)64 << 20);
    size_t mib = (size_t)1 << 20;
    /* Small copies never pay for anything. */
    assert_int_equal(tb__copy_choose(4096, SIZE_MAX), TB__COPY_PLAIN);
    /* A ring that fits never goes around the cache. */
    assert_int_not_equal(tb__copy_choose(mib / 4, mib / 2), TB__COPY_STREAM);
    assert_int_not_equal(tb__copy_choose(cache / 4, cache), TB__COPY_STREAM);
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    static const size_t sizes[] = {1, 2, 6, 16, 64, 256, 1024};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_int_equal(tb__copy_choose(sizes[i] * mib, SIZE_MAX), TB__COPY_INTERLEAVED);
        assert_int_equal(tb__copy_choose(sizes[i] * mib, sizes[i] * mib + 2 * cache),
                         TB__COPY_INTERLEAVED);
    }
    assert_int_equal(tb__copy_choose(mib - 1, SIZE_MAX), TB__COPY_STREAM);
    /* A copy larger than the cache is cold whatever the caller says of the ring. */
    assert_int_equal(tb__copy_choose(cache * 2, 0), TB__COPY_INTERLEAVED);
    /* Ring and source together count. */
    assert_int_equal(tb__copy_choose(cache, cache), TB__COPY_INTERLEAVED);
    enum tb__copy_kind hot = tb__x86_rep_is_fast() ? TB__COPY_REP : TB__COPY_PLAIN;
    assert_int_equal(tb__copy_choose(mib / 4, mib / 2), hot);
    /* The choice changes once as the ring grows. */
    int changes = 0;
    enum tb__copy_kind before = tb__copy_choose(mib / 4, 0);
    for (size_t ring = 0; ring < 4 * cache; ring += cache / 16) {
        enum tb__copy_kind now = tb__copy_choose(mib / 4, ring);
        changes += now != before;
        before = now;
    }
    assert_int_equal(changes, 1);
#else
    assert_int_equal(tb__copy_choose(64 * mib, SIZE_MAX), TB__COPY_PLAIN);
#endif
}

static void kinds_have_names(void **state)
{
    (void)state;
    assert_string_equal(tb__copy_kind_name(TB__COPY_PLAIN), "plain");
    assert_string_equal(tb__copy_kind_name(TB__COPY_STREAM), "streaming");
    assert_string_equal(tb__copy_kind_name(TB__COPY_REP), "rep movsb");
    assert_string_equal(tb__copy_kind_name(TB__COPY_INTERLEAVED), "interleaved");
    assert_string_equal(tb__copy_kind_name(TB__COPY_KINDS), "?");
    assert_true(tb__copy_available(TB__COPY_PLAIN));
    assert_false(tb__copy_available(TB__COPY_KINDS));
}

/* Packing */

/* Element by element from a linear index: no merging, no odometer. */
static void pack_naive(uint8_t *dst, const tb_tensor *t, size_t element)
{
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++) {
        count *= t->shape[i];
    }
    for (int64_t n = 0; n < count; n++) {
        int64_t rest = n, at = 0, packed = 1;
        for (int i = t->ndim - 1; i >= 0; i--) {
            int64_t index = rest % t->shape[i];
            rest /= t->shape[i];
            at += index * (t->strides != NULL ? t->strides[i] : packed);
            packed *= t->shape[i];
        }
        memcpy(dst + (size_t)n * element, (const uint8_t *)t->data + at * (int64_t)element,
               element);
    }
}

static void check_pack(const struct buffers *b, const tb_tensor *t)
{
    size_t bytes;
    assert_int_equal(tb_tensor_bytes(t, &bytes), TB_OK);
    assert_true(bytes + 2 * GUARD_BYTES <= BUFFER_BYTES);
    uint8_t *expected = malloc(bytes + 1);
    assert_non_null(expected);
    pack_naive(expected, t, tb_dtype_bytes(t->dtype));
    memset(b->dst, GUARD, bytes + 2 * GUARD_BYTES);
    tb__copy_strided(b->dst + GUARD_BYTES, t);
    assert_memory_equal(b->dst + GUARD_BYTES, expected, bytes);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        assert_int_equal(b->dst[i], GUARD);
        assert_int_equal(b->dst[GUARD_BYTES + bytes + i], GUARD);
    }
    free(expected);
}

/* Strides of a random view: a permutation of a packed array with gaps, then some dimensions
 * reversed or repeated. Moves `data` so that every element lies in the source buffer. */
static void random_view(const struct buffers *b, tb_tensor *t, int64_t strides[TB_MAX_NDIM])
{
    int order[TB_MAX_NDIM];
    for (int i = 0; i < t->ndim; i++) {
        order[i] = i;
    }
    if (random_next() % 3 != 0) {
        for (int i = t->ndim - 1; i > 0; i--) {
            int j = (int)(random_next() % (uint64_t)(i + 1));
            int swap = order[i];
            order[i] = order[j];
            order[j] = swap;
        }
    }
    int64_t step = 1 + (random_next() % 4 == 0), first = 0;
    for (int i = t->ndim - 1; i >= 0; i--) {
        int d = order[i];
        strides[d] = step;
        step *= t->shape[d] > 0 ? t->shape[d] : 1;
        step += random_next() % 4 == 0 ? (int64_t)(random_next() % 3) : 0;
        if (random_next() % 5 == 0) {
            first += (t->shape[d] > 0 ? t->shape[d] - 1 : 0) * strides[d];
            strides[d] = -strides[d];
        } else if (random_next() % 8 == 0) {
            strides[d] = 0;
        }
    }
    size_t element = tb_dtype_bytes(t->dtype);
    assert_true((size_t)step * element <= BUFFER_BYTES);
    t->data = b->src + (size_t)first * element;
    t->strides = strides;
}

static void random_views_are_packed(void **state)
{
    static const tb_dtype dtypes[] = {TB_U8,
                                      TB_I16,
                                      TB_F32,
                                      TB_F64,
                                      TB_C128,
                                      TB_DTYPE(TB_CODE_UINT, 8, 3),
                                      TB_DTYPE(TB_CODE_FLOAT, 32, 3)};
    for (int round = 0; round < 20000; round++) {
        tb_tensor t = {.dtype = dtypes[random_next() % (sizeof dtypes / sizeof dtypes[0])]};
        t.ndim = (int32_t)(random_next() % (TB_MAX_NDIM + 1));
        int64_t limit = t.ndim > 5 ? 3 : t.ndim > 3 ? 5 : 12;
        for (int i = 0; i < t.ndim; i++) {
            t.shape[i] = 1 + (int64_t)(random_next() % (uint64_t)limit);
            if (random_next() % 60 == 0) {
                t.shape[i] = 0;
            }
        }
        int64_t strides[TB_MAX_NDIM] = {0};
        random_view(*state, &t, strides);
        check_pack(*state, &t);
        if (round % 4 == 0) {
            t.strides = NULL;
            t.data = ((const struct buffers *)*state)->src;
            check_pack(*state, &t);
        }
    }
}

static void named_views_are_packed(void **state)
{
    const struct buffers *b = *state;
    static const struct {
        int32_t ndim;
        int64_t shape[3];
        int64_t strides[3];
        int64_t first;
    } views[] = {
        {0, {0}, {0}, 5},                       /* scalar */
        {1, {100}, {-1}, 99},                   /* reversed */
        {1, {100}, {0}, 7},                     /* one element repeated */
        {2, {40, 30}, {1, 40}, 0},              /* transposed */
        {2, {40, 30}, {100, 1}, 0},             /* columns of a wider image */
        {3, {20, 30, 3}, {90, 3, 1}, 0},        /* packed, merges to one block */
        {3, {20, 30, 3}, {200, 3, 1}, 0},       /* crop: rows are blocks */
        {3, {3, 20, 30}, {1, 90, 3}, 0},        /* interleaved to planes */
        {3, {20, 30, 3}, {-90, 3, 1}, 19 * 90}, /* upside down */
        {3, {20, 30, 3}, {90, 3, -1}, 2},       /* colours reversed */
        {3, {20, 1, 3}, {3, INT64_MAX, 1}, 0},  /* a stride that is never used */
        {3, {20, 1, 3}, {3, INT64_MIN, 1}, 0},
        {3, {0, 30, 3}, {90, 3, 1}, 0}, /* empty */
    };
    for (size_t i = 0; i < sizeof views / sizeof views[0]; i++) {
        tb_tensor t = {.dtype = TB_F32, .ndim = views[i].ndim, .strides = views[i].strides};
        memcpy(t.shape, views[i].shape, sizeof views[i].shape);
        t.data = b->src + views[i].first * 4;
        check_pack(b, &t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_copies_every_alignment),
        cmocka_unit_test(kinds_accept_nothing),
#if defined(__x86_64__)
        cmocka_unit_test(every_width_streams_every_alignment),
        cmocka_unit_test(every_width_interleaves_blocks),
#endif
        cmocka_unit_test(store_copies_at_every_choice),
        cmocka_unit_test(choice_follows_size_and_ring),
        cmocka_unit_test(kinds_have_names),
        cmocka_unit_test(random_views_are_packed),
        cmocka_unit_test(named_views_are_packed),
    };
    return cmocka_run_group_tests(tests, buffers_setup, buffers_teardown);
}
