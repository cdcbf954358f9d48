/* Loops over the codes of a packed panel. Include this after codes.h, with Way and CodeGroup defined, and three functions:
   read_group reads what the codes of a group need, unpack_pair unpacks those of a pair of inputs, and words_of tells how
   many words they are. */
#pragma once

/* So many bytes before they are used, a panel is prefetched: unpacking leaves the CPU's own prefetching behind. */
#define AHEAD 16384

/* Unpacks the next pairs of inputs. Those that fill the panel up are of the last group. */
ALWAYS_INLINE void unpack(Way way, PackedPanel *from, int64_t pairs, bf16 *to) {
    CodeGroup *group = (CodeGroup *)from->read;
    const Packing *packing = from->packing;
    const uint32_t *words = from->words;
    const char *ahead = from->ahead;
    _Static_assert(sizeof *group <= READ_BYTES, "READ_BYTES is too small");
    for (int64_t here; pairs > 0; pairs -= here, from->left -= here) {
        if (from->left == 0) {
            int64_t first = from->group * packing->group, stop = first + packing->group;
            read_group(way, packing, from->panel, &from->bytes, from->group++, group);
            from->left = ((stop < from->in ? stop : padded(from->in, INPUTS)) - first) / 2;
            ahead = prefetch_near(ahead, group_lines(packing));
        }
        here = pairs < from->left ? pairs : from->left;
        for (int64_t pair = 0; pair < here; pair++, words += words_of(way), to += 2 * PANEL) {
            __m512bh column[VECTORS];
            ahead = prefetch_near(ahead, words_of(way) / FLOATS);
            unpack_pair(way, words, group, column);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                _mm512_storeu_si512(to + v * HALVES, (__m512i)column[v]);
        }
    }
    from->words = words;
    from->ahead = ahead;
}

/* Multiplies `count` rows by a panel, with the sums of `multiply` in linear.c. */
ALWAYS_INLINE void multiply_while_unpacked(Way way, const Piece *given, const Packing *packing, const char *panel,
                                           const Rows *rows, int count) {
    PackedBytes bytes = packed_bytes(packing, given->linear->in);
    const uint32_t *words = (const uint32_t *)(panel + bytes.codes);
    int64_t in = given->linear->in, span = span_of(in), left = 0, number = 0;
    const char *ahead = panel + AHEAD;
    CodeGroup group;
    Piece piece = *given;
    for (; piece.first < in; piece.first = piece.stop) {
        __m512 kept[FEW_ROWS][VECTORS];
        piece.stop = in - piece.first < span ? in : piece.first + span;
#pragma GCC unroll 4
        for (int row = 0; row < count; row++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                kept[row][v] = _mm512_setzero_ps();
        for (int64_t i = piece.first; i < piece.stop;) {
            if (left == 0) {
                read_group(way, packing, panel, &bytes, number++, &group);
                left = packing->group;
                ahead = prefetch(ahead, group_lines(packing));
            }
            int64_t stop = i + left < piece.stop ? i + left : piece.stop;
            left -= stop - i;
            for (; i < stop; i += 2, words += words_of(way)) {
                __m512bh column[VECTORS];
                ahead = prefetch(ahead, words_of(way) / FLOATS);
                unpack_pair(way, words, &group, column);
#pragma GCC unroll 4
                for (int row = 0; row < count; row++) {
                    const bf16 *at = rows->in + row * in + i;
                    __m512bh both = i + 1 < in ? pair_everywhere(at) : (__m512bh)_mm512_set1_epi32(*at);
#pragma GCC unroll 4
                    for (int v = 0; v < VECTORS; v++)
                        kept[row][v] = _mm512_dpbf16_ps(kept[row][v], column[v], both);
                }
            }
        }
#pragma GCC unroll 4
        for (int row = 0; row < count; row++) {
            float *sums = rows->sums + row * COLUMNS;
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                if (piece.first)
                    kept[row][v] = _mm512_add_ps(_mm512_loadu_ps(sums + v * FLOATS), kept[row][v]);
                _mm512_storeu_ps(sums + v * FLOATS, kept[row][v]);
            }
            if (piece.stop == in)
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v += 2)
                    if (v * FLOATS < piece.width)
                        finish(&piece, rows, row, v * FLOATS, kept[row][v], kept[row][v + 1]);
        }
    }
}

/* A function for each way, and number of rows, so that registers are assigned well. UNPACK and MULTIPLY_FEW make those of
   a way, and NAMES lists the latter. */
#define UNPACK(way)                                                                                                    \
    static __attribute__((noinline)) void unpack_##way(PackedPanel *from, int64_t pairs, bf16 *to) {                   \
        unpack(way, from, pairs, to);                                                                                  \
    }

typedef void Multiply(const Piece *piece, const Packing *packing, const char *panel, const Rows *rows);

#define MULTIPLY(way, count)                                                                                           \
    static __attribute__((noinline)) void multiply_##way##_##count(const Piece *piece, const Packing *packing,         \
                                                                   const char *panel, const Rows *rows) {              \
        multiply_while_unpacked(way, piece, packing, panel, rows, count);                                              \
    }
#define MULTIPLY_FEW(way) MULTIPLY(way, 1) MULTIPLY(way, 2) MULTIPLY(way, 3) MULTIPLY(way, 4)
#define NAMES(way) {multiply_##way##_1, multiply_##way##_2, multiply_##way##_3, multiply_##way##_4}
