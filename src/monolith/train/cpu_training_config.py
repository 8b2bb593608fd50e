"""`CpuTrainingConfig`: how a task is trained, by the names that the original's users know."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - read at run time, to parse options

from monolith.train.flat_config import FlatConfig, flat_config

__all__ = ["CpuTrainingConfig"]


@flat_config
class CpuTrainingConfig(FlatConfig):
    """How a task is trained. ``docs/options.md`` says which options do something here, and why the others do not.

    >>> config = CpuTrainingConfig(save_checkpoints_steps=500)
    >>> config.embedding_prefetch_capacity = 1
    >>> config
    CpuTrainingConfig(embedding_prefetch_capacity=1, save_checkpoints_steps=500)
    """

    server_type: str = "worker"
    """The role of this process; a trainer is a worker."""
    index: int = 0
    """Which one of its role; worker 0 is the chief."""
    num_ps: int = 0
    """Parameter servers, in the process of the worker; 0: its tables are in one piece."""
    num_workers: int = 1
    """Workers, the chief among them."""
    model_name: str = ""
    """Under which name the model is known; the task's by default."""
    filter_capacity: int = 300000000
    """Ids that the sliding filter remembers."""
    filter_split_num: int = 7
    """Parts of that memory, the oldest of which is forgotten."""
    filter_type: str = "sliding_hash_filter"
    """How occurrences are counted; also probabilistic_filter, no_filter."""
    filter_equal_probability: bool = True
    """Whether the probabilistic filter gives each occurrence the same chance."""
    hashtable_init_capacity: int = 0
    """Rows that a table has room for at once; 0: it begins small."""
    use_native_multi_hash_table: bool | None = None
    """One container for all tables, as it always is here."""
    embedding_prefetch_capacity: int = 0
    """Batches whose rows are read ahead."""
    enable_embedding_postpush: bool = False
    """Apply the gradients of rows beside the next step."""
    enable_variable_prefetch: bool = False
    """Copies of remote dense variables."""
    enable_variable_postpush: bool = False
    """Dense updates beside the next step."""
    enable_sync_training: bool = False
    """Synchronous training by collective calls."""
    enable_partial_sync_training: bool = False
    """Tables on servers, dense weights by collective calls."""
    enable_gpu_training: bool = False
    """Let models use a GPU."""
    processes_per_gpu: int = 1
    """Ranks that share a GPU."""
    merge_sync_training_ckpt: bool = True
    """All ranks save to one directory."""
    mode: str = "train"
    """What to do: train, eval or infer."""
    partial_recovery: bool | None = None
    """After a failure restore only the servers that lost their state."""
    tide_start_hour: int | None = None
    """When cheap machines come, UTC."""
    tide_start_minute: int | None = None
    """Minute of that hour."""
    tide_end_hour: int | None = None
    """When they go."""
    tide_end_minute: int | None = None
    """Minute of that hour."""
    tide_save_secs: int | None = None
    """Seconds between checkpoints outside of that window."""
    enable_realtime_training: bool = False
    """Train on a stream and send changes to serving."""
    enable_async_optimize: bool = False
    """A queue between gradients and their exchange."""
    enable_pipelined_fwda2a: bool = False
    """A queue between lookup and exchange."""
    enable_pipelined_bwda2a: bool = False
    """A queue between exchange and update."""
    profile_some_steps_from: int | None = None
    """First step that is profiled."""
    profile_save_steps_interval: int = 5000
    """Steps from one profile to the next."""
    profile_with_nvprof_from_to: str | None = None
    """Steps "start,end" for the CUDA profiler."""
    reorder_fids_in_data_pipeline: bool = False
    """Find distinct ids in the thread that reads."""
    chief_timeout_secs: int = 1800
    """How long the chief waits for its workers at the end."""
    save_checkpoints_secs: int | None = None
    """Seconds between checkpoints."""
    save_checkpoints_steps: int | None = None
    """Steps between checkpoints; neither: one at the end."""
    dense_only_save_checkpoints_secs: int | None = None
    """Seconds between checkpoints without tables."""
    dense_only_save_checkpoints_steps: int | None = None
    """Steps between checkpoints without tables."""
    dense_only_stop_training_when_save: bool = False
    """Stop workers for those, too."""
    warmup_file: str = "./warmup_file"
    """Requests that warm up serving."""
    skip_zero_embedding_when_serving: bool = False
    """Leave rows of zeros out of serving tables."""
    max_rpc_deadline_millis: int = 30000
    """Deadline of remote lookups in exported models."""
    checkpoints_max_to_keep: int = 10
    """Newest checkpoints that stay."""
    submit_time_secs: int | None = None
    """When the job was submitted, Unix seconds."""
    containers_ready_time_secs: int | None = None
    """When its machines were there."""
    cluster_type: str = "stable"
    """A tag of metrics: stable, tide or k8s."""
    max_slow_start_wait_minute: int = 10
    """Longest wait of a worker's slow start."""
    enable_model_ckpt_info: bool = False
    """Write counts by slot with each checkpoint."""
    feature_eviction_on_save: bool = False
    """Drop expired rows from memory with each checkpoint."""
    feature_evict_every_n_hours: int = 0
    """Drop expired rows from memory so many hours apart; 0: do not. The original said so of each table."""
    feature_evict_every_n_steps: int = 0
    """Drop expired rows from memory after each step that this divides; 0: do not. Not an option of the original."""
    only_feature_engineering: bool = False
    """Read the input and write it as ExampleBatch, without training."""
    enable_variable_partition: bool = True
    """Split large dense variables over the servers."""
    enable_fused_layout: bool = False
    """Look up straight into the model's layout."""
    force_shutdown_ps: bool = False
    """Stop the servers at the end of realtime training, too."""
    clear_nn: bool = False
    """Start the dense part anew, once."""
    continue_training: bool = False
    """With clear_nn: go on from the step of the checkpoint."""
    reload_alias_map: dict[str, str] | None = None
    """Name of a dense weight -> its name in the checkpoint."""
    enable_alias_map_auto_gen: bool | None = None
    """Look for renamed weights; None means yes."""
    enable_model_dump: bool = False
    """Write the graph for exchange."""
    enable_resource_constrained_roughsort: bool = False
    """Predict candidate items after training."""
    roughsort_candidate_items_path: str | None = None
    """Where those items are."""
    roughsort_items_use_parquet: bool = False
    """They are Parquet."""
    items_input_lagrangex_header: bool = False
    """Framing of the item file."""
    items_input_has_sort_id: bool = False
    """Framing of the item file."""
    items_input_kafka_dump: bool = False
    """Framing of the item file."""
    items_input_kafka_dump_prefix: bool = False
    """Framing of the item file."""
    device_fn: Callable[..., str] | None = None
    """Operation -> device."""
    use_dataservice: bool | None = None
    """Read through the data service."""
    num_extra_dsworker_on_gpu_worker: int = 0
    """Its workers inside each GPU worker."""
    save_summary_steps: int = 100
    """Steps between summaries."""
    log_step_count_steps: int = 100
    """Steps between log lines with loss and speed."""

    @property
    def enable_full_sync_training(self) -> bool:
        """Synchronous, and tables sharded over the workers."""
        return self.enable_sync_training and not self.enable_partial_sync_training

    def check(self) -> None:
        """Refuses intervals that contradict each other."""
        if self.feature_evict_every_n_hours and self.feature_evict_every_n_steps:
            raise ValueError(
                f"{type(self).__name__}: feature_evict_every_n_hours and feature_evict_every_n_steps contradict each"
                f" other, got {self.feature_evict_every_n_hours} and {self.feature_evict_every_n_steps}; set one of"
                " them"
            )
        for prefix in ("", "dense_only_"):
            secs, steps = f"{prefix}save_checkpoints_secs", f"{prefix}save_checkpoints_steps"
            if getattr(self, secs) is not None and getattr(self, steps) is not None:
                raise ValueError(
                    f"{type(self).__name__}: {secs} and {steps} contradict each other, got"
                    f" {getattr(self, secs)} and {getattr(self, steps)}; set one of them"
                )
