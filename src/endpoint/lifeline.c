/* Lifelines: calls with replies, references, greetings, rings. */
#define TB_LOG_TOPIC "endpoint"
#include "endpoint/lifeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "endpoint/service.h"

#define FULL_PAUSE_NS 1000000

tb_status tb__lifeline_create(tb_bus *bus, int take_fd, int connected, struct tb__lifeline **out)
{
    struct tb__lifeline *line = calloc(1, sizeof *line);
    if (line == NULL) {
        tb__fd_close(&take_fd);
        return TB__FAIL(TB_E_NOMEM, "no memory for a connection");
    }
    line->bus = bus;
    line->fd = take_fd;
    line->connected = connected;
    line->bell.fd = -1;
    line->next_request = 1;
    atomic_init(&line->references, 1);
    pthread_mutex_init(&line->open_mutex, NULL);
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(take_fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
        tb_status status = TB__FAIL_ERRNO(TB_E_SYSTEM, "asking who connected");
        tb__lifeline_release(line);
        return status;
    }
    line->uid = peer.uid;
    line->pid = (uint32_t)peer.pid;
    *out = line;
    return TB_OK;
}

void tb__lifeline_keep(struct tb__lifeline *line)
{
    atomic_fetch_add(&line->references, 1);
}

void tb__lifeline_release(struct tb__lifeline *line)
{
    if (atomic_fetch_sub(&line->references, 1) != 1) {
        return;
    }
    tb__bell_fini(&line->bell);
    tb__fd_close(&line->fd);
    pthread_mutex_destroy(&line->open_mutex);
    free(line);
}

void tb__lifeline_ref(struct tb__lifeline *line)
{
    atomic_fetch_add(&line->references, 1);
    pthread_mutex_lock(&line->bus->mutex);
    line->users++;
    pthread_mutex_unlock(&line->bus->mutex);
}

