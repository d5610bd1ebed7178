/* Inputs: their short form (`image: camera/image`), their long form, timers, and after all nodes
 * are known, whether the other end of each exists. */
#include "flow/validate.h"

#include <string.h>

#include "base/checked.h"
#include "base/name.h"
#include "segment/stream_ring.h"

_Static_assert(TB__FLOW_QUEUE_MAX == TB__QUEUE_MAX, "what a file may ask for is what a stream has");

#define SECOND_NS 1000000000ull
#define YEAR_NS ((uint64_t)TB__FLOW_SECONDS_MAX * SECOND_NS)

static const char *const timer_units[] = {"secs", "millis", "micros", "nanos", "hz"};
#define TIMER_UNITS (sizeof timer_units / sizeof timer_units[0])

/* Nanoseconds of `number` units, 0 when it is no number or out of range. */
static uint64_t period_of(size_t unit, const char *number)
{
    static const uint64_t unit_ns[] = {SECOND_NS, 1000000, 1000, 1};
    uint64_t whole;
    uint32_t billionths;
    uint64_t period = 0;
    if (!tb__parse_decimal(number, &whole, &billionths)) {
        return 0;
    }
    if (strcmp(timer_units[unit], "hz") == 0) {
        uint64_t billionths_hz;
        if (tb__mul(whole, SECOND_NS, &billionths_hz) &&
            tb__add(billionths_hz, billionths, &billionths_hz) && billionths_hz > 0) {
            period = SECOND_NS * SECOND_NS / billionths_hz;
        }
    } else if (tb__mul(whole, unit_ns[unit], &period)) {
        period += billionths * unit_ns[unit] / SECOND_NS;
    } else {
        period = 0;
    }
    return period >= TB__FLOW_PERIOD_MIN_NS && period <= YEAR_NS ? period : 0;
}

/* `rest` is what follows "tensorbus/" or "dora/". */
static void take_timer(struct tb__checker *checker, struct tb__flow_input *input, const char *rest,
                       struct tb__flow_place place)
{
    const char *unit = strncmp(rest, "timer/", 6) == 0 ? rest + 6 : NULL;
    const char *slash = unit != NULL ? strchr(unit, '/') : NULL;
    if (slash == NULL) {
        tb__problem(checker->problems, place,
                    "%s takes `%.60s`: the only built-in sources are timers, such as "
                    "`tensorbus/timer/millis/100` (secs, millis, micros, nanos or hz)",
                    checker->scope.owner, input->source);
        return;
    }
    const char *name = tb__arena_copy(checker->arena, unit, (size_t)(slash - unit));
    if (name == NULL) {
        return;
    }
    size_t index = 0;
    while (index < TIMER_UNITS && strcmp(name, timer_units[index]) != 0) {
        index++;
    }
    if (index == TIMER_UNITS) {
        tb__problem(checker->problems, place,
                    "%s: timer `%.60s` has no unit `%.20s`%s; units: secs, millis, micros, nanos, "
                    "hz",
                    checker->scope.owner, input->source, name,
                    tb__did_you_mean(checker, name, timer_units, TIMER_UNITS));
        return;
    }
    input->period_ns = (int64_t)period_of(index, slash + 1);
    if (input->period_ns == 0) {
        tb__problem(checker->problems, place,
                    "%s: timer `%.60s` needs a number above 0 that makes a period of 1 "
                    "microsecond to 1 year",
                    checker->scope.owner, input->source);
    }
}

static void take_source(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    struct tb__flow_input *input = target;
    const char *text;
    if (!tb__check_text(checker, "`source`", value, &text)) {
        return;
    }
    input->source = text;
    input->place = value->place;
    const char *slash = strchr(text, '/');
    size_t length = slash != NULL ? (size_t)(slash - text) : 0;
    if (length > 0 && ((length == 4 && strncmp(text, "dora", 4) == 0) ||
                       (length == 9 && strncmp(text, "tensorbus", 9) == 0))) {
        take_timer(checker, input, slash + 1, value->place);
    } else if (length == 0 || length >= TB__NAME_SIZE || !tb__name_valid(slash + 1)) {
        tb__problem(checker->problems, value->place,
                    "%s takes `%.80s`, which is not of the form `node/output` or "
                    "`tensorbus/timer/millis/100`",
                    checker->scope.owner, text);
        input->source = "";
    }
}

static void take_queue_size(struct tb__checker *checker, void *target, const struct tb__yaml *value)
{
    struct tb__flow_input *input = target;
    tb__check_integer(checker, "`queue_size`", value, 1, TB__FLOW_QUEUE_MAX, &input->queue_size);
}

static void take_queue_policy(struct tb__checker *checker, void *target,
                              const struct tb__yaml *value)
{
    static const char *const choices[] = {"drop_oldest", "backpressure"};
    struct tb__flow_input *input = target;
    uint32_t chosen;
    if (!tb__check_choice(checker, "`queue_policy`", value, choices, 2, &chosen)) {
        return;
    }
    input->queue_policy = (enum tb__flow_policy)chosen;
    if (input->period_ns != 0 && input->queue_policy == TB__FLOW_BACKPRESSURE) {
        tb__problem(checker->problems, value->place,
                    "%s is a timer, and a timer does not wait: leave `queue_policy` out",
                    checker->scope.owner);
    }
}

static void take_input_timeout(struct tb__checker *checker, void *target,
                               const struct tb__yaml *value)
{
    struct tb__flow_input *input = target;
    tb__check_seconds(checker, "`input_timeout`", value, &input->input_timeout_ns);
}

