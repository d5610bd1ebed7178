/* Sender of the pool example: registers a pool once, then for each frame writes into it, tells the
 * receiver, and waits until the receiver asks for the next. */
#include "example.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODE "sender_node"

static void tell_receiver(tb_node *node, const struct example_config *config, const char *id,
                          int64_t index, int64_t sent_ns)
{
    tb_metadata *metadata;
    if (tb_metadata_create(&metadata) != TB_OK ||
        tb_metadata_set_int64(metadata, "t_send", sent_ns) != TB_OK ||
        tb_metadata_set_string(metadata, "scenario", config->scenario_name) != TB_OK ||
        tb_metadata_set_int64(metadata, "index", index) != TB_OK) {
        example_fail(NODE, "metadata");
    }
    /* The id goes with the first message alone; the receiver keeps it. */
    tb_value value = index == 0 ? tb_bytes(id, strlen(id)) : tb_no_value();
    if (tb_node_send(node, "data", value, metadata, TB_SECONDS(10)) != TB_OK) {
        example_fail(NODE, "send");
    }
    tb_metadata_destroy(metadata);
}

enum answer { NEXT_REQUIRED, RECEIVER_GONE, STOPPED };

/* Wait until the receiver asks for the next frame. */
static enum answer await_answer(tb_node *node)
{
    for (;;) {
        tb_event *event;
        tb_status status = tb_node_next(node, TB_FOREVER, &event);
        if (status == TB_CLOSED) {
            return RECEIVER_GONE;
        }
        if (status != TB_OK) {
            example_fail(NODE, "next");
        }
        tb_event_type type = tb_event_get_type(event);
        if (type == TB_EVENT_ERROR) {
            fprintf(stderr, NODE ": %s\n", tb_event_text(event));
        }
        tb_event_release(event);
        if (type == TB_EVENT_INPUT) {
            return NEXT_REQUIRED;
        }
        if (type == TB_EVENT_STOP) {
            return STOPPED;
        }
    }
}

static void write_frame(tb_node *node, const struct example_config *config, const char *id,
                        const tb_tensor *tensor, int64_t index)
{
    tb_bus *bus = tb_node_bus(node);
    int freed = 0;
    if (config->scenario == EXAMPLE_WRITE_AFTER_FREE && index == config->frames - 1) {
        if (tb_free(bus, id) != TB_OK) {
            example_fail(NODE, "free");
        }
        freed = 1;
    }
    ((int64_t *)tensor->data)[0] = index;
    int64_t sent_ns = example_now_ns();
    tb_status status = tb_write(bus, id, tensor, TB_SECONDS(10));
    if (status != (freed ? TB_E_FREED : TB_OK)) {
        example_fail(NODE, "write");
    }
    tell_receiver(node, config, id, index, sent_ns);
}

int main(void)
{
    struct example_config config = example_configure(NODE);
    tb_node *node;
    if (tb_node_open(&node) != TB_OK) {
        example_fail(NODE, "open");
    }
    int64_t *data = malloc(EXAMPLE_BYTES);
    if (data == NULL) {
        fprintf(stderr, NODE ": no memory for a frame of %zu bytes\n", EXAMPLE_BYTES);
        return 1;
    }
    for (size_t i = 0; i < EXAMPLE_ELEMENTS; i++) {
        data[i] = (int64_t)i;
    }
    tb_tensor tensor = example_tensor(data);
    char id[TB_POOL_ID_SIZE];
    if (tb_register(tb_node_bus(node), &tensor, id) != TB_OK) {
        example_fail(NODE, "register");
    }
    example_preview("Sender", data);
    int64_t index = 0;
    enum answer answer;
    do {
        write_frame(node, &config, id, &tensor, index++);
        answer = await_answer(node);
    } while (answer == NEXT_REQUIRED && index < config.frames);
    int failed = answer == RECEIVER_GONE;
    /* Stay until the receiver has closed: it frees the pool, or leaves that to the runner. */
    while (answer == NEXT_REQUIRED) {
        answer = await_answer(node);
    }
    if (failed) {
        fprintf(stderr, NODE ": the receiver ended after %lld of %lld frames\n", (long long)index,
                (long long)config.frames);
    }
    tb_node_close(node);
    free(data);
    return failed;
}
