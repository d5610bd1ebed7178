/* Strided copies between all kinds of memory, compared with the CPU's copy element by element. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "base/copy.h"
#include "cuda/copy_tensor.h"
#include "cuda/copy_walk.h"
#include "cuda/device_memory.h"
#include "cuda/order.h"
#include "cuda/transit.h"
#include "tests/cuda/kit.h"
#include "tests/cuda/streams.h"

#define MIB ((uint64_t)1 << 20)

/* ------------------------------------------------------------------ walks */

static tb_tensor tensor_of(tb_dtype dtype, int32_t ndim, const int64_t *shape,
                           const int64_t *strides)
{
    tb_tensor tensor = {.dtype = dtype, .ndim = ndim, .strides = strides};
    memcpy(tensor.shape, shape, (size_t)ndim * sizeof *shape);
    return tensor;
}

static void walks_merge_what_both_sides_allow(void)
{
    static const int64_t shape[] = {3, 4, 5}, padded[] = {40, 8, 1}, gaps[] = {20, 5, 1},
                         reversed[] = {20, -5, 1}, repeated[] = {0, 5, 1}, elements[] = {1, 3, 12},
                         one[] = {1, 4, 1}, odd[] = {99, 1, 77}, loose[] = {60, 13, 2},
                         tall[] = {50, 8, 1}, windows[] = {3, 3, 1}, sliding[] = {16, 8, 1};
    static const struct {
        const int64_t *shape, *dst, *src;
        int count;
        uint64_t block;
        int planes;
        uint64_t calls;
    } cases[] = {
        {shape, NULL, NULL, 0, 240, 0, 1},
        {shape, gaps, NULL, 0, 240, 0, 1},    /* the same as packed */
        {shape, NULL, padded, 2, 20, 2, 1},   /* slices of rows */
        {shape, NULL, tall, 2, 20, 1, 3},     /* slices are no whole number of rows apart */
        {shape, NULL, windows, 2, 20, 0, 12}, /* rows overlap */
        {shape, NULL, sliding, 2, 20, 1, 3},  /* slices overlap */
        {shape, NULL, reversed, 2, 20, 0, 12},
        {shape, NULL, repeated, 1, 80, 0, 3},
        {shape, NULL, elements, 3, 4, 1, 12},
        {shape, NULL, loose, 3, 4, 1, 12},
        {one, NULL, odd, 0, 16, 0, 1}, /* dimensions of one have no strides */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tb_tensor dst = tensor_of(TB_F32, 3, cases[i].shape, cases[i].dst);
        tb_tensor src = tensor_of(TB_F32, 3, cases[i].shape, cases[i].src);
        struct tb__walk walk;
        tb__walk_build(&dst, &src, &walk);
        int planes = tb__walk_planes(&walk, 1 << 20);
        if (walk.count != cases[i].count || walk.block_bytes != cases[i].block ||
            planes != cases[i].planes || tb__walk_calls(&walk, planes) != cases[i].calls) {
            FAIL("case %zu: %d loops, %llu bytes, %d planes, %llu calls", i, walk.count,
                 (unsigned long long)walk.block_bytes, planes,
                 (unsigned long long)tb__walk_calls(&walk, planes));
        }
        CHECK_EQ(tb__walk_planes(&walk, 7), 0); /* the pitch has a limit */
    }
    tb_tensor empty = tensor_of(TB_F32, 2, (const int64_t[]){0, 5}, NULL);
    struct tb__walk walk;
    tb__walk_build(&empty, &empty, &walk);
    CHECK(walk.count == 0 && walk.block_bytes == 0);
}

