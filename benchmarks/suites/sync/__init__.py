"""The suite `sync`: ranks of synchronous training as processes of this machine."""
