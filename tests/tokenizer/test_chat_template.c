// Messages to prompts: whole conversations through real templates, and what the front end asks.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mapped_file.h"
#include "base/memory.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/chat_template_internal.h"

static json_t *load(const char *path)
{
    json_error_t error;
    json_t *file = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!file)
        fail_msg("%s: %s", path, error.text);
    return file;
}

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *value = json_loads(text, JSON_DECODE_ANY, &error);
    if (!value)
        fail_msg("%s: %s", text, error.text);
    return value;
}

static struct chat_template *compile(struct str source)
{
    struct chat_template *compiled;
    struct error err;
    if (chat_template_compile(&compiled, source, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return compiled;
}

static struct str json_str(const json_t *value)
{
    return (struct str){json_string_value(value), json_string_length(value)};
}

/** A conversation of the fixtures; its kwargs hold the two switches as well. */
static bool conversation_passes(const struct chat_template *compiled, const json_t *special_tokens,
                                const json_t *test)
{
    json_t *kwargs = json_deep_copy(json_object_get(test, "kwargs"));
    struct chat_template_inputs inputs = {
        .messages = json_object_get(test, "messages"),
        .tools = json_object_get(test, "tools"),
        .documents = json_object_get(test, "documents"),
        .special_tokens = special_tokens,
        .kwargs = kwargs,
        .add_generation_prompt = json_is_true(json_object_get(kwargs, "add_generation_prompt")),
        .continue_final_message = json_is_true(json_object_get(kwargs, "continue_final_message")),
    };
    json_object_del(kwargs, "add_generation_prompt");
    json_object_del(kwargs, "continue_final_message");
    struct arena arena = {0};
    struct error err = {0};
    struct str prompt = {0};
    enum status status = chat_template_render(compiled, &inputs, &arena, &prompt, &err);
    const json_t *error = json_object_get(test, "error");
    struct str wanted;
    bool passes;
    if (error) {
        wanted = json_str(json_object_get(error, "message"));
        passes = status != STATUS_OK && strstr(err.message, wanted.ptr) != NULL;
    } else {
        wanted = json_str(json_object_get(test, "rendered"));
        passes = status == STATUS_OK && str_eq(prompt, wanted);
    }
    if (!passes)
        print_error("%s\n  gave     [" STR_FORMAT "] %s\n  expected [" STR_FORMAT "]\n",
                    json_string_value(json_object_get(test, "name")), STR_ARG(prompt), err.message,
                    STR_ARG(wanted));
    arena_deinit(&arena);
    json_decref(kwargs);
    return passes;
}

static void every_fixture_conversation_renders_as_transformers_does(void **state)
{
    (void)state;
    static const char *const names[] = {"deepseek_v3", "gemma3",   "gptoss",
                                        "llama2",      "llama3_1", "qwen3"};
    size_t num_cases = 0, num_failed = 0;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/chat_templates/%s.json", FIXTURES_DIR, names[i]);
        json_t *file = load(path), *test;
        struct chat_template *compiled = compile(json_str(json_object_get(file, "chat_template")));
        size_t k;
        json_array_foreach(json_object_get(file, "cases"), k, test)
        {
            bool passes =
                conversation_passes(compiled, json_object_get(file, "special_tokens"), test);
            if (!passes)
                print_error("  (in %s)\n", names[i]);
            num_failed += !passes;
            num_cases++;
        }
        chat_template_destroy(compiled);
        json_decref(file);
    }
    assert_int_equal(num_cases, 6 * 38);
    assert_int_equal(num_failed, 0);
}

static void the_demo_model_gets_the_prompts_it_was_checked_with(void **state)
{
    (void)state;
    struct mapped_file source;
    struct error err;
    assert_int_equal(mapped_file_open(&source, MODELS_DIR "/demo/chat_template.jinja", &err),
                     STATUS_OK);
    struct chat_template *compiled = compile(mapped_file_str(&source));
    mapped_file_close(&source); // the compiled template keeps nothing of it
    json_t *file = load(MODELS_DIR "/demo/expected.json"), *test;
    size_t i, num_cases = 0;
    json_array_foreach(json_object_get(file, "cases"), i, test)
    {
        const json_t *messages = json_object_get(test, "messages");
        if (!messages)
            continue;
        struct chat_template_inputs inputs = {
            .messages = messages,
            .tools = json_object_get(test, "tools"),
            .kwargs = json_object_get(test, "chat_template_kwargs"),
            .add_generation_prompt = true,
        };
        struct arena arena = {0};
        struct str prompt;
        if (chat_template_render(compiled, &inputs, &arena, &prompt, &err) != STATUS_OK)
            fail_msg("case %zu: %s", i, err.message);
        if (!str_eq(prompt, json_str(json_object_get(test, "prompt"))))
            fail_msg("case %zu gave [" STR_FORMAT "]", i, STR_ARG(prompt));
        arena_deinit(&arena);
        num_cases++;
    }
    assert_true(num_cases >= 3);
    json_decref(file);
    chat_template_destroy(compiled);
}

/** Renders with the given messages and options; the caller frees. Failure: the error message. */
static char *render_with(const char *source, const char *messages,
                         struct chat_template_inputs options, enum status *status)
{
    struct chat_template *compiled = compile(str_from(source));
    json_t *list = parse(messages);
    struct arena arena = {0};
    struct str prompt = {0};
    struct error err = {0};
    options.messages = list;
    *status = chat_template_render(compiled, &options, &arena, &prompt, &err);
    char *out = *status == STATUS_OK ? xstrndup(prompt.ptr, prompt.len) : xstrdup(err.message);
    arena_deinit(&arena);
    json_decref(list);
    chat_template_destroy(compiled);
    return out;
}

static void assert_prompt(const char *source, const char *messages,
                          struct chat_template_inputs options, const char *expected)
{
    enum status status;
    char *prompt = render_with(source, messages, options, &status);
    assert_string_equal(prompt, expected);
    assert_int_equal(status, STATUS_OK);
    free(prompt);
}

static void assert_refused(const char *source, const char *messages,
                           struct chat_template_inputs options, const char *part)
{
    enum status status;
    char *message = render_with(source, messages, options, &status);
    if (status != STATUS_INVALID || !strstr(message, part))
        fail_msg("%s: %s", status_name(status), message);
    free(message);
}

static void blanks_and_line_feeds_around_block_tags_are_trimmed(void **state)
{
    (void)state;
    const char *messages = "[{\"role\":\"user\",\"content\":\"hi\"},"
                           "{\"role\":\"assistant\",\"content\":\"x\"}]";
    struct chat_template_inputs options = {.add_generation_prompt = true};
    assert_prompt("<s>\n{% for m in messages %}\n    {% if m.role == 'user' %}\nU:{{ m.content }}\n"
                  "    {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}\nA:\n"
                  "{% endif %}\n",
                  messages, options, "<s>\nU:hi\nA:\n");
    assert_prompt("<s>\r\n{% for m in messages %}\r\n    {% if m.role == 'user' %}\r\n"
                  "U:{{ m.content }}\r\n    {% endif %}\r\n{% endfor %}\r\n"
                  "{% if add_generation_prompt %}\r\nA:\r\n{% endif %}\r\n",
                  messages, options, "<s>\nU:hi\nA:\n");
}

static void tool_call_arguments_render_as_a_mapping(void **state)
{
    (void)state;
    const char *messages =
        "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"function\":"
        "{\"name\":\"weather\",\"arguments\":{\"city\":\"Graz\",\"days\":3,"
        "\"opts\":{\"wind\":true},\"x\":1.0}}}]}]";
    struct chat_template_inputs options = {0};
    assert_prompt("{% for c in messages[0].tool_calls %}<call {{ c.function.name }}>"
                  "{% for k, v in c.function.arguments | items %}<p {{ k }}>"
                  "{{ v if v is string else v | tojson }}</p>{% endfor %}</call>{% endfor %}",
                  messages, options,
                  "<call weather><p city>Graz</p><p days>3</p><p opts>{\"wind\": true}</p>"
                  "<p x>1.0</p></call>");
    assert_prompt("{{ messages[0].tool_calls[0].function.arguments | tojson }}", messages, options,
                  "{\"city\": \"Graz\", \"days\": 3, \"opts\": {\"wind\": true}, \"x\": 1.0}");
}

static void a_continued_message_ends_the_prompt(void **state)
{
    (void)state;
    static const struct {
        const char *source, *content, *expected;
    } cases[] = {
        {"{% for m in messages %}<{{ m.content }}>{% endfor %}", "\"Once \"", "<Once "},
        {"{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", "\"Once \"", "<Once"},
        {"{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", "\"end\"", "end"},
        {"{% for m in messages %}[{{ m.content }}]{% endfor %}", "\"\"", "["},
        {"{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}",
         "[{\"type\":\"text\",\"text\":\"red\"},{\"type\":\"text\",\"text\":\"blu\"}]",
         "[red][blu"},
        {"{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}",
         "[{\"type\":\"text\",\"text\":\"red\"},{\"type\":\"image\"}]", "[red"},
    };
    struct chat_template_inputs options = {.continue_final_message = true};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char messages[512];
        snprintf(messages, sizeof(messages), "[{\"role\":\"assistant\",\"content\":%s}]",
                 cases[i].content);
        assert_prompt(cases[i].source, messages, options, cases[i].expected);
    }
    assert_refused("x", "[{\"role\":\"user\",\"content\":\"a\"}]", options, "does not appear");
    assert_refused("{{ messages[0].content | upper }}", "[{\"role\":\"user\",\"content\":\"a\"}]",
                   options, "does not appear");
    assert_refused("x", "[{\"role\":\"user\",\"content\":null}]", options, "no text to continue");
    assert_refused("x", "[{\"role\":\"user\",\"content\":[]}]", options, "no text to continue");
    assert_refused("x", "[5]", options, "no text to continue");
    options.add_generation_prompt = true;
    assert_refused("x", "[{\"role\":\"user\",\"content\":\"a\"}]", options, "not compatible");
}

