/* Sender of in_flight.yml: never waits for the receiver's turn. It borrows a free slot, fills it in
 * place, publishes it and sends the handle; a slot comes back when the receiver has let it go. */
#include "flight.h"

#include <stdio.h>

#define NODE "flight_sender"

/* Fill a borrowed slot: element 0 and the last one count frames, the rest repeats the count. */
static void fill(const tb_tensor *tensor, int64_t index)
{
    int64_t *data = tensor->data;
    for (size_t i = 0; i < EXAMPLE_ELEMENTS; i++) {
        data[i] = index;
    }
}

/* Whether STOP has come, or the receiver has gone, within the timeout. */
static int has_ended(tb_node *node, int64_t timeout_ns)
{
    tb_event *event;
    tb_status status = tb_node_next(node, timeout_ns, &event);
    if (status < 0) {
        example_fail(NODE, "next");
    }
    int ended = status == TB_CLOSED;
    if (status == TB_OK) {
        ended = tb_event_get_type(event) == TB_EVENT_STOP;
        tb_event_release(event);
    }
    return ended;
}

/* Returns 0 when it is no use to go on. */
static int send_frame(tb_node *node, tb_pool *pool, int64_t index)
{
    tb_loan *loan;
    tb_handle handle;
    if (tb_pool_loan(pool, TB_SECONDS(10), &loan) != TB_OK) {
        example_fail(NODE, "loan");
    }
    fill(tb_loan_tensor(loan), index);
    if (tb_loan_publish(loan, &handle) != TB_OK) {
        example_fail(NODE, "publish");
    }
    /* The input is `backpressure`: the frame stays until the receiver has taken the message. */
    if (tb_node_send(node, "frames", tb_handle_value(&handle), NULL, TB_SECONDS(10)) != TB_OK) {
        example_fail(NODE, "send");
    }
    return !has_ended(node, TB_POLL);
}

int main(void)
{
    struct example_config config = example_configure(NODE);
    example_need_cpu(NODE, &config);
    tb_node *node;
    tb_pool *pool;
    if (tb_node_open(&node) != TB_OK) {
        example_fail(NODE, "open");
    }
    tb_pool_options options = {.size = sizeof options,
                               .name = "frames",
                               .dtype = TB_I64,
                               .ndim = 2,
                               .shape = {EXAMPLE_ROWS, EXAMPLE_COLUMNS},
                               .slots = FLIGHT_SLOTS};
    if (tb_pool_register(tb_node_bus(node), &options, &pool) != TB_OK) {
        example_fail(NODE, "register");
    }
    tb_pool_stats stats = {.size = sizeof stats};
    uint32_t most_held = 0;
    int64_t begin_ns = example_now_ns();
    int64_t index = 0;
    int goes_on = 1;
    while (index < config.frames && goes_on) {
        goes_on = send_frame(node, pool, index++);
        if (tb_pool_get_stats(pool, &stats) != TB_OK) {
            example_fail(NODE, "stats");
        }
        most_held = stats.held > most_held ? stats.held : most_held;
    }
    printf("Sent %lld frames in %.3f s without waiting for a turn\n", (long long)index,
           (double)(example_now_ns() - begin_ns) / 1e9);
    printf("Most frames in flight at once: %u of %u slots; drops: %llu; copies: %llu\n", most_held,
           stats.slots, (unsigned long long)stats.drops, (unsigned long long)stats.copies);
    /* The receiver still has frames of this pool; it closes `released` when it has none. */
    if (tb_node_close_output(node, "frames") != TB_OK) {
        example_fail(NODE, "close output");
    }
    while (goes_on && !has_ended(node, TB_FOREVER)) {
    }
    if (tb_pool_free(pool) != TB_OK) {
        example_fail(NODE, "free");
    }
    tb_node_close(node);
    return 0;
}
