/* Starting and ending the processes of nodes.
 *
 * Between fork and exec only async-signal-safe calls are made, since the runner has a second thread
 * (its bus). A pipe that closes on exec carries errno back when the child cannot be set up, so the
 * caller learns at once that a program is missing, and why.
 *
 * Runs on the runner's main thread. */
#include "flow/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"

#define OUTPUT_PIPE_BYTES (1 << 20)

/* What the child reports when it fails before exec. */
struct start_failure {
    int errno_value;
    int step;
};
enum { STEP_DIRECTORY, STEP_SETUP, STEP_EXEC };

void tb__process_raise_limit(int resource)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        /* Failing leaves the old limit, which `doctor` shows. */
        (void)setrlimit(resource, &limit);
    }
}

static void reset_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    for (int i = 1; i < NSIG; i++) {
        (void)sigaction(i, &action, NULL);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static _Noreturn void report_and_exit(int report_fd, int step)
{
    struct start_failure failure = {.errno_value = errno, .step = step};
    ssize_t ignored = write(report_fd, &failure, sizeof failure);
    (void)ignored;
    _exit(127);
}

static _Noreturn void child_main(const struct tb__process_options *options, pid_t runner,
                                 int output_fd, int report_fd)
{
    reset_signals();
    /* The parent does the same; whichever comes first, the group exists before anyone signals it.
     */
    (void)setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) {
        report_and_exit(report_fd, STEP_SETUP);
    }
    if (getppid() != runner) {
        _exit(127); /* the runner died before the line above: nobody would tell us */
    }
    int input_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (input_fd < 0 || dup2(input_fd, STDIN_FILENO) < 0 || dup2(output_fd, STDOUT_FILENO) < 0 ||
        dup2(output_fd, STDERR_FILENO) < 0) {
        report_and_exit(report_fd, STEP_SETUP);
    }
    tb__process_raise_limit(RLIMIT_MEMLOCK);
    tb__process_raise_limit(RLIMIT_NOFILE);
    if (options->directory != NULL && chdir(options->directory) != 0) {
        report_and_exit(report_fd, STEP_DIRECTORY);
    }
    execve(options->argv[0], options->argv, options->environment);
    report_and_exit(report_fd, STEP_EXEC);
}

static tb_status start_failed(const struct tb__process_options *options,
                              const struct start_failure *failure)
{
    errno = failure->errno_value;
    switch (failure->step) {
    case STEP_DIRECTORY:
        return TB__FAIL_ERRNO(TB_E_NOT_FOUND, "node `%s`: entering its working directory `%s`",
                              options->label, options->directory);
    case STEP_EXEC:
        return TB__FAIL_ERRNO(failure->errno_value == ENOENT ? TB_E_NOT_FOUND : TB_E_SYSTEM,
                              "node `%s`: starting `%s`", options->label, options->argv[0]);
    default:
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "node `%s`: preparing its process", options->label);
    }
}

/* TB_OK when the pipe closed without a word, that is, when exec succeeded. */
static tb_status await_exec(const struct tb__process_options *options, int report_fd)
{
    struct start_failure failure;
    ssize_t got;
    do {
        got = read(report_fd, &failure, sizeof failure);
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof failure ? start_failed(options, &failure) : TB_OK;
}

static tb_status make_pipes(const char *label, int output[2], int report[2])
{
    if (pipe2(output, O_CLOEXEC) != 0) {
        return TB__FAIL_ERRNO(TB_E_LIMIT, "node `%s`: a pipe for its output", label);
    }
    if (pipe2(report, O_CLOEXEC) != 0 || fcntl(output[0], F_SETFL, O_NONBLOCK) != 0) {
        return TB__FAIL_ERRNO(TB_E_LIMIT, "node `%s`: a pipe for its start", label);
    }
    /* A node that prints in bursts then need not wait for us. Refused above the user's quota. */
    (void)fcntl(output[0], F_SETPIPE_SZ, OUTPUT_PIPE_BYTES);
    return TB_OK;
}

static tb_status fork_and_exec(const struct tb__process_options *options, int output[2],
                               int report[2], struct tb__process *started)
{
    pid_t runner = getpid();
    /* The child must not run our signal handlers, so signals stay blocked until it has reset them.
     */
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    if (pid == 0) {
        child_main(options, runner, output[1], report[1]);
    }
    int fork_errno = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pid < 0) {
        errno = fork_errno;
        return TB__FAIL_ERRNO(TB_E_LIMIT, "node `%s`: fork", options->label);
    }
    (void)setpgid(pid, pid);
    tb__fd_close(&report[1]);
    tb_status status = await_exec(options, report[0]);
    if (status == TB_OK) {
        started->pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
        if (started->pid_fd < 0) {
            status = TB__FAIL_ERRNO(TB_E_SYSTEM,
                                    "node `%s`: a descriptor of its process (needs Linux 5.3)",
                                    options->label);
            kill(-pid, SIGKILL);
        }
    }
    if (status != TB_OK) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
        return status;
    }
    started->pid = pid;
    return TB_OK;
}

