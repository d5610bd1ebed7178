/* Bad days of processes: limits that are reached, forks in the wrong moment, signals without end,
 * floods of connections, and output that nobody reads. Each of these went wrong once. */
#include "proc/hostile.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>

static void steady_owner(void *argument)
{
    char order;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 64, 4);
    (void)argument;
    CHECK_OK(write_words(pool, 1, 0, NULL));
    parent_reached("open");
    parent_hear(&order, 1);
    CHECK_OK(write_words(pool, 2, 0, NULL));
    parent_hear(&order, 1);
    tb_bus_close(bus);
}

static void start_owner(struct child *owner)
{
    child_start(owner, "owner", steady_owner, NULL);
    child_await(owner, "open");
}

static void end_owner(struct child *owner)
{
    child_go(owner);
    child_go(owner);
    child_join(owner);
}

/* ------------------------------------------------------------------ descriptors */

static void limit_descriptors(unsigned spare)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    int lowest = dup(0);
    CHECK(lowest >= 0);
    close(lowest);
    limit.rlim_cur = (rlim_t)lowest + spare;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* A process without a free descriptor cannot attach to one more pool, and is told why. What it has
 * goes on. */
static void open_without_a_free_descriptor(void)
{
    struct child owner;
    struct rlimit before;
    tb_reader *another;
    tb_frame *frame;
    start_owner(&owner);
    tb_bus *bus = open_bus("client");
    tb_reader *reader = open_reader(bus, "owner/frames");
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(2), &frame));
    tb_frame_release(frame);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    for (unsigned spare = 0; spare < 2; spare++) {
        limit_descriptors(spare);
        CHECK_STATUS(tb_reader_open(bus, "owner/frames", NULL, &another), TB_E_LIMIT);
        CHECK_HAS(tb_last_error_text(), "too many open files");
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    }
    child_go(&owner);
    CHECK_OK(tb_reader_next(reader, TB_SECONDS(2), &frame));
    CHECK_EQ(words_value(frame), 2);
    tb_frame_release(frame);
    CHECK_OK(tb_reader_open(bus, "owner/frames", NULL, &another));
    tb_reader_close(another);
    child_go(&owner);
    child_join(&owner);
    tb_bus_close(bus);
}

static void late_owner(void *argument)
{
    (void)argument;
    char order;
    parent_hear(&order, 1);
    tb_bus *bus = open_bus("owner");
    register_words(bus, "frames", 64, 4);
    parent_hear(&order, 1);
    tb_bus_close(bus);
}

struct waiting {
    tb_bus *bus;
    tb_reader *reader;
};

static void *open_and_wait(void *argument)
{
    struct waiting *waiting = argument;
    waiting->reader = open_reader(waiting->bus, "owner/frames");
    return NULL;
}

/* There are 128 inotify instances per user by default: a flow may have more processes. */
static void wait_for_a_name_without_inotify(void)
{
    struct child owner;
    pthread_t thread;
    static int taken[70000];
    int count = 0;
    child_start(&owner, "owner", late_owner, NULL);
    struct waiting waiting = {.bus = open_bus("client")};
    while (count < 70000 && (taken[count] = inotify_init1(IN_CLOEXEC)) >= 0) {
        count++;
    }
    CHECK_LT(count, 70000);
    int by_limit = errno == EMFILE && count < 900; /* not the limit of descriptors */
    CHECK(pthread_create(&thread, NULL, open_and_wait, &waiting) == 0);
    harness_sleep_us(100000);
    child_go(&owner);
    pthread_join(thread, NULL);
    while (count > 0) {
        close(taken[--count]);
    }
    child_go(&owner);
    child_join(&owner);
    tb_bus_close(waiting.bus);
    if (!by_limit) {
        harness_skip("this machine has inotify instances without end");
    }
}

