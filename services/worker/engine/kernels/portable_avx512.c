#ifdef __x86_64__
#include "level_avx512.h"

#define OPERATIONS portable_avx512
#include "portable.h"

#include "end_target.h"
#endif
