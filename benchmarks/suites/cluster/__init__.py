"""The suite `cluster`: jobs of many processes."""
