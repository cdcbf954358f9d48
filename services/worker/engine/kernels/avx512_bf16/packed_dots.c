/* Packed panels whose scales are bfloat16: codes become small numbers of bfloat16 first, and a dot product with a scale
   and zero makes the product of each. That takes fewer instructions than in float32. */
#ifdef __x86_64__
#include "../panel.h"
#include "operations.h"
#include "vectors.h"

#include "piece.h"

#include "codes.h"

#define FLOAT_VECTORS 8 /* of 16 floats: the codes of a pair of inputs for the 64 outputs of a panel */

typedef enum { INT4_DOTS, FP4_DOTS, FP8_DOTS } Way;

/* The scales of a group, in the half of each lane where the numbers of a vector are. The other half is zero. */
typedef struct {
    __m512i scale[FLOAT_VECTORS];
} CodeGroup;

/* Whether the numbers of a vector are in the lower halves of lanes. */
ALWAYS_INLINE int is_low(Way way, int vector) { return way == FP8_DOTS ? vector % 4 < 2 : vector < 4; }

/* Eight scales in the upper halves of lanes, each twice. */
ALWAYS_INLINE __m512i scales_of(Way way, const char *from, int at) {
    const __m512i pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m256i eight = _mm256_castps_si256(eight_scales(way == FP4_DOTS ? SCALES_E8M0 : SCALES_BFLOAT16, from, at));
    if (way == FP8_DOTS) /* of numbers that are too large by 2^8 */
        eight = (__m256i)_mm256_mul_ps((__m256)eight, _mm256_set1_ps(0x1p-8f));
    return _mm512_permutexvar_epi32(pairs, _mm512_castsi256_si512(eight));
}

ALWAYS_INLINE void read_group(Way way, const Packing *packing, const char *panel, const PackedBytes *bytes,
                              int64_t number, CodeGroup *group) {
    const char *scales = panel + number * scales_size(packing);
    (void)bytes;
#pragma GCC unroll 8
    for (int vector = 0; vector < FLOAT_VECTORS; vector++) {
        __m512i scale = scales_of(way, scales, 8 * vector);
        group->scale[vector] = is_low(way, vector) ? _mm512_srli_epi32(scale, 16) : scale;
    }
}

/* The number of each code of four bits, twice, as a fifth bit does not count. */
ALWAYS_INLINE __m512i numbers_of_codes(Way way) {
    const __m256i integers = _mm256_setr_epi16((short)0xc100, (short)0xc0e0, (short)0xc0c0, (short)0xc0a0,
                                               (short)0xc080, (short)0xc040, (short)0xc000, (short)0xbf80, 0, 0x3f80,
                                               0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0);
    const __m256i floats = _mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, (short)0x8000,
                                             (short)0xbf00, (short)0xbf80, (short)0xbfc0, (short)0xc000, (short)0xc040,
                                             (short)0xc080, (short)0xc0c0);
    return _mm512_broadcast_i64x4(way == INT4_DOTS ? integers : floats);
}

/* Codes of FP8 in the upper byte of each half of a lane as numbers that are too large by 2^8: the sign, the lowest bits
   of the exponent beside that of 2, and the fraction. */
ALWAYS_INLINE __m512i fp8_halves(__m512i codes) {
    return _mm512_ternarylogic_epi32(_mm512_srai_epi16(codes, 4), _mm512_set1_epi16((short)0x87f0),
                                     _mm512_set1_epi16(0x4000), 0xea); /* (shifted & mask) | two */
}

ALWAYS_INLINE __m512 product(__m512i numbers, __m512i scale) {
    return _mm512_dpbf16_ps(_mm512_setzero_ps(), (__m512bh)numbers, (__m512bh)scale);
}

/* The same of codes of FP8 some of which may be denormal. */
ALWAYS_INLINE __m512 small_product(__m512i numbers, __m512i scale, int low) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512 own = _mm512_castsi512_ps(low ? _mm512_slli_epi32(numbers, 16) : _mm512_and_si512(numbers, upper));
    return _mm512_mul_ps(denormalized(own), _mm512_castsi512_ps(low ? _mm512_slli_epi32(scale, 16) : scale));
}

