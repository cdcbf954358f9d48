/* Unpacks panels of packed matrices to panels of bfloat16. Kernels do so in the processor's cache. Include this after
   panel.h and one of level_*.h. */
#pragma once

#include <string.h>

#ifdef WITH_AMX
#include "avx512_bf16/operations.h"
#else
#define FLOAT_VECTORS 8 /* of 16 floats: the codes of a pair of inputs for the 64 outputs of a panel */
#define CODE_LANES 16

/* The scales and zeros of a group. Each of them occurs twice, for both inputs of a pair. */
typedef struct {
    float scale[FLOAT_VECTORS * CODE_LANES], zero[FLOAT_VECTORS * CODE_LANES];
} CodeGroup;

static float scale_at(int64_t scales, const void *from, int64_t at) {
    float made;
    uint32_t bits;
    if (scales == SCALES_E8M0)
        bits = (uint32_t)((const uint8_t *)from)[at] << 23;
    else if (scales == SCALES_FLOAT32)
        bits = ((const uint32_t *)from)[at];
    else if (scales == SCALES_BFLOAT16)
        bits = (uint32_t)((const bf16 *)from)[at] << 16;
    else {
        uint32_t half = ((const uint16_t *)from)[at], magnitude = half & 0x7fff;
        if (magnitude < 0x400) { /* a denormal number of float16 is a normal one of float32 */
            made = (float)magnitude * 0x1p-24f;
            return half & 0x8000 ? -made : made;
        }
        bits = (half & 0x8000) << 16 | (magnitude + 0x1c000) << 13;
    }
    memcpy(&made, &bits, sizeof made);
    return made;
}

static void read_group(const Packing *packing, const char *panel, const PackedBytes *bytes, int64_t group,
                       CodeGroup *made) {
    int64_t scale_bytes = scale_size(packing->scales);
    const uint8_t *zeros = (const uint8_t *)panel + bytes->zeros + group * PANEL;
    float middle = packing->codes == INT4 ? 8.0f : packing->codes == INT8 ? 128.0f : 0.0f;
    for (int64_t i = 0; i < 2 * PANEL; i++) {
        made->scale[i] = scale_at(packing->scales, panel + group * PANEL * scale_bytes, i / 2);
        made->zero[i] = packing->zeros ? (float)zeros[i / 2] : middle;
    }
}

#if LANES >= 8
#include "unpack_avx2.h"
#else
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

/* What does not change from code to code: the value of each code of fp8 or fp4. */
typedef struct {
    float values[256];
} Fixed;

ALWAYS Fixed fixed_of(Codes codes) {
    Fixed made;
    for (int code = 0; (codes == FP8 || codes == FP4) && code < 1 << code_bits(codes); code++)
        made.values[code] = codes == FP4 ? fp4_value(code) : fp8_value(code);
    return made;
}

/* Unpacks the codes of one pair of inputs. */
ALWAYS void unpack_pair(Codes codes, const Fixed *fixed, const uint32_t *words, const CodeGroup *group, bf16 *to) {
    const int bits = (int)code_bits(codes), fields = 32 / bits;
    for (int vector = 0; vector < FLOAT_VECTORS; vector++, to += CODE_LANES) {
        const uint32_t *word = words + vector / fields * CODE_LANES;
        const float *scale = group->scale + vector * CODE_LANES, *zero = group->zero + vector * CODE_LANES;
        float made[CODE_LANES];
        for (int lane = 0; lane < CODE_LANES; lane++) {
            int32_t code = (int32_t)(word[lane] >> bits * (vector % fields) & ((1u << bits) - 1));
            float value = codes == FP8 || codes == FP4 ? fixed->values[code] : (float)code - zero[lane];
            made[lane] = value * scale[lane];
        }
        for (int lane = 0; lane < CODE_LANES; lane += LANES)
            narrow(to + lane, load(made + lane));
    }
}
#endif

ALWAYS void unpack_panel_of(Codes codes, const Packing *packing, const void *panel, int64_t in, bf16 *to) {
    PackedBytes bytes = packed_bytes(packing, in);
    const uint32_t *words = (const uint32_t *)((const char *)panel + bytes.codes);
    const Fixed fixed = fixed_of(codes);
    CodeGroup group;
    for (int64_t pair = 0, number = 0, left = 0; pair < padded(in, INPUTS) / 2; pair++, left--, to += 2 * PANEL) {
        if (left == 0 && 2 * pair < in) {
            read_group(packing, panel, &bytes, number++, &group);
            left = packing->group / 2;
        }
        unpack_pair(codes, &fixed, words, &group, to);
        words += 2 * PANEL * code_bits(codes) / 32;
    }
}

/* Unpacks a panel for `in` inputs to `[pair of inputs, output, input of the pair]`. */
static void unpack_panel(const Packing *packing, const void *panel, int64_t in, bf16 *to) {
    switch ((Codes)packing->codes) {
    case INT4: unpack_panel_of(INT4, packing, panel, in, to); break;
    case INT8: unpack_panel_of(INT8, packing, panel, in, to); break;
    case FP4: unpack_panel_of(FP4, packing, panel, in, to); break;
    default: unpack_panel_of(FP8, packing, panel, in, to); break;
    }
}
#endif

/* A panel's numbers in bfloat16; if the panel is packed, they are unpacked into `memory`. */
ALWAYS const void *unpacked_panel(const Panel *panel, int64_t in, bf16 *memory) {
    if (!panel->packing)
        return panel->numbers;
#ifdef WITH_AMX
    unpack_by_vectors(panel->packing, panel->numbers, in, memory);
#else
    unpack_panel(panel->packing, panel->numbers, in, memory);
#endif
    return memory;
}
