/* Event loops: a reader's wake-up descriptor.
 *
 * It is one end of a socket pair whose other end the owner has: the owner sends a byte when it
 * publishes, and the kernel hangs up when the owner's descriptors are gone. For a large owner that
 * is late (about 70 ms per GiB), so the watching thread hangs up before. */
#define TB_LOG_TOPIC "pool"
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"
#include "pool/state.h"

/* Make a socket pair and give one end to the owner. */
static tb_status make_poke(tb_reader *reader)
{
    int pair[2];
    /* With connections, so that the kernel makes our end readable when the owner's is gone. */
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        return TB__FAIL_ERRNO(TB_E_LIMIT, "making a wake-up descriptor");
    }
    struct tb__reader_wire wire = {.reader_id = reader->reader_id};
    struct tb__packet question = {.type = TB__MSG_READER_FD,
                                  .body = &wire,
                                  .body_bytes = sizeof wire,
                                  .borrow_fds = &pair[1],
                                  .fd_count = 1};
    struct tb__reply reply;
    tb_status status =
        tb__lifeline_call(reader->line, &question, tb__deadline_ns(TB__ANSWER_PATIENCE_NS), &reply);
    tb__reply_fini(&reply);
    tb__fd_close(&pair[1]);
    if (status != TB_OK) {
        tb__fd_close(&pair[0]);
        return status == TB_AGAIN ? tb__reader_fail_silent(reader) : status;
    }
    /* Pairs with the acquire loads of the threads that drain it, and of those that hang up. */
    atomic_store_explicit(&reader->poke_fd, pair[0], memory_order_release);
    atomic_fetch_or(&reader->page.shm->armed.value, TB__ARMED_POKE);
    tb__watch_changed(reader->layer);
    return TB_OK;
}

tb_status tb_reader_fd(tb_reader *reader, int *out_borrow_fd)
{
    TB__TRY(tb__reader_check(reader));
    tb__lifeline_open_lock(reader->line); /* one thread makes it */
    tb_status status = tb__watch_start(reader->layer);
    if (status == TB_OK && atomic_load_explicit(&reader->poke_fd, memory_order_relaxed) < 0) {
        status = make_poke(reader);
    }
    tb__lifeline_open_unlock(reader->line);
    if (status == TB_OK) {
        *out_borrow_fd = atomic_load_explicit(&reader->poke_fd, memory_order_relaxed);
    }
    return status;
}

void tb__poke_close(_Atomic int *fd)
{
    int last = atomic_exchange_explicit(fd, -1, memory_order_relaxed);
    tb__fd_close(&last);
}
