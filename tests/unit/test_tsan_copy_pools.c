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

struct scene {
    char directory[40];
    tb_bus *bus;
    tb_pool *pool;
    uint8_t *src; /* 2 * LARGE bytes to write */
};

static void bus_begin(struct scene *scene)
{
    strcpy(scene->directory, "/tmp/tb-copy-XXXXXX");
    assert_non_null(mkdtemp(scene->directory));
    tb_bus_options options = {.size = sizeof options, .name = "one", .directory = scene->directory};
    assert_int_equal(tb_bus_open(&options, &scene->bus), TB_OK);
}

static void bus_end(struct scene *scene)
{
    tb_bus_close(scene->bus);
    char command[80];
    snprintf(command, sizeof command, "rm -r %s", scene->directory);
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

static tb_tensor bytes_at(void *data, int64_t count)
{
    return (tb_tensor){.data = data, .dtype = TB_U8, .ndim = 1, .shape = {count}};
}

static void scene_begin(struct scene *scene, const tb_pool_options *options)
{
    bus_begin(scene);
    assert_int_equal(tb_pool_register(scene->bus, options, &scene->pool), TB_OK);
    scene->src = malloc(2 * LARGE);
    assert_non_null(scene->src);
    fill(scene->src, 2 * LARGE, 5);
}

/* The pool may be closed before. */
static void scene_end(struct scene *scene)
{
    bus_end(scene);
    free(scene->src);
}

static tb_loan *borrow(tb_pool *pool)
{
    tb_loan *loan;
    assert_int_equal(tb_pool_loan(pool, 0, &loan), TB_OK);
    return loan;
}

static void pools_write_with_a_team(void **state)
{
    (void)state;
    struct scene scene;
    tb_pool_options options = large_pool(3);
    scene_begin(&scene, &options);
    assert_int_equal(count_threads("tensorbus-copy"), 2);
    for (int strided = 0; strided < 2; strided++) {
        int64_t stride = strided ? 2 : 1;
        tb_tensor tensor = bytes_at(scene.src, (int64_t)LARGE);
        tensor.strides = &stride;
        tb_loan *loan = borrow(scene.pool);
        assert_int_equal(tb_loan_write(loan, &tensor), TB_OK);
        const uint8_t *slot = tb_loan_tensor(loan)->data;
        for (size_t i = 0; i < LARGE; i++) {
            if (slot[i] != scene.src[i * (size_t)stride]) {
                fail_msg("byte %zu", i);
            }
        }
        assert_int_equal(tb_loan_publish(loan, NULL), TB_OK);
    }
    tb_pool_close(scene.pool);
    assert_int_equal(count_threads("tensorbus-copy"), 0);
    scene_end(&scene);
}

static void check_slot(const uint8_t *slot, const uint8_t *src)
{
    assert_memory_equal(slot, src, LARGE);
}

/* What ends a loan ends what was begun for it. */
static void a_write_is_begun_ahead(void **state)
{
    (void)state;
    struct scene scene;
    tb_pool_options options = large_pool(2);
    scene_begin(&scene, &options);
    tb_tensor tensor = bytes_at(scene.src, (int64_t)LARGE);
    tb_tensor other = bytes_at(scene.src + LARGE, (int64_t)LARGE);
    tb_tensor wrong = bytes_at(scene.src, (int64_t)LARGE - 1);
    for (int round = 0; round < 30; round++) {
        tb_loan *loan = borrow(scene.pool);
        const uint8_t *slot = tb_loan_tensor(loan)->data;
        memset(tb_loan_tensor(loan)->data, 0, LARGE);
        assert_int_equal(tb_loan_write_ahead(loan, &wrong), TB_E_MISMATCH);
        assert_int_equal(tb_loan_write_ahead(loan, &tensor), TB_OK);
        if (round == 0) { /* while the team is busy, others copy alone */
            wait_for_help(scene.pool->copy_team, 0);
            tb_loan *second = borrow(scene.pool);
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
            fill(scene.src, 2 * LARGE, (uint32_t)round);
            continue;
        }
        assert_int_equal(tb_loan_publish(loan, NULL), TB_OK);
        check_slot(slot, round % 5 == 0 ? tensor.data : other.data);
    }
    assert_int_equal(tb_loan_write_ahead(NULL, &tensor), TB_E_INVALID);
    assert_int_equal(tb_loan_write_ahead(borrow(scene.pool), &tensor), TB_OK);
    tb_pool_close(scene.pool);
    free(scene.src); /* nobody reads it any more */
    bus_end(&scene);
}

/* The shape, and what a promise says of it, are those of the write. */
static void what_is_begun_is_what_is_written(void **state)
{
    (void)state;
    struct scene scene;
    tb_pool_options options = large_pool(2);
    options.capacity_bytes = LARGE;
    tb_handle handle;
    scene_begin(&scene, &options);
    tb_tensor less = bytes_at(scene.src, (int64_t)LARGE - 1);
    tb_loan *loan = borrow(scene.pool);
    memset(tb_loan_tensor(loan)->data, 0, LARGE);
    assert_int_equal(tb_loan_promise(loan, &handle), TB_OK);
    assert_int_equal(tb_loan_write_ahead(loan, &less), TB_E_MISMATCH);
    usleep(2000);
    assert_int_equal(((uint8_t *)tb_loan_tensor(loan)->data)[1], 0);
    tb_loan_cancel(loan);
    loan = borrow(scene.pool);
    assert_int_equal(tb_loan_write_ahead(loan, &less), TB_OK);
    assert_int_equal(tb_loan_tensor(loan)->shape[0], LARGE - 1);
    assert_int_equal(tb_loan_publish(loan, &handle), TB_OK);
    assert_int_equal(handle.bytes, LARGE - 1);
    scene_end(&scene);
}

/* A bus ends what was begun before it takes away what is read from. */
static void a_bus_closes_while_its_frame_is_copied(void **state)
{
    (void)state;
    enum { TIMES = 8 };
    for (int round = 0; round < 4; round++) {
        struct scene scene;
        bus_begin(&scene);
        tb_pool_options options = large_pool(2);
        options.shape[0] = TIMES * (int64_t)LARGE;
        tb_pool *from, *to;
        assert_int_equal(tb_pool_register(scene.bus, &options, &from), TB_OK);
        assert_int_equal(tb_pool_register(scene.bus, &options, &to), TB_OK);
        tb_handle handle;
        tb_frame *frame;
        assert_int_equal(tb_loan_publish(borrow(from), &handle), TB_OK);
        assert_int_equal(tb_frame_open(scene.bus, &handle, 0, &frame), TB_OK);
        assert_int_equal(tb_loan_write_ahead(borrow(to), tb_frame_tensor(frame)), TB_OK);
        usleep(200); /* the helper has begun, and is far from the end */
        bus_end(&scene);
    }
}

static void options_are_checked(void **state)
{
    (void)state;
    struct scene scene;
    bus_begin(&scene);
    tb_pool *pool = NULL;
    tb_pool_options options = large_pool(TB_MAX_COPY_THREADS + 1);
    assert_int_equal(tb_pool_register(scene.bus, &options, &pool), TB_E_LIMIT);
    assert_non_null(strstr(tb_last_error_text(), "copy_threads 33, at most 32"));
    options = large_pool(2);
    options.device = TB_CUDA(0);
    assert_int_equal(tb_pool_register(scene.bus, &options, &pool), TB_E_UNSUPPORTED);
    assert_non_null(strstr(tb_last_error_text(), "copy_threads"));
    for (uint32_t threads = 0; threads <= 1; threads++) {
        options = large_pool(threads);
        assert_int_equal(tb_pool_register(scene.bus, &options, &pool), TB_OK);
        assert_int_equal(count_threads("tensorbus-copy"), 0);
        tb_pool_close(pool);
    }
    options = large_pool(4);
    options.name = "twice";
    options.require_zero_copy = 1; /* nothing to copy */
    assert_int_equal(tb_pool_register(scene.bus, &options, &pool), TB_OK);
    assert_int_equal(count_threads("tensorbus-copy"), 0);
    options.require_zero_copy = 0;
    tb_pool *second = NULL;
    assert_int_equal(tb_pool_register(scene.bus, &options, &second), TB_E_EXISTS);
    assert_int_equal(count_threads("tensorbus-copy"), 0); /* those that it had started are gone */
    tb_pool_close(pool);
    bus_end(&scene);
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
    struct scene scene;
    tb_pool_options options = large_pool(4);
    scene_begin(&scene, &options);
    struct sigaction action = {.sa_handler = note_thread}, before;
    assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, &old); /* now only the helpers could take it */
    kill(getpid(), SIGUSR1);
    tb_tensor tensor = bytes_at(scene.src, (int64_t)LARGE);
    for (int i = 0; i < 20; i++) { /* the helpers run */
        assert_int_equal(tb_pool_write(scene.pool, &tensor, 0, NULL), TB_OK);
    }
    assert_int_equal(handled_by, 0);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    assert_int_equal(handled_by, gettid());
    sigaction(SIGUSR1, &before, NULL);

    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int wrong = tb_pool_write(scene.pool, &tensor, 0, NULL) != TB_E_FORKED;
        tb_pool_close(scene.pool); /* joins nothing */
        _exit(wrong);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(tb_pool_write(scene.pool, &tensor, 0, NULL), TB_OK);
    tb_pool_close(scene.pool);
    scene_end(&scene);
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
