/* Vectors of 16 floats on every CPU. Sums over a row are taken in these 16 lanes, so that they do not depend on the
   length of the CPU's own vectors. Include this after one of level_*.h. */
#pragma once

#include <stddef.h>
#include <string.h>

#include "panel.h"

#define WIDE 16
#define VECTORS (WIDE / LANES)
#define FOR_EACH_VECTOR _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++)

typedef struct {
    Floats v[VECTORS];
} Wide;

ALWAYS Wide wide_everywhere(float value) {
    Wide made;
    FOR_EACH_VECTOR made.v[v] = everywhere(value);
    return made;
}

ALWAYS Wide wide_add(Wide a, Wide b) {
    FOR_EACH_VECTOR a.v[v] = a.v[v] + b.v[v];
    return a;
}

ALWAYS Wide wide_multiply(Wide a, Wide b) {
    FOR_EACH_VECTOR a.v[v] = a.v[v] * b.v[v];
    return a;
}

ALWAYS Wide wide_multiply_add(Wide a, Wide b, Wide c) {
    FOR_EACH_VECTOR c.v[v] = multiply_add(a.v[v], b.v[v], c.v[v]);
    return c;
}

ALWAYS Wide wide_larger(Wide a, Wide b) {
    FOR_EACH_VECTOR a.v[v] = larger(a.v[v], b.v[v]);
    return a;
}

ALWAYS Wide wide_load(Type type, const void *from) {
    Wide made;
    FOR_EACH_VECTOR made.v[v] = type == BFLOAT16 ? widen((const bf16 *)from + v * LANES)
                                                 : load((const float *)from + v * LANES);
    return made;
}

ALWAYS void wide_store(Type type, void *to, Wide values) {
    FOR_EACH_VECTOR if (type == BFLOAT16) narrow((bf16 *)to + v * LANES, values.v[v]);
    else store((float *)to + v * LANES, values.v[v]);
}

/* Stores 32 numbers, in bfloat16 one cache line; none of them is NaN. */
ALWAYS void wide_store_two(Type type, void *to, Wide first, Wide second) {
#ifdef NARROW_TWO
    if (type == BFLOAT16) {
        narrow_two(to, first.v[0], second.v[0]);
        return;
    }
#endif
    wide_store(type, to, first);
    wide_store(type, (void *)address(type, to, WIDE), second);
}

/* The same for numbers that may be NaN, which is slower where one of them is. */
ALWAYS void wide_store_pair(Type type, void *to, Wide first, Wide second) {
#ifdef NARROW_TWO
    if (type == BFLOAT16 && is_nan_in(first.v[0], second.v[0])) {
        wide_store(type, to, first);
        wide_store(type, (void *)address(type, to, WIDE), second);
        return;
    }
#endif
    wide_store_two(type, to, first, second);
}

/* Loads the first `count` numbers, which may be fewer than 16, and zeros. */
ALWAYS Wide wide_load_some(Type type, const void *from, int64_t count) {
    if (count >= WIDE)
        return wide_load(type, from);
    float numbers[WIDE] = {0};
    memcpy(numbers, from, count * (type == BFLOAT16 ? sizeof(bf16) : sizeof(float)));
    return wide_load(type, numbers);
}

ALWAYS void wide_store_some(Type type, void *to, Wide values, int64_t count) {
    if (count >= WIDE) {
        wide_store(type, to, values);
        return;
    }
    float numbers[WIDE];
    wide_store(type, numbers, values);
    memcpy(to, numbers, count * (type == BFLOAT16 ? sizeof(bf16) : sizeof(float)));
}

/* Sums all 16 lanes: first lanes that are 8 apart, then 4, 2 and 1. */
ALWAYS float wide_sum(Wide values) {
    float lanes[WIDE];
    FOR_EACH_VECTOR store(lanes + v * LANES, values.v[v]);
    for (int apart = WIDE / 2; apart; apart /= 2)
        for (int i = 0; i < apart; i++)
            lanes[i] += lanes[i + apart];
    return lanes[0];
}

#define LOG2_E 1.44269504f

/* 2^x for x <= 0, where x below -125 counts as -125. The relative error is 2e-7 for float32 and 1e-4 for bfloat16. NaN
   counts as -125. */
ALWAYS Wide wide_power_of_two(Type type, Wide x) {
    FOR_EACH_VECTOR {
        const Floats to_integer = everywhere(12582912.0f); /* 1.5 * 2^23 */
        Floats bounded = larger(x.v[v], everywhere(-125.0f)), shifted = bounded + to_integer;
        Floats rest = bounded - (shifted - to_integer); /* x minus the nearest integer: -1/2 .. 1/2 */
        Floats sum;
        if (type == FLOAT32) {
            sum = multiply_add(everywhere(0.00132647273f), rest, everywhere(0.00967151299f));
            sum = multiply_add(sum, rest, everywhere(0.0555073358f));
            sum = multiply_add(sum, rest, everywhere(0.240222424f));
            sum = multiply_add(sum, rest, everywhere(0.693147004f));
        } else {
            sum = multiply_add(everywhere(0.0550089292f), rest, everywhere(0.242210954f));
            sum = multiply_add(sum, rest, everywhere(0.693282902f));
        }
        sum = multiply_add(sum, rest, everywhere(1.0f));
        x.v[v] = scale_by_bits(sum, shifted);
    }
    return x;
}
