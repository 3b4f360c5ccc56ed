from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor, nn

from fedimmune import Updates, Verdict, measure, rules
from fedimmune._layers import Kind
from fedimmune.errors import InputError, NotEnoughClientsError

W = torch.ones(2, 3)


def reasons(clients: Any, **options: Any) -> dict[Any, str]:
    return dict(rules.get("mean").aggregate(Updates.of(clients, **options)).rejected)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"w": torch.full((2, 3), torch.nan), "b": W[0]}, "layer 'w' holds NaN or infinite values"),
        ({"w": W, "b": torch.tensor([0, -torch.inf, 0])}, "layer 'b' holds NaN or infinite values"),
        ({"w": W}, "lacks layer 'b'"),
        ({"w": W, "b": W[0], "z": W, "y": W}, "has a layer that the model has not: 'z' and 1 more"),
        ({"w": W.T, "b": W[0]}, "layer 'w' has shape (3, 2), expected (2, 3)"),
        ({"w": W, "b": torch.ones(1)}, "layer 'b' has shape (1,), expected (3,)"),
        ({"w": W.long(), "b": W[0]}, "layer 'w' holds int64, expected float32"),
        ({"w": W.to(torch.complex64), "b": W[0]}, "layer 'w' holds complex64, expected float32"),
        ({"w": W, "b": "text"}, "layer 'b' is not a dense tensor but str"),
        ({"w": W, 3: W[0]}, "has a layer whose name is not text: 3"),
        ({"w": W.to_sparse(), "b": W[0]}, "layer 'w' is not a dense tensor but Tensor"),
        ({}, "is empty: it holds no layers"),
        (None, "is not a state dict but NoneType"),
    ],
)
def test_each_fault_has_its_reason(bad: Any, reason: str) -> None:
    good = {"w": W, "b": W[0]}
    assert reasons({"good": good, "bad": bad, "other": good}) == {"bad": reason}


def test_other_float_widths_are_converted() -> None:
    answer = rules.get("mean").aggregate([{"w": W}, {"w": W.half()}, {"w": W.double()}, {"w": W}])
    assert not answer.rejected
    assert answer.update["w"].dtype == torch.float32


def test_the_majority_says_what_the_layers_are() -> None:
    odd = {"x": torch.ones(1)}
    assert set(reasons([odd, {"w": W}, {"w": W}])) == {0}


def test_the_same_id_twice_counts_once() -> None:
    updates = Updates.from_vectors(torch.eye(3), clients=["a", "b", "a"])
    answer = rules.get("mean").aggregate(updates)
    assert answer.update.tolist() == [0.5, 0.5, 0]
    assert dict(answer.rejected) == {"a": "its id is there twice; only the first is counted"}
    assert answer.verdicts == {"a": Verdict.TRUSTED, "b": Verdict.TRUSTED}
    assert len(answer.clients) == 3


@pytest.mark.parametrize("ids", [[7, 8, 9], [("a", 1), ("b", 2), ("c", 3)], ["x", 5, None]])
def test_ids_may_be_anything_hashable(ids: list[Any]) -> None:
    answer = rules.get("mean").aggregate(Updates.from_vectors(torch.eye(3), clients=ids))
    assert answer.weights is not None
    assert list(answer.weights) == ids


def test_vectors_of_other_lengths_or_kinds_are_rejected() -> None:
    vectors = [[1.0, 2], [3, 4], [5.0], [[1.0, 2]], "no", [7, 8]]
    found = reasons(vectors)
    assert set(found) == {2, 3, 4}
    assert found[2] == "layer 'update' has shape (1,), expected (2,)"
    assert rules.get("mean")([[1, 2], [3, 4]]).tolist() == [2, 3]


def test_integer_arrays_are_read_as_numbers() -> None:
    assert rules.get("median")(np.array([[1, 2], [4, 5], [2, 9], [3, 3]])).tolist() == [2.5, 4.0]
    assert rules.get("mean")(torch.tensor([[1, 2], [2, 4]])).dtype == torch.float32


@pytest.mark.parametrize("given", [torch.ones(3), torch.ones(2, 3, 4), np.float64(3), 7, "abc"])
def test_what_is_no_round_is_refused_whole(given: Any) -> None:
    with pytest.raises(InputError, match="expected one"):
        rules.get("mean")(given)


def test_any_iterable_will_do() -> None:
    assert rules.get("mean")(torch.full((2,), float(i)) for i in range(3)).tolist() == [1, 1]
    states = ({"w": torch.full((2,), float(i))} for i in range(3))
    assert rules.get("mean").aggregate(states).update["w"].tolist() == [1, 1]


