// What is done to a row's logits before a token is chosen, each rank on its own ids: allowed ids,
// bias, min_tokens, penalties.
#pragma once

#include "ops/cuda/sample_row.cuh"

DEVICE void keep_allowed(const struct row_state &r, const struct cuda_sampling_row &p)
{
    uint32_t *is_allowed = r.m->count; // a bit per id: count, mass_high and mass_low hold 98304
    for (int i = (int)threadIdx.x; i < (r.share + 31) / 32; i += SAMPLE_THREADS)
        is_allowed[i] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < p.num_allowed; i += SAMPLE_THREADS) {
        int at = p.allowed[i] - r.first_id;
        if (at >= 0 && at < r.share)
            atomicOr(&is_allowed[at / 32], 1u << at % 32);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < r.share; i += SAMPLE_THREADS) {
        if (!(is_allowed[i / 32] >> i % 32 & 1))
            r.x[i] = -INFINITY;
    }
    __syncthreads();
}

/** Each token of the history changes its logit once, by how often it came; they are counted for a
 *  part of the ids at a time. */
DEVICE void apply_penalties(const struct row_state &r, const struct cuda_sampling_row &p,
                            int vocab_size)
{
    constexpr uint32_t SEEN = 0x80000000u;
    constexpr int PART = 3 * BINS; // count, mass_high and mass_low
    uint32_t *counts = r.m->count;
    int num_listed = p.num_tokens - (p.last_token ? 1 : 0);
    int num_ids = min(r.share, vocab_size - r.first_id);
    for (int begin = 0; begin < num_ids; begin += PART) {
        int part = min(num_ids - begin, PART);
        for (int i = (int)threadIdx.x; i < part; i += SAMPLE_THREADS)
            counts[i] = 0;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < p.num_tokens; i += SAMPLE_THREADS) {
            int id = i < num_listed ? p.token_ids[i] : *p.last_token;
            int at = id - r.first_id - begin;
            if (at < 0 || at >= part)
                continue;
            if (i < p.num_prompt_tokens)
                atomicOr(&counts[at], SEEN);
            else
                atomicAdd(&counts[at], 1u);
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < part; i += SAMPLE_THREADS) {
            uint32_t count = counts[i];
            if (count == 0)
                continue;
            count &= ~SEEN;
            double logit = r.x[begin + i], penalty = p.repetition_penalty;
            logit = logit > 0 ? logit / penalty : logit * penalty;
            if (count > 0)
                logit = logit - (double)p.frequency_penalty * count - (double)p.presence_penalty;
            r.x[begin + i] = (float)logit;
        }
        __syncthreads();
    }
}

DEVICE void adjust_logits(const struct row_state &r, const struct cuda_sampling_row &p,
                          int vocab_size)
{
    if (p.num_allowed > 0)
        keep_allowed(r, p);
    for (int i = (int)threadIdx.x; i < p.num_logit_bias; i += SAMPLE_THREADS) {
        int at = p.logit_bias[i].token_id - r.first_id;
        if (at >= 0 && at < r.share && at + r.first_id < vocab_size)
            r.x[at] += p.logit_bias[i].bias;
    }
    __syncthreads();
    if (p.num_tokens - p.num_prompt_tokens < p.min_tokens) {
        for (int i = (int)threadIdx.x; i < p.num_forbidden; i += SAMPLE_THREADS) {
            int at = p.forbidden[i] - r.first_id;
            if (at >= 0 && at < r.share)
                r.x[at] = -INFINITY;
        }
        __syncthreads();
    }
    if (p.repetition_penalty != 1.0f || p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f)
        apply_penalties(r, p, vocab_size);
}
