/* Copies by a team of threads: every byte of each, whoever gets the team, however late a helper
 * wakes, and where it runs. Run under ThreadSanitizer, too. */
#include <dirent.h>
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

#include "copy_fixture.h"

#define GUARD 64
#define PROBE_BYTES 32768
#define ROUNDS 60

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
                                        cold ? SIZE_MAX : 0, NULL);
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
        tb__copy_team_store(team, dst, src, 16 * LARGE, SIZE_MAX, NULL);
    }
    assert_true(tb__copy_team_helped(team) > 0);
    unsigned long before = tb__copy_team_helped(team);
    for (int i = 0; i < 300; i++) {
        tb__copy_team_store(team, dst, src, TB__COPY_TEAM_MIN_BYTES - 1, SIZE_MAX, NULL);
    }
    assert_int_equal(tb__copy_team_helped(team), before);
    tb__copy_team_destroy(team);
    free(src);
    free(dst);
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
        tb__copy_team_finish(team, NULL);
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
        tb__copy_team_store(team, src + LARGE, src, LARGE, SIZE_MAX, NULL);
        assert_int_equal(affinity_of("tensorbus-copy", &helpers), 0);
        assert_false(CPU_ISSET(cpu, &helpers));
        assert_int_equal(CPU_COUNT(&helpers), CPU_COUNT(&all) - 1);
    }
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    tb__copy_team_destroy(team);
    free(src);
}

/* Each thread of this process, as `taskset -a` does it. */
static void move_all(const cpu_set_t *to)
{
    DIR *threads = opendir("/proc/self/task");
    assert_non_null(threads);
    for (const struct dirent *at = readdir(threads); at != NULL; at = readdir(threads)) {
        if (at->d_name[0] != '.') {
            (void)sched_setaffinity(atoi(at->d_name), sizeof *to, to);
        }
    }
    closedir(threads);
}

/* Helpers stay on the processors that the process was given after the team was made. */
static void helpers_move_with_the_process(void **state)
{
    (void)state;
    cpu_set_t all, few, helpers;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    int most = CPU_COUNT(&all) - 1;
    if (most < 1) {
        skip();
    }
    uint8_t *src = calloc(2, LARGE);
    assert_non_null(src);
    for (int count = 1; count <= most && count <= 3; count++) {
        struct tb__copy_team *team;
        assert_int_equal(tb__copy_team_create(2, &team), TB_OK);
        if (count > 1) { /* the helper has been moved already */
            tb__copy_team_store(team, src + LARGE, src, LARGE, SIZE_MAX, NULL);
        }
        CPU_ZERO(&few);
        for (int cpu = 0; CPU_COUNT(&few) < count; cpu++) {
            if (CPU_ISSET(cpu, &all)) {
                CPU_SET(cpu, &few);
            }
        }
        move_all(&few);
        for (int i = 0; i < 20; i++) {
            tb__copy_team_store(team, src + LARGE, src, LARGE, SIZE_MAX, NULL);
            assert_int_equal(affinity_of("tensorbus-copy", &helpers), 0);
            CPU_OR(&helpers, &helpers, &few);
            assert_true(CPU_EQUAL(&helpers, &few));
        }
        tb__copy_team_destroy(team);
        move_all(&all);
    }
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
        tb__copy_team_store(writer->team, writer->dst, writer->src, LARGE, round % 2 ? SIZE_MAX : 0,
                            NULL);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_arrives),
        cmocka_unit_test(helpers_help),
        cmocka_unit_test(a_copy_is_begun_ahead),
        cmocka_unit_test(helpers_run_elsewhere),
        cmocka_unit_test(helpers_move_with_the_process),
        cmocka_unit_test(writers_share_one_team),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
