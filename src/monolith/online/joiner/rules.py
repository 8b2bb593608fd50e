"""By which rules impressions and actions become examples."""

from __future__ import annotations

from monolith.config import Config, config, require_at_least, require_between, require_finite, require_positive

__all__ = ["JoinRules"]

_CHOICES = {"mode": ("wait", "fast_emit"), "late_actions": ("drop", "count", "correct")}


@config
class JoinRules(Config):
    """What is joined, when an example goes out, and what it says. All times are times of events."""

    window_seconds: float = 600.0
    """An action counts that happened at most so long after its impression, or before it, if clocks differ."""
    mode: str = "wait"
    """``"wait"``: a positive goes out with its first action, a negative when its window closes. ``"fast_emit"``: a
    negative goes out with its impression, and a correction that names it (`pre_actions`) with each new action."""
    late_actions: str = "count"
    """Of actions whose example is out already (in ``"wait"`` also the second action of a positive). ``"drop"``: a key
    is forgotten when its window closes, what comes then has no impression. ``"count"``: it is known for `late_seconds`
    more, late ones are counted apart. ``"correct"``: its sample is kept so long, and each one is a correction."""
    late_seconds: float | None = None
    """Default: once more `window_seconds`."""
    disorder_seconds: float = 5.0
    """How much older than the newest event before it an event of one input may be and still be in time."""
    idle_seconds: float = 10.0
    """An input at its end that has brought nothing for so long holds the time of events back no longer."""
    max_ahead_seconds: float = 3600.0
    """Events so far ahead of this machine's clock are left out, and counted: they would close all windows."""
    negative_rate: float = 1.0
    """Share of negatives that go out; every example carries it as `LineId.sample_rate`, by which logits are
    corrected."""
    seed: int = 0
    """Of the draw, which is a function of the seed and the key."""
    negative_action: int | None = None
    """The action that stands for none: negatives carry it, and corrections name it in `pre_actions`."""
    tasks: tuple[tuple[int, ...], ...] = ()
    """For each label of an example, the actions that make it positive; none: one label, and every action does."""
    negative_label: float = 0.0
    """A positive one is 1."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"JoinRules: {name} must be one of {choices}, got {getattr(self, name)!r}")
        require_positive(self, "window_seconds", "idle_seconds", "max_ahead_seconds")
        require_at_least(self, 0, "disorder_seconds")
        require_finite(self, "negative_label")
        require_between(self, 0.0, 1.0, "negative_rate")
        if self.negative_rate == 0:
            raise ValueError("JoinRules: negative_rate must be above 0: logits are corrected by its logarithm")
        self._check_late()
        object.__setattr__(self, "tasks", tuple(tuple(map(int, actions)) for actions in self.tasks))
        if any(not actions for actions in self.tasks):
            raise ValueError(f"JoinRules: every task needs an action that makes it positive, got {self.tasks}")
        if self.negative_action in {action for actions in self.tasks for action in actions}:
            raise ValueError(f"JoinRules: negative_action {self.negative_action} makes a task of {self.tasks} positive")

    def _check_late(self) -> None:
        if self.late_seconds is not None:
            require_positive(self, "late_seconds")
            if self.late_actions == "drop":
                raise ValueError('JoinRules: late_seconds has no effect with late_actions "drop"; leave it out')
        if self.negative_action is None and self.mode == "fast_emit":
            raise ValueError('JoinRules: mode "fast_emit" needs negative_action, which corrections name in pre_actions')
        if self.negative_action is None and self.late_actions == "correct":
            raise ValueError('JoinRules: late_actions "correct" needs negative_action, which corrections name')

    @property
    def window_ms(self) -> int:
        """The window in milliseconds."""
        return round(self.window_seconds * 1000)

    @property
    def late_ms(self) -> int:
        """How long a key is known behind its window."""
        if self.late_actions == "drop":
            return 0
        return round((self.window_seconds if self.late_seconds is None else self.late_seconds) * 1000)

    @property
    def keeps_samples(self) -> bool:
        """Whether an example may go out again with more actions."""
        return self.mode == "fast_emit" or self.late_actions == "correct"
