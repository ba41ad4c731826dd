"""The distribution of two servers: honest samplers agree, and each wrong one is caught and described."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from outrider.bench.workloads import Item
from outrider.cli.main import main
from outrider.verify import server_samples
from outrider.verify.claims import Claim
from outrider.verify.endpoint import Answer, Endpoint
from outrider.verify.server_distribution import LENGTH, check, words
from outrider.verify.server_samples import Drawing, in_threads
from tests.support.chat_server import FakeServer, Handler, serving
from tests.support.fake_vllm.vllm.server import FakeVllm, probabilities

Chances: TypeAlias = Sequence[float]
Draw: TypeAlias = Callable[[Chances], int]
Rule: TypeAlias = Callable[[Draw, Chances, Chances, int], tuple[bool, int]]
DRAFT = 3
ITEMS = [Item("fox", "w", "tell of the fox"), Item("dog", "w", "tell of the dog")]


# --- A chain of words, sampled by a draft model and an acceptance rule --------------------------------


@cache
def target(last: int) -> Chances:
    return _normal([value**1.5 for value in probabilities(last)[:5]])


@cache
def draft(last: int) -> Chances:
    """Another one, with every token of the target in it."""
    return _normal([0.3 * a + 0.7 * b for a, b in zip(target(last), target(last + 1), strict=True)])


def _normal(values: Chances) -> Chances:
    return [value / sum(values) for value in values]


def rejection(draw: Draw, p: Chances, q: Chances, token: int) -> tuple[bool, int]:
    """(accepted, the token): the rule that keeps the target's distribution."""
    keep = min(1.0, p[token] / q[token])
    if draw([keep, 1.0 - keep]) == 0:
        return True, token
    return False, draw([max(0.0, a - b) for a, b in zip(p, q, strict=True)])


def recovers_from_the_target(draw: Draw, p: Chances, q: Chances, token: int) -> tuple[bool, int]:
    accepted, _ = rejection(draw, p, q, token)
    return (True, token) if accepted else (False, draw(p))


def accepts_what_is_likely(draw: Draw, p: Chances, q: Chances, token: int) -> tuple[bool, int]:
    return (True, token) if p[token] > 0.15 else (False, draw(p))


def accepts_everything(draw: Draw, p: Chances, q: Chances, token: int) -> tuple[bool, int]:
    return True, token


class Chain:
    """A server in this process. favour: how much likelier its likeliest token is than it should be."""

    chat = False

    def __init__(self, rule: Rule | None = None, *, favour: float = 1.0) -> None:
        self.rule, self.favour = rule, favour

    def __str__(self) -> str:
        return "speculative" if self.rule else "plain"

    def sample(self, prompt: str, max_tokens: int, temperature: float, seed: int) -> Answer:
        rng = random.Random(f"{prompt} {seed}")

        def draw(chances: Chances) -> int:
            at = rng.random() * sum(chances)
            for token, chance in enumerate(chances):
                at -= chance
                if at < 0:
                    return token
            return max(range(len(chances)), key=chances.__getitem__)

        def of_target(last: int) -> Chances:
            best = max(target(last))
            return [p * self.favour if p == best else p for p in target(last)]

        text = [draw(of_target(len(prompt) % 5))]
        while len(text) < max_tokens:
            whole = True
            for _ in range(DRAFT if self.rule else 0):
                p, q = target(text[-1]), draft(text[-1])
                assert self.rule is not None
                whole, token = self.rule(draw, p, q, draw(q))
                text.append(token)
                if not whole:
                    break
            if whole:
                text.append(draw(of_target(text[-1])))
        return Answer("".join(f" w{token}" for token in text[:max_tokens]), None)


class NoDrafts:
    def begin(self) -> None: ...

    def add(self, server: int, answer: Answer) -> None: ...

    def words(self) -> str:
        return "drafted tokens: 1 and 0"


