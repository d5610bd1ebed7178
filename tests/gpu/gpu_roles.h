/* A producer in a process of its own that does one thing after another as the test tells it, so
 * that each test decides what has happened before what. Fork it before this process opens the
 * driver. */
#ifndef TB_TESTS_GPU_ROLES_H
#define TB_TESTS_GPU_ROLES_H

#include <sys/syscall.h>

#include "gpu/gpu_fake.h"

#define PRODUCER_STREAMS 2

struct producer {
    struct child child;
    int is_ready;
    const char *name;    /* of its bus; NULL: "producer" */
    const char *visible; /* CUDA_VISIBLE_DEVICES; NULL: as it is */
    tb_device device;
    int64_t words;  /* 0: 1 MiB */
    uint32_t slots; /* 0: 4 */
};

enum producer_act {
    DO_PUBLISH,    /* fill a slot with `value` on a stream, and publish it there */
    DO_WRITE,      /* the same, but wait for the GPU and publish on the CPU */
    DO_BRAKE,      /* the stream comes to a halt */
    DO_RELEASE,    /* and goes on */
    DO_BREAK,      /* the fake: contexts of the device fail with `value`; 0: they are whole again */
    DO_LOAN,       /* borrow a slot within `value` ms, and give it back */
    DO_LEAVE_HEIR, /* a process that keeps all descriptors open for `value` ms */
    DO_READERS,    /* how many are attached */
    DO_CLOSE_POOL, /* and release all brakes in 20 ms, from another thread */
    DO_CLOSE_BUS,  /* the same for the bus */
    DO_END
};

struct producer_ask {
    enum producer_act act;
    uint32_t stream;
    uint32_t value;
};

struct producer_said {
    tb_status status;
    uint32_t number;
    tb_handle handle;
    char text[512];
};

/* ------------------------------------------------------------------ in the role */

struct producer_state {
    const struct tb__gpu *gpu;
    tb_bus *bus;
    tb_pool *pool;
    tb_cuda_stream streams[PRODUCER_STREAMS];
    struct gpu_brake brakes[PRODUCER_STREAMS];
};

static void *producer_let_go(void *argument)
{
    struct producer_state *state = argument;
    harness_sleep_us(20000);
    for (int i = 0; i < PRODUCER_STREAMS; i++) {
        gpu_brake_off(&state->brakes[i]);
    }
    return NULL;
}

static tb_status producer_publish(struct producer_state *state, const struct producer_ask *ask,
                                  tb_handle *handle)
{
    tb_loan *loan;
    tb_cuda_stream stream = state->streams[ask->stream];
    tb_status status = tb_pool_loan(state->pool, TB_SECONDS(20), &loan);
    if (status != TB_OK) {
        return status;
    }
    gpu_fill(tb_loan_tensor(loan), ask->value, stream);
    if (ask->act == DO_PUBLISH) {
        return tb_loan_publish_on(loan, stream, handle);
    }
    gpu_synchronize(stream);
    return tb_loan_publish(loan, handle);
}

static void producer_close(struct producer_state *state, int bus)
{
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, producer_let_go, state), 0);
    if (bus) {
        tb_bus_close(state->bus);
        state->bus = NULL;
    } else {
        tb_pool_close(state->pool);
    }
    state->pool = NULL;
    pthread_join(thread, NULL);
}

static void producer_do(struct producer_state *state, const struct producer_ask *ask,
                        struct producer_said *said)
{
    tb_loan *loan;
    switch (ask->act) {
    case DO_PUBLISH:
    case DO_WRITE:
        said->status = producer_publish(state, ask, &said->handle);
        break;
    case DO_BRAKE:
        gpu_brake_put(&state->brakes[ask->stream], state->gpu, state->streams[ask->stream]);
        break;
    case DO_RELEASE:
        gpu_brake_off(&state->brakes[ask->stream]);
        break;
    case DO_BREAK:
        gpu_fake()->break_device(state->gpu->ordinal, (int)ask->value);
        break;
    case DO_LOAN:
        said->status = tb_pool_loan(state->pool, TB_MILLIS(ask->value), &loan);
        if (said->status == TB_OK) {
            tb_loan_cancel(loan);
        }
        break;
    case DO_LEAVE_HEIR:
        /* Past the library's fork handlers. */
        if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
            usleep(ask->value * 1000);
            _exit(0);
        }
        break;
    case DO_READERS:
        said->number = gpu_pool_stats(state->pool).readers;
        break;
    case DO_CLOSE_POOL:
    case DO_CLOSE_BUS:
        producer_close(state, ask->act == DO_CLOSE_BUS);
        break;
    case DO_END:
        break;
    }
    if (said->status < 0) {
        snprintf(said->text, sizeof said->text, "%s", tb_last_error_text());
    }
}

