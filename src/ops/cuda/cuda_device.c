// A GPU as a device: what it must be, its memory, copies, recordings, and where its errors surface.
//
// One stream carries all work, so operations and copies run in the order of their calls. The
// runtime is linked in and finds the driver by itself when it is first used; a machine without one
// is told from its answer.
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_sizes.h"

enum { COMPUTE_MAJOR = 9, COMPUTE_MINOR = 0 }; // what the kernels are compiled for

bool cuda_is_available(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

static void cuda_close(struct device *dev)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    if (!cuda)
        return;
    cuda_plans_destroy(cuda->plans);
    cuda_f8_close(cuda);
    cublaslt_close(cuda->cublaslt);
    for (int i = 0; i < MAX_MARKS; i++) {
        if (cuda->marks[i])
            cudaEventDestroy(cuda->marks[i]);
    }
    if (cuda->stream)
        cudaStreamDestroy(cuda->stream);
    free(cuda);
    dev->backend = NULL;
}

static void *cuda_alloc(struct device *dev, size_t size_bytes)
{
    (void)dev;
    void *ptr = NULL;
    if (cudaMalloc(&ptr, size_bytes ? size_bytes : 1) == cudaSuccess)
        return ptr;
    (void)cudaGetLastError(); // told by the NULL
    return NULL;
}

static void cuda_free(struct device *dev, void *ptr)
{
    cuda_note(cuda_backend_of(dev), cudaFree(ptr));
}

static void cuda_copy_in(struct device *dev, void *dst, const void *host_src, size_t size_bytes)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    cuda_plans_forget(cuda->plans);
    cuda_note(cuda,
              cudaMemcpyAsync(dst, host_src, size_bytes, cudaMemcpyHostToDevice, cuda->stream));
    cuda_note(cuda, cudaStreamSynchronize(cuda->stream));
}

static void cuda_copy_out(struct device *dev, void *host_dst, const void *src, size_t size_bytes)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    cuda_note(cuda,
              cudaMemcpyAsync(host_dst, src, size_bytes, cudaMemcpyDeviceToHost, cuda->stream));
    cuda_note(cuda, cudaStreamSynchronize(cuda->stream));
}

static void *cuda_alloc_staging(struct device *dev, size_t size_bytes)
{
    (void)dev;
    void *ptr = NULL;
    if (cudaHostAlloc(&ptr, size_bytes ? size_bytes : 1, cudaHostAllocDefault) == cudaSuccess)
        return ptr;
    (void)cudaGetLastError();
    return NULL;
}

static void cuda_free_staging(struct device *dev, void *ptr)
{
    if (ptr)
        cuda_note(cuda_backend_of(dev), cudaFreeHost(ptr));
}

static void cuda_upload(struct device *dev, void *dst, const void *staging, size_t size_bytes)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    cuda_plans_forget(cuda->plans);
    if (size_bytes > 0)
        cuda_note(cuda,
                  cudaMemcpyAsync(dst, staging, size_bytes, cudaMemcpyHostToDevice, cuda->stream));
}

static void cuda_copy_rows(struct device *dev, void *dst, size_t dst_pitch_bytes, const void *src,
                           size_t src_pitch_bytes, size_t row_bytes, size_t num_rows)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    if (row_bytes > 0 && num_rows > 0)
        cuda_note(cuda, cudaMemcpy2DAsync(dst, dst_pitch_bytes, src, src_pitch_bytes, row_bytes,
                                          num_rows, cudaMemcpyDeviceToDevice, cuda->stream));
}

static void cuda_download(struct device *dev, void *staging, const void *src, size_t size_bytes)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    if (size_bytes > 0)
        cuda_note(cuda,
                  cudaMemcpyAsync(staging, src, size_bytes, cudaMemcpyDeviceToHost, cuda->stream));
}

/** What has failed since it was asked last. */
static enum status tell_failure(struct cuda_backend *cuda, struct error *err)
{
    cuda_note(cuda, cudaGetLastError()); // of launches, too
    cudaError_t failure = cuda->failure;
    cuda->failure = cudaSuccess;
    if (failure == cudaSuccess)
        return STATUS_OK;
    return error_set(err, STATUS_INTERNAL, "the GPU failed: %s (%s)", cudaGetErrorString(failure),
                     cudaGetErrorName(failure));
}

static enum status cuda_synchronize(struct device *dev, struct error *err)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    cuda_note(cuda, cudaStreamSynchronize(cuda->stream));
    return tell_failure(cuda, err);
}

static void cuda_set_mark(struct device *dev, int32_t mark)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    cuda_note(cuda, cudaEventRecord(cuda->marks[mark], cuda->stream));
}

static enum status cuda_wait_mark(struct device *dev, int32_t mark, struct error *err)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    cuda_note(cuda, cudaEventSynchronize(cuda->marks[mark]));
    return tell_failure(cuda, err);
}

static bool cuda_passed_mark(struct device *dev, int32_t mark)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    cudaError_t state = cudaEventQuery(cuda->marks[mark]);
    if (state == cudaErrorNotReady)
        (void)cudaGetLastError(); // that is no failure, but the runtime keeps it as one
    else
        cuda_note(cuda, state);
    return state != cudaErrorNotReady;
}

