"""The benchmark: `python -m benchmarks.bench`. See README.md in this directory."""
