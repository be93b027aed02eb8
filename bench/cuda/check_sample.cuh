// Checks of sampling: against a plain reference that sorts, in float64, over rows that mix every
// parameter. A draw within 1e-6 of a boundary of the cumulative distribution may go either way.
#pragma once

#include "harness.cuh"

struct sample_case {
    struct cuda_sampling_row row; // lists: host memory
    float *logits;
};

static inline double philox_reference(uint64_t key, uint64_t counter)
{
    uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
                            (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
        memcpy(c, next, sizeof(c));
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return ((double)(c[0] >> 5) * 67108864.0 + (double)(c[1] >> 6)) / 9007199254740992.0;
}

static const float *sort_logits;

static inline int by_rank(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sort_logits[x] != sort_logits[y])
        return sort_logits[x] > sort_logits[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

/** Ids by falling logit, lower ids first on a tie. */
static inline int32_t *rank_ids(const float *logits, int vocab)
{
    int32_t *ids = (int32_t *)malloc((size_t)vocab * 4);
    for (int i = 0; i < vocab; i++)
        ids[i] = i;
    sort_logits = logits;
    qsort(ids, (size_t)vocab, 4, by_rank);
    return ids;
}

/** The logits that the row's mask leaves; the caller's to free. */
static inline float *masked_logits(const struct sample_case *c, int vocab)
{
    float *x = (float *)malloc((size_t)vocab * 4);
    memcpy(x, c->logits, (size_t)vocab * 4);
    for (int i = 0; i < vocab && c->row.mask; i++) {
        if (!(c->row.mask[i / 32] >> i % 32 & 1) && x[i] < INFINITY)
            x[i] = -INFINITY;
    }
    return x;
}

/** Whether `token` is what the row draws. */
static inline bool is_right_token(const struct sample_case *c, int vocab, int32_t token)
{
    const struct cuda_sampling_row *p = &c->row;
    float *x = masked_logits(c, vocab);
    bool is_bad = false, is_right = false, is_any = false, was_any = false;
    for (int i = 0; i < vocab; i++) {
        is_bad |= isnan(x[i]) || x[i] == INFINITY;
        was_any |= c->logits[i] > -INFINITY;
    }
    if (p->num_allowed > 0) {
        for (int i = 0; i < vocab; i++) {
            bool found = false;
            for (int j = 0; j < p->num_allowed; j++)
                found |= p->allowed[j] == i;
            x[i] = found ? x[i] : -INFINITY;
        }
    }
    for (int i = 0; i < p->num_logit_bias; i++)
        x[p->logit_bias[i].token_id] += p->logit_bias[i].bias;
    if (p->num_tokens - p->num_prompt_tokens < p->min_tokens) {
        for (int i = 0; i < p->num_forbidden; i++)
            x[p->forbidden[i]] = -INFINITY;
    }
    for (int i = 0; i < p->num_tokens; i++) {
        int count = 0;
        bool is_first = true;
        for (int j = 0; j < p->num_tokens; j++) {
            if (p->token_ids[j] == p->token_ids[i]) {
                is_first &= j >= i;
                count += j >= p->num_prompt_tokens;
            }
        }
        if (!is_first)
            continue;
        double v = x[p->token_ids[i]];
        v = v > 0 ? v / p->repetition_penalty : v * p->repetition_penalty;
        if (count > 0)
            v -= (double)p->frequency_penalty * count + (double)p->presence_penalty;
        x[p->token_ids[i]] = (float)v;
    }
    int32_t *ids = rank_ids(x, vocab);
    is_any = x[ids[0]] > -INFINITY;
    if (is_bad || !is_any) {
        is_right = token == (is_bad || !was_any ? -1 : -2);
    } else if (!(p->temperature >= 1e-5f)) {
        is_right = token == ids[0];
    } else {
        double max = x[ids[0]], total = 0, kept = 0;
        int num = 0;
        double *w = (double *)calloc((size_t)vocab, sizeof(*w));
        for (; num < vocab && x[ids[num]] > -INFINITY; num++) {
            if (p->top_k > 0 && num >= p->top_k && x[ids[num]] < x[ids[p->top_k - 1]])
                break;
            double weight = exp((x[ids[num]] - max) / p->temperature);
            if (weight < p->min_p)
                break;
            w[ids[num]] = weight;
            total += weight;
        }
        for (int i = 0; i < num; i++) {
            if (p->top_p < 1 && kept >= p->top_p * total * (1 + 1e-9))
                w[ids[i]] = 0;
            kept += w[ids[i]];
        }
        total = 0;
        for (int i = 0; i < vocab; i++)
            total += w[i];
        double u = philox_reference(p->seed, (uint64_t)(p->num_tokens - p->num_prompt_tokens));
        double sum = 0;
        for (int i = 0; i < vocab && !is_right; i++) {
            if (i == token)
                is_right = w[i] > 0 && u >= sum / total - 1e-6 && u <= (sum + w[i]) / total + 1e-6;
            sum += w[i];
        }
        free(w);
    }
    free(ids);
    free(x);
    return is_right;
}

static inline void *to_device_list(const void *list, int num, size_t size)
{
    return num > 0 ? device_copy_of(list, (size_t)num * size) : NULL;
}

enum { CHECK_ROWS = 40 };

static inline void make_case(struct sample_case *c, int index, int vocab, uint64_t *seed)
{
    static const int32_t allowed[] = {5, 17, 3, 250, 251, 299};
    static const int32_t forbidden[] = {0, 7};
    static const struct cuda_logit_bias bias[] = {{11, 6.0f}, {12, -100.0f}, {13, 5.5f}};
    memset(c, 0, sizeof(*c));
    c->logits = (float *)malloc((size_t)vocab * 4);
    float spread = index % 5 == 4 ? 0.01f : (float)(index % 4 + 1) * 1.5f;
    for (int i = 0; i < vocab; i++)
        c->logits[i] = random_normal(seed) * spread;
    if (index % 7 == 6) // many ties
        for (int i = 0; i < vocab; i++)
            c->logits[i] = roundf(c->logits[i]);
    struct cuda_sampling_row *p = &c->row;
    p->temperature = index % 6 == 0 ? 0.0f : 0.3f + 0.3f * (float)(index % 4);
    p->top_p = index % 3 == 1 ? 0.9f : index % 3 == 2 ? 0.5f : 1.0f;
    p->top_k = index % 4 == 1 ? 50 : index % 4 == 2 ? 1 + index : 0;
    p->min_p = index % 10 == 9 ? 0.05f : 0;
    p->repetition_penalty = index % 8 == 3 ? 1.3f : 1.0f;
    p->frequency_penalty = index % 8 == 3 ? 0.4f : 0;
    p->presence_penalty = index % 8 == 7 ? 0.7f : 0;
    p->seed = random_word(seed);
    p->num_logprobs = index % 2 ? index % (CUDA_MAX_LOGPROBS + 1) : -1;
    if (index % 9 == 2) {
        p->num_allowed = 6;
        p->allowed = allowed;
    }
    if (index % 9 == 4) {
        p->num_logit_bias = 3;
        p->logit_bias = bias;
    }
    p->num_tokens = 60;
    p->num_prompt_tokens = 40;
    int32_t *history = (int32_t *)malloc(60 * 4);
    for (int i = 0; i < 60; i++)
        history[i] = (int32_t)(random_word(seed) % (uint64_t)(i % 2 ? 40 : vocab));
    p->token_ids = history;
    if (index % 9 == 5) {
        p->min_tokens = 21;
        p->num_forbidden = 2;
        p->forbidden = forbidden;
        c->logits[0] = c->logits[7] = 50;
    }
    if (index % 9 == 7 || index == 24 || index == 20) {
        int num_words = (vocab + 31) / 32;
        uint32_t *mask = (uint32_t *)calloc((size_t)num_words, 4);
        for (int i = 0; i < num_words && index != 24; i++) // row 24: nothing may come
            mask[i] = (uint32_t)(random_word(seed) & random_word(seed));
        p->mask = mask;
    }
    if (index == 20)
        c->logits[vocab / 2] = NAN;
    if (index == 21)
        c->logits[vocab - 1] = INFINITY;
    if (index == 22)
        for (int i = 0; i < vocab; i++)
            c->logits[i] = i == 77 ? 1.0f : -INFINITY;
    if (index == 23)
        for (int i = 0; i < vocab; i++)
            c->logits[i] = -INFINITY;
}

struct sample_batch {
    struct sample_case cases[CHECK_ROWS];
    struct cuda_sampling_row *device_rows;
    float *device_logits;
    int32_t *device_tokens;
    int32_t tokens[CHECK_ROWS];
    int64_t stride;
};

/** Draws a token for every row. What it allocates lives as long as the program. */
static inline void run_batch(const struct cuda_launch *launch, struct sample_batch *b, int vocab,
                             uint64_t *seed)
{
    struct cuda_sampling_row rows[CHECK_ROWS];
    b->stride = vocab + vocab % 3;
    float *logits = (float *)malloc((size_t)CHECK_ROWS * b->stride * 4);
    for (int i = 0; i < CHECK_ROWS; i++) {
        make_case(&b->cases[i], i, vocab, seed);
        memcpy(logits + i * b->stride, b->cases[i].logits, (size_t)vocab * 4);
        struct cuda_sampling_row *p = &rows[i];
        *p = b->cases[i].row;
        p->allowed = (const int32_t *)to_device_list(p->allowed, p->num_allowed, 4);
        p->forbidden = (const int32_t *)to_device_list(p->forbidden, p->num_forbidden, 4);
        p->logit_bias = (const struct cuda_logit_bias *)to_device_list(
            p->logit_bias, p->num_logit_bias, sizeof(*p->logit_bias));
        if (i % 2) // the last token lies elsewhere, as one that was just drawn does
            p->last_token = (const int32_t *)to_device_list(p->token_ids + p->num_tokens - 1, 1, 4);
        p->token_ids = (const int32_t *)to_device_list(p->token_ids, p->num_tokens - i % 2, 4);
        if (p->mask)
            p->mask = (const uint32_t *)to_device_list(p->mask, (vocab + 31) / 32, 4);
    }
    b->device_rows = (struct cuda_sampling_row *)device_copy_of(rows, sizeof(rows));
    b->device_logits = (float *)device_copy_of(logits, (size_t)CHECK_ROWS * b->stride * 4);
    b->device_tokens = (int32_t *)device_poisoned(sizeof(b->tokens));
    cuda_sample(launch, b->device_tokens, b->device_logits, b->stride, b->device_rows, CHECK_ROWS,
                vocab);
    copy_back(b->tokens, b->device_tokens, sizeof(b->tokens));
    free(logits);
}

static const int check_vocabs[] = {300, 4099, 151936};

/** The share of rows whose token is wrong. */
static inline double check_sample(const struct cuda_launch *launch)
{
    static struct sample_batch b;
    uint64_t seed = 9;
    int num_wrong = 0;
    for (int v = 0; v < 3; v++) {
        run_batch(launch, &b, check_vocabs[v], &seed);
        for (int i = 0; i < CHECK_ROWS; i++) {
            if (!is_right_token(&b.cases[i], check_vocabs[v], b.tokens[i])) {
                printf("  vocabulary %d, row %d: token %d is wrong\n", check_vocabs[v], i,
                       b.tokens[i]);
                num_wrong++;
            }
        }
    }
    return num_wrong / (3.0 * CHECK_ROWS);
}

static inline double check_logprobs(const struct cuda_launch *launch)
{
    static struct sample_batch b;
    enum { WIDTH = 1 + CUDA_MAX_LOGPROBS };
    static int32_t ids[CHECK_ROWS][WIDTH], ranks[CHECK_ROWS];
    static float logprobs[CHECK_ROWS][WIDTH];
    uint64_t seed = 10;
    double worst = 0;
    for (int v = 0; v < 3; v++) {
        int vocab = check_vocabs[v];
        run_batch(launch, &b, vocab, &seed);
        int32_t *out_ids = (int32_t *)device_poisoned(sizeof(ids));
        int32_t *out_ranks = (int32_t *)device_poisoned(sizeof(ranks));
        float *out_logprobs = (float *)device_poisoned(sizeof(logprobs));
        cuda_sample_logprobs(launch, out_ids, out_logprobs, out_ranks, b.device_tokens,
                             b.device_logits, b.stride, b.device_rows, CHECK_ROWS, vocab);
        copy_back(ids, out_ids, sizeof(ids));
        copy_back(ranks, out_ranks, sizeof(ranks));
        copy_back(logprobs, out_logprobs, sizeof(logprobs));
        for (int i = 0; i < CHECK_ROWS; i++) {
            float *x = masked_logits(&b.cases[i], vocab);
            int num = b.cases[i].row.num_logprobs, rank = 0;
            if (num < 0 || b.tokens[i] < 0) {
                free(x);
                continue;
            }
            int32_t *order = rank_ids(x, vocab);
            double sum = 0;
            for (int j = 0; j < vocab; j++) {
                sum += exp((double)x[j] - x[order[0]]);
                rank += x[j] >= x[b.tokens[i]];
            }
            bool is_ok = ids[i][0] == b.tokens[i] && ranks[i] == rank;
            for (int j = 0; j <= num; j++) {
                is_ok &= j == 0 || ids[i][j] == order[j - 1];
                double want = x[j == 0 ? b.tokens[i] : order[j - 1]] - x[order[0]] - log(sum);
                double error = isinf(want) && logprobs[i][j] == want
                                   ? 0
                                   : fabs(logprobs[i][j] - want) / fmax(1, fabs(want));
                worst = worse_of(worst, error);
            }
            if (!is_ok) {
                printf("  logprobs of row %d, vocabulary %d: wrong ids or rank\n", i, vocab);
                worst = 1;
            }
            free(order);
            free(x);
        }
    }
    return worst;
}
