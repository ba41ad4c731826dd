"""`outrider chat`: the conversation, its commands and its files, without a terminal; and on toy models."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.chat import converse
from outrider.cli.chat_model import ChatModel
from outrider.cli.chat_session import COMMANDS, Answer, MessageReader, Next, Session, load, save
from outrider.cli.chat_terminal import KEPT_LINES, earlier_lines, keep_line
from outrider.cli.main import main
from outrider.config.engine import EngineConfig
from outrider.config.speculative import DraftModelConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.errors import ConfigError, PromptError
from outrider.models.text.reasoning import ReasoningReader
from outrider.outputs import Chunk
from tests.support.toy_model import ToyModel


def session(**fields: Any) -> Session:
    return Session(SamplingParams(temperature=0.8, max_tokens=None), model="toy", max_context=100, **fields)


def answer(text: str = "Hello.", **fields: Any) -> Answer:
    usual: dict[str, Any] = {"tokens": 3, "tokens_per_s": 10.0, "context": 9, "speculation": True}
    return Answer(text, **usual | fields)


def turn(talk: Session, text: str, reply: str = "Hello.", **fields: Any) -> None:
    assert talk.take(text).next is Next.ANSWER
    talk.answered(answer(reply, **fields))


# --- The conversation --------------------------------------------------------------------------------


def test_messages_and_the_systems() -> None:
    talk = session(system="Be brief.")
    turn(talk, "Hi", "Hello.")
    assert talk.take("And now?").next is Next.ANSWER
    roles = [message["role"] for message in talk.conversation()]
    assert roles == ["system", "user", "assistant", "user"]
    talk.unanswered()
    assert [message["role"] for message in talk.conversation()] == ["system", "user", "assistant"]
    assert talk.take("  ").next is Next.READ, "an empty line asks nothing"


def test_each_answer_has_a_seed_of_its_own() -> None:
    talk = Session(SamplingParams(seed=7))
    seeds = []
    for _ in range(3):
        seeds.append(talk.answer_params().seed)
        turn(talk, "x")
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    again = Session(SamplingParams(seed=7))
    turn(again, "x")
    assert again.answer_params().seed == seeds[1], "and it can be repeated"


@pytest.mark.parametrize(
    ("lines", "messages"),
    [
        (["one", "two"], ["one", "two"]),
        (["one \\", "two"], ["one \ntwo"]),
        (['"""', "one", "", "two", '"""', "three"], ["one\n\ntwo", "three"]),
        (['"""one', 'two"""'], ["one\ntwo"]),
        (['"""one"""'], ["one"]),
        (['"""', "/quit", '"""'], ["/quit"]),
        (["\\", "x"], ["\nx"]),
    ],
)
def test_messages_of_several_lines(lines: list[str], messages: list[str]) -> None:
    reader = MessageReader()
    found = [text for text in map(reader.feed, lines) if text is not None]
    assert found == messages
    assert not reader.waiting


def test_what_is_left_at_the_end_is_a_message() -> None:
    reader = MessageReader()
    assert reader.feed('"""one') is None
    assert reader.waiting
    assert reader.rest() == "one"
    assert not reader.waiting


# --- Commands ----------------------------------------------------------------------------------------


def said(talk: Session, line: str) -> str:
    outcome = talk.take(line)
    assert outcome.next is Next.READ
    return outcome.text


def test_help_names_every_command() -> None:
    text = said(session(), "/help")
    assert all(name in text for name in COMMANDS)


def test_the_systems_message() -> None:
    talk = session()
    assert "no system" in said(talk, "/system")
    said(talk, "/system Be brief, please.")
    assert talk.conversation()[0] == {"role": "system", "content": "Be brief, please."}
    assert "Be brief" in said(talk, "/system")
    said(talk, "/system none")
    assert talk.conversation() == []


def test_answering_again() -> None:
    talk = session()
    assert "nothing" in said(talk, "/regenerate")
    turn(talk, "Hi")
    assert talk.take("/regenerate").next is Next.ANSWER
    assert talk.messages == [{"role": "user", "content": "Hi"}]


def test_the_temperature() -> None:
    talk = session()
    assert "0.8" in said(talk, "/temperature")
    assert "0.2" in said(talk, "/temperature 0.2")
    assert talk.params.temperature == 0.2
    for bad in ("hot", "-1", "nan"):
        assert "temperature" in said(talk, f"/temperature {bad}")
        assert talk.params.temperature == 0.2


