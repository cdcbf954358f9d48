/* Products of rows and panels by fused multiply-add, in the order of summation of AMX (TDPBF16PS). Of 32 inputs, the
   even ones and the odd ones are summed separately, in order, from zero on. Then the two sums are added, and the result
   is added to the previous sum. Include this after panels.h. */
#pragma once

/* The element type of packed rows and panels: float32, where the even ones of 32 inputs come first. */
typedef float Packed;

#define VALUE_STEP 1 /* between packed values of neighbouring columns */
#define GROUP 6      /* rows whose sums are kept in registers */
#define LINE 64      /* bytes of the cache */
/* How many vectors of each of so many rows are summed at once: at least 8 sums hide how long an addition takes. */
#if LANES == 8
#define COLUMNS(rows) ((rows) == 1 ? MOST_COLUMNS : (rows) < 4 ? 4 : 2)
#define MOST_COLUMNS 8
#define MOST_SUMS 12
#else
#define COLUMNS(rows) 4
#define MOST_COLUMNS 4
#define MOST_SUMS 24
#endif

/* The inputs of a column that are added: 16 numbers in float32, or the even or the odd ones of 16 pairs in bfloat16. */
typedef enum { NUMBERS, EVEN_ONES, ODD_ONES } Inputs;

ALWAYS Floats load_inputs(Inputs inputs, const float *from) {
    if (inputs == NUMBERS)
        return load(from);
    return inputs == EVEN_ONES ? widen_even((const bf16 *)from) : widen_odd((const bf16 *)from);
}

/* Adds the products of 16 inputs of some rows to `sums`, in order. With each input, `lines` cache lines from `ahead` on
   are prefetched. */
ALWAYS void add_inputs(Inputs inputs, const float *a, int64_t a_stride, const float *b, int64_t b_stride, Floats *sums,
                       int rows, int columns, const char *ahead, int lines) {
#pragma GCC unroll 48
    for (int i = 0; i < rows * columns; i++)
        sums[i] = everywhere(0.0f);
#if LANES == 8
#pragma GCC unroll 4
#endif
    for (int input = 0; input < INPUTS / 2; input++, b += b_stride, ahead += lines * LINE) {
        Floats column[MOST_COLUMNS];
#pragma GCC unroll 2
        for (int line = 0; line < lines; line++)
            __builtin_prefetch(ahead + line * LINE, 0, 3);
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++)
            column[c] = load_inputs(inputs, b + c * LANES);
#pragma GCC unroll 6
        for (int row = 0; row < rows; row++) {
            Floats value = everywhere(a[row * a_stride + input]);
#pragma GCC unroll 8
            for (int c = 0; c < columns; c++)
                sums[row * columns + c] = multiply_add(value, column[c], sums[row * columns + c]);
        }
    }
}

/* Adds the products of 32 inputs of some rows and columns to `c`. In bfloat16 a number of `b` stands for a pair. With
   each input, even or odd, `lines` cache lines from `ahead` on are prefetched. */
ALWAYS void add_block_products(Type type, const float *a, int64_t a_stride, const float *b, int64_t b_stride, float *c,
                               int64_t c_stride, int rows, int columns, const char *ahead, int lines) {
    Floats sums[MOST_SUMS];
    float even[MOST_SUMS * LANES];
    add_inputs(type == BFLOAT16 ? EVEN_ONES : NUMBERS, a, a_stride, b, b_stride, sums, rows, columns, ahead, lines);
#pragma GCC unroll 48
    for (int i = 0; i < rows * columns; i++)
        store(even + i * LANES, sums[i]);
    if (type == FLOAT32)
        b += INPUTS / 2 * b_stride;
    add_inputs(type == BFLOAT16 ? ODD_ONES : NUMBERS, a + INPUTS / 2, a_stride, b, b_stride, sums, rows, columns,
               ahead + INPUTS / 2 * lines * LINE, lines);
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int i = 0; i < columns; i++) {
            float *to = c + row * c_stride + i * LANES;
            store(to, load(to) + (load(even + (row * columns + i) * LANES) + sums[row * columns + i]));
        }
}

ALWAYS void add_products(const float *a, int64_t a_stride, const float *b, int64_t b_stride, float *c, int64_t c_stride,
                         int64_t blocks, int rows, int columns) {
    for (int64_t block = 0; block < blocks; block++, a += INPUTS, b += INPUTS * b_stride)
        add_block_products(FLOAT32, a, a_stride, b, b_stride, c, c_stride, rows, columns, (const char *)b, 0);
}

/* Computes all columns of up to GROUP rows. */
ALWAYS void add_rows(const float *a, int64_t a_stride, const float *b, int64_t b_stride, float *c, int64_t c_stride,
                     int64_t width, int64_t blocks, int rows, int columns) {
    int64_t column = 0;
    for (; column + columns * LANES <= width; column += columns * LANES)
        add_products(a, a_stride, b + column, b_stride, c + column, c_stride, blocks, rows, columns);
    for (; column < width; column += WIDE)
        add_products(a, a_stride, b + column, b_stride, c + column, c_stride, blocks, rows, VECTORS);
}

