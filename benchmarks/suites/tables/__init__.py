"""Rows of the suite `tables` beyond those of `monolith bench`."""
