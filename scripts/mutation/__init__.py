"""What `scripts/mutate` is made of: small faults put into private copies of the tree, and the tests that should notice.

Neither of the usual tools does it here. mutmut wants to be the importer of the package, which an editable install with
a compiled extension already is; cosmic-ray changes the working tree in place and runs one command for every mutant,
which takes a day over this many tests. Neither samples, and neither knows C++.
"""
