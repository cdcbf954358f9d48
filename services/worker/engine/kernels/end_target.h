/* Ends the target attribute that level_*.h or vectors.h begins, for clang. Include this last. */
#ifdef __clang__
#pragma clang attribute pop
#endif
