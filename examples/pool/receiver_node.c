/* Receiver of the pool example: reads each frame in place, on whatever device it lies, checks that
 * element 0 counts, asks for the next one, and at the end frees the pool in the way that the
 * scenario wants. */
#include "example.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODE "receiver_node"

struct receiver {
    struct example_config config;
    tb_node *node;
    char id[TB_POOL_ID_SIZE];
    int64_t done; /* frames taken */
    uint64_t bytes;
    int64_t duration_ns;
};

/* The id comes as text with the first message. */
static void take_id(struct receiver *self, const tb_event *event)
{
    size_t length;
    const void *text = tb_event_bytes(event, &length);
    if (length == 0 || length >= sizeof self->id) {
        fprintf(stderr, NODE ": the first message has no pool id\n");
        exit(1);
    }
    memcpy(self->id, text, length);
    self->id[length] = '\0';
}

static void read_frame(struct receiver *self, int64_t index, int64_t sent_ns)
{
    tb_frame *frame;
    if (tb_read(tb_node_bus(self->node), self->id, TB_SECONDS(10), &frame) != TB_OK) {
        example_fail(NODE, "read");
    }
    const tb_tensor *tensor = tb_frame_tensor(frame);
    int64_t count = example_get_count(NODE, tensor);
    if (count != index) {
        fprintf(stderr, NODE ": frame %" PRId64 ": element 0 is %" PRId64 "\n", index, count);
        exit(1);
    }
    self->duration_ns += example_now_ns() - sent_ns;
    self->bytes += EXAMPLE_BYTES;
    if (index == 0) {
        example_preview(NODE, "Receiver", tensor);
    }
    tb_frame_release(frame);
}

/* A message of the sender: returns 1 when it was the last. */
static int take_message(struct receiver *self, const tb_event *event)
{
    int64_t index = example_integer(NODE, event, "index");
    if (index != self->done) {
        fprintf(stderr, NODE ": message %" PRId64 " came instead of %" PRId64 "\n", index,
                self->done);
        exit(1);
    }
    if (index == 0) {
        take_id(self, event);
    }
    int is_last = index == self->config.frames - 1;
    /* The sender has freed the pool before it wrote the last frame: nothing to check. */
    if (!is_last || self->config.scenario != EXAMPLE_WRITE_AFTER_FREE) {
        read_frame(self, index, example_integer(NODE, event, "t_send"));
    }
    self->done++;
    example_progress(self->done, self->config.frames);
    if (tb_node_send(self->node, "next_require", tb_no_value(), NULL, TB_SECONDS(10)) != TB_OK) {
        example_fail(NODE, "send");
    }
    return is_last;
}

/* Free the pool as the scenario wants, and check that misuse is answered and not obeyed. */
static void finish(struct receiver *self)
{
    tb_bus *bus = tb_node_bus(self->node);
    tb_frame *frame;
    switch (self->config.scenario) {
    case EXAMPLE_AUTO_CLEANUP:
    case EXAMPLE_WRITE_AFTER_FREE:
        return;
    default:
        if (tb_free(bus, self->id) != TB_OK) {
            example_fail(NODE, "free");
        }
    }
    if (self->config.scenario == EXAMPLE_DUPLICATE_FREE && tb_free(bus, self->id) != TB_E_FREED) {
        fprintf(stderr, NODE ": a second free was not refused\n");
        exit(1);
    }
    if (self->config.scenario == EXAMPLE_READ_AFTER_FREE &&
        tb_read(bus, self->id, TB_SECONDS(10), &frame) != TB_E_FREED) {
        fprintf(stderr, NODE ": a read after free was not refused\n");
        exit(1);
    }
}

int main(void)
{
    struct receiver self = {.config = example_configure(NODE)};
    if (tb_node_open(&self.node) != TB_OK) {
        example_fail(NODE, "open");
    }
    example_open_device(self.config.receiver);
    int is_last = 0;
    int stopped = 0;
    while (!is_last && !stopped) {
        tb_event *event;
        tb_status status = tb_node_next(self.node, TB_FOREVER, &event);
        if (status == TB_CLOSED) {
            break;
        }
        if (status != TB_OK) {
            example_fail(NODE, "next");
        }
        if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            is_last = take_message(&self, event);
        } else if (tb_event_get_type(event) == TB_EVENT_ERROR) {
            fprintf(stderr, NODE ": %s\n", tb_event_text(event));
        } else if (tb_event_get_type(event) == TB_EVENT_STOP) {
            stopped = 1;
        }
        tb_event_release(event);
    }
    if (is_last) {
        finish(&self);
        example_throughput(self.bytes, self.duration_ns);
    } else {
        fprintf(stderr, NODE ": ended after %" PRId64 " of %" PRId64 " frames\n", self.done,
                self.config.frames);
    }
    tb_node_close(self.node);
    return !is_last && !stopped;
}
