/* Our declarations of the driver's interface against the real cuda.h, by the compiler: values,
 * sizes, offsets, and the parameters of every call, by number, size and kind. Compiled by
 * test_header.sh wherever a cuda.h is found; there is nothing to run. */
#include "cuda/api.h"

#include <cuda.h>
#if CUDA_VERSION < 12020
#error "cuda.h is older than CUDA 12.2: it lacks calls that are compared here"
#endif

#include <cstddef>
#include <type_traits>

/* ------------------------------------------------------------------ parameters */

/* Pointers to structs that are ours on one side are compared by size elsewhere. */
template <typename Ours, typename Theirs> constexpr bool same_parameter()
{
    if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
        using A = std::remove_cv_t<std::remove_pointer_t<Ours>>;
        using B = std::remove_cv_t<std::remove_pointer_t<Theirs>>;
        if constexpr (std::is_function_v<A> || std::is_function_v<B>) {
            return std::is_function_v<A> && std::is_function_v<B>;
        } else if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
            return std::is_void_v<A> && std::is_void_v<B>;
        } else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
            return same_parameter<A, B>();
        } else if constexpr (std::is_class_v<A> && std::is_class_v<B>) {
            /* Handles are structs that nobody defines; they have the same name on both sides. */
            return std::is_same_v<A, B> || sizeof(Ours) == sizeof(Theirs);
        } else if constexpr (std::is_union_v<B>) {
            return std::is_class_v<A> && sizeof(A) == sizeof(B);
        } else {
            return std::is_class_v<A> == std::is_class_v<B> && sizeof(A) == sizeof(B);
        }
    } else {
        return !std::is_pointer_v<Ours> && !std::is_pointer_v<Theirs> &&
               std::is_class_v<Ours> == std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs);
    }
}

template <typename Ours, typename Theirs> struct same_call : std::false_type {
};
template <typename R1, typename... A, typename R2, typename... B>
struct same_call<R1 (*)(A...), R2 (*)(B...)> {
    static constexpr bool all()
    {
        if constexpr (sizeof...(A) != sizeof...(B)) {
            return false;
        } else {
            return sizeof(R1) == sizeof(R2) && (same_parameter<A, B>() && ...);
        }
    }
    static constexpr bool value = all();
};

