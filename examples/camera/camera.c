/* Producer: decodes a video straight into shared memory and sends a handle for each frame.
 *
 * Video:    the first argument, or $VIDEO: a file, /dev/video0, or lavfi:GRAPH (see source.h).
 * Output:   `image`: handles of uint8[height][width][3], packed RGB. Metadata of each: `index` from
 * 0, `pts` in seconds; of the first also `video`, `codec`, `fps`, `frames` (expected, 0 unknown).
 * Settings: CAMERA_RATE=max for as fast as the others can follow, else at the video's own pace;
 *           CAMERA_LOOP=n plays it n times, 0 for ever.
 *
 * One thread. Frames go through a pool of 8 slots; a slot is written again only when nobody holds
 * it, and the flow's queues are `backpressure`, so every decoded frame arrives. */
#include "common.h"
#include "report.h"
#include "source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorbus/tensorbus.h>
#include <time.h>

enum {
    SLOTS = 8,
    MAX_LEASES = 3 /* per reader: two readers and a slot to write still fit */
};

/* How long a call may wait before we look whether the flow is asked to stop. */
static const int64_t PATIENCE_NS = TB_MILLIS(100);

struct camera {
    struct source *source;
    tb_node *node;
    tb_pool *pool;
    tb_metadata *metadata;
    const char *video;
    int at_full_speed;
    int stopped;
    int64_t index;
    int64_t start_ns; /* when frame 0 of this round was due */
    char error[512];  /* what the source says */
};

/* Wait for STOP, at most until a time. Returns 1 when the flow is asked to stop. */
static int stop_asked(struct camera *camera, int64_t until_ns)
{
    int64_t left_ns;
    do {
        tb_event *event = NULL;
        left_ns = until_ns - now_ns();
        const tb_status status = tb_node_next(camera->node, left_ns > 0 ? left_ns : 0, &event);
        if (status == TB_OK) {
            camera->stopped |= tb_event_get_type(event) == TB_EVENT_STOP;
            tb_event_release(event);
        } else if (status != TB_AGAIN) {
            camera->stopped =
                1; /* TB_CLOSED, or a failure that the next call on the node explains */
        }
    } while (!camera->stopped && left_ns > 0);
    return camera->stopped;
}

static int register_pool(struct camera *camera)
{
    const struct source_info *info = source_get_info(camera->source);
    const tb_pool_options options = {.size = sizeof(options),
                                     .name = "frames",
                                     .dtype = TB_U8,
                                     .ndim = 3,
                                     .shape = {info->height, info->width, 3},
                                     .device = TB_CPU,
                                     .slots = SLOTS,
                                     .policy = TB_LATEST,
                                     .max_leases = MAX_LEASES,
                                     .require_zero_copy = 1};
    if (tb_pool_register(tb_node_bus(camera->node), &options, &camera->pool) != TB_OK) {
        return fail("cannot register the pool of frames");
    }
    return 0;
}

/* Borrow a free slot. Returns 1, 0 when asked to stop, -1 on failure. */
static int borrow_slot(struct camera *camera, tb_loan **loan)
{
    for (;;) {
        const tb_status status = tb_pool_loan(camera->pool, PATIENCE_NS, loan);
        if (status == TB_OK) {
            return 1;
        }
        if (status != TB_AGAIN) {
            return fail("cannot borrow a slot");
        }
        if (stop_asked(camera, 0)) {
            return 0;
        }
    }
}

static int describe(struct camera *camera, double pts_s)
{
    tb_metadata *metadata = camera->metadata;
    const struct source_info *info = source_get_info(camera->source);
    tb_status status = tb_metadata_set_int64(metadata, "index", camera->index);
    if (status == TB_OK) {
        status = tb_metadata_set_double(metadata, "pts", pts_s);
    }
    if (status == TB_OK && camera->index == 0) {
        const char *slash = strrchr(camera->video, '/');
        status = tb_metadata_set_string(metadata, "video", slash ? slash + 1 : camera->video);
        status = status ? status : tb_metadata_set_string(metadata, "codec", info->codec);
        status = status ? status : tb_metadata_set_double(metadata, "fps", info->fps);
        status = status ? status : tb_metadata_set_int64(metadata, "frames", info->frame_count);
    }
    return status == TB_OK ? 0 : fail("cannot describe a frame");
}

/* Send a published frame. Returns 1, 0 when asked to stop, -1 on failure. */
static int send_frame(struct camera *camera, const tb_handle *handle, double pts_s)
{
    if (describe(camera, pts_s) != 0) {
        return -1;
    }
    for (;;) {
        const tb_status status = tb_node_send(camera->node, "image", tb_handle_value(handle),
                                              camera->metadata, PATIENCE_NS);
        if (status == TB_OK) {
            break;
        }
        if (status != TB_AGAIN) {
            return fail("cannot send a frame");
        }
        if (stop_asked(camera, 0)) {
            return 0;
        }
    }
    if (camera->index++ == 0) {
        /* The others know the video now: from here on a message is a handle and two numbers. */
        tb_metadata_destroy(camera->metadata);
        camera->metadata = NULL;
        if (tb_metadata_create(&camera->metadata) != TB_OK) {
            return fail("cannot describe a frame");
        }
    }
    return 1;
}

