// A tokenizer.json, then (behind the first zero byte) a text: whatever loads also encodes and
// decodes, with ids inside the vocabulary and text that is valid UTF-8.
#include <stddef.h>
#include <stdint.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(struct str text)
{
    CHECK(utf8_is_valid(text, NULL));
}

static void stream(const struct tokenizer *tokenizer, const int32_t *ids, int32_t num_ids,
                   int32_t num_prompt)
{
    struct detokenizer *detokenizer = detokenizer_create(tokenizer, ids, num_prompt, false);
    struct buf out = {0};
    for (int32_t i = num_prompt; i < num_ids; i++)
        detokenizer_step(detokenizer, ids[i], &out);
    detokenizer_finish(detokenizer, &out);
    check_text(buf_str(&out));
    buf_deinit(&out);
    detokenizer_destroy(detokenizer);
}

static void use(const struct tokenizer *tokenizer, struct str text)
{
    struct arena arena = {0};
    for (int special = 0; special < 2; special++) {
        int32_t num_ids;
        int32_t *ids = tokenizer_encode(tokenizer, text, special == 1, &arena, &num_ids);
        for (int32_t i = 0; i < num_ids; i++)
            CHECK(ids[i] >= 0 && ids[i] < tokenizer_vocab_size(tokenizer));
        check_text(tokenizer_decode(tokenizer, ids, num_ids, false, &arena));
        check_text(tokenizer_decode(tokenizer, ids, num_ids, true, &arena));
        if (num_ids < 1000)
            stream(tokenizer, ids, num_ids, special == 1 ? num_ids / 2 : 0);
        arena_reset(&arena);
    }
    // Ids that no encoder gives: the bytes of the text.
    int32_t *ids = arena_array(&arena, int32_t, text.len);
    int32_t num_ids = 0;
    for (size_t i = 0; i < text.len && i < 500; i++)
        ids[num_ids++] = (unsigned char)text.ptr[i];
    check_text(tokenizer_decode(tokenizer, ids, num_ids, true, &arena));
    stream(tokenizer, ids, num_ids, 0);
    CHECK(tokenizer_max_token_bytes(tokenizer) > 0);
    arena_deinit(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str json = {(const char *)data, size}, text = {0};
    const void *zero = size > 0 ? memchr(data, 0, size) : NULL;
    if (zero) {
        json.len = (size_t)((const char *)zero - json.ptr);
        text = str_slice((struct str){(const char *)data, size}, json.len + 1, size);
    }
    struct tokenizer *tokenizer;
    struct error err;
    if (tokenizer_parse(&tokenizer, json, "fuzz", &err) == STATUS_OK)
        use(tokenizer, text);
    tokenizer_destroy(tokenizer);
    return 0;
}
