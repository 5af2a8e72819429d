"""The laws of the tree, read from its source: who may import what, and who may not.

import-linter (``[tool.importlinter]`` in pyproject.toml) checks the arrows between rooms, also
through third modules. This file checks what it cannot see: standard library modules used in one
place only, iteration in an order nobody chose, size, docstrings.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PURE_ROOMS = (
    "gridcore/core",
    "gridcore/gguf",
    "gridcore/config",
    "gridcore/runtime/lifecycle.py",
    "gridcore/runtime/argv.py",
    "gridcore/ipc/link.py",
    "gridcore/ipc/messages.py",
    "gridcore/http/embeddings.py",
    "gridcore/http/body.py",
    "gridcore/http/openai.py",
    "gridcore/metrics/families.py",
    "gridcore/metrics/exposition.py",
)
IMPURE = {
    "aiohttp",
    "asyncio",
    "httpx",
    "logging",
    "os",
    "random",
    "socket",
    "subprocess",
    "time",
    "zmq",
}
MAY_READ_FILES = {
    "gridcore/config/load.py": {"os"},
    "gridcore/config/reader.py": {"os"},  # expands ~ and $VAR in paths
    "gridcore/gguf/header.py": {"os"},  # reads the file it is about, bounded
}

ONLY_HERE = {
    "zmq": {"gridcore/ipc/sockets.py"},
    "time": {"gridcore/clock.py"},
    "random": {"gridcore/sim/chance.py"},
}
STARTS_PROCESSES = ("gridcore/runtime/process.py", "gridcore/group/", "services/launcher.py")
SPAWNERS = {"create_subprocess_exec", "create_subprocess_shell", "posix_spawn", "fork", "execv"}

LINES_MAX = {"gridcore": 600, "services": 200}


def sources(*tops: str) -> list[Path]:
    return [path for top in tops for path in sorted((ROOT / top).rglob("*.py"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every import, also those inside functions and behind TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.lineno, node.module
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def is_pure(path: Path) -> bool:
    name = name_of(path)
    return any(name == room or name.startswith(f"{room}/") for room in PURE_ROOMS)


def pure_sources() -> list[Path]:
    return [path for path in sources("gridcore") if is_pure(path)]


def impure_imports(tree: ast.AST, allowed: set[str]) -> list[tuple[int, str]]:
    return [
        (line, module)
        for line, module in imported_modules(tree)
        if module.partition(".")[0] in IMPURE - allowed
    ]


def unordered_iterations(tree: ast.AST) -> list[int]:
    """Lines that iterate over a set in the order of its hashes.

    Seen: set displays, set comprehensions and ``set()``/``frozenset()`` calls, set algebra of
    those, and local names bound or annotated as sets in the same module.
    """
    names = set_names(tree)
    suspects: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.For(iter=iterable) | ast.comprehension(iter=iterable):
                suspects.append(iterable)
            case ast.Call(func=ast.Name(id="list" | "tuple" | "next" | "iter" | "enumerate")):
                suspects.extend(node.args[:1])
            case ast.Call(func=ast.Name(id="min" | "max"), args=[only]) if has_key(node):
                suspects.append(only)  # a tie of the key is decided by the order
            case ast.Starred(value=value):
                suspects.append(value)
    ordered = {id(arg) for node in ast.walk(tree) for arg in order_free_arguments(node)}
    return sorted(
        {expr.lineno for expr in suspects if id(expr) not in ordered and is_set(expr, names)}
    )


def has_key(call: ast.Call) -> bool:
    return any(keyword.arg == "key" for keyword in call.keywords)


def order_free_arguments(node: ast.AST) -> Iterator[ast.expr]:
    """Iterations whose result does not depend on the order."""
    if isinstance(node, ast.Set):
        for element in node.elts:
            if isinstance(element, ast.Starred):
                yield element.value
    if isinstance(node, ast.SetComp):
        for generator in node.generators:
            yield generator.iter
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        free = {"sorted", "sum", "any", "all", "len", "set", "frozenset", "min", "max"}
        if has_key(node) and node.func.id in ("min", "max"):
            return
        if node.func.id in free:
            for argument in node.args:
                yield argument
                if isinstance(argument, ast.GeneratorExp):
                    for generator in argument.generators:
                        yield generator.iter


def set_names(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=target, annotation=annotation) if is_set_type(annotation):
                names.add(ast.unparse(target))
            case ast.Assign(targets=[target], value=value) if is_set(value, set()):
                names.add(ast.unparse(target))
            case ast.arg(arg=name, annotation=ast.expr() as annotation) if is_set_type(annotation):
                names.add(name)
    return names


def is_set_type(annotation: ast.expr) -> bool:
    text = ast.unparse(annotation)
    return text.startswith(("set[", "frozenset[", "Set[", "AbstractSet["))


def is_set(expr: ast.expr, names: set[str]) -> bool:
    match expr:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):
            return is_set(expr.left, names) or is_set(expr.right, names)
        case ast.Name() | ast.Attribute():
            return ast.unparse(expr) in names
        case _:
            return False


@pytest.mark.parametrize("path", pure_sources(), ids=name_of)
def test_pure_rooms_know_no_clock_no_network_no_chance(path: Path) -> None:
    found = impure_imports(tree_of(path), MAY_READ_FILES.get(name_of(path), set()))
    assert not found, f"{name_of(path)} is pure and may not import {found}"


def test_the_pure_rooms_exist() -> None:
    """A room that is renamed would otherwise leave the contract without a word."""
    assert [room for room in PURE_ROOMS if not (ROOT / room).exists()] == []


@pytest.mark.parametrize("path", pure_sources(), ids=name_of)
def test_pure_rooms_iterate_in_an_order_somebody_chose(path: Path) -> None:
    lines = unordered_iterations(tree_of(path))
    assert not lines, f"{name_of(path)} iterates over a set, lines {lines}: sort it"


@pytest.mark.parametrize("module", sorted(ONLY_HERE))
def test_a_module_with_one_user_has_no_other(module: str) -> None:
    users = {
        name_of(path)
        for path in sources("gridcore", "services")
        for _, name in imported_modules(tree_of(path))
        if name.partition(".")[0] == module
    }
    assert users <= ONLY_HERE[module], f"{module} is imported by {users - ONLY_HERE[module]}"


def test_processes_are_started_in_one_place() -> None:
    found = []
    for path in sources("gridcore", "services"):
        if name_of(path).startswith(STARTS_PROCESSES):
            continue
        tree = tree_of(path)
        found += [
            f"{name_of(path)}:{line} {module}"
            for line, module in imported_modules(tree)
            if module.partition(".")[0] in ("subprocess", "multiprocessing")
        ]
        found += [
            f"{name_of(path)}:{node.lineno} {node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr in SPAWNERS
        ]
    assert found == []


def test_nothing_imports_services_but_services_and_the_command_line() -> None:
    found = [
        f"{name_of(path)}:{line}"
        for path in sources("gridcore")
        for line, module in imported_modules(tree_of(path))
        if module.partition(".")[0] == "services" and not name_of(path).startswith("gridcore/cli/")
    ]
    assert found == []


@pytest.mark.parametrize("top", sorted(LINES_MAX))
def test_files_fit_a_reader(top: str) -> None:
    lengths = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in sources(top)
    }
    long = {name: length for name, length in lengths.items() if length > LINES_MAX[top]}
    assert long == {}, f"longer than {LINES_MAX[top]} lines: split by concept"


def test_every_module_says_what_it_owns() -> None:
    silent = [
        name_of(path)
        for path in sources("gridcore", "services", "scripts")
        if path.stat().st_size > 0 and ast.get_docstring(tree_of(path)) is None
    ]
    assert silent == []


def test_the_text_names_no_registry_host() -> None:
    """Where packages come from is the user's setting (a mirror, an offline folder)."""
    hosts = ["pypi" + ".org", "python" + "hosted.org", "npmjs" + ".org", "ghcr" + ".io"]
    found = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in tracked_texts()
        for host in hosts
        if host in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert found == []


