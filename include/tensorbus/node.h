/* Nodes: processes of a dataflow, with inputs and outputs.
 *
 * `tensorbus run flow.yml` starts each node with its configuration in the environment.
 * tb_node_open() reads it, opens the node's bus, subscribes to the inputs and waits until the
 * subscribers of its outputs are there. Then the node loops: tb_node_next() waits for all inputs
 * and timers at once, tb_node_send() sends. A message goes straight from the sender's shared memory
 * to the receiver. Values larger than a message slot travel as frames by themselves; the receiver
 * sees the same either way. The loop ends when tb_node_next() returns TB_CLOSED.
 *
 * Handles: sending a handle of a `drop_oldest` input does not hold its frame: a frame that was
 * overwritten before the receiver came to it is counted as dropped, never delivered stale. A
 * `backpressure` input keeps the frame until the receiver has taken or skipped the message. */
#ifndef TENSORBUS_NODE_H
#define TENSORBUS_NODE_H

#include <tensorbus/metadata.h>
#include <tensorbus/pool.h>
#include <tensorbus/reader.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tb_node tb_node;
typedef struct tb_event tb_event;

/** Open the node that the environment describes (TENSORBUS_NODE and others, set by the runner).
 *  Owner:   the caller; end with tb_node_close().
 *  Returns: TB_OK, TB_E_NOT_FOUND (not started by a runner), TB_E_INVALID (environment), TB_AGAIN
 *           (the wait was interrupted, see embed.h), or an error of tb_bus_open().
 *  Threads: any.   Waits: until the inputs' senders and the outputs' subscribers are there, or are
 *           known to be gone.
 *  Source:  src/node/node.c */
TB_API TB_MUST_USE tb_status tb_node_open(tb_node **out);

/** Close: receivers get what was sent, then INPUT_CLOSED. Events and frames of the node must have
 *  been given back. NULL is allowed; in a forked child nothing happens.
 *  Owner:   takes the node.
 *  Threads: one, after all other calls have returned.
 *  Waits:   until receivers have taken the queued messages whose frames this node keeps, at most
 *           10 s, or until STOP, or until the wait is interrupted (see embed.h): the node is closed
 *           then all the same. Small messages need no wait: their memory outlives the node.
 *  Source:  src/node/node.c */
TB_API void tb_node_close(tb_node *node);

/** Id of the node; its bus, on which pools are registered.
 *  Owner:   borrowed, live as long as the node.   Threads: any.   Waits: never.
 *  Source:  src/node/node.c */
TB_API const char *tb_node_id(const tb_node *node);
TB_API tb_bus *tb_node_bus(tb_node *node);

/** Names of the inputs and outputs, in the order of the flow's file.
 *  Owner:   borrowed, live as long as the node.   Returns: NULL when there are not so many.
 *  Threads: any.   Waits: never.   Source: src/node/node.c */
TB_API const char *tb_node_input(const tb_node *node, size_t index);
TB_API const char *tb_node_output(const tb_node *node, size_t index);

typedef enum tb_event_type {
    TB_EVENT_INPUT = 1,        /* a message, a handle's frame or a timer tick */
    TB_EVENT_INPUT_CLOSED = 2, /* the sender of an input is gone for good */
    TB_EVENT_STOP = 3,         /* the flow is asked to stop: finish and close */
    TB_EVENT_ERROR = 4         /* something failed that the node should know: see tb_event_text() */
} tb_event_type;

/** Wait for the next event of any input or timer. A node without inputs gets STOP only.
 *  Units:   timeout in ns on CLOCK_MONOTONIC; 0 polls, -1 waits for ever.
 *  Owner:   the caller; end with tb_event_release(), which also releases a frame that it holds.
 *  Returns: TB_OK, TB_AGAIN (nothing within the timeout), TB_CLOSED (all inputs are closed, or
 *           STOP was delivered before), TB_E_NOMEM, TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: one at a time.   Waits: up to the timeout.   Source: src/node/next.c */
TB_API TB_MUST_USE tb_status tb_node_next(tb_node *node, int64_t timeout_ns, tb_event **out);

/** Give an event back. NULL is allowed.
 *  Owner:   takes the event and the frame that it holds.
 *  Threads: one event belongs to one thread at a time.   Waits: never.
 *  Source:  src/node/event.c */
TB_API void tb_event_release(tb_event *event);

/** Type of an event.
 *  Threads: any, while the event is not released.   Waits: never.   Source: src/node/event.c */
TB_API tb_event_type tb_event_get_type(const tb_event *event);

/** Name of the input, "" for STOP.
 *  Owner:   borrowed from the event.
 *  Threads: any, while the event is not released.   Waits: never.   Source: src/node/event.c */
TB_API const char *tb_event_id(const tb_event *event);

/* What kind of value a message has. Make values to send with tb_bytes(), tb_parts(),
 * tb_tensor_value(), tb_handle_value() or tb_no_value(). */
typedef enum tb_value_kind {
    TB_VALUE_NONE = 0,
    TB_VALUE_BYTES = 1,
    TB_VALUE_TENSOR = 2,
    TB_VALUE_HANDLE = 3,
    TB_VALUE_PARTS = 4 /* to send only: it arrives as BYTES */
} tb_value_kind;

/** What was sent: bytes, a tensor, a handle, or nothing (also for a timer tick).
 *  Returns: TB_VALUE_NONE for types other than INPUT.
 *  Threads: any, while the event is not released.   Waits: never.   Source: src/node/event.c */
TB_API tb_value_kind tb_event_kind(const tb_event *event);