static void what_a_tensor_reaches(void)
{
    static const int64_t shape[] = {3, 4}, strides[] = {-10, 2}, huge[] = {INT64_MAX / 4, 1},
                         low[] = {INT64_MIN / 2, 1}, wraps[] = {INT64_MIN, 1};
    int64_t first = 0;
    uint64_t bytes = 0;
    tb_tensor tensor = tensor_of(TB_U16, 2, shape, strides);
    CHECK(tb__tensor_reach(&tensor, &first, &bytes));
    CHECK_EQ(first, -40);
    CHECK_EQ(bytes, 40 + 12 + 2);
    tensor.strides = NULL;
    CHECK(tb__tensor_reach(&tensor, &first, &bytes) && first == 0 && bytes == 24);
    tensor.strides = huge;
    CHECK(!tb__tensor_reach(&tensor, &first, &bytes));
    tensor.strides = low;
    CHECK(!tb__tensor_reach(&tensor, &first, &bytes));
    tensor.strides = wraps; /* times two bytes it is 0 */
    CHECK(!tb__tensor_reach(&tensor, &first, &bytes));
    tensor = tensor_of(TB_U16, 2, (const int64_t[]){3, 0}, NULL);
    CHECK(!tb__tensor_reach(&tensor, &first, &bytes));
}

/* ------------------------------------------------------------------ tensors in memories */

/* A tensor with room around it, in pageable (-2), page-locked (-1) or a GPU's memory, and its bytes
 * as the CPU sees them. */
struct placed {
    int where;
    uint64_t bytes;
    int64_t first;
    int64_t strides[TB_MAX_NDIM];
    char *host; /* of a GPU: what is there is copied to it */
    struct tb__host_registration registration;
    struct tb__device_memory device;
    tb_tensor tensor;
    tb_tensor seen; /* the same tensor in host memory */
};

static void placed_make(struct placed *p, int where, const tb_tensor *form)
{
    *p = (struct placed){.where = where};
    memcpy(p->strides, form->strides, sizeof p->strides);
    CHECK(tb__tensor_reach(form, &p->first, &p->bytes));
    p->host = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p->host != MAP_FAILED);
    p->seen = p->tensor = *form;
    p->seen.strides = p->tensor.strides = p->strides;
    p->seen.data = p->host - p->first;
    p->tensor.data = p->seen.data;
    if (where == -1) {
        OK(tb__host_register(gpu_at(0), p->host, p->bytes, 0, &p->registration));
    } else if (where >= 0) {
        OK(tb__device_alloc(gpu_at(where), p->bytes, &p->device));
        p->tensor.data = (void *)(uintptr_t)(p->device.ptr - (uint64_t)p->first);
        p->tensor.device = TB_CUDA(where);
    }
}

static void placed_drop(struct placed *p)
{
    tb__host_unregister(&p->registration);
    if (p->where >= 0) {
        tb__device_free(&p->device);
    }
    munmap(p->host, p->bytes);
}

/* Between the CPU's view and the device. */
static void placed_sync(struct placed *p, int to_device)
{
    if (p->where < 0) {
        return;
    }
    struct tb__copy_end device = {.ptr = p->device.ptr, .gpu = gpu_at(p->where)};
    struct tb__copy_end host = {.ptr = (uint64_t)(uintptr_t)p->host};
    struct tb__copy job = {
        .dst = to_device ? device : host, .src = to_device ? host : device, .bytes = p->bytes};
    OK(copy_and_wait(&job, NULL));
}

/* ------------------------------------------------------------------ random tensors */

static unsigned seed;

static unsigned next(unsigned below)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

/* A random layout of a shape: dimensions in any order, with gaps; sources may also be reversed or
 * repeat a dimension. */
static void random_strides(const tb_tensor *form, int64_t strides[TB_MAX_NDIM], int is_source)
{
    int order[TB_MAX_NDIM] = {0};
    for (int i = 0; i < form->ndim; i++) {
        order[i] = i;
    }
    if (next(2)) {
        for (int i = form->ndim - 1; i > 0; i--) {
            int other = (int)next((unsigned)i + 1), kept = order[i];
            order[i] = order[other];
            order[other] = kept;
        }
    }
    int64_t step = next(4) == 0 ? 2 : 1;
    for (int i = form->ndim - 1; i >= 0; i--) {
        strides[order[i]] = step;
        step *= form->shape[order[i]];
        step += next(3) == 0 ? (int64_t)next(9) : 0;
    }
    for (int i = 0; is_source && i < form->ndim; i++) {
        unsigned kind = next(12);
        strides[i] = kind == 0 ? 0 : kind == 1 ? -strides[i] : strides[i];
    }
}

