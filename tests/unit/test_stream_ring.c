/* The ring: what arrives, what is skipped, what a hostile sender can do, and a writer against a
 * reader on one mapping (so that ThreadSanitizer sees both sides). */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "segment/stream_ring.h"

#define OK(call) assert_int_equal((call), TB_OK)

static void send_number(struct tb__ring *ring, uint64_t number)
{
    struct tb__ring_part part = {0, &number, 8};
    assert_int_equal(tb__ring_write(ring, (int64_t)number * 10, 8, &part, 1), number);
}

static struct tb__ring_shm *words_of(struct tb__ring *ring)
{
    return (struct tb__ring_shm *)(void *)ring->base;
}

static void geometry(void **state)
{
    (void)state;
    static const struct {
        uint32_t queue, slot;
    } cases[] = {{1, 36864}, {10, 36864}, {200, 36864}, {1000, 8192}, {5000, 1664}, {65536, 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tb__ring_geometry found;
        OK(tb__ring_measure(cases[i].queue, &found));
        assert_int_equal(found.slot_bytes, cases[i].slot);
        assert_int_equal(found.slot_count, cases[i].queue + 2);
        assert_int_equal(found.bytes, 4096 + (uint64_t)found.slot_bytes * found.slot_count);
    }
    struct tb__ring_geometry found;
    assert_int_equal(tb__ring_measure(0, &found), TB_E_INVALID);
    assert_int_equal(tb__ring_measure(TB__QUEUE_MAX + 1, &found), TB_E_INVALID);
}

static void exactly_the_newest_arrive(void **state)
{
    (void)state;
    static const uint32_t queues[] = {1, 2, 10, 99, 100, 1000};
    for (size_t q = 0; q < sizeof queues / sizeof queues[0]; q++) {
        struct tb__ring ring;
        int fd;
        OK(tb__ring_create(&ring, queues[q], &fd));
        tb__fd_close(&fd);
        for (uint64_t n = 1; n <= 100; n++) {
            send_number(&ring, n);
        }
        uint64_t cursor = 0;
        uint64_t dropped = 0;
        uint64_t taken = 0;
        struct tb__ring_item item;
        while (tb__ring_peek(&ring, cursor, &item) == TB_OK) {
            uint64_t number;
            OK(tb__ring_copy(&ring, &item, &number));
            assert_int_equal(number, item.sequence);
            assert_int_equal(item.stamp_ns, number * 10);
            dropped += item.skipped;
            taken++;
            cursor = item.sequence;
        }
        uint64_t expected = queues[q] < 100 ? queues[q] : 100;
        assert_int_equal(taken, expected);
        assert_int_equal(dropped, 100 - expected);
        assert_int_equal(cursor, 100);
        tb__ring_unmap(&ring);
    }
}

static void a_copy_that_was_overtaken_is_told(void **state)
{
    (void)state;
    struct tb__ring ring;
    int fd;
    OK(tb__ring_create(&ring, 2, &fd));
    tb__fd_close(&fd);
    send_number(&ring, 1);
    struct tb__ring_item item;
    uint64_t number;
    OK(tb__ring_peek(&ring, 0, &item));
    for (uint64_t n = 2; n <= 4; n++) {
        send_number(&ring, n);
    }
    OK(tb__ring_copy(&ring, &item, &number)); /* slots of 2 to 4; that of 1 still stands */
    send_number(&ring, 5);
    assert_int_equal(tb__ring_copy(&ring, &item, &number), TB_AGAIN);
    OK(tb__ring_peek(&ring, 0, &item));
    assert_int_equal(item.sequence, 4);
    assert_int_equal(item.skipped, 3);
    /* A sender that died after its claim: what was published before is still there. */
    tb__a64_store_relaxed(&words_of(&ring)->claim, 6);
    OK(tb__ring_peek(&ring, 3, &item));
    OK(tb__ring_copy(&ring, &item, &number));
    assert_int_equal(number, 4);
    assert_int_equal(tb__ring_peek(&ring, 5, &item), TB_AGAIN);
    tb__ring_unmap(&ring);
}

static void parts_lie_where_they_should(void **state)
{
    (void)state;
    struct tb__ring ring;
    int fd;
    OK(tb__ring_create(&ring, 1, &fd));
    tb__fd_close(&fd);
    size_t room = ring.geometry.room_bytes;
    uint8_t *sent = malloc(room);
    uint8_t *got = malloc(room + 7);
    for (size_t i = 0; i < room; i++) {
        sent[i] = (uint8_t)(i * 7);
    }
    struct tb__ring_part parts[] = {{0, sent, 40}, {40, sent + 40, 13}, {64, sent + 64, room - 64}};
    tb__ring_write(&ring, 1, room, parts, 3);
    struct tb__ring_item item;
    OK(tb__ring_peek(&ring, 0, &item));
    assert_int_equal(item.bytes, room);
    OK(tb__ring_copy(&ring, &item, got));
    assert_memory_equal(got, sent, 53);
    assert_memory_equal(got + 64, sent + 64, room - 64);
    tb__ring_write(&ring, 1, 0, NULL, 0);
    OK(tb__ring_peek(&ring, 1, &item));
    assert_int_equal(item.bytes, 0);
    free(sent);
    free(got);
    tb__ring_unmap(&ring);
}

static void hostile_words_are_refused(void **state)
{
    (void)state;
    struct tb__ring ring;
    int fd;
    OK(tb__ring_create(&ring, 4, &fd));
    tb__fd_close(&fd);
    send_number(&ring, 1);
    struct tb__ring_item item;
    struct tb__ring_slot_shm *slot =
        (struct tb__ring_slot_shm *)(void *)(ring.base + 4096 + ring.geometry.slot_bytes);
    tb__a64_store_relaxed(&slot->bytes, UINT64_MAX);
    assert_int_equal(tb__ring_peek(&ring, 0, &item), TB_E_CORRUPT);
    tb__a64_store_relaxed(&slot->bytes, (uint64_t)ring.geometry.room_bytes + 1);
    assert_int_equal(tb__ring_peek(&ring, 0, &item), TB_E_CORRUPT);
    tb__a64_store_relaxed(&slot->bytes, ring.geometry.room_bytes);
    OK(tb__ring_peek(&ring, 0, &item));
    tb__a64_store_relaxed(&slot->stamp_ns, UINT64_MAX);
    assert_int_equal(tb__ring_peek(&ring, 0, &item), TB_E_CORRUPT);
    tb__a64_store_relaxed(&slot->stamp_ns, 1);
    tb__a64_store_relaxed(&slot->sequence, 7);
    assert_int_equal(tb__ring_peek(&ring, 0, &item), TB_E_CORRUPT);
    /* A head far ahead of the claim is never believed, and does not hold the subscriber up. */
    tb__a64_store_relaxed(&words_of(&ring)->head, (uint64_t)1 << 40);
    assert_int_equal(tb__ring_peek(&ring, 0, &item), TB_AGAIN);
    tb__a64_store_relaxed(&words_of(&ring)->head, UINT64_MAX);
    assert_int_equal(tb__ring_peek(&ring, 0, &item), TB_E_CORRUPT);
    /* A head that moves back is no news. */
    tb__a64_store_relaxed(&words_of(&ring)->head, 3);
    assert_int_equal(tb__ring_peek(&ring, 5, &item), TB_AGAIN);
    tb__ring_unmap(&ring);
}

static void descriptors_are_checked(void **state)
{
    (void)state;
    struct tb__ring ring;
    struct tb__ring other;
    int fd;
    OK(tb__ring_create(&ring, 10, &fd));
    assert_int_equal(tb__ring_map(&other, 9, fd), TB_E_PROTOCOL);
    assert_null(other.base);
    OK(tb__ring_map(&other, 10, fd));
    /* Nobody else can write: the subscriber's mapping, a new one, the file. */
    assert_int_equal(mprotect(other.base, 4096, PROT_READ | PROT_WRITE), -1);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    assert_int_equal(pwrite(fd, "x", 1, 0), -1);
    assert_int_equal(ftruncate(fd, 0), -1);
    tb__ring_unmap(&other);
    words_of(&ring)->slot_bytes = 64;
    assert_int_equal(tb__ring_map(&other, 10, fd), TB_E_CORRUPT);
    assert_null(other.base);
    tb__fd_close(&fd);
    tb__ring_unmap(&ring);
    OK(tb__memfd_create("unsealed", 4096 + 12 * 36864, &fd));
    assert_int_equal(tb__ring_map(&other, 10, fd), TB_E_PROTOCOL);
    tb__fd_close(&fd);
    assert_int_equal(tb__ring_map(&other, 10, STDIN_FILENO), TB_E_PROTOCOL);
}

#define RACE_MESSAGES 200000
#define RACE_WORDS 64

static void *race_writer(void *argument)
{
    struct tb__ring *ring = argument;
    uint64_t words[RACE_WORDS];
    for (uint64_t n = 1; n <= RACE_MESSAGES; n++) {
        for (int i = 0; i < RACE_WORDS; i++) {
            words[i] = n;
        }
        struct tb__ring_part part = {0, words, sizeof words};
        tb__ring_write(ring, (int64_t)n, sizeof words, &part, 1);
    }
    return NULL;
}

static void never_torn_never_lost_in_silence(void **state)
{
    (void)state;
    struct tb__ring ring;
    int fd;
    OK(tb__ring_create(&ring, 1, &fd));
    tb__fd_close(&fd);
    pthread_t writer;
    assert_int_equal(pthread_create(&writer, NULL, race_writer, &ring), 0);
    uint64_t cursor = 0;
    uint64_t taken = 0;
    uint64_t skipped = 0;
    while (cursor < RACE_MESSAGES) {
        struct tb__ring_item item;
        uint64_t words[RACE_WORDS];
        tb_status status = tb__ring_peek(&ring, cursor, &item);
        assert_true(status == TB_OK || status == TB_AGAIN);
        if (status == TB_AGAIN || tb__ring_copy(&ring, &item, words) == TB_AGAIN) {
            continue;
        }
        for (int i = 0; i < RACE_WORDS; i++) {
            assert_int_equal(words[i], item.sequence);
        }
        taken++;
        skipped += item.skipped;
        cursor = item.sequence;
    }
    pthread_join(writer, NULL);
    assert_int_equal(taken + skipped, RACE_MESSAGES);
    tb__ring_unmap(&ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(geometry),
        cmocka_unit_test(exactly_the_newest_arrive),
        cmocka_unit_test(a_copy_that_was_overtaken_is_told),
        cmocka_unit_test(parts_lie_where_they_should),
        cmocka_unit_test(hostile_words_are_refused),
        cmocka_unit_test(descriptors_are_checked),
        cmocka_unit_test(never_torn_never_lost_in_silence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
