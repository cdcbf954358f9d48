/* Multiplies few rows by packed panels while they are unpacked in registers, by fused multiply-adds.

   Numbers are rounded to bfloat16 within float32: what 2^16 * x and (2^16 - 1) * x differ by is x to 8 bits, as the latter
   is rounded to 24. */
#ifdef __x86_64__
#define WITH_VBMI
#include "../panel.h"
#include "operations.h"
#include "vectors.h"

#include "piece.h"

#include "codes.h"

typedef enum { NIBBLES, BYTES, FP8_BYTES } Kind;

/* How numbers become products with their scale, rounded to bfloat16. SHORT: scales have 8 bits, so that 2^16 - 1 times a
   scale is exact, and the product itself need not be made. PLAIN: it is made first. With zeros, FUSED: all of
   (code - middle) * scale + (middle - zero) * scale is exact before it is rounded. LONG: scales have more than 11 bits,
   and zeros are taken away first. */
typedef enum { SHORT, PLAIN, FUSED, LONG } Form;

#define AHEAD 8192 /* bytes before they are used, a panel is prefetched */
#define FAR 24576  /* and so many more before, one of four lines of bytes: the CPU then reads the others as well */
#define EIGHT 8
#define SOURCES 2 /* vectors of bytes that hold the codes of a pair of inputs */

/* The scales of a group, and what is added after or before numbers are multiplied by them; if SHORT, 2^16 and 2^16 - 1
   times the scales. */
typedef struct {
    __m512 scale[VECTORS], other[VECTORS];
} CodeGroup;

/* Numbers are too large by this when they are multiplied. */
ALWAYS_INLINE float excess_of(Kind kind) { return kind == NIBBLES ? 0x1p28f : kind == BYTES ? 0x1p24f : 0x1p8f; }

/* The block of 8 outputs in half `half` of vector `v`. The codes of a source are in order, a word of four outputs of one
   input in each lane. Those of four bits are in two sources, of every other block. */
ALWAYS_INLINE int block_of(Kind kind, int v, int half) {
    int byte = 2 * (v % 2) + half;
    return kind == NIBBLES ? 2 * byte + v / 2 : 4 * (v / 2) + byte;
}

ALWAYS_INLINE __m512 both_halves(__m256 low, __m256 high) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

/* Whether all scales are zero or within 2^-100 .. 2^100: then no number of float32 that is made on the way is denormal or
   infinite. */
ALWAYS_INLINE int is_usual(__m512 scale) {
    const __m512i least = _mm512_set1_epi32(27 << 23), range = _mm512_set1_epi32(200 << 23);
    __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(scale), _mm512_set1_epi32(0x7fffffff));
    __mmask16 outside = _mm512_cmpgt_epu32_mask(_mm512_sub_epi32(magnitude, least), range);
    return _mm512_mask_test_epi32_mask(outside, magnitude, magnitude) == 0;
}

ALWAYS_INLINE int read_group(Kind kind, Form form, const Packing *packing, const char *panel,
                             const PackedBytes *bytes, int64_t number, CodeGroup *group) {
    const char *scales = panel + number * scales_size(packing);
    const uint8_t *zeros = (const uint8_t *)panel + bytes->zeros + number * PANEL;
    const __m256 middle = _mm256_set1_ps(kind == NIBBLES ? 8.0f : 128.0f);
    const __m512 right = _mm512_set1_ps(1.0f / excess_of(kind));
    int usual = 1;
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        __m256 scales_of[2], shifts[2];
        for (int half = 0; half < 2; half++) {
            int at = EIGHT * block_of(kind, v, half);
            scales_of[half] = eight_scales(packing->scales, scales, at);
            __m128i eight = _mm_loadl_epi64((const __m128i *)(zeros + (packing->zeros ? at : 0)));
            shifts[half] = _mm256_sub_ps(middle, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight)));
        }
        __m512 scale = both_halves(scales_of[0], scales_of[1]), shift = both_halves(shifts[0], shifts[1]);
        __m512 own = _mm512_mul_ps(scale, right);
        usual &= is_usual(scale);
        group->scale[v] = form == SHORT ? _mm512_mul_ps(own, _mm512_set1_ps(65536.0f)) : form == LONG ? scale : own;
        group->other[v] = form == SHORT   ? _mm512_mul_ps(own, _mm512_set1_ps(65535.0f))
                          : form == FUSED ? _mm512_mul_ps(shift, scale)
                                          : shift;
    }
    return usual;
}

/* The codes of a pair of inputs, a byte each. Integers are less by their middle, and begin at the highest bit. */
ALWAYS_INLINE void read_codes(Kind kind, const uint32_t *words, __m512i sources[SOURCES]) {
    const __m512i middle = _mm512_set1_epi8((char)0x80), upper = _mm512_set1_epi8((char)0xf0);
    __m512i first = _mm512_loadu_si512(words);
    if (kind == NIBBLES) { /* (codes & upper) ^ middle */
        sources[0] = _mm512_ternarylogic_epi32(_mm512_slli_epi32(first, 4), upper, middle, 0x6a);
        sources[1] = _mm512_ternarylogic_epi32(first, upper, middle, 0x6a);
        return;
    }
    __m512i second = _mm512_loadu_si512(words + FLOATS);
    sources[0] = kind == BYTES ? _mm512_xor_si512(first, middle) : first;
    sources[1] = kind == BYTES ? _mm512_xor_si512(second, middle) : second;
}

