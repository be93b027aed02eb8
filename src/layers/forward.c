// The step's temporaries: see forward.h.
#include "layers/forward.h"

enum { ALIGNMENT = 64 };

size_t workspace_f32_bytes(int64_t rows, int64_t cols)
{
    size_t bytes = (size_t)rows * (size_t)cols * sizeof(float);
    return (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
}

struct tensor workspace_f32(struct workspace *workspace, int64_t rows, int64_t cols)
{
    size_t bytes = workspace_f32_bytes(rows, cols);
    CHECK(bytes <= workspace->capacity_bytes - workspace->used_bytes);
    struct tensor tensor =
        tensor_2d(workspace->base + workspace->used_bytes, DTYPE_F32, rows, cols);
    workspace->used_bytes += bytes;
    return tensor;
}
