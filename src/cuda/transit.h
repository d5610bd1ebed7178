/* Two pinned chunks and the streams on both sides of them: how bytes get from one device to another
 * that it cannot reach, or from scattered host memory to a device. While one chunk is filled, the
 * other is emptied; the CPU waits for neither.
 *
 *     transit_take(src, dst) -> begin(user's stream) -> for each piece: chunk -> fill -> send
 *                            -> end(user's stream) -> give
 *
 * Streams of a transit are its own, so a user's stream that stands still holds up nobody else.
 * Transits are kept and used again (at most 16, 8 MiB each); tb__transit_trim() frees those at
 * rest. Any thread; one transit belongs to one thread until it is given back. */
#ifndef TB_CUDA_TRANSIT_H
#define TB_CUDA_TRANSIT_H

#include "cuda/event.h"
#include "cuda/order.h"

#define TB__CHUNK_BYTES ((uint64_t)4 << 20)
#define TB__CHUNKS 2

struct tb__chunk {
    void *host;
    struct tb__gpu_event filled; /* recorded by the source's stream */
    struct tb__gpu_event done;   /* recorded by the destination's stream: may be filled again */
};

struct tb__transit {
    const struct tb__gpu *src; /* NULL: the CPU fills the chunks */
    const struct tb__gpu *dst;
    tb__stream in;  /* of src; NULL without */
    tb__stream out; /* of dst */
    struct tb__chunk chunks[TB__CHUNKS];
    struct tb__gpu_event end;
    unsigned next_chunk;
    int has_chunks, in_use, failed;
    struct tb__transit *next;
};

/* A transit between two devices. with_chunks: 0 when only the streams are needed. Waits only when
 * all 16 are in use by other threads. */
tb_status tb__transit_take(const struct tb__gpu *src, const struct tb__gpu *dst, int with_chunks,
                           struct tb__transit **out);
void tb__transit_give(struct tb__transit *transit);

/* What follows in the transit comes after what the user's stream has now; what follows in the
 * user's stream comes after what the transit has now. */
tb_status tb__transit_begin(struct tb__transit *transit, tb__stream stream,
                            const struct tb__gpu *stream_gpu);
tb_status tb__transit_end(struct tb__transit *transit, tb__stream stream,
                          const struct tb__gpu *stream_gpu);

/* After a failure in between: the user's stream comes after whatever was enqueued, or if even that
 * fails, it is waited for. The thread's last error stays. */
void tb__transit_abandon(struct tb__transit *transit, tb__stream stream,
                         const struct tb__gpu *stream_gpu);

/* Enqueue work of device `gpu` in the order of a user's stream of any device: on that stream itself
 * when it is of the same one, else on a transit's, between two events. *result is the driver's. */
typedef tb_status tb__enqueue(const void *work, tb__stream stream, int *result);
tb_status tb__transit_bracket(const struct tb__gpu *gpu, tb__stream stream,
                              const struct tb__gpu *stream_gpu, tb__enqueue *enqueue,
                              const void *work, int *result);

/* The next chunk, free to be filled by the source's stream, or by the CPU when there is no source
 * device (then it may be waited for). */
tb_status tb__transit_chunk(struct tb__transit *transit, struct tb__chunk **out);

/* Copy what was put into a chunk (enqueued on `in`, or stored by the CPU) to the destination. */
tb_status tb__transit_send(struct tb__transit *transit, struct tb__chunk *chunk, uint64_t dst,
                           uint64_t bytes);

/* Flat memory of src to flat memory of dst, chunk by chunk. */
tb_status tb__transit_copy(struct tb__transit *transit, uint64_t dst, uint64_t src, uint64_t bytes);

/* Free all transits that are at rest. */
void tb__transit_trim(void);

#endif
