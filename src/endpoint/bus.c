/* Opening and closing a bus, quotas, layers, and what a fork leaves behind. */
#define TB_LOG_TOPIC "endpoint"
#include "endpoint/bus.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/options.h"
#include "endpoint/names.h"
#include "endpoint/service.h"

#define DEFAULT_CONNECTIONS 1024
#define DEFAULT_PAGES 4096

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t all_mutex = PTHREAD_MUTEX_INITIALIZER;
static tb_bus *all_buses;

/* ---- fork ---- */

static void before_fork(void)
{
    pthread_mutex_lock(&all_mutex);
    for (tb_bus *bus = all_buses; bus != NULL; bus = bus->next) {
        pthread_mutex_lock(&bus->mutex);
    }
}

static void after_fork_parent(void)
{
    for (tb_bus *bus = all_buses; bus != NULL; bus = bus->next) {
        pthread_mutex_unlock(&bus->mutex);
    }
    pthread_mutex_unlock(&all_mutex);
}

/* The child closes the parent's descriptors, so that the parent's end is seen although the child
 * lives, and forgets the buses: their memory is not mapped here. */
static void after_fork_child(void)
{
    for (tb_bus *bus = all_buses; bus != NULL; bus = bus->next) {
        atomic_store(&bus->forked, 1);
        for (struct tb__lifeline *line = bus->lines; line != NULL; line = line->next) {
            tb__fd_close(&line->fd);
        }
        for (int i = 0; i < TB__LAYER_COUNT; i++) {
            if (bus->layers[i].forked != NULL) {
                bus->layers[i].forked(bus->layer_states[i]);
            }
        }
        tb__fd_close(&bus->accepting_fd);
        for (struct tb__attempt *attempt = bus->attempts; attempt != NULL;
             attempt = attempt->next) {
            tb__fd_close(&attempt->fd);
        }
        tb__fd_close(&bus->epoll_fd);
        tb__fd_close(&bus->wake_fd);
        tb__fd_close(&bus->notify_fd);
        tb__fd_close(&bus->listen_fd);
        tb__fd_close(&bus->spare_fd);
        tb__fd_close(&bus->bell.fd);
        tb__fd_close(&bus->directory.flow_fd);
        pthread_mutex_unlock(&bus->mutex);
    }
    all_buses = NULL;
    pthread_mutex_unlock(&all_mutex);
}

static void install_fork_handlers(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static void register_bus(tb_bus *bus)
{
    pthread_once(&fork_once, install_fork_handlers);
    pthread_mutex_lock(&all_mutex);
    bus->next = all_buses;
    all_buses = bus;
    pthread_mutex_unlock(&all_mutex);
}

static void unregister_bus(tb_bus *bus)
{
    pthread_mutex_lock(&all_mutex);
    tb_bus **at = &all_buses;
    while (*at != NULL && *at != bus) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = bus->next;
    }
    pthread_mutex_unlock(&all_mutex);
}

tb_status tb__bus_check(const tb_bus *bus)
{
    if (bus == NULL) {
        return TB__FAIL(TB_E_INVALID, "bus is NULL");
    }
    if (atomic_load_explicit(&bus->forked, memory_order_relaxed)) {
        return TB__FAIL(TB_E_FORKED,
                        "bus `%s` belongs to the parent process: open one in the child after fork",
                        bus->name);
    }
    return TB_OK;
}

/* ---- open and close ---- */

static tb__bus_opening *openings[TB__LAYER_COUNT];
static int opening_count;

void tb__bus_on_open(tb__bus_opening *opening)
{
    TB_ASSERT(opening_count < TB__LAYER_COUNT);
    openings[opening_count++] = opening;
}

static void destroy_layers(tb_bus *bus)
{
    for (int i = TB__LAYER_COUNT - 1; i >= 0; i--) {
        if (bus->layers[i].destroy != NULL) {
            bus->layers[i].destroy(bus->layer_states[i]);
        }
    }
}

