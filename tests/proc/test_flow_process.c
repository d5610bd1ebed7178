/* Processes of nodes and their guard: starting, failing to start, groups, and what the guard does
 * when its runner is killed. */
#include "harness/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "flow/guard.h"
#include "flow/process.h"
#include "flow/run_directory.h"

#define FLOW "0badcafe"

/* execve() takes arrays of `char *` and changes nothing. */
static char *const environment[] = {(char *)"PATH=/usr/bin:/bin",
                                    (char *)"WORD=from the environment", NULL};

static tb_status start_shell(const char *script, struct tb__process *out)
{
    char *const argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)script, NULL};
    const struct tb__process_options options = {
        .label = "node", .argv = argv, .environment = environment, .directory = "/"};
    return tb__process_start(&options, out);
}

/* Read the output until it is closed. */
static void read_output(struct tb__process *process, char *buffer, size_t size)
{
    size_t used = 0;
    for (;;) {
        ssize_t got = read(process->output_fd, buffer + used, size - 1 - used);
        if (got < 0 && errno == EAGAIN) {
            struct pollfd fd = {.fd = process->output_fd, .events = POLLIN};
            CHECK_EQ(poll(&fd, 1, 5000), 1);
            continue;
        }
        if (got <= 0) {
            break;
        }
        used += (size_t)got;
    }
    buffer[used] = '\0';
}

static int await_end(struct tb__process *process)
{
    int status;
    struct pollfd fd = {.fd = process->pid_fd, .events = POLLIN};
    CHECK_EQ(poll(&fd, 1, 5000), 1);
    CHECK_EQ(tb__process_reap(process, &status), 1);
    return status;
}

static void a_process_and_its_output(void)
{
    struct tb__process process;
    char text[256];
    CHECK_OK(
        start_shell("echo $WORD; pwd >&2; read x; cut -d' ' -f5 /proc/$$/stat; exit 5", &process));
    read_output(&process, text, sizeof text);
    char expected[128];
    snprintf(expected, sizeof expected, "from the environment\n/\n%d\n", (int)process.pid);
    CHECK_STR(text, expected);
    CHECK_EQ(await_end(&process), 5 << 8);
    CHECK_EQ(tb__process_group_alive(process.pid), 0);
    tb__process_describe_status(5 << 8, text, sizeof text);
    CHECK_STR(text, "exit 5");
    tb__process_fini(&process);
}

static void what_cannot_be_started_says_why(void)
{
    static char *const missing[] = {(char *)"/no/such/program", NULL};
    static char *const directory[] = {(char *)"/", NULL};
    static char *const shell[] = {(char *)"/bin/sh", NULL};
    const struct {
        char *const *argv;
        const char *directory;
        const char *says;
    } cases[] = {
        {missing, "/", "node `node`: starting `/no/such/program`: No such file"},
        {directory, "/", "starting `/`: Permission denied"},
        {shell, "/no/such/directory", "working directory `/no/such/directory`: No such file"},
    };
    unsigned before = harness_fd_count();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tb__process process;
        const struct tb__process_options options = {.label = "node",
                                                    .argv = cases[i].argv,
                                                    .environment = environment,
                                                    .directory = cases[i].directory};
        CHECK(tb__process_start(&options, &process) < 0);
        CHECK_HAS(tb_last_error_text(), cases[i].says);
        CHECK_EQ(waitpid(-1, NULL, WNOHANG), -1); /* no zombie */
        CHECK_EQ(errno, ECHILD);
    }
    CHECK_EQ(harness_fd_count(), before);
}

