/* The bus inside: endpoint, service thread, doorbell, lifelines. Upper layers (pools, streams, the
 * runner) register handlers for their message types and call peers through lifelines.
 *
 * Threads: the service thread alone reads sockets and runs handlers and hang-up hooks; a handler
 * never waits. Any other thread may call, send, sleep and ring. */
#ifndef TB_ENDPOINT_BUS_H
#define TB_ENDPOINT_BUS_H

#include <tensorbus/bus.h>

#include "segment/page.h"
#include "wire/wire.h"

struct tb__lifeline;

/* TB_E_FORKED in a child, TB_E_INVALID for NULL. Every public call on a bus or its objects begins
 * with it. */
tb_status tb__bus_check(const tb_bus *bus);

/* ---- handlers and hooks ---- */

/* Runs on the service thread. Descriptors that it keeps it sets to -1 in msg->fds. It answers a
 * request (msg->request != 0) with tb__lifeline_reply() now or later, or
 * tb__lifeline_reply_error(). */
typedef void tb__handler(void *context, struct tb__lifeline *line, struct tb__msg *msg);
void tb__bus_handle(tb_bus *bus, uint16_t first_type, uint16_t last_type, tb__handler *handler,
                    void *context);

/* Called for every bus before its endpoint can be found, in the order of registration; layers
 * register at load time (a constructor), so that a bus serves them from its first moment. */
typedef tb_status tb__bus_opening(tb_bus *bus);
void tb__bus_on_open(tb__bus_opening *opening);

/* A layer's own state, made once per bus and destroyed when the bus closes, last made first. The
 * `closing` hook runs on the closing thread while the service thread still runs (say goodbye);
 * `destroy` runs after it has ended; `hangup` on the service thread when a lifeline ends. A hook
 * may be NULL. */
struct tb__bus_layer {
    void (*closing)(void *state);
    void (*destroy)(void *state);
    void (*hangup)(void *state, struct tb__lifeline *line);
    void (*forked)(void *state); /* in a child: close descriptors, no more; bus mutex held */
};
enum tb__layer_slot {
    TB__LAYER_POOL = 0,
    TB__LAYER_NODE = 1,
    TB__LAYER_FLOW = 2,
    TB__LAYER_TENSOR_POOL = 3,
    TB__LAYER_EXTENSION = 4,
    TB__LAYER_COUNT = 5,
};
void tb__bus_set_layer(tb_bus *bus, enum tb__layer_slot slot, const struct tb__bus_layer *layer,
                       void *state);
void *tb__bus_layer(const tb_bus *bus, enum tb__layer_slot slot);

/* Whether what is mapped stays so until the process ends. */
int tb__bus_keeps_mapped(const tb_bus *bus);

/* One mutex per bus for layers' tables (short sections; never held while waiting or calling). */
void tb__bus_lock(tb_bus *bus);
void tb__bus_unlock(tb_bus *bus);

/* ---- doorbell ---- */

/* Wait protocol: seen = tb__bus_bell(bus); look at what you wait for; tb__bus_sleep(bus, seen,
 * ...). Whoever changes it rings. `lives` are life words watched as well, with the values last seen
 * alive; at most TB__MAX_LIVES are watched: whoever has more sleeps no longer than
 * TB__UNWATCHED_NS. Returns after a ring, a death, the deadline, or a bounded slice. */
#define TB__MAX_LIVES 127
#define TB__UNWATCHED_NS INT64_C(5000000)
struct tb__life_watch {
    struct tb__a32 *word;
    uint32_t alive;
};
uint32_t tb__bus_bell(const tb_bus *bus);
void tb__bus_sleep(tb_bus *bus, uint32_t seen, const struct tb__life_watch *lives, uint32_t count,
                   int64_t deadline_ns);
/* Ring the own doorbell: wakes all sleeping threads of this bus. */
void tb__bus_ring_self(tb_bus *bus);
/* The same on a word of one's own instead of the doorbell, for a thread that no message wakes:
 * sleep until `word` differs from `seen`, a watched life ends, the deadline or a bounded slice; and
 * count the word up to wake it. */
void tb__word_sleep(struct tb__a32 *word, uint32_t seen, const struct tb__life_watch *lives,
                    uint32_t count, int64_t deadline_ns);
void tb__word_ring(struct tb__a32 *word);
/* Wake who sleeps on a word that was changed before. It may be gone by now. */
void tb__word_wake(const struct tb__a32 *word);

/* ---- life words ---- */

/* Put a life word of a mapped page into the care of the service thread: the kernel marks it when
 * the thread ends. `word` lies in map->shm. Detach before the page is unmapped. */
void tb__bus_life_attach(tb_bus *bus, struct tb__page_map *map, struct tb__a32 *word);
void tb__bus_life_detach(tb_bus *bus, struct tb__page_map *map, struct tb__a32 *word);

/* ---- lifelines ---- */

/* Find or make the lifeline to a process, by name or by endpoint id (name NULL). Waits for an
 * endpoint that does not exist until the deadline. The caller owns one reference. */
tb_status tb__bus_connect(tb_bus *bus, const char *name, uint64_t endpoint_id, int64_t deadline_ns,
                          struct tb__lifeline **out);
/* The same with a question for the peer, which goes along with the greeting when the line must be
 * made: the answer comes one round trip sooner. With question->asked set the caller ends the call.
 */
struct tb__question;
tb_status tb__bus_connect_asking(tb_bus *bus, const char *name, uint64_t endpoint_id,
                                 int64_t deadline_ns, struct tb__question *question,
                                 struct tb__lifeline **out);