def test_speculation_on_and_off_with_the_speed_up() -> None:
    talk = session()
    turn(talk, "x", tokens_per_s=30.0, speedup=1.5)
    assert "×1.50" in talk.report(talk.last)  # type: ignore[arg-type]
    assert "×1.50" in talk.status()
    assert "is off" in said(talk, "/speculation off")
    turn(talk, "x", tokens_per_s=15.0, speculation=False)
    assert "speculation off" in talk.report(talk.last)  # type: ignore[arg-type]
    text = said(talk, "/speculation on")
    assert "15.0 tokens/s" in text
    assert "×2.00" in text
    assert talk.speculation
    assert "on or off" in said(talk, "/speculation maybe")
    plain = session(switchable=False, speculation=False)
    assert "--spec none" in said(plain, "/speculation on")
    assert not plain.speculation


def test_colours_of_sources() -> None:
    talk = session()
    pieces = [Chunk(0, "a", 1, "accepted"), Chunk(0, "b", 2, "recovered"), Chunk(0, "c", 3, "bonus")]
    assert "".join(map(talk.painted, pieces)) == "abc"
    assert "accepted" in said(talk, "/colors")
    assert talk.colors
    assert "".join(map(talk.painted, pieces)) == "\x1b[32ma\x1b[0m\x1b[33mb\x1b[0m\x1b[36mc\x1b[0m"
    said(talk, "/colors off")
    assert not talk.colors


def test_a_models_text_does_not_command_the_terminal() -> None:
    hostile = "a\x1b]0;title\x07b\x9b2Jc\r\nd\te\x00\x7f"
    shown = session().painted(Chunk(0, hostile, 1, "bonus"))
    assert shown == "a]0;titleb2Jc\nd\te"


def test_clear_and_quit() -> None:
    talk = session(system="s")
    turn(talk, "x")
    said(talk, "/clear")
    assert talk.conversation() == [{"role": "system", "content": "s"}]
    for line in ("/quit", "/exit", "/bye"):
        assert talk.take(line).next is Next.QUIT


def test_an_unknown_command_has_a_hint_where_one_is_near() -> None:
    assert "'/regenerate'" in said(session(), "/regenerat")
    text = said(session(), "/usr/local/lib")
    assert "/help" in text
    assert "did you mean" not in text


# --- Saved conversations -----------------------------------------------------------------------------


def test_a_saved_conversation_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    talk = session(system="Sei höflich.")
    turn(talk, "Grüße\n😀", "Hällo.")
    said(talk, "/temperature 0.3")
    said(talk, f"/save {path}")
    said(talk, f"/save {path}")  # its own file may be replaced
    other = session()
    assert "2 messages" in said(other, f"/load {path}")
    assert other.conversation() == talk.conversation()
    assert other.params.temperature == 0.3
    assert not list(tmp_path.glob("*.tmp"))


def test_what_cannot_be_saved_or_loaded(tmp_path: Path) -> None:
    talk = session(system="s")
    turn(talk, "x")
    before = talk.conversation()
    other = tmp_path / "letter.txt"
    other.write_text("mine", "utf-8")
    assert "no saved chat" in said(talk, f"/save {other}")
    assert other.read_text("utf-8") == "mine"
    assert "cannot be written" in said(talk, "/save /no/such/folder/x")
    for line in ("/save", "/load"):
        assert "name of a file" in said(talk, line)
    head = {"format": "outrider-chat", "version": 1}
    for document in (
        "",
        "[]",
        "{",
        "[" * 10_000,
        json.dumps({**head, "messages": {}}),
        json.dumps({**head, "messages": [{"role": "system", "content": "x"}]}),
        json.dumps({**head, "messages": [{"role": "user", "content": 1}]}),
        json.dumps({**head, "messages": [], "system": 1}),
        json.dumps({**head, "messages": [], "temperature": "hot"}),
        json.dumps({**head, "version": 2, "messages": []}),
    ):
        path = tmp_path / "bad.json"
        path.write_text(document, "utf-8")
        assert said(talk, f"/load {path}")
        assert talk.conversation() == before
    assert "No such file" in said(talk, f"/load {tmp_path / 'none'}")
    turn(talk, "\ud800")
    with pytest.raises(ConfigError, match="Unicode"):
        save(talk, tmp_path / "surrogate.json")
    with pytest.raises(ConfigError, match="directory"):
        load(talk, tmp_path)


