/* The one way to report a failure: the function that recognises it builds the message; callers pass
 * the status on. */
#ifndef TB_BASE_ERROR_H
#define TB_BASE_ERROR_H

#include <errno.h>

#include <tensorbus/status.h>

/* Record {status, errno_value, where, text} for this thread and return `status`. */
tb_status tb__error_set(tb_status status, int errno_value, const char *where, const char *format,
                        ...) __attribute__((format(printf, 4, 5)));

/* The same for a failed call of the CUDA driver: cuda_code is its result. */
tb_status tb__error_set_cuda(tb_status status, int cuda_code, const char *where, const char *format,
                             ...) __attribute__((format(printf, 4, 5)));

/* Record an error that came from elsewhere (a reply from another process). */
tb_status tb__error_copy(tb_status status, const char *where, const char *text);

/* Put back what tb_last_error() has copied: for a call that succeeds although a probe or an earlier
 * attempt inside it has failed. Success leaves the record alone. */
void tb__error_restore(const tb_error *kept);

/* The analyzer cannot see that tb__error_set() returns what it is given, never success instead. */
#ifdef __clang_analyzer__
#define TB__RETURNS(status, call) ((void)(call), (status))
#else
#define TB__RETURNS(status, call) (call)
#endif

#define TB__FAIL(status, ...)                                                                      \
    TB__RETURNS((status), tb__error_set((status), 0, __func__, __VA_ARGS__))

/* As TB__FAIL, with errno's text appended: "...: No space left on device"; for a limit on open
 * files also how to raise it. */
#define TB__FAIL_ERRNO(status, ...)                                                                \
    TB__RETURNS((status), tb__error_set((status), errno, __func__, __VA_ARGS__))

/* Pass a failure on. */
#define TB__TRY(expression)                                                                        \
    do {                                                                                           \
        tb_status tb__try_status = (expression);                                                   \
        if (tb__try_status != TB_OK) {                                                             \
            return tb__try_status;                                                                 \
        }                                                                                          \
    } while (0)

/* Our own invariants only, never users' or peers' input. Kept in release builds. */
#define TB_ASSERT(condition)                                                                       \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            tb__assert_failed(#condition, __FILE__, __LINE__);                                     \
        }                                                                                          \
    } while (0)

_Noreturn void tb__assert_failed(const char *condition, const char *file, int line);

#endif
