"""Run by the Python that has vLLM: what it drafts with an EAGLE-3 head.

From stdin JSON: the arguments of `vllm.LLM`, `prompts` (token ids) and `max_tokens`. The last line of stdout
is JSON: `texts`, the ids that follow each prompt, greedily; `drafts`, for each prompt what was drafted, as
[number of known tokens, drafted ids].
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from vllm import LLM, SamplingParams


def main() -> None:
    given = json.load(sys.stdin)
    found: dict[str, list[Any]] = {}
    update = Scheduler.update_draft_token_ids

    def recording(self: Any, drafted: Any) -> None:
        for name, ids in zip(drafted.req_ids, drafted.draft_token_ids, strict=True):
            request = self.requests.get(name)
            if request is not None and not request.is_prefill_chunk:
                found.setdefault(name, []).append((request.num_tokens, [int(each) for each in ids]))
        update(self, drafted)

    Scheduler.update_draft_token_ids = recording
    llm = LLM(**given["arguments"], async_scheduling=False)
    params = SamplingParams(temperature=0, max_tokens=given["max_tokens"], ignore_eos=True)
    texts, drafts = [], []
    for prompt in given["prompts"]:
        found.clear()
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        texts.append(list(output.outputs[0].token_ids))
        (records,) = found.values()
        drafts.append(records)
    print(json.dumps({"texts": texts, "drafts": drafts}))


if __name__ == "__main__":
    main()
