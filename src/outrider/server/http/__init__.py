"""HTTP: every dialect of the API is translated to one inner request, so that a new dialect is one file.

The life of a request:

1. `guard` checks key and host name, and reads the body; `app` routes it to an endpoint, with its fields
   checked by `protocol`.
2. The endpoint calls `Service.arrival`, which starts the timer and checks the model's name.
3. The dialect's `parse`, run in a worker thread, translates the body to a `GenerationRequest`. It uses
   `sampling_fields`, `conversation` (messages to a prompt) and `tools`, and ends with
   `Service.generation_request`.
4. `generation.respond` submits the samples to the engine and reads their events. It gives them to the
   dialect's `Answer`, which writes the JSON document or the parts of a stream.

A dialect is a file such as `completions`: an endpoint of four lines, `parse`, and an `Answer`. OpenAI's two
generating paths share `openai_answer`. The dialects in `dialects/` translate their requests to
`protocol.ChatRequest`, share its `parse`, and subclass `generation.Answer`.
"""
