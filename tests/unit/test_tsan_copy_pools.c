/* Pools with copy_threads: what is written and begun ahead arrives whole, however a loan, a pool or
 * a bus ends; signals and forks stay apart. Run under ThreadSanitizer, too. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "copy_fixture.h"
#include "pool/state.h"

/* Threads of this process by name; -1: it cannot be told. */
static int count_threads(const char *name)
{
    char command[128];
    snprintf(command, sizeof command, "cat /proc/%d/task/*/comm | grep -c '^%s$'", (int)getpid(),
             name);
    FILE *pipe = popen(command, "r");
    int count = -1;
    if (pipe == NULL || fscanf(pipe, "%d", &count) != 1) {
        count = -1;
    }
    if (pipe != NULL) {
        pclose(pipe);
    }
    return count;
}

struct bench {
    char directory[40];
    tb_bus *bus;
};

static void bus_begin(struct bench *test)
{
    strcpy(test->directory, "/tmp/tb-copy-XXXXXX");
    assert_non_null(mkdtemp(test->directory));
    tb_bus_options options = {.size = sizeof options, .name = "one", .directory = test->directory};
    assert_int_equal(tb_bus_open(&options, &test->bus), TB_OK);
}

static void bus_end(struct bench *test)
{
    tb_bus_close(test->bus);
    char command[80];
    snprintf(command, sizeof command, "rm -r %s", test->directory);
    assert_int_equal(system(command), 0);
}

static tb_pool_options large_pool(uint32_t threads)
{
    return (tb_pool_options){.size = sizeof(tb_pool_options),
                             .dtype = TB_U8,
                             .ndim = 1,
                             .shape = {(int64_t)LARGE},
                             .slots = 2,
                             .copy_threads = threads};
}

static void pools_write_with_a_team(void **state)
{
    (void)state;
    struct bench test;
    bus_begin(&test);
    tb_pool_options options = large_pool(3);
    tb_pool *pool;
    assert_int_equal(tb_pool_register(test.bus, &options, &pool), TB_OK);
    assert_int_equal(count_threads("tensorbus-copy"), 2);
    uint8_t *src = malloc(2 * LARGE);
    assert_non_null(src);
    fill(src, 2 * LARGE, 5);
    for (int strided = 0; strided < 2; strided++) {
        int64_t shape = (int64_t)LARGE, stride = strided ? 2 : 1;
        tb_tensor tensor = {
            .data = src, .dtype = TB_U8, .ndim = 1, .shape = {shape}, .strides = &stride};
        tb_loan *loan;
        assert_int_equal(tb_pool_loan(pool, 0, &loan), TB_OK);
        assert_int_equal(tb_loan_write(loan, &tensor), TB_OK);
        const uint8_t *slot = tb_loan_tensor(loan)->data;
        for (size_t i = 0; i < LARGE; i++) {
            if (slot[i] != src[i * (size_t)stride]) {
                fail_msg("byte %zu", i);
            }
        }
        assert_int_equal(tb_loan_publish(loan, NULL), TB_OK);
    }
    free(src);
    tb_pool_close(pool);
    assert_int_equal(count_threads("tensorbus-copy"), 0);
    bus_end(&test);
}

static void check_slot(const uint8_t *slot, const uint8_t *src)
{
    assert_memory_equal(slot, src, LARGE);
}