/* A descriptor that lingers when it is closed: a TCP connection with unsent data. */
static int lingering_socket(int *out_listener)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    struct linger linger = {1, 20};
    static char data[1 << 20];
    int small = 4096;
    *out_listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*out_listener < 0 || fd < 0 ||
        setsockopt(*out_listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) != 0 ||
        bind(*out_listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(*out_listener, 1) != 0 ||
        getsockname(*out_listener, (struct sockaddr *)&address, &length) != 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        harness_skip("no TCP on the loopback device");
    }
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    while (send(fd, data, sizeof data, MSG_NOSIGNAL) > 0) {
    }
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    return fd;
}

/* Closing what a client sent must not hold up the service thread, and with it everybody else: nor
 * what it sent behind a message that ended the connection. */
static void descriptor_that_lingers(void)
{
    struct child owner;
    tb_reader *reader;
    start_owner(&owner);
    tb_bus *bus = open_bus("client");
    for (int late = 0; late < 2; late++) {
        int listener;
        int hostile = raw_connect("owner");
        int fd = lingering_socket(&listener);
        struct tb__hello_wire hello = raw_hello();
        child_signal(&owner, SIGSTOP);
        CHECK(!late || raw_send(hostile, "nonsense", 8, NULL, 0));
        CHECK(raw_message(hostile, raw_header(TB__MSG_HELLO, sizeof hello), &hello, sizeof hello,
                          &fd, 1));
        close(fd); /* the owner has the last one */
        child_signal(&owner, SIGCONT);
        harness_sleep_us(50000);
        int64_t begun = harness_now_ns();
        CHECK_OK(tb_reader_open(bus, "owner/frames", NULL, &reader));
        tb_reader_close(reader);
        CHECK_LT(harness_now_ns() - begun, TB_SECONDS(3));
        close(hostile);
        close(listener);
    }
    end_owner(&owner);
    tb_bus_close(bus);
}

/* The limit of file sizes holds for shared memory, too: an error, not a deadly signal. */
static void limit_of_file_sizes(void)
{
    struct rlimit before;
    struct rlimit small = {1 << 20, RLIM_INFINITY};
    tb_pool *pool;
    tb_pool_options options = words_options("large", 1 << 18, 4);
    tb_bus *bus = open_bus("owner");
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small.rlim_max = before.rlim_max;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK_STATUS(tb_pool_register(bus, &options, &pool), TB_E_LIMIT);
    CHECK_HAS(tb_last_error_text(), "ulimit -f");
    options.doradma_name = "dora_pool_break_limit";
    options.slots = 1;
    CHECK_STATUS(tb_pool_register(bus, &options, &pool), TB_E_LIMIT);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    tb_bus_close(bus);
}

/* The same for the descriptor that an owner keeps to wake a reader, and closes when the reader
 * goes.
 */
