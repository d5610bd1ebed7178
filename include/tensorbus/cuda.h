/* Frames that a GPU writes and reads, ordered on the GPU: neither side's CPU waits.
 *
 * A pool on TB_CUDA(n) has its slots in that GPU's memory; readers map it read-only, without a
 * copy. A producer enqueues its work on a stream and publishes the loan on the same stream; a
 * reader that was opened with `stream_ordered` gets the frame at once, makes its own stream wait
 * for it, enqueues its work, and releases the frame on that stream. To all other readers a frame is
 * there when the GPU has finished it. The same calls work for pools in host memory that a GPU fills
 * or reads.
 *
 * A frame whose producer died, or whose stream failed, before the GPU had finished it is
 * incomplete: its gate opens all the same, so that no stream hangs, and tb_frame_release_on() and
 * tb_frame_poll() say TB_E_INCOMPLETE.
 *
 * Where a device's streams cannot wait for words in memory the CPU does it in their place: then
 * tb_frame_wait_on() returns when the frame is complete, or given up. Everything else is the same.
 *
 * Nothing here needs CUDA's headers: a stream is a CUstream, which is also a cudaStream_t. libcuda
 * is opened at run time; without it these calls are TB_E_UNSUPPORTED. NULL is the legacy default
 * stream of the pool's device; with a pool in host memory, and for tb_copy_on(), of the device
 * whose context is current, else of device 0. */
#ifndef TENSORBUS_CUDA_H
#define TENSORBUS_CUDA_H

#include <tensorbus/pool.h>
#include <tensorbus/reader.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;
typedef struct CUstream_st *tb_cuda_stream;

/** Let tb_frame_open() and the events of a node give frames that a GPU is still working on: make
 *  the stream wait with tb_frame_wait_on() before it uses one. Otherwise such frames are waited
 *  for. For frames that are opened from now on.
 *  Returns: TB_OK, TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: any.   Waits: never.   Source: src/pool/frame_open.c */
TB_API TB_MUST_USE tb_status tb_bus_set_stream_ordered(tb_bus *bus, int on);

/** Publish a loan when what was enqueued on the stream before this call is done. Returns at once.
 *  Owner:   consumes the loan, also on failure. The slot comes free when the GPU and all readers
 *           are done. *out (may be NULL) is 48 bytes of plain data; it may travel at once.
 *  Returns: TB_OK, TB_E_FREED, TB_E_UNSUPPORTED (no CUDA; a frame that was promised), TB_E_SYSTEM
 *           (the driver: the frame is not published, the next one may be), TB_E_INVALID (NULL),
 *           TB_E_FORKED.
 *  Threads: any; frames of one pool are numbered in the order of these calls.   Waits: never.
 *  Source:  src/pool/publish_on.c */
TB_API TB_MUST_USE tb_status tb_loan_publish_on(tb_loan *loan, tb_cuda_stream stream,
                                                tb_handle *out);

/** Copy a tensor, on any device, into a free slot on the stream, and publish it on the stream.
 *  Shape:   the registered dtype and shape, or one that fits the capacity when shapes vary.
 *  Units:   timeout in ns on CLOCK_MONOTONIC, for a free slot; 0 polls, -1 waits for ever.
 *  Owner:   the tensor's memory must stay as it is until the stream has passed this point.
 *  Returns: as tb_pool_write() and tb_loan_publish_on().
 *  Threads: any.   Waits: up to timeout_ns.   Source: src/pool/write_device.c */
TB_API TB_MUST_USE tb_status tb_pool_write_on(tb_pool *pool, const tb_tensor *tensor,
                                              tb_cuda_stream stream, int64_t timeout_ns,
                                              tb_handle *out);

/** Make a stream wait until the frame is complete. Nothing is enqueued when it is already.
 *  Owner:   the frame stays the caller's.
 *  Returns: TB_OK, TB_AGAIN (a wait that was interrupted: tb_set_interrupt()), TB_E_UNSUPPORTED (no
 *           CUDA), TB_E_SYSTEM (the driver), TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: one frame belongs to one thread at a time.   Waits: never; for the GPU where the
 *           device's streams cannot.   Source: src/pool/gate.c */
TB_API TB_MUST_USE tb_status tb_frame_wait_on(tb_frame *frame, tb_cuda_stream stream);

/** Give a frame back when what was enqueued on the stream before this call is done.
 *  Owner:   takes the frame, also on failure; its memory stays as it is until the stream has
 *           passed.
 *  Returns: TB_OK, TB_E_INCOMPLETE (the frame is known to be incomplete: what ran on it worked on
 *           half-written data), TB_E_UNSUPPORTED (no CUDA), TB_E_SYSTEM (the driver),
 *           TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: one frame belongs to one thread at a time.   Waits: never.   Source: src/pool/gate.c */
TB_API TB_MUST_USE tb_status tb_frame_release_on(tb_frame *frame, tb_cuda_stream stream);

/** Whether a frame is complete.
 *  Returns: TB_OK, TB_AGAIN (the GPU is still working on it), TB_E_INCOMPLETE (it never will be),
 *           TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: any.   Waits: never.   Source: src/pool/gate.c */
TB_API tb_status tb_frame_poll(tb_frame *frame);

/** Copy a frame into a tensor on any device, on the stream, behind the frame's completion.
 *  Shape:   the frame's dtype and shape; the destination may be strided.
 *  Owner:   the frame stays the caller's: release it with tb_frame_release_on() on the same stream.
 *  Returns: TB_OK, TB_E_MISMATCH, TB_E_UNSUPPORTED (no CUDA, no path between the devices),
 *           TB_E_SYSTEM (the driver), TB_E_INVALID (NULL), TB_E_FORKED.
 *  Threads: one frame belongs to one thread at a time.   Waits: only when the destination is
 *           pageable host memory.
 *  Source:  src/pool/write_device.c */
TB_API TB_MUST_USE tb_status tb_frame_copy_on(tb_frame *frame, const tb_tensor *destination,
                                              tb_cuda_stream stream);

/** Copy a tensor into another of the same dtype and shape, each on any device, by the fastest path
 *  between the two; tb_copy() returns when it is done, tb_copy_on() enqueues it on the stream.
 *  Shape:   both may be strided.
 *  Owner:   both stay the caller's, and as they are until the copy is done.
 *  Returns: TB_OK, TB_E_MISMATCH, TB_E_INVALID (NULL, a tensor), TB_E_UNSUPPORTED (no CUDA),
 *           TB_E_SYSTEM (the driver).
 *  Threads: any.   Waits: tb_copy(): for the copy; tb_copy_on(): only for pageable host memory.
 *  Source:  src/pool/write_device.c */
TB_API TB_MUST_USE tb_status tb_copy(const tb_tensor *destination, const tb_tensor *source);
TB_API TB_MUST_USE tb_status tb_copy_on(const tb_tensor *destination, const tb_tensor *source,
                                        tb_cuda_stream stream);

#ifdef __cplusplus
}
#endif
#endif
