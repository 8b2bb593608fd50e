"""Benchmarks of a checkout; `README.md` describes what they measure. They are not part of the installed package."""
