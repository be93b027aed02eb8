// Logits → token ids and log-probabilities.
//
// The order is vLLM's: the mask of structured output, then log-probabilities; then allowed ids,
// bias, min_tokens, bad words; repetition, frequency and presence penalty; then greedy, or
// temperature, min-p, top-k, top-p and a draw.
//
// min-p and top-k are thresholds on the logit, so they need no exponentials; top-k keeps the k
// largest in a heap, top-p sums slices of the logits and orders the one slice where the mass is
// reached. A row costs a few passes over the vocabulary and never a sort of it. Sums run in a
// fixed order in double precision: a result depends on the arguments alone.
#include "worker/sampler.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "structured_output/token_trie.h"

/** Tokens that may still be drawn, ids rising; weights are exponentials, not yet divided by their
 *  total. */
struct candidates {
    int32_t num;
    int32_t *ids;
    float *logits;
    double *weights;
    double total;
    float max; // logit
    double temperature;
};

/** top-p's slices: 1/128 of a nat each, 32 nats (below 1e-13 of the largest) in all. */
enum { SLICES_PER_NAT = 128, NUM_SLICES = 32 * SLICES_PER_NAT };

void philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high, uint32_t out[4])
{
    enum { ROUNDS = 10 };
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t even = (uint64_t)0xD2511F53u * c0, odd = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(odd >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)odd;
        c2 = (uint32_t)(even >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)even;
        k0 += 0x9E3779B9u; // the golden ratio, and below the square root of three less one
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/** Uniform in [0, 1) with 53 bits. */
static double philox_uniform(uint64_t key, uint64_t counter)
{
    uint32_t words[4];
    philox4x32(key, counter, 0, words);
    return ((double)(words[0] >> 5) * 0x1p26 + (double)(words[1] >> 6)) * 0x1p-53;
}

static bool is_token(int32_t token_id, int32_t vocab_size)
{
    return token_id >= 0 && token_id < vocab_size;
}

static void forbid(float *logits, int32_t vocab_size, int32_t token_id)
{
    if (is_token(token_id, vocab_size))
        logits[token_id] = -INFINITY;
}

/** Where a constraint decides when the answer ends, the tokens that end it need not be listed: it
 *  has forbidden them wherever they must not come. */
static void keep_allowed(float *logits, int32_t vocab_size, const struct sampling_params *params,
                         const struct token_constraint *constraint, struct arena *arena)
{
    if (params->num_allowed_token_ids == 0)
        return;
    bool *is_allowed = arena_calloc(arena, (size_t)vocab_size, sizeof(bool));
    if (constraint && is_token(params->eos_token_id, vocab_size))
        is_allowed[params->eos_token_id] = true;
    for (int32_t i = 0; constraint && i < params->num_stop_token_ids; i++) {
        if (is_token(params->stop_token_ids[i], vocab_size))
            is_allowed[params->stop_token_ids[i]] = true;
    }
    for (int32_t i = 0; i < params->num_allowed_token_ids; i++) {
        if (is_token(params->allowed_token_ids[i], vocab_size))
            is_allowed[params->allowed_token_ids[i]] = true;
    }
    for (int32_t id = 0; id < vocab_size; id++) {
        if (!is_allowed[id])
            logits[id] = -INFINITY;
    }
}

int32_t sampler_bad_word_ends(const struct sampling_params *params,
                              const struct sampler_history *history, int32_t *ids)
{
    int32_t num_outputs = history->num_tokens - history->num_prompt_tokens, count = 0;
    for (int32_t i = 0; i < params->num_bad_word_ints; i += 1 + params->bad_words[i]) {
        int32_t num_before = params->bad_words[i] - 1;
        const int32_t *word = params->bad_words + i + 1;
        if (num_before <= num_outputs &&
            memcmp(history->token_ids + history->num_tokens - num_before, word,
                   (size_t)num_before * sizeof(*word)) == 0)
            ids[count++] = word[num_before];
    }
    return count;
}

static void forbid_bad_words(float *logits, int32_t vocab_size,
                             const struct sampling_params *params,
                             const struct sampler_history *history, struct arena *arena)
{
    if (params->num_bad_word_ints == 0)
        return;
    int32_t *ids = arena_array(arena, int32_t, params->num_bad_word_ints);
    int32_t count = sampler_bad_word_ends(params, history, ids);
    for (int32_t i = 0; i < count; i++)
        forbid(logits, vocab_size, ids[i]);
}

static void apply_penalties(float *logits, int32_t vocab_size, const struct sampling_params *params,
                            const struct sampler_history *history, struct arena *arena)
{
    if (params->repetition_penalty == 1.0f && params->frequency_penalty == 0.0f &&
        params->presence_penalty == 0.0f)
        return;
    // How often each token was put out; the prompt's tokens count as seen only.
    int32_t *counts = arena_calloc(arena, (size_t)vocab_size, sizeof(*counts));
    bool *is_seen = arena_calloc(arena, (size_t)vocab_size, sizeof(bool));
    for (int32_t i = 0; i < history->num_tokens; i++) {
        int32_t id = history->token_ids[i];
        if (!is_token(id, vocab_size))
            continue;
        counts[id] += i >= history->num_prompt_tokens;
        is_seen[id] = true;
    }
    for (int32_t id = 0; id < vocab_size; id++) {
        if (!is_seen[id])
            continue;
        double logit = logits[id], penalty = params->repetition_penalty;
        logit = logit > 0 ? logit / penalty : logit * penalty;
        if (counts[id] > 0)
            logit = logit - (double)params->frequency_penalty * counts[id] -
                    (double)params->presence_penalty;
        logits[id] = (float)logit;
    }
}

/** All that changes logits before the choice between greedy and random. */
static void adjust_logits(float *logits, int32_t vocab_size, const struct sampling_params *params,
                          const struct sampler_history *history, struct arena *arena)
{
    keep_allowed(logits, vocab_size, params, history->constraint, arena);
    for (int32_t i = 0; i < params->num_logit_bias; i++) {
        if (is_token(params->logit_bias[i].token_id, vocab_size))
            logits[params->logit_bias[i].token_id] += params->logit_bias[i].bias;
    }
    bool must_end = history->constraint && history->constraint->must_end;
    if (history->num_tokens - history->num_prompt_tokens < params->min_tokens && !must_end) {
        forbid(logits, vocab_size, params->eos_token_id);
        for (int32_t i = 0; i < params->num_stop_token_ids; i++)
            forbid(logits, vocab_size, params->stop_token_ids[i]);
    }
    forbid_bad_words(logits, vocab_size, params, history, arena);
    apply_penalties(logits, vocab_size, params, history, arena);
}

/** The largest logit, of the lowest id on a tie; -1 when one is NaN or +infinity, or when none is
 *  finite. (-infinity alone means: not this token.) */
static int32_t arg_max(const float *logits, int32_t vocab_size)
{
    int32_t best = -1;
    for (int32_t id = 0; id < vocab_size; id++) {
        if (isnan(logits[id]) || logits[id] == INFINITY)
            return -1;
        if (logits[id] > (best < 0 ? -INFINITY : logits[best]))
            best = id;
    }
    return best;
}

static bool is_greedy(const struct sampling_params *params)
{
    return !(params->temperature >= 1e-5f);
}

// ---- Heaps ---------------------------------------------------------------------------------

/** Whether a stands before b by falling logit, lower ids first on a tie. */
static bool ranks_before(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (a < b && logits[a] == logits[b]);
}

/** Restores a heap of ids below `at`. The root is the last in rank if `last_first`, else the
 *  first. */
static void sift_down(int32_t *heap, int32_t num, int32_t at, const float *logits, bool last_first)
{
    int32_t id = heap[at];
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= num)
            break;
        if (child + 1 < num && ranks_before(logits, heap[child + 1], heap[child]) != last_first)
            child++;
        if (ranks_before(logits, heap[child], id) == last_first)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = id;
}

