/* Unpacks codes by vectors of 8. Include this in unpack_vectors.h.

   Each vector has the codes of 4 outputs, for both inputs of a pair: of outputs 0, 1, 4 and 5 of 8, or of 2, 3, 6 and 7.
   So the even ones of two vectors are those of 8 outputs in order, and so are the odd ones. */
#pragma once

#define EIGHT 8

/* Makes a group ready for unpack_pairs. It does not fit where its scales are so large or small that products, or what rounds
   them, may be infinite or denormal. */
static void spread_group(Codes codes, Unpacking *from, int64_t number, Spread *made) {
    const CodeGroup *group = &from->read;
    read_group(from->packing, from->panel, &from->bytes, number, &from->read);
    made->fits = 0;
    const int fields = 32 / (int)code_bits(codes);
    for (int i = 0; i < 2 * PANEL; i++) {
        float size = __builtin_fabsf(group->scale[i]);
        if (size != 0.0f && !(size > 0x1p-80f && size < 0x1p80f))
            return;
    }
    for (int i = 0; i < 2 * PANEL; i++) {
        int vector = i / CODE_LANES, lane = i % CODE_LANES;
        int from = vector * CODE_LANES + lane % 4 + lane / 4 % 2 * EIGHT + lane / EIGHT * 4;
        float times = codes == INT4 || codes == INT8 ? (float)(1 << place(codes, vector % fields)) : 1.0f;
        made->scale[i] = group->scale[from] / times;
        made->zero[i] = 0x1p23f + group->zero[from] * times;
    }
    made->fits = 1;
}

/* The values of field `field` of 8 words, not scaled; the same words moved by LATE bits are `late`. Small numbers of fp8
   are made of the smallest one that is not denormal, as float32 of the variant may have no denormal numbers. */
ALWAYS __m256 values_of(Codes codes, int field, __m256i words, __m256i late, const float *zero) {
    const int bits = (int)code_bits(codes);
    if (codes == INT4 || codes == INT8) {
        __m256i mask = _mm256_set1_epi32(((1 << bits) - 1) << place(codes, field));
        __m256i code = _mm256_and_si256(is_late(codes, field) ? late : words, mask);
        return _mm256_castsi256_ps(_mm256_or_si256(code, _mm256_set1_epi32(0x4b000000))) - _mm256_loadu_ps(zero);
    }
    __m256i above = _mm256_slli_epi32(words, 32 - bits * (field + 1));
    __m256i sign = _mm256_and_si256(above, _mm256_set1_epi32((int)0x80000000));
    __m256 size;
    if (codes == FP4) {
        const __m256 sizes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
        size = _mm256_permutevar8x32_ps(sizes, _mm256_srli_epi32(words, bits * field));
    } else {
        __m256i code = _mm256_and_si256(_mm256_srli_epi32(above, 4), _mm256_set1_epi32(127 << 20));
        size = _mm256_castsi256_ps(_mm256_add_epi32(code, _mm256_set1_epi32(120 << 23)));
        size = _mm256_min_ps(size, _mm256_fmsub_ps(size, _mm256_set1_ps(2.0f), _mm256_set1_ps(0x1p-6f)));
    }
    return _mm256_or_ps(size, _mm256_castsi256_ps(sign));
}

/* The codes at `i`, 0 or 1, of those words. */
ALWAYS __m256i words_at(const uint32_t *words, int i) {
    return _mm256_loadu2_m128i((const __m128i *)(words + EIGHT + 4 * i), (const __m128i *)(words + 4 * i));
}

/* The numbers of 4 fields of 8 words, from `field` on, scaled by `group` from `at` on. They are rounded to the nearest
   bfloat16 by numbers that are so much larger that the sums have no other bits. All four are computed in step, as old
   CPUs look but a few operations ahead. */
ALWAYS void numbers_of(Codes codes, int field, __m256i words, __m256i late, const Spread *group, int at, __m256 made[4]) {
    __m256 large[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        made[i] = values_of(codes, field + i, words, late, group->zero + at + i * CODE_LANES);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        made[i] *= _mm256_loadu_ps(group->scale + at + i * CODE_LANES);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256i exponent = _mm256_and_si256(_mm256_castps_si256(made[i]), _mm256_set1_epi32(0x7f800000));
        large[i] = _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(16 << 23 | 1 << 22)));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        made[i] += large[i];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        made[i] -= large[i];
}

/* Unpacks the codes of one pair of inputs. */
ALWAYS void unpack_pair(Codes codes, const Spread *group, const uint32_t *words, float *even, float *odd) {
    const int fields = 32 / (int)code_bits(codes);
#pragma GCC unroll 2
    for (int word = 0; word < EIGHT / fields; word++, words += CODE_LANES) {
        __m256i first = words_at(words, 0), second = words_at(words, 1);
        __m256i late_first = _mm256_srli_epi32(first, LATE(codes)), late_second = _mm256_srli_epi32(second, LATE(codes));
#pragma GCC unroll 2
        for (int field = 0; field < fields; field += 4) {
            const int vector = word * fields + field, at = vector * CODE_LANES;
            __m256 made[4], others[4];
            numbers_of(codes, field, first, late_first, group, at, made);
            numbers_of(codes, field, second, late_second, group, at + EIGHT, others);
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
                __m256i late = _mm256_srli_epi32(found, LATE(codes));
                __m256 inputs = _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(pairs + 2 * pair)));
#pragma GCC unroll 2
                for (int field = 0; field < fields; field += 4) {
                    __m256 numbers[4];
                    numbers_of(codes, field, found, late, group, (word * fields + field) * CODE_LANES + i * EIGHT, numbers);
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
