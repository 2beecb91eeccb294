"""Groups of embeddings: ids that mean the same from batch to batch."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_from_scratch.objective.baselines import EMABaseline
from grpo_from_scratch.objective.groups import SemanticGroups

CORNERS = np.array([[0.0, 0, 0], [9, 0, 0], [0, 9, 0], [0, 0, 9], [9, 9, 0]])


def blobs(kinds, seed=0, spread=0.3):
    """Embeddings (N, 3), one near the corner of each kind."""
    return torch.from_numpy(CORNERS[kinds] + np.random.default_rng(seed).normal(size=(len(kinds), 3)) * spread)


def naming(ids, kinds):
    """{kind: id}, if ids and kinds say the same."""
    pairs = set(zip(kinds, ids.tolist(), strict=True))
    assert len(pairs) == len(set(kinds)) == len(set(ids.tolist()))
    return dict(pairs)


@given(st.lists(st.permutations([0, 1, 2] * 4), min_size=2, max_size=4), st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_assign_ids_are_stable(batches, seed):
    """KM-01: whatever the order of the rows, a kind keeps its id."""
    groups = SemanticGroups(3, seed=seed)
    names = [naming(groups.assign(blobs(kinds, i)), kinds) for i, kinds in enumerate(batches)]
    assert all(name == names[0] for name in names)
    assert set(names[0].values()) == {0, 1, 2}
    assert names[0][batches[0][0]] == 0  # fresh ids follow the rows


def test_assign_ids_are_stable_with_ema():
    """KM-01: the moving averages go on judging the kinds they were learnt from."""
    groups, ema = SemanticGroups(2), EMABaseline(alpha=0.9)
    points, rewards = torch.tensor([[0.0, 0], [0, 1], [9, 0], [9, 1]]), torch.tensor([10.0, 10, 0, 0])
    ema.update(rewards, groups.assign(points))
    for order in ([0, 1, 2, 3], [2, 3, 0, 1], [3, 0, 2, 1]):
        shuffled = rewards[order]
        assert (shuffled - ema(shuffled, groups.assign(points[order]))).tolist() == [0, 0, 0, 0]


def test_assign_ids_follow_drifting_centres():
    groups, kinds = SemanticGroups(3), [0, 1, 2] * 5
    first = groups.assign(blobs(kinds))
    for step in range(1, 8):
        assert torch.equal(groups.assign(blobs(kinds, step) + step), first)


def test_assign_keeps_its_split_when_another_fits_about_as_well():
    """KM-01: a rectangle cut left and right stays cut that way when it grows a little taller than wide."""
    corners, groups = torch.tensor([[-1.0, -1], [-1, 1], [1, -1], [1, 1]]), SemanticGroups(2)
    assert groups.assign(corners * torch.tensor([1.0, 0.9])).tolist() == [0, 0, 1, 1]
    assert groups.assign(corners * torch.tensor([0.9, 1.0])).tolist() == [0, 0, 1, 1]


def test_assign_ids_survive_a_batch_with_fewer_kinds():
    groups = SemanticGroups(3)
    names = naming(groups.assign(blobs([0, 1, 2] * 4)), [0, 1, 2] * 4)
    with pytest.warns(UserWarning, match="only 2 distinct"):
        ids = groups.assign(torch.from_numpy(CORNERS[[2, 1, 2]]))
    assert ids.tolist() == [names[2], names[1], names[2]]
    assert naming(groups.assign(blobs([2, 1, 0] * 4)), [2, 1, 0] * 4) == names


def test_assign_duplicates_share_a_label():
    """KM-02: fewer distinct points than groups."""
    with pytest.warns(UserWarning) as caught:
        ids = SemanticGroups(3).assign(torch.tensor([[0.0, 0], [0, 0], [5, 5], [5, 5]]))
    assert ids.tolist() == [0, 0, 1, 1]
    assert len(caught) == 1 and "using 2 groups, not 3" in str(caught[0].message)


def test_assign_equal_replies_with_rounding_noise_share_a_label():
    """KM-02, as it happens: one reply embedded twice in float32 differs in its last digit."""
    points = torch.tensor([[1.0, 0], [1, 1e-8], [0, 1], [1e-8, 1]])
    with pytest.warns(UserWarning, match="only 2 distinct"):
        assert SemanticGroups(4).assign(points).tolist() == [0, 0, 1, 1]


def test_assign_near_duplicates_without_a_stray_warning():
    """KM-02: rows that almost coincide can leave KMeans a cluster short, which is nobody's concern."""
    draw, groups = np.random.default_rng(3), SemanticGroups(4)
    replies = draw.normal(size=(2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            ids = groups.assign(replies[draw.integers(0, 2, 9)] * (1 + 1e-5 * draw.normal(size=(9, 3))))
            assert set(ids.tolist()) <= {0, 1, 2, 3}


def test_assign_warns_once():
    groups, points = SemanticGroups(5), torch.eye(4)
    with pytest.warns(UserWarning, match="only 4 distinct"):
        groups.assign(points)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        groups.assign(points)


@pytest.mark.parametrize("rows, expected", [(4, [0, 1, 2, 3]), (1, [0])])
def test_assign_fewer_rows_than_groups(rows, expected):
    """KM-03."""
    with pytest.warns(UserWarning, match=f"only {rows} distinct"):
        assert SemanticGroups(5).assign(torch.eye(rows)).tolist() == expected


def test_assign_nothing():
    """KM-03: no rows at all."""
    ids = SemanticGroups(5).assign(torch.empty(0, 8))
    assert ids.shape == (0,) and ids.dtype == torch.int64


def test_assign_zero_row_gets_a_label():
    """KM-05: the embedding of an empty reply."""
    ids = SemanticGroups(3).assign(torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]]))
    assert ids.tolist() == [0, 1, 2]


