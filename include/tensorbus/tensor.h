/* Tensors: what data is, where it lies, and how it is laid out.
 *
 * A tb_tensor means the same as a DLPack tensor. It is plain data that borrows its memory: copying
 * the struct copies no elements, and nothing is freed with it. */
#ifndef TENSORBUS_TENSOR_H
#define TENSORBUS_TENSOR_H

#include <tensorbus/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TB_MAX_NDIM 8

/* Device: 0 is the CPU; TB_CUDA(n) is CUDA device n. */
typedef int32_t tb_device;
#define TB_CPU ((tb_device)0)
#define TB_CUDA(n) ((tb_device)(0x20000 | (n)))
#define TB_IS_CUDA(device) (((device) & ~0xffff) == 0x20000)
#define TB_CUDA_CURRENT TB_CUDA(0xffff) /* the device whose context is current, else device 0 */

/* dtype: DLPack's code, bits of one lane, lanes: code | bits << 8 | lanes << 16. */
typedef uint32_t tb_dtype;
#define TB_DTYPE(code, bits, lanes)                                                                \
    ((tb_dtype)((uint32_t)(code) | (uint32_t)(bits) << 8 | (uint32_t)(lanes) << 16))

/* DLPack 1.1 type codes. */
enum {
    TB_CODE_INT = 0,
    TB_CODE_UINT = 1,
    TB_CODE_FLOAT = 2,
    TB_CODE_OPAQUE = 3, /* a pointer: refused, it means nothing to another process */
    TB_CODE_BFLOAT = 4,
    TB_CODE_COMPLEX = 5,
    TB_CODE_BOOL = 6,
    TB_CODE_FLOAT8_E3M4 = 7,
    TB_CODE_FLOAT8_E4M3 = 8,
    TB_CODE_FLOAT8_E4M3B11FNUZ = 9,
    TB_CODE_FLOAT8_E4M3FN = 10,
    TB_CODE_FLOAT8_E4M3FNUZ = 11,
    TB_CODE_FLOAT8_E5M2 = 12,
    TB_CODE_FLOAT8_E5M2FNUZ = 13,
    TB_CODE_FLOAT8_E8M0FNU = 14,
    TB_CODE_FLOAT6_E2M3FN = 15,
    TB_CODE_FLOAT6_E3M2FN = 16,
    TB_CODE_FLOAT4_E2M1FN = 17
};

#define TB_I8 TB_DTYPE(TB_CODE_INT, 8, 1)
#define TB_I16 TB_DTYPE(TB_CODE_INT, 16, 1)
#define TB_I32 TB_DTYPE(TB_CODE_INT, 32, 1)
#define TB_I64 TB_DTYPE(TB_CODE_INT, 64, 1)
#define TB_U8 TB_DTYPE(TB_CODE_UINT, 8, 1)
#define TB_U16 TB_DTYPE(TB_CODE_UINT, 16, 1)
#define TB_U32 TB_DTYPE(TB_CODE_UINT, 32, 1)
#define TB_U64 TB_DTYPE(TB_CODE_UINT, 64, 1)
#define TB_F16 TB_DTYPE(TB_CODE_FLOAT, 16, 1)
#define TB_F32 TB_DTYPE(TB_CODE_FLOAT, 32, 1)
#define TB_F64 TB_DTYPE(TB_CODE_FLOAT, 64, 1)
#define TB_BF16 TB_DTYPE(TB_CODE_BFLOAT, 16, 1)
#define TB_C64 TB_DTYPE(TB_CODE_COMPLEX, 64, 1)
#define TB_C128 TB_DTYPE(TB_CODE_COMPLEX, 128, 1)
#define TB_BOOL TB_DTYPE(TB_CODE_BOOL, 8, 1)

typedef struct tb_tensor {
    void *data; /* first element; NULL is allowed when the tensor is empty */
    tb_device device;
    tb_dtype dtype;
    int32_t ndim;               /* 0 (scalar) to TB_MAX_NDIM */
    int32_t reserved;           /* 0 */
    int64_t shape[TB_MAX_NDIM]; /* elements; entries from ndim on are 0 */
    const int64_t *strides;     /* elements, borrowed; NULL = row-major */
} tb_tensor;

/** Bytes of one element.
 *  Returns: 0 for a dtype that has no whole bytes or that cannot be shared (opaque, unknown).
 *  Threads: any.   Waits: never.   Source: src/base/tensor.c */
TB_API size_t tb_dtype_bytes(tb_dtype dtype);

/** Write the name of a dtype, such as "uint8", "float32", "float8_e4m3fn", "float32x4".
 *  Owner:   buffer belongs to the caller, at least 32 bytes. Returns: buffer.
 *  Threads: any.   Waits: never.   Source: src/base/tensor.c */
TB_API const char *tb_dtype_name(tb_dtype dtype, char buffer[32]);

/** Parse a dtype name: ours ("uint8"), NumPy's type string ("|u1", "<f4"), PyTorch's
 *  ("torch.float32").
 *  Returns: TB_OK, TB_E_INVALID.   Threads: any.   Waits: never.   Source: src/base/tensor.c */
TB_API TB_MUST_USE tb_status tb_dtype_parse(const char *name, tb_dtype *out);

/** Packed size of a tensor.
 *  Units:   *out in bytes: product of the dimensions times the element size; 0 when one is 0.
 *  Returns: TB_OK, TB_E_INVALID (NULL, ndim, negative dimension, dtype), TB_E_LIMIT (overflow).
 *  Threads: any.   Waits: never.   Source: src/base/tensor.c */
TB_API TB_MUST_USE tb_status tb_tensor_bytes(const tb_tensor *tensor, size_t *out);

/** Whether a tensor's elements lie row-major without gaps.
 *  Returns: 1 or 0.   Threads: any.   Waits: never.   Source: src/base/tensor.c */
TB_API int tb_tensor_is_packed(const tb_tensor *tensor);

/** Write "uint8[1080, 1920, 3]".
 *  Owner:   buffer belongs to the caller, `size` bytes, always terminated. Returns: buffer.
 *  Threads: any.   Waits: never.   Source: src/base/tensor.c */
TB_API const char *tb_tensor_describe(const tb_tensor *tensor, char *buffer, size_t size);

#ifdef __cplusplus
}
#endif
#endif
