"""The suite `online`: the joiner, the publisher and followers."""
