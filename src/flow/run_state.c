/* Writing and reading flow.state. Any thread; nothing is kept. */
#include "flow/run_state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "flow/run_directory.h"

#define HEAD_LINE "tensorbus-flow 1"

void tb__state_fini(struct tb__state *state)
{
    free(state->nodes);
    state->nodes = NULL;
    state->count = 0;
}

/* ---- writing ---- */

static int needs_escape(unsigned char byte)
{
    return byte <= ' ' || byte == 0x7f || byte == '%';
}

static void write_value(FILE *out, const char *value)
{
    for (; *value != '\0'; value++) {
        unsigned char byte = (unsigned char)*value;
        fprintf(out, needs_escape(byte) ? "%%%02X" : "%c", byte);
    }
}

static void write_text(FILE *out, const char *key, const char *value)
{
    fprintf(out, "%s ", key);
    write_value(out, value);
    fputc('\n', out);
}

static void write_all(FILE *out, const struct tb__state *state)
{
    fprintf(out, HEAD_LINE "\n");
    write_text(out, "flow", state->flow);
    write_text(out, "name", state->name);
    write_text(out, "phase", state->phase);
    write_text(out, "file", state->file);
    write_text(out, "logs", state->log_directory);
    fprintf(out, "pid %" PRId64 "\nstarted %" PRId64 "\n", state->pid, state->started_ns);
    for (uint32_t i = 0; i < state->count; i++) {
        const struct tb__state_node *node = &state->nodes[i];
        fprintf(out, "node %s %" PRId64 " %" PRIu64 " %" PRId64 " ", node->id, node->pid,
                node->restarts, node->started_ns);
        write_value(out, node->state);
        fputc(' ', out);
        write_value(out, node->cause);
        fputc('\n', out);
    }
    fprintf(out, "end\n");
}

tb_status tb__state_write(int directory_fd, const struct tb__state *state)
{
    static const char temporary[] = TB__RUN_STATE_FILE ".tmp";
    int fd = openat(directory_fd, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                    0600);
    FILE *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (out == NULL) {
        tb_status status =
            TB__FAIL_ERRNO(TB_E_SYSTEM, "writing the state of flow `%s`", state->flow);
        tb__fd_close(&fd);
        return status;
    }
    write_all(out, state);
    int failed = ferror(out);
    failed |= fclose(out) != 0;
    if (failed || renameat(directory_fd, temporary, directory_fd, TB__RUN_STATE_FILE) != 0) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "writing the state of flow `%s`", state->flow);
    }
    return TB_OK;
}

/* ---- reading ---- */

struct cursor {
    const char *at; /* of the present line, terminated by `end` */
    const char *end;
    unsigned line;
};

