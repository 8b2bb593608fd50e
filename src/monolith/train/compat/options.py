"""The table of ByteDance Monolith's flat options: type, default, meaning and effect of each.

An option sets a field of one of our own configs, or is refused with a reason; `effects` defines both. The three classes
are named as upstream's. ``docs/options.md`` is generated from this file: after a change run
``scripts/update-options-page``.
"""

# Not postponed: the annotations are the table.
from collections.abc import Callable
from typing import Annotated

from monolith.cluster import AddressFamily, DiscoveryConfig, is_scheduled
from monolith.cluster.discovery import ServiceDiscoveryType
from monolith.train.compat import reasons
from monolith.train.compat.conversions import (
    admission,
    candidate_items,
    controller,
    dense_seconds,
    interval,
    is_not_false,
    late_update,
    marker_files,
    mode_of,
    names_of,
    negated,
    none_if_empty,
    postpush,
    prefetch,
    profile_every,
    profile_from,
    publishing,
    recovers_partly,
    seconds_of_hours,
    seconds_of_ms,
    synchronous,
    tide_window,
)
from monolith.train.compat.effects import InDiscoveryConfig, Makes, OfAJob, ReadBy, Refused, Sets, effects_of
from monolith.train.compat.flat_config import FlatConfig, flat_config


