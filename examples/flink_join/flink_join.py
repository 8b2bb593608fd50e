"""The join of `monolith joiner` as a Flink job, for deployments whose streams already run in Flink.

    python flink_join.py --impressions impressions/ --actions actions/ --output examples/

An input is a file, or a folder of text files, with one JoinEvent in base64 per line; the output is a folder with one
example per line. Flink stores the pending joins as keyed state, runs the timers, and commits. It does not number
examples.
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
    """Decode the event of a line; an invalid line fails the job, and Flink reports the error."""
    return decode_event(base64.b64decode(line))


class Join(KeyedCoProcessFunction):  # type: ignore[misc]  # PyFlink is not installed where types are checked
    """Joins the events of one key at a time; the entry of the key is keyed state, its due time is a timer."""

    def __init__(self, rules: JoinRuleConfig, sample: str) -> None:
        self._rules, self._sample = rules, sample

    def open(self, runtime_context: Any) -> None:
        """Open the state of the keys."""
        self._entry = runtime_context.get_state(ValueStateDescriptor("entry", _BYTES))
        self._writer = ExampleWriter(self._rules, self._sample)

    def process_element1(self, value: str, ctx: Any) -> Iterator[str]:
        """Process an impression or an action."""
        machine = self._machine(ctx.timer_service().current_watermark())
        machine.take([event_of(value)])
        yield from self._keep(machine, ctx)

    process_element2 = process_element1

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[str]:
        """Close the window of a key, or remove its entry."""
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
    """Reads event times from the records."""

    def extract_timestamp(self, value: str, record_timestamp: int) -> int:  # noqa: ARG002 - as PyFlink calls it
        """Return the time of an event in milliseconds."""
        return event_of(value).time_ms


def build(env: StreamExecutionEnvironment, args: argparse.Namespace) -> None:
    """Build the dataflow of the join."""
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
    parser.add_argument("--sample", default="example", help="type of the samples of impressions: example or instance")
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
