/* See trouble.h. */
#define TB_LOG_TOPIC "pool"
#include "pool/trouble.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/utf8.h"

#define READ_TRIES 100

/* ---- reader ---- */

void tb__trouble_tell(tb_reader *reader)
{
    tb_error error;
    tb_last_error(&error);
    /* Its kind: what failed, and how. 0 is none. */
    uint64_t kind = (uint64_t)(uint32_t)error.status << 32 | (uint32_t)error.cuda_code;
    if (reader->reader_id == 0 || error.status == TB_OK ||
        tb__a64_exchange(&reader->trouble, kind) == kind) {
        return;
    }
    struct tb__trouble_wire wire = {
        .reader_id = reader->reader_id, .status = error.status, .cuda_code = error.cuda_code};
    /* A character that is cut in two becomes none at the other end. */
    memcpy(wire.text, error.text, strnlen(error.text, sizeof wire.text));
    if (tb__lifeline_send(reader->line, TB__MSG_READER_TROUBLE, &wire, sizeof wire) != TB_OK) {
        tb__a64_store_relaxed(&reader->trouble, 0); /* the next one may come through */
    }
    tb__error_restore(&error);
}

tb_status tb__trouble_check(tb_reader *reader, tb_status status)
{
    tb_error error;
    if (__builtin_expect(status < 0, 0)) {
        tb_last_error(&error);
        if (error.status == status && error.cuda_code != 0) {
            tb__trouble_tell(reader);
        }
    }
    return status;
}

/* ---- owner ---- */

/* What a peer wrote, as it can be shown: printable, UTF-8, on one line. */
static void clean(const char *from, size_t room, char *to)
{
    size_t bytes = strnlen(from, room);
    size_t used = 0;
    while (used < bytes) {
        size_t step = tb__utf8_step(from + used, bytes - used);
        int plain = step > 0 && !tb__utf8_control(from + used, step);
        step = step > 0 ? step : 1;
        for (size_t i = 0; i < step; i++) {
            to[used + i] = plain ? from[used + i] : '?';
        }
        used += step;
    }
    to[used] = '\0';
}

/* Not more of a text than whole characters. */
static void cut(char *text, size_t bytes)
{
    size_t used = 0;
    size_t length = strlen(text);
    while (used < length) {
        size_t step = tb__utf8_step(text + used, length - used);
        step = step > 0 ? step : 1;
        if (used + step > bytes) {
            break;
        }
        used += step;
    }
    text[used] = '\0';
}

/* The only writer is whoever has the bus mutex. */
static void store(struct tb__counters_shm *counters, tb_status status, const char *text)
{
    uint64_t words[TB__TROUBLE_WORDS] = {0};
    memcpy(words, text, strlen(text));
    uint64_t before = tb__a64_load_relaxed(&counters->troubles);
    tb__a64_store_relaxed(&counters->troubles, before + 1); /* odd: being written */
    /* Pairs with the reader's acquire fence. */
    atomic_thread_fence(memory_order_release);
    tb__a64_store_relaxed(&counters->trouble_status, (uint64_t)(int64_t)status);
    for (int i = 0; i < TB__TROUBLE_WORDS; i++) {
        tb__a64_store_relaxed(&counters->trouble_text[i], words[i]);
    }
    /* Pairs with the reader's acquire load. */
    tb__a64_store_release(&counters->troubles, before + 2);
}

void tb__trouble_note(tb_pool *pool, const struct tb__attached *who,
                      const struct tb__trouble_wire *wire)
{
    char text[sizeof wire->text + 1];
    char shown[TB__TROUBLE_BYTES + sizeof text];
    const char *name = tb__lifeline_peer_name(who->line);
    clean(wire->text, sizeof wire->text, text);
    name = name[0] != '\0' ? name : "?";
    tb_log_warn_limited("pool `%s`: reader `%s` (pid %u) is in trouble: %s: %s", pool->name, name,
                        tb__lifeline_peer_pid(who->line), tb_status_name(wire->status), text);
    snprintf(shown, sizeof shown, "`%s` (pid %u): %s", name, tb__lifeline_peer_pid(who->line),
             text);
    cut(shown, TB__TROUBLE_BYTES - 1);
    store(pool->segment.counters, wire->status, shown);
}

/* ---- anybody ---- */

void tb__trouble_read(const struct tb__segment *segment, tb_pool_stats *out)
{
    const struct tb__counters_shm *counters = segment->counters;
    for (int i = 0; i < READ_TRIES; i++) {
        uint64_t words[TB__TROUBLE_WORDS];
        /* Pairs with the owner's release store. */
        uint64_t before = tb__a64_load_acquire(&counters->troubles);
        int64_t status = (int64_t)tb__a64_load_relaxed(&counters->trouble_status);
        for (int k = 0; k < TB__TROUBLE_WORDS; k++) {
            words[k] = tb__a64_load_relaxed(&counters->trouble_text[k]);
        }
        tb__fence_acquire();
        if (before % 2 != 0 || tb__a64_load_relaxed(&counters->troubles) != before) {
            tb__pause();
            continue;
        }
        char text[TB__TROUBLE_BYTES + 1] = "";
        memcpy(text, words, sizeof words);
        clean(text, TB__TROUBLE_BYTES, out->trouble);
        out->troubles = before / 2;
        out->trouble_status = (tb_status)status;
        return;
    }
}