void tb__lifeline_unref(struct tb__lifeline *line)
{
    if (line == NULL) {
        return;
    }
    tb_bus *bus = line->bus;
    pthread_mutex_lock(&bus->mutex);
    int last = --line->users == 0 && line->connected;
    if (last && !atomic_load(&line->dead) && line->fd >= 0) {
        /* The service thread sees the hang-up and takes the line out of its table. */
        shutdown(line->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&bus->mutex);
    tb__lifeline_release(line);
}

void tb__reply_fini(struct tb__reply *reply)
{
    for (uint32_t i = 0; i < reply->fd_count; i++) {
        tb__packet_close_fd(&reply->fds[i]);
    }
    free(reply->body);
    *reply = (struct tb__reply){.fds = {-1, -1, -1, -1}};
}

int tb__lifeline_complete(struct tb__lifeline *line, struct tb__msg *msg)
{
    pthread_mutex_lock(&line->bus->call_mutex);
    struct tb__call **at = &line->calls;
    while (*at != NULL && (*at)->request != msg->request) {
        at = &(*at)->next;
    }
    struct tb__call *call = *at;
    if (call != NULL) {
        struct tb__reply *reply = call->reply;
        reply->type = msg->type;
        reply->body = malloc(msg->body_bytes > 0 ? msg->body_bytes : 1);
        call->failed = reply->body == NULL;
        if (reply->body != NULL) {
            memcpy(reply->body, msg->body, msg->body_bytes);
            reply->body_bytes = msg->body_bytes;
            memcpy(reply->fds, msg->fds, sizeof reply->fds);
            reply->fd_count = msg->fd_count;
            reply->fds_lost = msg->fds_lost;
            msg->fd_count = 0;
        }
        *at = call->next;
        /* Pairs with the caller's acquire load. */
        tb__a32_store_release(&call->done, 1);
    }
    pthread_mutex_unlock(&line->bus->call_mutex);
    if (call != NULL) {
        /* Without the mutex, which the caller takes at once. Its stack may be gone: then nobody
         * sleeps there, or wakes for nothing. */
        tb__word_wake(&call->done);
    }
    return call != NULL;
}

void tb__lifeline_fail_calls(struct tb__lifeline *line)
{
    pthread_mutex_lock(&line->bus->call_mutex);
    for (struct tb__call *call = line->calls; call != NULL; call = call->next) {
        call->failed = 1;
        tb__a32_store_release(&call->done, 1);
        tb__word_wake(&call->done);
    }
    line->calls = NULL;
    pthread_mutex_unlock(&line->bus->call_mutex);
}

static tb_status peer_gone(const struct tb__lifeline *line)
{
    const char *name = line->peer_name[0] != '\0' ? line->peer_name : "?";
    if (atomic_load(&line->goodbye)) {
        return TB__FAIL(TB_CLOSED, "process `%s` (pid %u) said goodbye", name, line->pid);
    }
    return TB__FAIL(TB_E_OWNER_DIED, "process `%s` (pid %u) is gone", name, line->pid);
}

/* Waits for `call`; takes it out of the list again at the deadline. Returns with the call mutex
 * held, without which it waits: who is asked may wait for a thread that calls as well. */
static void wait_for_reply(struct tb__lifeline *line, struct tb__call *call, int64_t deadline_ns)
{
    int expired = 0;
    /* Pairs with the service thread's release store. */
    while (!tb__a32_load_acquire(&call->done) && !expired) {
        tb__word_sleep(&call->done, 0, NULL, 0, deadline_ns);
        expired = tb__left_ns(deadline_ns) == 0 || tb__interrupted();
    }
    pthread_mutex_lock(&line->bus->call_mutex);
    if (!tb__a32_load_acquire(&call->done)) {
        struct tb__call **at = &line->calls;
        while (*at != call) {
            at = &(*at)->next;
        }
        *at = call->next;
    }
}

/* An error reply becomes this thread's last error. */
static tb_status pass_error(struct tb__reply *reply)
{
    struct tb__error_wire error;
    if (reply->body_bytes != sizeof error) {
        tb__reply_fini(reply);
        return TB__FAIL(TB_E_PROTOCOL, "malformed error reply");
    }
    memcpy(&error, reply->body, sizeof error);
    error.text[sizeof error.text - 1] = '\0';
    tb__reply_fini(reply);
    if (error.status == TB_AGAIN || error.status == TB_CLOSED) {
        return (tb_status)error.status;
    }
    return tb__error_copy(error.status < 0 ? (tb_status)error.status : TB_E_PROTOCOL, "peer",
                          error.text);
}

/* Number the call, list it, and send the question. Call mutex held. */
static tb_status call_begin(struct tb__lifeline *line, struct tb__call *call,
                            struct tb__packet question)
{
    if (atomic_load(&line->dead)) {
        return peer_gone(line);
    }
    question.request = call->request = line->next_request++;
    if (line->next_request == 0) {
        line->next_request = 1;
    }
    call->next = line->calls;
    line->calls = call;
    tb_status status = tb__packet_send(line->fd, &question);
    if (status == TB_CLOSED) {
        /* The peer has hung up. Before, it may have said why (it refuses connections without
         * waiting for our greeting): the service thread reads that, or fails this call. */
        return TB_OK;
    }
    if (status != TB_OK) {
        line->calls = call->next;
    }
    return status;
}

/* Wait for the end of a call that was begun. */
static tb_status await(struct tb__lifeline *line, struct tb__call *call, int64_t deadline_ns)
{
    wait_for_reply(line, call, deadline_ns);
    int done = (int)tb__a32_load_relaxed(&call->done);
    pthread_mutex_unlock(&line->bus->call_mutex);
    if (!done) {
        return TB_AGAIN;
    }
    if (!call->failed) {
        return TB_OK;
    }
    return atomic_load(&line->dead)
               ? peer_gone(line)
               : TB__FAIL(TB_E_NOMEM, "no memory for a reply of process `%s`", line->peer_name);
}

/* What came of a call whose wait has ended so. */
static tb_status finish(struct tb__lifeline *line, struct tb__call *call, tb_status status)
{
    struct tb__reply *reply = call->reply;
    int fds_lost = status == TB_OK && reply->fds_lost;
    if (fds_lost) {
        tb__reply_fini(reply);
        status = TB__FAIL(TB_E_LIMIT, "this process has too many open files: raise its limit "
                                      "(ulimit -n)");
    }
    if ((status == TB_AGAIN || fds_lost) && call->request != 0) {
        tb_status ignored =
            tb__lifeline_send(line, TB__MSG_CANCEL, &call->request, sizeof call->request);
        (void)ignored;
    }
    return status == TB_OK && reply->type == TB__MSG_ERROR ? pass_error(reply) : status;
}

tb_status tb__call_begin(struct tb__lifeline *line, struct tb__call *call,
                         const struct tb__packet *question, struct tb__reply *reply)
{
    *reply = (struct tb__reply){.fds = {-1, -1, -1, -1}};
    *call = (struct tb__call){.reply = reply};
    pthread_mutex_lock(&line->bus->call_mutex);
    tb_status status = call_begin(line, call, *question);
    pthread_mutex_unlock(&line->bus->call_mutex);
    return status;
}

tb_status tb__call_end(struct tb__lifeline *line, struct tb__call *call, int64_t deadline_ns)
{
    return finish(line, call, await(line, call, deadline_ns));
}

tb_status tb__lifeline_call(struct tb__lifeline *line, const struct tb__packet *question,
                            int64_t deadline_ns, struct tb__reply *out)
{
    struct tb__call call;
    tb_status status = tb__call_begin(line, &call, question, out);
    while (status == TB_AGAIN && tb__left_ns(deadline_ns) != 0) {
        /* A full socket: the peer does not read just now. */
        const struct timespec pause = {.tv_nsec = FULL_PAUSE_NS};
        nanosleep(&pause, NULL);
        status = tb__call_begin(line, &call, question, out);
    }
    if (status == TB_OK) {
        return tb__call_end(line, &call, deadline_ns);
    }
    return status;
}

tb_status tb__reply_body(const struct tb__reply *reply, uint16_t want, void *out, size_t bytes,
                         uint32_t fds)
{
    if (reply->type != want || reply->body_bytes != bytes || reply->fd_count != fds) {
        return TB__FAIL(TB_E_PROTOCOL,
                        "reply type %u with %u bytes and %u descriptors, %u with %zu and %u is due",
                        reply->type, reply->body_bytes, reply->fd_count, want, bytes, fds);
    }
    memcpy(out, reply->body, bytes);
    return TB_OK;
}

tb_status tb__lifeline_send(struct tb__lifeline *line, uint16_t type, const void *body,
                            uint32_t body_bytes)
{
    if (atomic_load(&line->dead)) {
        return TB_CLOSED;
    }
    return tb__packet_send(
        line->fd, &(struct tb__packet){.type = type, .body = body, .body_bytes = body_bytes});
}

void tb__lifeline_reply(struct tb__lifeline *line, const struct tb__packet *answer)
{
    if (answer->request == 0 || atomic_load(&line->dead)) {
        return;
    }
    tb_status status = tb__packet_send(line->fd, answer);
    if (status == TB_AGAIN) {
        TB__FAIL(TB_E_LIMIT, "it does not read its replies");
        tb__lifeline_drop(line);
    } else if (status < 0) {
        tb__lifeline_drop(line);
    }
}

void tb__lifeline_reply_ok(struct tb__lifeline *line, uint32_t request)
{
    tb__lifeline_reply(line, &(struct tb__packet){.type = TB__MSG_OK, .request = request});
}

void tb__lifeline_reply_error(struct tb__lifeline *line, uint32_t request)
{
    tb_error error;
    tb_last_error(&error);
    struct tb__error_wire body = {.status = error.status};
    snprintf(body.text, sizeof body.text, "%s", error.text);
    tb__lifeline_reply(line, &(struct tb__packet){.type = TB__MSG_ERROR,
                                                  .request = request,
                                                  .body = &body,
                                                  .body_bytes = sizeof body});
}

void tb__lifeline_drop(struct tb__lifeline *line)
{
    tb_log_warn_limited("endpoint `%s`: disconnecting `%s` (pid %u): %s", line->bus->name,
                        line->peer_name[0] != '\0' ? line->peer_name : "?", line->pid,
                        tb_last_error_text());
    shutdown(line->fd, SHUT_RDWR);
}

void tb__lifeline_open_lock(struct tb__lifeline *line)
{
    pthread_mutex_lock(&line->open_mutex);
}

void tb__lifeline_open_unlock(struct tb__lifeline *line)
{
    pthread_mutex_unlock(&line->open_mutex);
}

const char *tb__lifeline_peer_name(const struct tb__lifeline *line)
{
    return line->peer_name;
}

uint32_t tb__lifeline_peer_pid(const struct tb__lifeline *line)
{
    return line->pid;
}

uint32_t tb__lifeline_peer_uid(const struct tb__lifeline *line)
{
    return line->uid;
}

int tb__lifeline_is_dead(const struct tb__lifeline *line)
{
    return atomic_load(&line->dead);
}

int tb__lifeline_said_goodbye(const struct tb__lifeline *line)
{
    return atomic_load(&line->goodbye);
}

int tb__lifeline_ring(struct tb__lifeline *line)
{
    if (line->bell.shm == NULL) {
        return 0;
    }
    tb__bell_ring(&line->bell);
    return 1;
}

void tb__hello_fill(const tb_bus *bus, struct tb__hello_wire *hello)
{
    *hello = (struct tb__hello_wire){.endpoint_id = bus->id, .pid = (uint32_t)getpid()};
    tb__name_copy(hello->name, bus->name);
}

tb_status tb__hello_take(struct tb__lifeline *line, struct tb__msg *msg)
{
    struct tb__hello_wire hello;
    TB__TRY(tb__wire_body(msg, &hello, sizeof hello, 1));
    if (hello.flags != 0 || hello.endpoint_id == 0 ||
        !tb__wire_name_ok(hello.name, sizeof hello.name, 1)) {
        return TB__FAIL(TB_E_PROTOCOL, "malformed greeting");
    }
    TB__TRY(tb__bell_map(&line->bell, msg->fds[0]));
    line->peer_id = hello.endpoint_id;
    tb__name_copy(line->peer_name, hello.name);
    line->greeted = 1;
    return TB_OK;
}
