/* What is done with each row by itself: RMSNorm, SwiGLU, rotary position embedding. To be included after wide.h. */
#pragma once

ALWAYS void rms_norm_of(Type type, const void *in, const void *weight, void *out, int64_t rows, int64_t size,
                        float epsilon) {
    for (int64_t row = 0; row < rows; row++, in = address(type, in, size), out = (void *)address(type, out, size)) {
        Wide squares = wide_everywhere(0.0f);
        for (int64_t i = 0; i < size; i += WIDE) {
            Wide values = wide_load_some(type, address(type, in, i), size - i);
            squares = wide_multiply_add(values, values, squares);
        }
        Wide scale = wide_everywhere(1.0f / __builtin_sqrtf(wide_sum(squares) / (float)size + epsilon));
        for (int64_t i = 0; i < size; i += WIDE) {
            Wide normed = wide_multiply(wide_load_some(type, address(type, in, i), size - i), scale);
            normed = wide_multiply(normed, wide_load_some(type, address(type, weight, i), size - i));
            wide_store_some(type, (void *)address(type, out, i), normed, size - i);
        }
    }
}

/* The sigmoid is 1 / (1 + e^-x), or e^x / (1 + e^x) for negative x: no power is above 1. */
ALWAYS Wide silu(Type type, Wide gate) {
    Wide power;
    FOR_EACH_VECTOR power.v[v] = magnitude(gate.v[v]) * everywhere(-LOG2_E);
    power = wide_power_of_two(type, power);
    FOR_EACH_VECTOR {
        Floats one = everywhere(1.0f);
        gate.v[v] = gate.v[v] * (where_negative(gate.v[v], power.v[v], one) / (one + power.v[v]));
    }
    return gate;
}

ALWAYS void silu_times_of(Type type, const void *in, void *out, int64_t rows, int64_t size) {
    for (int64_t row = 0; row < rows; row++, in = address(type, in, 2 * size), out = (void *)address(type, out, size))
        for (int64_t i = 0; i < size; i += WIDE) {
            Wide gate = wide_load_some(type, address(type, in, i), size - i);
            Wide up = wide_load_some(type, address(type, in, size + i), size - i);
            wide_store_some(type, (void *)address(type, out, i), wide_multiply(silu(type, gate), up), size - i);
        }
}

/* One head at one position: its halves are turned against each other. `in` and `out` may be the same. */
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

/* Rotates queries and keys of a run's rows, and puts keys and values into the cache. */
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
            const void *key = address(type, row, (queries + head) * size);
            const void *value = address(type, row, (queries + cache->kv_heads + head) * size);
            int64_t place = (head * cache->slots + run->slot + position) * size;
            rotate(type, key, (void *)address(type, cache->keys, place), cosines, sines, size);
            memcpy((void *)address(type, cache->values, place), value,
                   size * (type == BFLOAT16 ? sizeof(bf16) : sizeof(float)));
        }
    }
}
