/* The driver's interface as far as it is used: our own declarations, so that nothing of NVIDIA's is
 * needed to build. tests/cuda/check_header.cpp compares them with the real cuda.h, types, sizes,
 * values and parameters, wherever that exists.
 *
 * Names are the driver's without `cu`; a call is named with its binary version (`_v2`), because
 * what a header calls cuMemAlloc is exported as cuMemAlloc_v2, and what is exported as cuMemAlloc
 * takes 32-bit sizes. Addresses on devices are uint64_t, a CUdevice is an int, a CUresult an int.
 */
#ifndef TB_CUDA_API_H
#define TB_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct CUctx_st *tb__context;
typedef struct CUstream_st *tb__stream;
typedef struct CUevent_st *tb__event;
typedef struct CUextMemory_st *tb__external;

/* Streams that are always there: the one of the context, and the one of context and thread. */
#define TB__STREAM_LEGACY ((tb__stream)(uintptr_t)1)
#define TB__STREAM_PER_THREAD ((tb__stream)(uintptr_t)2)

enum { /* CUresult: those that something depends on */
       TB__CUDA_SUCCESS = 0,
       TB__CUDA_INVALID_VALUE = 1,
       TB__CUDA_OUT_OF_MEMORY = 2,
       TB__CUDA_NOT_INITIALIZED = 3,
       TB__CUDA_DEINITIALIZED = 4,
       TB__CUDA_STUB_LIBRARY = 34,
       TB__CUDA_DEVICE_UNAVAILABLE = 46,
       TB__CUDA_NO_DEVICE = 100,
       TB__CUDA_INVALID_DEVICE = 101,
       TB__CUDA_INVALID_CONTEXT = 201,
       TB__CUDA_MAP_FAILED = 205,
       TB__CUDA_ALREADY_MAPPED = 208,
       TB__CUDA_ECC_UNCORRECTABLE = 214,
       TB__CUDA_PEER_ACCESS_UNSUPPORTED = 217,
       TB__CUDA_NVLINK_UNCORRECTABLE = 220,
       TB__CUDA_CONTAINED = 226,
       TB__CUDA_OPERATING_SYSTEM = 304,
       TB__CUDA_INVALID_HANDLE = 400,
       TB__CUDA_NOT_READY = 600,
       TB__CUDA_ILLEGAL_ADDRESS = 700,
       TB__CUDA_LAUNCH_TIMEOUT = 702,
       TB__CUDA_PEER_ACCESS_ALREADY_ENABLED = 704,
       TB__CUDA_CONTEXT_IS_DESTROYED = 709,
       TB__CUDA_ASSERT = 710,
       TB__CUDA_TOO_MANY_PEERS = 711,
       TB__CUDA_HOST_MEMORY_ALREADY_REGISTERED = 712,
       TB__CUDA_HOST_MEMORY_NOT_REGISTERED = 713,
       TB__CUDA_HARDWARE_STACK_ERROR = 714,
       TB__CUDA_ILLEGAL_INSTRUCTION = 715,
       TB__CUDA_MISALIGNED_ADDRESS = 716,
       TB__CUDA_INVALID_ADDRESS_SPACE = 717,
       TB__CUDA_INVALID_PC = 718,
       TB__CUDA_LAUNCH_FAILED = 719,
       TB__CUDA_NOT_PERMITTED = 800,
       TB__CUDA_NOT_SUPPORTED = 801,
       TB__CUDA_SYSTEM_NOT_READY = 802,
       TB__CUDA_SYSTEM_DRIVER_MISMATCH = 803,
       TB__CUDA_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
       TB__CUDA_MPS_CONNECTION_FAILED = 805,
       TB__CUDA_STREAM_CAPTURE_UNSUPPORTED = 900,
       TB__CUDA_UNKNOWN = 999,
};

