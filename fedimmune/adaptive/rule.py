"""The rule ``adaptive``: a defense, used."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from fedimmune import attacks
from fedimmune._layers import Kind, Layer
from fedimmune.adaptive.defense import Defense, Judged, universal
from fedimmune.adaptive.models.paper import Principal
from fedimmune.adaptive.reputation import Case, Memory
from fedimmune.adaptive.ruling import Ruling, oddity_of
from fedimmune.errors import InputError, ParameterError
from fedimmune.geometry import Geometry
from fedimmune.landmarks import LARGE, measure_landmarks
from fedimmune.results import UNKNOWN, Suspicion
from fedimmune.rules.base import ClientWeights, Common, DecisionInputs, GeometryRule
from fedimmune.rules.selection import landmark_rows
from fedimmune.updates import ClientId, Updates
from fedimmune.validation import check_bool, check_choice, check_float

__all__ = ["UNIVERSAL", "Adaptive"]

UNIVERSAL = "universal"
"""The name of the defense that ships with the package, instead of a file."""
_Judge = Callable[[Tensor | None], Judged]
"""Judges clients, given what earlier rounds held against each."""
_POLICIES = ("skip", "keep", "geometric-median")


class Adaptive(GeometryRule):
    """Attack-adaptive aggregation (Wan and Chen, 2021): a network that has learned attacks weighs.

    Whatever the network says, and whatever fewer than half of the clients send, a clipped result
    ends at most 1 + `clip` lengths of the longest honest update from the mean of the honest. For
    each update is shortened to `clip` times the median length before it is multiplied by a share,
    so the result is no longer than that; and the median length is at most that of the longest
    honest update if most are honest, as is the mean of the honest.

    With memory, a universal defense also adds up inner products over rounds, by pairs of clients:
    who keeps going against those who are trusted is held out; see `fedimmune.adaptive.history`.

    With more than 256 clients a universal defense compares everybody with 64 of them, drawn by lot,
    and reads the round once more for each of its passes; see `fedimmune.landmarks`.

    Parameters
    ----------
    defense
        The file that ``fedimmune train`` wrote. By default, or as ``universal``, the one that ships
        with the package, which is for any model.
    memory
        Whether suspicion adds up over rounds, by client id; by default as the defense has it.
    clip
        How many median lengths of the valid clients an update may have; longer ones are shortened
        before they are added up, so that no client moves the model much farther than an ordinary
        one, whatever the network says. By default 2 for a universal defense and 1, as for True, for
        any other; False for no limit.
    longest
        A client whose update is more than this many times as long as the median client's is
        suspected for that reason; the network never sees it.
    on_majority
        What to do if most of the clients that the network judges would be suspected, or one of four
        or more would get more than half of the weight. ``skip``: the model stays as it is, and
        nothing is held against anybody. With memory no more than two of ten rounds in a row are
        skipped; any further one is weighed by geometric median. ``keep``: use the weights
        all the same. ``geometric-median``: weigh by that, which has learned nothing. By default
        ``skip``, and ``keep`` for the paper's form, which is used as it was published.
    max_false_alarms
        The largest share of honest clients to accuse, above 0 and below 0.5: moves the threshold to
        where no more were accused in the rounds that the defense was calibrated on. By default a
        client is suspected if it is likelier an attacker than not.
    anchor
        Whether a universal defense compares clients with the server's own update too; by default it
        does not. Any other defense was trained with one or without.
    digest
        Refuse a file with another digest; by default any will do.
    any_shape
        Whether the model's layers may have other shapes than those that the defense was trained
        for, such as another number of classes. Measure how good it then is.
    """

    name = "adaptive"
    summary = "attention that has learned attacks; ships with a defense for any model"
    paper = "Wan and Chen 2021"
    places = frozenset({"defense"})  # `digest` says which it is
    looks_at_layers = True
    bounds_lengths = True
    suspects_below = 0.0
    is_translation_equivariant = False
    weights_make_result = False
    weighs_smoothly = True

    def __init__(
        self,
        *,
        defense: str | os.PathLike[str] | None = None,
        memory: bool | None = None,
        clip: float | bool | None = None,
        longest: float = 10.0,
        on_majority: Literal["skip", "keep", "geometric-median"] | None = None,
        max_false_alarms: float | None = None,
        anchor: bool | None = None,
        digest: str | None = None,
        any_shape: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.longest = check_float(self.name, "longest", longest, above=1)
        self.any_shape = check_bool(self.name, "any_shape", any_shape)
        self.defense = UNIVERSAL if defense is None else str(Path(defense))
        self.loaded = _load(self.defense, digest)
        self.digest = self.loaded.digest
        about = self.loaded.about
        self.clip = self._check_clip(clip)
        usual = "keep" if about.form == Principal.name else "skip"
        self.on_majority = check_choice(self.name, "on_majority", on_majority or usual, _POLICIES)
        self.memory = (
            bool(about.memory) if memory is None else check_bool(self.name, "memory", memory)
        )
        self.anchor = self._check_anchor(anchor)
        self.max_false_alarms, self._threshold = self._check_alarms(max_false_alarms)
        self._references = ("anchor",) if self.anchor else self.loaded.references
        self.needs = frozenset(self._references)
        if self.loaded.is_universal and self.anchor is None:
            self.welcomes = frozenset({"anchor"})
        shipped = self.defense == UNIVERSAL
        called = f"{UNIVERSAL} {about.version}" if shipped else Path(self.defense).name
        self.defense_label = f"{called} ({self.digest})"
        self.known = self._next = Memory()
        self._history = self.known.history
        self._against: Tensor | None = None
        self._basis: DecisionInputs | None = None

    def _check_clip(self, clip: float | bool | None) -> float | bool:
        if clip is None:
            return _CLIP if self.loaded.is_universal else 1.0
        if isinstance(clip, bool):
            return 1.0 if clip else False
        return check_float(self.name, "clip", clip, above=0)

    def _check_anchor(self, anchor: bool | None) -> bool | None:
        has = "anchor" in self.loaded.references
        if anchor is None:
            return None
        wanted = check_bool(self.name, "anchor", anchor)
        if not self.loaded.is_universal and wanted != has:
            how = "with" if has else "without"
            raise ParameterError(
                f"adaptive: {self.defense} was trained {how} an anchor, and only a universal "
                "defense leaves the choice"
            )
        return wanted

    def _check_alarms(self, rate: float | None) -> tuple[float | None, float]:
        if rate is None:
            return None, 0.0
        found = check_float(self.name, "max_false_alarms", rate, above=0)
        if found >= _MOST_ALARMS:
            raise ParameterError(
                f"adaptive: max_false_alarms must be a share below {_MOST_ALARMS}: {rate!r}"
            )
        calibration = self.loaded.about.calibration
        if calibration is None:
            raise ParameterError(
                f"adaptive: max_false_alarms needs a calibrated defense, and {self.defense} "
                f"(form {self.loaded.about.form}) is not: leave out the defense, which takes the "
                "universal one"
            )
        return found, calibration.threshold(found)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, version={self.loaded.about.version!r})"

    @property
    def basis(self) -> DecisionInputs | None:
        return self._basis

    @property
    def has_history(self) -> bool:
        return self.memory

    @property
    def needs_no_values(self) -> bool:
        return True  # of earlier rounds, numbers by client or pair are kept, and nobody's update

    def breakdown(self, n: int) -> int:
        # Clipped, the result is not much longer than the median client's update, whatever is sent.
        return (n - 1) // 2 if self.clip else 0

    def check_model(self, layers: Sequence[Layer]) -> None:
        shapes = {layer.name: layer.shape for layer in layers}
        self.loaded.check_layers(shapes, any_shape=self.any_shape)

    def measure(self, updates: Updates) -> Geometry:
        self.check_model(updates.of_kind(Kind.PARAMETER))
        found = super().measure(updates)
        # A file may have the layers in another order.
        return found if self.loaded.is_universal else found.of(self.loaded.about.layers)

    # ---------------------------------------------------------------- weighing

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        """Weigh the clients, given their geometry; layers are in the defense's order.

        Nothing is remembered until `finish` is called.
        """
        if not self.loaded.is_universal and len(geometry.layers) != len(self.loaded.about.layers):
            raise InputError(
                f"the defense weighs by {len(self.loaded.about.layers)} layers, one Gram matrix "
                f"each, not by {len(geometry.layers)}"
            )
        grams, n = geometry.grams(*self._references), len(geometry)
        lengths = grams.diagonal(dim1=1, dim2=2).sum(0)[:n].clamp(min=0).sqrt()

        def look(heard: Tensor) -> tuple[Geometry, _Judge]:
            rows = torch.cat([heard, torch.arange(n, grams.shape[-1])])
            seen, more = grams[:, rows][:, :, rows], self._asked(geometry)
            judge = partial(self.loaded.judge, seen, threshold=self._threshold, **more)
            return geometry.only(heard.tolist()), judge

        return self._weigh(geometry.clients, lengths, look)

    def _weighed(self, updates: Updates) -> ClientWeights:
        many = len(updates) > LARGE and self.loaded.is_universal and not self.preaggregators
        if not many:
            return super()._weighed(updates)
        marks = measure_landmarks(updates, landmark_rows(updates), self._references)

        def look(heard: Tensor) -> tuple[Updates, _Judge]:
            part, anchored = marks.only(heard), bool(self._references)
            judge = partial(
                self.loaded.judge_many, part, threshold=self._threshold, anchored=anchored
            )
            return part.updates, judge

        return self._weigh(updates.clients, marks.squares.sum(0).sqrt(), look)

    def _weigh(
        self,
        clients: Sequence[ClientId],
        lengths: Tensor,
        look: Callable[[Tensor], tuple[Geometry | Updates, _Judge]],
    ) -> ClientWeights:
        """Weigh the clients, given how long their updates are and how to judge some of them."""
        usual = lengths.quantile(0.5)
        long = (lengths > self.longest * usual) & (usual > 0)
        heard = (~long).nonzero().flatten()
        measured, judge = look(heard)
        evidence = self._evidence(measured)
        judged = judge(evidence)
        ruling = self._ruling(measured, judged, evidence)
        weights, scores = torch.zeros_like(lengths), torch.full_like(lengths, -1)
        weights[heard], scores[heard] = ruling.weights, judged.scores
        too_long = {
            clients[row]: f"its update is {_times(lengths[row] / usual)} as long as the median "
            f"client's (more than {self.longest:g} times is too long)"
            for row in long.nonzero().flatten().tolist()
        }
        self._next = self._after(clients, scores, measured.clients, judged, ruling, too_long)
        shortened = weights
        if self.clip:
            longest = self.clip * usual
            shortened = weights * (longest / lengths.clamp(min=_LEAST)).clamp(max=1)
        # Of many clients nobody keeps what they were judged by: it was never all there.
        self._basis = None
        if isinstance(measured, Geometry):
            self._basis = DecisionInputs(measured, evidence)
        likely = None
        if ruling.probability is not None:
            likely = torch.full_like(lengths, torch.nan)
            likely[heard] = ruling.probability
        suspicions = {} if ruling.forgives else self._suspicions()
        accused = _members(measured.clients, ruling.accused)
        return ClientWeights(
            weights,
            scores,
            shortened,
            {**self._reasons(measured.clients, ruling, suspicions), **too_long},
            suspicions,
            unused=[c for c in measured.clients if c not in accused] if ruling.skipped else (),
            probability=likely,
            remarks=ruling.remarks,
            skipped=ruling.skipped,
        )

    def _asked(self, geometry: Geometry) -> dict[str, Any]:
        """Return what else a universal defense is to be told of a round."""
        if not self.loaded.is_universal:
            return {}
        return {"shapes": geometry.shapes, "anchored": bool(self._references)}

    def _evidence(self, measured: Geometry | Updates) -> Tensor | None:
        """Return what is held against clients, in logits, but for what the network sees now."""
        if not self.memory:
            return None
        clients = measured.clients
        if not self.loaded.is_universal:
            return self.known.evidence(clients, self.loaded.about.memory or _STRENGTH)
        known = self.known.log_odds(clients)
        self._history, self._against = self.known.history, None
        if not isinstance(measured, Geometry):
            return known  # of many clients nobody keeps all pairs
        self._history = self._history.after(clients, measured.grams(), measured.shapes)
        if not self._history.clients:
            return known
        agreement = self._history.agreement(clients, known >= known.median())
        against = _MOST_AGAINST * ((agreement + _AGAINST) / _AGAINST_UNIT).clamp(-1, 0)
        self._against = against
        return known + against

    def _ruling(
        self, measured: Geometry | Updates, judged: Judged, evidence: Tensor | None
    ) -> Ruling:
        """Decide what becomes of the network's answer."""
        accused = caught = judged.weights == 0
        held, likely = torch.zeros_like(accused), None
        if self.loaded.is_universal:
            own = judged.logits
            if evidence is not None:
                held, own = evidence < _HELD, judged.logits - evidence
            least = torch.tensor(self.loaded.form.settings.eps, dtype=torch.float64).logit()
            caught = own - self._threshold < least
            # If the network believes nobody, the weights are those of the least unlikely.
            accused = accused | (caught | held).all()
            if self.loaded.about.calibration is not None:
                likely = self.loaded.about.calibration.probability(own)
                # Who is held out for earlier rounds is not judged by this one.
                likely = likely.where(caught | ~held, torch.nan)
        found = Ruling(judged.weights, accused, caught, held, likely)
        if not judged.familiar:
            return found.unfamiliar(measured)
        odd = oddity_of(measured.clients, found)
        if odd is None:
            return found
        may_skip = not self.memory or self.known.may_skip
        return found.of_odd(odd, measured, self.on_majority, may_skip=may_skip)

    def _reasons(
        self,
        clients: Sequence[ClientId],
        ruling: Ruling,
        suspicions: Mapping[ClientId, Suspicion],
    ) -> dict[ClientId, str]:
        """Say why clients are suspected, and what else there is to say of a round."""
        accused, caught = (_members(clients, each) for each in (ruling.accused, ruling.caught))
        none = torch.zeros(len(clients), dtype=torch.bool)
        disagree = none if self._against is None else self._against < _HELD
        against = _members(clients, disagree)
        found = {}
        for client in clients:
            said = []
            if client in accused and client not in caught and client in against:
                said.append("held out, because over rounds it has gone against most others")
            elif client in accused and client not in caught:
                said.append("held out, because it was taken for an attacker in earlier rounds")
            elif client in accused and (self.loaded.is_universal or ruling.note):
                looks = f": it {suspicions[client]}" if client in suspicions else ""
                said.append(f"taken for an attack by {self.defense_label}{looks}")
            if ruling.note:
                said.append(ruling.note)
            if said:
                found[client] = "; ".join(said)
        return found

    def _after(
        self,
        clients: Sequence[ClientId],
        scores: Tensor,
        known: Sequence[ClientId],
        judged: Judged,
        ruling: Ruling,
        too_long: Collection[ClientId],
    ) -> Memory:
        """Return what there is to remember after this round."""
        before = self.known if self.memory else Memory()
        suspects: dict[ClientId, Sequence[float]] = dict.fromkeys(too_long, ())
        for row, client in enumerate(known):
            if ruling.accused[row]:
                suspects[client] = [] if judged.kinds is None else judged.kinds[row].tolist()
        if self.loaded.is_universal:
            # Whoever is far too long is as surely an attacker as anybody.
            total = torch.full_like(scores, -self.loaded.form.settings.c)
            rows = [row for row, client in enumerate(clients) if client not in too_long]
            total[rows] = judged.logits - self._threshold
            if not judged.familiar:  # what nobody can judge is not held against anybody for ever
                total[rows] = before.log_odds(known) + _UNJUDGED
            found = before.after_log_odds(clients, total, suspects)
        else:
            found = before.after(clients, scores, suspects)
        if ruling.forgives or not judged.familiar:
            return before.forgiving(found, skipped=bool(ruling.skipped))
        return replace(found, history=self._history)

    def _suspicions(self) -> dict[ClientId, Suspicion]:
        """Return what suspects are suspected of, if the defense knows kinds."""
        if self.loaded.kinds is None:
            return {}
        return {
            client: _suspicion(self.loaded.kinds.names, case, remembers=self.memory)
            for client, case in self._next.cases.items()
            # An absent client's case may be from an earlier defense, which knew other kinds.
            if len(case.evidence) == len(self.loaded.kinds.names)
        }

    def finish(self, updates: Updates | None = None) -> None:
        if self.memory:
            self.known = self._next

    def save(self, path: str | os.PathLike[str]) -> None:
        if not self.memory:
            super().save(path)
        self.known.save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        if not self.memory:
            super().restore(path)
        self.known = Memory.load(path)


