// What structured output costs an engine: constraint_bench TOKENIZER_JSON [TOKENIZER_JSON...]
//
// The bytes of all tokens are read once: within a step, or on a thread beside the steps, which are
// short loops of arithmetic here. Then the masks of an automaton that allows any text, made for
// each row and found again by state, for a step of many rows. All in CPU time of the engine's
// thread, so that what else the machine does matters little.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/log.h"
#include "base/memory.h"
#include "structured_output/token_trie.h"
#include "tokenizer/tokenizer.h"
#include "worker/constraint.h"
#include "worker/token_loader.h"

enum { NUM_RUNS = 20, NUM_ROWS = 64, NUM_STATES = 4 };

static int64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static double milliseconds(int64_t ns)
{
    return (double)ns / 1e6;
}

static int64_t run_step(void)
{
    int64_t start_ns = cpu_ns();
    volatile double sink = 0;
    for (int32_t i = 0; i < 400000; i++)
        sink = sink + 1.0 / (i + 1);
    return cpu_ns() - start_ns;
}

static int64_t longest_step(int32_t count)
{
    int64_t longest = 0;
    for (int32_t i = 0; i < count; i++)
        longest = max_i64(longest, run_step());
    return longest;
}

static const struct token_trie *load(struct token_loader *loader, const char *path)
{
    struct error err = {0};
    struct token_trie *trie;
    int64_t start_ns = cpu_ns();
    if (token_trie_load(&trie, path, &err) != STATUS_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    int64_t load_ns = cpu_ns() - start_ns;
    printf("%s\n  %d tokens, %.1f MiB by their bytes (the plan allows for %.1f)\n", path,
           token_trie_num_tokens(trie), (double)token_trie_bytes(trie) / (1 << 20),
           (double)token_loader_max_bytes(token_trie_num_tokens(trie)) / (1 << 20));
    printf("  longest step, nothing beside it        %9.2f ms\n", milliseconds(longest_step(200)));
    printf("  longest step, tokens read within it    %9.2f ms\n",
           milliseconds(load_ns + run_step()));
    int64_t longest = 0;
    while (token_loader_poll(loader, path, token_trie_num_tokens(trie)) == TOKENS_LOADING)
        longest = max_i64(longest, run_step());
    printf("  longest step, tokens read beside it    %9.2f ms\n", milliseconds(longest));
    token_trie_destroy(trie);
    return token_loader_wait(loader, path, 0);
}

/** An automaton of a few states, each of which allows every byte. */
static int32_t any_text(uint32_t *words)
{
    int32_t n = 0;
    words[n++] = NUM_STATES;
    for (uint32_t i = 0; i < NUM_STATES; i++)
        words[n++] = i | AUTOMATON_ACCEPTS;
    words[n++] = NUM_STATES;
    for (int32_t i = 0; i < NUM_STATES; i++)
        words[n++] = automaton_edge((i + 1) % NUM_STATES, 0, 255);
    return n;
}

static void measure_masks(const struct token_trie *tokens, int32_t vocab_size)
{
    uint32_t words[3 * NUM_STATES + 2];
    int32_t num_words = any_text(words);
    struct constraint_store store;
    struct arena arena = {0};
    struct batch_row row = {.sampling = {.automaton = words, .num_automaton_words = num_words}};
    int64_t made_ns = INT64_MAX, found_ns = INT64_MAX;
    constraint_store_init(&store, vocab_size);
    row.sampling.automaton = constraint_store_acquire(&store, words, num_words, &row.automaton_id);
    for (int32_t run = 0; run < NUM_RUNS; run++) {
        for (int32_t is_stored = 0; is_stored < 2; is_stored++) {
            int64_t start_ns = cpu_ns();
            constraint_store_begin_step(&store);
            for (int32_t i = 0; i < NUM_ROWS; i++) {
                struct stored_mask *mask = NULL;
                struct token_constraint constraint;
                row.automaton_state = i % NUM_STATES;
                if (is_stored)
                    mask = constraint_store_find(&store, row.automaton_id, row.automaton_state);
                if (mask && mask->is_new)
                    constraint_store_make(&store, mask, row.sampling.automaton, tokens);
                CHECK(constraint_find(&constraint, tokens, &row, mask, vocab_size, &arena));
            }
            int64_t step_ns = cpu_ns() - start_ns;
            if (is_stored)
                found_ns = min_i64(found_ns, step_ns);
            else
                made_ns = min_i64(made_ns, step_ns);
            arena_reset(&arena);
        }
    }
    printf("  masks of %d rows, made for each      %9.2f ms a step\n", NUM_ROWS,
           milliseconds(made_ns));
    printf("  masks of %d rows, kept by state      %9.2f ms a step\n", NUM_ROWS,
           milliseconds(found_ns));
    arena_deinit(&arena);
    constraint_store_deinit(&store);
}

int main(int argc, char **argv)
{
    log_set_level(LOG_LEVEL_ERROR);
    for (int i = 1; i < argc; i++) {
        struct token_loader loader = {0};
        const struct token_trie *tokens = load(&loader, argv[i]);
        measure_masks(tokens, token_trie_num_tokens(tokens));
        token_loader_deinit(&loader);
    }
    return argc > 1 ? 0 : 1;
}
