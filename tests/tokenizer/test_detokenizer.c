#include "cmocka_setup.h"

#include "base/memory.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer_build.h"

/** Byte tokens <0x00> ... with ids 0 to 255, then some words; decoded as SentencePiece does. */
static struct tokenizer *make_byte_fallback(void)
{
    struct buf json = {0};
    buf_append_c(&json, "{'added_tokens':[{'id':260,'content':'<end>','special':true}],"
                        "'decoder':{'type':'Sequence','decoders':["
                        "{'type':'Replace','pattern':{'String':'_'},'content':' '},"
                        "{'type':'ByteFallback'},{'type':'Fuse'},"
                        "{'type':'Strip','content':' ','start':1,'stop':0}]},"
                        "'model':{'byte_fallback':true,'merges':[],'vocab':{");
    for (int byte = 0; byte < 256; byte++)
        buf_printf(&json, "'<0x%02X>':%d,", byte, byte);
    buf_append_c(&json, "'_a':256,'_b':257,'c':258,'\xEF\xBF\xBD':259}}}");
    buf_append_char(&json, '\0');
    struct tokenizer *tokenizer;
    struct error err = {0};
    if (parse_quoted(&tokenizer, json.ptr, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    buf_deinit(&json);
    return tokenizer;
}

enum { WORD_A = 256, WORD_B, LETTER_C, REPLACEMENT, END };

static struct tokenizer *load_tiny(void)
{
    struct tokenizer *tokenizer;
    struct error err = {0};
    if (tokenizer_load(&tokenizer, FIXTURES_DIR "/models/llama/tokenizer.json", &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return tokenizer;
}

static void check_stream(const struct tokenizer *tokenizer, const int32_t *prompt, int num_prompt,
                         const int32_t *ids, int num_ids, const char *const *deltas,
                         const char *rest)
{
    struct detokenizer *detokenizer = detokenizer_create(tokenizer, prompt, num_prompt, true);
    struct buf out = {0};
    for (int i = 0; i <= num_ids; i++) {
        buf_clear(&out);
        if (i < num_ids)
            detokenizer_step(detokenizer, ids[i], &out);
        else
            detokenizer_finish(detokenizer, &out);
        const char *expected = i < num_ids ? deltas[i] : rest;
        if (!str_eq_c(buf_str(&out), expected))
            fail_msg("step %d: expected '%s', found '%.*s'", i, expected, (int)out.len, out.ptr);
    }
    buf_deinit(&out);
    detokenizer_destroy(detokenizer);
}

static void character_of_several_tokens_comes_out_whole(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = make_byte_fallback();
    static const int32_t ids[] = {0xF0, 0x9F, 0xA6, 0x8A, WORD_A, LETTER_C};
    static const char *const deltas[] = {"", "", "", "\xF0\x9F\xA6\x8A", " a", "c"};
    check_stream(tokenizer, NULL, 0, ids, ARRAY_LEN(ids), deltas, "");
    tokenizer_destroy(tokenizer);
}

static void incomplete_character_comes_out_at_the_end(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = make_byte_fallback();
    static const int32_t ids[] = {WORD_A, 0xF0, 0x9F};
    static const char *const deltas[] = {"a", "", ""};
    check_stream(tokenizer, NULL, 0, ids, ARRAY_LEN(ids), deltas, "\xEF\xBF\xBD\xEF\xBF\xBD");
    tokenizer_destroy(tokenizer);
}

static void blank_is_stripped_at_the_start_of_text_only(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = make_byte_fallback();
    static const int32_t prompt[] = {WORD_B}, ids[] = {WORD_A, WORD_B};
    static const char *const first[] = {"a", " b"}, *const later[] = {" a", " b"};
    check_stream(tokenizer, NULL, 0, ids, 2, first, "");
    check_stream(tokenizer, prompt, 1, ids, 2, later, "");
    tokenizer_destroy(tokenizer);
}

static void special_and_unknown_ids_add_nothing(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = make_byte_fallback();
    static const int32_t ids[] = {WORD_A, END, 99999, -1, WORD_B};
    static const char *const deltas[] = {"a", "", "", "", " b"};
    check_stream(tokenizer, ids, ARRAY_LEN(ids), NULL, 0, NULL, "");
    check_stream(tokenizer, NULL, 0, ids, ARRAY_LEN(ids), deltas, "");
    struct detokenizer *detokenizer = detokenizer_create(tokenizer, NULL, 0, false);
    struct buf out = {0};
    detokenizer_step(detokenizer, END, &out);
    assert_true(str_eq_c(buf_str(&out), "<end>"));
    buf_deinit(&out);
    detokenizer_destroy(detokenizer);
    tokenizer_destroy(tokenizer);
}

static void added_tokens_are_joined_when_that_is_asked_for(void **state)
{
    (void)state;
    // Without a decoder tokens are joined by blanks.
    struct tokenizer *tokenizer;
    struct error err = {0};
    if (parse_quoted(&tokenizer,
                     "{'added_tokens':[{'id':2,'content':'<x>','special':true},"
                     "{'id':3,'content':'<y>','special':false}],'decoder':null,"
                     "'model':{'merges':[],'vocab':{'a':0,'b':1}}}",
                     &err) != STATUS_OK)
        fail_msg("%s", err.message);
    assert_true(tokenizer_is_added(tokenizer, 2) && tokenizer_is_added(tokenizer, 3));
    assert_false(tokenizer_is_added(tokenizer, 1) || tokenizer_is_added(tokenizer, 9));
    static const int32_t ids[] = {0, 2, 3, 2, 1, 2, 0, 0};
    static const char *const texts[] = {"a <x> <y> <x> b <x> a a", "a <x><y><x> b <x> a a"};
    for (int joins = 0; joins < 2; joins++) {
        struct detokenizer *detokenizer = detokenizer_create(tokenizer, NULL, 0, false);
        struct buf out = {0};
        if (joins)
            detokenizer_join_added_tokens(detokenizer);
        for (size_t i = 0; i < ARRAY_LEN(ids); i++)
            detokenizer_step(detokenizer, ids[i], &out);
        if (!str_eq_c(buf_str(&out), texts[joins]))
            fail_msg("'" STR_FORMAT "' is not '%s'", STR_ARG(buf_str(&out)), texts[joins]);
        buf_deinit(&out);
        detokenizer_destroy(detokenizer);
    }
    tokenizer_destroy(tokenizer);
}

static void prompt_that_ends_inside_a_character_does_not_leak(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = make_byte_fallback();
    static const int32_t prompt[] = {WORD_A, LETTER_C, WORD_B, 0xF0, 0x9F};
    static const int32_t completes[] = {0xA6, 0x8A, LETTER_C}, other[] = {LETTER_C, WORD_A};
    static const char *const completed[] = {"", "\xF0\x9F\xA6\x8A", "c"}, *const plain[] = {"c",
                                                                                            " a"};
    check_stream(tokenizer, prompt, ARRAY_LEN(prompt), completes, 3, completed, "");
    check_stream(tokenizer, prompt, ARRAY_LEN(prompt), other, 2, plain, "");
    check_stream(tokenizer, prompt, ARRAY_LEN(prompt), NULL, 0, NULL, "");

    // A real U+FFFD at the end of the prompt is a complete character.
    static const int32_t odd[] = {WORD_A, REPLACEMENT};
    check_stream(tokenizer, odd, 2, other, 2, plain, "");
    tokenizer_destroy(tokenizer);
}

/** Every cut of a text into prompt and output gives the same output text. */
static void every_cut_between_prompt_and_output_gives_the_rest(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = load_tiny();
    struct str text = STR("Graz \xF0\x9F\xA6\x8A, \xE8\xAA\x9E and \xC3\xA9 \xF0\x9F\x91\xA9"
                          "\xE2\x80\x8D\xF0\x9F\x9A\x80 the end");
    struct arena arena = {0};
    int32_t num_ids;
    int32_t *ids = tokenizer_encode(tokenizer, text, false, &arena, &num_ids);
    for (int32_t cut = 0; cut <= num_ids; cut++) {
        struct detokenizer *detokenizer = detokenizer_create(tokenizer, ids, cut, true);
        struct buf out = {0};
        for (int32_t i = cut; i < num_ids; i++)
            detokenizer_step(detokenizer, ids[i], &out);
        detokenizer_finish(detokenizer, &out);
        // The character that the cut goes through counts as output.
        struct str prompt = tokenizer_decode(tokenizer, ids, cut, true, &arena);
        while (cut < num_ids && str_ends_with(prompt, STR("\xEF\xBF\xBD")))
            prompt.len -= 3;
        assert_true(str_eq(buf_str(&out), str_slice(text, prompt.len, text.len)));
        buf_deinit(&out);
        detokenizer_destroy(detokenizer);
    }
    arena_deinit(&arena);
    tokenizer_destroy(tokenizer);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/** Any ids at all: pieces are valid UTF-8, and together they are the decoded text. */
static void pieces_of_random_ids_add_up_to_the_decoded_text(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = load_tiny();
    uint32_t random = 11;
    struct arena arena = {0};
    for (int run = 0; run < 300; run++) {
        int32_t ids[200];
        int32_t num_ids = 1 + (int32_t)(next_random(&random) % 200);
        int32_t range = run % 2 ? 512 : 200; // low ids are nearly all single bytes
        for (int32_t i = 0; i < num_ids; i++)
            ids[i] = (int32_t)(next_random(&random) % (uint32_t)range);
        struct detokenizer *detokenizer = detokenizer_create(tokenizer, NULL, 0, run % 3 == 0);
        struct buf all = {0}, piece = {0};
        for (int32_t i = 0; i <= num_ids; i++) {
            buf_clear(&piece);
            if (i < num_ids)
                detokenizer_step(detokenizer, ids[i], &piece);
            else
                detokenizer_finish(detokenizer, &piece);
            assert_true(utf8_is_valid(buf_str(&piece), NULL));
            buf_append(&all, buf_str(&piece));
        }
        assert_true(
            str_eq(buf_str(&all), tokenizer_decode(tokenizer, ids, num_ids, run % 3 == 0, &arena)));
        buf_deinit(&all);
        buf_deinit(&piece);
        detokenizer_destroy(detokenizer);
        arena_reset(&arena);
    }
    arena_deinit(&arena);
    tokenizer_destroy(tokenizer);
}

static void endless_noise_is_let_go_and_text_behind_it_is_right(void **state)
{
    (void)state;
    enum { NUM_NOISE = 3000 };
    struct tokenizer *fallback = make_byte_fallback(), *tiny = load_tiny();
    static const int32_t fox[] = {0xF0, 0x9F, 0xA6, 0x8A};
    struct arena arena = {0};
    int32_t num_fox;
    const int32_t *tiny_fox =
        tokenizer_encode(tiny, STR("\xF0\x9F\xA6\x8A"), false, &arena, &num_fox);
    for (int kind = 0; kind < 2; kind++) {
        const struct tokenizer *tokenizer = kind == 0 ? tiny : fallback;
        struct detokenizer *detokenizer = detokenizer_create(tokenizer, NULL, 0, true);
        struct buf out = {0};
        int32_t noise = kind == 0 ? tiny_fox[1] : 0xFF; // a byte that begins nothing
        for (int i = 0; i < NUM_NOISE; i++)
            detokenizer_step(detokenizer, noise, &out);
        assert_true(out.len > 3 * (NUM_NOISE - 300)); // nearly all of it is out
        if (kind == 1)
            detokenizer_step(detokenizer, WORD_A, &out); // ends the run
        for (int i = 0; i < (kind == 0 ? num_fox : 4); i++)
            detokenizer_step(detokenizer, kind == 0 ? tiny_fox[i] : fox[i], &out);
        assert_true(str_ends_with(buf_str(&out), STR("\xF0\x9F\xA6\x8A")));
        size_t num_marks = 0;
        for (size_t at = 0;
             (at = str_find(buf_str(&out), STR("\xEF\xBF\xBD"), at)) != STR_NOT_FOUND; at += 3)
            num_marks++;
        assert_int_equal(num_marks, NUM_NOISE);
        buf_deinit(&out);
        detokenizer_destroy(detokenizer);
    }
    arena_deinit(&arena);
    tokenizer_destroy(fallback);
    tokenizer_destroy(tiny);
}

static void decoders_spell_tokens_as_the_file_says(void **state)
{
    (void)state;
    static const struct {
        const char *decoder, *expected; // of the tokens a_ _b </w> b</w> <0x41>
    } cases[] = {
        {"null", "a_ _b b</w> <0x41>"},
        {"{'type':'Fuse'}", "a__bb</w><0x41>"},
        {"{'type':'ByteFallback'}", "a__bb</w>A"},
        {"{'type':'Metaspace','replacement':'_'}", "a bb</w><0x41>"},
        {"{'type':'Metaspace','replacement':'_','prepend_scheme':'never'}", "a  bb</w><0x41>"},
        {"{'type':'Metaspace','replacement':'_','add_prefix_space':false}", "a  bb</w><0x41>"},
        {"{'type':'BPEDecoder','suffix':'</w>'}", "a__bb <0x41>"},
        {"{'type':'Strip','content':'_','start':1,'stop':1}", "abb</w><0x41>"},
        {"{'type':'Replace','pattern':{'Regex':'[_<]'},'content':'-'}", "a--bb-/w>-0x41>"},
        {"{'type':'Sequence','decoders':[]}", "a__bb</w><0x41>"},
        {"{'type':'ByteLevel'}", "a__bb</w><0x41>"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf json = {0};
        buf_printf(&json,
                   "{'decoder':%s,'model':{'merges':[],'vocab':{'a_':0,'_b':1,'b</w>':2,"
                   "'<0x41>':3}}}",
                   cases[i].decoder);
        buf_append_char(&json, '\0');
        struct tokenizer *tokenizer;
        struct error err = {0};
        if (parse_quoted(&tokenizer, json.ptr, &err) != STATUS_OK)
            fail_msg("%s", err.message);
        static const int32_t ids[] = {0, 1, 2, 3};
        struct arena arena = {0};
        struct str text = tokenizer_decode(tokenizer, ids, 4, false, &arena);
        if (!str_eq_c(text, cases[i].expected))
            fail_msg("%s: found " STR_FORMAT, cases[i].decoder, STR_ARG(text));
        arena_deinit(&arena);
        tokenizer_destroy(tokenizer);
        buf_deinit(&json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(character_of_several_tokens_comes_out_whole),
        cmocka_unit_test(incomplete_character_comes_out_at_the_end),
        cmocka_unit_test(blank_is_stripped_at_the_start_of_text_only),
        cmocka_unit_test(special_and_unknown_ids_add_nothing),
        cmocka_unit_test(added_tokens_are_joined_when_that_is_asked_for),
        cmocka_unit_test(prompt_that_ends_inside_a_character_does_not_leak),
        cmocka_unit_test(every_cut_between_prompt_and_output_gives_the_rest),
        cmocka_unit_test(pieces_of_random_ids_add_up_to_the_decoded_text),
        cmocka_unit_test(endless_noise_is_let_go_and_text_behind_it_is_right),
        cmocka_unit_test(decoders_spell_tokens_as_the_file_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