static void build_heap(int32_t *heap, int32_t num, const float *logits, bool last_first)
{
    for (int32_t at = num / 2 - 1; at >= 0; at--)
        sift_down(heap, num, at, logits, last_first);
}

/** The k first ids in rank (k <= vocab_size) as a heap whose root is the last of them. */
static void select_top(int32_t *heap, int32_t k, const float *logits, int32_t vocab_size)
{
    for (int32_t id = 0; id < k; id++)
        heap[id] = id;
    build_heap(heap, k, logits, true);
    for (int32_t id = k; k > 0 && id < vocab_size; id++) {
        if (logits[id] > logits[heap[0]]) { // on a tie the lower id is there already
            heap[0] = id;
            sift_down(heap, k, 0, logits, true);
        }
    }
}

// ---- The distribution ----------------------------------------------------------------------

/** The smallest logit that min-p and top-k leave; ties with the k-th stay. */
static float keep_threshold(const float *logits, int32_t vocab_size, float max,
                            const struct sampling_params *params, struct arena *arena)
{
    double threshold = -INFINITY;
    if (params->min_p > 0) // p >= min_p * p_max, in logits
        threshold = fmin(max, max + log(params->min_p) * (double)params->temperature);
    if (params->top_k > 0 && params->top_k < vocab_size) {
        struct arena_mark mark = arena_mark(arena);
        int32_t *heap = arena_array(arena, int32_t, params->top_k);
        select_top(heap, params->top_k, logits, vocab_size);
        threshold = fmax(threshold, logits[heap[0]]);
        arena_release(arena, mark);
    }
    // Rounded up to a float, so that comparing floats keeps what comparing doubles would.
    float rounded = (float)threshold;
    return (double)rounded < threshold ? nextafterf(rounded, INFINITY) : rounded;
}

