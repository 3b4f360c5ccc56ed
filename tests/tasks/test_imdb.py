from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedimmune import tasks
from fedimmune.errors import InputError, ParameterError
from fedimmune.tasks.archives import Archive
from fedimmune.tasks.imdb import Imdb
from fedimmune.tasks.models import gru
from fedimmune.tasks.models.gru import WordGRU
from fedimmune.tasks.text import ids_of, most_common, read_vectors, words_of
from tests.tasks.making import NOWHERE, imdb_folder, vectors_file
from tests.tasks.training import learns

# ---------------------------------------------------------------- words


def test_words() -> None:
    text = "A film.<br /><br />ISN'T it… naïve_2 (10/10)?<br />"
    assert words_of(text) == ["a", "film", "isn", "t", "it", "naïve", "2", "10", "10"]
    assert words_of("<br />!") == []


def test_the_most_common_words_get_ids() -> None:
    texts = [["b", "a", "c"], ["c", "d"], ["c", "b"]]
    assert most_common(texts, 3) == {"c": 2, "b": 3, "a": 4}
    assert most_common(texts, 9) == {"c": 2, "b": 3, "a": 4, "d": 5}


def test_ids_are_padded_in_front_and_keep_the_end() -> None:
    known = {"a": 2, "b": 3}
    found = ids_of([["a"], [], ["b", "a", "x"], ["a", "a", "x", "b", "b"]], known, 3)
    assert found.tolist() == [[0, 0, 2], [0, 0, 0], [3, 2, 1], [1, 3, 3]]
    assert found.dtype == torch.int32