static void producer_run(void *argument)
{
    const struct producer *self = argument;
    struct producer_state state = {0};
    struct producer_ask ask;
    if (self->visible != NULL) {
        setenv("CUDA_VISIBLE_DEVICES", self->visible, 1);
    }
    state.gpu = gpu_begin();
    state.bus = gpu_open_bus(self->name != NULL ? self->name : "producer");
    state.pool = gpu_register(state.bus, "frames", self->device,
                              self->words != 0 ? self->words : (int64_t)1 << 18,
                              self->slots != 0 ? self->slots : 4);
    for (int i = 0; i < PRODUCER_STREAMS; i++) {
        state.streams[i] = gpu_stream();
        gpu_brake_init(&state.brakes[i]);
    }
    parent_reached("ready");
    do {
        struct producer_said said = {.status = TB_OK};
        parent_hear(&ask, sizeof ask);
        producer_do(&state, &ask, &said);
        parent_tell(&said, sizeof said);
    } while (ask.act != DO_END);
    tb_bus_close(state.bus);
    for (int i = 0; i < PRODUCER_STREAMS; i++) {
        gpu_brake_off(&state.brakes[i]);
        gpu_stream_end(state.streams[i]);
        gpu_brake_end(&state.brakes[i]);
    }
}

/* ------------------------------------------------------------------ in the test */

static inline void producer_start(struct producer *producer)
{
    if (producer->device == 0) {
        producer->device = TB_CUDA(0);
    }
    child_start(&producer->child, producer->name != NULL ? producer->name : "producer",
                producer_run, producer);
}

static inline void producer_ready(struct producer *producer)
{
    if (!producer->is_ready) {
        child_await(&producer->child, "ready");
        producer->is_ready = 1;
    }
}

static inline struct producer_said producer_ask(struct producer *producer, enum producer_act act,
                                                uint32_t stream, uint32_t value)
{
    struct producer_ask ask = {act, stream, value};
    struct producer_said said;
    producer_ready(producer);
    child_tell(&producer->child, &ask, sizeof ask);
    child_hear(&producer->child, &said, sizeof said);
    return said;
}

static inline tb_handle producer_must(struct producer *producer, enum producer_act act,
                                      uint32_t stream, uint32_t value)
{
    struct producer_said said = producer_ask(producer, act, stream, value);
    if (said.status != TB_OK) {
        FAIL("the producer's act %d: %s: %s", (int)act, tb_status_name(said.status), said.text);
    }
    return said.handle;
}

static inline void producer_end(struct producer *producer)
{
    producer_must(producer, DO_END, 0, 0);
    child_join(&producer->child);
}

/* ------------------------------------------------------------------ the test as the consumer */

struct consumer {
    const struct tb__gpu *gpu;
    tb_bus *bus;
    tb_reader *reader; /* orders itself on the GPU */
    tb_cuda_stream stream;
    struct gpu_brake brake;
    struct gpu_seen seen;
};

static inline void consumer_begin(struct consumer *consumer, struct producer *producer)
{
    consumer->gpu = gpu_begin();
    producer_ready(producer);
    consumer->bus = gpu_open_bus("consumer");
    consumer->reader = gpu_open_reader(consumer->bus, "producer/frames", 1);
    consumer->stream = gpu_stream();
    gpu_brake_init(&consumer->brake);
    gpu_seen_init(&consumer->seen);
}

static inline void consumer_end(struct consumer *consumer)
{
    tb_bus_close(consumer->bus); /* waits for the stream, as far as it has our frames */
    gpu_brake_off(&consumer->brake);
    gpu_stream_end(consumer->stream);
    gpu_brake_end(&consumer->brake);
    gpu_seen_end(&consumer->seen);
}

/* The consumer's stream waits for the frame, looks at it, and gives it back. */
static inline void consumer_use(struct consumer *consumer, tb_frame *frame)
{
    CHECK_OK(tb_frame_wait_on(frame, consumer->stream));
    gpu_look_on(frame, consumer->stream, &consumer->seen);
    CHECK_OK(tb_frame_release_on(frame, consumer->stream));
}

/* Wait for the consumer's stream; what it has looked at must be this. */
static inline void consumer_saw(struct consumer *consumer, uint32_t value)
{
    gpu_synchronize(consumer->stream);
    gpu_check_seen(&consumer->seen, value);
}

static inline tb_frame *consumer_next(struct consumer *consumer, uint64_t sequence)
{
    tb_frame *frame;
    CHECK_OK(tb_reader_next(consumer->reader, TB_SECONDS(20), &frame));
    CHECK_EQ(gpu_info(frame).sequence, sequence);
    return frame;
}

#endif
