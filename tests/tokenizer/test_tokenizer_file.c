// What a tokenizer.json may say, and what is refused.
#include "cmocka_setup.h"

#include "base/memory.h"
#include "tokenizer/tokenizer_build.h"

#define AB_MODEL(members) "{'model':{'type':'BPE','vocab':{'a':0,'b':1,'ab':2}," members "}}"

static void wrong_files_are_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        enum status status;
        const char *message; // part of it
    } cases[] = {
        {"", STATUS_INVALID, "test.json: malformed JSON at byte 0"},
        {"[]", STATUS_INVALID, "expected an object, found an array"},
        {"{}", STATUS_INVALID, "no \"model\""},
        {"{'model':{}}", STATUS_INVALID, "no vocab"},
        {"{'model':{'vocab':{}}}", STATUS_INVALID, "no merges"},
        {"{'model':{'vocab':{},'merges':[]}} x", STATUS_INVALID, "more text"},
        {"{'model':{'vocab':{},'merges':[]},'model':{}}", STATUS_INVALID, "two models"},
        {"{'model':{'type':'Unigram','vocab':[]}}", STATUS_UNSUPPORTED, "'Unigram'"},
        {"{'model':{'vocab':{'a':-1},'merges':[]}}", STATUS_INVALID, "'a' has id -1"},
        {"{'model':{'vocab':{'a':16777216},'merges':[]}}", STATUS_INVALID, "16777216"},
        {"{'model':{'vocab':{'a':'x'},'merges':[]}}", STATUS_INVALID, "expected an integer"},
        {"{'model':{'vocab':{'a':0,'b':0},'merges':[]}}", STATUS_INVALID, "the same id 0"},
        {AB_MODEL("'merges':['a c']"), STATUS_INVALID, "line 1 of the merges: its right part 'c'"},
        {AB_MODEL("'merges':['#version: 0.2','a b','c a']"), STATUS_INVALID,
         "line 3 of the merges: its left part 'c'"},
        {AB_MODEL("'merges':['b a']"), STATUS_INVALID, "its result 'ba'"},
        {AB_MODEL("'merges':['ab']"), STATUS_INVALID, "one blank between them, found 'ab'"},
        {AB_MODEL("'merges':['a  b']"), STATUS_INVALID, "one blank between them"},
        {AB_MODEL("'merges':['a\xC2\xA0"
                  "b']"),
         STATUS_INVALID, "one blank between them"},
        {AB_MODEL("'merges':[['a']]"), STATUS_INVALID, "found 1 parts"},
        {AB_MODEL("'merges':[['a','b','a']]"), STATUS_INVALID, "found 3 parts"},
        {AB_MODEL("'merges':[7]"), STATUS_INVALID, "expected an array, found an integer"},
        {AB_MODEL("'merges':[],'dropout':0.1"), STATUS_UNSUPPORTED, "dropout"},
        {AB_MODEL("'merges':[],'unk_token':'?'"), STATUS_INVALID, "unk_token '?'"},
        {AB_MODEL("'merges':[],'end_of_word_suffix':'</w>'"), STATUS_UNSUPPORTED, "'</w>'"},
        {AB_MODEL("'merges':[],'continuing_subword_prefix':'##'"), STATUS_UNSUPPORTED, "'##'"},
        {"{'added_tokens':[{'id':0,'content':'<s>'}],'model':{'vocab':{'a':0},'merges':[]}}",
         STATUS_INVALID, "has id 0, which is that of 'a'"},
        {"{'added_tokens':[{'id':0}],'model':{'vocab':{'a':0},'merges':[]}}", STATUS_INVALID,
         "needs \"id\" and \"content\""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct tokenizer *tokenizer;
        struct error err = {0};
        enum status status = parse_quoted(&tokenizer, cases[i].json, &err);
        if (status != cases[i].status || !strstr(err.message, cases[i].message))
            fail_msg("%s\n  gave %s: %s", cases[i].json, status_name(status), err.message);
        assert_null(tokenizer);
    }
}

