/* Words that are lost because the other side does not read just then, and what makes up for it. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "endpoint/bus.h"
#include "proc/pool_support.h"

static void owner_role(void *argument)
{
    (void)argument;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 8, 4);
    CHECK_OK(write_words(pool, 7, 0, NULL));
    parent_pause("open");
    CHECK_EQ(stats_of(pool).readers, 1); /* not the one that was given up */
    tb_bus_close(bus);
}

/* On return no thread of it runs any more. */
static void stop(struct child *child)
{
    int status;
    child_signal(child, SIGSTOP);
    CHECK_EQ(waitpid(child->pid, &status, WUNTRACED), child->pid);
    CHECK(WIFSTOPPED(status));
}

/* A message that the owner takes without doing anything. */
static tb_status send_idle(struct tb__lifeline *line)
{
    return tb__lifeline_send(line, TB__MSG_POOL_NAMES, NULL, 0);
}

static tb_status ask(struct tb__lifeline *line, int64_t deadline_ns)
{
    struct tb__reply reply;
    struct tb__pool_list_wire wire = {0};
    struct tb__packet question = {
        .type = TB__MSG_POOL_LIST, .body = &wire, .body_bytes = sizeof wire};
    tb_status status = tb__lifeline_call(line, &question, deadline_ns, &reply);
    tb__reply_fini(&reply);
    return status;
}

/* Until the owner, which runs again, has read everything: answers come in order. */
static void await_reading(struct tb__lifeline *line)
{
    CHECK_WITHIN_MS(ask(line, tb__deadline_ns(TB_SECONDS(20))) == TB_OK, 20000);
}

/* A caller gives up, and the owner cannot be told since its socket is full. Its late answer, with
 * descriptors that nobody takes, must not be in the way of the next hand-over on that connection:
 * an owner has one in flight at most. */
static void a_cancel_that_met_a_full_socket_is_made_up_for(void)
{
    struct child owner;
    struct tb__lifeline *line;
    struct tb__reply reply;
    tb_reader *reader;
    tb_frame *frame;
    int room = 0;
    child_start(&owner, "owner", owner_role, NULL);
    child_await(&owner, "open");
    tb_bus *bus = open_bus("client");
    CHECK_OK(tb__bus_connect(bus, "owner", 0, tb__deadline_ns(TB_SECONDS(20)), &line));

    /* How many messages fit, with nobody reading? */
    stop(&owner);
    tb_status status;
    while ((status = send_idle(line)) == TB_OK) {
        room++;
    }
    CHECK_STATUS(status, TB_AGAIN);
    CHECK_LT(2, room);
    child_signal(&owner, SIGCONT);
    await_reading(line);

    /* The question takes the place of the last, and there is none for the word that follows it. */
    stop(&owner);
    for (int i = 0; i < room - 1; i++) {
        CHECK_OK(send_idle(line));
    }
    struct tb__pool_open_wire wire = {.flags = TB__OPEN_BY_NAME, .name = "frames"};
    struct tb__packet question = {
        .type = TB__MSG_POOL_OPEN, .body = &wire, .body_bytes = sizeof wire};
    CHECK_STATUS(tb__lifeline_call(line, &question, tb__now_ns(), &reply), TB_AGAIN);
    tb__reply_fini(&reply);
    CHECK_STATUS(send_idle(line), TB_AGAIN);
    child_signal(&owner, SIGCONT);
    await_reading(line);

    const tb_reader_options options = {.size = sizeof options, .wait_ns = TB_SECONDS(5)};
    CHECK_OK(tb_reader_open(bus, "owner/frames", &options, &reader));
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(5), &frame));
    CHECK_EQ(words_value(frame), 7);
    tb_frame_release(frame);
    child_go(&owner);
    child_join(&owner);
    tb__lifeline_unref(line);
    tb_bus_close(bus);
}

/* A question that meets a full socket is asked again until its deadline, and no longer. */
static void a_call_waits_for_room_in_the_socket(void)
{
    struct child owner;
    struct tb__lifeline *line;
    child_start(&owner, "owner", owner_role, NULL);
    child_await(&owner, "open");
    tb_bus *bus = open_bus("client");
    CHECK_OK(tb__bus_connect(bus, "owner", 0, tb__deadline_ns(TB_SECONDS(20)), &line));
    stop(&owner);
    while (send_idle(line) == TB_OK) {
    }
    int64_t begun_ns = harness_now_ns();
    CHECK_STATUS(ask(line, tb__deadline_ns(TB_MILLIS(200))), TB_AGAIN);
    CHECK_LE(TB_MILLIS(200), harness_now_ns() - begun_ns);
    pid_t waker = fork();
    if (waker == 0) {
        harness_sleep_us(100000);
        kill(owner.pid, SIGCONT);
        _exit(0);
    }
    CHECK_OK(ask(line, tb__deadline_ns(TB_SECONDS(20))));
    CHECK_EQ(waitpid(waker, NULL, 0), waker);
    tb__lifeline_unref(line);
    tb_bus_close(bus);
    child_kill(&owner); /* it checks what the other test does */
}

static const struct test tests[] = {
    TEST(a_call_waits_for_room_in_the_socket, 60),
    TEST(a_cancel_that_met_a_full_socket_is_made_up_for, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
