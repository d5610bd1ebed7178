/* Copies between any two kinds of memory, by the path that path.h chooses, in the order of a
 * stream.
 *
 * They are asynchronous where the hardware can: what the result calls busy must stay as it is until
 * the stream has got past the copy. Any thread. */
#ifndef TB_CUDA_COPY_H
#define TB_CUDA_COPY_H

#include <tensorbus/tensor.h>

#include "cuda/device.h"
#include "cuda/path.h"

/* One side: memory of a GPU (ptr is a device address), or of the host (gpu NULL, ptr the CPU's). */
struct tb__copy_end {
    uint64_t ptr;
    const struct tb__gpu *gpu;
    int locked; /* host: known to be page-locked; 0: it is found out */
};

struct tb__copy {
    struct tb__copy_end dst, src;
    uint64_t bytes;
};

struct tb__copy_result {
    enum tb__path path; /* the one that was gone; "staged" in place of "peer" is not silent */
    int src_busy;       /* the source is still read */
    int dst_busy;       /* the destination is still written */
};

/* Copy in the order of `stream`, which may be of any device. result may be NULL: then wait for the
 * stream before touching either side. Between host memories the CPU copies at once, whatever the
 * stream has before. After a failure a part may have been written, never after what the stream
 * gets next. */
tb_status tb__gpu_copy(const struct tb__copy *job, tb__stream stream,
                       struct tb__copy_result *result);

/* A copy by the context of `gpu` was refused with `result`: virtual memory is open to its own
 * device alone. What we have mapped, of tb_alloc(), pools and frames, is opened to `gpu` when it is
 * first copied from. Returns whether to try again. */
int tb__copy_open_source(uint64_t src, const struct tb__gpu *gpu, int result);

/* From how many bytes on pageable memory is page-locked for one copy: TENSORBUS_GPU_PIN_MIN of the
 * environment, else TB__REGISTER_MIN_BYTES. 0 sets that again. */
void tb__copy_set_register_min(uint64_t bytes);
uint64_t tb__copy_register_min(void);

/* Give back what is kept for the next copies: chunks, streams, registrations. */
void tb__copy_trim(void);

#endif
