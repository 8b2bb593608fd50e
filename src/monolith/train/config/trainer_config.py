"""Config of a trainer: frozen, nested by owner."""

from __future__ import annotations

from typing import Literal

from monolith.checkpoint import CheckpointConfig, RestoreConfig
from monolith.config import Config, config, require_at_least, require_positive
from monolith.deltalog import transport_of
from monolith.deltalog.publish import PublisherConfig
from monolith.hooks import TideWindow  # noqa: TC001 - a field's type
from monolith.tables import NUM_BUCKETS, AdmissionFilter
from monolith.train._dense_step import DenseConfig
from monolith.train._table_pipeline import PipelineConfig
from monolith.train.config.input_options import InputConfig
from monolith.train.config.job_config import JobConfig, SyncConfig
from monolith.train.device_placement import DeviceConfig
from monolith.train.predict.candidate_items import CandidateItems  # noqa: TC001 - a field's type

RESTART_OF_A_JOB = (
    "restoring.restart_input (--restart_input) is for a run of one process; leave it out in a job and under a launcher,"
    " or begin the new model_dir with one process"
)


@config
class MarkerFilesConfig(Config):
    """Marker files in the model directory that save and stop a run; see ``docs/how-to/hooks.md``.

    Under a launcher rank 0 polls for them, and all ranks save and stop at the same step.
    """

    dump_look_steps: int | None = 100
    """Steps between polls for ``dump_<step>`` and ``stop_<step>``; the interval of the checkpoints then holds from
    18:00 to 20:00 UTC only. None: no polls."""
    limit_look_steps: int | None = 1000
    """Steps between polls for ``limit_req_time``, the request time at which to save and stop."""
    online_look_steps: int | None = None
    """Steps between polls for ``ONLINE``, the file that checkpoints without tables need."""

    def __post_init__(self) -> None:
        for name in ("dump_look_steps", "limit_look_steps", "online_look_steps"):
            if getattr(self, name) is not None:
                require_at_least(self, 1, name)


def _require_mode(mode: str) -> None:
    if mode not in {"max", "min"}:
        raise ValueError(f"SavingConfig: best_mode must be 'max' or 'min', got {mode!r}")


@config
class SavingConfig(CheckpointConfig):
    """When and how checkpoints are written, and which ones are kept.

    A job of several processes ignores `background` and writes in the background, unless it is deterministic: its
    workers wait for each other until the cut is taken.
    """

    every_steps: int | None = None
    """Steps from one to the next."""
    every_seconds: float | None = None
    """Or seconds; with neither there is one at the end only."""
    dense_every_steps: int | None = None
    """Steps between checkpoints without tables, in the folder ``dense_only``."""
    dense_every_seconds: float | None = None
    """Or seconds."""
    keep_every_hours: float | None = 24.0
    """One a day by default, as in ByteDance Monolith; see `CheckpointConfig`."""
    best_metric: str | None = None
    """`Trainer.evaluate` keeps the checkpoint whose value of this metric is the best, such as ``auc``; None: none."""
    best_mode: Literal["max", "min"] = "max"
    """Whether larger or smaller values of that metric are better."""
    evict_after: bool = False
    """Drop expired rows from memory after each checkpoint."""
    tide_window: TideWindow | None = None
    """Hours in which cheap machines are available."""
    tide_every_seconds: float | None = None
    """Seconds between checkpoints outside of that window."""
    marker_files: MarkerFilesConfig | None = None
    """Also save and stop by marker files in the model directory; None: no marker files."""
    ignore_errors: bool = False
    """Log a save that failed twice and continue training, as runs on live traffic do. False: it ends the run."""

    def __post_init__(self) -> None:
        for steps, seconds in (("every_steps", "every_seconds"), ("dense_every_steps", "dense_every_seconds")):
            if getattr(self, steps) is not None and getattr(self, seconds) is not None:
                raise ValueError(
                    f"SavingConfig: give {steps} or {seconds}, got both ({getattr(self, steps)},"
                    f" {getattr(self, seconds)})"
                )
            for name in (steps, seconds):
                if getattr(self, name) is not None:
                    require_positive(self, name)
        _require_mode(self.best_mode)
        if (self.tide_window is None) != (self.tide_every_seconds is None):
            raise ValueError("SavingConfig: tide_window and tide_every_seconds belong together; give both or neither")
        if self.tide_window is not None and self.every_steps is None and self.every_seconds is None:
            raise ValueError("SavingConfig: a tide window needs an interval for when it is open; give every_seconds")
        if self.marker_files is not None and self.marker_files.online_look_steps is not None:
            self._require_dense_interval()
        if self.max_to_keep is not None:
            require_at_least(self, 1, "max_to_keep")
        if self.keep_every_hours is not None:
            require_positive(self, "keep_every_hours")

    def _require_dense_interval(self) -> None:
        if self.dense_every_steps is None and self.dense_every_seconds is None:
            raise ValueError(
                "SavingConfig: marker_files.online_look_steps is about checkpoints without tables, of which there are"
                " none; give dense_every_steps or dense_every_seconds"
            )