def test_a_global_file_says_which_layers_updates_have(tmp_path: Path) -> None:
    for name, state in {"g": {"w": W}, "a": {"w": W}, "b": {"x": W}, "c": {"x": W}}.items():
        save_file(state, tmp_path / f"{name}.safetensors")
    files = [tmp_path / f"{client}.safetensors" for client in "abc"]
    updates = Updates.from_files(files, global_file=tmp_path / "g.safetensors", are_updates=True)
    assert updates.clients == ("a",)
    assert rules.get("mean").aggregate(updates).update["w"].tolist() == W.tolist()


@pytest.mark.parametrize("empty", [[], {}, torch.ones(0, 3), np.ones((4, 0)), [[], []], [{}, {}]])
def test_nobody_or_nothing(empty: Any) -> None:
    with pytest.raises(NotEnoughClientsError, match="mean needs at least 1 valid client"):
        rules.get("mean").aggregate(empty)


def test_awkward_arrays_are_read_right() -> None:
    plain = np.arange(12.0).reshape(3, 4)
    frozen = plain.copy()
    frozen.flags.writeable = False
    for array in (frozen, plain[:, ::-1][:, ::-1], plain.astype(">f8"), np.asfortranarray(plain)):
        assert rules.get("median")(array).tolist() == [4, 5, 6, 7]
    assert rules.get("median")(plain[:, ::-1]).tolist() == [7, 6, 5, 4]
    assert rules.get("median")([row[::2] for row in plain]).tolist() == [4, 6]


def test_gradients_do_not_leak() -> None:
    matrix = torch.ones(3, 2, requires_grad=True)
    assert not rules.get("mean")(matrix).requires_grad


def test_modules_are_state_dicts() -> None:
    nets = [nn.Linear(2, 2) for _ in range(4)]
    answer = rules.get("mean").aggregate(Updates.from_models(nets[1:], nets[0]))  # type: ignore[arg-type]
    expected = torch.stack([net.weight for net in nets[1:]]).mean(0)
    torch.testing.assert_close(answer.apply(nets[0].state_dict())["weight"], expected)


def test_a_broken_global_model_is_refused() -> None:
    for base in ({}, {"w": torch.tensor(torch.nan)}, {"w": "text"}):
        with pytest.raises(InputError, match="the global model"):
            Updates.from_models([{"w": torch.tensor(1.0)}], base)


def test_kinds_of_layers() -> None:
    net = nn.BatchNorm1d(2)
    updates = Updates.from_states([net.state_dict()], buffers=["b*"])
    assert {layer.name: layer.kind for layer in updates.layers} == {
        "weight": Kind.PARAMETER,
        "bias": Kind.BUFFER,
        "running_mean": Kind.BUFFER,
        "running_var": Kind.BUFFER,
        "num_batches_tracked": Kind.COUNTER,
    }


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(InputError, match="2 client ids for 3 updates"):
        Updates.from_vectors(torch.ones(3, 2), clients=["a", "b"])
    with pytest.raises(InputError, match="hashable"):
        Updates.from_vectors(torch.ones(2, 2), clients=[[], []])
    with pytest.raises(InputError, match="layers hold 3 values, the vectors 2"):
        Updates.from_vectors(torch.ones(2, 2), layers={"w": (3,)})
    with pytest.raises(InputError, match="1 sample counts for 2 updates"):
        Updates.from_vectors(torch.ones(2, 2), samples=[3])
    with pytest.raises(InputError, match="global_file"):
        Updates.from_files([])


def test_a_round_is_told_in_one_line() -> None:
    updates = Updates.from_states([{"w": W, "b": W[0]}, {"w": W, "b": W[0]}, {}])
    assert repr(updates) == "Updates(2 clients, 1 rejected; 9 values each in 2 layers)"


def test_a_matrix_with_layers_is_measured_by_layer() -> None:
    updates = Updates.from_vectors(torch.eye(4), layers={"a": (1, 2), "b": (2,)})
    geometry = measure(updates)
    assert geometry.layers == ("a", "b")
    assert geometry.of("a").gram().diagonal().tolist() == [1, 1, 0, 0]
    assert rules.get("mean")(updates).tolist() == [0.25] * 4


def test_files_are_mapped_not_loaded(tmp_path: Path) -> None:
    paths = []
    for client in range(4):
        paths.append(tmp_path / f"{client}.safetensors")
        save_file({"w": torch.full((2_000_000,), float(client))}, paths[-1])
    before = _anonymous_bytes()
    if before is None:
        pytest.skip("no /proc/self/status here")
    updates = Updates.from_files(paths, are_updates=True)
    assert _read(updates) == [0, 1, 2, 3]
    after = _anonymous_bytes()
    assert after is not None
    assert after - before < 4_000_000 * 4  # the four files hold 32 MB


