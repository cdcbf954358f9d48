/* Makes tables of cosines and sines that have the same bits on every CPU. It uses only operations that IEEE 754 defines
   to the last bit; the functions of the C library depend on the CPU. */
#include <string.h>

#include "kernels.h"

/* pi / 2 in two parts: the first has 33 bits, so that its multiples are exact. */
#define QUARTER 1.57079632673412561417e+00
#define QUARTER_REST 6.07710050650619224932e-11

/* Sine and cosine of an angle from 0 to a million, to 15 digits, by the polynomials of fdlibm. */
static inline void sine_and_cosine(double angle, double *sine, double *cosine) {
    const double to_integer = 6755399441055744.0; /* 1.5 * 2^52 */
    double shifted = angle * 0.636619772367581382433 + to_integer, quarters = shifted - to_integer;
    double x = (angle - quarters * QUARTER) - quarters * QUARTER_REST, z = x * x;
    double s = 1.58969099521155010221e-10;
    s = s * z + -2.50507602534068634195e-08;
    s = s * z + 2.75573137070700676789e-06;
    s = s * z + -1.98412698298579493134e-04;
    s = s * z + 8.33333333332248946124e-03;
    s = s * z + -1.66666666666666324348e-01;
    double c = -1.13596475577881948265e-11;
    c = c * z + 2.08757232129817482790e-09;
    c = c * z + -2.75573143513906633035e-07;
    c = c * z + 2.48015872894767294178e-05;
    c = c * z + -1.38888888888741095749e-03;
    c = c * z + 4.16666666666666019037e-02;
    double of_sine = x + x * z * s, of_cosine = (1.0 - 0.5 * z) + z * z * c;
    int64_t quadrant;
    memcpy(&quadrant, &shifted, sizeof quadrant); /* its lowest bits count quarters */
    double first = quadrant & 1 ? of_cosine : of_sine, second = quadrant & 1 ? of_sine : of_cosine;
    *sine = quadrant & 2 ? -first : first;
    *cosine = (quadrant + 1) & 2 ? -second : second;
}

static void put(Type type, void *table, int64_t place, double number) {
    float rounded = (float)number;
    if (type == FLOAT32) {
        ((float *)table)[place] = rounded;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    ((bf16 *)table)[place] = (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void make_rope_tables(Type type, const float *frequencies, int64_t half, int64_t positions, void *cosines,
                      void *sines) {
    for (int64_t position = 0; position < positions; position++)
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)position * frequencies[i]; /* rounded to float32, as in training */
            double sine, cosine;
            sine_and_cosine(angle, &sine, &cosine);
            int64_t place = position * 2 * half + i;
            put(type, cosines, place, cosine);
            put(type, cosines, place + half, cosine);
            put(type, sines, place, -sine);
            put(type, sines, place + half, sine);
        }
}