def test_vectors_of_known_words(tmp_path: Path) -> None:
    file = tmp_path / "words.vec"
    file.write_text(
        "4 2\nfilm 1 2\nun\xa0known 5 5 \nnaïve -0.5 1e-3\r\nfilm 9 9\n", encoding="utf-8"
    )
    found = read_vectors(file, {"naïve": 2, "absent": 3, "film": 4})
    expected = [[0, 0], [0, 0], [-0.5, 1e-3], [0, 0], [1, 2]]
    assert torch.allclose(found, torch.tensor(expected))
    assert found.dtype == torch.float32


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "first line must be `count size`"),
        ("film 1 2\n", "GloVe's files lack it"),
        ("one 2\nfilm 1 2\n", "first line"),
        ("1 -2\nfilm 1 2\n", "first line"),
        ("1 0\nfilm\n", "vectors have 0 numbers"),
        ("1 999999999\nfilm 1\n", "vectors have 999,999,999 numbers"),
        ("1 9999999999999\nfilm 1\n", "first line"),
        ("3 2\nfilm 1 2\nshort 1 2\n", "header says 3 words, it has 2"),
        ("1 2\nfilm 1 2\nshort 1 2\n", "header says 1 words, it has 2"),
        ("2 2\nfilm 1 2\nshort 1\n", "line 3: expected a word and 2 numbers"),
        ("2 2\nfilm 1 2\nshort 1 2 3\n", "line 3: expected a word and 2 numbers"),
        ("2 2\nfilm 1 2\n\n", "line 3: expected a word and 2 numbers"),
        ("1 2\nfilm 1 x\n", "line 2: could not convert"),
        ("1 2\nfilm 1 nan\n", "line 2: a number is not finite"),
        ("1 2\nfilm 1 1e99\n", "line 2: a number is not finite"),
        ("1 2\nother 1 2\n", "none of the 1 words"),
        ("0 2\n", "none of the 1 words"),
    ],
)
def test_damaged_vectors_are_named(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "words.vec"
    file.write_text(content)
    with pytest.raises(InputError, match=problem) as caught:
        read_vectors(file, {"film": 2})
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- the model


def test_vectors_are_no_weights() -> None:
    vectors = torch.randn(9, 4)
    net = WordGRU(vectors, hidden=5)
    assert {name: tuple(each.shape) for name, each in net.state_dict().items()} == {
        "gru.weight_ih_l0": (15, 4),
        "gru.weight_hh_l0": (15, 5),
        "gru.bias_ih_l0": (15,),
        "gru.bias_hh_l0": (15,),
        "fc.weight": (2, 5),
        "fc.bias": (2,),
    }
    assert len(list(net.parameters())) == 6
    assert net.to(torch.float64).vectors.dtype == torch.float64


@pytest.mark.parametrize("length", [1, 25, 60])
def test_a_review_read_in_stretches_is_read_whole(length: int) -> None:
    """Outputs and gradients are those of one run over all words."""
    torch.manual_seed(0)
    net = WordGRU(torch.randn(50, 4), hidden=8).double()
    words = torch.randint(1, 50, (3, length), dtype=torch.int32)
    outputs = net(words)
    outputs.square().sum().backward()
    found = [each.grad for each in net.parameters()]
    net.zero_grad()
    states, _ = net.gru(net.vectors[words])
    whole = net.fc(states.max(1).values)
    whole.square().sum().backward()
    assert torch.allclose(outputs, whole)
    for each, parameter in zip(found, net.parameters(), strict=True):
        assert each is not None
        assert parameter.grad is not None
        assert torch.allclose(each, parameter.grad)


def test_what_was_read_first_counts() -> None:
    torch.manual_seed(0)
    net = WordGRU(torch.randn(50, 4), hidden=64)
    one = torch.randint(1, 50, (1, 200))
    other = one.clone()
    other[0, :20] = (other[0, :20] + 24) % 49 + 1
    with torch.no_grad():
        assert (net(one) - net(other)).abs().max() > 1e-3


def test_what_fills_up_a_short_text_is_passed_over() -> None:
    torch.manual_seed(0)
    net = WordGRU(torch.randn(50, 4), hidden=8)
    words = torch.randint(1, 50, (2, 9))
    padded = torch.cat([words, torch.zeros(2, 30, dtype=words.dtype)], 1)
    with torch.no_grad():
        assert torch.allclose(net(padded), net(words))
        assert torch.isfinite(net(torch.zeros(1, 5, dtype=torch.int64))).all()


def test_traces_of_gradients_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A net that forgets hands no numbers back that are slow to calculate with."""
    torch.manual_seed(0)
    net = WordGRU(torch.randn(50, 4), hidden=8)
    net.gru.reset_parameters()
    seen: list[torch.Tensor] = []

    def watched(gradient: torch.Tensor) -> torch.Tensor:
        kept = without_traces(gradient)
        seen.append(kept)
        return kept

    without_traces = gru._without_traces
    monkeypatch.setattr(gru, "_without_traces", watched)
    net(torch.randint(0, 50, (3, 200))).sum().backward()
    assert len(seen) == 7  # one between two stretches
    sizes = torch.stack(seen).abs()
    assert (sizes == 0).any()
    assert sizes[sizes > 0].min() >= 1e-26


def test_without_gradients() -> None:
    net = WordGRU(torch.randn(50, 4), hidden=8)
    with torch.no_grad():
        assert net(torch.ones(3, 60, dtype=torch.int32)).shape == (3, 2)


# ---------------------------------------------------------------- the task


def test_a_folder_loads_and_trains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    imdb_folder(tmp_path)
    vectors_file(tmp_path / "words.vec", size=4)
    task = tasks.get("imdb")
    data = task.load(tmp_path)
    assert data.clients.inputs.shape == data.server.inputs.shape == (12, 200)
    assert data.clients.labels.tolist() == [0] * 6 + [1] * 6
    assert "imdb: 12 of 25,000 training and 12 of 25,000 test reviews: a subset" in caplog.text
    # 15 words are known: this film isn t short it was, awful, superb, and no0 to no5.
    assert data.extras["vectors"].shape == (2 + 15, 4)
    assert data.highest is None
    assert data.spec == tasks.DataSpec(2, (200,), words=17)
    assert task.load(tmp_path).spec.words == 17, "as the prepared file has it"
    first = data.clients.inputs[0].tolist()
    assert first[:190] == [0] * 190
    assert all(word > 1 for word in first[190:])
    assert task.load(tmp_path).file is not None
    # Vectors that were replaced are read again. All in the file are alike: one word is left to
    # tell the reviews by.
    vectors_file(tmp_path / "words.vec", words="superb", size=6)
    data = task.load(tmp_path)
    assert data.extras["vectors"].shape == (17, 6)
    assert learns(task, data, steps=20, lr=1.0)


def test_a_smaller_net_reads_fewer_words(tmp_path: Path) -> None:
    imdb_folder(tmp_path)
    vectors_file(tmp_path / "words.vec", size=4)
    small = Imdb(hidden=8, length=5)
    usual, data = Imdb().load(tmp_path), small.load(tmp_path)
    assert torch.equal(data.clients.inputs, usual.clients.inputs[:, -5:])
    assert small.model(data).state_dict()["fc.weight"].shape == (2, 8)
    for name in ("hidden", "length"):
        with pytest.raises(ParameterError, match=f"{name} must be"):
            tasks.get("imdb", **{name: 0})


def test_unknown_words_of_the_test_reviews(tmp_path: Path) -> None:
    folder = imdb_folder(tmp_path)
    vectors_file(tmp_path / "words.vec")
    (folder / "test" / "neg" / "0_5.txt").write_text("unseen film unheard")
    found = Imdb().load(tmp_path).server.inputs[0, -3:].tolist()
    assert found[0] == found[2] == 1 < found[1]


def test_which_vectors(tmp_path: Path) -> None:
    imdb_folder(tmp_path)
    with pytest.raises(InputError, match=r"\*\.vec is expected in .*fasttext\.cc.*glove"):
        Imdb().load(tmp_path)
    vectors_file(tmp_path / "one.vec", size=3)
    vectors_file(tmp_path / "two.vec", size=5)
    (tmp_path / "elsewhere").mkdir()
    other = vectors_file(tmp_path / "elsewhere" / "three.vec", size=7)
    with pytest.raises(InputError, match=r"several .*: one\.vec, two\.vec\. Choose one"):
        Imdb().load(tmp_path)
    for vectors, size in (("two.vec", 5), (str(other), 7), (str(tmp_path / "one.vec"), 3)):
        data = tasks.get("imdb", vectors=vectors).load(tmp_path)
        assert data.extras["vectors"].shape[1] == size
    with pytest.raises(InputError, match=r"no file of word vectors four\.vec, nor .*four\.vec"):
        Imdb(vectors="four.vec").load(tmp_path)
    with pytest.raises(ParameterError, match="path of a file: 3"):
        tasks.get("imdb", vectors=3)


def test_damage_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(f"{NOWHERE}aclImdb_v1.tar.gz", "0" * 32, "aclImdb")
    monkeypatch.setattr(Imdb, "archive", archive)
    vectors_file(tmp_path / "words.vec")
    with pytest.raises(InputError, match=r"imdb: missing in .*aclImdb: train, test\. Down.*--data"):
        Imdb().load(tmp_path)
    folder = imdb_folder(tmp_path)
    review = folder / "test" / "pos" / "3_5.txt"
    for content, problem in ((b"", "holds no words"), (b"caf\xe9", "cannot be read")):
        review.write_bytes(content)
        with pytest.raises(InputError, match=problem) as caught:
            Imdb().load(tmp_path)
        assert str(review) in str(caught.value)
    for file in (folder / "test" / "pos").iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"test/pos holds no reviews"):
        Imdb().load(tmp_path)


def test_check_counts(tmp_path: Path) -> None:
    assert [each.verdict for each in Imdb().check(tmp_path)] == ["missing"] * 3
    imdb_folder(tmp_path)
    vectors_file(tmp_path / "words.vec")
    found = Imdb().check(tmp_path)
    assert [each.verdict for each in found] == ["differs", "differs", "unknown"]
    assert found[0].detail == "12 of 25,000 files"
