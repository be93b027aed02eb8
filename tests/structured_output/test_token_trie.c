// Masks over real vocabularies: what the automaton allows token by token is what it allows byte by
// byte, for byte-level and for byte-fallback tokens.
#include "cmocka_setup.h"

#include <stdlib.h>
#include <string.h>

#include "message/byte_automaton.h"
#include "structured_output/choice_compiler.h"
#include "structured_output/token_trie.h"

static const char FALLBACK[] =
    "{\"added_tokens\":[{\"id\":261,\"content\":\"<end>\",\"special\":true,\"normalized\":false,"
    "\"single_word\":false,\"lstrip\":false,\"rstrip\":false}],"
    "\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":"
    "\"\\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<unk>\",\"merges\":[],"
    "\"vocab\":{\"<unk>\":256,\"a\":257,\"\\u2581a\":258,\"\\u00f6\":259,\"\\u2581\":260";

/** A vocabulary of 256 byte tokens and a few words, as SentencePiece makes them. */
static struct tokenizer *fallback_tokenizer(void)
{
    struct buf json = {0};
    buf_append_c(&json, FALLBACK);
    for (int byte = 0; byte < 256; byte++)
        buf_printf(&json, ",\"<0x%02X>\":%d", byte, byte);
    buf_append_c(&json, "}}}");
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    if (tokenizer_parse(&tokenizer, buf_str(&json), "fallback", &err) != STATUS_OK)
        fail_msg("%s", err.message);
    buf_deinit(&json);
    return tokenizer;
}

static struct tokenizer *demo_tokenizer(void)
{
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    if (tokenizer_load(&tokenizer, MODELS_DIR "/demo/tokenizer.json", &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return tokenizer;
}

/** Compares the mask in every state that a walk along `text` meets with each token's own walk. */
static void check_masks(const struct tokenizer *tokenizer, const char *const *choices, int32_t num)
{
    struct arena arena = {0};
    struct str texts[8];
    for (int32_t i = 0; i < num; i++)
        texts[i] = str_from(choices[i]);
    const uint32_t *words;
    int32_t num_words, vocab_size = tokenizer_vocab_size(tokenizer);
    struct error err = {0};
    assert_int_equal(choice_compile(texts, num, &arena, &words, &num_words, &err), STATUS_OK);
    struct token_trie *trie = token_trie_create(tokenizer);
    uint32_t *mask = arena_array(&arena, uint32_t, token_mask_words(vocab_size));
    for (int32_t state = 0; state < (int32_t)words[0]; state++) {
        bool any = token_trie_mask(trie, words, state, mask, vocab_size), expected_any = false;
        for (int32_t id = 0; id < vocab_size; id++) {
            struct str bytes = tokenizer_token_bytes(tokenizer, id, &arena);
            int32_t next = bytes.len > 0 ? state : AUTOMATON_DEAD;
            for (size_t i = 0; i < bytes.len && next != AUTOMATON_DEAD; i++)
                next = byte_automaton_step(words, next, (uint8_t)bytes.ptr[i]);
            assert_int_equal(token_mask_has(mask, id), next != AUTOMATON_DEAD);
            assert_int_equal(token_trie_step(trie, words, state, id), next);
            expected_any |= next != AUTOMATON_DEAD;
        }
        assert_int_equal(any, expected_any);
        if (!byte_automaton_accepts(words, state)) // each byte is a token: no dead end
            assert_true(any);
    }
    assert_false(token_trie_mask(trie, words, AUTOMATON_DEAD, mask, vocab_size));
    token_trie_destroy(trie);
    arena_deinit(&arena);
}

static const char *const texts[] = {"größe", "東京", "x <|im_end|> y", " a", "\xF0\x9F\xA6\x8A"};

static void masks_of_a_byte_level_vocabulary_are_those_of_its_bytes(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = demo_tokenizer();
    check_masks(tokenizer, texts, 5);
    tokenizer_destroy(tokenizer);
}

static void byte_fallback_tokens_count_as_their_byte(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = fallback_tokenizer();
    struct arena arena = {0};
    assert_true(str_eq(tokenizer_token_bytes(tokenizer, 0xC3, &arena), STR("\xC3")));
    assert_true(str_eq(tokenizer_token_bytes(tokenizer, 258, &arena), STR(" a")));
    assert_int_equal(tokenizer_token_bytes(tokenizer, 261, &arena).len, 0);
    arena_deinit(&arena);
    check_masks(tokenizer, texts, 5);
    tokenizer_destroy(tokenizer);
}

static void special_tokens_stand_for_no_text(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = demo_tokenizer();
    struct token_trie *trie = token_trie_create(tokenizer);
    int32_t end = tokenizer_token_to_id(tokenizer, STR("<|im_end|>"));
    assert_true(end >= 0);
    assert_false(token_trie_has_text(trie, end));
    assert_false(token_trie_has_text(trie, -1));
    assert_false(token_trie_has_text(trie, tokenizer_vocab_size(tokenizer)));
    token_trie_destroy(trie);
    tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_of_a_byte_level_vocabulary_are_those_of_its_bytes),
        cmocka_unit_test(byte_fallback_tokens_count_as_their_byte),
        cmocka_unit_test(special_tokens_stand_for_no_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
