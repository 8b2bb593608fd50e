"""Hook that runs the publisher of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.data import known_times
from monolith.deltalog.publish import POSITION_NAME, DeltaPublisher, LogPosition, Trained
from monolith.hook import Hook, HookedSession, StepContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from monolith.deltalog import DeltaLog


class DeltaPublishHook(Hook):
    """Hook that publishes the changes of a session until its end. Runs after the hooks that restore the session.

    Checkpoints of the session carry the position of the log. A restored session first publishes again what had been
    logged after that position; if the position is no longer in the log, it starts with a base. When another writer
    claims the log, the session ends. If the positions of the input contain the times of its examples, as those of a
    stream do, staleness counts from the oldest example, otherwise from the newest.

    Args:
        log: A path or URL, or a `DeltaLog`.
        publish_dense: Whether to publish the dense weights and buffers of the model, too.
        options: Fields of `PublisherConfig`, except those that the session sets.
    """

    def __init__(self, log: DeltaLog | str, *, publish_dense: bool = True, **options: Any) -> None:
        self._log = log
        self._publish_dense = publish_dense
        self._options = options
        self.publisher: DeltaPublisher | None = None
        """Publisher of the session; None before the session started."""

    def after_create_session(self, session: HookedSession) -> None:
        """Claims the log and starts the publishing thread."""
        state = session.state
        publisher = DeltaPublisher(
            state.stores,
            self._log,
            dense=(lambda: _dense_weights(state.model)) if self._publish_dense else None,
            step_lock=session.step_lock,
            on_replaced=session.request_stop,
            **self._options,
        )
        origin = state.restored_from
        if origin is not None:
            publisher.restored = LogPosition.of_checkpoint(
                origin.positions, place=publisher.log.place, step=origin.step
            )
        state.witnesses[POSITION_NAME] = publisher
        self.publisher = publisher
        session.on_close(publisher.close)
        publisher.start()

    def after_run(self, context: StepContext) -> None:
        """Counts the step.

        Raises:
            AbortedError: another writer has the log.
        """
        session = context.session
        if self.publisher is None:
            return
        self.publisher.require_own()
        stamps = dict(session.state.applied)
        examples = 0 if session.last is None else session.last.num_examples
        newest = max((stamp.event_time_ms for stamp in stamps.values()), default=0)
        known = [times for stamp in stamps.values() if (times := known_times(stamp.position)) is not None]
        oldest = min((first for first, _ in known), default=newest)
        newest = max((last for _, last in known), default=newest)
        self.publisher.tally.add(Trained(examples, oldest, newest, session.global_step, stamps))


def _dense_weights(model: nn.Module | None) -> Mapping[str, Tensor]:
    """Returns weights and buffers, such as normalisation statistics: a model needs both to predict identically."""
    if model is None:
        return {}
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {**weights, **_saved_buffers(model)}


def _saved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Returns the buffers of the state dict, without non-persistent ones."""
    return {
        f"{prefix}{'.' if prefix else ''}{name}": buffer.detach()
        for prefix, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set  # noqa: SLF001 - torch has no public accessor
    }
