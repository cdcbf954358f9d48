/* Unpacks codes to float32 by vectors. Include this in unpack.h. */
#pragma once

#define FRACTIONS 8 /* of FP8 */

/* What a code is multiplied by after `zero` is subtracted, in the order of the vectors; unless it `fits`, it cannot be
   used. Where `other` is used, scales are 2^16 times as large, and it is 2^16 - 1 times. Only
   unpack_avx2.h uses the table, of the fractions of FP8. */
typedef struct {
    float scale[2 * PANEL], zero[2 * PANEL], other[2 * PANEL];
    uint8_t table[2 * FRACTIONS];
    int fits;
} Spread;

/* An integer is not moved to the lowest bits of its word: as part of the number 2^23 it is so many times as large, as long
   as it ends before bit 23. Those of the upper half of a word are in words that are moved by LATE bits. */
#define LATE 16
ALWAYS int is_late(Codes codes, int field) { return code_bits(codes) * field >= LATE; }
ALWAYS int place(Codes codes, int field) { return (int)code_bits(codes) * field % LATE; }

#define POWER 65536.0f /* what this and one less times a number differ by is the number, to 8 bits */

/* By how much integers, and numbers of FP8, are too large before they are scaled. */
ALWAYS float excess_of(Codes codes, int field) {
    return codes == INT4 || codes == INT8 ? (float)(1 << place(codes, field)) : codes == FP8 ? 0x1p8f : 1.0f;
}

/* Whether numbers of these scales are multiplied by POWER and one less at once, which is exact of scales of 8 bits. */
ALWAYS int is_short(const Packing *packing) { return packing->scales == SCALES_BFLOAT16; }

#if LANES >= 16
#include "unpack_avx512.h"
#else
#include "unpack_avx2.h"
#endif

/* Reads the next group if nothing is left of `group`. */
ALWAYS void read_spread(Codes codes, Unpacking *from, Spread *group) {
    int64_t number = next_group(from);
    if (number < 0)
        return;
    spread_group(codes, from, number, group);
    if (!group->fits) {
        read_group(from->packing, from->panel, &from->bytes, number, &from->read);
        make_values(codes, &from->values);
    }
}

/* Unpacks the next 32 inputs of a panel to float32 as it is stored in that type. `group` is the last one read. */
ALWAYS void unpack_block(Codes codes, Unpacking *from, Spread *group, float *to) {
    for (int64_t pair = 0, pairs; pair < INPUTS / 2; pair += pairs, to += pairs * PANEL) {
        float *odd = to + INPUTS / 2 * PANEL;
        bf16 halves[2 * PANEL];
        read_spread(codes, from, group);
        pairs = 1;
        if (group->fits) {
            int64_t rest = INPUTS / 2 - pair;
            pairs = from->left > 0 && from->left < rest ? from->left : rest; /* inputs that fill the panel up need none */
            unpack_pairs(codes, from->packing, group, from->words, pairs, to, odd);
        } else {
            unpack_any_pair(codes, from, halves);
            for (int64_t column = 0; column < PANEL; column += LANES) {
                store(to + column, widen_even(halves + 2 * column));
                store(odd + column, widen_odd(halves + 2 * column));
            }
        }
        pass(codes, from, pairs);
    }
}

/* Adds the products of a row and the next 32 inputs of a panel to all 64 sums. Returns 0, and adds nothing, where these
   are of several groups or need `unpack_any_pair`. */
ALWAYS int add_row(Codes codes, Unpacking *from, Spread *group, const float *a, float *sums) {
    read_spread(codes, from, group);
    if (!group->fits || from->left < INPUTS / 2)
        return 0;
    add_packed(codes, from->packing, group, from->words, a, sums);
    pass(codes, from, INPUTS / 2);
    return 1;
}