/* What ends a loan ends what was begun for it. */
static void a_write_is_begun_ahead(void **state)
{
    (void)state;
    struct bench test;
    bus_begin(&test);
    tb_pool_options options = large_pool(2);
    tb_pool *pool;
    assert_int_equal(tb_pool_register(test.bus, &options, &pool), TB_OK);
    uint8_t *src = malloc(2 * LARGE);
    assert_non_null(src);
    fill(src, 2 * LARGE, 21);
    tb_tensor tensor = {.data = src, .dtype = TB_U8, .ndim = 1, .shape = {(int64_t)LARGE}};
    tb_tensor other = tensor;
    other.data = src + LARGE;
    tb_tensor wrong = tensor;
    wrong.shape[0]--;
    for (int round = 0; round < 30; round++) {
        tb_loan *loan, *second;
        assert_int_equal(tb_pool_loan(pool, 0, &loan), TB_OK);
        const uint8_t *slot = tb_loan_tensor(loan)->data;
        memset(tb_loan_tensor(loan)->data, 0, LARGE);
        assert_int_equal(tb_loan_write_ahead(loan, &wrong), TB_E_MISMATCH);
        assert_int_equal(tb_loan_write_ahead(loan, &tensor), TB_OK);
        if (round == 0) { /* while the team is busy, others copy alone */
            wait_for_help(pool->copy_team, 0);
            assert_int_equal(tb_pool_loan(pool, 0, &second), TB_OK);
            assert_int_equal(tb_loan_write_ahead(second, &other), TB_OK);
            assert_int_equal(tb_loan_write(second, &other), TB_OK);
            check_slot(tb_loan_tensor(second)->data, other.data);
            tb_loan_cancel(second);
        }
        switch (round % 5) {
        case 0:
            assert_int_equal(tb_loan_write(loan, &tensor), TB_OK);
            check_slot(slot, tensor.data);
            break;
        case 1:
            assert_int_equal(tb_loan_write(loan, &other), TB_OK);
            check_slot(slot, other.data);
            break;
        case 2:
            assert_int_equal(tb_loan_write_ahead(loan, &other), TB_OK);
            assert_int_equal(tb_loan_write(loan, &other), TB_OK);
            check_slot(slot, other.data);
            break;
        case 3: /* it should have been written; nobody sees half a frame even so */
            assert_int_equal(tb_loan_publish(loan, NULL), TB_OK);
            check_slot(slot, tensor.data);
            continue;
        default:
            tb_loan_cancel(loan);
            fill(src, 2 * LARGE, (uint32_t)round);
            continue;
        }
        assert_int_equal(tb_loan_publish(loan, NULL), TB_OK);
        check_slot(slot, round % 5 == 0 ? tensor.data : other.data);
    }
    assert_int_equal(tb_loan_write_ahead(NULL, &tensor), TB_E_INVALID);
    tb_loan *open;
    assert_int_equal(tb_pool_loan(pool, 0, &open), TB_OK);
    assert_int_equal(tb_loan_write_ahead(open, &tensor), TB_OK);
    tb_pool_close(pool);
    free(src); /* nobody reads it any more */
    bus_end(&test);
}

/* The shape, and what a promise says of it, are those of the write. */
static void what_is_begun_is_what_is_written(void **state)
{
    (void)state;
    struct bench test;
    bus_begin(&test);
    tb_pool_options options = large_pool(2);
    options.capacity_bytes = LARGE;
    tb_pool *pool;
    tb_loan *loan;
    tb_handle handle;
    assert_int_equal(tb_pool_register(test.bus, &options, &pool), TB_OK);
    uint8_t *src = malloc(LARGE);
    assert_non_null(src);
    fill(src, LARGE, 3);
    tb_tensor less = {.data = src, .dtype = TB_U8, .ndim = 1, .shape = {(int64_t)LARGE - 1}};
    assert_int_equal(tb_pool_loan(pool, 0, &loan), TB_OK);
    memset(tb_loan_tensor(loan)->data, 0, LARGE);
    assert_int_equal(tb_loan_promise(loan, &handle), TB_OK);
    assert_int_equal(tb_loan_write_ahead(loan, &less), TB_E_MISMATCH);
    usleep(2000);
    assert_int_equal(((uint8_t *)tb_loan_tensor(loan)->data)[1], 0);
    tb_loan_cancel(loan);
    assert_int_equal(tb_pool_loan(pool, 0, &loan), TB_OK);
    assert_int_equal(tb_loan_write_ahead(loan, &less), TB_OK);
    assert_int_equal(tb_loan_tensor(loan)->shape[0], LARGE - 1);
    assert_int_equal(tb_loan_publish(loan, &handle), TB_OK);
    assert_int_equal(handle.bytes, LARGE - 1);
    free(src);
    bus_end(&test);
}

