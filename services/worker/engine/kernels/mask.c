/* Takes tokens out of a row of logits: those whose bit in a mask is 0 get minus infinity. */
#include <string.h>

#include "kernels.h"

#define NO_BF16 0xff80u
#define NO_FLOAT32 0xff800000u

static int permits(const uint32_t *mask, int64_t token) { return mask[token / 32] >> token % 32 & 1; }

/* Four logits of 16 bits, or two of 32, are one word. KEEP has the bits of those that stay, by their bits in the
   mask. */
#define HALF(bits, place) ((bits) >> (place) & 1 ? 0xffffull << 16 * (place) : 0ull)
#define HALVES(bits) (HALF(bits, 0) | HALF(bits, 1) | HALF(bits, 2) | HALF(bits, 3))
#define FOUR(bits) HALVES(bits), HALVES(bits + 1), HALVES(bits + 2), HALVES(bits + 3)
static const uint64_t keep_of_four[16] = {FOUR(0), FOUR(4), FOUR(8), FOUR(12)};
static const uint64_t keep_of_two[4] = {0, 0xffffffffull, 0xffffffff00000000ull, ~0ull};

static inline void mask_word(void *logits, uint64_t keep, uint64_t none) {
    uint64_t word;
    memcpy(&word, logits, sizeof word);
    word = (word & keep) | (none & ~keep);
    memcpy(logits, &word, sizeof word);
}

/* Most words of most masks permit all tokens or none. */
static inline void forbid_all(void *logits, int words, uint64_t none) {
    for (int i = 0; i < words; i++)
        memcpy((char *)logits + i * sizeof none, &none, sizeof none);
}

void mask_logits(Type type, void *row, const uint32_t *mask, int64_t size) {
    const uint64_t no_four = NO_BF16 * 0x0001000100010001ull, no_two = NO_FLOAT32 * 0x0000000100000001ull;
    float *wide = row;
    bf16 *narrow = row;
    int64_t token = 0;
    for (; token + 32 <= size; token += 32) {
        uint32_t bits = mask[token / 32];
        if (bits == 0xffffffffu)
            continue;
        if (!bits)
            type == FLOAT32 ? forbid_all(wide + token, 16, no_two) : forbid_all(narrow + token, 8, no_four);
        else if (type == FLOAT32)
            for (int i = 0; i < 32; i += 2)
                mask_word(wide + token + i, keep_of_two[bits >> i & 3], no_two);
        else
            for (int i = 0; i < 32; i += 4)
                mask_word(narrow + token + i, keep_of_four[bits >> i & 15], no_four);
    }
    const uint32_t none = NO_FLOAT32;
    for (; token < size; token++)
        if (!permits(mask, token) && type == FLOAT32)
            memcpy(wide + token, &none, sizeof none);
        else if (!permits(mask, token))
            narrow[token] = NO_BF16;
}
