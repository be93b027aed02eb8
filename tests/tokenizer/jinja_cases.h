// Templates without variables and their output, from jinja2 3.1.6 in the environment of
// transformers (see the test that includes this).
#pragma once

static const struct {
    const char *source, *expected;
} jinja_cases[] = {
    {"{{ range(3) }} {{ range(1,5,2) }} {{ range(5)[1:3] }} {{ range(5)[-1] }} {{ range(3) | "
     "length }} {{ 2 in range(3) }}",
     "range(0, 3) range(1, 5, 2) range(1, 3) 4 3 True"},
    {"{{ range(0) | list }} {{ range(10, 0, -3) | list }} {{ range(3)|first }}{{ range(3)|last }}",
     "[] [10, 7, 4, 1] 02"},
    {"{{ (1,2) + (3,) }} {{ [1] * 3 }} {{ 2 * 'ab' }} {{ (1,2) * 2 }}",
     "(1, 2, 3) [1, 1, 1] abab (1, 2, 1, 2)"},
    {"{{ '\316\221\316\243' | lower }} {{ '\316\221\316\243\316\221'.lower() }} {{ "
     "'\305\211'.upper() }} {{ '\357\254\203'.upper() }} {{ '\357\254\203'.title() }} {{ "
     "'\357\254\201x'.capitalize() }}",
     "\316\261\317\202 \316\261\317\203\316\261 \312\274N FFI Ffi Fix"},
    {"{{ '{0!r:>5} {0}'.format('a', 'b') }} {{ '{a[x]} {a.y}'.format(a={'x': 1}) }}", "  'a' a 1 "},
    {"{{ '{a[x]} {b[0]}'.format(a={'x': 1}, b=[7]) }} {{ '{{}}'.format() }} {{ "
     "'{:{}}|'.format('x', 5) }} {{ '{:>{w}}|'.format('x', w=4) }}",
     "1 7 {} x    |    x|"},
    {"{{ '{}'.format(1.0) }} {{ '{:.3}'.format(3.14159) }} {{ '{:}'.format(none) }} {{ "
     "'{:5}|'.format('x') }} {{ '{:5}|'.format(3) }} {{ '{:5}|'.format(true) }} {{ "
     "'{:.2}'.format('abc') }}",
     "1.0 3.14 None x    |     3|     1| ab"},
    {"{{ '{:.0f} {:.1f} {}'.format(1e10, 1e16, 1e22) }} {{ '{:c}'.format(65) }}",
     "10000000000 10000000000000000.0 1e+22 A"},
    {"{{ 1e100 }} {{ 1.5e-10 }} {{ 123456789.123456789 }} {{ 1/3 }} {{ 100.0 }} {{ 1e15 }} {{ "
     "0.1+0.7 }} {{ -0.0 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 2.0**0.5 }}",
     "1e+100 1.5e-10 123456789.12345679 0.3333333333333333 100.0 1000000000000000.0 "
     "0.7999999999999999 -0.0 5e-324 1.7976931348623157e+308 1.4142135623730951"},
    {"{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 7 % -3 }} {{ -7 // -2 }} {{ "
     "7.0 % -3 }} {{ 1 // 0.3 }} {{ 6.0 // 0.1 }}",
     "3.0 -4.0 1.5 0.5 -2 3 -2.0 3.0 59.0"},
    {"{{ true + 1 }} {{ true * 3 }} {{ -true }} {{ +true }} {{ 2 ** 10 }} {{ 2 ** 0.5 }} {{ 0 ** 0 "
     "}} {{ 2 ** -2 }} {{ -2 ** 3 }} {{ (-2) ** 3 }}",
     "2 3 -1 1 1024 1.4142135623730951 1 0.25 -8 -8"},
    {"{{ [1,2] < [1,3] }} {{ (1,) < (1,2) }} {{ 'a' < 'B' }} {{ 1 < 1.5 }} {{ 1 < 2 < 3 > 2 }} {{ "
     "1 == 1 == 1 }} {{ 1 in [1] in [[1]] }}",
     "True True False True True True True"},
    {"{{ [[1,2],[3]] | map('first') | list }} {{ [[1,2],[3]] | map('join', '-') | list }} {{ "
     "['a']|map('default','q')|list }}",
     "[1, 3] ['1-2', '3'] ['a']"},
    {"{{ '1,2,3'.split(',') | map('int') | sum }} {{ 'a b'.split() | map('title') | join(' ') }}",
     "6 A B"},
    {"{{ (x | default({})).y }}|{{ (x or {}).y }}|", "||"},
    {"{{ '  a b ' | trim }}|{{ 'xxaxx' | trim('x') }}|{{ none | trim }}|{{ 5 | trim }}",
     "a b|a|None|5"},
    {"{{ 'a\\nb\\n' | indent }}|{{ 'a\\n\\nb' | indent(2, true, true) }}|{{ '' | indent(3, true) "
     "}}|{{ 'a\\r\\nb' | indent(1) }}",
     "a\n    b\n|  a\n  \n  b|   |a\n b"},
    {"{{ '3.7' | int }} {{ '3.7' | float }} {{ '1e3' | float }} {{ '1e3' | int }} {{ 'ff' | "
     "int(16) }} {{ 'ff' | int(base=16) }} {{ '0b11' | int(0, 2) }} {{ ' 12 ' | int }} {{ '1_000' "
     "| int }} {{ none | int }} {{ [] | float }} {{ true | int }} {{ -3.9 | int }} {{ 'inf' | "
     "float }} {{ 'nan'|float }} {{ '-5'|int }} {{ '+5'|int }} {{ '0x1f'|int(0,0) }} {{ "
     "'12abc'|int(7) }}",
     "3 3.7 1000.0 1000 16 255 3 12 1000 0 0.0 1 -3 inf nan -5 5 31 7"},
    {"{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 1234.5 | round(-2) }} {{ 1250 "
     "| round(-2) }} {{ 1350 | round(-2) }} {{ 2.1 | round(method='ceil') }} {{ 2.9 | "
     "round(method='floor') }} {{ 5 | round(1,'floor') }} {{ -2.5 | round }} {{ 0.5|round|int }} "
     "{{ 2.567|round(2,'ceil') }}",
     "2.0 4.0 2.67 1200.0 1200 1400 3.0 2.0 5.0 -2.0 0 2.57"},
    {"{{ -5 | abs }} {{ -5.5 | abs }} {{ 5 | string ~ 'x' }} {{ 3.0 | string }}", "5 5.5 5x 3.0"},
    {"{{ '<p>Hello  <b>World</b>\\n &amp; &lt; you<!-- c --></p>' | striptags }}",
     "Hello World & < you"},
    {"{{ 'one two  three_4 five-6' | wordcount }} {{ 'abc' | center(10) }}| {{ 'abc'.center(8,'*') "
     "}} {{ 'abcd'.center(7,'*') }} {{ 'abc' | center }}|",
     "5    abc    | **abc*** **abcd*                                       abc                     "
     "                  |"},
    {"{{ [1,'a',none,true,2.0] | tojson }} {{ {'a': {'b': [1,2]}, 'c': []} | tojson(indent=2) }} "
     "{{ {'b':1,'a':2} | tojson(sort_keys=true) }} {{ [1,2] | tojson(separators=(',',':')) }} {{ "
     "[1,[2]] | tojson(indent=0) }} {{ [1] | tojson(indent='--') }} {{ "
     "{'a':1}|tojson(indent=1,separators=(';','=')) }}",
     "[1, \"a\", null, true, 2.0] {\n  \"a\": {\n    \"b\": [\n      1,\n      2\n    ]\n  },\n  "
     "\"c\": []\n} {\"a\": 2, \"b\": 1} [1,2] [\n1,\n[\n2\n]\n] [\n--1\n] {\n \"a\"=1\n}"},
    {"{{ {1:2, 1.5:3, true:4, none:5, 'x':6} | tojson }} {{ {2:1, 1:0}|tojson(sort_keys=true) }}",
     "{\"1\": 4, \"1.5\": 3, \"null\": 5, \"x\": 6} {\"1\": 0, \"2\": 1}"},
    {"{{ '\\u00e9\\t\"\\\\/\\x01' | tojson }} {{ '\\u00e9' | tojson(ensure_ascii=true) }} {{ 1e400 "
     "| tojson }} {{ 12345678901234567890 | tojson }}",
     "\"\303\251\\t\\\"\\\\/\\u0001\" \"\\u00e9\" Infinity 12345678901234567890"},
    {"{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=1) }}|{{ m() "
     "}}|",
     "11131||"},
    {"{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "(1, 2){'x': 3}"},
    {"{% macro m(x) %}{{ x }}{{ caller('c') }}{% endmacro %}{% call(y) m(1) %}[{{ y }}]{% endcall "
     "%}",
     "1[c]"},
    {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "B"},
    {"{% macro a() %}{{ v }}{% endmacro %}{% set v = 1 %}{{ a() }}{% set v = 2 %}{{ a() }}", "12"},
    {"{% for i in [1,2] %}{% macro q() %}{{ i }}{% endmacro %}{{ q() }}{% endfor %}{{ q is defined "
     "}}",
     "12False"},
    {"{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}{% for i in [1] %}{% set x = 3 "
     "%}{% endfor %}{{ x }}{% with %}{% set x = 4 %}{% endwith %}{{ x }}",
     "222"},
    {"{% set x = 1 %}{% macro m() %}{% set x = 5 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}", "51"},
    {"{% set x %}a{% set y = 2 %}{{ y }}{% endset %}{{ x }}{{ y is defined }}", "a2False"},
    {"{% macro m() %}{% filter upper %}q{% endfilter %}{% endmacro %}{% filter replace('a', m()) "
     "%}xax{% endfilter %}",
     "xQx"},
    {"{% for i in range(10) if i is odd %}{{ i }}{{ loop.last }}{{ loop.length }} {% else %}none{% "
     "endfor %}",
     "1False5 3False5 5False5 7False5 9True5 "},
    {"{% for i in range(3) if i > 5 %}{{ i }}{% else %}none{% endfor %}", "none"},
    {"{% set ns = namespace(p='') %}{% for m in 'aabba' if m != ns.p %}{% set ns.p = m %}{{ m }}{% "
     "endfor %}",
     "aba"},
    {"{% for a in [1,2] %}{% for b in [] %}{% else %}{% break %}{% endfor %}x{% endfor %}", ""},
    {"{% for a in [1,2,3] %}{% with %}{% if a == 2 %}{% continue %}{% endif %}{% endwith %}{{ a "
     "}}{% endfor %}",
     "13"},
    {"{% for a in [1,2,3] %}{% if a == 2 %}{% break %}{% endif %}{{ a }}{% else %}no{% endfor %}",
     "1"},
    {"{% for a in [[1,[2,[3]]]] recursive %}{{ loop.depth }}{{ loop.depth0 }}{% if a is iterable "
     "%}{{ loop(a) }}{% endif %}{% endfor %}",
     "102121323243"},
    {"{% for x in 'ab', 'cd' %}{{ x }};{% endfor %} {% set t = 1, 2 %}{{ t }} {{ 1, 2 }}",
     "ab;cd; (1, 2) (1, 2)"},
    {"{{ not true or true }} {{ not (true or true) }} {{ not not 1 }} {{ 1 and 2 or 3 }} {{ not 1 "
     "== 2 }} {{ not none is none }}",
     "True False True 2 True False"},
    {"{{ 1 is not none }} {{ x is not defined or x }} {{ 'a' is not in 'abc' }} {{ 5 is "
     "divisibleby(5) }} {{ 5 is gt 3 and 2 is lt 3 }} {{ 4 is even and not 3 is even }}",
     "True True False True True True"},
    {"{{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }} {{ 'Ab' is upper }} {{ "
     "none is sameas none }} {{ [] is sameas [] }} {{ 1 is sameas true }} {{ 1.0 is float }} {{ 1 "
     "is float }} {{ namespace() is mapping }} {{ namespace() is iterable }}",
     "True False True False True False False True False False False"},
    {"{{ {'a':1,'a':2} }} {{ {(1,2): 3} }} {{ {(1,2): 3}[(1,2)] }} {{ {(1,2): 3}[1,2] }} {{ {1: "
     "'x'}[1.0] }} {{ {1: 'x'}[true] }}",
     "{'a': 2} {(1, 2): 3} 3 3 x x"},
    {"{{ 'a,b,c'.split(',', maxsplit=1) }} {{ 'a b c'.split(none, 1) }} {{ ' a  b c '.rsplit(none, "
     "1) }} {{ ' a  b '.split(' ') }} {{ 'abc'.split('') if false }} {{ 'a--b--c'.rsplit('--', 1) "
     "}} {{ ''.split() }} {{ ''.split(',') }} {{ 'aXbX'.split('X') }} {{ ' x y '.split(none, 0) }} "
     "{{ ' x y '.rsplit(none, 0) }} {{ 'aaa'.rsplit('aa') }}",
     "['a', 'b,c'] ['a', 'b c'] [' a  b', 'c'] ['', 'a', '', 'b', '']  ['a--b', 'c'] [] [''] ['a', "
     "'b', ''] ['x y '] [' x y'] ['a', '']"},
    {"{{ 'a\\nb\\r\\nc\\rd\\x0be\\n'.splitlines() }} {{ 'a\\nb\\n'.splitlines(true) }} {{ "
     "''.splitlines() }} {{ '\\n'.splitlines() }}",
     "['a', 'b', 'c', 'd', 'e'] ['a\\n', 'b\\n'] [] ['']"},
    {"{{ 'a-b-c'.partition('x') }} {{ 'a-b-c'.rpartition('x') }} {{ 'abcabc'.removeprefix('abc') "
     "}} {{ 'abc'.removesuffix('x') }} {{ 'abc'.zfill(6) }} {{ '-5'.zfill(4) }} {{ "
     "'\303\251'.ljust(3,'-') }} {{ 'x\\ty'.expandtabs() }} {{ 'ab\\tc'.expandtabs(3) }}",
     "('a-b-c', '', '') ('', '', 'a-b-c') abc abc 000abc -005 \303\251-- x       y ab c"},
    {"{{ 'abc'.isalpha() }}{{ 'ab1'.isalnum() }}{{ '\302\262'.isdigit() }}{{ "
     "'\302\275'.isnumeric() }}{{ '\331\243'.isdecimal() }}{{ 'A b'.istitle() }}{{ 'A B'.istitle() "
     "}}{{ 'aB'.isupper() }}{{ 'AB1'.isupper() }}{{ ' \\t'.isspace() }}{{ '\303\251'.isascii() "
     "}}{{ ''.isascii() }}{{ 'a_1'.isidentifier() }}{{ '1a'.isidentifier() }}{{ "
     "'a\\n'.isprintable() }}",
     "TrueTrueTrueTrueTrueFalseTrueFalseTrueTrueFalseTrueTrueFalseFalse"},
    {"{{ 'aAbB'.replace('a', 'x').replace('B', '') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ "
     "'a\303\251'.replace('', '-') }} {{ 'abc'.replace('b', 'bb', -1) }} {{ 'abc'|replace('b', 5) "
     "}} {{ 5|replace(5,'x') }}",
     "xAb bba -a-\303\251- abbc a5c x"},
    {"{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000_000 }} {{ 1.5e3 }} {{ 1e3 }} {{ 00 }} {{ 1E-2 }} "
     "{{ 1_0.0_1 }}",
     "31 5 15 1000000 1500.0 1000.0 0 0.01 10.01"},
    {"{{ [1,2,][0] }} {{ {'a':1,} }} {{ (1,) }} {{ () }} {{ f is defined }} {{ m(1,) if false }}",
     "1 {'a': 1} (1,) () False "},
    {"{%- set x = [] %}{%- for i in [1,2] %}{%- set x = x + [i] %}{%- endfor %}{{ x }}", "[]"},
    {"{% raw -%}   a {% endraw %}", "a "},
    {"a", "a"},
    {"b", "b"},
    {"  {# x #}", ""},
    {"y", "y"},
    {"  {%+ if true %} x {%+ endif %}", "   x "},
    {"x", "x"},
    {"{{ 1 }}", "1"},
    {"{{- 2 }}", "2"},
    {"{{ 3 -}}", "3"},
    {"{{ 4 }}", "4"},
    {"   a", "   a"},
    {"b", "b"},
    {"{{ cycler('a','b').next() }} {% set c = cycler(1,2) %}{{ c.next() }}{{ c.current }}{{ "
     "c.next() }}{{ c.reset() }}{{ c.current }}",
     "a 122None1"},
    {"{% set j = joiner() %}{{ j() }}{{ j() }} {{ dict(a=1) }} {{ dict([('a',1)], b=2) }} {{ "
     "dict() }}",
     ",  {'a': 1} {'a': 1, 'b': 2} {}"},
    {"{{ namespace(a=1) }} {% set ns = namespace() %}{% set ns.x, ns.y = 1, 2 %}{{ ns.x }}{{ ns.y "
     "}}",
     "<Namespace {'a': 1}> 12"},
    {"{{ [{'a':'x'},{'a':'X'},{}] | groupby('a', default='q') }}",
     "[('q', [{}]), ('x', [{'a': 'x'}, {'a': 'X'}])]"},
    {"{{ [{'a':2,'b':1},{'a':1,'b':2},{'a':1,'b':1}] | sort(attribute='a,b') }} {{ "
     "[{'a':{'b':2}},{'a':{'b':1}}] | sort(attribute='a.b') }} {{ [[2,1],[1,2]] | "
     "sort(attribute=0) }} {{ [(1,'b'),(1,'a'),(0,'c')] | sort(attribute='0') }} {{ "
     "[(1,'b'),(1,'a')]|sort(attribute=0,reverse=true) }}",
     "[{'a': 1, 'b': 1}, {'a': 1, 'b': 2}, {'a': 2, 'b': 1}] [{'a': {'b': 1}}, {'a': {'b': 2}}] "
     "[[1, 2], [2, 1]] [(0, 'c'), (1, 'b'), (1, 'a')] [(1, 'b'), (1, 'a')]"},
    {"{{ {'a': none, 'b': 'x\"'} | xmlattr }} {{ {'a': 1} | xmlattr(false) }} {{ {'a': missing} | "
     "xmlattr }}|",
     " b=\"x&#34;\" a=\"1\" |"},
    {"{{ [1,2,3,4,5][1:-1] }} {{ [1,2,3,4,5][::-2] }} {{ [1,2,3][10:] }} {{ [1,2,3][:-10] }} {{ "
     "[1,2,3][-2:] }} {{ 'abcdef'[::2] }} {{ 'abcdef'[4:1:-1] }} {{ 'abc'[5:1:-1] }} {{ "
     "[1,2,3][5::-1] }} {{ (1,2,3)[:2] }} {{ 'h\303\251\303\251'[1:2] }} {{ [1,2,3][none:2] }} {{ "
     "'abc'[true] }}",
     "[2, 3, 4] [5, 3, 1] [] [] [2, 3] ace edc c [3, 2, 1] (1, 2) \303\251 [1, 2] b"},
    {"{% if not messages is defined %}undefined{% endif %} {% if messages is defined and messages "
     "%}x{% endif %}",
     "undefined "},
    {"{% with a=1, b=a %}{{ b }}{% endwith %}|{% with %}{% endwith %}", "|"},
    {"{% set a=5 %}{% with a=1, b=a %}{{ a }}{{ b }}{% endwith %}", "15"},
    {"{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q is defined }}", "1False"},
    {"{% if true %}{% generation %}x{% endgeneration %}{% endif %}", "x"},
    {"{{ 1 in missing }}", "False"},
    {"{{ missing in [1] }}", "False"},
    {"{{ missing | items | list }}", "[]"},
    {"{{ if }}", ""},
    {"{{ for }}", ""},
    {"{% set x = 1 if true %}{{ x }}", "1"},
    {"{{ 1.a }}", ""},
    {"{{ f(**{'a':1}) if false }} {{ f(*[1]) if false }} {{ dict(**{'a': 1}) }} {{ range(*[1,3]) | "
     "list }}",
     "  {'a': 1} [1, 2]"},
    {"{# a #} b #}", " b #}"},
    {"{% macro m() %}x{% endmacro %}{{ m }}", "<Macro 'm'>"},
    {"{% if false %}{{ 1 | nope }}{% endif %}ok", "ok"},
    {"{% if false %}{{ 1 is nope }}{% endif %}ok", "ok"},
    {"{{ '1' ~ 1 }} {{ 1 + 1.0 }} {{ 1 / 2 }} {{ 10 / 5 }} {{ 3 * 1.0 }}", "11 2.0 0.5 2.0 3.0"},
    {"  {# x #}\ny\n  {%+ if true %} x {%+ endif %}\nx", "y\n   x x"},
    {"{{ 1 }}\n{{- 2 }}\n{{ 3 -}}\n\n{{ 4 }}\n", "12\n34"},
    {"{% if true -%}\n   a\n{%- endif +%}\nb", "a\nb"},
    {"  {% raw %}\na\n  {% endraw %}\nb", "\na\nb"},
    {"a\n  {%- raw -%}\n x \n{%- endraw -%}\n b", "axb"},
    {"{% for i in [1,2] %}\n\n  {{ i }}\n  {% endfor %}\n\n", "\n  1\n\n  2\n"},
    {"\t {%- if 1 %}\n x{% endif %}\n\n\n", " x\n"},
    {"{% if 1 %}\r\nA\r\n{% endif %}\r\nB\r", "A\nB"},
    {"x\r\ry\n\r", "x\n\ny\n"},
    {"{% filter indent(2) %}a\nb{% endfilter %}", "a\n  b"},
    {"\n{% if 1 %}\n{% endif %}\n\n{# c #}\n\nx\n\n", "\n\n\nx\n"},
    {"  a {% if 1 %}\n  b\n  {%- endif %}  c\n", "  a   b  c"},
    {"{% set x %}\n  a\n{% endset %}\n[{{ x }}]", "[  a\n]"},
    {"\302\240{% if 1 %}x{% endif %}\n\342\200\203{% if 1 %}y{% endif %}", "xy"},
    {"{{ 'a\n b' }}\n{{ \"x\r\ny\" }}", "a\n b\nx\ny"},
    {"{%+ raw %}x{%+ endraw +%}\ny", "x\ny"},
    {"   {%- raw %}\nx{% endraw -%}\n\n y", "\nxy"},
    {"{# a\n#}\n{# b -#}\n\n c", "c"},
    {"{#- x +#}\ny", "\ny"},
    {"{{ 1 -}} \n {{- 2 }}", "12"},
    {"{%- if 1 -%}{%- endif -%}", ""},
    {"{{'a'}}\n\n", "a\n"},
    {"a\n\n\n", "a\n\n"},
    {"\n", ""},
    {"\n\n", "\n"},
    {"  \n", "  "},
    {"{%- set l = [3, 1, 2] -%}{%- set s = 'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{{ "
     "l[5] is defined }}{{ l['x'] is defined }}{{ s[100] is defined }}{{ s['upper'] is callable }}",
     "FalseFalseFalseTrue"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{{ d.items() }} "
     "{{ d.keys() }} {{ d.values() }}",
     "dict_items([('b', 2), ('a', 1), ('C', 3), ('nested', {'x': [1, 2, {'y': 'z'}]})]) "
     "dict_keys(['b', 'a', 'C', 'nested']) dict_values([2, 1, 3, {'x': [1, 2, {'y': 'z'}]}])"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{{ d.items() | "
     "list | length }} {{ d.keys() | length }}",
     "4 4"},
    {"{%- set l = [3, 1, 2] -%}{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': "
     "'z'}]}} -%}{%- set z = none -%}{{ 'a' in 'abc' and 'z' not in 'abc' }} {{ 1 not in l }} {{ "
     "'b' in d }}",
     "True False True"},
    {"{%- set l = [3, 1, 2] -%}{%- set words = ['b', 'A', 'c', 'B', 'a'] -%}{{ l | sort | "
     "join(',') }} {{ words | sort | join }} {{ words | sort(case_sensitive=true, reverse=true) | "
     "join }}",
     "1,2,3 AabBc cbaBA"},
    {"{%- set words = ['b', 'A', 'c', 'B', 'a'] -%}{{ words | unique | list }} {{ words | "
     "unique(case_sensitive=true) | list }} {{ words | min }} {{ words | max }} {{ "
     "words|max(case_sensitive=true) }}",
     "['b', 'A', 'c'] ['b', 'A', 'c', 'B', 'a'] A c c"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{{ d | dictsort "
     "}} {{ d | dictsort(reverse=true) | list }}",
     "[('a', 1), ('b', 2), ('C', 3), ('nested', {'x': [1, 2, {'y': 'z'}]})] [('nested', {'x': [1, "
     "2, {'y': 'z'}]}), ('C', 3), ('b', 2), ('a', 1)]"},
    {"{%- set msgs = "
     "[{'role':'system','content':'S'},{'role':'user','content':'U1'},{'role':'assistant','content'"
     ":none,'tool_calls':[{'function':{'name':'f','arguments':{'a':1}}}]}] -%}{{ msgs | "
     "map(attribute='role') | list }} {{ msgs | map(attribute='content') | select | list }}",
     "['system', 'user', 'assistant'] ['S', 'U1']"},
    {"{%- set msgs = "
     "[{'role':'system','content':'S'},{'role':'user','content':'U1'},{'role':'assistant','content'"
     ":none,'tool_calls':[{'function':{'name':'f','arguments':{'a':1}}}]}] -%}{{ msgs | "
     "selectattr('tool_calls', 'defined') | map(attribute='tool_calls.0.function.name') | list }}",
     "['f']"},
    {"{%- set msgs = "
     "[{'role':'system','content':'S'},{'role':'user','content':'U1'},{'role':'assistant','content'"
     ":none,'tool_calls':[{'function':{'name':'f','arguments':{'a':1}}}]}] -%}{{ msgs | "
     "rejectattr('content', 'none') | list | length }} {{ msgs | selectattr('role', 'in', "
     "['user','system']) | list | length }}",
     "2 2"},
    {"{%- set l = [3, 1, 2] -%}{{ [1,2,3,4,5,6,7] | batch(3) | list }} {{ [1,2,3,4,5,6,7] | "
     "slice(3) | list }} {{ [1,2,3,4,5,6,7] | slice(3, 'x') | list }} {{ l|batch(2,'-')|list }}",
     "[[1, 2, 3], [4, 5, 6], [7]] [[1, 2, 3], [4, 5], [6, 7]] [[1, 2, 3], [4, 5, 'x'], [6, 7, "
     "'x']] [[3, 1], [2, '-']]"},
    {"{%- set l = [3, 1, 2] -%}{{ l | sum }} {{ [{'a':1},{'a':2}] | sum(attribute='a') }} {{ "
     "[1.5,2]|sum }} {{ []|sum }} {{ [[1],[2]]|sum(start=[]) }}",
     "6 3 3.5 0 [1, 2]"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{%- set s = "
     "'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{%- set e = [] -%}{{ 'hello world' | "
     "title }} {{ \"it's a-b (c) [d] <e>\" | title }} {{ 'HELLO' | capitalize }} {{ '\307\206' | "
     "title }} {{ '\307\206abc'.title() }}",
     "Hello World It's A-B (C) [D] <E> Hello \307\204 \307\205abc"},
    {"{%- set s = 'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{{ s | upper }} {{ s | lower "
     "}} {{ s | length }} {{ s[::-1] }} {{ s | reverse }} {{ s.swapcase() }}",
     "HELLO, W\303\226RLD! \346\227\245\346\234\254 hello, w\303\266rld! \346\227\245\346\234\254 "
     "16 \346\234\254\346\227\245 !dlr\303\266W ,olleH \346\234\254\346\227\245 !dlr\303\266W "
     ",olleH hELLO, w\303\226RLD! \346\227\245\346\234\254"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{%- set e = [] "
     "-%}{{ '%5d|%-5d|%05d|%+d|% d|%x|%X|%o|%#x|%e|%g|%r|%c|%%' % "
     "(1,2,3,4,5,255,255,8,255,1234.5,0.0001,'q','c') }}",
     "    1|2    |00003|+4| 5|ff|FF|10|0xff|1.234500e+03|0.0001|'q'|c|%"},
    {"{%- set s = 'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{{ '%(a)s %(b)05.1f' % {'a': "
     "1, 'b': 2.25} }} {{ '%s' % 'x' }} {{ '%s' % [1,2] }} {{ '%s %s' % (1, none) }}",
     "1 002.2 x [1, 2] 1 None"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{{ '%10.3s|' % "
     "'abcdef' }} {{ '%-10s|' % 'ab' }} {{ '%*d' % (5, 3) }} {{ '%.3d' % 5 }} {{ '%5s' % "
     "'\303\251' }}",
     "       abc| ab        |     3 005     \303\251"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{%- set s = "
     "'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{{ '%d' % 3.99 }} {{ '%i' % true }} {{ "
     "'%s' % true }} {{ '%.0f' % 2.5 }} {{ '%G' % 1e-10 }} {{ '%5.1f%%' % 12.345 }}",
     "3 1 True 2 1E-10  12.3%"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{{ "
     "'{:>5}|{:<5}|{:^5}|{:*^7}|{:05d}|{:+d}|{:,}|{:_}|{:x}|{:#b}|{:o}'.format(1,2,3,4,5,6,1234567,"
     "1234567,255,5,8) }}",
     "    1|2    |  3  |***4***|00005|+6|1,234,567|1_234_567|ff|0b101|10"},
    {"{%- set e = [] -%}{{ '{:.2f} {:e} {:g} {:%} {:.1%} {:10.2f}| {:<10.2f}|'.format(3.14159, "
     "12345.678, 0.0001, 0.5, 0.123, 2.5, 2.5) }}",
     "3.14 1.234568e+04 0.0001 50.000000% 12.3%       2.50| 2.50      |"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{{ 1 == 1.0 }} "
     "{{ true == 1 }} {{ 'a' == \"a\" }} {{ [1] == (1,) }} {{ none == none }} {{ {} == [] }} {{ "
     "d.keys() == d.keys() }} {{ missing == missing2 }} {{ missing == none }}",
     "True True True False True False True True False"},
    {"{%- set l = [3, 1, 2] -%}{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': "
     "'z'}]}} -%}{%- set e = [] -%}{{ l | first }} {{ e | first }}| {{ e | last }}| {{ 'xyz' | "
     "last }} {{ d | first }} {{ d | last }}",
     "3 | | z b nested"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{% for k in d "
     "%}{{ k }}{{ loop.index }}{% endfor %} {% for k, v in d|dictsort %}{{ k }}{{ v }} {% endfor "
     "%}",
     "b1a2C3nested4 a1 b2 C3 nested{'x': [1, 2, {'y': 'z'}]} "},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{% for k, v in "
     "d | items %}{{ k }}{% endfor %}{% for x in d.nested.x %}{{ x }}{% endfor %}",
     "baCnested12{'y': 'z'}"},
    {"{%- set l = [3, 1, 2] -%}{% set g = l | map('string') %}{{ g | list }}{{ g | list }}{% if "
     "l|select('gt',5) %}truthy{% endif %}",
     "['3', '1', '2'][]truthy"},
    {"{%- set l = [3, 1, 2] -%}{%- set words = ['b', 'A', 'c', 'B', 'a'] -%}{{ l | map('string') | "
     "join('-') }} {{ l | select('ge', 2) | list }} {{ l | reject('divisibleby', 2) | list }} {{ "
     "words | map('upper') | join }} {{ words|map('replace','a','x')|join }}",
     "3-1-2 [3, 2] [3, 1] BACBA bAcBx"},
    {"{%- set z = none -%}{{ x | default }}|{{ x | default('y') }}|{{ z | default('y', true) }}|{{ "
     "0 | default(1, boolean=true) }}",
     "|y|y|1"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{%- set z = "
     "none -%}{{ 'a b&c=d/\303\251?' | urlencode }} {{ {'a': 1, 'b': 'x y/z'} | urlencode }} {{ "
     "[('q', '\303\251')] | urlencode }} {{ 5 | urlencode }}",
     "a%20b%26c%3Dd/%C3%A9%3F a=1&b=x+y%2Fz q=%C3%A9 5"},
    {"{%- set e = [] -%}{{ '<a>' | e }} {{ '<a>' | e | e }} {{ '<a>' | forceescape }} {{ '<a>' | e "
     "| forceescape }} {{ ('<b>' | safe) ~ '<c>' }} {{ ('<b>' | safe) + '<c>' }} {{ '<c>' + "
     "('<b>'|e) }} {{ ('<b>'|e) is escaped }} {{ [('<b>'|e)] }} {{ 5|e }}",
     "&lt;a&gt; &lt;a&gt; &lt;a&gt; &amp;lt;a&amp;gt; <b><c> <b>&lt;c&gt; &lt;c&gt;&lt;b&gt; True "
     "[Markup('&lt;b&gt;')] 5"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{%- set e = [] "
     "-%}{{ ('<a>'|e) | tojson }} {{ d | tojson }} {{ d.items() | list | tojson }} {{ true | "
     "tojson }}",
     "\"&lt;a&gt;\" {\"b\": 2, \"a\": 1, \"C\": 3, \"nested\": {\"x\": [1, 2, {\"y\": \"z\"}]}} "
     "[[\"b\", 2], [\"a\", 1], [\"C\", 3], [\"nested\", {\"x\": [1, 2, {\"y\": \"z\"}]}]] true"},
    {"{%- set l = [3, 1, 2] -%}{% for x in l %}{{ loop.cycle('a','b','c') }}{{ loop.changed(x) "
     "}}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.revindex }} {% endfor %}",
     "aTrue13 bTrue322 cTrue11 "},
    {"{%- set l = [3, 1, 2] -%}{% for x in l %}{{ loop }}{% endfor %}",
     "<LoopContext 1/3><LoopContext 2/3><LoopContext 3/3>"},
    {"{%- set z = none -%}{{ 'a' if false }}|{{ ('a' if false) is defined }}|{{ 'a' if true else "
     "'b' if true else 'c' }}|{{ ('x' if z else 'y') ~ 'w' }}",
     "|False|a|yw"},
    {"{%- set l = [3, 1, 2] -%}{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': "
     "'z'}]}} -%}{{ 'a' is string and [] is sequence }} {{ d is mapping }} {{ d.keys() is iterable "
     "}} {{ d.keys() is sequence }} {{ range(2) is sequence }} {{ (l|map('string')) is iterable }} "
     "{{ (l|map('string')) is sequence }} {{ missing is iterable }} {{ missing is sequence }} {{ "
     "missing is mapping }} {{ missing is callable }} {{ missing is none }}",
     "True True True False True True False True True False True False"},
    {"{%- set l = [3, 1, 2] -%}{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': "
     "'z'}]}} -%}{{ d['nested']['x'][2]['y'] }} {{ d.nested.x.2.y }} {{ l.0 }} {{ d.get('q', "
     "{}).get('r') }} {{ d['get'] is callable }} {{ {'get': 1}.get is callable }} {{ {'get': "
     "1}['get'] }} {{ {'items': 7}['items'] }}",
     "z z 3 None True True 1 7"},
    {"{%- set l = [3, 1, 2] -%}{%- set s = 'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{{ "
     "s.startswith('Hel') }} {{ s.endswith(('x', '\346\234\254')) }} {{ s.find('W') }} {{ "
     "s.find('\346\227\245') }} {{ s.index('l', 3) }} {{ s.count('l') }} {{ s.rfind('l') }} {{ "
     "s.find('l', -5) }} {{ s.find('') }} {{ 'abc'.find('', 10) }} {{ 'abc'.count('') }} {{ "
     "'aaa'.count('aa') }} {{ 'abc'.rfind('') }} {{ s.startswith('W', 7) }} {{ s.startswith('W', "
     "7, 8) }}",
     "True True 7 14 3 3 10 -1 0 -1 4 1 3 True True"},
    {"{%- set l = [3, 1, 2] -%}{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': "
     "'z'}]}} -%}{%- set words = ['b', 'A', 'c', 'B', 'a'] -%}{{ '-'.join(['a','b']) }} {{ "
     "'-'.join(d) }} {{ ''.join(words) }} {{ l | join(attribute='x') }}|",
     "a-b b-a-C-nested bAcBa |"},
    {"{%- set l = [3, 1, 2] -%}{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': "
     "'z'}]}} -%}{{ l.index(1) }} {{ l.count(3) }} {{ (1,2,1).count(1) }} {{ (1,2).index(2) }} {{ "
     "l.copy() }} {{ d.copy() }}",
     "1 1 2 1 [3, 1, 2] {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}}"},
    {"{%- set l = [3, 1, 2] -%}{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': "
     "'z'}]}} -%}{{ l.append }}|{{ l.pop is defined }}|{{ l.__class__ }}|{{ d.pop }}",
     "|False||"},
    {"{%- set s = 'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{{ s.__len__ is defined }}",
     "False"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{% set a = 1 "
     "-%}   b {%- set c = 2 %}   d",
     "b   d"},
    {"{%- set z = none -%}{% raw %} {{ x }} {% endraw %} {%- raw -%}  {% x %}  {%- endraw -%}  z",
     " {{ x }} {% x %}z"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}a {#- c -#} b "
     "{# d #}",
     "ab "},
    {"{%- set s = 'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{% print 1, 2 %} {% print s "
     "%}",
     "12 Hello, W\303\266rld! \346\227\245\346\234\254"},
    {"{%- set msgs = "
     "[{'role':'system','content':'S'},{'role':'user','content':'U1'},{'role':'assistant','content'"
     ":none,'tool_calls':[{'function':{'name':'f','arguments':{'a':1}}}]}] -%}{{ msgs | "
     "groupby('role') | map('first') | list }} {% for g in msgs | groupby('role') %}{{ g.grouper "
     "}}:{{ g.list | length }} {% endfor %}{% for r, i in msgs|groupby('role') %}{{ r }}{% endfor "
     "%}{{ [{'a':1},{'a':2},{'a':1}] | groupby('a') }}",
     "['assistant', 'system', 'user'] assistant:1 system:1 user:1 assistantsystemuser[(1, [{'a': "
     "1}, {'a': 1}]), (2, [{'a': 2}])]"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{%- set s = "
     "'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{{ d | attr('items') is callable }} {{ d "
     "| attr('b') }}| {{ s | attr('upper') is callable }}",
     "True | True"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{{ 'abc' | list "
     "}} {{ (1,2) | list }} {{ d | list }} {{ none | list if false }} {{ missing | list }}",
     "['a', 'b', 'c'] [1, 2] ['b', 'a', 'C', 'nested']  []"},
    {"{%- set l = [3, 1, 2] -%}{{ l | reverse | list }} {{ (l|reverse) is iterable }} {{ [] | "
     "reverse | list }} {% if []|reverse %}T{% endif %}",
     "[2, 1, 3] True [] T"},
    {"{%- set s = 'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{{ s.upper().lower().title() "
     "}} {{ s.split(',')[0].strip().upper() }} {{ (s | upper).lower() }} {{ s | upper | lower | "
     "first | upper }}",
     "Hello, W\303\266rld! \346\227\245\346\234\254 HELLO hello, w\303\266rld! "
     "\346\227\245\346\234\254 H"},
    {"{%- set s = 'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{{ ['\303\251', \"it's\", "
     "'a\"b', \"both'\\\"\", '\\x00\\x7f\\u200b\\U0001f600\\u3000'] }}",
     "['\303\251', \"it's\", 'a\"b', 'both\\'\"', '\\x00\\x7f\\u200b\360\237\230\200\\u3000']"},
    {"{%- set l = [3, 1, 2] -%}{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': "
     "'z'}]}} -%}{{ 5[0] is defined }} {{ 5['a'] }}| {{ none[0] is defined }} {{ d[l] is defined "
     "}} {{ 5[1:2] }}",
     "False | False False "},
    {"{%- set s = 'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{{ '%s' | format('x') }} {{ "
     "'%(a)s' | format(a=1) }} {{ '%s-%s' | format(1, 2) }}",
     "x 1 1-2"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{{ missing ~ "
     "'x' }} {{ missing | length }} {{ missing | upper }} {% for i in missing %}{% endfor %}{{ "
     "missing | join }} {{ missing | first }} {{ missing | tojson if false }} {{ 'x' in missing }} "
     "{{ [missing] }} {{ [missing]|tojson if 0 }} {{ not missing }} {{ missing or 'd' }} {{ "
     "missing and 'd' }}",
     "x 0     False [Undefined]  True d "},
    {"{%- set l = [3, 1, 2] -%}{{ l | sort(attribute='x') }}", "[3, 1, 2]"},
    {"{%- set l = [3, 1, 2] -%}{% for a in l, %}{{ a }}{% endfor %}", "[3, 1, 2]"},
    {"{%- set l = [3, 1, 2] -%}{{ l[:] }} {{ l[::] }} {{ l[1:] }} {{ l[-1:] }}",
     "[3, 1, 2] [3, 1, 2] [1, 2] [2]"},
    {"{%- set l = [3, 1, 2] -%}{% for i in l %}{{ loop.nope }}{% endfor %}|", "|"},
    {"{%- set s = 'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{{ 1 is string }}{{ s is "
     "escaped }}",
     "FalseFalse"},
    {"{%- set l = [3, 1, 2] -%}{{ l == [3,1,2] and l != [1] }} {{ l is eq [3,1,2] }} {{ 2 is in l "
     "}} {{ l is not in [1] }}",
     "True True True True"},
    {"{%- set z = none -%}{{ 'abc' > 'abb' }} {{ 'Z' < 'a' }} {{ '\303\251' > 'z' }} {{ "
     "'\360\237\230\200' > '\\uffff' }}",
     "True True True True"},
    {"{%- set s = 'Hello, W\303\266rld! \346\227\245\346\234\254' -%}{{ \"%.15g\" % 0.1 }} {{ "
     "\"%.17g\" % 0.1 }} {{ \"%s\" % 0.1 }} {{ 1e22 }} {{ 1e21 }} {{ 123456789012345680000.0 }}",
     "0.1 0.10000000000000001 0.1 1e+22 1e+21 1.2345678901234568e+20"},
    {"{%- set msgs = "
     "[{'role':'system','content':'S'},{'role':'user','content':'U1'},{'role':'assistant','content'"
     ":none,'tool_calls':[{'function':{'name':'f','arguments':{'a':1}}}]}] -%}{{ msgs[0] }} {{ "
     "msgs[-1].tool_calls[0].function.arguments }} {{ msgs[2].content is none }} {{ msgs | length "
     "}} {{ msgs[1:] | length }} {{ msgs[:1] + msgs[2:] | list | length if false }}",
     "{'role': 'system', 'content': 'S'} {'a': 1} True 3 2 "},
    {"{%- set msgs = "
     "[{'role':'system','content':'S'},{'role':'user','content':'U1'},{'role':'assistant','content'"
     ":none,'tool_calls':[{'function':{'name':'f','arguments':{'a':1}}}]}] -%}{{ (msgs | "
     "last).role }} {{ msgs | map(attribute='role') | unique | sort | join('|') }} {{ (msgs | "
     "selectattr('role','eq','user') | first).content }} {{ (msgs | selectattr('role','eq','zzz') "
     "| first) is defined }}",
     "assistant assistant|system|user U1 False"},
    {"{%- set d = {'b': 2, 'a': 1, 'C': 3, 'nested': {'x': [1, 2, {'y': 'z'}]}} -%}{%- set e = [] "
     "-%}  {{ 1 }}  \n  {% set a = 1 %}  \n{% set b = 2 %}\n  {% set c = 3 %} {% set d = 4 %}\ne",
     "1  \n  \n e"},
    {"{%- set z = none -%}x\n    {% if 1 %}y\n    {% else %}z\n    {% endif %}\n  w", "x\ny\n  w"},
};