@config
class RestoringConfig(RestoreConfig):
    """Initial state of a run, and what may differ between it and the saved one."""

    checkpoint: str | None = None
    """Base name of a checkpoint to begin with instead of the newest one; applied once to a model directory."""
    from_dir: str | None = None
    """Another model directory to take the first checkpoint from, while this one has none."""
    alone: bool = False
    """Prepare the directory for `from_dir` whatever the index is: there is no chief to wait for."""
    restart_input: bool = False
    """Read the input from its beginning after the checkpoint of `from_dir` was restored, such as to train on a stream
    a model that was trained on files. A run that resumes from its own checkpoints reads on from their position."""

    def __post_init__(self) -> None:
        RestoreConfig.__post_init__(self)
        if self.restart_input and self.from_dir is None:
            raise ValueError(
                "RestoringConfig: restart_input is about the checkpoint of another directory, and a run reads on in its"
                " own; give from_dir (--restore_dir) and a new model_dir, or leave it out"
            )


@config
class TablesConfig(Config):
    """Defaults for tables of tasks that do not set them."""

    admission: AdmissionFilter | None = None
    """Filter that counts occurrences."""
    initial_capacity: int | None = None
    """Initial capacity of a table in rows."""
    num_ps: int = 0
    """Parameter servers of a job. A run of one process starts none, and keeps its rows in one `LocalStore`: there this
    only sets the number of shards of exports with ``serving.export_mode`` DISTRIBUTED."""
    evict_every_seconds: float | None = None
    """Event time within which steps scan every row once and remove expired ones; 0: never. None: an
    hour for each day of a table's shortest `expire_days`, unless `evict_every_steps` is given."""
    evict_every_steps: int | None = None
    """Remove all expired rows after each step that this divides, instead."""

    def __post_init__(self) -> None:
        require_at_least(self, 0, "num_ps")
        if self.evict_every_steps is not None:
            require_positive(self, "evict_every_steps")
        if self.evict_every_seconds is not None:
            require_at_least(self, 0, "evict_every_seconds")
        if self.evict_every_steps is not None and self.evict_every_seconds:
            raise ValueError(
                "TablesConfig: give evict_every_steps or evict_every_seconds, got both"
                f" ({self.evict_every_steps}, {self.evict_every_seconds})"
            )
        if self.num_ps > NUM_BUCKETS:
            raise ValueError(f"TablesConfig: num_ps must be at most {NUM_BUCKETS}, got {self.num_ps}")


PROFILE_EVERY_STEPS = 5000
"""Default number of steps between profiles."""


