/* Copying payload into a slot: with the store kind that is fastest for its size and cache state.
 *
 * Four kinds exist. Plain is glibc's memcpy. Streaming uses non-temporal stores, which go around
 * the cache: right when the ring of slots does not fit the cache, because a plain store would first
 * read each line that it then overwrites. Repeated is `rep movsb`, which new processors do in whole
 * lines by themselves: right while the ring stays in the cache. Interleaved is streaming in four
 * places at once: right when it is streaming's turn and there is 1 MiB or more. All pure functions;
 * any thread. */
#ifndef TB_BASE_COPY_H
#define TB_BASE_COPY_H

#include <stddef.h>

#include <tensorbus/tensor.h>

enum tb__copy_kind {
    TB__COPY_PLAIN = 0,
    TB__COPY_STREAM = 1,
    TB__COPY_REP = 2,
    TB__COPY_INTERLEAVED = 3,
    TB__COPY_KINDS = 4,
};

/* Copy private memory into a slot. working_set_bytes is what the writer cycles through: slots times
 * slot size. All stores are ordered before every later store of this thread, also non-temporal
 * ones. */
void tb__copy_store(void *dst, const void *src, size_t bytes, size_t working_set_bytes);

/* Pack a strided tensor (0 to 8 dimensions; strides in elements, also 0 or negative) row-major into
 * `dst`, which has room for its packed size. The tensor has passed tb_tensor_bytes(). */
void tb__copy_strided(void *dst, const tb_tensor *src);

/* The parts of tb__copy_store(), for tests and measurements. */
enum tb__copy_kind tb__copy_choose(size_t bytes, size_t working_set_bytes);
void tb__copy_with(enum tb__copy_kind kind, void *dst, const void *src, size_t bytes);
int tb__copy_available(enum tb__copy_kind kind);
const char *tb__copy_kind_name(enum tb__copy_kind kind);

/* Size of the last-level cache, as far as it can be trusted. */
size_t tb__copy_cache_bytes(void);

#endif
