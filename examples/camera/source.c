/* See source.h. Decoding is FFmpeg's documented send/receive loop; what is ours is the choice of
 * the input format by name, square pixels, the right colour matrix, and the limits on what a file
 * may ask for. */
#include "source.h"

#include <libavcodec/avcodec.h>
#include <libavdevice/avdevice.h>
#include <libavformat/avformat.h>
#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* FFmpeg 5 made these const; with FFmpeg 4 (Ubuntu 22.04, Debian 11) they are not. */
#if LIBAVFORMAT_VERSION_MAJOR >= 59
typedef const AVInputFormat demuxer;
typedef const AVCodec codec_type;
#else
typedef AVInputFormat demuxer;
typedef AVCodec codec_type;
#endif

enum {
    MAX_SIDE = 16384,     /* pixels; a frame is then at most 768 MiB */
    MAX_BAD_PACKETS = 100 /* in a row, before a stream counts as broken */
};

struct source {
    char *name;
    AVFormatContext *format;
    AVCodecContext *decoder;
    AVStream *stream;
    AVPacket *packet;
    AVFrame *frame;
    struct SwsContext *scaler;
    struct source_info info;
    int draining;
    int64_t first_pts; /* AV_NOPTS_VALUE until the first picture */
    double last_pts_s;
    int64_t index;
};

static int fail(char *error, int size, const char *what, const char *on, int code)
{
    char reason[AV_ERROR_MAX_STRING_SIZE] = "";
    if (code < 0) {
        av_strerror(code, reason, sizeof(reason));
    }
    snprintf(error, (size_t)size, "%s `%s`%s%s", what, on, code < 0 ? ": " : "", reason);
    return -1;
}

/* The demuxer that a name asks for, and the part of the name that it wants to see. */
static demuxer *find_demuxer(const char **name, int *live)
{
    if (strncmp(*name, "lavfi:", 6) == 0) {
        *name += 6;
        return av_find_input_format("lavfi");
    }
    if (strncmp(*name, "/dev/video", 10) == 0) {
        *live = 1;
        return av_find_input_format("video4linux2");
    }
    return NULL;
}

static int open_input(struct source *source, char *error, int size)
{
    const char *name = source->name;
    const char *url = name;
    demuxer *format = find_demuxer(&url, &source->info.live);
    int code = avformat_open_input(&source->format, url, format, NULL);
    if (code < 0) {
        return fail(error, size, "cannot open the video", name, code);
    }
    code = avformat_find_stream_info(source->format, NULL);
    if (code < 0) {
        return fail(error, size, "cannot read the streams of", name, code);
    }
    codec_type *codec = NULL;
    int index = av_find_best_stream(source->format, AVMEDIA_TYPE_VIDEO, -1, -1, &codec, 0);
    if (index < 0) {
        return fail(error, size, "there is no video that can be decoded in", name, index);
    }
    source->stream = source->format->streams[index];
    source->decoder = avcodec_alloc_context3(codec);
    if (!source->decoder) {
        return fail(error, size, "out of memory while opening", name, 0);
    }
    code = avcodec_parameters_to_context(source->decoder, source->stream->codecpar);
    if (code >= 0) {
        source->decoder->thread_count = source->info.live ? 1 : 0;
        code = avcodec_open2(source->decoder, codec, NULL);
    }
    if (code < 0) {
        return fail(error, size, "cannot decode", name, code);
    }
    snprintf(source->info.codec, sizeof(source->info.codec), "%s", codec->name);
    return 0;
}

/* Size with square pixels, rate and length, as far as the file says them. */
static int describe(struct source *source, const char *name, char *error, int size)
{
    struct source_info *info = &source->info;
    const AVRational aspect = av_guess_sample_aspect_ratio(source->format, source->stream, NULL);
    int64_t width = source->decoder->width;
    const int64_t height = source->decoder->height;
    if (aspect.num > 0 && aspect.den > 0) {
        width = av_rescale(width, aspect.num, aspect.den);
    }
    if (width < 1 || height < 1 || width > MAX_SIDE || height > MAX_SIDE) {
        snprintf(error, (size_t)size, "`%s` has frames of %lld x %lld pixels: 1 to %d are possible",
                 name, (long long)width, (long long)height, MAX_SIDE);
        return -1;
    }
    info->width = (int)width;
    info->height = (int)height;
    const AVRational rate = av_guess_frame_rate(source->format, source->stream, NULL);
    info->fps = rate.num > 0 && rate.den > 0 ? av_q2d(rate) : 0;
    info->frame_count = source->stream->nb_frames > 0 ? source->stream->nb_frames : 0;
    if (!info->frame_count && info->fps > 0 && source->format->duration > 0) {
        info->frame_count = (int64_t)((double)source->format->duration / AV_TIME_BASE * info->fps);
    }
    return 0;
}

int source_open(const char *name, struct source **out, char *error, int error_size)
{
    struct source *source = calloc(1, sizeof(*source));
    if (!source) {
        return fail(error, error_size, "out of memory while opening", name, 0);
    }
    avdevice_register_all();
    source->first_pts = AV_NOPTS_VALUE;
    source->packet = av_packet_alloc();
    source->frame = av_frame_alloc();
    int rc = -1;
    source->name = strdup(name);
    if (!source->packet || !source->frame || !source->name) {
        fail(error, error_size, "out of memory while opening", name, 0);
    } else {
        rc = open_input(source, error, error_size);
    }
    if (rc == 0) {
        rc = describe(source, name, error, error_size);
    }
    if (rc != 0) {
        source_close(source);
        return -1;
    }
    *out = source;
    return 0;
}

