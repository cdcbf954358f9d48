/* The operations that variants are made of, each by its own source files. */
#pragma once

#include "kernels.h"

extern const Operations portable_plain[2];

#ifdef __x86_64__
extern const Operations portable_avx2[2], portable_avx512[2], amx_operations;
Operations avx512_bf16_operations(int by_fma);
#endif
