/* Pools whose slots are memory that their user made: a memfd of his. What is taken and what is
 * refused, that readers see the very same pages, and when he is told that nobody uses them any
 * more. The GPU's kinds are in tests/gpu/test_gpu_adopt.c. */
#include "proc/adopt_support.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "pool/segment_map.h"
#include "pool/state.h"

#define WORDS 3000
#define SLOT_BYTES (WORDS * 8)
#define OFFSET 1000000 /* not a page's beginning */
#define STRIDE (SLOT_BYTES + 4104)
#define FILE_BYTES (2 << 20)

/* ------------------------------------------------------------------ the same pages */

/* What a reader's frame lies on. */
struct seen_at {
    uint64_t inode, offset;
    uint32_t copies;
    int64_t value;
    int writable; /* the reader could make it writable */
};

static void reader_that_looks(void *argument)
{
    (void)argument;
    int64_t value;
    tb_bus *bus = open_bus("looker");
    tb_reader *reader = open_reader(bus, "owner/frames");
    do {
        tb_frame *frame;
        struct seen_at seen = {0};
        CHECK_OK(tb_reader_next(reader, TB_SECONDS(20), &frame));
        uint8_t *data = tb_frame_tensor(frame)->data;
        where_it_lies(data, &seen.inode, &seen.offset);
        seen.copies = info_of(frame).copies;
        value = seen.value = words_value(frame);
        uintptr_t page = (uintptr_t)data & ~(uintptr_t)4095;
        seen.writable = mprotect((void *)page, 4096, PROT_READ | PROT_WRITE) == 0;
        parent_tell(&seen, sizeof seen);
        tb_frame_release(frame);
    } while (value != 9);
    tb_bus_close(bus);
}

/* G14, G17. With the owner's own mapping, and without one: then the library's. */
static void readers_map_the_pages_of_the_slots(void)
{
    for (int mapped = 0; mapped < 2; mapped++) {
        struct child child;
        struct memory memory;
        struct releases releases = {0};
        tb_pool *pool;
        child_start(&child, "looker", reader_that_looks, NULL);
        tb_bus *bus = open_bus("owner");
        memory_make(&memory, FILE_BYTES);
        tb_adoption adoption = memory_adoption(&memory, OFFSET, STRIDE, &releases);
        adoption.data = mapped ? memory.base + OFFSET : NULL;
        CHECK_OK(register_adopted(bus, "frames", WORDS, 3, &adoption, &pool));
        if (mapped) {
            memory_close_fd(&memory); /* the caller's to close */
        }
        for (int64_t n = 1; n <= 9; n++) {
            struct seen_at seen, mine = {0};
            tb_loan *loan;
            CHECK_OK(tb_pool_loan(pool, TB_SECONDS(20), &loan));
            uint8_t *data = tb_loan_tensor(loan)->data;
            CHECK_EQ((data - (memory.base + OFFSET)) % STRIDE == 0 || !mapped, 1);
            where_it_lies(data, &mine.inode, &mine.offset);
            CHECK_EQ(mine.inode, memory.inode);
            CHECK_EQ((mine.offset - OFFSET) % STRIDE, 0);
            CHECK_LT((mine.offset - OFFSET) / STRIDE, 3);
            /* Written through the owner's mapping: that is what the loan is. */
            tb_tensor slot = *tb_loan_tensor(loan);
            slot.data = memory.base + mine.offset;
            fill_words(&slot, n);
            CHECK_OK(tb_loan_publish(loan, NULL));
            child_hear(&child, &seen, sizeof seen);
            CHECK_EQ(seen.value, n);
            CHECK_EQ(seen.inode, mine.inode);
            CHECK_EQ(seen.offset, mine.offset);
            CHECK_EQ(seen.copies, 0);
            CHECK_EQ(seen.writable, 0);
        }
        CHECK_EQ(stats_of(pool).copies, 0);
        child_join(&child);
        CHECK_EQ(releases.count, 0);
        tb_pool_close(pool);
        CHECK_EQ(releases.count, 1);
        CHECK(pthread_equal(releases.thread, pthread_self())); /* nobody held any */
        tb_bus_close(bus);
        CHECK_EQ(releases.count, 1);
        memory_drop(&memory);
    }
}

