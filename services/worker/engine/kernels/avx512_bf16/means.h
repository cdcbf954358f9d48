/* How the products of a pair of inputs are added. Include this after vectors.h. */
#pragma once

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Lets fused multiply-adds round and flush as VDPBF16PS does. Returns MXCSR as it was. Sums are made by functions that
   are not inlined, as compilers would move arithmetic beyond this. */
ALWAYS_INLINE uint32_t begin_sums(Means means) {
    uint32_t before = _mm_getcsr();
    if (means == FMA)
        _mm_setcsr(0x9fc0);
    return before;
}

/* The first and the second bfloat16 of each of 16 pairs. */
ALWAYS_INLINE __m512 first_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
ALWAYS_INLINE __m512 second_of(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}
