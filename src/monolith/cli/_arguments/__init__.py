"""Arguments of commands, separate from their work: a module here declares those of the command of its name.

Help and usage errors need only this package, which is fast: it does not import torch.
"""