static tb_status corrupt(const struct cursor *cursor, const char *what)
{
    return TB__FAIL(TB_E_CORRUPT, "flow state, line %u: %s", cursor->line, what);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The next word of the line, unescaped; words are separated by one space. 0: malformed or too
 * long. */
static int take_word(struct cursor *cursor, char *out, size_t size)
{
    size_t used = 0;
    const char *at = cursor->at;
    while (at < cursor->end && *at != ' ') {
        char byte = *at++;
        if (byte == '%') {
            int high = cursor->end - at >= 2 ? hex_digit(at[0]) : -1;
            int low = high >= 0 ? hex_digit(at[1]) : -1;
            if (low < 0 || (high == 0 && low == 0)) {
                return 0;
            }
            byte = (char)(high * 16 + low);
            at += 2;
        } else if (needs_escape((unsigned char)byte)) {
            return 0;
        }
        if (used + 1 >= size) {
            return 0;
        }
        out[used++] = byte;
    }
    out[used] = '\0';
    cursor->at = at < cursor->end ? at + 1 : at;
    return 1;
}

static int take_number(struct cursor *cursor, int64_t *out)
{
    char text[24];
    char *end;
    if (!take_word(cursor, text, sizeof text) || text[0] < '0' || text[0] > '9') {
        return 0;
    }
    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static int take_name(struct cursor *cursor, char out[TB__NAME_SIZE])
{
    return take_word(cursor, out, TB__NAME_SIZE) && tb__name_valid(out);
}

static int take_node(struct cursor *cursor, struct tb__state_node *node)
{
    int64_t restarts;
    if (!take_name(cursor, node->id) || !take_number(cursor, &node->pid) ||
        !take_number(cursor, &restarts) || !take_number(cursor, &node->started_ns) ||
        !take_word(cursor, node->state, sizeof node->state) ||
        !take_word(cursor, node->cause, sizeof node->cause)) {
        return 0;
    }
    node->restarts = (uint64_t)restarts;
    return node->pid <= INT32_MAX;
}

static int take_fact(struct cursor *cursor, const char *key, struct tb__state *state)
{
    if (strcmp(key, "flow") == 0) {
        return take_name(cursor, state->flow);
    }
    if (strcmp(key, "name") == 0) {
        return take_name(cursor, state->name);
    }
    if (strcmp(key, "phase") == 0) {
        return take_word(cursor, state->phase, sizeof state->phase);
    }
    if (strcmp(key, "file") == 0) {
        return take_word(cursor, state->file, sizeof state->file);
    }
    if (strcmp(key, "logs") == 0) {
        return take_word(cursor, state->log_directory, sizeof state->log_directory);
    }
    if (strcmp(key, "pid") == 0) {
        return take_number(cursor, &state->pid) && state->pid <= INT32_MAX;
    }
    if (strcmp(key, "started") == 0) {
        return take_number(cursor, &state->started_ns);
    }
    if (strcmp(key, "node") == 0) {
        return state->count < TB__FLOW_NODES_MAX &&
               take_node(cursor, &state->nodes[state->count++]);
    }
    return 0;
}

static tb_status parse_lines(struct cursor *cursor, const char *text, size_t length,
                             struct tb__state *state)
{
    const char *stop = text + length;
    for (const char *line = text; line < stop;) {
        const char *newline = memchr(line, '\n', (size_t)(stop - line));
        if (newline == NULL) {
            break;
        }
        *cursor = (struct cursor){.at = line, .end = newline, .line = cursor->line + 1};
        char key[24];
        if (cursor->line == 1) {
            if ((size_t)(newline - line) != strlen(HEAD_LINE) ||
                memcmp(line, HEAD_LINE, strlen(HEAD_LINE)) != 0) {
                return corrupt(cursor, "this is no flow state of a known version");
            }
        } else if (!take_word(cursor, key, sizeof key)) {
            return corrupt(cursor, "malformed");
        } else if (strcmp(key, "end") == 0) {
            return state->flow[0] != '\0' && state->name[0] != '\0'
                       ? TB_OK
                       : corrupt(cursor, "flow or name is missing");
        } else if (!take_fact(cursor, key, state) || cursor->at != cursor->end) {
            return corrupt(cursor, "malformed or unknown");
        }
        line = newline + 1;
    }
    return corrupt(cursor, "the file ends too early");
}

tb_status tb__state_parse(const char *text, size_t length, struct tb__state *out)
{
    struct tb__state state;
    memset(&state, 0, sizeof state);
    state.nodes = calloc(TB__FLOW_NODES_MAX, sizeof *state.nodes);
    if (state.nodes == NULL) {
        return TB__FAIL(TB_E_NOMEM, "memory for a flow's state");
    }
    struct cursor cursor = {.line = 0};
    tb_status status = parse_lines(&cursor, text, length, &state);
    if (status != TB_OK) {
        tb__state_fini(&state);
        return status;
    }
    *out = state;
    return TB_OK;
}

static tb_status read_whole(int fd, const char *flow, char *buffer, size_t size, size_t *out_length)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return TB__FAIL(TB_E_CORRUPT, "the state of flow `%s` is no file", flow);
    }
    size_t used = 0;
    while (used < size) {
        ssize_t got = read(fd, buffer + used, size - used);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        used += (size_t)got;
    }
    if (used == size) {
        return TB__FAIL(TB_E_CORRUPT, "the state of flow `%s` is larger than %u bytes", flow,
                        TB__STATE_FILE_MAX);
    }
    *out_length = used;
    return TB_OK;
}

tb_status tb__state_read(int root_fd, const char *flow, struct tb__state *out)
{
    char path[TB__NAME_SIZE + 32];
    snprintf(path, sizeof path, "%s/" TB__RUN_STATE_FILE, flow);
    int fd = openat(root_fd, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return TB__FAIL_ERRNO(TB_E_NOT_FOUND, "reading the state of flow `%s`", flow);
    }
    char *buffer = malloc(TB__STATE_FILE_MAX);
    size_t length = 0;
    tb_status status = buffer == NULL ? TB__FAIL(TB_E_NOMEM, "memory for a flow's state")
                                      : read_whole(fd, flow, buffer, TB__STATE_FILE_MAX, &length);
    if (status == TB_OK) {
        status = tb__state_parse(buffer, length, out);
    }
    free(buffer);
    tb__fd_close(&fd);
    return status;
}
