/* e^x, and what attention needs it for besides its weights. */
#pragma once

#include <string.h>

#include "kernels.h"

/* e^x for x <= 0 with the same bits on every CPU: of operations alone that IEEE 754 defines to the last bit. */
static inline float power_of_e(float x) {
    if (!(x > -80.0f))
        return 0.0f;
    const double to_integer = 6755399441055744.0; /* 1.5 * 2^52 */
    double shifted = x * 1.44269504088896338700 + to_integer, twos = shifted - to_integer;
    double rest = x - twos * 0.693147180559945309417, sum = 1.0;
    for (int i = 12; i > 0; i--)
        sum = 1.0 + sum * rest / i;
    int64_t bits = ((int64_t)twos + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return (float)(sum * power);
}

/* What a query's sum of weighted values is multiplied by: 1 over the sum of its weights. These are relative to its
   largest score, `top`. A sink is a score more, whose value is zero. */
static inline float share_of(const Attention *attention, int64_t head, float sum, float top) {
    if (!attention->sinks)
        return 1.0f / sum;
    float above = attention->sinks[head] - top, power = power_of_e(above > 0.0f ? -above : above);
    return above > 0.0f ? power / (sum * power + 1.0f) : 1.0f / (sum + power);
}
