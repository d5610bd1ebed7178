/* Each call of the driver failing in turn, for owners and readers: G12. With the fake driver only.
 */
#include "gpu/gpu_roles.h"

#define WORDS ((int64_t)1 << 16)

/* ------------------------------------------------------------------ every call of the owner */

struct owner {
    const struct tb__gpu *gpu;
    tb_bus *bus;
    tb_pool *pool;
    tb_reader *ordered;
    tb_reader *plain;
    tb_cuda_stream stream;
};

static void owner_open(struct owner *owner)
{
    owner->bus = gpu_open_bus("producer");
    owner->pool = gpu_register(owner->bus, "frames", TB_CUDA(0), WORDS, 3);
    owner->ordered = gpu_open_reader(owner->bus, "producer/frames", 1);
    owner->plain = gpu_open_reader(owner->bus, "producer/frames", 0);
}

static void check_passes(struct owner *owner, uint32_t value)
{
    tb_reader *const readers[2] = {owner->ordered, owner->plain};
    tb_frame *frame;
    tb_handle handle;
    gpu_publish(owner->pool, value, owner->stream, &handle);
    for (int i = 0; i < 2; i++) {
        uint64_t generation = 0;
        while (generation != handle.generation) { /* the one that failed may come first */
            CHECK_OK(tb_reader_next(readers[i], TB_SECONDS(5), &frame));
            generation = gpu_info(frame).generation;
            if (generation == handle.generation) {
                CHECK_WITHIN_MS(tb_frame_poll(frame) == TB_OK, 5000);
                gpu_check(tb_frame_tensor(frame), value);
            }
            tb_frame_release(frame);
        }
    }
    /* No slot is lost: nobody holds any, so all but the newest can be had. */
    tb_loan *loans[2];
    CHECK_OK(tb_pool_loan(owner->pool, TB_SECONDS(5), &loans[0]));
    CHECK_OK(tb_pool_loan(owner->pool, TB_SECONDS(5), &loans[1]));
    tb_loan_cancel(loans[0]);
    tb_loan_cancel(loans[1]);
}

/* publish_on with its n-th driver call failing, for all n. `steady`: not the pool's first frame. */
static unsigned fail_each_publish(int code, int steady)
{
    struct owner owner = {.gpu = gpu_begin()};
    owner.stream = gpu_stream();
    unsigned n = 0;
    for (int failed = 1; failed;) {
        char rule[64];
        tb_loan *loan;
        tb_handle handle;
        owner_open(&owner);
        if (steady) {
            check_passes(&owner, 1000);
        }
        CHECK_OK(tb_pool_loan(owner.pool, TB_POLL, &loan));
        gpu_fill(tb_loan_tensor(loan), n, owner.stream);
        snprintf(rule, sizeof rule, "*:%u:%d", ++n, code);
        gpu_fake()->fail(rule);
        tb_status status = tb_loan_publish_on(loan, owner.stream, &handle);
        failed = gpu_fake()->has_failed();
        gpu_fake()->fail(NULL);
        if (status != TB_OK) {
            tb_error error;
            tb_last_error(&error);
            CHECK_EQ(error.cuda_code, code);
            CHECK(failed);
        } else {
            /* It is finished, or found to have failed, before the context is whole again: which no
             * real one ever is. */
            tb_frame *frame;
            status = tb_reader_frame(owner.ordered, &handle, &frame);
            if (status == TB_OK) {
                CHECK_WITHIN_MS(tb_frame_poll(frame) != TB_AGAIN, 5000);
                tb_frame_release(frame);
            } else {
                CHECK_STATUS(status, TB_E_STALE);
                CHECK_HAS(tb_last_error_text(), "its producer's stream failed");
                CHECK(tb__cuda_is_sticky(code));
            }
        }
        gpu_fake()->break_device(0, 0);
        check_passes(&owner, 2000 + n);
        tb_bus_close(owner.bus);
        gpu_synchronize(owner.stream);
    }
    gpu_stream_end(owner.stream);
    return n - 1;
}

static void a_first_publish_with_each_call_failing(void)
{
    gpu_need_fake();
    CHECK_LT(6, fail_each_publish(999, 0));
}

static void a_later_publish_with_each_call_failing(void)
{
    gpu_need_fake();
    CHECK_LT(4, fail_each_publish(999, 1));
}

static void a_publish_with_each_call_breaking_the_context(void)
{
    gpu_need_fake();
    CHECK_LT(4, fail_each_publish(TB__CUDA_LAUNCH_FAILED, 1));
}

