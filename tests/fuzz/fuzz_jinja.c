// Any bytes as a chat template, rendered over a fixed conversation: it may fail, no more.
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "tokenizer/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char conversation[] =
    "[{\"role\":\"system\",\"content\":\" Be nice. \"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"h\\u00e9 <b>\"},"
    "{\"type\":\"image\"}]},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"function\":"
    "{\"name\":\"f\",\"arguments\":{\"x\":1,\"y\":[true,null,2.5]}}}]},"
    "{\"role\":\"user\",\"content\":\"a\\nb\"}]";
static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"x\":{\"type\":\"integer\"}}}}}]";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct chat_template *compiled;
    struct str source = {(const char *)data, size};
    if (chat_template_compile(&compiled, source, NULL) != STATUS_OK)
        return 0;
    json_t *messages = json_loads(conversation, 0, NULL);
    json_t *functions = json_loads(tools, 0, NULL);
    for (int continued = 0; continued < 2; continued++) {
        struct chat_template_inputs inputs = {
            .messages = messages,
            .tools = functions,
            .add_generation_prompt = !continued,
            .continue_final_message = continued,
        };
        struct arena arena = {0};
        struct str prompt;
        struct error err;
        if (chat_template_render(compiled, &inputs, &arena, &prompt, &err) == STATUS_OK &&
            prompt.len > 64 * 1024 * 1024)
            abort(); // over every bound
        arena_deinit(&arena);
    }
    json_decref(messages);
    json_decref(functions);
    chat_template_destroy(compiled);
    return 0;
}