static void variables_of_the_request_win_over_special_tokens(void **state)
{
    (void)state;
    json_t *tokens = parse("{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}");
    json_t *kwargs = parse("{\"eos_token\":\"<end>\",\"enable_thinking\":false}");
    struct chat_template_inputs options = {.special_tokens = tokens, .kwargs = kwargs};
    assert_prompt("{{ bos_token }}{{ eos_token }}{{ enable_thinking }}{{ tools }}{{ documents }}"
                  "{{ add_generation_prompt }}",
                  "[{}]", options, "<s><end>FalseNoneNoneFalse");
    json_decref(tokens);
    json_decref(kwargs);
}

static void refusals_of_the_template_are_passed_on_in_its_own_words(void **state)
{
    (void)state;
    struct chat_template_inputs options = {0};
    enum status status;
    char *message =
        render_with("{{ raise_exception('Roles must alternate: ' ~ messages[0].role) }}",
                    "[{\"role\":\"tool\"}]", options, &status);
    assert_int_equal(status, STATUS_INVALID);
    assert_string_equal(message, "Roles must alternate: tool");
    free(message);
    assert_refused("{{ messages }}", "[]", options, "empty conversation");
    assert_refused("{{ messages }}", "{}", options, "empty conversation");
}

static void loops_over_content_are_recognised(void **state)
{
    (void)state;
    static const struct {
        bool wants;
        const char *source;
    } cases[] = {
        {true, "{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}"},
        {true, "{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}"},
        {true,
         "{% for m in messages[1:] %}{% for c in m.content | list %}{% endfor %}{% endfor %}"},
        {true, "{% set loop_messages = messages %}{% for m in loop_messages %}"
               "{% for c in m.content %}{% endfor %}{% endfor %}"},
        {true, "{% if x %}{% set a = messages[1:] %}{% else %}{% set a = messages %}{% endif %}"
               "{% set b = a %}{% for m in b %}{% if m.content is string %}{% else %}"
               "{% for c in m.content %}{% endfor %}{% endif %}{% endfor %}"},
        {true, "{% for m in messages %}{% set content = m.content %}"
               "{% for c in content %}{% endfor %}{% endfor %}"},
        {false, "{% for m in messages %}{{ m.content }}{% endfor %}"},
        {false, "{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}"},
        {false, "{% for d in documents %}{% for c in d.content %}{% endfor %}{% endfor %}"},
        {false, "{% for m, n in messages %}{% for c in m.content %}{% endfor %}{% endfor %}"},
        {false, "plain"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct chat_template *compiled = compile(str_from(cases[i].source));
        if (chat_template_wants_content_parts(compiled) != cases[i].wants)
            fail_msg("%s", cases[i].source);
        chat_template_destroy(compiled);
    }
    static const struct {
        const char *name;
        bool wants;
    } files[] = {{"gemma3", true}, {"llama3_1", false}, {"qwen3", false}, {"deepseek_v3", false}};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/chat_templates/%s.json", FIXTURES_DIR, files[i].name);
        json_t *file = load(path);
        struct chat_template *compiled = compile(json_str(json_object_get(file, "chat_template")));
        assert_int_equal(chat_template_wants_content_parts(compiled), files[i].wants);
        chat_template_destroy(compiled);
        json_decref(file);
    }
}

