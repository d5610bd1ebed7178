/* Receiver of in_flight.yml: keeps the last three frames while newer ones arrive, and looks at the
 * oldest only when it lets it go: it has not changed, though the sender has gone on writing. */
#include "flight.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define NODE "flight_receiver"

struct kept {
    tb_frame *frame;
    int64_t index;
};

struct receiver {
    struct example_config config;
    struct kept kept[FLIGHT_HELD];
    uint32_t count;
    int64_t done;
};

/* Check the oldest frame in full and give it back. */
static void let_go_oldest(struct receiver *self)
{
    struct kept oldest = self->kept[0];
    const int64_t *data = tb_frame_tensor(oldest.frame)->data;
    for (size_t i = 0; i < EXAMPLE_ELEMENTS; i++) {
        if (data[i] != oldest.index) {
            fprintf(stderr, NODE ": frame %" PRId64 ": element %zu is %" PRId64 "\n", oldest.index,
                    i, data[i]);
            exit(1);
        }
    }
    tb_frame_release(oldest.frame);
    self->count--;
    for (uint32_t i = 0; i < self->count; i++) {
        self->kept[i] = self->kept[i + 1];
    }
}

static void keep(struct receiver *self, const tb_event *event)
{
    tb_frame *held;
    if (tb_event_frame(event) == NULL) {
        fprintf(stderr, NODE ": the message has no frame\n");
        exit(1);
    }
    if (self->count == FLIGHT_HELD) {
        let_go_oldest(self);
    }
    if (tb_frame_hold(tb_event_frame(event), &held) != TB_OK) {
        example_fail(NODE, "hold");
    }
    self->kept[self->count++] = (struct kept){.frame = held, .index = self->done};
    self->done++;
    example_progress(self->done, self->config.frames);
}

int main(void)
{
    struct receiver self = {.config = example_configure(NODE)};
    tb_node *node;
    example_need_cpu(NODE, &self.config);
    if (tb_node_open(&node) != TB_OK) {
        example_fail(NODE, "open");
    }
    int stopped = 0;
    while (!stopped) {
        tb_event *event;
        tb_status status = tb_node_next(node, TB_FOREVER, &event);
        if (status == TB_CLOSED) {
            break;
        }
        if (status != TB_OK) {
            example_fail(NODE, "next");
        }
        if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            keep(&self, event);
        }
        stopped = tb_event_get_type(event) == TB_EVENT_STOP;
        tb_event_release(event);
    }
    while (self.count > 0) {
        let_go_oldest(&self);
    }
    printf("Received %" PRId64 " frames, each unchanged while newer ones were written\n",
           self.done);
    tb_node_close(node);
    return !stopped && self.done != self.config.frames;
}
