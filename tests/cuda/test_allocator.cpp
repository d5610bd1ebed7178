/* The C++ allocator and memory resource over tb_alloc(). Exit status 1 when one check fails. */
#include <tensorbus/allocator.hpp>

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/fake/control.h"

static int failures;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                   \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

static tb_memory_kind kind_of(const void *data)
{
    tb_memory_kind kind = TB_MEMORY_UNKNOWN;
    CHECK(tb_memory_kind_of(data, &kind, nullptr) == TB_OK);
    return kind;
}

static bool is_ours(const void *data)
{
    tb_memory *memory = nullptr;
    return tb_memory_find(data, &memory) == TB_OK;
}

static void vectors(tb_memory_kind kind)
{
    using floats = std::vector<float, tensorbus::allocator<float>>;
    const void *before = nullptr;
    {
        floats a(1000, 1.5f, tensorbus::allocator<float>(kind));
        CHECK(kind_of(a.data()) == kind);
        CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % 256 == 0);
        before = a.data();
        floats moved = std::move(a);
        CHECK(moved.data() == before && moved[999] == 1.5f);
        floats copied = moved;
        CHECK(copied.data() != before && copied == moved && kind_of(copied.data()) == kind);
        for (int i = 0; i < 5000; i++) {
            copied.push_back(static_cast<float>(i));
        }
        CHECK(copied.size() == 6000 && copied[5999] == 4999.0f);
        std::swap(copied, moved);
        CHECK(copied.data() == before);
        floats empty{tensorbus::allocator<float>(kind)};
        empty.shrink_to_fit();
        /* Nodes of another type, from the same allocator. */
        std::list<double, tensorbus::allocator<double>> list{tensorbus::allocator<float>(kind)};
        list.push_back(2.5);
        CHECK(kind_of(&list.back()) == kind);
    }
    CHECK(!is_ours(before));
}

static void resources(tb_memory_kind kind)
{
    tensorbus::memory_resource resource(kind), same(kind), locked(TB_MEMORY_LOCKED);
    CHECK(resource == same);
    CHECK((resource == locked) == (kind == TB_MEMORY_LOCKED));
    CHECK(!(resource == *std::pmr::new_delete_resource()));
    std::pmr::vector<std::byte> payload(6220800, &resource);
    CHECK(kind_of(payload.data()) == kind);
    std::memset(payload.data(), 7, payload.size());
    CHECK(payload[6220799] == std::byte{7});
    void *aligned = resource.allocate(100, 65536);
    CHECK(reinterpret_cast<std::uintptr_t>(aligned) % 65536 == 0);
    same.deallocate(aligned, 100, 65536);
    CHECK(!is_ours(aligned));
    void *nothing = resource.allocate(0);
    CHECK(nothing != nullptr);
    resource.deallocate(nothing, 0);
    /* A pool of the standard library on top: many small ones from few mappings. */
    std::pmr::unsynchronized_pool_resource small(&resource);
    std::pmr::map<int, std::pmr::string> names(&small);
    for (int i = 0; i < 300; i++) {
        names[i] = "a name that does not fit into the string itself: " + std::to_string(i);
    }
    CHECK(kind_of(names[7].data()) == kind);
}

template <typename Function> static void throws(tb_status status, const char *text, Function body)
{
    try {
        body();
        std::fprintf(stderr, "nothing was thrown for %s\n", text);
        failures++;
    } catch (const tensorbus::alloc_error &error) {
        CHECK(error.status() == status);
        if (std::strstr(error.what(), text) == nullptr) {
            std::fprintf(stderr, "`%s` is not in `%s`\n", text, error.what());
            failures++;
        }
    }
}

static void mistakes()
{
    throws(TB_E_INVALID, "cannot be allocated", [] {
        tensorbus::memory_resource device(TB_MEMORY_DEVICE); /* the CPU cannot use it */
        (void)device.allocate(100);
    });
    throws(TB_E_INVALID, "alignment", [] {
        tensorbus::memory_resource locked(TB_MEMORY_LOCKED);
        (void)locked.allocate(100, std::size_t(1) << 30);
    });
    throws(TB_E_NOT_FOUND, "cuda:99", [] {
        std::vector<int, tensorbus::allocator<int>> a(
            5, tensorbus::allocator<int>(TB_MEMORY_PINNED, TB_CUDA(99)));
    });
    bool thrown = false;
    try {
        tensorbus::allocator<double> many;
        (void)many.allocate(SIZE_MAX / 4);
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    CHECK(thrown);
    tensorbus::allocator<int> a(TB_MEMORY_LOCKED), b(TB_MEMORY_LOCKED), c;
    CHECK(a == b && a != c && c.kind() == TB_MEMORY_PINNED && c.device() == TB_CPU);
    a.deallocate(nullptr, 0);
}

int main()
{
    static const tb_memory_kind kinds[] = {TB_MEMORY_LOCKED, TB_MEMORY_PINNED, TB_MEMORY_MANAGED,
                                           TB_MEMORY_SHARED_PINNED};
    for (tb_memory_kind kind : kinds) {
        vectors(kind);
        resources(kind);
    }
    mistakes();
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = library != nullptr ? dlsym(library, "fake_cuda_control") : nullptr;
    if (found != nullptr) {
        fake_leaks leaks = {};
        static_cast<const fake_control *>(found)->leaks(&leaks);
        CHECK(leaks.allocations + leaks.registrations + leaks.blocks + leaks.streams == 0);
    }
    std::printf("%d failures\n", failures);
    return failures > 0;
}
