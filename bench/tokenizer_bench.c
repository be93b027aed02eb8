// How fast a tokenizer loads, encodes and decodes: tokenizer_bench TOKENIZER_JSON [TEXT_FILE...]
//
// Without text files it makes a megabyte each of prose, code, one random word and one repeated
// letter. Each figure is the best of several runs.
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/mapped_file.h"
#include "base/memory.h"
#include "tokenizer/tokenizer.h"

enum { TEXT_BYTES = 1 << 20, NUM_RUNS = 5 };

static double milliseconds(int64_t ns)
{
    return (double)ns / 1e6;
}

static struct tokenizer *load(const char *path)
{
    int64_t best = INT64_MAX;
    struct tokenizer *tokenizer = NULL;
    for (int run = 0; run < NUM_RUNS; run++) {
        tokenizer_destroy(tokenizer);
        struct error err;
        int64_t start = clock_monotonic_ns();
        if (tokenizer_load(&tokenizer, path, &err) != STATUS_OK) {
            fprintf(stderr, "%s\n", err.message);
            exit(1);
        }
        best = min_i64(best, clock_monotonic_ns() - start);
    }
    printf("%-16s %9.1f ms  %" PRId32 " tokens\n", "load", milliseconds(best),
           tokenizer_vocab_size(tokenizer));
    return tokenizer;
}

static void measure(const struct tokenizer *tokenizer, const char *name, struct str text)
{
    struct arena arena = {0};
    int64_t encode_ns = INT64_MAX, decode_ns = INT64_MAX, stream_ns = INT64_MAX;
    int32_t num_ids = 0;
    struct buf out = {0};
    for (int run = 0; run < NUM_RUNS; run++) {
        arena_reset(&arena);
        buf_clear(&out);
        int64_t start = clock_monotonic_ns();
        int32_t *ids = tokenizer_encode(tokenizer, text, false, &arena, &num_ids);
        int64_t encoded = clock_monotonic_ns();
        tokenizer_decode(tokenizer, ids, num_ids, false, &arena);
        int64_t decoded = clock_monotonic_ns();
        struct detokenizer *detokenizer = detokenizer_create(tokenizer, NULL, 0, true);
        for (int32_t i = 0; i < num_ids; i++)
            detokenizer_step(detokenizer, ids[i], &out);
        detokenizer_destroy(detokenizer);
        int64_t streamed = clock_monotonic_ns();
        encode_ns = min_i64(encode_ns, encoded - start);
        decode_ns = min_i64(decode_ns, decoded - encoded);
        stream_ns = min_i64(stream_ns, streamed - decoded);
    }
    double megabytes = (double)text.len / 1e6;
    printf("%-16s %9.2f MB/s  %8.1f ms  %" PRId32 " tokens; decode %.1f MB/s, stream %.0f ns a "
           "token\n",
           name, megabytes / ((double)encode_ns / 1e9), milliseconds(encode_ns), num_ids,
           megabytes / ((double)decode_ns / 1e9), (double)stream_ns / max_i32(num_ids, 1));
    buf_deinit(&out);
    arena_deinit(&arena);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void make_prose(struct buf *out)
{
    static const char *const words[] = {
        "the",    "quiet",    "river",  "of",      "morning", "light",  "found",  "its",
        "way",    "through",  "narrow", "streets", "and",     "people", "waited", "without",
        "saying", "anything", "until",  "evening", "came",    "42",     "naïve",  "Straße",
    };
    uint32_t state = 1;
    for (int n = 1; out->len < TEXT_BYTES; n++) {
        buf_append_c(out, words[next_random(&state) % ARRAY_LEN(words)]);
        buf_append_c(out, n % 97 == 0 ? ".\n\n" : n % 11 == 0 ? ", " : " ");
    }
}

static void make_code(struct buf *out)
{
    uint32_t state = 2;
    while (out->len < TEXT_BYTES) {
        uint32_t n = next_random(&state) % 1000;
        buf_printf(out,
                   "    for (int32_t i%u = 0; i%u < count; i%u++) {\n"
                   "        total += values[i%u] * 0x%x; // weight %u\n    }\n",
                   n, n, n, n, n * 7919, n);
    }
}

static void make_word(struct buf *out, bool repeated)
{
    uint32_t state = 3;
    while (out->len < TEXT_BYTES)
        buf_append_char(out, repeated ? 'a' : (char)('a' + next_random(&state) % 26));
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s TOKENIZER_JSON [TEXT_FILE...]\n", argv[0]);
        return 2;
    }
    struct tokenizer *tokenizer = load(argv[1]);
    for (int i = 2; i < argc; i++) {
        struct mapped_file file;
        struct error err;
        if (mapped_file_open(&file, argv[i], &err) != STATUS_OK) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
        measure(tokenizer, argv[i], mapped_file_str(&file));
        mapped_file_close(&file);
    }
    if (argc == 2) {
        struct buf text = {0};
        make_prose(&text);
        measure(tokenizer, "prose", buf_str(&text));
        buf_clear(&text);
        make_code(&text);
        measure(tokenizer, "code", buf_str(&text));
        buf_clear(&text);
        make_word(&text, false);
        measure(tokenizer, "random word", buf_str(&text));
        buf_clear(&text);
        make_word(&text, true);
        measure(tokenizer, "repeated letter", buf_str(&text));
        buf_deinit(&text);
    }
    tokenizer_destroy(tokenizer);
    return 0;
}