static void the_time_is_the_wall_clock_unless_given(void **state)
{
    (void)state;
    struct chat_template *compiled = compile(STR("{{ strftime_now('%d %b %Y') }}"));
    json_t *messages = parse("[{}]");
    struct chat_template_inputs inputs = {.messages = messages};
    struct arena arena = {0};
    struct str prompt;
    struct error err;
    struct tm then = {.tm_year = 126, .tm_mon = 1, .tm_mday = 3};
    assert_int_equal(chat_template_render_at(compiled, &inputs, &then, &arena, &prompt, &err),
                     STATUS_OK);
    assert_true(str_eq_c(prompt, "03 Feb 2026"));
    char before[64], after[64]; // midnight may pass between
    time_t now = time(NULL);
    struct tm local;
    strftime(before, sizeof(before), "%d %b %Y", localtime_r(&now, &local));
    assert_int_equal(chat_template_render(compiled, &inputs, &arena, &prompt, &err), STATUS_OK);
    now = time(NULL);
    strftime(after, sizeof(after), "%d %b %Y", localtime_r(&now, &local));
    assert_true(str_eq_c(prompt, before) || str_eq_c(prompt, after));
    arena_deinit(&arena);
    json_decref(messages);
    chat_template_destroy(compiled);
}

static void compile_errors_name_the_chat_template_and_the_line(void **state)
{
    (void)state;
    struct chat_template *compiled;
    struct error err;
    assert_int_equal(chat_template_compile(&compiled, STR("a\n{% include 'b' %}"), &err),
                     STATUS_UNSUPPORTED);
    assert_null(compiled);
    assert_string_equal(err.message, "chat template: line 2: the tag 'include' is not supported in "
                                     "chat templates");
    assert_int_equal(chat_template_compile(&compiled, STR("{{"), NULL), STATUS_INVALID);
    chat_template_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_conversation_renders_as_transformers_does),
        cmocka_unit_test(the_demo_model_gets_the_prompts_it_was_checked_with),
        cmocka_unit_test(blanks_and_line_feeds_around_block_tags_are_trimmed),
        cmocka_unit_test(tool_call_arguments_render_as_a_mapping),
        cmocka_unit_test(a_continued_message_ends_the_prompt),
        cmocka_unit_test(variables_of_the_request_win_over_special_tokens),
        cmocka_unit_test(refusals_of_the_template_are_passed_on_in_its_own_words),
        cmocka_unit_test(loops_over_content_are_recognised),
        cmocka_unit_test(the_time_is_the_wall_clock_unless_given),
        cmocka_unit_test(compile_errors_name_the_chat_template_and_the_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
