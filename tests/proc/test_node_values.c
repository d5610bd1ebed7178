/* Values of every kind and size (F08), metadata of every kind and size (F14). */
#include <math.h>

#include "proc/node_support.h"

#define MIB ((size_t)1 << 20)

static size_t large_bytes(void)
{
    /* The case's 512 MiB; less where a sanitizer shadows every byte. */
    return harness_slowness() > 1 ? 80 * MIB : 512 * MIB;
}

/* Content that shows where it comes from: message number and place. */
static void fill(uint8_t *data, size_t bytes, uint64_t number)
{
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word = number << 48 | i;
        memcpy(data + i, &word, 8);
    }
}

static void check_filled(const uint8_t *data, size_t bytes, uint64_t number)
{
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word;
        memcpy(&word, data + i, 8);
        if (word != (number << 48 | i)) {
            FAIL("message %llu differs at byte %zu", (unsigned long long)number, i);
        }
    }
}

#define MEDIUM 20

static void large_source(void *argument)
{
    (void)argument;
    tb_node *node = open_node("source", "", "out=sink/in");
    size_t large = large_bytes();
    uint8_t *data = malloc(large);
    CHECK(data != NULL);
    for (uint64_t n = 1; n <= MEDIUM; n++) {
        fill(data, 4 * MIB, n);
        CHECK_OK(tb_node_send(node, "out", tb_bytes(data, 4 * MIB), NULL, TB_SECONDS(60)));
    }
    fill(data, large, MEDIUM + 1);
    CHECK_OK(tb_node_send(node, "out", tb_bytes(data, large), NULL, TB_SECONDS(60)));
    free(data);
    /* Above the limit: an error at once, and the output goes on. */
    tb_value value = tb_bytes(&large, ((size_t)1 << 30) + 1);
    CHECK_STATUS(tb_node_send(node, "out", value, NULL, 0), TB_E_LIMIT);
    CHECK_HAS(tb_last_error_text(), "1073741825");
    CHECK_HAS(tb_last_error_text(), "`out`");
    CHECK_OK(send_number(node, "out", 7, TB_SECONDS(60)));
    tb_node_close(node);
}

static void run_large(const char *inputs)
{
    struct child source;
    child_start(&source, "source", large_source, NULL);
    tb_node *node = open_node("sink", inputs, "");
    for (uint64_t n = 1; n <= MEDIUM + 1; n++) {
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        size_t bytes;
        const uint8_t *data = tb_event_bytes(event, &bytes);
        CHECK_EQ(tb_event_dropped(event), 0);
        CHECK_EQ(bytes, n <= MEDIUM ? 4 * MIB : large_bytes());
        CHECK_EQ(tb_event_tensor(event)->shape[0], (long long)bytes);
        CHECK(tb_event_frame(event) == NULL);
        check_filled(data, bytes, n);
        tb_event_release(event);
    }
    tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
    CHECK_EQ(event_number(event), 7);
    tb_event_release(event);
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    expect_end(node);
    tb_node_close(node);
    child_join(&source);
}

static void f08_large_values_backpressure(void)
{
    run_large("in=source/out;queue=3;policy=backpressure");
}

static void f08_large_values_drop_oldest(void)
{
    run_large("in=source/out;queue=40");
}

/* Memory of this process, each shared page once however often it is mapped. */
static unsigned long pss_kib(void)
{
    char line[200];
    unsigned long kib = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL && sscanf(line, "Pss: %lu", &kib) != 1) {
    }
    fclose(file);
    CHECK_LT(0, kib);
    return kib;
}

/* Values that stay in the queue of a sleeping drop_oldest subscriber do not stop their sender, and
 * memory stays within its bound. */
static void flood_source(void *argument)
{
    (void)argument;
    tb_node *node = open_node("source", "", "out=sink/in");
    size_t bytes = 96 * MIB;
    uint8_t *data = calloc(1, bytes);
    CHECK(data != NULL);
    unsigned long most = 0;
    for (uint64_t n = 1; n <= 15; n++) {
        memcpy(data, &n, 8);
        CHECK_OK(tb_node_send(node, "out", tb_bytes(data, bytes), NULL, 0));
        most = pss_kib() > most ? pss_kib() : most;
    }
    CHECK_LE(most, (1024 + 96 + 32) * 1024);
    parent_pause("sent");
    free(data);
    tb_node_close(node);
}

