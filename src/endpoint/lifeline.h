/* A lifeline: one open connection between two processes. The table of the bus holds one reference
 * while it is open; users hold the others. A line that this process connected is shut down when its
 * last user lets go; one that was accepted lives until the peer hangs up. */
#ifndef TB_ENDPOINT_LIFELINE_H
#define TB_ENDPOINT_LIFELINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "endpoint/bus.h"
#include "endpoint/doorbell.h"

struct tb__lifeline {
    tb_bus *bus;
    struct tb__lifeline *next; /* in the bus's table; bus mutex */
    int fd;
    _Atomic uint32_t references;
    uint32_t users;      /* of a connected line; bus mutex */
    int connected;       /* this side connected; else accepted */
    _Atomic int dead;    /* hung up: set by the service thread before the hooks run */
    _Atomic int goodbye; /* the peer closed in good order */
    int greeted;         /* HELLO was exchanged; service thread, or the connecting thread before
                            the line is shared */
    int64_t greet_deadline_ns;
    uint32_t uid, pid; /* from SO_PEERCRED */
    uint64_t peer_id;
    char peer_name[TB__NAME_SIZE];
    struct tb__bell bell; /* the peer's */
    pthread_mutex_t open_mutex;
    struct tb__call *calls;         /* waiting for replies; bus call mutex */
    uint32_t next_request;          /* bus call mutex */
    _Atomic int in_flight;          /* a descriptor-bearing reply */
    _Atomic int landed;             /* it has ended: the service thread tells the layers */
    _Atomic uint64_t flight_reader; /* the pool's reader in flight */
};

tb_status tb__lifeline_create(tb_bus *bus, int take_fd, int connected, struct tb__lifeline **out);

/* The first half of a call. Unless it fails it must be ended. TB_AGAIN: the socket is full. */
tb_status tb__call_begin(struct tb__lifeline *line, struct tb__call *call,
                         const struct tb__packet *question, struct tb__reply *reply);

/* Send one packet; never blocks. TB_AGAIN when the socket is full. */
tb_status tb__packet_send(int borrow_fd, const struct tb__packet *packet);
/* Receive one packet into `buffer` of TB__WIRE_MAX_BYTES. TB_AGAIN: nothing there. TB_CLOSED: hung
 * up. On success msg's descriptors belong to the caller. */
tb_status tb__packet_receive(int borrow_fd, uint8_t *buffer, struct tb__msg *msg);

/* Close a descriptor that a peer sent: not a socket that would linger, and hold this thread up. */
void tb__packet_close_fd(int *fd);

/* Service thread: hand a reply to the call that waits for it. Returns 0 when nobody does. */
int tb__lifeline_complete(struct tb__lifeline *line, struct tb__msg *msg);
/* Service thread: the line is dead; fail its calls. */
void tb__lifeline_fail_calls(struct tb__lifeline *line);

/* Fill a greeting of this bus. */
void tb__hello_fill(const tb_bus *bus, struct tb__hello_wire *hello);
/* Check a greeting and its doorbell, and keep both. */
tb_status tb__hello_take(struct tb__lifeline *line, struct tb__msg *msg);

#endif
