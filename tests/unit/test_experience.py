"""What is known of a draft model is kept for the next process, and never believed from a damaged file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import experience
from outrider.config import EngineConfig
from outrider.decoding.drawing import START
from outrider.experience import PLAUSIBLE, Experience, of_pair
from outrider.models.open import open_model
from outrider.pipeline import build_all
from outrider.speculative import AutoConfig, DraftModelConfig, SpeculativeConfig
from tests.support.models import tiny_gguf

RULES = ("coupled", None)


def test_it_is_there_for_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "pair.json"
    assert Experience(path).chance is None
    Experience(path).learn(0.8)
    assert Experience(path).chance == 0.8
    second = Experience(path)
    second.learn(0.6)
    assert Experience(path).chance == pytest.approx(0.7), "one text is not the whole truth"
    before = path.stat().st_mtime_ns
    second.learn(0.701)
    assert path.stat().st_mtime_ns == before, "hardly anything new"


@given(st.lists(st.floats(0.0, 1.0), max_size=30))
def test_it_stays_plausible(chances: list[float]) -> None:
    least, most = PLAUSIBLE
    known = Experience(Path("/dev/null/nowhere"))
    for chance in chances:
        known.learn(chance)
        assert known.chance is not None
        assert least <= known.chance <= most


@pytest.mark.parametrize(
    "damage",
    [
        *("", "{", "[]", "{}", '{"chance": null}', '{"chance": "0.8"}', '{"chance": true}', '{"chance": 1}'),
        *(
            '{"chance": NaN}',
            '{"chance": -1.0}',
            '{"chance": 1e400}',
            '{"chance": [0.8]}',
            '{"chance": 0.999}',
        ),
    ],
)
def test_a_damaged_record_counts_as_none(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "pair.json"
    path.write_text(damage, "utf-8")
    known = Experience(path)
    assert known.chance is None
    known.learn(0.5)
    assert json.loads(path.read_text("utf-8")) == {"chance": 0.5}


def test_a_folder_that_cannot_be_written_to_costs_only_the_record(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    known = Experience(tmp_path / "file" / "pair.json")
    known.learn(0.8)
    known.learn(0.4)
    assert known.chance == pytest.approx(0.6)


def test_each_pair_and_rule_has_its_own(tmp_path: Path) -> None:
    one, other = (open_model(tiny_gguf(tmp_path / f"{name}.gguf")) for name in "ab")
    found = [
        of_pair(one, other, RULES, tmp_path),
        of_pair(other, one, RULES, tmp_path),
        of_pair(one, other, ("rejection", None), tmp_path),
    ]
    found[0].learn(0.9)
    assert [known.chance for known in found] == [0.9, None, None]
    assert of_pair(one, other, RULES, tmp_path).chance == 0.9
    other.path.write_bytes(other.path.read_bytes() + b"\0" * 32)
    assert of_pair(one, other, RULES, tmp_path).chance is None, "another file"


def test_auto_begins_with_what_the_process_before_it_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    target, draft = (str(tiny_gguf(tmp_path / f"{name}.gguf")) for name in ("target", "draft"))
    config = EngineConfig(target)
    choices: list[SpeculativeConfig] = [AutoConfig(draft), DraftModelConfig(draft)]
    (auto, _) = build_all(config, choices)
    controller = auto.drafting.controller
    before = controller.drawing.accepted.mean  # type: ignore[attr-defined]
    of_pair(open_model(Path(target)), auto.draft, ("coupled", None)).learn(0.31)  # type: ignore[arg-type]
    assert list((tmp_path / "cache" / experience.FOLDER).iterdir())
    (again, _) = build_all(config, choices)
    after = again.drafting.controller.drawing.accepted.mean  # type: ignore[attr-defined]
    assert (before, after) == (pytest.approx(START), pytest.approx(0.31))
