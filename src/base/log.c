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
static _Atomic int setting_checked;
/* The folders that log, and "tensorbus". */
static const char *const topics[] = {"cuda", "endpoint", "flow", "node", "pool", "tensorbus"};
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

/* One of the setting's entries: LEVEL or TOPIC=LEVEL. */
struct entry {
    const char *topic; /* NULL: all */
    size_t topic_length;
    const char *value;
    size_t value_length;
    int level; /* -1: the value is none */
};

/* The entry at *at, which goes on behind it; 0 at the end. */
static int next_entry(const char **at, struct entry *out)
{
    if (**at == '\0') {
        return 0;
    }
    size_t length = strcspn(*at, ",");
    const char *equals = memchr(*at, '=', length);
    *out = (struct entry){.value = *at, .value_length = length};
    if (equals != NULL) {
        out->topic = *at;
        out->topic_length = (size_t)(equals - *at);
        out->value = equals + 1;
        out->value_length -= out->topic_length + 1;
    }
    out->level = parse_level(out->value, out->value_length);
    *at += length;
    *at += **at == ',';
    return 1;
}

static int is_about(const struct entry *entry, const char *topic)
{
    return entry->topic_length == strlen(topic) &&
           strncmp(entry->topic, topic, entry->topic_length) == 0;
}

/* The last entry that fits wins, so "warn,endpoint=debug" reads from general to special. */
static int threshold(const char *topic)
{
    int level = TB__LOG_WARN;
    const char *at = setting;
    struct entry entry;
    while (next_entry(&at, &entry)) {
        if (entry.level >= 0 && (entry.topic == NULL || is_about(&entry, topic))) {
            level = entry.level;
        }
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

/* Whatever the setting asks for. */
static void log_line(enum tb__log_level level, const char *topic, const char *format,
                     va_list arguments)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    char line[1024];
    /* Pairs with the release store in tb_log_set_sink(). */
    tb_log_sink *to = atomic_load_explicit(&sink, memory_order_acquire);
    int head = to != NULL ? 0 : snprintf(line, sizeof line, "tensorbus: %s: ", names[level]);
    int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, format, arguments);
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
}

__attribute__((format(printf, 1, 2))) static void warn_of_setting(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_line(TB__LOG_WARN, TB_LOG_TOPIC, format, arguments);
    va_end(arguments);
}

static int is_topic(const struct entry *entry)
{
    for (size_t i = 0; i < sizeof topics / sizeof topics[0]; i++) {
        if (is_about(entry, topics[i])) {
            return 1;
        }
    }
    return 0;
}

/* A misspelt setting would be silence that looks like peace. The first mistake is named. */
static void check_setting(void)
{
    const char *at = setting;
    struct entry entry;
    while (next_entry(&at, &entry)) {
        if (entry.topic == NULL && entry.value_length == 0) {
            continue; /* ",," */
        }
        if (entry.level < 0) {
            warn_of_setting("TENSORBUS_LOG `%s`: `%.*s` is no level: use error, warn, info or "
                            "debug, or a list such as warn,endpoint=debug",
                            setting, (int)entry.value_length, entry.value);
            return;
        }
        if (entry.topic != NULL && !is_topic(&entry)) {
            warn_of_setting("TENSORBUS_LOG `%s`: `%.*s` is no topic: there are cuda, endpoint, "
                            "flow, node and pool",
                            setting, (int)entry.topic_length, entry.topic);
            return;
        }
    }
}

void tb__log_begin(void)
{
    int kept = errno;
    pthread_once(&once, read_setting);
    if (atomic_load_explicit(&setting_checked, memory_order_relaxed) == 0 &&
        atomic_exchange(&setting_checked, 1) == 0) {
        check_setting();
    }
    errno = kept;
}

void tb__log(enum tb__log_level level, const char *topic, const char *format, ...)
{
    int kept = errno; /* callers log in the middle of handling a failure */
    tb__log_begin();
    if ((int)level <= threshold(topic)) {
        va_list arguments;
        va_start(arguments, format);
        log_line(level, topic, format, arguments);
        va_end(arguments);
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
