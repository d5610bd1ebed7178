/* Compute node: finds what moves, on the camera's frame where it lies.
 *
 * Input:    `image`: handles of uint8[height][width][3], packed RGB, with metadata `index`.
 * Outputs:  `boxes`: int32[n][5], a row for each moving object: id, x, y, width, height in pixels;
 *           metadata `index` names the frame. Sent before the image that it belongs to.
 *           `image`: the same handle with the same metadata, passed on. No pixel is copied.
 *
 * One thread. Ends when the camera has closed its output, or on STOP. */
#include "common.h"
#include "detect.h"
#include "latency.h"
#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <tensorbus/tensorbus.h>

/* A consumer that takes nothing for so long is stuck; one that is gone is never waited for. */
static const int64_t PATIENCE_NS = TB_SECONDS(30);

struct motion {
    tb_node *node;
    struct detector *detector;
    int width, height;
    uint64_t frames, boxes;
    struct latency search; /* how long a frame was searched */
};

static int send_boxes(struct motion *motion, const struct box *boxes, int count, int64_t index)
{
    tb_metadata *metadata = NULL;
    int32_t rows[DETECT_MAX_BOXES][5];
    for (int i = 0; i < count; i++) {
        const struct box *box = &boxes[i];
        memcpy(rows[i], (int32_t[5]){box->id, box->x, box->y, box->width, box->height},
               sizeof(rows[i]));
    }
    const tb_tensor tensor = {.data = rows, .dtype = TB_I32, .ndim = 2, .shape = {count, 5}};
    tb_status status = tb_metadata_create(&metadata);
    if (status == TB_OK) {
        status = tb_metadata_set_int64(metadata, "index", index);
    }
    if (status == TB_OK) {
        status =
            tb_node_send(motion->node, "boxes", tb_tensor_value(&tensor), metadata, PATIENCE_NS);
    }
    tb_metadata_destroy(metadata);
    return status == TB_OK ? 0 : fail("cannot send boxes");
}

/* A detector for frames of this size; a new one when the camera's size has changed. */
static int prepare(struct motion *motion, const tb_tensor *image)
{
    if (!image || image->dtype != TB_U8 || image->ndim != 3 || image->shape[2] != 3 ||
        image->shape[0] > INT32_MAX || image->shape[1] > INT32_MAX || !tb_tensor_is_packed(image)) {
        char text[128];
        fprintf(stderr, "a frame is %s: packed uint8[height, width, 3] is wanted\n",
                image ? tb_tensor_describe(image, text, sizeof(text)) : "nothing");
        return -1;
    }
    const int height = (int)image->shape[0], width = (int)image->shape[1];
    if (motion->detector && width == motion->width && height == motion->height) {
        return 0;
    }
    detector_destroy(motion->detector);
    motion->detector = detector_create(width, height);
    motion->width = width;
    motion->height = height;
    if (!motion->detector) {
        fprintf(stderr, "no memory for frames of %d x %d\n", width, height);
        return -1;
    }
    return 0;
}

static int on_image(struct motion *motion, const tb_event *event)
{
    struct box boxes[DETECT_MAX_BOXES];
    tb_metadata_value index;
    tb_frame_info info = {.size = sizeof(info)};
    const tb_metadata *metadata = tb_event_metadata(event);
    const tb_tensor *image = tb_event_tensor(event);
    tb_frame *frame = tb_event_frame(event);
    if (prepare(motion, image) != 0) {
        return -1;
    }
    if (!frame || tb_metadata_get(metadata, "index", &index) != TB_OK ||
        index.type != TB_META_INT64) {
        fprintf(stderr, "a message is no handle with an `index`\n");
        return -1;
    }
    const int64_t begin_ns = now_ns();
    const int count = detector_run(motion->detector, image->data, boxes);
    latency_add(&motion->search, now_ns() - begin_ns);
    motion->frames++;
    motion->boxes += (uint64_t)count;
    if (send_boxes(motion, boxes, count, index.integer) != 0) {
        return -1;
    }
    if (tb_frame_get_info(frame, &info) != TB_OK ||
        tb_node_send(motion->node, "image", tb_handle_value(&info.handle), metadata, PATIENCE_NS) !=
            TB_OK) {
        return fail("cannot pass a frame on");
    }
    return 0;
}

/* Returns 0 when all was done or STOP came, -1 on failure. */
static int run(struct motion *motion)
{
    for (;;) {
        tb_event *event = NULL;
        const tb_status status = tb_node_next(motion->node, TB_FOREVER, &event);
        if (status == TB_CLOSED) {
            return 0;
        }
        if (status != TB_OK) {
            return fail("cannot wait for frames");
        }
        int rc = 0;
        if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            rc = on_image(motion, event);
        } else if (tb_event_get_type(event) == TB_EVENT_ERROR) {
            fprintf(stderr, "%s\n", tb_event_text(event));
        }
        tb_event_release(event);
        if (rc != 0) {
            return -1;
        }
    }
}

int main(void)
{
    static struct motion motion; /* large: the histogram is in it */
    if (tb_node_open(&motion.node) != TB_OK) {
        fail("cannot open the node");
        return 1;
    }
    const int rc = run(&motion);
    const double search_ms = (double)latency_quantile(&motion.search, 0.5) / 1e6;
    printf("%" PRIu64 " frames searched in place, %" PRIu64 " boxes, %d cuts, p50 %.3f ms\n",
           motion.frames, motion.boxes, motion.detector ? detector_cuts(motion.detector) : 0,
           search_ms);
    FILE *file = report_open(tb_node_id(motion.node));
    if (file) {
        fprintf(file, "frames %" PRIu64 "\nboxes %" PRIu64 "\nsearch_p50_ms %.3f\n", motion.frames,
                motion.boxes, search_ms);
        fclose(file);
    }
    detector_destroy(motion.detector);
    tb_node_close(motion.node);
    return rc == 0 ? 0 : 1;
}