enum { /* CUdevice_attribute */
       TB__ATTRIBUTE_MAX_PITCH = 11,
       TB__ATTRIBUTE_INTEGRATED = 18,
       TB__ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19,
       TB__ATTRIBUTE_UNIFIED_ADDRESSING = 41,
       TB__ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
       TB__ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
       TB__ATTRIBUTE_MANAGED_MEMORY = 83,
       TB__ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
       TB__ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
       TB__ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
       TB__ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
       TB__ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
       TB__ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
       TB__ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED = 113,
       TB__ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
       TB__ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122,
       TB__ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
};

enum { /* CUpointer_attribute */
       TB__POINTER_MEMORY_TYPE = 2,
       TB__POINTER_DEVICE_POINTER = 3,
       TB__POINTER_IS_MANAGED = 8,
       TB__POINTER_DEVICE_ORDINAL = 9,
       TB__POINTER_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
       TB__POINTER_RANGE_START_ADDR = 11,
       TB__POINTER_RANGE_SIZE = 12,
       TB__POINTER_ALLOWED_HANDLE_TYPES = 14,
       TB__POINTER_MEMPOOL_HANDLE = 17,
       TB__POINTER_MAPPING_SIZE = 18,
       TB__POINTER_MAPPING_BASE_ADDR = 19,
};

enum { /* CUmemorytype */
       TB__MEMORYTYPE_HOST = 1,
       TB__MEMORYTYPE_DEVICE = 2,
};

enum { /* flags of single calls */
       TB__MEMHOSTALLOC_PORTABLE = 1,
       TB__MEMHOSTALLOC_DEVICEMAP = 2,
       TB__MEMHOSTREGISTER_PORTABLE = 1,
       TB__MEMHOSTREGISTER_DEVICEMAP = 2,
       TB__MEMHOSTREGISTER_READ_ONLY = 8,
       TB__MEM_ATTACH_GLOBAL = 1,
       TB__STREAM_NON_BLOCKING = 1,
       TB__STREAM_WAIT_VALUE_GEQ = 0,
       TB__STREAM_WRITE_VALUE_DEFAULT = 0,
       TB__STREAM_MEM_OP_WAIT_VALUE_64 = 4,
       TB__STREAM_MEM_OP_WRITE_VALUE_64 = 5,
       TB__EVENT_DISABLE_TIMING = 2,
       TB__IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
       TB__EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD = 9, /* CUDA 13 */
};

enum { /* virtual memory */
       TB__MEM_ALLOCATION_TYPE_PINNED = 1,
       TB__MEM_LOCATION_TYPE_DEVICE = 1,
       TB__MEM_LOCATION_TYPE_HOST = 2,
       TB__MEM_HANDLE_TYPE_POSIX_FD = 1,
       TB__MEM_ACCESS_READ = 1,
       TB__MEM_ACCESS_READWRITE = 3,
       TB__MEM_GRANULARITY_MINIMUM = 0,
};

enum { /* CUmem_advise */
       TB__MEM_ADVISE_SET_READ_MOSTLY = 1,
       TB__MEM_ADVISE_UNSET_READ_MOSTLY = 2,
       TB__MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
       TB__MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4,
       TB__MEM_ADVISE_SET_ACCESSED_BY = 5,
       TB__MEM_ADVISE_UNSET_ACCESSED_BY = 6,
};
#define TB__DEVICE_CPU (-1) /* the CPU as a CUdevice, where calls before CUDA 13 take one */

struct tb__cuda_uuid { /* CUuuid */
    char bytes[16];
};

struct tb__ipc_handle { /* CUipcMemHandle; passed by value */
    char bytes[64];
};

struct tb__mem_location { /* CUmemLocation */
    uint32_t type;
    int32_t id;
};

struct tb__mem_prop { /* CUmemAllocationProp */
    uint32_t type;
    uint32_t requested_handle_types;
    struct tb__mem_location location;
    void *win32;
    uint8_t compression_type;
    uint8_t gpu_direct_rdma_capable;
    uint16_t usage;
    uint8_t reserved[4];
};

struct tb__mem_access { /* CUmemAccessDesc */
    struct tb__mem_location location;
    uint32_t flags;
};

