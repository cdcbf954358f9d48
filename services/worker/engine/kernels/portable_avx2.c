#ifdef __x86_64__
#include "level_avx2.h"

#define OPERATIONS portable_avx2
#include "portable.h"

#include "end_target.h"
#endif
