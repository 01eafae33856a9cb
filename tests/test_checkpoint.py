import pytest
import torch

from synthesizer_attention.errors import UserError
from synthesizer_attention.training.checkpoint import (
    Checkpoint,
    average_weights,
    newest_checkpoint,
    numbered,
    prune,
    read_checkpoint,
    read_weights,
    write_checkpoint,
)


def some_checkpoint(value=1.0, step=3):
    tensors = {"weights/a": torch.full((2, 5), value), "optimizer/a/step": torch.tensor(step)}
    return Checkpoint(tensors, {"step": step})


def test_a_checkpoint_is_read_as_it_was_written(tmp_path):
    write_checkpoint(tmp_path / "c", some_checkpoint())
    read = read_checkpoint(tmp_path / "c")
    assert read.meta == {"step": 3}
    torch.testing.assert_close(read.part("weights/"), {"a": torch.ones(2, 5)})
    assert read.part("optimizer/")["a/step"].shape == ()


def test_a_truncated_or_changed_checkpoint_is_noticed(tmp_path):
    path = tmp_path / "c"
    write_checkpoint(path, some_checkpoint())
    whole = path.read_bytes()
    for cut in (0, 4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert read_checkpoint(path) is None
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    assert read_checkpoint(path) is None
    path.write_bytes(whole.replace(b'\\"step\\": 3', b'\\"step\\": 4'))
    assert read_checkpoint(path) is None


def test_the_newest_whole_checkpoint_serves_and_the_damage_is_told(tmp_path):
    for step in (9, 10, 11):
        write_checkpoint(tmp_path / f"step-{step}.safetensors", some_checkpoint(step=step))
    (tmp_path / "step-11.safetensors").write_bytes(b"half")
    said = []
    assert newest_checkpoint(tmp_path, said.append).meta == {"step": 10}
    assert said == [
        f"checkpoint {tmp_path}/step-11.safetensors is damaged; going back to the one before it"
    ]


def test_no_checkpoint_at_all_is_a_beginning(tmp_path):
    assert newest_checkpoint(tmp_path, print) is None


def test_pruning_keeps_what_it_is_told_and_other_kinds(tmp_path):
    for name in ("step-2", "step-10", "step-9", "best-2", "last"):
        write_checkpoint(tmp_path / f"{name}.safetensors", some_checkpoint())
    prune(tmp_path, "step", [10])
    assert [step for step, _ in numbered(tmp_path, "step")] == [10]
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["best-2", "last", "step-10"]


def test_averaging_is_the_mean_of_the_weights(tmp_path):
    paths = [tmp_path / str(value) for value in (1, 2, 6)]
    for path in paths:
        write_checkpoint(path, some_checkpoint(float(path.name)))
    torch.testing.assert_close(average_weights(paths), {"a": torch.full((2, 5), 3.0)})


def test_weights_that_are_not_there_are_an_error(tmp_path):
    with pytest.raises(UserError, match="is not there; train the run again"):
        read_weights(tmp_path / "best.safetensors")