@flat_config
class CpuTrainingConfig(FlatConfig):
    """Options of training a task, with the names of ByteDance Monolith.

    >>> config = CpuTrainingConfig(save_checkpoints_steps=500)
    >>> config.embedding_prefetch_capacity = 1
    >>> config
    CpuTrainingConfig(embedding_prefetch_capacity=1, save_checkpoints_steps=500)
    """

    server_type: Annotated[str, InDiscoveryConfig(), ReadBy("`distributed_train`; a trainer is a worker")] = "worker"
    """The role of this process."""
    index: Annotated[int, OfAJob(), Sets("worker_index"), InDiscoveryConfig()] = 0
    """Which one of its role; worker 0 is the chief, and only it saves."""
    num_ps: Annotated[int, Sets("tables.num_ps")] = 0
    """Parameter servers of a job, up to 1024. A run of one process starts none; it only takes the number of shards of
    exports from it. Rows and checkpoints do not depend on it."""
    num_workers: Annotated[int, OfAJob(), Sets("num_workers")] = 1
    """Workers, the chief among them."""
    model_name: Annotated[str, Sets("model_name")] = ""
    """Under which name the model is known, also in metrics; the task's by default."""
    filter_capacity: Annotated[int, Makes("tables.admission", admission)] = 300000000
    """Ids that the sliding filter remembers, for slots with a `min_count`."""
    filter_split_num: Annotated[int, Makes("tables.admission", admission)] = 7
    """Number of parts of that memory; the oldest part is evicted."""
    filter_type: Annotated[str, Makes("tables.admission", admission)] = "sliding_hash_filter"
    """Filter that counts occurrences if the task names none; also probabilistic_filter, no_filter."""
    filter_equal_probability: Annotated[bool, Makes("tables.admission", admission)] = True
    """Whether the probabilistic filter gives each occurrence the same chance; upstream ignored this option."""
    hashtable_init_capacity: Annotated[int, Sets("tables.initial_capacity", none_if_empty)] = 0
    """Initial capacity of a table in rows; 0: starts small."""
    use_native_multi_hash_table: Annotated[
        bool | None, Refused("there is one kind of table; only True and None are taken", taken=(True,))
    ] = None
    """One container for all tables, as it always is here."""
    embedding_prefetch_capacity: Annotated[int, Makes("pipeline.prefetch", prefetch)] = 0
    """Batches whose rows are read ahead; each lacks one update more."""
    enable_embedding_postpush: Annotated[bool, Makes("pipeline.postpush", postpush)] = False
    """Apply the gradients of rows concurrently with the next step; batches lack one update more."""
    enable_variable_prefetch: Annotated[bool, Sets("dense.prefetch")] = False
    """Fetch dense weights from their servers concurrently with the step; refused without servers."""
    enable_variable_postpush: Annotated[bool, Sets("dense.postpush")] = False
    """Push dense gradients to their servers concurrently with the next step; refused without servers."""
    enable_sync_training: Annotated[bool, Makes("sync", synchronous)] = False
    """Train in step with the other ranks of torchrun or mpirun, which share the rows; alone, a run of one."""
    enable_partial_sync_training: Annotated[
        bool,
        OfAJob("docs/how-to/torchrun.md"),
        InDiscoveryConfig(),
        ReadBy("`distributed_train`, whose workers torchrun or mpirun starts"),
    ] = False
    """With enable_sync_training: rows on the servers of a job, dense weights averaged synchronously by its workers."""
    enable_gpu_training: Annotated[bool, Sets("device.gpu"), InDiscoveryConfig()] = False
    """Compute the dense part on a GPU, that of the rank on its machine; tables stay in the memory of the host, unless
    the task sets `p.train.use_gpu_emb_table`."""
    processes_per_gpu: Annotated[int, Sets("device.processes_per_gpu")] = 1
    """Ranks that share a GPU; refused without enable_gpu_training."""
    merge_sync_training_ckpt: Annotated[bool, Makes("sync", synchronous)] = True
    """All ranks save into one directory. False: each into one of its own, `<model_dir>/<uuid>/index-<rank>`."""
    sync_combine: Annotated[str, Makes("sync", synchronous)] = "sum"
    """How the gradients of a row that several ranks have are combined: sum, or mean. Not in upstream."""
    sync_timeout_secs: Annotated[float, Makes("sync", synchronous)] = 1800.0
    """Timeout in seconds of calls between ranks; a rank that waits longer exits. Not in upstream."""
    enable_alltoall_metrics: Annotated[bool, Makes("sync", synchronous)] = False
    """For ranks: report how ids and rows are spread over them, in the log and in event files of rank 0."""
    enable_alltoall_metrics_for_slot: Annotated[str | None, Makes("sync", synchronous)] = None
    """A table whose ids are counted there, too, as `<slot>_size`; refused without enable_alltoall_metrics."""
    mode: Annotated[str, Sets("mode", mode_of)] = "train"
    """Mode: train, eval, or infer (also predict). Training runs refuse any other than train."""
    partial_recovery: Annotated[bool | None, OfAJob(), Makes("job.partial_recovery", recovers_partly)] = None
    """After a failure restore only the servers that lost their state."""
    tide_start_hour: Annotated[int | None, Makes("saving.tide_window", tide_window)] = None
    """When cheap machines come, UTC: all four of these, or none."""
    tide_start_minute: Annotated[int | None, Makes("saving.tide_window", tide_window)] = None
    """Minute of that hour."""
    tide_end_hour: Annotated[int | None, Makes("saving.tide_window", tide_window)] = None
    """When they go."""
    tide_end_minute: Annotated[int | None, Makes("saving.tide_window", tide_window)] = None
    """Minute of that hour."""
    tide_save_secs: Annotated[int | None, Sets("saving.tide_every_seconds")] = None
    """Seconds between checkpoints outside of that window."""
    enable_realtime_training: Annotated[
        bool,
        Makes("publishing", publishing),
        Sets("job.keep_servers"),
        Makes("job.partial_recovery", recovers_partly),
        Makes("saving.dense_every_seconds", dense_seconds),
        Makes("saving.marker_files", marker_files),
        Sets("saving.ignore_errors"),
    ] = False
    """Publish what is trained to a delta log, for followers that serve it. Lost servers then recover without restarting
    the job, dense weights are saved separately, every 1800 seconds by default (with enable_sync_training while the file
    ``ONLINE`` is in the model directory), a checkpoint that fails twice is logged and does not end the run, and servers
    outlive their job."""
    delta_log: Annotated[str | None, Makes("publishing", publishing)] = None
    """The delta log of `enable_realtime_training`: a folder, kafka://host:port/topic, or any URL of fsspec; None:
    `delta_log` in the model directory. Not in upstream."""
    delta_log_interval_secs: Annotated[float, Makes("publishing", publishing)] = 1.0
    """Seconds between increments of rows, at least 0.1. Not in upstream."""
    delta_log_dense_interval_secs: Annotated[float, Makes("publishing", publishing)] = 60.0
    """Seconds between increments of dense weights. Not in upstream."""
    delta_log_base_dir: Annotated[str | None, Makes("publishing", publishing)] = None
    """Directory of the bases from which followers start that cannot resume; None: in the log. Required for a log in
    Kafka. Not in upstream."""
    enable_async_optimize: Annotated[bool, Makes("pipeline.postpush", postpush)] = False
    """For ranks: exchange and apply gradients of rows concurrently with the next step, as enable_embedding_postpush
    does; batches lack one update more."""
    enable_pipelined_fwda2a: Annotated[bool, Makes("pipeline.prefetch", prefetch)] = False
    """For ranks: exchange the rows of one more batch ahead; batches lack one update more."""
    enable_pipelined_bwda2a: Annotated[bool, Makes("pipeline.late_update", late_update)] = False
    """For ranks: postpone the gradients of enable_async_optimize by one more step; batches lack one update more."""
    profile_some_steps_from: Annotated[int | None, Makes("reporting.profile_from", profile_from)] = None
    """First step that is profiled, ten at a time, into `profile/` of the model directory."""
    profile_save_steps_interval: Annotated[int, Makes("reporting.profile_every_steps", profile_every)] = 5000
    """Steps from one profile to the next; needs profile_some_steps_from."""
    profile_with_nvprof_from_to: Annotated[
        str | None, Refused("attach monolith.hooks.CudaProfilerHook to the trainer instead")
    ] = None
    """Steps "start,end" for the CUDA profiler."""
    reorder_fids_in_data_pipeline: Annotated[
        bool, Refused("the reading thread does so whenever embedding_prefetch_capacity > 0")
    ] = False
    """Find distinct ids in the thread that reads."""
    chief_timeout_secs: Annotated[int, OfAJob(), Sets("job.chief_timeout_seconds")] = 1800
    """Seconds that the chief waits for its workers at the end."""
    save_checkpoints_secs: Annotated[int | None, Makes("saving.every_seconds", interval("save_checkpoints_secs"))] = (
        None
    )
    """Seconds between checkpoints."""
    save_checkpoints_steps: Annotated[int | None, Makes("saving.every_steps", interval("save_checkpoints_steps"))] = (
        None
    )
    """Steps between checkpoints; neither: one at the end."""
    dense_only_save_checkpoints_secs: Annotated[int | None, Makes("saving.dense_every_seconds", dense_seconds)] = None
    """Seconds between checkpoints without tables, in `dense_only/`."""
    dense_only_save_checkpoints_steps: Annotated[
        int | None, Makes("saving.dense_every_steps", interval("dense_only_save_checkpoints_steps"))
    ] = None
    """Steps between checkpoints without tables."""
    dense_only_stop_training_when_save: Annotated[bool, OfAJob(), Sets("job.barrier_at_dense_saves")] = False
    """Stop workers for those, too."""
    warmup_file: Annotated[str, Refused(reasons.WARM_UP)] = "./warmup_file"
    """Requests that warm up serving."""
    skip_zero_embedding_when_serving: Annotated[bool, Sets("exporting.skip_zero")] = False
    """Leave rows of zeros out of serving tables."""
    max_rpc_deadline_millis: Annotated[int, Refused(reasons.LOOKUP_DEADLINE)] = 30000
    """Deadline of remote lookups in exported models."""
    checkpoints_max_to_keep: Annotated[int, Sets("saving.max_to_keep")] = 10
    """Newest checkpoints that stay; of the others one a day stays for good."""
    submit_time_secs: Annotated[int | None, Sets("reporting.submit_time")] = None
    """When the job was submitted, Unix seconds: the start of the metric `run_start_elapsed_time.all`."""
    containers_ready_time_secs: Annotated[
        int | None, Refused("the chief measures it itself: see the metric container_ready_elapsed_time.all")
    ] = None
    """Time at which the machines were ready."""
    cluster_type: Annotated[str, Sets("reporting.cluster_type")] = "stable"
    """A tag of metrics: stable, tide or k8s."""
    max_slow_start_wait_minute: Annotated[int, OfAJob(), Sets("job.max_slow_start_wait_minutes")] = 10
    """Longest wait of a worker's slow start."""
    enable_model_ckpt_info: Annotated[
        bool, Refused("counts by slot are written with every checkpoint, to ckpt.info-<step>")
    ] = False
    """Write counts by slot with each checkpoint."""
    feature_eviction_on_save: Annotated[bool, Sets("saving.evict_after")] = False
    """Drop expired rows from memory after each checkpoint."""
    feature_evict_every_n_hours: Annotated[int | None, Sets("tables.evict_every_seconds", seconds_of_hours)] = None
    """Hours of event time within which every row is scanned once and dropped if it has expired; 0: rows stay. None:
    an hour for each day of a table's shortest `expire_days`. In upstream hours of wall-clock time, and off by
    default."""
    feature_evict_every_n_steps: Annotated[int, Sets("tables.evict_every_steps", none_if_empty)] = 0
    """Instead, drop all expired rows every this many steps; 0: do not. Not in upstream."""
    only_feature_engineering: Annotated[bool, Sets("only_feature_engineering")] = False
    """Read the input and write it as ExampleBatch to `features/` of the model directory, without training."""
    enable_variable_partition: Annotated[bool, Sets("dense.partition")] = True
    """Split large dense variables over the servers; False is refused where there are none."""
    enable_fused_layout: Annotated[
        bool, Refused("lookups always go straight into one buffer of the model's layout")
    ] = False
    """Look up straight into the model's layout."""
    force_shutdown_ps: Annotated[bool, OfAJob(), Sets("job.force_shutdown_ps")] = False
    """Stop the servers at the end of realtime training, too."""
    clear_nn: Annotated[bool, Sets("restoring.clear_nn")] = False
    """Start the dense part from its initial values, once."""
    continue_training: Annotated[bool, Sets("restoring.continue_training")] = False
    """With clear_nn: continue from the step of the checkpoint."""
    leave_out: Annotated[str | None, Sets("restoring.leave_out", names_of)] = None
    """Dense weights that start from their initial values, once: names or patterns, separated by commas, such as
    `tower.*`. Not in upstream."""
    ignore_unknown_tables: Annotated[bool, Sets("restoring.ignore_unknown_tables")] = False
    """Skip tables that only the checkpoint has, such as those of a removed slot. Not in upstream."""
    reload_alias_map: Annotated[dict[str, str] | None, Sets("restoring.alias_map")] = None
    """Name of a dense weight -> its name in the checkpoint; in code or a file."""
    enable_alias_map_auto_gen: Annotated[bool | None, Sets("restoring.auto_alias", is_not_false)] = None
    """Detect renamed weights; None means yes."""
    enable_model_dump: Annotated[bool, Refused("a model is exchanged as an export, see Trainer.export")] = False
    """Write the graph for exchange."""
    enable_resource_constrained_roughsort: Annotated[bool, Makes("items", candidate_items)] = False
    """Predict candidate items after training, and export them with the tower of users; of a `TwoStageTask`."""
    roughsort_candidate_items_path: Annotated[str | None, Makes("items", candidate_items)] = None
    """Paths of those items: files of instances, or Parquet."""
    roughsort_items_use_parquet: Annotated[bool, Makes("items", candidate_items)] = False
    """Whether those files are Parquet, with the columns item_id and fids."""
    items_input_lagrangex_header: Annotated[bool, Makes("items", candidate_items)] = False
    """Framing of the item file."""
    items_input_has_sort_id: Annotated[bool, Makes("items", candidate_items)] = False
    """Framing of the item file."""
    items_input_kafka_dump: Annotated[bool, Makes("items", candidate_items)] = False
    """Framing of the item file."""
    items_input_kafka_dump_prefix: Annotated[bool, Makes("items", candidate_items)] = False
    """Framing of the item file."""
    device_fn: Annotated[
        Callable[..., str] | None, Refused("devices are those of the modules; place them in build()")
    ] = None
    """Operation -> device."""
    use_dataservice: Annotated[bool | None, Refused(reasons.DATA_SERVICE)] = None
    """Read through the data service."""
    num_extra_dsworker_on_gpu_worker: Annotated[int, Refused(reasons.DATA_SERVICE)] = 0
    """Its workers inside each GPU worker."""
    save_summary_steps: Annotated[int, Sets("reporting.summary_every_steps", none_if_empty)] = 100
    """Steps between summaries of loss, metrics, learning rates and table sizes; 0: none."""
    log_step_count_steps: Annotated[int, Sets("reporting.log_every_steps", none_if_empty)] = 100
    """Steps between log lines with loss and speed; 0: none."""
    serve_controller: Annotated[bool | None, Makes("control", controller)] = None
    """Serve the controller to the user of this process; None: if gRPC is installed. Not in upstream."""

    @property
    def enable_full_sync_training(self) -> bool:
        """Synchronous, and tables sharded over the workers."""
        return self.enable_sync_training and not self.enable_partial_sync_training

    def check(self) -> None:
        """Refuses intervals that contradict each other."""
        for first, second, unset in (
            ("feature_evict_every_n_hours", "feature_evict_every_n_steps", {None, 0}),
            ("save_checkpoints_secs", "save_checkpoints_steps", {None}),
            ("dense_only_save_checkpoints_secs", "dense_only_save_checkpoints_steps", {None}),
        ):
            values = getattr(self, first), getattr(self, second)
            if unset.isdisjoint(values):
                raise ValueError(
                    f"{type(self).__name__}: {first} and {second} contradict each other, got {values[0]} and"
                    f" {values[1]}; set one of them"
                )