void source_close(struct source *source)
{
    if (!source) {
        return;
    }
    sws_freeContext(source->scaler);
    av_frame_free(&source->frame);
    av_packet_free(&source->packet);
    avcodec_free_context(&source->decoder);
    avformat_close_input(&source->format);
    free(source->name);
    free(source);
}

const struct source_info *source_get_info(const struct source *source)
{
    return &source->info;
}

/* Give the decoder one more packet of our stream, or the end of the stream. Returns 0 or an error.
 */
static int feed(struct source *source, int *bad_packets)
{
    int code;
    do {
        av_packet_unref(source->packet);
        code = av_read_frame(source->format, source->packet);
    } while (code >= 0 && source->packet->stream_index != source->stream->index);
    if (code == AVERROR(EAGAIN)) {
        return 0;
    }
    if (code < 0 && code != AVERROR_EOF) {
        return code;
    }
    source->draining = code == AVERROR_EOF;
    code = avcodec_send_packet(source->decoder, source->draining ? NULL : source->packet);
    av_packet_unref(source->packet);
    if (code == AVERROR_INVALIDDATA && ++*bad_packets < MAX_BAD_PACKETS) {
        return 0; /* a damaged packet costs its pictures, not the rest of the film */
    }
    return code == AVERROR_EOF ? 0 : code;
}

/* Time of the decoded picture from the first one; counted in frames when the file has no stamps. */
static double picture_time(struct source *source)
{
    const int64_t pts = source->frame->best_effort_timestamp;
    double pts_s;
    if (pts == AV_NOPTS_VALUE) {
        pts_s = source->info.fps > 0 ? (double)source->index / source->info.fps : 0;
    } else {
        if (source->first_pts == AV_NOPTS_VALUE) {
            source->first_pts = pts;
        }
        pts_s = (double)(pts - source->first_pts) * av_q2d(source->stream->time_base);
    }
    /* Time never runs backwards, whatever the file says: the camera waits by it. */
    source->last_pts_s = pts_s > source->last_pts_s ? pts_s : source->last_pts_s;
    source->index++;
    return source->last_pts_s;
}

int source_read(struct source *source, double *pts_s, char *error, int error_size)
{
    int bad_packets = 0;
    for (;;) {
        int code = avcodec_receive_frame(source->decoder, source->frame);
        if (code == 0) {
            *pts_s = picture_time(source);
            return 1;
        }
        if (code == AVERROR_EOF) {
            return 0;
        }
        if (code == AVERROR(EAGAIN) || (code == AVERROR_INVALIDDATA && !source->draining)) {
            code = feed(source, &bad_packets);
        }
        if (code < 0) {
            return fail(error, error_size, "cannot decode the next frame of", source->name, code);
        }
    }
}

/* The matrix and range that the picture was coded with; what is not said follows the usual rule
 * that HD is BT.709 and the rest BT.601. */
static void set_colours(struct source *source)
{
    const AVFrame *frame = source->frame;
    int matrix = frame->colorspace;
    if (matrix == AVCOL_SPC_UNSPECIFIED) {
        matrix = frame->height >= 720 ? AVCOL_SPC_BT709 : AVCOL_SPC_SMPTE170M;
    }
    const int *coefficients = sws_getCoefficients(matrix);
    sws_setColorspaceDetails(source->scaler, coefficients, frame->color_range == AVCOL_RANGE_JPEG,
                             sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16, 1 << 16);
}

int source_convert(struct source *source, uint8_t *rgb, char *error, int error_size)
{
    const AVFrame *frame = source->frame;
    const struct source_info *info = &source->info;
    /* The fast path to RGB works in groups of pixels and leaves the last ones of a row unwritten
     * when rows have no padding and no whole number of groups; the accurate path writes them all.
     */
    const int flags = SWS_BILINEAR | (info->width % 16 ? SWS_ACCURATE_RND : 0);
    source->scaler =
        sws_getCachedContext(source->scaler, frame->width, frame->height, frame->format,
                             info->width, info->height, AV_PIX_FMT_RGB24, flags, NULL, NULL, NULL);
    if (!source->scaler) {
        const char *name = av_get_pix_fmt_name(frame->format);
        return fail(error, error_size, "cannot convert to RGB from", name ? name : "?", 0);
    }
    set_colours(source);
    uint8_t *planes[4] = {rgb, NULL, NULL, NULL};
    const int strides[4] = {info->width * 3, 0, 0, 0};
    const int rows = sws_scale(source->scaler, (const uint8_t *const *)frame->data, frame->linesize,
                               0, frame->height, planes, strides);
    if (rows != info->height) {
        return fail(error, error_size, "cannot convert a frame of", source->name,
                    rows < 0 ? rows : AVERROR_UNKNOWN);
    }
    return 0;
}

int source_rewind(struct source *source, char *error, int error_size)
{
    const struct source_info before = source->info;
    if (before.live) {
        return fail(error, error_size, "there is no beginning to go back to in", source->name, 0);
    }
    /* Opened again, not sought: that works for every format, with or without an index. */
    avcodec_free_context(&source->decoder);
    avformat_close_input(&source->format);
    source->draining = 0;
    source->first_pts = AV_NOPTS_VALUE;
    source->last_pts_s = 0;
    source->index = 0;
    if (open_input(source, error, error_size) != 0) {
        return -1;
    }
    source->info = before; /* frames keep their size, whatever has become of the file */
    return 0;
}
