"""From prompts to requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.decoding.sampling.params import SamplingParams
from outrider.models.open import open_model
from outrider.models.text.tokenizer import Tokenizer
from outrider.requests import RequestMaker


@pytest.fixture
def maker(target_file: Path) -> RequestMaker:
    return RequestMaker(Tokenizer.from_data(open_model(target_file).tokenizer), 320, max_context=100)


@pytest.mark.parametrize(
    ("truncate", "most", "left"),
    [
        (None, 16, 300),
        (7, 16, 7),
        (-1, 16, 84),
        (-1, 1, 99),
        (-1, None, 99),
        (-1, 99, 1),
        (-1, 100, 1),
        (-1, 5000, 1),
    ],
)
def test_a_truncated_prompt_leaves_room_for_the_output(
    maker: RequestMaker, truncate: int | None, most: int | None, left: int
) -> None:
    params = SamplingParams(truncate_prompt_tokens=truncate, max_tokens=most)
    ids = list(range(300))
    assert maker.prompt(ids, params) == ids[-left:]
    assert maker.prompt([5, 6], params) == [5, 6][-left:]


def test_a_prompt_can_be_truncated_on_either_side(maker: RequestMaker) -> None:
    ids = list(range(300))
    for side, kept in (("left", ids[-7:]), ("right", ids[:7]), (None, ids[-7:])):
        params = SamplingParams(truncate_prompt_tokens=7, truncation_side=side)
        assert maker.prompt(ids, params) == kept
    room = SamplingParams(truncate_prompt_tokens=-1, truncation_side="right", max_tokens=20)
    assert maker.prompt(ids, room) == ids[:80]
    assert maker.prompt(ids, SamplingParams(truncation_side="right")) == ids


def test_a_prediction_is_text_or_ids_as_far_as_the_context_goes(maker: RequestMaker) -> None:
    for given, ids in (
        ("the fox", maker._tokenizer.encode("the fox", add_special=False)),
        ([5, 6], [5, 6]),
        (range(300), range(100)),
        ("<|im_end|>", maker._tokenizer.encode("<|im_end|>", add_special=False, parse_special=False)),
        (None, []),
        ("", []),
    ):
        made = maker.samples("r", [1], SamplingParams(draft_text=given, n=2), 0)
        assert [request.prediction for request in made] == [tuple(ids)] * 2
    assert maker._tokenizer.encode("<|im_end|>", parse_special=True) != list(
        maker.samples("r", [1], SamplingParams(draft_text="<|im_end|>"), 0)[0].prediction
    ), "no text stands for a special token"


def test_two_bos_tokens_are_warned_of_once(maker: RequestMaker, caplog: pytest.LogCaptureFixture) -> None:
    bos = maker._tokenizer.bos_id
    assert bos is not None
    for ids in ([bos], [bos, 5], [5, bos, bos], []):
        assert not maker.doubles_bos(ids)
        maker.prompt(ids, SamplingParams())
    assert not caplog.records
    for _ in range(2):
        maker.prompt([bos, bos, 5], SamplingParams())
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "two BOS tokens" in caplog.text
