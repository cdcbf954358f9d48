#include "level_plain.h"

#define OPERATIONS portable_plain
#include "portable.h"
