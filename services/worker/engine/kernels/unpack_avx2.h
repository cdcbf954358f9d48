/* Unpacks codes by vectors of 8. Include this in unpack_vectors.h.

   Each vector has the codes of 4 outputs, for both inputs of a pair: of outputs 0, 1, 4 and 5 of 8, or of 2, 3, 6 and 7.
   So the even ones of two vectors are those of 8 outputs in order, and so are the odd ones. */
#pragma once

#define EIGHT 8
#define AT_ONCE 4 /* vectors of numbers */
#define PAIRS 4   /* of inputs, whose codes of FP8 are looked at together */

/* How codes are scaled: by numbers of any length, by short ones, or by the table of a group. */
typedef enum { BY_LONG_SCALES, BY_SHORT_SCALES, BY_TABLE } Way;

ALWAYS Way way_of(Codes codes, const Packing *packing) {
    if (codes == FP8 && packing->scales == SCALES_PANEL)
        return BY_TABLE;
    return is_short(packing) ? BY_SHORT_SCALES : BY_LONG_SCALES;
}

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

/* Makes the table of codes of FP8 whose outputs share their scale, which is not zero: the bfloat16 that each fraction
   stands for if no exponent is added, all lower bytes and then all upper ones. */
ALWAYS void make_table(float scale, uint8_t *table) {
    for (int fraction = 0; fraction < FRACTIONS; fraction++) {
        float number = (float)(FRACTIONS + fraction) * 0x1p-10f * scale;
        float rounded = number * POWER - number * (POWER - 1.0f);
        uint32_t bits;
        memcpy(&bits, &rounded, sizeof bits);
        table[fraction] = (uint8_t)(bits >> 16);
        table[FRACTIONS + fraction] = (uint8_t)(bits >> 24);
    }
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
        __m256 own = scale * _mm256_set1_ps(1.0f / times);
        store_twice(made->scale + vector * CODE_LANES, own * _mm256_set1_ps(is_short(packing) ? POWER : 1.0f));
        if (is_short(packing))
            store_twice(made->other + vector * CODE_LANES, own * _mm256_set1_ps(POWER - 1.0f));
    }
    made->fits = _mm256_movemask_ps(fit) == 0xff;
    if (way_of(codes, packing) == BY_TABLE) {
        float scale = *(const float *)scales;
        made->fits &= scale != 0.0f; /* powers of two are added to exponents, and zero has none */
        make_table(scale, made->table);
    }
}

/* Where the exponent of a code of FP8 is zero, which makes 2 * (1 + fraction), it stands for 4 * fraction. */
ALWAYS __m256 small_values(__m256 made) {
    const __m256 sign = _mm256_set1_ps(-0.0f), size = _mm256_andnot_ps(sign, made);
    __m256 less = _mm256_fmadd_ps(size, _mm256_set1_ps(2.0f), _mm256_set1_ps(-4.0f));
    return _mm256_or_ps(_mm256_min_ps(size, less), _mm256_and_ps(sign, made));
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
ALWAYS __m256 rounded(Codes codes, Way way, __m256 values, const float *scale, const float *other) {
    if (codes != FP4 && way == BY_SHORT_SCALES)
        return _mm256_fmsub_ps(values, _mm256_loadu_ps(scale), values * _mm256_loadu_ps(other));
    __m256 x = values * _mm256_loadu_ps(scale);
    return codes == FP4 ? x : _mm256_fmsub_ps(x, _mm256_set1_ps(POWER), x * _mm256_set1_ps(POWER - 1.0f));
}

/* The codes at `i`, 0 or 1, of those words. */
ALWAYS __m256i words_at(const uint32_t *words, int i) {
    return _mm256_loadu2_m128i((const __m128i *)(words + EIGHT + 4 * i), (const __m128i *)(words + 4 * i));
}

/* Whether any codes of FP8 in some vectors of words may be denormal. Few are in most matrices. */
ALWAYS int has_small_codes(Codes codes, const __m256i *words, int count) {
    __m256i least = _mm256_set1_epi8(0x78);
#pragma GCC unroll 4
    for (int i = 0; i < count; i++)
        least = _mm256_min_epu8(least, _mm256_and_si256(words[i], _mm256_set1_epi8(0x78)));
    return codes == FP8 && _mm256_movemask_epi8(_mm256_cmpeq_epi8(least, _mm256_setzero_si256())) != 0;
}

/* The numbers of 4 fields of 8 words, from `field` on, scaled by `group` from `at` on. All four are computed in step,
   as old CPUs look but a few operations ahead. */
ALWAYS void scaled_by(Codes codes, Way way, int has_small, int field, __m256i words, const Spread *group, int at,
                      __m256 made[AT_ONCE]) {
    __m256i late = _mm256_srli_epi32(words, LATE);
#pragma GCC unroll 4
    for (int i = 0; i < AT_ONCE; i++)
        made[i] = values_of(codes, field + i, has_small, words, late, group->zero + at + i * CODE_LANES);
#pragma GCC unroll 4
    for (int i = 0; i < AT_ONCE; i++)
        made[i] = rounded(codes, way, made[i], group->scale + at + i * CODE_LANES, group->other + at + i * CODE_LANES);
}

/* The numbers of the 4 codes of FP8 in each of 8 words, none of which is denormal: the number of a code's fraction, to
   whose sign and exponent those of the code are added. Two of them are made at once. */
ALWAYS void found_in_table(__m256i words, const Spread *group, __m256 made[AT_ONCE]) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)group->table));
    const __m256i first = _mm256_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13,
                                           0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13);
