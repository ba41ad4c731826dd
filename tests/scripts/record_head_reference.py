"""Records what the package speculators computes with tiny heads, and how it writes their configuration:
`python -m tests.scripts.record_head_reference` in an environment with torch, transformers and speculators.

Its class gives logits for every position of a text: with the target's states, and, a step later, with what it
gave itself for the position before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from transformers import LlamaConfig, Qwen3Config

from tests.support.heads import RECORDED, HeadDims, head_inputs, tiny_head

FOLDER = Path(__file__).parent.parent / "data/reference"
TOKENS = 12


def config_of(dims: HeadDims) -> Any:
    sizes = {
        "hidden_size": dims.hidden,
        "intermediate_size": dims.ffn,
        "num_attention_heads": dims.heads,
        "num_key_value_heads": dims.kv_heads,
        "num_hidden_layers": dims.layers,
        "rms_norm_eps": dims.eps,
        "head_dim": dims.head,
        "max_position_embeddings": 256,
        "vocab_size": dims.vocab,
        "rope_parameters": {"rope_type": "default", "rope_theta": dims.theta},
        "attn_implementation": "eager",
    }
    layer = Qwen3Config(**sizes) if dims.qk_norms else LlamaConfig(**sizes)
    return Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=dims.rows,
        norm_before_residual=dims.norm_before_residual,
        norm_before_fc=dims.joint_norm,
        fc_norm=dims.state_norms,
        norm_output=dims.norm_output,
        eagle_aux_hidden_state_layer_ids=[2, 3, 4],
    )


def main() -> None:
    found: dict[str, Any] = {}
    configurations = {}
    for name, dims in RECORDED.items():
        made, config = tiny_head(dims), config_of(dims)
        model = Eagle3DraftModel(config).eval()
        state = {key: torch.from_numpy(np.array(values)) for key, values in made.weights.items()}
        missing = model.load_state_dict(state, strict=False)
        assert not missing.unexpected_keys
        tokens, states = head_inputs(dims, TOKENS)
        rows: list[torch.Tensor] = []
        model.lm_head.register_forward_hook(lambda _, __, logits, rows=rows: rows.append(logits[0]))
        with torch.no_grad():
            model(
                torch.from_numpy(states)[None],
                torch.tensor([tokens]),
                torch.zeros(1, TOKENS, dtype=torch.long),
                ttt_steps=3,
            )
        for step, logits in enumerate(rows[:3]):
            found[f"{name}.{step}"] = logits.numpy().astype(np.float32)
        configurations[name] = config.to_dict()
    np.savez_compressed(FOLDER / "heads.npz", **found)
    (FOLDER / "heads.json").write_text(json.dumps(configurations, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