static void wrong_components_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *member;
        enum status status;
        const char *message;
    } cases[] = {
        {"'normalizer':7", STATUS_INVALID, "normalizer: expected an object"},
        {"'normalizer':{}", STATUS_INVALID, "\"type\" must be a string, found nothing"},
        {"'normalizer':{'type':'Precompiled'}", STATUS_UNSUPPORTED, "'Precompiled'"},
        {"'normalizer':{'type':'Prepend'}", STATUS_INVALID, "\"prepend\" must be a string"},
        {"'normalizer':{'type':'Replace','content':''}", STATUS_INVALID, "\"pattern\" must be"},
        {"'normalizer':{'type':'Replace','content':'','pattern':{'Regex':'('}}", STATUS_INVALID,
         "regular expression: missing closing parenthesis"},
        {"'normalizer':{'type':'Replace','content':'','pattern':{'Regex':'[a&&b]'}}",
         STATUS_UNSUPPORTED, "set operation"},
        {"'normalizer':{'type':'Replace','content':'','pattern':{'Regex':'[a[b]]'}}",
         STATUS_UNSUPPORTED, "set operation"},
        {"'normalizer':{'type':'Replace','content':'','pattern':{'Regex':'[a'}}", STATUS_INVALID,
         "not closed"},
        {"'pre_tokenizer':{'type':'UnicodeScripts'}", STATUS_UNSUPPORTED, "'UnicodeScripts'"},
        {"'pre_tokenizer':{'type':'Split','pattern':{'String':' '},'behavior':'Odd'}",
         STATUS_INVALID, "unknown behavior 'Odd'"},
        {"'pre_tokenizer':{'type':'Metaspace','replacement':'__'}", STATUS_INVALID,
         "must be one character"},
        {"'pre_tokenizer':{'type':'Metaspace','replacement':'_','prepend_scheme':'maybe'}",
         STATUS_INVALID, "'maybe'"},
        {"'post_processor':{'type':'Odd'}", STATUS_UNSUPPORTED, "'Odd'"},
        {"'post_processor':{'type':'TemplateProcessing','single':[]}", STATUS_UNSUPPORTED,
         "the text 0 times"},
        {"'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'x'}}]}",
         STATUS_INVALID, "'x' is not among its special_tokens"},
        {"'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'x'}}],"
         "'special_tokens':{'x':{'ids':[9]}}}",
         STATUS_INVALID, "an integer of 0 to 2"},
        {"'post_processor':{'type':'BertProcessing','cls':['a',0]}", STATUS_INVALID, "\"sep\""},
        {"'decoder':{'type':'WordPiece'}", STATUS_UNSUPPORTED, "'WordPiece'"},
        {"'decoder':{'type':'CTC'}", STATUS_UNSUPPORTED, "'CTC'"},
        {"'decoder':{'type':'Strip','content':' ','start':-1,'stop':0}", STATUS_INVALID,
         "\"start\" is -1"},
        {"'decoder':{'type':'Strip','content':'','start':1,'stop':0}", STATUS_INVALID,
         "one character"},
        {"'decoder':{'type':'Sequence'}", STATUS_INVALID, "\"decoders\" must be an array"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf json = {0};
        buf_printf(&json, "{%s,'model':{'vocab':{'a':0,'b':1,'ab':2},'merges':['a b']}}",
                   cases[i].member);
        buf_append_char(&json, '\0');
        struct tokenizer *tokenizer;
        struct error err = {0};
        enum status status = parse_quoted(&tokenizer, json.ptr, &err);
        if (status != cases[i].status || !strstr(err.message, cases[i].message))
            fail_msg("%s\n  gave %s: %s", cases[i].member, status_name(status), err.message);
        buf_deinit(&json);
    }
}

static void deep_sequences_are_refused(void **state)
{
    (void)state;
    for (int depth = 8; depth <= 9; depth++) {
        struct buf json = {0};
        buf_append_c(&json, "{'model':{'vocab':{'a':0},'merges':[]},'normalizer':");
        for (int i = 0; i < depth; i++)
            buf_append_c(&json, "{'type':'Sequence','normalizers':[");
        buf_append_c(&json, "{'type':'NFC'}");
        for (int i = 0; i < depth; i++)
            buf_append_c(&json, "]}");
        buf_append_c(&json, "}");
        buf_append_char(&json, '\0');
        struct tokenizer *tokenizer;
        struct error err = {0};
        assert_int_equal(parse_quoted(&tokenizer, json.ptr, &err),
                         depth > 8 ? STATUS_TOO_LARGE : STATUS_OK);
        tokenizer_destroy(tokenizer);
        buf_deinit(&json);
    }
}

