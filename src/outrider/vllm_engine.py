"""`LLM(engine="vllm", …)`: a pipeline on vLLM's server as a child process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from outrider.config.engine import EngineConfig
from outrider.config.speculative import NoneConfig, SpeculativeConfig
from outrider.config.vllm import ENGINE, parse_vllm
from outrider.errors import ConfigError
from outrider.models.text.tokenizer import Tokenizer
from outrider.opening import open_target, tokenizer_source
from outrider.pipeline import WholePipeline
from outrider.sampling_defaults import sampling_defaults
from outrider.value_checks import one_of

logger = logging.getLogger("outrider")

START_SECONDS = 1800.0
# Arguments of the engine here that are Outrider's own, and of the pipeline too.
_HERE = ("revision", "tokenizer", "generation_config", "override_generation_config", "served_model_name")
_OWN = ("seed", "tokenizer", "revision", "generation_config", "override_generation_config", "max_model_len")


def open_vllm(
    model: str | None,
    speculative_config: Mapping[str, Any] | str | SpeculativeConfig | None = None,
    *,
    vllm_python: str | None = None,
    self_check: str = "refuse",
    **arguments: Any,
) -> WholePipeline:
    """Start vLLM for a model, check it, and return a pipeline on it.

    model:       a folder, or a name on the hub, whose files are fetched first.
    vllm_python: the Python that has vLLM; None is OUTRIDER_VLLM_PYTHON's, or this one.
    self_check:  see `engines.vllm.starting.SELF_CHECKS`.
    arguments:   vLLM's engine arguments, in old and new spellings.
    Raises OutriderError.
    """
    from outrider.engines.vllm.engine import VllmEngine
    from outrider.engines.vllm.installed import installed
    from outrider.engines.vllm.launch import Launcher
    from outrider.engines.vllm.process import VllmError
    from outrider.engines.vllm.starting import SELF_CHECKS, started

    one_of("self_check", self_check, SELF_CHECKS)
    asked = parse_vllm(model, speculative_config, **arguments)
    version = installed(vllm_python)
    own = {name: arguments[name] for name in _OWN if arguments.get(name) is not None}
    if own.get("max_model_len") == -1:
        del own["max_model_len"]
    config = EngineConfig(asked.model, NoneConfig(), engine=ENGINE, **own)
    source = open_target(config, progress=True)
    if source.format == "gguf":
        raise ConfigError(f"{asked.model}: vLLM runs folders of the hub's form; use engine='native' for GGUF")
    tokenizer = Tokenizer.from_data(tokenizer_source(config, source, True).tokenizer)
    context = min(
        source.architecture.max_positions, config.max_model_len or source.architecture.max_positions
    )
    folder = source.path if source.path.is_dir() else source.path.parent
    # The files are here already, texts are made here, and every request says how it is sampled.
    theirs = {name: value for name, value in asked.options.items() if name not in _HERE}
    theirs["max_model_len"] = context
    launcher = Launcher(replace(asked, model=str(folder), options=theirs), version)
    launch, outcome = started(launcher, str(folder), mode=self_check, seconds=START_SECONDS)
    if outcome.state not in ("passed", "no speculation"):
        logger.warning(str(outcome))
    engine = VllmEngine(launcher, launch, outcome, str(folder), source.architecture.vocab_size, context)
    with contextlib.suppress(VllmError):  # it is told by what asks next
        engine.before = engine.counts() or engine.before
    sampling = sampling_defaults(config, source)
    return WholePipeline(
        config, config.speculative, source, None, tokenizer, context, engine, sampling=sampling
    )
