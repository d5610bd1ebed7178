/* For language bindings and programs that embed the library.
 *
 * A runtime such as Python's has its own log, its own signals, and objects that look at shared
 * memory for as long as they live. Three things let it have them: log lines go to a sink instead of
 * standard error; a thread's waits can be interrupted; a bus that closes can leave its memory
 * mapped. C programs need none of this. */
#ifndef TENSORBUS_EMBED_H
#define TENSORBUS_EMBED_H

#include <tensorbus/bus.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tb_log_level {
    TB_LOG_ERROR = 0,
    TB_LOG_WARN = 1,
    TB_LOG_INFO = 2,
    TB_LOG_DEBUG = 3
} tb_log_level;

/* Receives one log line: `topic` is "pool", "node" and the like, `text` has no prefix and no
 * newline; both are borrowed for the call. Called on any thread, service threads included, and now
 * and then with locks of the library held: it must not wait, nor call the library. */
typedef void tb_log_sink(void *context, tb_log_level level, const char *topic, const char *text);

/** Send log lines to a sink; NULL: to standard error again. TENSORBUS_LOG chooses the lines before
 *  the sink sees them.
 *  Owner:   sink and context must live until another one is set; a call that is under way then may
 *           still reach the old one.
 *  Threads: any.   Waits: never.   Source: src/base/log.c */
TB_API void tb_log_set_sink(tb_log_sink *sink, void *context);

/* Says whether the waiting call shall end: 0 go on, else end. */
typedef int tb_interrupt_check(void *context);

/** Let waiting calls of this thread be interrupted: while one of them sleeps, `check` is called
 *  after a signal and about every 50 ms. When it returns non-zero, the call ends as if its timeout
 *  had passed, and so does every wait of this thread until this function is called again.
 *  Owner:   context must live until it is replaced; NULL ends it.
 *  Threads: sets it for the calling thread alone.   Waits: never.
 *  Source:  src/base/interrupt.c */
TB_API void tb_set_interrupt(tb_interrupt_check *check, void *context);

/** Leave the memory of pools and frames mapped when this bus closes, until the process ends: for a
 *  runtime whose objects may look at frames after everything was closed. Memory of pools and
 *  readers that were closed before stays unmapped.
 *  Returns: TB_OK, TB_E_INVALID (NULL), TB_E_FORKED.   Threads: any, before tb_bus_close().
 *  Waits:   never.   Source: src/endpoint/bus.c */
TB_API TB_MUST_USE tb_status tb_bus_keep_mapped(tb_bus *bus);

#ifdef __cplusplus
}
#endif
#endif