/* Registering with its n-th call failing. */
static void a_registration_with_each_call_failing(void)
{
    gpu_need_fake();
    gpu_begin();
    tb_bus *bus = gpu_open_bus("producer");
    unsigned n = 0;
    for (int failed = 1; failed;) {
        tb_pool *pool;
        tb_pool_options options = gpu_words_options("frames", TB_CUDA(0), WORDS, 0);
        char rule[64];
        snprintf(rule, sizeof rule, "*:%u:2", ++n);
        gpu_fake()->fail(rule);
        tb_status status = tb_pool_register(bus, &options, &pool);
        failed = gpu_fake()->has_failed();
        gpu_fake()->fail(NULL);
        if (status != TB_OK) {
            CHECK(failed);
            CHECK_STATUS(status, TB_E_NOMEM);
            gpu_check_clean();
            CHECK_OK(tb_pool_register(bus, &options, &pool));
        }
        tb_pool_close(pool);
        gpu_check_clean();
    }
    CHECK_LT(4, n);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ every call of the reader */

static void G12_an_import_that_is_denied_leaves_nothing_behind(void)
{
    struct producer producer = {0};
    gpu_need_fake();
    producer_start(&producer);
    gpu_begin();
    producer_ready(&producer);
    tb_bus *bus = gpu_open_bus("consumer");
    tb_reader_options options = {
        .size = sizeof options, .wait_ns = TB_SECONDS(5), .stream_ordered = 1};
    unsigned n = 0;
    for (int failed = 1; failed;) {
        tb_reader *reader;
        char rule[64];
        snprintf(rule, sizeof rule, "*:%u:800", ++n);
        gpu_fake()->fail(rule);
        tb_status status = tb_reader_open(bus, "producer/frames", &options, &reader);
        failed = gpu_fake()->has_failed();
        gpu_fake()->fail(NULL);
        if (status != TB_OK) {
            tb_error error;
            tb_last_error(&error);
            CHECK(failed);
            CHECK_EQ(error.cuda_code, 800);
            CHECK_HAS(error.text, "CUDA_ERROR_NOT_PERMITTED");
            gpu_check_clean();
            CHECK_WITHIN_MS(producer_ask(&producer, DO_READERS, 0, 0).number == 0, 2000);
            CHECK_OK(tb_reader_open(bus, "producer/frames", &options, &reader));
        }
        tb_reader_close(reader);
        gpu_check_clean();
    }
    CHECK_LT(3, n);
    producer_must(&producer, DO_LOAN, 0, 100);
    tb_bus_close(bus);
    producer_end(&producer);
}

/* Waiting, copying and releasing with the n-th call failing: the frame is given back in any case.
 */
static void a_frame_used_with_each_call_failing_is_given_back(void)
{
    struct producer producer = {.slots = 2};
    struct consumer consumer;
    gpu_need_fake();
    producer_start(&producer);
    consumer_begin(&consumer, &producer);
    uint32_t *words = gpu_pinned((size_t)4 << 18);
    const tb_tensor copy = gpu_words(words, TB_CPU, (int64_t)1 << 18);
    unsigned n = 0;
    unsigned statuses = 0; /* what fails while something is put back is only logged */
    for (int failed = 1; failed;) {
        tb_frame *frame;
        char rule[64];
        producer_must(&producer, DO_BRAKE, 0, 0);
        producer_must(&producer, DO_PUBLISH, 0, 100 + n);
        CHECK_OK(tb_reader_newest(consumer.reader, TB_SECONDS(5), &frame));
        CHECK_STATUS(tb_frame_poll(frame), TB_AGAIN);
        snprintf(rule, sizeof rule, "*:%u:999", ++n);
        gpu_fake()->fail(rule);
        tb_status copied = tb_frame_copy_on(frame, &copy, consumer.stream);
        tb_status released = tb_frame_release_on(frame, consumer.stream);
        failed = gpu_fake()->has_failed();
        gpu_fake()->fail(NULL);
        CHECK(failed || (copied == TB_OK && released == TB_OK));
        statuses += copied != TB_OK || released != TB_OK;
        producer_must(&producer, DO_RELEASE, 0, 0);
        gpu_synchronize(consumer.stream);
        if (copied == TB_OK) {
            CHECK_EQ(words[0], 100 + n - 1);
        }
        CHECK_EQ(gpu_reader_stats(consumer.reader).held, 0);
        producer_must(&producer, DO_LOAN, 0, 1000);
    }
    CHECK_LT(4, statuses);
    gpu_pinned_end(words);
    consumer_end(&consumer);
    producer_end(&producer);
}

static const struct test tests[] = {
    TEST(a_first_publish_with_each_call_failing, 60),
    TEST(a_later_publish_with_each_call_failing, 60),
    TEST(a_publish_with_each_call_breaking_the_context, 60),
    TEST(a_registration_with_each_call_failing, 30),
    TEST(G12_an_import_that_is_denied_leaves_nothing_behind, 30),
    TEST(a_frame_used_with_each_call_failing_is_given_back, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
