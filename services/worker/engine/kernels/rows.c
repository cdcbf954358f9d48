/* What is done with each row by itself: normalisation (RMSNorm), a gate (SwiGLU), rotary position embedding
   (RoFormer). */
#include "avx512.h"

void rms_norm(const bf16 *in, const bf16 *weight, bf16 *out, int64_t rows, int64_t size, float epsilon) {
    for (int64_t row = 0; row < rows; row++, in += size, out += size) {
        __m512 squares = _mm512_setzero_ps();
        for (int64_t i = 0; i < size; i += FLOATS) {
            __m512 values = load_floats(first_floats(size - i), in + i);
            squares = _mm512_fmadd_ps(values, values, squares);
        }
        __m512 scale = _mm512_set1_ps(1.0f / __builtin_sqrtf(_mm512_reduce_add_ps(squares) / (float)size + epsilon));
        for (int64_t i = 0; i < size; i += FLOATS) {
            __mmask16 mask = first_floats(size - i);
            __m512 normed = _mm512_mul_ps(load_floats(mask, in + i), scale);
            store_floats(out + i, mask, _mm512_mul_ps(normed, load_floats(mask, weight + i)));
        }
    }
}

void silu_times(const bf16 *in, bf16 *out, int64_t rows, int64_t size) {
    const __m512 one = _mm512_set1_ps(1.0f);
    for (int64_t row = 0; row < rows; row++, in += 2 * size, out += size)
        for (int64_t i = 0; i < size; i += FLOATS) {
            __mmask16 mask = first_floats(size - i);
            __m512 gate = load_floats(mask, in + i), up = load_floats(mask, in + size + i);
            __m512 small = exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(gate)));
            __mmask16 negative = _mm512_cmp_ps_mask(gate, _mm512_setzero_ps(), _CMP_LT_OQ);
            __m512 sigmoid = _mm512_div_ps(_mm512_mask_mov_ps(one, negative, small), _mm512_add_ps(one, small));
            store_floats(out + i, mask, _mm512_mul_ps(_mm512_mul_ps(gate, sigmoid), up));
        }
}

static inline void turn(const bf16 *in, bf16 *out, const bf16 *cosines, const bf16 *sines, int64_t head_dim) {
    int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i += FLOATS) {
        __mmask16 mask = first_floats(half - i);
        __m512 left = load_floats(mask, in + i), right = load_floats(mask, in + half + i);
        __m512 cosine = load_floats(mask, cosines + i), sine = load_floats(mask, sines + half + i);
        store_floats(out + i, mask, _mm512_fnmadd_ps(right, sine, _mm512_mul_ps(left, cosine)));
        store_floats(out + half + i, mask, _mm512_fmadd_ps(left, sine, _mm512_mul_ps(right, cosine)));
    }
}

void turn_and_store(bf16 *row, int64_t stride, const Run *run, const Cache *cache, const bf16 *cosines,
                    const bf16 *sines) {
    int64_t size = cache->head_dim, queries = cache->kv_heads * cache->group;
    for (int64_t position = run->begin; position < run->begin + run->rows; position++, row += stride) {
        const bf16 *cosine = cosines + position * size, *sine = sines + position * size;
        const bf16 *key = row + queries * size, *value = key + cache->kv_heads * size;
        for (int64_t head = 0; head < queries; head++)
            turn(row + head * size, row + head * size, cosine, sine, size);
        for (int64_t head = 0; head < cache->kv_heads; head++) {
            int64_t place = (head * cache->slots + run->slot + position) * size;
            turn(key + head * size, cache->keys + place, cosine, sine, size);
            memcpy(cache->values + place, value + head * size, size * sizeof(bf16));
        }
    }
}
