/* Unpacks codes by vectors of 16. Include this in unpack_vectors.h.

   Each vector has the codes of 8 outputs, for both inputs of a pair. Four of them are unpacked for many pairs of inputs
   in turn, so that what they are multiplied by stays in registers. */
#pragma once

#define AT_ONCE 4

/* What four vectors of a group need. */
typedef struct {
    __m512 scale[AT_ONCE], zero[AT_ONCE], other[AT_ONCE];
} Own;

/* The scales of eight outputs from number `at` on, each twice. */
ALWAYS __m512 scales_of(int64_t scales, const char *from, int at) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    if (scales == SCALES_PANEL)
        return _mm512_set1_ps(*(const float *)from);
    if (scales == SCALES_FLOAT32)
        return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps((const float *)from + at)));
    if (scales == SCALES_E8M0) {
        __m512i bits = _mm512_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(from + at)));
        return _mm512_permutexvar_ps(twice, _mm512_castsi512_ps(_mm512_slli_epi32(bits, 23)));
    }
    __m256i halves = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)((const uint16_t *)from + at)));
    if (scales == SCALES_FLOAT16)
        return _mm512_permutexvar_ps(twice, _mm512_cvtph_ps(halves));
    return _mm512_permutexvar_ps(twice, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)));
}

/* The zeros of eight outputs, each twice. */
ALWAYS __m512 zeros_of(Codes codes, const Packing *packing, const uint8_t *from) {
    const __m128i twice = _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    if (!packing->zeros)
        return _mm512_set1_ps(codes == INT4 ? 8.0f : codes == INT8 ? 128.0f : 0.0f);
    __m128i each = _mm_shuffle_epi8(_mm_loadl_epi64((const __m128i *)from), twice);
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(each));
}

/* Makes group number `number` ready for unpack_pairs. It does not fit where its scales are so large or small that
   products, or what rounds them, may be infinite or denormal. */
static void spread_group(Codes codes, const Unpacking *of, int64_t number, Spread *made) {
    const Packing *packing = of->packing;
    const char *scales = of->panel + number * scales_size(packing);
    const uint8_t *zeros = (const uint8_t *)of->panel + of->bytes.zeros + number * PANEL;
    const int fields = 32 / (int)code_bits(codes);
    __mmask16 unfit = 0;
    for (int vector = 0; vector < 2 * PANEL / LANES; vector++) {
        float times = excess_of(codes, vector % fields);
        __m512 scale = scales_of(packing->scales, scales, vector * LANES / 2), size = _mm512_abs_ps(scale);
        __m512 zero = zeros_of(codes, packing, zeros + vector * LANES / 2);
        __m512 own = _mm512_mul_ps(scale, _mm512_set1_ps(1.0f / times));
        __mmask16 inside = _mm512_cmp_ps_mask(size, _mm512_set1_ps(0x1p80f), _CMP_LT_OQ) &
                           _mm512_cmp_ps_mask(size, _mm512_set1_ps(0x1p-80f), _CMP_GT_OQ);
        unfit |= ~(inside | _mm512_cmp_ps_mask(scale, _mm512_setzero_ps(), _CMP_EQ_OQ));
        _mm512_storeu_ps(made->zero + vector * LANES,
                         _mm512_fmadd_ps(zero, _mm512_set1_ps(times), _mm512_set1_ps(0x1p23f)));
        _mm512_storeu_ps(made->other + vector * LANES, _mm512_mul_ps(own, _mm512_set1_ps(POWER - 1.0f)));
        _mm512_storeu_ps(made->scale + vector * LANES,
                         is_short(packing) ? _mm512_mul_ps(own, _mm512_set1_ps(POWER)) : own);
    }
    made->fits = !unfit;
}

/* Where the exponent of a code of FP8 is zero, which makes 2 * (1 + fraction), it stands for 4 * fraction. */
ALWAYS __m512 small_values(__m512 made) {
    const __m512 sign = _mm512_set1_ps(-0.0f), size = _mm512_andnot_ps(sign, made);
    __m512 less = _mm512_fmadd_ps(size, _mm512_set1_ps(2.0f), _mm512_set1_ps(-4.0f));
    return _mm512_or_ps(_mm512_min_ps(size, less), _mm512_and_ps(sign, made));
}

