/* Parsing a node's environment. Pure functions of strings, but for tb__node_config_read(). */
#include "node/env.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "segment/stream_ring.h"

/* A piece of a value: not terminated. */
struct span {
    const char *at;
    size_t length;
};

static struct span span_of(const char *text)
{
    return (struct span){text, text != NULL ? strlen(text) : 0};
}

/* Take the piece up to the next separator off the front; 0 when nothing is left. */
static int next_piece(struct span *rest, char separator, struct span *out)
{
    if (rest->at == NULL) {
        return 0;
    }
    const char *end = memchr(rest->at, separator, rest->length);
    if (end == NULL) {
        *out = *rest;
        rest->at = NULL;
        return 1;
    }
    *out = (struct span){rest->at, (size_t)(end - rest->at)};
    rest->length -= out->length + 1;
    rest->at = end + 1;
    return 1;
}

static int span_equals(struct span span, const char *text)
{
    return strlen(text) == span.length && memcmp(span.at, text, span.length) == 0;
}

/* Split "a<separator>b" at the first separator. */
static int split(struct span whole, char separator, struct span *left, struct span *right)
{
    const char *at = whole.length != 0 ? memchr(whole.at, separator, whole.length) : NULL;
    if (at == NULL) {
        return 0;
    }
    *left = (struct span){whole.at, (size_t)(at - whole.at)};
    *right = (struct span){at + 1, whole.length - left->length - 1};
    return 1;
}

static int take_name(struct span span, char out[TB__NAME_SIZE])
{
    if (span.length == 0 || span.length >= TB__NAME_SIZE) {
        return 0;
    }
    memcpy(out, span.at, span.length);
    out[span.length] = '\0';
    return tb__name_valid(out);
}

/* Digits alone, at most `most`. */
static int take_number(struct span span, uint64_t most, uint64_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < span.length; i++) {
        if (span.at[i] < '0' || span.at[i] > '9' || !tb__mul(value, 10, &value) ||
            !tb__add(value, (uint64_t)(span.at[i] - '0'), &value)) {
            return 0;
        }
    }
    *out = value;
    return span.length != 0 && value <= most;
}

static tb_status bad(const char *variable, struct span line, const char *what)
{
    return TB__FAIL(TB_E_INVALID, "%s: `%.*s`: %s", variable,
                    (int)(line.length < 200 ? line.length : 200), line.at, what);
}

/* timer/UNIT/N behind "tensorbus/" or "dora/". Returns 0 when it is none, -1 when it is a bad one.
 */
static int take_timer(struct span source, int64_t *period_ns)
{
    static const struct {
        const char *unit;
        uint64_t ns;
    } units[] = {{"secs", 1000000000}, {"millis", 1000000}, {"micros", 1000}, {"nanos", 1}};
    struct span owner;
    struct span rest;
    struct span word;
    struct span unit;
    struct span number;
    uint64_t count;
    if (!split(source, '/', &owner, &rest) ||
        !(span_equals(owner, "tensorbus") || span_equals(owner, "dora"))) {
        return 0;
    }
    if (!split(rest, '/', &word, &rest) || !span_equals(word, "timer") ||
        !split(rest, '/', &unit, &number) || !take_number(number, INT64_MAX, &count) ||
        count == 0) {
        return -1;
    }
    if (span_equals(unit, "hz")) {
        *period_ns = count <= 1000000000 ? 1000000000 / (int64_t)count : 0;
        return *period_ns > 0 ? 1 : -1;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        uint64_t ns;
        if (span_equals(unit, units[i].unit) && tb__mul(count, units[i].ns, &ns) &&
            ns <= INT64_MAX / 4) {
            *period_ns = (int64_t)ns;
            return 1;
        }
    }
    return -1;
}

static tb_status take_option(struct span line, struct span option, struct tb__input_config *input)
{
    static const char *const variable = "TENSORBUS_INPUTS";
    struct span key;
    struct span value;
    uint64_t number;
    if (!split(option, '=', &key, &value)) {
        return bad(variable, line, "options are key=value, separated by `;`");
    }
    if (span_equals(key, "queue")) {
        if (!take_number(value, TB__QUEUE_MAX, &number) || number == 0) {
            return bad(variable, line, "queue is 1 to 65536");
        }
        input->queue_size = (uint32_t)number;
    } else if (span_equals(key, "policy")) {
        if (!span_equals(value, "drop_oldest") && !span_equals(value, "backpressure")) {
            return bad(variable, line, "policy is drop_oldest or backpressure");
        }
        input->policy = value.at[0] == 'b' ? TB__BACKPRESSURE : TB__DROP_OLDEST;
    } else if (span_equals(key, "timeout_ns")) {
        if (!take_number(value, INT64_MAX / 4, &number)) {
            return bad(variable, line, "timeout_ns is a number of nanoseconds");
        }
        input->timeout_ns = (int64_t)number;
    } else if (span_equals(key, "restart")) {
        if (!take_number(value, 1, &number)) {
            return bad(variable, line, "restart is 0 or 1");
        }
        input->restart = (int)number;
    } else {
        return bad(variable, line, "options are queue, policy, timeout_ns and restart");
    }
    return TB_OK;
}

