// Any bytes as a safetensors file: refused, or every tensor lies within them.
#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"
#include "model_loader/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors file;
    struct error err = {0};
    struct str bytes = {(const char *)data, size};
    if (safetensors_parse(&file, bytes, "fuzz", &err) != STATUS_OK) {
        CHECK(err.message[0] != '\0');
        return 0;
    }
    size_t covered = 0;
    unsigned sum = 0;
    for (size_t i = 0; i < file.num_tensors; i++) {
        const struct safetensor *tensor = &file.tensors[i];
        CHECK(safetensors_find(&file, tensor->name) == tensor);
        for (size_t b = 0; b < tensor->size_bytes; b++)
            sum += ((const uint8_t *)tensor->data)[b];
        covered += tensor->size_bytes;
    }
    CHECK(covered <= size && sum <= covered * UINT8_MAX);
    safetensors_close(&file);
    return 0;
}
