/* Operations on each row by itself: RMSNorm, SwiGLU, rotary position embedding. */
#ifdef __x86_64__
#include "operations.h"
#include "vectors.h"

#include "../fp8_cache.h"

static inline __attribute__((always_inline)) __m512 square(__mmask16 mask, const bf16 *in, __m512 squares) {
    __m512 values = load_floats(mask, in);
    return _mm512_fmadd_ps(values, values, squares);
}

static inline __attribute__((always_inline)) void weigh(__mmask16 mask, const bf16 *in, const bf16 *weight, bf16 *out,
                                                        __m512 scale, float offset) {
    __m512 normed = _mm512_mul_ps(load_floats(mask, in), scale), factor = load_floats(mask, weight);
    if (offset)
        factor = _mm512_add_ps(factor, _mm512_set1_ps(offset));
    store_floats(out, mask, _mm512_mul_ps(normed, factor));
}

void rms_norm_by_vectors(const void *rows_in, const void *weights, void *rows_out, int64_t rows, int64_t size,
                         float epsilon, float offset) {
    const bf16 *in = rows_in, *weight = weights;
    bf16 *out = rows_out;
    int64_t whole = size / FLOATS * FLOATS;
    __mmask16 rest = first_floats(size - whole);
    for (int64_t row = 0; row < rows; row++, in += size, out += size) {
        __m512 squares = _mm512_setzero_ps();
        for (int64_t i = 0; i < whole; i += FLOATS)
            squares = square(ALL, in + i, squares);
        squares = square(rest, in + whole, squares);
        __m512 scale = _mm512_set1_ps(1.0f / __builtin_sqrtf(_mm512_reduce_add_ps(squares) / (float)size + epsilon));
        for (int64_t i = 0; i < whole; i += FLOATS)
            weigh(ALL, in + i, weight + i, out + i, scale, offset);
        weigh(rest, in + whole, weight + whole, out + whole, scale, offset);
    }
}

/* `is_gelu` is a constant; elementwise.h says what it computes. */
static inline __attribute__((always_inline)) void gate_up(__mmask16 mask, const bf16 *in, const bf16 *other, bf16 *out,
                                                          int is_gelu) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 gate = load_floats(mask, in), up = load_floats(mask, other), x = gate;
    if (is_gelu)
        x = _mm512_mul_ps(gate, _mm512_fmadd_ps(_mm512_mul_ps(gate, gate), _mm512_set1_ps(0.0713548163f),
                                                _mm512_set1_ps(1.59576912f)));
    __m512 small = exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
    __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    __m512 sigmoid = _mm512_div_ps(_mm512_mask_mov_ps(one, negative, small), _mm512_add_ps(one, small));
    store_floats(out, mask, _mm512_mul_ps(_mm512_mul_ps(gate, sigmoid), up));
}

static inline __attribute__((always_inline)) void gate_rows(const bf16 *in, bf16 *out, int64_t rows, int64_t size,
                                                            int is_gelu) {
    int64_t whole = size / FLOATS * FLOATS;
    for (int64_t row = 0; row < rows; row++, in += 2 * size, out += size) {
        for (int64_t i = 0; i < whole; i += FLOATS)
            gate_up(ALL, in + i, in + size + i, out + i, is_gelu);
        gate_up(first_floats(size - whole), in + whole, in + size + whole, out + whole, is_gelu);
    }
}

void silu_times_by_vectors(const void *in, void *out, int64_t rows, int64_t size) { gate_rows(in, out, rows, size, 0); }

void gelu_times_by_vectors(const void *in, void *out, int64_t rows, int64_t size) { gate_rows(in, out, rows, size, 1); }

static inline void rotate(const bf16 *in, bf16 *out, const bf16 *cosines, const bf16 *sines, int64_t head_dim) {
    int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i += FLOATS) {
        __mmask16 mask = first_floats(half - i);
        __m512 left = load_floats(mask, in + i), right = load_floats(mask, in + half + i);
        __m512 cosine = load_floats(mask, cosines + i), sine = load_floats(mask, sines + half + i);
        store_floats(out + i, mask, _mm512_fnmadd_ps(right, sine, _mm512_mul_ps(left, cosine)));
        store_floats(out + half + i, mask, _mm512_fmadd_ps(left, sine, _mm512_mul_ps(right, cosine)));
    }
}

void rotate_and_store_by_vectors(bf16 *row, int64_t stride, const Run *run, const Attention *attention,
                                 Share kv_heads) {
    const Cache *cache = &attention->cache;
    int64_t size = cache->head_dim, queries = cache->kv_heads * cache->group;
    for (int64_t position = run->begin; position < run->begin + run->rows; position++, row += stride) {
        const bf16 *cosine = (const bf16 *)attention->cosines + position * size;
        const bf16 *sine = (const bf16 *)attention->sines + position * size;
        bf16 *key = row + queries * size, *value = key + cache->kv_heads * size;
        for (int64_t head = kv_heads.begin * cache->group; head < kv_heads.end * cache->group; head++)
            rotate(row + head * size, row + head * size, cosine, sine, size);
        for (int64_t head = kv_heads.begin; head < kv_heads.end; head++) {
            int64_t place = (head * cache->slots + run->slot + position) * size;
            if (cache->fp8) {
                rotate(key + head * size, key + head * size, cosine, sine, size);
                pack_fp8(BFLOAT16, key + head * size, size, (uint8_t *)cache->keys + place);
                pack_fp8(BFLOAT16, value + head * size, size, (uint8_t *)cache->values + place);
                continue;
            }
            rotate(key + head * size, (bf16 *)cache->keys + place, cosine, sine, size);
            if (cache->values != cache->keys)
                memcpy((bf16 *)cache->values + place, value + head * size, size * sizeof(bf16));
        }
    }
}

#include "../end_target.h"
#endif
