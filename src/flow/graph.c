/* The graph as text: Mermaid for pages and chats, Graphviz's language for SVG. One place per node
 * and per timer of a period; one arrow per input. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "flow/flow.h"

/* Mermaid reads `#quot;` style entities; Graphviz reads backslashes. */
static void put_mermaid(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '\n') {
            fputs("<br/>", out);
        } else if (c < 0x20 || c == 0x7f) {
            fputc(' ', out);
        } else if (strchr("\"#<>&`|", c) != NULL) {
            fprintf(out, "#%u;", (unsigned)c);
        } else {
            fputc(c, out);
        }
    }
}

static void put_dot(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '\n') {
            fputs("\\n", out);
        } else if (c < 0x20 || c == 0x7f) {
            fputc(' ', out);
        } else {
            fprintf(out, c == '"' || c == '\\' ? "\\%c" : "%c", c);
        }
    }
}

#define SECOND_NS INT64_C(1000000000)

/* Whole frequencies up to 1 kHz, whose period is no whole number of nanoseconds; 0: none. */
static int64_t whole_hertz(int64_t period_ns)
{
    int64_t hertz = (SECOND_NS + period_ns / 2) / period_ns;
    int64_t off = hertz * period_ns - SECOND_NS;
    return hertz <= 1000 && off < hertz && -off < hertz ? hertz : 0;
}

/* "every 100 ms", "every 1.5 s"; what is no whole number of its unit may be one of hertz: "30 Hz".
 */
static void put_period(FILE *out, int64_t period_ns)
{
    static const struct {
        int64_t ns;
        const char *name;
    } units[] = {{SECOND_NS, "s"}, {1000000, "ms"}, {1000, "us"}, {1, "ns"}};
    size_t unit = 0;
    while (period_ns < units[unit].ns) {
        unit++;
    }
    int64_t hertz = period_ns % units[unit].ns != 0 ? whole_hertz(period_ns) : 0;
    if (hertz > 0) {
        fprintf(out, "%" PRId64 " Hz", hertz);
    } else {
        fprintf(out, "every %.10g %s", (double)period_ns / (double)units[unit].ns,
                units[unit].name);
    }
}

static const char *output_of(const struct tb__flow *flow, const struct tb__flow_input *input)
{
    return flow->nodes[input->source_node].outputs[input->source_output].id;
}

/* Whether an earlier input has a timer of the same period: each period is drawn once. */
static int period_seen(const struct tb__flow *flow, const struct tb__flow_input *until)
{
    for (uint32_t i = 0; i < flow->nodes_count; i++) {
        for (uint32_t j = 0; j < flow->nodes[i].inputs_count; j++) {
            const struct tb__flow_input *input = &flow->nodes[i].inputs[j];
            if (input == until) {
                return 0;
            }
            if (input->source_node < 0 && input->period_ns == until->period_ns) {
                return 1;
            }
        }
    }
    return 0;
}

static tb_status written(const struct tb__flow *flow, FILE *out)
{
    if (fflush(out) != 0 || ferror(out)) {
        return TB__FAIL_ERRNO(TB_E_SYSTEM, "graph of %s could not be written", flow->file);
    }
    return TB_OK;
}

static void mermaid_input(const struct tb__flow *flow, uint32_t node, uint32_t index, FILE *out)
{
    const struct tb__flow_input *input = &flow->nodes[node].inputs[index];
    const char *arrow = input->queue_policy == TB__FLOW_BACKPRESSURE ? "==>" : "-->";
    if (input->source_node < 0) {
        if (!period_seen(flow, input)) {
            fprintf(out, "    t%" PRId64 "([\"", input->period_ns);
            put_period(out, input->period_ns);
            fputs("\"])\n", out);
        }
        fprintf(out, "    t%" PRId64 " %s|\"%s\"| n%u\n", input->period_ns, arrow, input->id, node);
        return;
    }
    const char *output = output_of(flow, input);
    fprintf(out, "    n%" PRId32 " %s|\"%s", input->source_node, arrow, output);
    if (strcmp(output, input->id) != 0) {
        fprintf(out, " → %s", input->id);
    }
    fprintf(out, "\"| n%u\n", node);
}

tb_status tb__flow_graph_mermaid(const struct tb__flow *flow, FILE *out)
{
    fputs("flowchart LR\n", out);
    for (uint32_t i = 0; i < flow->nodes_count; i++) {
        const struct tb__flow_node *node = &flow->nodes[i];
        fprintf(out, "    n%u[\"", i);
        put_mermaid(out, node->name);
        if (node->description[0] != '\0') {
            fputs("<br/><small>", out);
            put_mermaid(out, node->description);
            fputs("</small>", out);
        }
        fputs("\"]\n", out);
    }
    for (uint32_t i = 0; i < flow->nodes_count; i++) {
        for (uint32_t j = 0; j < flow->nodes[i].inputs_count; j++) {
            mermaid_input(flow, i, j, out);
        }
    }
    return written(flow, out);
}

static void dot_input(const struct tb__flow *flow, uint32_t node, uint32_t index, FILE *out)
{
    const struct tb__flow_input *input = &flow->nodes[node].inputs[index];
    const char *style =
        input->queue_policy == TB__FLOW_BACKPRESSURE ? ", style=bold, penwidth=2" : "";
    if (input->source_node < 0) {
        if (!period_seen(flow, input)) {
            fprintf(out, "    t%" PRId64 " [shape=oval, label=\"", input->period_ns);
            put_period(out, input->period_ns);
            fputs("\"];\n", out);
        }
        fprintf(out, "    t%" PRId64 " -> n%u [label=\"%s\"%s];\n", input->period_ns, node,
                input->id, style);
        return;
    }
    const char *output = output_of(flow, input);
    fprintf(out, "    n%" PRId32 " -> n%u [label=\"%s", input->source_node, node, output);
    if (strcmp(output, input->id) != 0) {
        fprintf(out, " → %s", input->id);
    }
    fprintf(out, "\"%s];\n", style);
}

tb_status tb__flow_graph_dot(const struct tb__flow *flow, FILE *out)
{
    fputs("digraph flow {\n    rankdir=LR;\n    node [shape=box, style=rounded, "
          "fontname=\"sans-serif\"];\n    edge [fontname=\"sans-serif\", fontsize=10];\n",
          out);
    for (uint32_t i = 0; i < flow->nodes_count; i++) {
        const struct tb__flow_node *node = &flow->nodes[i];
        fprintf(out, "    n%u [label=\"", i);
        put_dot(out, node->name);
        if (node->description[0] != '\0') {
            fputs("\\n", out);
            put_dot(out, node->description);
        }
        fputs("\"];\n", out);
    }
    for (uint32_t i = 0; i < flow->nodes_count; i++) {
        for (uint32_t j = 0; j < flow->nodes[i].inputs_count; j++) {
            dot_input(flow, i, j, out);
        }
    }
    fputs("}\n", out);
    return written(flow, out);
}