/** The value of an INPUT as a tensor: bytes are uint8[n], a handle's frame is the frame's tensor, a
 *  timer tick is empty.
 *  Owner:   borrowed from the event; read-only.   Returns: NULL for other types.
 *  Threads: any, while the event is not released.   Waits: never.   Source: src/node/event.c */
TB_API const tb_tensor *tb_event_tensor(const tb_event *event);

/** The value's packed bytes; the same memory as the tensor's data.
 *  Units:   *bytes in bytes.
 *  Owner:   borrowed from the event.   Returns: NULL and *bytes = 0 when there is none.
 *  Threads: any, while the event is not released.   Waits: never.   Source: src/node/event.c */
TB_API const void *tb_event_bytes(const tb_event *event, size_t *bytes);

/** The frame behind a handle that was sent.
 *  Owner:   borrowed from the event; tb_frame_hold() to keep it longer.
 *  Returns: NULL when the value was no handle.
 *  Threads: any, while the event is not released.   Waits: never.   Source: src/node/event.c */
TB_API tb_frame *tb_event_frame(const tb_event *event);

/** Take that frame out of the event, which may then be released before it.
 *  Owner:   the caller holds the result until tb_frame_release(); while it does, the event's tensor
 *           stays valid.
 *  Returns: NULL when the value was no handle, or its frame was taken before.
 *  Threads: one, while nobody else uses the event.   Waits: never.   Source: src/node/event.c */
TB_API TB_MUST_USE tb_frame *tb_event_take_frame(tb_event *event);

/** Metadata of an INPUT.
 *  Owner:   borrowed from the event.   Returns: never NULL; empty for other types.
 *  Threads: any, while the event is not released.   Waits: never.   Source: src/node/event.c */
TB_API const tb_metadata *tb_event_metadata(const tb_event *event);

/** When the message was sent, or the timer was due.
 *  Units:   ns on CLOCK_MONOTONIC.
 *  Threads: any, while the event is not released.   Waits: never.   Source: src/node/event.c */
TB_API int64_t tb_event_stamp_ns(const tb_event *event);

/** Messages of this input that were lost since the one before: dropped (drop_oldest), or sent while
 *  this node was being restarted.
 *  Threads: any, while the event is not released.   Waits: never.   Source: src/node/event.c */
TB_API uint64_t tb_event_dropped(const tb_event *event);

/** Explanation of an ERROR.
 *  Owner:   borrowed from the event.   Returns: "" for other types.
 *  Threads: any, while the event is not released.   Waits: never.   Source: src/node/event.c */
TB_API const char *tb_event_text(const tb_event *event);

typedef struct tb_value {
    tb_value_kind kind;
    uint32_t reserved;       /* 0 */
    const void *data;        /* BYTES; PARTS: tb_part[bytes] */
    size_t bytes;            /* PARTS: how many */
    const tb_tensor *tensor; /* TENSOR: copied into the message or a frame; may be strided */
    const tb_handle *handle; /* HANDLE: of a pool of this node, or of a frame that it holds */
} tb_value;

static inline tb_value tb_no_value(void)
{
    tb_value value = {TB_VALUE_NONE, 0, NULL, 0, NULL, NULL};
    return value;
}
static inline tb_value tb_bytes(const void *data, size_t bytes)
{
    tb_value value = {TB_VALUE_BYTES, 0, data, bytes, NULL, NULL};
    return value;
}

/* Bytes that lie in several places: the receiver gets them one after another, as BYTES. */
typedef struct tb_part {
    const void *data; /* NULL is allowed for 0 bytes */
    size_t bytes;
} tb_part;

static inline tb_value tb_parts(const tb_part *parts, size_t count)
{
    tb_value value = {TB_VALUE_PARTS, 0, parts, count, NULL, NULL};
    return value;
}
static inline tb_value tb_tensor_value(const tb_tensor *tensor)
{
    tb_value value = {TB_VALUE_TENSOR, 0, NULL, 0, tensor, NULL};
    return value;
}
static inline tb_value tb_handle_value(const tb_handle *handle)
{
    tb_value value = {TB_VALUE_HANDLE, 0, NULL, 0, NULL, handle};
    return value;
}

/** Send a value on an output to all its subscribers.
 *  Shape:   a tensor may be strided; receivers get it row-major.
 *  Units:   timeout in ns; it bounds the wait for room in `backpressure` inputs.
 *  Owner:   value and metadata (NULL: none) are copied or held before the call returns.
 *  Returns: TB_OK (also when nobody subscribes), TB_AGAIN (a backpressure input had no room in
 *           time: no subscriber got the message), TB_CLOSED (the output is closed), TB_E_NOT_FOUND
 *           (no such output: names those that exist; or the owner of the handle is gone),
 *           TB_E_INVALID (NULL, the value), TB_E_LIMIT (metadata above TB_METADATA_MAX, value
 *           above the node's 1 GiB), TB_E_NOMEM, TB_E_UNSUPPORTED (device), TB_E_STALE and
 *           TB_E_FREED (handle), TB_E_FORKED.
 *  Threads: any, several at once.   Waits: up to the timeout.   Source: src/node/send.c */
TB_API TB_MUST_USE tb_status tb_node_send(tb_node *node, const char *output, tb_value value,
                                          const tb_metadata *metadata, int64_t timeout_ns);

/** Close one output now: its receivers get what was sent, then INPUT_CLOSED.
 *  Returns: TB_OK, TB_E_NOT_FOUND (no such output), TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: any.   Waits: never.   Source: src/node/send.c */
TB_API TB_MUST_USE tb_status tb_node_close_output(tb_node *node, const char *output);

#ifdef __cplusplus
}
#endif
#endif