/* Decode the next frame into a slot, wait for its time, send it.
 * Returns 1, 0 at the end of the video or when asked to stop, -1 on failure. */
static int one_frame(struct camera *camera)
{
    double pts_s = 0;
    int rc = source_read(camera->source, &pts_s, camera->error, sizeof(camera->error));
    if (rc <= 0) {
        if (rc < 0) {
            fprintf(stderr, "%s\n", camera->error);
        }
        return rc;
    }
    tb_loan *loan = NULL;
    rc = borrow_slot(camera, &loan);
    if (rc <= 0) {
        return rc;
    }
    /* The one place where pixels are written: by FFmpeg, into the memory that all others read. */
    uint8_t *pixels = tb_loan_tensor(loan)->data;
    if (source_convert(camera->source, pixels, camera->error, sizeof(camera->error)) != 0) {
        fprintf(stderr, "%s\n", camera->error);
        tb_loan_cancel(loan);
        return -1;
    }
    const int paced = !camera->at_full_speed && !source_get_info(camera->source)->live;
    if (stop_asked(camera, paced ? camera->start_ns + (int64_t)(pts_s * 1e9) : 0)) {
        tb_loan_cancel(loan);
        return 0;
    }
    tb_handle handle;
    if (tb_loan_publish(loan, &handle) != TB_OK) {
        return fail("cannot publish a frame");
    }
    return send_frame(camera, &handle, pts_s);
}

static int play(struct camera *camera, long rounds)
{
    for (long round = 0; rounds == 0 || round < rounds; round++) {
        if (round > 0 && source_rewind(camera->source, camera->error, sizeof(camera->error)) != 0) {
            fprintf(stderr, "%s\n", camera->error);
            return -1;
        }
        const int64_t before = camera->index;
        camera->start_ns = now_ns();
        int rc;
        do {
            rc = one_frame(camera);
        } while (rc > 0);
        if (rc < 0) {
            return -1;
        }
        if (camera->stopped) {
            break;
        }
        if (camera->index == before) {
            fprintf(stderr, "`%s` has no frames\n", camera->video);
            return -1;
        }
    }
    return 0;
}

/* Free the pool once the others have given all its frames back, so that they get every one. */
static void drain_and_free(struct camera *camera)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    const int64_t until_ns = now_ns() + TB_SECONDS(10);
    tb_pool_stats stats = {.size = sizeof(stats)};
    if (tb_node_close_output(camera->node, "image") != TB_OK) {
        fail("cannot close the output");
    }
    while (tb_pool_get_stats(camera->pool, &stats) == TB_OK && stats.held > 0 &&
           now_ns() < until_ns) {
        nanosleep(&pause, NULL);
    }
    tb_pool_close(camera->pool);
    camera->pool = NULL;
}

static void report(struct camera *camera)
{
    tb_pool_stats stats = {.size = sizeof(stats)};
    if (tb_pool_get_stats(camera->pool, &stats) != TB_OK) {
        fail("cannot read the pool's counters");
        return;
    }
    printf("%" PRIu64 " frames, %.1f MB, written in place; %" PRIu64 " copied\n", stats.frames,
           (double)stats.bytes / 1e6, stats.copies);
    FILE *file = report_open(tb_node_id(camera->node));
    if (file) {
        const struct source_info *info = source_get_info(camera->source);
        fprintf(file, "frames %" PRId64 "\npublished %" PRIu64 "\nbytes %" PRIu64 "\n",
                camera->index, stats.frames, stats.bytes);
        fprintf(file, "copies %" PRIu64 "\ncopied_bytes %" PRIu64 "\nframe_bytes %zu\n",
                stats.copies, stats.copied_bytes, (size_t)info->width * (size_t)info->height * 3);
        fclose(file);
    }
}

int main(int argc, char **argv)
{
    struct camera camera = {.video = argc > 1 ? argv[1] : getenv("VIDEO")};
    const char *rate = getenv("CAMERA_RATE"), *rounds = getenv("CAMERA_LOOP");
    if (!camera.video || !*camera.video) {
        fprintf(stderr, "name a video: VIDEO=film.mp4 or VIDEO=/dev/video0\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* the runner reads a pipe */
    camera.at_full_speed = rate && strcmp(rate, "max") == 0;
    if (source_open(camera.video, &camera.source, camera.error, sizeof(camera.error)) != 0) {
        fprintf(stderr, "%s\n", camera.error);
        return 1;
    }
    const struct source_info *info = source_get_info(camera.source);
    printf("%s: %d x %d, %.4g fps, %s\n", camera.video, info->width, info->height, info->fps,
           info->codec);
    int rc = -1;
    if (tb_node_open(&camera.node) != TB_OK) {
        fail("cannot open the node");
    } else if (tb_metadata_create(&camera.metadata) != TB_OK) {
        fail("cannot describe frames");
    } else if (register_pool(&camera) == 0) {
        rc = play(&camera, rounds ? strtol(rounds, NULL, 10) : 1);
        report(&camera);
        drain_and_free(&camera);
    }
    tb_metadata_destroy(camera.metadata);
    tb_node_close(
        camera.node); /* waits for the others to take what is queued, then frees the pool */
    source_close(camera.source);
    return rc == 0 ? 0 : 1;
}
