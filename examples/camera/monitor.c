/* Final consumer: pairs frames with their boxes, measures, and draws a contact sheet at the end.
 *
 * Inputs:   `image` and `boxes` of the motion node (motion.c says what they hold).
 * Settings: DEMO_PNG, the picture's path; default demo.png.
 *
 * Prints a live line with the rate, the latency from the camera's publish to this node holding the
 * frame (the search for motion included), frames lost and payload copies. One thread. Ends when its
 * inputs are closed, or on STOP. */
#include "common.h"
#include "latency.h"
#include "report.h"
#include "sheet.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorbus/tensorbus.h>
#include <unistd.h>

/* Frames whose boxes, or boxes whose frame, have not come yet. Both come from one sender, one after
 * the other, so that few are ever open. */
enum { OPEN_MAX = 16 };

struct pending {
    int in_use;
    int64_t index;
    tb_event *image; /* NULL until it comes; holds the frame */
    int have_boxes;
    int box_count;
    struct box boxes[DETECT_MAX_BOXES];
};

struct monitor {
    tb_node *node;
    struct sheet *sheet;
    struct latency latency;
    struct pending pending[OPEN_MAX];
    int width, height;
    char video[64], codec[32];
    double fps; /* of the film */
    int64_t next_index;
    uint64_t frames, lost, copies, copied_bytes, boxes;
    int64_t first_ns, last_ns; /* when frames came */
    int64_t shown_ns;          /* when the live line was */
    uint64_t shown_frames;
    int on_terminal;
};

static double quantile_ms(const struct monitor *monitor, double share)
{
    return (double)latency_quantile(&monitor->latency, share) / 1e6;
}

/* One line that renews itself on a terminal; elsewhere a line per second. */
static void show_live(struct monitor *monitor, int moving)
{
    const int64_t now = now_ns(), passed_ns = now - monitor->shown_ns;
    if (passed_ns < (monitor->on_terminal ? TB_MILLIS(100) : TB_SECONDS(1))) {
        return;
    }
    const double fps = (double)(monitor->frames - monitor->shown_frames) * 1e9 / (double)passed_ns;
    printf("%sframe %5" PRIu64 "  %6.1f fps  latency p50 %.3f ms p99 %.3f ms  %2d moving  "
           "%" PRIu64 " dropped  %" PRIu64 " copies%s",
           monitor->on_terminal ? "\r" : "", monitor->frames, fps, quantile_ms(monitor, 0.5),
           quantile_ms(monitor, 0.99), moving, monitor->lost, monitor->copies,
           monitor->on_terminal ? " " : "\n");
    fflush(stdout);
    monitor->shown_ns = now;
    monitor->shown_frames = monitor->frames;
}

static void copy_text(const tb_metadata *metadata, const char *key, char *to, size_t size)
{
    tb_metadata_value value;
    if (tb_metadata_get(metadata, key, &value) == TB_OK && value.type == TB_META_STRING) {
        snprintf(to, size, "%s", value.string);
    }
}

/* The first frame: its size, and what the camera says about the film. */
static int begin(struct monitor *monitor, const tb_tensor *image, const tb_metadata *metadata)
{
    tb_metadata_value value;
    int64_t expected = 0;
    copy_text(metadata, "video", monitor->video, sizeof(monitor->video));
    copy_text(metadata, "codec", monitor->codec, sizeof(monitor->codec));
    if (tb_metadata_get(metadata, "fps", &value) == TB_OK && value.type == TB_META_DOUBLE) {
        monitor->fps = value.real;
    }
    if (tb_metadata_get(metadata, "frames", &value) == TB_OK && value.type == TB_META_INT64) {
        expected = value.integer;
    }
    monitor->height = (int)image->shape[0];
    monitor->width = (int)image->shape[1];
    monitor->sheet = sheet_create(monitor->width, monitor->height, expected);
    if (!monitor->sheet) {
        fprintf(stderr, "no memory for the contact sheet\n");
        return -1;
    }
    monitor->shown_ns = monitor->first_ns;
    return 0;
}

