"""What holds whether Flower is installed or not."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from fedimmune.flower import verdict_of
from fedimmune.flower.client import to_config
from fedimmune.results import ClientResult, Suspicion, Verdict


@pytest.mark.flower
def test_flower_is_installed() -> None:
    if find_spec("flwr") is None:
        pytest.skip("Flower is not installed: `make test-flower` installs it")


def test_a_client_needs_neither_pytorch_nor_flower_to_be_told() -> None:
    script = (
        "import sys; from fedimmune.flower import verdict_of\n"
        "assert verdict_of({'fedimmune-verdict': 'trusted'})['verdict'] == 'trusted'\n"
        "heavy = {'torch', 'flwr', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_is_told_is_read_back() -> None:
    suspicion = Suspicion("backdoor", 0.93, 2, "omniscient", 0.05)
    told = ClientResult(7, Verdict.SUSPECTED, 0.0, suspicion=suspicion, probability=0.97).notice()
    told["round"] = 4
    config = to_config(told)
    del told["client"]  # it knows who it is
    assert verdict_of({"lr": 0.1, **config}) == told
    assert verdict_of({"config": config}) == told
    assert verdict_of({"other": config}, configrecord_key="other") == told
    assert str(verdict_of(config)) == told["text"]


@pytest.mark.parametrize("message", [None, 3, {}, {"lr": 0.1}, {"fedimmune-verdict": 7}, "text"])
def test_nothing_told_is_none(message: object) -> None:
    assert verdict_of(message) is None


def test_words_of_a_later_server_are_passed_over() -> None:
    config = {"fedimmune-verdict": "trusted", "fedimmune-mood": "good"}
    told = verdict_of(config)
    assert told is not None
    assert str(told) == told["verdict"] == "trusted"
    assert "mood" not in told
    assert told["weight"] is None