static const struct tb__key input_keys[] = {
    {"source", take_source}, /* first: others depend on whether it is a timer */
    {"queue_size", take_queue_size},
    {"queue_policy", take_queue_policy},
    {"input_timeout", take_input_timeout},
};

static void take_input(struct tb__checker *checker, struct tb__flow_input *input,
                       const struct tb__yaml *value)
{
    const char *node_owner = checker->scope.owner;
    *input = (struct tb__flow_input){.id = value->key->text,
                                     .source = "",
                                     .source_node = -1,
                                     .queue_size = TB__FLOW_QUEUE_DEFAULT,
                                     .place = value->place};
    char what[96];
    snprintf(what, sizeof what, "input name of %.80s", node_owner);
    tb__check_name(checker, what, value->key->place, value->key->text);
    const char *owner =
        tb__arena_format(checker->arena, "input `%.64s` of %s", value->key->text, node_owner);
    if (owner == NULL) {
        return;
    }
    checker->scope.owner = owner;
    if (value->kind == TB__YAML_MAP) {
        tb__check_keys(checker, value, owner, input_keys, sizeof input_keys / sizeof input_keys[0],
                       input);
        if (tb__yaml_get(value, "source") == NULL) {
            tb__problem(checker->problems, value->place, "%s has no `source: node/output`", owner);
        }
    } else {
        take_source(checker, input, value);
    }
    checker->scope.owner = node_owner;
}

void tb__check_inputs(struct tb__checker *checker, struct tb__flow_node *node,
                      const struct tb__yaml *map)
{
    if (!tb__check_kind(checker, "`inputs`", map, TB__YAML_MAP, "`name: node/output`")) {
        return;
    }
    if (map->count > TB__FLOW_PORTS_MAX) {
        tb__problem(checker->problems, map->place, "%s has %u inputs, %d are allowed",
                    checker->scope.owner, map->count, TB__FLOW_PORTS_MAX);
        return;
    }
    node->inputs = tb__arena_array(checker->arena, map->count, sizeof *node->inputs);
    for (const struct tb__yaml *value = map->first; value != NULL && node->inputs != NULL;
         value = value->next) {
        if (value->key->kind == TB__YAML_SCALAR) {
            take_input(checker, &node->inputs[node->inputs_count++], value);
        }
    }
}

static const char *nearest_of(struct tb__checker *checker, const char *word, const void *first,
                              size_t stride, size_t count)
{
    const char *names[TB__FLOW_NODES_MAX];
    for (size_t i = 0; i < count && i < TB__FLOW_NODES_MAX; i++) {
        memcpy(&names[i], (const char *)first + i * stride, sizeof names[i]);
    }
    return tb__did_you_mean(checker, word, names, count);
}

/* Find the output that an input takes; `source` is "node/output" by form. */
static void connect(struct tb__checker *checker, const struct tb__flow_node *node,
                    struct tb__flow_input *input)
{
    const struct tb__flow *flow = checker->flow;
    const char *slash = strchr(input->source, '/');
    char source[TB__NAME_SIZE];
    snprintf(source, sizeof source, "%.*s", (int)(slash - input->source), input->source);
    const char *output = slash + 1;
    int32_t index = tb__flow_find_node(flow, source);
    if (index < 0) {
        tb__problem(
            checker->problems, input->place,
            "input `%.64s` of node `%.64s` takes `%s`, but there is no node `%s`%s; nodes: %s",
            input->id, node->id, input->source, source,
            nearest_of(checker, source, &flow->nodes[0].id, sizeof *flow->nodes, flow->nodes_count),
            tb__list_names(checker, &flow->nodes[0].id, sizeof *flow->nodes, flow->nodes_count));
        return;
    }
    const struct tb__flow_node *from = &flow->nodes[index];
    if (from == node) {
        tb__problem(checker->problems, input->place,
                    "input `%.64s` of node `%.64s` takes `%s`, an output of the same node: a node "
                    "cannot send to itself",
                    input->id, node->id, input->source);
        return;
    }
    for (uint32_t i = 0; i < from->outputs_count; i++) {
        if (strcmp(from->outputs[i].id, output) == 0) {
            input->source_node = index;
            input->source_output = i;
            return;
        }
    }
    if (checker->outputs_broken[index]) {
        return;
    }
    const void *names = from->outputs_count > 0 ? &from->outputs[0].id : NULL;
    tb__problem(checker->problems, input->place,
                "input `%.64s` of node `%.64s` takes `%s`, but node `%s` has no output `%s`%s; its "
                "outputs: %s",
                input->id, node->id, input->source, source, output,
                nearest_of(checker, output, names, sizeof *from->outputs, from->outputs_count),
                tb__list_names(checker, names, sizeof *from->outputs, from->outputs_count));
}

void tb__check_wiring(struct tb__checker *checker)
{
    struct tb__flow *flow = checker->flow;
    for (uint32_t i = 0; i < flow->nodes_count; i++) {
        struct tb__flow_node *node = &flow->nodes[i];
        for (uint32_t j = 0; j < node->inputs_count; j++) {
            struct tb__flow_input *input = &node->inputs[j];
            int built_in = strncmp(input->source, "tensorbus/", 10) == 0 ||
                           strncmp(input->source, "dora/", 5) == 0;
            if (input->source[0] != '\0' && !built_in) {
                connect(checker, node, input);
            }
        }
    }
}
