// The template language against fixtures, and its bounds and refusals by hand.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/memory.h"
#include "tokenizer/jinja.h"
#include "tokenizer/jinja_cases.h"

/** What became of a template: which step failed, and why. */
struct outcome {
    const char *failed_at; // NULL, "compile" or "render"
    struct error err;
    struct buf text;
};

static void render(struct str source, const json_t *context, const struct tm *now,
                   struct outcome *out)
{
    struct jinja_template *compiled;
    *out = (struct outcome){0};
    if (jinja_template_compile(&compiled, source, &out->err) != STATUS_OK) {
        out->failed_at = "compile";
        return;
    }
    struct jinja_runtime rt;
    struct str text;
    enum status status = STATUS_OK;
    jinja_runtime_init(&rt, now, &out->err);
    json_t *globals = (json_t *)(uintptr_t)context;
    for (void *it = json_object_iter(globals); it && status == STATUS_OK;
         it = json_object_iter_next(globals, it))
        status = jinja_runtime_set_json(&rt, str_from(json_object_iter_key(it)),
                                        json_object_iter_value(it));
    if (status == STATUS_OK)
        status = jinja_template_render(compiled, &rt, &text);
    if (status == STATUS_OK)
        buf_append(&out->text, text);
    else
        out->failed_at = "render";
    jinja_runtime_deinit(&rt);
    jinja_template_destroy(compiled);
}

/** Renders without variables and compares. */
static void assert_renders(const char *source, const char *expected)
{
    struct outcome outcome;
    render(str_from(source), NULL, NULL, &outcome);
    if (outcome.failed_at)
        fail_msg("%s\n  failed: %s", source, outcome.err.message);
    if (!str_eq_c(buf_str(&outcome.text), expected))
        fail_msg("%s\n  gave     [" STR_FORMAT "]\n  expected [%s]", source,
                 STR_ARG(buf_str(&outcome.text)), expected);
    buf_deinit(&outcome.text);
}

static void assert_fails_text(struct str source, const char *at, enum status status,
                              const char *part)
{
    struct outcome outcome;
    render(source, NULL, NULL, &outcome);
    struct str shown = str_slice(source, 0, 200);
    if (!outcome.failed_at)
        fail_msg(STR_FORMAT "\n  did not fail", STR_ARG(shown));
    if (strcmp(outcome.failed_at, at) != 0 || outcome.err.status != status ||
        !strstr(outcome.err.message, part))
        fail_msg(STR_FORMAT "\n  failed at %s (%s): %s\n  expected %s (%s): %s", STR_ARG(shown),
                 outcome.failed_at, status_name(outcome.err.status), outcome.err.message, at,
                 status_name(status), part);
    buf_deinit(&outcome.text);
}

static void assert_fails(const char *source, const char *at, enum status status, const char *part)
{
    assert_fails_text(str_from(source), at, status, part);
}

static bool case_passes(const json_t *test, const struct tm *now)
{
    const char *source = json_string_value(json_object_get(test, "template"));
    const json_t *expected = json_object_get(test, "output");
    const json_t *error = json_object_get(test, "error");
    struct outcome outcome;
    render(str_from(source), json_object_get(test, "context"), now, &outcome);
    bool passes;
    const char *wanted;
    if (error) {
        const char *type = json_string_value(json_object_get(error, "type"));
        const char *at = json_string_value(json_object_get(error, "at"));
        wanted = json_string_value(json_object_get(error, "message"));
        passes = outcome.failed_at && strcmp(outcome.failed_at, at) == 0;
        if (strcmp(type, "TemplateError") == 0)
            passes = passes && strcmp(outcome.err.message, wanted) == 0;
        else // ours names the line first; CPython words integer division in its own way
            passes = passes && (strstr(outcome.err.message, wanted) != NULL);
    } else {
        struct str text = {json_string_value(expected), json_string_length(expected)};
        wanted = text.ptr;
        passes = !outcome.failed_at && str_eq(buf_str(&outcome.text), text);
    }
    if (!passes)
        print_error("%s: %s\n  gave     [" STR_FORMAT "] %s\n  expected [%s]\n",
                    json_string_value(json_object_get(test, "id")), source,
                    STR_ARG(buf_str(&outcome.text)), outcome.failed_at ? outcome.err.message : "",
                    wanted);
    buf_deinit(&outcome.text);
    return passes;
}