def claim(one: Chain, samples: int = 400) -> Claim:
    return check(Drawing((one, Chain()), samples, NoDrafts()), ITEMS, [1.0], lambda _: None)


@pytest.mark.parametrize("one", [Chain(), Chain(rejection)], ids=["plain", "rejection"])
def test_honest_servers_agree(one: Chain) -> None:
    found = claim(one)
    assert found.held, found.detail
    assert found.cases == 2 * 2 * 2 * 400
    for said in ("33 G-tests", "broken below 0.001", "would show with 95% power", "drafted tokens: 1 and 0"):
        assert said in found.detail


@pytest.mark.parametrize("rule", [recovers_from_the_target, accepts_what_is_likely, accepts_everything])
def test_a_wrong_rule_is_caught_where_drafts_are(rule: Rule) -> None:
    found = claim(Chain(rule))
    assert not found.held
    assert "the first tokens, which no drafter writes, show no difference" in found.detail


def test_a_likeliest_token_that_is_too_likely_is_caught_at_once() -> None:
    found = claim(Chain(favour=2.0))
    assert not found.held
    assert "differ already: compare models, prompts and filters" in found.detail
    assert "speculative" not in found.detail


def test_a_difference_is_shown_by_its_clearest_outcome() -> None:
    found = check(Drawing((Chain(favour=5.0), Chain()), 100, NoDrafts()), ITEMS[:1], [1.0], lambda _: None)
    assert not found.held
    assert "most of all for ' w" in found.detail
    assert " of 100 and " in found.detail


def test_more_samples_see_smaller_differences() -> None:
    def distances(samples: int) -> list[float]:
        said = claim(Chain(), samples).detail
        return [float(part.split()[-1]) for part in said.split(" in the ")[:2]]

    for few, many in zip(distances(50), distances(200), strict=True):
        assert many < few


def test_words_are_the_whole_text() -> None:
    text = "  def f(x):\n\treturn 12 * naïve\n\n"
    assert "".join(words(text)) == text
    assert words(text)[:4] == ["  def", " f", "(", "x"]
    assert words("") == []


# --- Requests ----------------------------------------------------------------------------------------


def test_jobs_answer_in_their_order_and_an_error_ends_them() -> None:
    def job(n: int) -> int:
        time.sleep(0.002 * (n % 3))
        ran.append(n)
        if n == 5:
            raise ValueError("five")
        return n * n

    ran: list[int] = []
    ticks: list[int] = []
    assert in_threads([partial(job, n) for n in range(5)], 3, lambda: ticks.append(0)) == [0, 1, 4, 9, 16]
    assert len(ticks) == 5
    with pytest.raises(ValueError, match="five"):
        in_threads([partial(job, n) for n in range(1000)], 2, lambda: None)
    assert len(ran) < 100


def test_an_interrupt_ends_them_too() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_threads([lambda: time.sleep(0.01)] * 1000, 2, stop)


def test_a_seed_is_left_out_where_it_is_refused() -> None:
    with serving(lambda prompt: "x") as server:
        server.refused = {"seed"}
        endpoint = Endpoint(server.url, model="m")
        for seed in range(3):
            assert endpoint.sample("p", 4, 0.5, seed).text == "x"
        bodies = [body for _, _, body in server.requests]
        assert ["seed" in body for body in bodies] == [True, False, False, False]
        want = {"model": "m", "max_tokens": 4, "temperature": 0.5, "top_p": 1.0, "prompt": "p"}
        assert bodies[-1] == want
        server.refused = set()
        assert "seed" in _last(Endpoint(server.url, model="m"), server)
        assert "logprobs" not in _last(Endpoint(server.url, model="m", chat=True), server)


def _last(endpoint: Endpoint, server: FakeServer) -> Mapping[str, Any]:
    endpoint.sample("p", 4, 0.5, 0)
    body: Mapping[str, Any] = server.requests[-1][2]
    return body


# --- The command -------------------------------------------------------------------------------------


