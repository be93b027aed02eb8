// Whether all kernels of products add up k in the same order: then a row has the same bits
// whichever of them multiplies it, and batch-invariant products may take the fastest one for each
// number of rows.
//
// The tensor cores add 16 products at a time to a float32 accumulator. A kernel that walks k from
// its start to its end with one accumulator does so alike whatever its tiles are; our own does, and
// those of cuBLASLt seem to, but nobody promises it and the library is the machine's. So it is
// tried before the first product, with numbers of uneven sizes, and where bits differ one kernel
// of cuBLASLt multiplies any number of rows.
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "ops/cuda/cuda_backend.h"

enum { TRIAL_ROWS = 2304 };

/** Memory of a trial. */
struct trial {
    struct device *dev;
    struct tensor x, out;
    struct weight weight;
    char *got, *wanted; // in host memory
};

static void fill_unevenly(struct device *dev, void *dst, int64_t count, uint64_t state)
{
    static const float SIZES[] = {1.0f / 256, 1.0f / 64, 1.0f / 16, 1.0f / 4, 1, 2, 4, 16};
    uint16_t *elements = xmalloc((size_t)count * sizeof(*elements));
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        float x = ((float)(state >> 40 & 0xffff) / 65536 - 0.5f) * SIZES[state >> 61];
        elements[i] = dev->activation_dtype == DTYPE_F16 ? f32_to_f16(x) : f32_to_bf16(x);
    }
    dev->ops.copy_in(dev, dst, elements, (size_t)count * sizeof(*elements));
    free(elements);
}

/** Whether the first `rows` rows of x come out as they did among all. */
static bool agrees(struct trial *t, int64_t rows)
{
    struct tensor out = tensor_rows(t->out, 0, rows);
    op_matmul(t->dev, out, tensor_rows(t->x, 0, rows), &t->weight);
    t->dev->ops.copy_out(t->dev, t->got, out.data, tensor_bytes(out));
    return memcmp(t->got, t->wanted, tensor_bytes(out)) == 0;
}

static bool try_shape(struct device *dev, char *memory, int64_t n, int64_t k)
{
    static const int64_t COUNTS[] = {1, 17, 64, 128, 129, 256, 320, 513, 1024, 1536, 2048};
    struct cuda_backend *cuda = cuda_backend_of(dev);
    struct trial t = {.dev = dev};
    t.weight = (struct weight){
        .form = cuda_dense_form(dev), .out_features = n, .in_features = k, .data = memory};
    t.x = tensor_2d(memory + n * k * 2, dev->activation_dtype, TRIAL_ROWS, k);
    t.out = tensor_2d((char *)t.x.data + tensor_bytes(t.x), dev->activation_dtype, TRIAL_ROWS, n);
    t.got = xmalloc(tensor_bytes(t.out));
    t.wanted = xmalloc(tensor_bytes(t.out));
    fill_unevenly(dev, memory, n * k, 1);
    fill_unevenly(dev, t.x.data, TRIAL_ROWS * k, 2);
    cuda->sums_agree = false;
    op_matmul(dev, t.out, t.x, &t.weight);
    dev->ops.copy_out(dev, t.wanted, t.out.data, tensor_bytes(t.out));
    cuda->sums_agree = true;
    bool is_alike = true;
    for (size_t i = 0; i < ARRAY_LEN(COUNTS) && is_alike; i++)
        is_alike = agrees(&t, COUNTS[i]);
    free(t.got);
    free(t.wanted);
    return is_alike;
}

enum status cuda_try_sum_order(struct device *dev, struct error *err)
{
    static const int64_t SHAPES[][2] = {{2048, 1024}, {1024, 2048}, {640, 576}};
    struct cuda_backend *cuda = cuda_backend_of(dev);
    int64_t most = 0;
    for (size_t i = 0; i < ARRAY_LEN(SHAPES); i++) {
        int64_t n = SHAPES[i][0], k = SHAPES[i][1];
        most = max_i64(most, n * k + TRIAL_ROWS * (n + k));
    }
    const size_t size_bytes = (size_t)most * sizeof(uint16_t);
    char *memory = dev->ops.alloc(dev, size_bytes);
    if (!memory)
        return error_set(err, STATUS_OUT_OF_MEMORY,
                         "%zu bytes of GPU memory to compare products in were refused", size_bytes);
    bool is_alike = true;
    for (size_t i = 0; i < ARRAY_LEN(SHAPES) && is_alike; i++)
        is_alike = try_shape(dev, memory, SHAPES[i][0], SHAPES[i][1]);
    cuda->sums_agree = is_alike;
    dev->ops.free(dev, memory);
    if (!is_alike)
        log_warning("This cuBLASLt adds up products in another order than our kernels: to be "
                    "batch-invariant, one of its kernels multiplies any number of rows, which "
                    "makes decoding slower");
    return dev->ops.synchronize(dev, err);
}
