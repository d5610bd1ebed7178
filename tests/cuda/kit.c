/* Running the tests; see kit.h. */
#include "tests/cuda/kit.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_S 120
#define SKIPPED 77

static int count_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory != NULL && readdir(directory) != NULL) {
        count++;
    }
    closedir(directory);
    return count;
}

const struct fake_control *kit_fake(void)
{
    static const struct fake_control *control;
    static int asked;
    if (!asked) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        control = library != NULL ? dlsym(library, "fake_cuda_control") : NULL;
        asked = 1;
    }
    return control;
}

void kit_fail(const char *file, int line, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s:%d: %s\n", file, line, text);
    fflush(NULL);
    _exit(1);
}

void kit_skip(const char *why)
{
    fprintf(stderr, "skipped: %s\n", why);
    fflush(NULL);
    _exit(SKIPPED);
}

void kit_check_clean(const char *file, int line)
{
    struct fake_leaks l;
    if (kit_fake() == NULL) {
        return;
    }
    kit_fake()->leaks(&l);
    if (l.allocations + l.registrations + l.blocks + l.reservations + l.opened + l.externals +
                l.streams + l.events + l.contexts !=
            0 ||
        l.device_bytes != 0) {
        kit_fail(file, line,
                 "left: %d allocations, %d registrations, %d blocks, %d reservations, %d opened, "
                 "%d externals, %d streams, %d events, %d contexts, %zu bytes",
                 l.allocations, l.registrations, l.blocks, l.reservations, l.opened, l.externals,
                 l.streams, l.events, l.contexts, l.device_bytes);
    }
}

static int status_of(pid_t pid)
{
    int status = 0;
    if (waitpid(pid, &status, 0) != pid) {
        return 255;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

int kit_child(void (*body)(void *), void *argument)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(LIMIT_S);
        body(argument);
        _exit(0);
    }
    return status_of(pid);
}

static void run_one(void *argument)
{
    const struct kit_test *test = argument;
    setenv("FAKE_CUDA", test->machine != NULL ? test->machine : "devices=1", 1);
    int before = count_descriptors();
    test->run();
    if (kit_fake() != NULL) {
        CLEAN();
        CHECK_EQ(count_descriptors(), before);
    }
    exit(0); /* not _exit: LeakSanitizer looks at the end */
}

/* Which driver the tests meet: 0 none, 1 the fake, 2 a real one. In a process of its own. */
static void find_driver(void *argument)
{
    (void)argument;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    _exit(library == NULL ? 0 : dlsym(library, "fake_cuda_control") != NULL ? 1 : 2);
}

int kit_main(int argc, char **argv, const struct kit_test *tests, size_t count)
{
    const char *only = argc > 1 ? argv[1] : getenv("TB_TEST");
    int driver = kit_child(find_driver, NULL);
    int passed = 0, failed = 0, skipped = 0;
    for (size_t i = 0; i < count; i++) {
        const struct kit_test *test = &tests[i];
        if (only != NULL && strcmp(only, test->name) != 0) {
            continue;
        }
        int status = SKIPPED;
        if (driver == 1 || (driver == 2 && test->any)) {
            status = kit_child(run_one, (void *)(uintptr_t)test);
        }
        passed += status == 0;
        skipped += status == SKIPPED;
        failed += status != 0 && status != SKIPPED;
        printf("%s %s", status == 0 ? "ok" : status == SKIPPED ? "skipped" : "FAIL", test->name);
        printf(status > 256 ? " (signal %d)\n" : "\n", status - 256);
    }
    printf("%d passed, %d failed, %d skipped%s\n", passed, failed, skipped,
           driver == 1   ? " (fake driver)"
           : driver == 0 ? " (no libcuda.so.1)"
                         : " (the machine's driver)");
    return failed > 0 ? 1 : passed > 0 ? 0 : SKIPPED;
}
