/* The lease protocol with owner and readers on one mapping, so that ThreadSanitizer sees both sides
 * (two mappings of one memory hide races from it). The library's own code runs on both; only the
 * pointers of the reader are moved to the owner's mapping. Also run without the sanitizer, where it
 * checks that no frame is torn, lost or taken twice. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "pool/state.h"

#define FRAMES 20000
#define BYTES 512
#define WRITERS 2
#define SHARERS 2

struct one_mapping {
    char directory[32];
    tb_bus *bus;
    tb_pool *pool;
    tb_reader *reader;
    struct tb__segment segment; /* the reader's own, to be put back */
    struct tb__page_shm *page;
    int raw; /* payload in atomic words, for readers without a lease */
    _Atomic uint32_t written;
    _Atomic uint32_t taken;
    _Atomic uint32_t wrong;
    _Atomic int finished;
    _Atomic uint8_t seen[FRAMES + 1]; /* how often each sequence was returned */
};

static void move_reader(struct one_mapping *test)
{
    tb_reader *reader = test->reader;
    test->segment = reader->segment;
    test->page = reader->page.shm;
    reader->segment = test->pool->segment;
    const struct tb__page_set *set = tb__pages_enter(test->pool);
    assert_non_null(set);
    assert_int_equal(set->count, 1);
    reader->page.shm = set->refs[0].shm;
    tb__pages_leave(test->pool);
    assert_ptr_not_equal(reader->page.shm, test->page);
}

static void begin(struct one_mapping *test, const tb_pool_options *pool, int every)
{
    strcpy(test->directory, "/tmp/tb-one-XXXXXX");
    assert_non_null(mkdtemp(test->directory));
    tb_bus_options bus = {.size = sizeof bus, .name = "one", .directory = test->directory};
    assert_int_equal(tb_bus_open(&bus, &test->bus), TB_OK);
    assert_int_equal(tb_pool_register(test->bus, pool, &test->pool), TB_OK);
    tb_reader_options reader = {.size = sizeof reader, .every = (uint32_t)every, .max_leases = 6};
    assert_int_equal(tb_reader_open(test->bus, "one/frames", &reader, &test->reader), TB_OK);
    move_reader(test);
}

static void end(struct one_mapping *test)
{
    test->reader->segment = test->segment;
    test->reader->page.shm = test->page;
    tb_reader_close(test->reader);
    tb_pool_close(test->pool);
    tb_bus_close(test->bus);
    char path[64];
    snprintf(path, sizeof path, "%s/default", test->directory);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(test->directory), 0);
}

static void fill(const struct one_mapping *test, uint8_t *data, uint8_t value)
{
    if (!test->raw) {
        memset(data, value, BYTES);
        return;
    }
    for (size_t i = 0; i < BYTES; i += 8) {
        tb__a64_store_relaxed((struct tb__a64 *)(data + i), value * UINT64_C(0x0101010101010101));
    }
}

static int uniform(const uint8_t *data)
{
    for (size_t i = 1; i < BYTES; i++) {
        if (data[i] != data[0]) {
            return 0;
        }
    }
    return 1;
}

static void *writer(void *argument)
{
    struct one_mapping *test = argument;
    for (;;) {
        uint32_t number = atomic_fetch_add(&test->written, 1);
        if (number >= FRAMES) {
            return NULL;
        }
        tb_loan *loan;
        if (tb_pool_loan(test->pool, TB_SECONDS(60), &loan) != TB_OK) {
            atomic_fetch_add(&test->wrong, 1);
            return NULL;
        }
        fill(test, tb_loan_tensor(loan)->data, (uint8_t)number);
        if (tb_loan_publish(loan, NULL) != TB_OK) {
            atomic_fetch_add(&test->wrong, 1);
        }
    }
}