static void wakeup_descriptor_that_lingers(void)
{
    struct child owner;
    struct tb__pool_open_wire open = {.flags = TB__OPEN_BY_NAME, .name = "frames"};
    struct tb__pool_wire answer;
    char packet[2048];
    int listener;
    tb_reader *reader;
    start_owner(&owner);
    tb_bus *bus = open_bus("client");
    int hostile = raw_greeted("owner");
    raw_message(hostile, raw_header(TB__MSG_POOL_OPEN, sizeof open), &open, sizeof open, NULL, 0);
    CHECK_EQ(raw_receive(hostile, packet, sizeof packet, 2000), 16 + sizeof answer);
    memcpy(&answer, packet + 16, sizeof answer);
    struct tb__reader_wire own = {.reader_id = answer.reader_id};
    raw_message(hostile, raw_header(TB__MSG_POOL_MAPPED, sizeof own), &own, sizeof own, NULL, 0);
    int fd = lingering_socket(&listener);
    child_signal(&owner, SIGSTOP);
    raw_message(hostile, raw_header(TB__MSG_READER_FD, sizeof own), &own, sizeof own, &fd, 1);
    close(fd);
    close(hostile);
    child_signal(&owner, SIGCONT);
    harness_sleep_us(50000);
    int64_t begun = harness_now_ns();
    CHECK_OK(tb_reader_open(bus, "owner/frames", NULL, &reader));
    CHECK_LT(harness_now_ns() - begun, TB_SECONDS(3));
    close(listener);
    end_owner(&owner);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ forks */

static atomic_int churn_stop;

static void *open_and_close_buses(void *argument)
{
    (void)argument;
    while (!atomic_load(&churn_stop)) {
        tb_bus *bus = open_bus("churn");
        tb_bus_close(bus);
    }
    return NULL;
}

/* Children that are forked while another thread holds the directory's lock do not keep it. */
static void fork_while_the_directory_is_locked(void)
{
    enum { CHILDREN = 60 };
    pid_t children[CHILDREN];
    pthread_t thread;
    harness_before_fork();
    atomic_store(&churn_stop, 0);
    CHECK(pthread_create(&thread, NULL, open_and_close_buses, NULL) == 0);
    for (int i = 0; i < CHILDREN; i++) {
        harness_sleep_us(1000);
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            pause();
            _exit(0);
        }
    }
    atomic_store(&churn_stop, 1);
    pthread_join(thread, NULL);
    char path[300];
    snprintf(path, sizeof path, "%s/default", harness_dir());
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    close(fd);
    for (int i = 0; i < CHILDREN; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
    CHECK(locked);
}

static void *open_and_close_readers(void *argument)
{
    while (!atomic_load(&churn_stop)) {
        tb_reader *reader;
        CHECK_OK(tb_reader_open(argument, "server/frames", NULL, &reader));
        tb_reader_close(reader); /* the last one: the connection ends, too */
    }
    return NULL;
}

/* Connections that are open in this process. One that was shut down keeps nobody waiting. */
static unsigned open_connections(void)
{
    unsigned count = 0;
    struct stat info;
    for (int fd = 3; fd < 200; fd++) {
        struct pollfd poller = {.fd = fd};
        count += fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) && poll(&poller, 1, 0) >= 0 &&
                 (poller.revents & POLLHUP) == 0;
    }
    return count;
}

/* Children that are forked while connections are being made keep none of them open: else their
 * parent's end would not be noticed by its hang-up. Sockets of the harness are there before. */
static void fork_while_connections_are_made(void)
{
    pthread_t thread;
    harness_before_fork();
    unsigned before = open_connections();
    tb_bus *server = open_bus("server");
    tb_bus *client = open_bus("client");
    register_words(server, "frames", 8, 2);
    atomic_store(&churn_stop, 0);
    CHECK(pthread_create(&thread, NULL, open_and_close_readers, client) == 0);
    unsigned worst = 0;
    for (unsigned long i = 0; i < harness_scale(400, 4000); i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            unsigned found = open_connections();
            _exit(found > 100 ? 100 : (int)found);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
        worst = (unsigned)WEXITSTATUS(status) > worst ? (unsigned)WEXITSTATUS(status) : worst;
    }
    atomic_store(&churn_stop, 1);
    pthread_join(thread, NULL);
    tb_bus_close(client);
    tb_bus_close(server);
    CHECK_EQ(worst, before);
}

/* ------------------------------------------------------------------ signals */

static void on_tick(int signal)
{
    (void)signal;
}

/* A program with a fast timer (a profiler) registers large pools like any other. (Kernels before
 * 6.18 give up an allocation that is under way when a signal comes.) */
static void register_under_a_fast_timer(void)
{
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    struct itimerval fast = {{0, 1000 * (int)harness_slowness()}, {0, 1000}};
    struct itimerval off = {{0, 0}, {0, 0}};
    tb_bus *bus = open_bus("owner");
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &fast, NULL) == 0);
    tb_pool *pool = register_words(bus, "frames", 1 << 20, 16); /* 128 MiB */
    CHECK_OK(write_words(pool, 1, 0, NULL));
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
    tb_bus_close(bus);
}

/* ------------------------------------------------------------------ floods */