/* Adds the product of `a` `[row, 32 * blocks]` and `b` `[32 * blocks, width]` to `c` `[row, width]`, or stores it there
   if `is_first`. Strides are from row to row. The width is a multiple of 16. */
static void product(const float *a, int64_t a_stride, const float *b, int64_t b_stride, float *c, int64_t c_stride,
                    int64_t rows, int64_t width, int64_t blocks, int is_first) {
    for (int64_t row = 0; is_first && row < rows; row++)
        memset(c + row * c_stride, 0, width * sizeof(float));
    for (int64_t group; rows > 0; rows -= group, a += group * a_stride, c += group * c_stride) {
        group = rows < GROUP ? rows : GROUP;
        switch (group) {
        case 1: add_rows(a, a_stride, b, b_stride, c, c_stride, width, blocks, 1, COLUMNS(1)); break;
        case 2: add_rows(a, a_stride, b, b_stride, c, c_stride, width, blocks, 2, COLUMNS(2)); break;
        case 3: add_rows(a, a_stride, b, b_stride, c, c_stride, width, blocks, 3, COLUMNS(3)); break;
        case 4: add_rows(a, a_stride, b, b_stride, c, c_stride, width, blocks, 4, COLUMNS(4)); break;
        case 5: add_rows(a, a_stride, b, b_stride, c, c_stride, width, blocks, 5, COLUMNS(5)); break;
        default: add_rows(a, a_stride, b, b_stride, c, c_stride, width, blocks, GROUP, COLUMNS(GROUP)); break;
        }
    }
}

/* Packs `count` numbers of a row, with zeros up to a multiple of 32. */
ALWAYS void pack_row(Type type, const void *row, int64_t count, Packed *to) {
    for (int64_t first = 0; first < count; first += INPUTS, to += INPUTS) {
        Corner corner;
        int64_t none = 0;
        const void *numbers = count - first < INPUTS ? whole_corner(type, row, 1, first, count, &none, &corner)
                                                     : address(type, row, first);
        if (type == BFLOAT16)
            for (int64_t i = 0; i < WIDE; i += LANES) {
                store(to + i, widen_even((const bf16 *)numbers + 2 * i));
                store(to + WIDE + i, widen_odd((const bf16 *)numbers + 2 * i));
            }
        else
            for (int64_t i = 0; i < WIDE; i++) {
                to[i] = ((const float *)numbers)[2 * i];
                to[WIDE + i] = ((const float *)numbers)[2 * i + 1];
            }
    }
}

/* Widens `blocks` blocks of 32 inputs of a bfloat16 panel to packed float32. */
ALWAYS void widen_panel(const bf16 *panel, int64_t blocks, float *to) {
    for (int64_t block = 0; block < blocks; block++, to += INPUTS * PANEL)
        for (int64_t pair = 0; pair < WIDE; pair++, panel += 2 * PANEL)
#pragma GCC unroll 16
            for (int64_t column = 0; column < PANEL; column += LANES) {
                store(to + pair * PANEL + column, widen_even(panel + 2 * column));
                store(to + (WIDE + pair) * PANEL + column, widen_odd(panel + 2 * column));
            }
}

/* Stores up to 64 keys `[position, head_dim]` as the columns of a panel `[head_dim, position]`. */
ALWAYS void pack_keys(Type type, const void *keys, int64_t count, int64_t head_dim, Packed *to) {
    bf16 pairs[PANEL * INPUTS];
    for (int64_t first = 0; first < head_dim; first += INPUTS, to += INPUTS * PANEL) {
        int64_t here = head_dim - first < INPUTS ? head_dim - first : INPUTS;
        for (int64_t position = 0; position < padded(count, WIDE); position += WIDE) {
            const void *from = address(type, keys, position * head_dim + first);
            if (type == BFLOAT16)
                pair_inputs(from, count - position, head_dim, here, (int32_t *)pairs, position);
            else
                halve_inputs(from, count - position, head_dim, here, to, position);
        }
        if (type == BFLOAT16)
            widen_panel(pairs, 1, to);
    }
}

/* Stores values `[position, head_dim]`, each followed by a one, as `[position, width]`, where the even ones of every 32
   positions come first. Positions are padded with zeros to a multiple of 32. */
ALWAYS void pack_values(Type type, const void *values, int64_t count, int64_t head_dim, int64_t width, Packed *to) {
    for (int64_t position = 0; position < padded(count, INPUTS); position++) {
        int64_t block = position / INPUTS * INPUTS, place = block + position % 2 * WIDE + position % INPUTS / 2;
        for (int64_t i = 0; i < width; i += WIDE) {
            int64_t left = position < count && head_dim > i ? head_dim - i : 0;
            wide_store(FLOAT32, to + place * width + i,
                       wide_load_some(type, address(type, values, left ? position * head_dim + i : 0), left));
        }
        if (position < count)
            to[place * width + head_dim] = 1.0f;
    }
}

/* Packs `count` rows of a span's weights as `product` needs them. */
ALWAYS const Packed *pack_weights(Type type, const void *weights, int64_t count, int64_t span, Packed *to) {
    for (int64_t row = 0; row < count; row++)
        pack_row(type, address(type, weights, row * span), span, to + row * span);
    return to;
}
