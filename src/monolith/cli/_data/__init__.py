"""What ``monolith data`` is made of. Read `opening` first: what an input is, and how its format is found out.

`to_example` brings every format to one, `writing` takes it to others, `describing` to text; `statistics` counts.
"""
