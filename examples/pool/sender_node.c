/* Sender of the pool example: registers a pool once on the receiver's device, then for each frame
 * writes into it, tells the receiver, and waits until the receiver asks for the next. */
#include "example.h"

#include <stdio.h>
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
    example_set_count(NODE, tensor, index);
    int64_t sent_ns = example_now_ns();
    tb_status status = tb_write(bus, id, tensor, TB_SECONDS(10));
    if (status != (freed ? TB_E_FREED : TB_OK)) {
        example_fail(NODE, "write");
    }
    tell_receiver(node, config, id, index, sent_ns);
}

/* The pool lies where the receiver works; each write brings the frame there. */
static void register_pool(tb_node *node, const struct example_config *config,
                          const tb_tensor *tensor, char id[TB_POOL_ID_SIZE])
{
    tb_register_options options = {
        .size = sizeof options, .receiver = config->receiver, .host = config->receiver == TB_CPU};
    tb_status status = tb_register_with(tb_node_bus(node), tensor, &options, id);
    if (status != TB_OK) {
        example_fail_device(NODE, config, "register", status);
    }
}

int main(void)
{
    struct example_config config = example_configure(NODE);
    tb_node *node;
    if (tb_node_open(&node) != TB_OK) {
        example_fail(NODE, "open");
    }
    struct example_source source = example_source_create(NODE, &config);
    char id[TB_POOL_ID_SIZE];
    register_pool(node, &config, &source.tensor, id);
    example_preview(NODE, "Sender", &source.tensor);
    int64_t index = 0;
    enum answer answer;
    do {
        write_frame(node, &config, id, &source.tensor, index++);
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
    example_source_destroy(&source);
    return failed;
}
