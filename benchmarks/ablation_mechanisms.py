"""The controller's mechanisms, and how each is switched off. See ablation.py.

A mechanism is switched off by another `Tuning` where a value of it is neutral. Others take a `Switch`, which
replaces an attribute of a module or a class; the replacement is made from the original, so that several can
be off at once.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import replay
from outrider import drafting
from outrider.drafters import auto as auto_drafter
from outrider.drafters import draft_model, suffix
from outrider.drafters.copy_tracker import CopyTracker
from outrider.drafters.draft_context import DraftContext
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.policy import draft_model as draft_model_policy
from outrider.policy import tree
from outrider.policy.acceptance_rates import RequestRates
from outrider.policy.draft_model import DraftModelSource
from outrider.policy.output_lengths import OutputLengths
from outrider.policy.planner import Planner
from outrider.policy.token_rate import TokenRate
from outrider.policy.tree import Lookup, Node, WeightedTree, subtree
from outrider.policy.tuning import DEFAULT

NEVER = 10**9
FULL_VOCABULARY_MS = 1.0  # that the whole output matrix adds to a draft pass of up to 8 tokens; an estimate


@dataclass(frozen=True, slots=True)
class Switch:
    """`make` makes the replacement of the attribute `name` of `owner` from the original."""

    owner: Any
    name: str
    make: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Mechanism:
    """name: for tables and the command line; decides: in a few words; file: where its code is.

    tuning:   fields of `Tuning`, with the values that switch it off.
    switches: what is replaced where no such value does.
    """

    name: str
    decides: str
    file: str
    tuning: Mapping[str, Any] = field(default_factory=dict)
    switches: tuple[Switch, ...] = ()


def is_set(owner: Any, name: str, value: Any) -> Switch:
    """Another value of a constant, or another function."""
    return Switch(owner, name, lambda original: value)


def gives(owner: Any, name: str, value: Any) -> Switch:
    """A function that returns this, whatever its arguments."""
    return Switch(owner, name, lambda original: lambda *args, **kwargs: value)


@contextlib.contextmanager
def off(mechanisms: Sequence[Mechanism]) -> Iterator[None]:
    """Without these mechanisms, for controllers that are made and used within. `make_drafting` makes the only
    `Planner`, and that hands its `Tuning` to all parts of the controller: the one place that is replaced for
    it."""
    fields = {name: value for mechanism in mechanisms for name, value in mechanism.tuning.items()}
    tuning = replace(DEFAULT, **fields)
    tuned = is_set(drafting, "Planner", functools.partial(Planner, tuning=tuning))
    with contextlib.ExitStack() as stack:
        for switch in (tuned, *(switch for mechanism in mechanisms for switch in mechanism.switches)):
            original = switch.owner.__dict__[switch.name]
            setattr(switch.owner, switch.name, switch.make(original))
            stack.callback(setattr, switch.owner, switch.name, original)
        yield


# --- Replacements --------------------------------------------------------------------------------


def _model_tree_alone(merge: Any) -> Any:
    """Only what the draft model drew."""

    def alone(proposals: Sequence[WeightedTree]) -> list[Node]:
        nodes: list[Node] = merge(proposals[-1:])
        return nodes

    return alone


def _forgetting(lookups: bool, models: Sequence[str]) -> Callable[[Any], Any]:
    """`Planner.observe`, after which nothing is known of the request's lookups, or of these of its draft
    models' acceptance rates."""

    def make(observe: Any) -> Any:
        def method(self: Any, state: Any, *args: Any) -> None:
            observe(self, state, *args)
            for lookup in state.lookups.values() if lookups else ():
                lookup.rates = RequestRates()
            for model in state.models.values():
                for name in models:
                    setattr(model, name, RequestRates())

        return method

    return make


def _forgetting_pruned(observe_pruned: Any) -> Any:
    def method(self: Any, state: Any, *args: Any) -> None:
        observe_pruned(self, state, *args)
        state.first = RequestRates()

    return method


