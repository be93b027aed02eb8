// Automata over bytes: their check, and a step.
#include "message/byte_automaton.h"

static uint32_t edge_begin(const uint32_t *words, int32_t state)
{
    return words[1 + state] & ~AUTOMATON_ACCEPTS;
}

static enum status check_edges(const uint32_t *words, int32_t state, uint32_t num_states,
                               struct error *err)
{
    const uint32_t *edges = words + num_states + 2;
    int32_t before = -1; // the last byte of the edge before
    for (uint32_t i = edge_begin(words, state); i < edge_begin(words, state + 1); i++) {
        int32_t first = (int32_t)(edges[i] & 0xFF), last = (int32_t)(edges[i] >> 8 & 0xFF);
        if (first > last || first <= before)
            return error_set(err, STATUS_INVALID,
                             "automaton: state %d has an edge over bytes %d to %d after byte %d",
                             state, first, last, before);
        if (edges[i] >> 16 >= num_states)
            return error_set(err, STATUS_INVALID, "automaton: state %d leads to state %u of %u",
                             state, edges[i] >> 16, num_states);
        before = last;
    }
    return STATUS_OK;
}

enum status byte_automaton_check(const uint32_t *words, int32_t num_words, struct error *err)
{
    if (num_words < 3 || num_words > MAX_AUTOMATON_WORDS)
        return error_set(err, STATUS_INVALID, "automaton: %d words, expected 3 to %d", num_words,
                         MAX_AUTOMATON_WORDS);
    uint32_t num_states = words[0];
    if (num_states < 1 || num_states > MAX_AUTOMATON_STATES || num_states > (uint32_t)num_words - 2)
        return error_set(err, STATUS_INVALID, "automaton: %u states in %d words", num_states,
                         num_words);
    uint32_t num_edges = (uint32_t)num_words - 2 - num_states;
    if (edge_begin(words, 0) != 0 || words[1 + num_states] != num_edges)
        return error_set(err, STATUS_INVALID, "automaton: edges %u to %u, expected 0 to %u",
                         edge_begin(words, 0), words[1 + num_states], num_edges);
    for (int32_t state = 0; state < (int32_t)num_states; state++) {
        if (edge_begin(words, state) > edge_begin(words, state + 1) ||
            edge_begin(words, state + 1) > num_edges)
            return error_set(err, STATUS_INVALID,
                             "automaton: the edges of state %d are out of order", state);
        TRY(check_edges(words, state, num_states, err));
    }
    return STATUS_OK;
}

int32_t byte_automaton_step(const uint32_t *words, int32_t state, uint8_t byte)
{
    const uint32_t *edges = words + words[0] + 2;
    uint32_t low = edge_begin(words, state), high = edge_begin(words, state + 1);
    while (low < high) { // the first edge that does not end before the byte
        uint32_t middle = low + (high - low) / 2;
        if ((edges[middle] >> 8 & 0xFF) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == edge_begin(words, state + 1) || (edges[low] & 0xFF) > byte)
        return AUTOMATON_DEAD;
    return (int32_t)(edges[low] >> 16);
}
