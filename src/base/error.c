/* Thread-local error record. It lives as long as its thread and is written by failing calls only.
 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/utf8.h"

static _Thread_local tb_error last_error;

/* Names and paths in a text may come from users and peers: one line it stays, and nothing that a
 * terminal obeys. */
static void make_one_line(char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        size_t step = tb__utf8_step(text, left);
        step = step > 0 ? step : 1;
        if (tb__utf8_control(text, step)) {
            memset(text, '?', step);
        }
        text += step;
        left -= step;
    }
}

/* Whether this process may have less than the machine has. */
static int addresses_are_limited(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

/* What the user can do about it, where errno alone tells. */
static const char *way_out(int errno_value)
{
    switch (errno_value) {
    case EMFILE:
    case ETOOMANYREFS: /* too many descriptors are on their way, which the same limit bounds */
        return " (raise the limit: ulimit -n)";
    case ENOMEM:
        return addresses_are_limited() ? " (this process's addresses are limited: ulimit -v)" : "";
    case ENFILE:
        return " (raise the system's limit: sysctl fs.file-max)";
    default:
        return "";
    }
}

tb_status tb__error_set(tb_status status, int errno_value, const char *where, const char *format,
                        ...)
{
    /* Arguments may point into the record (wrapping an earlier text), so build aside first. */
    char text[sizeof last_error.text] = "";
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (errno_value != 0 && used >= 0 && (size_t)used < sizeof text) {
        char reason[64];
        const char *said = strerror_r(errno_value, reason, sizeof reason);
        snprintf(text + used, sizeof text - (size_t)used, ": %s%s", said, way_out(errno_value));
    }
    make_one_line(text);
    last_error = (tb_error){.status = status, .errno_value = errno_value};
    snprintf(last_error.where, sizeof last_error.where, "%s", where);
    memcpy(last_error.text, text, sizeof text);
    return status;
}

tb_status tb__error_set_cuda(tb_status status, int cuda_code, const char *where, const char *format,
                             ...)
{
    char text[sizeof last_error.text] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tb__error_set(status, 0, where, "%s", text);
    last_error.cuda_code = cuda_code;
    return status;
}

tb_status tb__error_copy(tb_status status, const char *where, const char *text)
{
    return tb__error_set(status, 0, where, "%s", text);
}

void tb__error_restore(const tb_error *kept)
{
    last_error = *kept;
}

void tb_last_error(tb_error *out)
{
    *out = last_error;
}

const char *tb_last_error_text(void)
{
    return last_error.text;
}

const char *tb_status_name(tb_status status)
{
    static const struct {
        tb_status status;
        const char *name;
    } names[] = {
        {TB_OK, "TB_OK"},
        {TB_AGAIN, "TB_AGAIN"},
        {TB_CLOSED, "TB_CLOSED"},
        {TB_E_INVALID, "TB_E_INVALID"},
        {TB_E_NOMEM, "TB_E_NOMEM"},
        {TB_E_SYSTEM, "TB_E_SYSTEM"},
        {TB_E_NOT_FOUND, "TB_E_NOT_FOUND"},
        {TB_E_EXISTS, "TB_E_EXISTS"},
        {TB_E_FREED, "TB_E_FREED"},
        {TB_E_STALE, "TB_E_STALE"},
        {TB_E_OWNER_DIED, "TB_E_OWNER_DIED"},
        {TB_E_DEADLOCK, "TB_E_DEADLOCK"},
        {TB_E_FORKED, "TB_E_FORKED"},
        {TB_E_PROTOCOL, "TB_E_PROTOCOL"},
        {TB_E_DENIED, "TB_E_DENIED"},
        {TB_E_LIMIT, "TB_E_LIMIT"},
        {TB_E_MISMATCH, "TB_E_MISMATCH"},
        {TB_E_UNSUPPORTED, "TB_E_UNSUPPORTED"},
        {TB_E_NOT_ACKED, "TB_E_NOT_ACKED"},
        {TB_E_CORRUPT, "TB_E_CORRUPT"},
        {TB_E_BUSY, "TB_E_BUSY"},
        {TB_E_INCOMPLETE, "TB_E_INCOMPLETE"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i].status == status) {
            return names[i].name;
        }
    }
    return "TB_E_?";
}

const char *tb_version(void)
{
    return TB_VERSION;
}

void tb__assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "tensorbus: broken invariant: %s (%s:%d)\n", condition, file, line);
    abort();
}
