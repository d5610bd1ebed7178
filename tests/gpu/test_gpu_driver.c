/* Machines without a driver or a GPU, devices that processes number differently, and fork: G01,
 * G04, G08. */
#include <sys/wait.h>

#include "gpu/gpu_roles.h"
#include "pool/observe.h"

#define WORDS ((int64_t)1 << 16)

/* ------------------------------------------------------------------ G01 */

/* All that needs no GPU works, and what needs one says what is missing. */
static void check_cpu_only(const char *missing)
{
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pool = gpu_register(bus, "host", TB_CPU, WORDS, 2);
    tb_reader *reader = gpu_open_reader(bus, "producer/host", 0);
    tb_loan *loan;
    tb_frame *frame;
    tb_pool_options options = gpu_words_options("device", TB_CUDA(0), WORDS, 0);
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    *(uint32_t *)tb_loan_tensor(loan)->data = 1;
    CHECK_OK(tb_loan_publish(loan, NULL));
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    CHECK_EQ(*(uint32_t *)tb_frame_tensor(frame)->data, 1);
    CHECK_OK(tb_frame_poll(frame));
    CHECK_OK(tb_frame_wait_on(frame, NULL)); /* nothing is to be waited for */
    CHECK_STATUS(tb_frame_release_on(frame, NULL), TB_E_UNSUPPORTED);
    CHECK_EQ(gpu_reader_stats(reader).held, 0);
    CHECK_STATUS(tb_pool_register(bus, &options, &pool), TB_E_UNSUPPORTED);
    CHECK_HAS(tb_last_error_text(), missing);
    pool = gpu_register(bus, "other", TB_CPU, WORDS, 2);
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    CHECK_STATUS(tb_loan_publish_on(loan, NULL, NULL), TB_E_UNSUPPORTED);
    CHECK_HAS(tb_last_error_text(), missing);
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan)); /* its slot is back */
    tb_loan_cancel(loan);
    tb_reader_options ordered = {.size = sizeof ordered, .stream_ordered = 1};
    if (tb_reader_open(bus, "producer/host", &ordered, &reader) == TB_OK) {
        CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
        CHECK_OK(tb_frame_poll(frame));
        CHECK_EQ(*(uint32_t *)tb_frame_tensor(frame)->data, 1);
        tb_frame_release(frame);
    } else {
        CHECK_HAS(tb_last_error_text(), missing);
    }
    tb_bus_close(bus);
}

static void G01_a_driver_without_a_gpu(void)
{
    gpu_need_fake();
    gpu_machine("devices=0");
    harness_allow_driver();
    check_cpu_only("cuInit");
}

static void G01_no_gpu_is_visible(void)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    harness_allow_driver();
    if (gpu_fake() == NULL && dlopen("libcuda.so.1", RTLD_NOW) == NULL) {
        harness_skip("no libcuda.so.1");
    }
    check_cpu_only("CUDA_VISIBLE_DEVICES is ``");
}

static void freopen_null(void)
{
    if (freopen("/dev/null", "we", stdout) == NULL) {
        _exit(126);
    }
}

