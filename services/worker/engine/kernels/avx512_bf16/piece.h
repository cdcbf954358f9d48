/* What the products of rows and a panel have in common. Include this after panel.h and vectors.h. */
#pragma once

#include "means.h"

#define COLUMNS PANEL
#define VECTORS 4
#define GROUP 6 /* rows whose sums for 64 columns are in registers */
#define WIDE 12 /* rows whose sums for 32 columns are in registers */
#define MOST 66 /* rows at a time whose sums are kept between spans */
#define BLOCK (8 * MOST) /* rows that stay in the cache while they use the whole matrix */

/* What rows share: inputs `first` to `stop` of a panel, which are in the cache after the first rows used them, and the
   memory that is needed next, `next_lines` cache lines of it for each pair of inputs. `column` is the panel's first
   output, `width` their number. Groups have up to WIDE rows if they are wide, else up to GROUP. */
typedef struct {
    const Linear *linear;
    const bf16 *matrix, *bias;
    const char *next;
    int64_t next_lines, column, width, first, stop, is_wide;
} Piece;

/* Consecutive rows: their inputs, the residual to add, the outputs, and their sums of earlier spans. `floats` are the
   inputs in float32, an even number of them for each row, for products that want them so. */
typedef struct {
    const bf16 *in, *residual;
    bf16 *out;
    float *sums;
    const float *floats;
} Rows;

static inline Rows rows_after(const Rows *rows, const Linear *linear, int64_t count) {
    const bf16 *residual = rows->residual ? rows->residual + count * linear->out : NULL;
    return (Rows){rows->in + count * linear->in, residual, rows->out + count * linear->out,
                  rows->sums + count * COLUMNS, rows->floats ? rows->floats + count * padded(linear->in, 2) : NULL};
}

/* Prefetches the memory that rows are stored to. */
static inline __attribute__((always_inline)) void expect(const Piece *piece, const Rows *rows, int count) {
    for (int row = 0; row < count; row++)
        for (int64_t half = 0; half < COLUMNS; half += HALVES) {
            int64_t at = row * piece->linear->out + piece->column + half;
            _mm_prefetch((const char *)(rows->out + at), _MM_HINT_T0);
            if (rows->residual)
                _mm_prefetch((const char *)(rows->residual + at), _MM_HINT_T0);
        }
}

/* Stores the sums of 32 columns of a row, from the panel's column `first` on. */
static inline __attribute__((always_inline)) void finish(const Piece *piece, const Rows *rows, int64_t row,
                                                         int64_t first, __m512 low, __m512 high) {
    int64_t at = row * piece->linear->out + piece->column + first;
    __mmask32 mask = first_halves(piece->width - first);
    __mmask16 left = (__mmask16)mask, right = (__mmask16)(mask >> FLOATS);
    if (piece->bias) {
        low = _mm512_add_ps(low, load_floats(left, piece->bias + first));
        high = _mm512_add_ps(high, load_floats(right, piece->bias + first + FLOATS));
    }
    if (rows->residual) {
        low = _mm512_add_ps(low, load_floats(left, rows->residual + at));
        high = _mm512_add_ps(high, load_floats(right, rows->residual + at + FLOATS));
    }
    __m512i result = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    if (mask == 0xffffffffu) /* A store without a mask is the faster one. */
        _mm512_storeu_si512(rows->out + at, result);
    else
        _mm512_mask_storeu_epi16(rows->out + at, mask, result);
}

/* The number of inputs in a span. It is half of what the L1 cache holds of a panel. It fixes the order of sums, so a
   change would change bits. */
static inline int64_t span_of(int64_t inputs) { return inputs <= 1024 ? 512 : 1024; }

/* Makes the sums of a span for a group of rows, `[row, 64]`, aligned. With each pair of inputs, `lines` cache lines at
   `ahead` are prefetched. */
typedef void SumSpan(const Piece *piece, const Rows *rows, const char *ahead, int64_t lines, float *made);

/* By means, for half and whole panels, by the number of rows less one. */
extern SumSpan *const span_sums[][2][GROUP];

/* The same by dot products for up to WIDE rows, by the number of rows less one. */
extern SumSpan *const wide_span_sums[WIDE];

/* Adds the sums of a span to those of earlier ones; after the last span, stores the results. */
void add_span(const Piece *piece, const Rows *rows, const float *made, int64_t count);

#define FEW_ROWS 4 /* so few multiply a packed panel while it is unpacked, more of them once it is */

/* Multiplies at most FEW_ROWS rows by one packed panel. Whether it can: FMA does so for usual codes and scales. */
int multiply_packed_by_fma(const Linear *linear, const Panel *panel, const Rows *rows, int64_t count);

/* Multiplies at most FEW_ROWS rows by one packed panel. */
void multiply_packed_panel(Means means, const Linear *linear, const Panel *panel, const Rows *rows, int64_t count);

/* Whether codes are looked up in tables, on this CPU: those of FP8 whose scales a panel shares. */
int has_tables(const Packing *packing);

/* Unpacks a panel, or multiplies at most FEW_ROWS rows by it, where its codes are looked up. */
Unpack unpack_by_tables;
void multiply_by_tables(const Linear *linear, const Panel *panel, const Rows *rows, int64_t count);

/* Multiplies at most FEW_ROWS rows by a panel whose scales are bfloat16. Whether it can: usual ones of some codes. */
int multiply_by_scaled_dots(const Linear *linear, const Panel *panel, const Rows *rows, int64_t count);
