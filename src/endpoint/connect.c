/* Finding and making lifelines to other processes. Any thread but the service thread. */
#define TB_LOG_TOPIC "endpoint"
#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "base/clock.h"
#include "base/fd.h"
#include "endpoint/names.h"
#include "endpoint/service.h"

/* A live process greets at once; one that does not is stopped or hostile. */
#define GREETING_PATIENCE_NS INT64_C(5000000000)
#define BLIND_LOOK_NS INT64_C(20000000)

/* Bus mutex held. */
static struct tb__lifeline *find_line(tb_bus *bus, uint64_t id)
{
    struct tb__lifeline *line = bus->lines;
    while (line != NULL && !(line->connected && line->peer_id == id && line->greeted &&
                             line->users > 0 && !atomic_load(&line->dead))) {
        line = line->next;
    }
    if (line != NULL) {
        atomic_fetch_add(&line->references, 1);
        line->users++;
    }
    return line;
}

/* The line to an endpoint if there is one, also if another thread is just making it. Else this
 * thread makes it: `attempt` is begun, with the connection or a failure. */
static tb_status find_or_begin(tb_bus *bus, struct tb__attempt *attempt, struct tb__lifeline **out)
{
    tb_status status = TB_OK;
    pthread_mutex_lock(&bus->mutex);
    for (;;) {
        struct tb__attempt *other = bus->attempts;
        while (other != NULL && other->id != attempt->id) {
            other = other->next;
        }
        *out = find_line(bus, attempt->id);
        if (*out != NULL || other == NULL) {
            break;
        }
        pthread_cond_wait(&bus->attempt_ended, &bus->mutex);
    }
    if (*out == NULL) {
        attempt->next = bus->attempts;
        bus->attempts = attempt;
        /* With the mutex held, or a child that is forked just now would keep it open. */
        status = tb__names_connect(&bus->directory, attempt->id, &attempt->fd);
    }
    pthread_mutex_unlock(&bus->mutex);
    return status;
}

static void end_attempt(tb_bus *bus, struct tb__attempt *attempt)
{
    pthread_mutex_lock(&bus->mutex);
    struct tb__attempt **at = &bus->attempts;
    while (*at != attempt) {
        at = &(*at)->next;
    }
    *at = attempt->next;
    pthread_cond_broadcast(&bus->attempt_ended);
    pthread_mutex_unlock(&bus->mutex);
}

static int64_t at_least(int64_t deadline_ns, int64_t patience_ns)
{
    int64_t minimum = tb__deadline_ns(patience_ns);
    return deadline_ns > minimum ? deadline_ns : minimum;
}

/* The peer's answer to our greeting: its name and doorbell. */
static tb_status take_welcome(struct tb__lifeline *line, uint64_t id, struct tb__reply *reply)
{
    tb_status status;
    struct tb__msg msg = {.type = reply->type,
                          .body = reply->body,
                          .body_bytes = reply->body_bytes,
                          .fds = {reply->fds[0], -1, -1, -1},
                          .fd_count = reply->fd_count};
    if (reply->type != TB__MSG_WELCOME) {
        status = TB__FAIL(TB_E_PROTOCOL, "the greeting was answered with type %u", reply->type);
    } else {
        status = tb__hello_take(line, &msg);
    }
    if (status == TB_OK && line->peer_id != id) {
        status = TB__FAIL(TB_E_PROTOCOL, "another process answers at the socket");
    }
    tb__reply_fini(reply);
    return status;
}

static tb_status end_greeting(struct tb__lifeline *line, struct tb__call *call, uint64_t id,
                              int64_t patience_ns)
{
    tb_status status = tb__call_end(line, call, tb__deadline_ns(patience_ns));
    if (status == TB_AGAIN) {
        return TB__FAIL(TB_E_NOT_FOUND,
                        "process %u has a socket but did not answer within %d s: is it stopped?",
                        line->pid, (int)(patience_ns / 1000000000));
    }
    if (status == TB_CLOSED) {
        return TB__FAIL(TB_E_NOT_FOUND, "process %u is closing", line->pid);
    }
    TB__TRY(status);
    return take_welcome(line, id, call->reply);
}

/* Nobody wants the answer any more. Keeps the error that led here. */
static void forget(struct tb__lifeline *line, struct tb__call *call)
{
    tb_error kept;
    tb_last_error(&kept);
    tb_status ignored = tb__call_end(line, call, tb__now_ns());
    (void)ignored;
    tb__reply_fini(call->reply);
    tb__error_restore(&kept);
}

/* Greet, and ask what this process wants of the peer in the same breath: the peer reads in order.
 */
