"""Dialects of the API beside OpenAI's two paths: each has its own fields, documents, streams and errors.

A dialect is a file or a folder here. It has pydantic models of its own (`base.Fields`), translates its
request to the inner one, `protocol.ChatRequest` (`inner.chat_request`, `inner.prepare`), and writes its
answer with a subclass of `generation.Answer`, which reads the text with a `sample_reader.BlockReader`. At its
end stands a `base.Dialect`, which `registry.DIALECTS` lists.
"""
