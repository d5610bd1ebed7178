/* P01, P02, P03, P14, P17: what may be registered and written, and what is refused. */
#include "proc/pool_support.h"

#include <stdio.h>
#include <sys/sysinfo.h>

/* An error that names everything it must. */
static void check_error_names(const char *const *parts)
{
    for (; *parts != NULL; parts++) {
        CHECK_HAS(tb_last_error_text(), *parts);
    }
}

static void P01_write_larger_than_the_pool(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool;
    tb_pool_options options = {
        .size = sizeof options, .name = "small", .dtype = TB_U8, .ndim = 1, .shape = {8}};
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    tb_reader *reader = open_reader(bus, "owner/small");
    void *big = calloc(1, 16777216);
    CHECK(big != NULL);
    tb_tensor tensor = {.data = big, .dtype = TB_U8, .ndim = 1, .shape = {16777216}};
    tb_handle handle;
    CHECK_STATUS(tb_pool_write(pool, &tensor, TB_POLL, &handle), TB_E_MISMATCH);
    check_error_names((const char *const[]){"small", "8", "16777216", NULL});
    tb_frame *frame;
    CHECK_STATUS(tb_reader_newest(reader, TB_POLL, &frame), TB_AGAIN);
    CHECK_EQ(stats_of(pool).frames, 0);

    uint8_t eight[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    tensor.data = eight;
    tensor.shape[0] = 8;
    CHECK_OK(tb_pool_write(pool, &tensor, TB_POLL, &handle));
    CHECK_OK(tb_reader_newest(reader, TB_POLL, &frame));
    CHECK(memcmp(tb_frame_tensor(frame)->data, eight, 8) == 0);
    tb_frame_release(frame);
    free(big);
    tb_bus_close(bus);
}

static void P02_write_less_than_the_slot(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 61440000 / 8, 2);
    tb_reader *reader = open_reader(bus, "owner/frames");
    CHECK_OK(write_words(pool, 7, TB_POLL, NULL));
    int64_t *less = calloc(1, 1048576);
    CHECK(less != NULL);
    tb_tensor tensor = {.data = less, .dtype = TB_I64, .ndim = 1, .shape = {1048576 / 8}};
    tb_handle handle;
    CHECK_STATUS(tb_pool_write(pool, &tensor, TB_POLL, &handle), TB_E_MISMATCH);
    check_error_names((const char *const[]){"frames", "7680000", "131072", NULL});
    CHECK_EQ(stats_of(pool).frames, 1);
    tb_frame *frame;
    CHECK_OK(tb_reader_newest(reader, TB_POLL, &frame));
    CHECK_EQ(words_value(frame), 7);
    CHECK_EQ(info_of(frame).sequence, 1);
    tb_frame_release(frame);
    CHECK_STATUS(tb_reader_newest(reader, TB_POLL, &frame), TB_AGAIN);
    free(less);
    tb_bus_close(bus);
}

static void P03_write_another_dtype_or_shape(void)
{
    static const struct {
        tb_dtype dtype;
        int32_t ndim;
        int64_t shape[3];
        const char *names[2]; /* what is there, what came */
    } cases[] = {
        {TB_F32, 2, {4, 6}, {"int32", "float32"}},       {TB_U8, 2, {4, 24}, {"int32", "uint8"}},
        {TB_I32, 2, {6, 4}, {"[4, 6]", "[6, 4]"}},       {TB_I32, 1, {24}, {"[4, 6]", "[24]"}},
        {TB_I32, 3, {1, 4, 6}, {"[4, 6]", "[1, 4, 6]"}}, {TB_I32, 0, {0}, {"[4, 6]", "[]"}},
        {TB_I32, 2, {4, 0}, {"[4, 6]", "[4, 0]"}},
    };
    tb_bus *bus = open_bus("owner");
    tb_pool *pool;
    tb_pool_options options = {
        .size = sizeof options, .name = "typed", .dtype = TB_I32, .ndim = 2, .shape = {4, 6}};
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    char data[256] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tb_tensor tensor = {.data = data, .dtype = cases[i].dtype, .ndim = cases[i].ndim};
        memcpy(tensor.shape, cases[i].shape, sizeof cases[i].shape);
        tb_handle handle;
        CHECK_STATUS(tb_pool_write(pool, &tensor, TB_POLL, &handle), TB_E_MISMATCH);
        check_error_names(
            (const char *const[]){"typed", cases[i].names[0], cases[i].names[1], NULL});
        CHECK_EQ(stats_of(pool).frames, 0);
    }
    tb_bus_close(bus);
}

