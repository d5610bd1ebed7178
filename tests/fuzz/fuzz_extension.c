/* The extension channel's messages: the first byte says which. Accepted bytes have all their parts
 * inside and encode to themselves again. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "wire/extension.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void request(uint16_t type, const uint8_t *data, size_t size)
{
    static uint8_t again[TB__EXT_REQUEST_MAX];
    struct tb__ext_request it;
    if (tb__ext_request_decode(type, data, size, &it) == TB_OK) {
        TB_ASSERT(size <= sizeof again && tb__ext_request_encode(&it, again) == size);
        TB_ASSERT(memcmp(again, data, size) == 0 && it.value_bytes <= TB_EXTENSION_MAX);
        TB_ASSERT(tb__utf8_text(it.name.space, it.name.space_bytes) &&
                  tb__utf8_text(it.name.key, it.name.key_bytes));
    }
}

static void value(const uint8_t *data, size_t size)
{
    static uint8_t again[TB__EXT_VALUE_MAX];
    struct tb__ext_reply it;
    if (tb__ext_reply_decode(data, size, &it) == TB_OK) {
        TB_ASSERT(size <= sizeof again && tb__ext_reply_encode(&it, again) == size);
        TB_ASSERT(memcmp(again, data, size) == 0);
    }
}

static void batch(const uint8_t *data, size_t size)
{
    static struct tb__ext_batch again;
    struct tb__ext_key name;
    uint64_t lost;
    uint32_t count;
    size_t at = 0;
    if (size > sizeof again.body || tb__ext_batch_check(data, size, &lost, &count) != TB_OK) {
        return;
    }
    tb__ext_batch_begin(&again, lost);
    for (uint32_t i = 0; i < count; i++) {
        tb__ext_batch_next(data, &at, &name);
        TB_ASSERT(tb__ext_batch_add(&again, &name));
    }
    TB_ASSERT(again.bytes == size && memcmp(again.body, data, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size != 0 && data[0] % 6 < 4) {
        request((uint16_t)(TB__MSG_EXT_STORE + data[0] % 6), data + 1, size - 1);
    } else if (size != 0) {
        (data[0] % 6 == 4 ? value : batch)(data + 1, size - 1);
    }
    return 0;
}
