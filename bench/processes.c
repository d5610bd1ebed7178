/* Starting, commanding and ending the processes of a measurement. */
#include "bench/processes.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "bench/machine.h"

#define ANSWER_TIMEOUT_MS 60000

struct tb__side_failure {
    int32_t status;
    char text[512];
};

static char runtime_path[64];
static sigset_t interrupts;

void *tb__shared_map(size_t bytes)
{
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void tb__shared_unmap(void *memory, size_t bytes)
{
    if (memory != NULL) {
        munmap(memory, bytes);
    }
}

static void pin(int cpu)
{
    cpu_set_t set;
    if (cpu >= 0) {
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        sched_setaffinity(0, sizeof set, &set);
    }
}

_Noreturn static void side_run(struct tb__side *side, pid_t parent, tb__side_main *main,
                               void *argument)
{
    tb__interrupts_restore();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    signal(SIGPIPE, SIG_IGN);
    tb_status status = main(side, argument);
    if (status != TB_OK) {
        side->failure->status = status;
        snprintf(side->failure->text, sizeof side->failure->text, "%s", tb_last_error_text());
    }
    _exit(status == TB_OK ? 0 : 1);
}

tb_status tb__side_start(struct tb__side *side, const char *name, int cpu, tb__side_main *main,
                         void *argument)
{
    int command[2], answer[2];
    *side = (struct tb__side){.command_fd = -1, .answer_fd = -1, .name = name};
    side->failure = tb__shared_map(sizeof *side->failure);
    if (side->failure == NULL || pipe2(command, O_CLOEXEC) != 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "cannot make a pipe for %s", name);
    }
    if (pipe2(answer, O_CLOEXEC) != 0) {
        close(command[0]);
        close(command[1]);
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "cannot make a pipe for %s", name);
    }
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        pin(cpu);
        close(command[1]);
        close(answer[0]);
        side->command_fd = command[0];
        side->answer_fd = answer[1];
        side_run(side, parent, main, argument);
    }
    close(command[0]);
    close(answer[1]);
    side->command_fd = command[1];
    side->answer_fd = answer[0];
    if (pid < 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "cannot fork %s", name);
    }
    side->pid = pid;
    return TB_OK;
}

static tb_status side_failed(struct tb__side *side, const char *what)
{
    if (side->failure->status != 0) {
        return TB__FAIL((tb_status)side->failure->status, "%s: %s", side->name,
                        side->failure->text);
    }
    return TB__FAIL(TB_E_SYSTEM, "%s %s", side->name, what);
}

tb_status tb__side_command(struct tb__side *side, uint64_t command)
{
    if (write(side->command_fd, &command, sizeof command) != (ssize_t)sizeof command) {
        return side_failed(side, "does not take commands");
    }
    return TB_OK;
}

tb_status tb__side_answer(struct tb__side *side, uint64_t *out)
{
    struct pollfd wait = {.fd = side->answer_fd, .events = POLLIN};
    int ready;
    do {
        ready = poll(&wait, 1, ANSWER_TIMEOUT_MS);
    } while (ready < 0 && errno == EINTR);
    if (ready == 0) {
        return side_failed(side, "does not answer within 60 s");
    }
    uint64_t value;
    if (read(side->answer_fd, &value, sizeof value) != (ssize_t)sizeof value) {
        return side_failed(side, "ended early");
    }
    if (out != NULL) {
        *out = value;
    }
    return TB_OK;
}

uint64_t tb__side_wait(struct tb__side *side)
{
    uint64_t command;
    ssize_t got;
    do {
        got = read(side->command_fd, &command, sizeof command);
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof command ? command : TB__SIDE_STOP;
}

void tb__side_reply(struct tb__side *side, uint64_t value)
{
    if (write(side->answer_fd, &value, sizeof value) != (ssize_t)sizeof value) {
        _exit(1); /* the parent is gone */
    }
}

void tb__side_kill(struct tb__side *side)
{
    if (side->pid > 0) {
        kill(side->pid, SIGKILL);
    }
}

void tb__side_stop(struct tb__side *side)
{
    if (side->pid > 0) {
        /* Closing is not enough: sides that were started later hold the descriptor too. */
        uint64_t stop = TB__SIDE_STOP;
        int sent = write(side->command_fd, &stop, sizeof stop) == (ssize_t)sizeof stop;
        tb__fd_close(&side->command_fd);
        if (!sent) {
            kill(side->pid, SIGKILL);
        }
        int64_t deadline = tb__deadline_ns(TB_SECONDS(2));
        while (waitpid(side->pid, NULL, WNOHANG) == 0) {
            if (tb__left_ns(deadline) == 0) {
                kill(side->pid, SIGKILL);
                waitpid(side->pid, NULL, 0);
                break;
            }
            usleep(2000);
        }
        tb__fd_close(&side->answer_fd);
    }
    tb__shared_unmap(side->failure, sizeof *side->failure);
    side->failure = NULL;
    side->pid = 0;
}

tb_status tb__runtime_create(void)
{
    snprintf(runtime_path, sizeof runtime_path, "/tmp/tensorbus-bench-XXXXXX");
    if (mkdtemp(runtime_path) == NULL) {
        runtime_path[0] = '\0';
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "cannot make a runtime directory under /tmp");
    }
    setenv("TENSORBUS_DIR", runtime_path, 1);
    setenv("TENSORBUS_FLOW", "bench", 1);
    return TB_OK;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info, (void)type, (void)walk;
    return remove(path);
}

void tb__runtime_remove(void)
{
    if (runtime_path[0] != '\0') {
        nftw(runtime_path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
        runtime_path[0] = '\0';
    }
}

static void *interrupts_main(void *unused)
{
    int number;
    (void)unused;
    if (sigwait(&interrupts, &number) == 0) {
        tb__runtime_remove();
        _exit(128 + number); /* the sides die with us */
    }
    return NULL;
}

void tb__interrupts_watch(void)
{
    pthread_t thread;
    sigemptyset(&interrupts);
    sigaddset(&interrupts, SIGINT);
    sigaddset(&interrupts, SIGTERM);
    sigaddset(&interrupts, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &interrupts, NULL);
    if (pthread_create(&thread, NULL, interrupts_main, NULL) != 0) {
        tb__interrupts_restore();
        return;
    }
    pthread_detach(thread);
}

void tb__interrupts_restore(void)
{
    pthread_sigmask(SIG_UNBLOCK, &interrupts, NULL);
}

tb_status tb__two_cpus(int *first, int *second)
{
    struct tb__machine machine;
    tb__machine_find(&machine);
    if (machine.second_cpu < 0) {
        return TB__FAIL(TB_E_UNSUPPORTED, "needs two cores, this process may use one");
    }
    *first = machine.first_cpu;
    *second = machine.second_cpu;
    return TB_OK;
}

void tb__raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}
