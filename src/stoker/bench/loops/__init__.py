"""Training loops that benchmarks run in child processes; they import torch and nothing of Stoker."""