static void signals_begin_as_they_were_made(void)
{
    struct tb__process process;
    char text[256];
    sigset_t set;
    sigfillset(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    CHECK_OK(start_shell("grep -E 'Sig(Blk|Ign)' /proc/self/status", &process));
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    read_output(&process, text, sizeof text);
    CHECK_HAS(text, "SigBlk:\t0000000000000000");
    /* Signals 32 and 33 are the C library's own. Its posix_spawn() makes children ignore them, so
     * that everything below make(1) does, and nobody can change it through the library. */
    const char *ignored = strstr(text, "SigIgn:");
    CHECK(ignored != NULL);
    CHECK_EQ(strtoull(ignored + strlen("SigIgn:"), NULL, 16) & ~(3ull << 31), 0);
    CHECK_EQ(await_end(&process), 0);
    tb__process_fini(&process);
}

static void only_the_dead_are_reaped(void)
{
    struct tb__process process;
    int status;
    CHECK_OK(start_shell("exec sleep 60", &process));
    CHECK_EQ(tb__process_reap(&process, &status), 0);
    tb__process_signal_group(process.pid, SIGKILL);
    CHECK_EQ(await_end(&process), SIGKILL);
    tb__process_fini(&process);
}

static void the_group_outlives_its_leader(void)
{
    struct tb__process process;
    struct tb__process_usage usage;
    char text[64];
    CHECK_OK(
        start_shell("(trap '' TERM; while :; do sleep 0.02; done) & echo up; sleep 0.1", &process));
    CHECK_WITHIN_MS(tb__process_group_alive(process.pid), 1000);
    CHECK_EQ(await_end(&process), 0);
    CHECK_EQ(tb__process_group_alive(process.pid), 1);
    tb__process_group_usage(process.pid, &usage);
    CHECK_LE(1, usage.members);
    CHECK_LT(100000, usage.resident_bytes);
    tb__process_signal_group(process.pid, SIGKILL);
    CHECK_WITHIN_MS(!tb__process_group_alive(process.pid), 2000);
    tb__process_group_usage(process.pid, &usage);
    CHECK_EQ(usage.members, 0);
    read_output(&process, text, sizeof text);
    CHECK_STR(text, "up\n");
    tb__process_fini(&process);
}

static void special_groups_are_never_signalled(void)
{
    /* 0 is our own group, -1 everybody: the test would not survive. */
    tb__process_signal_group(0, SIGKILL);
    tb__process_signal_group(1, SIGKILL);
    tb__process_signal_group(-1, SIGKILL);
    CHECK_EQ(tb__process_group_alive(0), 0);
    CHECK_EQ(tb__process_group_alive(1), 0);
}

/* ------------------------------------------------------------------ the guard */

struct run {
    int root_fd;
    int directory_fd;
    int lock_fd;
    struct tb__guard guard;
};

static void begin_run(struct run *run)
{
    char path[TB__RUN_PATH_SIZE];
    CHECK_OK(tb__run_root_open(1, path, &run->root_fd));
    CHECK_OK(tb__run_directory_create(run->root_fd, FLOW, &run->directory_fd, &run->lock_fd));
    const struct tb__guard_options options = {.directory_fd = run->root_fd,
                                              .directory_name = FLOW,
                                              .lock_fd = run->lock_fd,
                                              .term_ns = TB_MILLIS(300)};
    CHECK_OK(tb__guard_start(&options, &run->guard));
}

static int flow_directory_exists(void)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", harness_dir(), FLOW);
    return access(path, F_OK) == 0;
}

static void end_run(struct run *run)
{
    tb__guard_stop(&run->guard);
    tb__fd_close(&run->lock_fd);
    tb__fd_close(&run->directory_fd);
    tb__fd_close(&run->root_fd);
}

static void an_orderly_end_is_quick(void)
{
    struct run run;
    begin_run(&run);
    CHECK(flow_directory_exists());
    CHECK_EQ(tb__guard_ended(&run.guard), 0);
    CHECK_OK(tb__guard_add(&run.guard, 2000000000)); /* no such group */
    CHECK_OK(tb__guard_remove(&run.guard, 2000000000));
    int64_t begin = harness_now_ns();
    end_run(&run);
    CHECK_LT(harness_now_ns() - begin, 200000000LL * harness_slowness());
    CHECK(!flow_directory_exists());
}

/* What the runner tells its parent before it is killed. */
struct ids {
    pid_t polite;
    pid_t deaf;
    pid_t removed;
    pid_t guard;
};

static void runner_role(void *argument)
{
    struct run run;
    struct tb__process polite;
    struct tb__process deaf;
    struct tb__process removed;
    (void)argument;
    begin_run(&run);
    /* The kernel tells only the shell itself, so its child shows whether the guard does. */
    CHECK_OK(start_shell("(while :; do sleep 0.02; done) & wait", &polite));
    CHECK_OK(start_shell("trap '' TERM HUP INT; while :; do sleep 0.02; done", &deaf));
    CHECK_OK(start_shell("trap '' TERM; exec sleep 5", &removed));
    CHECK_OK(tb__guard_add(&run.guard, polite.pid));
    CHECK_OK(tb__guard_add(&run.guard, removed.pid));
    CHECK_OK(tb__guard_add(&run.guard, deaf.pid));
    CHECK_OK(tb__guard_remove(&run.guard, removed.pid));
    struct ids ids = {polite.pid, deaf.pid, removed.pid, run.guard.pid};
    usleep(200000); /* the traps are set */
    parent_tell(&ids, sizeof ids);
    pause();
}

