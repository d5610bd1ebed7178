/* One frame through a pool, with the installed library alone. */
#include <stdio.h>
#include <string.h>

#include <tensorbus/tensorbus.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != TB_OK) {                                                                     \
            fprintf(stderr, "%s: %s\n", #call, tb_last_error_text());                              \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

int main(void)
{
    float values[6] = {1, 2, 3, 4, 5, 6};
    tb_tensor tensor = {.data = values, .dtype = TB_F32, .ndim = 2, .shape = {2, 3}};
    tb_bus_options bus_options = {.size = sizeof bus_options, .name = "outside"};
    tb_pool_options pool_options = {
        .size = sizeof pool_options, .name = "frames", .dtype = TB_F32, .ndim = 2, .shape = {2, 3}};
    tb_bus *bus;
    tb_pool *pool;
    tb_reader *reader;
    tb_frame *frame;
    TRY(tb_bus_open(&bus_options, &bus));
    TRY(tb_pool_register(bus, &pool_options, &pool));
    TRY(tb_pool_write(pool, &tensor, TB_POLL, NULL));
    TRY(tb_reader_open(bus, "outside/frames", NULL, &reader));
    TRY(tb_reader_next(reader, TB_SECONDS(5), &frame));
    int same = memcmp(tb_frame_tensor(frame)->data, values, sizeof values) == 0;
    tb_frame_release(frame);
    tb_reader_close(reader);
    tb_pool_close(pool);
    tb_bus_close(bus);
    printf("C %s %s\n", tb_version(), same ? "same" : "different");
    return !same;
}
