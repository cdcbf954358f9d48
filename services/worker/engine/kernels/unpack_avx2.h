/* Unpacks codes by vectors of 8. Include this in unpack_vectors.h.

   Each vector has the codes of 4 outputs, for both inputs of a pair: of outputs 0, 1, 4 and 5 of 8, or of 2, 3, 6 and 7.
   So the even ones of two vectors are those of 8 outputs in order, and so are the odd ones. */
#pragma once

#define EIGHT 8

/* The scales of eight outputs from number `at` on. Those of float16 are made as in scale_at, since not every CPU with
   AVX2 converts them. */
ALWAYS __m256 scales_of(int64_t scales, const char *from, int at) {
    if (scales == SCALES_PANEL)
        return _mm256_broadcast_ss((const float *)from);
    if (scales == SCALES_FLOAT32)
        return _mm256_loadu_ps((const float *)from + at);
    if (scales == SCALES_E8M0)
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(from + at))), 23));
    __m256i halves = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)((const uint16_t *)from + at)));
    if (scales == SCALES_BFLOAT16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
    __m256i size = _mm256_and_si256(halves, _mm256_set1_epi32(0x7fff));
    __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(halves, size), 16);
    __m256i is_finite = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7c00), size);
    __m256i above = _mm256_blendv_epi8(_mm256_set1_epi32(0x38000), _mm256_set1_epi32(0x1c000), is_finite);
    __m256 made = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(size, above), 13));
    __m256 small = _mm256_cvtepi32_ps(size) * _mm256_set1_ps(0x1p-24f);
    __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x400), size);
    return _mm256_or_ps(_mm256_blendv_ps(made, small, _mm256_castsi256_ps(is_small)), _mm256_castsi256_ps(sign));
}

/* The zeros of eight outputs. */
ALWAYS __m256 zeros_of(Codes codes, const Packing *packing, const uint8_t *from) {
    if (!packing->zeros)
        return _mm256_set1_ps(codes == INT4 ? 8.0f : codes == INT8 ? 128.0f : 0.0f);
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}

/* Stores each of eight numbers twice, in the order of the vectors. */
ALWAYS void store_twice(float *to, __m256 each) {
    _mm256_storeu_ps(to, _mm256_unpacklo_ps(each, each));
    _mm256_storeu_ps(to + EIGHT, _mm256_unpackhi_ps(each, each));
}

/* Makes group number `number` ready for unpack_pairs. It does not fit where its scales are so large or small that
   products, or what rounds them, may be infinite or denormal. */
static void spread_group(Codes codes, const Unpacking *of, int64_t number, Spread *made) {
    const Packing *packing = of->packing;
    const char *scales = of->panel + number * scales_size(packing);
    const uint8_t *zeros = (const uint8_t *)of->panel + of->bytes.zeros + number * PANEL;
    const int fields = 32 / (int)code_bits(codes);
    __m256 fit = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    for (int vector = 0; vector < PANEL / EIGHT; vector++) {
        float times = excess_of(codes, vector % fields);
        __m256 scale = scales_of(packing->scales, scales, vector * EIGHT), size = magnitude(scale);
        __m256 zero = zeros_of(codes, packing, zeros + vector * EIGHT);
        __m256 inside = _mm256_and_ps(_mm256_cmp_ps(size, _mm256_set1_ps(0x1p80f), _CMP_LT_OQ),
                                      _mm256_cmp_ps(size, _mm256_set1_ps(0x1p-80f), _CMP_GT_OQ));
        fit = _mm256_and_ps(fit, _mm256_or_ps(inside, _mm256_cmp_ps(scale, _mm256_setzero_ps(), _CMP_EQ_OQ)));
        store_twice(made->zero + vector * CODE_LANES,
                    _mm256_fmadd_ps(zero, _mm256_set1_ps(times), _mm256_set1_ps(0x1p23f)));
        store_twice(made->scale + vector * CODE_LANES, scale * _mm256_set1_ps(1.0f / times));
    }
    made->fits = _mm256_movemask_ps(fit) == 0xff;
}

