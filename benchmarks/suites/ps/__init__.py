"""The suite `ps`: parameter servers as processes of this machine."""