#pragma GCC unroll 2
    for (int i = 0; i < AT_ONCE; i += 2) {
        __m256i twice = _mm256_shuffle_epi8(words, i ? _mm256_add_epi8(first, _mm256_set1_epi8(2)) : first);
        __m256i place = _mm256_or_si256(_mm256_and_si256(twice, _mm256_set1_epi8(FRACTIONS - 1)),
                                        _mm256_set1_epi16(FRACTIONS << 8));
        __m256i power = _mm256_and_si256(_mm256_srai_epi16(twice, 4), _mm256_set1_epi16((short)0x8780));
        __m256i both = _mm256_add_epi16(_mm256_shuffle_epi8(table, place), power);
        made[i] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
        made[i + 1] = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000)));
    }
}

ALWAYS void numbers_of(Codes codes, Way way, int has_small, int field, __m256i words, const Spread *group, int at,
                       __m256 made[AT_ONCE]) {
    if (way == BY_TABLE && !has_small)
        found_in_table(words, group, made);
    else
        scaled_by(codes, way, has_small, field, words, group, at, made);
}

/* Unpacks the codes of one pair of inputs. */
ALWAYS void unpack_pair(Codes codes, Way way, const Spread *group, const uint32_t *words, float *even, float *odd) {
    const int fields = 32 / (int)code_bits(codes);
#pragma GCC unroll 2
    for (int word = 0; word < EIGHT / fields; word++, words += CODE_LANES) {
        const __m256i found[2] = {words_at(words, 0), words_at(words, 1)};
        const int has_small = has_small_codes(codes, found, 2);
#pragma GCC unroll 2
        for (int field = 0; field < fields; field += AT_ONCE) {
            const int vector = word * fields + field, at = vector * CODE_LANES;
            __m256 made[AT_ONCE], others[AT_ONCE];
            numbers_of(codes, way, has_small, field, found[0], group, at, made);
            numbers_of(codes, way, has_small, field, found[1], group, at + EIGHT, others);
#pragma GCC unroll 4
            for (int i = 0; i < AT_ONCE; i++) {
                _mm256_storeu_ps(even + (vector + i) * EIGHT, _mm256_shuffle_ps(made[i], others[i], 0x88));
                _mm256_storeu_ps(odd + (vector + i) * EIGHT, _mm256_shuffle_ps(made[i], others[i], 0xdd));
            }
        }
    }
}

ALWAYS void unpack_by(Codes codes, Way way, const Spread *group, const uint32_t *words, int64_t pairs, float *even,
                      float *odd) {
    for (; pairs > 0; pairs--, even += PANEL, odd += PANEL, words += 2 * PANEL * code_bits(codes) / 32)
        unpack_pair(codes, way, group, words, even, odd);
}

