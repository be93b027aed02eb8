// Jinja templates: compiled once, rendered by any thread.
//
// The language is Jinja2's, in the environment that chat templates are written for: sandboxed and
// immutable, trim_blocks and lstrip_blocks on, break and continue, the generation tag, a tojson
// that escapes nothing but what JSON needs.
#pragma once

#include <stdbool.h>
#include <time.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"
#include "tokenizer/jinja_value.h"

/** A compiled template. Immutable. */
struct jinja_template;

/** Errors: INVALID (syntax), UNSUPPORTED (a construct we lack), TOO_LARGE; each names the line. */
NODISCARD enum status jinja_template_compile(struct jinja_template **out, struct str source,
                                             struct error *err);
void jinja_template_destroy(struct jinja_template *jinja_template);

/** `*rt` is ready for globals and jinja_template_render(); end with jinja_runtime_deinit(). `now`
 *  is what strftime_now() tells; NULL: the wall clock. */
void jinja_runtime_init(struct jinja_runtime *rt, const struct tm *now, struct error *err);
void jinja_runtime_deinit(struct jinja_runtime *rt);

/** A variable that the template sees. Strings of `json` are borrowed. */
NODISCARD enum status jinja_runtime_set_json(struct jinja_runtime *rt, struct str name,
                                             const json_t *json);

/** Renders; the text lies in the runtime. */
NODISCARD enum status jinja_template_render(const struct jinja_template *jinja_template,
                                            struct jinja_runtime *rt, struct str *out);

/** Whether a loop goes over the content of a message: an attribute or item `content` of the
 *  variable of a loop over `messages`, or a variable set from either. */
bool jinja_template_loops_over_content(const struct jinja_template *jinja_template);
