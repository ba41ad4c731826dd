# What guides say to expect: speculative decoding produces identical output to standard decoding, at the same
# temperature and seed. `standard_llm` and `spec_llm` are given.
from outrider import SamplingParams

for params in (
    SamplingParams(temperature=0, max_tokens=64, ignore_eos=True),
    SamplingParams(temperature=0.7, max_tokens=64, ignore_eos=True, seed=42),
    SamplingParams(temperature=1.0, top_p=0.9, max_tokens=64, ignore_eos=True, seed=7),
):
    standard = standard_llm.generate("Explain AI", params)[0].outputs[0]
    spec = spec_llm.generate("Explain AI", params)[0].outputs[0]
    assert standard.token_ids == spec.token_ids
    assert standard.text == spec.text
    print("identical:", len(spec.token_ids), "tokens")
