/* Log lines: levels, topics, form, limits. The setting is read once in a process, so each test logs
 * in a child whose standard error is a pipe. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "child_output.h"

struct setting {
    const char *value;
    void (*body)(void);
};

static void log_with_setting(void *argument)
{
    const struct setting *setting = argument;
    if (setting->value != NULL) {
        setenv("TENSORBUS_LOG", setting->value, 1);
    } else {
        unsetenv("TENSORBUS_LOG");
    }
    setting->body();
}

/* What `body` writes to standard error with TENSORBUS_LOG=setting (NULL: not set). */
static const char *output_of(const char *setting, void (*body)(void))
{
    static char text[65536];
    struct setting given = {setting, body};
    assert_int_equal(child_output(log_with_setting, &given, text, sizeof text), 0);
    return text;
}

static void one_of_each(void)
{
    tb__log(TB__LOG_ERROR, "pool", "e %d", 1);
    tb__log(TB__LOG_WARN, "pool", "w");
    tb__log(TB__LOG_INFO, "pool", "i");
    tb__log(TB__LOG_DEBUG, "pool", "d");
}

#define E "tensorbus: error: e 1\n"
#define W "tensorbus: warning: w\n"
#define I "tensorbus: info: i\n"
#define D "tensorbus: debug: d\n"

#define NO_LEVEL(setting, value)                                                                   \
    "tensorbus: warning: TENSORBUS_LOG `" setting "`: `" value "` is no level: use error, warn, "  \
    "info or debug, or a list such as warn,endpoint=debug\n"
#define NO_TOPIC(setting, topic)                                                                   \
    "tensorbus: warning: TENSORBUS_LOG `" setting "`: `" topic "` is no topic: there are cuda, "   \
    "endpoint, flow, node and pool\n"

static void levels_and_topics(void **state)
{
    (void)state;
    static const struct {
        const char *setting;
        const char *output;
    } rows[] = {
        {NULL, E W},
        {"", E W},
        {"error", E},
        {"warn", E W},
        {"info", E W I},
        {"debug", E W I D},
        {"nonsense", NO_LEVEL("nonsense", "nonsense") E W},
        {"warn,pool=debug", E W I D},
        {"debug,pool=error", E},
        {"debug,poo=error", NO_TOPIC("debug,poo=error", "poo") E W I D},
        {"debug,pools=error", NO_TOPIC("debug,pools=error", "pools") E W I D},
        {"debug,=error", NO_TOPIC("debug,=error", "") E W I D},
        {"error,lodu,poo=info", NO_LEVEL("error,lodu,poo=info", "lodu") E},
        {"pool=error,info", E W I},
        {"error,endpoint=debug", E},
        {"endpoint=debug", E W},
        {"info,", E W I},
        {",,info", E W I},
        {"info,pool=", NO_LEVEL("info,pool=", "") E W I},
        {"info,pool=loud", NO_LEVEL("info,pool=loud", "loud") E W I},
        {"error,cuda=info,flow=info,node=info,tensorbus=info", E},
        {"errors", NO_LEVEL("errors", "errors") E W},
        {"err", NO_LEVEL("err", "err") E W},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_string_equal(output_of(rows[i].setting, one_of_each), rows[i].output);
    }
}

static void macros(void)
{
    tb_log_error("%s", "a");
    tb_log_warn("b");
    tb_log_info("c");
    tb_log_debug("d");
}

static void macros_have_their_level(void **state)
{
    (void)state;
    assert_string_equal(output_of("debug", macros), "tensorbus: error: a\ntensorbus: warning: b\n"
                                                    "tensorbus: info: c\ntensorbus: debug: d\n");
    assert_string_equal(output_of("error,tensorbus=info", macros),
                        "tensorbus: error: a\ntensorbus: warning: b\ntensorbus: info: c\n");
}

