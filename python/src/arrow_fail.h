/* Why an Arrow array could not be sent or received. */
#ifndef PY_ARROW_FAIL_H
#define PY_ARROW_FAIL_H

#include <stdarg.h>
#include <stdio.h>

enum py_arrow_reason {
    PY_ARROW_INVALID,     /* the array, or the bytes, break Arrow's rules or ours */
    PY_ARROW_UNSUPPORTED, /* a type that cannot travel */
    PY_ARROW_NO_MEMORY,
};

struct py_arrow_error {
    enum py_arrow_reason reason;
    char text[300];
};

/* Write an error; returns 0, which is failure. */
__attribute__((format(printf, 3, 4))) static inline int
py_arrow_fail(struct py_arrow_error *error, enum py_arrow_reason reason, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    error->reason = reason;
    (void)vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return 0;
}

#endif
