/* Unpacks codes by vectors of 8, on CPUs with AVX-512 too. Include this in unpack.h. */
#pragma once

#define EIGHT 8

/* Returns a number in all lanes. GCC would make it anew for each use if it knew its value. */
ALWAYS __m256i bits_everywhere(uint32_t value) {
    __m256i made = _mm256_set1_epi32((int)value);
    __asm__("" : "+x"(made));
    return made;
}

/* What does not change from code to code. */
typedef struct {
    __m256i mask, sign, exponent, smallest, one, half, nan, magnitudes;
} Fixed;

ALWAYS Fixed fixed_of(Codes codes) {
    const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    return (Fixed){.mask = bits_everywhere(codes == INT4 ? 15 : codes == INT8 ? 255 : 127),
                   .sign = bits_everywhere(1u << 31),
                   .exponent = bits_everywhere(120u << 23),
                   .smallest = bits_everywhere(121u << 23), /* 2^-6 */
                   .one = bits_everywhere(1),
                   .half = bits_everywhere(0x7fff),
                   .nan = bits_everywhere(0x7fc00000),
                   .magnitudes = _mm256_castps_si256(magnitudes)};
}

/* The values of 8 codes, each in a lane of `word` from bit `shift` on. Small numbers of fp8 are made of the smallest one
   that is not denormal, as float32 of the variant may have no denormal numbers. */
ALWAYS __m256 values_of(Codes codes, const Fixed *fixed, __m256i word, int shift, __m256 zero) {
    __m256i code = _mm256_srli_epi32(word, shift);
    if (codes == INT4 || codes == INT8)
        return _mm256_cvtepi32_ps(_mm256_and_si256(code, fixed->mask)) - zero;
    if (codes == FP4) {
        __m256 size = _mm256_permutevar8x32_ps(_mm256_castsi256_ps(fixed->magnitudes), code);
        __m256i sign = _mm256_and_si256(_mm256_slli_epi32(word, 28 - shift), fixed->sign);
        return _mm256_or_ps(size, _mm256_castsi256_ps(sign));
    }
    __m256i size = _mm256_slli_epi32(_mm256_and_si256(code, fixed->mask), 20);
    __m256 made = _mm256_castsi256_ps(_mm256_add_epi32(size, fixed->exponent));
    made += _mm256_min_ps(made - _mm256_castsi256_ps(fixed->smallest), _mm256_setzero_ps());
    __m256i sign = _mm256_and_si256(_mm256_slli_epi32(word, 24 - shift), fixed->sign);
    return _mm256_or_ps(made, _mm256_castsi256_ps(sign));
}

/* The bits of the nearest bfloat16, as `narrow` has them. */
ALWAYS __m256i narrow_bits(const Fixed *fixed, __m256 values) {
    __m256i bits = _mm256_castps_si256(values);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), fixed->one);
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, odd), fixed->half);
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, fixed->nan, is_nan), 16);
}

/* Unpacks the codes of one pair of inputs. */
ALWAYS void unpack_pair(Codes codes, const Fixed *fixed, const uint32_t *words, const CodeGroup *group, bf16 *to) {
    const int bits = (int)code_bits(codes), fields = 32 / bits;
#pragma GCC unroll 8
    for (int vector = 0; vector < FLOAT_VECTORS; vector++, to += CODE_LANES) {
        __m256i halves[2];
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const int lane = vector * CODE_LANES + half * EIGHT;
            const uint32_t *word = words + vector / fields * CODE_LANES + half * EIGHT;
            __m256 values = values_of(codes, fixed, _mm256_loadu_si256((const __m256i *)word),
                                      bits * (vector % fields), _mm256_loadu_ps(group->zero + lane));
            halves[half] = narrow_bits(fixed, values * _mm256_loadu_ps(group->scale + lane));
        }
        __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves[0], halves[1]), 0xd8);
        _mm256_storeu_si256((__m256i *)to, both);
    }
}