/* What is there already is published as it is; what a copy or a shape of its own needs works. */
static void loans_are_slots_as_they_are(void)
{
    struct memory memory;
    struct releases releases = {0};
    tb_pool *pool;
    tb_loan *loan;
    tb_frame *frame;
    tb_bus *bus = open_bus("owner");
    memory_make(&memory, FILE_BYTES);
    int64_t *words = (int64_t *)(void *)memory.base;
    for (int i = 0; i < 2 * WORDS; i++) {
        words[i] = i < WORDS ? 41 : 42;
    }
    tb_adoption adoption = memory_adoption(&memory, 0, 0, &releases);
    adoption.bytes = 2 * SLOT_BYTES;
    CHECK_OK(register_adopted(bus, "frames", WORDS, 2, &adoption, &pool));
    tb_reader *reader = open_reader(bus, "owner/frames");
    for (int64_t n = 41; n <= 42; n++) {
        CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
        CHECK_OK(tb_loan_publish(loan, NULL));
        CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
        CHECK_EQ(words_value(frame), n);
        tb_frame_release(frame);
    }
    int64_t copied[WORDS];
    tb_tensor tensor = {.data = copied, .dtype = TB_I64, .ndim = 1, .shape = {WORDS}};
    fill_words(&tensor, 43);
    CHECK_OK(tb_pool_write(pool, &tensor, TB_POLL, NULL));
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    CHECK_EQ(words_value(frame), 43);
    CHECK_EQ(info_of(frame).copies, 1);
    tb_frame_release(frame);
    tb_reader_close(reader);
    tb_pool_close(pool);
    /* Another part of the same memory, now that it is sealed: where it is mapped must be said. */
    tb_pool_options options = words_options("varying", 100, 2);
    adoption.offset = OFFSET;
    adoption.bytes = 0;
    options.capacity_bytes = 4096;
    options.adopt = &adoption;
    CHECK_STATUS(tb_pool_register(bus, &options, &pool), TB_E_UNSUPPORTED);
    CHECK_HAS(tb_last_error_text(), "FUTURE_WRITE");
    CHECK_HAS(tb_last_error_text(), "`data`");
    adoption.data = memory.base + OFFSET;
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    reader = open_reader(bus, "owner/varying");
    CHECK_OK(tb_pool_loan(pool, TB_POLL, &loan));
    CHECK_OK(tb_loan_reshape(loan, 1, (int64_t[]){300}, NULL));
    fill_words(tb_loan_tensor(loan), 44);
    CHECK_OK(tb_loan_publish(loan, NULL));
    CHECK_OK(tb_reader_next(reader, TB_POLL, &frame));
    CHECK_EQ(tb_frame_tensor(frame)->shape[0], 300);
    CHECK_EQ(words_value(frame), 44);
    tb_bus_close(bus); /* closes the pool and its reader, too */
    CHECK_EQ(releases.count, 2);
    memory_drop(&memory);
}

/* ------------------------------------------------------------------ what is refused */

enum twist {
    A_FILE,
    NOT_SEALABLE,
    SEALED_AGAINST_WRITING,
    TOO_SMALL,
    BYTES_TOO_FEW,
    OVERLAPPING,
    OFF_THE_ELEMENTS,
    OFF_STRIDE,
    OVERFLOWING,
    NO_DESCRIPTOR,
    CLOSED_DESCRIPTOR,
    UNKNOWN_WAY,
    EMPTY_SLOTS,
    NOT_MAPPED_THERE,
    PRIVATE_COPY,
    READ_ONLY,
    OTHER_PART,
    MAPPED_IN_PART,
    AT_THE_TOP,
    ON_A_GPU,
    FOR_FOREIGN_READERS,
    LOCKED,
    NO_ADDRESS,
    AN_OFFSET_AND_AN_ADDRESS,
    PAGEABLE,
    DMABUF_WITHOUT_GPU,
    DMABUF_WITH_DATA,
    TWISTS
};

