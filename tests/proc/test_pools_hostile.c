/* P11, P25: clients that mean no good hurt only themselves. */
#include "proc/hostile.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>

/* ------------------------------------------------------------------ an owner that goes on */

/* What the tests ask the owner for. */
struct owner_report {
    uint64_t frames;
    uint32_t fds;
    uint32_t readers;
    int64_t cpu_ns;
};

static int64_t cpu_time_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

/* Publishes every 2 ms; answers with a report to each byte, ends at 'q'. `argument`: how many more
 * descriptors it may open than it has, or NULL. */
static void steady_owner(void *argument)
{
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 512, 4);
    if (argument != NULL) {
        struct rlimit limit;
        CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
        limit.rlim_cur = harness_fd_count() + *(unsigned *)argument + 1;
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    parent_reached("open");
    int64_t value = 0;
    for (;;) {
        char order;
        CHECK_OK(write_words(pool, ++value, TB_SECONDS(1), NULL));
        harness_sleep_us(2000);
        if (!parent_has_spoken()) {
            continue;
        }
        parent_hear(&order, 1);
        if (order == 'q') {
            break;
        }
        struct owner_report report = {.frames = stats_of(pool).frames,
                                      /* Counting takes a descriptor itself. */
                                      .fds = argument == NULL ? harness_fd_count() : 0,
                                      .readers = stats_of(pool).readers,
                                      .cpu_ns = cpu_time_ns()};
        parent_tell(&report, sizeof report);
    }
    tb_bus_close(bus);
}

static struct owner_report ask(struct child *owner)
{
    struct owner_report report;
    child_tell(owner, "?", 1);
    child_hear(owner, &report, sizeof report);
    return report;
}

static void dismiss(struct child *owner)
{
    child_tell(owner, "q", 1);
    child_join(owner);
}

/* A frame that is newer than all before, and a new attachment: the proper client is served. */
static void check_served(tb_bus *bus, tb_reader *reader)
{
    tb_frame *frame;
    tb_reader *another;
    CHECK_OK(tb_reader_newest(reader, TB_SECONDS(2), &frame));
    CHECK_EQ(words_value(frame), info_of(frame).sequence);
    tb_frame_release(frame);
    CHECK_OK(tb_reader_open(bus, "owner/frames", NULL, &another));
    CHECK_OK(tb_reader_newest(another, TB_SECONDS(2), &frame));
    tb_frame_release(frame);
    tb_reader_close(another);
}

/* ------------------------------------------------------------------ P11 */

static void send_hello(int fd, struct tb__hello_wire hello, const int *fds, unsigned count)
{
    raw_message(fd, raw_header(TB__MSG_HELLO, sizeof hello), &hello, sizeof hello, fds, count);
}

static void send_open(int fd, struct tb__pool_open_wire open)
{
    raw_message(fd, raw_header(TB__MSG_POOL_OPEN, sizeof open), &open, sizeof open, NULL, 0);
}

static void say_one_byte(int fd)
{
    raw_send(fd, "x", 1, NULL, 0);
}

static void say_noise(int fd)
{
    char noise[65536];
    for (size_t i = 0; i < sizeof noise; i++) {
        noise[i] = (char)(i * 2654435761u >> 13);
    }
    raw_send(fd, noise, sizeof noise, NULL, 0);
}

static void say_too_much(int fd)
{
    static char zeros[TB__WIRE_MAX_BYTES + 4096];
    struct tb__wire_header header = raw_header(TB__MSG_HELLO, sizeof zeros - sizeof header);
    memcpy(zeros, &header, sizeof header);
    raw_send(fd, zeros, sizeof zeros, NULL, 0);
}

static void say_endless(int fd)
{
    struct tb__wire_header header = raw_header(TB__MSG_HELLO, UINT32_MAX);
    raw_message(fd, header, "x", 1, NULL, 0);
    header.request = UINT32_MAX;
    raw_message(fd, header, "x", 1, NULL, 0);
}