static void missing_file_is_not_found(void **state)
{
    (void)state;
    struct tokenizer *tokenizer;
    struct error err = {0};
    assert_int_equal(tokenizer_load(&tokenizer, "/nonexistent/tokenizer.json", &err),
                     STATUS_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nonexistent/tokenizer.json"));
}

/** Both forms of merges, with a part that is a no-break space and parts that begin with #. */
static void both_forms_of_merges_load_alike(void **state)
{
    (void)state;
    static const char *const merges[] = {
        "['#version: 0.2','a b','# #','## ##','\xC2\xA0 \xC2\xA0','\xE2\x80\x83 x']",
        "[['a','b'],['#','#'],['##','##'],['\xC2\xA0','\xC2\xA0'],['\xE2\x80\x83','x'],['a "
        "b','c']]",
    };
    for (size_t i = 0; i < ARRAY_LEN(merges); i++) {
        struct buf json = {0}, shown = {0};
        buf_printf(&json,
                   "{'model':{'vocab':{'a':0,'b':1,'ab':2,'#':3,'##':4,'####':5,'\xC2\xA0':6,"
                   "'\xC2\xA0\xC2\xA0':7,'\xE2\x80\x83':8,'x':9,'\xE2\x80\x83x':10,'a b':11,'c':12,"
                   "'a bc':13},'merges':%s}}",
                   merges[i]);
        buf_append_char(&json, '\0');
        struct tokenizer *tokenizer;
        struct error err = {0};
        if (parse_quoted(&tokenizer, json.ptr, &err) != STATUS_OK)
            fail_msg("%s", err.message);
        show_tokens(tokenizer, STR("ab####\xC2\xA0\xC2\xA0"), false, &shown);
        assert_true(str_eq_c(buf_str(&shown), "ab|####|\xC2\xA0\xC2\xA0"));
        tokenizer_destroy(tokenizer);
        buf_deinit(&json);
        buf_deinit(&shown);
    }
}

static void members_may_come_in_any_order(void **state)
{
    (void)state;
    struct tokenizer *tokenizer;
    struct error err = {0};
    if (parse_quoted(&tokenizer,
                     "{'decoder':{'decoders':[{'type':'Fuse'}],'type':'Sequence'},"
                     "'model':{'merges':['a b'],'vocab':{'a':0,'b':1,'ab':2},'type':'BPE'},"
                     "'added_tokens':[{'special':true,'content':'<s>','id':3}]}",
                     &err) != STATUS_OK)
        fail_msg("%s", err.message);
    struct buf shown = {0};
    show_tokens(tokenizer, STR("b<s>ab"), false, &shown);
    assert_true(str_eq_c(buf_str(&shown), "b|<s>|ab"));
    assert_int_equal(tokenizer_vocab_size(tokenizer), 4);
    assert_int_equal(tokenizer_max_token_bytes(tokenizer), 3);
    assert_true(tokenizer_is_special(tokenizer, 3));
    assert_false(tokenizer_is_special(tokenizer, 2));
    assert_false(tokenizer_is_special(tokenizer, -1));
    assert_false(tokenizer_is_special(tokenizer, 4));
    assert_int_equal(tokenizer_token_to_id(tokenizer, STR("none")), -1);
    assert_int_equal(tokenizer_id_to_token(tokenizer, 99).len, 0);
    tokenizer_destroy(tokenizer);
    buf_deinit(&shown);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_files_are_refused_with_the_reason),
        cmocka_unit_test(wrong_components_are_refused_by_name),
        cmocka_unit_test(deep_sequences_are_refused),
        cmocka_unit_test(missing_file_is_not_found),
        cmocka_unit_test(both_forms_of_merges_load_alike),
        cmocka_unit_test(members_may_come_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
