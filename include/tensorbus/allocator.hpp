/* C++17: a standard allocator and a std::pmr::memory_resource over tb_alloc(), so that a vector, or
 * the payload of a message, lies in memory that CPU and GPU both use without a copy:
 *
 *     std::vector<float, tensorbus::allocator<float>> image(1920 * 1080 * 3);      // pinned
 *
 *     tensorbus::memory_resource shared(TB_MEMORY_SHARED_PINNED);                   // pools adopt
 * it std::pmr::vector<std::byte> payload(6220800, &shared);
 *
 * Each allocation is a page-locked mapping of its own. For many small ones put a pool of the
 * standard library on top: std::pmr::unsynchronized_pool_resource small(&shared). Failures are
 * tensorbus::alloc_error, a std::bad_alloc whose what() is the whole message. Header only; link
 * tensorbus. Any thread. */
#ifndef TENSORBUS_ALLOCATOR_HPP
#define TENSORBUS_ALLOCATOR_HPP

#include <cstddef>
#include <cstdio>
#include <limits>
#include <memory_resource>
#include <new>
#include <type_traits>

#include <tensorbus/memory.h>

namespace tensorbus {

/* Which status, and why. */
class alloc_error : public std::bad_alloc {
  public:
    explicit alloc_error(tb_status status) noexcept : status_(status)
    {
        std::snprintf(text_, sizeof text_, "%s", tb_last_error_text());
    }
    const char *what() const noexcept override
    {
        return text_;
    }
    tb_status status() const noexcept
    {
        return status_;
    }

  private:
    tb_status status_;
    char text_[512];
};

/* Kinds that the CPU can use: what containers are made of. */
constexpr bool is_host_usable(tb_memory_kind kind) noexcept
{
    return kind == TB_MEMORY_PINNED || kind == TB_MEMORY_MANAGED ||
           kind == TB_MEMORY_SHARED_PINNED || kind == TB_MEMORY_LOCKED;
}

namespace detail {

inline void *allocate(tb_memory_kind kind, tb_device device, std::size_t bytes,
                      std::size_t alignment)
{
    tb_memory_options options = {};
    options.size = sizeof options;
    options.kind = is_host_usable(kind) ? kind : TB_MEMORY_UNKNOWN; /* refused, with a message */
    options.device = device;
    options.bytes = bytes > 0 ? bytes : 1;
    options.alignment = alignment > TB_MEMORY_ALIGNMENT ? alignment : TB_MEMORY_ALIGNMENT;
    tb_memory *memory = nullptr;
    tb_status status = tb_alloc(&options, &memory);
    if (status != TB_OK) {
        throw alloc_error(status);
    }
    return tb_memory_data(memory);
}

inline void deallocate(void *data) noexcept
{
    tb_memory *memory = nullptr;
    if (tb_memory_find(data, &memory) == TB_OK) {
        tb_memory_free(memory);
    }
}

} // namespace detail

/* For std::pmr containers. Resources of one kind and device are equal: each frees what the other
 * allocated. */
class memory_resource : public std::pmr::memory_resource {
  public:
    explicit memory_resource(tb_memory_kind kind = TB_MEMORY_PINNED,
                             tb_device device = TB_CPU) noexcept
        : kind_(kind), device_(device)
    {
    }
    tb_memory_kind kind() const noexcept
    {
        return kind_;
    }
    tb_device device() const noexcept
    {
        return device_;
    }

  protected:
    void *do_allocate(std::size_t bytes, std::size_t alignment) override
    {
        return detail::allocate(kind_, device_, bytes, alignment);
    }
    void do_deallocate(void *data, std::size_t, std::size_t) override
    {
        detail::deallocate(data);
    }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
    {
        const auto *same = dynamic_cast<const memory_resource *>(&other);
        return same != nullptr && same->kind_ == kind_ && same->device_ == device_;
    }

  private:
    tb_memory_kind kind_;
    tb_device device_;
};

/* For standard containers. */
template <typename T> class allocator {
  public:
    using value_type = T;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;

    explicit allocator(tb_memory_kind kind = TB_MEMORY_PINNED, tb_device device = TB_CPU) noexcept
        : kind_(kind), device_(device)
    {
    }
    template <typename U>
    allocator(const allocator<U> &other) noexcept : kind_(other.kind()), device_(other.device())
    {
    }
    tb_memory_kind kind() const noexcept
    {
        return kind_;
    }
    tb_device device() const noexcept
    {
        return device_;
    }
    T *allocate(std::size_t count)
    {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
            throw std::bad_array_new_length();
        }
        return static_cast<T *>(detail::allocate(kind_, device_, count * sizeof(T), alignof(T)));
    }
    void deallocate(T *data, std::size_t) noexcept
    {
        detail::deallocate(data);
    }

  private:
    tb_memory_kind kind_;
    tb_device device_;
};

template <typename T, typename U>
bool operator==(const allocator<T> &a, const allocator<U> &b) noexcept
{
    return a.kind() == b.kind() && a.device() == b.device();
}
template <typename T, typename U>
bool operator!=(const allocator<T> &a, const allocator<U> &b) noexcept
{
    return !(a == b);
}

} // namespace tensorbus

#endif
