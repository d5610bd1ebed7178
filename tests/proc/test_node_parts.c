/* Values that lie in several places, the kind of a value, and the names of a node's ends. */
#include "proc/node_support.h"

/* Pieces of one text: their sizes, and what they are together. */
static const size_t piece_sizes[] = {0, 1, 63, 0, 64, 1000, 40000, 3, 0};
#define PIECES (sizeof piece_sizes / sizeof piece_sizes[0])

static size_t make_pieces(uint8_t *memory, size_t first, size_t count, tb_part *out)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = piece_sizes[first + i];
        /* Not next to each other, the last one first in memory. */
        uint8_t *at = memory + 50000 * (count - i);
        for (size_t k = 0; k < bytes; k++) {
            at[k] = (uint8_t)((total + k) * 7);
        }
        out[i] = (tb_part){bytes != 0 ? at : NULL, bytes};
        total += bytes;
    }
    return total;
}

static void parts_source(void *argument)
{
    tb_part parts[PIECES];
    uint8_t *memory = malloc(50000 * (PIECES + 2));
    CHECK(memory != NULL);
    tb_node *node = open_node("source", "", argument);
    for (size_t count = 0; count <= PIECES; count++) {
        make_pieces(memory, 0, count, parts);
        CHECK_OK(tb_node_send(node, "out", tb_parts(parts, count), NULL, TB_SECONDS(20)));
    }
    parts[0] = (tb_part){NULL, 5};
    CHECK_STATUS(tb_node_send(node, "out", tb_parts(parts, 1), NULL, 0), TB_E_INVALID);
    CHECK_HAS(tb_last_error_text(), "part 0");
    CHECK_STATUS(tb_node_send(node, "out", tb_parts(NULL, 1), NULL, 0), TB_E_INVALID);
    parts[0] = (tb_part){memory, SIZE_MAX};
    parts[1] = (tb_part){memory, 2};
    CHECK_STATUS(tb_node_send(node, "out", tb_parts(parts, 2), NULL, 0), TB_E_LIMIT);
    parts[0].bytes = (size_t)1 << 30;
    CHECK_STATUS(tb_node_send(node, "out", tb_parts(parts, 2), NULL, 0), TB_E_LIMIT);
    free(memory);
    tb_node_close(node);
}

static void take_parts(const char *inputs)
{
    struct child source;
    child_start(&source, "source", parts_source, (void *)"out=sink/in");
    tb_node *node = open_node("sink", inputs, "");
    size_t total = 0;
    for (size_t count = 0; count <= PIECES; count++) {
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        size_t bytes;
        const uint8_t *data = tb_event_bytes(event, &bytes);
        total += count > 0 ? piece_sizes[count - 1] : 0;
        CHECK_EQ(tb_event_kind(event), TB_VALUE_BYTES);
        CHECK_EQ(bytes, total);
        for (size_t i = 0; i < bytes; i++) {
            CHECK_EQ(data[i], (uint8_t)(i * 7));
        }
        tb_event_release(event);
    }
    expect_event(node, TB_EVENT_INPUT_CLOSED, "in");
    tb_node_close(node);
    child_join(&source);
}

static void parts_arrive_one_after_another(void)
{
    take_parts("in=source/out;queue=20;policy=backpressure");
}

static void parts_arrive_through_small_slots(void)
{
    take_parts("in=source/out;queue=9000");
}

static void kinds_source(void *argument)
{
    (void)argument;
    tb_node *node = open_node("source", "", "out=sink/in");
    uint8_t data[4] = {1, 2, 3, 4};
    tb_tensor tensor = {.data = data, .dtype = TB_U8, .ndim = 1, .shape = {4}};
    tb_pool_options options = {.size = sizeof options, .dtype = TB_U8, .ndim = 1, .shape = {4}};
    tb_pool *pool;
    tb_handle handle;
    CHECK_OK(tb_pool_register(tb_node_bus(node), &options, &pool));
    CHECK_OK(tb_pool_write(pool, &tensor, 0, &handle));
    CHECK_OK(tb_node_send(node, "out", tb_no_value(), NULL, 0));
    CHECK_OK(tb_node_send(node, "out", tb_bytes(data, 0), NULL, 0));
    CHECK_OK(tb_node_send(node, "out", tb_tensor_value(&tensor), NULL, 0));
    CHECK_OK(tb_node_send(node, "out", tb_handle_value(&handle), NULL, 0));
    parent_pause("sent"); /* the handle's frame goes with the pool */
    tb_node_close(node);
}

static void events_tell_the_kind_of_their_value(void)
{
    static const tb_value_kind kinds[] = {TB_VALUE_NONE, TB_VALUE_BYTES, TB_VALUE_TENSOR,
                                          TB_VALUE_HANDLE};
    struct child source;
    tb_frame *frame = NULL;
    child_start(&source, "source", kinds_source, NULL);
    tb_node *node = open_node("sink", "in=source/out", "");
    child_await(&source, "sent");
    for (size_t i = 0; i < 4; i++) {
        tb_event *event = next_event(node, TB_EVENT_INPUT, "in");
        CHECK_EQ(tb_event_kind(event), kinds[i]);
        CHECK((tb_event_frame(event) != NULL) == (kinds[i] == TB_VALUE_HANDLE));
        frame = tb_event_take_frame(event);
        CHECK((frame != NULL) == (kinds[i] == TB_VALUE_HANDLE));
        CHECK(tb_event_frame(event) == NULL && tb_event_take_frame(event) == NULL);
        tb_event_release(event);
    }
    /* It outlives its event. */
    CHECK_EQ(((const uint8_t *)tb_frame_tensor(frame)->data)[3], 4);
    tb_frame_release(frame);
    child_go(&source);
    tb_event *event = next_event(node, TB_EVENT_INPUT_CLOSED, "in");
    CHECK_EQ(tb_event_kind(event), TB_VALUE_NONE);
    tb_event_release(event);
    tb_node_close(node);
    child_join(&source);
}

static void a_tick_has_no_value(void)
{
    tb_node *node = open_node("sink", "tick=tensorbus/timer/millis/1", "");
    tb_event *event = next_event(node, TB_EVENT_INPUT, "tick");
    CHECK_EQ(tb_event_kind(event), TB_VALUE_NONE);
    tb_event_release(event);
    tb_node_close(node);
}

static void a_node_names_its_inputs_and_outputs(void)
{
    tb_node *node =
        open_node("sink", "b=tensorbus/timer/secs/9\na=tensorbus/timer/secs/9", "z=\ny=");
    CHECK_STR(tb_node_input(node, 0), "b");
    CHECK_STR(tb_node_input(node, 1), "a");
    CHECK(tb_node_input(node, 2) == NULL);
    CHECK_STR(tb_node_output(node, 0), "z");
    CHECK_STR(tb_node_output(node, 1), "y");
    CHECK(tb_node_output(node, 2) == NULL);
    tb_node_close(node);
}

static const struct test tests[] = {
    TEST(parts_arrive_one_after_another, 60),      TEST(parts_arrive_through_small_slots, 60),
    TEST(events_tell_the_kind_of_their_value, 60), TEST(a_tick_has_no_value, 60),
    TEST(a_node_names_its_inputs_and_outputs, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
