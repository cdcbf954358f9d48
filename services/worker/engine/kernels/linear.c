/* A matrix times rows: few of them as fast as the matrix comes from memory, many as fast as this CPU multiplies. It lies
   as oneDNN lays it out, and each sum is taken in oneDNN's order, so that both give the same bits. */
#include "avx512.h"

#define COLUMNS 64 /* that lie together: [64 columns, pair of inputs, column, of the pair] */
#define VECTORS 4
#define GROUP 6 /* rows whose sums for 64 columns are kept in registers */
#define MOST 66 /* rows at a time, of which sums are kept beyond a span */

/* What rows share: of 64 columns a span of inputs, in the cache once the first rows have used it; and what follows. */
typedef struct {
    const bf16 *matrix, *next;
    int64_t in, first, stop;
} Part;

/* Adds up for `count` rows and the first `vectors` of columns, one pair of inputs after the other; with each, `lines` of
   what is `ahead` are asked for. */
static inline __attribute__((always_inline)) void multiply(const Part *part, const bf16 *rows, const char *ahead,
                                                           int64_t lines, float *sums, int count, int vectors) {
    __m512 kept[GROUP][VECTORS];
    for (int row = 0; row < count; row++)
        for (int v = 0; v < vectors; v++)
            kept[row][v] = _mm512_setzero_ps();
    for (int64_t i = part->first; i < part->stop; i += 2) {
        __m512bh column[VECTORS];
        for (int v = 0; v < vectors; v++)
            column[v] = (__m512bh)_mm512_loadu_si512(part->matrix + i * COLUMNS + v * HALVES);
        for (int64_t line = 0; line < lines; line++, ahead += 64)
            _mm_prefetch(ahead, _MM_HINT_T1);
        for (int row = 0; row < count; row++) {
            const bf16 *at = rows + row * part->in + i;
            /* Of an odd number of inputs the last has no neighbour. */
            __m512bh both = i + 1 < part->in ? pair_everywhere(at) : (__m512bh)_mm512_set1_epi32(*at);
            for (int v = 0; v < vectors; v++)
                kept[row][v] = _mm512_dpbf16_ps(kept[row][v], column[v], both);
        }
    }
    for (int row = 0; row < count; row++)
        for (int v = 0; v < vectors; v++) {
            float *sum = sums + row * COLUMNS + v * FLOATS;
            _mm512_storeu_ps(sum, part->first ? _mm512_add_ps(_mm512_loadu_ps(sum), kept[row][v]) : kept[row][v]);
        }
}

/* In even groups. For few rows the CPU itself reads ahead, and best where it is left alone. With more, memory pauses
   while they compute: so they ask for what follows meanwhile, each group for its share. */
static inline __attribute__((always_inline)) void multiply_part(const Part *part, const bf16 *rows, float *sums,
                                                                int64_t count, int vectors) {
    int64_t groups = (count + GROUP - 1) / GROUP, size = (count + groups - 1) / groups;
    int64_t left = count < GROUP ? 0 : VECTORS, share = (VECTORS + groups - 1) / groups;
    const char *ahead = (const char *)part->next;
    for (int64_t row = 0; row < count; row += size) {
        const bf16 *theirs = rows + row * part->in;
        int64_t lines = share < left ? share : left;
        switch (size < count - row ? size : count - row) {
        case 1: multiply(part, theirs, ahead, lines, sums + row * COLUMNS, 1, vectors); break;
        case 2: multiply(part, theirs, ahead, lines, sums + row * COLUMNS, 2, vectors); break;
        case 3: multiply(part, theirs, ahead, lines, sums + row * COLUMNS, 3, vectors); break;
        case 4: multiply(part, theirs, ahead, lines, sums + row * COLUMNS, 4, vectors); break;
        case 5: multiply(part, theirs, ahead, lines, sums + row * COLUMNS, 5, vectors); break;
        default: multiply(part, theirs, ahead, lines, sums + row * COLUMNS, 6, vectors); break;
        }
        ahead += lines * 64 * ((part->stop - part->first) / 2);
        left -= lines;
    }
}

static void store(const Linear *linear, const float *sums, const bf16 *residual, bf16 *out, int64_t first, int64_t count) {
    for (int64_t row = 0; row < count; row++)
        for (int64_t column = first; column < linear->out && column < first + COLUMNS; column += FLOATS) {
            __mmask16 mask = first_floats(linear->out - column);
            __m512 sum = _mm512_loadu_ps(sums + row * COLUMNS + column - first);
            if (linear->bias)
                sum = _mm512_add_ps(sum, load_floats(mask, linear->bias + column));
            if (residual)
                sum = _mm512_add_ps(sum, load_floats(mask, residual + row * linear->out + column));
            store_floats(out + row * linear->out + column, mask, sum);
        }
}

void multiply_rows(const Linear *linear, const bf16 *rows, const bf16 *residual, bf16 *out, int64_t count) {
    int64_t in = linear->in, padded = (in + HALVES - 1) / HALVES * HALVES;
    float sums[MOST * COLUMNS];
    for (int64_t first = 0; first < linear->out; first += COLUMNS)
        for (int64_t row = 0; row < count; row += MOST) {
            int64_t some = count - row < MOST ? count - row : MOST, place = row * linear->out;
            Part part = {.matrix = linear->matrix + first * padded, .in = in};
            for (; part.first < in; part.first = part.stop) {
                part.next = part.matrix + (part.first + linear->span) * COLUMNS;
                part.stop = in - part.first < linear->span ? in : part.first + linear->span;
                /* The last columns are often no more than half as many: then half the work is enough. */
                if (linear->out - first > COLUMNS / 2)
                    multiply_part(&part, rows + row * in, sums, some, VECTORS);
                else
                    multiply_part(&part, rows + row * in, sums, some, VECTORS / 2);
            }
            store(linear, sums, residual ? residual + place : residual, out + place, first, some);
        }
}