/* Right in everything but one word of the header. */
static void say_hello_with(int fd, struct tb__wire_header header)
{
    struct tb__hello_wire hello = raw_hello();
    int bell = raw_bell();
    raw_message(fd, header, &hello, sizeof hello, &bell, 1);
    close(bell);
}

static void say_unknown_version(int fd)
{
    struct tb__wire_header header = raw_header(TB__MSG_HELLO, sizeof(struct tb__hello_wire));
    header.version = 77;
    say_hello_with(fd, header);
}

static void say_wrong_magic(int fd)
{
    struct tb__wire_header header = raw_header(TB__MSG_HELLO, sizeof(struct tb__hello_wire));
    header.magic = 1;
    say_hello_with(fd, header);
}

static void say_half(int fd)
{
    struct tb__hello_wire hello = raw_hello();
    raw_message(fd, raw_header(TB__MSG_HELLO, sizeof hello), &hello, sizeof hello / 2, NULL, 0);
}

static void say_250_descriptors(int fd)
{
    int fds[250];
    for (int i = 0; i < 250; i++) {
        fds[i] = STDERR_FILENO;
    }
    send_hello(fd, raw_hello(), fds, 250);
}

static void say_hello_without_bell(int fd)
{
    send_hello(fd, raw_hello(), NULL, 0);
}

static void say_hello_with_file(int fd)
{
    int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    send_hello(fd, raw_hello(), &file, 1);
    close(file);
}

static void say_hello_with_unsealed_bell(int fd)
{
    int bell = memfd_create("loose", MFD_CLOEXEC);
    CHECK(ftruncate(bell, 4096) == 0);
    send_hello(fd, raw_hello(), &bell, 1);
    close(bell);
}

static void say_bad_name(int fd)
{
    struct tb__hello_wire hello = raw_hello();
    int bell = raw_bell();
    memset(hello.name, 'a', sizeof hello.name); /* not terminated */
    send_hello(fd, hello, &bell, 1);
    close(bell);
}

static void say_open_before_hello(int fd)
{
    send_open(fd, (struct tb__pool_open_wire){.flags = TB__OPEN_BY_NAME, .name = "frames"});
}

/* The rest is said after a proper greeting. */
static void say_hello_again(int fd)
{
    int bell = raw_bell();
    send_hello(fd, raw_hello(), &bell, 1);
    close(bell);
}

static void say_unknown_type(int fd)
{
    raw_message(fd, raw_header(60000, 1), "x", 1, NULL, 0);
}

static void say_unknown_flags(int fd)
{
    send_open(fd, (struct tb__pool_open_wire){.flags = 0xffff0001, .name = "frames"});
}

static void say_many_leases(int fd)
{
    send_open(fd, (struct tb__pool_open_wire){
                      .flags = TB__OPEN_BY_NAME, .max_leases = UINT32_MAX, .name = "frames"});
}

static void say_open_with_bad_name(int fd)
{
    struct tb__pool_open_wire open = {.flags = TB__OPEN_BY_NAME};
    memset(open.name, '/', sizeof open.name);
    send_open(fd, open);
}

static void say_short_open(int fd)
{
    raw_message(fd, raw_header(TB__MSG_POOL_OPEN, 5), "short", 5, NULL, 0);
}

static const struct {
    const char *name;
    void (*say)(int fd);
    int greeted;
} insults[] = {
    {"one byte", say_one_byte, 0},
    {"noise", say_noise, 0},
    {"too much", say_too_much, 0},
    {"endless", say_endless, 0},
    {"unknown version", say_unknown_version, 0},
    {"wrong magic", say_wrong_magic, 0},
    {"half a message", say_half, 0},
    {"250 descriptors", say_250_descriptors, 0},
    {"no bell", say_hello_without_bell, 0},
    {"a file for a bell", say_hello_with_file, 0},
    {"unsealed bell", say_hello_with_unsealed_bell, 0},
    {"bad name", say_bad_name, 0},
    {"open before hello", say_open_before_hello, 0},
    {"hello again", say_hello_again, 1},
    {"unknown type", say_unknown_type, 1},
    {"unknown flags", say_unknown_flags, 1},
    {"many leases", say_many_leases, 1},
    {"open with a bad name", say_open_with_bad_name, 1},
    {"short open", say_short_open, 1},
};

