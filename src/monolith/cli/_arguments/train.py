"""The arguments of ``monolith train``: those that matter, grouped; ``--help-all`` shows all others, too."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

OPTION_PREFIX = "option_"
"""Prefix of the names of parsed options of a run; `monolith.train.parameters.flags` reads them."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a run that most users meet, as `RunnerConfig` has it."""

    name: str
    help: str
    default: Any = field(default=None, kw_only=True)
    metavar: str = field(default="VALUE", kw_only=True)


MATTERING = {
    "where the model is kept": (
        Option("model_dir", "checkpoints and logs; a run resumes from those it finds", metavar="DIR"),
        Option("save_checkpoints_steps", "steps between checkpoints (default: one at the end)", metavar="N"),
        Option("save_checkpoints_secs", "seconds between checkpoints", metavar="S"),
        Option("checkpoints_max_to_keep", "newest checkpoints that stay", default=10, metavar="N"),
        Option("restore_dir", "begin with the latest of another directory", metavar="DIR"),
        Option(
            "restart_input",
            "with --restore_dir: read the input from its beginning, such as a stream after files",
            default=False,
        ),
        Option("restore_ckpt", "begin with this checkpoint instead of the latest", metavar="NAME"),
        Option("clear_nn", "keep the rows, reset the dense weights", default=False),
        Option(
            "leave_out",
            "dense weights that start from their initial values, once: names or patterns such as 'tower.*',"
            " separated by commas",
            metavar="NAMES",
        ),
        Option(
            "ignore_unknown_tables",
            "skip tables that only the checkpoint has, such as those of a removed slot",
            default=False,
        ),
    ),
    "input, for tasks that read it from these": (
        Option("input_path", "folder or URL of the files", metavar="PATH"),
        Option("wildcard", "which files of it", metavar="GLOB"),
        Option("start_date", "first day", metavar="YYYYMMDD"),
        Option("end_date", "day after the last one", metavar="YYYYMMDD"),
        Option("kafka_servers", "brokers of a stream", metavar="HOSTS"),
        Option("kafka_topics", "its topics, separated by commas", metavar="NAMES"),
        Option("kafka_group_id", "its consumer group", metavar="NAME"),
    ),
    "rows and speed": (
        Option("feature_eviction_on_save", "drop expired rows on saving", default=False),
        Option(
            "feature_evict_every_n_hours",
            "drop them within this event time (default: an hour for each day of expire_days); 0: do not",
            metavar="H",
        ),
        Option("embedding_prefetch_capacity", "batches whose rows are read ahead", default=0, metavar="N"),
        Option("enable_embedding_postpush", "update rows during the next step", default=False),
        Option("intra_op_parallelism_threads", "threads of torch (default: what torch takes)", metavar="N"),
    ),
    "a job of several processes": (
        Option("num_workers", "workers; more than one makes a job of processes", default=1, metavar="N"),
        Option("num_ps", "parameter servers, which hold rows and dense weights", default=0, metavar="N"),
        Option("enable_dynamic_sharding", "workers take files from one queue", default=False),
        Option("partial_recovery", "a lost server restores itself, others keep their state", metavar="BOOL"),
    ),
    "updates for serving": (
        Option("enable_realtime_training", "publish what changes to a delta log, which serving follows", default=False),
        Option("delta_log", "where the delta log is (default: delta_log in --model_dir)", metavar="URL"),
    ),
    "watching": (
        Option("log_step_count_steps", "steps between log lines; 0: none", default=100, metavar="N"),
        Option("disable_native_metrics", "no AUC of training in the log", default=True),
        Option("profile_some_steps_from", "profile ten steps from here on", metavar="STEP"),
        Option("serve_controller", "let monolith control reach it (default: with grpcio)", metavar="BOOL"),
    ),
}
"""Group to its options."""