static void f08_a_flood_is_bounded(void)
{
    struct child source;
    if (harness_slowness() > 1) {
        harness_skip("counts resident memory, which a sanitizer multiplies");
    }
    child_start(&source, "source", flood_source, NULL);
    tb_node *node = open_node("sink", "in=source/out;queue=100", "");
    child_await(&source, "sent");
    uint64_t last = 0;
    uint64_t taken = 0;
    uint64_t dropped = 0;
    while (last < 15) {
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        size_t bytes;
        const void *data = tb_event_bytes(event, &bytes);
        CHECK_EQ(bytes, 96 * MIB);
        memcpy(&last, data, 8);
        dropped += tb_event_dropped(event);
        taken++;
        tb_event_release(event);
    }
    CHECK_EQ(taken + dropped, 15);
    CHECK_LE(9, taken); /* of 10 that fit 1 GiB */
    CHECK_LE(1, dropped);
    child_go(&source);
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    tb_node_close(node);
    child_join(&source);
}

/* ---- kinds and sizes ---- */

static const size_t sizes[] = {0, 1, 7, 8, 64, 1000, 32767, 32768, 32769, 36800, 40000, 1000000};
#define SIZES (sizeof sizes / sizeof sizes[0])

static void kinds_source(void *argument)
{
    tb_node *node = open_node("source", "", argument);
    uint8_t *data = malloc(1000000);
    for (uint64_t i = 0; i < SIZES; i++) {
        fill(data, sizes[i], i);
        CHECK_OK(tb_node_send(node, "out", tb_bytes(data, sizes[i]), NULL, TB_SECONDS(20)));
    }
    free(data);
    CHECK_OK(tb_node_send(node, "out", tb_no_value(), NULL, TB_SECONDS(20)));
    float scalar = 1.5f;
    tb_tensor tensor = {.data = &scalar, .dtype = TB_F32};
    CHECK_OK(tb_node_send(node, "out", tb_tensor_value(&tensor), NULL, TB_SECONDS(20)));
    int16_t grid[6] = {1, 2, 3, 4, 5, 6};
    int64_t strides[2] = {1, 3}; /* transposed */
    tensor = (tb_tensor){.data = grid, .dtype = TB_I16, .ndim = 2, .shape = {3, 2}};
    tensor.strides = strides;
    CHECK_OK(tb_node_send(node, "out", tb_tensor_value(&tensor), NULL, TB_SECONDS(20)));
    /* Large and strided: every second element. */
    int64_t two = 2;
    int32_t *line = malloc(200000 * sizeof *line);
    for (int32_t i = 0; i < 200000; i++) {
        line[i] = i;
    }
    tensor = (tb_tensor){.data = line, .dtype = TB_I32, .ndim = 1, .shape = {100000}};
    tensor.strides = &two;
    CHECK_OK(tb_node_send(node, "out", tb_tensor_value(&tensor), NULL, TB_SECONDS(20)));
    free(line);
    /* What cannot be sent says why. */
    tensor = (tb_tensor){.dtype = TB_I16, .ndim = 1, .shape = {-1}};
    CHECK_STATUS(tb_node_send(node, "out", tb_tensor_value(&tensor), NULL, 0), TB_E_INVALID);
    tensor = (tb_tensor){.dtype = TB_I16, .ndim = 1, .shape = {1}, .device = TB_CUDA(0)};
    CHECK_STATUS(tb_node_send(node, "out", tb_tensor_value(&tensor), NULL, 0), TB_E_UNSUPPORTED);
    CHECK_STATUS(tb_node_send(node, "out", tb_bytes(NULL, 3), NULL, 0), TB_E_INVALID);
    tb_handle none = {.generation = 3};
    CHECK_STATUS(tb_node_send(node, "out", tb_handle_value(&none), NULL, 0), TB_E_INVALID);
    CHECK_STATUS(send_number(node, "outt", 1, 0), TB_E_NOT_FOUND);
    CHECK_HAS(tb_last_error_text(), "`out`");
    CHECK_OK(tb_node_close_output(node, "out"));
    CHECK_STATUS(send_number(node, "out", 1, 0), TB_CLOSED);
    tb_node_close(node);
}

static const tb_tensor *take_tensor(tb_node *node, const char *id, tb_event **event)
{
    *event = next_event(node, TB_EVENT_INPUT, id);
    CHECK_EQ(tb_event_dropped(*event), 0);
    return tb_event_tensor(*event);
}

