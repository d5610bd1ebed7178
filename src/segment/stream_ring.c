/* The ring of a stream: mapping, the sender's write, the subscriber's peek and copy.
 *
 * Payload words are copied with relaxed atomics, so that a copy that races with an overwrite is
 * defined (and discarded), not undefined. At most 36 KiB are copied here; larger values are frames.
 */
#include "segment/stream_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fd.h"

#define PAGE 4096
#define SLOT_MAX (TB__INLINE_MAX + PAGE) /* an inline value, its head and some metadata */
#define SLOT_MIN 1024
#define RING_MAX (8u << 20) /* of all slots, as long as they are not smaller than SLOT_MIN */
#define RETRIES 64

/* Keeps the claim before the payload; pairs with the acquire fence in tb__ring_copy(). */
static void fence_release(void)
{
    atomic_thread_fence(memory_order_release);
}

tb_status tb__ring_measure(uint32_t queue_size, struct tb__ring_geometry *out)
{
    if (queue_size == 0 || queue_size > TB__QUEUE_MAX) {
        return TB__FAIL(TB_E_INVALID, "queue size %u: 1 to %d are possible", queue_size,
                        TB__QUEUE_MAX);
    }
    uint32_t slot = RING_MAX / (queue_size + 1);
    slot = slot > SLOT_MAX ? SLOT_MAX : slot < SLOT_MIN ? SLOT_MIN : slot;
    /* Whole pages where possible: a small message then touches one page, not two. */
    slot -= slot % (slot >= PAGE ? PAGE : 64);
    uint32_t count = queue_size + 2;
    *out = (struct tb__ring_geometry){
        .queue_size = queue_size,
        .slot_count = count,
        .slot_bytes = slot,
        .room_bytes = slot - (uint32_t)sizeof(struct tb__ring_slot_shm),
        .bytes = TB__RING_HEADER_BYTES + (uint64_t)slot * count,
    };
    return TB_OK;
}

static tb_status map(struct tb__ring *ring, int borrow_fd, int protection)
{
    void *base = mmap(NULL, (size_t)ring->geometry.bytes, protection, MAP_SHARED, borrow_fd, 0);
    if (base == MAP_FAILED) {
        return TB__FAIL_ERRNO(TB_E_NOMEM, "mapping a stream of %llu bytes",
                              (unsigned long long)ring->geometry.bytes);
    }
    madvise(base, (size_t)ring->geometry.bytes, MADV_DONTFORK);
    madvise(base, (size_t)ring->geometry.bytes, MADV_DONTDUMP);
    ring->base = base;
    return TB_OK;
}

