/* A node's calls to the extension channel of its runner. Users' threads, any number. */
#include <tensorbus/extension.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/utf8.h"
#include "node/dropped.h"
#include "node/node.h"

struct tb_extension_value {
    size_t size;
    void *map; /* of a carried value, else NULL */
    uint8_t bytes[];
};

static tb_status check_text(const char *what, const char *text, size_t most, uint16_t *out)
{
    size_t bytes = text != NULL ? strnlen(text, most + 1) : 0;
    if (text == NULL) {
        return TB__FAIL(TB_E_INVALID, "%s of an extension value is NULL", what);
    }
    if (bytes > most) {
        return TB__FAIL(TB_E_INVALID, "%s `%.40s...` of an extension value has more than %zu bytes",
                        what, text, most);
    }
    if (!tb__utf8_text(text, bytes)) {
        return TB__FAIL(TB_E_INVALID, "%s of an extension value is not UTF-8", what);
    }
    *out = (uint16_t)bytes;
    return TB_OK;
}

/* What every call begins with. The runner's line stays as long as the node. */
static tb_status begin(tb_node *node, const char *space, const char *key,
                       struct tb__ext_request *request, struct tb__lifeline **runner)
{
    TB__TRY(tb__node_check(node));
    struct tb__ext_key *name = &request->name;
    TB__TRY(check_text("the space", space, TB_EXTENSION_SPACE_MAX, &name->space_bytes));
    TB__TRY(check_text("the key", key, TB_EXTENSION_KEY_MAX, &name->key_bytes));
    name->space = space;
    name->key = key;
    *runner =
        atomic_load_explicit(&node->runner, memory_order_acquire); /* pairs with its opening */
    if (*runner == NULL) {
        return TB__FAIL(TB_E_NOT_FOUND,
                        "node `%s` has no runner, which keeps extension values: start it with "
                        "`tensorbus run`",
                        node->config.node);
    }
    tb__dropped_expect(node->bus, *runner);
    return TB_OK;
}

static tb_status call(struct tb__lifeline *runner, uint16_t type,
                      const struct tb__ext_request *request, int borrow_fd, struct tb__reply *reply)
{
    uint8_t *body = malloc(TB__EXT_REQUEST_MAX);
    if (body == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for a request to the runner");
    }
    const struct tb__packet question = {.type = type,
                                        .body = body,
                                        .body_bytes = tb__ext_request_encode(request, body),
                                        .borrow_fds = &borrow_fd,
                                        .fd_count = borrow_fd >= 0};
    tb_status status =
        tb__lifeline_call(runner, &question, tb__deadline_ns(TB__ANSWER_PATIENCE_NS), reply);
    free(body);
    if (status == TB_AGAIN) {
        return TB__FAIL(TB_E_NOT_FOUND, "the runner (process %u) does not answer: is it stopped?",
                        tb__lifeline_peer_pid(runner));
    }
    return status;
}

static tb_status call_for_ok(struct tb__lifeline *runner, uint16_t type,
                             const struct tb__ext_request *request, int borrow_fd)
{
    struct tb__reply reply;
    char nothing[1];
    TB__TRY(call(runner, type, request, borrow_fd, &reply));
    tb_status status = tb__reply_body(&reply, TB__MSG_OK, nothing, 0, 0);
    tb__reply_fini(&reply);
    return status;
}

