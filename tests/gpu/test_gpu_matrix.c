/* Frames of each GPU, seen by readers on each, are written on to every place: pools on each GPU and
 * in host memory, on default streams and on streams of each GPU, with every context current and
 * with none, as they are and in rows. What arrives is what was sent, or the reader is refused. */
#include "cuda/copy.h"
#include "gpu/gpu_roles.h"

#define MOST 3 /* devices */
#define WORDS ((int64_t)1 << 12)

enum way { BY_WRITE, BY_WRITE_OF_ROWS, BY_COPY, WAYS };

/* One way of a frame. */
struct path {
    int to;      /* device of the pool; the number of devices: host memory */
    int stream;  /* 0: none; 1 + device; -1: the calls that wait */
    int current; /* device whose context is current; -1: none is */
    enum way way;
};

struct matrix {
    struct producer producer;
    int home, count;
    const struct tb__gpu *gpus[MOST];
    tb_bus *bus;
    tb_cuda_stream streams[1 + MOST];
    tb_pool *pools[MOST + 1];
    tb_reader *readers[MOST + 1]; /* of these pools */
    uint32_t value;
};

static void start(struct matrix *m, const char *machine)
{
    static char visible[16];
    int devices = 0;
    gpu_machine(machine);
    /* The producer sees one GPU, so that all of its work is there. */
    snprintf(visible, sizeof visible, "%d", m->home);
    m->producer = (struct producer){.words = 2 * WORDS, .visible = m->home > 0 ? visible : NULL};
    producer_start(&m->producer);
    gpu_begin();
    CHECK_OK(tb__gpu_count(&devices));
    m->count = devices < MOST ? devices : MOST;
    if (m->count < 2 || m->home >= m->count) {
        harness_skip("too few GPUs");
    }
    producer_ready(&m->producer);
    m->bus = gpu_open_bus("consumer");
    for (int i = 0; i <= m->count; i++) {
        char name[16], path[32];
        snprintf(name, sizeof name, "copies%d", i);
        snprintf(path, sizeof path, "consumer/copies%d", i);
        if (i < m->count) {
            CHECK_OK(tb__gpu_get(i, &m->gpus[i]));
            m->streams[1 + i] = gpu_stream_on(m->gpus[i]);
        }
        m->pools[i] = gpu_register(m->bus, name, i < m->count ? TB_CUDA(i) : TB_CPU, WORDS, 3);
        m->readers[i] = gpu_open_reader(m->bus, path, 0);
    }
}

static void end(struct matrix *m)
{
    tb_bus_close(m->bus);
    for (int i = 1; i <= m->count; i++) {
        gpu_stream_end(m->streams[i]);
    }
    tb__copy_trim();
    producer_end(&m->producer);
}

static tb_status copy_into_loan(tb_pool *pool, const tb_tensor *tensor, int waits,
                                tb_cuda_stream stream)
{
    tb_loan *loan;
    CHECK_OK(tb_pool_loan(pool, TB_SECONDS(5), &loan));
    tb_status status = waits ? tb_copy(tb_loan_tensor(loan), tensor)
                             : tb_copy_on(tb_loan_tensor(loan), tensor, stream);
    if (status != TB_OK) {
        tb_loan_cancel(loan);
        return status;
    }
    return waits ? tb_loan_publish(loan, NULL) : tb_loan_publish_on(loan, stream, NULL);
}

/* Half of a frame: its first half, or every other word. */
static tb_status write_on(const struct matrix *m, const struct path *path, const tb_tensor *frame)
{
    static const int64_t strides[] = {2};
    tb_pool *pool = m->pools[path->to];
    tb_tensor half = *frame;
    int waits = path->stream < 0;
    tb_cuda_stream stream = waits ? NULL : m->streams[path->stream];
    half.shape[0] = WORDS;
    half.strides = path->way == BY_WRITE_OF_ROWS ? strides : NULL;
    if (path->way == BY_COPY) {
        return copy_into_loan(pool, &half, waits, stream);
    }
    return waits ? tb_pool_write(pool, &half, TB_SECONDS(5), NULL)
                 : tb_pool_write_on(pool, &half, stream, TB_SECONDS(5), NULL);
}

static tb_frame *take(struct matrix *m, tb_reader *reader)
{
    tb_frame *frame;
    tb_handle handle = producer_must(&m->producer, DO_PUBLISH, 0, ++m->value);
    CHECK_OK(tb_reader_frame(reader, &handle, &frame));
    return frame;
}

static void arrives(struct matrix *m, const struct path *path)
{
    tb_frame *copy;
    CHECK_OK(tb_reader_next(m->readers[path->to], TB_SECONDS(5), &copy));
    if (path->to < m->count) {
        gpu_check(tb_frame_tensor(copy), m->value);
    } else {
        const uint32_t *words = tb_frame_tensor(copy)->data;
        CHECK_EQ(words[0], m->value);
        CHECK_EQ(words[WORDS - 1], m->value);
    }
    tb_frame_release(copy);
}

