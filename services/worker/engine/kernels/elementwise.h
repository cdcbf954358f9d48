/* Operations on each row by itself: RMSNorm, LayerNorm, GELU, SwiGLU, rotary position embedding. Include this after wide.h. */
#pragma once

#include "fp8_cache.h"

/* `count` is the number of values from `i` on. It is a constant in all iterations of a loop except the last. */
ALWAYS Wide add_squares(Type type, const void *in, int64_t i, int64_t count, Wide sums) {
    Wide values = wide_load_some(type, address(type, in, i), count);
    return wide_multiply_add(values, values, sums);
}

ALWAYS void scale_values(Type type, const void *in, Wide scale, const void *weight, float offset, void *out, int64_t i,
                         int64_t count) {
    Wide normed = wide_multiply(wide_load_some(type, address(type, in, i), count), scale);
    Wide factor = wide_load_some(type, address(type, weight, i), count);
    if (offset)
        factor = wide_add(factor, wide_everywhere(offset));
    normed = wide_multiply(normed, factor);
    wide_store_some(type, (void *)address(type, out, i), normed, count);
}

ALWAYS void rms_norm_of(Type type, const void *in, const void *weight, void *out, int64_t rows, int64_t size,
                        float epsilon, float offset) {
    int64_t whole = size - size % WIDE;
    for (int64_t row = 0; row < rows; row++, in = address(type, in, size), out = (void *)address(type, out, size)) {
        Wide squares = wide_everywhere(0.0f);
        for (int64_t i = 0; i < whole; i += WIDE)
            squares = add_squares(type, in, i, WIDE, squares);
        if (whole < size)
            squares = add_squares(type, in, whole, size - whole, squares);
        Wide scale = wide_everywhere(1.0f / __builtin_sqrtf(wide_sum(squares) / (float)size + epsilon));
        for (int64_t i = 0; i < whole; i += WIDE)
            scale_values(type, in, scale, weight, offset, out, i, WIDE);
        if (whole < size)
            scale_values(type, in, scale, weight, offset, out, whole, size - whole);
    }
}

/* `count` values from `i` on, minus `mean`; the lanes behind them are zero. */
ALWAYS Wide centred(Type type, const void *in, Wide mean, int64_t i, int64_t count) {
    Wide values = wide_load_some(type, address(type, in, i), count);
    FOR_EACH_VECTOR values.v[v] = values.v[v] - mean.v[v];
    if (count < WIDE) {
        float lanes[WIDE];
        wide_store(FLOAT32, lanes, values);
        for (int64_t lane = count; lane < WIDE; lane++)
            lanes[lane] = 0.0f;
        values = wide_load(FLOAT32, lanes);
    }
    return values;
}

ALWAYS void layer_norm_of(Type type, const void *in, const void *weight, const void *bias, void *out, int64_t rows,
                          int64_t size, float epsilon) {
    for (int64_t row = 0; row < rows; row++, in = address(type, in, size), out = (void *)address(type, out, size)) {
        Wide sums = wide_everywhere(0.0f), squares = sums;
        for (int64_t i = 0; i < size; i += WIDE)
            sums = wide_add(sums, wide_load_some(type, address(type, in, i), size - i));
        Wide mean = wide_everywhere(wide_sum(sums) / (float)size);
        for (int64_t i = 0; i < size; i += WIDE) {
            Wide values = centred(type, in, mean, i, size - i);
            squares = wide_multiply_add(values, values, squares);
        }
        Wide scale = wide_everywhere(1.0f / __builtin_sqrtf(wide_sum(squares) / (float)size + epsilon));
        for (int64_t i = 0; i < size; i += WIDE) {
            Wide values = wide_multiply(centred(type, in, mean, i, size - i), scale);
            Wide factor = wide_load_some(type, address(type, weight, i), size - i);
            Wide added = wide_load_some(type, address(type, bias, i), size - i);
            wide_store_some(type, (void *)address(type, out, i), wide_multiply_add(values, factor, added), size - i);
        }
    }
}

/* GELU: x times the part of a normal distribution below x. It is half of erfc(|x| / sqrt(2)) for negative x, and one
   minus that for others (Abramowitz and Stegun 7.1.26, whose error is below 1.5e-7). */
ALWAYS void gelu_of(Type type, const void *in, void *out, int64_t rows, int64_t size) {
    for (int64_t i = 0; i < rows * size; i += WIDE) {
        Wide x = wide_load_some(type, address(type, in, i), rows * size - i), power;
        FOR_EACH_VECTOR power.v[v] = x.v[v] * x.v[v] * everywhere(-0.5f * LOG2_E);
        power = wide_power_of_two(type, power);
        FOR_EACH_VECTOR {
            Floats one = everywhere(1.0f), t = one / multiply_add(magnitude(x.v[v]), everywhere(0.231641888f), one);
            Floats sum = multiply_add(t, everywhere(0.5307027145f), everywhere(-0.7265760135f));
            sum = multiply_add(sum, t, everywhere(0.7107068705f));
            sum = multiply_add(sum, t, everywhere(-0.142248368f));
            sum = multiply_add(sum, t, everywhere(0.127414796f));
            Floats below = sum * t * power.v[v];
            x.v[v] = x.v[v] * where_negative(x.v[v], below, one - below);
        }
        wide_store_some(type, (void *)address(type, out, i), x, rows * size - i);
    }
}