static bool is_kept(float logit, float threshold)
{
    return logit >= threshold && logit > -INFINITY;
}

/** Collects what is left after min-p and top-k, with weights. */
static void collect_candidates(struct candidates *c, const float *logits, int32_t vocab_size,
                               float max, const struct sampling_params *params, struct arena *arena)
{
    float threshold = keep_threshold(logits, vocab_size, max, params, arena);
    c->max = max;
    c->temperature = params->temperature;
    c->num = 0;
    for (int32_t id = 0; id < vocab_size; id++)
        c->num += is_kept(logits[id], threshold);
    c->ids = arena_array(arena, int32_t, c->num);
    c->logits = arena_array(arena, float, c->num);
    c->weights = arena_array(arena, double, c->num);
    c->total = 0;
    int32_t i = 0;
    for (int32_t id = 0; id < vocab_size; id++) {
        if (!is_kept(logits[id], threshold))
            continue;
        c->ids[i] = id;
        c->logits[i] = logits[id];
        c->weights[i] = exp(((double)logits[id] - max) / c->temperature);
        c->total += c->weights[i];
        i++;
    }
}

/** Which slice of falling logits a candidate belongs to; the last one is open. */
static int32_t slice_of(const struct candidates *c, int32_t i)
{
    double nats = ((double)c->max - c->logits[i]) / c->temperature;
    return (int32_t)fmin(NUM_SLICES - 1, nats * SLICES_PER_NAT);
}

/** Keeps the smallest set, by falling weight, whose share of the total reaches top_p. Slices before
 *  the one where that happens stay whole, so that only its own members are put in order. */
