"""Names that users give: found, refused with help, never taken twice; parameters checked."""

from __future__ import annotations

import sys
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import Scenario, rules, simulate, validation
from fedimmune.errors import ParameterError
from fedimmune.registry import Configurable, Registry, make


class Animal(Configurable, ABC):
    @abstractmethod
    def sound(self) -> str: ...


class Cat(Animal):
    name = "cat"
    summary = "purrs"
    symbols = {"lives": "n"}

    def __init__(self, *, lives: int = 9, color: str | None = None) -> None:
        self.lives, self.color = lives, color

    def sound(self) -> str:
        return "meow" * self.lives


class Dog(Animal):
    name = "dog"
    summary = "barks"

    def sound(self) -> str:
        return "woof"


@pytest.fixture
def animals() -> Registry[Animal]:
    return Registry("animal", (Cat, Dog))


def test_found_by_name_and_listed_sorted(animals: Registry[Animal]) -> None:
    assert animals.available() == ("cat", "dog")
    assert animals.find("cat") is Cat
    made = animals.get("cat", lives=2)
    assert made.sound() == "meowmeow"
    assert repr(made) == "Cat(lives=2, color=None)"
    assert Cat.parameters() == {"lives": 9, "color": None}
    assert Dog.parameters() == {}


@pytest.mark.parametrize("name", ["cow", "", None, 5, ["cat"], {}])
def test_unknown_names_get_a_list_of_those_there_are(animals: Registry[Animal], name: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        animals.find(name)
    assert str(caught.value) == f"there is no animal {name!r}; there are cat, dog"


def test_unknown_parameters_get_a_list_of_those_there_are(animals: Registry[Animal]) -> None:
    with pytest.raises(ParameterError) as caught:
        animals.get("cat", legs=4)
    assert str(caught.value) == "cat has no parameter 'legs'; it takes lives (n), color"
    with pytest.raises(ParameterError, match="'legs'; it takes none"):
        make(Dog, {"legs": 4})


@pytest.mark.parametrize("name", ["Cat", "cats", "cta", "catt"])
def test_the_nearest_name_is_asked_for(name: str) -> None:
    animals: Registry[Animal] = Registry("animal", (Cat, Dog))
    with pytest.raises(ParameterError) as caught:
        animals.find(name)
    expected = "did you mean 'cat'?" if name != "cta" else "there are cat, dog"
    assert str(caught.value) == f"there is no animal {name!r}; {expected}"


def test_the_nearest_parameter_is_asked_for(animals: Registry[Animal]) -> None:
    with pytest.raises(ParameterError, match=r"no parameter 'colr'; did you mean 'color'\?$"):
        animals.get("cat", colr="red")


def test_an_alias_is_another_name_of_the_same(animals: Registry[Animal]) -> None:
    class Cow(Animal):
        name = "cow"
        aliases = ("bovine",)

        def sound(self) -> str:
            return "moo"

    class Bison(Cow):
        name = "bovine"

    class Ox(Cow):
        name = "ox"

    animals.register(Cow)
    assert animals.find("bovine") is animals.find("cow") is Cow
    assert animals.available() == ("cat", "cow", "dog")
    assert [animals.resolve(name) for name in ("bovine", "cow", "x")] == ["cow", "cow", "x"]
    with pytest.raises(ParameterError, match="animal 'bovine' already: Cow"):
        animals.register(Bison)
    assert animals.register(Ox).aliases == ()
    with pytest.raises(ParameterError, match="did you mean 'bovine'"):
        animals.find("bovin")


def test_double_names_are_refused_and_the_first_stays(animals: Registry[Animal]) -> None:
    class Tiger(Cat):
        name = "cat"

    with pytest.raises(ParameterError, match="animal 'cat' already: Cat"):
        animals.register(Tiger)
    assert animals.find("cat") is Cat
    assert animals.register(Cat) is Cat  # the same once more is no harm
    assert animals.available() == ("cat", "dog")


def test_usable_as_a_decorator_and_one_registry_is_not_another(animals: Registry[Animal]) -> None:
    @animals.register
    class Cow(Dog):
        name = "cow"

    assert animals.get("cow").sound() == "woof"
    assert "cow" not in Registry("animal", (Cat, Dog)).available()


def test_abstract_classes_are_refused(animals: Registry[Animal]) -> None:
    with pytest.raises(ParameterError, match="abstract"):
        animals.register(Animal)  # type: ignore[type-abstract]


# -------------------------------------------------------------------- users' own


OWN = """
from fedimmune import attacks, rules
from fedimmune.rules.median import Median

class Mine(Median):
    name = "mine"

class Theirs(attacks.Attack):
    name = "theirs"
    summary = paper = "-"
    def __init__(self, *, scale: float = 2.0) -> None:
        self.scale = scale
    def on_update(self, update, context) -> None:
        for tensor in update.values():
            tensor.mul_(-self.scale)

class Greedy(Median):
    name = "greedy"
    def __init__(self, *, much):
        self.much = much

class Unfinished(rules.WeightRule):
    name = "unfinished"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's, beside where the user is."""
    (tmp_path / "of_my_own.py").write_text(OWN)
    (tmp_path / "broken_by_me.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "of_my_own", raising=False)
    return "of_my_own"


def test_a_rule_and_an_attack_of_ones_own_are_played_like_any_other(own: str) -> None:
    """In worker processes too; the rule is the median under another name, so has its figures."""
    attack = {"name": f"{own}:Theirs", "scale": 3}
    rule = f"{own}:Mine"
    fields: dict[str, Any] = {"attack": attack, "attackers": 4, "rounds": 1, "task": "digits"}
    mine = Scenario(rule=rule, **fields)
    assert mine.title == "digits-Mine-Theirs-4of10-seed1"
    assert Scenario(**tomllib.loads(mine.to_toml())) == mine
    figures = [
        [record.accuracy for record in simulate(scenario, workers=2)]
        for scenario in (mine, Scenario(rule="median", **fields))
    ]
    assert figures[0] == figures[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere_at_all:Mine", "cannot import 'nowhere_at_all'"),
        ("broken_by_me:Mine", "ZeroDivisionError"),
        ("of_my_own:Yours", "has no 'Yours'"),
        ("of_my_own:Theirs", "not a subclass of fedimmune.rules.Rule"),
        ("of_my_own:Greedy", "'much' needs a default"),
        ("of_my_own:Unfinished", "abstract: it lacks weigh"),
        ("minee", "of your own, module:Class"),
    ],
)
@pytest.mark.usefixtures("own")
def test_what_is_no_rule_is_refused(name: str, words: str) -> None:
    with pytest.raises(ParameterError) as error:
        rules.find(name)
    assert words in str(error.value)
    assert name in str(error.value)


# -------------------------------------------------------------------- checks

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.just(10**5000),
    st.just(-(10**5000)),
)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@pytest.mark.parametrize(
    ("check", "is_right"),
    [
        (lambda v: validation.check_bool("x", "y", v), lambda v: isinstance(v, bool)),
        (
            lambda v: validation.check_int("x", "y", v, 2),
            lambda v: is_number(v) and 2 <= v < float("inf") and v == int(v),
        ),
        (
            lambda v: validation.check_float("x", "y", v, 0.5),
            lambda v: is_number(v) and 0.5 < v < 10**308,
        ),
        (
            lambda v: validation.check_open_fraction("x", "y", v, 0.5),
            lambda v: is_number(v) and 0 <= v < 0.5,
        ),
        (lambda v: validation.check_fraction("x", "y", v), lambda v: is_number(v) and 0 <= v <= 1),
        (lambda v: validation.check_choice("x", "y", v, ("a", "b")), lambda v: v in ("a", "b")),
    ],
    ids=["flag", "whole", "number", "fraction", "share", "choice"],
)
@given(value=anything | st.sampled_from(["a", "b", 0.5, 0, 1, 2, 2.0, 0.25]))
def test_checks_take_what_is_right_and_name_what_is_not(
    check: Callable[[object], object], is_right: Callable[[Any], bool], value: object
) -> None:
    if is_right(value):
        found = check(value)
        # A float holds no integer beyond 2^53 exactly.
        assert found == (float(cast(Any, value)) if isinstance(found, float) else value)
        assert not (isinstance(found, bool) and not isinstance(value, bool))
        return
    with pytest.raises(ParameterError, match=r"^x: y must be ") as caught:
        check(value)
    assert len(str(caught.value)) < 120
    assert "\n" not in str(caught.value)
