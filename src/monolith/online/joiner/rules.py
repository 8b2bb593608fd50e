"""Rules for joining impressions and actions into examples."""

from __future__ import annotations

from monolith.config import Config, config, require_at_least, require_between, require_finite, require_positive

_CHOICES = {"mode": ("wait", "fast_emit"), "late_actions": ("drop", "count", "correct")}


@config
class JoinRuleConfig(Config):
    """What is joined, when an example is emitted, and what it contains. All times are event times."""

    window_seconds: float = 600.0
    """Maximum time between an impression and its action, in either direction, since clocks differ."""
    mode: str = "wait"
    """``"wait"``: a positive is emitted with its first action, a negative when its window closes. ``"fast_emit"``: a
    negative is emitted with its impression, and a correction that names it (`pre_actions`) with each new action."""
    late_actions: str = "count"
    """Policy for actions whose example was already emitted (in ``"wait"`` also the second action of a positive).
    ``"drop"``: a key is discarded when its window closes, and later actions are unmatched. ``"count"``: the key is kept
    for `late_seconds` more, and late actions are counted separately. ``"correct"``: its sample is kept for that time,
    too, and each late action emits a correction."""
    late_seconds: float | None = None
    """How long a key is kept after its window; None: `window_seconds`."""
    disorder_seconds: float = 5.0
    """How much older than the newest previous event of its input an event may be and still be in time."""
    idle_seconds: float = 10.0
    """After this time without records, an input at its end no longer holds back the watermark."""
    max_ahead_seconds: float = 3600.0
    """Events further ahead of this machine's clock are skipped and counted: they would close all windows."""
    negative_rate: float = 1.0
    """Fraction of negatives that are emitted; every example carries it as `LineId.sample_rate`, for logit
    correction."""
    seed: int = 0
    """Seed of the sampling, which is a function of the seed and the key."""
    negative_action: int | None = None
    """The action that stands for none: negatives carry it, and corrections name it in `pre_actions`."""
    tasks: tuple[tuple[int, ...], ...] = ()
    """For each label of an example, the actions that make it positive; none: one label, and every action does."""
    negative_label: float = 0.0
    """Label of a negative; that of a positive is 1."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"JoinRuleConfig: {name} must be one of {choices}, got {getattr(self, name)!r}")
        require_positive(self, "window_seconds", "idle_seconds", "max_ahead_seconds")
        require_at_least(self, 0, "disorder_seconds")
        require_finite(self, "negative_label")
        require_between(self, 0.0, 1.0, "negative_rate")
        if self.negative_rate == 0:
            raise ValueError("JoinRuleConfig: negative_rate must be above 0: logits are corrected by its logarithm")
        self._check_late()
        object.__setattr__(self, "tasks", tuple(tuple(map(int, actions)) for actions in self.tasks))
        if any(not actions for actions in self.tasks):
            raise ValueError(f"JoinRuleConfig: every task needs an action that makes it positive, got {self.tasks}")
        if self.negative_action in {action for actions in self.tasks for action in actions}:
            raise ValueError(
                f"JoinRuleConfig: negative_action {self.negative_action} makes a task of {self.tasks} positive"
            )

    def _check_late(self) -> None:
        if self.late_seconds is not None:
            require_positive(self, "late_seconds")
            if self.late_actions == "drop":
                raise ValueError('JoinRuleConfig: late_seconds has no effect with late_actions "drop"; leave it out')
        if self.negative_action is None and self.mode == "fast_emit":
            raise ValueError(
                'JoinRuleConfig: mode "fast_emit" needs negative_action, which corrections name in pre_actions'
            )
        if self.negative_action is None and self.late_actions == "correct":
            raise ValueError('JoinRuleConfig: late_actions "correct" needs negative_action, which corrections name')

    @property
    def window_ms(self) -> int:
        """The window in milliseconds."""
        return round(self.window_seconds * 1000)

    @property
    def late_ms(self) -> int:
        """How long a key is kept after its window, in milliseconds."""
        if self.late_actions == "drop":
            return 0
        return round((self.window_seconds if self.late_seconds is None else self.late_seconds) * 1000)

    @property
    def keeps_samples(self) -> bool:
        """Whether an example may be emitted again with more actions."""
        return self.mode == "fast_emit" or self.late_actions == "correct"
