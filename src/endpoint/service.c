/* The service thread of a bus: accepts, greets, reads lifelines, runs handlers and hang-up hooks.
 * It never waits for a peer. (Accepting itself: accept.c.) */
#define TB_LOG_TOPIC "endpoint"
#include "endpoint/service.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "endpoint/accept.h"

#define PACKETS_PER_TURN 32

/* ---- table of lines ---- */

void tb__service_forget_fd(tb_bus *bus, int fd)
{
    bus->accepting_fd = bus->accepting_fd == fd ? -1 : bus->accepting_fd;
    for (struct tb__attempt *at = bus->attempts; at != NULL; at = at->next) {
        if (at->fd == fd) { /* its own thread: others only look */
            at->fd = -1;
        }
    }
}

tb_status tb__service_add(tb_bus *bus, struct tb__lifeline *line)
{
    pthread_mutex_lock(&bus->mutex);
    line->next = bus->lines;
    bus->lines = line;
    tb__service_forget_fd(bus, line->fd);
    pthread_mutex_unlock(&bus->mutex);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = line};
    if (epoll_ctl(bus->epoll_fd, EPOLL_CTL_ADD, line->fd, &event) == 0) {
        return TB_OK;
    }
    tb_status status = TB__FAIL_ERRNO(TB_E_SYSTEM, "watching a connection");
    pthread_mutex_lock(&bus->mutex);
    struct tb__lifeline **at = &bus->lines;
    while (*at != line) {
        at = &(*at)->next;
    }
    *at = line->next;
    pthread_mutex_unlock(&bus->mutex);
    return status;
}

/* Descriptors that wait to be received are closed with the socket, as they are: one that lingers
 * would hold us up. A peer that was shut down sends no more. Known gap: what lies behind an empty
 * packet, which reads like the end, and descriptors that wait inside a socket that was sent. */
static void drain(tb_bus *bus, struct tb__lifeline *line)
{
    struct tb__msg msg;
    tb_status status;
    shutdown(line->fd, SHUT_RDWR);
    do {
        status = tb__packet_receive(line->fd, bus->packet, &msg);
        for (uint32_t k = 0; k < msg.fd_count; k++) {
            tb__packet_close_fd(&msg.fds[k]);
        }
    } while (status != TB_AGAIN && status != TB_CLOSED);
}

/* The peer is gone: tell everybody who cares, then let go. */
static void end_line(tb_bus *bus, struct tb__lifeline *line)
{
    epoll_ctl(bus->epoll_fd, EPOLL_CTL_DEL, line->fd, NULL);
    pthread_mutex_lock(&bus->mutex);
    struct tb__lifeline **at = &bus->lines;
    while (*at != line) {
        at = &(*at)->next;
    }
    *at = line->next;
    atomic_store(&line->dead, 1);
    pthread_mutex_unlock(&bus->mutex);
    if (!line->connected) {
        tb__quota_disconnect(bus, line->uid);
    }
    tb__lifeline_fail_calls(line);
    for (int i = TB__LAYER_COUNT - 1; i >= 0; i--) {
        if (bus->layers[i].hangup != NULL) {
            bus->layers[i].hangup(bus->layer_states[i], line);
        }
    }
    tb__bus_ring_self(bus);
    drain(bus, line);
    tb__lifeline_release(line);
}

/* ---- reading ---- */

static tb_status take_greeting(tb_bus *bus, struct tb__lifeline *line, struct tb__msg *msg)
{
    if (line->greeted || line->connected) {
        return TB__FAIL(TB_E_PROTOCOL, "greeted twice");
    }
    tb_status status = tb__hello_take(line, msg);
    if (status != TB_OK) {
        tb__lifeline_reply_error(line, msg->request);
        return status;
    }
    struct tb__hello_wire hello;
    tb__hello_fill(bus, &hello);
    tb__lifeline_reply(line, &(struct tb__packet){.type = TB__MSG_WELCOME,
                                                  .request = msg->request,
                                                  .body = &hello,
                                                  .body_bytes = sizeof hello,
                                                  .borrow_fds = &bus->bell.fd,
                                                  .fd_count = 1});
    return TB_OK;
}

static tb_status dispatch(tb_bus *bus, struct tb__lifeline *line, struct tb__msg *msg)
{
    if (line->connected && msg->request != 0) {
        /* We only ever get replies on a line that we connected; a late one is dropped. A hand-over
         * that nobody takes is cancelled: the word of that may have met a full socket. */
        uint32_t request = msg->request;
        if (!tb__lifeline_complete(line, msg) && msg->fd_count > 0) {
            tb_status ignored = tb__lifeline_send(line, TB__MSG_CANCEL, &request, sizeof request);
            (void)ignored;
        }
        return TB_OK;
    }
    if (msg->type == TB__MSG_HELLO) {
        return take_greeting(bus, line, msg);
    }
    if (!line->connected && !line->greeted) {
        return TB__FAIL(TB_E_PROTOCOL, "message type %u before the greeting", msg->type);
    }
    if (msg->type == TB__MSG_GOODBYE) {
        atomic_store(&line->goodbye, 1);
        tb__bus_ring_self(bus);
        return TB_OK;
    }
    struct tb__handler_entry *entry = &bus->handlers[msg->type];
    /* Pairs with the release store in tb__bus_handle(): the context is there with the handler. */
    tb__handler *handler = atomic_load_explicit(&entry->handler, memory_order_acquire);
    if (handler != NULL) {
        handler(entry->context, line, msg);
        return TB_OK;
    }
    if (msg->request != 0) {
        TB__FAIL(TB_E_NOT_FOUND, "process `%s` does not serve requests of type %u", bus->name,
                 msg->type);
        tb__lifeline_reply_error(line, msg->request);
    }
    return TB_OK;
}