def _read(updates: Updates) -> list[float]:
    last: list[float] = []
    for block in updates.blocks(updates.layers, check=True):
        last = [float(row[-1]) for row in block.rows]
    return last


def _anonymous_bytes() -> int | None:
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = [line for line in status.read_text().splitlines() if line.startswith("RssAnon")]
    return int(lines[0].split()[1]) * 1024 if lines else None


@pytest.mark.parametrize("table", ["repr", "rich"])
def test_the_answer_is_readable(table: str) -> None:
    rows: list[Tensor] = [torch.full((3,), float(i)) for i in range(6)]
    rows[2] = torch.full((3,), torch.nan)
    answer = rules.get("krum").aggregate({f"client-{i}": row for i, row in enumerate(rows)})
    console = Console(width=120)
    with console.capture() as captured:
        console.print(answer)
    text = repr(answer) if table == "repr" else captured.get()
    assert "6 clients, 1 trusted, 4 unused, 1 rejected" in text
    assert "client-2" in text
    assert "holds NaN or infinite values" in text


# -------------------------------------------------------------------- models as lists of arrays


def as_lists(states: list[dict[str, Any]]) -> list[list[Any]]:
    return [list(state.values()) for state in states]


def ndarrays(n: int = 5) -> list[dict[str, Any]]:
    random = np.random.default_rng(7)
    return [
        {"w": random.normal(size=(3, 2)).astype(np.float32), "b": random.normal(size=2)}
        for _ in range(n)
    ]


@pytest.mark.parametrize("rule", ["mean", "median", "krum", "geometric-median"])
def test_lists_of_arrays_are_models_and_come_back_as_such(rule: str) -> None:
    states = ndarrays()
    expected = rules.get(rule).aggregate(states)
    found = rules.get(rule).aggregate(as_lists(states))
    assert isinstance(found.update, list)
    for array, name in zip(found.update, ("w", "b"), strict=True):
        assert isinstance(array, np.ndarray)
        assert array.dtype == states[0][name].dtype
        np.testing.assert_array_equal(array, expected.update[name])
    assert found.weights == expected.weights
    by_id = rules.get(rule).aggregate({f"c{n}": one for n, one in enumerate(as_lists(states))})
    assert list(by_id.verdicts) == ["c4", "c3", "c2", "c1", "c0"]


def test_a_new_model_is_a_list_too() -> None:
    start, moved = as_lists(ndarrays(1))[0], as_lists(ndarrays())
    models = [[a + b for a, b in zip(start, change, strict=True)] for change in moved]
    answer = rules.get("mean").aggregate(Updates.from_models(models, start))
    new = answer.apply(start)
    for place, array in enumerate(new):
        assert isinstance(array, np.ndarray)
        expected = np.mean([model[place] for model in models], axis=0)
        np.testing.assert_allclose(array, expected, rtol=1e-5)
    tensors = [[torch.from_numpy(array) for array in model] for model in models]
    own = Updates.from_models(tensors, [torch.from_numpy(array) for array in start])
    assert all(isinstance(t, torch.Tensor) for t in rules.get("mean").aggregate(own).update)


def test_one_odd_client_does_not_decide_what_the_others_sent() -> None:
    lists, vectors = as_lists(ndarrays()), [np.ones(4)] * 4
    odd: Any
    for odd in (np.ones(8), {"w": np.ones((3, 2))}, [], [np.ones(2)], "text"):
        found = rules.get("mean").aggregate([*lists, odd])
        assert list(found.rejected) == [5]
        assert isinstance(found.update, list)
    for odd in (lists[0], {"w": np.ones(3)}):
        found = rules.get("mean").aggregate([*vectors, odd])
        assert list(found.rejected) == [4]
        assert isinstance(found.update, np.ndarray)
    assert isinstance(rules.get("mean")([[1.0, 2.0], [3.0, 4.0]]), np.ndarray), "lists of numbers"


def test_an_anchor_may_be_a_list() -> None:
    lists = as_lists(ndarrays())
    assert Updates.of(lists).with_anchor(lists[0]).references["anchor"]


def test_references_have_to_be_finite_and_may_be_large() -> None:
    updates = Updates.of(torch.ones(3, 4))
    large = torch.tensor([3e38, 3e38, -3e38, 1.0])  # their sum is beyond float32
    assert torch.equal(updates.with_anchor(large).references["anchor"]["update"], large)
    for bad in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(InputError, match="holds NaN or infinite values"):
            updates.with_anchor(torch.tensor([1.0, bad, 0.0, 1.0]))
    with pytest.raises(InputError, match="holds NaN or infinite values"):
        updates.with_anchor(torch.tensor([torch.inf, -torch.inf, 0.0, 1.0]))
