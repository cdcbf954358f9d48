/* A matrix times few rows: as fast as the matrix comes from memory. It lies as oneDNN lays it out, and each sum is taken
   in oneDNN's order, so that both give the same bits. */
#include "avx512.h"

#define COLUMNS 64 /* that lie together: [64 columns, pair of inputs, column, of the pair] */
#define VECTORS 4
#define MOST_ROWS 6 /* whose sums for 64 columns are kept in registers */
#define AHEAD 2048  /* bytes that are asked for before they are needed */

/* `sums` of inputs `first` .. `stop`, one pair after the other. */
static inline __attribute__((always_inline)) void multiply(const bf16 *rows, const bf16 *matrix, int64_t in,
                                                           int64_t first, int64_t stop, int count,
                                                           __m512 sums[MOST_ROWS][VECTORS]) {
    for (int row = 0; row < count; row++)
        for (int v = 0; v < VECTORS; v++)
            sums[row][v] = _mm512_setzero_ps();
    for (int64_t i = first; i < stop; i += 2) {
        __m512bh column[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
            column[v] = (__m512bh)_mm512_loadu_si512(matrix + i * COLUMNS + v * HALVES);
            _mm_prefetch((const char *)(matrix + i * COLUMNS + v * HALVES) + AHEAD, _MM_HINT_T0);
        }
        for (int row = 0; row < count; row++) {
            /* Of an odd number of inputs the last has no neighbour. */
            __m512bh both = i + 1 < in ? pair_everywhere(rows + row * in + i)
                                       : (__m512bh)_mm512_set1_epi32(rows[row * in + i]);
            for (int v = 0; v < VECTORS; v++)
                sums[row][v] = _mm512_dpbf16_ps(sums[row][v], column[v], both);
        }
    }
}

static inline __attribute__((always_inline)) void block(const Linear *linear, const bf16 *rows, const bf16 *residual,
                                                        bf16 *out, int64_t first, int count) {
    __m512 sums[MOST_ROWS][VECTORS], more[MOST_ROWS][VECTORS];
    int64_t in = linear->in, span = linear->span, padded = (in + HALVES - 1) / HALVES * HALVES;
    const bf16 *matrix = linear->matrix + first * padded;
    multiply(rows, matrix, in, 0, span < in ? span : in, count, sums);
    for (int64_t begin = span; begin < in; begin += span) {
        multiply(rows, matrix, in, begin, begin + span < in ? begin + span : in, count, more);
        for (int row = 0; row < count; row++)
            for (int v = 0; v < VECTORS; v++)
                sums[row][v] = _mm512_add_ps(sums[row][v], more[row][v]);
    }
    for (int row = 0; row < count; row++)
        for (int v = 0; v < VECTORS && first + v * FLOATS < linear->out; v++) {
            int64_t column = first + v * FLOATS;
            __mmask16 mask = first_floats(linear->out - column);
            __m512 sum = sums[row][v];
            if (linear->bias)
                sum = _mm512_add_ps(sum, load_floats(mask, linear->bias + column));
            if (residual)
                sum = _mm512_add_ps(sum, load_floats(mask, residual + row * linear->out + column));
            store_floats(out + row * linear->out + column, mask, sum);
        }
}

void multiply_rows(const Linear *linear, const bf16 *rows, const bf16 *residual, bf16 *out, int64_t count) {
    int64_t groups = (count + MOST_ROWS - 1) / MOST_ROWS, size = (count + groups - 1) / groups;
    for (int64_t first = 0; first < linear->out; first += COLUMNS)
        for (int64_t row = 0; row < count; row += size) {
            const bf16 *theirs = rows + row * linear->in, *plus = residual ? residual + row * linear->out : residual;
            bf16 *to = out + row * linear->out;
            switch (size < count - row ? size : count - row) {
            case 1: block(linear, theirs, plus, to, first, 1); break;
            case 2: block(linear, theirs, plus, to, first, 2); break;
            case 3: block(linear, theirs, plus, to, first, 3); break;
            case 4: block(linear, theirs, plus, to, first, 4); break;
            case 5: block(linear, theirs, plus, to, first, 5); break;
            default: block(linear, theirs, plus, to, first, 6); break;
            }
        }
}
