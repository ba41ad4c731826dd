# From guides on the web for vLLM; the import is changed.
from outrider import LLM, SamplingParams

llm = LLM(
    model="meta-llama/Llama-3.2-3B",      # target
    speculative_model="meta-llama/Llama-3.2-1B",  # draft
    num_speculative_tokens=5,
)
params = SamplingParams(temperature=0.7, max_tokens=256)
outputs = llm.generate("Explain quantum computing", params)
print(outputs[0].outputs[0].text)