/* An owner, and a client that it serves well. */
static tb_bus *begin_client(struct child *owner, tb_reader **reader)
{
    child_start(owner, "owner", steady_owner, NULL);
    child_await(owner, "open");
    tb_bus *bus = open_bus("client");
    *reader = open_reader(bus, "owner/frames");
    check_served(bus, *reader);
    return bus;
}

static void P11_wrong_words(void)
{
    struct child owner;
    tb_reader *reader;
    tb_bus *bus = begin_client(&owner, &reader);
    uint32_t fds = ask(&owner).fds;
    int silent = raw_connect("owner"); /* says nothing while all the others speak */
    for (size_t i = 0; i < sizeof insults / sizeof insults[0]; i++) {
        int fd = insults[i].greeted ? raw_greeted("owner") : raw_connect("owner");
        CHECK(fd >= 0);
        insults[i].say(fd);
        if (!raw_hangs_up(fd, 2000)) {
            FAIL("%s: the connection stays", insults[i].name);
        }
        close(fd);
        check_served(bus, reader);
        harness_sleep_us(210000); /* so that the limit of log lines hides none */
        if (harness_log_count("endpoint `owner`: disconnecting") != i + 1) {
            FAIL("%s: %u log lines, %zu are due", insults[i].name,
                 harness_log_count("endpoint `owner`: disconnecting"), i + 1);
        }
    }
    CHECK(raw_hangs_up(silent, 8000)); /* not for ever */
    close(silent);
    CHECK_WITHIN_MS(ask(&owner).fds <= fds, 2000);
    CHECK_EQ(ask(&owner).readers, 1);
    dismiss(&owner);
    tb_bus_close(bus);
}