/* Where the exponent of a code of FP8 is zero, which makes 2 * (1 + fraction), it stands for 4 * fraction. */
ALWAYS __m256 small_values(__m256 made) {
    const __m256 sign = _mm256_set1_ps(-0.0f), size = _mm256_andnot_ps(sign, made);
    __m256 less = _mm256_fmadd_ps(size, _mm256_set1_ps(2.0f), _mm256_set1_ps(-4.0f));
    return _mm256_or_ps(_mm256_min_ps(size, less), _mm256_and_ps(sign, made));
}

/* Whether any of 32 codes of FP8 may be denormal. Few are in most matrices. */
ALWAYS int has_small_codes(Codes codes, __m256i words) {
    __m256i exponents = _mm256_and_si256(words, _mm256_set1_epi8(0x78));
    return codes == FP8 && _mm256_movemask_epi8(_mm256_cmpeq_epi8(exponents, _mm256_setzero_si256())) != 0;
}

/* The values of field `field` of 8 words, not scaled; the same words moved by LATE bits are `late`. Those of FP8 are
   too large by 2^8. */
ALWAYS __m256 values_of(Codes codes, int field, int has_small, __m256i words, __m256i late, const float *zero) {
    const int bits = (int)code_bits(codes);
    if (codes == INT4 || codes == INT8) {
        __m256i mask = _mm256_set1_epi32(((1 << bits) - 1) << place(codes, field));
        __m256i code = _mm256_and_si256(is_late(codes, field) ? late : words, mask);
        return _mm256_castsi256_ps(_mm256_or_si256(code, _mm256_set1_epi32(0x4b000000))) - _mm256_loadu_ps(zero);
    }
    __m256i above = _mm256_slli_epi32(words, 32 - bits * (field + 1));
    if (codes == FP8) { /* the sign, the lowest bits of the exponent beside that of 2, and the fraction */
        __m256i code = _mm256_and_si256(_mm256_srai_epi32(above, 4), _mm256_set1_epi32((int)0x87f00000));
        __m256 made = _mm256_castsi256_ps(_mm256_or_si256(code, _mm256_set1_epi32(0x40000000)));
        return has_small ? small_values(made) : made;
    }
    const __m256 sizes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    __m256i sign = _mm256_and_si256(above, _mm256_set1_epi32((int)0x80000000));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(sizes, _mm256_srli_epi32(words, bits * field)),
                        _mm256_castsi256_ps(sign));
}

/* The products of values and scales, rounded to the nearest bfloat16. Those of FP4 are exact. */
ALWAYS __m256 rounded(Codes codes, __m256 values, const float *scale) {
    __m256 x = values * _mm256_loadu_ps(scale);
    return codes == FP4 ? x : _mm256_fmsub_ps(x, _mm256_set1_ps(POWER), x * _mm256_set1_ps(POWER - 1.0f));
}

/* The codes at `i`, 0 or 1, of those words. */
ALWAYS __m256i words_at(const uint32_t *words, int i) {
    return _mm256_loadu2_m128i((const __m128i *)(words + EIGHT + 4 * i), (const __m128i *)(words + 4 * i));
}

/* The numbers of 4 fields of 8 words, from `field` on, scaled by `group` from `at` on. All four are computed in step,
   as old CPUs look but a few operations ahead. */
ALWAYS void scaled_by(Codes codes, int has_small, int field, __m256i words, const Spread *group, int at,
                      __m256 made[4]) {
    __m256i late = _mm256_srli_epi32(words, LATE(codes));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        made[i] = values_of(codes, field + i, has_small, words, late, group->zero + at + i * CODE_LANES);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        made[i] = rounded(codes, made[i], group->scale + at + i * CODE_LANES);
}

