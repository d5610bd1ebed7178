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

/* `cpu`, `cuda:N`, or `cuda`, which is `cuda:0`. */
static tb_device read_device(const char *node, const char *name, const char **text)
{
    *text = setting(name, "cpu");
    if (strcmp(*text, "cpu") == 0) {
        return TB_CPU;
    }
    if (strcmp(*text, "cuda") == 0) {
        return TB_CUDA(0);
    }
    unsigned number;
    int end = 0;
    if (sscanf(*text, "cuda:%3u%n", &number, &end) != 1 || (*text)[end] != '\0' ||
        (*text)[5] < '0' || (*text)[5] > '9') {
        refuse(node, name, *text, "use cpu, cuda or cuda:0, cuda:1, ...");
    }
    return TB_CUDA(number);
}

void example_need_cpu(const char *node, const struct example_config *config)
{
    static const char why[] = "this flow fills and reads frames with the CPU; use `cpu`";
    if (config->sender != TB_CPU) {
        refuse(node, "sender_device", config->sender_name, why);
    }
    if (config->receiver != TB_CPU) {
        refuse(node, "receiver_device", config->receiver_name, why);
    }
}

struct example_config example_configure(const char *node)
{
    struct example_config config = {.frames = 0};
    config.sender = read_device(node, "sender_device", &config.sender_name);
    config.receiver = read_device(node, "receiver_device", &config.receiver_name);
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
