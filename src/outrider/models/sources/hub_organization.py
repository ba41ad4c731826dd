"""The models of an organization on the hub, by its listing.

Import this module lazily, as the hub's library takes a while to load.
"""

from __future__ import annotations

import os
import re

from huggingface_hub import HfApi

from outrider.errors import ConfigError, ModelNotFoundError
from outrider.models.sources.hub import library_errors

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
LISTED = 200  # repositories that are asked for
FORMATS = {"gguf", "safetensors"}
# What a repository's task may be: the hub guesses it, and guesses a text model of several uses by one.
TASKS = {None, "", "text-generation", "image-text-to-text", "any-to-any"}


def repositories(organization: str, most: int) -> list[str]:
    """Its repositories that may hold a text model, the most downloaded first, at most `most`.

    Raises ConfigError, and ModelNotFoundError or DownloadError as a download does.
    """
    what = f"hf:{organization}"
    if not NAME.fullmatch(organization) or ".." in organization:
        raise ConfigError(f"{what}: write hf:ORG, the name of an organization or a user on the hub")
    with library_errors(what):
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="outrider")
        listed = list(api.list_models(author=organization, sort="downloads", limit=LISTED))
    found = []
    for model in listed:
        tags = set(model.tags or ())
        known = not tags or tags & FORMATS
        name = str(model.id)
        if known and model.pipeline_tag in TASKS and REPOSITORY.fullmatch(name) and ".." not in name:
            found.append(name)
    if not found:
        raise ModelNotFoundError(f"{what}: the hub lists no text model of that name; check the spelling")
    return found[:most]