/* A frame with its boxes: look at it in place. */
static int on_pair(struct monitor *monitor, const struct pending *pair)
{
    const tb_tensor *image = tb_event_tensor(pair->image);
    const tb_metadata *metadata = tb_event_metadata(pair->image);
    tb_metadata_value pts;
    if (image->dtype != TB_U8 || image->ndim != 3 || image->shape[2] != 3 ||
        image->shape[0] > 16384 || image->shape[1] > 16384 || !tb_tensor_is_packed(image)) {
        fprintf(stderr, "a frame is not uint8[height, width, 3]\n");
        return -1;
    }
    if (!monitor->sheet && begin(monitor, image, metadata) != 0) {
        return -1;
    }
    struct sheet_frame frame = {.index = pair->index,
                                .rgb = image->data,
                                .boxes = pair->boxes,
                                .box_count = pair->box_count};
    if (tb_metadata_get(metadata, "pts", &pts) == TB_OK && pts.type == TB_META_DOUBLE) {
        frame.pts_s = pts.real;
    }
    if (image->shape[0] == monitor->height && image->shape[1] == monitor->width &&
        sheet_offer(monitor->sheet, &frame) < 0) {
        fprintf(stderr, "no memory for a small picture\n");
        return -1;
    }
    monitor->boxes += (uint64_t)pair->box_count;
    show_live(monitor, pair->box_count);
    return 0;
}

static int finish(struct monitor *monitor, struct pending *pair)
{
    int rc = 0;
    if (pair->image) {
        rc = on_pair(monitor, pair);
        tb_event_release(pair->image);
    }
    *pair = (struct pending){0};
    return rc;
}

/* The place of a frame among the open ones. An older one that is still in it lost its other half.
 */
static struct pending *place(struct monitor *monitor, int64_t index)
{
    struct pending *pair = &monitor->pending[(uint64_t)index % OPEN_MAX];
    if (pair->in_use && pair->index != index) {
        (void)finish(monitor, pair);
    }
    pair->in_use = 1;
    pair->index = index;
    return pair;
}

/* Count a frame that has just come: latency, losses, copies. */
static void measure(struct monitor *monitor, const tb_event *event, int64_t index, int64_t came_ns)
{
    tb_frame_info info = {.size = sizeof(info)};
    if (tb_frame_get_info(tb_event_frame(event), &info) == TB_OK) {
        latency_add(&monitor->latency, came_ns - (int64_t)info.stamp_ns);
        monitor->copies += info.copies;
        monitor->copied_bytes += info.copies * info.handle.bytes;
    }
    if (index > monitor->next_index) {
        monitor->lost += (uint64_t)(index - monitor->next_index);
    }
    monitor->next_index = index + 1;
    monitor->first_ns = monitor->frames ? monitor->first_ns : came_ns;
    monitor->last_ns = came_ns;
    monitor->frames++;
}

static void take_boxes(struct pending *pair, const tb_tensor *tensor)
{
    pair->have_boxes = 1;
    if (tensor->dtype != TB_I32 || tensor->ndim != 2 || tensor->shape[1] != 5 ||
        !tb_tensor_is_packed(tensor)) {
        fprintf(stderr, "boxes are not int32[n, 5]\n");
        return;
    }
    const int64_t count = tensor->shape[0];
    pair->box_count = count < DETECT_MAX_BOXES ? (int)count : DETECT_MAX_BOXES;
    for (int i = 0; i < pair->box_count; i++) {
        int32_t row[5];
        memcpy(row, (const char *)tensor->data + (size_t)i * sizeof(row), sizeof(row));
        pair->boxes[i] = (struct box){row[0], row[1], row[2], row[3], row[4]};
    }
}

/* Keeps the event when it is an image; *event is then NULL. */
static int on_input(struct monitor *monitor, tb_event **event, int64_t came_ns)
{
    tb_metadata_value index;
    if (tb_metadata_get(tb_event_metadata(*event), "index", &index) != TB_OK ||
        index.type != TB_META_INT64) {
        fprintf(stderr, "a message has no `index`\n");
        return -1;
    }
    struct pending *pair = place(monitor, index.integer);
    if (strcmp(tb_event_id(*event), "boxes") == 0) {
        take_boxes(pair, tb_event_tensor(*event));
    } else if (tb_event_frame(*event) && !pair->image) {
        measure(monitor, *event, index.integer, came_ns);
        pair->image = *event;
        *event = NULL;
    }
    return pair->image && pair->have_boxes ? finish(monitor, pair) : 0;
}

/* Returns 0 when all was seen or STOP came, -1 on failure. */
static int run(struct monitor *monitor)
{
    for (;;) {
        tb_event *event = NULL;
        const tb_status status = tb_node_next(monitor->node, TB_FOREVER, &event);
        const int64_t came_ns = now_ns();
        if (status == TB_CLOSED) {
            return 0;
        }
        if (status != TB_OK) {
            return fail("cannot wait for frames");
        }
        int rc = 0;
        if (tb_event_get_type(event) == TB_EVENT_INPUT) {
            rc = on_input(monitor, &event, came_ns);
        } else if (tb_event_get_type(event) == TB_EVENT_ERROR) {
            fprintf(stderr, "%s\n", tb_event_text(event));
        }
        if (event) {
            tb_event_release(event);
        }
        if (rc != 0) {
            return -1;
        }
    }
}