_PARAMETER = "a task that declares it as a parameter takes --params_override '{{\"{0}\": {1}}}'"
_LEARNING_RATE = (
    "the learning rate belongs to the task: of rows in Slot(learning_rate=...), of dense weights in the optimizer that"
    f" Task.optimizers returns; {_PARAMETER.format('learning_rate', '0.01')}"
)
_GPU = (
    "did you mean --enable_gpu_training true? The dense part then computes on a GPU; a run of one process keeps its"
    " tables on it, too, with --params_override '{\"train.use_gpu_emb_table\": true}'"
)
_ALERTS = "alerts are not sent from here, nor were they by the published original: watch the emitted metrics instead"
ALERTS = {"--monolith_alert_proto": _ALERTS, "--monolith_chief_alert_proto": _ALERTS}
"""Flags of ByteDance Monolith about alerts, which every command of a job refuses."""
MEANT = {
    "--lr": _LEARNING_RATE,
    "--learning_rate": _LEARNING_RATE,
    "--learning-rate": _LEARNING_RATE,
    "--batch_size": f"the batch size belongs to input_fn of the task; {_PARAMETER.format('batch_size', '512')}",
    "--batch-size": f"the batch size belongs to input_fn of the task; {_PARAMETER.format('batch_size', '512')}",
    "--epochs": "the data is read once, in time order; for more, repeat it in input_fn, or give --max_steps",
    "--num_epochs": "the data is read once, in time order; for more, repeat it in input_fn, or give --max_steps",
    "--optimizer": "optimizers belong to the task: Slot(optimizer=...) for rows, Task.optimizers for dense weights",
    "--seed": "a run is repeated bit for bit by --deterministic, which fixes the seed",
    "--resume": "the same command resumes automatically, from the latest checkpoint of --model_dir",
    "--gpu": _GPU,
    "--device": _GPU,
    "--output": "did you mean --model_dir?",
    "--output_dir": "did you mean --model_dir?",
    "--logdir": "did you mean --model_dir? Logs are kept there, too",
    "--checkpoint_dir": "did you mean --model_dir?",
    "--data": "did you mean --input_path? A task reads it, or names its files itself in input_fn",
    **ALERTS,
    "--train_data": "did you mean --input_path? A task reads it, or names its files itself in input_fn",
}
"""Flags of other programs, and their equivalents here."""


class HelpAll(argparse.Action):
    """Shows the help of a parser that has got all its flags."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:  # noqa: A002 - argparse's name
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.print_help()
        parser.exit()


def mattering_options() -> dict[str, Option]:
    """Returns the most common options, by name."""
    return {option.name: option for options in MATTERING.values() for option in options} | {
        option.name: option for option in (MODE, PARAMS_OVERRIDE)
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith train``."""
    parser.description = (
        "Trains a task: in this process, or with --num_workers in several of this machine. The same command"
        " resumes from the model directory; Ctrl-C finishes the step and saves. A model directory is never"
        " removed. Options of a run come from flags, from variables MONOLITH_<OPTION>, and from --config_file, in this"
        " order."
    )
    parser.epilog = "example: monolith train my_module:MyTask --model_dir /tmp/ranker --save_checkpoints_steps 1000"
    parser.usage = "monolith train TASK --model_dir DIR [options]"
    parser.allow_abbrev = False
    parser.add_argument("--help-all", action=HelpAll, help="show every option; docs/options.md also has the refused")
    what = parser.add_argument_group("what to do")
    what.add_argument("task", metavar="TASK", help="module:Class of a monolith.Task, or a registered name")
    add_option(what, MODE)
    what.add_argument("--steps", metavar="N", type=int, help="run N more steps (default: to the end of the data)")
    what.add_argument("--max_steps", metavar="N", type=int, help="train until the global step is this")
    what.add_argument("--out", metavar="FILE", help="of --mode predict: write .parquet, .csv or .jsonl, by the name")
    what.add_argument(
        "--key", action="append", metavar="COLUMN", help="of --out: also write this input column; may be repeated"
    )
    add_option(what, PARAMS_OVERRIDE)
    what.add_argument("--config_file", metavar="FILE", help="a TOML or JSON file with options")
    what.add_argument("--deterministic", action="store_true", help="repeat bit for bit: seed fixed, time from data")
    what.add_argument("--dry-run", action="store_true", help="build the task, read one batch, write nothing")
    what.add_argument("--print-config", action="store_true", help="print every option, its value and its origin")
    what.add_argument("--json", action="store_true", help="print the result as JSON, and no progress")
    add_mattering(parser)
    _add_stream(parser)
    _add_launcher(parser)


