/* struct tb_bus, and the service thread that accepts, reads and dispatches. */
#ifndef TB_ENDPOINT_SERVICE_H
#define TB_ENDPOINT_SERVICE_H

#include "endpoint/bus.h"
#include "endpoint/directory.h"
#include "endpoint/doorbell.h"
#include "endpoint/lifeline.h"

struct tb__handler_entry {
    _Atomic(tb__handler *) handler;
    void *context;
};

/* Connections and pages of one uid. */
struct tb__quota {
    uint32_t uid;
    uint32_t connections;
    uint32_t pages;
};
#define TB__QUOTA_UIDS 64

/* A connection that a thread is making, on its stack. One per endpoint at a time. */
struct tb__attempt {
    struct tb__attempt *next;
    uint64_t id;
    int fd; /* until its line is in the table; else -1 */
};

struct tb_bus {
    tb_bus *next; /* all buses of the process, for fork */
    uint64_t id;
    char name[TB__NAME_SIZE];
    struct tb__directory directory;
    uint32_t allow_gid;
    uint32_t max_connections;
    uint32_t max_pages;
    _Atomic int forked;      /* this is a child: nothing works */
    _Atomic int keep_mapped; /* segments stay mapped when the bus closes */

    struct tb__bell bell;
    struct tb__lives lives;

    pthread_t thread;
    int thread_started;
    _Atomic int stopping;
    int epoll_fd;
    int wake_fd;   /* eventfd: the service thread has something to do */
    int notify_fd; /* inotify on the flow's directory, made when somebody first waits */
    int listen_fd;
    /* Connections that are not in `lines` yet: a forked child closes them too; bus mutex. */
    int accepting_fd;
    struct tb__attempt *attempts;
    pthread_cond_t attempt_ended;
    int spare_fd;             /* given up to say "too many open files" */
    int64_t accept_resume_ns; /* 0: accepting; service thread */
    uint8_t *packet;          /* receive buffer; service thread */

    pthread_mutex_t mutex; /* lines, users, layers' tables */
    struct tb__lifeline *lines;
    pthread_mutex_t quota_mutex; /* innermost */
    struct tb__quota quotas[TB__QUOTA_UIDS];
    pthread_mutex_t call_mutex;

    struct tb__handler_entry handlers[TB__MSG_LAST + 1];
    struct tb__bus_layer layers[TB__LAYER_COUNT];
    void *layer_states[TB__LAYER_COUNT];
    void (*landed)(void *state, struct tb__lifeline *line);
    void *landed_state;
};

/* Count a connection of a uid; 0: it has too many. Take it back. */
int tb__quota_connect(tb_bus *bus, uint32_t uid);
void tb__quota_disconnect(tb_bus *bus, uint32_t uid);

tb_status tb__service_start(tb_bus *bus);
void tb__service_stop(tb_bus *bus);
/* Make the service thread poll a new line. Any thread. */
tb_status tb__service_add(tb_bus *bus, struct tb__lifeline *line);
/* A connection has an owner now, or is about to be closed. Bus mutex held. */
void tb__service_forget_fd(tb_bus *bus, int fd);
/* Watch the flow's directory for new names: each ring the doorbell. Any thread. */
tb_status tb__service_watch_names(tb_bus *bus);

#endif