ALWAYS void numbers_of(Codes codes, int field, __m256i words, const Spread *group, int at, __m256 made[4]) {
    if (has_small_codes(codes, words))
        scaled_by(codes, 1, field, words, group, at, made);
    else
        scaled_by(codes, 0, field, words, group, at, made);
}

/* Unpacks the codes of one pair of inputs. */
ALWAYS void unpack_pair(Codes codes, const Spread *group, const uint32_t *words, float *even, float *odd) {
    const int fields = 32 / (int)code_bits(codes);
#pragma GCC unroll 2
    for (int word = 0; word < EIGHT / fields; word++, words += CODE_LANES) {
        __m256i first = words_at(words, 0), second = words_at(words, 1);
#pragma GCC unroll 2
        for (int field = 0; field < fields; field += 4) {
            const int vector = word * fields + field, at = vector * CODE_LANES;
            __m256 made[4], others[4];
            numbers_of(codes, field, first, group, at, made);
            numbers_of(codes, field, second, group, at + EIGHT, others);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                _mm256_storeu_ps(even + (vector + i) * EIGHT, _mm256_shuffle_ps(made[i], others[i], 0x88));
                _mm256_storeu_ps(odd + (vector + i) * EIGHT, _mm256_shuffle_ps(made[i], others[i], 0xdd));
            }
        }
    }
}

/* Unpacks the codes of some pairs of inputs. */
ALWAYS void unpack_pairs(Codes codes, const Packing *packing, const Spread *group, const uint32_t *words, int64_t pairs,
                         float *even, float *odd) {
    (void)packing;
    for (; pairs > 0; pairs--, even += PANEL, odd += PANEL, words += 2 * PANEL * code_bits(codes) / 32)
        unpack_pair(codes, group, words, even, odd);
}

/* Adds the products of one row and 32 inputs of a panel that share a group to all 64 sums. The numbers stay in
   registers. */
ALWAYS void add_packed(Codes codes, const Packing *packing, const Spread *group, const uint32_t *words, const float *a,
                       float *sums) {
    (void)packing;
    const int fields = 32 / (int)code_bits(codes), pair_words = 2 * PANEL / fields;
    float pairs[INPUTS];
    for (int pair = 0; pair < INPUTS / 2; pair++) {
        pairs[2 * pair] = a[pair];
        pairs[2 * pair + 1] = a[INPUTS / 2 + pair];
    }
#pragma GCC unroll 2
    for (int word = 0; word < EIGHT / fields; word++) {
        float first[EIGHT * EIGHT];
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            __m256 made[EIGHT];
#pragma GCC unroll 8
            for (int field = 0; field < fields; field++)
                made[field] = _mm256_setzero_ps();
            for (int pair = 0; pair < INPUTS / 2; pair++) {
                __m256i found = words_at(words + pair * pair_words + word * CODE_LANES, i);
                __m256 inputs = _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(pairs + 2 * pair)));
#pragma GCC unroll 2
                for (int field = 0; field < fields; field += 4) {
                    __m256 numbers[4];
                    numbers_of(codes, field, found, group, (word * fields + field) * CODE_LANES + i * EIGHT,
                               numbers);
#pragma GCC unroll 4
                    for (int each = 0; each < 4; each++)
                        made[field + each] = _mm256_fmadd_ps(inputs, numbers[each], made[field + each]);
                }
            }
#pragma GCC unroll 8
            for (int field = 0; field < fields; field++)
                if (i == 0)
                    _mm256_storeu_ps(first + field * EIGHT, made[field]);
                else {
                    __m256 before = _mm256_loadu_ps(first + field * EIGHT);
                    __m256 both = _mm256_shuffle_ps(before, made[field], 0x88) + _mm256_shuffle_ps(before, made[field], 0xdd);
                    float *to = sums + (word * fields + field) * EIGHT;
                    _mm256_storeu_ps(to, _mm256_loadu_ps(to) + both);
                }
        }
    }
}
