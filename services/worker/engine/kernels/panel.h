/* Finds the panel that computes given outputs of a linear map. */
#pragma once

#include <stddef.h>

#include "kernels.h"

#define ALWAYS static inline __attribute__((always_inline))

/* Returns the address of element `at` of an array of `type`. */
ALWAYS const void *address(Type type, const void *from, int64_t at) {
    return (const char *)from + at * (type == BFLOAT16 ? sizeof(bf16) : sizeof(float));
}

/* A panel's address and bias, and the outputs that it computes: `width` of them from `column` on. */
typedef struct {
    const void *numbers, *bias;
    int64_t column, width;
} Panel;

ALWAYS int64_t padded(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

/* Returns panel number `number`, counted over all parts. */
ALWAYS Panel find_panel(Type type, const Linear *linear, int64_t number) {
    const Part *part = linear->part;
    int64_t column = 0;
    for (; number >= padded(part->out, PANEL) / PANEL; column += part++->out)
        number -= padded(part->out, PANEL) / PANEL;
    int64_t first = number * PANEL, width = part->out - first < PANEL ? part->out - first : PANEL;
    const void *bias = part->bias ? address(type, part->bias, first) : NULL;
    return (Panel){address(type, part->panels, first * padded(linear->in, INPUTS)), bias, column + first, width};
}