def _without_new_requests(begin_step: Any) -> Any:
    """A request that begins does not change the token rate."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return begin_step(self, *args, **{**kwargs, "new": 0})

    return method


def _verified_only(observe: Any) -> Any:
    """Lookups learn from the nodes of theirs that were verified."""

    def method(self: Any, state: Any, accepted: Sequence[int], emitted: Sequence[int]) -> None:
        for name, lookup in state.lookups.items():
            if lookup.offered is None:
                continue
            offered, budget = lookup.offered
            nodes: dict[tuple[int, int], int] = {}  # the lookup's, by parent and token
            for i, edge in enumerate(zip(offered.parents, offered.tokens, strict=True)):
                nodes.setdefault(edge, i)
            number = {-1: -1}  # of the lookup's nodes, among the verified ones
            own = {-1: -1}  # the lookup's node, by the verified tree's
            verified: list[int] = []
            for i, node in enumerate(state.tree):
                if name in node.sources and node.parent in own:
                    own[i] = nodes[own[node.parent], node.token]
                    number[own[i]] = len(verified)
                    verified.append(own[i])
            self.lookups[name].rates.observe_tree(
                lookup.rates,
                [offered.tokens[i] for i in verified],
                [number[offered.parents[i]] for i in verified],
                [offered.confidence[i] for i in verified],
                budget,
                emitted,
            )
            lookup.offered = None
        observe(self, state, accepted, emitted)

    return method


def _updating_in_vain(update: Any) -> Any:
    """A copy is followed, so that it is known what is copied, but nothing is proposed from it."""

    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        update(self, *args, **kwargs)

    return method


def _likeliest_path_only(make_tree: Any) -> Any:
    return lambda depth, factor, min_probability, _: make_tree(depth, factor, min_probability, False)


def _not_confident(init: Any) -> Any:
    def method(self: Any, name: str, cost: Any, **kwargs: Any) -> None:
        init(self, name, cost, **{**kwargs, "confident": False})

    return method


def _unpruned(prune: Any) -> Any:
    """As many nodes as the request's budget allows, the likeliest ones."""

    def method(self: Any, queries: Any, plans: Any, trees: list[list[Node]], *args: Any) -> Any:
        out = []
        for query, nodes in zip(queries, trees, strict=True):
            order = sorted(range(len(nodes)), key=lambda i, each=nodes: (-each[i].path_probability, i))  # type: ignore[misc]
            out.append(subtree(nodes, sorted(order[: query.budget])))
        return out

    return method


