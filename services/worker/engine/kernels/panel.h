/* Finds the panel that computes given outputs of a linear map. */
#pragma once

#include <stddef.h>

#include "kernels.h"

#define ALWAYS static inline __attribute__((always_inline))

/* Returns the address of element `at` of an array of `type`. */
ALWAYS const void *address(Type type, const void *from, int64_t at) {
    return (const char *)from + at * (type == BFLOAT16 ? sizeof(bf16) : sizeof(float));
}

/* A panel's address and bias, and the outputs that it computes: `width` of them from `column` on. `packing` is NULL
   unless it is packed. */
typedef struct {
    const void *numbers, *bias;
    int64_t column, width;
    const Packing *packing;
} Panel;

ALWAYS int64_t padded(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

ALWAYS int64_t code_bits(int64_t codes) { return codes == INT4 || codes == FP4 ? 4 : 8; }

/* The number of bytes of the scales of a group of inputs. */
ALWAYS int64_t scales_size(const Packing *packing) {
    switch ((Scales)packing->scales) {
    case SCALES_PANEL: return sizeof(float);
    case SCALES_FLOAT32: return PANEL * sizeof(float);
    case SCALES_E8M0: return PANEL;
    default: return PANEL * sizeof(bf16);
    }
}

/* The number of bytes before the zeros of a packed panel, before its codes, and of all of it. */
typedef struct {
    int64_t zeros, codes, all;
} PackedBytes;

ALWAYS PackedBytes packed_bytes(const Packing *packing, int64_t in) {
    int64_t groups = (in + packing->group - 1) / packing->group;
    int64_t zeros = padded(groups * scales_size(packing), 64);
    int64_t codes = zeros + (packing->zeros ? groups * PANEL : 0);
    return (PackedBytes){zeros, codes, codes + padded(in, INPUTS) * PANEL * code_bits(packing->codes) / 8};
}

/* Returns panel number `number`, counted over all parts. */
ALWAYS Panel find_panel(Type type, const Linear *linear, int64_t number) {
    const Part *part = linear->part;
    int64_t column = 0;
    for (; number >= padded(part->out, PANEL) / PANEL; column += part++->out)
        number -= padded(part->out, PANEL) / PANEL;
    int64_t first = number * PANEL, width = part->out - first < PANEL ? part->out - first : PANEL;
    const void *bias = part->bias ? address(type, part->bias, first) : NULL;
    if (part->packing.codes == NOT_PACKED)
        return (Panel){address(type, part->panels, first * padded(linear->in, INPUTS)), bias, column + first, width,
                       NULL};
    const char *numbers = (const char *)part->panels + number * packed_bytes(&part->packing, linear->in).all;
    return (Panel){numbers, bias, column + first, width, &part->packing};
}

/* Whether any part of a linear map is packed. */
ALWAYS int is_packed(const Linear *linear) {
    for (int64_t part = 0; part < linear->parts; part++)
        if (linear->part[part].packing.codes != NOT_PACKED)
            return 1;
    return 0;
}
