/* Packed matrices: unpacks their panels, or multiplies few rows by them while they are unpacked in registers. */
#ifdef __x86_64__
#include "../panel.h"
#include "operations.h"
#include "vectors.h"

#include "piece.h"

#include "codes.h"

#define FLOAT_VECTORS 8 /* of 16 floats: the codes of a pair of inputs for the 64 outputs of a panel */

/* How codes become numbers. An integer code becomes the float 2^k + code when its bits are put among those of 2^k.
   Where scales have at most 11 bits, all of (2^k + code) * scale - (2^k + zero) * scale is exact before it is rounded,
   so one multiply-add makes the product that a subtraction and a multiplication make of other scales. INT8_MIDDLE is
   without zeros: this is exact of smaller places as well, so that two vectors share words that were moved. FP8_SMALL is
   the way of codes of which some may be denormal in FP8. */
typedef enum { INT4_SHORT, INT4_LONG, INT8_SHORT, INT8_MIDDLE, INT8_LONG, FP8_CODES, FP4_CODES, FP8_SMALL } Way;

/* The place of a code in a float, and 2^k there. */
#define LOW_PLACE 12
#define HIGH_PLACE 16
#define LOW_POWER 2048.0f
#define HIGH_POWER 128.0f
#define MIDDLE_PLACES(vector) ((vector) % 2 ? 15 : 7)
#define MIDDLE_POWER(vector) ((vector) % 2 ? 256.0f : 65536.0f)

/* What the codes of a group are multiplied by, and what is added, or subtracted before; for both inputs of a pair. */
typedef struct {
    __m512 scale[FLOAT_VECTORS], shift[FLOAT_VECTORS];
} CodeGroup;

static Way way_of(const Packing *packing) {
    int is_long = has_long_scales(packing);
    return packing->codes == FP8    ? FP8_CODES
           : packing->codes == FP4  ? FP4_CODES
           : packing->codes == INT4 ? (is_long ? INT4_LONG : INT4_SHORT)
           : is_long                  ? INT8_LONG
           : packing->zeros           ? INT8_SHORT
                                      : INT8_MIDDLE;
}

/* Whether the codes of this vector go to the higher one of two places. */
ALWAYS_INLINE int is_high(Way way, int vector) {
    return (way == INT4_SHORT || way == INT4_LONG) && (vector == 0 || vector == 2 || vector == 4 || vector == 6);
}

/* The place of this vector's codes in a float, and 2^k there. */
ALWAYS_INLINE int place_of(Way way, int vector) {
    return way == INT8_MIDDLE ? MIDDLE_PLACES(vector) : is_high(way, vector) ? HIGH_PLACE : LOW_PLACE;
}
ALWAYS_INLINE float power_of(Way way, int vector) {
    return way == INT8_MIDDLE ? MIDDLE_POWER(vector) : is_high(way, vector) ? HIGH_POWER : LOW_POWER;
}

ALWAYS_INLINE __m512 twice(__m256 eight) {
    const __m512i pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(pairs, _mm512_castps256_ps512(eight));
}

ALWAYS_INLINE void read_group(Way way, const Packing *packing, const char *panel, const PackedBytes *bytes,
                              int64_t number, CodeGroup *group) {
    const char *scales = panel + number * scales_size(packing);
    const uint8_t *zeros = (const uint8_t *)panel + bytes->zeros + number * PANEL;
    const __m512 middle = _mm512_set1_ps(way <= INT4_LONG ? 8.0f : 128.0f);
#pragma GCC unroll 8
    for (int vector = 0; vector < FLOAT_VECTORS; vector++) {
        __m512 scale = twice(eight_scales(packing->scales, scales, 8 * vector)), zero = middle;
        if (way == FP8_CODES || way == FP4_CODES) {
            group->scale[vector] = way == FP4_CODES ? scale : _mm512_mul_ps(scale, _mm512_set1_ps(0x1p-8f));
            continue;
        }
        if (packing->zeros) {
            __m128i eight = _mm_loadl_epi64((const __m128i *)(zeros + 8 * vector));
            zero = twice(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight)));
        }
        __m512 all = _mm512_add_ps(zero, _mm512_set1_ps(power_of(way, vector)));
        group->scale[vector] = scale;
        group->shift[vector] = way == INT4_LONG || way == INT8_LONG
                                   ? all
                                   : _mm512_mul_ps(_mm512_sub_ps(_mm512_setzero_ps(), all), scale);
    }
}

/* The words with the code of this vector moved to its place. Some vectors share them. */
ALWAYS_INLINE __m512i placed(Way way, __m512i words, int vector) {
    if (way == INT4_SHORT || way == INT4_LONG)
        switch (vector) {
        case 0: return _mm512_rol_epi32(words, 16); /* 0 to 16, and 28 to 12 */
        case 7: return _mm512_rol_epi32(words, 16);
        case 1: return _mm512_slli_epi32(words, 8); /* 4 to 12, and 8 to 16 */
        case 2: return _mm512_slli_epi32(words, 8);
        case 5: return _mm512_srli_epi32(words, 8); /* 20 to 12, and 24 to 16 */
        case 6: return _mm512_srli_epi32(words, 8);
        default: return words; /* 12 and 16 */
        }
    if (way == FP8_CODES || way == FP8_SMALL) /* to the sign, the lowest bits of the exponent, and the fraction */
        return _mm512_srai_epi32(_mm512_slli_epi32(words, 24 - 8 * (vector % 4)), 4);
    if (way == INT8_MIDDLE) /* 0 or 16 to 7, and 8 or 24 to 15 */
        return vector % 4 < 2 ? _mm512_slli_epi32(words, 7) : _mm512_srli_epi32(words, 9);
    switch (vector % 4) {
    case 0: return _mm512_slli_epi32(words, 12);
    case 1: return _mm512_slli_epi32(words, 4);
    case 2: return _mm512_srli_epi32(words, 4);
    default: return _mm512_srli_epi32(words, 12);
    }
}

