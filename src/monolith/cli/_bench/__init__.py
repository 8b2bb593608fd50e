"""The measurements of `monolith bench`; `benchmarks/run.py` of a checkout measures more rows with the same runner.

Every row measures ours and its peer in one run, alternating, because a machine drifts by more than the differences
that matter. Read `catalog.py` first: it lists the rows and the function of each. `runner.py` runs each row in a process
of its own, so that memory is clean and a crash costs one row only.
"""
