"""A griffe extension for the API pages: constructors that Python generates from fields.

Equinox modules and named tuples have no `__init__` in the source, so a reader of the source
(which griffe is) sees none. This writes one from the annotated fields, inherited ones first.
"""

from collections.abc import Iterator
from typing import Any

import griffe


class ConstructorSignatures(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        found = [(cls, _fields(cls)) for cls in _members(pkg, griffe.Class)]
        kind = griffe.ParameterKind.positional_or_keyword
        for function in _members(pkg, griffe.Function):
            if "unknown" in function.parameters:  # what is refused is no argument
                del function.parameters["unknown"]
        for cls, fields in found:
            if fields:
                given = (
                    griffe.Parameter(
                        field.name, annotation=field.annotation, kind=kind, default=_default(field)
                    )
                    for field in fields
                )
                parameters = griffe.Parameters(griffe.Parameter("self", kind=kind), *given)
                cls.set_member("__init__", griffe.Function("__init__", parameters=parameters))


def _members(module: griffe.Object, kind: type) -> Iterator[Any]:
    """Those of this kind in the module and in the modules within it."""
    for member in module.members.values():
        if isinstance(member, kind):
            yield member
        elif isinstance(member, griffe.Module):
            yield from _members(member, kind)


def _fields(cls: griffe.Class) -> list[griffe.Attribute]:
    """The arguments of the constructor, or none where the source has one."""
    line = [cls, *cls.mro()]
    if any("__init__" in base.members or "dataclass" in str(base.decorators) for base in line):
        return []
    fields = {m.name: m for base in reversed(line) for m in base.members.values() if _is_field(m)}
    return list(fields.values())


def _is_field(member: griffe.Object | griffe.Alias) -> bool:
    return (
        isinstance(member, griffe.Attribute)
        and member.annotation is not None
        and "instance-attribute" in member.labels  # a ClassVar is no argument
        and not member.name.startswith("_")
        and "property" not in member.labels
    )


def _default(field: griffe.Attribute) -> Any:
    """The default itself, or the one inside `field(default=…)` or `setting(name, …)`."""
    call = field.value
    if not isinstance(call, griffe.ExprCall):
        return call
    for argument in call.arguments:
        if isinstance(argument, griffe.ExprKeyword) and argument.name == "default":
            return argument.value
    positional = [a for a in call.arguments if not isinstance(a, griffe.ExprKeyword)]
    return positional[1] if len(positional) > 1 else None
