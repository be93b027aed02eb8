// One thread, once: see token_loader.h.
#include "worker/token_loader.h"

#include <sched.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "structured_output/token_trie.h"

enum {
    MAX_BYTES_PER_TOKEN = 96,     // of vocabularies of words and their parts: 54 to 56
    MAX_BYTES_OF_OTHERS = 1 << 16 // a few very long ones
};

size_t token_loader_max_bytes(int32_t vocab_size)
{
    return (size_t)vocab_size * MAX_BYTES_PER_TOKEN + MAX_BYTES_OF_OTHERS;
}

static void load(struct token_loader *loader)
{
    struct error err = {0};
    int64_t start_ns = clock_monotonic_ns();
    enum status status = token_trie_load(&loader->trie, loader->path, &err);
    size_t size = status == STATUS_OK ? token_trie_bytes(loader->trie) : 0;
    if (size > loader->max_bytes) {
        token_trie_destroy(loader->trie);
        loader->trie = NULL;
        status = error_set(&err, STATUS_TOO_LARGE,
                           "%s: its tokens by their bytes take %.1f MiB, the plan allows for %.1f",
                           loader->path, (double)size / (1024 * 1024),
                           (double)loader->max_bytes / (1024 * 1024));
    }
    if (status != STATUS_OK)
        log_error("structured output is not possible: %s", err.message);
    else
        log_info("Structured output: %d tokens by their bytes, %.1f MiB, read in %.1f ms",
                 token_trie_num_tokens(loader->trie), (double)size / (1024 * 1024),
                 (double)(clock_monotonic_ns() - start_ns) / 1e6);
    atomic_store(&loader->is_done, true);
}

static void *run(void *context)
{
    // The engine's threads may be bound to cores, and this one inherits that: anywhere is better
    // than on top of one of them.
    cpu_set_t everywhere;
    memset(&everywhere, 0xff, sizeof(everywhere));
    pthread_setaffinity_np(pthread_self(), sizeof(everywhere), &everywhere);
    load(context);
    return NULL;
}

static void begin(struct token_loader *loader, const char *path, int32_t vocab_size)
{
    if (loader->has_begun)
        return;
    loader->has_begun = true;
    loader->path = path;
    loader->max_bytes = token_loader_max_bytes(vocab_size);
    loader->has_thread = pthread_create(&loader->thread, NULL, run, loader) == 0;
    if (!loader->has_thread)
        load(loader);
}

enum tokens_state token_loader_poll(struct token_loader *loader, const char *path,
                                    int32_t vocab_size)
{
    begin(loader, path, vocab_size);
    if (!atomic_load(&loader->is_done))
        return TOKENS_LOADING;
    return loader->trie ? TOKENS_READY : TOKENS_FAILED;
}

const struct token_trie *token_loader_wait(struct token_loader *loader, const char *path,
                                           int32_t vocab_size)
{
    begin(loader, path, vocab_size);
    if (loader->has_thread)
        pthread_join(loader->thread, NULL);
    loader->has_thread = false;
    return loader->trie;
}

void token_loader_deinit(struct token_loader *loader)
{
    if (loader->has_thread)
        pthread_join(loader->thread, NULL);
    token_trie_destroy(loader->trie);
    *loader = (struct token_loader){0};
}
