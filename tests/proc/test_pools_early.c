/* Readers that sleep are rung near the end of a large copy, before its frame is there: they look
 * for it, sleep again, and miss nothing. */
#include <stdlib.h>
#include <string.h>

#include "pool/state.h"
#include "proc/pool_support.h"

#define WORDS ((int64_t)1 << 20) /* 8 MiB */
#define TRIES 20                 /* a copy whose pace changes is told of too late, or not at all */

enum wait { WAIT_NEXT, WAIT_NEWEST, WAIT_PROMISE, WAITS };

struct order {
    enum wait wait;
    tb_handle handle;
};

/* Waits as it is told, and tells the first word. */
static void waiter(void *argument)
{
    (void)argument;
    struct order order;
    tb_bus *bus = open_bus("waiter");
    tb_reader *reader = open_reader(bus, "owner/frames");
    parent_reached("attached");
    for (parent_hear(&order, sizeof order); order.wait != WAITS;
         parent_hear(&order, sizeof order)) {
        tb_frame *frame;
        tb_status status;
        if (order.wait == WAIT_PROMISE) {
            status = tb_reader_frame(reader, &order.handle, &frame);
        } else if (order.wait == WAIT_NEXT) {
            status = tb_reader_next(reader, TB_SECONDS(10), &frame);
        } else {
            status = tb_reader_newest(reader, TB_SECONDS(10), &frame);
        }
        CHECK_OK(status);
        int64_t value = words_value(frame);
        tb_frame_release(frame);
        parent_tell(&value, sizeof value);
    }
    tb_bus_close(bus);
}

static int is_asleep(tb_pool *pool)
{
    const struct tb__page_set *set = tb__pages_enter(pool);
    int armed = set != NULL && set->count == 1 &&
                (tb__a32_load_relaxed(&set->refs[0].shm->armed) & TB__ARMED_SLEEP) != 0;
    tb__pages_leave(pool);
    return armed;
}

static tb_tensor new_source(void)
{
    void *words = calloc((size_t)WORDS, sizeof(int64_t));
    CHECK(words != NULL);
    return (tb_tensor){.data = words, .dtype = TB_I64, .ndim = 1, .shape = {WORDS}};
}

/* One frame, while the child waits for it. Returns how many rings came before it was published. */
static uint64_t hand_over(struct child *child, tb_pool *pool, tb_tensor *source, enum wait wait)
{
    struct order order = {.wait = wait};
    tb_loan *loan;
    int64_t sent = ++*(int64_t *)source->data;
    int64_t value = 0;
    fill_words(source, sent);
    CHECK_OK(tb_pool_loan(pool, TB_SECONDS(5), &loan));
    if (wait == WAIT_PROMISE) {
        CHECK_OK(tb_loan_promise(loan, &order.handle));
    }
    child_tell(child, &order, sizeof order);
    CHECK_WITHIN_MS(is_asleep(pool), 2000);
    uint64_t before = stats_of(pool).wakeups;
    CHECK_OK(tb_loan_write(loan, source));
    uint64_t early = stats_of(pool).wakeups - before;
    CHECK_LE(early, 1);
    CHECK_WITHIN_MS(is_asleep(pool), 2000); /* again, for there is no frame */
    CHECK(!child_has_spoken(child, 1));
    CHECK_OK(tb_loan_publish(loan, NULL));
    child_hear(child, &value, sizeof value);
    CHECK_EQ(value, sent);
    CHECK_EQ(stats_of(pool).wakeups, before + early + 1);
    return early;
}

struct scene {
    struct child child;
    tb_bus *bus;
    tb_pool *pool;
    tb_tensor source;
};

static void scene_begin(struct scene *scene)
{
    child_start(&scene->child, "waiter", waiter, NULL);
    scene->bus = open_bus("owner");
    scene->pool = register_words(scene->bus, "frames", WORDS, 3);
    child_await(&scene->child, "attached");
    scene->source = new_source();
}

static void scene_end(struct scene *scene)
{
    child_tell(&scene->child, &(struct order){.wait = WAITS}, sizeof(struct order));
    child_join(&scene->child);
    free(scene->source.data);
    tb_bus_close(scene->bus);
}

static void sleepers_are_rung_early(void)
{
    struct scene scene;
    scene_begin(&scene);
    for (int wait = 0; wait < WAITS; wait++) {
        uint64_t early = 0;
        for (int i = 0; i < TRIES; i++) {
            early += hand_over(&scene.child, scene.pool, &scene.source, (enum wait)wait);
        }
        CHECK_LT(0, early);
    }
    scene_end(&scene);
}

/* One that is published at once finds its reader awake, or rings again: never is a frame missed. */
static void no_frame_is_missed(void)
{
    struct scene scene;
    scene_begin(&scene);
    for (int i = 0; i < 200; i++) {
        int64_t value = 0;
        child_tell(&scene.child, &(struct order){.wait = WAIT_NEXT}, sizeof(struct order));
        if (i % 2 == 0) {
            CHECK_WITHIN_MS(is_asleep(scene.pool), 2000);
        }
        fill_words(&scene.source, i);
        CHECK_OK(tb_pool_write(scene.pool, &scene.source, TB_SECONDS(5), NULL));
        int64_t begun_ns = harness_now_ns();
        child_hear(&scene.child, &value, sizeof value);
        CHECK_EQ(value, i);
        CHECK_LT(harness_now_ns() - begun_ns, TB_SECONDS(5));
    }
    scene_end(&scene);
}

static const struct test tests[] = {
    TEST(sleepers_are_rung_early, 60),
    TEST(no_frame_is_missed, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