/* For each lane, four times the number of the byte that has the code of its output and the first input, for the first
   vector of a source. */
ALWAYS_INLINE __m512i bytes_of_outputs(void) {
    const __m512i byte = _mm512_setr_epi32(0, 8, 16, 24, 32, 40, 48, 56, 1, 9, 17, 25, 33, 41, 49, 57);
    return _mm512_mullo_epi32(byte, _mm512_set1_epi32(0x01010101));
}

/* The numbers of 16 integer codes of one input. */
ALWAYS_INLINE __m512 integers(const __m512i sources[SOURCES], int v, int second) {
    __m512i from = _mm512_add_epi32(bytes_of_outputs(), _mm512_set1_epi32(0x01010101 * (2 * (v % 2) + 4 * second)));
    return _mm512_cvtepi32_ps(_mm512_maskz_permutexvar_epi8(0x8888888888888888, from, sources[v / 2]));
}

/* The codes of FP8 of 16 pairs as numbers of bfloat16, too large by 2^8: in each the sign, the lowest bits of the exponent
   beside that of 2, and the fraction. */
ALWAYS_INLINE __m512i fp8_pairs(const __m512i sources[SOURCES], int v) {
    __m512i from = _mm512_add_epi32(bytes_of_outputs(), _mm512_set1_epi32(0x01010101 * 2 * (v % 2) + 0x04040000));
    __m512i upper = _mm512_maskz_permutexvar_epi8(0xaaaaaaaaaaaaaaaa, from, sources[v / 2]);
    return _mm512_ternarylogic_epi32(_mm512_srai_epi16(upper, 4), _mm512_set1_epi16((int16_t)0x87f0),
                                     _mm512_set1_epi16(0x4000), 0xea); /* (shifted & mask) | two */
}

ALWAYS_INLINE __m512 fp8_numbers(__m512i pairs, int second, int is_small) {
    __m512 made = second ? second_of(pairs) : first_of(pairs);
    return is_small ? denormalized(made) : made;
}

/* The products of numbers and scales, rounded to bfloat16. */
ALWAYS_INLINE __m512 rounded_products(Kind kind, Form form, __m512 numbers, const CodeGroup *group, int v) {
    __m512 scale = group->scale[v], other = group->other[v];
    if (form == SHORT)
        return _mm512_fmsub_ps(numbers, scale, _mm512_mul_ps(numbers, other));
    if (form == LONG)
        numbers = _mm512_fmadd_ps(numbers, _mm512_set1_ps(1.0f / excess_of(kind)), other);
    __m512 x = form == FUSED ? _mm512_fmadd_ps(numbers, scale, other) : _mm512_mul_ps(numbers, scale);
    return _mm512_fmsub_ps(x, _mm512_set1_ps(65536.0f), _mm512_mul_ps(x, _mm512_set1_ps(65535.0f)));
}

/* Adds the products of a pair of inputs, the second one first. */
ALWAYS_INLINE void add_pair(Kind kind, Form form, int is_small, const __m512i sources[SOURCES], const CodeGroup *group,
                            const float *inputs, int64_t stride, __m512 kept[FEW_ROWS][VECTORS], int count) {
    __m512i pairs[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; kind == FP8_BYTES && v < VECTORS; v++)
        pairs[v] = fp8_pairs(sources, v);
#pragma GCC unroll 2
    for (int second = 1; second >= 0; second--)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            __m512 numbers = kind == FP8_BYTES ? fp8_numbers(pairs[v], second, is_small) : integers(sources, v, second);
            __m512 products = rounded_products(kind, form, numbers, group, v);
#pragma GCC unroll 4
            for (int row = 0; row < count; row++)
                kept[row][v] = _mm512_fmadd_ps(products, _mm512_set1_ps(inputs[row * stride + second]), kept[row][v]);
        }
}

