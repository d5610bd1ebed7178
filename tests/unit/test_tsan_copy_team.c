/* Copies by a team of threads: every byte of each, whoever gets the team, however late a helper
 * wakes; what a team leaves behind; and the option of pools. Run under ThreadSanitizer, too. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/copy_team.h"
#include "pool/state.h"

#define LARGE (TB__COPY_TEAM_MIN_BYTES + 4097)
#define GUARD 64
#define ROUNDS 60

static void fill(uint8_t *bytes, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(seed >> 24);
    }
}

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

static void every_byte_arrives(void **state)
{
    (void)state;
    static const size_t sizes[] = {
        0, 1, TB__COPY_TEAM_MIN_BYTES - 1, TB__COPY_TEAM_MIN_BYTES, LARGE, 3 * LARGE};
    uint8_t *src = malloc(3 * LARGE + 1);
    uint8_t *dst = malloc(3 * LARGE + 2 * GUARD + 1);
    assert_true(src != NULL && dst != NULL);
    fill(src, 3 * LARGE + 1, 1);
    for (unsigned threads = 0; threads <= 4; threads++) {
        struct tb__copy_team *team;
        assert_int_equal(tb__copy_team_create(threads, &team), TB_OK);
        assert_int_equal(team == NULL, threads <= 1);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            for (size_t odd = 0; odd < 2; odd++) {
                for (int cold = 0; cold < 2; cold++) {
                    memset(dst, 0xa5, sizes[i] + 2 * GUARD + 1);
                    tb__copy_team_store(team, dst + GUARD + odd, src + 1 - odd, sizes[i],
                                        cold ? SIZE_MAX : 0);
                    assert_memory_equal(dst + GUARD + odd, src + 1 - odd, sizes[i]);
                    for (size_t g = 0; g < GUARD; g++) {
                        assert_int_equal(dst[g], 0xa5);
                        assert_int_equal(dst[GUARD + odd + sizes[i] + g], 0xa5);
                    }
                }
            }
        }
        tb__copy_team_destroy(team);
    }
    free(src);
    free(dst);
}

/* A helper is sure to have its part: a copy is repeated until one woke in time. */
static void helpers_help(void **state)
{
    (void)state;
    uint8_t *src = malloc(16 * LARGE);
    uint8_t *dst = malloc(16 * LARGE);
    struct tb__copy_team *team;
    assert_true(src != NULL && dst != NULL);
    memset(src, 3, 16 * LARGE);
    assert_int_equal(tb__copy_team_create(2, &team), TB_OK);
    for (int i = 0; i < 1000 && tb__copy_team_helped(team) == 0; i++) {
        tb__copy_team_store(team, dst, src, 16 * LARGE, SIZE_MAX);
    }
    assert_true(tb__copy_team_helped(team) > 0);
    unsigned long before = tb__copy_team_helped(team);
    for (int i = 0; i < 300; i++) {
        tb__copy_team_store(team, dst, src, TB__COPY_TEAM_MIN_BYTES - 1, SIZE_MAX);
    }
    assert_int_equal(tb__copy_team_helped(team), before);
    tb__copy_team_destroy(team);
    free(src);
    free(dst);
}

struct writer {
    pthread_t thread;
    struct tb__copy_team *team;
    uint8_t *src;
    uint8_t *dst;
    uint32_t seed;
    unsigned wrong;
};

/* Source and destination change between copies without any lock: a helper that still looked at the
 * last copy, or that began the next one early, would be seen by the bytes, and be a race. */
static void *write_often(void *argument)
{
    struct writer *writer = argument;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        memset(writer->src, (int)(writer->seed + round) & 0xff, LARGE);
        memcpy(writer->src + round * 4096, &round, sizeof round);
        tb__copy_team_store(writer->team, writer->dst, writer->src, LARGE,
                            round % 2 ? SIZE_MAX : 0);
        writer->wrong += memcmp(writer->dst, writer->src, LARGE) != 0;
    }
    return NULL;
}

static void writers_share_one_team(void **state)
{
    (void)state;
    struct tb__copy_team *team;
    struct writer writers[3] = {{0}};
    assert_int_equal(tb__copy_team_create(3, &team), TB_OK);
    for (unsigned i = 0; i < 3; i++) {
        writers[i] = (struct writer){
            .team = team, .seed = 7 * i + 1, .src = malloc(LARGE), .dst = malloc(LARGE)};
        assert_true(writers[i].src != NULL && writers[i].dst != NULL);
        assert_int_equal(pthread_create(&writers[i].thread, NULL, write_often, &writers[i]), 0);
    }
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(writers[i].thread, NULL);
        assert_int_equal(writers[i].wrong, 0);
        free(writers[i].src);
        free(writers[i].dst);
    }
    tb__copy_team_destroy(team);
}

/* ---- pools ---- */

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
        cmocka_unit_test(every_byte_arrives),     cmocka_unit_test(helpers_help),
        cmocka_unit_test(writers_share_one_team), cmocka_unit_test(pools_write_with_a_team),
        cmocka_unit_test(options_are_checked),    cmocka_unit_test(signals_and_forks_stay_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