/* This program again, with a libcuda.so.1 that cannot be loaded found first. */
static void G01_no_driver(void)
{
    char folder[] = "/tmp/tb-test-gpu-XXXXXX";
    char path[64];
    int status;
    gpu_skip_under(NULL, "the tool has its own library loaded, which needs the driver's");
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
    FILE *file = fopen(path, "we");
    CHECK(file != NULL);
    fclose(file);
    pid_t pid = fork();
    if (pid == 0) {
        freopen_null();
        setenv("LD_LIBRARY_PATH", folder, 1);
        setenv("TB_TEST_NO_DRIVER", "1", 1);
        execl("/proc/self/exe", "test", "G01_inside_no_driver", (char *)NULL);
        _exit(127);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    unlink(path);
    rmdir(folder);
    CHECK_EQ(status, 0);
}

static void G01_inside_no_driver(void)
{
    if (getenv("TB_TEST_NO_DRIVER") == NULL) {
        harness_skip("it is for G01_no_driver");
    }
    check_cpu_only("GPUs need the NVIDIA driver's libcuda.so.1");
}

/* A process without a GPU meets a pool on one: its reader says why not, its tools see the counters,
 * and the owner is undisturbed. */
static void G01_a_process_without_a_gpu_meets_a_pool_on_one(void)
{
    struct producer producer = {0};
    tb_reader *reader;
    if (gpu_fake() == NULL) {
        harness_skip("a process of this kind cannot hide the driver from itself");
    }
    producer_start(&producer);
    producer_must(&producer, DO_PUBLISH, 0, 1);
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 2);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    harness_allow_driver();
    tb_bus *bus = gpu_open_bus("consumer");
    tb_reader_options options = {.size = sizeof options, .wait_ns = TB_SECONDS(5)};
    for (uint32_t ordered = 0; ordered < 2; ordered++) {
        options.stream_ordered = ordered;
        CHECK_STATUS(tb_reader_open(bus, "producer/frames", &options, &reader), TB_E_UNSUPPORTED);
        CHECK_HAS(tb_last_error_text(), "CUDA_VISIBLE_DEVICES is ``");
    }
    CHECK_WITHIN_MS(producer_ask(&producer, DO_READERS, 0, 0).number == 0, 2000);
    tb__observer *observer;
    struct tb__observation seen;
    CHECK_OK(tb__observer_open(bus, "producer/frames", &observer));
    CHECK_WITHIN_MS((tb__observer_look(observer, &seen), seen.stats.frames == 1), 2000);
    CHECK_EQ(seen.sequence, 1); /* the pending one does not count */
    CHECK_HAS(seen.tensor, "uint32[262144]");
    producer_must(&producer, DO_RELEASE, 0, 0);
    CHECK_WITHIN_MS((tb__observer_look(observer, &seen), seen.stats.frames == 2), 2000);
    CHECK_EQ(seen.sequence, 2);
    tb__observer_close(observer);
    tb_bus_close(bus);
    producer_end(&producer);
}

/* ------------------------------------------------------------------ devices by UUID */

/* The producer's cuda:0 is the consumer's cuda:1. */
static void G01_devices_are_matched_by_uuid(void)
{
    struct producer producer = {.visible = "1"};
    struct consumer consumer;
    gpu_need_fake();
    gpu_machine("devices=2");
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    tb_cuda_stream stream = gpu_stream_on(gpu_second());
    tb_reader *plain = gpu_open_reader(consumer.bus, "producer/frames", 0);
    tb_frame *frame;
    producer_must(&producer, DO_BRAKE, 0, 0);
    producer_must(&producer, DO_PUBLISH, 0, 55);
    frame = consumer_next(&consumer, 1);
    CHECK_EQ(tb_frame_tensor(frame)->device, TB_CUDA(1));
    CHECK_OK(tb_frame_wait_on(frame, stream));
    CHECK_OK(tb_frame_release_on(frame, stream));
    CHECK_EQ(gpu_is_idle(stream), 0);
    producer_must(&producer, DO_RELEASE, 0, 0);
    gpu_synchronize(stream);
    CHECK_OK(tb_reader_next(plain, TB_SECONDS(5), &frame));
    CHECK_EQ(tb_frame_tensor(frame)->device, TB_CUDA(1));
    gpu_check(tb_frame_tensor(frame), 55);
    tb_frame_release(frame);
    consumer_end(&consumer);
    gpu_stream_end(stream);
    producer_end(&producer);
}

static void G01_a_uuid_in_the_environment_names_the_device(void)
{
    char uuid[TB__UUID_TEXT] = "GPU-66616b65-2067-7075-2031-000000000047"; /* the fake's second */
    struct producer producer = {.visible = uuid};
    struct consumer consumer;
    gpu_need_fake();
    gpu_machine("devices=2");
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    producer_must(&producer, DO_PUBLISH, 0, 56);
    tb_frame *frame = consumer_next(&consumer, 1);
    CHECK_EQ(tb_frame_tensor(frame)->device, TB_CUDA(1));
    tb_frame_release(frame);
    consumer_end(&consumer);
    producer_end(&producer);
}