#define CALL(ours, theirs)                                                                         \
    constexpr bool compared_##ours = true;                                                         \
    static_assert(same_call<decltype(tb__cuda_api::ours), decltype(&theirs)>::value,               \
                  #ours " has other parameters than " #theirs)

/* cuda.h maps the plain names to the versions that are exported: see VERSION below. */
CALL(init, cuInit);
CALL(driver_get_version, cuDriverGetVersion);
CALL(get_error_name, cuGetErrorName);
CALL(get_error_string, cuGetErrorString);
CALL(device_get_count, cuDeviceGetCount);
CALL(device_get, cuDeviceGet);
CALL(device_get_name, cuDeviceGetName);
CALL(device_get_attribute, cuDeviceGetAttribute);
CALL(device_total_mem, cuDeviceTotalMem);
CALL(device_get_uuid, cuDeviceGetUuid);
CALL(device_get_uuid2, cuDeviceGetUuid_v2);
CALL(primary_retain, cuDevicePrimaryCtxRetain);
CALL(primary_get_state, cuDevicePrimaryCtxGetState);
CALL(ctx_get_current, cuCtxGetCurrent);
CALL(ctx_get_device, cuCtxGetDevice);
CALL(ctx_push, cuCtxPushCurrent);
CALL(ctx_pop, cuCtxPopCurrent);
CALL(ctx_enable_peer_access, cuCtxEnablePeerAccess);
CALL(device_can_access_peer, cuDeviceCanAccessPeer);
CALL(mem_get_info, cuMemGetInfo);
CALL(mem_alloc, cuMemAlloc);
CALL(mem_free, cuMemFree);
CALL(mem_alloc_managed, cuMemAllocManaged);
CALL(mem_host_alloc, cuMemHostAlloc);
CALL(mem_free_host, cuMemFreeHost);
CALL(mem_host_register, cuMemHostRegister);
CALL(mem_host_unregister, cuMemHostUnregister);
CALL(mem_host_get_device_pointer, cuMemHostGetDevicePointer);
CALL(mem_get_address_range, cuMemGetAddressRange);
CALL(pointer_get_attribute, cuPointerGetAttribute);
CALL(memcpy_htod_async, cuMemcpyHtoDAsync);
CALL(memcpy_dtoh_async, cuMemcpyDtoHAsync);
CALL(memcpy_dtod_async, cuMemcpyDtoDAsync);
CALL(memcpy_peer_async, cuMemcpyPeerAsync);
CALL(memcpy2d_async, cuMemcpy2DAsync);
CALL(memcpy3d_async, cuMemcpy3DAsync);
CALL(stream_create, cuStreamCreate);
CALL(stream_destroy, cuStreamDestroy);
CALL(stream_synchronize, cuStreamSynchronize);
CALL(stream_query, cuStreamQuery);
CALL(stream_get_ctx, cuStreamGetCtx);
CALL(stream_wait_event, cuStreamWaitEvent);
CALL(launch_host_func, cuLaunchHostFunc);
CALL(event_create, cuEventCreate);
CALL(event_record, cuEventRecord);
CALL(event_query, cuEventQuery);
CALL(event_synchronize, cuEventSynchronize);
CALL(event_destroy, cuEventDestroy);
CALL(ipc_get_mem_handle, cuIpcGetMemHandle);
CALL(ipc_open_mem_handle, cuIpcOpenMemHandle);
CALL(ipc_close_mem_handle, cuIpcCloseMemHandle);
CALL(mem_create, cuMemCreate);
CALL(mem_release, cuMemRelease);
CALL(mem_address_reserve, cuMemAddressReserve);
CALL(mem_address_free, cuMemAddressFree);
CALL(mem_map, cuMemMap);
CALL(mem_unmap, cuMemUnmap);
CALL(mem_set_access, cuMemSetAccess);
CALL(mem_export, cuMemExportToShareableHandle);
CALL(mem_import, cuMemImportFromShareableHandle);
CALL(mem_get_granularity, cuMemGetAllocationGranularity);
CALL(mem_get_prop, cuMemGetAllocationPropertiesFromHandle);
CALL(mem_retain_handle, cuMemRetainAllocationHandle);
CALL(stream_write64, cuStreamWriteValue64);
CALL(stream_wait64, cuStreamWaitValue64);
CALL(stream_batch, cuStreamBatchMemOp);
CALL(mem_alloc_async, cuMemAllocAsync);
CALL(mem_free_async, cuMemFreeAsync);
CALL(mem_advise2, cuMemAdvise_v2);
CALL(mem_prefetch2, cuMemPrefetchAsync_v2);
#if CUDA_VERSION < 13000
CALL(mem_advise1, cuMemAdvise);
CALL(mem_prefetch1, cuMemPrefetchAsync);
#else /* this header has the second versions only */
constexpr bool compared_mem_advise1 = true, compared_mem_prefetch1 = true;
#endif
CALL(import_external, cuImportExternalMemory);
CALL(external_get_buffer, cuExternalMemoryGetMappedBuffer);
CALL(external_destroy, cuDestroyExternalMemory);

/* Every call of the table is in the list above. */
#define COMPARED(name, symbol, parameters) static_assert(compared_##name, "");
TB__CUDA_NEEDED(COMPARED)
TB__CUDA_OPTIONAL(COMPARED)

/* ------------------------------------------------------------------ structs */

#define SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs), #ours " has another size")
#define FIELD(ours, a, theirs, b)                                                                  \
    static_assert(offsetof(ours, a) == offsetof(theirs, b) &&                                      \
                      sizeof(((ours *)nullptr)->a) == sizeof(((theirs *)nullptr)->b),              \
                  #ours "." #a " is elsewhere")

SIZE(uint64_t, CUdeviceptr);
SIZE(int, CUdevice);
SIZE(int, CUresult);
SIZE(unsigned long long, CUmemGenericAllocationHandle);
SIZE(tb__cuda_uuid, CUuuid);
SIZE(tb__ipc_handle, CUipcMemHandle);
SIZE(tb__mem_location, CUmemLocation);
FIELD(tb__mem_location, type, CUmemLocation, type);
FIELD(tb__mem_location, id, CUmemLocation, id);
SIZE(tb__mem_prop, CUmemAllocationProp);
FIELD(tb__mem_prop, type, CUmemAllocationProp, type);
FIELD(tb__mem_prop, requested_handle_types, CUmemAllocationProp, requestedHandleTypes);
FIELD(tb__mem_prop, location, CUmemAllocationProp, location);
FIELD(tb__mem_prop, compression_type, CUmemAllocationProp, allocFlags.compressionType);
FIELD(tb__mem_prop, gpu_direct_rdma_capable, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
FIELD(tb__mem_prop, usage, CUmemAllocationProp, allocFlags.usage);
SIZE(tb__mem_access, CUmemAccessDesc);
FIELD(tb__mem_access, flags, CUmemAccessDesc, flags);
SIZE(tb__mem_op, CUstreamBatchMemOpParams);
FIELD(tb__mem_op, operation, CUstreamBatchMemOpParams, operation);
FIELD(tb__mem_op, address, CUstreamBatchMemOpParams, waitValue.address);
FIELD(tb__mem_op, value, CUstreamBatchMemOpParams, waitValue.value64);
FIELD(tb__mem_op, flags, CUstreamBatchMemOpParams, waitValue.flags);
FIELD(tb__mem_op, alias, CUstreamBatchMemOpParams, waitValue.alias);
FIELD(tb__mem_op, address, CUstreamBatchMemOpParams, writeValue.address);
FIELD(tb__mem_op, value, CUstreamBatchMemOpParams, writeValue.value64);
FIELD(tb__mem_op, flags, CUstreamBatchMemOpParams, writeValue.flags);
SIZE(tb__memcpy2d, CUDA_MEMCPY2D);
FIELD(tb__memcpy2d, src_type, CUDA_MEMCPY2D, srcMemoryType);
FIELD(tb__memcpy2d, src_host, CUDA_MEMCPY2D, srcHost);
FIELD(tb__memcpy2d, src_device, CUDA_MEMCPY2D, srcDevice);
FIELD(tb__memcpy2d, src_pitch, CUDA_MEMCPY2D, srcPitch);
FIELD(tb__memcpy2d, dst_type, CUDA_MEMCPY2D, dstMemoryType);
FIELD(tb__memcpy2d, dst_host, CUDA_MEMCPY2D, dstHost);
FIELD(tb__memcpy2d, dst_device, CUDA_MEMCPY2D, dstDevice);
FIELD(tb__memcpy2d, dst_pitch, CUDA_MEMCPY2D, dstPitch);
FIELD(tb__memcpy2d, width_bytes, CUDA_MEMCPY2D, WidthInBytes);
FIELD(tb__memcpy2d, height, CUDA_MEMCPY2D, Height);
SIZE(tb__memcpy3d, CUDA_MEMCPY3D);
FIELD(tb__memcpy3d, src_type, CUDA_MEMCPY3D, srcMemoryType);
FIELD(tb__memcpy3d, src_host, CUDA_MEMCPY3D, srcHost);
FIELD(tb__memcpy3d, src_device, CUDA_MEMCPY3D, srcDevice);
FIELD(tb__memcpy3d, src_pitch, CUDA_MEMCPY3D, srcPitch);
FIELD(tb__memcpy3d, src_height, CUDA_MEMCPY3D, srcHeight);
FIELD(tb__memcpy3d, dst_type, CUDA_MEMCPY3D, dstMemoryType);
FIELD(tb__memcpy3d, dst_host, CUDA_MEMCPY3D, dstHost);
FIELD(tb__memcpy3d, dst_device, CUDA_MEMCPY3D, dstDevice);
FIELD(tb__memcpy3d, dst_pitch, CUDA_MEMCPY3D, dstPitch);
FIELD(tb__memcpy3d, dst_height, CUDA_MEMCPY3D, dstHeight);
FIELD(tb__memcpy3d, width_bytes, CUDA_MEMCPY3D, WidthInBytes);
FIELD(tb__memcpy3d, height, CUDA_MEMCPY3D, Height);
FIELD(tb__memcpy3d, depth, CUDA_MEMCPY3D, Depth);
SIZE(tb__external_handle, CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
FIELD(tb__external_handle, type, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, type);
FIELD(tb__external_handle, handle, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, handle);
FIELD(tb__external_handle, size, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size);
FIELD(tb__external_handle, flags, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, flags);
SIZE(tb__external_buffer, CUDA_EXTERNAL_MEMORY_BUFFER_DESC);
FIELD(tb__external_buffer, offset, CUDA_EXTERNAL_MEMORY_BUFFER_DESC, offset);
FIELD(tb__external_buffer, size, CUDA_EXTERNAL_MEMORY_BUFFER_DESC, size);

/* ------------------------------------------------------------------ values */

#define VALUE(ours, theirs)                                                                        \
    static_assert((long)(ours) == (long)(theirs), #ours " is another number")
#define RESULT(name) VALUE(TB__CUDA_##name, CUDA_ERROR_##name)
#define ATTRIBUTE(name) VALUE(TB__ATTRIBUTE_##name, CU_DEVICE_ATTRIBUTE_##name)
#define POINTER(name) VALUE(TB__POINTER_##name, CU_POINTER_ATTRIBUTE_##name)
#define FLAG(name) VALUE(TB__##name, CU_##name)

VALUE(TB__CUDA_SUCCESS, CUDA_SUCCESS);
RESULT(INVALID_VALUE);
RESULT(OUT_OF_MEMORY);
RESULT(NOT_INITIALIZED);
RESULT(DEINITIALIZED);
RESULT(STUB_LIBRARY);
RESULT(DEVICE_UNAVAILABLE);
RESULT(NO_DEVICE);
RESULT(INVALID_DEVICE);
RESULT(INVALID_CONTEXT);
RESULT(MAP_FAILED);
RESULT(ALREADY_MAPPED);
RESULT(ECC_UNCORRECTABLE);
RESULT(PEER_ACCESS_UNSUPPORTED);
RESULT(NVLINK_UNCORRECTABLE);
RESULT(OPERATING_SYSTEM);
RESULT(INVALID_HANDLE);
RESULT(NOT_READY);
RESULT(ILLEGAL_ADDRESS);
RESULT(LAUNCH_TIMEOUT);
RESULT(PEER_ACCESS_ALREADY_ENABLED);
RESULT(CONTEXT_IS_DESTROYED);
RESULT(ASSERT);
RESULT(TOO_MANY_PEERS);
RESULT(HOST_MEMORY_ALREADY_REGISTERED);
RESULT(HOST_MEMORY_NOT_REGISTERED);
RESULT(HARDWARE_STACK_ERROR);
RESULT(ILLEGAL_INSTRUCTION);
RESULT(MISALIGNED_ADDRESS);
RESULT(INVALID_ADDRESS_SPACE);
RESULT(INVALID_PC);
RESULT(LAUNCH_FAILED);
RESULT(NOT_PERMITTED);
RESULT(NOT_SUPPORTED);
RESULT(SYSTEM_NOT_READY);
RESULT(SYSTEM_DRIVER_MISMATCH);
RESULT(COMPAT_NOT_SUPPORTED_ON_DEVICE);
RESULT(MPS_CONNECTION_FAILED);
RESULT(STREAM_CAPTURE_UNSUPPORTED);
RESULT(UNKNOWN);
#if CUDA_VERSION >= 12080
RESULT(CONTAINED);
#endif
ATTRIBUTE(MAX_PITCH);
ATTRIBUTE(INTEGRATED);
ATTRIBUTE(CAN_MAP_HOST_MEMORY);
ATTRIBUTE(UNIFIED_ADDRESSING);
ATTRIBUTE(COMPUTE_CAPABILITY_MAJOR);
ATTRIBUTE(COMPUTE_CAPABILITY_MINOR);
ATTRIBUTE(MANAGED_MEMORY);
ATTRIBUTE(PAGEABLE_MEMORY_ACCESS);
ATTRIBUTE(CONCURRENT_MANAGED_ACCESS);
ATTRIBUTE(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
ATTRIBUTE(HOST_REGISTER_SUPPORTED);
ATTRIBUTE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
ATTRIBUTE(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
ATTRIBUTE(READ_ONLY_HOST_REGISTER_SUPPORTED);
ATTRIBUTE(MEMORY_POOLS_SUPPORTED);
ATTRIBUTE(CAN_USE_64_BIT_STREAM_MEM_OPS);
ATTRIBUTE(DMA_BUF_SUPPORTED);
POINTER(MEMORY_TYPE);
POINTER(DEVICE_POINTER);
POINTER(IS_MANAGED);
POINTER(DEVICE_ORDINAL);
POINTER(IS_LEGACY_CUDA_IPC_CAPABLE);
POINTER(RANGE_START_ADDR);
POINTER(RANGE_SIZE);
POINTER(ALLOWED_HANDLE_TYPES);
POINTER(MEMPOOL_HANDLE);
POINTER(MAPPING_SIZE);
POINTER(MAPPING_BASE_ADDR);
FLAG(MEMORYTYPE_HOST);
FLAG(MEMORYTYPE_DEVICE);
FLAG(MEMHOSTALLOC_PORTABLE);
FLAG(MEMHOSTALLOC_DEVICEMAP);
FLAG(MEMHOSTREGISTER_PORTABLE);
FLAG(MEMHOSTREGISTER_DEVICEMAP);
FLAG(MEMHOSTREGISTER_READ_ONLY);
FLAG(MEM_ATTACH_GLOBAL);
FLAG(STREAM_NON_BLOCKING);
FLAG(STREAM_WAIT_VALUE_GEQ);
FLAG(STREAM_WRITE_VALUE_DEFAULT);
FLAG(STREAM_MEM_OP_WAIT_VALUE_64);
FLAG(STREAM_MEM_OP_WRITE_VALUE_64);
FLAG(EVENT_DISABLE_TIMING);
FLAG(IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
#if CUDA_VERSION >= 13000
FLAG(EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD);
#endif
FLAG(MEM_ALLOCATION_TYPE_PINNED);
FLAG(MEM_LOCATION_TYPE_DEVICE);
FLAG(MEM_LOCATION_TYPE_HOST);
VALUE(TB__MEM_HANDLE_TYPE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
VALUE(TB__MEM_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
VALUE(TB__MEM_ACCESS_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
VALUE(TB__MEM_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
FLAG(MEM_ADVISE_SET_READ_MOSTLY);
FLAG(MEM_ADVISE_UNSET_READ_MOSTLY);
FLAG(MEM_ADVISE_SET_PREFERRED_LOCATION);
FLAG(MEM_ADVISE_UNSET_PREFERRED_LOCATION);
FLAG(MEM_ADVISE_SET_ACCESSED_BY);
FLAG(MEM_ADVISE_UNSET_ACCESSED_BY);
FLAG(DEVICE_CPU);

/* ------------------------------------------------------------------ names */

/* The name that the library exports for a call is the one that this header maps it to. */
#define TEXT2(name) #name
#define TEXT(name) TEXT2(name)
constexpr bool equal(const char *a, const char *b)
{
    while (*a != '\0' && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}
static_assert(equal(TEXT(CU_STREAM_LEGACY), "((CUstream)0x1)"), "TB__STREAM_LEGACY");
static_assert(equal(TEXT(CU_STREAM_PER_THREAD), "((CUstream)0x2)"), "TB__STREAM_PER_THREAD");
struct symbols {
#define SYMBOL(name, symbol, parameters) static constexpr const char *name = symbol;
    TB__CUDA_NEEDED(SYMBOL)
    TB__CUDA_OPTIONAL(SYMBOL)
};
#define VERSION(ours, theirs)                                                                      \
    static_assert(equal(symbols::ours, TEXT(theirs)), #ours " is exported as " TEXT(theirs))
VERSION(device_total_mem, cuDeviceTotalMem);
VERSION(ctx_push, cuCtxPushCurrent);
VERSION(ctx_pop, cuCtxPopCurrent);
VERSION(mem_get_info, cuMemGetInfo);
VERSION(mem_alloc, cuMemAlloc);
VERSION(mem_free, cuMemFree);
VERSION(mem_host_alloc, cuMemHostAlloc);
VERSION(mem_host_register, cuMemHostRegister);
VERSION(mem_host_get_device_pointer, cuMemHostGetDevicePointer);
VERSION(mem_get_address_range, cuMemGetAddressRange);
VERSION(memcpy_htod_async, cuMemcpyHtoDAsync);
VERSION(memcpy_dtoh_async, cuMemcpyDtoHAsync);
VERSION(memcpy_dtod_async, cuMemcpyDtoDAsync);
VERSION(memcpy_peer_async, cuMemcpyPeerAsync);
VERSION(memcpy2d_async, cuMemcpy2DAsync);
VERSION(memcpy3d_async, cuMemcpy3DAsync);
VERSION(stream_destroy, cuStreamDestroy);
VERSION(event_destroy, cuEventDestroy);
VERSION(ipc_open_mem_handle, cuIpcOpenMemHandle);
VERSION(stream_write64, cuStreamWriteValue64);
VERSION(stream_wait64, cuStreamWaitValue64);
VERSION(stream_batch, cuStreamBatchMemOp);
VERSION(stream_create, cuStreamCreate);
VERSION(stream_wait_event, cuStreamWaitEvent);
VERSION(event_record, cuEventRecord);
VERSION(primary_retain, cuDevicePrimaryCtxRetain);
#if CUDA_VERSION >= 13000
VERSION(mem_advise2, cuMemAdvise);
VERSION(mem_prefetch2, cuMemPrefetchAsync);
#endif
