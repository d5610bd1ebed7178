/* Log lines, to standard error or to the sink of whoever embeds the library. The level is read from
 * TENSORBUS_LOG once, at the first line. */
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char setting[256];
static pthread_mutex_t limit_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(tb_log_sink *) sink;
static _Atomic(void *) sink_context;

void tb_log_set_sink(tb_log_sink *wanted, void *context)
{
    /* The context is there before its sink can be found. Pairs with the acquire load in tb__log().
     */
    atomic_store(&sink, NULL);
    atomic_store(&sink_context, context);
    atomic_store_explicit(&sink, wanted, memory_order_release);
}

static void read_setting(void)
{
    const char *value = getenv("TENSORBUS_LOG");
    snprintf(setting, sizeof setting, "%s", value != NULL ? value : "warn");
}

static int parse_level(const char *text, size_t length)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; i < 4; i++) {
        if (strlen(names[i]) == length && strncmp(text, names[i], length) == 0) {
            return i;
        }
    }
    return -1;
}

/* The last entry that fits wins, so "warn,endpoint=debug" reads from general to special. */
static int threshold(const char *topic)
{
    int level = TB__LOG_WARN;
    size_t topic_length = strlen(topic);
    for (const char *at = setting; *at != '\0';) {
        size_t length = strcspn(at, ",");
        const char *equals = memchr(at, '=', length);
        const char *value = equals != NULL ? equals + 1 : at;
        int applies = equals == NULL || ((size_t)(equals - at) == topic_length &&
                                         strncmp(at, topic, topic_length) == 0);
        int parsed = parse_level(value, length - (size_t)(value - at));
        if (applies && parsed >= 0) {
            level = parsed;
        }
        at += length;
        at += *at == ',';
    }
    return level;
}

/* A service thread must not wait for whoever should read our standard error: a full pipe loses
 * lines, and the next line that fits says how many. */
static void write_line(const char *line, size_t length)
{
    static _Atomic unsigned lost;
    struct pollfd output = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&output, 1, 0) == 0) {
        atomic_fetch_add(&lost, 1);
        return;
    }
    char notice[80];
    unsigned count = atomic_exchange(&lost, 0);
    int head = count == 0
                   ? 0
                   : snprintf(notice, sizeof notice,
                              "tensorbus: warning: %u lines were lost: nobody read them\n", count);
    struct iovec parts[2] = {{notice, (size_t)head}, {(void *)(uintptr_t)line, length}};
    /* One write, so that lines of several processes on one pipe do not mix. */
    ssize_t ignored = writev(STDERR_FILENO, parts, 2);
    (void)ignored;
}

void tb__log(enum tb__log_level level, const char *topic, const char *format, ...)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    int kept = errno; /* callers log in the middle of handling a failure */
    pthread_once(&once, read_setting);
    if ((int)level > threshold(topic)) {
        return;
    }
    char line[1024];
    /* Pairs with the release store in tb_log_set_sink(). */
    tb_log_sink *to = atomic_load_explicit(&sink, memory_order_acquire);
    int head = to != NULL ? 0 : snprintf(line, sizeof line, "tensorbus: %s: ", names[level]);
    va_list arguments;
    va_start(arguments, format);
    int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, format, arguments);
    va_end(arguments);
    size_t length = (size_t)head + (body > 0 ? (size_t)body : 0);
    if (length > sizeof line - 2) {
        length = sizeof line - 2;
    }
    if (to != NULL) {
        line[length] = '\0';
        to(atomic_load(&sink_context), (tb_log_level)level, topic, line);
    } else {
        line[length] = '\n';
        write_line(line, length + 1);
    }
    errno = kept;
}

int tb__log_allowed(struct tb__log_limit *limit, unsigned burst)
{
    /* Never wait: the child of a fork may find the mutex locked for ever. */
    if (pthread_mutex_trylock(&limit_mutex) != 0) {
        return 1;
    }
    long long now = tb__now_ns();
    unsigned suppressed = 0;
    if (now - limit->window_ns > 1000000000LL) {
        suppressed = limit->suppressed;
        *limit = (struct tb__log_limit){.window_ns = now};
    }
    int allowed = limit->count < burst;
    if (allowed) {
        limit->count++;
    } else {
        limit->suppressed++;
    }
    pthread_mutex_unlock(&limit_mutex);
    if (suppressed != 0) {
        tb__log(TB__LOG_WARN, TB_LOG_TOPIC, "%u similar messages suppressed", suppressed);
    }
    return allowed;
}
