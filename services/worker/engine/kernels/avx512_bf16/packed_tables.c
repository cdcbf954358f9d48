/* Panels of FP8 whose outputs share their scales: all numbers of a group are found in a table of what each code stands
   for, which takes a third of the time of computing them. */
#ifdef __x86_64__
#define WITH_VBMI
#include "../panel.h"
#include "operations.h"
#include "vectors.h"

#include "piece.h"

#include "codes.h"

#define CODES 128 /* without their sign */
#define TABLE_VECTORS 2 /* of bytes: what a code without its sign stands for */

typedef enum { TABLES } Way;

/* The bfloat16 that each code without its sign stands for in a group: the lower bytes, and the upper ones. */
typedef struct {
    __m512i lower[TABLE_VECTORS], upper[TABLE_VECTORS];
} CodeGroup;

/* The numbers of 16 codes without their sign, from `first` on. */
ALWAYS_INLINE __m512 values_from(int first) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i code = _mm512_add_epi32(lane, _mm512_set1_epi32(first));
    __m512i bits = _mm512_add_epi32(_mm512_slli_epi32(code, 20), _mm512_set1_epi32(120 << 23));
    __m512 small = _mm512_mul_ps(_mm512_cvtepi32_ps(code), _mm512_set1_ps(0x1p-9f));
    return _mm512_mask_mov_ps(_mm512_castsi512_ps(bits), _mm512_cmplt_epi32_mask(code, _mm512_set1_epi32(8)), small);
}

ALWAYS_INLINE __m512i both_halves(__m256i low, __m256i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

ALWAYS_INLINE void read_group(Way way, const Packing *packing, const char *panel, const PackedBytes *bytes,
                              int64_t number, CodeGroup *group) {
    (void)way, (void)bytes;
    __m512 scale = _mm512_set1_ps(*(const float *)(panel + number * scales_size(packing)));
#pragma GCC unroll 2
    for (int i = 0; i < TABLE_VECTORS; i++) {
        __m512i halves[2];
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            int first = i * CODES / 2 + half * HALVES;
            __m512 low = _mm512_mul_ps(values_from(first), scale);
            __m512 high = _mm512_mul_ps(values_from(first + FLOATS), scale);
            halves[half] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        }
        group->lower[i] = both_halves(_mm512_cvtepi16_epi8(halves[0]), _mm512_cvtepi16_epi8(halves[1]));
        group->upper[i] = both_halves(_mm512_cvtepi16_epi8(_mm512_srli_epi16(halves[0], 8)),
                                      _mm512_cvtepi16_epi8(_mm512_srli_epi16(halves[1], 8)));
    }
}

/* For each lane of 16 bytes the bytes of 16 words of codes that two vectors of numbers have there: eight of the first
   vector, then eight of the second. */
ALWAYS_INLINE __m512i bytes_of_lanes(void) {
    const __m512i words = _mm512_setr_epi64(0x1c1814100c080400, 0x1e1a16120e0a0602, 0x3c3834302c282420,
                                            0x3e3a36322e2a2622, 0x1d1915110d090501, 0x1f1b17130f0b0703,
                                            0x3d3935312d292521, 0x3f3b37332f2b2723);
    return words;
}

/* All vectors of a pair of inputs. */
ALWAYS_INLINE void unpack_pair(Way way, const uint32_t *words, const CodeGroup *group, __m512bh column[VECTORS]) {
    (void)way;
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v += 2, words += FLOATS) {
        __m512i codes = _mm512_permutexvar_epi8(bytes_of_lanes(), _mm512_loadu_si512(words));
        __m512i lower = _mm512_permutex2var_epi8(group->lower[0], codes, group->lower[1]);
        __m512i upper = _mm512_permutex2var_epi8(group->upper[0], codes, group->upper[1]);
        upper = _mm512_ternarylogic_epi32(upper, codes, _mm512_set1_epi8((char)0x80), 0x78); /* upper ^ (codes & sign) */
        column[v] = (__m512bh)_mm512_unpacklo_epi8(lower, upper);
        column[v + 1] = (__m512bh)_mm512_unpackhi_epi8(lower, upper);
    }
}

ALWAYS_INLINE int words_of(Way way) {
    (void)way;
    return 2 * PANEL / 4;
}

#include "packed_loops.h"

int has_tables(const Packing *packing) {
    return packing->codes == FP8 && packing->scales == SCALES_PANEL && __builtin_cpu_supports("avx512vbmi");
}

void unpack_by_tables(PackedPanel *from, int64_t pairs, bf16 *to) { unpack(TABLES, from, pairs, to); }

MULTIPLY_FEW(TABLES)

static Multiply *const few[FEW_ROWS] = NAMES(TABLES);

void multiply_by_tables(const Linear *linear, const Panel *panel, const Rows *rows, int64_t count) {
    Piece piece = {.linear = linear, .bias = panel->bias, .column = panel->column, .width = panel->width};
    few[count - 1](&piece, panel->packing, panel->numbers, rows);
}

#include "../end_target.h"
#endif
