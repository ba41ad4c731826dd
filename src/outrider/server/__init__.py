"""The server: `engine` runs the requests of many clients in one thread, `http` translates HTTP to them.

`http` imports `engine`; `engine` knows nothing of HTTP.
"""
