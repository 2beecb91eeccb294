import json

import pytest
import torch

from grpo_from_scratch.training import checkpoint
from grpo_from_scratch.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint


def state(value: float) -> dict:
    tied = torch.full((2, 3), value)
    return {
        "a": tied,
        "b": {"again": tied, "list": [torch.arange(3), None, "text", 1.5, True]},
        "empty": torch.zeros(0),
    }


def test_save_checkpoint_round_trip_is_exact(tmp_path):
    loaded = load_checkpoint(save_checkpoint(tmp_path, 3, state(0.1)))
    assert torch.equal(loaded["a"], torch.full((2, 3), 0.1)) and torch.equal(loaded["b"]["again"], loaded["a"])
    assert torch.equal(loaded["b"]["list"][0], torch.arange(3)) and loaded["b"]["list"][1:] == [None, "text", 1.5, True]
    assert loaded["empty"].shape == (0,)


def test_save_checkpoint_views_of_one_storage_stay_apart(tmp_path):
    """Two tensors that begin at one address but have other strides or shapes are two tensors."""
    square = torch.arange(4.0).view(2, 2)
    loaded = load_checkpoint(save_checkpoint(tmp_path, 1, {"x": square, "transposed": square.T, "row": square[0]}))
    assert loaded["transposed"].tolist() == [[0, 2], [1, 3]] and loaded["row"].tolist() == [0, 1]


def test_save_checkpoint_keeps_only_the_newest(tmp_path):
    save_checkpoint(tmp_path, 1, state(1.0))
    newest = save_checkpoint(tmp_path, 10, state(2.0))
    assert [path.name for path in tmp_path.iterdir()] == [newest.name]
    assert latest_checkpoint(tmp_path) == newest


@pytest.mark.parametrize("broken", ["save_file", "_flush_to_disk"])
def test_save_checkpoint_full_disk_leaves_the_previous_one(tmp_path, monkeypatch, broken):
    before = save_checkpoint(tmp_path, 1, state(1.0))

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, broken, no_space)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, 2, state(2.0))
    assert [path.name for path in tmp_path.iterdir()] == [before.name]
    assert torch.equal(load_checkpoint(before)["a"], torch.ones(2, 3))


def test_latest_checkpoint_passes_over_a_partial_one(tmp_path):
    whole = save_checkpoint(tmp_path, 1, state(1.0))
    (tmp_path / ".partial-00000002").mkdir()
    (tmp_path / "step-00000003").mkdir()
    assert latest_checkpoint(tmp_path) == whole


def test_load_checkpoint_unreadable_says_which(tmp_path):
    path = save_checkpoint(tmp_path, 1, state(1.0))
    (path / "state.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(ValueError, match=r"step-00000001 is not a readable checkpoint.*delete it"):
        load_checkpoint(path)


def test_save_checkpoint_refuses_what_only_pickle_could_hold(tmp_path):
    with pytest.raises(TypeError, match="/thing is a set"):
        save_checkpoint(tmp_path, 1, {"thing": {1, 2}})
    assert latest_checkpoint(tmp_path) is None


def test_save_checkpoint_is_json_and_safetensors(tmp_path):
    path = save_checkpoint(tmp_path, 1, state(1.0))
    assert sorted(file.name for file in path.iterdir()) == ["state.json", "state.safetensors"]
    assert json.loads((path / "state.json").read_text())["state"]["b"]["again"] == {"__tensor__": "/a"}