/* The values of field `field` of 16 words, not scaled; the same words moved by LATE bits are `late`. Those of FP8 are too
   large by 2^8. */
ALWAYS __m512 values_of(Codes codes, int field, int has_small, __m512i words, __m512i late, __m512 zero) {
    const int bits = (int)code_bits(codes);
    if (codes == FP4) { /* the lowest four bits say which one */
        const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f,
                                             -2.0f, -3.0f, -4.0f, -6.0f);
        return _mm512_permutexvar_ps(_mm512_srli_epi32(words, bits * field), values);
    }
    if (codes == FP8) { /* the sign, the lowest bits of the exponent beside that of 2, and the fraction */
        __m512i moved = _mm512_srai_epi32(_mm512_slli_epi32(words, 32 - bits * (field + 1)), 4);
        const __m512i mask = _mm512_set1_epi32((int)0x87f00000), two = _mm512_set1_epi32(0x40000000);
        __m512 made = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(moved, mask, two, 0xea)); /* (moved & mask) | two */
        return has_small ? small_values(made) : made;
    }
    const __m512i mask = _mm512_set1_epi32(((1 << bits) - 1) << place(codes, field)), power = _mm512_set1_epi32(0x4b000000);
    __m512i made = _mm512_ternarylogic_epi32(is_late(codes, field) ? late : words, mask, power, 0xea);
    return _mm512_sub_ps(_mm512_castsi512_ps(made), zero);
}

/* The products of values and scales, rounded to the nearest bfloat16. Those of FP4 are exact. */
ALWAYS __m512 rounded(Codes codes, int is_short, __m512 values, __m512 scale, __m512 other) {
    if (codes == FP4)
        return _mm512_mul_ps(values, scale);
    if (is_short)
        return _mm512_fmsub_ps(values, scale, _mm512_mul_ps(values, other));
    __m512 x = _mm512_mul_ps(values, scale);
    return _mm512_fmsub_ps(x, _mm512_set1_ps(POWER), _mm512_mul_ps(x, _mm512_set1_ps(POWER - 1.0f)));
}

ALWAYS Own own_of(const Spread *group, int vector) {
    Own made;
#pragma GCC unroll 4
    for (int i = 0; i < AT_ONCE; i++) {
        int64_t at = (vector + i) * LANES;
        made.scale[i] = _mm512_loadu_ps(group->scale + at);
        made.zero[i] = _mm512_loadu_ps(group->zero + at);
        made.other[i] = _mm512_loadu_ps(group->other + at);
    }
    return made;
}

/* The numbers of four vectors, of which the first one is `vector`, from the words of a pair of inputs. */
ALWAYS void numbers_of(Codes codes, int is_short, int has_small, int vector, const uint32_t *words, const Own *own,
                       __m512 made[AT_ONCE]) {
    const int fields = 32 / (int)code_bits(codes);
    __m512i found = _mm512_loadu_si512(words + vector / fields * LANES), late = _mm512_srli_epi32(found, LATE);
#pragma GCC unroll 4
    for (int i = 0; i < AT_ONCE; i++)
        made[i] = rounded(codes, is_short,
                          values_of(codes, (vector + i) % fields, has_small, found, late, own->zero[i]), own->scale[i],
                          own->other[i]);
}

/* Whether any of 64 codes of FP8 may be denormal. Few are in most matrices. */
ALWAYS int has_small_codes(Codes codes, int vector, const uint32_t *words) {
    return codes == FP8 && _mm512_testn_epi8_mask(_mm512_loadu_si512(words + vector / 4 * LANES),
                                                  _mm512_set1_epi8(0x78)) != 0;
}

/* The even, or the odd ones of two vectors. */
ALWAYS __m512 every_other(__m512 low, __m512 high, int odd) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(low, odd ? _mm512_add_epi32(even, _mm512_set1_epi32(1)) : even, high);
}

