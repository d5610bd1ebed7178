/* Copies by a team of threads: every byte of each, whoever gets the team, however late a helper
 * wakes; what a team leaves behind; and the option of pools. Run under ThreadSanitizer, too. */
#include <pthread.h>
#include <sched.h>
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
#define PROBE_BYTES 32768
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

static void wait_for_help(const struct tb__copy_team *team, unsigned long before)
{
    for (int i = 0; i < 5000 && tb__copy_team_helped(team) == before; i++) {
        usleep(1000);
    }
    assert_true(tb__copy_team_helped(team) > before);
}

/* A few bytes of all over a block, looked at in less time than a part of it is copied in. */
static void probe(const uint8_t *bytes, uint8_t out[LARGE / PROBE_BYTES])
{
    for (size_t i = 0; i < LARGE / PROBE_BYTES; i++) {
        out[i] = ((const volatile uint8_t *)bytes)[i * PROBE_BYTES + PROBE_BYTES / 2];
    }
}

/* The caller of a copy that was begun copies nothing before it ends it; one that was abandoned is
 * touched by nobody any more. */
static void a_copy_is_begun_ahead(void **state)
{
    (void)state;
    uint8_t *src = malloc(LARGE);
    uint8_t *dst = malloc(LARGE);
    struct tb__copy_team *team;
    assert_true(src != NULL && dst != NULL);
    fill(src, LARGE, 9);
    assert_int_equal(tb__copy_team_create(2, &team), TB_OK);
    assert_false(tb__copy_team_begin(NULL, dst, src, LARGE, 0));
    assert_false(tb__copy_team_begin(team, dst, src, TB__COPY_TEAM_MIN_BYTES - 1, 0));
    for (int round = 0; round < 60; round++) {
        unsigned long before = tb__copy_team_helped(team);
        memset(dst, 0, LARGE);
        assert_true(tb__copy_team_begin(team, dst, src, LARGE, SIZE_MAX));
        assert_false(tb__copy_team_begin(team, dst, src, LARGE, SIZE_MAX)); /* it has one */
        if (round == 0) {
            wait_for_help(team, before);
            assert_memory_equal(dst, src, LARGE);
        }
        tb__copy_team_finish(team);
        assert_memory_equal(dst, src, LARGE);
        memset(dst, 0, LARGE);
        assert_true(tb__copy_team_begin(team, dst, src, LARGE, SIZE_MAX));
        usleep((useconds_t)round * 10);
        tb__copy_team_abandon(team);
        uint8_t at_once[LARGE / PROBE_BYTES];
        probe(dst, at_once);
        usleep(200);
        uint8_t later[LARGE / PROBE_BYTES];
        probe(dst, later);
        assert_memory_equal(at_once, later, sizeof later);
        fill(src, LARGE, (uint32_t)round);
    }
    assert_true(tb__copy_team_begin(team, dst, src, LARGE, SIZE_MAX));
    tb__copy_team_destroy(team); /* its caller is gone */
    free(src);
    free(dst);
}

/* Of a thread of this process by name: 0, and its processors. */
static int affinity_of(const char *name, cpu_set_t *out)
{
    char command[160];
    int tid = 0;
    snprintf(command, sizeof command,
             "for t in /proc/%d/task/*; do [ \"$(cat $t/comm)\" = %s ] && basename $t; done",
             (int)getpid(), name);
    FILE *pipe = popen(command, "r");
    int found = pipe != NULL && fscanf(pipe, "%d", &tid) == 1;
    if (pipe != NULL) {
        pclose(pipe);
    }
    return found ? sched_getaffinity(tid, sizeof *out, out) : -1;
}

/* A helper on the writer's processor would copy in turn with it. */
static void helpers_run_elsewhere(void **state)
{
    (void)state;
    cpu_set_t all, own, helpers;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2) {
        skip();
    }
    uint8_t *src = calloc(2, LARGE);
    struct tb__copy_team *team;
    assert_non_null(src);
    assert_int_equal(tb__copy_team_create(2, &team), TB_OK);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) {
            continue;
        }
        CPU_ZERO(&own);
        CPU_SET(cpu, &own);
        assert_int_equal(sched_setaffinity(0, sizeof own, &own), 0);
        tb__copy_team_store(team, src + LARGE, src, LARGE, SIZE_MAX);
        assert_int_equal(affinity_of("tensorbus-copy", &helpers), 0);
        assert_false(CPU_ISSET(cpu, &helpers));
        assert_int_equal(CPU_COUNT(&helpers), CPU_COUNT(&all) - 1);
    }
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    tb__copy_team_destroy(team);
    free(src);
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
        cmocka_unit_test(every_byte_arrives),           cmocka_unit_test(helpers_help),
        cmocka_unit_test(a_copy_is_begun_ahead),        cmocka_unit_test(helpers_run_elsewhere),
        cmocka_unit_test(writers_share_one_team),       cmocka_unit_test(pools_write_with_a_team),
        cmocka_unit_test(a_write_is_begun_ahead),       cmocka_unit_test(options_are_checked),
        cmocka_unit_test(signals_and_forks_stay_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