static const struct {
    tb_status status;
    const char *text;
    const char *way_out;
} refusals[TWISTS] = {
    [A_FILE] = {TB_E_UNSUPPORTED, "is no memfd", "memfd_create(..., MFD_ALLOW_SEALING)"},
    [NOT_SEALABLE] = {TB_E_UNSUPPORTED,
                      "lacks the seals SHRINK GROW FUTURE_WRITE and takes no more",
                      "MFD_ALLOW_SEALING"},
    [SEALED_AGAINST_WRITING] = {TB_E_UNSUPPORTED, "sealed against writing", "F_SEAL_WRITE"},
    [TOO_SMALL] = {TB_E_INVALID, "of memory of 2097152 bytes", "use fewer slots"},
    [BYTES_TOO_FEW] = {TB_E_INVALID, "and 50000 are there", "use fewer slots"},
    [OVERLAPPING] = {TB_E_INVALID, "would overlap", "stride_bytes"},
    [OFF_THE_ELEMENTS] = {TB_E_INVALID, "from byte 1000001 on", "an element's 8 bytes"},
    [OFF_STRIDE] = {TB_E_INVALID, "24004 bytes apart", "an element's 8 bytes"},
    [OVERFLOWING] = {TB_E_LIMIT, "that overflows", "stride_bytes"},
    [NO_DESCRIPTOR] = {TB_E_INVALID, "needs one that is open", "descriptor"},
    [CLOSED_DESCRIPTOR] = {TB_E_INVALID, "needs one that is open", "descriptor"},
    [UNKNOWN_WAY] = {TB_E_INVALID, "adopting by 3", "TB_ADOPT_MEMFD"},
    [EMPTY_SLOTS] = {TB_E_INVALID, "slots of 0 bytes", "leave adopt NULL"},
    [NOT_MAPPED_THERE] = {TB_E_INVALID, "something else is mapped there", "leave data NULL"},
    [PRIVATE_COPY] = {TB_E_INVALID, "as a private copy", "shared and writable"},
    [READ_ONLY] = {TB_E_INVALID, "read-only there", "shared and writable"},
    [OTHER_PART] = {TB_E_INVALID, "another part", "leave data NULL"},
    [MAPPED_IN_PART] = {TB_E_INVALID, "nothing is mapped there, or not so much", "leave data NULL"},
    [AT_THE_TOP] = {TB_E_INVALID, "nothing is mapped there, or not so much", "leave data NULL"},
    [ON_A_GPU] = {TB_E_MISMATCH, "is the host's", "leave the device TB_CPU"},
    [FOR_FOREIGN_READERS] = {TB_E_UNSUPPORTED, "foreign readers", "a pool's own memory"},
    [LOCKED] = {TB_E_UNSUPPORTED, "lock_memory", "mlock()"},
    [NO_ADDRESS] = {TB_E_INVALID, "by address has `data`", "where slot 0 lies"},
    [AN_OFFSET_AND_AN_ADDRESS] = {TB_E_INVALID, "and no offset", "where slot 0 lies"},
    [PAGEABLE] = {TB_E_UNSUPPORTED, "cannot adopt the pageable memory", "a pool's loan"},
    [DMABUF_WITHOUT_GPU] = {TB_E_INVALID, "adopted for a GPU", "name one in the options"},
    [DMABUF_WITH_DATA] = {TB_E_INVALID, "says its driver", "leave data NULL"},
};