static void go(struct matrix *m, tb_reader *reader, const struct path *path)
{
    tb_cuda_stream stream = path->stream < 0 ? NULL : m->streams[path->stream];
    struct tb__gpu_scope scope = {0};
    tb__context none = NULL;
    tb_frame *frame = take(m, reader);
    if (path->current >= 0) {
        CHECK_OK(tb__gpu_enter(m->gpus[path->current], &scope));
    } else {
        CHECK_CUDA(tb__cuda()->ctx_pop(&none)); /* the one of gpu_begin() */
    }
    if (path->stream < 0) {
        CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 5000);
    }
    CHECK_OK(tb_frame_wait_on(frame, stream));
    tb_status status = write_on(m, path, tb_frame_tensor(frame));
    if (path->current >= 0) {
        tb__gpu_leave(&scope);
    } else {
        CHECK_CUDA(tb__cuda()->ctx_push(none));
    }
    if (status != TB_OK) {
        FAIL("from cuda:%d to %d, stream %d, current %d, way %d: %s", m->home, path->to,
             path->stream, path->current, (int)path->way, tb_last_error_text());
    }
    arrives(m, path);
    CHECK_OK(tb_frame_release_on(frame, stream));
    if (path->stream >= 0) {
        /* Given back when the stream has got past it. */
        CHECK_WITHIN_MS(gpu_reader_stats(reader).held == 0, 5000);
    }
}

static void go_every_path(struct matrix *m, tb_reader *reader)
{
    struct path path;
    for (path.to = 0; path.to <= m->count; path.to++) {
        for (path.stream = -1; path.stream <= m->count; path.stream++) {
            for (path.current = -1; path.current < m->count; path.current++) {
                for (path.way = BY_WRITE; path.way < WAYS; path.way++) {
                    go(m, reader, &path);
                }
            }
        }
    }
}

/* From a reader on each device, and from one on whichever has the pool. */
static void every_path_of(const char *machine, int home)
{
    struct matrix m = {.home = home};
    int opened = 0;
    start(&m, machine);
    for (int on = -1; on < m.count; on++) {
        tb_reader *reader;
        tb_reader_options options = {.size = sizeof options,
                                     .wait_ns = TB_SECONDS(5),
                                     .stream_ordered = 1,
                                     .device = on < 0 ? TB_CPU : TB_CUDA(on)};
        tb_status status = tb_reader_open(m.bus, "producer/frames", &options, &reader);
        if (status != TB_OK) {
            CHECK_STATUS(status, TB_E_UNSUPPORTED);
            CHECK(on >= 0 && on != home);
            continue;
        }
        opened++;
        go_every_path(&m, reader);
        tb_reader_close(reader);
    }
    CHECK_LT(1, opened);
    end(&m);
}

static void two_that_reach_each_other(void)
{
    every_path_of("devices=2;peer=0-1", 0);
}

static void three_in_a_row(void)
{
    every_path_of("devices=3;peer=0-1,1-2", 0);
}

static void three_in_a_row_from_the_last(void)
{
    gpu_need_fake(); /* which GPU is which for two processes is the fake's to say */
    every_path_of("devices=3;peer=0-1,1-2", 2);
}

static void peers_that_are_switched_off(void)
{
    setenv("TENSORBUS_GPU_PEERS", "0", 1);
    every_path_of("devices=2;peer=0-1", 0);
}

static void streams_that_cannot_wait(void)
{
    gpu_need_fake();
    every_path_of("devices=2;peer=0-1;no_stream_ops=1", 0);
}

static void plain_memory(void)
{
    gpu_need_fake();
    every_path_of("devices=2;peer=0-1;no_vmm=all", 1);
}

static void plain_memory_beside_virtual_memory(void)
{
    gpu_need_fake();
    every_path_of("devices=3;peer=0-1,0-2,1-2;no_vmm=1", 2);
}

static void integrated_ones(void)
{
    gpu_need_fake();
    every_path_of("devices=2;integrated=all;no_vmm=all", 0);
}

static void one_that_is_integrated(void)
{
    gpu_need_fake();
    every_path_of("devices=2;integrated=1;no_vmm=1", 1);
}

static const struct test tests[] = {
    TEST(two_that_reach_each_other, 60),
    TEST(three_in_a_row, 60),
    TEST(three_in_a_row_from_the_last, 60),
    TEST(peers_that_are_switched_off, 60),
    TEST(streams_that_cannot_wait, 60),
    TEST(plain_memory, 60),
    TEST(plain_memory_beside_virtual_memory, 60),
    TEST(integrated_ones, 60),
    TEST(one_that_is_integrated, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
