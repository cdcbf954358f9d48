/* Unpacks packed matrices, in the processor's cache. Include this after panels.h and one of level_*.h. */
#pragma once

#include <string.h>

#define CODE_LANES 16 /* of a word: those of both inputs of a pair for 8 outputs are one field of them */

/* The scales and zeros of a group. Each of them occurs twice, for both inputs of a pair. */
typedef struct {
    float scale[2 * PANEL], zero[2 * PANEL];
} CodeGroup;

static float scale_at(int64_t scales, const void *from, int64_t at) {
    float made;
    uint32_t bits;
    if (scales == SCALES_E8M0)
        bits = (uint32_t)((const uint8_t *)from)[at] << 23;
    else if (scales == SCALES_FLOAT32 || scales == SCALES_PANEL)
        bits = ((const uint32_t *)from)[scales == SCALES_PANEL ? 0 : at];
    else if (scales == SCALES_BFLOAT16)
        bits = (uint32_t)((const bf16 *)from)[at] << 16;
    else {
        uint32_t half = ((const uint16_t *)from)[at], magnitude = half & 0x7fff;
        if (magnitude < 0x400) { /* a denormal number of float16 is a normal one of float32 */
            made = (float)magnitude * 0x1p-24f;
            return half & 0x8000 ? -made : made;
        }
        uint32_t above = magnitude < 0x7c00 ? 0x1c000 : 0x38000; /* infinity and NaN stay what they are */
        bits = (half & 0x8000) << 16 | (magnitude + above) << 13;
    }
    memcpy(&made, &bits, sizeof made);
    return made;
}

static void read_group(const Packing *packing, const char *panel, const PackedBytes *bytes, int64_t group,
                       CodeGroup *made) {
    const char *scales = panel + group * scales_size(packing);
    const uint8_t *zeros = (const uint8_t *)panel + bytes->zeros + group * PANEL;
    float middle = packing->codes == INT4 ? 8.0f : packing->codes == INT8 ? 128.0f : 0.0f;
    for (int64_t i = 0; i < PANEL; i++) {
        made->scale[2 * i] = made->scale[2 * i + 1] = scale_at(packing->scales, scales, i);
        made->zero[2 * i] = made->zero[2 * i + 1] = packing->zeros ? (float)zeros[i] : middle;
    }
}

/* The value of the bits of a float8_e4m3fn. */
static float fp8_value(int code) {
    int exponent = code >> 3 & 15;
    uint32_t bits = (uint32_t)(exponent + 120) << 23 | (uint32_t)(code & 7) << 20;
    float made;
    memcpy(&made, &bits, sizeof made);
    if (exponent == 0)
        made = (float)(code & 7) * 0x1p-9f;
    return code & 0x80 ? -made : made;
}

/* The value of the bits of a float4_e2m1fn. */
static float fp4_value(int code) {
    static const float magnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return code & 8 ? -magnitudes[code & 7] : magnitudes[code];
}

/* The values of the codes of fp8 or fp4. */
typedef struct {
    float of[256];
} Values;

ALWAYS void make_values(Codes codes, Values *made) {
    for (int code = 0; (codes == FP8 || codes == FP4) && code < 1 << code_bits(codes); code++)
        made->of[code] = codes == FP4 ? fp4_value(code) : fp8_value(code);
}

/* A panel that is being unpacked: its next codes, its next group, how many pairs of inputs came before, and how many are
   left of the group that was read. */
typedef struct {
    const Packing *packing;
    const char *panel;
    PackedBytes bytes;
    const uint32_t *words;
    int64_t in, group, pair, left;
    Values values;
    CodeGroup read;
} Unpacking;

ALWAYS void begin_unpacking(const Panel *panel, int64_t in, Unpacking *made) {
    made->packing = panel->packing;
    made->panel = panel->numbers;
    made->bytes = packed_bytes(panel->packing, in);
    made->words = (const uint32_t *)(made->panel + made->bytes.codes);
    made->in = in;
    made->group = made->pair = made->left = 0;
}

/* Goes on to the next group if nothing is left of the last one. Returns its number, else -1. */
ALWAYS int64_t next_group(Unpacking *from) {
    if (from->left > 0 || 2 * from->pair >= from->in)
        return -1;
    from->left = (from->packing->group + 1) / 2; /* odd only if it is all of an odd number of inputs */
    return from->group++;
}

/* Reads the next group if nothing is left of the last one. */
ALWAYS void read_next(Unpacking *from) {
    int64_t number = next_group(from);
    if (number >= 0)
        read_group(from->packing, from->panel, &from->bytes, number, &from->read);
}

/* Notes that so many pairs of inputs were unpacked. */
ALWAYS void pass(Codes codes, Unpacking *from, int64_t pairs) {
    from->words += pairs * 2 * PANEL * code_bits(codes) / 32;
    from->pair += pairs;
    from->left -= pairs;
}

/* Unpacks the next pair of inputs to `[output, input of the pair]`. The values of its codes were made. */
ALWAYS void unpack_any_pair(Codes codes, const Unpacking *from, bf16 *to) {
    const int bits = (int)code_bits(codes), fields = 32 / bits;
    for (int vector = 0; vector < 2 * PANEL / CODE_LANES; vector++, to += CODE_LANES) {
        const uint32_t *word = from->words + vector / fields * CODE_LANES;
        const float *scale = from->read.scale + vector * CODE_LANES, *zero = from->read.zero + vector * CODE_LANES;
        float made[CODE_LANES];
        for (int lane = 0; lane < CODE_LANES; lane++) {
            int32_t code = (int32_t)(word[lane] >> bits * (vector % fields) & ((1u << bits) - 1));
            float value = codes == FP8 || codes == FP4 ? from->values.of[code] : (float)code - zero[lane];
            made[lane] = value * scale[lane];
        }
        for (int lane = 0; lane < CODE_LANES; lane += LANES)
            narrow(to + lane, load(made + lane));
    }
}

#if LANES >= 8
#include "unpack_vectors.h"
#endif