def add_mattering(parser: argparse.ArgumentParser, *, without: Collection[str] = ()) -> None:
    """Adds the most common options of a run to a parser."""
    for title, options in MATTERING.items():
        group = parser.add_argument_group(title)
        for option in options:
            if option.name not in without:
                add_option(group, option)


MODE = Option("mode", "train, eval or predict", default="train", metavar="MODE")
PARAMS_OVERRIDE = Option(
    "params_override", "parameters of the task by name, such as '{\"batch_size\": 512}'", metavar="JSON"
)


def add_option(group: argparse._ArgumentGroup, option: Option) -> None:
    """Adds an option of a run to a parser; booleans need no value."""
    text = option.help if option.default is None else f"{option.help} (default: {str(option.default).lower()})"
    target = OPTION_PREFIX + option.name
    if isinstance(option.default, bool):
        group.add_argument(f"--{option.name}", dest=target, metavar="BOOL", nargs="?", const="true", help=text)
    else:
        group.add_argument(f"--{option.name}", dest=target, metavar=option.metavar, help=text)


STREAM_ONLY = ("stream_partitions", "stream_max_lag", "stream_missing", "stream_stop_at_end", "stream_kafka")
"""Arguments that mean nothing without ``--stream``."""


def _add_stream(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the source of live examples."""
    group = parser.add_argument_group("training on a stream")
    group.add_argument(
        "--stream",
        metavar="PLACE",
        help="train on the output of monolith joiner while it comes, each example once: kafka://HOST:PORT/TOPIC or a"
        " path with {partition} in it",
    )
    group.add_argument(
        "--stream_partitions", type=int, metavar="N", help="how many there are (default: what the topic has)"
    )
    group.add_argument(
        "--stream_max_lag", type=float, metavar="S", help="skip and count older examples (default: skip none)"
    )
    group.add_argument(
        "--stream_missing", choices=("raise", "count"), help="what to do about missing numbers (default: raise)"
    )
    group.add_argument("--stream_stop_at_end", action="store_true", default=None, help="stop at the current end")
    group.add_argument(
        "--stream_kafka", action="append", metavar="KEY=VALUE", help="a setting of librdkafka; repeatable"
    )


RESOURCES = ("ps_cpus", "ps_memory", "worker_cpus", "worker_memory")
"""Resources that each kind of process requests."""
MAX_RESTARTS = 10


def _add_launcher(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments by which ``monolith train`` starts the processes of a job."""
    group = parser.add_argument_group("how the processes of a job are started")
    group.add_argument(
        "--launcher",
        choices=("local", "ray"),
        help="local: processes of this machine; ray: actors of a Ray cluster (default: local, for several workers)",
    )
    group.add_argument(
        "--max_restarts",
        metavar="N",
        type=int,
        help=f"how often in a row a process that died is started again (default: {MAX_RESTARTS})",
    )
    group.add_argument(
        "--ray_address",
        metavar="ADDRESS",
        help="of --launcher ray: a running cluster, such as auto or HOST:6379 (default: RAY_ADDRESS, else a new one on"
        " this machine)",
    )
    add_resources(group, "of --launcher ray: ")


def add_resources(group: argparse._ArgumentGroup, condition: str = "") -> None:
    """Adds the options of the resources that a scheduler reserves for the processes of a job."""
    for kind, name in (("ps", "server"), ("worker", "worker")):
        group.add_argument(
            f"--{kind}_cpus", metavar="N", type=float, help=f"{condition}processors of a {name} (default: 1)"
        )
        group.add_argument(
            f"--{kind}_memory", metavar="BYTES", help=f"{condition}memory of a {name}, such as 16Gi (default: 4Gi)"
        )
