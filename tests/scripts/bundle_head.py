"""Write the file of a bundled head (models/sources/bundled.py) from the folder that `outrider train` made:

    python -m tests.scripts.bundle_head DIR NAME

Matrices become Q4_0, which is how the engine holds a head by default, so that its drafts are those of the
folder. The target's tokenizer is left out, as the file is of no use without the target.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import quantize

from outrider.models.sources.bundled import BUNDLED

KIND = GGMLQuantizationType.Q4_0


def write(made: Path, path: Path) -> None:
    """made: the `head.gguf` of a run."""
    reader = GGUFReader(made)
    writer = GGUFWriter(path, "eagle3")
    for name, field in reader.fields.items():
        if name.startswith(("tokenizer.", "GGUF.")) or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        values: Any = tensor.data
        if tensor.tensor_type == GGMLQuantizationType.F16:
            writer.add_tensor(tensor.name, quantize(values.astype("f4"), KIND), raw_dtype=KIND)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    folder, name = sys.argv[1:]
    path = BUNDLED[name].path
    path.parent.mkdir(exist_ok=True)
    write(Path(folder) / "head.gguf", path)
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