static void keep_top_p(struct candidates *c, double top_p, struct arena *arena)
{
    double target = top_p * c->total, mass = 0;
    struct arena_mark mark = arena_mark(arena);
    double *slices = arena_calloc(arena, NUM_SLICES, sizeof(*slices));
    int32_t *heap = arena_array(arena, int32_t, c->num); // of positions in c
    for (int32_t i = 0; i < c->num; i++)
        slices[slice_of(c, i)] += c->weights[i];
    int32_t slice = 0, num_left = 0;
    while (slice < NUM_SLICES - 1 && mass + slices[slice] < target)
        mass += slices[slice++];
    for (int32_t i = 0; i < c->num; i++) {
        if (slice_of(c, i) == slice)
            heap[num_left++] = i;
    }
    if (num_left == 0) { // top_p is 1 but for rounding, and nothing lies in the open slice
        arena_release(arena, mark);
        return;
    }
    build_heap(heap, num_left, c->logits, false);
    int32_t last; // what is kept ends with this one; the first always stays
    do {
        last = heap[0];
        mass += c->weights[last];
        heap[0] = heap[--num_left];
        sift_down(heap, num_left, 0, c->logits, false);
    } while (num_left > 0 && mass < target);
    arena_release(arena, mark);

    float last_logit = c->logits[last];
    int32_t num_kept = 0;
    c->total = 0;
    for (int32_t i = 0; i < c->num; i++) {
        if (c->logits[i] < last_logit || (c->logits[i] == last_logit && i > last))
            continue;
        c->ids[num_kept] = c->ids[i];
        c->weights[num_kept] = c->weights[i];
        c->total += c->weights[i];
        num_kept++;
    }
    c->num = num_kept;
}

/** All steps up to the draw. Greedy: the one token. None left, or logits not finite: num 0. */
static void find_candidates(struct candidates *c, float *logits, int32_t vocab_size,
                            const struct sampling_params *params,
                            const struct sampler_history *history, struct arena *arena)
{
    *c = (struct candidates){0};
    if (arg_max(logits, vocab_size) < 0) // before masks could hide it
        return;
    adjust_logits(logits, vocab_size, params, history, arena);
    int32_t best = arg_max(logits, vocab_size);
    if (best < 0)
        return;
    if (is_greedy(params)) {
        c->num = 1;
        c->ids = arena_array(arena, int32_t, 1);
        c->weights = arena_array(arena, double, 1);
        c->ids[0] = best;
        c->weights[0] = c->total = 1;
        return;
    }
    collect_candidates(c, logits, vocab_size, logits[best], params, arena);
    if (params->top_p < 1 && c->num > 0)
        keep_top_p(c, params->top_p, arena);
}

/** The inverse of the cumulative distribution in order of token ids, at a uniform number. */
static int32_t draw(const struct candidates *c, double uniform)
{
    double target = uniform * c->total, sum = 0;
    int32_t drawn = -1;
    for (int32_t i = 0; i < c->num; i++) {
        if (c->weights[i] <= 0)
            continue;
        drawn = c->ids[i]; // the last one, should rounding leave the sum below the target
        sum += c->weights[i];
        if (sum > target)
            break;
    }
    return drawn;
}

/** Takes away what structured output forbids. False: a logit is not finite, which the mask must not
 *  hide. */
static bool constrain(float *logits, int32_t vocab_size, const struct token_constraint *constraint)
{
    if (arg_max(logits, vocab_size) < 0)
        return false;
    for (int32_t id = 0; id < vocab_size; id++) {
        if (!token_mask_has(constraint->mask, id))
            logits[id] = -INFINITY;
    }
    return true;
}

void sampler_distribution(float *logits, int32_t vocab_size, const struct sampling_params *params,
                          const struct sampler_history *history, double *probs, struct arena *arena)
{
    struct arena_mark mark = arena_mark(arena);
    struct candidates c = {0};
    if (!history->constraint || constrain(logits, vocab_size, history->constraint))
        find_candidates(&c, logits, vocab_size, params, history, arena);
    memset(probs, 0, (size_t)vocab_size * sizeof(*probs));
    for (int32_t i = 0; i < c.num; i++)
        probs[c.ids[i]] = c.weights[i] / c.total;
    arena_release(arena, mark);
}

