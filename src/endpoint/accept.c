/* Who may connect, and what becomes of those who may not: they are told why and closed. Without
 * descriptors a spare one is given up to tell the caller, and accepting pauses instead of spinning.
 * Runs on the service thread. */
#define TB_LOG_TOPIC "endpoint"
#include "endpoint/accept.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"

#define GREET_DEADLINE_NS INT64_C(5000000000)
#define ACCEPT_PAUSE_NS INT64_C(100000000)
#define MAX_UNGREETED 64
#define ACCEPTS_PER_TURN 32

static int uid_allowed(const tb_bus *bus, const struct tb__lifeline *line, uint32_t gid)
{
    return line->uid == geteuid() || line->uid == 0 ||
           (bus->allow_gid != 0 && gid == bus->allow_gid);
}

static tb_status admit(tb_bus *bus, struct tb__lifeline *line)
{
    struct ucred peer = {0};
    socklen_t length = sizeof peer;
    getsockopt(line->fd, SOL_SOCKET, SO_PEERCRED, &peer, &length);
    if (!uid_allowed(bus, line, peer.gid)) {
        return TB__FAIL(TB_E_DENIED, "uid %u may not use this endpoint", line->uid);
    }
    uint32_t ungreeted = 0;
    pthread_mutex_lock(&bus->mutex);
    for (struct tb__lifeline *at = bus->lines; at != NULL; at = at->next) {
        ungreeted += !at->connected && !at->greeted;
    }
    pthread_mutex_unlock(&bus->mutex);
    if (!tb__quota_connect(bus, line->uid)) {
        return TB__FAIL(TB_E_LIMIT,
                        "uid %u has the %u connections to process `%s` that it may: close some or "
                        "open the process's bus with a larger max_connections",
                        line->uid, bus->max_connections, bus->name);
    }
    line->greet_deadline_ns = tb__deadline_ns(GREET_DEADLINE_NS);
    if (ungreeted >= MAX_UNGREETED) {
        /* Make room: the oldest one that has said nothing goes. */
        pthread_mutex_lock(&bus->mutex);
        struct tb__lifeline *oldest = NULL;
        for (struct tb__lifeline *at = bus->lines; at != NULL; at = at->next) {
            if (!at->connected && !at->greeted &&
                (oldest == NULL || at->greet_deadline_ns <= oldest->greet_deadline_ns)) {
                oldest = at;
            }
        }
        if (oldest != NULL) {
            shutdown(oldest->fd, SHUT_RDWR);
        }
        pthread_mutex_unlock(&bus->mutex);
    }
    return TB_OK;
}

static void refuse(int borrow_fd, tb_status status)
{
    struct tb__error_wire body = {.status = status};
    tb_error error;
    tb_last_error(&error);
    __builtin_memcpy(body.text, error.text, sizeof body.text);
    struct tb__packet packet = {
        .type = TB__MSG_ERROR, .request = 1, .body = &body, .body_bytes = sizeof body};
    tb_status ignored = tb__packet_send(borrow_fd, &packet);
    (void)ignored;
}

static void pause_accepting(tb_bus *bus)
{
    epoll_ctl(bus->epoll_fd, EPOLL_CTL_DEL, bus->listen_fd, NULL);
    bus->accept_resume_ns = tb__deadline_ns(ACCEPT_PAUSE_NS);
}

static void resume_accepting(tb_bus *bus)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &bus->listen_fd};
    if (epoll_ctl(bus->epoll_fd, EPOLL_CTL_ADD, bus->listen_fd, &event) == 0) {
        bus->accept_resume_ns = 0;
    }
    if (bus->spare_fd < 0) {
        bus->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
}

/* Out of descriptors: give up the spare one to tell the caller, and stop accepting for a moment. */
static void accept_without_descriptors(tb_bus *bus)
{
    TB__FAIL(TB_E_LIMIT, "process `%s` has too many open files: raise its limit (ulimit -n)",
             bus->name);
    tb_log_warn_limited("%s", tb_last_error_text());
    tb__fd_close(&bus->spare_fd);
    int fd = accept4(bus->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        refuse(fd, TB_E_LIMIT);
        tb__fd_close(&fd);
    }
    bus->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    pause_accepting(bus);
}

/* Known from its first moment, or a child that is forked just now would keep it open. */
static int accept_one(tb_bus *bus)
{
    pthread_mutex_lock(&bus->mutex);
    int fd = accept4(bus->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int reason = errno;
    bus->accepting_fd = fd;
    pthread_mutex_unlock(&bus->mutex);
    errno = reason;
    return fd;
}

void tb__accept_some(tb_bus *bus)
{
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept_one(bus);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                accept_without_descriptors(bus);
            }
            return;
        }
        struct tb__lifeline *line;
        if (tb__lifeline_create(bus, fd, 0, &line) != TB_OK) {
            continue;
        }
        tb_status status = admit(bus, line);
        if (status == TB_OK) {
            status = tb__service_add(bus, line);
            if (status != TB_OK) {
                tb__quota_disconnect(bus, line->uid);
            }
        }
        if (status != TB_OK) {
            tb_log_warn_limited("endpoint `%s`: refused pid %u: %s", bus->name, line->pid,
                                tb_last_error_text());
            refuse(line->fd, status);
            pthread_mutex_lock(&bus->mutex);
            tb__service_forget_fd(bus, line->fd);
            pthread_mutex_unlock(&bus->mutex);
            tb__lifeline_release(line);
        }
    }
}

int tb__accept_housekeeping(tb_bus *bus)
{
    int64_t now = tb__now_ns();
    int wait_ms = -1;
    pthread_mutex_lock(&bus->mutex);
    for (struct tb__lifeline *line = bus->lines; line != NULL; line = line->next) {
        if (!line->connected && !line->greeted) {
            wait_ms = 500;
            if (line->greet_deadline_ns <= now) {
                shutdown(line->fd, SHUT_RDWR);
            }
        }
    }
    pthread_mutex_unlock(&bus->mutex);
    if (bus->accept_resume_ns != 0) {
        wait_ms = 100;
        if (bus->accept_resume_ns <= now) {
            resume_accepting(bus);
        }
    }
    return wait_ms;
}