static void P14_register_more_than_the_machine_has(void)
{
    struct sysinfo machine;
    CHECK(sysinfo(&machine) == 0);
    uint64_t total = (uint64_t)machine.totalram * machine.mem_unit;
    int64_t wanted = (int64_t)(total / 8 * 5 / 3); /* 40 GiB of 24, in elements */
    tb_bus *bus = open_bus("owner");
    tb_pool *pool;
    tb_pool_options options = words_options("huge", wanted, 1);
    int64_t begin = harness_now_ns();
    CHECK_STATUS(tb_pool_register(bus, &options, &pool), TB_E_NOMEM);
    CHECK_LT(harness_now_ns() - begin, 500000000LL * harness_slowness());
    CHECK_HAS(tb_last_error_text(), "huge");
    check_error_names((const char *const[]){" bytes", "available", NULL});
    options = words_options("fits", 1024, 1);
    CHECK_OK(tb_pool_register(bus, &options, &pool)); /* the bus is as it was */
    tb_bus_close(bus);
}

struct shape_case {
    int32_t ndim;
    int64_t shape[TB_MAX_NDIM];
    size_t bytes;
};

static void round_trip(tb_bus *bus, const struct shape_case *c)
{
    tb_pool *pool;
    tb_pool_options options = {
        .size = sizeof options, .name = "shaped", .dtype = TB_U16, .ndim = c->ndim};
    memcpy(options.shape, c->shape, sizeof c->shape);
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    tb_reader *reader = open_reader(bus, "owner/shaped");
    uint8_t *data = malloc(c->bytes + 1);
    CHECK(data != NULL);
    for (size_t i = 0; i < c->bytes; i++) {
        data[i] = (uint8_t)(i * 7 + 1);
    }
    tb_tensor tensor = {.data = c->bytes > 0 ? data : NULL, .dtype = TB_U16, .ndim = c->ndim};
    memcpy(tensor.shape, c->shape, sizeof c->shape);
    tb_handle handle;
    CHECK_OK(tb_pool_write(pool, &tensor, TB_POLL, &handle));
    CHECK_EQ(handle.bytes, c->bytes);
    tb_frame *frame;
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    const tb_tensor *got = tb_frame_tensor(frame);
    CHECK_EQ(got->ndim, c->ndim);
    CHECK(memcmp(got->shape, tensor.shape, sizeof got->shape) == 0);
    CHECK_EQ(got->dtype, TB_U16);
    CHECK(c->bytes == 0 || memcmp(got->data, data, c->bytes) == 0);
    tb_frame_release(frame);
    tb_reader_close(reader);
    tb_pool_close(pool);
    free(data);
}

static void P17_shapes(void)
{
    static const struct shape_case good[] = {
        {0, {0}, 2},
        {1, {0}, 0},
        {3, {4, 0, 5}, 0},
        {2, {3, 5}, 30},
        {8, {2, 1, 3, 1, 2, 2, 1, 5}, 240},
    };
    static const struct {
        int32_t ndim;
        int64_t shape[TB_MAX_NDIM];
        tb_status status;
    } bad[] = {
        {1, {-1}, TB_E_INVALID},         {3, {4, -2, -3}, TB_E_INVALID},
        {2, {INT64_MAX, 2}, TB_E_LIMIT}, {4, {65536, 65536, 65536, 65536}, TB_E_LIMIT},
        {1, {INT64_MAX}, TB_E_LIMIT},    {9, {1}, TB_E_INVALID},
        {-1, {1}, TB_E_INVALID},
    };
    tb_bus *bus = open_bus("owner");
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        round_trip(bus, &good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tb_pool *pool;
        tb_pool_options options = {
            .size = sizeof options, .name = "bad", .dtype = TB_U16, .ndim = bad[i].ndim};
        memcpy(options.shape, bad[i].shape, sizeof bad[i].shape);
        CHECK_STATUS(tb_pool_register(bus, &options, &pool), bad[i].status);
    }
    tb_bus_close(bus);
}

/* A strided source is packed on the way; every element must land where it belongs. */
static void P17_strided_sources(void)
{
    static const int64_t strides[] = {1, 4}; /* a transposed 3 × 4 */
    int64_t data[12];
    tb_bus *bus = open_bus("owner");
    tb_pool *pool;
    tb_pool_options options = {
        .size = sizeof options, .name = "turned", .dtype = TB_I64, .ndim = 2, .shape = {4, 3}};
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    tb_reader *reader = open_reader(bus, "owner/turned");
    for (int64_t i = 0; i < 12; i++) {
        data[i] = i;
    }
    tb_tensor tensor = {
        .data = data, .dtype = TB_I64, .ndim = 2, .shape = {4, 3}, .strides = strides};
    tb_handle handle;
    CHECK_OK(tb_pool_write(pool, &tensor, TB_POLL, &handle));
    tb_frame *frame;
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    const int64_t *got = tb_frame_tensor(frame)->data;
    for (int64_t row = 0; row < 4; row++) {
        for (int64_t column = 0; column < 3; column++) {
            CHECK_EQ(got[row * 3 + column], column * 4 + row);
        }
    }
    tb_frame_release(frame);
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(P01_write_larger_than_the_pool, 10),
    TEST(P02_write_less_than_the_slot, 10),
    TEST(P03_write_another_dtype_or_shape, 10),
    TEST(P14_register_more_than_the_machine_has, 10),
    TEST(P17_shapes, 10),
    TEST(P17_strided_sources, 10),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