def test_the_file_of_what_was_typed(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "history"
    assert earlier_lines(path) == []
    for text in ("one", "two\nlines", "ü"):
        keep_line(path, text)
    assert earlier_lines(path) == ["one", "two\nlines", "ü"]
    assert path.stat().st_mode & 0o077 == 0, "nobody else reads it"
    with path.open("ab") as file:
        file.write(b"damaged\n7\n")
    assert earlier_lines(path) == ["one", "two\nlines", "ü"]
    for number in range(2 * KEPT_LINES):
        keep_line(path, str(number))
    assert len(path.read_bytes().splitlines()) <= 2 * KEPT_LINES
    assert earlier_lines(path)[-1] == str(2 * KEPT_LINES - 1)
    keep_line(tmp_path, "nothing can be written here")


# --- The loop ----------------------------------------------------------------------------------------


class Script:
    """A console that types lines, or raises what stands in their place."""

    def __init__(self, *lines: str | type[BaseException], interactive: bool = True) -> None:
        self.interactive = interactive
        self._lines = list(lines)
        self.written, self.said = "", list[str]()

    def read(self, *, going_on: bool) -> str:
        line = self._lines.pop(0) if self._lines else EOFError
        if isinstance(line, str):
            return line
        raise line

    def write(self, text: str) -> None:
        self.written += text

    def say(self, text: str) -> None:
        self.said.append(text)


class Echo:
    """A model that says what it was asked; `raising` takes the place of its second piece."""

    def __init__(self, raising: BaseException | None = None) -> None:
        self.raising = raising
        self.last: Answer | None = None
        self.asked: list[list[Mapping[str, str]]] = []
        self.salts: list[str] = []

    def answer(
        self,
        messages: Sequence[Mapping[str, str]],
        params: SamplingParams,
        *,
        speculation: bool,
        salt: str,
        cancelled: Callable[[], bool],
    ) -> Iterator[Chunk]:
        self.salts.append(salt)
        self.last = None
        self.asked.append(list(messages))
        yield Chunk(0, "echo: ", 1, "bonus")
        if self.raising is not None:
            raise self.raising
        yield Chunk(0, messages[-1]["content"], 2, "accepted")
        text = "echo: " + messages[-1]["content"]
        self.last = Answer(text, 2, 10.0, 5, speculation, stopped=cancelled())


def test_a_conversation_remembers_what_was_said() -> None:
    console, model = Script("one", "", "/help", "two", "/quit", "never"), Echo()
    assert converse(session(), model, console) == 0
    assert console.written == "echo: one\necho: two\n"
    assert [message["content"] for message in model.asked[1]] == ["one", "echo: one", "two"]
    assert not any("never" in text for text in console.said)


def test_an_answer_is_not_looked_up_in_the_one_before_it() -> None:
    model = Echo()
    converse(session(), model, Script("one", "two", "/regenerate", "three"))
    assert model.salts[0] == model.salts[1] != model.salts[2] == model.salts[3]


def test_the_first_message_may_be_given() -> None:
    console = Script()
    assert converse(session(), Echo(), console, "hello") == 0
    assert console.written == "echo: hello\n"


def test_a_block_is_one_message_and_a_pasted_text_too() -> None:
    console, model = Script('"""', "a", "b", '"""', "c\nd", "e\\"), Echo()
    converse(session(), model, console)
    assert [messages[-1]["content"] for messages in model.asked] == ["a\nb", "c\nd", "e"]


def test_ctrl_c_at_the_input_ends_nothing_on_a_terminal() -> None:
    console = Script(KeyboardInterrupt, '"""half', KeyboardInterrupt, "one")
    assert converse(session(), Echo(), console) == 0
    assert console.written == "echo: one\n"
    with pytest.raises(KeyboardInterrupt):
        converse(session(), Echo(), Script(KeyboardInterrupt, interactive=False))


def test_a_second_ctrl_c_keeps_what_was_said_too() -> None:
    talk = session()
    converse(talk, Echo(KeyboardInterrupt()), Script("one"))
    assert talk.messages[-1] == {"role": "assistant", "content": "echo: "}


def test_an_answer_that_is_impossible_takes_its_question_back() -> None:
    talk, console = session(), Script("one", "two")
    converse(talk, Echo(PromptError("the prompt has 300 tokens")), console)
    assert talk.messages == []
    assert any("300 tokens" in text and "/clear" in text for text in console.said)


# --- On toy models -----------------------------------------------------------------------------------


@pytest.fixture
def chat(target_file: Path, toy_engine: object, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> Any:
    """Run `outrider chat -m TARGET …` with lines on stdin; gives (status, stdout, stderr)."""

    class Stdin(io.TextIOWrapper):
        terminal = False

        def isatty(self) -> bool:
            return self.terminal

    def call(lines: str, *args: str, command: str = "chat", terminal: bool = False) -> tuple[int, str, str]:
        stdin = Stdin(io.BytesIO(lines.encode()))
        stdin.terminal = terminal
        monkeypatch.setattr("sys.stdin", stdin)
        status = main([command, "-m", str(target_file), *args])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_a_chat_through_pipes(chat: Any) -> None:
    flags = ("-n", "8", "--ignore-eos", "--seed", "3", "--spec", "ngram", "--prompt-lookup-max", "1")
    status, out, err = chat("hello\n/colors\nhello again\n", *flags)
    assert status == 0
    assert "\x1b[3" in out
    assert len(re.findall("^8 tokens, ", err, re.M)) == 2
    _, plain, _ = chat("hello\n/colors\nhello again\n", *flags[:-4], "--spec", "none")
    assert uncoloured(out) == uncoloured(plain), "speculation changes no token of any turn"
    _, first, _ = chat("", "hello", *flags)
    assert first == out[: len(first)]


def uncoloured(text: str) -> str:
    for colour in ("\x1b[32m", "\x1b[33m", "\x1b[36m", "\x1b[0m"):
        text = text.replace(colour, "")
    return text


def test_speculation_off_is_the_same_model(target_file: Path, draft_file: Path, toy_engine: object) -> None:
    model = ChatModel(EngineConfig(str(target_file), DraftModelConfig(str(draft_file))))
    params = SamplingParams(seed=5, max_tokens=20, ignore_eos=True)
    texts = []
    for on in (True, False):
        asked = [{"role": "user", "content": "hello"}]
        chunks = list(model.answer(asked, params, speculation=on, salt=str(on), cancelled=lambda: False))
        texts.append("".join(chunk.text for chunk in chunks))
        assert model.last is not None
        assert (model.last.speculation, model.last.tokens, model.last.full) == (on, 20, True)
        assert any(chunk.kind == "accepted" for chunk in chunks) == on
    assert texts[0] == texts[1]


def test_the_controllers_speed_up_is_told(target_file: Path, toy_engine: object) -> None:
    model = ChatModel(EngineConfig(str(target_file)))
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    asked = [{"role": "user", "content": "hi"}]
    assert list(model.answer(asked, params, speculation=True, salt="s", cancelled=lambda: False))
    assert model.last is not None
    assert model.last.speedup is not None
    assert model.last.speedup > 0


def test_a_context_that_is_full_is_told(chat: Any) -> None:
    status, out, err = chat("the fox " * 200 + "\nhello\n", "-n", "3", "--ignore-eos")
    assert status == 0
    assert "context" in err
    assert "/clear" in err
    assert out.strip(), "and the chat goes on"


def test_ctrl_c_stops_the_answer_and_not_the_chat(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[None] = []
    forward = ToyModel.forward

    def interrupted(self: ToyModel, items: Any) -> Any:
        passes.append(None)
        if len(passes) == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return forward(self, items)

    monkeypatch.setattr(ToyModel, "forward", interrupted)
    status, _, err = chat("hello\nagain\n", "-n", "30", "--ignore-eos")
    assert status == 0
    assert err.count("stopped") == 1
    assert re.search("^30 tokens, ", err, re.M)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--load", "/no/such/file"], ["No such file"]),
        (["--temp", "-1"], ["temperature"]),
        (["-n", "0"], ["-n", "0"]),
        (["-sys", "a", "-sysf", "b"], ["-sys and -sysf"]),
        (["-f", "/no/such/file"], ["-f", "No such file"]),
        (["--chat-template", "/no/such/file"], ["--chat-template", "No such file"]),
        (["x", "y"], ["unexpected argument 'y'"]),
    ],
)
def test_bad_input_is_one_line(chat: Any, args: list[str], words: list[str]) -> None:
    status, out, err = chat("", *args)
    assert (status, out, err.count("\n")) == (2, "", 1)
    for word in words:
        assert word in err


def test_run_without_a_prompt_is_a_chat_on_a_terminal(chat: Any) -> None:
    status, out, err = chat("hello\n", "-n", "5", "--ignore-eos", command="run", terminal=True)
    assert status == 0
    assert out.strip()
    assert "5 tokens, " in err
    status, out, _ = chat("hello\n", "-n", "5", "--json", command="run")
    assert json.loads(out)["metrics"], "through a pipe it completes one prompt"
    for flag in ("-no-cnv", "--json", "-st"):
        status, _, err = chat("", flag, command="run", terminal=True)
        assert status == 2
        assert "give a prompt" in err


def test_thoughts_are_dimmed() -> None:
    talk, reader = session(), ReasoningReader(inside=False)
    talk.thoughts = lambda: reader
    pieces = [Chunk(0, text, 1, "bonus") for text in ("<think>", "hm", "", "</think>", "\n\n", "yes")]
    shown = "".join(map(talk.painted, pieces))
    assert shown == "\x1b[2m<think>\x1b[0m\x1b[2mhm\x1b[0m\x1b[2m</think>\x1b[0m\n\nyes"
    assert "".join(map(session().painted, pieces)) == "<think>hm</think>\n\nyes"
