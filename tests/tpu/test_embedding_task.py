"""Embedding tasks: slots by running logits_fn once, tables by the vocabulary, files by hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.tensors import Ragged
from monolith.tpu import TpuConfig, TPURunner
from monolith.train import Trainer, TrainerConfig
from tpu.example_files import Ranker, params_for, write_files
from tpu.jax_tasks import rows


def ready(folder: Path) -> Ranker:
    write_files(folder)
    task = Ranker(params_for(folder))
    task.init_slot_to_env()
    task.use_tables(*task.create_feature_and_table_config_dict())
    return task


def ages(task: Ranker) -> list[torch.Tensor]:
    return [torch.as_tensor(batch["age"]) for batch in task.input_fn("train")]


def test_a_cpu_test_trains_the_tables_to_the_weights_of_torch(tmp_path: Path) -> None:
    write_files(tmp_path)
    by_jax = TPURunner(params_for(tmp_path), TpuConfig(cpu_test=True)).run()
    by_torch = Trainer(Ranker(params_for(tmp_path)), TrainerConfig(deterministic=True)).train()
    assert not isinstance(by_jax, dict)
    assert by_jax.model is not None
    assert by_torch.model is not None
    assert by_jax.global_step == by_torch.global_step == 12
    # 12 steps of Adam (0.001) and of Adagrad (0.05); sums of 16 examples and 21 products: see jax_tasks.tolerance.
    error = (16 + 21) * torch.finfo(torch.float32).eps
    for name in ("top.weight", "top.bias"):
        left, right = by_jax.model.get_parameter(name), by_torch.model.get_parameter(name)
        torch.testing.assert_close(left, right, rtol=0, atol=12 * 1e-3 * error)
    for table in ("table_200_0", "table_201_0_0", "table_201_0_1"):
        (ids, vectors), (other_ids, others) = rows(by_jax, table), rows(by_torch, table)
        assert torch.equal(ids, other_ids)
        assert len(ids) > 0
        torch.testing.assert_close(vectors, others, rtol=0, atol=12 * 0.05 * error)
    assert int(rows(by_jax, "table_200_0")[0].max()) < 500


def test_batches_have_the_ids_of_the_tables_and_the_other_columns(tmp_path: Path) -> None:
    batch = next(iter(ready(tmp_path).input_fn("train")))
    assert set(batch) == {"table_200_0", "fc_friend_0", "table_201_0_0", "table_201_0_1", "age", "label"}
    assert batch.num_rows == 16
    ids = batch["table_201_0_0"]
    assert isinstance(ids, Ragged)
    assert int(torch.as_tensor(ids.values).min()) >= 0


def test_files_are_dealt_out_to_hosts_and_all_are_read(tmp_path: Path) -> None:
    task = ready(tmp_path)
    one = ages(task)
    task.num_hosts = 2
    two = ages(task)
    assert sorted(torch.cat(one).flatten().tolist()) == sorted(torch.cat(two).flatten().tolist())
    # Host 0 has files 0 and 2, host 1 has file 1: the second batch of all is the first of file 1.
    task.num_hosts, task.p.train.file_pattern = 1, str(tmp_path / "part-1")
    assert torch.equal(two[1], ages(task)[0])


def test_four_files_are_read_at_a_time(tmp_path: Path) -> None:
    task = ready(tmp_path)
    assert task.p.files_interleave_cycle_length == 4
    interleaved = torch.cat(ages(task))
    task.p.files_interleave_cycle_length = 1
    in_order = torch.cat(ages(task))
    assert sorted(interleaved.flatten().tolist()) == sorted(in_order.flatten().tolist())


def test_a_factor_of_gradients_moves_rows_of_sgd_by_as_much(tmp_path: Path) -> None:
    write_files(tmp_path, num_files=1, per_file=16)

    def bias(factor: float) -> torch.Tensor:
        p = params_for(tmp_path)
        p.gradient_multiplier = factor
        task = Ranker(p)
        task.make_model()
        batch = next(iter(task.input_fn("train")))
        loss = task.model_fn(batch, "train").loss
        assert loss is not None
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        return task.emb.grad_norm()

    torch.manual_seed(0)
    one = bias(1.0)
    torch.manual_seed(0)
    torch.testing.assert_close(bias(3.0), 3 * one)


def test_data_by_days_ends_with_the_flag(tmp_path: Path) -> None:
    for day in ("20201201", "20201202"):
        (tmp_path / day / "00").mkdir(parents=True)
        write_files(tmp_path / day / "00", num_files=1, per_file=16)
    p = params_for(tmp_path / "20201201" / "00")
    p.train.file_pattern, p.train.file_folder, p.train.end_date = None, str(tmp_path), "20201202"
    runner = TPURunner(p, TpuConfig(cpu_test=True, overwrite_end_date="20201201"))
    assert runner.task_param.train.end_date == "20201201"
    state = runner.run()
    assert not isinstance(state, dict)
    assert state.global_step == 1


def test_missing_files_slots_and_settings_are_reported(tmp_path: Path) -> None:
    write_files(tmp_path, num_files=1, per_file=4)
    options = TpuConfig(cpu_test=True)
    p = params_for(tmp_path)
    p.vocab_file_path = str(tmp_path / "none.tsv")
    with pytest.raises(NotFoundError, match=r"none\.tsv"):
        TPURunner(p, options).run()
    p = params_for(tmp_path)
    (tmp_path / "vocab.tsv").write_text("200\t5\n", encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match="slot 201 is not in"):
        TPURunner(p, options).run()
    (tmp_path / "vocab.tsv").write_text("200\t5\n201\t5\n", encoding="utf-8")
    p = params_for(tmp_path)
    p.train.file_pattern = None
    with pytest.raises(InvalidArgumentError, match=r"give train\.file_pattern, or train\.file_folder"):
        TPURunner(p, options).run()
    with pytest.raises(FailedPreconditionError, match="collect the slots first"):
        Ranker(params_for(tmp_path)).create_feature_and_table_config_dict()