tb_status tb__ring_create(struct tb__ring *ring, uint32_t queue_size, int *out_take_fd)
{
    *ring = (struct tb__ring){0};
    TB__TRY(tb__ring_measure(queue_size, &ring->geometry));
    int fd = -1;
    TB__TRY(tb__memfd_create("tensorbus-stream", ring->geometry.bytes, &fd));
    tb_status status = map(ring, fd, PROT_READ | PROT_WRITE);
    if (status == TB_OK) {
        status = tb__memfd_seal(fd, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
    }
    if (status != TB_OK) {
        tb__ring_unmap(ring);
        tb__fd_close(&fd);
        return status;
    }
    struct tb__ring_shm *shm = (struct tb__ring_shm *)(void *)ring->base;
    shm->magic = TB__RING_MAGIC;
    shm->queue_size = queue_size;
    shm->slot_count = ring->geometry.slot_count;
    shm->slot_bytes = ring->geometry.slot_bytes;
    *out_take_fd = fd;
    return TB_OK;
}

tb_status tb__ring_map(struct tb__ring *ring, uint32_t queue_size, int borrow_fd)
{
    *ring = (struct tb__ring){0};
    TB__TRY(tb__ring_measure(queue_size, &ring->geometry));
    uint64_t bytes;
    TB__TRY(tb__memfd_check(borrow_fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE,
                            ring->geometry.bytes, 0, &bytes));
    if (bytes != ring->geometry.bytes) {
        return TB__FAIL(TB_E_PROTOCOL, "a peer sent a stream of %llu bytes, %llu are needed",
                        (unsigned long long)bytes, (unsigned long long)ring->geometry.bytes);
    }
    TB__TRY(map(ring, borrow_fd, PROT_READ));
    struct tb__ring_shm head;
    memcpy(&head, ring->base, offsetof(struct tb__ring_shm, pad0));
    if (head.magic != TB__RING_MAGIC || head.queue_size != queue_size ||
        head.slot_count != ring->geometry.slot_count ||
        head.slot_bytes != ring->geometry.slot_bytes) {
        tb__ring_unmap(ring);
        return TB__FAIL(TB_E_CORRUPT, "a peer sent a stream with magic %llx, %u slots of %u bytes",
                        (unsigned long long)head.magic, head.slot_count, head.slot_bytes);
    }
    return TB_OK;
}

void tb__ring_unmap(struct tb__ring *ring)
{
    if (ring->base != NULL) {
        munmap(ring->base, (size_t)ring->geometry.bytes);
        ring->base = NULL;
    }
}

static struct tb__ring_shm *header(const struct tb__ring *ring)
{
    return (struct tb__ring_shm *)(void *)ring->base;
}

static struct tb__ring_slot_shm *slot_of(const struct tb__ring *ring, uint64_t sequence)
{
    uint64_t index = sequence % ring->geometry.slot_count;
    return (struct tb__ring_slot_shm *)(void *)(ring->base + TB__RING_HEADER_BYTES +
                                                index * ring->geometry.slot_bytes);
}

static void write_words(struct tb__a64 *words, const uint8_t *data, size_t bytes)
{
    for (; bytes >= 8; bytes -= 8, data += 8, words++) {
        uint64_t word;
        memcpy(&word, data, 8);
        tb__a64_store_relaxed(words, word);
    }
    if (bytes != 0) {
        uint64_t word = 0;
        memcpy(&word, data, bytes);
        tb__a64_store_relaxed(words, word);
    }
}

uint64_t tb__ring_write(struct tb__ring *ring, int64_t stamp_ns, size_t bytes,
                        const struct tb__ring_part *parts, size_t part_count)
{
    TB_ASSERT(bytes <= ring->geometry.room_bytes);
    struct tb__ring_shm *shm = header(ring);
    uint64_t sequence = tb__a64_load_relaxed(&shm->head) + 1;
    struct tb__ring_slot_shm *slot = slot_of(ring, sequence);
    /* Dying after this store loses no message that a subscriber may still want: the slot's former
     * one is two messages older than the queue reaches. */
    tb__a64_store_relaxed(&shm->claim, sequence);
    fence_release();
    tb__a64_store_relaxed(&slot->sequence, sequence);
    tb__a64_store_relaxed(&slot->stamp_ns, (uint64_t)stamp_ns);
    tb__a64_store_relaxed(&slot->bytes, bytes);
    for (size_t i = 0; i < part_count; i++) {
        TB_ASSERT(parts[i].offset % 8 == 0 && parts[i].offset + parts[i].bytes <= bytes);
        write_words(slot->words + parts[i].offset / 8, parts[i].data, parts[i].bytes);
    }
    /* Commits the message. Pairs with the acquire load in tb__ring_peek(). */
    tb__a64_store_release(&shm->head, sequence);
    return sequence;
}

uint64_t tb__ring_head(const struct tb__ring *ring)
{
    /* Pairs with the release store in tb__ring_write(). */
    return tb__a64_load_acquire(&header(ring)->head);
}

/* Whether message `sequence` still stands; everything read before belongs to it then. */
static int still_stands(const struct tb__ring *ring, uint64_t sequence)
{
    /* Pairs with fence_release() in tb__ring_write(): whoever saw a word of a later message sees
     * its claim. */
    tb__fence_acquire();
    uint64_t claim = tb__a64_load_relaxed(&header(ring)->claim);
    return claim - sequence < ring->geometry.slot_count;
}

tb_status tb__ring_peek(const struct tb__ring *ring, uint64_t cursor, struct tb__ring_item *out)
{
    const uint64_t queue = ring->geometry.queue_size;
    /* An honest sender overtakes a peek now and then, never so many times in a row. */
    for (int i = 0; i < RETRIES; i++) {
        uint64_t head = tb__ring_head(ring);
        if (head <= cursor) {
            return TB_AGAIN;
        }
        uint64_t sequence = head - cursor > queue ? head - queue + 1 : cursor + 1;
        const struct tb__ring_slot_shm *slot = slot_of(ring, sequence);
        uint64_t found = tb__a64_load_relaxed(&slot->sequence);
        uint64_t stamp = tb__a64_load_relaxed(&slot->stamp_ns);
        uint64_t bytes = tb__a64_load_relaxed(&slot->bytes);
        if (!still_stands(ring, sequence)) {
            continue;
        }
        if (found != sequence || stamp > INT64_MAX || bytes > ring->geometry.room_bytes) {
            return TB__FAIL(
                TB_E_CORRUPT, "a stream's message %llu calls itself %llu and %llu bytes long",
                (unsigned long long)sequence, (unsigned long long)found, (unsigned long long)bytes);
        }
        *out =
            (struct tb__ring_item){sequence, sequence - cursor - 1, (int64_t)stamp, (size_t)bytes};
        return TB_OK;
    }
    return TB_AGAIN;
}

tb_status tb__ring_copy(const struct tb__ring *ring, const struct tb__ring_item *item, void *out)
{
    const struct tb__ring_slot_shm *slot = slot_of(ring, item->sequence);
    uint8_t *to = out;
    for (size_t i = 0; i < (item->bytes + 7) / 8; i++) {
        uint64_t word = tb__a64_load_relaxed(&slot->words[i]);
        memcpy(to + 8 * i, &word, 8);
    }
    return still_stands(ring, item->sequence) ? TB_OK : TB_AGAIN;
}