static void G01_a_device_that_the_reader_does_not_see(void)
{
    struct producer producer = {.visible = "0"};
    tb_reader *reader;
    gpu_need_fake();
    gpu_machine("devices=2");
    producer_start(&producer);
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    gpu_begin();
    producer_ready(&producer);
    tb_bus *bus = gpu_open_bus("consumer");
    tb_reader_options options = {.size = sizeof options, .wait_ns = TB_SECONDS(5)};
    CHECK_STATUS(tb_reader_open(bus, "producer/frames", &options, &reader), TB_E_NOT_FOUND);
    CHECK_HAS(tb_last_error_text(), "start it with that device visible");
    CHECK_HAS(tb_last_error_text(), "GPU-");
    CHECK_WITHIN_MS(producer_ask(&producer, DO_READERS, 0, 0).number == 0, 2000);
    tb_bus_close(bus);
    producer_end(&producer);
}

/* ------------------------------------------------------------------ G04 */

/* NULL is the default stream of the context that is current, else of the pool's device. */
static void G04_the_default_stream_is_that_of_the_current_context(void)
{
    gpu_machine("devices=2");
    const struct tb__gpu *first = gpu_begin(); /* its context is current */
    const struct tb__gpu *second = gpu_second();
    struct gpu_brake brake;
    struct tb__gpu_scope inner;
    tb_bus *bus = gpu_open_bus("producer");
    tb_pool *pools[2] = {gpu_register(bus, "first", TB_CUDA(0), WORDS, 2),
                         gpu_register(bus, "second", TB_CUDA(1), WORDS, 2)};
    gpu_brake_init(&brake);
    for (int i = 0; i < 2; i++) {
        const struct tb__gpu *gpu = i == 0 ? first : second;
        tb_reader *reader = gpu_open_reader(bus, i == 0 ? "producer/first" : "producer/second", 1);
        tb_frame *frame;
        CHECK_OK(tb__gpu_enter(gpu, &inner));
        gpu_brake_put(&brake, gpu, NULL);
        gpu_publish(pools[i], 40u + (uint32_t)i, NULL, NULL);
        CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
        CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN); /* it was published on that very stream */
        gpu_brake_off(&brake);
        CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 2000);
        gpu_check(tb_frame_tensor(frame), 40u + (uint32_t)i);
        tb_frame_release(frame);
        tb__gpu_leave(&inner);
    }
    tb_bus_close(bus);
    gpu_brake_end(&brake);
}

/* A thread without a context of its own: the pool's device. */
struct bare {
    tb_pool *pool;
    tb_status status;
};

static void *publish_bare(void *argument)
{
    struct bare *bare = argument;
    tb_loan *loan;
    bare->status = tb_pool_loan(bare->pool, TB_POLL, &loan);
    if (bare->status == TB_OK) {
        bare->status = tb_loan_publish_on(loan, NULL, NULL);
    }
    return NULL;
}

