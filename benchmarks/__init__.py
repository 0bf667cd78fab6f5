"""Benchmark models and measurements for remat_plan."""
