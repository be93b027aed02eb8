// Unicode normal forms (UAX 15).
#pragma once

#include "base/arena.h"
#include "base/str.h"

enum unicode_normal_form {
    UNICODE_NORMAL_FORM_C,
    UNICODE_NORMAL_FORM_D,
    UNICODE_NORMAL_FORM_KC,
    UNICODE_NORMAL_FORM_KD,
};

/** `text` is well formed UTF-8. The result lives in `arena`, or is `text` if nothing changes. */
struct str unicode_normalize(enum unicode_normal_form form, struct str text, struct arena *arena);