static unsigned compared, refused;

static void compare_with_cpu(int src_at, int dst_at, int packed_dst)
{
    static const tb_dtype dtypes[] = {TB_U8, TB_BF16, TB_F32, TB_C64, TB_C128};
    tb_tensor form = {.dtype = dtypes[next(5)], .ndim = (int32_t)next(4) + 1};
    int64_t src_strides[TB_MAX_NDIM] = {0}, dst_strides[TB_MAX_NDIM] = {0};
    for (int i = 0; i < form.ndim; i++) {
        form.shape[i] = (int64_t)next(form.ndim == 1 ? 5000 : form.ndim == 4 ? 15 : 30) + 1;
    }
    random_strides(&form, src_strides, 1);
    random_strides(&form, dst_strides, 0);
    if (packed_dst) {
        int64_t step = 1;
        for (int i = form.ndim - 1; i >= 0; i--) {
            dst_strides[i] = step;
            step *= form.shape[i];
        }
    }
    struct placed src, dst;
    form.strides = src_strides;
    placed_make(&src, src_at, &form);
    form.strides = dst_strides;
    placed_make(&dst, dst_at, &form);
    kit_pattern(src.host, src.bytes, seed);
    memset(dst.host, 0x77, dst.bytes);
    placed_sync(&src, 1);
    placed_sync(&dst, 1);
    struct tb__copy_result result = {0};
    int gpu = dst_at >= 0 ? dst_at : src_at >= 0 ? src_at : 0;
    tb_status status = tb__gpu_copy_tensor(&dst.tensor, &src.tensor, NULL, &result);
    compared++;
    if (status == TB_E_UNSUPPORTED) {
        const char *why = tb_last_error_text();
        CHECK(strstr(why, "copies of") != NULL ||
              (!packed_dst && strstr(why, "cannot reach it") != NULL));
        refused++;
    } else {
        CHECK_EQ(status, TB_OK);
        OK(tb__stream_synchronize(NULL, gpu_at(gpu)));
        /* What is expected: the destination's gaps as they were. */
        char *expected = malloc(dst.bytes);
        memset(expected, 0x77, dst.bytes);
        tb_tensor flat = dst.seen, wanted = dst.seen;
        size_t bytes = 0;
        OK(tb_tensor_bytes(&flat, &bytes));
        flat.strides = NULL;
        flat.data = malloc(bytes);
        tb__copy_strided(flat.data, &src.seen);
        wanted.data = expected - dst.first;
        OK(tb__gpu_copy_tensor(&wanted, &flat, NULL, NULL)); /* on the CPU */
        placed_sync(&dst, 0);
        if (memcmp(dst.host, expected, dst.bytes) != 0) {
            char text[128];
            FAIL("%s from %d to %d, path %s, seed %u", tb_tensor_describe(&form, text, sizeof text),
                 src_at, dst_at, tb__path_name(result.path), seed);
        }
        free(flat.data);
        free(expected);
    }
    placed_drop(&src);
    placed_drop(&dst);
}

static void strided_copies_are_those_of_the_cpu(void)
{
    int count = 0;
    OK(tb__gpu_count(&count));
    for (seed = 1; seed < 3000000000u; seed += 150000000u) {
        unsigned kept = seed;
        for (int src = -2; src < count; src++) {
            for (int dst = -2; dst < count; dst++) {
                compare_with_cpu(src, dst, 0);
                compare_with_cpu(src, dst, 1);
            }
        }
        seed = kept;
    }
    CHECK_EQ(compared, 20 * 2 * (unsigned)((count + 2) * (count + 2)));
    printf("%u of %u refused\n", refused, compared);
    CHECK(refused < compared / 5);
    tb__copy_trim();
}

/* ------------------------------------------------------------------ large ones, in pieces */

