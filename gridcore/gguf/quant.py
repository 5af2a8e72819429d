"""Block sizes of ggml's tensor types.

A published type never changes its layout, so the known ones stand here and cost nothing to
look up; a newer one is taken from the installed ``gguf`` package. The package is not asked
first because its constants alone take 47 ms to load, more than reading a whole header.
"""

import importlib.util
from functools import cache
from pathlib import Path
from typing import NamedTuple


class QuantType(NamedTuple):
    """How a tensor type packs numbers: ``block`` of them in ``size_bytes``."""

    name: str
    block: int
    size_bytes: int

    def row_bytes(self, n_elements: int) -> int:
        """Bytes of a row; a last partial block counts in proportion, as ggml_row_size does."""
        return n_elements * self.size_bytes // self.block


# ggml.h enum ggml_type and ggml.c type_traits; 4, 5, 31-33 and 36-38 are removed types.
# Each entry that the gguf package also knows is compared with it by a unit test.
QUANT_TYPE_BY_ID: dict[int, QuantType] = {
    0: QuantType("F32", 1, 4),
    1: QuantType("F16", 1, 2),
    2: QuantType("Q4_0", 32, 18),
    3: QuantType("Q4_1", 32, 20),
    6: QuantType("Q5_0", 32, 22),
    7: QuantType("Q5_1", 32, 24),
    8: QuantType("Q8_0", 32, 34),
    9: QuantType("Q8_1", 32, 36),
    10: QuantType("Q2_K", 256, 84),
    11: QuantType("Q3_K", 256, 110),
    12: QuantType("Q4_K", 256, 144),
    13: QuantType("Q5_K", 256, 176),
    14: QuantType("Q6_K", 256, 210),
    15: QuantType("Q8_K", 256, 292),
    16: QuantType("IQ2_XXS", 256, 66),
    17: QuantType("IQ2_XS", 256, 74),
    18: QuantType("IQ3_XXS", 256, 98),
    19: QuantType("IQ1_S", 256, 50),
    20: QuantType("IQ4_NL", 32, 18),
    21: QuantType("IQ3_S", 256, 110),
    22: QuantType("IQ2_S", 256, 82),
    23: QuantType("IQ4_XS", 256, 136),
    24: QuantType("I8", 1, 1),
    25: QuantType("I16", 1, 2),
    26: QuantType("I32", 1, 4),
    27: QuantType("I64", 1, 8),
    28: QuantType("F64", 1, 8),
    29: QuantType("IQ1_M", 256, 56),
    30: QuantType("BF16", 1, 2),
    34: QuantType("TQ1_0", 256, 54),
    35: QuantType("TQ2_0", 256, 66),
    39: QuantType("MXFP4", 32, 17),
    40: QuantType("NVFP4", 64, 36),
    41: QuantType("Q1_0", 128, 18),
    42: QuantType("Q2_0", 64, 18),
}


def quant_type(type_id: int) -> QuantType | None:
    """Return the type with this ggml id, or None if nobody here knows it."""
    return QUANT_TYPE_BY_ID.get(type_id) or gguf_package_types().get(type_id)


def quant_type_named(name: str) -> QuantType | None:
    """Return the type called ``name`` in any case, as llama-server's cache types are."""
    wanted = name.upper()
    return next((t for t in QUANT_TYPE_BY_ID.values() if t.name == wanted), None)


@cache
def gguf_package_types() -> dict[int, QuantType]:
    """Read the types the installed ``gguf`` package knows; none if it cannot be loaded.

    Its ``constants.py`` is loaded alone: ``import gguf`` drags in numpy (30 MB, 0.2 s).
    """
    spec = importlib.util.find_spec("gguf")
    if spec is None or not spec.submodule_search_locations:
        return {}
    path = Path(spec.submodule_search_locations[0]) / "constants.py"
    alone = importlib.util.spec_from_file_location("_gridcore_gguf_constants", path)
    if alone is None or alone.loader is None:
        return {}
    module = importlib.util.module_from_spec(alone)
    try:
        alone.loader.exec_module(module)
        sizes = module.GGML_QUANT_SIZES.items()
        return {int(t.value): QuantType(t.name, block, size) for t, (block, size) in sizes}
    except (ImportError, OSError, AttributeError, TypeError, ValueError):
        return {}  # a package laid out differently: the type is then reported as unknown
