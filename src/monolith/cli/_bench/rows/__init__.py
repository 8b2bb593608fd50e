"""One module for each row of the table, each with one `measure(setting)` that returns measurements."""