ALWAYS void unpack_by(Codes codes, int is_short, const Spread *group, const uint32_t *words, int64_t pairs, float *even,
                      float *odd) {
    const int pair_words = 2 * PANEL * (int)code_bits(codes) / 32;
#pragma GCC unroll 2
    for (int vector = 0; vector < 2 * PANEL / LANES; vector += AT_ONCE) {
        const Own own = own_of(group, vector);
        for (int64_t pair = 0; pair < pairs; pair++) {
            const uint32_t *from = words + pair * pair_words;
            int64_t to = pair * PANEL + vector * LANES / 2;
            __m512 made[AT_ONCE];
            if (has_small_codes(codes, vector, from))
                numbers_of(codes, is_short, 1, vector, from, &own, made);
            else
                numbers_of(codes, is_short, 0, vector, from, &own, made);
#pragma GCC unroll 2
            for (int i = 0; i < AT_ONCE; i += 2) {
                _mm512_storeu_ps(even + to + i * LANES / 2, every_other(made[i], made[i + 1], 0));
                _mm512_storeu_ps(odd + to + i * LANES / 2, every_other(made[i], made[i + 1], 1));
            }
        }
    }
}

/* Unpacks the codes of some pairs of inputs. */
ALWAYS void unpack_pairs(Codes codes, const Packing *packing, const Spread *group, const uint32_t *words, int64_t pairs,
                         float *even, float *odd) {
    if (is_short(packing))
        unpack_by(codes, 1, group, words, pairs, even, odd);
    else
        unpack_by(codes, 0, group, words, pairs, even, odd);
}

ALWAYS void add_by(Codes codes, int is_short, const Spread *group, const uint32_t *words, const float *pairs,
                   float *sums) {
    const int pair_words = 2 * PANEL * (int)code_bits(codes) / 32;
#pragma GCC unroll 2
    for (int vector = 0; vector < 2 * PANEL / LANES; vector += AT_ONCE) {
        const Own own = own_of(group, vector);
        __m512 kept[AT_ONCE];
#pragma GCC unroll 4
        for (int i = 0; i < AT_ONCE; i++)
            kept[i] = _mm512_setzero_ps();
        for (int64_t pair = 0; pair < INPUTS / 2; pair++) {
            const uint32_t *from = words + pair * pair_words;
            __m512 inputs = _mm512_castpd_ps(_mm512_set1_pd(((const double *)pairs)[pair])), made[AT_ONCE];
            if (has_small_codes(codes, vector, from))
                numbers_of(codes, is_short, 1, vector, from, &own, made);
            else
                numbers_of(codes, is_short, 0, vector, from, &own, made);
#pragma GCC unroll 4
            for (int i = 0; i < AT_ONCE; i++)
                kept[i] = _mm512_fmadd_ps(inputs, made[i], kept[i]);
        }
#pragma GCC unroll 2
        for (int i = 0; i < AT_ONCE; i += 2) {
            float *to = sums + (vector + i) * LANES / 2;
            __m512 both = _mm512_add_ps(every_other(kept[i], kept[i + 1], 0), every_other(kept[i], kept[i + 1], 1));
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), both));
        }
    }
}

/* Adds the products of one row and 32 inputs of a panel that share a group to all 64 sums. The numbers stay in
   registers. */
ALWAYS void add_packed(Codes codes, const Packing *packing, const Spread *group, const uint32_t *words, const float *a,
                       float *sums) {
    _Alignas(64) float pairs[INPUTS];
    for (int pair = 0; pair < INPUTS / 2; pair++) {
        pairs[2 * pair] = a[pair];
        pairs[2 * pair + 1] = a[INPUTS / 2 + pair];
    }
    for (int64_t line = 0; line < INPUTS * PANEL * code_bits(codes) / 8; line += 64)
        __builtin_prefetch((const char *)words + 8192 + line, 0, 3);
    if (is_short(packing))
        add_by(codes, 1, group, words, pairs, sums);
    else
        add_by(codes, 0, group, words, pairs, sums);
}
