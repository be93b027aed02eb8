// What sorting by expert and the experts' products agree on: into how many rows at a time an
// expert's slots are cut.
#pragma once

#include "ops/cuda/common.cuh"

/** Few rows an expert: small tiles, which read weights and little else; many: tiles that reuse
 * them.
 */
static inline int expert_tile_rows(const struct cuda_expert_routes &routes)
{
    int rows = routes.num_tokens * routes.top_k / routes.num_experts;
    return rows <= 16 ? 16 : rows <= 64 ? 64 : 128;
}

/** At most so many tiles come of it. */
static inline int expert_max_tiles(const struct cuda_expert_routes &routes)
{
    int slots = routes.num_tokens * routes.top_k;
    return slots / expert_tile_rows(routes) +
           (slots < routes.num_experts ? slots : routes.num_experts);
}