static void every_fixture_case_renders_as_jinja2_does(void **state)
{
    (void)state;
    json_error_t json_error;
    json_t *file = json_load_file(FIXTURES_DIR "/jinja/cases.json", JSON_ALLOW_NUL, &json_error);
    if (!file)
        fail_msg("%s", json_error.text);
    struct tm now = {0};
    strptime(json_string_value(json_object_get(file, "now")), "%Y-%m-%dT%H:%M:%S", &now);
    size_t num_failed = 0, i;
    json_t *test, *cases = json_object_get(file, "cases");
    json_array_foreach(cases, i, test) num_failed += !case_passes(test, &now);
    assert_int_equal(json_array_size(cases), 194);
    assert_int_equal(num_failed, 0);
    json_decref(file);
}

static void language_beyond_the_fixtures_renders_as_jinja2_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(jinja_cases); i++)
        assert_renders(jinja_cases[i].source, jinja_cases[i].expected);
}

static void unsupported_constructs_are_named_with_their_line(void **state)
{
    (void)state;
    static const struct {
        const char *source, *part;
    } cases[] = {
        {"\n{% include 'x' %}", "line 2: the tag 'include' is not supported"},
        {"{% import 'x' as y %}", "line 1: the tag 'import' is not supported"},
        {"{% from 'x' import y %}", "the tag 'from' is not supported"},
        {"a\n\nb{% extends 'x' %}", "line 3: the tag 'extends' is not supported"},
        {"{% block x %}{% endblock %}", "the tag 'block' is not supported"},
        {"{% autoescape true %}{% endautoescape %}", "the tag 'autoescape' is not supported"},
        {"{% trans %}x{% endtrans %}", "the tag 'trans' is not supported"},
        {"{% do x %}", "the tag 'do' is not supported"},
        {"{% if x %}\n{{ [1] | random }}{% endif %}", "line 2: the filter 'random' is not"},
        {"{{ 'x' | urlize }}", "the filter 'urlize' is not supported"},
        {"{{ '\\N{BULLET}' }}", "\\N{...} escapes"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_fails(cases[i].source, "compile", STATUS_UNSUPPORTED, cases[i].part);
    assert_fails("{{ lipsum() }}", "render", STATUS_UNSUPPORTED, "'lipsum' is not supported");
}

static void syntax_errors_say_what_was_found_and_where(void **state)
{
    (void)state;
    static const struct {
        const char *source, *part;
    } cases[] = {
        {"\n\n{{ 1 + }}", "line 3: Expected an expression, got 'end of print statement'"},
        {"{{ (1, 2 }}", "line 1: unexpected '}', expected ')'"},
        {"{{ 1 2 }}", "expected token 'end of print statement', got '2'"},
        {"{{ a. }}", "expected name or number"},
        {"{{ a[] }}", "Expected an expression, got ']'"},
        {"{{ 'abc }}", "a string without end"},
        {"{{ a ? b }}", "unexpected char '?'"},
        {"{{ \xc3\xa9\xe2\x82\xac }}", "unexpected char '\xe2\x82\xac'"},
        {"{# never closed", "Missing end of comment tag"},
        {"{% raw %}x", "Missing end of raw directive"},
        {"{% for x %}{% endfor %}", "expected token 'in', got 'end of statement block'"},
        {"{% for true in [1] %}{% endfor %}", "can't assign to 'true'"},
        {"{% set 5 = 1 %}", "expected token 'name', got '5'"},
        {"{% if x %}\n{% endfor %}", "line 2: Encountered unknown tag 'endfor'. Jinja was looking "
                                     "for the following tags: 'elif' or 'else' or 'endif'"},
        {"{% break %}", "'break' outside loop"},
        {"{% for x in y %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}",
         "'continue' outside loop"},
        {"{{ f(a=1, 2) }}", "invalid syntax for function call expression"},
        {"{% macro m(a=1, b) %}{% endmacro %}", "non-default argument follows default argument"},
        {"{% call 5 %}{% endcall %}", "expected call"},
        {"{{ x is defined is defined }}", "You cannot chain multiple tests with is"},
        {"{{ 0123 }}", "a malformed or too large integer"},
        {"{{ '\\ud800' }}", "an escape in a string is no Unicode character"},
        {"{{ 1 } }}", "unexpected '}'"},
        {"{%", "unexpected"},
        {"{{", "Expected an expression, got 'end of template'"},
        {"{{ x |", "unexpected end of template, expected 'name'."},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *part = cases[i].part;
        if (strcmp(cases[i].source, "{%") == 0)
            part = "tag name expected";
        assert_fails(cases[i].source, "compile", STATUS_INVALID, part);
    }
    assert_fails("a\xff", "compile", STATUS_INVALID, "not UTF-8 at byte 1");
}

static void errors_while_rendering_carry_their_line(void **state)
{
    (void)state;
    static const struct {
        const char *source, *part;
    } cases[] = {
        {"a\nb\n{{ missing.x }}", "line 3: 'missing' is undefined"},
        {"{% for i in [1] %}\n  {{ i + 'x' }}\n{% endfor %}", "line 2: unsupported operand type"},
        {"{% macro m(x) %}\n\n{{ x.y.z }}{% endmacro %}\n{{ m({}) }}",
         "line 3: 'dict object' has no attribute 'y'"},
        {"{% set a, b = [1] %}", "not enough values to unpack (expected 2, got 1)"},
        {"{% set d = {} %}{% set d.x = 1 %}", "cannot assign attribute 'x' on non-namespace"},
        {"{{ {[1]: 2} }}", "unhashable type: 'list'"},
        {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "takes not more than 1 argument(s)"},
        {"{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "takes no keyword argument 'b'"},
        {"{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "No caller defined"},
        {"{{ 'x'.split(1, 2, 3) }}", "split() takes at most 2 argument(s), 3 given"},
        {"{{ 'x' | replace('x') }}", "replace() is missing the argument 'new'"},
        {"{{ [1] | tojson(foo=1) }}", "unexpected keyword argument 'foo'"},
        {"{{ [].sort() }}", "access to attribute 'sort' of 'list' object is unsafe"},
        {"{% if true %}{{ 1 | nosuch }}{% endif %}", "No filter named 'nosuch'"},
        {"{{ 'abc' % 5 }}", "not all arguments converted"},
        {"{{ '%d' % 'x' }}", "does not take an object of type 'str'"},
        {"{{ '{}'.format() }}", "out of range for positional args"},
        {"{{ '{'.format() }}", "Single '{' encountered"},
        {"{{ 5 % 0 }}", "modulo by zero"},
        {"{{ 1 in 5 }}", "argument of type 'int' is not iterable"},
        {"{{ [3, 'a'] | sort }}", "'<' not supported between instances of"},
        {"{% for x in [1] %}{{ loop([2]) }}{% endfor %}", "must have the 'recursive' marker"},
        {"{{ 5() }}", "'int' object is not callable"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_fails(cases[i].source, "render", STATUS_INVALID, cases[i].part);
}

static struct str repeated(struct buf *buf, const char *head, const char *body, size_t count,
                           const char *middle, const char *tail)
{
    buf_append_c(buf, head);
    for (size_t i = 0; i < count; i++)
        buf_append_c(buf, body);
    buf_append_c(buf, middle);
    for (size_t i = 0; i < count && tail; i++)
        buf_append_c(buf, tail);
    return buf_str(buf);
}

static void nesting_in_the_source_is_bounded(void **state)
{
    (void)state;
    static const struct {
        const char *head, *body, *middle, *tail;
    } cases[] = {
        {"{{ ", "(", "1", NULL},
        {"{{ ", "[", "1", NULL},
        {"{{ ", "{1:", "1", NULL},
        {"{{ ", "- ", "1 }}", NULL},
        {"{{ ", "not ", "1 }}", NULL},
        {"", "{% if 1 %}", "", "{% endif %}"},
        {"{{ a", ".a", " }}", NULL},
        {"{{ 1", "+1", " }}", NULL},
        {"{{ a", "|e", " }}", NULL},
        {"{{ a", "[0]", " }}", NULL},
        {"{{ a", "()", " }}", NULL},
        {"{{ 1", " if 1 else 1", " }}", NULL},
        {"{{ 1", " and 1", " }}", NULL},
        {"{% set ", "(", "a", NULL},
        {"{{ 1", " is defined", " }}", NULL},
        {"{{ f(", "f(", "1", NULL},
        {"", "{% for x in y %}", "", "{% endfor %}"},
        {"", "{% macro m() %}", "", "{% endmacro %}"},
        {"{{ 1", "**1", " }}", NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf buf = {0};
        struct outcome outcome;
        render(repeated(&buf, cases[i].head, cases[i].body, 100000, cases[i].middle, cases[i].tail),
               NULL, NULL, &outcome);
        if (!outcome.failed_at || strcmp(outcome.failed_at, "compile") != 0)
            fail_msg("%s... was compiled", cases[i].body);
        buf_deinit(&buf);
        buf_deinit(&outcome.text);
    }
    struct buf buf = {0}; // long but flat is fine
    repeated(&buf, "{{ 1", "~1", 5000, " }}{% if false %}", NULL);
    repeated(&buf, "", "{% elif false %}", 5000, "{% endif %}", NULL);
    struct outcome outcome;
    render(buf_str(&buf), NULL, NULL, &outcome);
    assert_null(outcome.failed_at);
    assert_int_equal(outcome.text.len, 5001);
    buf_deinit(&buf);
    buf_deinit(&outcome.text);
}

static void no_template_hangs_or_exhausts_memory(void **state)
{
    (void)state;
    static const struct {
        enum status status;
        const char *source, *part;
    } cases[] = {
        {STATUS_TOO_LARGE, "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "levels deep"},
        {STATUS_TOO_LARGE, "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
         "levels deep"},
        {STATUS_TOO_LARGE, "{{ range(1000000000) }}", "Range too big"},
        {STATUS_TOO_LARGE, "{{ range(-9223372036854775807, 9223372036854775807, 1) }}",
         "Range too big"},
        {STATUS_TOO_LARGE, "{{ 'x' * 10000000000 }}", "the text grew over 16 MiB"},
        {STATUS_TOO_LARGE, "{{ [1] * 10000000000 }}", "is too long"},
        {STATUS_TOO_LARGE, "{{ '%999999999d' % 1 }}", "a width of more than"},
        {STATUS_TOO_LARGE, "{{ '{:999999999}'.format(1) }}", "a width of more than"},
        {STATUS_TOO_LARGE, "{{ 'x'.center(99999999999) }}", "the text grew over"},
        {STATUS_TOO_LARGE, "{{ 'x\ny' | indent(99999999999) }}", "the text grew over"},
        {STATUS_TOO_LARGE, "{{ [1] | tojson(indent=99999999999) }}", "the text grew over"},
        {STATUS_TOO_LARGE, "{{ 'a\tb'.expandtabs(99999999999) }}", "the text grew over"},
        {STATUS_TOO_LARGE,
         "{% set ns = namespace(s='x') %}{% for i in range(100) %}"
         "{% set ns.s = ns.s + ns.s %}{% endfor %}",
         "the text grew over"},
        {STATUS_TOO_LARGE,
         "{% set ns = namespace(s='xx') %}{% for i in range(100) %}"
         "{% set ns.s = ns.s | replace('x', 'xxxx') %}{% endfor %}",
         "the text grew over"},
        {STATUS_TOO_LARGE,
         "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}"
         "{% set ns.l = ns.l + ns.l %}{% endfor %}",
         ""},
        {STATUS_TOO_LARGE,
         "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}"
         "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
         ""},
        {STATUS_TOO_LARGE,
         "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}"
         "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson }}",
         ""},
        {STATUS_TIMEOUT,
         "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(100) %}"
         "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}"
         "{{ ns.a == ns.b }}",
         "more than 10000000 steps"},
        {STATUS_TOO_LARGE,
         "{% set ns = namespace(a=[1]) %}{% for i in range(10000) %}"
         "{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}",
         "levels deep"},
        {STATUS_TOO_LARGE,
         "{% set ns = namespace(a=[1]) %}{% for i in range(10000) %}"
         "{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a | tojson }}",
         "levels deep"},
        {STATUS_TOO_LARGE,
         "{% set ns = namespace(a=(1,)) %}{% for i in range(10000) %}"
         "{% set ns.a = (ns.a,) %}{% endfor %}{{ {ns.a: 1} }}",
         "levels deep"},
        {STATUS_TOO_LARGE, "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "levels deep"},
        {STATUS_TOO_LARGE,
         "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
         "more than 256 MiB"},
        {STATUS_TIMEOUT,
         "{% set s = 'x' * 16000000 %}{% for i in range(100000) %}{{ 'y' in s }}{% endfor %}",
         "more than 10000000 steps"},
        {STATUS_TIMEOUT,
         "{% set s = 'x' * 8000000 %}{% set t = 'y' + 'x' * 4000000 %}"
         "{% for i in range(100000) %}{{ s.rfind(t) }}{% endfor %}",
         "more than 10000000 steps"},
        {STATUS_TIMEOUT,
         "{% set s = 'x' * 1000000 %}{% for i in range(100000) %}{{ s | upper | length }}"
         "{% endfor %}",
         "more than 10000000 steps"},
        {STATUS_TOO_LARGE,
         "{% for a in range(100000) %}{% set x = range(100000) | list %}{{ x | length }}"
         "{% endfor %}",
         "more than 256 MiB"},
        {STATUS_TOO_LARGE, "{{ 2 ** 1000 }}", "an integer grew over 128 bits"},
        {STATUS_TOO_LARGE, "{{ 10 ** 38 * 10 }}", "an integer grew over 128 bits"},
        {STATUS_TOO_LARGE, "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_fails(cases[i].source, "render", cases[i].status, cases[i].part);
}

static void strings_keep_their_nul_bytes(void **state)
{
    (void)state;
    struct outcome outcome;
    json_t *context = json_pack("{s:s%}", "s", "a\0b", (size_t)3);
    render(STR("x\0y{{ s }}{{ s | length }}{{ 'p\0q' }}{{ s | tojson }}{{ s.split('\\0') }}"),
           context, NULL, &outcome);
    assert_null(outcome.failed_at);
    assert_true(str_eq(buf_str(&outcome.text), STR("x\0ya\0b3p\0q\"a\\u0000b\"['a', 'b']")));
    buf_deinit(&outcome.text);
    json_decref(context);
}

static void *render_many_times(void *argument)
{
    const struct jinja_template *compiled = argument;
    for (int i = 0; i < 200; i++) {
        struct jinja_runtime rt;
        struct error err;
        struct str text;
        jinja_runtime_init(&rt, NULL, &err);
        bool right =
            jinja_template_render(compiled, &rt, &text) == STATUS_OK && str_eq_c(text, "a0b1a2");
        jinja_runtime_deinit(&rt);
        if (!right)
            return argument;
    }
    return NULL;
}

static void threads_render_one_template_together(void **state)
{
    (void)state;
    struct jinja_template *compiled;
    struct error err;
    struct str source = STR("{% set c = cycler('a', 'b') %}{% macro m(x) %}{{ x }}{% endmacro %}"
                            "{% for i in range(3) %}{{ c.next() }}{{ m(i) }}{% endfor %}");
    assert_int_equal(jinja_template_compile(&compiled, source, &err), STATUS_OK);
    pthread_t threads[4];
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, render_many_times, compiled), 0);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    jinja_template_destroy(compiled);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_case_renders_as_jinja2_does),
        cmocka_unit_test(language_beyond_the_fixtures_renders_as_jinja2_does),
        cmocka_unit_test(unsupported_constructs_are_named_with_their_line),
        cmocka_unit_test(syntax_errors_say_what_was_found_and_where),
        cmocka_unit_test(errors_while_rendering_carry_their_line),
        cmocka_unit_test(nesting_in_the_source_is_bounded),
        cmocka_unit_test(no_template_hangs_or_exhausts_memory),
        cmocka_unit_test(strings_keep_their_nul_bytes),
        cmocka_unit_test(threads_render_one_template_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