/* Rows of more than a chunk, and many rows: what is cut is put together again. */
static void pieces_are_cut_along_every_dimension(void)
{
    static const int64_t shapes[][3] = {
        {3, 2, 700000}, {2, 1500, 1000}, {1, 1, 3000000}, {5000, 40, 20}, {1, 9, 300000}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int where = -2; where < 1; where++) {
            tb_tensor form = tensor_of(TB_F32, 3, shapes[i], NULL);
            const int64_t strides[TB_MAX_NDIM] = {shapes[i][1] * (shapes[i][2] + 1) * 2,
                                                  (shapes[i][2] + 1) * 2, 2};
            const int64_t packed[TB_MAX_NDIM] = {shapes[i][1] * shapes[i][2], shapes[i][2], 1};
            struct placed src, dst;
            struct tb__copy_result result;
            form.strides = strides;
            placed_make(&src, where, &form);
            form.strides = packed;
            placed_make(&dst, 1, &form);
            kit_pattern(src.host, src.bytes, 3);
            placed_sync(&src, 1);
            OK(tb__gpu_copy_tensor(&dst.tensor, &src.tensor, NULL, &result));
            CHECK_EQ(result.path, TB__PATH_STAGED);
            CHECK_EQ(result.src_busy, where >= 0);
            OK(tb__stream_synchronize(NULL, gpu_at(1)));
            placed_sync(&dst, 0);
            char *expected = malloc(dst.bytes);
            tb__copy_strided(expected, &src.seen);
            CHECK(memcmp(expected, dst.host, dst.bytes) == 0);
            free(expected);
            placed_drop(&src);
            placed_drop(&dst);
        }
    }
    tb__copy_trim();
}

/* Rows of a locked image go by one pitched call, without the CPU. */
static void pitched_rows_are_one_call(void)
{
    const int64_t shape[] = {100, 640, 3}, strides[TB_MAX_NDIM] = {2048, 3, 1},
                  packed[TB_MAX_NDIM] = {1920, 3, 1};
    tb_tensor form = tensor_of(TB_U8, 3, shape, strides);
    struct placed src, dst;
    struct tb__copy_result result;
    placed_make(&src, -1, &form);
    form.strides = packed;
    placed_make(&dst, 0, &form);
    unsigned long before = kit_fake() != NULL ? kit_fake()->calls("cuMemcpy2DAsync_v2") : 0;
    OK(tb__gpu_copy_tensor(&dst.tensor, &src.tensor, NULL, &result));
    CHECK_EQ(result.path, TB__PATH_DMA);
    CHECK(result.src_busy && result.dst_busy);
    if (kit_fake() != NULL) {
        CHECK_EQ(kit_fake()->calls("cuMemcpy2DAsync_v2"), before + 1);
    }
    OK(tb__stream_synchronize(NULL, gpu_at(0)));
    placed_drop(&src);
    placed_drop(&dst);
}

/* Also into rows: the peer fetches them itself, from memory of ours that it was not let into. */
static void rows_between_peers_are_one_call(void)
{
    const int64_t shape[] = {3, 100, 700}, from[TB_MAX_NDIM] = {200000, 1000, 1},
                  to[TB_MAX_NDIM] = {99000, 900, 1};
    tb_tensor form = tensor_of(TB_U8, 3, shape, from);
    struct placed src, dst;
    struct tb__copy_result result;
    int count = 0, can = 0;
    OK(tb__gpu_count(&count));
    if (count >= 2) {
        OK(tb__gpu_peer(gpu_at(0), gpu_at(1), &can));
    }
    if (!can) {
        kit_skip("no two devices that reach each other");
    }
    placed_make(&src, 0, &form);
    form.strides = to;
    placed_make(&dst, 1, &form);
    kit_pattern(src.host, src.bytes, 5);
    placed_sync(&src, 1);
    OK(tb__gpu_copy_tensor(&dst.tensor, &src.tensor, NULL, &result));
    CHECK_EQ(result.path, TB__PATH_PEER);
    CHECK_EQ(tb_last_error_text()[0], '\0');
    OK(tb__stream_synchronize(NULL, gpu_at(1)));
    placed_sync(&dst, 0);
    for (int64_t z = 0; z < shape[0]; z++) {
        for (int64_t y = 0; y < shape[1]; y++) {
            CHECK(memcmp(dst.host + z * to[0] + y * to[1], src.host + z * from[0] + y * from[1],
                         (size_t)shape[2]) == 0);
        }
    }
    if (kit_fake() != NULL) {
        CHECK_EQ(kit_fake()->calls("cuMemcpy3DAsync_v2"), 2); /* the first was refused */
    }
    placed_drop(&src);
    placed_drop(&dst);
}

