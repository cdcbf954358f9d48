/* A linear map of its own for each head of a row, as latent attention has them. */
#pragma once

#include "kernels.h"

/* Multiplies head number h of each row by map number h of `heads`. Rows are `row_stride` numbers apart and heads
   `head_stride`; of a head the first numbers are used. `out` is `[row, head, out]`, with `out_stride` numbers between
   rows. All maps have the same size. */
void kernels_multiply_heads(const Kernels *kernels, Type type, const Linear *maps, int64_t heads, const void *rows,
                            int64_t row_stride, int64_t head_stride, void *out, int64_t out_stride, int64_t count);
