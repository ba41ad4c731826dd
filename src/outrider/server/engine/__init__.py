"""The engine of the server. It knows nothing of HTTP.

async_engine: one thread that owns the step loop; requests are submitted to it, streams of events come back.
scheduler:    which requests run and which wait.
capacity:     how the memory is divided.
stream:       the events of one submission, on their way to an event loop.
stats:        counts for metrics and for the status document.
"""