/* Unpacks the codes of some pairs of inputs. */
ALWAYS void unpack_pairs(Codes codes, const Packing *packing, const Spread *group, const uint32_t *words, int64_t pairs,
                         float *even, float *odd) {
    switch (way_of(codes, packing)) {
    case BY_SHORT_SCALES: unpack_by(codes, BY_SHORT_SCALES, group, words, pairs, even, odd); break;
    case BY_TABLE: unpack_by(codes, BY_TABLE, group, words, pairs, even, odd); break;
    default: unpack_by(codes, BY_LONG_SCALES, group, words, pairs, even, odd); break;
    }
}

/* Adds the products of `count` pairs of inputs to the sums of 4 fields of 8 words. */
ALWAYS void add_pairs(Codes codes, Way way, int has_small, int field, const __m256i *words, const Spread *group, int at,
                      const float *pairs, int count, __m256 kept[AT_ONCE]) {
#pragma GCC unroll 4
    for (int pair = 0; pair < count; pair++) {
        __m256 inputs = _mm256_castpd_ps(_mm256_broadcast_sd((const double *)pairs + pair)), made[AT_ONCE];
        numbers_of(codes, way, has_small, field, words[pair], group, at, made);
#pragma GCC unroll 4
        for (int i = 0; i < AT_ONCE; i++)
            kept[i] = _mm256_fmadd_ps(inputs, made[i], kept[i]);
    }
}

/* The sums of products of the 32 inputs in `pairs` for 4 fields of 8 words, from the `half`th vector of `words` on. */
ALWAYS void sum_up(Codes codes, Way way, int field, int half, const uint32_t *words, const Spread *group, int at,
                   const float *pairs, __m256 kept[AT_ONCE]) {
    const int count = codes == FP8 ? PAIRS : 1, pair_words = 2 * PANEL * (int)code_bits(codes) / 32;
#pragma GCC unroll 4
    for (int i = 0; i < AT_ONCE; i++)
        kept[i] = _mm256_setzero_ps();
    for (int pair = 0; pair < INPUTS / 2; pair += count, pairs += 2 * count) {
        __m256i found[PAIRS];
#pragma GCC unroll 4
        for (int i = 0; i < count; i++, words += pair_words)
            found[i] = words_at(words, half);
        if (has_small_codes(codes, found, count))
            add_pairs(codes, way, 1, field, found, group, at, pairs, count, kept);
        else
            add_pairs(codes, way, 0, field, found, group, at, pairs, count, kept);
    }
}

ALWAYS void add_by(Codes codes, Way way, const Spread *group, const uint32_t *words, const float *pairs, float *sums) {
    const int fields = 32 / (int)code_bits(codes);
#pragma GCC unroll 2
    for (int vector = 0; vector < EIGHT; vector += AT_ONCE) {
        const uint32_t *from = words + vector / fields * CODE_LANES;
        const int field = vector % fields, at = vector * CODE_LANES;
        __m256 first[AT_ONCE], second[AT_ONCE];
        sum_up(codes, way, field, 0, from, group, at, pairs, first);
        sum_up(codes, way, field, 1, from, group, at + EIGHT, pairs, second);
#pragma GCC unroll 4
        for (int i = 0; i < AT_ONCE; i++) {
            float *to = sums + (vector + i) * EIGHT;
            __m256 both = _mm256_shuffle_ps(first[i], second[i], 0x88) + _mm256_shuffle_ps(first[i], second[i], 0xdd);
            _mm256_storeu_ps(to, _mm256_loadu_ps(to) + both);
        }
    }
}

/* Adds the products of one row and 32 inputs of a panel that share a group to all 64 sums. The numbers stay in
   registers. */
ALWAYS void add_packed(Codes codes, const Packing *packing, const Spread *group, const uint32_t *words, const float *a,
                       float *sums) {
    float pairs[INPUTS];
    for (int pair = 0; pair < INPUTS / 2; pair++) {
        pairs[2 * pair] = a[pair];
        pairs[2 * pair + 1] = a[INPUTS / 2 + pair];
    }
    switch (way_of(codes, packing)) {
    case BY_SHORT_SCALES: add_by(codes, BY_SHORT_SCALES, group, words, pairs, sums); break;
    case BY_TABLE: add_by(codes, BY_TABLE, group, words, pairs, sums); break;
    default: add_by(codes, BY_LONG_SCALES, group, words, pairs, sums); break;
    }
}