/** Log-probabilities and rank for ids that are listed; the first is the token's own. */
static void fill_logprobs(const float *logits, int32_t vocab_size, const int32_t *ids,
                          int32_t num_ids, struct token_logprobs *out, struct arena *arena)
{
    float max = -INFINITY;
    int32_t rank = 0;
    for (int32_t id = 0; id < vocab_size; id++) {
        max = fmaxf(max, logits[id]);
        rank += logits[id] >= logits[ids[0]];
    }
    double sum = 0;
    for (int32_t id = 0; id < vocab_size; id++)
        sum += exp((double)logits[id] - max);
    // cppcheck-suppress invalidFunctionArg ; the greatest logit alone adds 1 to the sum
    double log_sum = log(sum) + max;
    float *logprobs = arena_array(arena, float, num_ids);
    for (int32_t i = 0; i < num_ids; i++)
        logprobs[i] = (float)(logits[ids[i]] - log_sum);
    *out = (struct token_logprobs){
        .num_entries = num_ids, .token_ids = ids, .logprobs = logprobs, .rank = rank};
}

void sampler_logprobs(const float *logits, int32_t vocab_size, int32_t token_id, int32_t num_top,
                      struct token_logprobs *out, struct arena *arena)
{
    CHECK(is_token(token_id, vocab_size));
    num_top = max_i32(0, min_i32(num_top, vocab_size));
    int32_t *ids = arena_array(arena, int32_t, (size_t)num_top + 1);
    ids[0] = token_id;
    int32_t *heap = ids + 1;
    select_top(heap, num_top, logits, vocab_size);
    for (int32_t left = num_top - 1; left > 0; left--) { // the root is last in rank: sort in place
        int32_t root = heap[0];
        heap[0] = heap[left];
        heap[left] = root;
        sift_down(heap, left, 0, logits, true);
    }
    fill_logprobs(logits, vocab_size, ids, num_top + 1, out, arena);
}

/** What the request wants to know of the logits that `token_id` was drawn from. */
static void sampled_logprobs(const float *logits, int32_t vocab_size, int32_t token_id,
                             const struct sampling_params *params, struct token_logprobs *out,
                             struct arena *arena)
{
    int32_t num_ids = params->num_logprob_token_ids;
    if (num_ids == 0) {
        sampler_logprobs(logits, vocab_size, token_id, params->num_logprobs, out, arena);
        return;
    }
    int32_t *ids = arena_array(arena, int32_t, (size_t)num_ids + 1);
    int32_t num_known = 0;
    ids[num_known++] = token_id;
    for (int32_t i = 0; i < num_ids; i++) {
        if (is_token(params->logprob_token_ids[i], vocab_size))
            ids[num_known++] = params->logprob_token_ids[i];
    }
    fill_logprobs(logits, vocab_size, ids, num_known, out, arena);
}

/** Whether the model or the request is to blame for a row without a token, after the fact. */
static int32_t why_none(const float *logits, int32_t vocab_size,
                        const struct sampling_params *params)
{
    bool is_narrowed = params->num_allowed_token_ids > 0 || params->num_bad_word_ints > 0 ||
                       params->min_tokens > 0 || params->num_automaton_words > 0;
    for (int32_t id = 0; id < vocab_size; id++) {
        if (isnan(logits[id]) || logits[id] > -INFINITY)
            return TOKEN_ID_NONE;
    }
    return is_narrowed ? TOKEN_ID_FORBIDDEN : TOKEN_ID_NONE;
}

int32_t sampler_sample(float *logits, int32_t vocab_size, const struct sampling_params *params,
                       const struct sampler_history *history, struct token_logprobs *logprobs,
                       struct arena *arena)
{
    float *raw = NULL;
    if (history->constraint && !constrain(logits, vocab_size, history->constraint))
        return TOKEN_ID_NONE;
    if (params->num_logprobs >= 0) {
        raw = arena_array(arena, float, vocab_size);
        memcpy(raw, logits, (size_t)vocab_size * sizeof(*raw));
    }
    struct arena_mark mark = arena_mark(arena);
    struct candidates c;
    find_candidates(&c, logits, vocab_size, params, history, arena);
    uint64_t position = (uint64_t)(history->num_tokens - history->num_prompt_tokens);
    int32_t token_id = draw(&c, philox_uniform(params->seed, position));
    arena_release(arena, mark);
    if (token_id < 0)
        return why_none(logits, vocab_size, params);
    if (raw)
        sampled_logprobs(raw, vocab_size, token_id, params, logprobs, arena);
    return token_id;
}