void tb__lifeline_ref(struct tb__lifeline *line);
void tb__lifeline_unref(struct tb__lifeline *line); /* closes a connected line with its last one */
/* Keep only the memory of a line (and its doorbell) alive; takes no lock. */
void tb__lifeline_keep(struct tb__lifeline *line);
void tb__lifeline_release(struct tb__lifeline *line);

/* A message to send. What it points to is borrowed for the call. */
struct tb__packet {
    uint16_t type;
    uint32_t request; /* 0: no reply is wanted; a reply repeats it */
    const void *body; /* NULL: empty */
    uint32_t body_bytes;
    const int *borrow_fds;
    uint32_t fd_count;
};

/* A reply, owned by the caller: descriptors not taken (set to -1) are closed by fini. */
struct tb__reply {
    uint16_t type;
    uint32_t body_bytes;
    uint8_t *body; /* heap */
    int fds[TB__WIRE_MAX_FDS];
    uint32_t fd_count;
    uint32_t fds_lost;
};
void tb__reply_fini(struct tb__reply *reply);

/* A live process answers in microseconds; one that is stopped is not waited for any longer. */
#define TB__ANSWER_PATIENCE_NS INT64_C(10000000000)
/* Whom a handle names, a peer has said: it must not hold us up for long. */
#define TB__STRANGER_PATIENCE_NS INT64_C(1000000000)

/* Send a request, numbered here, and wait for its reply. An ERROR reply becomes this call's failure
 * with the peer's text. TB_AGAIN at the deadline (the request is cancelled). TB_E_OWNER_DIED when
 * the peer hangs up, TB_CLOSED when it said goodbye. Never call it on the service thread. */
tb_status tb__lifeline_call(struct tb__lifeline *line, const struct tb__packet *question,
                            int64_t deadline_ns, struct tb__reply *out);
/* One under way, on the caller's stack; linked to the line. */
struct tb__call {
    struct tb__call *next;
    uint32_t request;
    struct tb__a32 done; /* 1: it has ended; set with the bus's call mutex held */
    int failed;          /* the line died, or there was no memory */
    struct tb__reply *reply;
};
/* Wait for the reply of one that was begun, as tb__lifeline_call(). */
tb_status tb__call_end(struct tb__lifeline *line, struct tb__call *call, int64_t deadline_ns);

struct tb__question {
    struct tb__packet packet;
    struct tb__reply *reply;
    int asked; /* it went along with the greeting, and `call` is to be ended */
    struct tb__call call;
};
/* Copy the body of a reply that must be of type `want`, with exactly `bytes` body bytes and `fds`
 * descriptors. */
tb_status tb__reply_body(const struct tb__reply *reply, uint16_t want, void *out, size_t bytes,
                         uint32_t fds);

/* Send without a reply (request 0). A full socket or a dead peer is TB_AGAIN or TB_CLOSED. */
tb_status tb__lifeline_send(struct tb__lifeline *line, uint16_t type, const void *body,
                            uint32_t body_bytes);
/* Answer request `answer->request` (0: nothing is sent). A peer that does not read its replies is
 * disconnected. */
void tb__lifeline_reply(struct tb__lifeline *line, const struct tb__packet *answer);
/* Answer with TB__MSG_OK. */
void tb__lifeline_reply_ok(struct tb__lifeline *line, uint32_t request);
/* Answer with the calling thread's last error. */
void tb__lifeline_reply_error(struct tb__lifeline *line, uint32_t request);
/* Log once and disconnect a peer that broke the protocol, with the last error as the reason. */
void tb__lifeline_drop(struct tb__lifeline *line);

/* Serialises descriptor-bearing opens from this process on one lifeline: the server allows one
 * unanswered hand-over at a time. Held from the call until the MAPPED message is sent. */
void tb__lifeline_open_lock(struct tb__lifeline *line);
void tb__lifeline_open_unlock(struct tb__lifeline *line);

const char *tb__lifeline_peer_name(const struct tb__lifeline *line);
uint32_t tb__lifeline_peer_pid(const struct tb__lifeline *line); /* from SO_PEERCRED */
uint32_t tb__lifeline_peer_uid(const struct tb__lifeline *line);
int tb__lifeline_is_dead(const struct tb__lifeline *line); /* hung up */
int tb__lifeline_said_goodbye(const struct tb__lifeline *line);
/* Ring the peer's doorbell. Returns 1 if a system call was made. */
int tb__lifeline_ring(struct tb__lifeline *line);

/* Server side: count a page against the peer's quota (0: over), and give it back. */
int tb__lifeline_page_take(struct tb__lifeline *line);
void tb__lifeline_page_give(struct tb__lifeline *line);
/* Server side: at most one descriptor-bearing reply is in flight per lifeline. */
int tb__lifeline_flight_begin(struct tb__lifeline *line); /* 0: one is in flight already */
void tb__lifeline_flight_end(struct tb__lifeline *line);
/* Called on the service thread when a hand-over has ended and the next one may begin. One hook. */
void tb__bus_on_landed(tb_bus *bus, void (*landed)(void *state, struct tb__lifeline *line),
                       void *state);
/* The pool's reader that is in flight, by its number; 0: none, or a stream. */
void tb__lifeline_flight_name(struct tb__lifeline *line, uint64_t reader_id);
uint64_t tb__lifeline_flight_reader(const struct tb__lifeline *line);

/* Directory descriptor of the flow (borrowed) and its path, for tools. */
int tb__bus_flow_fd(const tb_bus *bus);
const char *tb__bus_flow_path(const tb_bus *bus);

#endif
