/* How likely tokens are by a row of logits: in doubles, of operations alone that IEEE 754 defines to the last bit.
   Include this after wide.h. */
#pragma once

#include <math.h>

#include "panel.h"

#define STRETCH 128 /* logits of which the largest is looked for at once */

ALWAYS float logit_at(Type type, const void *logits, int64_t token) {
    if (type == FLOAT32)
        return ((const float *)logits)[token];
    uint32_t bits = (uint32_t)((const bf16 *)logits)[token] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Loads the first `count` logits, which may be fewer than 16; the lanes behind them are never the largest. */
ALWAYS Wide load_logits(Type type, const void *from, int64_t count) {
    Wide values = wide_load_some(type, from, count);
    if (count < WIDE) {
        float lanes[WIDE];
        wide_store(FLOAT32, lanes, values);
        for (int64_t lane = count; lane < WIDE; lane++)
            lanes[lane] = -INFINITY;
        values = wide_load(FLOAT32, lanes);
    }
    return values;
}

ALWAYS float largest_of(Type type, const void *logits, int64_t begin, int64_t end) {
    Wide largest = wide_everywhere(-INFINITY);
    for (int64_t i = begin; i < end; i += WIDE)
        largest = wide_larger(load_logits(type, address(type, logits, i), end - i), largest);
    float lanes[WIDE];
    wide_store(FLOAT32, lanes, largest);
    for (int apart = WIDE / 2; apart; apart /= 2)
        for (int i = 0; i < apart; i++)
            lanes[i] = lanes[i + apart] > lanes[i] ? lanes[i + apart] : lanes[i];
    return lanes[0];
}

/* Puts a logit among the `filled` largest of at most `count`, the largest first, behind those that are equal. */
static inline void insert(const Likelihoods *asked, int64_t filled, float value, int64_t token) {
    float *values = asked->told + 1;
    int64_t at = filled < asked->count ? filled : asked->count - 1;
    for (; at > 0 && value > values[at - 1]; at--) {
        values[at] = values[at - 1];
        asked->ids[at] = asked->ids[at - 1];
    }
    values[at] = value;
    asked->ids[at] = token;
}

/* Finds the token where that is open, and the ids of the likeliest where none are named. Returns the largest logit. */
ALWAYS float find_likeliest(Type type, Likelihoods *asked) {
    const float *last = asked->told + asked->count;
    int64_t filled = 0, wanted = asked->named ? 0 : asked->count, at = 0;
    float largest = -INFINITY;
    for (int64_t i = 0; i < asked->size; i += STRETCH) {
        int64_t end = i + STRETCH < asked->size ? i + STRETCH : asked->size;
        float here = largest_of(type, asked->logits, i, end);
        if (here > largest)
            largest = here, at = i;
        if (!wanted || (filled == wanted && here <= *last))
            continue;
        for (int64_t token = i; token < end; token++) {
            float value = logit_at(type, asked->logits, token);
            if (filled < wanted || value > *last) {
                insert(asked, filled, value, token);
                filled += filled < wanted;
            }
        }
    }
    while (asked->token < 0 && at < asked->size - 1 && logit_at(type, asked->logits, at) != largest)
        at++;
    asked->token = asked->token < 0 ? at : asked->token;
    return largest;
}

/* 2^x for x <= 0, where x below -1000 counts as -1000. The relative error is 4e-14. */
ALWAYS Doubles doubles_power_of_two(Doubles x) {
    static const double factors[] = {1.3255224878668817e-06, 1.5252686846264142e-05, 0.00015403455852453838,
                                     0.0013333558179043118,  0.009618129159402558,   0.055504108664760424,
                                     0.2402265069581299,     0.6931471805599453,     1.0};
    const Doubles to_integer = doubles_everywhere(6755399441055744.0); /* 1.5 * 2^52 */
    Doubles bounded = larger_doubles(x, doubles_everywhere(-1000.0)), shifted = bounded + to_integer;
    Doubles rest = bounded - (shifted - to_integer); /* x minus the nearest integer: -1/2 .. 1/2 */
    Doubles sum = doubles_everywhere(1.0203121064027538e-07);
    _Pragma("GCC unroll 9") for (int i = 0; i < 9; i++)
        sum = multiply_add_doubles(sum, rest, doubles_everywhere(factors[i]));
    return scale_doubles_by_bits(sum, shifted);
}

/* Adds e to the power of 16 logits minus `largest` to the sums in 16 lanes. */
ALWAYS void add_powers(Wide logits, double largest, Doubles *sums) {
    const Doubles top = doubles_everywhere(largest), log2_e = doubles_everywhere(1.44269504088896340736);
    FOR_EACH_VECTOR {
        sums[2 * v] += doubles_power_of_two((lower_doubles(logits.v[v]) - top) * log2_e);
        sums[2 * v + 1] += doubles_power_of_two((upper_doubles(logits.v[v]) - top) * log2_e);
    }
}

/* The logarithm of the sum of e to the logits, of which `largest` is the largest. Sums are taken in 16 lanes. */
ALWAYS double log_sum(Type type, const void *logits, int64_t size, double largest) {
    Doubles sums[2 * VECTORS];
    FOR_EACH_VECTOR sums[2 * v] = sums[2 * v + 1] = doubles_everywhere(0.0);
    for (int64_t i = 0; i < size; i += WIDE)
        add_powers(load_logits(type, address(type, logits, i), size - i), largest, sums);
    double lanes[WIDE];
    memcpy(lanes, sums, sizeof lanes);
    for (int apart = WIDE / 2; apart; apart /= 2)
        for (int i = 0; i < apart; i++)
            lanes[i] += lanes[i + apart];
    return largest + log(lanes[0]);
}

ALWAYS void likelihoods_of(Type type, Likelihoods *asked) {
    double whole = log_sum(type, asked->logits, asked->size, find_likeliest(type, asked));
    asked->told[0] = (float)(logit_at(type, asked->logits, asked->token) - whole);
    for (int64_t i = 0; i < asked->count; i++)
        asked->told[i + 1] = (float)(logit_at(type, asked->logits, asked->ids[i]) - whole);
}
