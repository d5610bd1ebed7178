/* Kills between any two instructions: a role does one thing and is killed after n machine
 * instructions of it, for many n from the first to the last; then the other side must find
 * everything in order. Both sides of publish, acquire, release, free and the handshake. */
#include "proc/pool_support.h"

#include <stdio.h>

#define ELEMENTS 32
#define SLOTS 4

/* One way through an operation: killed after `count` instructions, or stops at system calls.
 * Returns 0 when the operation was over before; *out_count is what it came to. */
typedef int killing(void *context, int by_calls, unsigned long count, unsigned long *out_count);

static int kill_child(struct child *child, int by_calls, unsigned long count,
                      unsigned long *out_count)
{
    return by_calls ? child_kill_after_calls(child, count, out_count)
                    : child_kill_after_steps(child, count, out_count);
}

/* Kill at points that are spread evenly over the operation: over its instructions, as many as a
 * budget of single steps allows, and before and after its system calls. */
static void kill_everywhere(killing *kill, void *context)
{
    unsigned long budget = harness_full() ? 400000 : 10000;
    unsigned long most = harness_full() ? 5000 : 24;
    unsigned long total;
    unsigned long done;
    CHECK(!kill(context, 0, (unsigned long)-1, &total)); /* to the end: how long is it? */
    unsigned long count = 2 * budget / total < most ? 2 * budget / total : most;
    for (unsigned long steps = 0; steps < total; steps += total / (count + 1) + 1) {
        kill(context, 0, steps, &done);
    }
    CHECK(!kill(context, 1, (unsigned long)-1, &total));
    for (unsigned long stops = 1; stops <= total; stops += total / most + 1) {
        kill(context, 1, stops, &done);
    }
}

/* ------------------------------------------------------------------ owners that die */

struct owner_role {
    tb_bus *bus;
    tb_pool *pool;
    int64_t value; /* written last; frame n holds n */
};

static void owner_publishes(struct owner_role *self)
{
    CHECK_OK(write_words(self->pool, ++self->value, TB_POLL, NULL));
}

static void owner_copies(struct owner_role *self)
{
    int64_t words[ELEMENTS];
    tb_handle handle;
    tb_tensor tensor = {.data = words, .dtype = TB_I64, .ndim = 1, .shape = {ELEMENTS}};
    fill_words(&tensor, ++self->value);
    CHECK_OK(tb_pool_write(self->pool, &tensor, TB_POLL, &handle));
}

/* Publishes twice: the second takes a slot away from the first frames. */
static void owner_overwrites(struct owner_role *self)
{
    for (int i = 0; i < 2; i++) {
        owner_publishes(self);
    }
}

static void owner_cancels(struct owner_role *self)
{
    tb_loan *loan;
    CHECK_OK(tb_pool_loan(self->pool, TB_POLL, &loan));
    fill_words(tb_loan_tensor(loan), -1);
    tb_loan_cancel(loan);
}

static void owner_waits(struct owner_role *self)
{
    tb_loan *loans[SLOTS];
    unsigned count = 0;
    while (count < SLOTS && tb_pool_loan(self->pool, TB_MILLIS(1), &loans[count]) == TB_OK) {
        count++;
    }
    CHECK_LT(count, SLOTS); /* one is the newest, one is held */
}

static void owner_frees(struct owner_role *self)
{
    CHECK_OK(tb_pool_free(self->pool));
}

static void owner_closes_pool(struct owner_role *self)
{
    tb_pool_close(self->pool);
}

static void owner_closes_bus(struct owner_role *self)
{
    tb_bus_close(self->bus);
}

static void owner_registers(struct owner_role *self)
{
    register_words(self->bus, "another", ELEMENTS, 2);
}

static const struct owner_act {
    const char *name;
    void (*run)(struct owner_role *self);
    int ends_pool; /* FREED or CLOSED is a good end as well */
} owner_acts[] = {
    {"publish", owner_publishes, 0},          {"copy", owner_copies, 0},
    {"overwrite", owner_overwrites, 0},       {"cancel", owner_cancels, 0},
    {"wait for a slot", owner_waits, 0},      {"free", owner_frees, 1},
    {"close the pool", owner_closes_pool, 1}, {"close the bus", owner_closes_bus, 1},
    {"register", owner_registers, 0},
};

static void dying_owner(void *argument)
{
    const struct owner_act *act = argument;
    struct owner_role self = {0};
    self.bus = open_bus("owner");
    self.pool = register_words(self.bus, "frames", ELEMENTS, SLOTS);
    tb_handle handles[SLOTS];
    for (int i = 0; i < SLOTS; i++) {
        CHECK_OK(write_words(self.pool, ++self.value, TB_POLL, &handles[i]));
    }
    parent_tell(handles, sizeof handles);
    parent_pause("written");
    steps_begin();
    act->run(&self);
    steps_end();
}