/* 1 / x for 1 <= x <= 2, with a relative error of 1 / 80,000: Newton steps from a line, as divisions take longer. */
ALWAYS Floats reciprocal(Floats x) {
    Floats guess = multiply_add(x, everywhere(-8.0f / 17), everywhere(24.0f / 17)), two = everywhere(2.0f);
    for (int step = 0; step < 2; step++)
        guess = guess * multiply_add(-x, guess, two);
    return guess;
}

/* The values of `gate`, each times the sigmoid of `x`. The sigmoid is 1 / (1 + e^-x), or e^x / (1 + e^x) for negative x:
   no power is above 1. */
ALWAYS Wide times_sigmoid(Type type, Wide gate, Wide x) {
    Wide power;
    FOR_EACH_VECTOR power.v[v] = magnitude(x.v[v]) * everywhere(-LOG2_E);
    power = wide_power_of_two(type, power);
    FOR_EACH_VECTOR {
        Floats one = everywhere(1.0f), part = where_negative(x.v[v], power.v[v], one), sum = one + power.v[v];
        gate.v[v] = gate.v[v] * (type == FLOAT32 ? part / sum : part * reciprocal(sum));
    }
    return gate;
}

/* GELU by a tangent: x / 2 * (1 + tanh(y)) is x times the sigmoid of 2 y, with y = sqrt(2 / pi) * (x + 0.044715 x^3). */
ALWAYS Wide gelu(Type type, Wide gate) {
    Wide twice;
    FOR_EACH_VECTOR {
        Floats cube = multiply_add(gate.v[v] * gate.v[v], everywhere(0.0713548163f), everywhere(1.59576912f));
        twice.v[v] = gate.v[v] * cube;
    }
    return times_sigmoid(type, gate, twice);
}

/* `is_gelu` is a constant. */
ALWAYS void gate_values(Type type, int is_gelu, const void *in, int64_t size, void *out, int64_t i, int64_t count) {
    Wide gate = wide_load_some(type, address(type, in, i), count);
    Wide up = wide_load_some(type, address(type, in, size + i), count);
    Wide opened = is_gelu ? gelu(type, gate) : times_sigmoid(type, gate, gate);
    wide_store_some(type, (void *)address(type, out, i), wide_multiply(opened, up), count);
}

ALWAYS void gate_of(Type type, int is_gelu, const void *in, void *out, int64_t rows, int64_t size) {
    int64_t whole = size - size % WIDE;
    for (int64_t row = 0; row < rows; row++, in = address(type, in, 2 * size), out = (void *)address(type, out, size)) {
        for (int64_t i = 0; i < whole; i += WIDE)
            gate_values(type, is_gelu, in, size, out, i, WIDE);
        if (whole < size)
            gate_values(type, is_gelu, in, size, out, whole, size - whole);
    }
}

/* Rotates one head at one position, each number of the first half with its partner in the second. `in` and `out` may be
   the same. */
ALWAYS void rotate(Type type, const void *in, void *out, const void *cosines, const void *sines, int64_t head_dim) {
    int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i += WIDE) {
        Wide left = wide_load_some(type, address(type, in, i), half - i);
        Wide right = wide_load_some(type, address(type, in, half + i), half - i);
        Wide cosine = wide_load_some(type, address(type, cosines, i), half - i);
        Wide sine = wide_load_some(type, address(type, sines, half + i), half - i), minus;
        FOR_EACH_VECTOR minus.v[v] = -sine.v[v];
        Wide first = wide_multiply_add(right, minus, wide_multiply(left, cosine));
        Wide second = wide_multiply_add(left, sine, wide_multiply(right, cosine));
        wide_store_some(type, (void *)address(type, out, i), first, half - i);
        wide_store_some(type, (void *)address(type, out, half + i), second, half - i);
    }
}

/* Rotates queries and keys of a run's rows, and stores keys and values in the cache. */
ALWAYS void rotate_and_store(Type type, void *rows, int64_t stride, const Run *run, const Attention *attention,
                             Share kv_heads) {
    const Cache *cache = &attention->cache;
    int64_t size = cache->head_dim, queries = cache->kv_heads * cache->group;
    for (int64_t i = 0; i < run->rows; i++) {
        void *row = (void *)address(type, rows, i * stride);
        int64_t position = run->begin + i;
        const void *cosines = address(type, attention->cosines, position * size);
        const void *sines = address(type, attention->sines, position * size);
        for (int64_t head = kv_heads.begin * cache->group; head < kv_heads.end * cache->group; head++) {
            void *query = (void *)address(type, row, head * size);
            rotate(type, query, query, cosines, sines, size);
        }
        for (int64_t head = kv_heads.begin; head < kv_heads.end; head++) {
            void *key = (void *)address(type, row, (queries + head) * size);
            const void *value = address(type, row, (queries + cache->kv_heads + head) * size);
            int64_t place = (head * cache->slots + run->slot + position) * size;
            if (cache->fp8) {
                rotate(type, key, key, cosines, sines, size);
                pack_fp8(type, key, size, (uint8_t *)cache->keys + place);
                pack_fp8(type, value, size, (uint8_t *)cache->values + place);
                continue;
            }
            rotate(type, key, (void *)address(type, cache->keys, place), cosines, sines, size);
            if (cache->values == cache->keys)
                continue;
            memcpy((void *)address(type, cache->values, place), value,
                   size * (type == BFLOAT16 ? sizeof(bf16) : sizeof(float)));
        }
    }
}
