// Stop strings may span any number of tokens, so an unfinished answer keeps back as many characters
// as the longest one has, less one: whatever is shown can no longer be part of a match.
#include "api_server/stop_matcher.h"

#include "base/utf8.h"

struct stop_matcher stop_matcher_make(const struct str *strings, int32_t num_strings,
                                      bool include_in_output)
{
    struct stop_matcher matcher = {strings, num_strings, include_in_output, 0};
    for (int32_t i = 0; i < num_strings && !include_in_output; i++) {
        size_t chars = utf8_count(strings[i]);
        if (chars - 1 > matcher.hold_back)
            matcher.hold_back = chars - 1;
    }
    return matcher;
}

int32_t stop_matcher_find(const struct stop_matcher *matcher, struct str text, size_t num_new,
                          size_t *cut_len)
{
    int32_t found = -1;
    size_t found_end = SIZE_MAX;
    for (int32_t i = 0; i < matcher->num_strings; i++) {
        struct str stop = matcher->strings[i];
        size_t tail = num_new + stop.len - 1; // a match ends in the new part
        size_t from = text.len > tail ? text.len - tail : 0;
        size_t at = str_find(text, stop, from);
        if (at == STR_NOT_FOUND || at + stop.len >= found_end)
            continue;
        found = i;
        found_end = at + stop.len;
        *cut_len = matcher->include_in_output ? found_end : at;
    }
    return found;
}

size_t stop_matcher_visible(const struct stop_matcher *matcher, struct str text)
{
    size_t len = text.len;
    for (size_t chars = matcher->hold_back; chars > 0 && len > 0; chars--) {
        len--;
        while (len > 0 && ((unsigned char)text.ptr[len] & 0xC0) == 0x80)
            len--;
    }
    return len;
}