static void take_kinds(tb_node *node, const char *id)
{
    tb_event *event;
    for (uint64_t i = 0; i < SIZES; i++) {
        size_t bytes;
        const tb_tensor *tensor = take_tensor(node, id, &event);
        const void *data = tb_event_bytes(event, &bytes);
        CHECK_EQ(bytes, sizes[i]);
        CHECK_EQ(tensor->dtype, TB_U8);
        CHECK_EQ((uintptr_t)data % 64, 0);
        check_filled(data, bytes, i);
        tb_event_release(event);
    }
    const tb_tensor *tensor = take_tensor(node, id, &event);
    CHECK_EQ(tensor->shape[0], 0);
    tb_event_release(event);
    tensor = take_tensor(node, id, &event);
    CHECK_EQ(tensor->ndim, 0);
    CHECK_EQ(tensor->dtype, TB_F32);
    CHECK(*(const float *)tensor->data == 1.5f);
    tb_event_release(event);
    static const int16_t transposed[6] = {1, 4, 2, 5, 3, 6};
    tensor = take_tensor(node, id, &event);
    CHECK_EQ(tensor->shape[0], 3);
    CHECK_EQ(memcmp(tensor->data, transposed, sizeof transposed), 0);
    tb_event_release(event);
    tensor = take_tensor(node, id, &event);
    CHECK_EQ(tensor->dtype, TB_I32);
    CHECK_EQ(tensor->shape[0], 100000);
    for (int32_t i = 0; i < 100000; i++) {
        CHECK_EQ(((const int32_t *)tensor->data)[i], 2 * i);
    }
    tb_event_release(event);
}

/* The same messages to a queue with large slots and to one with the smallest. */
static void f08_every_kind_and_size(void)
{
    struct child source;
    child_start(&source, "source", kinds_source, (void *)"out=sink/in,sink/small");
    tb_node *node = open_node("sink", "in=source/out;queue=100\nsmall=source/out;queue=9000", "");
    tb_event *event;
    uint64_t got[2] = {0, 0};
    size_t total[2] = {0, 0};
    tb_status status;
    while ((status = tb_node_next(node, TB_SECONDS(20), &event)) == TB_OK) {
        if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            int small = tb_event_id(event)[0] == 's';
            size_t bytes;
            const void *data = tb_event_bytes(event, &bytes);
            if (got[small] < SIZES) {
                CHECK_EQ(bytes, sizes[got[small]]);
                check_filled(data, bytes, got[small]);
            }
            CHECK_EQ(tb_event_dropped(event), 0);
            total[small] += bytes;
            got[small]++;
        } else {
            CHECK_EQ(tb_event_get_type(event), TB_EVENT_INPUT_CLOSED);
        }
        tb_event_release(event);
    }
    CHECK_STATUS(status, TB_CLOSED);
    CHECK_EQ(got[0], SIZES + 4);
    CHECK_EQ(got[1], SIZES + 4);
    CHECK_EQ(total[0], total[1]);
    tb_node_close(node);
    child_join(&source);
}

static void run_kinds(const char *inputs)
{
    struct child source;
    child_start(&source, "source", kinds_source, (void *)"out=sink/in");
    tb_node *node = open_node("sink", inputs, "");
    take_kinds(node, "in");
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    expect_end(node);
    tb_node_close(node);
    child_join(&source);
}

static void f08_tensors_large_slots(void)
{
    run_kinds("in=source/out;queue=2;policy=backpressure");
}

static void f08_tensors_small_slots(void)
{
    run_kinds("in=source/out;queue=9000;policy=backpressure");
}

/* ---- metadata ---- */

static void metadata_source(void *argument)
{
    (void)argument;
    static const int64_t integers[] = {INT64_MIN, INT64_MAX, 0};
    static const char *const strings[] = {"", "b", "\xc3\xa4"};
    tb_node *node = open_node("source", "", "out=sink/in,sink/small");
    tb_metadata *metadata;
    CHECK_OK(tb_metadata_create(&metadata));
    CHECK_OK(tb_metadata_set_bool(metadata, "yes", 1));
    CHECK_OK(tb_metadata_set_int64(metadata, "min", INT64_MIN));
    CHECK_OK(tb_metadata_set_int64(metadata, "max", INT64_MAX));
    CHECK_OK(tb_metadata_set_double(metadata, "nan", NAN));
    CHECK_OK(tb_metadata_set_string(metadata, "empty", ""));
    CHECK_OK(tb_metadata_set_string(metadata, "text", "\xe6\x97\xa5\xe6\x9c\xac"));
    CHECK_OK(tb_metadata_set_int64s(metadata, "integers", integers, 3));
    CHECK_OK(tb_metadata_set_strings(metadata, "strings", strings, 3));
    CHECK_OK(tb_node_send(node, "out", tb_no_value(), metadata, TB_SECONDS(20)));
    /* As much as there may be, with no value, a small one and a large one. */
    double *reals = malloc(10000 * sizeof *reals);
    for (int i = 0; i < 10000; i++) {
        reals[i] = i / 7.0;
    }
    tb_metadata *full;
    CHECK_OK(tb_metadata_create(&full));
    CHECK_OK(tb_metadata_set_doubles(full, "full", reals, 8190));
    CHECK_OK(tb_node_send(node, "out", tb_no_value(), full, TB_SECONDS(20)));
    CHECK_OK(tb_node_send(node, "out", tb_bytes("abc", 3), full, TB_SECONDS(20)));
    uint8_t *data = malloc(MIB);
    fill(data, MIB, 9);
    CHECK_OK(tb_node_send(node, "out", tb_bytes(data, MIB - 3), full, TB_SECONDS(20)));
    free(data);
    /* Too much names key and limit, and what was there stays. */
    CHECK_STATUS(tb_metadata_set_doubles(metadata, "many", reals, 10000), TB_E_LIMIT);
    CHECK_HAS(tb_last_error_text(), "`many`");
    CHECK_HAS(tb_last_error_text(), "65536");
    char *text = malloc(1000001);
    memset(text, 'x', 1000000);
    text[1000000] = '\0';
    CHECK_STATUS(tb_metadata_set_string(metadata, "long", text), TB_E_LIMIT);
    CHECK_HAS(tb_last_error_text(), "`long`");
    free(text);
    free(reals);
    CHECK_EQ(tb_metadata_count(metadata), 8);
    tb_metadata_destroy(metadata);
    tb_metadata_destroy(full);
    tb_node_close(node);
}

