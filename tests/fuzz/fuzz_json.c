/* Any bytes as a pool's metadata: what is accepted and is ASCII is written and parsed back alike.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "segment/doradma_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tb__doradma_json json;
    struct tb__doradma_json back;
    char text[4096];
    size_t bytes;
    if (tb__doradma_json_parse((const char *)data, size, &json) != TB_OK) {
        return 0;
    }
    /* Every byte of a string takes at most six: the text always fits. */
    tb_status status = tb__doradma_json_write(&json, text, sizeof text, &bytes);
    if (status == TB_E_INVALID) {
        return 0; /* not ASCII */
    }
    if (status != TB_OK || tb__doradma_json_parse(text, bytes, &back) != TB_OK ||
        back.size != json.size || back.ndim != json.ndim ||
        memcmp(back.shape, json.shape, sizeof back.shape) != 0 ||
        strcmp(back.dtype, json.dtype) != 0 || strcmp(back.pinned_type, json.pinned_type) != 0 ||
        strcmp(back.sender_shmem, json.sender_shmem) != 0) {
        abort();
    }
    return 0;
}
