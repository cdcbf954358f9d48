/* Keys and values that are kept as float8_e4m3fn. Include this after kernels.h. */
#pragma once

#include <string.h>

/* `a` where `is_a`, else `b`, without a branch: compilers make vectors of it. */
static inline uint32_t either(int is_a, uint32_t a, uint32_t b) {
    uint32_t mask = 0u - (uint32_t)is_a;
    return (a & mask) | (b & ~mask);
}

/* Rounds to the nearest float8_e4m3fn, of two the even one. Numbers beyond 448, infinity too, become 448 with their
   sign, and NaN stays NaN. */
static inline uint8_t to_fp8(uint32_t bits) {
    uint32_t sign = bits >> 24 & 0x80, size = bits & 0x7fffffff, code;
    const float unit = 16384.0f; /* whose last place is 2^-9, as that of small codes is */
    float small;
    memcpy(&small, &size, sizeof small);
    small += unit;
    uint32_t unit_bits, small_bits;
    memcpy(&unit_bits, &unit, sizeof unit_bits);
    memcpy(&small_bits, &small, sizeof small_bits);
    code = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
    code = either(size < 121u << 23, small_bits - unit_bits, code);
    code = either((int32_t)code > 0x7e, 0x7e, code);
    return (uint8_t)(sign | either(size > 0x7f800000u, 0x7f, code));
}

/* Returns the bits of the float32 that a code stands for; the lower half of them is zero. */
static inline uint32_t of_fp8(uint8_t code) {
    uint32_t size = code & 0x7f, small_bits, bits = (size << 20) + (120u << 23);
    float small = (float)(int32_t)size * 0x1p-9f;
    memcpy(&small_bits, &small, sizeof small_bits);
    bits = either(size == 0x7f, 0x7fc00000u, either(size < 8, small_bits, bits));
    return bits | (uint32_t)(code & 0x80) << 24;
}

/* Stores `count` numbers as codes. */
static inline void pack_fp8(Type type, const void *numbers, int64_t count, uint8_t *to) {
    const bf16 *halves = numbers;
    const uint32_t *floats = numbers;
    if (type == BFLOAT16)
        for (int64_t i = 0; i < count; i++)
            to[i] = to_fp8((uint32_t)halves[i] << 16);
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = to_fp8(floats[i]);
}

/* Stores the numbers of `count` codes, which is exact in either type. */
static inline void unpack_fp8(Type type, const uint8_t *codes, int64_t count, void *to) {
    bf16 *halves = to;
    uint32_t *floats = to;
    if (type == BFLOAT16)
        for (int64_t i = 0; i < count; i++)
            halves[i] = (bf16)(of_fp8(codes[i]) >> 16);
    else
        for (int64_t i = 0; i < count; i++)
            floats[i] = of_fp8(codes[i]);
}