static void P11_ten_thousand_connections(void)
{
    struct child owner;
    unsigned total = (unsigned)harness_scale(10000, 10000);
    static int fds[1500];
    tb_reader *reader;
    tb_bus *bus = begin_client(&owner, &reader);
    uint32_t owner_fds = ask(&owner).fds;
    for (unsigned done = 0; done < total;) {
        unsigned batch = total - done < 1500 ? total - done : 1500;
        for (unsigned i = 0; i < batch; i++) {
            fds[i] = raw_connect("owner");
            if (i % 3 == 0 && fds[i] >= 0) {
                say_one_byte(fds[i]);
            }
        }
        check_served(bus, reader);
        for (unsigned i = 0; i < batch; i++) {
            if (fds[i] >= 0) {
                close(fds[i]);
            }
        }
        done += batch;
    }
    check_served(bus, reader);
    CHECK_WITHIN_MS(ask(&owner).fds <= owner_fds, 3000);
    /* One limiter lets 5 lines a second through; a flood must not fill the log. */
    CHECK_LE(harness_log_count("disconnecting"), total / 20);
    dismiss(&owner);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ P25 */

static void P25_client_never_reads(void)
{
    struct child owner;
    tb_reader *reader;
    tb_bus *bus = begin_client(&owner, &reader);
    uint32_t fds = ask(&owner).fds;
    int deaf = raw_greeted("owner");
    struct tb__pool_open_wire open = {.flags = TB__OPEN_BY_NAME, .name = "frames"};
    uint32_t most = 0;
    int sent = 1;
    for (int i = 0; i < 10000 && sent; i++) {
        sent = raw_message(deaf, raw_header(TB__MSG_POOL_OPEN, sizeof open), &open, sizeof open,
                           NULL, 0);
        if (!sent && errno == EAGAIN) {
            sent = 1; /* its own socket is full: the owner is busy elsewhere */
            harness_sleep_us(500);
        }
        if (i % 500 == 0) {
            uint32_t now = ask(&owner).fds;
            most = now > most ? now : most;
        }
    }
    CHECK(!sent); /* it was disconnected */
    CHECK_LE(most, fds + 8);
    check_served(bus, reader);
    close(deaf);
    CHECK_WITHIN_MS(ask(&owner).fds <= fds, 2000);
    CHECK_WITHIN_MS(ask(&owner).readers == 1, 2000);
    CHECK_LE(1, harness_log_count("does not read its replies"));
    dismiss(&owner);
    tb_bus_close(bus);
}

/* A client that gives up while the answer is on its way leaves no attachment and blocks nothing. */
static void P25_open_that_was_given_up(void)
{
    struct child owner;
    char packet[2048];
    struct tb__wire_header header;
    struct tb__pool_open_wire open = {.flags = TB__OPEN_BY_NAME, .name = "frames"};
    child_start(&owner, "owner", steady_owner, NULL);
    child_await(&owner, "open");
    uint32_t fds = ask(&owner).fds;
    int fd = raw_greeted("owner");
    for (uint32_t request = 1; request <= 20; request++) {
        struct tb__wire_header question = raw_header(TB__MSG_POOL_OPEN, sizeof open);
        struct tb__wire_header cancel = raw_header(TB__MSG_CANCEL, sizeof request);
        question.request = request;
        cancel.request = 0;
        CHECK(raw_message(fd, question, &open, sizeof open, NULL, 0));
        CHECK_LT(0, raw_receive(fd, packet, sizeof packet, 2000));
        memcpy(&header, packet, sizeof header);
        CHECK_EQ(header.type, TB__MSG_POOL);
        CHECK_EQ(header.request, request);
        CHECK(raw_message(fd, cancel, &request, sizeof request, NULL, 0));
    }
    CHECK_WITHIN_MS(ask(&owner).readers == 0, 2000);
    CHECK_LE(ask(&owner).fds, fds + 1); /* the connection itself */
    close(fd);
    dismiss(&owner);
}

static void connect_over_and_over(void *argument)
{
    char packet[2048];
    (void)argument;
    parent_reached("begun");
    for (;;) {
        int fd = raw_connect("owner");
        CHECK(fd >= 0);
        raw_receive(fd, packet, sizeof packet, 1000);
        close(fd);
    }
}

static void P25_owner_at_its_descriptor_limit(void)
{
    struct child owner;
    unsigned spare = 6;
    int fds[40];
    child_start(&owner, "owner", steady_owner, &spare);
    child_await(&owner, "open");
    tb_bus *bus = open_bus("client");
    tb_reader *reader = open_reader(bus, "owner/frames");
    for (int i = 0; i < 40; i++) {
        fds[i] = raw_connect("owner");
        CHECK(fds[i] >= 0);
    }
    CHECK_WITHIN_MS(harness_log_count("too many open files") >= 1, 2000);
    /* A client that comes back at once whenever it is refused: the owner takes its time with it. */
    struct child insistent;
    child_start(&insistent, "insistent", connect_over_and_over, NULL);
    child_await(&insistent, "begun");
    int64_t cpu = ask(&owner).cpu_ns;
    tb_frame *frame;
    for (int i = 0; i < 50; i++) { /* who was there is served on */
        CHECK_OK(tb_reader_newest(reader, TB_SECONDS(2), &frame));
        tb_frame_release(frame);
        harness_sleep_us(10000);
    }
    /* Publishing 250 frames takes little; spinning would take much of the half second. */
    CHECK_LT(ask(&owner).cpu_ns - cpu, 80000000LL * harness_slowness());
    child_kill(&insistent);
    CHECK_LE(harness_log_count("too many open files"), 20);
    for (int i = 0; i < 40; i++) {
        close(fds[i]);
    }
    tb_reader *another;
    CHECK_WITHIN_MS(tb_reader_open(bus, "owner/frames", NULL, &another) == TB_OK, 3000);
    CHECK_OK(tb_reader_newest(another, TB_SECONDS(2), &frame));
    tb_frame_release(frame);
    dismiss(&owner);
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(P11_wrong_words, 60),
    TEST(P11_ten_thousand_connections, 60),
    TEST(P25_client_never_reads, 30),
    TEST(P25_open_that_was_given_up, 20),
    TEST(P25_owner_at_its_descriptor_limit, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
