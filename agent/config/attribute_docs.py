"""What the literals under the fields of a class say: the reference and the JSON Schema of rules.toml show them."""

import ast
import inspect
from itertools import pairwise
from textwrap import dedent


def attribute_docs(model: type) -> dict[str, str]:
    """Return the literals under the fields of a class and of its bases, each as one line."""
    docs: dict[str, str] = {}
    for owner in model.__mro__:
        if not owner.__module__.startswith("agent."):
            continue
        (node,) = ast.parse(dedent(inspect.getsource(owner))).body
        for field, literal in pairwise(node.body if isinstance(node, ast.ClassDef) else ()):
            match field, literal:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs.setdefault(name, " ".join(text.split()).replace("|", "\\|"))
    return docs