static void G04_without_a_context_it_is_that_of_the_pools_device(void)
{
    pthread_t thread;
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    struct bare bare = {.pool = gpu_register(bus, "frames", TB_CUDA(0), WORDS, 2)};
    CHECK_EQ(pthread_create(&thread, NULL, publish_bare, &bare), 0);
    pthread_join(thread, NULL);
    CHECK_OK(bare.status);
    CHECK_WITHIN_MS(gpu_pool_stats(bare.pool).frames == 1, 2000);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ G08 */

struct legacy {
    tb_bus *bus;
    tb_pool *pool;
    tb_reader *reader;
    tb_frame *frame;
    tb_cuda_stream stream;
};

/* The child of a fork() that came after CUDA was initialised. */
static void forked_child(void *argument)
{
    const struct legacy *legacy = argument;
    tb_loan *loan;
    tb_pool *pool;
    tb_frame *frame;
    CHECK_STATUS(tb_pool_loan(legacy->pool, TB_POLL, &loan), TB_E_FORKED);
    CHECK_STATUS(tb_reader_next(legacy->reader, TB_POLL, &frame), TB_E_FORKED);
    CHECK_STATUS(tb_frame_wait_on(legacy->frame, legacy->stream), TB_E_FORKED);
    CHECK_STATUS(tb_frame_release_on(legacy->frame, legacy->stream), TB_E_FORKED);
    CHECK_STATUS(tb_frame_poll(legacy->frame), TB_E_FORKED);
    tb_pool_close(legacy->pool);
    tb_bus_close(legacy->bus);
    /* A bus of its own: the CPU's part works, a GPU is an error that says what to do. */
    tb_bus *bus = gpu_open_bus("child");
    pool = gpu_register(bus, "host", TB_CPU, WORDS, 2);
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    CHECK_STATUS(tb_loan_publish_on(loan, NULL, NULL), TB_E_FORKED);
    CHECK_HAS(tb_last_error_text(), "fork");
    tb_pool_options options = gpu_words_options("device", TB_CUDA(0), WORDS, 0);
    CHECK_STATUS(tb_pool_register(bus, &options, &pool), TB_E_FORKED);
    CHECK_HAS(tb_last_error_text(), "spawn or exec");
    tb_bus_close(bus);
}

static void G08_a_child_of_a_fork_is_told_and_its_parent_goes_on(void)
{
    struct child child;
    struct legacy legacy;
    struct gpu_brake brake;
    tb_frame *frame;
    gpu_skip_under(NULL, "the tool does not come through a fork after the driver's start");
#if defined(__SANITIZE_ADDRESS__)
    /* GCC's forks without its allocator's locks, one of which a thread of the driver may have. */
    harness_skip("AddressSanitizer does not come through a fork after the driver's start");
#endif
    const struct tb__gpu *gpu = gpu_begin();
    gpu_brake_init(&brake);
    legacy.bus = gpu_open_bus("producer");
    legacy.pool = gpu_register(legacy.bus, "frames", TB_CUDA(0), WORDS, 3);
    legacy.reader = gpu_open_reader(legacy.bus, "producer/frames", 1);
    legacy.stream = gpu_stream();
    gpu_brake_put(&brake, gpu, legacy.stream);
    gpu_publish(legacy.pool, 80, legacy.stream, NULL);
    CHECK_OK(tb_reader_next(legacy.reader, TB_POLL, &legacy.frame));
    child_start(&child, "child", forked_child, &legacy);
    child_join(&child);
    CHECK_STATUS(tb_frame_poll(legacy.frame), TB_AGAIN);
    gpu_brake_off(&brake);
    CHECK_WITHIN_MS(tb_frame_poll(legacy.frame) == TB_OK, 2000);
    gpu_check(tb_frame_tensor(legacy.frame), 80);
    CHECK_OK(tb_frame_release_on(legacy.frame, legacy.stream));
    for (uint32_t n = 81; n < 90; n++) {
        gpu_publish(legacy.pool, n, legacy.stream, NULL);
        CHECK_OK(tb_reader_next(legacy.reader, TB_POLL, &frame));
        CHECK_OK(tb_frame_wait_on(frame, legacy.stream));
        CHECK_OK(tb_frame_release_on(frame, legacy.stream));
    }
    tb_bus_close(legacy.bus);
    gpu_stream_end(legacy.stream);
    gpu_brake_end(&brake);
}

static const struct test tests[] = {
    TEST(G01_a_driver_without_a_gpu, 30),
    TEST(G01_no_gpu_is_visible, 30),
    TEST(G01_no_driver, 30),
    TEST(G01_inside_no_driver, 30),
    TEST(G01_a_process_without_a_gpu_meets_a_pool_on_one, 30),
    TEST(G01_devices_are_matched_by_uuid, 30),
    TEST(G01_a_uuid_in_the_environment_names_the_device, 30),
    TEST(G01_a_device_that_the_reader_does_not_see, 30),
    TEST(G04_the_default_stream_is_that_of_the_current_context, 30),
    TEST(G04_without_a_context_it_is_that_of_the_pools_device, 30),
    TEST(G08_a_child_of_a_fork_is_told_and_its_parent_goes_on, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