static void flooder(void *argument)
{
    (void)argument;
    int fds[100];
    for (int round = 0;; round++) {
        for (int i = 0; i < 100; i++) {
            fds[i] = raw_connect("owner");
        }
        for (int i = 0; i < 100; i++) {
            close(fds[i]);
        }
    }
}

/* Clients that connect without end and say nothing: whoever greets is served. */
static void flood_of_silent_connections(void)
{
    struct child owner;
    struct child flooders[3];
    start_owner(&owner);
    for (int i = 0; i < 3; i++) {
        child_start(&flooders[i], "flooder", flooder, NULL);
    }
    harness_sleep_us(100000);
    for (unsigned long i = 0; i < harness_scale(50, 500); i++) {
        tb_reader *reader;
        tb_bus *bus = open_bus(NULL);
        CHECK_OK(tb_reader_open(bus, "owner/frames", NULL, &reader));
        tb_bus_close(bus);
    }
    for (int i = 0; i < 3; i++) {
        child_kill(&flooders[i]);
    }
    end_owner(&owner);
}

/* ------------------------------------------------------------------ output that nobody reads */

static void unheard_owner(void *argument)
{
    int pipes[2];
    char order;
    static char block[4096];
    (void)argument;
    tb_bus *bus = open_bus("owner");
    tb_pool *pool = register_words(bus, "frames", 64, 4);
    CHECK_OK(write_words(pool, 1, 0, NULL));
    int before = dup(STDERR_FILENO);
    CHECK(pipe2(pipes, O_CLOEXEC | O_NONBLOCK) == 0);
    while (write(pipes[1], block, sizeof block) > 0) {
    }
    CHECK(fcntl(pipes[1], F_SETFL, 0) == 0);
    CHECK(dup2(pipes[1], STDERR_FILENO) >= 0);
    parent_pause("deaf");
    while (read(pipes[0], block, sizeof block) > 0) {
    }
    parent_pause("hears");
    ssize_t got = read(pipes[0], block, sizeof block - 1);
    CHECK(dup2(before, STDERR_FILENO) >= 0);
    CHECK(got > 0);
    block[got] = '\0';
    CHECK_HAS(block, "lines were lost");
    close(before);
    close(pipes[0]);
    close(pipes[1]);
    parent_hear(&order, 1);
    tb_bus_close(bus);
}

/* Break the protocol so often that the owner warns of it. */
static void annoy(void)
{
    for (int i = 0; i < 3; i++) {
        int fd = raw_connect("owner");
        CHECK(fd >= 0);
        raw_send(fd, "nonsense", 8, NULL, 0);
        CHECK(raw_hangs_up(fd, 2000));
        close(fd);
    }
}

/* An owner whose standard error is a full pipe serves on; its lost lines are counted. */
static void warnings_that_nobody_reads(void)
{
    struct child owner;
    tb_reader *reader;
    child_start(&owner, "owner", unheard_owner, NULL);
    child_await(&owner, "deaf");
    annoy();
    tb_bus *bus = open_bus("client");
    CHECK_OK(tb_reader_open(bus, "owner/frames", NULL, &reader));
    child_go(&owner);
    child_await(&owner, "hears");
    harness_sleep_us(1100000); /* the warnings' rate is limited by the second */
    annoy();
    child_go(&owner);
    child_go(&owner);
    child_join(&owner);
    tb_bus_close(bus);
}

static const struct test tests[] = {
    TEST(open_without_a_free_descriptor, 30),
    TEST(wait_for_a_name_without_inotify, 40),
    TEST(descriptor_that_lingers, 40),
    TEST(wakeup_descriptor_that_lingers, 40),
    TEST(fork_while_the_directory_is_locked, 40),
    TEST(fork_while_connections_are_made, 60),
    TEST(register_under_a_fast_timer, 40),
    TEST(flood_of_silent_connections, 60),
    TEST(warnings_that_nobody_reads, 30),
    TEST(limit_of_file_sizes, 10),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