/* What a reader finds after its owner's death: each old frame whole or gone, whole new frames in
 * order, then the reason. */
static void check_after_owner(const struct owner_act *act, tb_reader *reader,
                              const tb_handle handles[SLOTS], unsigned long steps)
{
    tb_frame *frame;
    tb_status status;
    for (int i = 0; i < SLOTS; i++) {
        status = tb_reader_frame(reader, &handles[i], &frame);
        if (status == TB_OK) {
            CHECK_EQ(words_value(frame), i + 1);
            tb_frame_release(frame);
        } else {
            CHECK(status == TB_E_STALE || (act->ends_pool && status == TB_E_FREED));
        }
    }
    uint64_t last = SLOTS; /* the newest was taken before */
    while ((status = tb_reader_next(reader, TB_SECONDS(2), &frame)) == TB_OK) {
        tb_frame_info info = info_of(frame);
        CHECK_EQ(words_value(frame), (int64_t)info.sequence);
        CHECK_LT(last, info.sequence);
        last = info.sequence;
        tb_frame_release(frame);
    }
    if (status != TB_E_OWNER_DIED &&
        !(act->ends_pool && (status == TB_E_FREED || status == TB_CLOSED))) {
        FAIL("%s, killed after %lu steps: %s (%s)", act->name, steps, tb_status_name(status),
             tb_last_error_text());
    }
}

static int kill_owner(void *context, int by_calls, unsigned long steps, unsigned long *out_steps)
{
    const struct owner_act *act = context;
    struct child owner;
    tb_frame *held;
    tb_handle handles[SLOTS];
    child_start(&owner, act->name, dying_owner, context);
    child_hear(&owner, handles, sizeof handles);
    child_await(&owner, "written");
    tb_bus *bus = open_bus("consumer");
    tb_reader *reader = open_reader(bus, "owner/frames");
    CHECK_OK(tb_reader_newest(reader, TB_SECONDS(2), &held));
    child_go(&owner);
    int inside = kill_child(&owner, by_calls, steps, out_steps);
    check_after_owner(act, reader, handles, steps);
    CHECK_EQ(words_value(held), SLOTS);
    tb_frame_release(held);
    tb_bus_close(bus);
    return inside;
}

static void P05_owner_killed_at_any_instruction(void)
{
    for (size_t i = 0; i < sizeof owner_acts / sizeof owner_acts[0]; i++) {
        kill_everywhere(kill_owner, (void *)(uintptr_t)&owner_acts[i]);
    }
}

/* ------------------------------------------------------------------ readers that die */

struct reader_role {
    tb_bus *bus;
    tb_reader *reader;
    tb_frame *frame;
    tb_handle newest;
};

static void reader_attaches(struct reader_role *self)
{
    tb_reader_close(self->reader);
    self->reader = open_reader(self->bus, "owner/frames");
}

static void reader_takes_next(struct reader_role *self)
{
    tb_frame *frame;
    CHECK_OK(tb_reader_next(self->reader, TB_POLL, &frame));
}

static void reader_takes_by_handle(struct reader_role *self)
{
    tb_frame *frame;
    CHECK_OK(tb_reader_frame(self->reader, &self->newest, &frame));
}

static void reader_holds(struct reader_role *self)
{
    tb_frame *frame;
    CHECK_OK(tb_frame_hold(self->frame, &frame));
}

static void reader_releases(struct reader_role *self)
{
    tb_frame_release(self->frame);
}

static void reader_waits(struct reader_role *self)
{
    tb_frame *frame;
    CHECK_OK(tb_reader_next(self->reader, TB_POLL, &frame));
    CHECK_STATUS(tb_reader_next(self->reader, TB_MILLIS(1), &frame), TB_AGAIN);
}

static void reader_closes(struct reader_role *self)
{
    tb_reader_close(self->reader);
}

static void reader_closes_bus(struct reader_role *self)
{
    tb_bus_close(self->bus);
}

static void reader_opens_frame(struct reader_role *self)
{
    tb_frame *frame;
    CHECK_OK(tb_frame_open(self->bus, &self->newest, TB_SECONDS(5), &frame));
}

static const struct reader_act {
    const char *name;
    void (*run)(struct reader_role *self);
} reader_acts[] = {
    {"attach", reader_attaches},
    {"next", reader_takes_next},
    {"by handle", reader_takes_by_handle},
    {"hold", reader_holds},
    {"release", reader_releases},
    {"wait", reader_waits},
    {"close", reader_closes},
    {"close the bus", reader_closes_bus},
    {"open a bare handle", reader_opens_frame},
};