def _with_full_vocabulary(costs: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    draft = {n: ms + (FULL_VOCABULARY_MS if n <= 8 else 0.0) for n, ms in costs["draft"].items()}
    return {**costs, "draft": draft}


# --- The list ------------------------------------------------------------------------------------

PREFILL = "policy/draft_prefill.py"
LENGTHS = "policy/output_lengths.py"
PLANNER = "policy/planner.py"
EXPLORATION = "policy/planner.py, policy/exploration.py"
MODEL = "policy/draft_model.py"
GROWTH = "policy/tree_growth.py"
TREE = "policy/tree.py"
LOOKUP = "policy/lookup.py"
TOKEN_RATE = "policy/token_rate.py"
LOOKAHEAD = "drafters/lookahead.py"
CONTEXT = "drafters/draft_context.py"
SUFFIX = "drafters/suffix.py, csrc/lookup/suffix_tree.cpp"
RATES = "policy/acceptance_rates.py, csrc/policy/acceptance_rates.cpp"

PREFILLING = (
    Mechanism(
        "deferred draft prefill",
        "when a draft model first processes a text; off: as soon as drafting pays",
        PREFILL,
        {"prefill_max_wait": 0.0},
    ),
    Mechanism(
        "prefill thresholds",
        "longer waits for dear prefills, shorter ones for cheap prefills; off: plain ski rental",
        PREFILL,
        {"prefill_full_wait_price": 1e-9, "prefill_max_wait": 1.0},
    ),
    Mechanism(
        "copied texts",
        "a prefill waits less where few of the texts with such prompts were copies; off: as if all were",
        PREFILL,
        {"prefill_copied_share": 0.0},
    ),
    Mechanism(
        "output lengths",
        "whether a text is likely to last long enough to earn its prefill; off: it always is",
        LENGTHS,
        switches=(gives(OutputLengths, "pays", True),),
    ),
    Mechanism(
        "shortest outputs",
        "a prefill waits for the first four tokens while such short outputs are not rare; off: it does not",
        LENGTHS,
        {"shortest_risk": math.inf},
    ),
    Mechanism(
        "prefill spread over the output",
        "a prefill is paid off over up to 32 steps to come; off: in one",
        MODEL,
        {"prefill_horizon": 1},
    ),
    Mechanism(
        "prefill in parts",
        "256 tokens of a prompt are prefilled in a step; off: all in one pass",
        "drafters/auto.py",
        switches=(is_set(auto_drafter, "PREFILL_BUDGET_SINGLE", NEVER),),
    ),
    Mechanism(
        "prompt truncation",
        "a prompt's middle is left out where processing it takes over 14 plain steps",
        CONTEXT,
        {"prefill_max_steps": math.inf},
    ),
    Mechanism(
        "dropped copies",
        "the draft model does not process what the text has copied",
        CONTEXT,
        switches=(gives(DraftContext, "drop_copied", None),),
    ),
    Mechanism(
        "target confidence",
        "what is expected of a draft model before it has processed the text",
        "policy/target_confidence.py",
        {"target_confidence_rows": 0},
    ),
)

DRAFTING = (
    Mechanism(
        "lookahead",
        "tokens that lookups expect the draft model to draw take no passes of it",
        LOOKAHEAD,
        switches=(gives(DraftModelSource, "lookahead_length", 0),),
    ),
    Mechanism(
        "lookahead: new lookups",
        "outside the lookup's tree, a lookup at each node of the draft",
        LOOKAHEAD,
        switches=(gives(SuffixDrafter, "likely_path", ([], [])),),
    ),
    Mechanism(
        "share of passes",
        "a drawn token is expected to take less than a pass where lookahead works",
        MODEL,
        {"pass_share_weight": 1e12},
    ),
    Mechanism(
        "sibling choices",
        "the draft model's second likeliest token becomes a sibling",
        GROWTH,
        {"max_siblings": 1},
    ),
    Mechanism(
        "confidence-guided drafting",
        "the draft model stops and branches by its confidence; off: a planned number of tokens",
        MODEL,
        switches=(Switch(DraftModelSource, "__init__", _not_confident),),
    ),
    Mechanism(
        "vocabulary subset",
        "the draft model leaves out rare tokens; off: with an estimate of the whole output matrix's price",
        "drafters/vocab_subset.py",
        switches=(
            gives(draft_model, "frequent_blocks", None),
            Switch(replay, "COSTS", _with_full_vocabulary),
        ),
    ),
    Mechanism(
        "draft model",
        "a drafter of its own; off: lookups alone, for comparison",
        "drafters/draft_model.py",
        switches=(gives(DraftModelDrafter, "unprocessed", None),),
    ),
)

LOOKUPS = (
    Mechanism(
        "copy tracker",
        "continues a copy after a change; off: matches only",
        "drafters/copy_tracker.py",
        switches=(Switch(CopyTracker, "update", _updating_in_vain),),
    ),
    Mechanism(
        "lookups' trees",
        "lookups branch; off: their likeliest path",
        SUFFIX,
        switches=(Switch(suffix, "SuffixTree", _likeliest_path_only),),
    ),
    Mechanism(
        "learning from unverified lookups",
        "lookups learn from all that they offered; off: from what was verified",
        LOOKUP,
        switches=(Switch(Planner, "observe", _verified_only),),
    ),
    Mechanism(
        "lookups",
        "a drafter of its own; off: the draft model alone, for comparison",
        SUFFIX,
        switches=(Switch(SuffixDrafter, "lookup", lambda original: lambda self, job, budget: Lookup()),),
    ),
)

TREES = (
    Mechanism(
        "merging lookup and draft model",
        "a lookup's nodes are verified along with those of the draft model",
        TREE,
        switches=(Switch(draft_model_policy, "merge", _model_tree_alone),),
    ),
    Mechanism(
        "agreement and rivalry",
        "probabilities of nodes that both drafters propose, or one of them against the other",
        TREE,
        switches=(is_set(tree, "agreement", max), is_set(tree, "conflict", lambda a, b: a)),
    ),
    Mechanism(
        "pruning of the merged tree",
        "which nodes of lookup and draft model pay; off: the likeliest 16",
        PLANNER,
        switches=(Switch(Planner, "_prune", _unpruned),),
    ),
)

ESTIMATES = (
    Mechanism(
        "request odds",
        "how much better or worse drafters do in this request than in others",
        RATES,
        switches=(
            Switch(Planner, "observe", _forgetting(True, ("first", "sibling", "lookahead"))),
            Switch(DraftModelSource, "observe_pruned", _forgetting_pruned),
        ),
    ),
    Mechanism(
        "request odds: lookups",
        "the same, of lookups only",
        RATES,
        switches=(Switch(Planner, "observe", _forgetting(True, ())),),
    ),
    Mechanism(
        "request odds: draft model",
        "the same, of the draft model's first choices only",
        RATES,
        switches=(
            Switch(Planner, "observe", _forgetting(False, ("first",))),
            Switch(DraftModelSource, "observe_pruned", _forgetting_pruned),
        ),
    ),
    Mechanism(
        "request odds: sibling choices",
        "the same, of sibling choices and of lookahead",
        RATES,
        switches=(Switch(Planner, "observe", _forgetting(False, ("sibling", "lookahead"))),),
    ),
    Mechanism(
        "learning from pruned tokens",
        "a drafted token that was not verified counts with its probability",
        MODEL,
        switches=(gives(DraftModelSource, "observe_pruned", None),),
    ),
    Mechanism(
        "optimism",
        "a draft model's gain before its prefill counts partly as if the text suited it",
        "policy/optimism.py",
        tuning={"optimism_odds": 1.0},
    ),
    Mechanism(
        "less trust at a new text",
        "evidence of other texts for the draft model counts 0.9 when a text begins",
        RATES,
        switches=(
            Switch(
                DraftModelSource,
                "begin",
                lambda original: lambda self: draft_model_policy.DraftModelState(self._tuning),
            ),
        ),
    ),
)

TIME = (
    Mechanism(
        "token rate",
        "time is worth what decoding reaches with drafts; off: what plain decoding reaches",
        TOKEN_RATE,
        switches=(gives(TokenRate, "observe", None),),
    ),
    Mechanism(
        "token rate: memory",
        "of the last few steps (0.7); off: of the last one",
        TOKEN_RATE,
        {"token_rate_decay": 0.0},
    ),
    Mechanism(
        "token rate: new requests",
        "begins with plain decoding's in a new request",
        TOKEN_RATE,
        switches=(Switch(TokenRate, "begin_step", _without_new_requests),),
    ),
    Mechanism(
        "exploration",
        "probes of drafters that are off and plain steps, from a budget of time",
        EXPLORATION,
        {"exploration_share": 0.0},
    ),
    Mechanism(
        "exploration: plain steps",
        "a plain step where the cost curve is in doubt",
        EXPLORATION,
        {"max_cost_deviation": math.inf},
    ),
    Mechanism(
        "exploration: lookups",
        "probes of lookups that are off",
        EXPLORATION,
        switches=(gives(Planner, "_probe_lookup", False),),
    ),
    Mechanism(
        "exploration: draft model",
        "probes of a draft model that is off",
        EXPLORATION,
        switches=(gives(Planner, "_probe_model", False),),
    ),
    Mechanism(
        "exploration: growing waits",
        "waits between probes double from 8 to 64 steps; off: always 8",
        EXPLORATION,
        {"probe_last_wait": DEFAULT.probe_first_wait},
    ),
)

MECHANISMS = (*PREFILLING, *DRAFTING, *LOOKUPS, *TREES, *ESTIMATES, *TIME)
