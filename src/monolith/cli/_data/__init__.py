"""What ``monolith data`` is made of. Read `opening` first: what an input is, and how its format is detected.

`table_files` reads columns, `writing` writes every format, `describing` prints samples, and `statistics` counts them.
"""