/* Holds one frame, one more is there to be taken. */
static void dying_reader(void *argument)
{
    const struct reader_act *act = argument;
    struct reader_role self = {0};
    self.bus = open_bus(NULL);
    self.reader = open_reader(self.bus, "owner/frames");
    CHECK_OK(tb_reader_newest(self.reader, TB_SECONDS(2), &self.frame));
    parent_reached("attached");
    parent_hear(&self.newest, sizeof self.newest);
    steps_begin();
    act->run(&self);
    steps_end();
}

/* The owner gets every slot back, at once, and forgets the reader. */
static void check_after_reader(const struct reader_act *act, tb_pool *pool, int64_t *value,
                               unsigned long steps)
{
    tb_loan *loans[SLOTS - 1];
    int64_t begin = harness_now_ns();
    for (int i = 0; i < SLOTS - 1; i++) {
        tb_status status = tb_pool_loan(pool, TB_SECONDS(2), &loans[i]);
        if (status != TB_OK) {
            FAIL("%s, killed after %lu steps: slot %d: %s (%s)", act->name, steps, i,
                 tb_status_name(status), tb_last_error_text());
        }
    }
    CHECK_LT(harness_now_ns() - begin, 500000000LL * harness_slowness());
    for (int i = 0; i < SLOTS - 1; i++) {
        fill_words(tb_loan_tensor(loans[i]), ++*value);
        CHECK_OK(tb_loan_publish(loans[i], NULL));
    }
    CHECK_WITHIN_MS(stats_of(pool).readers == 0, 2000);
    CHECK_EQ(stats_of(pool).held, 0);
}

struct reader_kill {
    const struct reader_act *act;
    tb_pool *pool;
    int64_t value; /* written last */
};

static int kill_reader(void *context, int by_calls, unsigned long steps, unsigned long *out_steps)
{
    struct reader_kill *self = context;
    struct child child;
    tb_handle newest;
    CHECK_OK(write_words(self->pool, ++self->value, TB_POLL, NULL));
    child_start(&child, self->act->name, dying_reader, (void *)(uintptr_t)self->act);
    child_await(&child, "attached");
    CHECK_OK(write_words(self->pool, ++self->value, TB_SECONDS(2), &newest));
    child_tell(&child, &newest, sizeof newest);
    int inside = kill_child(&child, by_calls, steps, out_steps);
    check_after_reader(self->act, self->pool, &self->value, steps);
    return inside;
}

static void P06_reader_killed_at_any_instruction(void)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", ELEMENTS, SLOTS);
    struct reader_kill context = {.pool = pool};
    unsigned fds = harness_fd_count();
    unsigned mappings = harness_memfd_count();
    for (size_t i = 0; i < sizeof reader_acts / sizeof reader_acts[0]; i++) {
        context.act = &reader_acts[i];
        kill_everywhere(kill_reader, &context);
        CHECK_WITHIN_MS(harness_fd_count() <= fds, 2000);
        /* Pages that a writer was looking at are unmapped at the next change. */
        CHECK_WITHIN_MS(harness_memfd_count() <= mappings + 1, 2000);
    }
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ starts that die */

static void dying_starter(void *argument)
{
    (void)argument;
    parent_reached("begun");
    steps_begin();
    tb_bus *bus = open_bus("owner");
    steps_end();
    tb_bus_close(bus);
}

/* Whatever a killed start leaves, the next one gets the name and is found. */
static int kill_starter(void *context, int by_calls, unsigned long steps, unsigned long *out_steps)
{
    (void)context;
    struct child starter;
    tb_frame *frame;
    child_start(&starter, "starter", dying_starter, NULL);
    child_await(&starter, "begun");
    int inside = kill_child(&starter, by_calls, steps, out_steps);
    tb_bus *owner = open_bus("owner");
    tb_bus *consumer = open_bus(NULL);
    tb_pool *pool = register_words(owner, "frames", ELEMENTS, 2);
    CHECK_OK(write_words(pool, 1, TB_POLL, NULL));
    tb_reader *reader = open_reader(consumer, "owner/frames");
    CHECK_OK(tb_reader_newest(reader, TB_SECONDS(2), &frame));
    CHECK_EQ(words_value(frame), 1);
    tb_frame_release(frame);
    tb_bus_close(consumer);
    tb_bus_close(owner);
    return inside;
}

static void P24_start_killed_at_any_instruction(void)
{
    kill_everywhere(kill_starter, NULL);
    /* What the dead have left is swept by those who come after. */
    CHECK_LE(harness_socket_count(), 8);
}

static const struct test tests[] = {
    TEST(P05_owner_killed_at_any_instruction, 600),
    TEST(P06_reader_killed_at_any_instruction, 600),
    TEST(P24_start_killed_at_any_instruction, 600),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