def test_assign_nothing_but_zero_rows():
    """KM-05: every reply empty."""
    with pytest.warns(UserWarning, match="only 1 distinct"):
        assert SemanticGroups(3).assign(torch.zeros(4, 2)).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_assign_names_broken_rows(bad):
    """KM-05."""
    points = torch.zeros(4, 2)
    points[1, 0] = points[3, 1] = bad
    with pytest.raises(ValueError, match=r"rows \[1, 3\] hold NaN or inf"):
        SemanticGroups(2).assign(points)


def test_assign_refuses_other_shapes():
    groups = SemanticGroups(2)
    groups.assign(torch.eye(3))
    with pytest.raises(ValueError, match="size 4.*had 3"):
        groups.assign(torch.eye(4))
    with pytest.raises(ValueError, match=r"shape \(N, H\)"):
        groups.assign(torch.zeros(3))


@pytest.mark.parametrize("kinds", [2, 3, 4, 5])
def test_assign_adaptive_finds_the_number_of_kinds(kinds):
    rows = list(range(kinds)) * 5
    assert len(naming(SemanticGroups((2, 6)).assign(blobs(rows)), rows)) == kinds


def test_assign_adaptive_ids_stay_bounded_and_stable():
    """Kinds come and go; those seen before keep their ids, and no id reaches ``high``."""
    groups, known = SemanticGroups((2, 5)), {}
    for step, kinds in enumerate([[0, 1], [0, 1, 2], [2, 1], [4, 3, 0, 2, 1], [4, 3], [0, 1, 2, 3, 4]]):
        names = naming(groups.assign(blobs(kinds * 5, step)), kinds * 5)
        assert all(known.setdefault(kind, id) == id for kind, id in names.items())
    assert sorted(known.values()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rows, low", [(2, 2), (3, 3), (3, 2), (4, 2)])
def test_assign_adaptive_small_batches(rows, low):
    """The silhouette is not defined for as many groups as rows."""
    ids = SemanticGroups((low, 5)).assign(torch.eye(rows))
    assert low <= len(set(ids.tolist())) <= rows


def test_assign_does_not_depend_on_the_row_order():
    points, order = blobs([0, 1, 2, 3] * 6, spread=2.0), np.random.default_rng(0).permutation(24)
    same_start = SemanticGroups(4)
    same_start.assign(points)
    state = same_start.state_dict()
    straight, shuffled = SemanticGroups(4), SemanticGroups(4)
    straight.load_state_dict(state)
    shuffled.load_state_dict(state)
    assert torch.equal(straight.assign(points)[order], shuffled.assign(points[order]))


@pytest.mark.parametrize("num_groups", [3, (2, 5)])
def test_state_dict_resumes_exactly(num_groups):
    """MP-05 for the groups: 2 + 2 batches with a save between are 4 batches."""
    batches = [blobs([0, 1, 2, 3] * 4, seed, spread=2.5) for seed in range(4)]
    whole, before, after = SemanticGroups(num_groups), SemanticGroups(num_groups), SemanticGroups(num_groups)
    expected = [whole.assign(batch) for batch in batches]
    found = [before.assign(batch) for batch in batches[:2]]
    after.load_state_dict(before.state_dict())
    found += [after.assign(batch) for batch in batches[2:]]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_state_dict_is_a_copy_of_tensors():
    groups = SemanticGroups(2)
    assert {name: tuple(tensor.shape) for name, tensor in groups.state_dict().items()} == {
        "centers": (0, 0),
        "ids": (0,),
    }
    groups.assign(torch.eye(2))
    state = groups.state_dict()
    assert state["centers"].dtype == torch.float64 and state["ids"].tolist() == [0, 1]
    state["centers"].zero_()
    assert groups.state_dict()["centers"].sum() == 2
    json.dumps({name: tensor.tolist() for name, tensor in state.items()})


def test_load_state_dict_refuses_ids_out_of_range():
    large, small = SemanticGroups(4), SemanticGroups(2)
    large.assign(torch.eye(4))
    with pytest.raises(ValueError, match=r"group 3.*0\.\.1"):
        small.load_state_dict(large.state_dict())


@pytest.mark.parametrize("num_groups", [0, -1, (1, 3), (4, 3), (2,), 2.5, "3"])
def test_semantic_groups_refuses_num_groups(num_groups):
    with pytest.raises(ValueError, match="num_groups"):
        SemanticGroups(num_groups)