def _load(defense: str, digest: str | None) -> Defense:
    """Load a defense, or refuse it."""
    try:
        loaded = universal() if defense == UNIVERSAL else Defense.load(defense)
    except InputError as error:
        advice = ""
        if defense == UNIVERSAL:
            advice = ". It comes with fedimmune: install that again, or name a defense of your own"
        raise ParameterError(f"adaptive: {error}{advice}") from error
    if digest is not None and digest != loaded.digest:
        which = f"{defense} is"
        if defense == UNIVERSAL:
            which = f"the universal defense of fedimmune {loaded.about.version} is"
        raise ParameterError(
            f"adaptive: {which} another defense ({loaded.digest}) than was asked for ({digest})"
        )
    return loaded


def _members(clients: Sequence[ClientId], chosen: Tensor) -> set[ClientId]:
    return {client for client, is_one in zip(clients, chosen.tolist(), strict=True) if is_one}


def _suspicion(names: Sequence[str], case: Case, *, remembers: bool) -> Suspicion:
    """Name the likeliest kind, unless it is less likely than all others together, and the next."""
    likely = dict(zip(names, case.probabilities, strict=True))
    best = max(likely, key=likely.__getitem__)
    if likely[best] < _SURE:
        best = UNKNOWN
    confidence = round(likely.pop(best), 4)
    second = max(likely, key=likely.__getitem__)
    since = case.since if remembers else None
    runner_up = round(likely[second], 4)
    return Suspicion(best, confidence, since, second, runner_up, attacks.advice(best))


def _times(ratio: Tensor) -> str:
    return f"{float(ratio):,.0f} times" if ratio < 1e6 else f"{float(ratio):.1e} times"


_LEAST = torch.finfo(torch.float64).tiny
_SURE = 0.5
_STRENGTH = 10.0
_CLIP = 2.0
"""Of a universal defense: honest clients' lengths differ, and shortening them slows training."""
_UNJUDGED = 2.0
"""What a round counts for that the network knows nothing about."""
_AGAINST, _AGAINST_UNIT, _MOST_AGAINST = 0.25, 0.4, 3.0
"""From which disagreement with most others over rounds, in units of their agreement, something is
held against a client; from how much more the most is; and how many logits that is in each round."""
_HELD = -1.0
"""Whose log-odds of earlier rounds are lower is a suspect for those."""
_MOST_ALARMS = 0.5
