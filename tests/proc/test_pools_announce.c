/* What a process tells its runner about its pools, whatever its threads do at once. */
#include "proc/pool_support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "endpoint/bus.h"

#define THREADS 8

static _Atomic int added;
static _Atomic int removed;
static pthread_barrier_t start;

static void on_pool(void *context, struct tb__lifeline *line, struct tb__msg *msg)
{
    (void)context;
    (void)line;
    atomic_fetch_add(msg->type == TB__MSG_POOL_ADDED ? &added : &removed, 1);
}

struct job {
    tb_bus *bus;
    int number;
};

static void *register_and_free(void *argument)
{
    const struct job *job = argument;
    char name[32];
    snprintf(name, sizeof name, "frames-%d", job->number);
    pthread_barrier_wait(&start);
    tb_pool *pool = register_words(job->bus, name, 8, 2);
    CHECK_OK(tb_pool_free(pool));
    return NULL;
}

/* The first pools of a process, registered at the same time: none is forgotten. */
static void pools_of_many_threads_are_all_announced(void)
{
    tb_bus *runner = open_bus("runner");
    tb__bus_handle(runner, TB__MSG_POOL_ADDED, TB__MSG_POOL_REMOVED, on_pool, NULL);
    CHECK_EQ(setenv("TENSORBUS_RUNNER", "runner", 1), 0);
    for (int round = 1; round <= 20; round++) {
        pthread_t threads[THREADS];
        struct job jobs[THREADS];
        tb_bus *bus = open_bus("node");
        pthread_barrier_init(&start, NULL, THREADS);
        for (int i = 0; i < THREADS; i++) {
            jobs[i] = (struct job){bus, i};
            CHECK_EQ(pthread_create(&threads[i], NULL, register_and_free, &jobs[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            CHECK_EQ(pthread_join(threads[i], NULL), 0);
        }
        pthread_barrier_destroy(&start);
        CHECK_WITHIN_MS(atomic_load(&added) == round * THREADS, 2000);
        CHECK_WITHIN_MS(atomic_load(&removed) == round * THREADS, 2000);
        tb_bus_close(bus);
    }
    tb_bus_close(runner);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(pools_of_many_threads_are_all_announced, 60),
    };
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