/* The numbers of 16 codes, in float32. */
ALWAYS_INLINE __m512 numbers_of(Way way, __m512i words, const CodeGroup *group, int vector) {
    if (way == FP4_CODES) { /* the lowest four bits say which one */
        const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f,
                                             -2.0f, -3.0f, -4.0f, -6.0f);
        __m512 value = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4 * vector), values);
        return _mm512_mul_ps(value, group->scale[vector]);
    }
    __m512i moved = placed(way, words, vector);
    if (way == FP8_CODES || way == FP8_SMALL) { /* these are too large by 2^8 */
        const __m512i mask = _mm512_set1_epi32((int)0x87f00000), two = _mm512_castps_si512(_mm512_set1_ps(2.0f));
        __m512 made = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(moved, mask, two, 0xea)); /* (moved & mask) | two */
        return _mm512_mul_ps(way == FP8_SMALL ? denormalized(made) : made, group->scale[vector]);
    }
    __m512i mask = _mm512_set1_epi32((way <= INT4_LONG ? 15 : 255) << place_of(way, vector));
    __m512i power = _mm512_castps_si512(_mm512_set1_ps(power_of(way, vector)));
    __m512 made = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(moved, mask, power, 0xea)); /* (moved & mask) | power */
    if (way == INT4_LONG || way == INT8_LONG)
        return _mm512_mul_ps(_mm512_sub_ps(made, group->shift[vector]), group->scale[vector]);
    return _mm512_fmadd_ps(made, group->scale[vector], group->shift[vector]);
}

ALWAYS_INLINE int is_short_code(Way way) { return way <= INT4_LONG || way == FP4_CODES; }

/* Vector `v` of a pair of inputs: 16 outputs, with the two inputs of each beside each other. */
ALWAYS_INLINE __m512bh unpacked_vector(Way way, const uint32_t *words, const CodeGroup *group, int v) {
    int fields = is_short_code(way) ? 8 : 4;
    __m512i own = _mm512_loadu_si512(words + 2 * v / fields * FLOATS);
    return _mm512_cvtne2ps_pbh(numbers_of(way, own, group, 2 * v + 1), numbers_of(way, own, group, 2 * v));
}

/* All vectors of a pair of inputs. */
ALWAYS_INLINE void unpack_pair(Way way, const uint32_t *words, const CodeGroup *group, __m512bh column[VECTORS]) {
    if (way == FP8_CODES && has_small(_mm512_loadu_si512(words), _mm512_loadu_si512(words + FLOATS))) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            column[v] = unpacked_vector(FP8_SMALL, words, group, v);
        return;
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++)
        column[v] = unpacked_vector(way, words, group, v);
}

ALWAYS_INLINE int words_of(Way way) { return 2 * PANEL / (is_short_code(way) ? 8 : 4); }

#include "packed_loops.h"

UNPACK(INT4_SHORT)
UNPACK(INT4_LONG)
UNPACK(INT8_SHORT)
UNPACK(INT8_MIDDLE)
UNPACK(INT8_LONG)
UNPACK(FP8_CODES)
UNPACK(FP4_CODES)

static Unpack *const unpack_ways[] = {unpack_INT4_SHORT, unpack_INT4_LONG, unpack_INT8_SHORT, unpack_INT8_MIDDLE,
                                      unpack_INT8_LONG,  unpack_FP8_CODES, unpack_FP4_CODES};

void begin_unpacking(const Packing *packing, const void *panel, int64_t in, PackedPanel *made) {
    made->packing = packing;
    made->panel = panel;
    made->ahead = made->panel + (code_bits(packing->codes) == 4 ? 6144 : 3072); /* the best on a CPU with AMX */
    made->bytes = packed_bytes(packing, in);
    made->words = (const uint32_t *)(made->panel + made->bytes.codes);
    made->in = in;
    made->group = made->left = 0;
    made->unpack = has_tables(packing) ? unpack_by_tables : unpack_ways[way_of(packing)];
}

MULTIPLY_FEW(INT4_SHORT)
MULTIPLY_FEW(INT4_LONG)
MULTIPLY_FEW(INT8_SHORT)
MULTIPLY_FEW(INT8_MIDDLE)
MULTIPLY_FEW(INT8_LONG)
MULTIPLY_FEW(FP8_CODES)
MULTIPLY_FEW(FP4_CODES)

static Multiply *const few[][FEW_ROWS] = {NAMES(INT4_SHORT), NAMES(INT4_LONG), NAMES(INT8_SHORT), NAMES(INT8_MIDDLE),
                                          NAMES(INT8_LONG), NAMES(FP8_CODES), NAMES(FP4_CODES)};

void multiply_packed_panel(Means means, const Linear *linear, const Panel *panel, const Rows *rows, int64_t count) {
    if (means == FMA && multiply_packed_by_fma(linear, panel, rows, count))
        return;
    if (has_tables(panel->packing)) {
        multiply_by_tables(linear, panel, rows, count);
        return;
    }
    if (means == DOTS && multiply_by_scaled_dots(linear, panel, rows, count))
        return;
    Piece piece = {.linear = linear, .bias = panel->bias, .column = panel->column, .width = panel->width};
    few[way_of(panel->packing)][count - 1](&piece, panel->packing, panel->numbers, rows);
}

#include "../end_target.h"
#endif