tb_status tb__process_start(const struct tb__process_options *options, struct tb__process *out)
{
    int output[2] = {-1, -1};
    int report[2] = {-1, -1};
    struct tb__process started = {.pid = 0, .pid_fd = -1, .output_fd = -1};
    tb_status status = make_pipes(options->label, output, report);
    if (status == TB_OK) {
        status = fork_and_exec(options, output, report, &started);
    }
    if (status == TB_OK) {
        started.output_fd = output[0];
        output[0] = -1;
        *out = started;
    }
    for (int i = 0; i < 2; i++) {
        tb__fd_close(&output[i]);
        tb__fd_close(&report[i]);
    }
    return status;
}

void tb__process_fini(struct tb__process *process)
{
    tb__fd_close(&process->pid_fd);
    tb__fd_close(&process->output_fd);
}

int tb__process_reap(const struct tb__process *process, int *out_status)
{
    int status = 0;
    pid_t reaped;
    do {
        reaped = waitpid(process->pid, &status, WNOHANG);
    } while (reaped < 0 && errno == EINTR);
    if (reaped != process->pid) {
        return 0;
    }
    *out_status = status;
    return 1;
}

void tb__process_signal_group(pid_t group, int signal_number)
{
    if (group > 1) { /* 0, 1 and -1 mean other things to kill() */
        (void)kill(-group, signal_number);
    }
}

/* The fields of /proc/<pid>/stat that we need. The command may hold any bytes, so the fields are
 * counted from the last parenthesis. */
static int read_stat(const char *pid_name, char *out_state, pid_t *out_group,
                     struct tb__process_usage *usage)
{
    char path[64];
    char text[1024];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid_name);
    if (tb__file_read(path, text, sizeof text) <= 0) {
        return 0;
    }
    const char *rest = strrchr(text, ')');
    unsigned long user;
    unsigned long system;
    long resident;
    int group;
    if (rest == NULL || sscanf(rest,
                               ") %c %*d %d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d "
                               "%*d %*d %*d %*u %*u %ld",
                               out_state, &group, &user, &system, &resident) != 5) {
        return 0;
    }
    *out_group = (pid_t)group;
    usage->cpu_ticks = (uint64_t)user + system;
    usage->resident_bytes = resident > 0 ? (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
    return 1;
}

void tb__process_group_usage(pid_t group, struct tb__process_usage *out)
{
    struct tb__process_usage sum = {0, 0, 0};
    DIR *proc = opendir("/proc");
    for (struct dirent *entry = NULL; proc != NULL && (entry = readdir(proc)) != NULL;) {
        struct tb__process_usage one = {0, 0, 0};
        char state;
        pid_t found;
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9' ||
            !read_stat(entry->d_name, &state, &found, &one) || found != group || state == 'Z' ||
            state == 'X') {
            continue;
        }
        sum.cpu_ticks += one.cpu_ticks;
        sum.resident_bytes += one.resident_bytes;
        sum.members++;
    }
    if (proc != NULL) {
        closedir(proc);
    }
    *out = sum;
}

int tb__process_group_alive(pid_t group)
{
    /* Asking the kernel is cheap and nearly always enough; /proc tells zombies, which nobody may
     * ever reap in a container whose first process does not. */
    if (group <= 1 || (kill(-group, 0) != 0 && errno == ESRCH)) {
        return 0;
    }
    struct tb__process_usage usage;
    tb__process_group_usage(group, &usage);
    return usage.members > 0;
}

void tb__process_describe_status(int status, char *buffer, size_t size)
{
    if (!WIFSIGNALED(status)) {
        snprintf(buffer, size, "exit %d", WEXITSTATUS(status));
        return;
    }
    static const struct {
        int number;
        const char *name;
    } names[] = {
        {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
        {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
        {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
        {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"}, {SIGXCPU, "SIGXCPU"},
        {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"},
    };
    const char *core = WCOREDUMP(status) ? " (core dumped)" : "";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i].number == WTERMSIG(status)) {
            snprintf(buffer, size, "killed by %s%s", names[i].name, core);
            return;
        }
    }
    snprintf(buffer, size, "killed by signal %d%s", WTERMSIG(status), core);
}
