/* What one uid, and one lifeline, may have of this process. */
#include "endpoint/service.h"

/* The entry of a uid, or a free one for it; NULL when 64 uids are connected. Quota mutex held. */
static struct tb__quota *quota_of(tb_bus *bus, uint32_t uid)
{
    struct tb__quota *unused = NULL;
    for (int i = 0; i < TB__QUOTA_UIDS; i++) {
        struct tb__quota *quota = &bus->quotas[i];
        if (quota->connections == 0 && quota->pages == 0) {
            unused = unused != NULL ? unused : quota;
        } else if (quota->uid == uid) {
            return quota;
        }
    }
    if (unused != NULL) {
        unused->uid = uid;
    }
    return unused;
}

static int change(tb_bus *bus, uint32_t uid, int connections, int pages)
{
    pthread_mutex_lock(&bus->quota_mutex);
    struct tb__quota *quota = quota_of(bus, uid);
    int granted = quota != NULL &&
                  !(connections > 0 && quota->connections >= bus->max_connections) &&
                  !(pages > 0 && quota->pages >= bus->max_pages);
    if (granted) {
        quota->connections += (uint32_t)connections;
        quota->pages += (uint32_t)pages;
    }
    pthread_mutex_unlock(&bus->quota_mutex);
    return granted;
}

int tb__quota_connect(tb_bus *bus, uint32_t uid)
{
    return change(bus, uid, 1, 0);
}

void tb__quota_disconnect(tb_bus *bus, uint32_t uid)
{
    change(bus, uid, -1, 0);
}

int tb__lifeline_page_take(struct tb__lifeline *line)
{
    return change(line->bus, line->uid, 0, 1);
}

void tb__lifeline_page_give(struct tb__lifeline *line)
{
    change(line->bus, line->uid, 0, -1);
}

int tb__lifeline_flight_begin(struct tb__lifeline *line)
{
    return atomic_exchange(&line->in_flight, 1) == 0;
}

void tb__lifeline_flight_end(struct tb__lifeline *line)
{
    atomic_store(&line->flight_reader, 0);
    if (atomic_exchange(&line->in_flight, 0)) {
        atomic_store(&line->landed, 1);
    }
}

void tb__lifeline_flight_name(struct tb__lifeline *line, uint64_t reader_id)
{
    atomic_store(&line->flight_reader, reader_id);
}

uint64_t tb__lifeline_flight_reader(const struct tb__lifeline *line)
{
    return atomic_load(&line->flight_reader);
}