/* Returns 0 when the line has ended. */
static int read_line(tb_bus *bus, struct tb__lifeline *line)
{
    for (int i = 0; i < PACKETS_PER_TURN; i++) {
        struct tb__msg msg;
        tb_status status = tb__packet_receive(line->fd, bus->packet, &msg);
        if (status == TB_AGAIN) {
            return 1;
        }
        if (status == TB_OK) {
            status = dispatch(bus, line, &msg);
            for (uint32_t k = 0; k < msg.fd_count; k++) {
                tb__packet_close_fd(&msg.fds[k]);
            }
        }
        /* Behind the handlers, which hold locks when they end a hand-over. */
        if (atomic_exchange(&line->landed, 0) && bus->landed != NULL) {
            bus->landed(bus->landed_state, line);
        }
        if (status < 0) {
            tb__lifeline_drop(line);
        }
        if (status != TB_OK) {
            end_line(bus, line);
            return 0;
        }
    }
    return 1;
}

static void drain_notify(tb_bus *bus)
{
    char buffer[4096] __attribute__((aligned(8)));
    while (read(bus->notify_fd, buffer, sizeof buffer) > 0) {
    }
    tb__bus_ring_self(bus);
}

static void run_once(tb_bus *bus, struct epoll_event *events, int count)
{
    for (int i = 0; i < count; i++) {
        void *source = events[i].data.ptr;
        if (source == &bus->wake_fd) {
            uint64_t value;
            ssize_t ignored = read(bus->wake_fd, &value, sizeof value);
            (void)ignored;
        } else if (source == &bus->listen_fd) {
            tb__accept_some(bus);
        } else if (source == &bus->notify_fd) {
            drain_notify(bus);
        } else {
            read_line(bus, source);
        }
    }
}

static void *service_main(void *argument)
{
    tb_bus *bus = argument;
    struct epoll_event events[32];
    tb_status started = tb__lives_begin(&bus->lives);
    if (started != TB_OK) {
        /* The hang-up of the socket still tells of this process's end, only later. */
        tb_log_warn("%s", tb_last_error_text());
    }
    tb__bus_ring_self(bus);
    while (!atomic_load(&bus->stopping)) {
        int count = epoll_wait(bus->epoll_fd, events, 32, tb__accept_housekeeping(bus));
        run_once(bus, events, count > 0 ? count : 0);
    }
    return NULL;
}

/* ---- life ---- */

static tb_status watch_own(tb_bus *bus, int *fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = fd};
    if (epoll_ctl(bus->epoll_fd, EPOLL_CTL_ADD, *fd, &event) != 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "watching a descriptor");
    }
    return TB_OK;
}

tb_status tb__service_watch_names(tb_bus *bus)
{
    pthread_mutex_lock(&bus->mutex);
    tb_status status = TB_OK;
    if (bus->notify_fd < 0) {
        int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        char path[64];
        __builtin_snprintf(path, sizeof path, "/proc/self/fd/%d", bus->directory.flow_fd);
        if (fd < 0 || inotify_add_watch(fd, path, IN_CREATE | IN_MOVED_TO | IN_ONLYDIR) < 0) {
            status =
                TB__FAIL_ERRNO(TB_E_LIMIT, "watching `%s` for new processes", bus->directory.path);
            tb__fd_close(&fd);
        } else {
            bus->notify_fd = fd;
            status = watch_own(bus, &bus->notify_fd);
        }
    }
    pthread_mutex_unlock(&bus->mutex);
    return status;
}

tb_status tb__service_start(tb_bus *bus)
{
    bus->packet = malloc(TB__WIRE_MAX_BYTES);
    bus->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    bus->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bus->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (bus->packet == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a bus");
    }
    if (bus->epoll_fd < 0 || bus->wake_fd < 0 || bus->spare_fd < 0) {
        return TB__FAIL_ERRNO(tb__fd_failure(errno), "starting the service thread");
    }
    TB__TRY(watch_own(bus, &bus->wake_fd));
    TB__TRY(watch_own(bus, &bus->listen_fd));
    /* The thread takes no signals: they are the program's. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    uint32_t seen = tb__bus_bell(bus);
    int failed = pthread_create(&bus->thread, NULL, service_main, bus);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        errno = failed;
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "starting the service thread");
    }
    pthread_setname_np(bus->thread, "tensorbus");
    bus->thread_started = 1;
    /* Life words name the thread, so wait until it has told its id. */
    while (tb__bus_bell(bus) == seen) {
        tb__bus_sleep(bus, seen, NULL, 0, TB__NO_DEADLINE);
    }
    return TB_OK;
}

void tb__service_stop(tb_bus *bus)
{
    if (bus->thread_started) {
        atomic_store(&bus->stopping, 1);
        uint64_t one = 1;
        ssize_t ignored = write(bus->wake_fd, &one, sizeof one);
        (void)ignored;
        pthread_join(bus->thread, NULL);
        bus->thread_started = 0;
    }
}
