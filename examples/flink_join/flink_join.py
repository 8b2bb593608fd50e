"""The machine of `monolith joiner` inside Flink: for sites whose streams run there already.

    python flink_join.py --impressions impressions/ --actions actions/ --output examples/

An input is a file or a folder of text files with one JoinEvent a line, in base64; the output is a folder with one
example a line. Flink keeps what is undecided as keyed state, has the timers, and commits; it numbers no examples.
"""

from __future__ import annotations

import argparse
import base64
import sys
from typing import TYPE_CHECKING, Any

from pyflink.common import Configuration, Duration, Encoder, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedCoProcessFunction, RuntimeExecutionMode, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink, FileSource, StreamFormat
from pyflink.datastream.state import ValueStateDescriptor

from monolith.online.joiner import (
    Event,
    ExampleWriter,
    JoinMachine,
    JoinRuleConfig,
    decode_event,
    pack_entries,
    unpack_entries,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())


def event_of(line: str) -> Event:
    """The event of a line; one that is none ends the job, and Flink tells why."""
    return decode_event(base64.b64decode(line))


class Join(KeyedCoProcessFunction):  # type: ignore[misc]  # PyFlink is not installed where types are checked
    """Decides about one key at a time: its entry is Flink's state, its due time Flink's timer."""

    def __init__(self, rules: JoinRuleConfig, sample: str) -> None:
        self._rules, self._sample = rules, sample

    def open(self, runtime_context: Any) -> None:
        """Called where the keys are."""
        self._entry = runtime_context.get_state(ValueStateDescriptor("entry", _BYTES))
        self._writer = ExampleWriter(self._rules, self._sample)

    def process_element1(self, value: str, ctx: Any) -> Iterator[str]:
        """An impression."""
        machine = self._machine(ctx.timer_service().current_watermark())
        machine.take([event_of(value)])
        yield from self._keep(machine, ctx)

    process_element2 = process_element1

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[str]:
        """The window of a key closes, or the key is forgotten."""
        machine = self._machine(timestamp)
        machine.advance(timestamp)
        yield from self._keep(machine, ctx)

    def _machine(self, watermark_ms: int) -> JoinMachine:
        machine = JoinMachine(self._rules, watermark_ms=max(0, watermark_ms))
        saved = self._entry.value()
        if saved is not None:
            for key, entry in unpack_entries(bytes(saved)):
                if entry is not None:
                    machine.insert(key, entry)
        return machine

    def _keep(self, machine: JoinMachine, ctx: Any) -> Iterator[str]:
        if machine.entries:
            self._entry.update(pack_entries(machine.entries.items()))
            for entry in machine.entries.values():
                ctx.timer_service().register_event_time_timer(entry.due_ms)
        else:
            self._entry.clear()
        for joined in machine.take_outgoing():
            yield base64.b64encode(self._writer.example(joined)).decode()


class TimeOfEvent(TimestampAssigner):  # type: ignore[misc]  # as above
    """When it happened, by its record."""

    def extract_timestamp(self, value: str, record_timestamp: int) -> int:  # noqa: ARG002 - as PyFlink calls it
        """In milliseconds."""
        return event_of(value).time_ms


def build(env: StreamExecutionEnvironment, args: argparse.Namespace) -> None:
    """Puts the join together."""
    rules = JoinRuleConfig(window_seconds=args.window_seconds, disorder_seconds=args.disorder_seconds)
    disorder = Duration.of_millis(round(rules.disorder_seconds * 1000))
    idle = Duration.of_millis(round(rules.idle_seconds * 1000))
    times = WatermarkStrategy.for_bounded_out_of_orderness(disorder).with_idleness(idle)
    keyed = []
    for name in ("impressions", "actions"):
        source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), getattr(args, name)).build()
        lines = env.from_source(source, WatermarkStrategy.no_watermarks(), name)
        timed = lines.assign_timestamps_and_watermarks(times.with_timestamp_assigner(TimeOfEvent()))
        keyed.append(timed.key_by(lambda line: event_of(line).key.hex(), Types.STRING()))
    impressions, actions = keyed
    joined = impressions.connect(actions).process(Join(rules, args.sample), Types.STRING())
    joined.sink_to(FileSink.for_row_format(args.output, Encoder.simple_string_encoder()).build())


def main(arguments: list[str] | None = None) -> int:
    """Run the job to the end of its inputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("impressions", "actions", "output"):
        parser.add_argument(f"--{name}", required=True, help="a folder of text files")
    parser.add_argument("--window_seconds", type=float, default=600.0)
    parser.add_argument("--disorder_seconds", type=float, default=5.0)
    parser.add_argument("--sample", default="example", help="what the samples of impressions are: example or instance")
    args = parser.parse_args(arguments)
    settings = Configuration()
    settings.set_string("python.client.executable", sys.executable)
    settings.set_string("python.executable", sys.executable)
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.set_runtime_mode(RuntimeExecutionMode.STREAMING)
    env.set_parallelism(1)
    build(env, args)
    env.execute("join")
    return 0


if __name__ == "__main__":
    sys.exit(main())