static void twist_descriptor(enum twist twist, struct memory *memory, tb_adoption *adoption)
{
    char path[256];
    if (twist == A_FILE) {
        snprintf(path, sizeof path, "%s/file", harness_dir());
        adoption->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        CHECK(adoption->fd >= 0 && unlink(path) == 0);
    } else if (twist == NOT_SEALABLE) {
        adoption->fd = memfd_create("plain", MFD_CLOEXEC);
    } else if (twist == SEALED_AGAINST_WRITING) {
        adoption->fd = memfd_create("written", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    } else {
        return;
    }
    CHECK(adoption->fd >= 0 && ftruncate(adoption->fd, FILE_BYTES) == 0);
    if (twist == SEALED_AGAINST_WRITING) {
        CHECK(fcntl(adoption->fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
    }
    (void)memory;
}

/* Where the memory is said to be mapped; the caller unmaps *other. */
static void twist_mapping(enum twist twist, const struct memory *memory, tb_adoption *adoption,
                          void **other)
{
    int access = twist == READ_ONLY ? PROT_READ : PROT_READ | PROT_WRITE;
    int flags = twist == PRIVATE_COPY ? MAP_PRIVATE : MAP_SHARED;
    *other = NULL;
    if (twist == NOT_MAPPED_THERE) {
        *other = mmap(NULL, FILE_BYTES, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    } else if (twist == PRIVATE_COPY || twist == READ_ONLY || twist == MAPPED_IN_PART) {
        *other = mmap(NULL, FILE_BYTES, access, flags, memory->fd, 0);
    } else if (twist == OTHER_PART) {
        adoption->data = memory->base + OFFSET + 8;
        return;
    } else if (twist == AT_THE_TOP) { /* its end is not an address any more */
        adoption->data = (void *)(UINTPTR_MAX - 4095);
        return;
    } else {
        return;
    }
    CHECK(*other != MAP_FAILED);
    if (twist == MAPPED_IN_PART) {
        uint64_t inside = (OFFSET + 2 * SLOT_BYTES) & ~4095u;
        CHECK(munmap((uint8_t *)*other + inside, FILE_BYTES - inside) == 0);
    }
    adoption->data = (uint8_t *)*other + OFFSET;
}

static void twist_fields(enum twist twist, tb_pool_options *options, tb_adoption *adoption)
{
    static int64_t heap[3 * WORDS];
    switch (twist) {
    case TOO_SMALL:
        adoption->offset = FILE_BYTES - SLOT_BYTES;
        break;
    case BYTES_TOO_FEW:
        adoption->bytes = 50000;
        break;
    case OVERLAPPING:
        adoption->stride_bytes = SLOT_BYTES - 8;
        break;
    case OFF_THE_ELEMENTS:
        adoption->offset = OFFSET + 1;
        break;
    case OFF_STRIDE:
        adoption->stride_bytes = SLOT_BYTES + 4;
        break;
    case OVERFLOWING:
        adoption->stride_bytes = UINT64_MAX / 2 & ~UINT64_C(7);
        break;
    case NO_DESCRIPTOR:
        adoption->fd = -1;
        break;
    case CLOSED_DESCRIPTOR:
        adoption->fd = 1000;
        break;
    case UNKNOWN_WAY:
        adoption->by = (tb_adopt_by)3;
        break;
    case EMPTY_SLOTS:
        options->shape[0] = 0;
        break;
    case ON_A_GPU:
        options->device = TB_CUDA(0);
        break;
    case FOR_FOREIGN_READERS:
        options->doradma_name = "dora_pool_test_adopted";
        options->slots = 1;
        break;
    case LOCKED:
        options->lock_memory = 1;
        break;
    case NO_ADDRESS:
    case AN_OFFSET_AND_AN_ADDRESS:
    case PAGEABLE:
        adoption->by = TB_ADOPT_ADDRESS;
        adoption->data = twist == NO_ADDRESS ? NULL : heap;
        adoption->offset = twist == AN_OFFSET_AND_AN_ADDRESS ? 8 : 0;
        break;
    case DMABUF_WITHOUT_GPU:
    case DMABUF_WITH_DATA:
        adoption->by = TB_ADOPT_DMABUF;
        adoption->data = twist == DMABUF_WITH_DATA ? heap : NULL;
        break;
    default:
        break;
    }
}

/* Each says why and what to do, keeps nothing, tells nobody of an end, and leaves the memory as it
 * was: afterwards it can be adopted. */
static void what_cannot_be_adopted_is_refused(void)
{
    struct memory memory;
    struct releases releases = {0};
    tb_pool *pool = NULL;
    tb_bus *bus = open_bus("owner");
    memory_make(&memory, FILE_BYTES);
    for (int twist = 0; twist < TWISTS; twist++) {
        tb_adoption adoption = memory_adoption(&memory, OFFSET, 0, &releases);
        tb_pool_options options = words_options("frames", WORDS, 3);
        void *other;
        options.adopt = &adoption;
        twist_descriptor((enum twist)twist, &memory, &adoption);
        twist_mapping((enum twist)twist, &memory, &adoption, &other);
        twist_fields((enum twist)twist, &options, &adoption);
        unsigned before = harness_fd_count();
        CHECK_STATUS(tb_pool_register(bus, &options, &pool), refusals[twist].status);
        CHECK_HAS(tb_last_error_text(), refusals[twist].text);
        CHECK_HAS(tb_last_error_text(), refusals[twist].way_out);
        CHECK_EQ(harness_fd_count(), before);
        CHECK(pool == NULL);
        CHECK_EQ(fcntl(memory.fd, F_GET_SEALS), 0);
        if (adoption.fd >= 0 && adoption.fd != memory.fd) {
            close(adoption.fd);
        }
        if (other != NULL) {
            munmap(other, FILE_BYTES);
        }
    }
    tb_adoption adoption = memory_adoption(&memory, OFFSET, 0, &releases);
    CHECK_OK(register_adopted(bus, "frames", WORDS, 3, &adoption, &pool));
    CHECK_EQ(fcntl(memory.fd, F_GET_SEALS),
             F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
    CHECK_EQ(releases.count, 0);
    tb_bus_close(bus);
    CHECK_EQ(releases.count, 1);
    memory_drop(&memory);
}

/* What a hostile owner could send in place of the slots. */
static void readers_check_what_they_are_sent(void)
{
    static const struct {
        int seals, kind; /* 0: a memfd; 1: a file; 2: sparse; 3: too small */
        tb_status status;
        const char *text;
    } cases[] = {
        {F_SEAL_SHRINK, 0, TB_E_PROTOCOL, "0x12 are needed"},
        {F_SEAL_FUTURE_WRITE, 0, TB_E_PROTOCOL, "0x12 are needed"},
        {0, 1, TB_E_PROTOCOL, "no sealed memory"},
        {F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE, 2, TB_E_PROTOCOL, "sparse"},
        {F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE, 3, TB_E_CORRUPT, "slots of 86016 bytes in memory of"},
        {F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE, 0, TB_OK, ""},
    };
    char path[256];
    snprintf(path, sizeof path, "%s/file", harness_dir());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tb__segment segment = {
            .view = {
                .slot_count = 3, .slot_stride = 36864, .slot_bytes = 12288, .device_offset = 8192}};
        int fd = cases[i].kind == 1 ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)
                                    : memfd_create("slots", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        off_t bytes = cases[i].kind == 3 ? 8192 + 86016 - 1 : 8192 + 86016;
        CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
        if (cases[i].kind != 2) {
            CHECK_EQ(posix_fallocate(fd, 0, bytes), 0);
        }
        if (cases[i].seals != 0) {
            CHECK(fcntl(fd, F_ADD_SEALS, cases[i].seals) == 0);
        }
        CHECK_STATUS(tb__slots_map(&segment, fd, "frames", 1), cases[i].status);
        CHECK(cases[i].status == TB_OK || strstr(tb_last_error_text(), cases[i].text) != NULL);
        CHECK_EQ(segment.slots_map != NULL, cases[i].status == TB_OK);
        tb__segment_unmap(&segment);
        close(fd);
    }
    CHECK(unlink(path) == 0);
    struct tb__segment segment = {.view = {.slot_count = 1, .slot_stride = 1, .slot_bytes = 1}};
    CHECK_STATUS(tb__slots_map(&segment, -1, "frames", 1), TB_E_PROTOCOL);
}

/* Move a reader's slots to where nothing can be read behind them; returns what that is. */
static uint8_t *move_before_guard(struct tb__segment *segment, size_t bytes)
{
    uint8_t *place = mmap(NULL, bytes + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED && segment->slots_map_bytes == bytes);
    ptrdiff_t by = place - (uint8_t *)segment->slots_map;
    CHECK(mremap(segment->slots_map, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    segment->slots_map = place;
    segment->data += by;
    return place + bytes;
}

/* Frames that begin at an odd byte and end with the last page: a copy of one reads nothing behind
 * it. */
static void frames_at_the_end_of_memory_are_copied(void)
{
    enum { BYTES = 4099, SLOTS = 2, ALL = 12288, FIRST = ALL - SLOTS * BYTES };
    struct memory memory;
    struct releases releases = {0};
    tb_pool *pool;
    memory_make(&memory, ALL);
    tb_bus *bus = open_bus("owner");
    tb_adoption adoption = memory_adoption(&memory, FIRST, 0, &releases);
    tb_pool_options options = words_options("frames", BYTES, SLOTS);
    options.dtype = TB_U8;
    options.adopt = &adoption;
    CHECK_OK(tb_pool_register(bus, &options, &pool));
    tb_reader *reader = open_reader(bus, "owner/frames");
    uint8_t *guard = move_before_guard(&reader->segment, ALL);
    for (int n = 0; n < 2 * SLOTS; n++) {
        uint8_t frame[BYTES], copy[BYTES + 1] = {0};
        size_t bytes = 0;
        uint64_t sequence = 0;
        for (int i = 0; i < BYTES; i++) {
            frame[i] = (uint8_t)(i * 7 + n + 1);
        }
        tb_tensor tensor = {.data = frame, .dtype = TB_U8, .ndim = 1, .shape = {BYTES}};
        CHECK_OK(tb_pool_write(pool, &tensor, 0, NULL));
        CHECK_OK(tb_reader_copy_newest(reader, copy, sizeof copy, &bytes, &sequence));
        CHECK_EQ(bytes, BYTES);
        CHECK(memcmp(copy, frame, BYTES) == 0);
        CHECK_EQ(copy[BYTES], 0);
    }
    tb_bus_close(bus);
    munmap(guard, 4096);
    CHECK_EQ(releases.count, 1);
    memory_drop(&memory);
}

static const struct test tests[] = {
    TEST(readers_map_the_pages_of_the_slots, 60),     TEST(loans_are_slots_as_they_are, 30),
    TEST(what_cannot_be_adopted_is_refused, 30),      TEST(readers_check_what_they_are_sent, 30),
    TEST(frames_at_the_end_of_memory_are_copied, 30),
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, tests, TEST_COUNT(tests));
}
