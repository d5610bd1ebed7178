/* Shared by the nodes of this example; see example.h. */
#include "example.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const scenario_names[] = {
    [EXAMPLE_THROUGHPUT] = "throughput",           [EXAMPLE_DUPLICATE_FREE] = "duplicate_free",
    [EXAMPLE_READ_AFTER_FREE] = "read_after_free", [EXAMPLE_WRITE_AFTER_FREE] = "write_after_free",
    [EXAMPLE_AUTO_CLEANUP] = "auto_cleanup",
};

static const char *setting(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : otherwise;
}

static _Noreturn void refuse(const char *node, const char *name, const char *value, const char *why)
{
    fprintf(stderr, "%s: %s is `%s`: %s\n", node, name, value, why);
    exit(1);
}

static void check_device(const char *node, const char *name)
{
    const char *device = setting(name, "cpu");
    if (strcmp(device, "cpu") != 0) {
        refuse(node, name, device, "only `cpu` works here so far");
    }
}

struct example_config example_configure(const char *node)
{
    struct example_config config = {.frames = 0};
    check_device(node, "sender_device");
    check_device(node, "receiver_device");
    const char *cross = setting("cross_machine", "false");
    if (strcmp(cross, "false") != 0 && strcmp(cross, "0") != 0) {
        refuse(node, "cross_machine", cross, "other machines cannot be reached yet; use `false`");
    }
    const char *count = setting("message_num", "100");
    char *end;
    errno = 0;
    config.frames = strtoll(count, &end, 10);
    if (errno != 0 || *end != '\0' || config.frames < 1 || config.frames > 1000000) {
        refuse(node, "message_num", count, "use a number from 1 to 1000000");
    }
    const char *scenario = setting("memory_pool_scenario", "throughput");
    for (size_t i = 0; i < sizeof scenario_names / sizeof scenario_names[0]; i++) {
        if (strcmp(scenario, scenario_names[i]) == 0) {
            config.scenario = (enum example_scenario)i;
            config.scenario_name = scenario_names[i];
            return config;
        }
    }
    refuse(node, "memory_pool_scenario", scenario,
           "use throughput, duplicate_free, read_after_free, write_after_free or auto_cleanup");
}

void example_fail(const char *node, const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", node, what, tb_last_error_text());
    exit(1);
}

tb_tensor example_tensor(int64_t *data)
{
    return (tb_tensor){.data = data,
                       .device = TB_CPU,
                       .dtype = TB_I64,
                       .ndim = 2,
                       .shape = {EXAMPLE_ROWS, EXAMPLE_COLUMNS}};
}

void example_preview(const char *who, const int64_t *data)
{
    printf("%s preview: [%lld, %lld, %lld, %lld, %lld, ...]\n", who, (long long)data[0],
           (long long)data[1], (long long)data[2], (long long)data[3], (long long)data[4]);
    fflush(stdout);
}

int64_t example_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void draw_bar(int64_t done, int64_t total)
{
    char bar[41];
    size_t filled = (size_t)(done * 40 / total);
    memset(bar, ' ', 40);
    memset(bar, '#', filled);
    bar[40] = '\0';
    printf("\r[%s] %lld/%lld%s", bar, (long long)done, (long long)total, done == total ? "\n" : "");
}

void example_progress(int64_t done, int64_t total)
{
    if (isatty(STDOUT_FILENO)) {
        draw_bar(done, total);
    } else if (done * 4 / total != (done - 1) * 4 / total) {
        printf("%lld of %lld frames\n", (long long)done, (long long)total);
    }
    fflush(stdout);
}

void example_throughput(uint64_t bytes, int64_t duration_ns)
{
    double seconds = (double)duration_ns / 1e9;
    printf("Average transfer throughput: %.1f MB/s\n",
           seconds > 0 ? (double)bytes / (1024.0 * 1024.0) / seconds : 0.0);
    fflush(stdout);
}

int64_t example_integer(const char *node, const tb_event *event, const char *key)
{
    tb_metadata_value value;
    if (tb_metadata_get(tb_event_metadata(event), key, &value) != TB_OK) {
        example_fail(node, key);
    }
    if (value.type != TB_META_INT64) {
        fprintf(stderr, "%s: metadata `%s` is no integer\n", node, key);
        exit(1);
    }
    return value.integer;
}
