"""Every tuned number of speculation under `auto`, with its meaning and unit.

None of them changes a text; they decide speed only. Probabilities and shares are 0..1, "tokens" are tokens of
evidence where a weight is meant, and a decay is the factor on older evidence for each further unit.

Where the numbers came from: what each mechanism gains as a whole is in benchmarks/results/ablation.md,
written by `python benchmarks/ablation.py`. A number with a percentage in its note is a mechanism of that
table. The others were chosen by hand, by the geometric mean that `python benchmarks/replay.py` gives for
the built-in prompts; `benchmarks/never_slower.py` holds the result against every fixed setting in real time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """The defaults are what Outrider runs with. Tests and benchmarks pass others to the planner; the
    drafters' own numbers, the last two groups, are read once, from DEFAULT."""

    # --- Token rate, and the costs of a step (token_rate.py, mixed_batches.py) ---
    token_rate_decay: float = 0.7
    """Of the evidence for the token rate, for each step: texts change character within a few."""
    overhead_smoothing: float = 0.05
    """Weight of a new value in the running means of a step's overhead and of the time lookups take."""
    cost_batch_passes: int = 4
    """Passes that the cost curve learns from together; learning after one alone finds cold caches."""
    cost_surprise_ratio: float = 1.25
    """A pass this many times as long, or as short, as predicted is learned from at once."""
    drafts_smoothing: float = 0.05
    """Weight of a new value in the running mean of draft tokens in a pass."""

    # --- Mixed batches (mixed_batches.py) ---
    mixed_pass_ratio: float = 1.8
    """Length of a pass with prompt tokens, in passes without them."""
    prefill_pass_seconds: float = 0.25
    """Seconds that a pass of prompt tokens alone may take."""
    min_prefill_tokens: int = 32
    """Prompt tokens of a pass of prompt tokens alone, at least: the weights are read once for all of them."""
    max_prefill_tokens: int = 256
    """Prompt tokens of any pass, at most."""

    # --- Exploration (exploration.py, planner.py) ---
    exploration_window: float = 10.0
    """Seconds over which `exploration_share` holds."""
    exploration_share: float = 0.01
    """Of any window's time that probes may take."""
    exploration_refill: float = 0.004
    """Of the time that passes, which is added to the budget."""
    exploration_reserve: float = 0.04
    """Seconds that the budget may hold."""
    probe_first_wait: int = 8
    """Steps before a drafter that is off is probed; doubles with each probe …"""
    probe_last_wait: int = 64
    """… up to this."""
    max_cost_deviation: float = 0.10
    """Standard deviation of log(T(n) / T(1)) from which on a plain step is worth a probe's price."""

    # --- Acceptance probabilities (acceptance_rates.py) ---
    acceptance_decay: float = 0.95
    """Of a request's evidence for a drafter, for each token."""

    # --- Lookups (lookup.py, lookup_backoff.py) ---
    lookup_start: float = 0.3
    """Acceptance probability of a lookup before anything is known."""
    lookup_start_weight: float = 2.0
    """Tokens that `lookup_start` counts for."""
    backoff_steps: int = 4
    """Most steps in a row without looking up, where it is cheap …"""
    backoff_steps_costly: int = 16
    """… and where it takes a large share of a step."""
    backoff_min_cost: float = 0.003
    """Of a plain step: lookups in vain that take less are never left out."""
    lookup_time_share: float = 0.01
    """Of the time that lookups in vain may take before the backoff grows longer."""
    lookup_gain: float = 0.1
    """Of a plain step: what a lookup is expected to save before anything is known."""
    lookup_gain_weight: float = 8.0
    """Steps of a request that the gain of all requests counts for."""
    lookup_gain_decay: float = 0.95
    """Of a request's evidence for that gain, for each step."""
    lookup_gain_shared_decay: float = 0.98
    """The same over all requests."""

    # --- Draft models (draft_model.py) ---
    model_start: float = 0.6
    """Acceptance probability of a draft model's token before anything is known."""
    model_start_truncated: float = 0.5
    """The same where it does not see the middle of the prompt: 2.34 times plain in
    `replay.py --workloads passages -n 64 --temps 0`, with a `model_start` of 0.8 2.27; 2.00 where both kinds
    of prompt share what is learned …"""
    model_start_weight: float = 4.0
    """… and tokens that either counts for. By `replay.py --cold -n 48 --limit 8 --workloads` with the six
    short ones, 0.6 and 4 give 1.366 times plain, 0.93 in the slowest text of 8 to 48 tokens; 0.8 and 8 1.352
    and 0.85; 0.7 and 6 1.366 and 0.93, but later texts 0.2% less. In the simulator's short cases a bad draft
    model costs a process's first texts 2.6 plain steps, with 0.8 and 8 3.2."""
    model_cold_tokens: float = 8.0
    """With less evidence, it drafts for one request at a time."""
    sibling_start: float = 0.4
    """Acceptance probability of a second choice, the first being wrong, before anything is known."""
    sibling_start_weight: float = 2.0
    """Tokens that `sibling_start` counts for."""
    lookahead_start: float = 0.3
    """Probability that the draft model draws what a lookup expects, before anything is known."""
    lookahead_start_weight: float = 2.0
    """Tokens that `lookahead_start` counts for."""
    pass_share_weight: float = 8.0
    """Draft passes that the mean of all requests counts for, in the passes that a drawn token takes."""
    pass_share_decay: float = 0.95
    """Of the evidence for that, for each draft."""

    # --- Draft prefill (draft_prefill.py) ---
    prefill_horizon: int = 32
    """Steps over which a draft prefill is paid off, if the output lasts as long."""
    prefill_full_wait_price: float = 5.75
    """Tokens: a prefill at this price is deferred until it would have gained its price; half the price waits
    for half of it, and so on. Between 5 and 6.5 copies and short answers, by `replay.py` and its short
    workloads, gain and lose 1% in opposite directions."""
    prefill_max_wait: float = 2.5
    """Most that a prefill waits for, in its own prices."""
    prefill_copied_share: float = 0.6
    """Share of a text's tokens, that lookups alone gave, from which on it counts as copied; 0: all do. The
    fewer of the texts with such prompts were, the shorter a prefill waits. `replay.py --limit 8 --workloads
    tools --cap 1`: 1.25, 1.26 times plain, without it 1.18, 1.20. From 0.4 to 0.8 the same, edits too."""
    prefill_copied_texts: int = 32
    """The latest texts that this is known of."""
    length_prior_weight: float = 3.0
    """Outputs of unknown length that count before anything is known (output_lengths.py)."""
    length_decay: float = 0.95
    """Of the evidence for lengths, for each output."""
    shortest_outputs: int = 4
    """Tokens: outputs of at most so many have ended before a draft model's prefill pays. This and the next,
    by `replay.py` over the short workloads: --cold 1.24 without, 1.36 with them; --mixed 1.30 and 1.36."""
    shortest_risk: float = 0.05
    """Tokens, expected to be lost to the shortest outputs, above which a draft prefill waits."""
    prefill_max_steps: float = 14.0
    """Plain steps: a prompt that takes the draft model longer is processed without its middle."""

    # --- Optimism (optimism.py) ---
    # Three tool calls after six translations, of whose drafts a third is accepted, replayed: 1.22 times plain
    # with 0.4 as the usual rate, 1.74 with 0.2; in real time (`never_slower.py --short`) 2.06. With odds of
    # 3, or a weight of 0.5, a draft model that is never right costs more than the simulator's tests allow.
    optimism_odds: float = 2.0
    """Factor on the acceptance odds of a draft model in a text that suits it …"""
    optimism_max: float = 0.8
    """… up to this probability: a draft model of which nothing is known is judged by `model_start` alone."""
    optimism_weight: float = 0.1
    """Texts that count for the optimistic gain, against those that disappointed."""
    optimism_usual_rate: float = 0.2
    """Share of accepted tokens from which on a text is no disappointment; one without any is a whole one."""
    optimism_decay: float = 0.95
    """Of earlier disappointments, for each text."""
    optimism_full_tokens: int = 4
    """Verified tokens from which on a text counts in full."""

    # --- Target confidence (target_confidence.py) ---
    target_confidence_rows: int = 24
    """First tokens of a request for which the target's confidence is taken. Over the 36 built-in prompts,
    with a 0.5B draft of a 1.5B target, the correlation with the draft's acceptance is 0.82 after 16."""
    target_confidence_start: float = 0.85
    """Expected before anything is known …"""
    target_confidence_start_weight: float = 8.0
    """… and the tokens it counts for."""
    target_confidence_prior_weight: float = 4.0
    """Tokens that the mean of all requests counts for in a new one."""
    target_confidence_slope: float = 0.6
    """Log-odds of a draft token's acceptance for one of the target's confidence."""
    target_confidence_max: float = 0.99
    """Confidence is taken for at most this, as odds grow without bound."""

    # --- Growing trees (tree_growth.py) ---
    max_siblings: int = 2
    """Children of a node; a third one is hardly ever right."""

    # --- Drafters: the draft model (drafters/auto.py, draft_context.py, vocab_subset.py) ---
    draft_prefill_budget: int = 32
    """Unprocessed tokens that a draft model may process in a step before it draws, where other requests wait:
    about as long as a pass of the target takes."""
    draft_prefill_budget_single: int = 256
    """The same for a request that is alone: its steps stay short, which takes under 0.1%."""
    context_head_tokens: int = 16
    """First tokens of a sequence that a draft model always keeps when the middle is left out …"""
    context_tail_tokens: int = 48
    """… and last ones (13% on prompts of 600 to 830 tokens)."""
    copied_tail_tokens: int = 32
    """Last tokens that it processes of what was copied from earlier in the sequence (0.3%)."""
    vocab_subset_divisor: int = 4
    """The first vocab_size / 4 ids count as frequent (4.2% with the next) …"""
    vocab_subset_min: int = 24_576
    """… but at least so many: a small output matrix costs little."""

    # --- Drafters: lookahead and lookups (lookahead.py, copy_tracker.py, suffix.py, prediction.py,
    # output_pool.py) ---
    lookahead_tokens: int = 7
    """Most tokens that are predicted at a time (5.6%)."""
    copy_min_match: int = 12
    """Matching tokens that make a copy: what new text repeats by chance is seldom as long (0.7%)."""
    copy_max_gap: int = 8
    """Differing tokens in a row, before the copy is given up."""
    copy_gap_decay: float = 0.5
    """Factor on the match length for each differing token, and once more after a gap."""
    lookup_matches: int = 12
    """Matches whose continuations make a lookup's tree."""
    lookahead_matches: int = 4
    """The same for a lookup while a draft model drafts."""
    prediction_path_factor: float = 3.0
    """A path of the prediction is at most this many times as long as its match: text that agrees with what is
    said to be the answer is trusted further than a repetition (3.4% fewer steps than with 1)."""
    output_prompt_tail: int = 8
    """Prompt tokens kept before a finished output, so that its beginning can be matched too."""

    @property
    def max_probe_seconds(self) -> float:
        """Seconds of a single probe at most; spent ahead and paid back. What probes take within a window is
        at most what was saved before it, the refill, and what one probe overdraws: reserve + refill * window
        + (max_probe_seconds - reserve) = share * window."""
        return self.exploration_window * (self.exploration_share - self.exploration_refill)


DEFAULT = Tuning()