struct tb__mem_op { /* CUstreamBatchMemOpParams: the part that waits and writes have in common */
    uint32_t operation;
    uint32_t pad;
    uint64_t address;
    uint64_t value;
    uint32_t flags;
    uint32_t pad2;
    uint64_t alias;
    uint64_t reserved;
};

struct tb__memcpy2d { /* CUDA_MEMCPY2D */
    size_t src_x_bytes, src_y;
    uint32_t src_type;
    const void *src_host;
    uint64_t src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x_bytes, dst_y;
    uint32_t dst_type;
    void *dst_host;
    uint64_t dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width_bytes, height;
};

struct tb__memcpy3d { /* CUDA_MEMCPY3D */
    size_t src_x_bytes, src_y, src_z, src_lod;
    uint32_t src_type;
    const void *src_host;
    uint64_t src_device;
    void *src_array;
    void *reserved0;
    size_t src_pitch, src_height;
    size_t dst_x_bytes, dst_y, dst_z, dst_lod;
    uint32_t dst_type;
    void *dst_host;
    uint64_t dst_device;
    void *dst_array;
    void *reserved1;
    size_t dst_pitch, dst_height;
    size_t width_bytes, height, depth;
};

struct tb__external_handle { /* CUDA_EXTERNAL_MEMORY_HANDLE_DESC */
    uint32_t type;
    uint32_t pad;
    union {
        int fd;
        void *win32[2];
    } handle;
    unsigned long long size;
    uint32_t flags;
    uint32_t reserved[16];
};

struct tb__external_buffer { /* CUDA_EXTERNAL_MEMORY_BUFFER_DESC */
    unsigned long long offset;
    unsigned long long size;
    uint32_t flags;
    uint32_t reserved[16];
};

typedef void tb__host_fn(void *argument); /* CUhostFn */

/* X(name here, name in libcuda, parameters). Without those of NEEDED (CUDA 11) there is no door;
 * each of OPTIONAL may be NULL: look at the device's abilities first. */