/* The CPU packs page-locked memory only when what the stream had for it is done. */
static void *open_gate(void *word)
{
    struct timespec time = {.tv_nsec = 30000000};
    nanosleep(&time, NULL);
    __atomic_store_n((uint64_t *)word, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void packing_waits_for_the_stream(void)
{
    const int64_t shape[] = {500, 20}, strides[TB_MAX_NDIM] = {1, 500},
                  packed[TB_MAX_NDIM] = {20, 1};
    tb_tensor form = tensor_of(TB_F32, 2, shape, strides);
    struct placed src, dst, before;
    struct tb__host_registration gate = {0};
    struct tb__copy_result result;
    tb__stream stream = NULL;
    pthread_t thread;
    void *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    OK(tb__host_register(gpu_at(0), word, 4096, 0, &gate));
    OK(tb__stream_create(gpu_at(0), &stream));
    placed_make(&src, -1, &form);
    placed_make(&before, 0, &form);
    form.strides = packed;
    placed_make(&dst, 0, &form);
    memset(src.host, 1, src.bytes);
    kit_pattern(before.host, before.bytes, 8);
    placed_sync(&before, 1);
    OK(stream_wait64(stream, gpu_at(0), gate.device_ptr, 1));
    const struct tb__copy first = {.dst = {.ptr = (uint64_t)(uintptr_t)src.host},
                                   .src = {.ptr = before.device.ptr, .gpu = gpu_at(0)},
                                   .bytes = src.bytes};
    OK(tb__gpu_copy(&first, stream, NULL));
    CHECK_EQ(pthread_create(&thread, NULL, open_gate, word), 0);
    OK(tb__gpu_copy_tensor(&dst.tensor, &src.tensor, stream, &result));
    CHECK_EQ(result.path, TB__PATH_STAGED);
    OK(tb__stream_synchronize(stream, gpu_at(0)));
    pthread_join(thread, NULL);
    placed_sync(&dst, 0);
    char *expected = malloc(dst.bytes);
    tb__copy_strided(expected, &before.seen);
    CHECK(memcmp(expected, dst.host, dst.bytes) == 0);
    free(expected);
    placed_drop(&src);
    placed_drop(&dst);
    placed_drop(&before);
    tb__stream_destroy(gpu_at(0), stream);
    tb__host_unregister(&gate);
    munmap(word, 4096);
    tb__copy_trim();
}

/* ------------------------------------------------------------------ what is refused */

static void mistakes_are_named(void)
{
    static char bytes[64];
    const int64_t shape[] = {2, 3}, other[] = {3, 2};
    tb_tensor a = tensor_of(TB_U8, 2, shape, NULL), b = tensor_of(TB_U8, 2, other, NULL);
    tb_tensor c = tensor_of(TB_I8, 2, shape, NULL), d = a;
    a.data = b.data = c.data = bytes;
    FAILS(tb__gpu_copy_tensor(&a, &b, NULL, NULL), TB_E_MISMATCH,
          "copying uint8[3, 2] into uint8[2, 3]");
    FAILS(tb__gpu_copy_tensor(&a, &c, NULL, NULL), TB_E_MISMATCH, "int8[2, 3] into uint8[2, 3]");
    FAILS(tb__gpu_copy_tensor(&a, &d, NULL, NULL), TB_E_INVALID, "uint8[2, 3] from NULL");
    FAILS(tb__gpu_copy_tensor(&d, &a, NULL, NULL), TB_E_INVALID, "uint8[2, 3] to NULL");
    d.data = bytes;
    d.device = TB_CUDA(7);
    FAILS(tb__gpu_copy_tensor(&d, &a, NULL, NULL), TB_E_NOT_FOUND, "there is no cuda:7");
    d.device = 12345;
    FAILS(tb__gpu_copy_tensor(&d, &a, NULL, NULL), TB_E_INVALID, "no GPU");
    d = tensor_of(TB_U8, 2, (const int64_t[]){0, 3}, NULL);
    OK(tb__gpu_copy_tensor(&d, &d, NULL, NULL)); /* empty */
}

static void too_scattered_to_copy(void)
{
    const int64_t shape[] = {70000, 3, 2}, strides[TB_MAX_NDIM] = {7, -2, 1};
    tb_tensor form = tensor_of(TB_U8, 3, shape, strides);
    struct placed src, dst;
    placed_make(&src, 0, &form);
    placed_make(&dst, -1, &form);
    FAILS(tb__gpu_copy_tensor(&dst.tensor, &src.tensor, NULL, NULL), TB_E_UNSUPPORTED,
          "210000 copies of 2 bytes: make it contiguous first");
    placed_drop(&src);
    placed_drop(&dst);
}

/* ------------------------------------------------------------------ failures */

struct attempt {
    struct placed src, dst;
    int gpu;
};

static tb_status copy_and_trim(void *argument)
{
    const struct attempt *attempt = argument;
    tb_error kept;
    tb_status status = tb__gpu_copy_tensor(&attempt->dst.tensor, &attempt->src.tensor, NULL, NULL);
    tb_last_error(&kept);
    if (tb__stream_synchronize(NULL, gpu_at(attempt->gpu)) != TB_OK) {
        (void)!tb__stream_synchronize(NULL, gpu_at(attempt->gpu));
    }
    tb__copy_trim();
    if (status != TB_OK) {
        tb__error_set_cuda(kept.status, kept.cuda_code, kept.where, "%s", kept.text);
    }
    return status;
}

static void every_failing_call_leaves_nothing(void)
{
    static const int pairs[][2] = {{-2, 0}, {-1, 0}, {0, -1}, {0, 1}, {0, 2}};
    const int64_t shape[] = {3, 100, 4000}, strides[TB_MAX_NDIM] = {500000, 5000, 1},
                  packed[TB_MAX_NDIM] = {400000, 4000, 1};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        struct attempt attempt = {.gpu = pairs[i][1] >= 0 ? pairs[i][1] : 0};
        tb_tensor form = tensor_of(TB_F32, 3, shape, strides);
        placed_make(&attempt.src, pairs[i][0], &form);
        form.strides = packed;
        placed_make(&attempt.dst, pairs[i][1], &form);
        if (pairs[i][0] >= 0 && pairs[i][1] >= 0) {
            (void)!tb__device_allow(&attempt.src.device, gpu_at(pairs[i][1]));
        }
        kit_fake()->own();
        CHECK(FAIL_EACH(copy_and_trim, &attempt, TB__CUDA_UNKNOWN) >= 5);
        kit_fake()->own();
        placed_drop(&attempt.src);
        placed_drop(&attempt.dst);
    }
}

int main(int argc, char **argv)
{
    static const struct kit_test tests[] = {
        ANY(walks_merge_what_both_sides_allow, NULL),
        ANY(what_a_tensor_reaches, NULL),
        ANY(strided_copies_are_those_of_the_cpu, "devices=3;peer=0-2"),
        FAKE(pieces_are_cut_along_every_dimension, "devices=2"),
        ANY(pitched_rows_are_one_call, NULL),
        ANY(rows_between_peers_are_one_call, "devices=2;peer=0-1"),
        ANY(packing_waits_for_the_stream, NULL),
        ANY(mistakes_are_named, NULL),
        ANY(too_scattered_to_copy, NULL),
        FAKE(every_failing_call_leaves_nothing, "devices=3;peer=0-2"),
    };
    return kit_main(argc, argv, tests, KIT_COUNT(tests));
}