static void cuda_memory_info(struct device *dev, int64_t *total_bytes, int64_t *free_bytes)
{
    size_t free_now = 0, total = 0;
    cuda_note(cuda_backend_of(dev), cudaMemGetInfo(&free_now, &total));
    *total_bytes = (int64_t)total;
    *free_bytes = (int64_t)free_now;
}

static size_t cuda_own_bytes(const struct device *dev, const struct backend_needs *needs)
{
    return cuda_backend_bytes(needs, cuda_backend_of(dev)->properties.multiProcessorCount);
}

static enum status cuda_reserve(struct device *dev, const struct backend_needs *needs,
                                struct error *err)
{
    TRY(cuda_f8_reserve(dev, needs, err));
    return dev->is_batch_invariant ? cuda_try_sum_order(dev, err) : STATUS_OK;
}

static void cuda_record_begin(struct device *dev)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    cuda_plans_forget(cuda->plans); // a replay makes its own
    cuda_note(cuda, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal));
}

static void *cuda_record_end(struct device *dev)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cuda_plans_forget(cuda->plans);
    cudaError_t error = cudaStreamEndCapture(cuda->stream, &graph);
    if (error == cudaSuccess)
        error = cudaGraphInstantiate(&exec, graph, 0);
    if (error == cudaSuccess)
        error = cudaGraphUpload(exec, cuda->stream);
    if (graph)
        cudaGraphDestroy(graph);
    cuda_note(cuda, error);
    return exec;
}

static void cuda_replay(struct device *dev, void *recording)
{
    struct cuda_backend *cuda = cuda_backend_of(dev);
    cuda_plans_forget(cuda->plans);
    cuda_note(cuda, cudaGraphLaunch(recording, cuda->stream));
}

static void cuda_free_recording(struct device *dev, void *recording)
{
    cuda_note(cuda_backend_of(dev), cudaGraphExecDestroy(recording));
}

/** Says what the runtime's refusal means to somebody who can change it. */
static enum status refuse(cudaError_t error, struct error *err)
{
    switch (error) {
    case cudaErrorInsufficientDriver:
        return error_set(err, STATUS_UNSUPPORTED,
                         "no NVIDIA driver that can run CUDA %d.%d programs was found: install "
                         "driver 580 or newer, or use VLLM_TARGET_DEVICE=cpu",
                         CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    case cudaErrorNoDevice:
        return error_set(err, STATUS_UNSUPPORTED,
                         "no NVIDIA GPU is visible (CUDA_VISIBLE_DEVICES is \"%s\"): use "
                         "VLLM_TARGET_DEVICE=cpu",
                         getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "");
    case cudaErrorMemoryAllocation:
        return error_set(err, STATUS_OUT_OF_MEMORY, "the GPU has no memory left for a context");
    default:
        return error_set(err, STATUS_UNSUPPORTED, "CUDA cannot start: %s (%s)",
                         cudaGetErrorString(error), cudaGetErrorName(error));
    }
}

static enum status open_backend(struct cuda_backend *cuda, struct error *err)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count == 0)
        error = cudaErrorNoDevice;
    if (error == cudaSuccess)
        error = cudaGetDeviceProperties(&cuda->properties, 0);
    if (error != cudaSuccess)
        return refuse(error, err);
    if (cuda->properties.major != COMPUTE_MAJOR || cuda->properties.minor != COMPUTE_MINOR)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s has compute capability %d.%d: this build's kernels are for %d.%d "
                         "(H100, H200); use VLLM_TARGET_DEVICE=cpu",
                         cuda->properties.name, cuda->properties.major, cuda->properties.minor,
                         COMPUTE_MAJOR, COMPUTE_MINOR);
    error = cudaSetDevice(0);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);
    for (int i = 0; i < MAX_MARKS && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&cuda->marks[i], cudaEventDisableTiming);
    if (error != cudaSuccess)
        return refuse(error, err);
    return cublaslt_open(&cuda->cublaslt, err);
}

enum status cuda_device_init(struct device *dev, int32_t num_threads, struct error *err)
{
    struct cuda_backend *cuda = xcalloc(1, sizeof(*cuda));
    cuda->plans = cuda_plans_create();
    struct device planned;
    cuda_device_init_planned(&planned, num_threads); // its sizes are ours
    *dev = planned;
    dev->backend = cuda;
    dev->ops = (struct ops){
        .name = "cuda/sm90",
        .close = cuda_close,
        .alloc = cuda_alloc,
        .free = cuda_free,
        .copy_in = cuda_copy_in,
        .copy_out = cuda_copy_out,
        .alloc_staging = cuda_alloc_staging,
        .free_staging = cuda_free_staging,
        .upload = cuda_upload,
        .download = cuda_download,
        .copy_rows = cuda_copy_rows,
        .set_mark = cuda_set_mark,
        .wait_mark = cuda_wait_mark,
        .passed_mark = cuda_passed_mark,
        .synchronize = cuda_synchronize,
        .memory_info = cuda_memory_info,
        .own_bytes = cuda_own_bytes,
        .reserve = cuda_reserve,
        .prepared_weight_bytes = planned.ops.prepared_weight_bytes,
        .record_begin = cuda_record_begin,
        .record_end = cuda_record_end,
        .replay = cuda_replay,
        .free_recording = cuda_free_recording,
    };
    cuda_ops_fill(&dev->ops);
    enum status status = open_backend(cuda, err);
    if (status != STATUS_OK)
        device_deinit(dev);
    return status;
}