/* Makes the sums of a span. Returns 0 if there are unusual scales. */
ALWAYS_INLINE int sum_packed_span(Kind kind, Form form, const Piece *piece, const Packing *packing,
                                  const char *panel, const Rows *rows, float *made, int count) {
    const int64_t words_of_pair = 2 * PANEL * (kind == NIBBLES ? 4 : 8) / 32;
    PackedBytes bytes = packed_bytes(packing, piece->linear->in);
    const uint32_t *words = (const uint32_t *)(panel + bytes.codes) + piece->first / 2 * words_of_pair;
    int64_t stride = padded(piece->linear->in, 2), number = piece->first / packing->group, usual = 1;
    int64_t lines = group_lines(packing);
    const char *ahead = panel + AHEAD + padded(piece->first, packing->group) / packing->group * lines * 64 +
                        piece->first / 2 * words_of_pair * 4;
    __m512 kept[FEW_ROWS][VECTORS];
#pragma GCC unroll 4
    for (int row = 0; row < count; row++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            kept[row][v] = _mm512_setzero_ps();
    for (int64_t i = piece->first; i < piece->stop; number++) {
        CodeGroup group;
        int64_t end = (number + 1) * packing->group, stop = end < piece->stop ? end : piece->stop;
        usual &= read_group(kind, form, packing, panel, &bytes, number, &group);
        ahead = prefetch(ahead, i % packing->group ? 0 : lines);
        for (; i < stop; i += 2, words += words_of_pair) {
            __m512i sources[SOURCES];
            const float *inputs = rows->floats + i;
            read_codes(kind, words, sources);
            ahead = prefetch(ahead, words_of_pair / FLOATS);
            if (kind != NIBBLES && i % 4 == 0)
                _mm_prefetch(ahead + FAR, _MM_HINT_T2);
            if (kind == FP8_BYTES && has_small(sources[0], sources[1]))
                add_pair(kind, form, 1, sources, &group, inputs, stride, kept, count);
            else
                add_pair(kind, form, 0, sources, &group, inputs, stride, kept, count);
        }
    }
#pragma GCC unroll 4
    for (int row = 0; row < count; row++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            float *to = made + row * COLUMNS;
            _mm256_store_ps(to + EIGHT * block_of(kind, v, 0), _mm512_castps512_ps256(kept[row][v]));
            _mm256_store_ps(to + EIGHT * block_of(kind, v, 1), _mm512_extractf32x8_ps(kept[row][v], 1));
        }
    return (int)usual;
}

/* A function for each way and number of rows, so that registers are assigned well. */
typedef int SumPacked(const Piece *piece, const Packing *packing, const char *panel, const Rows *rows, float *made);

#define SUM(name, kind, form, count)                                                                               \
    static __attribute__((noinline)) int name##_##count(const Piece *piece, const Packing *packing, const char *panel, \
                                                        const Rows *rows, float *made) {                               \
        return sum_packed_span(kind, form, piece, packing, panel, rows, made, count);                              \
    }
#define SUMS(name, kind, form)                                                                                     \
    SUM(name, kind, form, 1) SUM(name, kind, form, 2) SUM(name, kind, form, 3) SUM(name, kind, form, 4) \
    static SumPacked *const name[FEW_ROWS] = {name##_1, name##_2, name##_3, name##_4};

SUMS(short_nibbles, NIBBLES, SHORT)
SUMS(plain_nibbles, NIBBLES, PLAIN)
SUMS(fused_nibbles, NIBBLES, FUSED)
SUMS(long_nibbles, NIBBLES, LONG)
SUMS(short_bytes, BYTES, SHORT)
SUMS(plain_bytes, BYTES, PLAIN)
SUMS(fused_bytes, BYTES, FUSED)
SUMS(long_bytes, BYTES, LONG)
SUMS(short_fp8, FP8_BYTES, SHORT)
SUMS(plain_fp8, FP8_BYTES, PLAIN)

static SumPacked *const *const sums_of_integers[][4] = {
    [NIBBLES] = {[SHORT] = short_nibbles, [PLAIN] = plain_nibbles, [FUSED] = fused_nibbles, [LONG] = long_nibbles},
    [BYTES] = {[SHORT] = short_bytes, [PLAIN] = plain_bytes, [FUSED] = fused_bytes, [LONG] = long_bytes},
};

static SumPacked *const *sums_of(const Packing *packing) {
    int is_long = has_long_scales(packing), is_short = packing->scales == SCALES_BFLOAT16;
    if (packing->codes == FP4)
        return NULL;
    if (packing->codes == FP8)
        return is_short ? short_fp8 : plain_fp8;
    Form form = packing->zeros ? (is_long ? LONG : FUSED) : is_short ? SHORT : PLAIN;
    return sums_of_integers[packing->codes == INT4 ? NIBBLES : BYTES][form];
}

int multiply_packed_by_fma(const Linear *linear, const Panel *panel, const Rows *rows, int64_t count) {
    SumPacked *const *sum = sums_of(panel->packing);
    int64_t span = span_of(linear->in);
    Piece piece = {.linear = linear, .bias = panel->bias, .column = panel->column, .width = panel->width};
    for (; sum && piece.first < linear->in; piece.first = piece.stop) {
        _Alignas(64) float made[FEW_ROWS * COLUMNS];
        piece.stop = linear->in - piece.first < span ? linear->in : piece.first + span;
        uint32_t before = begin_sums(FMA);
        int is_usual = sum[count - 1](&piece, panel->packing, panel->numbers, rows, made);
        _mm_setcsr(before);
        if (!is_usual)
            return 0;
        add_span(&piece, rows, made, count);
    }
    return sum != NULL;
}

#include "../end_target.h"
#endif
