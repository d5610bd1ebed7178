/* Log lines on standard error: lower case, exact cause. TENSORBUS_LOG=error|warn|info|debug, or a
 * list with topics: "warn,endpoint=debug". Default: warn. What is none of these is warned of once.
 */
#ifndef TB_BASE_LOG_H
#define TB_BASE_LOG_H

#include <tensorbus/embed.h>

enum tb__log_level {
    TB__LOG_ERROR = 0,
    TB__LOG_WARN = 1,
    TB__LOG_INFO = 2,
    TB__LOG_DEBUG = 3,
};

void tb__log(enum tb__log_level level, const char *topic, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Read the setting, if that has not been done, and warn of mistakes in it: at the first line, and
 * when a bus opens, as there may be no line. */
void tb__log_begin(void);

/* One limiter per call site: at most `burst` lines per second, then one line that counts the rest.
 */
struct tb__log_limit {
    long long window_ns;
    unsigned count;
    unsigned suppressed;
};
int tb__log_allowed(struct tb__log_limit *limit, unsigned burst);

/* Topic is the folder's name; a file defines TB_LOG_TOPIC before it includes this header. */
#ifndef TB_LOG_TOPIC
#define TB_LOG_TOPIC "tensorbus"
#endif
#define tb_log_error(...) tb__log(TB__LOG_ERROR, TB_LOG_TOPIC, __VA_ARGS__)
#define tb_log_warn(...) tb__log(TB__LOG_WARN, TB_LOG_TOPIC, __VA_ARGS__)
#define tb_log_info(...) tb__log(TB__LOG_INFO, TB_LOG_TOPIC, __VA_ARGS__)
#define tb_log_debug(...) tb__log(TB__LOG_DEBUG, TB_LOG_TOPIC, __VA_ARGS__)

/* Warn at most 5 times a second from this place. */
#define tb_log_warn_limited(...)                                                                   \
    do {                                                                                           \
        static struct tb__log_limit tb__limit;                                                     \
        if (tb__log_allowed(&tb__limit, 5)) {                                                      \
            tb_log_warn(__VA_ARGS__);                                                              \
        }                                                                                          \
    } while (0)

#endif