/* A bus ends what was begun before it takes away what is read from. */
static void a_bus_closes_while_its_frame_is_copied(void **state)
{
    (void)state;
    enum { TIMES = 8 };
    for (int round = 0; round < 4; round++) {
        struct bench test;
        bus_begin(&test);
        tb_pool_options options = large_pool(2);
        options.shape[0] = TIMES * (int64_t)LARGE;
        tb_pool *from, *to;
        assert_int_equal(tb_pool_register(test.bus, &options, &from), TB_OK);
        assert_int_equal(tb_pool_register(test.bus, &options, &to), TB_OK);
        tb_loan *loan;
        tb_handle handle;
        tb_frame *frame;
        assert_int_equal(tb_pool_loan(from, 0, &loan), TB_OK);
        assert_int_equal(tb_loan_publish(loan, &handle), TB_OK);
        assert_int_equal(tb_frame_open(test.bus, &handle, 0, &frame), TB_OK);
        assert_int_equal(tb_pool_loan(to, 0, &loan), TB_OK);
        assert_int_equal(tb_loan_write_ahead(loan, tb_frame_tensor(frame)), TB_OK);
        usleep(200); /* the helper has begun, and is far from the end */
        bus_end(&test);
    }
}

static void options_are_checked(void **state)
{
    (void)state;
    struct bench test;
    bus_begin(&test);
    tb_pool *pool = NULL;
    tb_pool_options options = large_pool(TB_MAX_COPY_THREADS + 1);
    assert_int_equal(tb_pool_register(test.bus, &options, &pool), TB_E_LIMIT);
    assert_non_null(strstr(tb_last_error_text(), "copy_threads 33, at most 32"));
    options = large_pool(2);
    options.device = TB_CUDA(0);
    assert_int_equal(tb_pool_register(test.bus, &options, &pool), TB_E_UNSUPPORTED);
    assert_non_null(strstr(tb_last_error_text(), "copy_threads"));
    for (uint32_t threads = 0; threads <= 1; threads++) {
        options = large_pool(threads);
        assert_int_equal(tb_pool_register(test.bus, &options, &pool), TB_OK);
        assert_int_equal(count_threads("tensorbus-copy"), 0);
        tb_pool_close(pool);
    }
    options = large_pool(4);
    options.name = "twice";
    options.require_zero_copy = 1; /* nothing to copy */
    assert_int_equal(tb_pool_register(test.bus, &options, &pool), TB_OK);
    assert_int_equal(count_threads("tensorbus-copy"), 0);
    options.require_zero_copy = 0;
    tb_pool *second = NULL;
    assert_int_equal(tb_pool_register(test.bus, &options, &second), TB_E_EXISTS);
    assert_int_equal(count_threads("tensorbus-copy"), 0); /* those that it had started are gone */
    tb_pool_close(pool);
    bus_end(&test);
}

static volatile sig_atomic_t handled_by;

static void note_thread(int number)
{
    (void)number;
    handled_by = (sig_atomic_t)gettid();
}

/* An application's signals stay with its own threads; its fork has no helpers, and ends well. */
static void signals_and_forks_stay_apart(void **state)
{
    (void)state;
    struct bench test;
    bus_begin(&test);
    tb_pool_options options = large_pool(4);
    tb_pool *pool;
    assert_int_equal(tb_pool_register(test.bus, &options, &pool), TB_OK);
    struct sigaction action = {.sa_handler = note_thread}, before;
    assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, &old); /* now only the helpers could take it */
    kill(getpid(), SIGUSR1);
    uint8_t *src = calloc(1, LARGE);
    tb_tensor tensor = {.data = src, .dtype = TB_U8, .ndim = 1, .shape = {(int64_t)LARGE}};
    for (int i = 0; i < 20; i++) { /* the helpers run */
        assert_int_equal(tb_pool_write(pool, &tensor, 0, NULL), TB_OK);
    }
    assert_int_equal(handled_by, 0);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    assert_int_equal(handled_by, gettid());
    sigaction(SIGUSR1, &before, NULL);

    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int wrong = tb_pool_write(pool, &tensor, 0, NULL) != TB_E_FORKED;
        tb_pool_close(pool); /* joins nothing */
        _exit(wrong);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(tb_pool_write(pool, &tensor, 0, NULL), TB_OK);
    free(src);
    tb_pool_close(pool);
    bus_end(&test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_write_with_a_team),
        cmocka_unit_test(a_write_is_begun_ahead),
        cmocka_unit_test(what_is_begun_is_what_is_written),
        cmocka_unit_test(a_bus_closes_while_its_frame_is_copied),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(signals_and_forks_stay_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