/* clang-format off */
#define TB__CUDA_NEEDED(X)                                                                         \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(driver_get_version, "cuDriverGetVersion", (int *out))                                        \
    X(get_error_name, "cuGetErrorName", (int result, const char **out))                            \
    X(get_error_string, "cuGetErrorString", (int result, const char **out))                        \
    X(device_get_count, "cuDeviceGetCount", (int *out))                                            \
    X(device_get, "cuDeviceGet", (int *out, int ordinal))                                          \
    X(device_get_name, "cuDeviceGetName", (char *out, int size, int device))                       \
    X(device_get_attribute, "cuDeviceGetAttribute", (int *out, int attribute, int device))         \
    X(device_total_mem, "cuDeviceTotalMem_v2", (size_t *out, int device))                          \
    X(device_get_uuid, "cuDeviceGetUuid", (struct tb__cuda_uuid *out, int device))                 \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (tb__context *out, int device))                  \
    X(ctx_get_current, "cuCtxGetCurrent", (tb__context *out))                                      \
    X(ctx_get_device, "cuCtxGetDevice", (int *out))                                                \
    X(ctx_push, "cuCtxPushCurrent_v2", (tb__context context))                                      \
    X(ctx_pop, "cuCtxPopCurrent_v2", (tb__context *out))                                           \
    X(ctx_enable_peer_access, "cuCtxEnablePeerAccess", (tb__context peer, unsigned flags))         \
    X(device_can_access_peer, "cuDeviceCanAccessPeer", (int *out, int device, int peer))           \
    X(mem_get_info, "cuMemGetInfo_v2", (size_t *free_bytes, size_t *total_bytes))                  \
    X(mem_alloc, "cuMemAlloc_v2", (uint64_t *out, size_t bytes))                                   \
    X(mem_free, "cuMemFree_v2", (uint64_t address))                                                \
    X(mem_alloc_managed, "cuMemAllocManaged", (uint64_t *out, size_t bytes, unsigned flags))       \
    X(mem_host_alloc, "cuMemHostAlloc", (void **out, size_t bytes, unsigned flags))                \
    X(mem_free_host, "cuMemFreeHost", (void *host))                                                \
    X(mem_host_register, "cuMemHostRegister_v2",                                                   \
      (void *host, size_t bytes, unsigned flags))                                                  \
    X(mem_host_unregister, "cuMemHostUnregister", (void *host))                                    \
    X(mem_host_get_device_pointer, "cuMemHostGetDevicePointer_v2",                                 \
      (uint64_t *out, void *host, unsigned flags))                                                 \
    X(mem_get_address_range, "cuMemGetAddressRange_v2",                                            \
      (uint64_t *base, size_t *bytes, uint64_t address))                                           \
    X(pointer_get_attribute, "cuPointerGetAttribute",                                              \
      (void *out, int attribute, uint64_t address))                                                \
    X(memcpy_htod_async, "cuMemcpyHtoDAsync_v2",                                                   \
      (uint64_t dst, const void *src, size_t bytes, tb__stream stream))                            \
    X(memcpy_dtoh_async, "cuMemcpyDtoHAsync_v2",                                                   \
      (void *dst, uint64_t src, size_t bytes, tb__stream stream))                                  \
    X(memcpy_dtod_async, "cuMemcpyDtoDAsync_v2",                                                   \
      (uint64_t dst, uint64_t src, size_t bytes, tb__stream stream))                               \
    X(memcpy_peer_async, "cuMemcpyPeerAsync",                                                      \
      (uint64_t dst, tb__context dst_context, uint64_t src, tb__context src_context,               \
       size_t bytes, tb__stream stream))                                                           \
    X(memcpy2d_async, "cuMemcpy2DAsync_v2",                                                        \
      (const struct tb__memcpy2d *copy, tb__stream stream))                                        \
    X(memcpy3d_async, "cuMemcpy3DAsync_v2",                                                        \
      (const struct tb__memcpy3d *copy, tb__stream stream))                                        \
    X(stream_create, "cuStreamCreate", (tb__stream *out, unsigned flags))                          \
    X(stream_destroy, "cuStreamDestroy_v2", (tb__stream stream))                                   \
    X(stream_synchronize, "cuStreamSynchronize", (tb__stream stream))                              \
    X(stream_query, "cuStreamQuery", (tb__stream stream))                                          \
    X(stream_get_ctx, "cuStreamGetCtx", (tb__stream stream, tb__context *out))                     \
    X(stream_wait_event, "cuStreamWaitEvent",                                                      \
      (tb__stream stream, tb__event event, unsigned flags))                                        \
    X(launch_host_func, "cuLaunchHostFunc",                                                        \
      (tb__stream stream, tb__host_fn *function, void *argument))                                  \
    X(event_create, "cuEventCreate", (tb__event *out, unsigned flags))                             \
    X(event_record, "cuEventRecord", (tb__event event, tb__stream stream))                         \
    X(event_query, "cuEventQuery", (tb__event event))                                              \
    X(event_synchronize, "cuEventSynchronize", (tb__event event))                                  \
    X(event_destroy, "cuEventDestroy_v2", (tb__event event))                                       \
    X(ipc_get_mem_handle, "cuIpcGetMemHandle", (struct tb__ipc_handle *out, uint64_t address))     \
    X(ipc_open_mem_handle, "cuIpcOpenMemHandle_v2",                                                \
      (uint64_t *out, struct tb__ipc_handle handle, unsigned flags))                               \
    X(ipc_close_mem_handle, "cuIpcCloseMemHandle", (uint64_t address))

