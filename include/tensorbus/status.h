/* Status codes and the last error of a thread.
 *
 * Every function that can fail returns a tb_status. 0 is success. A positive value is a documented
 * outcome that is no failure (nothing new, the other side closed). A negative value is a failure:
 * tb_last_error() then tells what was tried, on what, with which values, and what to do next.
 * Numbers are never reused. */
#ifndef TENSORBUS_STATUS_H
#define TENSORBUS_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TB_API __attribute__((visibility("default")))
#define TB_MUST_USE __attribute__((warn_unused_result))
#else
#define TB_API
#define TB_MUST_USE
#endif

/* Timeouts are nanoseconds on CLOCK_MONOTONIC. */
#define TB_POLL ((int64_t)0)
#define TB_FOREVER ((int64_t)-1)
#define TB_MILLIS(n) ((int64_t)(n)*1000000)
#define TB_SECONDS(n) ((int64_t)(n)*1000000000)

typedef enum tb_status {
    TB_OK = 0,
    TB_AGAIN = 1,           /* nothing new, no free slot or no room, within the timeout */
    TB_CLOSED = 2,          /* the other side said goodbye, or all inputs of a node are closed */
    TB_E_INVALID = -1,      /* an argument is wrong */
    TB_E_NOMEM = -2,        /* memory, address space or file-system space is short */
    TB_E_SYSTEM = -3,       /* a system call failed: see tb_error.errno_value */
    TB_E_NOT_FOUND = -4,    /* no such endpoint, pool, output or frame */
    TB_E_EXISTS = -5,       /* the name is taken by a live process or pool */
    TB_E_FREED = -6,        /* the pool was freed */
    TB_E_STALE = -7,        /* the frame was overwritten, or belongs to a former pool */
    TB_E_OWNER_DIED = -8,   /* the owner's process ended without saying goodbye */
    TB_E_DEADLOCK = -9,     /* the caller waits for what only the caller can give back */
    TB_E_FORKED = -10,      /* the object belongs to the parent process */
    TB_E_PROTOCOL = -11,    /* the peer sent what the protocol does not allow */
    TB_E_DENIED = -12,      /* permissions, uid, or an unsafe directory */
    TB_E_LIMIT = -13,       /* a documented limit or quota is reached */
    TB_E_MISMATCH = -14,    /* dtype, shape or size differ from what was registered */
    TB_E_UNSUPPORTED = -15, /* not possible here: device, kernel, dtype */
    TB_E_NOT_ACKED = -16,   /* a reader that must acknowledge has not, or is gone */
    TB_E_CORRUPT = -17,     /* shared bytes fail their checks */
    TB_E_BUSY = -18,        /* all leases of this reader are in use */
    TB_E_INCOMPLETE =
        -19 /* a GPU never finished the frame: its producer died or its stream failed */
} tb_status;

/* What went wrong last on this thread. Success leaves it alone; a failing call overwrites it. */
typedef struct tb_error {
    tb_status status;
    int32_t errno_value; /* 0 unless a system call failed */
    int32_t cuda_code;   /* 0 unless a CUDA driver call failed */
    char where[64];      /* function that recognised the error */
    char text[512];      /* full sentence, no newline */
} tb_error;

/** Copy the last error of the calling thread.
 *  Owner:   the caller owns *out. Returns: nothing; *out is all zero before the first failure.
 *  Threads: any.   Waits: never.   Source: src/base/error.c */
TB_API void tb_last_error(tb_error *out);

/** Text of the last error of the calling thread, "" before the first failure.
 *  Owner:   borrowed; valid until the thread's next failing call.
 *  Threads: any.   Waits: never.   Source: src/base/error.c */
TB_API const char *tb_last_error_text(void);

/** Name of a status, such as "TB_E_STALE"; "TB_E_?" for an unknown number.
 *  Owner:   static.   Threads: any.   Waits: never.   Source: src/base/error.c */
TB_API const char *tb_status_name(tb_status status);

/** Version of the library at run time, such as "0.1.0".
 *  Owner:   static.   Threads: any.   Waits: never.   Source: src/base/error.c */
TB_API const char *tb_version(void);

#ifdef __cplusplus
}
#endif
#endif
