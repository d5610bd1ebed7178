/* What `tensorbus pool` says of flows, processes and pools that there are not: what there is
 * instead.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proc/pool_support.h"

#define MOST_WORDS 3

struct situation {
    const char *words; /* of the command line behind `tensorbus pool` */
    int code;
    const char *says[MOST_WORDS];
    const char * not ;
};

static void run_all(const struct situation *situations, size_t count)
{
    char command[256], out[4096];
    if (access(TB_BINARY_DIR "/bin/tensorbus", X_OK) != 0) {
        harness_skip("this build has no command");
    }
    for (size_t i = 0; i < count; i++) {
        const struct situation *at = &situations[i];
        snprintf(command, sizeof command, "%s/bin/tensorbus pool %s 2>&1", TB_BINARY_DIR,
                 at->words);
        FILE *pipe = popen(command, "re");
        CHECK(pipe != NULL);
        out[fread(out, 1, sizeof out - 1, pipe)] = '\0';
        int code = pclose(pipe);
        if (!WIFEXITED(code) || WEXITSTATUS(code) != at->code) {
            FAIL("pool %s: status 0x%x, exit code %d is due: %s", at->words, code, at->code, out);
        }
        for (int k = 0; k < MOST_WORDS && at->says[k] != NULL; k++) {
            if (strstr(out, at->says[k]) == NULL) {
                FAIL("pool %s: `%s` lacks `%s`", at->words, out, at->says[k]);
            }
        }
        if (at->not != NULL && strstr(out, at->not ) != NULL) {
            FAIL("pool %s: `%s` has `%s`", at->words, out, at->not );
        }
    }
}

static tb_bus *open_bus_in(const char *flow, const char *name)
{
    tb_bus *bus;
    tb_bus_options options = {.size = sizeof options, .flow = flow, .name = name};
    CHECK_OK(tb_bus_open(&options, &bus));
    return bus;
}

static void what_there_is_is_said(void)
{
    static const struct situation situations[] = {
        {"list nofl", 1, {"there is no flow `nofl`; processes are in `night`, `default`\n"}, NULL},
        {"list ''", 1, {"there is no flow ``; processes are in `night`, `default`\n"}, NULL},
        {"info --flow nofl cam/front", 1, {"there is no flow `nofl`; processes are in `"}, NULL},
        {"list cam",
         1,
         {"there is no flow `cam`, but a process in `default`, whose pools `tensorbus pool list "
          "default` shows; "},
         NULL},
        {"list cam/front", 2, {"`list` takes a flow; `tensorbus pool info cam/front` shows"}, NULL},
        {"list empty", 0, {"`empty`: nobody is in it; other processes are in `"}, NULL},
        {"list night", 0, {"no pools in flow `night`: its process has none; "}, "in `night`,"},
        {"info cam/frnt", 1, {"process `cam` has no pool `frnt`; it has `front`\n"}, "--flow"},
        {"info kam/front", 1, {"no process named `kam`: there is `cam` in `"}, "--flow"},
        {"info owl/front",
         1,
         {"pool info: no process named `owl`: there is `cam` in `",
          "pool info: process `owl` is in flow `night`: add `--flow night`\n"},
         NULL},
        {"watch --flow night cam/front",
         1,
         {"pool watch: process `cam` is in flow `default`: add `--flow default`\n"},
         NULL},
    };
    char path[4200];
    tb_bus *bus = open_bus_in(NULL, "cam");
    tb_bus *night = open_bus_in("night", "owl");
    register_words(bus, "front", 16, 2);
    snprintf(path, sizeof path, "%s/empty", harness_dir());
    CHECK_EQ(mkdir(path, 0700), 0);
    run_all(situations, TEST_COUNT(situations));
    tb_bus_close(night);
    tb_bus_close(bus);
}

static void open_and_wait(void *unused)
{
    (void)unused;
    open_bus_in("night", "owl");
    parent_pause("open");
}

/* The sockets of one that was killed are nobody. */
static void the_dead_are_nowhere(void)
{
    static const struct situation situations[] = {
        {"list nofl", 1, {"there is no flow `nofl`: nobody is in `"}, "night"},
        {"list", 1, {"no flow is running: nobody is in `"}, "night"},
        {"list night", 0, {"no pools in flow `night`: nobody is in it\n"}, "other"},
        {"info --flow night owl/front", 1, {"no process named `owl`: start it"}, "--flow"},
    };
    struct child owl;
    harness_before_fork();
    child_start(&owl, "owl", open_and_wait, NULL);
    child_await(&owl, "open");
    child_kill(&owl);
    run_all(situations, TEST_COUNT(situations));
}

static void no_runtime_directory(void)
{
    static const struct situation situations[] = {
        {"list",
         1,
         {"nothing runs: there is no runtime directory `", "/none` (TENSORBUS_DIR"},
         NULL},
        {"info cam/front", 1, {"nothing runs: there is no runtime directory `"}, NULL},
    };
    char path[4200];
    snprintf(path, sizeof path, "%s/none", harness_dir());
    CHECK_EQ(setenv("TENSORBUS_DIR", path, 1), 0);
    run_all(situations, TEST_COUNT(situations));
    CHECK_NE(access(path, F_OK), 0); /* looking creates nothing */
}

static const struct test tests[] = {
    TEST(what_there_is_is_said, 30),
    TEST(the_dead_are_nowhere, 30),
    TEST(no_runtime_directory, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
