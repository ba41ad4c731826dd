# From guides on the web: standard against speculative decoding. `standard_llm` and `spec_llm` are given.
import time

def benchmark(llm, prompt, runs=5):
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        llm.generate(prompt)
        times.append(time.perf_counter() - start)
    return sum(times) / len(times)

# Standard
standard = benchmark(standard_llm, "Explain AI")
# Speculative
spec = benchmark(spec_llm, "Explain AI")
print(f"Standard: {standard:.2f}s, Speculative: {spec:.2f}s, Speedup: {standard/spec:.2f}x")