def tracked_texts() -> list[Path]:
    suffixes = {".py", ".md", ".yaml", ".yml", ".toml", ".sh", ".html", ".service", ".txt", ""}
    hidden = {".git", ".venv", "build", "dist", "node_modules"}
    return [
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file()
        and path.suffix in suffixes
        and not any(
            part in hidden or part.endswith("cache") or part == "__pycache__"
            for part in path.relative_to(ROOT).parts
        )
    ]


class TestTheSetCheckItself:
    """A gate that cannot fail is no gate."""

    @pytest.mark.parametrize(
        "code",
        [
            "for x in {1, 2}: pass",
            "for x in set(y): pass",
            "[x for x in {a for a in b}]",
            "s: set[str] = f()\nfor x in s: pass",
            "s = set()\nlist(s)",
            "def f(s: frozenset[int]):\n    return [x for x in s]",
            "for x in a | {1}: pass",
            "s = {1}\nmin(s, key=f)",
            "print(*{1, 2})",
            "s = set()\nnext(iter(s))",
        ],
    )
    def test_catches(self, code: str) -> None:
        assert unordered_iterations(ast.parse(code)) != []

    @pytest.mark.parametrize(
        "code",
        [
            "for x in sorted({1, 2}): pass",
            "for x in [1, 2]: pass",
            "s = set()\nx in s",
            "s = {1}\nsum(x for x in s)",
            "s = {1}\n{x + 1 for x in s}",
            "s = {1}\nsorted({*s, 2})",
            "d = {1: 2}\nfor x in d: pass",
            "s = {1}\nany(x > 1 for x in s)",
            "s = {1}\nmax(s, default=0)",
        ],
    )
    def test_lets_pass(self, code: str) -> None:
        assert unordered_iterations(ast.parse(code)) == []

    def test_impure_imports_are_seen_inside_functions(self) -> None:
        code = "def f():\n    from os import path\n    import time as t"
        assert [name for _, name in impure_imports(ast.parse(code), set())] == [
            "os",
            "os.path",
            "time",
        ]
