// Runs a fuzzer's entry point once over every file of a corpus folder, as an ordinary test.
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mapped_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv)
{
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    if (!dir) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return 2;
    }
    int num_files = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s", argv[1], entry->d_name);
        struct mapped_file file;
        struct error err;
        if (mapped_file_open(&file, path, &err) != STATUS_OK) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
        // A copy of the exact size, so that a read past the end is seen.
        uint8_t *copy = malloc(file.size ? file.size : 1);
        for (size_t i = 0; i < file.size; i++)
            copy[i] = (uint8_t)file.data[i];
        LLVMFuzzerTestOneInput(copy, file.size);
        free(copy);
        mapped_file_close(&file);
        num_files++;
    }
    closedir(dir);
    printf("%d inputs\n", num_files);
    return num_files > 0 ? 0 : 1;
}
