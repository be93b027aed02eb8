// Descriptions of matrices for bulk tensor copies, made on the host by the driver.
#pragma once

#include <cuda.h> // CUtensorMap
#include <cuda_runtime.h>
#include <stdint.h>

typedef CUresult tensor_map_encoder(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/** The driver's cuTensorMapEncodeTiled(); NULL: it has none. */
static inline tensor_map_encoder *find_tensor_map_encoder(void)
{
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;
    bool is_there = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                                     cudaEnableDefault, &found) == cudaSuccess &&
                    found == cudaDriverEntryPointSuccess;
    return is_there ? (tensor_map_encoder *)encode : NULL;
}

/** A row-major matrix of 2-byte elements, or of bytes. */
struct mapped_matrix {
    void *data;
    int64_t rows, columns, row_stride; // in elements
    bool is_f16, is_bytes;
};

/** Describes boxes of `box_rows` by 128 bytes of columns, which lie in shared memory in rows of 128
 *  bytes swizzled by 128; what is outside of the matrix reads as zeros. False: the driver cannot.
 */
static inline bool tensor_map_encode(CUtensorMap *map, const struct mapped_matrix *m, int box_rows)
{
    tensor_map_encoder *encode = find_tensor_map_encoder();
    const CUtensorMapDataType wide =
        m->is_f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const int size = m->is_bytes ? 1 : 2;
    const cuuint64_t shape[2] = {(cuuint64_t)m->columns, (cuuint64_t)m->rows};
    const cuuint64_t stride[1] = {(cuuint64_t)(m->row_stride * size)};
    const cuuint32_t box[2] = {(cuuint32_t)(128 / size), (cuuint32_t)box_rows}, step[2] = {1, 1};
    return m->rows <= INT32_MAX && encode &&
           encode(map, m->is_bytes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : wide, 2, m->data, shape,
                  stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