static void check_small_metadata(const tb_metadata *metadata)
{
    tb_metadata_value value;
    CHECK_EQ(tb_metadata_count(metadata), 8);
    CHECK_OK(tb_metadata_get(metadata, "yes", &value));
    CHECK_EQ(value.boolean, 1);
    CHECK_OK(tb_metadata_get(metadata, "min", &value));
    CHECK_EQ(value.integer, INT64_MIN);
    CHECK_OK(tb_metadata_get(metadata, "max", &value));
    CHECK_EQ(value.integer, INT64_MAX);
    CHECK_OK(tb_metadata_get(metadata, "nan", &value));
    CHECK(isnan(value.real));
    CHECK_OK(tb_metadata_get(metadata, "empty", &value));
    CHECK_STR(value.string, "");
    CHECK_OK(tb_metadata_get(metadata, "text", &value));
    CHECK_STR(value.string, "\xe6\x97\xa5\xe6\x9c\xac");
    CHECK_OK(tb_metadata_get(metadata, "integers", &value));
    CHECK_EQ(value.count, 3);
    CHECK_EQ(value.integers[0], INT64_MIN);
    CHECK_OK(tb_metadata_get(metadata, "strings", &value));
    CHECK_STR(value.strings[2], "\xc3\xa4");
}

static void check_full_metadata(const tb_metadata *metadata)
{
    tb_metadata_value value;
    CHECK_OK(tb_metadata_get(metadata, "full", &value));
    CHECK_EQ(value.count, 8190);
    for (int i = 0; i < 8190; i++) {
        CHECK(value.reals[i] == i / 7.0);
    }
}

static void f14_metadata_arrives_equal(void)
{
    static const size_t values[] = {0, 0, 3, MIB - 3};
    struct child source;
    child_start(&source, "source", metadata_source, NULL);
    tb_node *node = open_node("sink", "in=source/out;queue=50\nsmall=source/out;queue=9000", "");
    unsigned got[2] = {0, 0};
    tb_event *event;
    while (tb_node_next(node, TB_SECONDS(20), &event) == TB_OK) {
        if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            unsigned *number = &got[tb_event_id(event)[0] == 's'];
            size_t bytes;
            const void *data = tb_event_bytes(event, &bytes);
            CHECK_LT(*number, 4);
            CHECK_EQ(bytes, values[*number]);
            if (*number == 0) {
                check_small_metadata(tb_event_metadata(event));
            } else {
                check_full_metadata(tb_event_metadata(event));
            }
            if (*number == 2) {
                CHECK_EQ(memcmp(data, "abc", 3), 0);
            }
            if (*number == 3) {
                check_filled(data, bytes, 9);
            }
            ++*number;
        }
        tb_event_release(event);
    }
    CHECK_EQ(got[0], 4);
    CHECK_EQ(got[1], 4);
    tb_node_close(node);
    child_join(&source);
}

static const struct test tests[] = {
    TEST(f08_large_values_backpressure, 120), TEST(f08_large_values_drop_oldest, 120),
    TEST(f08_a_flood_is_bounded, 120),        TEST(f08_every_kind_and_size, 60),
    TEST(f08_tensors_large_slots, 60),        TEST(f08_tensors_small_slots, 60),
    TEST(f14_metadata_arrives_equal, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
