/* The end of what level_*.h begins, for clang. To be included last. */
#ifdef __clang__
#pragma clang attribute pop
#endif
