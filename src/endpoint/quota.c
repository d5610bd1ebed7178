/* What one uid, and one lifeline, may have of this process. Service thread, but for the counters. */
#include "endpoint/service.h"

int tb__lifeline_page_take(struct tb__lifeline *line)
{
    tb_bus *bus = line->bus;
    int granted = 0;
    pthread_mutex_lock(&bus->mutex);
    for (int i = 0; i < TB__QUOTA_UIDS && !granted; i++) {
        struct tb__quota *quota = &bus->quotas[i];
        if (quota->uid == line->uid && (quota->connections > 0 || quota->pages > 0) &&
            quota->pages < bus->max_pages) {
            quota->pages++;
            granted = 1;
        }
    }
    pthread_mutex_unlock(&bus->mutex);
    return granted;
}

void tb__lifeline_page_give(struct tb__lifeline *line)
{
    tb_bus *bus = line->bus;
    pthread_mutex_lock(&bus->mutex);
    for (int i = 0; i < TB__QUOTA_UIDS; i++) {
        if (bus->quotas[i].uid == line->uid && bus->quotas[i].pages > 0) {
            bus->quotas[i].pages--;
            break;
        }
    }
    pthread_mutex_unlock(&bus->mutex);
}

int tb__lifeline_flight_begin(struct tb__lifeline *line)
{
    if (line->in_flight) {
        return 0;
    }
    line->in_flight = 1;
    return 1;
}

void tb__lifeline_flight_end(struct tb__lifeline *line)
{
    line->in_flight = 0;
}