@config
class ReportingConfig(Config):
    """What a run reports."""

    log_every_steps: int | None = 100
    """Steps between log lines with loss and speed; None: none."""
    progress: bool | None = None
    """Show a bar of the run on stderr; None: only in a terminal or a notebook. True: elsewhere too, as a line every ten
    seconds."""
    summary_every_steps: int | None = 100
    """Steps between records of loss, metrics, learning rates and table sizes, for the history that `Trainer.train`
    returns and for TensorBoard; None: none."""
    tensorboard: bool | None = None
    """Write these records into event files of the model directory; None: where TensorBoard is installed."""
    train_metrics: bool = False
    """Compute AUC, or squared error, of what was predicted in training, and log it with the above."""
    profile_from: int | None = None
    """First step that is profiled, ten at a time; None: none is."""
    profile_every_steps: int = PROFILE_EVERY_STEPS
    """Steps from one profile to the next."""
    throughput: bool = True
    """Emit how many steps are made, for dashboards."""
    cluster_type: str = "stable"
    """A tag of metrics."""
    job_name: str | None = None
    """Name of the job over many runs: metric names of the run have it after the prefix; None: no job name."""
    submit_time: int | None = None
    """When the job was submitted, Unix seconds; its start-up time is measured from there."""

    def __post_init__(self) -> None:
        if self.summary_every_steps is not None:
            require_at_least(self, 1, "summary_every_steps")
        if self.profile_every_steps != PROFILE_EVERY_STEPS and self.profile_from is None:
            raise ValueError(
                f"ReportingConfig: profile_every_steps={self.profile_every_steps} is about profiles, of which there are"
                " none; give profile_from"
            )
        if self.tensorboard and self.summary_every_steps is None:
            raise ValueError("ReportingConfig: tensorboard=True needs records; give summary_every_steps")


@config
class ControlConfig(Config):
    """The service by which an operator stops, resumes and saves a run; see ``docs/how-to/control.md``."""

    host: str | None = None
    """Interface to listen on, such as ``127.0.0.1``, or ``0.0.0.0`` for all; None: a Unix socket that only the user of
    this process can open. The address is written to the model directory."""
    port: int = 0
    """Port of the host; 0: a free one."""
    token_file: str | None = None
    """File with a secret that callers must present; None: no secret is required."""
    tls_certificate: str | None = None
    """File with a certificate, PEM; turns TLS on."""
    tls_key: str | None = None
    """File with its key."""
    tls_client_ca: str | None = None
    """File with the authorities whose certificates callers must show."""


@config
class PublishingConfig(Config):
    """What a run publishes to its followers; see `monolith.deltalog.publish`. Servers and ranks publish their rows."""

    log: str | None = None
    """The delta log: a folder, ``kafka://host:port/topic``, or a URL of fsspec; every process that stores rows must
    reach it. None: ``delta_log`` in the model directory."""
    interval: float = 1.0
    """Seconds between increments of rows, at least 0.1."""
    dense_interval: float = 60.0
    """Seconds between increments of dense weights, which the chief publishes."""
    base_folder: str | None = None
    """Where bases are written, for followers that cannot resume; None: in the log. Required for a log in Kafka."""

    def __post_init__(self) -> None:
        PublisherConfig(interval=self.interval, dense_interval=self.dense_interval)
        if self.log is not None and self.base_folder is None and not transport_of(self.log).holds_bases:
            raise ValueError(
                f"PublishingConfig: a log at '{self.log}' has no room for bases; give base_folder, a path or URL"
            )


@config
class ExportingConfig(Config):
    """How a run writes exports with its checkpoints; the task's parameters select which ones."""

    skip_zero: bool = False
    """Serving does not store rows of zeros; its answers are unchanged."""


