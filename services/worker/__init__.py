"""Owns one GPU or CPU core: parameters, the engine, the KV cache, live scaling."""
