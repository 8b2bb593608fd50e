"""The parts of `scripts/mutate`: it injects small faults into private copies of the tree and runs the tests on them.

The usual tools do not fit. mutmut must import the package itself, which an editable install with a compiled extension
already does. cosmic-ray edits the working tree in place and runs one command for every mutant, which takes a day with
this number of tests. Neither of the two samples mutants, and neither supports C++.
"""
