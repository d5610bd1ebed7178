/* Frames on the CPU and on GPUs; see example.h. Nothing here needs CUDA's headers or libraries: the
 * driver is opened when a GPU is first asked for. */
#include "example.h"

#include <stdio.h>
#include <stdlib.h>

#define PREVIEW 5

tb_tensor example_tensor(int64_t *data, tb_device device)
{
    return (tb_tensor){.data = data,
                       .device = device,
                       .dtype = TB_I64,
                       .ndim = 2,
                       .shape = {EXAMPLE_ROWS, EXAMPLE_COLUMNS}};
}

/* ---- the first elements of a tensor on any device ---- */

static tb_tensor first_elements(void *data, tb_device device, int64_t count)
{
    return (tb_tensor){
        .data = data, .device = device, .dtype = TB_I64, .ndim = 1, .shape = {count}};
}

static void copy_first(const char *node, const tb_tensor *tensor, int64_t count, int64_t *out)
{
    tb_tensor source = first_elements(tensor->data, tensor->device, count);
    tb_tensor destination = first_elements(out, TB_CPU, count);
    if (tb_copy(&destination, &source) != TB_OK) {
        example_fail(node, "copy to the CPU");
    }
}

int64_t example_get_count(const char *node, const tb_tensor *tensor)
{
    int64_t count;
    if (tensor->device == TB_CPU) {
        return *(const int64_t *)tensor->data;
    }
    copy_first(node, tensor, 1, &count);
    return count;
}

void example_set_count(const char *node, const tb_tensor *tensor, int64_t count)
{
    tb_tensor source = first_elements(&count, TB_CPU, 1);
    tb_tensor destination = first_elements(tensor->data, tensor->device, 1);
    if (tb_copy(&destination, &source) != TB_OK) {
        example_fail(node, "copy to the frame");
    }
}

void example_preview(const char *node, const char *who, const tb_tensor *tensor)
{
    int64_t first[PREVIEW];
    char device[32] = "";
    copy_first(node, tensor, PREVIEW, first);
    if (TB_IS_CUDA(tensor->device)) {
        snprintf(device, sizeof device, " on cuda:%d", (int)(tensor->device & 0xffff));
    }
    printf("%s preview: [%lld, %lld, %lld, %lld, %lld, ...]%s\n", who, (long long)first[0],
           (long long)first[1], (long long)first[2], (long long)first[3], (long long)first[4],
           device);
    fflush(stdout);
}

/* ---- the sender's frame ---- */

static const char *what_is_needed(const struct example_config *config, tb_status status)
{
    if (status == TB_E_UNSUPPORTED) {
        return "this flow needs an NVIDIA GPU and its driver; cpu2cpu.yml needs neither";
    }
    if (config->sender != TB_CPU && config->receiver != TB_CPU &&
        config->sender != config->receiver) {
        return "this flow needs two GPUs; cuda_inner.yml needs one";
    }
    return "this flow needs that GPU; choose another with sender_device and receiver_device";
}

void example_fail_device(const char *node, const struct example_config *config, const char *what,
                         tb_status status)
{
    if (status == TB_E_UNSUPPORTED || status == TB_E_NOT_FOUND) {
        fprintf(stderr, "%s: %s: sender_device `%s`, receiver_device `%s`: %s (%s)\n", node, what,
                config->sender_name, config->receiver_name, what_is_needed(config, status),
                tb_last_error_text());
        exit(1);
    }
    example_fail(node, what);
}

void example_open_device(tb_device device)
{
    tb_memory_options options = {
        .size = sizeof options, .kind = TB_MEMORY_DEVICE, .device = device, .bytes = 256};
    tb_memory *memory;
    if (device != TB_CPU && tb_alloc(&options, &memory) == TB_OK) {
        tb_memory_free(memory);
    }
}

/* Memory that a GPU uses: its own, or host memory that is page-locked, which it copies from at the
 * full speed of the bus. */
static void allocate(const char *node, const struct example_config *config,
                     struct example_source *source)
{
    int on_gpu = config->sender != TB_CPU;
    tb_memory_options options = {.size = sizeof options,
                                 .kind = on_gpu ? TB_MEMORY_DEVICE : TB_MEMORY_PINNED,
                                 .device = on_gpu ? config->sender : config->receiver,
                                 .bytes = EXAMPLE_BYTES};
    tb_status status = tb_alloc(&options, &source->memory);
    if (status != TB_OK) {
        example_fail_device(node, config, "allocate", status);
    }
    source->tensor = example_tensor(tb_memory_data(source->memory), config->sender);
}

static int64_t *numbers(const char *node, int64_t *data)
{
    if (data == NULL) {
        fprintf(stderr, "%s: no memory for a frame of %zu bytes\n", node, EXAMPLE_BYTES);
        exit(1);
    }
    for (size_t i = 0; i < EXAMPLE_ELEMENTS; i++) {
        data[i] = (int64_t)i;
    }
    return data;
}

struct example_source example_source_create(const char *node, const struct example_config *config)
{
    struct example_source source = {.memory = NULL};
    if (config->sender == TB_CPU && config->receiver == TB_CPU) {
        source.tensor = example_tensor(numbers(node, malloc(EXAMPLE_BYTES)), TB_CPU);
        return source;
    }
    allocate(node, config, &source);
    if (config->sender == TB_CPU) {
        numbers(node, source.tensor.data);
        return source;
    }
    tb_tensor host = example_tensor(numbers(node, malloc(EXAMPLE_BYTES)), TB_CPU);
    if (tb_copy(&source.tensor, &host) != TB_OK) {
        example_fail(node, "copy to the GPU");
    }
    free(host.data);
    return source;
}

void example_source_destroy(struct example_source *source)
{
    if (source->memory == NULL) {
        free(source->tensor.data);
    }
    tb_memory_free(source->memory);
}