static void the_guard_of_a_killed_runner(void)
{
    struct child runner;
    struct ids ids;
    child_start(&runner, "runner", runner_role, NULL);
    child_hear(&runner, &ids, sizeof ids);
    CHECK(flow_directory_exists());
    CHECK_EQ(tb__process_group_alive(ids.deaf), 1);
    child_kill(&runner);
    int64_t begin = harness_now_ns();
    CHECK_WITHIN_MS(!tb__process_group_alive(ids.polite), 250);
    CHECK_EQ(tb__process_group_alive(ids.deaf), 1); /* 300 ms after SIGTERM */
    CHECK(flow_directory_exists());                 /* as long as somebody may use it */
    CHECK_WITHIN_MS(!tb__process_group_alive(ids.deaf), 2000);
    CHECK_LE(250000000, harness_now_ns() - begin);
    CHECK_WITHIN_MS(!flow_directory_exists(), 2000);
    CHECK_EQ(tb__process_group_alive(ids.removed), 1); /* no concern of the guard any more */
    tb__process_signal_group(ids.removed, SIGKILL);
    CHECK_WITHIN_MS(kill(ids.guard, 0) != 0 || !tb__process_group_alive(ids.guard), 2000);
}

static void a_killed_guard_is_noticed(void)
{
    struct run run;
    begin_run(&run);
    kill(run.guard.pid, SIGKILL);
    struct pollfd fd = {.fd = run.guard.pid_fd, .events = POLLIN};
    CHECK_EQ(poll(&fd, 1, 5000), 1);
    signal(SIGPIPE, SIG_IGN);
    CHECK_STATUS(tb__guard_add(&run.guard, 2000000000), TB_E_SYSTEM);
    CHECK_EQ(tb__guard_ended(&run.guard), 1);
    CHECK_EQ(run.guard.pid, 0);
    tb__run_directory_remove(run.root_fd, FLOW);
    end_run(&run);
}

static void a_directory_is_made_once(void)
{
    struct run run;
    int directory_fd = -1;
    int lock_fd = -1;
    begin_run(&run);
    CHECK_EQ(tb__run_directory_locked(run.directory_fd), 1);
    CHECK_STATUS(tb__run_directory_create(run.root_fd, FLOW, &directory_fd, &lock_fd), TB_E_EXISTS);
    struct tb__sweep sweep;
    CHECK_OK(tb__run_root_sweep(run.root_fd, NULL, &sweep));
    CHECK_EQ(sweep.live, 1);
    CHECK_EQ(sweep.directories, 0);
    end_run(&run);
}

/* Sweeps the runtime directory until it is killed. */
static void sweep_role(void *argument)
{
    char path[TB__RUN_PATH_SIZE];
    int root_fd = -1;
    (void)argument;
    CHECK_OK(tb__run_root_open(1, path, &root_fd));
    parent_reached("sweeping");
    for (;;) {
        struct tb__sweep sweep;
        CHECK_OK(tb__run_root_sweep(root_fd, NULL, &sweep));
    }
}

/* A directory that was made is there, is ours, and stays, whatever sweeps meanwhile. */
static void sweeping_while_directories_are_made(void)
{
    struct child sweepers[2];
    char path[TB__RUN_PATH_SIZE];
    int root_fd = -1;
    CHECK_OK(tb__run_root_open(1, path, &root_fd));
    for (int i = 0; i < 2; i++) {
        child_start(&sweepers[i], "sweeper", sweep_role, NULL);
        child_await(&sweepers[i], "sweeping");
    }
    for (unsigned long i = 0; i < harness_scale(3000, 30000); i++) {
        int directory_fd = -1;
        int lock_fd = -1;
        struct stat mine;
        struct stat named;
        CHECK_OK(tb__run_directory_create(root_fd, FLOW, &directory_fd, &lock_fd));
        CHECK_EQ(fstat(directory_fd, &mine), 0);
        CHECK_EQ(fstatat(root_fd, FLOW, &named, 0), 0);
        CHECK_EQ(mine.st_ino, named.st_ino);
        CHECK_EQ(fstatat(directory_fd, TB__RUN_LOCK_FILE, &named, 0), 0);
        tb__run_directory_remove(root_fd, FLOW);
        tb__fd_close(&lock_fd);
        tb__fd_close(&directory_fd);
    }
    for (int i = 0; i < 2; i++) {
        child_kill(&sweepers[i]);
    }
    tb__fd_close(&root_fd);
}

static const struct test tests[] = {
    TEST(a_process_and_its_output, 20),
    TEST(what_cannot_be_started_says_why, 20),
    TEST(signals_begin_as_they_were_made, 20),
    TEST(only_the_dead_are_reaped, 10),
    TEST(the_group_outlives_its_leader, 20),
    TEST(special_groups_are_never_signalled, 20),
    TEST(an_orderly_end_is_quick, 20),
    TEST(the_guard_of_a_killed_runner, 20),
    TEST(a_killed_guard_is_noticed, 20),
    TEST(a_directory_is_made_once, 20),
    TEST(sweeping_while_directories_are_made, 60),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
