"""The fields of the double's completions."""

from __future__ import annotations


class CompletionRequest:
    """As pydantic has them; here their names only."""

    model_fields = dict.fromkeys(
        (
            *(
                "model",
                "prompt",
                "stream",
                "stream_options",
                "max_tokens",
                "min_tokens",
                "temperature",
                "seed",
            ),
            *("top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
            *("logprobs", "prompt_logprobs", "return_token_ids", "stop", "stop_token_ids", "ignore_eos"),
            *("logit_bias", "allowed_token_ids", "bad_words", "structured_outputs", "n"),
        )
    )
