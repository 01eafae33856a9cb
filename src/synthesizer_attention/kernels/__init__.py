"""Compiled kernels: in C on a CPU, by Triton on a GPU. attention/hook.py finds them."""