static tb_status parse_input(struct span line, struct tb__input_config *input)
{
    static const char *const variable = "TENSORBUS_INPUTS";
    struct span name;
    struct span rest;
    struct span source;
    struct span node;
    struct span output;
    *input = (struct tb__input_config){.queue_size = TB__QUEUE_DEFAULT};
    if (!split(line, '=', &name, &rest) || !take_name(name, input->name)) {
        return bad(variable, line, "an input is NAME=SOURCE;options with a valid name");
    }
    next_piece(&rest, ';', &source);
    int timer = take_timer(source, &input->period_ns);
    if (timer < 0) {
        return bad(variable, line, "a timer is tensorbus/timer/{secs,millis,micros,nanos,hz}/N");
    }
    if (timer == 0 &&
        (!split(source, '/', &node, &output) || !take_name(node, input->source_node) ||
         !take_name(output, input->source_output))) {
        return bad(variable, line, "a source is node/output");
    }
    struct span option;
    while (next_piece(&rest, ';', &option)) {
        TB__TRY(take_option(line, option, input));
    }
    return TB_OK;
}

static size_t count_pieces(struct span text, char separator)
{
    size_t count = 0;
    for (struct span piece; next_piece(&text, separator, &piece);) {
        count += piece.length != 0;
    }
    return count;
}

static tb_status parse_inputs(const char *text, struct tb__node_config *config)
{
    struct span rest = span_of(text);
    config->inputs = calloc(count_pieces(rest, '\n') + 1, sizeof *config->inputs);
    if (config->inputs == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for the inputs of node `%s`", config->node);
    }
    for (struct span line; next_piece(&rest, '\n', &line);) {
        if (line.length == 0) {
            continue;
        }
        struct tb__input_config *input = &config->inputs[config->input_count];
        TB__TRY(parse_input(line, input));
        for (size_t i = 0; i < config->input_count; i++) {
            if (strcmp(config->inputs[i].name, input->name) == 0) {
                return bad("TENSORBUS_INPUTS", line, "this input comes twice");
            }
        }
        config->input_count++;
    }
    return TB_OK;
}

static tb_status parse_output(struct span line, struct tb__output_config *output)
{
    static const char *const variable = "TENSORBUS_OUTPUTS";
    struct span name;
    struct span rest;
    *output = (struct tb__output_config){0};
    if (!split(line, '=', &name, &rest) || !take_name(name, output->name)) {
        return bad(variable, line, "an output is NAME=node/input,... with a valid name");
    }
    output->subscribers = calloc(count_pieces(rest, ',') + 1, sizeof *output->subscribers);
    if (output->subscribers == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for output `%s`", output->name);
    }
    for (struct span piece; next_piece(&rest, ',', &piece);) {
        struct span node;
        struct span input;
        struct tb__subscriber_config *subscriber = &output->subscribers[output->subscriber_count];
        if (piece.length == 0) {
            continue;
        }
        if (!split(piece, '/', &node, &input) || !take_name(node, subscriber->node) ||
            !take_name(input, subscriber->input)) {
            return bad(variable, line, "a subscriber is node/input");
        }
        output->subscriber_count++;
    }
    return TB_OK;
}

static tb_status parse_outputs(const char *text, struct tb__node_config *config)
{
    struct span rest = span_of(text);
    config->outputs = calloc(count_pieces(rest, '\n') + 1, sizeof *config->outputs);
    if (config->outputs == NULL) {
        return TB__FAIL(TB_E_NOMEM, "no memory for the outputs of node `%s`", config->node);
    }
    for (struct span line; next_piece(&rest, '\n', &line);) {
        if (line.length == 0) {
            continue;
        }
        /* Counted first, so that its subscribers are freed whatever comes. */
        struct tb__output_config *output = &config->outputs[config->output_count++];
        TB__TRY(parse_output(line, output));
        for (struct tb__output_config *other = config->outputs; other < output; other++) {
            if (strcmp(other->name, output->name) == 0) {
                return bad("TENSORBUS_OUTPUTS", line, "this output comes twice");
            }
        }
    }
    return TB_OK;
}

tb_status tb__node_config_parse(const struct tb__node_env *env, struct tb__node_config *out)
{
    *out = (struct tb__node_config){0};
    if (env->node == NULL) {
        return TB__FAIL(TB_E_NOT_FOUND, "TENSORBUS_NODE is not set: nodes are started by "
                                        "`tensorbus run FLOW`");
    }
    TB__TRY(tb__name_check("TENSORBUS_NODE", env->node));
    tb__name_copy(out->node, env->node);
    if (env->runner != NULL && env->runner[0] != '\0') {
        TB__TRY(tb__name_check("TENSORBUS_RUNNER", env->runner));
        tb__name_copy(out->runner, env->runner);
    }
    tb_status status = parse_inputs(env->inputs, out);
    if (status == TB_OK) {
        status = parse_outputs(env->outputs, out);
    }
    if (status != TB_OK) {
        tb__node_config_fini(out);
    }
    return status;
}

tb_status tb__node_config_read(struct tb__node_config *out)
{
    struct tb__node_env env = {
        .node = getenv("TENSORBUS_NODE"),
        .runner = getenv("TENSORBUS_RUNNER"),
        .inputs = getenv("TENSORBUS_INPUTS"),
        .outputs = getenv("TENSORBUS_OUTPUTS"),
    };
    return tb__node_config_parse(&env, out);
}

void tb__node_config_fini(struct tb__node_config *config)
{
    for (size_t i = 0; i < config->output_count; i++) {
        free(config->outputs[i].subscribers);
    }
    free(config->inputs);
    free(config->outputs);
    *config = (struct tb__node_config){0};
}
