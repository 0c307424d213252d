"""`compile` on the CPU: chains of gated and sparse layers run by C++ kernels."""
