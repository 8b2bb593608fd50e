"""What ``monolith log`` is made of: `lines` shows an increment, `listing` a log; `verifying` and `compacting` work."""
