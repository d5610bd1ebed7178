// One frame through a pool, loaned and filled in place, with the installed library alone.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>

#include <tensorbus/tensorbus.h>

static void must(tb_status status)
{
    if (status != TB_OK) {
        throw std::runtime_error(tb_last_error_text());
    }
}

static bool pass_a_frame()
{
    tb_bus_options options{};
    options.size = sizeof options;
    options.name = "outside";
    tb_bus *opened = nullptr;
    must(tb_bus_open(&options, &opened));
    std::unique_ptr<tb_bus, decltype(&tb_bus_close)> bus(opened, tb_bus_close);

    tb_pool_options shape{};
    shape.size = sizeof shape;
    shape.name = "frames";
    shape.dtype = TB_U8;
    shape.ndim = 3;
    shape.shape[0] = 4;
    shape.shape[1] = 5;
    shape.shape[2] = 3;
    tb_pool *pool = nullptr;
    must(tb_pool_register(bus.get(), &shape, &pool));
    tb_loan *loan = nullptr;
    must(tb_pool_loan(pool, TB_POLL, &loan));
    auto *bytes = static_cast<std::uint8_t *>(tb_loan_tensor(loan)->data);
    for (int i = 0; i < 60; i++) {
        bytes[i] = static_cast<std::uint8_t>(i * 4);
    }
    tb_handle handle{};
    must(tb_loan_publish(loan, &handle));

    tb_frame *frame = nullptr;
    must(tb_frame_open(bus.get(), &handle, TB_SECONDS(5), &frame));
    auto *seen = static_cast<const std::uint8_t *>(tb_frame_tensor(frame)->data);
    bool same = tb_handle_sequence(&handle) == 1 && seen[59] == 236;
    tb_frame_release(frame);
    return same;
}

int main()
{
    try {
        bool same = pass_a_frame();
        std::printf("C++ %s %s\n", tb_version(), same ? "same" : "different");
        return same ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