@pytest.fixture
def verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `outrider verify --endpoint ONE --against OTHER …`; gives (status, stdout, stderr)."""
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": item.id, "workload": "w", "prompt": item.prompt} for item in ITEMS]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")

    def call(one: Any, other: Any, *args: str) -> tuple[int, str, str]:
        line = ["--endpoint", one.url, "--against", other.url, "--prompts", str(path), "--temps", "0.7"]
        status = main(["verify", *line, "--samples", "40", *args])
        return status, *capsys.readouterr()

    return call


NGRAM = {"method": "ngram", "num_speculative_tokens": 2}


@pytest.mark.parametrize("chat", [[], ["--chat"]])
def test_two_servers(verify: Any, chat: list[str]) -> None:
    with FakeVllm(speculative=NGRAM) as one, FakeVllm() as other:
        status, out, err = verify(one, other, "--json", "--temps", "0,0.7", *chat)
        assert status == 0, out
        identity, found = json.loads(out)["claims"]
        assert (identity["claim"], found["claim"], found["cases"]) == ("identity", "distribution", 320)
        assert f"drafted tokens: {2 * 40 * LENGTH} and 0" in found["detail"]
        assert "distribution takes 160 requests to each server, for 2 prompts: 40 of one token and" in err
        asked = [fields for _, fields, _ in one.requests if fields.get("temperature")]
        assert len(asked) == 160
        asked += [fields for _, fields, _ in other.requests if fields.get("temperature")]
        assert len({fields["seed"] for fields in asked}) == 320


def test_a_version_that_draws_wrongly(verify: Any) -> None:
    with FakeVllm(speculative=NGRAM, faults={"wrong"}) as one, FakeVllm() as other:
        status, out, _ = verify(one, other)
    assert status == 1
    assert out.startswith("broken  distribution  ")
    assert "have different distributions" in out


def test_a_server_without_a_temperature(verify: Any) -> None:
    with FakeVllm() as one, serving(lambda prompt: " w1 w2 w3") as other:
        status, out, _ = verify(one, other)
        assert status == 1
        assert f"{other.url}/v1 answers a prompt with the same text whatever the seed" in out
        assert f"{one.url}/v1 answers a prompt" not in out


def act_fails_late(handler: Handler) -> bool:
    if len(handler.fake.requests) < 30:
        return False
    handler.reply({"error": "out of memory"}, 500)
    return True


def act_slow(handler: Handler) -> bool:
    time.sleep(1.0)
    return False


@pytest.mark.parametrize(
    ("text", "act", "said"),
    [
        (" w1 w2", None, "whatever the seed, so there is no distribution to compare"),
        ("", None, "wrote nothing at all, so nothing is compared; a model for chat wants --chat"),
        (" w1", act_fails_late, "answered 500"),
        (" w1", act_slow, "no answer within 0.4 s"),
    ],
)
def test_bad_servers_are_status_2_and_one_line(
    verify: Any, text: str, act: Callable[[Handler], bool] | None, said: str
) -> None:
    with serving(lambda prompt: text) as one, serving(lambda prompt: text) as other:
        other.override = act
        status, out, err = verify(one, other, "--timeout", "0.4" if act is act_slow else "9")
    assert (status, out) == (2, "")
    _, line = err.splitlines()  # the first says how many requests it takes
    assert said in line


def test_drafts_that_answers_tell_of(verify: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """LM Studio's form; the stand-in looks like one."""
    monkeypatch.setattr(server_samples, "CLIENTS", 2)
    texts = [" a b", " b a"]

    def act(handler: Handler) -> bool:
        text = texts[len(handler.fake.requests) % 2]
        handler.reply({"choices": [{"text": text}], "stats": {"total_draft_tokens_count": 3}})
        return True

    with serving(lambda prompt: "") as one, serving(lambda prompt: "") as other:
        one.override = other.override = act
        _, out, _ = verify(one, other)
    assert "drafted tokens: 480 and 480" in out