ALWAYS_INLINE void unpack_bytes(int small, const uint32_t *words, const CodeGroup *group, __m512 made[FLOAT_VECTORS]) {
#pragma GCC unroll 8
    for (int v = 0; v < FLOAT_VECTORS; v++) {
        __m512i codes = _mm512_loadu_si512(words + v / 4 * FLOATS);
        __m512i numbers = fp8_halves(v % 2 ? codes : _mm512_slli_epi16(codes, 8));
        made[v] = small ? small_product(numbers, group->scale[v], is_low(FP8_DOTS, v))
                        : product(numbers, group->scale[v]);
    }
}

ALWAYS_INLINE void unpack_nibbles(Way way, const uint32_t *words, const CodeGroup *group,
                                  __m512 made[FLOAT_VECTORS]) {
    __m512i codes = _mm512_loadu_si512(words);
#pragma GCC unroll 4
    for (int v = 0; v < FLOAT_VECTORS / 2; v++) {
        __m512i numbers = _mm512_permutexvar_epi16(_mm512_srli_epi32(codes, 4 * v), numbers_of_codes(way));
        made[v] = product(numbers, group->scale[v]);
        made[v + 4] = product(numbers, group->scale[v + 4]);
    }
}

/* All vectors of a pair of inputs. */
ALWAYS_INLINE void unpack_pair(Way way, const uint32_t *words, const CodeGroup *group, __m512bh column[VECTORS]) {
    __m512 made[FLOAT_VECTORS];
    if (way != FP8_DOTS)
        unpack_nibbles(way, words, group, made);
    else if (has_small(_mm512_loadu_si512(words), _mm512_loadu_si512(words + FLOATS)))
        unpack_bytes(1, words, group, made);
    else
        unpack_bytes(0, words, group, made);
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++)
        column[v] = _mm512_cvtne2ps_pbh(made[2 * v + 1], made[2 * v]);
}

ALWAYS_INLINE int words_of(Way way) { return 2 * PANEL / (way == FP8_DOTS ? 4 : 8); }

#include "packed_loops.h"

/* Whether all of `count` scales are zero or within 2^-100 .. 2^100: then nothing is denormal or infinite. */
static int are_usual(const Packing *packing, const char *scales, int64_t count) {
    __mmask16 outside = 0;
    for (int64_t i = 0; i < count; i += FLOATS / 2) {
        __m256i bits = _mm256_castps_si256(eight_scales(packing->scales, scales, (int)i));
        __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
        __m256i above = _mm256_sub_epi32(magnitude, _mm256_set1_epi32(27 << 23));
        outside |= _mm256_mask_test_epi32_mask(_mm256_cmpgt_epu32_mask(above, _mm256_set1_epi32(200 << 23)), magnitude,
                                               magnitude);
    }
    return !outside;
}

MULTIPLY_FEW(INT4_DOTS)
MULTIPLY_FEW(FP4_DOTS)
MULTIPLY_FEW(FP8_DOTS)

static Multiply *const few[][FEW_ROWS] = {NAMES(INT4_DOTS), NAMES(FP4_DOTS), NAMES(FP8_DOTS)};

int multiply_by_scaled_dots(const Linear *linear, const Panel *panel, const Rows *rows, int64_t count) {
    const Packing *packing = panel->packing;
    int64_t groups = (linear->in + packing->group - 1) / packing->group;
    int is_short = packing->scales == SCALES_BFLOAT16 && packing->codes != INT8 && !packing->zeros;
    Piece piece = {.linear = linear, .bias = panel->bias, .column = panel->column, .width = panel->width};
    if (packing->codes == FP4 ? packing->scales != SCALES_E8M0 : !is_short)
        return 0;
    if (!are_usual(packing, panel->numbers, groups * PANEL))
        return 0;
    Way way = packing->codes == FP4 ? FP4_DOTS : packing->codes == FP8 ? FP8_DOTS : INT4_DOTS;
    few[way][count - 1](&piece, packing, panel->numbers, rows);
    return 1;
}

#include "../end_target.h"
#endif