static tb_status read_options(tb_bus *bus, const tb_bus_options *given, tb_bus_options *options)
{
    TB__OPTIONS(tb_bus_options, given, options);
    if (options->name != NULL) {
        TB__TRY(tb__name_check("bus", options->name));
        tb__name_copy(bus->name, options->name);
    }
    bus->allow_gid = options->allow_gid;
    bus->max_connections =
        options->max_connections != 0 ? options->max_connections : DEFAULT_CONNECTIONS;
    bus->max_pages = options->max_pages != 0 ? options->max_pages : DEFAULT_PAGES;
    return TB_OK;
}

static tb_bus *bus_create(void)
{
    tb_bus *bus = calloc(1, sizeof *bus);
    if (bus == NULL) {
        return NULL;
    }
    bus->id = tb__random64();
    bus->directory.flow_fd = -1;
    bus->epoll_fd = bus->wake_fd = bus->notify_fd = bus->listen_fd = bus->spare_fd = -1;
    bus->accepting_fd = -1;
    bus->bell.fd = -1;
    pthread_mutex_init(&bus->mutex, NULL);
    pthread_mutex_init(&bus->quota_mutex, NULL);
    pthread_mutex_init(&bus->call_mutex, NULL);
    pthread_cond_init(&bus->attempt_ended, NULL);
    pthread_mutex_init(&bus->lives.mutex, NULL);
    return bus;
}

static void bus_destroy(tb_bus *bus)
{
    while (bus->lines != NULL) {
        struct tb__lifeline *line = bus->lines;
        bus->lines = line->next;
        atomic_store(&line->dead, 1);
        tb__lifeline_release(line);
    }
    tb__bell_fini(&bus->bell);
    tb__fd_close(&bus->epoll_fd);
    tb__fd_close(&bus->wake_fd);
    tb__fd_close(&bus->notify_fd);
    tb__fd_close(&bus->listen_fd);
    tb__fd_close(&bus->spare_fd);
    tb__directory_close(&bus->directory);
    pthread_mutex_destroy(&bus->mutex);
    pthread_mutex_destroy(&bus->quota_mutex);
    pthread_mutex_destroy(&bus->call_mutex);
    pthread_cond_destroy(&bus->attempt_ended);
    pthread_mutex_destroy(&bus->lives.mutex);
    free(bus->packet);
    free(bus);
}

/* The flow's directory may vanish before it is locked: its runner has just ended. */
static tb_status publish(tb_bus *bus, const tb_bus_options *options)
{
    tb_error kept;
    tb_last_error(&kept);
    for (int attempt = 0;; attempt++) {
        tb_status status = tb__directory_open(&bus->directory, options->directory, options->flow,
                                              options->allow_gid);
        if (status == TB_OK) {
            status = tb__names_publish(&bus->directory, bus->id, bus->name, options->allow_gid,
                                       &bus->listen_fd);
        }
        if (status == TB_OK) {
            tb__error_restore(&kept);
            return TB_OK;
        }
        if (status != TB_E_NOT_FOUND || attempt == 10) {
            return status;
        }
        tb__directory_close(&bus->directory);
    }
}

tb_status tb_bus_open(const tb_bus_options *given, tb_bus **out)
{
    tb__log_begin();
    tb_bus *bus = bus_create();
    if (bus == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a bus");
    }
    tb_bus_options options;
    tb_status status = read_options(bus, given, &options);
    if (status == TB_OK && options.hardened && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) {
        status = TB__FAIL_ERRNO(TB_E_SYSTEM, "making the process undumpable");
    }
    if (status == TB_OK) {
        status = tb__bell_create(&bus->bell);
    }
    for (int i = 0; i < opening_count && status == TB_OK; i++) {
        status = openings[i](bus);
    }
    if (status == TB_OK) {
        status = publish(bus, &options);
    }
    if (status == TB_OK) {
        status = tb__service_start(bus);
        if (status != TB_OK) {
            tb__service_stop(bus);
            tb__names_withdraw(&bus->directory, bus->id, bus->name);
        }
    }
    if (status != TB_OK) {
        destroy_layers(bus);
        bus_destroy(bus);
        return status;
    }
    register_bus(bus);
    *out = bus;
    return TB_OK;
}

