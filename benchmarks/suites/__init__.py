"""The suites of `benchmarks/run.py`: `catalog.py` lists their rows.

Every row is a function that takes a `Setting` and returns measurements. The runner of `monolith bench` runs each row in
a process of its own.
"""
