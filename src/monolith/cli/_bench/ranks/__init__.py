"""What ranks of a benchmark do, one module for each program; `rank_processes` starts them.

A program is `opened(setting, **options)`: it opens what it needs and yields its kinds of steps by name, each a function
of the number of the step.
"""
