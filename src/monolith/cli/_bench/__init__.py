"""The measurements of `monolith bench` and `benchmarks/run.py`.

Every row of the table measures ours and its peer in one run, alternating, because a machine drifts by more than the
differences that matter. Read `catalog.py` first: it lists the rows; each row is a module of `rows/` with one function
that returns measurements. `runner.py` runs each row in a process of its own, so that memory is clean and a crash costs
one row only.
"""