@flat_config
class DistributedCpuTrainingConfig(CpuTrainingConfig):
    """Options of training a task by the processes of a job."""

    model_dir: Annotated[str, Sets("model_dir", none_if_empty)] = ""
    """Directory of checkpoints."""
    tensorboard_log_path: Annotated[
        str, Refused("ByteDance Monolith declares it and never reads it; give the summary hook its folder")
    ] = ""
    """Another folder for summaries."""
    intra_op_parallelism_threads: Annotated[
        int, ReadBy("`make_trainer`, for `torch.set_num_threads`, if it is set")
    ] = 8
    """Threads of one dense operation."""
    inter_op_parallelism_threads: Annotated[
        int, ReadBy("`make_trainer`, for `torch.set_num_interop_threads`, if it is set")
    ] = 16
    """Dense operations at a time."""
    num_extra_ps: Annotated[int, OfAJob(), Sets("job.num_extra_ps")] = 0
    """Servers beyond num_ps, from which the slowest are dropped."""
    num_redundant_ps: Annotated[int, OfAJob(), Sets("job.num_redundant_ps")] = 0
    """Spare servers, so that the job starts once enough servers are up."""
    uuid: Annotated[str, OfAJob(), Sets("job.uuid"), InDiscoveryConfig()] = ""
    """Name of the run, under which its processes find each other; name of its service in Consul."""
    operation_timeout_in_ms: Annotated[int, OfAJob(), Sets("job.operation_timeout_seconds", seconds_of_ms)] = -1
    """Longest wait of one operation; below 0: none."""
    session_creation_timeout_secs: Annotated[int, OfAJob(), Sets("job.session_creation_timeout_seconds")] = 7200
    """Seconds that a worker waits for a session."""
    max_retry_times: Annotated[int, OfAJob(), Sets("job.max_retry_times")] = 0
    """Restarts after a change of the cluster."""
    retry_wait_in_secs: Annotated[int, OfAJob(), Sets("job.retry_wait_seconds")] = 30
    """Pause before each of them."""
    host: Annotated[str | None, OfAJob(), Sets("job.host")] = None
    """Interface to listen on and to advertise; None: that of this machine. Not in upstream."""
    token_file: Annotated[str | None, OfAJob(), Sets("job.token_file")] = None
    """File with a secret that all processes of the job share. Not in upstream."""
    recovery_interval_seconds: Annotated[float, OfAJob(), Sets("job.recovery_interval_seconds")] = 10.0
    """Seconds between a server's writes of its changes, for partial_recovery; 0: never. Not in upstream."""
    recovery_dir: Annotated[str | None, OfAJob(), Sets("job.recovery_dir")] = None
    """Directory of these writes; None: recovery/ in the model directory. Not in upstream."""
    monolith_default_machine_info_mem_limit: Annotated[int, OfAJob(), Sets("job.memory_limit_bytes")] = 1 << 62
    """Bytes of resident memory of a server above which training stops until it is below again."""
    fountain_zk_host: Annotated[str, Refused(reasons.FOUNTAIN)] = ""
    """Address at which the external data service registers."""
    fountain_model_name: Annotated[str, Refused(reasons.FOUNTAIN)] = ""
    """The model's name there."""
    dc_aware: Annotated[bool, Refused(reasons.DATA_CENTRES)] = False
    """Find replicas by data centre."""


