/* The MLP of a layer as experts, of which a router chooses some for each row (Shazeer et al.). */
#pragma once

#include "kernels.h"

/* SwiGLU of one expert: gate and up as one linear map, and down. */
typedef struct {
    Linear gate_up, down;
} Expert;

/* `count` experts, of which each row uses `chosen`. Those from `first` on are here, `held` of them, at `experts`. The
   router is in float32. A chosen expert's weight is its share of all experts; if `normalized`, of those chosen. With a
   `limit` gate and up are clamped, and the activation is gate * sigmoid(alpha * gate) * (up + 1).

   With a `bias` of each expert, or NULL, an expert's weight is the likelihood of its logit, and by the sum of both it is
   chosen. Only experts of the `chosen_groups` best ones of `groups` groups of consecutive experts are chosen. A group is
   as good as its best expert, or with `bias` as the sum of its best two. Weights are multiplied by `scale`. */
typedef struct {
    Linear router;
    int64_t count, chosen, first, held, normalized, is_gelu, groups, chosen_groups;
    const Expert *experts;
    const float *bias;
    double alpha, limit, scale;
} Experts;

/* `[row, hidden]` -> `[row, hidden]`: the sum of the experts of each row in the order of choice, in float32, plus the
   residual unless it is NULL. Experts that are not here add nothing. Of experts that a row wants as much, the first one
   is chosen first. */
void kernels_run_experts(const Kernels *kernels, Type type, const Experts *experts, const void *rows,
                         const void *residual, void *out, int64_t count);
