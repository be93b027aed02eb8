// The step's temporaries: see forward.h.
#include "layers/forward.h"

enum { ALIGNMENT = 256 };

size_t workspace_tensor_bytes(enum dtype dtype, int64_t rows, int64_t cols)
{
    size_t bytes = (size_t)rows * (size_t)cols * dtype_size(dtype);
    return (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
}

struct tensor workspace_tensor(struct workspace *workspace, enum dtype dtype, int64_t rows,
                               int64_t cols)
{
    size_t bytes = workspace_tensor_bytes(dtype, rows, cols);
    CHECK(bytes <= workspace->capacity_bytes - workspace->used_bytes);
    struct tensor tensor = tensor_2d(workspace->base + workspace->used_bytes, dtype, rows, cols);
    workspace->used_bytes += bytes;
    return tensor;
}