static double mean_fps(const struct monitor *monitor)
{
    const int64_t span_ns = monitor->last_ns - monitor->first_ns;
    return monitor->frames > 1 && span_ns > 0
               ? (double)(monitor->frames - 1) * 1e9 / (double)span_ns
               : 0;
}

/* Draw the sheet. Returns 0, or -1 after saying why not. */
static int draw(const struct monitor *monitor, const char *path)
{
    char subtitle[256], frames[32], rate[32], copied[32], p50[32], p99[32];
    snprintf(subtitle, sizeof(subtitle), "%s   %d x %d   %.4g fps   %s", monitor->video,
             monitor->width, monitor->height, monitor->fps, monitor->codec);
    snprintf(frames, sizeof(frames), "%" PRIu64 " / %" PRIu64, monitor->frames,
             monitor->frames + monitor->lost);
    snprintf(rate, sizeof(rate), "%.1f", mean_fps(monitor));
    snprintf(copied, sizeof(copied), "%" PRIu64, monitor->copied_bytes);
    snprintf(p50, sizeof(p50), "%.2f ms", quantile_ms(monitor, 0.5));
    snprintf(p99, sizeof(p99), "%.2f ms", quantile_ms(monitor, 0.99));
    const struct sheet_text text = {
        .title = "Tensorbus",
        .subtitle = subtitle,
        .footer = "camera decodes into shared memory; motion and monitor read each frame there. "
                  "Between the processes travel 48-byte handles and a few boxes.",
        .cards = {{frames, "frames arrived"},
                  {rate, "frames per second"},
                  {copied, "bytes copied"},
                  {p50, "latency p50"},
                  {p99, "latency p99"}}};
    const int places = sheet_write(monitor->sheet, path, &text);
    if (places < 0) {
        fprintf(stderr, "cannot write `%s`: %s\n", path, strerror(errno));
        return -1;
    }
    printf("%d pictures with what moved in them: %s\n", places, path);
    return 0;
}

static void report(const struct monitor *monitor)
{
    printf("%" PRIu64 " frames in %.1f s (%.1f fps), latency p50 %.3f ms p99 %.3f ms max "
           "%.3f ms, %" PRIu64 " dropped, %" PRIu64 " copies\n",
           monitor->frames, (double)(monitor->last_ns - monitor->first_ns) / 1e9, mean_fps(monitor),
           quantile_ms(monitor, 0.5), quantile_ms(monitor, 0.99),
           (double)monitor->latency.max_ns / 1e6, monitor->lost, monitor->copies);
    FILE *file = report_open(tb_node_id(monitor->node));
    if (file) {
        fprintf(file, "frames %" PRIu64 "\nlost %" PRIu64 "\ncopies %" PRIu64 "\n", monitor->frames,
                monitor->lost, monitor->copies);
        fprintf(file, "copied_bytes %" PRIu64 "\nboxes %" PRIu64 "\nfps %.2f\n",
                monitor->copied_bytes, monitor->boxes, mean_fps(monitor));
        fprintf(file, "p50_ms %.3f\np99_ms %.3f\nmax_ms %.3f\n", quantile_ms(monitor, 0.5),
                quantile_ms(monitor, 0.99), (double)monitor->latency.max_ns / 1e6);
        fclose(file);
    }
}

int main(void)
{
    static struct monitor monitor; /* large: the histogram is in it */
    const char *path = getenv("DEMO_PNG");
    monitor.on_terminal = isatty(STDOUT_FILENO);
    if (tb_node_open(&monitor.node) != TB_OK) {
        fail("cannot open the node");
        return 1;
    }
    int rc = run(&monitor);
    for (int i = 0; i < OPEN_MAX; i++) {
        if (finish(&monitor, &monitor.pending[i]) != 0) {
            rc = -1;
        }
    }
    if (monitor.on_terminal) {
        printf("\n");
    }
    report(&monitor);
    if (monitor.sheet && draw(&monitor, path && *path ? path : "demo.png") != 0) {
        rc = -1;
    }
    sheet_destroy(monitor.sheet);
    tb_node_close(monitor.node);
    return rc == 0 ? 0 : 1;
}