@config
class TrainerConfig(Config):
    """Everything that configures a `Trainer`."""

    model_dir: str | None = None
    """Directory of checkpoints, a folder or an fsspec URL; None: nothing is saved."""
    mode: Literal["train", "eval", "predict"] = "train"
    """Mode of the trainer; modes other than ``train`` refuse `Trainer.train`."""
    model_name: str = ""
    """Under which name the model is known; the task's by default."""
    saving: SavingConfig = SavingConfig()
    """Checkpoints."""
    restoring: RestoringConfig = RestoringConfig()
    """Initial state of the run."""
    pipeline: PipelineConfig = PipelineConfig()
    """How far reads of tables run ahead of the model, and updates lag."""
    dense: DenseConfig = DenseConfig()
    """How far dense weights on servers run ahead of the model, and lag."""
    tables: TablesConfig = TablesConfig()
    """Defaults of tables."""
    device: DeviceConfig = DeviceConfig()
    """Device of the dense part, and of the tables."""
    reporting: ReportingConfig = ReportingConfig()
    """Logs, metrics and profiles."""
    control: ControlConfig | None = None
    """Serve the controller from the chief, where there is a model directory; None: do not."""
    publishing: PublishingConfig | None = None
    """Publish what is trained to a delta log; None: do not."""
    exporting: ExportingConfig = ExportingConfig()
    """How exports are written."""
    items: CandidateItems | None = None
    """Items of a `TwoStageTask` that are predicted after training, and exported with its tower of users; None: none."""
    job: JobConfig = JobConfig()
    """The processes of a job; a run of one needs none of it."""
    sync: SyncConfig | None = None
    """Train in step with the other ranks of a launcher's run; without a launcher it is a run of one. None: do not."""
    input: InputConfig = InputConfig()
    """Input options of the run: `Task.ctx.input`."""
    deterministic: bool = False
    """Take time from the data alone, begin with a fixed seed and wait for batches, so that a run can be repeated bit
    for bit."""
    only_feature_engineering: bool = False
    """Write the batches of training as files of ``ExampleBatch`` into ``features`` of the model directory, and train
    nothing."""
    worker_index: int = 0
    """Which worker this is; 0 is the chief, which saves."""
    num_workers: int = 1
    """Workers in all."""

    def __post_init__(self) -> None:
        require_at_least(self, 0, "worker_index")
        require_at_least(self, 1, "num_workers")
        if self.reporting.tensorboard and self.model_dir is None:
            raise ValueError("TrainerConfig: reporting.tensorboard writes into the model directory; give model_dir")
        if self.only_feature_engineering and self.model_dir is None:
            raise ValueError("TrainerConfig: only_feature_engineering writes into the model directory; give model_dir")
        if self.only_feature_engineering and self.device.gpu:
            raise ValueError(
                "TrainerConfig: only_feature_engineering computes nothing, and device.gpu (enable_gpu_training) sets"
                " where to compute; remove one of the two"
            )
        if self.saving.best_metric is not None and (self.model_dir is None or self.sync is not None):
            raise ValueError(
                "TrainerConfig: saving.best_metric keeps a checkpoint of one model directory; give model_dir, and leave"
                " it out where ranks have folders of their own (sync)"
            )
        if self.restoring.restart_input and (self.sync is not None or self.num_workers > 1):
            raise ValueError(f"TrainerConfig: {RESTART_OF_A_JOB}")
        if self.items is not None and self.model_dir is None:
            raise ValueError("TrainerConfig: what is predicted of items goes to the model directory; give model_dir")
        if self.saving.marker_files is not None and self.model_dir is None:
            raise ValueError("TrainerConfig: saving.marker_files are files of the model directory; give model_dir")
        if self.publishing is not None and self.publishing.log is None and self.model_dir is None:
            raise ValueError("TrainerConfig: the delta log is in the model directory: give model_dir or publishing.log")
        if self.worker_index >= self.num_workers:
            raise ValueError(
                f"TrainerConfig: worker_index must be below num_workers ({self.num_workers}), got {self.worker_index}"
            )


def require_training(mode: str, subject: str) -> None:
    """Refuses to train in a mode that only looks."""
    if mode != "train":
        raise ValueError(
            f"{subject}: mode is {mode!r}, and only 'train' trains; leave mode out, or call evaluate() or predict() of"
            " a trainer in one process"
        )
