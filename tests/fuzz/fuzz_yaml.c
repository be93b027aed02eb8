// The --config file: any bytes give words that begin with an option, or an error with a reason.
#include <stdint.h>
#include <stdlib.h>

#include "base/log.h"
#include "config/option_table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    log_set_level(LOG_LEVEL_ERROR);
    struct arena arena = {0};
    struct str_list words;
    const char *model = NULL;
    struct error err = {0};
    struct str text = {(const char *)data, size};
    if (options_yaml_parse(text, "file.yaml", &arena, &words, &model, &err) != STATUS_OK)
        CHECK(err.message[0] != '\0');
    else if (words.len > 0)
        CHECK(strncmp(words.items[0], "--", 2) == 0);
    arena_deinit(&arena);
    return 0;
}