static void long_line(void)
{
    char text[5000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    tb__log(TB__LOG_ERROR, "pool", "%s", text);
    errno = ENOENT;
    tb__log(TB__LOG_ERROR, "pool", "errno is kept");
    tb__log(TB__LOG_ERROR, "pool", "%d", errno == ENOENT);
    close(STDERR_FILENO);
    tb__log(TB__LOG_ERROR, "pool", "nobody listens");
    if (errno != ENOENT) {
        _exit(1);
    }
}

static void long_lines_are_cut_and_errno_is_kept(void **state)
{
    (void)state;
    const char *text = output_of(NULL, long_line);
    assert_int_equal(strcspn(text, "\n"), 1023 - 1);
    assert_string_equal(strchr(text, '\n') + 1,
                        "tensorbus: error: errno is kept\ntensorbus: error: 1\n");
}

static void keep_line(void *context, tb_log_level level, const char *topic, const char *text)
{
    snprintf(context, 100, "%d %s: %s", (int)level, topic, text);
}

static void with_a_sink(void)
{
    char seen[100] = "";
    tb_log_set_sink(keep_line, seen);
    tb__log(TB__LOG_WARN, "pool", "to the sink %d", 1);
    tb__log(TB__LOG_INFO, "pool", "not asked for");
    tb_log_set_sink(NULL, NULL);
    tb__log(TB__LOG_ERROR, "pool", "it got [%s]", seen);
}

static void a_sink_gets_the_lines_instead(void **state)
{
    (void)state;
    assert_string_equal(output_of(NULL, with_a_sink),
                        "tensorbus: error: it got [1 pool: to the sink 1]\n");
}

static void begin_with_a_sink(void)
{
    char seen[200] = "";
    tb_log_set_sink(keep_line, seen);
    errno = ENOENT;
    tb__log_begin();
    int kept = errno == ENOENT;
    tb_log_set_sink(NULL, NULL);
    tb__log(TB__LOG_ERROR, "pool", "it got [%.50s], %d", seen, kept);
    tb__log_begin();
}

/* Without any line, at the level of a warning even if only errors are asked for, and once. */
static void a_mistake_is_said_where_the_lines_go(void **state)
{
    (void)state;
    assert_string_equal(
        output_of("error,debgu", begin_with_a_sink),
        "tensorbus: error: it got [1 tensorbus: TENSORBUS_LOG `error,debgu`: `debgu` ], 1\n");
}

static void twenty_limited(void)
{
    for (int i = 0; i < 20; i++) {
        tb_log_warn_limited("number %d", i);
    }
}

static void at_most_five_of_a_kind(void **state)
{
    (void)state;
    assert_string_equal(output_of(NULL, twenty_limited),
                        "tensorbus: warning: number 0\ntensorbus: warning: number 1\n"
                        "tensorbus: warning: number 2\ntensorbus: warning: number 3\n"
                        "tensorbus: warning: number 4\n");
}

/* The window is moved instead of waited for. */
static void a_second_later(void)
{
    struct tb__log_limit limit = {0};
    int allowed = 0;
    for (int i = 0; i < 10; i++) {
        allowed += tb__log_allowed(&limit, 3);
    }
    tb__log(TB__LOG_ERROR, "pool", "%d allowed, %u suppressed", allowed, limit.suppressed);
    limit.window_ns -= 1000000001;
    allowed = tb__log_allowed(&limit, 3);
    tb__log(TB__LOG_ERROR, "pool", "%d allowed, %u suppressed", allowed, limit.suppressed);
}

static void what_was_suppressed_is_counted(void **state)
{
    (void)state;
    assert_string_equal(output_of(NULL, a_second_later),
                        "tensorbus: error: 3 allowed, 7 suppressed\n"
                        "tensorbus: warning: 7 similar messages suppressed\n"
                        "tensorbus: error: 1 allowed, 0 suppressed\n");
}

static void *log_many(void *argument)
{
    (void)argument;
    for (int i = 0; i < 200; i++) {
        tb__log(TB__LOG_ERROR, "pool", "0123456789");
    }
    return NULL;
}

static void four_threads(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        pthread_create(&threads[i], NULL, log_many, NULL);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void lines_of_several_threads_do_not_mix(void **state)
{
    (void)state;
    const char *text = output_of(NULL, four_threads);
    int lines = 0;
    for (const char *at = text; *at != '\0'; lines++) {
        assert_memory_equal(at, "tensorbus: error: 0123456789\n", 29);
        at += 29;
    }
    assert_int_equal(lines, 800);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_and_topics),
        cmocka_unit_test(macros_have_their_level),
        cmocka_unit_test(long_lines_are_cut_and_errno_is_kept),
        cmocka_unit_test(a_sink_gets_the_lines_instead),
        cmocka_unit_test(a_mistake_is_said_where_the_lines_go),
        cmocka_unit_test(at_most_five_of_a_kind),
        cmocka_unit_test(what_was_suppressed_is_counted),
        cmocka_unit_test(lines_of_several_threads_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