/* Takes frames in order; looks at each again by its handle, and through a second hold. */
static void *sharer(void *argument)
{
    struct one_mapping *test = argument;
    while (atomic_load(&test->taken) < FRAMES) {
        tb_frame *frame;
        tb_status status = tb_reader_next(test->reader, TB_MILLIS(20), &frame);
        if (status == TB_AGAIN) {
            if (atomic_load(&test->finished)) {
                return NULL;
            }
            continue;
        }
        if (status != TB_OK) {
            atomic_fetch_add(&test->wrong, 1);
            return NULL;
        }
        tb_frame_info info = {.size = sizeof info};
        int good = tb_frame_get_info(frame, &info) == TB_OK && info.sequence >= 1 &&
                   info.sequence <= FRAMES && uniform(tb_frame_tensor(frame)->data);
        tb_frame *again = NULL;
        good = good && tb_reader_frame(test->reader, &info.handle, &again) == TB_OK;
        tb_frame *held = NULL;
        good = good && tb_frame_hold(frame, &held) == TB_OK;
        tb_frame_release(frame);
        tb_frame_release(again);
        good = good && uniform(tb_frame_tensor(held)->data);
        tb_frame_release(held);
        if (good) {
            atomic_fetch_add(&test->seen[info.sequence], 1);
        } else {
            atomic_fetch_add(&test->wrong, 1);
        }
        atomic_fetch_add(&test->taken, 1 + (uint32_t)info.missed);
    }
    return NULL;
}

static void *raw_reader(void *argument)
{
    struct one_mapping *test = argument;
    uint8_t copy[BYTES];
    while (!atomic_load(&test->finished)) {
        size_t bytes;
        uint64_t sequence;
        tb_status status =
            tb_reader_copy_newest(test->reader, copy, sizeof copy, &bytes, &sequence);
        if (status == TB_OK && (bytes != BYTES || !uniform(copy))) {
            atomic_fetch_add(&test->wrong, 1);
        }
        if (status == TB_OK) {
            atomic_fetch_add(&test->taken, 1);
        }
    }
    return NULL;
}

static tb_pool_options options(tb_policy policy, uint32_t slots)
{
    return (tb_pool_options){.size = sizeof(tb_pool_options),
                             .name = "frames",
                             .dtype = TB_U8,
                             .ndim = 1,
                             .shape = {BYTES},
                             .slots = slots,
                             .policy = policy};
}

static void run(struct one_mapping *test, void *(*reading)(void *))
{
    pthread_t writers[WRITERS];
    pthread_t readers[SHARERS];
    for (int i = 0; i < SHARERS; i++) {
        assert_int_equal(pthread_create(&readers[i], NULL, reading, test), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        assert_int_equal(pthread_create(&writers[i], NULL, writer, test), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(writers[i], NULL);
    }
    atomic_store(&test->finished, 1);
    for (int i = 0; i < SHARERS; i++) {
        pthread_join(readers[i], NULL);
    }
    assert_int_equal(atomic_load(&test->wrong), 0);
}

static void every_frame_goes_to_one_thread(void **state)
{
    (void)state;
    static struct one_mapping test;
    memset(&test, 0, sizeof test);
    tb_pool_options pool = options(TB_EVERY, 4);
    begin(&test, &pool, 1);
    run(&test, sharer);
    for (uint32_t n = 1; n <= FRAMES; n++) {
        assert_int_equal(atomic_load(&test.seen[n]), 1);
    }
    end(&test);
}

static void latest_is_never_torn(void **state)
{
    (void)state;
    static struct one_mapping test;
    memset(&test, 0, sizeof test);
    /* Each thread may hold three frames: more slots than they can hold, or the writers starve. */
    tb_pool_options pool = options(TB_LATEST, 8);
    begin(&test, &pool, 0);
    run(&test, sharer);
    for (uint32_t n = 1; n <= FRAMES; n++) {
        assert_true(atomic_load(&test.seen[n]) <= 1);
    }
    end(&test);
}

static void a_copy_without_a_lease_is_whole_or_refused(void **state)
{
    (void)state;
    static struct one_mapping test;
    memset(&test, 0, sizeof test);
    test.raw = 1;
    tb_pool_options pool = options(TB_LATEST, 2);
    begin(&test, &pool, 0);
    run(&test, raw_reader);
    end(&test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_frame_goes_to_one_thread),
        cmocka_unit_test(latest_is_never_torn),
        cmocka_unit_test(a_copy_without_a_lease_is_whole_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
