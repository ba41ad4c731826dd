"""How a draft model's tree grows: probabilities of its nodes, where it branches, and when it stops.

Each drawn token is calibrated (`AcceptanceRates`), and drawing goes on while the acceptance probability is
worth the price: of a token of the next level a pass of the draft model and its verification, of a sibling its
verification alone. Of siblings, the likeliest alone gets children: what another would add is not worth a
wider draft pass.

It runs between the passes of a draft model, which for a head take less time than a few lines of Python, so it
is in C++ (csrc/policy/tree_growth.h).
"""

from __future__ import annotations

from outrider.policy._estimates import ModelRates, TreeGrowth, row_length

__all__ = ["ModelRates", "TreeGrowth", "row_length"]