#define TB__CUDA_OPTIONAL(X)                                                                       \
    X(device_get_uuid2, "cuDeviceGetUuid_v2", (struct tb__cuda_uuid *out, int device))             \
    X(primary_get_state, "cuDevicePrimaryCtxGetState",                                             \
      (int device, unsigned *flags, int *active))                                                  \
    X(mem_create, "cuMemCreate",                                                                   \
      (unsigned long long *out, size_t bytes, const struct tb__mem_prop *prop,                     \
       unsigned long long flags))                                                                  \
    X(mem_release, "cuMemRelease", (unsigned long long handle))                                    \
    X(mem_address_reserve, "cuMemAddressReserve",                                                  \
      (uint64_t *out, size_t bytes, size_t alignment, uint64_t wanted, unsigned long long flags))  \
    X(mem_address_free, "cuMemAddressFree", (uint64_t address, size_t bytes))                      \
    X(mem_map, "cuMemMap",                                                                         \
      (uint64_t address, size_t bytes, size_t offset, unsigned long long handle,                   \
       unsigned long long flags))                                                                  \
    X(mem_unmap, "cuMemUnmap", (uint64_t address, size_t bytes))                                   \
    X(mem_set_access, "cuMemSetAccess",                                                            \
      (uint64_t address, size_t bytes, const struct tb__mem_access *access, size_t count))         \
    X(mem_export, "cuMemExportToShareableHandle",                                                  \
      (void *out, unsigned long long handle, unsigned type, unsigned long long flags))             \
    X(mem_import, "cuMemImportFromShareableHandle",                                                \
      (unsigned long long *out, void *os_handle, unsigned type))                                   \
    X(mem_get_granularity, "cuMemGetAllocationGranularity",                                        \
      (size_t *out, const struct tb__mem_prop *prop, unsigned option))                             \
    X(mem_get_prop, "cuMemGetAllocationPropertiesFromHandle",                                      \
      (struct tb__mem_prop *out, unsigned long long handle))                                       \
    X(mem_retain_handle, "cuMemRetainAllocationHandle",                                            \
      (unsigned long long *out, void *address))                                                    \
    X(stream_write64, "cuStreamWriteValue64_v2",                                                   \
      (tb__stream stream, uint64_t address, uint64_t value, unsigned flags))                       \
    X(stream_wait64, "cuStreamWaitValue64_v2",                                                     \
      (tb__stream stream, uint64_t address, uint64_t value, unsigned flags))                       \
    X(stream_batch, "cuStreamBatchMemOp_v2",                                                       \
      (tb__stream stream, unsigned count, struct tb__mem_op *ops, unsigned flags))                 \
    X(mem_alloc_async, "cuMemAllocAsync",                                                          \
      (uint64_t *out, size_t bytes, tb__stream stream))                                            \
    X(mem_free_async, "cuMemFreeAsync", (uint64_t address, tb__stream stream))                     \
    X(mem_advise2, "cuMemAdvise_v2",                                                               \
      (uint64_t address, size_t bytes, unsigned advice, struct tb__mem_location where))            \
    X(mem_advise1, "cuMemAdvise",                                                                  \
      (uint64_t address, size_t bytes, unsigned advice, int device))                               \
    X(mem_prefetch2, "cuMemPrefetchAsync_v2",                                                      \
      (uint64_t address, size_t bytes, struct tb__mem_location where, unsigned flags,              \
       tb__stream stream))                                                                         \
    X(mem_prefetch1, "cuMemPrefetchAsync",                                                         \
      (uint64_t address, size_t bytes, int device, tb__stream stream))                             \
    X(import_external, "cuImportExternalMemory",                                                   \
      (tb__external *out, const struct tb__external_handle *handle))                               \
    X(external_get_buffer, "cuExternalMemoryGetMappedBuffer",                                      \
      (uint64_t *out, tb__external external, const struct tb__external_buffer *buffer))            \
    X(external_destroy, "cuDestroyExternalMemory", (tb__external external))
/* clang-format on */

struct tb__cuda_api {
#define TB__CUDA_FIELD(name, symbol, parameters) int(*name) parameters;
    TB__CUDA_NEEDED(TB__CUDA_FIELD)
    TB__CUDA_OPTIONAL(TB__CUDA_FIELD)
#undef TB__CUDA_FIELD
};

#endif
