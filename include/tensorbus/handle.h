/* Handles: the 48 bytes that name a frame, and the only thing that travels.
 *
 * A handle is made by publishing, is copied like any bytes through any channel (a stream, a socket,
 * a file, a ROS message), and is turned back into a frame by a reader of its pool or by
 * tb_frame_open(). It holds nothing: when the frame has been overwritten, opening says TB_E_STALE.
 * In memory and on the wire it is little-endian and has this layout. */
#ifndef TENSORBUS_HANDLE_H
#define TENSORBUS_HANDLE_H

#include <tensorbus/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TB_HANDLE_BYTES 48

typedef struct tb_handle {
    uint8_t pool_uid[16]; /* bytes 0-7 are the owner's endpoint id */
    uint64_t generation;  /* even; 2 × sequence */
    uint32_t slot;
    uint32_t flags;    /* 0 */
    uint64_t stamp_ns; /* CLOCK_MONOTONIC of the owner at publish */
    uint64_t bytes;    /* packed size of the frame's tensor */
} tb_handle;

/** Sequence number of the frame that a handle names: write n of the pool has sequence n, from 1.
 *  Returns: 0 for a handle of no frame.   Threads: any.   Waits: never.   Source: this header */
static inline uint64_t tb_handle_sequence(const tb_handle *handle)
{
    return handle->generation >> 1;
}

#ifdef __cplusplus
}
#endif
#endif