/* Sealed memory that holds a value: the runner keeps it without looking into it. */
static tb_status carrier_create(const void *bytes, size_t size, int *out_take_fd)
{
    int fd = -1;
    TB__TRY(tb__memfd_create("tensorbus-extension", size, &fd));
    tb_status status = TB_OK;
    for (size_t done = 0; done < size && status == TB_OK;) {
        ssize_t wrote = pwrite(fd, (const uint8_t *)bytes + done, size - done, (off_t)done);
        if (wrote < 0 && errno != EINTR) {
            status = TB__FAIL_ERRNO(TB_E_NOMEM, "memory for an extension value of %zu bytes", size);
        }
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    if (status == TB_OK) {
        status = tb__memfd_seal(fd, F_SEAL_WRITE | F_SEAL_SEAL);
    }
    if (status != TB_OK) {
        tb__fd_close(&fd);
        return status;
    }
    *out_take_fd = fd;
    return TB_OK;
}

/* Put a value into a request: into the message, or behind *take_fd. */
static tb_status put_value(struct tb__ext_request *request, const void *bytes, size_t size,
                           int *take_fd)
{
    *take_fd = -1;
    if (bytes == NULL && size != 0) {
        return TB__FAIL(TB_E_INVALID, "an extension value of %zu bytes at NULL", size);
    }
    if (size > TB_EXTENSION_MAX) {
        return TB__FAIL(TB_E_LIMIT,
                        "extension value `%.100s/%.100s` has %zu bytes, at most %d are possible: "
                        "put data into a pool and its descriptor here",
                        request->name.space, request->name.key, size, TB_EXTENSION_MAX);
    }
    request->value_bytes = size;
    request->value = bytes;
    if (size > TB__EXT_INLINE_MAX) {
        TB__TRY(carrier_create(bytes, size, take_fd));
        request->flags = TB__EXT_CARRIED;
    }
    return TB_OK;
}

tb_status tb_extension_store(tb_node *node, const char *space, const char *key, const void *bytes,
                             size_t size)
{
    struct tb__ext_request request = {0};
    struct tb__lifeline *runner;
    int fd;
    TB__TRY(begin(node, space, key, &request, &runner));
    TB__TRY(put_value(&request, bytes, size, &fd));
    tb_status status = call_for_ok(runner, TB__MSG_EXT_STORE, &request, fd);
    tb__fd_close(&fd);
    return status;
}

/* A carried value: checked again, whoever passed it on, and mapped as it is. */
static tb_status map_value(struct tb_extension_value *value, int borrow_fd)
{
    uint64_t bytes;
    TB__TRY(tb__memfd_check(borrow_fd, TB__EXT_SEALS, TB_EXTENSION_MAX, 1, &bytes));
    if (bytes != value->size) {
        return TB__FAIL(TB_E_PROTOCOL, "an extension value of %zu bytes in memory of %llu",
                        value->size, (unsigned long long)bytes);
    }
    void *map = mmap(NULL, value->size, PROT_READ, MAP_SHARED, borrow_fd, 0);
    if (map == MAP_FAILED) {
        return TB__FAIL_ERRNO(TB_E_NOMEM, "mapping an extension value of %zu bytes", value->size);
    }
    madvise(map, value->size, MADV_DONTDUMP);
    value->map = map;
    return TB_OK;
}

static tb_status take_value(const struct tb__reply *reply, tb_extension_value **out)
{
    struct tb__ext_reply answer;
    if (reply->type != TB__MSG_EXT_VALUE) {
        return TB__FAIL(TB_E_PROTOCOL, "the runner answers with a message of type %u", reply->type);
    }
    TB__TRY(tb__ext_reply_decode(reply->body, reply->body_bytes, &answer));
    int carried = (answer.flags & TB__EXT_CARRIED) != 0;
    if (reply->fd_count != (carried ? 1u : 0u)) {
        return TB__FAIL(TB_E_PROTOCOL, "an extension value with %u descriptors", reply->fd_count);
    }
    if ((answer.flags & TB__EXT_ABSENT) != 0) {
        return TB_AGAIN;
    }
    tb_extension_value *value = calloc(1, sizeof *value + (carried ? 0 : answer.value_bytes));
    if (value == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for an extension value of %llu bytes",
                        (unsigned long long)answer.value_bytes);
    }
    value->size = answer.value_bytes;
    tb_status status = TB_OK;
    if (carried) {
        status = map_value(value, reply->fds[0]);
    } else if (value->size != 0) {
        memcpy(value->bytes, answer.value, value->size);
    }
    if (status != TB_OK) {
        free(value);
        return status;
    }
    *out = value;
    return TB_OK;
}

static tb_status call_for_value(struct tb__lifeline *runner, uint16_t type,
                                const struct tb__ext_request *request, int borrow_fd,
                                tb_extension_value **out)
{
    struct tb__reply reply;
    TB__TRY(call(runner, type, request, borrow_fd, &reply));
    tb_status status = take_value(&reply, out);
    tb__reply_fini(&reply);
    return status;
}

tb_status tb_extension_load(tb_node *node, const char *space, const char *key, int remove,
                            tb_extension_value **out)
{
    struct tb__ext_request request = {.flags = remove != 0 ? TB__EXT_REMOVE : 0};
    struct tb__lifeline *runner;
    if (out == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_extension_load needs room for a value");
    }
    TB__TRY(begin(node, space, key, &request, &runner));
    return call_for_value(runner, TB__MSG_EXT_LOAD, &request, -1, out);
}

tb_status tb_extension_drop(tb_node *node, const char *space, const char *key)
{
    struct tb__ext_request request = {0};
    struct tb__lifeline *runner;
    TB__TRY(begin(node, space, key, &request, &runner));
    return call_for_ok(runner, TB__MSG_EXT_DROP, &request, -1);
}

tb_status tb_extension_request(tb_node *node, const char *space, const void *bytes, size_t size,
                               tb_extension_value **out)
{
    struct tb__ext_request request = {0};
    struct tb__lifeline *runner;
    int fd;
    if (out == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_extension_request needs room for a value");
    }
    TB__TRY(begin(node, space, "", &request, &runner));
    TB__TRY(put_value(&request, bytes, size, &fd));
    tb_status status = call_for_value(runner, TB__MSG_EXT_REQUEST, &request, fd, out);
    tb__fd_close(&fd);
    return status;
}

const void *tb_extension_value_bytes(const tb_extension_value *value, size_t *size)
{
    if (value == NULL) {
        *size = 0;
        return NULL;
    }
    *size = value->size;
    return value->map != NULL ? value->map : value->bytes;
}

void tb_extension_value_release(tb_extension_value *value)
{
    if (value != NULL && value->map != NULL) {
        munmap(value->map, value->size);
    }
    free(value);
}

tb_status tb_extension_drain(tb_node *node, const char *space, int64_t timeout_ns,
                             tb_extension_keys **out)
{
    struct tb__ext_request request = {0};
    struct tb__lifeline *runner;
    if (out == NULL) {
        return TB__FAIL(TB_E_INVALID, "tb_extension_drain needs room for keys");
    }
    TB__TRY(begin(node, space, "", &request, &runner));
    return tb__dropped_drain(node->bus, runner, &request.name, timeout_ns, out);
}