static tb_status greet(struct tb__lifeline *line, uint64_t id, int64_t patience_ns,
                       struct tb__question *question)
{
    struct tb__hello_wire hello;
    struct tb__reply welcome;
    struct tb__call greeting;
    tb__hello_fill(line->bus, &hello);
    struct tb__packet packet = {.type = TB__MSG_HELLO,
                                .body = &hello,
                                .body_bytes = sizeof hello,
                                .borrow_fds = &line->bus->bell.fd,
                                .fd_count = 1};
    TB__TRY(tb__call_begin(line, &greeting, &packet, &welcome));
    int asked = question != NULL &&
                tb__call_begin(line, &question->call, &question->packet, question->reply) == TB_OK;
    tb_status status = end_greeting(line, &greeting, id, patience_ns);
    if (asked && status != TB_OK) {
        forget(line, &question->call);
    } else if (asked) {
        question->asked = 1;
    }
    return status;
}

static tb_status make_line(tb_bus *bus, const struct tb__attempt *attempt, int64_t patience_ns,
                           struct tb__question *question, struct tb__lifeline **out)
{
    struct tb__lifeline *line;
    TB__TRY(tb__lifeline_create(bus, attempt->fd, 1, &line));
    line->users = 1;
    atomic_fetch_add(&line->references, 1); /* ours; the first one is the table's */
    tb_status status = tb__service_add(bus, line);
    if (status != TB_OK) {
        tb__lifeline_release(line);
        tb__lifeline_release(line);
        return status;
    }
    status = greet(line, attempt->id, patience_ns, question);
    if (status != TB_OK) {
        tb__lifeline_unref(line);
        return status;
    }
    *out = line;
    return TB_OK;
}

static tb_status connect_once(tb_bus *bus, const char *name, uint64_t id, int64_t patience_ns,
                              struct tb__question *question, struct tb__lifeline **out)
{
    if (name != NULL) {
        TB__TRY(tb__names_resolve(&bus->directory, name, &id));
    }
    struct tb__attempt attempt = {.id = id, .fd = -1};
    tb_status status = find_or_begin(bus, &attempt, out);
    if (*out != NULL) {
        return TB_OK;
    }
    if (status == TB_OK) {
        status = make_line(bus, &attempt, patience_ns, question, out);
    }
    end_attempt(bus, &attempt);
    return status;
}

/* Whether it is worth waiting and trying again. */
static int may_come(tb_status status)
{
    return status == TB_E_NOT_FOUND || status == TB_AGAIN || status == TB_E_OWNER_DIED;
}

/* TB_AGAIN: its queue was full to the last. */
static tb_status fail_absent(tb_bus *bus, const char *name, uint64_t id, tb_status status)
{
    if (status == TB_AGAIN && name != NULL) {
        return TB__FAIL(TB_E_NOT_FOUND, "process `%s` does not accept connections: is it stopped?",
                        name);
    }
    if (status == TB_AGAIN) {
        return TB__FAIL(TB_E_NOT_FOUND,
                        "the process with id %016" PRIx64 ", which this handle names, does not "
                        "accept connections: is it stopped?",
                        id);
    }
    if (name != NULL) {
        tb__names_explain(&bus->directory, name);
    } else {
        tb__names_explain_owner(&bus->directory, id);
    }
    return status;
}

tb_status tb__bus_connect(tb_bus *bus, const char *name, uint64_t endpoint_id, int64_t deadline_ns,
                          struct tb__lifeline **out)
{
    return tb__bus_connect_asking(bus, name, endpoint_id, deadline_ns, NULL, out);
}

tb_status tb__bus_connect_asking(tb_bus *bus, const char *name, uint64_t endpoint_id,
                                 int64_t deadline_ns, struct tb__question *question,
                                 struct tb__lifeline **out)
{
    int64_t patience_ns = name != NULL ? GREETING_PATIENCE_NS : TB__STRANGER_PATIENCE_NS;
    /* A full queue empties within moments, whatever the caller's patience for absent processes. */
    int64_t full_deadline = at_least(deadline_ns, patience_ns);
    tb_error kept;
    tb_last_error(&kept);
    for (;;) {
        uint32_t seen = tb__bus_bell(bus);
        tb_status status = connect_once(bus, name, endpoint_id, patience_ns, question, out);
        if (status == TB_OK) {
            tb__error_restore(&kept); /* attempts before this one may have failed */
            return TB_OK;
        }
        if (!may_come(status)) {
            return status;
        }
        /* A full queue, or a hang-up before the greeting: the next attempt tells which it was. */
        int busy = status == TB_AGAIN || status == TB_E_OWNER_DIED;
        int64_t until = busy ? full_deadline : deadline_ns;
        if (tb__left_ns(until) == 0) {
            return fail_absent(bus, name, endpoint_id, busy ? TB_AGAIN : status);
        }
        if (busy) {
            struct timespec pause = {.tv_nsec = 1000000};
            nanosleep(&pause, NULL);
            continue;
        }
        if (bus->notify_fd < 0 && tb__service_watch_names(bus) == TB_OK) {
            continue; /* it may have come before the watch */
        }
        /* Without a watch (they are few per user: 128 by default) by looking now and then. */
        int64_t look = tb__deadline_ns(BLIND_LOOK_NS);
        tb__bus_sleep(bus, seen, NULL, 0, bus->notify_fd < 0 && look < until ? look : until);
    }
}
