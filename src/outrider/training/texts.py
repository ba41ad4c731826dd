"""The texts that a draft learns from: the target's own answers, at the temperatures of use.

Jobs are numbered, and each has seeds of its own, so that a run that was interrupted goes on with the same
texts. A job answers a prompt of a file, of which there may be several rounds, or one that the target writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.rng import derive_seed
from outrider.errors import ConfigError, ModelFileError
from outrider.llm import LLM
from outrider.outputs import CompletionOutput
from outrider.training.prompts import Asked, Opening
from outrider.training.settings import Settings

WAVE = 48  # jobs that are written down together
HELD_OUT_EVERY = 16  # of so many prompts one is held out
PROMPT_TEMPERATURE = (
    0.8  # of the prompts that it writes; a filter of all ids, such as top-p, costs more than the pass
)
MOST_HELD_OUT = 48  # texts that are tested on
EMPTY_WAVES = 3  # without a text: there is none to come
_LINE_LIMIT = 1 << 22


@dataclass(frozen=True, slots=True)
class Text:
    """One text: ids of the prompt, under the chat template, and of the answer, with the token that ended it.

    held_out: it is not trained on.
    """

    job: int
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float
    held_out: bool

    @property
    def ids(self) -> tuple[int, ...]:
        return (*self.prompt, *self.answer)


def held_out(prompt: int, prompts: int | None) -> bool:
    """Whether the prompt of this number is held out, of so many; None: of any number."""
    every = HELD_OUT_EVERY if prompts is None else min(HELD_OUT_EVERY, prompts)
    return prompt % every == every - 1


def divided(texts: Sequence[Text], usable: Callable[[Text], bool]) -> tuple[list[int], list[int]]:
    """Numbers of the usable texts that are trained on, and of those that are held out. Raises ConfigError
    where there are none of one kind."""
    numbers = [i for i, text in enumerate(texts) if usable(text)]
    training = [i for i in numbers if not texts[i].held_out]
    tested = [i for i in numbers if texts[i].held_out][:MOST_HELD_OUT]
    if not training or not tested:
        raise ConfigError("there are too few texts to train on some and test on others: give more --tokens")
    return training, tested


class TextStore:
    """The texts of a run, in a file of JSON lines: one of each job as it ends, and one after each wave.

    waves:   that are whole; their texts are `texts`, in the order of the jobs.
    pending: of the next wave, by job; None for a job that gave no text.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.waves = 0
        self.texts: list[Text] = []
        self.pending: dict[int, Text | None] = {}
        self._read()

    @property
    def tokens(self) -> int:
        """Of whole waves' answers that are trained on."""
        return sum(len(text.answer) for text in self.texts if not text.held_out)

    def add(self, found: Mapping[int, Text | None]) -> None:
        """Keep what jobs of the next wave gave."""
        lines = [
            {"job": job}
            if text is None
            else {
                "job": job,
                "prompt": text.prompt,
                "answer": text.answer,
                "temperature": text.temperature,
                "held": text.held_out,
            }
            for job, text in found.items()
        ]
        self._append(lines)
        self.pending |= found

    def end_wave(self) -> None:
        """The pending jobs are all of the wave."""
        self._append([{"wave": self.waves}])
        self._close()

    def _close(self) -> None:
        self.texts += [text for _, text in sorted(self.pending.items()) if text is not None]
        self.pending = {}
        self.waves += 1

    def _append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        with open(self._path, "ab") as file:
            file.write("".join(f"{json.dumps(line)}\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        """Raises ModelFileError for a damaged file; a line that was not written to its end is dropped."""
        if not self._path.exists():
            return
        whole = 0
        try:
            with open(self._path, "rb") as file:
                while (line := file.readline(_LINE_LIMIT)).endswith(b"\n"):
                    whole += len(line)
                    self._take(json.loads(line))
        except OSError as error:
            raise ModelFileError(f"{self._path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ModelFileError(f"{self._path}: is damaged; delete the folder, or use another one") from None
        if self._path.stat().st_size > whole:
            os.truncate(self._path, whole)

    def _take(self, value: dict[str, Any]) -> None:
        if "wave" in value:
            if value["wave"] != self.waves:
                raise ValueError
            self._close()
            return
        job = value["job"]
        if type(job) is not int or job // WAVE != self.waves or job in self.pending:
            raise ValueError
        self.pending[job] = _text(value) if "answer" in value else None


def _text(value: dict[str, Any]) -> Text:
    prompt, answer = (tuple(value[name]) for name in ("prompt", "answer"))
    if not prompt or not answer or not all(type(token) is int and token >= 0 for token in (*prompt, *answer)):
        raise ValueError
    return Text(int(value["job"]), prompt, answer, float(value["temperature"]), bool(value["held"]))


@dataclass(frozen=True, slots=True)
class Job:
    """One text that is to be written.

    id:     among all of the run.
    number: among those of its kind, which are the target's own prompts or a file's.
    about:  the prompt, or the opening of the target's own.
    held_out: whether its text is not trained on.
    """

    id: int
    number: int
    about: Opening | str
    held_out: bool
    temperature: float


class Writer:
    """Has the target write texts."""

    def __init__(self, llm: LLM, asked: Asked, settings: Settings) -> None:
        self._llm, self._asked, self._settings = llm, asked, settings

    def write(self, store: TextStore, stop: Callable[[], bool], shown: Callable[[int], object]) -> None:
        """Add waves until there are enough tokens, `stop` says so, or a file's prompts are used up. A wave
        that is stopped keeps the texts that have ended.

        shown: told how many tokens there are.
        Raises ConfigError where no text comes of the prompts.
        """
        empty = 0
        while store.tokens < self._settings.tokens and not stop():
            jobs = list(self._jobs(store.waves * WAVE))
            if not jobs:
                break
            store.add(self._wave([job for job in jobs if job.id not in store.pending], stop))
            if len(store.pending) < len(jobs):
                break
            count = len(store.texts)
            store.end_wave()
            shown(store.tokens)
            empty = 0 if len(store.texts) > count else empty + 1
            if empty >= EMPTY_WAVES:
                raise ConfigError(
                    f"the target gave no text for {EMPTY_WAVES * WAVE} prompts: give --data FILE"
                )

    def _jobs(self, first: int) -> Iterator[Job]:
        """The next jobs."""
        temperatures, count = self._settings.temperatures, len(self._asked.prompts)
        warm = [t for t in temperatures if t > 0]
        for id_ in range(first, first + WAVE):
            number, about = self._asked.place(id_)
            if isinstance(about, Opening):
                heat = temperatures[number % len(temperatures)]
                yield Job(id_, number, about, held_out(number, None), heat)
                continue
            round_, prompt = divmod(number, count)
            # At temperature 0 a prompt has one answer: later rounds are warm ones.
            if round_ < len(temperatures):
                temperature = temperatures[(round_ + prompt) % len(temperatures)]
            elif warm:
                temperature = warm[number % len(warm)]
            else:
                continue
            yield Job(id_, number, about, held_out(prompt, count), temperature)

    def _wave(self, jobs: Sequence[Job], stop: Callable[[], bool]) -> dict[int, Text | None]:
        """The texts of some jobs, by their ids; None where a prompt or an answer came to nothing, or is too
        long. Jobs that `stop` has kept from ending are missing."""
        prompts = self._prompts(jobs, stop)
        room = self._llm.get_tokenizer().model_max_length
        found: dict[int, Text | None] = {}
        kept = []
        for job in jobs:
            ids = prompts.get(job.id)
            if ids and len(ids) <= min(self._settings.max_prompt, room - 2):
                kept.append((job, ids))
            elif ids is not None:
                found[job.id] = None
        params = [
            SamplingParams(
                temperature=job.temperature,
                max_tokens=min(self._settings.max_answer, room - len(ids)),
                seed=self._seed(job, 1),
                detokenize=False,
            )
            for job, ids in kept
        ]
        answers = self._outputs([ids for _, ids in kept], params, stop)
        for (job, ids), output in zip(kept, answers, strict=True):
            if output is not None:
                answer = tuple(output.token_ids)
                text = Text(job.id, tuple(ids), answer, job.temperature, job.held_out)
                found[job.id] = text if len(answer) > 1 else None
        return found

    def _outputs(
        self, prompts: Sequence[list[int]], params: Sequence[SamplingParams], stop: Callable[[], bool]
    ) -> list[CompletionOutput | None]:
        """What the target writes after prompts; None where `stop` has cut it off."""
        if not prompts:
            return []
        asked = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = [output.outputs[0] for output in self._llm.generate(asked, params, cancelled=stop)]
        return [None if output.finish_reason == "abort" else output for output in outputs]

    def _prompts(self, jobs: Sequence[Job], stop: Callable[[], bool]) -> dict[int, list[int]]:
        """The prompts' ids by those of the jobs; [] for one that does not suit. Those that `stop` has cut off
        are missing."""
        found = {job.id: self._ids(job.about) for job in jobs if isinstance(job.about, str)}
        own = [(job, job.about) for job in jobs if isinstance(job.about, Opening)]
        encode = self._llm.get_tokenizer().encode
        params = [
            SamplingParams(
                temperature=PROMPT_TEMPERATURE,
                max_tokens=self._settings.max_prompt // 2,
                seed=self._seed(job, 0),
            )
            for job, _ in own
        ]
        openings = [list(encode(about.text, add_special_tokens=False)) for _, about in own]
        for (job, _), one in zip(own, self._outputs(openings, params, stop), strict=True):
            if one is not None:
                found[job.id] = self._ids(one.text.strip()) if one.finish_reason == "stop" else []
        return found

    def _ids(self, prompt: str) -> list[int]:
        """A prompt under the chat template, if there is one."""
        if not prompt:
            return []
        if self._llm.get_tokenizer().chat_template is None:
            return list(self._llm.get_tokenizer().encode(prompt))
        rendered = self._llm.render_chat([{"role": "user", "content": prompt}])
        return list(rendered["prompt_token_ids"])

    def _seed(self, job: Job, purpose: int) -> int:
        return derive_seed(self._settings.seed, 2 * job.number + purpose)