static void say_goodbye(tb_bus *bus)
{
    pthread_mutex_lock(&bus->mutex);
    for (struct tb__lifeline *line = bus->lines; line != NULL; line = line->next) {
        tb_status ignored =
            tb__packet_send(line->fd, &(struct tb__packet){.type = TB__MSG_GOODBYE});
        (void)ignored;
    }
    pthread_mutex_unlock(&bus->mutex);
}

void tb_bus_close(tb_bus *bus)
{
    if (bus == NULL || atomic_load(&bus->forked)) {
        return; /* the child's copy is left alone: its memory belongs to the parent's story */
    }
    for (int i = TB__LAYER_COUNT - 1; i >= 0; i--) {
        if (bus->layers[i].closing != NULL) {
            bus->layers[i].closing(bus->layer_states[i]);
        }
    }
    say_goodbye(bus);
    tb__names_withdraw(&bus->directory, bus->id, bus->name);
    tb__service_stop(bus);
    say_goodbye(bus); /* to those who came meanwhile */
    unregister_bus(bus);
    destroy_layers(bus);
    bus_destroy(bus);
}

tb_status tb_bus_keep_mapped(tb_bus *bus)
{
    TB__TRY(tb__bus_check(bus));
    atomic_store(&bus->keep_mapped, 1);
    return TB_OK;
}

int tb__bus_keeps_mapped(const tb_bus *bus)
{
    return atomic_load_explicit(&bus->keep_mapped, memory_order_relaxed);
}

uint64_t tb_bus_id(const tb_bus *bus)
{
    return bus != NULL ? bus->id : 0;
}

const char *tb_bus_name(const tb_bus *bus)
{
    return bus != NULL ? bus->name : "";
}

/* ---- for upper layers ---- */

void tb__bus_handle(tb_bus *bus, uint16_t first_type, uint16_t last_type, tb__handler *handler,
                    void *context)
{
    TB_ASSERT(first_type > 0 && last_type <= TB__MSG_LAST);
    for (uint16_t type = first_type; type <= last_type; type++) {
        /* The context is there before the handler can be found. Pairs with the acquire load in
         * dispatch(). */
        bus->handlers[type].context = context;
        atomic_store_explicit(&bus->handlers[type].handler, handler, memory_order_release);
    }
}

void tb__bus_set_layer(tb_bus *bus, enum tb__layer_slot slot, const struct tb__bus_layer *layer,
                       void *state)
{
    pthread_mutex_lock(&bus->mutex);
    bus->layer_states[slot] = state;
    bus->layers[slot] = *layer;
    pthread_mutex_unlock(&bus->mutex);
}

void tb__bus_on_landed(tb_bus *bus, void (*landed)(void *state, struct tb__lifeline *line),
                       void *state)
{
    bus->landed_state = state;
    bus->landed = landed;
}

void *tb__bus_layer(const tb_bus *bus, enum tb__layer_slot slot)
{
    return bus->layer_states[slot];
}

void tb__bus_lock(tb_bus *bus)
{
    pthread_mutex_lock(&bus->mutex);
}

void tb__bus_unlock(tb_bus *bus)
{
    pthread_mutex_unlock(&bus->mutex);
}

uint32_t tb__bus_bell(const tb_bus *bus)
{
    /* Pairs with the ringer's add: what it changed before is seen by a look after this load. */
    return tb__a32_load_seq(&bus->bell.shm->count);
}

void tb__bus_sleep(tb_bus *bus, uint32_t seen, const struct tb__life_watch *lives, uint32_t count,
                   int64_t deadline_ns)
{
    tb__bell_sleep(&bus->bell, seen, lives, count, deadline_ns);
}

void tb__bus_ring_self(tb_bus *bus)
{
    tb__bell_ring(&bus->bell);
}

void tb__bus_life_attach(tb_bus *bus, struct tb__page_map *map, struct tb__a32 *word)
{
    tb__lives_attach(&bus->lives, map, word);
}

void tb__bus_life_detach(tb_bus *bus, struct tb__page_map *map, struct tb__a32 *word)
{
    tb__lives_detach(&bus->lives, map, word);
}

int tb__bus_flow_fd(const tb_bus *bus)
{
    return bus->directory.flow_fd;
}

const char *tb__bus_flow_path(const tb_bus *bus)
{
    return bus->directory.path;
}