@flat_config
class RunnerConfig(DistributedCpuTrainingConfig):
    """Options of a runner: everything that a command line can set. `InputConfig` describes the input options.

    >>> RunnerConfig(modeldir="/models")
    Traceback (most recent call last):
    TypeError: RunnerConfig: unknown option 'modeldir'; did you mean 'model_dir'?
    """

    task: Annotated[
        str | None, ReadBy("`make_trainer` and the runners of a job, which refuse another than the given one")
    ] = None
    """Which task: module:Class, or a registered name. The positional argument of `monolith train`."""
    tf_config: Annotated[str | None, OfAJob(), InDiscoveryConfig()] = None
    """TF_CONFIG of the scheduler Primus, JSON."""
    deep_insight_name: Annotated[str | None, Sets("reporting.job_name", none_if_empty), InDiscoveryConfig()] = None
    """Name of the job over many runs, in the names of metrics and in ZooKeeper."""
    discovery_type: Annotated[ServiceDiscoveryType | str, OfAJob(), InDiscoveryConfig()] = ServiceDiscoveryType.CONSUL
    """Service that resolves addresses."""
    discovery_dir: Annotated[str, OfAJob(), InDiscoveryConfig()] = ""
    """Folder in which processes register their addresses, for discovery_type host. Not in upstream."""
    zk_server: Annotated[str | None, OfAJob(), InDiscoveryConfig()] = None
    """Servers of ZooKeeper."""
    zk_watch_address_family: Annotated[str, Refused(reasons.REPLICAS)] = AddressFamily.IPV4
    """Which addresses of replicas are watched there, ipv4 or ipv6."""
    is_local: Annotated[bool, Sets("restoring.alone"), InDiscoveryConfig()] = False
    """Run as a single process without discovery; `monolith train` sets it."""
    enable_fid_dedup: Annotated[bool, Refused("ids are always deduplicated; ByteDance Monolith only declares it")] = (
        False
    )
    """No effect: ids are always deduplicated."""
    bzid: Annotated[str | None, Refused(reasons.REPLICAS)] = None
    """Business id of serving."""
    base_name: Annotated[str | None, Refused(reasons.REPLICAS)] = None
    """Family of served models."""
    ps_replica_num: Annotated[int | None, Refused(reasons.REPLICAS)] = None
    """Replicas in serving."""
    tf_grpc_worker_cache_threads: Annotated[int, Refused(reasons.TENSORFLOW)] = 16
    """Threads of TensorFlow's worker cache."""
    monolith_grpc_worker_service_handler_multiplier: Annotated[float, Refused(reasons.TENSORFLOW)] = 1.0
    """Handlers of TensorFlow's worker service."""
    params_override: Annotated[str | None, ReadBy("`make_trainer`, which sets parameters of the task")] = None
    """Task parameters by dotted name, JSON."""
    data_type: Annotated[str | None, Sets("input.data_type")] = None
    feature_list: Annotated[str | None, Sets("input.feature_list")] = None
    lagrangex_header: Annotated[bool, Sets("input.lagrangex_header")] = False
    sort_id: Annotated[bool, Sets("input.sort_id")] = True
    kafka_dump: Annotated[bool, Sets("input.kafka_dump")] = False
    kafka_dump_prefix: Annotated[bool, Sets("input.kafka_dump_prefix")] = False
    restore_dir: Annotated[str | None, Sets("restoring.from_dir")] = None
    """Begin with the checkpoint of another directory, while this one has none."""
    restart_input: Annotated[bool, Sets("restoring.restart_input")] = False
    """With `restore_dir`: keep the model, and read the input from its beginning; in a run of one process. Not in
    upstream."""
    restore_ckpt: Annotated[str | None, Sets("restoring.checkpoint")] = None
    """Begin with another checkpoint than the latest; training applies it once, others each time."""
    deep_insight_target: Annotated[str | None, Refused(reasons.INSIGHT)] = None
    """Heads whose predictions are sent."""
    deep_insight_sample_ratio: Annotated[float | None, Refused(reasons.INSIGHT)] = None
    """Share of the samples that are sent."""
    unified_serving: Annotated[bool, Refused(reasons.REPLICAS)] = False
    """Find serving by the unified backend."""
    use_estimator: Annotated[bool, Refused("ByteDance Monolith only declares it")] = False
    """No effect: declared only, in upstream too."""
    kafka_topics: Annotated[str | None, Sets("input.kafka_topics"), InDiscoveryConfig()] = None
    kafka_group_id: Annotated[str | None, Sets("input.kafka_group_id"), InDiscoveryConfig()] = None
    kafka_servers: Annotated[str | None, Sets("input.kafka_servers"), InDiscoveryConfig()] = None
    input_path: Annotated[str | None, Sets("input.input_path")] = None
    wildcard: Annotated[str | None, Sets("input.wildcard")] = None
    start_date: Annotated[str | None, Sets("input.start_date")] = None
    end_date: Annotated[str | None, Sets("input.end_date")] = None
    is_hourly: Annotated[bool, Sets("input.is_hourly")] = False
    start_hour: Annotated[int | None, Sets("input.start_hour")] = None
    end_hour: Annotated[int | None, Sets("input.end_hour")] = None
    enable_dynamic_sharding: Annotated[bool, Sets("input.dynamic_sharding")] = False
    """Files from a queue that workers share."""
    max_task_num_per_worker: Annotated[int, Sets("input.num_readers")] = 1
    """Readers of one worker at a time."""
    disable_native_metrics: Annotated[bool, Sets("reporting.train_metrics", negated)] = True
    """Do without AUC or squared error of training in the log."""

    def check(self) -> None:
        """Refuses discovery services that no package has, and values that contradict each other."""
        super().check()
        is_scheduled(self.discovery_type)  # raises if there is none

    def runner_settings(self) -> DiscoveryConfig:
        """Returns this process's identity and how it discovers the others, for `cluster.get_discovery`."""
        names = [name for name, effects in effects_of(type(self)).items() if InDiscoveryConfig() in effects]
        return DiscoveryConfig(**{name: getattr(self, name) for name in names})
